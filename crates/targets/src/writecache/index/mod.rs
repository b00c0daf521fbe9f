//! The index: which blocks the cache holds, in memory, by runs. Time and memory grow with the
//! number of runs rather than of blocks when writes are large, and stay small when writes are
//! small.
//!
//! Files: `groups` (slot -> block; the metadata is encoded from it), `lookup` (block -> slot),
//! `order` (of insertion), `space` (free slots), `flights` (I/O to slots). Below them: `pool`,
//! `list` and `bits`.
//!
//! Memory per cached block, when single blocks come at random: 9 bytes of groups, 7 of lookup, at
//! most 9 of order (none where slots are filled in order), and less than one of everything else. A
//! run costs about as much as a block, plus an entry of 6 bytes per 64 blocks. All memory comes in
//! slabs that the background task adds before they are needed ([`Stock`]): an insertion allocates
//! no memory, and nothing is ever rehashed.
//!
//! A slot is in one of these states, and moves only along these arrows:
//!
//! ```text
//! Free -> Filling -> Uncommitted -> Frozen -> Committed -> Doomed -> Free
//!            |            |            `--------------------^          ^
//!            `------------+--------------------------------------------'
//! ```
//!
//! *Free*: in the free space. *Filling*: its data is being written; only the request knows the
//! slot. A slot that a group holds is *Uncommitted* (data written, no entry on disk), *Frozen* (its
//! entry is being written by the running commit) or *Committed* (its entry counts on disk). The
//! slot's seq says which, so that a commit changes the state of all its slots by moving two
//! numbers. *Doomed*: no longer in the groups; waits for I/O in flight to end. The arrows past
//! *Committed* skip slots that never had an entry on disk.
//!
//! # What the lookup holds
//! The lookup holds exactly the newest version of each block. Older versions carry the mark COVERED
//! and are in a list of their own, which is usually empty. A run is entered by its parts in each
//! aligned stretch of 64 blocks. A part is entered as one diagonal if it has eight blocks or more,
//! or if a diagonal of its distance is there already. These slots carry the mark DIAGONAL, and the
//! diagonal is removed with the last of them. Other blocks are entered as singles; eight in a row
//! become a diagonal.
//!
//! Everything here is plain data under the target's one short lock; it decides nothing.

mod bits;
mod build;
mod check;
mod flights;
mod groups;
mod list;
mod lookup;
mod order;
mod pool;
#[cfg(test)]
mod reference;
mod space;

use std::ops::Range;
use std::time::Duration;

use cairn_block::Time;
use cairn_format::writecache::Seq;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub(super) use build::{Builder, VERSIONS_MAX};
use flights::Flights;
pub(super) use groups::{BLOCK_END, COVERED, FREED, IN_WRITEBACK, LEAVING, Run, granule_of};
use groups::{DIAGONAL, Group, Groups, granule_end};
use list::Words;
use lookup::{BIAS, Key, Lookup, STRETCH, Unit};
use order::Record;
pub(super) use order::{Inserted, Order, QueuePosition};
use pool::Slab;
use space::FreeSpace;

/// From this many blocks on, the part of a run in a stretch is entered as a diagonal.
const DIAGONAL_BLOCKS: u64 = 8;

/// First number of slots that is too large.
pub(super) const SLOTS_END: u32 = u32::MAX - 1024;

/// The state of a slot in a group, derived from its seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Uncommitted,
    Frozen,
    Committed,
}

/// The cache's contents.
pub(super) struct Index {
    groups: Groups,
    lookup: Lookup,
    order: Order,
    space: FreeSpace,
    flights: Flights,
    /// The covered versions of blocks, newest first.
    older: FxHashMap<u64, SmallVec<[u32; 4]>>,
    doomed: Vec<Range<u32>>,
    /// Granules with slots filled since the last freeze: a bit for each.
    filled: Vec<u64>,
    /// Where writeback's search continues.
    scan: QueuePosition,
    /// The superblock's seq on disk: entries below it are committed.
    pub durable_seq: Seq,
    /// The seq that a fill gets when it completes.
    pub stamp_seq: Seq,
    /// Slots that are being written back.
    pub in_writeback: u32,
    /// Slots that are Uncommitted.
    pub uncommitted: u64,
    cached: u64,
}

/// Memory for an index, allocated before it is needed and outside its lock.
pub(super) struct Stock {
    groups: Slab<Group>,
    words: Slab<Words>,
    units: Slab<Unit>,
    records: Slab<Words>,
}

