//! What is on this device? Signatures of everything cairn must never format over.
//!
//! Owns the places to look and the marks to look for. The caller reads the byte ranges that
//! [`windows`] names and hands them to [`identify`], which answers with every [`Signature`] found,
//! not just the first: a disk can carry the remains of several owners, and whoever formats it
//! should hear of all.
//!
//! Built as a guard, so a doubtful mark counts: a magic number is believed even where the rest of
//! its structure looks odd, and checksums are not verified. What it cannot see is the exception:
//! bytes that were wanted and not given are an error, never taken for blank. A writecache that
//! begins at a `start_sector` is found by probing from that sector on. Labels come from a disk,
//! hence lose their control characters.

mod containers;
mod dm;
mod filesystems;
mod partitions;
mod view;

use core::fmt;
use core::ops::Range;

use view::View;

/// Bytes from the start of a device that hold all but a few marks: the last in here is that of
/// btrfs, whose superblock lies at 64 KiB.
const HEAD_BYTES: u64 = 68 << 10;
const SECTOR_BYTES: u64 = 512;

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
}

impl Kind {
    /// A short name, fit for a sentence and for a machine.
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
        }
    }
}

/// One mark found on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// What it belongs to.
    pub kind: Kind,
    /// Byte offset of the structure that carries the mark.
    pub offset: u64,
    /// The label its owner gave it, printable.
    pub label: Option<String>,
    /// The identity of the volume, in the usual form.
    pub uuid: Option<String>,
    /// A few words more, where there are any: versions, sizes, states.
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

/// Bytes that [`identify`] wanted and was not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("probe: found no bytes for {}..{}, expected every window to be read", .0.start, .0.end)]
pub struct MissingWindow(
    /// Byte range of the window.
    pub Range<u64>,
);

/// The byte ranges of a device of this size that [`identify`] looks at, in ascending order of
/// start. They begin at multiples of 512, are multiples of 512 long, may overlap and stay within
/// the device's whole sectors.
#[must_use]
pub fn windows(device_bytes: u64) -> Vec<Range<u64>> {
    let end = device_bytes / SECTOR_BYTES * SECTOR_BYTES;
    let single_sectors = containers::LUKS_SECONDARY_OFFSETS
        .into_iter()
        .chain(containers::md_offsets_at_end(device_bytes).into_iter().flatten())
        .chain(partitions::gpt_backup_offsets(device_bytes))
        .filter(|offset| offset + SECTOR_BYTES <= end)
        .map(|offset| offset..offset + SECTOR_BYTES);
    let head = 0..HEAD_BYTES.min(end);
    let mut windows: Vec<Range<u64>> = core::iter::once(head).chain(single_sectors).collect();
    windows.sort_by_key(|window| (window.start, window.end));
    windows.dedup();
    windows
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
    for window in windows(device_bytes) {
        let len = usize::try_from(window.end - window.start).ok();
        if len.and_then(|len| view.bytes(window.start, len)).is_none() {
            return Err(MissingWindow(window));
        }
    }
    let mut found = Vec::new();
    dm::find(&view, &mut found);
    filesystems::find(&view, &mut found);
    containers::find(&view, &mut found);
    partitions::find(&view, &mut found);
    Ok(found)
}

#[cfg(test)]
mod tests;
