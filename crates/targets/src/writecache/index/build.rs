//! Builds an index from the entries of a cache device, in two phases. First the slots, as the
//! entries are read. Then the lookup in one step, and with it the decision which of several
//! versions of a block counts.

use cairn_block::Time;
use cairn_format::writecache::Seq;

use super::lookup::{BIAS, Bulk, Key, STRETCH};
use super::{DIAGONAL, DIAGONAL_BLOCKS, Index, Run, Stock, diagonal_of, stretches};

/// More committed versions of one block than any cache has, since a commit frees what it
/// supersedes. Zeroed metadata may claim far more; to decide between them would take minutes.
pub(in super::super) const VERSIONS_MAX: usize = 1024;

/// How many diagonals may begin between two parts of one.
const RECENT: usize = 16;

/// The last few diagonals entered: a diagonal cut into parts is entered once.
#[derive(Default)]
struct Recent {
    entries: [(u64, u32); RECENT],
    at: usize,
}

impl Recent {
    fn is_new(&mut self, stretch: u64, value: u32) -> bool {
        if self.entries.contains(&(stretch, value)) {
            return false;
        }
        self.entries[self.at] = (stretch, value);
        self.at = (self.at + 1) % RECENT;
        true
    }
}

/// An index that is being filled.
pub(in super::super) struct Builder {
    index: Index,
    /// The run that the next entry may continue.
    open: Option<Run>,
    /// Some runs are in the lookup by diagonals.
    diagonals: bool,
    /// How many entries the lookup will have, or a few more.
    entries: usize,
}

/// What was decided about several versions of one block.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Decided {
    /// Slots whose entries are to be made free on disk, in order.
    pub superseded: Vec<u32>,
    /// Two slots with the same block and the same seq; the second is kept.
    pub identical: Option<(u32, u32)>,
    /// A block with more than [`VERSIONS_MAX`] versions, and how many. Nothing is decided about it,
    /// and the index must not be used.
    pub crowded: Option<(u64, usize)>,
}

impl Builder {
    /// Begins to fill an index that holds nothing.
    pub fn new(index: Index) -> Builder {
        Builder { index, open: None, diagonals: false, entries: 0 }
    }

    /// A committed entry; slots come in order.
    pub fn push(&mut self, slot: u32, block: u64, seq: Seq) {
        if let Some(run) = &mut self.open {
            let next = (run.end(), run.block + u64::from(run.len), run.seq);
            if next == (slot, block, seq) {
                run.len += 1;
                return;
            }
            self.close();
        }
        self.open = Some(Run { slot, len: 1, block, seq, marks: 0 });
    }

    fn close(&mut self) {
        let Some(run) = self.open.take() else { return };
        let groups = &mut self.index.groups;
        if run.len == 1 {
            self.entries += 1;
            return groups.append(run.slot, 1, run.block, run.seq, 0);
        }
        let (block, end) = (run.block, run.block + u64::from(run.len));
        let head = block.next_multiple_of(STRETCH).min(end);
        let tail = (end / STRETCH * STRETCH).max(head);
        for (from, to) in [(block, head), (head, tail), (tail, end)] {
            let diagonal = to - from >= DIAGONAL_BLOCKS;
            let marks = if diagonal { DIAGONAL } else { 0 };
            self.diagonals |= diagonal;
            // A diagonal that a group's border cuts is entered once, unless others come between.
            let entries = if diagonal { (to - from).div_ceil(STRETCH) * 2 } else { to - from };
            self.entries += entries as usize;
            let slot = run.slot + (from - block) as u32;
            if from < to {
                groups.append(slot, (to - from) as u32, from, run.seq, marks);
            }
        }
    }

    /// Decides between versions. Returns the index without the superseded ones; every slot that
    /// holds nothing is free in it.
    pub fn finish(mut self, now: Time) -> (Index, Decided) {
        self.close();
        let alike = self.build_lookup();
        let diagonals = self.diagonals;
        let mut index = self.index;
        let mut suspects = index.suspects(&alike, diagonals);
        suspects.sort_unstable();
        suspects.dedup();
        let mut decided = Decided::default();
        for block in suspects {
            index.decide(block, &mut decided);
        }
        decided.superseded.sort_unstable();
        index.open_up(now);
        index.add(Stock::new());
        (index, decided)
    }

