//! The index against a reference model that keeps a list of versions per block: random histories of
//! fills, commits, writebacks, removals and I/O in flight, with shrinking.

use std::collections::{BTreeMap, BTreeSet};

use cairn_block::Time;
use cairn_format::writecache::{Entry, Seq};
use proptest::prelude::{Strategy, any, prop_oneof, proptest};

use super::{Builder, COVERED, FREED, IN_WRITEBACK, Index, Life, Run};

const BLOCKS: u64 = 500;

#[derive(Clone, Debug)]
enum Step {
    Fill { block: u64, len: u32 },
    Freeze,
    EndCommit { frees: bool },
    WriteBack { pick: usize, len: u32 },
    EndWriteback { pick: usize, frees: bool },
    Remove { block: u64, len: u64 },
    BeginIo { pick: usize, len: u32, write: bool },
    EndIo { pick: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let pick = any::<usize>();
    let range = (0..BLOCKS, prop_oneof![1u64..12, 1u64..250]);
    prop_oneof![
        4 => range.clone().prop_map(|(block, len)| {
            Step::Fill { block, len: len.min(BLOCKS - block) as u32 }
        }),
        1 => proptest::strategy::Just(Step::Freeze),
        2 => any::<bool>().prop_map(|frees| Step::EndCommit { frees }),
        2 => (pick, 1u32..80).prop_map(|(pick, len)| Step::WriteBack { pick, len }),
        2 => (pick, any::<bool>()).prop_map(|(pick, frees)| Step::EndWriteback { pick, frees }),
        1 => range.prop_map(|(block, len)| Step::Remove { block, len: len.min(BLOCKS - block) }),
        1 => (pick, 1u32..80, any::<bool>())
            .prop_map(|(pick, len, write)| Step::BeginIo { pick, len, write }),
        1 => pick.prop_map(|pick| Step::EndIo { pick }),
    ]
}

/// A version: its slot and seq.
type Version = (u32, u64);

struct Reference {
    index: Index,
    /// Versions of each block, newest first.
    blocks: BTreeMap<u64, Vec<Version>>,
    busy: Vec<(u32, u32, u32, bool)>,
    in_writeback: Vec<(u32, u32)>,
    durable: u64,
    stamp: u64,
    now: u64,
}

impl Reference {
    fn new(slots: u32) -> Reference {
        let (index, _) = Builder::new(Index::new(slots, None)).finish(Time(0));
        Reference {
            index,
            blocks: BTreeMap::new(),
            busy: Vec::new(),
            in_writeback: Vec::new(),
            durable: 0,
            stamp: 0,
            now: 0,
        }
    }

    fn run(&mut self, step: Step) {
        self.now += 1;
        match step {
            Step::Fill { block, len } => self.fill(block, len),
            Step::Freeze if self.durable == self.stamp => {
                let dirty = self.versions().any(|(_, version)| version.1 == self.stamp);
                let frozen = self.index.freeze(&mut Vec::new());
                assert_eq!(frozen.map(|seq| seq.0), dirty.then_some(self.stamp));
                self.stamp += u64::from(dirty);
            }
            Step::Freeze => (),
            Step::EndCommit { frees } => self.end_commit(frees),
            Step::WriteBack { pick, len } => self.write_back(pick, len),
            Step::EndWriteback { pick, frees } => self.end_writeback(pick, frees),
            Step::Remove { block, len } => self.remove(block, len),
            Step::BeginIo { pick, len, write } => self.begin_io(pick, len, write),
            Step::EndIo { pick } if !self.busy.is_empty() => {
                let (name, slot, len, _) = self.busy.swap_remove(pick % self.busy.len());
                assert_eq!(self.index.end_io(name).0, slot..slot + len);
            }
            Step::EndIo { .. } => (),
        }
    }

    fn versions(&self) -> impl Iterator<Item = (u64, Version)> {
        let all = |(&block, versions): (&u64, &Vec<Version>)| {
            versions.iter().map(move |&version| (block, version)).collect::<Vec<_>>()
        };
        self.blocks.iter().flat_map(all)
    }

