//! [`DirtyRuns`]: dirty data in the volatile cache of a drive.
//!
//! - R1. Runs do not overlap. Runs that touch are one, up to the longest run.
//! - R2. The window is the oldest runs, as many as the drive chooses among. A run that two became
//!   has the age of the older one.
//! - R3. A step costs a few lookups of runs by their places, and looks at no other run outside the
//!   window. Runs are found by a hash of the place, never in the order of the table.

use std::collections::VecDeque;

use cairn_block::{SectorCount, SectorRange};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::geometry::Geometry;
use super::places::{Candidate, Places};
use super::slab::Slab;

#[derive(Clone, Copy)]
struct Run {
    range: SectorRange,
    /// Its place in the order of arrival; none other has the same.
    order: u64,
    /// Its cylinder, if it is in the window.
    window: Option<u32>,
}

/// A run, as a cell knows it.
#[derive(Clone, Copy)]
struct Entry {
    range: SectorRange,
    slot: usize,
}

/// Runs by place: each is in every cell where one of its sectors is, or the one after its last.
struct Cells {
    length: u64,
    /// The entries of a cell rise by place.
    entries: FxHashMap<u64, SmallVec<[Entry; 1]>>,
}

impl Cells {
    fn of(&self, range: SectorRange) -> std::ops::RangeInclusive<u64> {
        range.start.0 / self.length..=range.end().0 / self.length
    }

    fn insert(&mut self, range: SectorRange, slot: usize) {
        for cell in self.of(range) {
            let entries = self.entries.entry(cell).or_default();
            let index = entries.partition_point(|entry| entry.range.start < range.start);
            entries.insert(index, Entry { range, slot });
        }
    }

    fn remove(&mut self, range: SectorRange) {
        for cell in self.of(range) {
            let entries = self.entries.get_mut(&cell).expect("a run is in its cells");
            let index = entries.partition_point(|entry| entry.range.start < range.start);
            entries.remove(index);
            if entries.is_empty() {
                self.entries.remove(&cell);
            }
        }
    }

    /// The runs that overlap or touch a range, by place.
    fn near(&self, range: SectorRange) -> SmallVec<[Entry; 4]> {
        let mut found: SmallVec<[Entry; 4]> = SmallVec::new();
        for cell in self.of(range) {
            let Some(entries) = self.entries.get(&cell) else { continue };
            let first = entries.partition_point(|entry| entry.range.end() < range.start);
            let rest = entries[first..].iter().take_while(|entry| entry.range.start <= range.end());
            for entry in rest {
                if found.last().is_none_or(|last| last.range.start < entry.range.start) {
                    found.push(*entry);
                }
            }
        }
        found
    }
}

pub(super) struct DirtyRuns {
    longest: SectorCount,
    width: usize,
    runs: Slab<Run>,
    cells: Cells,
    /// The runs after those of the window, oldest first. One whose run has another order is stale.
    fifo: VecDeque<(u64, usize)>,
    window: Places,
    next_order: u64,
    sectors: u64,
}

