//! One finding about a cache, and how bad it is.

use core::fmt;
use std::ops::Range;

use super::Volume;
use crate::bcache::load::{Fault, NodePlace, Place};
use crate::bcache::{Error, Key, STALE_MAX, Uuid};
use crate::severity::Severity;

/// What a bucket is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Nothing that counts.
    Free,
    /// The superblock and what is before it.
    Superblock,
    /// The journal.
    Journal,
    /// Priorities.
    Priorities,
    /// The array of uuids.
    Uuids,
    /// A node of the tree.
    Node,
    /// Data.
    Data,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Use::Free => "nothing",
            Use::Superblock => "the superblock",
            Use::Journal => "the journal",
            Use::Priorities => "priorities",
            Use::Uuids => "uuids",
            Use::Node => "a node",
            Use::Data => "data",
        })
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The system refused to read the superblock.
    Unreadable(String),
    /// The superblock is wrong, or does not fit its device.
    Superblock(Error),
    /// The bucket size has the obsolete form: such a cache is only read.
    Obsolete,
    /// Something is damaged, and what it held is not known.
    Fault(Fault),
    /// A part of an entry lies behind the newest one of the journal.
    Torn(Fault),
    /// Keys of an interior node are out of order.
    ChildOrder {
        /// The node.
        place: NodePlace,
        /// The key before it.
        before: Key,
        /// The key.
        found: Key,
    },
    /// A bucket holds two things.
    TwoUses {
        /// The bucket.
        bucket: u64,
        /// What it holds.
        first: Use,
        /// What else it holds.
        second: Use,
    },
    /// Two extents name one sector of the cache.
    Shared {
        /// The one.
        first: Key,
        /// The other.
        second: Key,
    },
    /// The only copy of data was in a bucket that was reused.
    StaleDirty {
        /// What it was.
        key: Key,
        /// How often the bucket was reused.
        behind: u8,
    },
    /// A key that is so far behind its bucket that the kernel refuses the cache.
    TooStale {
        /// The key.
        key: Key,
        /// How often the bucket was reused.
        behind: u8,
    },
    /// Data whose only copy is in the cache cannot be read.
    DataUnreadable {
        /// How many sectors.
        sectors: u64,
    },
    /// Extents of an inode that no volume has.
    NoVolume(Volume),
    /// Two volumes have one identifier.
    SameUuid {
        /// The identifier.
        uuid: Uuid,
        /// The inodes of both.
        inodes: (u32, u32),
    },
    /// An extent beyond the end of its volume, or before its beginning.
    Beyond {
        /// The extent.
        key: Key,
        /// The sectors of the volume, as keys count them.
        size: Range<u64>,
    },
    /// The superblock of a backing device is wrong.
    Backing(Error),
    /// A backing device belongs to another set, or to none.
    OtherSet {
        /// The device.
        uuid: Uuid,
        /// Its set.
        found: Uuid,
        /// This set.
        expected: Uuid,
    },
    /// A backing device that is not clean, and that the cache does not know.
    Unknown {
        /// The device.
        uuid: Uuid,
    },
    /// A backing device was used without its cache.
    Stale {
        /// The device.
        uuid: Uuid,
        /// What the cache has of it.
        volume: Volume,
    },
    /// The state of a backing device is clean, and the cache has dirty data of it.
    CleanState {
        /// The device.
        uuid: Uuid,
        /// What the cache has of it.
        volume: Volume,
    },
    /// The state of a backing device is none, and the cache has dirty data of it.
    NoneState {
        /// The device.
        uuid: Uuid,
        /// What the cache has of it.
        volume: Volume,
    },
}

