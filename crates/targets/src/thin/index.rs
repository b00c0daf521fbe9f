//! The volume map: the current data block of each virtual block of one thin volume, and the changes
//! that are not yet in the metadata.
//!
//! Virtual blocks are kept in groups of 64 consecutive ones. A group is loaded from the durable
//! metadata when it is first needed. It may be dropped again while none of its changes is
//! uncommitted (`groups`). Groups are spread over shards, each under a short lock, so that a lookup
//! is one lock, one probe and one load, and reactors rarely contend.
//!
//! M1. A loaded group is current. For groups that are not loaded, the durable metadata is. So a
//!     group with a change that is not durable is never dropped (`Groups::forget_one`).
//! M2. Every change of a group is appended to its shard's pending list under the same lock.
//! M3. A block in a cell has one writer at work on it, which will map it. No other request maps or
//!     unmaps the block until then.
//! M4. No block at or beyond [`VolumeMap::end`] is mapped, in a cell, or mapped in the metadata.
//! M5. A group is loaded by one task at a time.

use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::sync::{Mutex, MutexGuard};
use cairn_block::{RequestId, invariants};
use cairn_format::thin::{DataBlock, Mapping};

use super::arena::{Arena, GROUP_BLOCKS};
use super::groups::{Entry, Group, Groups, SHARDS};

/// A change that the next commit makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub block: u64,
    /// What the block is now.
    pub mapping: Option<Mapping>,
    /// What it was before.
    pub old: Option<Mapping>,
    /// A client discarded it: the data device may hear of it.
    pub discarded: bool,
}

/// Blocks that a writer is about to map to data blocks that it fills.
pub(super) struct Cell {
    pub block: u64,
    pub count: u64,
    /// The first of the data blocks.
    pub data: DataBlock,
    /// Who waits for the end.
    waiters: Vec<RequestId>,
}

/// The state of a block, and how many blocks after it continue it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// Not known: the group must be loaded.
    Absent,
    /// Not mapped.
    Hole { count: u64 },
    /// Mapped to consecutive data blocks.
    Mapped { data: DataBlock, shared: bool, count: u64 },
}

/// A part of the map, under its lock.
pub(super) struct Shard {
    groups: Groups,
    pending: Vec<Change>,
    cells: Vec<Cell>,
    /// Groups that are being loaded, with who waits.
    loading: Vec<(u64, Vec<RequestId>)>,
    /// Mapped blocks, counted from what the metadata said when the volume was opened.
    mapped: i64,
    /// The stamp of the latest change of this shard.
    changed_in: u64,
}

/// The time of a change, as a commit number.
#[derive(Clone, Copy)]
pub(super) struct Stamp {
    /// When the commit of this number is durable, so is the change (N1 in `commit`).
    pub commit: u64,
}

impl Shard {
    fn new(arena: Arc<Arena>) -> Shard {
        Shard {
            groups: Groups::new(arena),
            pending: Vec::new(),
            cells: Vec::new(),
            loading: Vec::new(),
            mapped: 0,
            changed_in: 0,
        }
    }

    /// The run that begins at `block`: at most `max` blocks, and never beyond its group.
    pub fn run(&mut self, block: u64, max: u64, snapshotted: u32) -> Run {
        invariants::sample(|| self.check_state());
        let Some(group) = self.groups.use_one(block / GROUP_BLOCKS) else { return Run::Absent };
        let mut entries = group.from(block, max);
        let Some(first) = entries.next().and_then(Entry::mapping) else {
            return Run::Hole {
                count: 1 + entries.take_while(|entry| entry.is_hole()).count() as u64,
            };
        };
        let shared = snapshotted > first.time;
        let follows = |(at, entry): &(u64, Entry)| {
            entry.mapping().is_some_and(|mapping| {
                mapping.block.0 == first.block.0 + at && (snapshotted > mapping.time) == shared
            })
        };
        let count = 1 + (1..).zip(entries).take_while(follows).count() as u64;
        Run::Mapped { data: first.block, shared, count }
    }

    /// The mapping of one block of a loaded group.
    pub fn get(&self, block: u64) -> Option<Mapping> {
        self.groups.get(block / GROUP_BLOCKS)?.get(block)
    }

    /// True if the group of a block is loaded.
    pub fn is_loaded(&self, block: u64) -> bool {
        self.groups.get(block / GROUP_BLOCKS).is_some()
    }

