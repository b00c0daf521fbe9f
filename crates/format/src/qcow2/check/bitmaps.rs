//! Bitmaps: a directory of entries of different lengths, each with a table that names clusters.

use super::{Checker, L1_ENTRIES_MAX, OFFSET};
use crate::qcow2::header::bad;

/// An entry without its extra data and name: where its table begins (8 bytes), the entries of that
/// (4), flags (4), type and granularity (1 each), the length of its name (2), that of its extra
/// data (4).
const ENTRY_BYTES: usize = 24;

impl<E> Checker<'_, E> {
    pub(super) fn read_bitmaps(&mut self) -> Result<(), E> {
        let Some(bitmaps) = self.layout.bitmaps else { return Ok(()) };
        self.refer(bitmaps.directory, bitmaps.directory_bytes, 1);
        let directory = self.bytes_at(bitmaps.directory, bitmaps.directory_bytes)?;
        let mut at = 0;
        for _ in 0..bitmaps.count {
            let Some(entry) = directory.get(at..).and_then(<[u8]>::first_chunk::<ENTRY_BYTES>)
            else {
                let (found, expected) =
                    (directory.len() as u64, format!("more: {at} and an entry"));
                self.wrong(bad("bytes of the bitmaps' directory", found, expected));
                break;
            };
            let number = |range: core::ops::Range<usize>| {
                entry[range].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
            };
            let (table, entries) = (number(0..8), number(8..12));
            let rest = number(18..20) + number(20..24);
            at = (at + ENTRY_BYTES + rest as usize).next_multiple_of(8);
            self.report.counts.bitmaps += 1;
            self.read_bitmap(table, entries)?;
        }
        Ok(())
    }

    fn read_bitmap(&mut self, table: u64, entries: u64) -> Result<(), E> {
        let inside = match entries > L1_ENTRIES_MAX {
            true => Err(bad("entries of a bitmap's table", entries, "less than are read at once")),
            false => self.header.refuse_outside("table of a bitmap", table, entries * 8),
        };
        if let Err(error) = inside {
            self.wrong(error);
            return Ok(());
        }
        self.refer(table, entries * 8, 1);
        for entry in self.words_at(table, entries)? {
            // Without a cluster, all of its bits are alike.
            self.refer(entry & OFFSET, u64::from(entry & OFFSET != 0), 1);
        }
        Ok(())
    }
}