    fn fill(&mut self, block: u64, len: u32) {
        let Some((slot, len)) = self.index.take_run(len) else { return };
        self.index.insert(slot, len, block, Time(self.now));
        for (block, slot) in (block..).zip(slot..slot + len) {
            let versions = self.blocks.entry(block).or_default();
            if versions.first().is_some_and(|version| version.1 == self.stamp) {
                versions.remove(0);
            }
            versions.insert(0, (slot, self.stamp));
        }
    }

    fn take_out(&mut self, slots: &[(u32, u32)]) {
        for &(slot, len) in slots {
            self.index.mark(slot, len, FREED, 0);
        }
        for &(slot, len) in slots {
            self.index.end_writeback(slot, len);
            self.index.remove(slot, len);
            self.index.release(slot, len);
            for versions in self.blocks.values_mut() {
                versions.retain(|version| !(slot..slot + len).contains(&version.0));
            }
        }
        self.blocks.retain(|_, versions| !versions.is_empty());
    }

    fn end_commit(&mut self, frees: bool) {
        self.durable = self.stamp;
        self.index.durable_seq = Seq(self.durable);
        let mut superseded = Vec::new();
        for versions in self.blocks.values() {
            let committed = versions.iter().filter(|version| version.1 < self.durable);
            let moving = |slot: u32| {
                self.in_writeback.iter().any(|&(from, len)| (from..from + len).contains(&slot))
            };
            let below = committed.skip(1).map(|version| version.0);
            superseded.extend(below.filter(|&slot| !moving(slot)).map(|slot| (slot, 1)));
        }
        superseded.sort_unstable();
        assert_eq!(self.index.superseded(), superseded, "I8");
        if frees {
            self.take_out(&superseded);
        }
    }

    fn pick(&self, pick: usize, len: u32) -> Option<Run> {
        let runs: Vec<Run> = self.index.runs().filter(|run| !run.has(COVERED)).collect();
        let run = runs.get(pick % runs.len().max(1))?;
        let skip = (pick / 7) as u32 % run.len;
        let (slot, block) = (run.slot + skip, run.block + u64::from(skip));
        Some(Run { slot, block, len: len.min(run.len - skip), ..*run })
    }

    fn write_back(&mut self, pick: usize, len: u32) {
        let Some(run) = self.pick(pick, len) else { return };
        let idle = self.index.clear_of_writes(&run) == run.len;
        if self.index.life(&run) == Life::Committed
            && !run.has(IN_WRITEBACK)
            && idle
            && !self.index.has_older(run.block, run.len)
        {
            self.index.begin_writeback(run.slot, run.len);
            self.in_writeback.push((run.slot, run.len));
        }
    }

    fn end_writeback(&mut self, pick: usize, frees: bool) {
        if self.in_writeback.is_empty() {
            return;
        }
        let (slot, len) = self.in_writeback.swap_remove(pick % self.in_writeback.len());
        if frees {
            self.take_out(&[(slot, len)]);
        } else {
            self.index.end_writeback(slot, len);
        }
    }

    /// What a discard does, when no commit runs.
    fn remove(&mut self, block: u64, len: u64) {
        if self.durable != self.stamp {
            return;
        }
        let blocks = block..block + len;
        let mut runs = self.index.cached_in(&blocks);
        let cached: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
        assert_eq!(cached as usize, self.blocks.range(blocks.clone()).count());
        runs.extend(self.index.older_in(&blocks));
        if runs.iter().any(|run| run.has(IN_WRITEBACK)) {
            return;
        }
        let mut committed = Vec::new();
        for run in runs {
            if self.index.life(&run) == Life::Uncommitted {
                self.index.drop_uncommitted(&run);
            } else {
                committed.push((run.slot, run.len));
            }
        }
        self.take_out(&committed);
        self.blocks.retain(|block, _| !blocks.contains(block));
    }

    fn begin_io(&mut self, pick: usize, len: u32, write: bool) {
        let Some(run) = self.pick(pick, len) else { return };
        if !(write && run.has(IN_WRITEBACK)) {
            let name = self.index.begin_io(run.slot, run.len, write);
            self.busy.push((name, run.slot, run.len, write));
        }
    }

