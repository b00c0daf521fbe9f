//! Internal snapshots: a table of entries of different lengths, each with an L1 table of its own.

use std::collections::BTreeMap;

use super::{Checker, Error, L1_ENTRIES_MAX};
use crate::qcow2::header::bad;
use crate::qcow2::layout::number;

/// An entry without its extra data and names: where its L1 table begins (8 bytes), the entries of
/// that (4), the lengths of its id and name (2 each), dates, clocks and sizes, and the length of
/// its extra data (4).
const ENTRY_BYTES: usize = 40;
/// What version 3 has at least: two words.
const EXTRA_BYTES_MIN: u64 = 16;
/// The most extra data, as qemu has it.
const EXTRA_BYTES_MAX: u64 = 1024;

/// An L1 table: where it begins, and its entries.
type Table = (u64, u64);

impl<E> Checker<'_, E> {
    pub(super) fn read_snapshots(&mut self) -> Result<(), E> {
        let (header, start) = (self.header, self.layout.snapshots);
        let least = if header.is_version_3 { EXTRA_BYTES_MIN } else { 0 };
        // A table is read once, if several snapshots name it.
        let mut tables = BTreeMap::<Table, u16>::new();
        let mut at = start;
        for _ in 0..self.layout.snapshot_count {
            let inside = header.refuse_outside("table of snapshots", at, ENTRY_BYTES as u64);
            if let Err(error) = inside {
                self.wrong(error);
                break;
            }
            let entry = self.bytes_at(at, ENTRY_BYTES as u64)?;
            let number = |range: core::ops::Range<usize>| number(&entry[range]);
            let (names, extra) = (number(12..14) + number(14..16), number(36..40));
            if !(least..=EXTRA_BYTES_MAX).contains(&extra) {
                let expected = format!("{least} to {EXTRA_BYTES_MAX}");
                self.odd(bad("extra data of a snapshot", extra, expected));
            }
            let end = at + ENTRY_BYTES as u64 + extra + names;
            if let Err(error) = header.refuse_outside("table of snapshots", at, end - at) {
                self.wrong(error);
                break;
            }
            at = end.next_multiple_of(8);
            self.report.counts.snapshots += 1;
            let times = tables.entry((number(0..8), number(8..12))).or_default();
            *times = times.saturating_add(1);
        }
        self.own("table of snapshots", start, at - start, 1);
        for (table, times) in tables {
            match self.refuse_l1(table) {
                Ok(()) => {
                    self.own("L1 table of a snapshot", table.0, table.1 * 8, 1);
                    self.read_l1(table, times, false)?;
                }
                Err(error) => self.wrong(error),
            }
        }
        Ok(())
    }

    fn refuse_l1(&mut self, (start, entries): Table) -> Result<(), Error> {
        if !start.is_multiple_of(self.header.cluster_bytes()) {
            let expected = "a multiple of the cluster size";
            return Err(bad("L1 table of a snapshot", start, expected));
        }
        if entries > L1_ENTRIES_MAX {
            let expected = format!("at most {L1_ENTRIES_MAX}");
            return Err(bad("L1 entries of a snapshot", entries, expected));
        }
        self.header.refuse_outside("L1 table of a snapshot", start, entries * 8)?;
        self.refuse_many("L1 tables of snapshots", entries * 8)
    }
}
