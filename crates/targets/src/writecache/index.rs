//! What the cache holds, in memory: slots, the index from block to newest slot, the order of
//! insertion, and the chains of older versions.
//!
//! A slot is in one of these states, and moves only along these arrows:
//!
//! ```text
//! Free -> Filling -> Uncommitted -> Frozen -> Committed -> Doomed -> Free
//!            |            |            `--------------------^          ^
//!            `------------+--------------------------------------------'
//! ```
//!
//! *Filling*: data on its way, not in the index. *Uncommitted*: data there, no entry on disk.
//! *Frozen*: its entry is being written by the running commit. *Committed*: its entry counts
//! on disk. *Doomed*: its entry is being or has been made free on disk, or never was written;
//! it waits for I/O in flight. The arrows past *Committed* skip what never reached the disk.
//!
//! Versions of one block form a chain, newest first: the index names the newest, `older` leads
//! on. Only the newest is read, overwritten or (alone) written back.
//!
//! Everything here is plain data under the target's one short lock; it decides nothing.

use rustc_hash::FxHashMap;

use cairn_block::Time;
use cairn_format::writecache::Seq;

use super::space::FreeSpace;

/// No slot.
pub(super) const NIL: u32 = u32::MAX;

/// Where a slot is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    Free,
    Filling,
    Uncommitted,
    Frozen,
    Committed,
    Doomed,
}

/// One cache block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// The block of the origin it holds (sector / block size).
    pub block: u64,
    /// The commit that makes (or made) it count.
    pub seq: Seq,
    /// When it was inserted.
    pub inserted: Time,
    /// Counts insertions, for "everything up to now".
    pub number: u64,
    pub older: u32,
    prev: u32,
    next: u32,
    /// Reads and writes of its data in flight.
    pub reads: u32,
    pub writes: u32,
    pub state: SlotState,
    /// Being written back (I10).
    pub in_writeback: bool,
    /// Being taken out by a discard or write-zeroes.
    pub leaving: bool,
    linked: bool,
}

impl Slot {
    const FREE: Slot = Slot {
        block: 0,
        seq: Seq::FREE,
        inserted: Time(0),
        number: 0,
        older: NIL,
        prev: NIL,
        next: NIL,
        reads: 0,
        writes: 0,
        state: SlotState::Free,
        in_writeback: false,
        leaving: false,
        linked: false,
    };

    /// True if I/O to its data is in flight (I11).
    pub fn is_busy(&self) -> bool {
        self.reads > 0 || self.writes > 0
    }

    /// True if a write may go into the slot in place (I10).
    pub fn takes_overwrite(&self) -> bool {
        !self.in_writeback && !self.leaving
    }
}

/// The cache's contents.
pub(super) struct Index {
    slots: Vec<Slot>,
    newest: FxHashMap<u64, u32>,
    space: FreeSpace,
    /// Oldest and youngest of the order of insertion.
    oldest: u32,
    youngest: u32,
    next_number: u64,
    /// Slots with `in_writeback`.
    pub in_writeback: u32,
    /// Blocks in the index.
    cached: u64,
}

impl Index {
    /// An index of `slots` slots, all in use by nobody: recovery fills and frees them.
    pub fn new(slots: u32) -> Index {
        Index {
            slots: vec![Slot { state: SlotState::Doomed, ..Slot::FREE }; slots as usize],
            newest: FxHashMap::default(),
            space: FreeSpace::full(slots),
            oldest: NIL,
            youngest: NIL,
            next_number: 1,
            in_writeback: 0,
            cached: 0,
        }
    }

    pub fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    pub fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn free_count(&self) -> u32 {
        self.space.count()
    }

    /// Blocks that have a cached version.
    pub fn cached_blocks(&self) -> u64 {
        self.cached
    }

    /// The newest cached version of a block.
    pub fn newest(&self, block: u64) -> Option<u32> {
        self.newest.get(&block).copied()
    }

