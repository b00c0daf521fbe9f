//! The checks that the table of signatures makes in addition to a magic: fields that must make
//! sense together.
//!
//! A check reads the sector at the given byte offset, where its structure begins. If bytes were not
//! read, the check fails.

use super::SECTOR_BYTES;
use super::view::View;

/// True unless it is an image of version 1, a format of its own.
pub(super) fn qcow2(view: &View<'_>, offset: u64) -> bool {
    view.be_u32(offset + 4) != Some(1)
}

/// Where the volume recognition sequence lies, which ISO 9660 and UDF share.
const DESCRIPTORS_OFFSET: u64 = 32 << 10;
const DESCRIPTORS_END: u64 = 64 << 10;
/// A descriptor takes 2 KiB, or one block of a device with larger ones.
const DESCRIPTOR_BYTES: [u64; 2] = [2048, 4096];

/// The byte offset of the volume recognition sequence, if it has a descriptor of UDF.
pub(super) fn udf(view: &View<'_>) -> Option<u64> {
    let is_udf = |offset: u64| {
        let marks: [&[u8]; 6] = [b"BEA01", b"NSR02", b"NSR03", b"BOOT2", b"CDW02", b"TEA01"];
        marks.iter().any(|mark| view.has(offset + 1, mark))
    };
    let mut steps = DESCRIPTOR_BYTES.into_iter();
    let found = steps.any(|step| {
        let places = (DESCRIPTORS_OFFSET..DESCRIPTORS_END).step_by(step as usize);
        let mut in_sequence =
            places.take_while(|offset| is_udf(*offset) || view.has(offset + 1, b"CD001"));
        in_sequence.any(is_udf)
    });
    found.then_some(DESCRIPTORS_OFFSET)
}

/// Sectors in which a record of an external XFS log is looked for.
const XFS_LOG_SECTORS: u64 = 128;

/// The byte offset of a record header of an external XFS log.
pub(super) fn xfs_log(view: &View<'_>) -> Option<u64> {
    let is_record = |offset: &u64| {
        let version = view.be_u32(offset + 8);
        let length = view.be_u32(offset + 12);
        let format = view.be_u32(offset + 300);
        view.has(*offset, b"\xfe\xed\xba\xbe")
            && version.is_some_and(|version| (1..=3).contains(&version))
            && length.is_some_and(|length| length > 0 && length <= i32::MAX.cast_unsigned())
            && format.is_some_and(|format| (1..=3).contains(&format))
    };
    (0..XFS_LOG_SECTORS).map(|sector| sector * SECTOR_BYTES).find(is_record)
}

/// A boot sector whose parameter block describes a FAT, and which is recognised as one: by a name,
/// or by a jump at its start and the boot sector's mark at its end.
pub(super) fn fat(view: &View<'_>, offset: u64) -> bool {
    let names: [(u64, &[u8]); 6] = [
        (0x52, b"MSWIN"),
        (0x52, b"FAT32   "),
        (0x36, b"MSDOS"),
        (0x36, b"FAT16   "),
        (0x36, b"FAT12   "),
        (0x36, b"FAT     "),
    ];
    let named = names.iter().any(|(at, name)| view.has(offset + at, name));
    let others: [&[u8]; 2] = [b"JFS     ", b"HPFS    "];
    let jumps = matches!(view.u8_at(offset), Some(0xEB | 0xE9))
        && view.has(offset + 510, &[0x55, 0xAA])
        && !others.iter().any(|name| view.has(offset + 0x36, name));
    (named || jumps) && fat_parameters(view, offset).unwrap_or(false)
}

fn fat_parameters(view: &View<'_>, offset: u64) -> Option<bool> {
    let sector_bytes = view.u16_at(offset + 11)?;
    let (cluster, reserved) = (view.u8_at(offset + 13)?, view.u16_at(offset + 14)?);
    let (copies, media) = (view.u8_at(offset + 16)?, view.u8_at(offset + 21)?);
    let sectors = match view.u16_at(offset + 19)? {
        0 => view.u32_at(offset + 32)?,
        few => u32::from(few),
    };
    let fat_sectors = match view.u16_at(offset + 22)? {
        0 => view.u32_at(offset + 36)?,
        few => u32::from(few),
    };
    Some(
        sector_bytes.is_power_of_two()
            && (512..=4096).contains(&sector_bytes)
            && cluster.is_power_of_two()
            && reserved > 0
            && copies > 0
            && (media == 0xF0 || media >= 0xF8)
            && u64::from(sectors)
                > u64::from(reserved) + u64::from(copies) * u64::from(fat_sectors),
    )
}

/// The fields of a minix superblock, read in the byte order of its magic.
struct Minix {
    inodes: u64,
    inode_map_blocks: u64,
    zone_map_blocks: u64,
    first_zone: u64,
    zone_shift: u64,
    zones: u64,
    block_bytes: u64,
}

impl Minix {
    fn makes_sense(&self) -> bool {
        let bits = |blocks: u64| blocks * self.block_bytes * 8;
        self.zone_shift == 0
            && self.inodes > 0
            && bits(self.inode_map_blocks) > self.inodes
            && self.first_zone <= self.zones
            && bits(self.zone_map_blocks) > self.zones - self.first_zone
    }
}