    fn build_lookup(&mut self) -> Vec<u32> {
        let mut bulk = Bulk::new(self.index.len(), self.entries);
        self.each_entry(|key, value| bulk.push(key, value));
        let (lookup, alike) = bulk.finish();
        self.index.lookup = lookup;
        alike
    }

    fn each_entry(&self, mut enter: impl FnMut(Key, u32)) {
        let mut recent = Recent::default();
        self.index.groups.each(|run| {
            let slot_of = |block: u64| run.slot + (block - run.block) as u32;
            if !run.has(DIAGONAL) {
                let blocks = run.block..run.block + u64::from(run.len);
                return blocks.for_each(|block| enter(Key::Block(block), slot_of(block)));
            }
            for (stretch, block, _) in stretches(run.block, u64::from(run.len)) {
                let value = diagonal_of(block, slot_of(block));
                if recent.is_new(stretch, value) {
                    enter(Key::Stretch(stretch), value);
                }
            }
        });
    }
}

impl Index {
    /// Blocks that may have several versions, given values whose keys may be alike, and whether
    /// there are diagonals.
    fn suspects(&self, alike: &[u32], diagonals: bool) -> Vec<u64> {
        let mut suspects = Vec::new();
        suspects.extend(alike.iter().filter_map(|&value| Some(self.at(value)?.block)));
        if !diagonals {
            return suspects;
        }
        for &value in alike {
            for run in self.groups.runs(value.saturating_sub(BIAS), value) {
                if run.block % STRETCH == u64::from(run.slot + BIAS - value) % STRETCH {
                    suspects.extend(run.block..run.block + u64::from(run.len));
                }
            }
        }
        for run in self.runs().filter(|run| run.has(DIAGONAL)) {
            for (stretch, block, len) in stretches(run.block, u64::from(run.len)) {
                let single = |block: &u64| {
                    let mut slots = self.lookup.candidates(Key::Block(*block));
                    slots.any(|slot| self.holds(slot, *block))
                };
                let blocks = self.blocks_with_singles(stretch, block..block + len);
                suspects.extend(blocks.filter(single));
            }
        }
        suspects
    }

    /// Decides between the versions of a block, in the order of slots: a higher seq wins, of
    /// equal ones the later.
    fn decide(&mut self, block: u64, decided: &mut Decided) {
        let offset = (block % STRETCH) as u32;
        let diagonals = self.lookup.candidates(Key::Stretch(block / STRETCH));
        let on_diagonal = |value: u32| (value + offset).checked_sub(BIAS);
        let singles = self.lookup.candidates(Key::Block(block));
        let mut slots: Vec<u32> = diagonals
            .filter_map(on_diagonal)
            .chain(singles)
            .filter(|&slot| self.holds(slot, block))
            .collect();
        slots.sort_unstable();
        slots.dedup();
        if slots.len() > VERSIONS_MAX {
            decided.crowded = Some((block, slots.len()));
            return;
        }
        let seq_of = |index: &Index, slot: u32| index.at(slot).map(|run| run.seq);
        let mut kept: Option<u32> = None;
        for slot in slots {
            let Some(other) = kept.replace(slot) else { continue };
            let (seq, held) = (seq_of(self, slot), seq_of(self, other));
            let loser = if held > seq { slot } else { other };
            if held == seq {
                decided.identical = decided.identical.or(Some((other, slot)));
            } else {
                decided.superseded.push(loser);
            }
            kept = Some(if loser == slot { other } else { slot });
            let run = self.at(loser).map(|run| Run { len: 1, ..run });
            let run = run.expect("a version is there");
            self.groups.remove(run.slot, 1);
            self.leave(&run);
        }
    }

    /// Counts the used slots, enters them in the order, and frees the rest.
    fn open_up(&mut self, now: Time) {
        let Index { groups, space, order, cached, .. } = self;
        let (mut at, mut last) = (0, None::<Run>);
        groups.each(|run| {
            if run.slot > at {
                space.free(at, run.slot - at);
            }
            at = run.end();
            *cached += u64::from(run.len);
            // Neighbours of one seq are one insertion.
            match &mut last {
                Some(open) if open.end() == run.slot && open.seq == run.seq => open.len += run.len,
                _ => {
                    if let Some(open) = last.replace(run) {
                        order.push(open.slot, open.len, open.seq, now);
                    }
                }
            }
        });
        if let Some(open) = last {
            order.push(open.slot, open.len, open.seq, now);
        }
        if at < groups.slots() {
            space.free(at, groups.slots() - at);
        }
        space.find_place();
    }
}
