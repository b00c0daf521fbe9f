//! Checks whether a writecache is sound. The kernel has no tool for this.
//!
//! Feed a [`Checker`] the superblock, then every entry in slot order; [`Checker::finish`] gives a
//! [`Report`] of counts and findings. Each finding has a [`Severity`], and the worst of them is the
//! result. Nothing is repaired and nothing is read here: the caller reads the bytes.
//!
//! Sound: recovery, which every activation runs, frees uncommitted entries, and all but the newest
//! of several committed entries for one sector. Such entries are normal after a crash.
//!
//! Not sound: anything that the write order of the format can never leave, such as a commit number
//! ahead of the superblock's, or two entries for one sector with the same number.
//!
//! Memory: one map entry per committed entry, and at most [`FINDINGS_MAX`] findings; the rest are
//! counted. Slots are numbered in the order in which entries arrive, so they must arrive from slot
//! 0 on.

use core::fmt;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry as MapEntry;

pub use crate::severity::Severity;

use super::{
    ENTRY_BYTES, Entry, EntryState, Error, Geometry, NO_SECTOR, Opening, SUPERBLOCK_BYTES, Seq,
    Superblock,
};

/// Limit on the findings kept in a report; further ones only count, for the severity too.
pub const FINDINGS_MAX: usize = 1000;

/// The sizes that entries are checked against. An unknown size is not checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes from the start sector to the end of the cache device.
    pub area_bytes: Option<u64>,
    /// Size of the origin device, in sectors.
    pub origin_sectors: Option<u64>,
    /// Length of the table line, in sectors.
    pub target_sectors: Option<u64>,
}

/// One finding about a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// Magic and version are zero: there is no cache, and activation would format one.
    Unformatted,
    /// The superblock is wrong, or its slots do not fit.
    Superblock(Error),
    /// The superblock's commit number is one that no cache reaches: 2^63 or more.
    ReservedSeq(Seq),
    /// The superblock's reserved bytes are not zero.
    ReservedBytes,
    /// Fewer entries could be read than the superblock promises.
    MissingEntries {
        /// Entries read.
        found: u64,
        /// Entries promised.
        n_blocks: u64,
    },
    /// A write that was never committed. Recovery frees it.
    Uncommitted {
        /// Slot of the entry.
        slot: u64,
        /// Sector it was written for.
        sector: u64,
    },
    /// A commit number that the superblock has not reached. Entries are written with the
    /// superblock's own number, so either one of the two is torn, or the superblock holds an older
    /// version.
    SeqAhead {
        /// Slot of the entry.
        slot: u64,
        /// Its commit number.
        seq: Seq,
        /// The superblock's.
        superblock_seq: Seq,
    },
    /// A slot with a commit number but no sector: half of the entry was never written.
    NoSector {
        /// Slot of the entry.
        slot: u64,
        /// Its commit number.
        seq: Seq,
        /// Whether it counts as committed.
        committed: bool,
    },
    /// A sector at which no cache block begins.
    Misaligned {
        /// Slot of the entry.
        slot: u64,
        /// Sector found.
        sector: u64,
        /// What it should be a multiple of.
        sectors_per_block: u32,
        /// Whether it counts as committed.
        committed: bool,
    },
    /// A committed block beyond the end of the origin: it cannot be written back.
    BeyondOrigin {
        /// Slot of the entry.
        slot: u64,
        /// Its sector.
        sector: u64,
        /// Size of the origin, in sectors.
        origin_sectors: u64,
    },
    /// A committed block beyond the table line but within the origin: kept, written back, not
    /// readable through this table.
    BeyondTarget {
        /// Slot of the entry.
        slot: u64,
        /// Its sector.
        sector: u64,
        /// Length of the table line, in sectors.
        target_sectors: u64,
    },
    /// Two committed entries for one sector. Recovery frees the older.
    Superseded {
        /// The sector of both.
        sector: u64,
        /// Slot and commit number of the one that recovery frees.
        older: (u64, Seq),
        /// Slot and commit number of the one that recovery keeps.
        newer: (u64, Seq),
    },
    /// Two committed entries for one sector with the same commit number: it is unknown which one
    /// holds the data.
    IdenticalSeq {
        /// The sector of both.
        sector: u64,
        /// Their commit number.
        seq: Seq,
        /// Their slots, in order.
        slots: (u64, u64),
    },
}

