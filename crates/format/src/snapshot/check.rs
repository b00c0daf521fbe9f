//! Checks whether an exception store is sound. The kernel has no tool for this.
//!
//! Give a [`Checker`] the header, then the bytes it [wants](Checker::wants) until it wants no more;
//! [`Checker::finish`] gives a [`Report`] of counts and findings. Each finding has a [`Severity`],
//! and the worst of them is the result. Nothing is repaired and nothing is read here: the caller
//! reads the bytes.
//!
//! Sound: any list of consistent records, in any order. Chunks that no record names are sound too
//! (a crash leaves such), and so is anything in areas that the list does not reach.
//!
//! Not sound:
//! - records after the end of the list, within its last area. An area is empty before it is reached
//!   and filled in order, so only a torn write leaves such records, of a commit or a merge that was
//!   never acknowledged. Nothing is lost, but a writer that continues the list without clearing
//!   them makes them part of it again. If they reach the end of the area, and the next area has
//!   records as well, the list did once continue there: then records were lost from its middle, and
//!   more behind them;
//! - a full area without a next one: the kernel does not activate such a store. Its records are all
//!   there, and growing the device repairs it;
//! - a record with a [`Fault`];
//! - an invalidated store: it missed copies, and nothing in it may be trusted.
//!
//! Memory: two map entries per sound record in the list (some 80 bytes), and at most
//! [`FINDINGS_MAX`] findings; the rest are counted. A list is no longer than the areas on the
//! device, whatever numbers it holds.

use core::fmt;
use core::ops::Range;

use super::fault::Judge;
pub use super::fault::{Fault, Limits};
use super::walk::{Slot, Walk};
use super::{CowChunk, Error, Header, Layout, Opening, Record};
pub use crate::severity::Severity;

/// Limit on the findings kept in a report; further ones only count, for the severity too.
pub const FINDINGS_MAX: usize = 1000;

/// One finding about a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The magic is zero: there is no store, and activation would format one.
    Unformatted,
    /// The header is wrong, or the device too small for it.
    Header(Error),
    /// The store was invalidated: it lacks copies of chunks that the origin has overwritten.
    Invalidated,
    /// A record is wrong by itself or contradicts an earlier one.
    Record {
        /// Its index in the list.
        index: u64,
        /// Its contents.
        record: Record,
        /// What is wrong with it.
        fault: Fault,
    },
    /// Slots are taken in the area that the list ends in, after its end.
    AfterEnd {
        /// Index of the end.
        end: u64,
        /// Slots taken.
        count: u64,
    },
    /// The list ends, but once continued in the next area.
    Hole {
        /// Index of the end.
        end: u64,
        /// The next area.
        area: u64,
        /// Slots taken from that area on.
        count: u64,
    },
    /// The last area is full, and the device has no room for another.
    NoSuccessor {
        /// The full area.
        area: u64,
    },
    /// Bytes that the checker wanted were never fed.
    Unread {
        /// Where they are on the device.
        offset: u64,
    },
}

impl Finding {
    /// How bad this is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Finding::Record { fault, .. } => fault.severity(),
            Finding::AfterEnd { .. } | Finding::NoSuccessor { .. } => Severity::Repairable,
            Finding::Unformatted
            | Finding::Header(_)
            | Finding::Invalidated
            | Finding::Hole { .. }
            | Finding::Unread { .. } => Severity::Damaged,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Unformatted => {
                write!(f, "header magic: found 0, expected a formatted exception store")
            }
            Finding::Header(error) => error.fmt(f),
            Finding::Invalidated => {
                write!(f, "header valid: found 0, expected 1 (the snapshot was given up)")
            }
            Finding::Record { index, record, fault } => fault.describe(f, *index, record),
            Finding::AfterEnd { end, count } => write!(
                f,
                "record {end}: found the end of the list with {count} records after it in its \
                 area, expected none (a write was torn)"
            ),
            Finding::Hole { end, area, count } => write!(
                f,
                "record {end}: found the end of the list, yet area {area} goes on with {count} \
                 records, expected no gap (records are lost)"
            ),
            Finding::NoSuccessor { area } => write!(
                f,
                "area {area}: found it full at the end of the device, expected room for one more \
                 area (grow the device by a chunk)"
            ),
            Finding::Unread { offset } => {
                write!(f, "area: found no bytes at {offset}, expected records")
            }
        }
    }
}

/// What the check counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records in the list, sound or not.
    pub records: u64,
    /// Of these: records with a fault.
    pub faulty: u64,
    /// Slots taken after the end of the list, as far as the walk read them.
    pub after_end: u64,
}

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The header, if there is a valid one.
    pub header: Option<Header>,
    /// The layout, if the device is large enough for one.
    pub layout: Option<Layout>,
    /// What was counted.
    pub counts: Counts,
    /// The next data chunk to allocate.
    pub next_free: CowChunk,
    /// The first [`FINDINGS_MAX`] findings: header first, then in the order of the list.
    pub findings: Vec<Finding>,
    /// How many findings there were beyond those.
    pub findings_left_out: u64,
    /// The worst of all findings, left out or not.
    pub severity: Severity,
}