impl Stock {
    pub fn new() -> Stock {
        let (groups, units) = (Slab::new(), Slab::new());
        Stock { groups, words: Slab::new(), units, records: Slab::new() }
    }
}

/// The part of blocks that lies in one stretch: the stretch, first block, how many.
fn stretches(block: u64, len: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let (mut at, end) = (block, block + len);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (stretch, from) = (at / STRETCH, at);
        at = ((stretch + 1) * STRETCH).min(end);
        Some((stretch, from, at - from))
    })
}

/// The value of the diagonal that has `block` in `slot`.
fn diagonal_of(block: u64, slot: u32) -> u32 {
    slot + BIAS - (block % STRETCH) as u32
}

impl Index {
    /// An index of `slots` slots, none of which is used or free yet: recovery fills and frees them.
    /// `grain` is the precision of insertion times.
    pub fn new(slots: u32, grain: Option<Duration>) -> Index {
        Index {
            groups: Groups::new(slots),
            lookup: Lookup::new(slots),
            order: Order::new(grain),
            space: FreeSpace::full(slots),
            flights: Flights::default(),
            older: FxHashMap::default(),
            doomed: Vec::new(),
            filled: vec![0; granule_of(slots) as usize / 64 + 1],
            scan: QueuePosition::default(),
            durable_seq: Seq::ZERO,
            stamp_seq: Seq::ZERO,
            in_writeback: 0,
            uncommitted: 0,
            cached: 0,
        }
    }

    pub fn len(&self) -> u32 {
        self.groups.slots()
    }

    /// True if memory should be added before it is needed.
    pub fn is_low(&self) -> bool {
        self.groups.is_low() || self.lookup.is_low() || self.order.is_low()
    }

    /// Adds memory where it is low.
    pub fn add(&mut self, stock: Stock) {
        self.groups.add(stock.groups, stock.words);
        self.lookup.add(stock.units);
        self.order.add(stock.records);
    }

    pub fn free_count(&self) -> u32 {
        self.space.count()
    }

    /// Blocks that have a cached version.
    pub fn cached_blocks(&self) -> u64 {
        self.cached
    }

    pub fn life(&self, run: &Run) -> Life {
        if run.seq < self.durable_seq {
            Life::Committed
        } else if run.seq < self.stamp_seq {
            Life::Frozen
        } else {
            Life::Uncommitted
        }
    }

    // Looking up.

    /// The run from a slot on: what this slot and the following ones hold.
    pub fn at(&self, slot: u32) -> Option<Run> {
        self.groups.at(slot)
    }

    /// The whole run that a slot is in.
    pub fn whole(&self, slot: u32) -> Option<Run> {
        self.groups.whole(slot)
    }