    /// The slot inserted longest ago.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NIL).then_some(self.oldest)
    }

    /// The slot inserted next after `slot`.
    pub fn after(&self, slot: u32) -> Option<u32> {
        let next = self.slots[slot as usize].next;
        (next != NIL).then_some(next)
    }

    /// Every cached block; in no order that means anything, but the same for the same history.
    pub fn blocks(&self) -> impl Iterator<Item = u64> {
        self.newest.keys().copied()
    }

    /// The number that the next insertion gets.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Takes up to `want` consecutive free slots for data on its way.
    pub fn take_run(&mut self, want: u32) -> Option<(u32, u32)> {
        let (start, len) = self.space.take_run(want)?;
        for slot in start..start + len {
            let slot = &mut self.slots[slot as usize];
            assert_eq!(slot.state, SlotState::Free, "I3: free slots only are handed out");
            assert!(!slot.is_busy(), "I11");
            slot.state = SlotState::Filling;
            slot.writes = 1;
        }
        Some((start, len))
    }

    /// Puts a version on top of its block's chain and at the young end of the order.
    pub fn insert(&mut self, slot: u32, block: u64, seq: Seq, state: SlotState, now: Time) {
        let older = self.newest.insert(block, slot).unwrap_or(NIL);
        if older == NIL {
            self.cached += 1;
        } else if !self.slots[older as usize].in_writeback {
            self.unlink(older);
        }
        let number = self.next_number;
        self.next_number += 1;
        let entry = &mut self.slots[slot as usize];
        entry.block = block;
        entry.seq = seq;
        entry.state = state;
        entry.older = older;
        entry.inserted = now;
        entry.number = number;
        self.link(slot);
    }

    fn link(&mut self, slot: u32) {
        let youngest = self.youngest;
        let entry = &mut self.slots[slot as usize];
        (entry.prev, entry.next, entry.linked) = (youngest, NIL, true);
        if youngest == NIL {
            self.oldest = slot;
        } else {
            self.slots[youngest as usize].next = slot;
        }
        self.youngest = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { prev, next, linked, .. } = self.slots[slot as usize];
        if !linked {
            return;
        }
        if prev == NIL {
            self.oldest = next;
        } else {
            self.slots[prev as usize].next = next;
        }
        if next == NIL {
            self.youngest = prev;
        } else {
            self.slots[next as usize].prev = prev;
        }
        self.slots[slot as usize].linked = false;
    }

    /// True if the slot is the newest version of its block.
    pub fn is_newest(&self, slot: u32) -> bool {
        self.newest(self.slots[slot as usize].block) == Some(slot)
    }

    /// Marks a slot as being written back.
    pub fn begin_writeback(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        assert_eq!(entry.state, SlotState::Committed, "I6");
        assert!(entry.writes == 0 && entry.older == NIL, "I10, I5");
        assert!(!entry.in_writeback);
        entry.in_writeback = true;
        self.in_writeback += 1;
    }

    /// Ends the writeback of a slot, if it was being written back. A version that was
    /// superseded meanwhile leaves the order.
    pub fn end_writeback(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        if !std::mem::take(&mut entry.in_writeback) {
            return;
        }
        self.in_writeback -= 1;
        if !self.is_newest(slot) {
            self.unlink(slot);
        }
    }

    /// Takes a version out of its block's chain and out of the order (I9: its entry is free on
    /// disk, or never was there, or a newer version covers it).
    pub fn remove(&mut self, slot: u32) {
        let Slot { block, older, .. } = self.slots[slot as usize];
        let newest = self.newest[&block];
        if newest != slot {
            let mut above = newest;
            while self.slots[above as usize].older != slot {
                above = self.slots[above as usize].older;
            }
            self.slots[above as usize].older = older;
        } else if older == NIL {
            self.newest.remove(&block);
            self.cached -= 1;
        } else {
            self.newest.insert(block, older);
        }
        self.unlink(slot);
        let entry = &mut self.slots[slot as usize];
        entry.older = NIL;
        entry.state = SlotState::Doomed;
    }

    /// Frees a doomed slot as soon as no I/O to it is in flight. True if it became free.
    pub fn release(&mut self, slot: u32) -> bool {
        let entry = &mut self.slots[slot as usize];
        assert_eq!(entry.state, SlotState::Doomed);
        assert!(!entry.linked && !entry.in_writeback);
        if entry.is_busy() {
            return false;
        }
        *entry = Slot::FREE;
        self.space.free(slot);
        true
    }

    /// The versions of a block, newest first.
    pub fn versions(&self, block: u64) -> impl Iterator<Item = u32> {
        let mut at = self.newest(block).unwrap_or(NIL);
        std::iter::from_fn(move || {
            let slot = (at != NIL).then_some(at)?;
            at = self.slots[slot as usize].older;
            Some(slot)
        })
    }

    /// Checks what must hold between any two steps. Linear in the cache.
    pub fn check(&self) {
        let mut linked = 0;
        let mut at = self.oldest;
        let mut last = 0;
        while at != NIL {
            let slot = self.slot(at);
            assert!(slot.linked && slot.number > last, "the order is that of insertion");
            (last, linked, at) = (slot.number, linked + 1, slot.next);
        }
        assert_eq!(linked, self.slots.iter().filter(|slot| slot.linked).count());
        let mut chained = 0;
        for (&block, &newest) in &self.newest {
            let mut seqs = Vec::new();
            for slot in self.versions(block) {
                chained += 1;
                let entry = self.slot(slot);
                assert_eq!(entry.block, block);
                let cached = [SlotState::Uncommitted, SlotState::Frozen, SlotState::Committed];
                assert!(cached.contains(&entry.state), "a version has data");
                assert!(slot == newest || !matches!(entry.state, SlotState::Uncommitted));
                assert!(!(entry.in_writeback && entry.older != NIL), "I5");
                assert!(!entry.in_writeback || entry.state == SlotState::Committed, "I6");
                seqs.push(entry.seq.0);
            }
            assert!(seqs.windows(2).all(|pair| pair[0] > pair[1]), "newer means a higher seq");
        }
        let in_chain = |slot: &&Slot| {
            !matches!(slot.state, SlotState::Free | SlotState::Filling | SlotState::Doomed)
        };
        assert_eq!(chained, self.slots.iter().filter(in_chain).count());
        let free = self.slots.iter().filter(|slot| slot.state == SlotState::Free).count();
        assert_eq!(free, self.space.count() as usize);
        let in_writeback = self.slots.iter().filter(|slot| slot.in_writeback).count();
        assert_eq!(in_writeback, self.in_writeback as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index_of_free(slots: u32) -> Index {
        let mut index = Index::new(slots);
        for slot in 0..slots {
            index.release(slot);
        }
        index
    }

    fn fill(index: &mut Index, block: u64, seq: u64, state: SlotState) -> u32 {
        let (slot, _) = index.take_run(1).unwrap();
        index.slot_mut(slot).writes = 0;
        index.insert(slot, block, Seq(seq), state, Time(seq));
        index.check();
        slot
    }

    #[test]
    fn a_chain_loses_any_version_and_stays_whole() {
        for removed in 0..3usize {
            let mut index = index_of_free(4);
            let slots = [
                fill(&mut index, 7, 1, SlotState::Committed),
                fill(&mut index, 7, 2, SlotState::Committed),
                fill(&mut index, 7, 3, SlotState::Uncommitted),
            ];
            index.remove(slots[removed]);
            assert!(index.release(slots[removed]));
            index.check();
            let mut left: Vec<u32> = slots.to_vec();
            left.remove(removed);
            left.reverse();
            assert_eq!(index.versions(7).collect::<Vec<_>>(), left);
            assert_eq!(index.newest(7), Some(left[0]));
        }
    }

    #[test]
    fn a_busy_slot_is_not_reused() {
        let mut index = index_of_free(1);
        let slot = fill(&mut index, 1, 0, SlotState::Committed);
        index.slot_mut(slot).reads = 1;
        index.remove(slot);
        assert!(!index.release(slot), "I11");
        assert!(index.take_run(1).is_none());
        index.slot_mut(slot).reads = 0;
        assert!(index.release(slot));
        assert_eq!(index.take_run(1), Some((slot, 1)));
    }

    #[test]
    fn the_order_is_that_of_insertion_and_superseded_versions_leave_it() {
        let mut index = index_of_free(4);
        let first = fill(&mut index, 1, 0, SlotState::Committed);
        let second = fill(&mut index, 2, 0, SlotState::Committed);
        let third = fill(&mut index, 1, 1, SlotState::Uncommitted);
        assert_eq!(index.oldest(), Some(second));
        assert_eq!(index.after(second), Some(third));
        assert_eq!(index.after(third), None);
        assert!(!index.is_newest(first));
    }
}
