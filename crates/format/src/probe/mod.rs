//! What is on this device? Signatures of everything cairn must never format over.
//!
//! Owns where to look and which magic numbers to look for. The caller reads the byte ranges that
//! [`windows`] names and passes them to [`identify`], which returns every [`Signature`] found, not
//! just the first: a disk can hold the remains of several owners, and a user who formats it should
//! learn of all of them.
//!
//! This protects data, so a doubtful signature counts: a magic number of four bytes is believed
//! even where the rest of its structure looks odd, and checksums are not verified. A shorter magic
//! number needs further fields that make sense. Bytes that were not read never count as blank: a
//! missing window is an error. A writecache that begins at a `start_sector` is found by probing
//! from that sector on. Labels come from a disk, so their control characters are replaced.
//!
//! A kind that is only recognised is a row of the table in `signatures`; a kind that is also
//! described (label, UUID, state) has code of its own. [`blank`] decides whether a range may be
//! formatted.

pub mod blank;
mod checks;
mod containers;
mod dm;
mod filesystems;
mod partitions;
mod signatures;
mod view;

use core::fmt;
use core::ops::Range;

use view::View;

/// The head of a device, which holds all but a few signatures; the last one in it is that of btrfs,
/// whose superblock lies at 64 KiB.
const HEAD_BYTES: u64 = 68 << 10;
const SECTOR_BYTES: u64 = 512;
/// Windows with a smaller gap between them are read as one.
const GAP_BYTES: u64 = 16 << 10;

/// What a signature belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A dm-writecache cache device.
    Writecache,
    /// A dm-snapshot persistent exception store.
    Snapshot,
    /// Metadata device of a thin pool.
    ThinMetadata,
    /// A bcache cache device.
    BcacheCache,
    /// A bcache backing device.
    BcacheBacking,
    /// An ext2 file system.
    Ext2,
    /// An ext3 file system.
    Ext3,
    /// An ext4 file system.
    Ext4,
    /// The external journal of an ext3 or ext4 file system.
    ExtJournal,
    /// An XFS file system.
    Xfs,
    /// A btrfs file system.
    Btrfs,
    /// A LUKS version 1 encrypted volume.
    Luks1,
    /// A LUKS version 2 encrypted volume.
    Luks2,
    /// A physical volume of LVM2.
    Lvm2,
    /// A member of a Linux software RAID.
    MdRaid,
    /// Swap space, or a hibernation image in it.
    Swap,
    /// A GUID partition table.
    Gpt,
    /// A master boot record, or another boot sector.
    Mbr,
    /// Any kind that is only recognised, by its name.
    Other(&'static str),
}

impl Kind {
    /// A short name, for messages and for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Writecache => "dm-writecache",
            Kind::Snapshot => "dm-snapshot",
            Kind::ThinMetadata => "thin-pool-metadata",
            Kind::BcacheCache => "bcache-cache",
            Kind::BcacheBacking => "bcache-backing",
            Kind::Ext2 => "ext2",
            Kind::Ext3 => "ext3",
            Kind::Ext4 => "ext4",
            Kind::ExtJournal => "ext-journal",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            Kind::Luks1 => "luks1",
            Kind::Luks2 => "luks2",
            Kind::Lvm2 => "lvm2-pv",
            Kind::MdRaid => "md-raid",
            Kind::Swap => "swap",
            Kind::Gpt => "gpt",
            Kind::Mbr => "mbr",
            Kind::Other(name) => name,
        }
    }

    /// Whether this is a cache, an exception store or a pool: a device whose contents are used
    /// through another volume, and which should not be an origin itself.
    #[must_use]
    pub fn is_layer(self) -> bool {
        const OTHERS: [&str; 3] = ["dm-cache-metadata", "dm-clone-metadata", "dm-era-metadata"];
        match self {
            Kind::Writecache | Kind::Snapshot | Kind::ThinMetadata => true,
            Kind::BcacheCache | Kind::BcacheBacking => true,
            Kind::Other(name) => OTHERS.contains(&name),
            _ => false,
        }
    }
}