impl Finding {
    /// How bad this is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Finding::Torn(_) | Finding::CleanState { .. } => Severity::SoundAfterRecovery,
            Finding::Obsolete | Finding::TooStale { .. } | Finding::NoneState { .. } => {
                Severity::Repairable
            }
            Finding::NoVolume(volume) if volume.dirty_sectors == 0 => Severity::Repairable,
            Finding::Beyond { key, .. } if !key.is_dirty() => Severity::Repairable,
            Finding::Stale { volume, .. } if volume.dirty_sectors == 0 => Severity::Repairable,
            _ => Severity::Damaged,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Unreadable(said) => write!(f, "superblock: cannot be read: {said}"),
            Finding::Superblock(error) => write!(f, "{error}"),
            Finding::Obsolete => write!(
                f,
                "superblock feature_incompat: found the obsolete form of large buckets: this cache \
                 can only be read"
            ),
            Finding::Fault(fault) => write!(f, "{fault}"),
            Finding::Torn(fault) => write!(f, "{fault} (possibly a torn last entry)"),
            Finding::ChildOrder { place, before, found } => {
                let place = Place::Node(*place);
                write!(f, "{place}: found child {found:?} behind {before:?}, expected order")
            }
            Finding::TwoUses { bucket, first, second } => {
                write!(f, "bucket {bucket}: found {second} in it, expected {first} alone")
            }
            Finding::Shared { first, second } => {
                write!(f, "extent {second:?}: found its sectors in {first:?} too")
            }
            Finding::StaleDirty { key, behind } => write!(
                f,
                "extent {key:?}: its bucket was reused (generation + {behind}): its data is lost"
            ),
            Finding::TooStale { key, behind } => write!(
                f,
                "extent {key:?}: its bucket was reused: found generation + {behind}, expected at \
                 most + {STALE_MAX}"
            ),
            Finding::DataUnreadable { sectors } => {
                write!(f, "data: found {sectors} dirty sectors that cannot be read: they are lost")
            }
            Finding::NoVolume(volume) => write!(
                f,
                "inode {}: found {} extents, {} sectors of them dirty, expected none (no volume)",
                volume.inode, volume.extents, volume.dirty_sectors
            ),
            Finding::SameUuid { uuid, inodes } => {
                write!(f, "volume {uuid}: found it as inodes {} and {}", inodes.0, inodes.1)
            }
            Finding::Beyond { key, size } => write!(
                f,
                "extent {key:?}: found beyond its volume, expected sectors {} to {}",
                size.start,
                size.end.saturating_sub(1)
            ),
            Finding::Backing(_)
            | Finding::OtherSet { .. }
            | Finding::Unknown { .. }
            | Finding::Stale { .. }
            | Finding::CleanState { .. }
            | Finding::NoneState { .. } => self.fmt_backing(f),
        }
    }
}

impl Finding {
    /// A finding about a backing device; nothing for others.
    fn fmt_backing(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Backing(error) => write!(f, "backing device: {error}"),
            Finding::OtherSet { uuid, found, expected } if found.is_zero() => {
                write!(f, "backing device {uuid}: found it in no set, expected {expected}")
            }
            Finding::OtherSet { uuid, found, expected } => {
                write!(f, "backing device {uuid}: found it in set {found}, expected {expected}")
            }
            Finding::Unknown { uuid } => write!(
                f,
                "backing device {uuid}: found no volume of it in the cache, which should have \
                 data that it lacks"
            ),
            Finding::Stale { uuid, volume } => {
                let found = "inconsistent (it was used without its cache, which has";
                fmt_state(f, uuid, volume, [found, "sectors that it lacks)"])
            }
            Finding::CleanState { uuid, volume } => {
                let what = "dirty sectors of it in the cache, which each activation counts and a \
                            drain writes back";
                fmt_state(f, uuid, volume, ["clean, and", what])
            }
            Finding::NoneState { uuid, volume } => {
                let found = "none, expected dirty (the cache has";
                fmt_state(f, uuid, volume, [found, "sectors that it lacks)"])
            }
            _ => Ok(()),
        }
    }
}

/// The state of a backing device, with the number of its dirty sectors between the two texts.
fn fmt_state(
    f: &mut fmt::Formatter<'_>,
    uuid: &Uuid,
    volume: &Volume,
    [found, what]: [&str; 2],
) -> fmt::Result {
    write!(f, "backing device {uuid}: state: found {found} {} {what}", volume.dirty_sectors)
}
