//! Plans how a damaged store becomes a sound one: which records to keep, and where they go.
//!
//! Give a [`Repair`] the header, then the bytes it [wants](Repair::wants); for every slot that is
//! not empty it returns a [`Step`], keep or drop and why, and at the end a [`Plan`]. A store is
//! repaired in one of two ways, and the caller does all reading and writing:
//!
//! - into a new device, without touching the old one: kept record *i* gets index *i*, and its chunk
//!   goes to [`packed_chunk`] (*i*). Data and records are made durable before the header is
//!   written, so that a crash leaves a device without a header;
//! - in place, in this order, where each record is written alone, so that it lies in one sector and
//!   cannot be torn:
//!   1. [`Plan::moves`]: kept records from the tail are copied over dropped ones. A crash leaves
//!      some records twice, which a check calls repairable, and dropped ones not yet overwritten;
//!   2. these copies are made durable: every kept record now has an index below [`Plan::kept`];
//!   3. [`Plan::clear`]: the slots from there on are zeroed, from the first on, and made durable.
//!      The first zero already ends the list; a crash leaves slots taken after it.
//!
//! Kept are the records in the list that have no [`Fault`](super::check::Fault). Records after its
//! end are kept only with [salvage](Repair::new): after a torn merge such records are out of date,
//! and a later merge would bring old data back. An invalidated store is refused, since it is
//! unknown which chunks it lacks.
//!
//! Memory: that of checking records, and one range per gap between kept records.

use core::fmt;
use core::ops::Range;

use super::fault::{Fault, Judge, Limits};
use super::walk::{Slot, Walk};
use super::{ChunkSize, CowChunk, Error, Header, Layout, Record};
use crate::severity::Severity;

/// Why a store cannot be repaired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Without a header, chunk size and records are unknown.
    #[error(transparent)]
    Header(#[from] Error),
    /// The store lacks chunks, and it is unknown which.
    #[error("header valid: found 0, expected 1 (an invalidated snapshot cannot be repaired)")]
    Invalidated,
}

/// Why a record is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is wrong.
    Fault(Fault),
    /// It follows the end of the list.
    AfterEnd,
}

/// What happens to a slot that is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The record is kept.
    Keep {
        /// Its index.
        index: u64,
        /// Its contents.
        record: Record,
    },
    /// The record is dropped.
    Drop {
        /// Its index.
        index: u64,
        /// Its contents.
        record: Record,
        /// Why.
        reason: Reason,
    },
}

impl Step {
    /// How much this step loses.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Step::Keep { .. } => Severity::Sound,
            Step::Drop { reason: Reason::Fault(fault), .. } => fault.severity(),
            Step::Drop { reason: Reason::AfterEnd, .. } => Severity::Repairable,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Keep { index, record } => {
                write!(f, "record {index} keeps chunk {} as {}", record.old, record.new)
            }
            Step::Drop { index, record, reason: Reason::Fault(fault) } => {
                fault.describe(f, *index, record)
            }
            Step::Drop { index, record, reason: Reason::AfterEnd } => write!(
                f,
                "record {index} (chunk {} kept as {}): found after the end of the list",
                record.old, record.new
            ),
        }
    }
}

/// A repair being planned.
#[derive(Debug)]
pub struct Repair {
    header: Header,
    walk: Walk,
    judge: Judge,
    salvage: bool,
    plan: Plan,
}

impl Repair {
    /// Starts with the first bytes of the device. With `salvage`, records after the end of the list
    /// are kept as well, if they are consistent with those before.
    ///
    /// # Errors
    /// There is no valid header or no room for an area, or the store was invalidated.
    pub fn new(chunk_0: &[u8], limits: Limits, salvage: bool) -> Result<Repair, Refusal> {
        let header = Header::parse(chunk_0)?;
        if !header.is_valid() {
            return Err(Refusal::Invalidated);
        }
        let layout = Layout::new(header.chunk_size(), limits.device_sectors)?;
        let judge = Judge::new(layout, limits.origin_sectors);
        let plan = Plan { layout, kept: 0, kept_end: 0, taken_end: 0, gaps: Vec::new() };
        Ok(Repair { header, walk: Walk::new(layout), judge, salvage, plan })
    }

