//! [`DataAllocator`]: which data blocks may be handed out, for the data path of any reactor.
//!
//! One bit per data block, set while the block may be taken. That is the whole allocation rule. A
//! bit is
//! - set at opening if the block's count is zero in the durable map,
//! - cleared by [`take`](DataAllocator::take), long before a commit maps the block,
//! - set again by [`put_back`](DataAllocator::put_back) if the block was never mapped, or by
//!   [`release`](DataAllocator::release) once a durable commit freed it *and* no request uses it
//!   any more.
//!
//! A block whose count falls to zero in a transaction keeps its bit cleared: it is still mapped
//! in the last durable state.
//!
//! A1. A set bit means: count zero in the working, the committing and the last durable map, and no
//!     caller has taken the block.
//! A2. No block is given back twice (asserted).
//!
//! Blocks are kept in chunks, chunk c in shard c modulo 16, each shard under a short lock. The
//! search is next-fit from a shared cursor, so that blocks that are taken together are adjacent.

use std::collections::BTreeSet;
use std::fmt;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairn_format::thin::DataBlock;

const SHARDS: u64 = 16;
const CHUNK_WORDS: usize = 64;
const CHUNK_BLOCKS: u64 = CHUNK_WORDS as u64 * 64;

/// Consecutive data blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataRun {
    /// The first.
    pub start: DataBlock,
    /// How many.
    pub count: u64,
}

impl DataRun {
    /// The run of `count` blocks from `start`.
    pub fn new(start: u64, count: u64) -> DataRun {
        DataRun { start: DataBlock(start), count }
    }

    /// The blocks, one by one.
    pub fn blocks(self) -> impl Iterator<Item = DataBlock> {
        (self.start.0..self.start.0 + self.count).map(DataBlock)
    }

    /// Blocks in ascending order as runs.
    pub(crate) fn join(blocks: impl IntoIterator<Item = u64>) -> Vec<DataRun> {
        let mut runs: Vec<DataRun> = Vec::new();
        for block in blocks {
            match runs.last_mut() {
                Some(last) if last.start.0 + last.count == block => last.count += 1,
                _ => runs.push(DataRun::new(block, 1)),
            }
        }
        runs
    }
}

impl fmt::Display for DataRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start.0, self.start.0 + self.count)
    }
}

struct Chunk {
    free: [u64; CHUNK_WORDS],
    count: u32,
}

impl Chunk {
    const FULL: Chunk = Chunk { free: [0; CHUNK_WORDS], count: 0 };

    fn is_free(&self, index: u64) -> bool {
        self.free[(index / 64) as usize] >> (index % 64) & 1 == 1
    }

    /// The first free run at or after `from`, of at most `max` blocks.
    fn find(&self, from: u64, max: u64) -> Option<(u64, u64)> {
        let first = (from / 64) as usize;
        let mut word = self.free.get(first)? & (!0 << (from % 64));
        let mut index = first;
        while word == 0 {
            index += 1;
            word = *self.free.get(index)?;
        }
        let start = index as u64 * 64 + u64::from(word.trailing_zeros());
        Some((start, self.run_from(start, max)))
    }

    fn run_from(&self, start: u64, max: u64) -> u64 {
        let mut end = start;
        while end < CHUNK_BLOCKS && end - start < max {
            let ones = (self.free[(end / 64) as usize] >> (end % 64)).trailing_ones();
            if ones == 0 {
                break;
            }
            end += u64::from(ones);
        }
        (end - start).min(max)
    }

    /// Clears (takes) or sets (frees) the bits of a run.
    fn set(&mut self, start: u64, count: u64, free: bool) {
        let mut at = start;
        while at < start + count {
            let in_word = (64 - at % 64).min(start + count - at);
            let mask = (!0 >> (64 - in_word)) << (at % 64);
            let word = &mut self.free[(at / 64) as usize];
            let expected = if free { 0 } else { mask };
            assert_eq!(*word & mask, expected, "A2: no block is taken or given back twice");
            *word ^= mask;
            at += in_word;
        }
        let count = count as u32;
        self.count = if free { self.count + count } else { self.count - count };
    }
}

/// The data blocks that may be taken.
pub struct DataAllocator {
    shards: [Mutex<Vec<Chunk>>; SHARDS as usize],
    cursor: AtomicU64,
    free: AtomicU64,
    blocks: AtomicU64,
    /// Blocks that are never handed out; `withdraws` if there are any.
    withdrawn: Mutex<BTreeSet<u64>>,
    withdraws: AtomicBool,
}

impl DataAllocator {
    /// A map of no blocks.
    pub(super) fn empty() -> DataAllocator {
        DataAllocator {
            shards: std::array::from_fn(|_| Mutex::new(Vec::new())),
            cursor: AtomicU64::new(0),
            free: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            withdrawn: Mutex::default(),
            withdraws: AtomicBool::new(false),
        }
    }