    fn compare(&self) {
        self.index.check();
        let mut next = None;
        for block in (0..BLOCKS).rev() {
            let versions = self.blocks.get(&block).map_or(&[][..], Vec::as_slice);
            let slots: Vec<u32> = versions.iter().map(|version| version.0).collect();
            assert_eq!(self.index.versions(block).collect::<Vec<_>>(), slots);
            next = slots.first().map(|&slot| (block, slot)).or(next);
            assert_eq!(self.index.first_cached(block, BLOCKS - block), next);
            assert_eq!(self.index.first_cached(block, 0), None);
            for (slot, seq) in versions {
                assert_eq!(
                    self.index.at(*slot).map(|run| (run.block, run.seq.0)),
                    Some((block, *seq))
                );
            }
        }
        assert_eq!(self.index.cached_blocks(), self.blocks.len() as u64);
    }

    /// The metadata as it would be written now.
    fn image(&self) -> Vec<Entry> {
        let mut bytes = Vec::new();
        for granule in 0..=super::granule_of(self.index.len() - 1) {
            let mut out = vec![0; if granule == 0 { 4096 - 64 } else { 4096 }];
            self.index.encode(granule, 8, &mut out);
            bytes.extend(out);
        }
        Entry::iter(&bytes).take(self.index.len() as usize).collect()
    }

    /// A crash now, and recovery: the highest committed version of each block is left.
    fn recover(&self) {
        let mut expected = BTreeMap::new();
        for (block, (slot, seq)) in self.versions().collect::<Vec<_>>().into_iter().rev() {
            if seq < self.durable {
                expected.insert(block, (slot, seq));
            }
        }
        let mut builder = Builder::new(Index::new(self.index.len(), None));
        for (slot, entry) in (0..).zip(self.image()) {
            if entry.seq < Seq(self.durable) {
                builder.push(slot, entry.original_sector / 8, entry.seq);
            }
        }
        let (mut index, decided) = builder.finish(Time(0));
        (index.durable_seq, index.stamp_seq) = (Seq(self.durable), Seq(self.durable));
        index.check();
        assert_eq!(decided.identical, None);
        let newest = |block: u64| {
            let run = index.at(index.newest(block)?)?;
            Some((block, (run.slot, run.seq.0)))
        };
        let found: BTreeMap<_, _> = (0..BLOCKS).filter_map(newest).collect();
        assert_eq!(found, expected);
        let kept: BTreeSet<u32> = expected.values().map(|version| version.0).collect();
        let committed = self.versions().filter(|(_, version)| version.1 < self.durable);
        let mut lost: Vec<u32> =
            committed.map(|(_, (slot, _))| slot).filter(|slot| !kept.contains(slot)).collect();
        lost.sort_unstable();
        assert_eq!(decided.superseded, lost);
    }
}

proptest! {
    #[test]
    fn the_index_holds_what_a_list_of_versions_would(
        slots in 1u32..900,
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut reference = Reference::new(slots);
        for step in steps {
            reference.run(step);
            reference.compare();
        }
        reference.recover();
    }
}

#[test]
fn of_identical_entries_the_later_slot_is_kept() {
    let mut builder = Builder::new(Index::new(300, None));
    for slot in 0..20 {
        builder.push(slot, u64::from(slot), Seq(1));
    }
    builder.push(40, 7, Seq(1));
    builder.push(41, 9, Seq(2));
    builder.push(42, 11, Seq(0));
    let (mut index, decided) = builder.finish(Time(0));
    (index.durable_seq, index.stamp_seq) = (Seq(3), Seq(3));
    index.check();
    assert_eq!(decided.identical, Some((7, 40)));
    assert_eq!(decided.superseded, [9, 42]);
    assert_eq!([7, 9, 11].map(|block| index.newest(block)), [Some(40), Some(41), Some(11)]);
}

#[test]
fn a_run_across_two_groups_is_found_in_both_and_leaves_both() {
    let (mut index, _) = Builder::new(Index::new(600, None)).finish(Time(0));
    // The first group ends at slot 252. Six blocks, then five that go on across the border: the
    // part before it becomes a diagonal, the part behind stays as singles.
    index.insert(244, 6, 489, Time(0));
    index.insert(250, 5, 495, Time(0));
    for (block, slot) in (489..500).zip(244..) {
        assert_eq!(index.newest(block), Some(slot));
    }
    index.remove(244, 11);
    assert_eq!(index.first_cached(480, 40), None);
}