impl Finding {
    /// How bad this is. A wrong entry that was never committed held no acknowledged data, and
    /// recovery frees it.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Finding::Uncommitted { .. }
            | Finding::Superseded { .. }
            | Finding::NoSector { committed: false, .. }
            | Finding::Misaligned { committed: false, .. } => Severity::SoundAfterRecovery,
            Finding::ReservedBytes
            | Finding::BeyondTarget { .. }
            | Finding::Superblock(Error::InterruptedFormat { version: super::VERSION }) => {
                Severity::Repairable
            }
            Finding::Unformatted
            | Finding::Superblock(_)
            | Finding::ReservedSeq(_)
            | Finding::MissingEntries { .. }
            | Finding::SeqAhead { .. }
            | Finding::NoSector { committed: true, .. }
            | Finding::Misaligned { committed: true, .. }
            | Finding::BeyondOrigin { .. }
            | Finding::IdenticalSeq { .. } => Severity::Damaged,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Unformatted => {
                write!(f, "superblock magic: found 0 with version 0, expected a formatted cache")
            }
            Finding::Superblock(error) => error.fmt(f),
            Finding::ReservedSeq(seq) => {
                write!(f, "superblock seq_count: found {}, expected less than 2^63", seq.0)
            }
            Finding::ReservedBytes => {
                write!(f, "superblock padding: found non-zero bytes, expected zeros")
            }
            Finding::MissingEntries { found, n_blocks } => {
                write!(f, "slot table: found {found} entries, expected {n_blocks}")
            }
            Finding::Uncommitted { slot, sector } => {
                write!(f, "slot {slot}: sector {sector} was never committed, recovery frees it")
            }
            Finding::SeqAhead { slot, seq, superblock_seq } => write!(
                f,
                "slot {slot} seq_count: found {seq}, expected at most the superblock's \
                 {superblock_seq} (torn, or the superblock went back)"
            ),
            Finding::NoSector { slot, seq, .. } => write!(
                f,
                "slot {slot} original_sector: found -1 with seq_count {seq}, expected a sector \
                 (torn)"
            ),
            Finding::Misaligned { slot, sector, sectors_per_block, .. } => write!(
                f,
                "slot {slot} original_sector: found {sector}, expected a multiple of \
                 {sectors_per_block}"
            ),
            Finding::BeyondOrigin { slot, sector, origin_sectors } => write!(
                f,
                "slot {slot} original_sector: found {sector}, expected a block within the \
                 origin's {origin_sectors} sectors"
            ),
            Finding::BeyondTarget { slot, sector, target_sectors } => write!(
                f,
                "slot {slot} original_sector: found {sector}, expected a block within the table \
                 line's {target_sectors} sectors (it can still be written back)"
            ),
            Finding::Superseded { sector, older, newer } => write!(
                f,
                "slot {}: sector {sector} with seq_count {} is superseded by slot {} with {}, \
                 recovery frees it",
                older.0, older.1, newer.0, newer.1
            ),
            Finding::IdenticalSeq { sector, seq, slots } => write!(
                f,
                "slots {} and {}: found sector {sector} with seq_count {seq} in both, expected \
                 different ones",
                slots.0, slots.1
            ),
        }
    }
}

/// How the slots divide. `committed + uncommitted + free` is the number of entries read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries below the superblock's commit number, superseded ones included.
    pub committed: u64,
    /// Of the committed: those that recovery frees because another entry for the sector is kept.
    pub superseded: u64,
    /// Entries neither free nor committed. Recovery frees them.
    pub uncommitted: u64,
    /// Free slots.
    pub free: u64,
    /// Of the free: those that still name the sector they once held.
    pub stale: u64,
}

impl Counts {
    /// Blocks that the origin does not have yet: those that a flush of the cache would write back.
    #[must_use]
    pub fn dirty(&self) -> u64 {
        self.committed - self.superseded
    }

