//! What can be wrong with one record, given the records before it.
//!
//! Promises that the records a [`Judge`] accepts are consistent: each names a data chunk and an
//! origin chunk that exist and that no other accepted record names. Of two records that contradict
//! each other the earlier one is accepted: records are appended, so the later one is either a
//! leftover from before the earlier, or its writer did not know of the earlier.
//!
//! Memory: two map entries per accepted record, some 80 bytes.

use core::fmt;
use rustc_hash::FxHashMap;

use super::layout::DEVICE_SECTORS_MAX;
use super::{CowChunk, Layout, OriginChunk, Record};
use crate::severity::Severity;

/// What the store is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size of the COW device, in sectors.
    pub device_sectors: u64,
    /// Size of the origin, in sectors. An unknown size is not checked.
    pub origin_sectors: Option<u64>,
}

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The new chunk does not lie on the device.
    BeyondDevice {
        /// Chunks of the device.
        chunks: u64,
    },
    /// The new chunk is the header's or an area's.
    Metadata,
    /// The old chunk does not lie on the origin.
    BeyondOrigin {
        /// Chunks of the origin, or of the largest possible one.
        chunks: u64,
    },
    /// An earlier record has the same old and new chunk.
    Repeated {
        /// Its index in the list.
        first: u64,
    },
    /// An earlier record keeps the same old chunk in another place.
    SameOld {
        /// Its index in the list.
        first: u64,
        /// Where it keeps the chunk.
        new: CowChunk,
    },
    /// An earlier record keeps another old chunk in the same place.
    SameNew {
        /// Its index in the list.
        first: u64,
        /// The chunk it keeps there.
        old: OriginChunk,
    },
}

impl Fault {
    /// How bad this is. Only a record that repeats an earlier one exactly is no loss.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Fault::Repeated { .. } => Severity::Repairable,
            _ => Severity::Damaged,
        }
    }

    /// The finding about a record, in one line.
    pub(super) fn describe(
        &self,
        f: &mut fmt::Formatter<'_>,
        index: u64,
        record: &Record,
    ) -> fmt::Result {
        let Record { old, new } = record;
        write!(f, "record {index} ")?;
        match self {
            Fault::BeyondDevice { chunks } => {
                write!(f, "new_chunk: found {new}, expected a chunk below the device's {chunks}")
            }
            Fault::Metadata => {
                write!(f, "new_chunk: found {new}, a metadata chunk, expected a data chunk")
            }
            Fault::BeyondOrigin { chunks } => {
                write!(f, "old_chunk: found {old}, expected a chunk below the origin's {chunks}")
            }
            Fault::Repeated { first } => {
                write!(f, "found chunk {old} kept as {new}, which record {first} says already")
            }
            Fault::SameOld { first, new: other } => write!(
                f,
                "old_chunk: found {old} kept as {new}, which record {first} keeps as {other}"
            ),
            Fault::SameNew { first, old: other } => write!(
                f,
                "new_chunk: found {new} for chunk {old}, where record {first} keeps {other}"
            ),
        }
    }
}

/// Checks records one after another.
#[derive(Debug, Clone)]
pub(super) struct Judge {
    layout: Layout,
    origin_chunks: u64,
    by_old: FxHashMap<OriginChunk, (u64, CowChunk)>,
    by_new: FxHashMap<CowChunk, (u64, OriginChunk)>,
}

impl Judge {
    pub(super) fn new(layout: Layout, origin_sectors: Option<u64>) -> Judge {
        let sectors = origin_sectors.unwrap_or(DEVICE_SECTORS_MAX).min(DEVICE_SECTORS_MAX);
        let origin_chunks = layout.chunk_size().chunks_of(sectors);
        Judge { layout, origin_chunks, by_old: FxHashMap::default(), by_new: FxHashMap::default() }
    }

    /// The first fault of a record. A record without a fault is remembered, to check later ones
    /// against.
    pub(super) fn judge(&mut self, index: u64, record: Record) -> Option<Fault> {
        let fault = self.fault(record);
        if fault.is_none() {
            self.by_old.insert(record.old, (index, record.new));
            self.by_new.insert(record.new, (index, record.old));
        }
        fault
    }

    fn fault(&self, Record { old, new }: Record) -> Option<Fault> {
        if new.0 >= self.layout.chunks() {
            return Some(Fault::BeyondDevice { chunks: self.layout.chunks() });
        }
        if self.layout.is_metadata_chunk(new) {
            return Some(Fault::Metadata);
        }
        if old.0 >= self.origin_chunks {
            return Some(Fault::BeyondOrigin { chunks: self.origin_chunks });
        }
        match (self.by_old.get(&old), self.by_new.get(&new)) {
            (Some(&(first, kept)), _) if kept == new => Some(Fault::Repeated { first }),
            (Some(&(first, new)), _) => Some(Fault::SameOld { first, new }),
            (None, Some(&(first, old))) => Some(Fault::SameNew { first, old }),
            (None, None) => None,
        }
    }
}