impl DirtyRuns {
    /// Runs of at most `longest`, of which the oldest `width` are the window.
    pub fn new(longest: SectorCount, width: usize) -> DirtyRuns {
        DirtyRuns {
            longest,
            width,
            runs: Slab::default(),
            cells: Cells { length: longest.0, entries: FxHashMap::default() },
            fifo: VecDeque::new(),
            window: Places::default(),
            next_order: 0,
            sectors: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.sectors == 0
    }

    /// How much is dirty.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// The oldest runs.
    pub fn window(&self) -> &Places {
        &self.window
    }

    /// True if one run has the whole range.
    pub fn covers(&self, range: SectorRange) -> bool {
        let has =
            |entry: &Entry| entry.range.start <= range.start && entry.range.end() >= range.end();
        self.sectors > 0 && self.cells.near(range).iter().any(has)
    }

    /// Adds what a write leaves; sectors that are dirty already stay where they are.
    pub fn insert(&mut self, range: SectorRange, geometry: &Geometry) {
        let mut at = range.start;
        for entry in self.cells.near(range) {
            if at < entry.range.start {
                self.add_all(SectorRange::between(at, entry.range.start), geometry);
            }
            at = at.max(entry.range.end());
        }
        if at < range.end() {
            self.add_all(SectorRange::between(at, range.end()), geometry);
        }
    }

    /// Adds a free range, in pieces of the longest run.
    fn add_all(&mut self, range: SectorRange, geometry: &Geometry) {
        let mut at = range.start;
        while at < range.end() {
            let end = range.end().min(at + self.longest);
            self.add(SectorRange::between(at, end), geometry);
            at = end;
        }
    }

    /// Adds a free piece; with what it touches it becomes one run.
    fn add(&mut self, piece: SectorRange, geometry: &Geometry) {
        self.sectors += piece.count.0;
        let (mut range, mut oldest) = (piece, None);
        for entry in self.cells.near(piece) {
            if entry.range.count.0 + range.count.0 > self.longest.0 {
                continue;
            }
            let order = self.runs.get(entry.slot).order;
            // Of two runs the older one keeps its place.
            match oldest {
                None => oldest = Some((order, entry.slot)),
                Some((other, _)) if other < order => self.remove(entry.slot),
                Some((_, slot)) => {
                    self.remove(slot);
                    oldest = Some((order, entry.slot));
                }
            }
            let end = range.end().max(entry.range.end());
            range = SectorRange::between(range.start.min(entry.range.start), end);
        }
        match oldest {
            Some((_, slot)) => self.grow(slot, range, geometry),
            None => self.push(range, geometry),
        }
        self.fill_window(geometry);
    }

    /// A new run.
    fn push(&mut self, range: SectorRange, geometry: &Geometry) {
        let order = self.next_order;
        self.next_order += 1;
        let slot = self.runs.insert(Run { range, order, window: None });
        self.cells.insert(range, slot);
        self.fifo.push_back((order, slot));
        self.fill_window(geometry);
    }

    fn grow(&mut self, slot: usize, range: SectorRange, geometry: &Geometry) {
        let run = self.runs.get_mut(slot);
        self.cells.remove(run.range);
        run.range = range;
        self.cells.insert(range, slot);
        if let Some(cylinder) = run.window.take() {
            self.window.remove(cylinder, run.order);
            let to = candidate(run, slot, geometry);
            run.window = Some(to.position.cylinder);
            self.window.insert(to);
        }
    }

    /// Takes out the run of a candidate of the window: the arm writes it.
    pub fn take(&mut self, key: usize, geometry: &Geometry) -> SectorRange {
        let range = self.runs.get(key).range;
        self.sectors -= range.count.0;
        self.remove(key);
        self.fill_window(geometry);
        range
    }

    /// Removes a run. Its entry in the FIFO becomes stale, since no other run has its order.
    fn remove(&mut self, slot: usize) {
        let run = self.runs.remove(slot);
        self.cells.remove(run.range);
        if let Some(cylinder) = run.window {
            self.window.remove(cylinder, run.order);
        }
    }

    fn fill_window(&mut self, geometry: &Geometry) {
        while self.window.len() < self.width {
            let Some((order, slot)) = self.fifo.pop_front() else { return };
            if let Some(run) = self.runs.find(slot).filter(|run| run.order == order) {
                let to = candidate(run, slot, geometry);
                run.window = Some(to.position.cylinder);
                self.window.insert(to);
            }
        }
    }
}

fn candidate(run: &Run, slot: usize, geometry: &Geometry) -> Candidate {
    let start = run.range.start;
    Candidate { position: geometry.locate(start), start, order: run.order, key: slot }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cairn_block::Sector;

    use super::super::hdd::HddFigures;
    use super::*;

    fn geometry() -> Geometry {
        Geometry::new(&HddFigures::NEARLINE, 1 << 24)
    }

    fn range(start: u64, count: u64) -> SectorRange {
        SectorRange::new(Sector(start), SectorCount(count))
    }

    /// Ranges in order of age, by scans.
    #[derive(Default)]
    struct Naive {
        runs: Vec<(u64, SectorRange)>,
        next: u64,
    }

    impl Naive {
        fn insert(&mut self, new: SectorRange, longest: u64) {
            let is_dirty =
                |runs: &[(u64, SectorRange)], at| runs.iter().any(|(_, run)| run.contains(at));
            let mut at = new.start;
            while at < new.end() {
                let mut end = at;
                while end < new.end() && !is_dirty(&self.runs, end) {
                    end += SectorCount(1);
                }
                while at < end {
                    let piece = SectorRange::between(at, end.min(at + SectorCount(longest)));
                    self.add(piece, longest);
                    at = piece.end();
                }
                at += SectorCount(1);
            }
        }

        fn add(&mut self, mut piece: SectorRange, longest: u64) {
            let mut order = self.next;
            self.next += 1;
            for left in [true, false] {
                let touches = self.runs.iter().position(|(_, run)| {
                    let meet =
                        if left { run.end() == piece.start } else { piece.end() == run.start };
                    meet && run.count.0 + piece.count.0 <= longest
                });
                if let Some(index) = touches {
                    let (age, run) = self.runs.remove(index);
                    order = order.min(age);
                    let start = run.start.min(piece.start);
                    piece = SectorRange::between(start, run.end().max(piece.end()));
                }
            }
            self.runs.push((order, piece));
            self.runs.sort_by_key(|(order, _)| *order);
        }
    }

    /// R1, R2: the window, and what is taken from it, are those of a scan over all runs.
    #[test]
    fn window_is_that_of_a_scan_over_all_runs() {
        let geometry = geometry();
        let mut rng = fastrand::Rng::with_seed(11);
        for _ in 0..200 {
            let (mut runs, mut naive) = (DirtyRuns::new(SectorCount(24), 8), Naive::default());
            for _ in 0..120 {
                if rng.u8(..4) == 0 && !naive.runs.is_empty() {
                    let index = rng.usize(..naive.runs.len().min(8));
                    let (_, expected) = naive.runs.remove(index);
                    let mut window = runs.window().iter();
                    let to = window.find(|to| to.start == expected.start);
                    let key = to.expect("it is in the window").key;
                    assert_eq!(runs.take(key, &geometry), expected);
                } else {
                    let new = range(rng.u64(..300), rng.u64(1..30));
                    runs.insert(new, &geometry);
                    naive.insert(new, 24);
                }
                let sum: u64 = naive.runs.iter().map(|(_, run)| run.count.0).sum();
                assert_eq!((runs.sectors(), runs.is_empty()), (sum, naive.runs.is_empty()));
                let oldest: BTreeSet<_> =
                    naive.runs.iter().take(8).map(|(_, run)| run.start).collect();
                let window: BTreeSet<_> = runs.window().iter().map(|to| to.start).collect();
                assert_eq!(window, oldest);
                for to in runs.window().iter() {
                    assert_eq!(to.position, geometry.locate(to.start));
                }
            }
        }
    }

    #[test]
    fn read_is_covered_by_one_run_or_not_at_all() {
        let geometry = geometry();
        let mut runs = DirtyRuns::new(SectorCount(16), 8);
        runs.insert(range(8, 16), &geometry);
        runs.insert(range(24, 8), &geometry);
        assert!(runs.covers(range(8, 16)) && runs.covers(range(10, 4)));
        assert!(!runs.covers(range(16, 16)), "two runs, as one would be too long");
        assert!(!runs.covers(range(0, 8)) && !runs.covers(range(32, 1)));
    }
}
