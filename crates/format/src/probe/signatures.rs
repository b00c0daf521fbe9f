//! The table of signatures of the kinds that cairn only recognises: name, place, magic.
//!
//! A magic of four bytes or more is believed. A shorter one, or one that other data can hold by
//! chance, needs a check of further fields. A row also determines which bytes of the device must be
//! read: those of its magic and, with a check, the first sector of its structure.

use core::ops::Range;

use super::checks;
use super::view::View;
use super::{Kind, SECTOR_BYTES, Signature};

/// Where a structure begins.
#[derive(Debug, Clone, Copy)]
pub(super) enum MagicLocation {
    /// This many bytes after the start of the device.
    Start(u64),
    /// `back` bytes before the device's end, which is first rounded down to a multiple of `align`.
    End { back: u64, align: u64 },
}

impl MagicLocation {
    /// The byte offset on a device of this size; none if the device is too small.
    pub(super) fn offset(self, device_bytes: u64) -> Option<u64> {
        match self {
            MagicLocation::Start(offset) => (offset < device_bytes).then_some(offset),
            MagicLocation::End { back, align } => (device_bytes / align * align).checked_sub(back),
        }
    }
}

/// Decides whether a structure, at this byte offset, is what its magic says.
type Check = fn(&View<'_>, u64) -> bool;

/// One signature in one place.
pub(super) struct Row {
    pub(super) name: &'static str,
    place: MagicLocation,
    /// Offset of the magic within the structure.
    at: u64,
    /// Any of these.
    magics: &'static [&'static [u8]],
    check: Option<Check>,
}

impl Row {
    const fn new(
        name: &'static str,
        place: MagicLocation,
        at: u64,
        magics: &'static [&'static [u8]],
    ) -> Row {
        Row { name, place, at, magics, check: None }
    }

    const fn when(self, check: Check) -> Row {
        Row { check: Some(check), ..self }
    }

    /// The whole sectors that must be read for this row.
    pub(super) fn window(&self, device_bytes: u64) -> Option<Range<u64>> {
        let start = self.place.offset(device_bytes)?;
        let longest = self.magics.iter().map(|magic| magic.len() as u64).max().unwrap_or(0);
        let magic_end = start + self.at + longest;
        let (first, end) = match self.check {
            Some(_) => (start, magic_end.max(start + SECTOR_BYTES)),
            None => (start + self.at, magic_end),
        };
        let first = first / SECTOR_BYTES * SECTOR_BYTES;
        let device_end = device_bytes / SECTOR_BYTES * SECTOR_BYTES;
        let end = end.div_ceil(SECTOR_BYTES) * SECTOR_BYTES;
        Some(first..end.min(device_end)).filter(|window| !window.is_empty())
    }

    fn find(&self, view: &View<'_>) -> Option<Signature> {
        let offset = self.place.offset(view.device_bytes())?;
        let magic = self.magics.iter().any(|magic| view.has(offset + self.at, magic));
        let accepted = magic && self.check.is_none_or(|check| check(view, offset));
        accepted.then(|| Signature::new(Kind::Other(self.name), offset))
    }
}

pub(super) fn find(view: &View<'_>, found: &mut Vec<Signature>) {
    for row in TABLE {
        let before: &[Signature] = found;
        let known = |new: &Signature| {
            before.iter().any(|old| (old.kind, old.offset) == (new.kind, new.offset))
        };
        if let Some(signature) = row.find(view).filter(|new| !known(new)) {
            found.push(signature);
        }
    }
    found.extend(checks::udf(view).map(|offset| Signature::new(Kind::Other("udf"), offset)));
    let log = checks::xfs_log(view);
    found.extend(log.map(|offset| Signature::new(Kind::Other("xfs-log"), offset)));
}

const fn start(offset: u64) -> MagicLocation {
    MagicLocation::Start(offset)
}

/// `back` bytes before the end of the last whole sector.
const fn end(back: u64) -> MagicLocation {
    MagicLocation::End { back, align: SECTOR_BYTES }
}

