//! One finding about a pool's metadata, and how bad it is.

use core::fmt;

use crate::severity::Severity;
use crate::thin::blocks::Bad;
use crate::thin::walk::{Family, Fault, NodeLocation};
use crate::thin::{DeviceId, Error, Mapping, SpaceMapRoot, TIME_MAX};

/// Which of the two space maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Map {
    /// That of the data device.
    Data,
    /// That of the metadata device.
    Metadata,
}

impl fmt::Display for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Map::Data => "data",
            Map::Metadata => "metadata",
        })
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Block 0 is all zeros: activation would format a pool.
    Unformatted,
    /// The device has no superblock, or a wrong one.
    Superblock(Bad),
    /// A feature that forbids writing.
    ReadOnly(Error),
    /// The metadata is marked as needing a check; this is that check.
    NeedsCheck,
    /// The superblock's time is too large for mappings: mappings made since name wrong data blocks.
    Time {
        /// The superblock's.
        found: u32,
    },
    /// The held superblock is wrong.
    Held(Bad),
    /// A space map counts more blocks than its device has, or than it can count.
    MapSize {
        /// Which map.
        map: Map,
        /// Its root.
        root: SpaceMapRoot,
        /// The number of blocks that there are.
        most: u64,
    },
    /// A fault in a tree, or in a block that should be part of one.
    Tree {
        /// Where.
        place: NodeLocation,
        /// What is wrong.
        fault: Fault,
    },
    /// A bitmap that cannot be used.
    Bitmap {
        /// Of which map.
        map: Map,
        /// Which one.
        index: u64,
        /// What is wrong.
        fault: Fault,
    },
    /// Bitmaps that are missing from the index.
    NoBitmap {
        /// Of which map.
        map: Map,
        /// The first that is missing.
        index: u64,
        /// How many there should be.
        expected: u64,
    },
    /// A key of the top-level or the details tree that is not a device id.
    BadDeviceId {
        /// Which tree.
        family: Family,
        /// The key.
        key: u64,
    },
    /// A device that is in only one of the two trees.
    HalfADevice {
        /// The device.
        device: DeviceId,
        /// Whether in the metadata snapshot.
        held: bool,
        /// The tree that lacks it.
        missing: Family,
    },
    /// The details store another number of mappings than there are.
    MappedBlocks {
        /// The device.
        device: DeviceId,
        /// Whether in the metadata snapshot.
        held: bool,
        /// The number in the details.
        found: u64,
        /// The number in the leaves.
        expected: u64,
    },
    /// A mapping to a data block that does not exist, or with a time after the pool's.
    Mapping {
        /// Where.
        place: NodeLocation,
        /// The virtual block.
        key: u64,
        /// What it is mapped to.
        mapping: Mapping,
        /// Data blocks of the pool.
        blocks: u64,
        /// The pool's time.
        time: u32,
    },
    /// Blocks whose stored count is not the number of references to them.
    Count {
        /// In which map.
        map: Map,
        /// The first block.
        first: u64,
        /// The last block.
        last: u64,
        /// The stored count.
        found: u32,
        /// References.
        expected: u32,
    },
    /// A bitmap refers to the count tree, which has no count for this block.
    NoLargeCount {
        /// In which map.
        map: Map,
        /// The block.
        block: u64,
        /// References.
        expected: u32,
    },
    /// Counts in the last bitmap for blocks beyond the end of the map. They matter only if it
    /// grows.
    Beyond {
        /// Which map.
        map: Map,
        /// Blocks of the map.
        end: u64,
        /// Counts above zero after them.
        found: u64,
    },
    /// Counts that are too high were not looked for: the damaged trees may hold those references.
    CountsLeftOut,
}

impl Finding {
    /// Merges the next finding into this one, if it says the same about the next block.
    pub(super) fn extend(&mut self, next: &Finding) -> bool {
        let (
            Finding::Count { map, last, found, expected, .. },
            Finding::Count {
                map: same_map, first, found: same_found, expected: same_expected, ..
            },
        ) = (self, next)
        else {
            return false;
        };
        let same = (&*map, &*found, &*expected) == (same_map, same_found, same_expected);
        let goes_on = same && last.checked_add(1) == Some(*first);
        if goes_on {
            *last = *first;
        }
        goes_on
    }