    /// True if the group of a block maps something; none: it is not loaded.
    pub fn has_mappings(&self, block: u64) -> Option<bool> {
        self.groups.get(block / GROUP_BLOCKS).map(|group| group.has_mappings())
    }

    /// How many blocks from `block` on, up to `count`, are in no cell.
    #[inline(always)]
    pub fn clear_of_cells(&self, block: u64, count: u64) -> u64 {
        if self.cells.is_empty() {
            return count;
        }
        self.cells.iter().fold(count, |clear, cell| {
            if block >= cell.block + cell.count || block + clear <= cell.block {
                clear
            } else {
                cell.block.saturating_sub(block)
            }
        })
    }

    /// Parks `request` until the cell that holds `block` ends.
    pub fn wait_for_cell(&mut self, block: u64, request: RequestId) {
        let holds = |cell: &&mut Cell| (cell.block..cell.block + cell.count).contains(&block);
        let cell = self.cells.iter_mut().find(holds).expect("the caller found one");
        cell.waiters.push(request);
    }

    /// Puts blocks, which are in no cell, into one.
    pub fn hold(&mut self, block: u64, count: u64, data: DataBlock) {
        debug_assert_eq!(self.clear_of_cells(block, count), count, "M3");
        self.cells.push(Cell { block, count, data, waiters: Vec::new() });
    }

    /// Ends the cell that begins at `block`; returns it and its waiters.
    pub fn release(&mut self, block: u64) -> (Cell, Vec<RequestId>) {
        let at = self.cells.iter().position(|cell| cell.block == block);
        let mut cell = self.cells.swap_remove(at.expect("M3: its holder ends a cell, once"));
        let waiters = std::mem::take(&mut cell.waiters);
        (cell, waiters)
    }

    /// Changes the mapping of a block of a loaded group; returns the former one.
    pub fn change(
        &mut self,
        block: u64,
        mapping: Option<Mapping>,
        stamp: Stamp,
        discarded: bool,
    ) -> Option<Mapping> {
        let group = self.groups.change_one(block / GROUP_BLOCKS, stamp.commit);
        let group = group.expect("a group is loaded before it changes, and pinned by cells");
        let old = group.get(block);
        group.set(block, mapping);
        self.changed_in = stamp.commit;
        self.mapped += i64::from(mapping.is_some()) - i64::from(old.is_some());
        self.pending.push(Change { block, mapping, old, discarded });
        old
    }

    /// Checks what must hold whenever the lock is free.
    pub fn check_state(&self) {
        for (at, cell) in self.cells.iter().enumerate() {
            let apart = |other: &Cell| {
                cell.block + cell.count <= other.block || other.block + other.count <= cell.block
            };
            assert!(self.cells[..at].iter().all(apart), "M3");
        }
        // The last change of a block is what its group says, and the group is still there.
        if let Some(last) = self.pending.last() {
            assert!(self.is_loaded(last.block), "M1");
            assert_eq!(self.get(last.block), last.mapping, "M2");
        }
        let once = |(at, (group, _)): (usize, &(u64, Vec<RequestId>))| {
            self.loading[..at].iter().all(|(other, _)| other != group)
        };
        assert!(self.loading.iter().enumerate().all(once), "M5");
    }

    /// True if something of this shard is not durable.
    pub fn is_dirty(&self, durable: u64) -> bool {
        self.changed_in > durable
    }

    /// Takes what the commit is to make durable.
    pub fn take_pending(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.pending)
    }

    /// Lets `request` wait until a group is loaded; true if the caller must load it.
    pub fn wait_for_group(&mut self, group: u64, request: Option<RequestId>) -> bool {
        if let Some((_, waiters)) = self.loading.iter_mut().find(|(loading, _)| *loading == group) {
            waiters.extend(request);
            return false;
        }
        self.loading.push((group, request.into_iter().collect()));
        true
    }

    /// The load of a group has ended; answers who waited.
    fn take_waiters(&mut self, number: u64) -> Vec<RequestId> {
        let at = self.loading.iter().position(|(loading, _)| *loading == number);
        at.map(|at| self.loading.swap_remove(at).1).unwrap_or_default()
    }

    /// Adds a group that is not there; if there are many, one is forgotten.
    fn add(&mut self, number: u64, group: &Group, durable: u64) {
        if self.groups.is_full() {
            self.forget_one(durable);
        }
        self.groups.add(number, group);
    }

    /// Forgets a group that is durable and in no cell; true if there was one.
    pub fn forget_one(&mut self, durable: u64) -> bool {
        let cells = &self.cells;
        let is_held = |group| cells.iter().any(|cell| cell.block / GROUP_BLOCKS == group);
        self.groups.forget_one(durable, is_held)
    }
}