const BCACHEFS: &[&[u8]] = &[b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"];
const DRBD: &[&[u8]] = &[b"\x83\x74\x02\x6b", b"\x83\x74\x02\x6c", b"\x83\x74\x02\x6d"];
const DRBD_MAGIC: u64 = 60;
const HPT37X: &[&[u8]] = &[b"\xf0\x16\x78\x5a", b"\xfd\x16\x78\x5a"];
const HPT45X: &[&[u8]] = &[b"\xf3\x16\x78\x5a", b"\xfd\x16\x78\x5a"];
const ISW: &[&[u8]] = &[b"Intel Raid ISM Cfg Sig. "];
const MINIX_1_AND_2: &[&[u8]] = &[
    b"\x7f\x13",
    b"\x8f\x13",
    b"\x13\x7f",
    b"\x13\x8f",
    b"\x68\x24",
    b"\x78\x24",
    b"\x24\x68",
    b"\x24\x78",
];
const PROMISE: &[&[u8]] = &[b"Promise Technology, Inc."];
const STRATIS: &[&[u8]] = &[b"!Stra0tis\x86\xff\x02^\x41rh"];
const SYSV: &[&[u8]] = &[b"\x20\x7e\x18\xfd", b"\xfd\x18\x7e\x20"];
const SYSV_MAGIC: u64 = 504;
const UFS: &[&[u8]] = &[
    b"\x54\x19\x01\x00",
    b"\x00\x01\x19\x54",
    b"\x19\x01\x54\x19",
    b"\x19\x54\x01\x19",
    b"\x12\x56\x19\x00",
    b"\x00\x19\x56\x12",
    b"\x14\x50\x09\x00",
    b"\x00\x09\x50\x14",
    b"\x95\x21\x61\x00",
    b"\x00\x61\x21\x95",
    b"\x94\x19\x23\x05",
    b"\x05\x23\x19\x94",
];
const UFS_MAGIC: u64 = 1372;
/// Encoded as XDR, in either byte order of the machine.
const ZFS_LIST: &[&[u8]] = &[b"\x01\x00", b"\x01\x01"];
/// The size of each of the four labels; the list of names and values begins 16 KiB after a label's
/// start.
const ZFS_LABEL_BYTES: u64 = 256 << 10;
const ZFS_LIST_OFFSET: u64 = 16 << 10;

/// The list in the last label, or `labels - 1` labels before it.
const fn zfs_end(labels: u64) -> MagicLocation {
    MagicLocation::End { back: labels * ZFS_LABEL_BYTES - ZFS_LIST_OFFSET, align: ZFS_LABEL_BYTES }
}

const fn promise(sectors: u64) -> Row {
    Row::new("promise-raid", end(sectors * SECTOR_BYTES), 0, PROMISE)
}

/// Every row: file systems first, then structures that hold other volumes.
#[rustfmt::skip]
pub(super) const TABLE: &[Row] = &[
    Row::new("apfs", start(0), 32, &[b"NXSB"]),
    Row::new("bcachefs", start(4 << 10), 24, BCACHEFS),
    Row::new("bcachefs", start(2 << 20), 24, BCACHEFS),
    Row::new("bcachefs", end(1 << 20), 24, BCACHEFS),
    Row::new("befs", start(0), 32, &[b"BFS1", b"1SFB"]),
    Row::new("befs", start(512), 32, &[b"BFS1", b"1SFB"]),
    Row::new("bfs", start(0), 0, &[b"\xce\xfa\xad\x1b"]),
    Row::new("cramfs", start(0), 0, &[b"\x45\x3d\xcd\x28", b"\x28\xcd\x3d\x45"]),
    Row::new("erofs", start(1024), 0, &[b"\xe2\xe1\xf5\xe0"]),
    Row::new("exfat", start(0), 3, &[b"EXFAT   "]),
    Row::new("exfs", start(0), 0, &[b"EXFS"]),
    Row::new("f2fs", start(1024), 0, &[b"\x10\x20\xf5\xf2"]),
    Row::new("f2fs", start(5 << 10), 0, &[b"\x10\x20\xf5\xf2"]),
    Row::new("gfs", start(64 << 10), 0, &[b"\x01\x16\x19\x70"]).when(checks::gfs),
    Row::new("gfs2", start(64 << 10), 0, &[b"\x01\x16\x19\x70"]).when(checks::gfs2),
    Row::new("hfs", start(1024), 0, &[b"BD"]).when(checks::hfs),
    Row::new("hfsplus", start(1024), 0, &[b"H+", b"HX"]).when(checks::hfsplus),
    Row::new("hpfs", start(8 << 10), 0, &[b"\x49\xe8\x95\xf9"]),
    Row::new("iso9660", start(32 << 10), 1, &[b"CD001"]),
    Row::new("iso9660", start(32 << 10), 9, &[b"CDROM"]),
    Row::new("jfs", start(32 << 10), 0, &[b"JFS1"]),
    Row::new("minix", start(1024), 16, MINIX_1_AND_2).when(checks::minix_1_or_2),
    Row::new("minix", start(1024), 24, &[b"\x5a\x4d", b"\x4d\x5a"]).when(checks::minix_3),
    Row::new("mpool", start(0), 0, &[b"mpoolDev"]),
    Row::new("netware", start(4 << 10), 0, &[b"SPB5"]),
    Row::new("nilfs2", start(1024), 6, &[b"\x34\x34"]).when(checks::nilfs2),
    Row::new("nilfs2", end(4 << 10), 6, &[b"\x34\x34"]).when(checks::nilfs2),
    Row::new("ntfs", start(0), 3, &[b"NTFS    "]),
    Row::new("ocfs", start(8 << 10), 0, &[b"OracleCFS"]),
    Row::new("ocfs2", start(1 << 10), 0, &[b"OCFSV2"]),
    Row::new("ocfs2", start(2 << 10), 0, &[b"OCFSV2"]),
    Row::new("ocfs2", start(4 << 10), 0, &[b"OCFSV2"]),
    Row::new("ocfs2", start(8 << 10), 0, &[b"OCFSV2"]),
    Row::new("refs", start(0), 0, &[b"\0\0\0ReFS\0"]),
    Row::new("reiser4", start(64 << 10), 0, &[b"ReIsEr4"]),
    Row::new("reiserfs", start(64 << 10), 52, &[b"ReIsErFs", b"ReIsEr2Fs", b"ReIsEr3Fs"]),
    Row::new("reiserfs", start(8 << 10), 52, &[b"ReIsErFs"]),
    Row::new("reiserfs", start(8 << 10), 20, &[b"ReIsErFs"]),
    Row::new("romfs", start(0), 0, &[b"-rom1fs-"]),
    Row::new("scoutfs", start(64 << 10), 4, &[b"\x8b\x42\x3c\x10"]),
    Row::new("squashfs", start(0), 0, &[b"hsqs", b"sqsh"]),
    Row::new("sysv", start(512), SYSV_MAGIC, SYSV),
    Row::new("sysv", start((9 << 10) + 512), SYSV_MAGIC, SYSV),
    Row::new("sysv", start((15 << 10) + 512), SYSV_MAGIC, SYSV),
    Row::new("sysv", start((18 << 10) + 512), SYSV_MAGIC, SYSV),
    Row::new("ubifs", start(0), 0, &[b"\x31\x18\x10\x06"]),
    Row::new("ufs", start(0), UFS_MAGIC, UFS),
    Row::new("ufs", start(8 << 10), UFS_MAGIC, UFS),
    Row::new("ufs", start(64 << 10), UFS_MAGIC, UFS),
    Row::new("ufs", start(256 << 10), UFS_MAGIC, UFS),
    Row::new("vfat", start(0), 11, &[b""]).when(checks::fat),
    Row::new("vmfs", start(2 << 20), 0, &[b"\x5e\xf1\xab\x2f"]),
    Row::new("vxfs", start(1024), 0, &[b"\xf5\xfc\x01\xa5"]),
    Row::new("vxfs", start(8 << 10), 0, &[b"\xa5\x01\xfc\xf5"]),
    Row::new("xenix", start(2 << 10), 0, &[b"\x2b\x55\x44", b"\x44\x55\x2b"]),
    Row::new("zonefs", start(0), 0, &[b"SFOZ"]),

    Row::new("adaptec-raid", end(512), 0, &[b"\x37\xfc\x4d\x1e"]).when(checks::adaptec),
    Row::new("bitlocker", start(0), 3, &[b"-FVE-FS-"]),
    Row::new("ceph-bluestore", start(0), 0, &[b"bluestore block device"]),
    Row::new("ddf-raid", end(512), 0, &[b"\xde\x11\xde\x11"]),
    Row::new("ddf-raid", end(257 * 512), 0, &[b"\xde\x11\xde\x11"]),
    Row::new("dm-cache-metadata", start(0), 32, &[b"\x03\xc4\x18\0\0\0\0\0"]),
    Row::new("dm-clone-metadata", start(0), 32, &[b"\x64\x7f\xf2\x8a\0\0\0\0"]),
    Row::new("dm-era-metadata", start(0), 32, &[b"\x7b\x07\xc1\x7e\0\0\0\0"]),
    Row::new("dm-integrity", start(0), 0, &[b"integrt\0"]),
    Row::new("dm-verity", start(0), 0, &[b"verity\0\0"]),
    Row::new("drbd", MagicLocation::End { back: 4 << 10, align: 4 << 10 }, DRBD_MAGIC, DRBD),
    Row::new("drbd", end(4 << 10), DRBD_MAGIC, DRBD),
    Row::new("drbdmanage", start(0), 0, &[b"$DRBDmgr=q"]),
    Row::new("drbdproxy", start(0), 0, &[b"DRBDdlh*"]),
    Row::new("highpoint-raid", start(4608), 32, HPT37X),
    Row::new("highpoint-raid", end(11 * 512), 0, HPT45X),
    Row::new("intel-raid", end(2 * 512), 0, ISW),
    Row::new("intel-raid", MagicLocation::End { back: 2 * 4096, align: 4096 }, 0, ISW),
    Row::new("jmicron-raid", end(512), 0, &[b"JM"]).when(checks::jmicron),
    Row::new("lsi-raid", end(512), 0, &[b"$XIDE$"]),
    Row::new("lvm1-pv", start(0), 0, &[b"HM\x01\0", b"HM\x02\0"]),
    Row::new("nvidia-raid", end(2 * 512), 0, &[b"NVIDIA  "]),
    Row::new("oracleasm", start(0), 32, &[b"ORCLDISK"]),
    Row::new("qcow", start(0), 0, &[b"QFI\xfb\0\0\0\x01"]),
    Row::new("qcow2", start(0), 0, &[b"QFI\xfb"]).when(checks::qcow2),
    promise(16), promise(63), promise(255), promise(256), promise(399), promise(591), promise(675),
    promise(735), promise(911), promise(951), promise(974), promise(991), promise(3087),
    Row::new("silicon-raid", end(512), 0x60, &[b"\0\0\0\x2f"]).when(checks::silicon),
    Row::new("stratis", start(512), 4, STRATIS),
    Row::new("stratis", start(9 * 512), 4, STRATIS),
    Row::new("swap-hibernated", start(0), 0, &[b"\xed\xc3\x02\xe9\x98\x56\xe5\x0c"]),
    Row::new("ubi", start(0), 0, &[b"UBI#"]),
    Row::new("vdo", start(0), 0, &[b"dmvdo001"]),
    Row::new("via-raid", end(512), 0, &[b"\x55\xaa"]).when(checks::via),
    Row::new("vmfs-volume", start(1 << 20), 0, &[b"\x0d\xd0\x01\xc0"]),
    Row::new("zfs", start(ZFS_LIST_OFFSET), 0, ZFS_LIST).when(checks::zfs),
    Row::new("zfs", start(ZFS_LABEL_BYTES + ZFS_LIST_OFFSET), 0, ZFS_LIST).when(checks::zfs),
    Row::new("zfs", zfs_end(2), 0, ZFS_LIST).when(checks::zfs),
    Row::new("zfs", zfs_end(1), 0, ZFS_LIST).when(checks::zfs),
];
