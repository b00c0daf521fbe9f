//! Internal snapshots: a table of entries of different lengths, each with an L1 table of its own.

use super::{Checker, Error, L1_ENTRIES_MAX};
use crate::qcow2::header::bad;

/// An entry without its extra data and names: where its L1 table begins (8 bytes), the entries of
/// that (4), the lengths of its id and name (2 each), dates, clocks and sizes, and the length of
/// its extra data (4).
const ENTRY_BYTES: usize = 40;
/// The most extra data, as qemu has it.
const EXTRA_BYTES_MAX: u64 = 1024;

impl<E> Checker<'_, E> {
    pub(super) fn read_snapshots(&mut self) -> Result<(), E> {
        let (header, start) = (self.header, self.layout.snapshots);
        let mut at = start;
        for _ in 0..self.layout.snapshot_count {
            let inside = header.refuse_outside("table of snapshots", at, ENTRY_BYTES as u64);
            if let Err(error) = inside {
                self.wrong(error);
                break;
            }
            let entry = self.bytes_at(at, ENTRY_BYTES as u64)?;
            let number = |range: core::ops::Range<usize>| {
                entry[range].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
            };
            let (l1_table, l1_entries) = (number(0..8), number(8..12));
            let (names, extra) = (number(12..14) + number(14..16), number(36..40));
            if extra > EXTRA_BYTES_MAX {
                let expected = format!("at most {EXTRA_BYTES_MAX}");
                self.wrong(bad("extra data of a snapshot", extra, expected));
                break;
            }
            at = (at + ENTRY_BYTES as u64 + extra + names).next_multiple_of(8);
            self.report.counts.snapshots += 1;
            match self.refuse_l1(l1_table, l1_entries) {
                Ok(()) => self.read_l1((l1_table, l1_entries), false)?,
                Err(error) => self.wrong(error),
            }
        }
        self.refer(start, at - start, 1);
        Ok(())
    }

    fn refuse_l1(&self, start: u64, entries: u64) -> Result<(), Error> {
        if !start.is_multiple_of(self.header.cluster_bytes()) {
            let expected = "a multiple of the cluster size";
            return Err(bad("L1 table of a snapshot", start, expected));
        }
        if entries > L1_ENTRIES_MAX {
            let expected = format!("at most {L1_ENTRIES_MAX}");
            return Err(bad("L1 entries of a snapshot", entries, expected));
        }
        self.header.refuse_outside("L1 table of a snapshot", start, entries * 8)
    }
}