    /// Free slots once recovery has run.
    #[must_use]
    pub fn free_after_recovery(&self) -> u64 {
        self.free + self.uncommitted + self.superseded
    }
}

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The superblock, if there is a valid one.
    pub superblock: Option<Superblock>,
    /// How the slots divide.
    pub counts: Counts,
    /// The first [`FINDINGS_MAX`] findings, superblock first, then in slot order.
    pub findings: Vec<Finding>,
    /// How many findings there were beyond those.
    pub findings_left_out: u64,
    /// The worst of all findings, left out or not.
    pub severity: Severity,
}

/// Checks a whole cache: its first bytes, and its entries from slot 0 on. Entries beyond the
/// superblock's count are ignored; without a valid superblock all are.
pub fn check(
    area_start: &[u8],
    entries: impl IntoIterator<Item = Entry>,
    limits: Limits,
) -> Report {
    let mut checker = Checker::new(area_start, limits);
    for entry in entries.into_iter().take(checker.entries_wanted()) {
        checker.entry(entry);
    }
    checker.finish()
}

/// A check in progress.
#[derive(Debug)]
pub struct Checker {
    limits: Limits,
    next_slot: u64,
    /// By sector: the slot and commit number that recovery would keep, of the entries so far.
    kept: FxHashMap<u64, (u64, Seq)>,
    report: Report,
}

impl Checker {
    /// Checks the superblock, given the first bytes of the area.
    #[must_use]
    pub fn new(area_start: &[u8], limits: Limits) -> Checker {
        let report = Report {
            superblock: None,
            counts: Counts::default(),
            findings: Vec::new(),
            findings_left_out: 0,
            severity: Severity::Sound,
        };
        let mut checker = Checker { limits, next_slot: 0, kept: FxHashMap::default(), report };
        match Superblock::parse(area_start) {
            Ok(superblock) => checker.accept_superblock(superblock),
            Err(error) => checker.report(blank_or(error, area_start)),
        }
        checker
    }

    /// A device that is too small for its slots is damaged. The entries on it still count: they
    /// show what is lost.
    fn accept_superblock(&mut self, superblock: Superblock) {
        if let Some(area_bytes) = self.limits.area_bytes
            && let Err(error) = Geometry::of_superblock(&superblock, area_bytes)
        {
            self.report(Finding::Superblock(error));
        }
        if superblock.seq() >= Seq::END {
            self.report(Finding::ReservedSeq(superblock.seq()));
        }
        if !superblock.reserved_is_zero() {
            self.report(Finding::ReservedBytes);
        }
        self.report.superblock = Some(superblock);
    }

    /// How many more entries to feed: none without a valid superblock; on a device that is too
    /// small, only those that lie on it.
    #[must_use]
    pub fn entries_wanted(&self) -> usize {
        let wanted = self.entries_on_device().saturating_sub(self.next_slot);
        usize::try_from(wanted).unwrap_or(usize::MAX)
    }

    fn entries_on_device(&self) -> u64 {
        let n_blocks = self.report.superblock.as_ref().map_or(0, Superblock::n_blocks);
        let table_bytes = |area: u64| area.saturating_sub(SUPERBLOCK_BYTES as u64);
        let fitting = self.limits.area_bytes.map(|area| table_bytes(area) / ENTRY_BYTES as u64);
        fitting.map_or(n_blocks, |fitting| fitting.min(n_blocks))
    }

    /// Checks the entry of the next slot. Ignored once [`entries_wanted`](Checker::entries_wanted)
    /// is 0.
    pub fn entry(&mut self, entry: Entry) {
        let Some(superblock) = &self.report.superblock else { return };
        if self.next_slot == superblock.n_blocks() {
            return;
        }
        let superblock_seq = superblock.seq();
        let sectors_per_block = superblock.block_size().sectors();
        let slot = self.next_slot;
        self.next_slot += 1;
        match entry.state(superblock_seq) {
            EntryState::Free => self.count_free(entry),
            EntryState::Uncommitted => {
                self.report.counts.uncommitted += 1;
                self.judge_uncommitted(slot, entry, superblock_seq, sectors_per_block);
            }
            EntryState::Committed => {
                self.report.counts.committed += 1;
                if let Some(finding) = self.judge_place(slot, entry, sectors_per_block) {
                    self.report(finding);
                }
                self.check_same_sector(slot, entry);
            }
        }
    }