    /// Everything that slots hold, in the order of slots.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        self.groups.runs(0, self.len())
    }

    /// What these slots hold.
    pub fn runs_of(&self, slot: u32, len: u32) -> impl Iterator<Item = Run> {
        self.groups.runs(slot, slot + len)
    }

    fn holds(&self, slot: u32, block: u64) -> bool {
        self.marks_if_newest(slot, block).is_some()
    }

    fn marks_if_newest(&self, slot: u32, block: u64) -> Option<u8> {
        let (held, _, marks) = self.groups.glance(slot)?;
        (held == block && marks & COVERED == 0).then_some(marks)
    }

    /// The newest cached version of a block.
    pub fn newest(&self, block: u64) -> Option<u32> {
        self.newest_marked(block).map(|(slot, _)| slot)
    }

    /// The newest cached version of a block, and its marks.
    pub fn newest_marked(&self, block: u64) -> Option<(u32, u8)> {
        let (stretch, offset) = (block / STRETCH, (block % STRETCH) as u32);
        let on_diagonal = |value: u32| (value + offset).checked_sub(BIAS);
        let marked = |slot: u32| self.marks_if_newest(slot, block).map(|marks| (slot, marks));
        let mut diagonals = self.lookup.candidates(Key::Stretch(stretch)).filter_map(on_diagonal);
        let found = diagonals.find_map(marked);
        found.or_else(|| self.lookup.candidates(Key::Block(block)).find_map(marked))
    }

    /// True if a diagonal is entered.
    fn is_entered(&self, stretch: u64, value: u32) -> bool {
        // Candidates may belong to another key; only the slots tell for certain.
        self.lookup.has(Key::Stretch(stretch), value)
            && self.diagonal(stretch, value).any(|run| run.has(DIAGONAL))
    }

    /// The newest versions of blocks on a diagonal of a stretch.
    fn diagonal(&self, stretch: u64, value: u32) -> impl Iterator<Item = Run> {
        let first = stretch * STRETCH;
        self.groups.runs(value.saturating_sub(BIAS), value).filter(move |run| {
            let offset = u64::from(run.slot + BIAS - value);
            run.block == first + offset && !run.has(COVERED)
        })
    }

    /// The first cached block of a range, and its newest version.
    pub fn first_cached(&self, block: u64, count: u64) -> Option<(u64, u32)> {
        match count {
            0 => return None,
            1 => return self.newest(block).map(|slot| (block, slot)),
            _ => {}
        }
        let single = |block: u64| {
            let mut slots = self.lookup.candidates(Key::Block(block));
            slots.find(|&slot| self.holds(slot, block)).map(|slot| (block, slot))
        };
        // With scattered singles, the range begins with one about every other time.
        if self.lookup.may_have_singles(block / STRETCH)
            && let Some(found) = single(block)
        {
            return Some(found);
        }
        stretches(block, count).find_map(|(stretch, from, len)| {
            let mut end = from + len;
            let mut first = None;
            for value in self.lookup.candidates(Key::Stretch(stretch)) {
                let ends_after = |run: &Run| run.block + u64::from(run.len) > from;
                if let Some(run) = self.diagonal(stretch, value).find(ends_after) {
                    let skip = from.saturating_sub(run.block);
                    if run.block + skip < end {
                        end = run.block + skip;
                        first = Some((end, run.slot + skip as u32));
                    }
                }
            }
            self.blocks_with_singles(stretch, from..end).find_map(single).or(first)
        })
    }

    /// The blocks of a range within a stretch that may have a single, in order.
    fn blocks_with_singles(&self, stretch: u64, range: Range<u64>) -> impl Iterator<Item = u64> {
        let first = stretch * STRETCH;
        let mut left = self.lookup.singles(stretch) & (u64::MAX << (range.start - first));
        std::iter::from_fn(move || {
            let block = first + u64::from(left.trailing_zeros());
            left &= left.wrapping_sub(1);
            (block < range.end).then_some(block)
        })
    }

    /// How many blocks from `block`, up to `count`, are not cached.
    pub fn misses(&self, block: u64, count: u64) -> u64 {
        self.first_cached(block, count).map_or(count, |(first, _)| first - block)
    }

    /// How many blocks from `block`, up to `count`, have their newest version in consecutive
    /// slots from `slot`, whose marks fit.
    pub fn hits(&self, block: u64, slot: u32, count: u64, fits: impl Fn(u8) -> bool) -> u64 {
        let mut len = 0;
        while len < count
            && let Some((held, run, marks)) = self.groups.glance(slot + len as u32)
            && held == block + len
            && marks & COVERED == 0
            && fits(marks)
        {
            len += u64::from(run);
        }
        len.min(count)
    }

    /// How many blocks from `block`, up to `count`, are cached, wherever.
    pub fn cached_run(&self, block: u64, count: u64) -> u64 {
        let mut len = 0;
        while len < count
            && let Some(slot) = self.newest(block + len)
        {
            len += self.hits(block + len, slot, count - len, |_| true);
        }
        len
    }

    /// The versions of a block, newest first.
    pub fn versions(&self, block: u64) -> impl Iterator<Item = u32> {
        let older = self.older.get(&block).map_or(&[][..], SmallVec::as_slice);
        self.newest(block).into_iter().chain(older.iter().copied())
    }

    /// True if any block of the run has an older version.
    pub fn has_older(&self, block: u64, len: u32) -> bool {
        !self.older.is_empty()
            && (block..block + u64::from(len)).any(|block| self.older.contains_key(&block))
    }

    /// The covered versions of the blocks of a range, in the order of slots.
    pub fn older_in(&self, blocks: &Range<u64>) -> Vec<Run> {
        let mut slots = self.covered_in(blocks).concat();
        slots.sort_unstable();
        let run = |slot| self.at(slot).map(|run| Run { len: 1, ..run });
        slots.into_iter().filter_map(run).collect()
    }

    /// The oldest version of each block of a range that has several, in the order of slots.
    pub fn oldest_in(&self, blocks: &Range<u64>) -> Vec<u32> {
        let covered = self.covered_in(blocks);
        let mut slots: Vec<u32> =
            covered.iter().filter_map(|slots| slots.last()).copied().collect();
        slots.sort_unstable();
        slots
    }

    /// The covered versions of each block of a range that has some, newest first.
    fn covered_in(&self, blocks: &Range<u64>) -> Vec<&[u32]> {
        if blocks.end - blocks.start < self.older.len() as u64 {
            let known = blocks.clone().filter_map(|block| self.older.get(&block));
            known.map(SmallVec::as_slice).collect()
        } else {
            let inside = self.older.iter().filter(|(block, _)| blocks.contains(block));
            inside.map(|(_, slots)| slots.as_slice()).collect()
        }
    }

    /// The cached blocks of a range, in order, as newest versions.
    pub fn cached_in(&self, blocks: &Range<u64>) -> Vec<Run> {
        let mut runs = Vec::new();
        if (blocks.end - blocks.start) / STRETCH <= self.cached {
            let mut at = blocks.start;
            while let Some((block, slot)) = self.first_cached(at, blocks.end - at) {
                let run = self.groups.at(slot).expect("it is cached there");
                let len = (blocks.end - block).min(u64::from(run.len)) as u32;
                runs.push(Run { len, ..run });
                at = block + u64::from(len);
            }
        } else {
            runs.extend(self.runs().filter(|run| !run.has(COVERED)).filter_map(|run| {
                let from = blocks.start.max(run.block);
                let to = blocks.end.min(run.block + u64::from(run.len));
                let (skip, len) = (from.saturating_sub(run.block), to.saturating_sub(from));
                let slot = run.slot + skip.min(u64::from(run.len)) as u32;
                (len > 0).then_some(Run { slot, len: len as u32, block: from, ..run })
            }));
            runs.sort_unstable_by_key(|run| run.block);
        }
        runs
    }

    // Filling.

    /// Takes up to `want` consecutive free slots for data about to be written.
    pub fn take_run(&mut self, want: u32) -> Option<(u32, u32)> {
        let (slot, len) = self.space.take_run(want)?;
        debug_assert!(self.groups.next(slot, slot + len).is_none(), "I3: free slots only");
        debug_assert_eq!(self.flights.first_part(&(slot..slot + len)), (slot + len, false), "I11");
        Some((slot, len))
    }

    /// Takes these slots. False, and nothing is taken, if one of them is not free or not there.
    pub fn take_free(&mut self, slot: u32, len: u32) -> bool {
        self.space.take_free(slot, len)
    }

    /// Inserts new versions of consecutive blocks, at the young end of the order. True if slots
    /// became free.
    pub fn insert(&mut self, slot: u32, len: u32, block: u64, now: Time) -> bool {
        let freed = self.make_way(block, len);
        self.put(slot, len, block, self.stamp_seq);
        self.cached += u64::from(len);
        self.uncommitted += u64::from(len);
        for granule in granule_of(slot)..=granule_of(slot + len - 1) {
            self.filled[granule as usize / 64] |= 1 << (granule % 64);
        }
        self.order.push(slot, len, self.stamp_seq, now);
        let Index { order, groups, cached, in_writeback, scan, .. } = self;
        let linked = *cached + u64::from(*in_writeback);
        if order.tend(linked, |record| is_live(groups, record)) {
            *scan = QueuePosition::default();
        }
        freed
    }

    /// Drops the newest versions of blocks for which no commit has begun to write an entry (on disk
    /// their slots are still free), and covers the others. True if slots became free.
    fn make_way(&mut self, block: u64, len: u32) -> bool {
        let (mut at, end, mut freed) = (block, block + u64::from(len), false);
        while let Some((block, slot)) = self.first_cached(at, end - at) {
            let run = self.groups.at(slot).expect("it is cached there");
            let len = (end - block).min(u64::from(run.len)) as u32;
            let run = Run { len, ..run };
            if self.life(&run) == Life::Uncommitted {
                // An older version may become the newest; the next round covers it.
                freed |= self.drop_uncommitted(&run);
                at = block;
            } else {
                self.cover(&run);
                at = block + u64::from(len);
            }
        }
        freed
    }

    /// Removes and frees versions that have no entry on disk. True if slots became free.
    pub fn drop_uncommitted(&mut self, run: &Run) -> bool {
        assert_eq!(self.life(run), Life::Uncommitted);
        self.uncommitted -= u64::from(run.len);
        self.remove(run.slot, run.len);
        self.release(run.slot, run.len)
    }

    fn cover(&mut self, run: &Run) {
        self.groups.mark(run.slot, run.len, COVERED, DIAGONAL);
        self.leave(run);
        self.cached -= u64::from(run.len);
        for (block, slot) in (run.block..).zip(run.slot..run.end()) {
            self.older.entry(block).or_default().insert(0, slot);
        }
    }

    /// Puts newest versions into slots and enters them in the lookup.
    fn put(&mut self, slot: u32, len: u32, block: u64, seq: Seq) {
        let end = block + u64::from(len);
        let slot_of = |at: u64| slot + (at - block) as u32;
        // The part between the first and the last stretch always consists of diagonals.
        let head = block.next_multiple_of(STRETCH).min(end);
        let tail = (end / STRETCH * STRETCH).max(head);
        for (from, to) in [(block, head), (tail, end)].into_iter().filter(|(from, to)| from < to) {
            self.put_part(slot_of(from), (to - from) as u32, from, seq);
        }
        if head < tail {
            let slot = slot_of(head);
            self.groups.insert(slot, (tail - head) as u32, head, seq, DIAGONAL);
            // Its slots were free: no other block of the stretch can have its distance.
            for (stretch, from, _) in stretches(head, tail - head) {
                self.lookup.insert(Key::Stretch(stretch), diagonal_of(from, slot_of(from)));
            }
        }
    }

    /// Puts newest versions of blocks of one stretch into slots.
    fn put_part(&mut self, slot: u32, len: u32, block: u64, seq: Seq) {
        // Runs are joined within a group only.
        let border = granule_end(slot);
        if slot + len > border {
            let head = border - slot;
            self.put_part(slot, head, block, seq);
            return self.put_part(border, len - head, block + u64::from(head), seq);
        }
        let (stretch, value) = (block / STRETCH, diagonal_of(block, slot));
        if self.is_entered(stretch, value) {
            return self.groups.insert(slot, len, block, seq, DIAGONAL);
        }
        if u64::from(len) >= DIAGONAL_BLOCKS {
            self.groups.insert(slot, len, block, seq, DIAGONAL);
            return self.lookup.insert(Key::Stretch(stretch), value);
        }
        self.groups.insert(slot, len, block, seq, 0);
        let run = self.groups.whole(slot).expect("just filled");
        let (from, to) = (run.block.max(stretch * STRETCH), (stretch + 1) * STRETCH);
        let to = to.min(run.block + u64::from(run.len));
        if to - from < DIAGONAL_BLOCKS {
            return self.enter_singles(slot, len, block);
        }
        let first = run.slot + (from - run.block) as u32;
        for (other, slot) in (from..to).zip(first..) {
            if !(block..block + u64::from(len)).contains(&other) {
                self.lookup.remove(Key::Block(other), slot);
            }
        }
        self.groups.mark(first, (to - from) as u32, DIAGONAL, 0);
        self.lookup.insert(Key::Stretch(stretch), value);
    }

    fn enter_singles(&mut self, slot: u32, len: u32, block: u64) {
        for (block, slot) in (block..block + u64::from(len)).zip(slot..) {
            self.lookup.insert(Key::Block(block), slot);
        }
    }

    /// Removes the slots of a run, as it was before, from the lookup: they are not the newest any
    /// more.
    fn leave(&mut self, run: &Run) {
        let slots = |block: u64| run.slot + (block - run.block) as u32;
        if !run.has(DIAGONAL) {
            for (block, slot) in (run.block..).zip(run.slot..run.end()) {
                self.lookup.remove(Key::Block(block), slot);
            }
            return;
        }
        for (stretch, block, _) in stretches(run.block, u64::from(run.len)) {
            let value = diagonal_of(block, slots(block));
            if !self.diagonal(stretch, value).any(|run| run.has(DIAGONAL)) {
                self.lookup.remove(Key::Stretch(stretch), value);
            }
        }
    }

    // Taking out.

    /// Removes versions from the groups (I9: their entries are free on disk, or never were there,
    /// or newer versions cover them). Their slots are doomed: the caller releases them next.
    pub fn remove(&mut self, slot: u32, len: u32) {
        let (mut at, end) = (slot, slot + len);
        while at < end {
            let run = self.groups.next(at, end).expect("what is removed is there");
            assert_eq!(run.slot, at, "what is removed is there");
            assert!(!run.has(IN_WRITEBACK));
            self.groups.remove(run.slot, run.len);
            if run.has(COVERED) {
                self.forget_older(&run);
            } else {
                self.leave(&run);
                self.cached -= u64::from(run.len);
                self.uncover(&run);
            }
            at = run.end();
        }
    }

    fn forget_older(&mut self, run: &Run) {
        for (block, slot) in (run.block..).zip(run.slot..run.end()) {
            let older = self.older.get_mut(&block).expect("a covered slot is in its list");
            older.retain(|other| *other != slot);
            if older.is_empty() {
                self.older.remove(&block);
            }
        }
    }

    /// The newest of the older versions become the newest.
    fn uncover(&mut self, run: &Run) {
        if self.older.is_empty() {
            return;
        }
        for block in run.block..run.block + u64::from(run.len) {
            let Some(older) = self.older.get_mut(&block) else { continue };
            let slot = older.remove(0);
            if older.is_empty() {
                self.older.remove(&block);
            }
            self.cached += 1;
            let (stretch, value) = (block / STRETCH, diagonal_of(block, slot));
            if self.is_entered(stretch, value) {
                self.groups.mark(slot, 1, DIAGONAL, COVERED);
            } else {
                self.groups.mark(slot, 1, 0, COVERED);
                self.lookup.insert(Key::Block(block), slot);
            }
        }
    }

    /// Frees doomed slots as soon as no I/O to them is in flight (I11). True if any became
    /// free.
    pub fn release(&mut self, slot: u32, len: u32) -> bool {
        let (mut at, end, mut freed) = (slot, slot + len, false);
        debug_assert!(self.groups.next(at, end).is_none(), "a slot is taken out, then freed");
        while at < end {
            let (to, busy) = self.flights.first_part(&(at..end));
            if busy {
                self.doomed.push(at..to);
            } else {
                self.space.free(at, to - at);
                freed = true;
            }
            at = to;
        }
        freed
    }

    // In flight.

    /// A request to slots begins; returns its number.
    pub fn begin_io(&mut self, slot: u32, len: u32, write: bool) -> u32 {
        self.flights.begin(slot, len, write)
    }

    /// A request to slots ended: its slots, and whether doomed ones became free.
    pub fn end_io(&mut self, name: u32) -> (Range<u32>, bool) {
        let slots = self.flights.end(name);
        let mut freed = false;
        if !self.doomed.is_empty() {
            for doomed in std::mem::take(&mut self.doomed) {
                freed |= self.release(doomed.start, doomed.end - doomed.start);
            }
        }
        (slots, freed)
    }

    /// True if a write to any of the slots is in flight.
    pub fn is_written(&self, slot: u32, len: u32) -> bool {
        self.flights.is_written(&(slot..slot + len))
    }

    /// How many slots of a run, from its first on, no write is in flight to.
    pub fn clear_of_writes(&self, run: &Run) -> u32 {
        self.flights.clear_of_writes(&(run.slot..run.end()))
    }

    // Commits.

    /// True if no write to any slot is in flight, a fill included.
    pub fn is_still(&self) -> bool {
        let older: usize = self.older.values().map(SmallVec::len).sum();
        let doomed: u32 = self.doomed.iter().map(|slots| slots.end - slots.start).sum();
        let held = self.cached + older as u64 + u64::from(doomed) + u64::from(self.free_count());
        held == u64::from(self.len()) && !self.flights.are_writes()
    }

    /// Freezes the Uncommitted slots and appends their granules. Returns the seq of the frozen
    /// entries; `None` if there are none.
    pub fn freeze(&mut self, granules: &mut Vec<u32>) -> Option<Seq> {
        for (first, filled) in (0..).step_by(64).zip(&mut self.filled) {
            let mut left = std::mem::take(filled);
            while left != 0 && self.uncommitted > 0 {
                granules.push(first + left.trailing_zeros());
                left &= left - 1;
            }
        }
        if self.uncommitted == 0 {
            return None;
        }
        self.uncommitted = 0;
        let seq = self.stamp_seq;
        self.stamp_seq = seq.next().expect("a commit number far below -1");
        Some(seq)
    }

    /// Encodes a granule as it is, or will be when the running step ends (I12): Uncommitted slots
    /// have no entry.
    pub fn encode(&self, granule: u32, block_sectors: u64, out: &mut [u8]) {
        self.groups.encode(granule, self.stamp_seq, block_sectors, out);
    }

    /// Committed versions that a committed newer one covers, and that are not being written
    /// back: they may be freed (I8).
    pub fn superseded(&self) -> Vec<(u32, u32)> {
        let mut slots = Vec::new();
        for &block in self.older.keys() {
            let mut below_committed = false;
            for slot in self.versions(block) {
                let run = self.groups.at(slot).expect("a version is there");
                let committed = self.life(&run) == Life::Committed;
                if below_committed && committed && !run.has(IN_WRITEBACK) {
                    slots.push((slot, 1));
                }
                below_committed |= committed;
            }
        }
        slots.sort_unstable();
        slots
    }

    /// True if many slots are free but in short runs; see [`FreeSpace::is_cut_up`].
    pub fn is_cut_up(&self, mending: bool) -> bool {
        self.space.is_cut_up(mending)
    }

    /// What slots hold from the hand on, once round the ring.
    pub fn runs_from_hand(&self) -> impl Iterator<Item = Run> {
        let (hand, end) = (self.space.hand(), self.len());
        self.groups.runs(hand, end).chain(self.groups.runs(0, hand))
    }

    /// Writeback has reached this slot on its way round the ring.
    pub fn set_hand(&mut self, slot: u32) {
        self.space.set_hand(slot);
    }

    /// Sets and clears marks of slots.
    pub fn mark(&mut self, slot: u32, len: u32, set: u8, clear: u8) {
        self.groups.mark(slot, len, set, clear);
    }

    // Writeback.

    /// Marks slots as being written back.
    pub fn begin_writeback(&mut self, slot: u32, len: u32) {
        for run in self.groups.runs(slot, slot + len) {
            assert_eq!(self.life(&run), Life::Committed, "I6");
            assert!(!run.has(IN_WRITEBACK | COVERED));
            assert!(!self.has_older(run.block, run.len), "I5");
        }
        assert!(!self.is_written(slot, len), "I10");
        self.groups.mark(slot, len, IN_WRITEBACK, 0);
        self.in_writeback += len;
        // Any of them may be covered soon, and a request must not allocate memory.
        self.older.reserve(self.in_writeback as usize);
    }

    /// Ends the writeback of those slots that are being written back.
    pub fn end_writeback(&mut self, slot: u32, len: u32) {
        let in_writeback = |run: &Run| run.has(IN_WRITEBACK);
        let ending = self.groups.runs(slot, slot + len).filter(in_writeback);
        self.in_writeback -= ending.map(|run| run.len).sum::<u32>();
        self.groups.mark(slot, len, 0, IN_WRITEBACK);
    }

    /// Returns a number: insertions so far are below it, later ones are not.
    pub fn seal(&mut self) -> u64 {
        self.order.seal()
    }

    /// The number of the oldest insertion.
    pub fn oldest_number(&mut self) -> Option<u64> {
        let Index { order, groups, .. } = self;
        order.drop_stale(|record| is_live(groups, record));
        order
            .next_live(QueuePosition::default(), |record| is_live(groups, record))
            .map(|at| at.number)
    }

    /// The oldest insertion at or after a place.
    pub fn inserted_from(&self, from: QueuePosition) -> Option<Inserted> {
        self.order.next_live(from, |record| is_live(&self.groups, record))
    }

    /// What is left of an insertion.
    pub fn left_of(&self, inserted: &Inserted) -> impl Iterator<Item = Run> {
        let record = inserted.record;
        let runs = self.groups.runs(record.slot(), record.slot() + record.len());
        runs.filter(move |run| is_linked(run, record))
    }

    /// Where writeback's search continues. The begin is always a valid answer.
    pub fn scan(&self) -> QueuePosition {
        self.scan
    }

    pub fn set_scan(&mut self, place: QueuePosition) {
        self.scan = place;
        let Index { order, groups, .. } = self;
        order.drop_stale(|record| is_live(groups, record));
    }
}

/// True if a run was inserted with this record and is still in the order: a covered version stays
/// in it only while it is being written back.
fn is_linked(run: &Run, record: Record) -> bool {
    record.is_of(run.seq) && (!run.has(COVERED) || run.has(IN_WRITEBACK))
}

fn is_live(groups: &Groups, record: Record) -> bool {
    groups.runs(record.slot(), record.slot() + record.len()).any(|run| is_linked(&run, record))
}