impl Report {
    /// Sectors allocated, in all, and of metadata, as in the target's status line. `None` without a
    /// layout.
    #[must_use]
    pub fn usage(&self) -> Option<(u64, u64, u64)> {
        let layout = self.layout?;
        let (last_area, _) = layout.place(self.counts.records);
        let metadata = layout.metadata_sectors(last_area);
        Some((layout.allocated_sectors(self.next_free), layout.device_sectors(), metadata))
    }
}

/// Checks a whole device that lies in memory.
#[must_use]
pub fn check(device: &[u8], limits: Limits) -> Report {
    let mut checker = Checker::new(device, limits);
    while let Some(range) = checker.wants(u64::MAX) {
        let range = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        match range.and_then(|(begin, end)| device.get(begin..end)) {
            Some(bytes) => checker.feed(bytes),
            None => break,
        }
    }
    checker.finish()
}

/// A check in progress.
#[derive(Debug)]
pub struct Checker {
    /// The list's walk and its judge; none without a layout, and then no bytes are wanted.
    list: Option<(Walk, Judge)>,
    highest: Option<CowChunk>,
    /// Slots taken after the end: within the area of the end, and beyond it.
    after_end: (u64, u64),
    report: Report,
}

impl Checker {
    /// Checks the header, given the first bytes of the device.
    #[must_use]
    pub fn new(chunk_0: &[u8], limits: Limits) -> Checker {
        let report = Report {
            header: None,
            layout: None,
            counts: Counts::default(),
            next_free: CowChunk(2),
            findings: Vec::new(),
            findings_left_out: 0,
            severity: Severity::Sound,
        };
        let mut checker = Checker { list: None, highest: None, after_end: (0, 0), report };
        match Opening::decide(chunk_0) {
            Ok(Opening::Blank) => checker.add(Finding::Unformatted),
            Ok(Opening::Existing(header)) => checker.accept(header, limits),
            Err(error) => checker.add(Finding::Header(error)),
        }
        checker
    }

    fn accept(&mut self, header: Header, limits: Limits) {
        self.report.header = Some(header);
        if !header.is_valid() {
            self.add(Finding::Invalidated);
        }
        match Layout::new(header.chunk_size(), limits.device_sectors) {
            Err(error) => self.add(Finding::Header(error)),
            Ok(layout) => {
                self.report.layout = Some(layout);
                let judge = Judge::new(layout, limits.origin_sectors);
                self.list = Some((Walk::new(layout), judge));
            }
        }
    }

    /// The bytes of the device to feed next, at most `bytes_max` rounded up to a record. `None`
    /// once the list has ended.
    #[must_use]
    pub fn wants(&self, bytes_max: u64) -> Option<Range<u64>> {
        self.list.as_ref().and_then(|(walk, _)| walk.wants(bytes_max))
    }

    /// Takes the bytes it wanted.
    pub fn feed(&mut self, bytes: &[u8]) {
        let Some((mut walk, mut judge)) = self.list.take() else { return };
        let layout = *walk.layout();
        let mut slots = Vec::new();
        walk.feed(bytes, |slot| slots.push(slot));
        for slot in slots {
            if slot.after_end {
                self.count_after_end(&layout, walk.listed(), slot);
            } else {
                self.judge(&mut judge, slot);
            }
        }
        self.list = Some((walk, judge));
    }

    fn judge(&mut self, judge: &mut Judge, slot: Slot) {
        let Slot { index, record, .. } = slot;
        self.highest = self.highest.max(Some(record.new));
        if let Some(fault) = judge.judge(index, record) {
            self.report.counts.faulty += 1;
            self.add(Finding::Record { index, record, fault });
        }
    }

    fn count_after_end(&mut self, layout: &Layout, end: u64, slot: Slot) {
        if layout.place(slot.index).0 == layout.place(end).0 {
            self.after_end.0 += 1;
        } else {
            self.after_end.1 += 1;
        }
    }

    /// Ends the check.
    #[must_use]
    pub fn finish(mut self) -> Report {
        if let Some((walk, _)) = self.list.take() {
            self.conclude(&walk);
        }
        self.report
    }

    fn conclude(&mut self, walk: &Walk) {
        let layout = walk.layout();
        let (end, (in_area, beyond)) = (walk.listed(), self.after_end);
        self.report.counts.records = end;
        self.report.counts.after_end = in_area + beyond;
        self.report.next_free = layout.next_free(self.highest);
        if in_area > 0 {
            self.add(Finding::AfterEnd { end, count: in_area });
        }
        if beyond > 0 {
            let area = layout.place(end).0 + 1;
            self.add(Finding::Hole { end, area, count: beyond });
        }
        if let Some(range) = walk.wants(u64::MAX) {
            self.add(Finding::Unread { offset: range.start });
        } else if !walk.found_end() {
            self.add(Finding::NoSuccessor { area: layout.area_count() - 1 });
        }
    }

    fn add(&mut self, finding: Finding) {
        self.report.severity = self.report.severity.max(finding.severity());
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(finding);
        } else {
            self.report.findings_left_out += 1;
        }
    }
}

#[cfg(test)]
mod tests;