    fn count_free(&mut self, entry: Entry) {
        self.report.counts.free += 1;
        if entry.original_sector != NO_SECTOR {
            self.report.counts.stale += 1;
        }
    }

    fn judge_uncommitted(&mut self, slot: u64, entry: Entry, superblock_seq: Seq, spb: u32) {
        let Entry { original_sector: sector, seq } = entry;
        let finding = if seq > superblock_seq {
            Finding::SeqAhead { slot, seq, superblock_seq }
        } else {
            shape_finding(slot, entry, spb, false).unwrap_or(Finding::Uncommitted { slot, sector })
        };
        self.report(finding);
    }

    /// The fault of a committed entry's sector: at no such sector can a block be written back.
    fn judge_place(&self, slot: u64, entry: Entry, sectors_per_block: u32) -> Option<Finding> {
        let sector = entry.original_sector;
        let fits = |len: u64| {
            sector.checked_add(u64::from(sectors_per_block)).is_some_and(|end| end <= len)
        };
        if let Some(finding) = shape_finding(slot, entry, sectors_per_block, true) {
            return Some(finding);
        }
        match (self.limits.origin_sectors, self.limits.target_sectors) {
            (Some(origin_sectors), _) if !fits(origin_sectors) => {
                Some(Finding::BeyondOrigin { slot, sector, origin_sectors })
            }
            (_, Some(target_sectors)) if !fits(target_sectors) => {
                Some(Finding::BeyondTarget { slot, sector, target_sectors })
            }
            _ => None,
        }
    }

    /// Reports another committed entry for the same sector, if there is one, as recovery would meet
    /// them.
    fn check_same_sector(&mut self, slot: u64, entry: Entry) {
        let (sector, seq) = (entry.original_sector, entry.seq);
        let mut kept = match self.kept.entry(sector) {
            MapEntry::Vacant(vacant) => {
                vacant.insert((slot, seq));
                return;
            }
            MapEntry::Occupied(occupied) => occupied,
        };
        let other = *kept.get();
        if other.1 <= seq {
            kept.insert((slot, seq));
        }
        self.report.counts.superseded += 1;
        self.report(match other.1.cmp(&seq) {
            core::cmp::Ordering::Less => {
                Finding::Superseded { sector, older: other, newer: (slot, seq) }
            }
            core::cmp::Ordering::Greater => {
                Finding::Superseded { sector, older: (slot, seq), newer: other }
            }
            core::cmp::Ordering::Equal => {
                Finding::IdenticalSeq { sector, seq, slots: (other.0, slot) }
            }
        });
    }

    /// Ends the check. Entries that were not fed count as missing.
    #[must_use]
    pub fn finish(mut self) -> Report {
        if self.entries_wanted() > 0 {
            let n_blocks = self.report.superblock.as_ref().map_or(0, Superblock::n_blocks);
            self.report(Finding::MissingEntries { found: self.next_slot, n_blocks });
        }
        self.report
    }

    fn report(&mut self, finding: Finding) {
        self.report.severity = self.report.severity.max(finding.severity());
        if self.report.findings.len() < FINDINGS_MAX {
            self.report.findings.push(finding);
        } else {
            self.report.findings_left_out += 1;
        }
    }
}

/// Distinguishes a blank header, on which any block size opens, from a wrong one.
fn blank_or(error: Error, area_start: &[u8]) -> Finding {
    let any_size = super::BlockSize::new(super::MIN_BLOCK_SIZE);
    match any_size.and_then(|size| Opening::decide(area_start, size)) {
        Ok(Opening::Format) => Finding::Unformatted,
        _ => Finding::Superblock(error),
    }
}

/// What is wrong with an entry's sector itself, whatever the size of the origin.
fn shape_finding(slot: u64, entry: Entry, spb: u32, committed: bool) -> Option<Finding> {
    let sector = entry.original_sector;
    if sector == NO_SECTOR {
        Some(Finding::NoSector { slot, seq: entry.seq, committed })
    } else if sector.is_multiple_of(u64::from(spb)) {
        None
    } else {
        Some(Finding::Misaligned { slot, sector, sectors_per_block: spb, committed })
    }
}

#[cfg(test)]
mod tests;