    /// The header, which a repair does not change.
    #[must_use]
    pub fn header(&self) -> Header {
        self.header
    }

    /// The layout of the damaged store.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.walk.layout()
    }

    /// The bytes of the device to feed next, at most `bytes_max` rounded up to a record. `None`
    /// once every record was seen.
    #[must_use]
    pub fn wants(&self, bytes_max: u64) -> Option<Range<u64>> {
        self.walk.wants(bytes_max)
    }

    /// Takes the bytes it wanted and returns a step for each slot in them that is not empty.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Step> {
        let mut slots = Vec::new();
        self.walk.feed(bytes, |slot| slots.push(slot));
        slots.into_iter().map(|slot| self.decide(slot)).collect()
    }

    fn decide(&mut self, slot: Slot) -> Step {
        let Slot { index, record, after_end } = slot;
        self.plan.taken_end = index + 1;
        // A slot that has only an old chunk ends the list like an empty one; there is nothing to
        // keep.
        let reason = if (after_end && !self.salvage) || record.is_end() {
            Some(Reason::AfterEnd)
        } else {
            self.judge.judge(index, record).map(Reason::Fault)
        };
        match reason {
            Some(reason) => Step::Drop { index, record, reason },
            None => {
                self.plan.keep(index);
                Step::Keep { index, record }
            }
        }
    }

    /// Ends the planning.
    #[must_use]
    pub fn finish(self) -> Plan {
        self.plan
    }
}

/// The data chunk of record `index` in a packed store.
#[must_use]
pub fn packed_chunk(chunk_size: ChunkSize, index: u64) -> CowChunk {
    CowChunk(2 + index + index / chunk_size.records_per_area())
}

/// Which records are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    layout: Layout,
    kept: u64,
    /// The index after the last kept record.
    kept_end: u64,
    /// The index after the last slot that is not empty.
    taken_end: u64,
    /// The gaps between kept records.
    gaps: Vec<Range<u64>>,
}

impl Plan {
    fn keep(&mut self, index: u64) {
        if index > self.kept_end {
            self.gaps.push(self.kept_end..index);
        }
        self.kept_end = index + 1;
        self.kept += 1;
    }

    /// The layout of the damaged store.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Number of records kept.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.kept
    }

    /// Whether the list can end on this device; not if its last area would stay full.
    #[must_use]
    pub fn fits_in_place(&self) -> bool {
        self.layout.has_area(self.layout.place(self.kept).0)
    }

    /// Sectors that a packed store of the kept records needs.
    #[must_use]
    pub fn needed_sectors(&self) -> u64 {
        Layout::needed_sectors(self.layout.chunk_size(), self.kept)
            .expect("records that lie on one device fit on a device that is little larger")
    }

    /// The copies of records, from index to index, that fill all gaps with records from the tail.
    /// Each source lies after every destination.
    pub fn moves(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.gaps.iter().flat_map(|gap| gap.start..gap.end.min(self.kept));
        self.tail().zip(filled)
    }

    /// The kept records with an index of [`kept`](Plan::kept) or more.
    fn tail(&self) -> impl Iterator<Item = u64> + '_ {
        let begins = self.gaps.iter().map(|gap| gap.end);
        let ends = self.gaps.iter().skip(1).map(|gap| gap.start).chain([self.kept_end]);
        begins.zip(ends).flat_map(|(begin, end)| begin.max(self.kept)..end)
    }

    /// The slots to zero after the moves, in order.
    #[must_use]
    pub fn clear(&self) -> Range<u64> {
        self.kept..self.taken_end.max(self.kept)
    }
}

#[cfg(test)]
mod tests;