/// Versions 1 and 2.
pub(super) fn minix_1_or_2(view: &View<'_>, offset: u64) -> bool {
    let read = || {
        let big = matches!(view.u8_at(offset + 16)?, 0x13 | 0x24);
        let short = |at| Some(u64::from(view.u16_of(offset + at, big)?));
        let version_2 = matches!(short(16)?, 0x2468 | 0x2478);
        let zones = if version_2 { u64::from(view.u32_of(offset + 20, big)?) } else { short(2)? };
        Some(Minix {
            inodes: short(0)?,
            inode_map_blocks: short(4)?,
            zone_map_blocks: short(6)?,
            first_zone: short(8)?,
            zone_shift: short(10)?,
            zones,
            block_bytes: 1024,
        })
    };
    read().is_some_and(|minix| minix.makes_sense())
}

/// Version 3.
pub(super) fn minix_3(view: &View<'_>, offset: u64) -> bool {
    let read = || {
        let big = view.u8_at(offset + 24)? == 0x4D;
        let short = |at| Some(u64::from(view.u16_of(offset + at, big)?));
        let long = |at| Some(u64::from(view.u32_of(offset + at, big)?));
        Some(Minix {
            inodes: long(0)?,
            inode_map_blocks: short(6)?,
            zone_map_blocks: short(8)?,
            first_zone: short(10)?,
            zone_shift: short(12)?,
            zones: long(20)?,
            block_bytes: short(28)?,
        })
    };
    read().is_some_and(|minix| minix.makes_sense())
}

/// Either superblock of NILFS2.
pub(super) fn nilfs2(view: &View<'_>, offset: u64) -> bool {
    const HEADER_BYTES: u16 = 20;
    const MOST_BYTES: u16 = 1024;
    let revision = view.u32_at(offset);
    let bytes = view.u16_at(offset + 8);
    let block_shift = view.u32_at(offset + 20);
    revision.is_some_and(|revision| revision <= 2)
        && bytes.is_some_and(|bytes| (HEADER_BYTES..=MOST_BYTES).contains(&bytes))
        && block_shift.is_some_and(|shift| shift <= 6)
}

/// Format number of a GFS superblock.
fn gfs_format(view: &View<'_>, offset: u64) -> Option<u32> {
    view.be_u32(offset + 24)
}

/// GFS, the first version.
pub(super) fn gfs(view: &View<'_>, offset: u64) -> bool {
    gfs_format(view, offset) == Some(1309)
}

/// GFS2, any version: the magic is believed unless it is GFS.
pub(super) fn gfs2(view: &View<'_>, offset: u64) -> bool {
    !gfs(view, offset)
}

/// A master directory block whose allocation blocks are whole sectors.
pub(super) fn hfs(view: &View<'_>, offset: u64) -> bool {
    let block_bytes = view.be_u32(offset + 20);
    block_bytes.is_some_and(|bytes| bytes > 0 && u64::from(bytes).is_multiple_of(SECTOR_BYTES))
}

/// A volume header of version 4 or 5 with a sane block size.
pub(super) fn hfsplus(view: &View<'_>, offset: u64) -> bool {
    let block_bytes = view.be_u32(offset + 40);
    matches!(view.u16_of(offset + 2, true), Some(4 | 5))
        && block_bytes.is_some_and(|bytes| bytes >= 512 && bytes.is_power_of_two())
}

/// A list of names and values: reserved bytes, then a first pair with a printable name.
pub(super) fn zfs(view: &View<'_>, offset: u64) -> bool {
    const LONGEST_NAME: u32 = 64;
    const LIST_BYTES: u32 = 112 << 10;
    let first_pair = view.be_u32(offset + 12);
    let name_bytes = view.be_u32(offset + 20).filter(|len| (1..=LONGEST_NAME).contains(len));
    let name = name_bytes.and_then(|len| view.bytes(offset + 24, len as usize));
    view.has(offset + 2, &[0, 0])
        && first_pair.is_some_and(|bytes| (1..=LIST_BYTES).contains(&bytes))
        && name.is_some_and(|name| name.iter().all(u8::is_ascii_graphic))
}

/// The second mark of an Adaptec block.
pub(super) fn adaptec(view: &View<'_>, offset: u64) -> bool {
    let sector = view.bytes(offset, SECTOR_BYTES as usize);
    sector.is_some_and(|sector| sector.windows(4).any(|bytes| bytes == b"DPTM"))
}

/// The sum of this many little-endian words of two bytes.
fn sum_of_words(view: &View<'_>, offset: u64, words: usize) -> Option<u16> {
    let words = view.bytes(offset, 2 * words)?.chunks_exact(2);
    Some(words.fold(0, |sum: u16, word| sum.wrapping_add(u16::from_le_bytes([word[0], word[1]]))))
}

/// The words of the block sum up to 0 or 1, and its RAID level exists.
pub(super) fn jmicron(view: &View<'_>, offset: u64) -> bool {
    matches!(sum_of_words(view, offset, 64), Some(0 | 1))
        && view.u8_at(offset + 48).is_some_and(|mode| mode <= 5)
}

/// The words before the checksum and the checksum sum up to 0.
pub(super) fn silicon(view: &View<'_>, offset: u64) -> bool {
    sum_of_words(view, offset, 0x13E / 2 + 1) == Some(0)
}

/// The bytes before the checksum sum up to it.
pub(super) fn via(view: &View<'_>, offset: u64) -> bool {
    let Some((checksum, summed)) = view.bytes(offset, 51).and_then(<[u8]>::split_last) else {
        return false;
    };
    let sum = summed.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte));
    sum == *checksum && summed[2] <= 2
}