    /// Blocks of the map.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    /// Blocks that can be taken now.
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Acquire)
    }

    /// Takes up to `count` blocks; fewer if fewer are free. The runs are in the order of the
    /// search, and as long as the search finds them.
    pub fn take(&self, count: u64) -> Vec<DataRun> {
        let mut runs: Vec<DataRun> = Vec::new();
        let chunks = self.blocks.load(Ordering::Acquire).div_ceil(CHUNK_BLOCKS);
        if self.free() == 0 || chunks == 0 || count == 0 {
            return runs;
        }
        let cursor = self.cursor.load(Ordering::Relaxed);
        let mut left = count;
        // The cursor's chunk is searched first from the cursor on, and last as a whole.
        for step in 0..=chunks {
            let chunk = (cursor / CHUNK_BLOCKS + step) % chunks;
            let from = if step == 0 { cursor % CHUNK_BLOCKS } else { 0 };
            left -= self.take_in(chunk, from, left, &mut runs);
            if left == 0 {
                break;
            }
        }
        if let Some(last) = runs.last() {
            self.cursor.store(last.start.0 + last.count, Ordering::Relaxed);
        }
        self.free.fetch_sub(count - left, Ordering::AcqRel);
        runs
    }

    fn take_in(&self, chunk: u64, mut from: u64, max: u64, runs: &mut Vec<DataRun>) -> u64 {
        let mut shard = self.shards[(chunk % SHARDS) as usize].lock();
        let Some(own) = shard.get_mut((chunk / SHARDS) as usize) else { return 0 };
        let mut taken = 0;
        while own.count > 0 && taken < max {
            let Some((start, count)) = own.find(from, max - taken) else { break };
            own.set(start, count, false);
            let first = chunk * CHUNK_BLOCKS + start;
            match runs.last_mut() {
                Some(last) if last.start.0 + last.count == first => last.count += count,
                _ => runs.push(DataRun::new(first, count)),
            }
            (from, taken) = (start + count, taken + count);
        }
        taken
    }

    /// Takes up to `count` free blocks of a chunk at or after `from`, for a walk through all free
    /// blocks. Returns where to continue. The cursor of [`take`](DataAllocator::take) does not
    /// move.
    pub fn take_from(&self, from: u64, count: u64) -> (Vec<DataRun>, Option<u64>) {
        let blocks = self.blocks.load(Ordering::Acquire);
        let (chunk, mut runs) = (from / CHUNK_BLOCKS, Vec::new());
        let taken = self.take_in(chunk, from % CHUNK_BLOCKS, count, &mut runs);
        self.free.fetch_sub(taken, Ordering::AcqRel);
        let next = match runs.last() {
            Some(last) if taken == count => last.start.0 + last.count,
            _ => (chunk + 1) * CHUNK_BLOCKS,
        };
        (runs, Some(next).filter(|next| *next < blocks))
    }

    /// Takes this block; false if it is not free.
    pub fn take_block(&self, block: DataBlock) -> bool {
        let (chunk, index) = (block.0 / CHUNK_BLOCKS, block.0 % CHUNK_BLOCKS);
        let mut shard = self.shards[(chunk % SHARDS) as usize].lock();
        let Some(own) = shard.get_mut((chunk / SHARDS) as usize) else { return false };
        let is_free = own.is_free(index);
        if is_free {
            own.set(index, 1, false);
            self.free.fetch_sub(1, Ordering::AcqRel);
        }
        is_free
    }

    /// Takes one block out permanently if it is free and then `wrongly` says that it must not be.
    /// True for a block that was taken out this way, now or before.
    pub(super) fn withdraw(&self, block: DataBlock, wrongly: impl FnOnce() -> bool) -> bool {
        let (chunk, index) = (block.0 / CHUNK_BLOCKS, block.0 % CHUNK_BLOCKS);
        let mut shard = self.shards[(chunk % SHARDS) as usize].lock();
        let Some(own) = shard.get_mut((chunk / SHARDS) as usize) else { return false };
        if own.is_free(index) && wrongly() {
            own.set(index, 1, false);
            self.free.fetch_sub(1, Ordering::AcqRel);
            self.withdrawn.lock().insert(block.0);
            self.withdraws.store(true, Ordering::Release);
            return true;
        }
        self.withdraws.load(Ordering::Acquire) && self.withdrawn.lock().contains(&block.0)
    }

    /// Gives back blocks that were taken, and that no commit has mapped or will map.
    ///
    /// # Panics
    /// One of them is free already (A2).
    pub fn put_back(&self, run: DataRun) {
        self.set_free(run);
    }

    /// Gives back blocks that a commit has freed, once no request reads or writes them and no
    /// discard of them is in flight.
    ///
    /// # Panics
    /// One of them is free already (A2).
    pub fn release(&self, run: DataRun) {
        self.set_free(run);
    }

    fn set_free(&self, run: DataRun) {
        let (mut at, end) = (run.start.0, run.start.0 + run.count);
        assert!(end <= self.blocks.load(Ordering::Acquire), "run {run} lies inside the map");
        while at < end {
            let (chunk, start) = (at / CHUNK_BLOCKS, at % CHUNK_BLOCKS);
            let count = (CHUNK_BLOCKS - start).min(end - at);
            let mut shard = self.shards[(chunk % SHARDS) as usize].lock();
            shard[(chunk / SHARDS) as usize].set(start, count, true);
            at += count;
        }
        self.free.fetch_add(run.count, Ordering::AcqRel);
    }

    /// Makes the map longer; the new blocks are taken until they are given back.
    pub(super) fn extend(&self, blocks: u64) {
        for chunk in 0..blocks.div_ceil(CHUNK_BLOCKS) {
            let mut shard = self.shards[(chunk % SHARDS) as usize].lock();
            if shard.len() as u64 == chunk / SHARDS {
                shard.push(Chunk::FULL);
            }
        }
        self.blocks.store(blocks, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fresh(blocks: u64) -> DataAllocator {
        let allocator = DataAllocator::empty();
        allocator.extend(blocks);
        allocator.put_back(DataRun::new(0, blocks));
        allocator
    }

    #[test]
    fn what_is_taken_at_once_is_one_run_and_the_search_wraps_once() {
        let allocator = fresh(10_000);
        assert_eq!(allocator.take(5000), [DataRun::new(0, 5000)]);
        assert_eq!(allocator.take(4000), [DataRun::new(5000, 4000)]);
        allocator.put_back(DataRun::new(100, 50));
        assert_eq!(allocator.take(2000), [DataRun::new(9000, 1000), DataRun::new(100, 50)]);
        assert_eq!(allocator.take(1), []);
        assert_eq!(allocator.free(), 0);
    }

    #[test]
    fn a_block_is_taken_by_its_number_once_and_if_it_is_free() {
        let allocator = fresh(100);
        assert!(allocator.take_block(DataBlock(7)) && !allocator.take_block(DataBlock(7)));
        assert!(!allocator.take_block(DataBlock(100)) && !allocator.take_block(DataBlock(1 << 39)));
        assert_eq!(allocator.take(10), [DataRun::new(0, 7), DataRun::new(8, 3)]);
        assert_eq!(allocator.free(), 89);
    }

    #[test]
    fn what_lies_before_the_cursor_in_its_own_chunk_is_found() {
        let allocator = fresh(100);
        allocator.take(50);
        allocator.put_back(DataRun::new(10, 1));
        assert_eq!(allocator.take(60), [DataRun::new(50, 50), DataRun::new(10, 1)]);
    }

    #[test]
    fn take_from_visits_each_free_block_once() {
        let allocator = fresh(10_000);
        allocator.take(50);
        let (mut at, mut all) = (Some(0), Vec::new());
        while let Some(from) = at {
            let (runs, next) = allocator.take_from(from, 1500);
            runs.iter().for_each(|run| allocator.put_back(*run));
            all.extend(runs.into_iter().flat_map(DataRun::blocks).map(|block| block.0));
            at = next;
        }
        assert_eq!(all, (50..10_000).collect::<Vec<_>>());
        assert_eq!(allocator.free(), 9950);
        assert_eq!(allocator.take(1), [DataRun::new(50, 1)], "the cursor is where it was");
    }

    #[test]
    fn withdrawn_blocks_are_never_taken() {
        let allocator = fresh(100);
        assert!(!allocator.withdraw(DataBlock(3), || false), "it is free by rights");
        assert!(allocator.withdraw(DataBlock(3), || true));
        assert!(allocator.withdraw(DataBlock(3), || false), "for good");
        assert!(!allocator.withdraw(DataBlock(4), || false));
        assert!(!allocator.withdraw(DataBlock(1 << 40), || true));
        assert_eq!(allocator.take(100), [DataRun::new(0, 3), DataRun::new(4, 96)]);
        assert_eq!(allocator.free(), 0);
    }

    #[test]
    #[should_panic(expected = "A2")]
    fn giving_back_twice_is_caught() {
        let allocator = fresh(64);
        allocator.put_back(DataRun::new(3, 1));
    }

    proptest! {
        #[test]
        fn the_allocator_agrees_with_a_set(
            blocks in 1u64..9000,
            steps in prop::collection::vec(
                (any::<bool>(), 1u64..600, any::<prop::sample::Index>()),
                1..60,
            ),
        ) {
            let allocator = fresh(blocks);
            let mut free: BTreeSet<u64> = (0..blocks).collect();
            let mut taken: Vec<DataRun> = Vec::new();
            for (take, count, which) in steps {
                if take {
                    let runs = allocator.take(count);
                    let got: u64 = runs.iter().map(|run| run.count).sum();
                    prop_assert_eq!(got, count.min(free.len() as u64));
                    for block in runs.iter().flat_map(|run| run.blocks()) {
                        prop_assert!(free.remove(&block.0));
                    }
                    taken.extend(runs);
                } else if !taken.is_empty() {
                    let run = taken.swap_remove(which.index(taken.len()));
                    free.extend(run.blocks().map(|block| block.0));
                    allocator.release(run);
                }
                prop_assert_eq!(allocator.free(), free.len() as u64);
            }
        }
    }
}