/// One signature found on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// What it is a signature of.
    pub kind: Kind,
    /// Byte offset of the structure that has the signature.
    pub offset: u64,
    /// The volume's label, made printable.
    pub label: Option<String>,
    /// The volume's UUID, in the usual form.
    pub uuid: Option<String>,
    /// Further details, if any: versions, sizes, states.
    pub details: String,
}

impl Signature {
    fn new(kind: Kind, offset: u64) -> Signature {
        Signature { kind, offset, label: None, uuid: None, details: String::new() }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.kind.name(), self.offset)?;
        if let Some(label) = &self.label {
            write!(f, ", label {label}")?;
        }
        if let Some(uuid) = &self.uuid {
            write!(f, ", uuid {uuid}")?;
        }
        if !self.details.is_empty() {
            write!(f, ", {}", self.details)?;
        }
        Ok(())
    }
}

/// Bytes that [`identify`] needs and was not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("probe: found no bytes for {}..{}, expected every window to be read", .0.start, .0.end)]
pub struct MissingWindow(
    /// Byte range of the window.
    pub Range<u64>,
);

/// The byte ranges of a device of this size that [`identify`] reads, in ascending order. They begin
/// at multiples of 512, are multiples of 512 long, do not touch each other, and lie within the
/// device's whole sectors.
#[must_use]
pub fn windows(device_bytes: u64) -> Vec<Range<u64>> {
    let end = device_bytes / SECTOR_BYTES * SECTOR_BYTES;
    let single_sectors = containers::LUKS_SECONDARY_OFFSETS
        .into_iter()
        .chain(containers::md_offsets_at_end(device_bytes).into_iter().flatten())
        .chain(partitions::gpt_backup_offsets(device_bytes))
        .filter(|offset| offset.checked_add(SECTOR_BYTES).is_some_and(|after| after <= end))
        .map(|offset| offset..offset + SECTOR_BYTES);
    let rows = signatures::TABLE.iter().filter_map(|row| row.window(device_bytes));
    let head = 0..HEAD_BYTES.min(end);
    merged(core::iter::once(head).chain(single_sectors).chain(rows).collect())
}

/// Joins windows that overlap or lie close together.
fn merged(mut windows: Vec<Range<u64>>) -> Vec<Range<u64>> {
    windows.sort_by_key(|window| (window.start, window.end));
    let mut apart: Vec<Range<u64>> = Vec::new();
    for window in windows {
        match apart.last_mut() {
            Some(last) if window.start.saturating_sub(last.end) < GAP_BYTES => {
                last.end = last.end.max(window.end);
            }
            _ => apart.push(window),
        }
    }
    apart
}

/// Finds every signature on a device of `device_bytes`, given pieces of it as (byte offset, bytes)
/// in any order. A piece may be larger than a window, up to the whole device.
///
/// # Errors
/// [`MissingWindow`] if one of the [`windows`] lies in no single piece.
pub fn identify(
    device_bytes: u64,
    pieces: &[(u64, &[u8])],
) -> Result<Vec<Signature>, MissingWindow> {
    let view = View::new(device_bytes, pieces);
    require(&view, windows(device_bytes))?;
    let mut found = Vec::new();
    dm::find(&view, &mut found);
    filesystems::find(&view, &mut found);
    containers::find(&view, &mut found);
    signatures::find(&view, &mut found);
    partitions::find(&view, &mut found);
    Ok(found)
}

fn require(view: &View<'_>, windows: Vec<Range<u64>>) -> Result<(), MissingWindow> {
    let is_missing = |window: &Range<u64>| {
        let len = usize::try_from(window.end - window.start).ok();
        len.and_then(|len| view.bytes(window.start, len)).is_none()
    };
    windows.into_iter().find(is_missing).map_or(Ok(()), |window| Err(MissingWindow(window)))
}

#[cfg(test)]
mod tests;
