//! [`DirtyRuns`]: dirty data in the volatile cache of a drive.
//!
//! - R1. Runs do not overlap. Runs that touch are one, up to the longest run.
//! - R2. The window is the oldest runs, as many as the drive chooses among. A run that two became
//!   has the age of the older one.
//! - R3. A step costs a few lookups of runs by their places, and looks at no other run outside the
//!   window. Runs are found by a hash of the place ([`Cells`]), never in the order of the table.
//! - R4. Orders rise along the FIFO, so the runs of the window are those older than its front.

use std::collections::VecDeque;

use cairn_block::{SectorCount, SectorRange};
use smallvec::SmallVec;

use super::cells::Cells;
use super::geometry::Geometry;
use super::places::{Candidate, Places};
use super::slab::Slab;

#[derive(Clone, Copy)]
struct Run {
    range: SectorRange,
    /// Its place in the order of arrival; none other has the same.
    order: u64,
}

/// Sectors of a cell: few, so that a cell has few runs. The usual run is in one or two.
const CELL: u64 = 256;

/// The cells that a run is in: where one of its sectors is, or the one after its last.
fn cells_of(range: SectorRange) -> std::ops::RangeInclusive<u64> {
    range.start.0 / CELL..=range.end().0 / CELL
}

/// A run, found by its place.
#[derive(Clone, Copy)]
struct Found {
    range: SectorRange,
    slot: usize,
}

pub(super) struct DirtyRuns {
    longest: SectorCount,
    width: usize,
    runs: Slab<Run>,
    /// The slots of runs, by [`cells_of`] their ranges.
    cells: Cells,
    /// The runs after those of the window, oldest first. One whose run has another order is stale.
    fifo: VecDeque<(u64, usize)>,
    window: Places,
    /// All runs with smaller orders are in the window.
    window_end: u64,
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
            cells: Cells::default(),
            fifo: VecDeque::new(),
            window: Places::default(),
            window_end: 0,
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

    /// The runs that overlap or touch a range, by place.
    fn near(&self, range: SectorRange) -> SmallVec<[Found; 4]> {
        let mut found: SmallVec<[Found; 4]> = SmallVec::new();
        for cell in cells_of(range) {
            for slot in self.cells.of(cell) {
                let run = self.runs.get(slot).range;
                if run.end() >= range.start && run.start <= range.end() {
                    found.push(Found { range: run, slot });
                }
            }
        }
        if found.len() > 1 {
            found.sort_unstable_by_key(|found| found.range.start);
            found.dedup_by_key(|found| found.slot);
        }
        found
    }

    /// True if one run has the whole range.
    pub fn covers(&self, range: SectorRange) -> bool {
        let has = |run: &Found| run.range.start <= range.start && run.range.end() >= range.end();
        self.sectors > 0 && self.near(range).iter().any(has)
    }

    /// Adds what a write leaves; sectors that are dirty already stay where they are.
    pub fn insert(&mut self, range: SectorRange, geometry: &Geometry) {
        let near = self.near(range);
        if near.is_empty() && range.count <= self.longest {
            self.sectors += range.count.0;
            return self.push(range, geometry);
        }
        let mut at = range.start;
        for run in near {
            if at < run.range.start {
                self.add_all(SectorRange::between(at, run.range.start), geometry);
            }
            at = at.max(run.range.end());
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
        for run in self.near(piece) {
            if run.range.count.0 + range.count.0 > self.longest.0 {
                continue;
            }
            let order = self.runs.get(run.slot).order;
            // Of two runs the older one keeps its place.
            match oldest {
                None => oldest = Some((order, run.slot)),
                Some((other, _)) if other < order => self.remove(run.slot, geometry),
                Some((_, slot)) => {
                    self.remove(slot, geometry);
                    oldest = Some((order, run.slot));
                }
            }
            let end = range.end().max(run.range.end());
            range = SectorRange::between(range.start.min(run.range.start), end);
        }
        match oldest {
            Some((_, slot)) => {
                self.grow(slot, range, geometry);
                self.fill_window(geometry);
            }
            None => self.push(range, geometry),
        }
    }

    /// A new run.
    fn push(&mut self, range: SectorRange, geometry: &Geometry) {
        let order = self.next_order;
        self.next_order += 1;
        let slot = self.runs.insert(Run { range, order });
        for cell in cells_of(range) {
            self.cells.insert(cell, slot);
        }
        self.fifo.push_back((order, slot));
        self.fill_window(geometry);
    }

    /// A run becomes longer, to either side.
    fn grow(&mut self, slot: usize, range: SectorRange, geometry: &Geometry) {
        let run = self.runs.get_mut(slot);
        let (before, order) = (run.range, run.order);
        run.range = range;
        let (old, new) = (cells_of(before), cells_of(range));
        for cell in (*new.start()..*old.start()).chain(*old.end() + 1..*new.end() + 1) {
            self.cells.insert(cell, slot);
        }
        if order < self.window_end && range.start != before.start {
            self.window.remove(geometry.locate(before.start).cylinder, order);
            self.window.insert(candidate(Run { range, order }, slot, geometry));
        }
    }

    /// Takes out the run that has this index in the window: the arm writes it.
    pub fn take(&mut self, index: usize, geometry: &Geometry) -> (Candidate, SectorRange) {
        let place = self.window.take(index);
        let Run { range, .. } = self.runs.remove(place.key);
        self.sectors -= range.count.0;
        cells_of(range).for_each(|cell| self.cells.remove(cell, place.key));
        self.fill_window(geometry);
        (place, range)
    }

    /// Removes a run. Its entry in the FIFO becomes stale, since no other run has its order.
    fn remove(&mut self, slot: usize, geometry: &Geometry) {
        let Run { range, order } = self.runs.remove(slot);
        cells_of(range).for_each(|cell| self.cells.remove(cell, slot));
        if order < self.window_end {
            self.window.remove(geometry.locate(range.start).cylinder, order);
        }
    }

    fn fill_window(&mut self, geometry: &Geometry) {
        while self.window.len() < self.width {
            let Some((order, slot)) = self.fifo.pop_front() else { return };
            self.window_end = order + 1;
            if let Some(&run) = self.runs.find(slot).filter(|run| run.order == order) {
                self.window.insert(candidate(run, slot, geometry));
            }
        }
    }
}

fn candidate(run: Run, slot: usize, geometry: &Geometry) -> Candidate {
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
                    let to = runs.window().from(0).find(|(_, to)| to.start == expected.start);
                    let (index, _) = to.expect("it is in the window");
                    assert_eq!(runs.take(index, &geometry).1, expected);
                } else {
                    let new = range(rng.u64(..300), rng.u64(1..30));
                    runs.insert(new, &geometry);
                    naive.insert(new, 24);
                }
                let sum: u64 = naive.runs.iter().map(|(_, run)| run.count.0).sum();
                assert_eq!((runs.sectors(), runs.is_empty()), (sum, naive.runs.is_empty()));
                let oldest: BTreeSet<_> =
                    naive.runs.iter().take(8).map(|(_, run)| run.start).collect();
                let window: BTreeSet<_> = runs.window().from(0).map(|(_, to)| to.start).collect();
                assert_eq!(window, oldest);
                for (_, to) in runs.window().from(0) {
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
