//! The list of records, read in pieces: which bytes come next, and what each slot means.
//!
//! Promises to ask only for bytes on the device, from area 0 upwards and each once, and to end: it
//! asks for an area only if the last slot of the previous one is taken. Needs no memory. Checks
//! nothing about records; it knows only that the list ends at the first empty slot.

use core::ops::Range;

use super::{Layout, RECORD_BYTES, Record};

/// A slot that is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Its index, counted over all areas.
    pub index: u64,
    /// What it holds.
    pub record: Record,
    /// Whether the list had ended before it: then no activation reads it.
    pub after_end: bool,
}

/// A walk along the list.
#[derive(Debug, Clone)]
pub struct Walk {
    layout: Layout,
    /// The slot that is fed next.
    next: u64,
    /// The first empty slot.
    end: Option<u64>,
    last_slot_taken: bool,
    done: bool,
}

impl Walk {
    /// Begins at area 0.
    #[must_use]
    pub fn new(layout: Layout) -> Walk {
        Walk { layout, next: 0, end: None, last_slot_taken: false, done: false }
    }

    /// The layout that is walked.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The bytes of the device to [feed](Walk::feed) next: at most `bytes_max`, rounded up to one
    /// record, and all in one area. `None` once the walk is over.
    #[must_use]
    pub fn wants(&self, bytes_max: u64) -> Option<Range<u64>> {
        if self.done {
            return None;
        }
        let begin = self.layout.record_offset(self.next);
        let (area, _) = self.layout.place(self.next);
        let whole = bytes_max.max(RECORD_BYTES as u64) / RECORD_BYTES as u64 * RECORD_BYTES as u64;
        Some(begin..self.layout.area_bytes(area).end.min(begin.saturating_add(whole)))
    }

    /// Takes the bytes asked for, or whole records from their start, and calls `visit` for each
    /// slot that is not empty.
    pub fn feed(&mut self, bytes: &[u8], mut visit: impl FnMut(Slot)) {
        for record in Record::slots(bytes) {
            if self.done {
                return;
            }
            self.step(record, &mut visit);
        }
    }

    fn step(&mut self, record: Record, visit: &mut impl FnMut(Slot)) {
        let index = self.next;
        self.next += 1;
        self.last_slot_taken = !record.is_end();
        if record.is_end() {
            self.end = self.end.or(Some(index));
        }
        if record != Record::END {
            visit(Slot { index, record, after_end: self.end.is_some() });
        }
        let (area, slot) = self.layout.place(self.next);
        if slot == 0 {
            self.done = !self.last_slot_taken || !self.layout.has_area(area);
        }
    }

    /// Number of records in the list so far; once the end was found, its index.
    #[must_use]
    pub fn listed(&self) -> u64 {
        self.end.unwrap_or(self.next)
    }

    /// Whether the end of the list was found.
    #[must_use]
    pub fn found_end(&self) -> bool {
        self.end.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::{Slot, Walk};
    use crate::snapshot::{ChunkSize, CowChunk, Layout, OriginChunk, Record};

    /// A device of one-sector chunks with these slots taken.
    fn device(chunks: u64, taken: impl IntoIterator<Item = u64>) -> (Layout, Vec<u8>) {
        let layout = Layout::new(ChunkSize::new(1).unwrap(), chunks).unwrap();
        let mut bytes = vec![0; chunks as usize * 512];
        for index in taken {
            let record = Record { old: OriginChunk(index), new: CowChunk(2) };
            record.write_at(&mut bytes[layout.record_offset(index) as usize..], 0);
        }
        (layout, bytes)
    }

    fn walk(layout: Layout, bytes: &[u8], bytes_max: u64) -> (Walk, Vec<Slot>) {
        let (mut walk, mut slots) = (Walk::new(layout), Vec::new());
        while let Some(range) = walk.wants(bytes_max) {
            walk.feed(&bytes[range.start as usize..range.end as usize], |slot| slots.push(slot));
        }
        (walk, slots)
    }

    #[test]
    fn the_list_goes_on_in_the_next_area_and_ends_at_the_first_empty_slot() {
        for bytes_max in [0, 16, 48, 100, 512, u64::MAX] {
            let (layout, bytes) = device(160, 0..70);
            let (walk, slots) = walk(layout, &bytes, bytes_max);
            assert_eq!((walk.listed(), walk.found_end(), slots.len()), (70, true, 70));
            assert!(slots.iter().all(|slot| !slot.after_end));
        }
    }

    #[test]
    fn area_after_one_that_is_not_full_is_never_read() {
        let (layout, bytes) = device(160, (0..31).chain(32..40));
        let (walk, slots) = walk(layout, &bytes, 512);
        assert_eq!((walk.listed(), slots.len()), (31, 31));
    }

    #[test]
    fn records_after_the_end_are_marked_and_visited() {
        let (layout, bytes) = device(160, (0..5).chain(20..40));
        let (walk, slots) = walk(layout, &bytes, 512);
        assert_eq!((walk.listed(), slots.len()), (5, 25));
        assert_eq!(slots.iter().filter(|slot| slot.after_end).count(), 20);
    }

    #[test]
    fn a_full_last_area_leaves_the_list_without_an_end() {
        let (layout, bytes) = device(34, 0..32);
        let (walk, slots) = walk(layout, &bytes, 512);
        assert_eq!((walk.listed(), walk.found_end(), slots.len()), (32, false, 32));
    }
}