    /// How bad this is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Finding::NeedsCheck
            | Finding::MappedBlocks { .. }
            | Finding::Bitmap { .. }
            | Finding::NoBitmap { .. }
            | Finding::NoLargeCount { .. }
            | Finding::Tree { fault: Fault::Underfull { .. }, .. } => Severity::Repairable,
            // The space maps contain nothing that does not follow from the trees.
            Finding::Tree { place, .. } if place.tree.family < Family::Details => {
                Severity::Repairable
            }
            Finding::Count { found, expected, .. } if found > expected => Severity::Repairable,
            // The map does not have those blocks. cairn drops the counts when a map grows. The
            // kernel, growing within the last bitmap, counts them as blocks in use that no tree
            // refers to: that space is lost, and a check then reports it. Until then thin_check
            // ignores them, too.
            Finding::Beyond { .. } | Finding::CountsLeftOut => Severity::Sound,
            _ => Severity::Damaged,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Unformatted => {
                write!(f, "superblock magic: found zeros, expected a formatted pool")
            }
            Finding::Superblock(bad) => bad.fmt(f),
            Finding::ReadOnly(error) => error.fmt(f),
            Finding::NeedsCheck => {
                write!(
                    f,
                    "superblock flags: found needs_check, expected no flag (repair clears it)"
                )
            }
            Finding::Time { found } => {
                write!(f, "superblock time: found {found}, expected at most {TIME_MAX}")
            }
            Finding::Held(bad) => write!(f, "metadata snapshot: {bad}"),
            Finding::MapSize { map, root, most } => {
                write!(
                    f,
                    "{map} space map nr_blocks: found {}, expected at most {most}",
                    root.blocks
                )
            }
            Finding::Tree { place, fault } => write!(f, "{place}: {fault}"),
            Finding::Bitmap { map, index, fault } => {
                write!(f, "{map} space map, bitmap {index}: {fault}")
            }
            Finding::NoBitmap { map, index, expected } => write!(
                f,
                "{map} space map, bitmap {index}: found none, expected {expected} bitmaps"
            ),
            Finding::BadDeviceId { family, key } => {
                write!(f, "{family}, key: found {key}, expected at most {}", DeviceId::MAX)
            }
            Finding::HalfADevice { device, held, missing } => {
                write!(f, "{}device {device}: missing from the {missing}", held_text(*held))
            }
            Finding::MappedBlocks { device, held, found, expected } => write!(
                f,
                "{}device {device}, details, mapped_blocks: found {found}, expected {expected}",
                held_text(*held)
            ),
            Finding::Mapping { place, key, mapping, blocks, time } => {
                mapping_text(f, place, *key, mapping, (*blocks, *time))
            }
            Finding::Count { map, first, last, found, expected } => {
                count_text(f, *map, (*first, *last), *found, *expected)
            }
            Finding::NoLargeCount { map, block, expected } => write!(
                f,
                "{map} block {block}, reference count: found none in the count tree, expected \
                 {expected}"
            ),
            Finding::Beyond { map, end, found } => write!(
                f,
                "{map} space map, reference counts from block {end} on, its end: found {found}, \
                 expected none (repair drops them)"
            ),
            Finding::CountsLeftOut => {
                write!(f, "reference counts that are too high were not looked for: see above")
            }
        }
    }
}

fn held_text(held: bool) -> &'static str {
    if held { "metadata snapshot, " } else { "" }
}

fn mapping_text(
    f: &mut fmt::Formatter<'_>,
    place: &NodeLocation,
    key: u64,
    mapping: &Mapping,
    (blocks, time): (u64, u32),
) -> fmt::Result {
    write!(f, "{}, block {}, virtual block {key}: ", place.tree, place.block)?;
    match mapping.block.0 < blocks {
        false => write!(f, "found data block {}, expected less than {blocks}", mapping.block),
        true => write!(f, "found time {}, expected at most {time}", mapping.time),
    }
}

fn count_text(
    f: &mut fmt::Formatter<'_>,
    map: Map,
    (first, last): (u64, u64),
    found: u32,
    expected: u32,
) -> fmt::Result {
    match first == last {
        true => write!(f, "{map} block {first}")?,
        false => write!(f, "{map} blocks {first} to {last}")?,
    }
    write!(f, ", reference count: found {found}, expected {expected}")
}
