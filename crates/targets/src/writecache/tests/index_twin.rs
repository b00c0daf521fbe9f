//! The index against lists: which versions a block has, and the order of insertion.

use std::collections::BTreeMap;

use cairn_block::Time;
use cairn_format::writecache::Seq;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::{collection, proptest};

use super::super::index::{Index, SlotState};

const SLOTS: u32 = 12;
const BLOCKS: u64 = 5;

/// Steps that the target could take; those that it could not at the moment are skipped.
#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(u64),
    Remove(usize),
    BeginWriteback(u64),
    EndWriteback(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..BLOCKS).prop_map(Step::Insert),
        2 => any::<usize>().prop_map(Step::Remove),
        1 => (0..BLOCKS).prop_map(Step::BeginWriteback),
        1 => any::<usize>().prop_map(Step::EndWriteback),
    ];
    collection::vec(step, 1..200)
}

#[derive(Default)]
struct Lists {
    /// Newest first.
    versions: BTreeMap<u64, Vec<u32>>,
    /// Oldest first.
    order: Vec<u32>,
    in_writeback: Vec<u32>,
}

impl Lists {
    fn insert(&mut self, block: u64, slot: u32) {
        let versions = self.versions.entry(block).or_default();
        if let Some(older) = versions.first().filter(|slot| !self.in_writeback.contains(slot)) {
            self.order.retain(|slot| slot != older);
        }
        versions.insert(0, slot);
        self.order.push(slot);
    }

    fn remove(&mut self, slot: u32) {
        self.versions.values_mut().for_each(|versions| versions.retain(|&other| other != slot));
        self.versions.retain(|_, versions| !versions.is_empty());
        self.order.retain(|&other| other != slot);
    }

    fn end_writeback(&mut self, slot: u32) {
        self.in_writeback.retain(|&other| other != slot);
        if !self.versions.values().any(|versions| versions[0] == slot) {
            self.order.retain(|&other| other != slot);
        }
    }

    fn compare(&self, index: &Index) {
        index.check();
        for block in 0..BLOCKS {
            let versions = self.versions.get(&block).cloned().unwrap_or_default();
            assert_eq!(index.versions(block).collect::<Vec<_>>(), versions);
            assert_eq!(index.newest(block), versions.first().copied());
        }
        let order = std::iter::successors(index.oldest(), |&slot| index.after(slot));
        assert_eq!(order.collect::<Vec<_>>(), self.order);
        assert_eq!(index.cached_blocks() as usize, self.versions.len());
        let used: usize = self.versions.values().map(Vec::len).sum();
        assert_eq!((SLOTS - index.free_count()) as usize, used);
    }
}

fn take(index: &mut Index, lists: &mut Lists, step: Step, seq: u64) {
    let (slots, homeward) = (&lists.versions, &lists.in_writeback);
    match step {
        Step::Insert(block) => {
            let Some((slot, _)) = index.take_run(1) else { return };
            index.slot_mut(slot).writes = 0;
            index.insert(slot, block, Seq(seq), SlotState::Committed, Time(seq));
            lists.insert(block, slot);
        }
        Step::Remove(which) => {
            let idle = slots.values().flatten().filter(|slot| !homeward.contains(slot));
            let idle: Vec<u32> = idle.copied().collect();
            if idle.is_empty() {
                return;
            }
            let slot = idle[which % idle.len()];
            index.remove(slot);
            assert!(index.release(slot));
            lists.remove(slot);
        }
        Step::BeginWriteback(block) => {
            let Some([slot]) = slots.get(&block).map(Vec::as_slice) else { return };
            let slot = *slot;
            if !homeward.contains(&slot) {
                index.begin_writeback(slot);
                lists.in_writeback.push(slot);
            }
        }
        Step::EndWriteback(which) if !homeward.is_empty() => {
            let slot = homeward[which % homeward.len()];
            index.end_writeback(slot);
            lists.end_writeback(slot);
        }
        Step::EndWriteback(_) => (),
    }
}

proptest! {
    #[test]
    fn the_index_is_what_lists_say(steps in steps()) {
        let mut index = Index::new(SLOTS);
        (0..SLOTS).for_each(|slot| assert!(index.release(slot)));
        let mut lists = Lists::default();
        for (seq, step) in (1u64..).zip(steps) {
            take(&mut index, &mut lists, step, seq);
            lists.compare(&index);
        }
    }
}