/// The map of one volume.
pub(super) struct VolumeMap {
    arena: Arc<Arena>,
    shards: Box<[Mutex<Shard>]>,
    /// M4. Raised under the lock of a block's shard, before the block is in a cell or mapped.
    end: AtomicU64,
    /// Mapped blocks when the volume was opened.
    mapped_at_opening: AtomicU64,
}

impl VolumeMap {
    /// The map of a volume that has `mapped` blocks, none of them at or beyond `end`.
    pub fn new(mapped: u64, end: u64, arena: &Arc<Arena>) -> VolumeMap {
        VolumeMap {
            arena: arena.clone(),
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(arena.clone()))).collect(),
            end: AtomicU64::new(end),
            mapped_at_opening: AtomicU64::new(mapped),
        }
    }

    /// The shard of a block.
    #[inline(always)]
    pub fn shard(&self, block: u64) -> MutexGuard<'_, Shard> {
        self.shards[(block / GROUP_BLOCKS % SHARDS) as usize].lock()
    }

    /// Prefetches the entry of a block, if the index is larger than the processor's caches.
    pub fn prefetch(&self, block: u64) {
        // A small index is in the cache anyway.
        if self.arena.is_vast() {
            self.shard(block).groups.fetch(block);
        }
    }

    /// All of them, one after the other.
    pub fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(|shard| shard.lock())
    }

    /// See M4.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Blocks up to `end` are about to be mapped (M4).
    pub fn raise_end(&self, end: u64) {
        if self.end() < end {
            self.end.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// How many blocks are mapped now.
    pub fn mapped(&self) -> u64 {
        let changes: i64 = self.shards().map(|shard| shard.mapped).sum();
        self.mapped_at_opening.load(Ordering::Acquire).saturating_add_signed(changes)
    }

    /// Makes a group known without looking in the metadata: the caller found that it begins at
    /// [`VolumeMap::end`] or beyond (M4).
    pub fn add_empty(&self, shard: &mut Shard, block: u64, durable: u64) {
        shard.add(block / GROUP_BLOCKS, &Group::empty(), durable);
    }

    /// Adds a group that was read, if what was read is `current`; answers who waited for it.
    pub fn end_load(
        &self,
        number: u64,
        group: &Group,
        current: impl Fn() -> bool,
        durable: u64,
    ) -> Option<Vec<RequestId>> {
        let mut shard = self.shard(number * GROUP_BLOCKS);
        if shard.groups.get(number).is_none() {
            // Under the lock: what is not here is as the durable metadata has it (M1).
            if !current() {
                return None;
            }
            shard.add(number, group, durable);
        }
        Some(shard.take_waiters(number))
    }

    /// Ends the load of a group that cannot be read; answers who waited for it.
    pub fn give_up_load(&self, number: u64) -> Vec<RequestId> {
        self.shard(number * GROUP_BLOCKS).take_waiters(number)
    }

    /// The first of the loaded groups within these that maps something.
    pub fn first_loaded_group(&self, groups: std::ops::Range<u64>) -> Option<u64> {
        self.shards().filter_map(|shard| shard.groups.first_mapped(groups.clone())).min()
    }

    /// The highest mapped block among the loaded groups.
    pub fn highest_loaded(&self) -> Option<u64> {
        self.shards().filter_map(|shard| shard.groups.last_mapped()).max()
    }

    /// Drops everything except the cells: the metadata was rolled back, and now maps this many
    /// blocks.
    pub fn roll_back(&self, mapped: u64) {
        for mut shard in self.shards() {
            shard.groups.clear();
            shard.pending.clear();
            shard.mapped = 0;
        }
        self.mapped_at_opening.store(mapped, Ordering::Release);
    }

    /// Checks every shard.
    pub fn check_state(&self) {
        for shard in self.shards() {
            shard.check_state();
            let end = shard.cells.iter().map(|cell| cell.block + cell.count).max();
            assert!(end.is_none_or(|end| end <= self.end()), "M4");
            assert!(shard.groups.last_mapped().is_none_or(|last| last < self.end()), "M4");
        }
    }

    /// Nothing is left here that a commit could make durable.
    pub fn settle(&self) {
        self.shards().for_each(|mut shard| shard.changed_in = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Stamp = Stamp { commit: 1 };

    fn mapping(block: u64, time: u32) -> Option<Mapping> {
        Some(Mapping { block: DataBlock(block), time })
    }

    fn map_of(entries: &[(u64, u64, u32)]) -> VolumeMap {
        let map = VolumeMap::new(entries.len() as u64, 1 << 20, &Arc::default());
        let mut group = Group::empty();
        for &(block, data, time) in entries {
            group.set(block, Mapping { block: DataBlock(data), time });
        }
        map.end_load(0, &group, || true, 0);
        map
    }

    #[test]
    fn a_run_ends_with_its_kind_its_data_its_sharing_and_its_group() {
        let map = map_of(&[(3, 10, 0), (4, 11, 0), (5, 12, 2), (6, 20, 2), (63, 21, 2)]);
        let run = |block, max, snapshotted| map.shard(block).run(block, max, snapshotted);
        let mapped = |data, shared, count| Run::Mapped { data: DataBlock(data), shared, count };
        assert_eq!(run(0, 9, 0), Run::Hole { count: 3 });
        assert_eq!(run(0, 2, 0), Run::Hole { count: 2 });
        assert_eq!(run(3, 9, 0), mapped(10, false, 3));
        assert_eq!(run(3, 9, 1), mapped(10, true, 2));
        assert_eq!(run(5, 9, 2), mapped(12, false, 1));
        assert_eq!(run(63, 9, 3), mapped(21, true, 1));
        assert_eq!(run(7, 1000, 0), Run::Hole { count: 56 });
        assert_eq!(run(64, 1, 0), Run::Absent);
    }

    #[test]
    fn changes_are_counted_and_kept_for_the_commit() {
        let map = map_of(&[(3, 10, 0)]);
        let mut shard = map.shard(0);
        assert_eq!(shard.change(3, None, NOW, true), mapping(10, 0));
        assert_eq!(shard.change(9, mapping(11, 1), NOW, false), None);
        assert_eq!(shard.get(9), mapping(11, 1));
        assert!(shard.is_dirty(0) && !shard.is_dirty(1));
        let pending = shard.take_pending();
        assert_eq!(pending.len(), 2);
        assert!(pending[0].discarded && pending[0].old == mapping(10, 0));
        drop(shard);
        assert_eq!(map.mapped(), 1);
        assert_eq!(map.highest_loaded(), Some(9));
    }

    #[test]
    #[should_panic = "M2"]
    fn a_change_that_no_commit_will_take_is_noticed() {
        let map = map_of(&[(3, 10, 0)]);
        let mut shard = map.shard(0);
        shard.change(9, mapping(11, 1), NOW, false);
        shard.check_state();
        shard.pending[0].mapping = None;
        shard.check_state();
    }

    #[test]
    fn cells_cut_runs_and_keep_who_waits() {
        let map = map_of(&[]);
        let mut shard = map.shard(0);
        shard.hold(8, 2, DataBlock(70));
        assert_eq!(shard.clear_of_cells(0, 20), 8);
        assert_eq!(shard.clear_of_cells(9, 20), 0);
        assert_eq!(shard.clear_of_cells(10, 20), 20);
        assert_eq!(shard.clear_of_cells(6, 2), 2);
        let (cell, waiters) = shard.release(8);
        assert_eq!((cell.data, cell.count, waiters.len()), (DataBlock(70), 2, 0));
        assert_eq!(shard.clear_of_cells(0, 20), 20);
    }

    #[test]
    fn groups_with_changes_or_cells_are_not_forgotten() {
        let map = map_of(&[(0, 10, 0)]);
        for group in [64, 128, 192] {
            map.end_load(group, &Group::empty(), || true, 0);
        }
        let mut shard = map.shard(0);
        shard.change(0, None, Stamp { commit: 5 }, false);
        shard.hold(64 * 64, 1, DataBlock(1));
        assert!(shard.forget_one(4) && shard.forget_one(4));
        assert!(!shard.forget_one(4), "one has a change, one a cell");
        assert!(shard.is_loaded(0) && shard.is_loaded(64 * 64));
    }
}
