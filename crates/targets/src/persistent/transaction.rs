//! [`Transaction`]: the next durable state in the making: both space maps, the metadata blocks
//! allocated for it, and the blocks that it frees.
//!
//! T1. A metadata block is *fresh* if it was allocated in this transaction. Only fresh blocks are
//!     written. The durable state may use any other block.
//! T2. A block is allocated only if its count is zero now and was zero in the durable state
//!     (`busy` is the union of both).
//! T3. A count is lowered only together with removal of the pointer it counted, and raised before
//!     the pointer is written.

use cairn_format::thin::{Block, DataBlock, MetadataBlock};
use rustc_hash::FxHashMap;

use super::allocator::DataRun;
use super::canary::{Bug, planted};
use super::counts::{Counts, Misfit};
use super::error::{Error, MetadataPart, Path};
use super::nodes::Bounds;

/// The next durable state.
pub(super) struct Transaction {
    pub metadata: Counts,
    pub data: Counts,
    /// T1: the fresh blocks, with the contents of those that are tree nodes.
    pub fresh: FxHashMap<MetadataBlock, Option<Box<Block>>>,
    /// T2: one bit per metadata block.
    busy: Vec<u64>,
    free: u64,
    cursor: u64,
    /// Metadata blocks that the durable state still uses and the next does not.
    freed: Vec<MetadataBlock>,
    /// Data blocks whose count fell to zero at some time.
    freed_data: BlockSet,
}

/// A set of blocks, 64 to a word: the deletion of a large device frees 10^8 of them at once.
#[derive(Default)]
struct BlockSet(FxHashMap<u64, u64>);

impl BlockSet {
    fn insert(&mut self, block: u64) {
        *self.0.entry(block / 64).or_default() |= 1 << (block % 64);
    }

    /// Empties it; its blocks in ascending order.
    fn take(&mut self) -> impl Iterator<Item = u64> + use<> {
        let mut words: Vec<(u64, u64)> = std::mem::take(&mut self.0).into_iter().collect();
        words.sort_unstable_by_key(|(word, _)| *word);
        words.into_iter().flat_map(|(word, bits)| {
            let of_word = word * 64..=word * 64 + 63;
            of_word.filter(move |block| bits >> (block % 64) & 1 == 1)
        })
    }
}

impl Transaction {
    /// A transaction without changes.
    pub fn new(metadata: Counts, data: Counts) -> Transaction {
        let mut transaction = Transaction {
            metadata,
            data,
            fresh: FxHashMap::default(),
            busy: Vec::new(),
            free: 0,
            cursor: 0,
            freed: Vec::new(),
            freed_data: BlockSet::default(),
        };
        transaction.extend(0);
        transaction
    }

    /// Records which of the metadata blocks from `from` on are busy.
    fn extend(&mut self, from: u64) {
        let end = self.metadata.blocks();
        self.busy.resize(end.div_ceil(64) as usize, !0);
        for block in from..end {
            if self.metadata.get(block) == Some(0) {
                self.busy[(block / 64) as usize] &= !(1 << (block % 64));
                self.free += 1;
            } else {
                self.busy[(block / 64) as usize] |= 1 << (block % 64);
            }
        }
    }

    /// Makes the metadata map longer.
    pub fn grow_metadata(&mut self, blocks: u64) {
        let from = self.metadata.blocks();
        self.metadata.grow(blocks);
        self.extend(from);
    }

    /// The sizes of both maps.
    pub fn bounds(&self) -> Bounds {
        let (metadata_blocks, data_blocks) = (self.metadata.blocks(), self.data.blocks());
        Bounds { metadata_blocks, data_blocks }
    }

    /// Metadata blocks that can be allocated before the next commit.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// True if the block was allocated in this transaction.
    pub fn is_fresh(&self, block: MetadataBlock) -> bool {
        self.fresh.contains_key(&block)
    }

    /// Allocates a metadata block; its count is one.
    ///
    /// # Errors
    /// No block is free.
    pub fn allocate(&mut self) -> Result<MetadataBlock, Error> {
        let block = self.find_free().ok_or(Error::NoMetadataSpace)?;
        self.busy[(block / 64) as usize] |= 1 << (block % 64);
        self.free -= 1;
        self.cursor = block + 1;
        let at = MetadataBlock(block);
        self.metadata.raise(block).expect("a free block lies inside the map, its count is zero");
        self.fresh.insert(at, None);
        Ok(at)
    }

    /// Checks what must hold between any two changes. Linear in the fresh blocks and the bitmap.
    pub fn check_state(&self) {
        let is_busy = |block: u64| self.busy[(block / 64) as usize] >> (block % 64) & 1 == 1;
        for block in self.fresh.keys() {
            assert!(is_busy(block.0), "T2: a fresh block is not allocated again");
            assert_ne!(self.metadata.get(block.0), Some(0), "T3: a pointer leads to a fresh block");
        }
        assert!(self.freed.iter().all(|block| is_busy(block.0)), "T2: the durable state uses it");
        let free: u64 = self.busy.iter().map(|word| u64::from(word.count_zeros())).sum();
        assert_eq!(free, self.free, "T2");
    }

    /// The first free block at or after the cursor, then from the start.
    fn find_free(&self) -> Option<u64> {
        let (words, first) = (self.busy.len() as u64, self.cursor / 64);
        // The cursor's word is searched first from the cursor on, and last as a whole.
        for step in 0..=words {
            let index = (first + step) % words;
            let mut free = !self.busy[index as usize];
            if step == 0 && first < words {
                free &= !0 << (self.cursor % 64);
            }
            if free != 0 {
                return Some(index * 64 + u64::from(free.trailing_zeros()));
            }
        }
        None
    }

    /// How many pointers lead to a metadata block that is in use.
    ///
    /// # Errors
    /// The count is zero: the space map contradicts the tree that led here.
    pub fn count(&self, path: &Path) -> Result<u32, Error> {
        match self.metadata.get(path.block.0) {
            Some(count) if count > 0 => Ok(count),
            _ => Err(misfit(path, "metadata block", path.block.0, Misfit::Zero)),
        }
    }

    /// Raises the count of a metadata block: one more pointer leads to it.
    pub fn raise(&mut self, path: &Path, block: MetadataBlock) -> Result<(), Error> {
        match self.metadata.get(block.0) {
            Some(0) => Err(misfit(path, "metadata block", block.0, Misfit::Zero)),
            _ => {
                let raised = self.metadata.raise(block.0);
                raised.map(drop).map_err(|what| misfit(path, "metadata block", block.0, what))
            }
        }
    }

    /// Lowers the count of a metadata block: one pointer less leads to it. At zero the block is
    /// free: at once if it is fresh, else after the commit (T2).
    pub fn lower(&mut self, path: &Path, block: MetadataBlock) -> Result<(), Error> {
        let lowered = self.metadata.lower(block.0);
        if lowered.map_err(|what| misfit(path, "metadata block", block.0, what))? > 0 {
            return Ok(());
        }
        match self.fresh.remove(&block) {
            Some(_) => self.set_free(block),
            None if planted(Bug::ReuseBeforeCommit) => self.set_free(block),
            None => self.freed.push(block),
        }
        Ok(())
    }

    fn set_free(&mut self, block: MetadataBlock) {
        self.busy[(block.0 / 64) as usize] &= !(1 << (block.0 % 64));
        self.free += 1;
    }

    /// One more mapping leads to a data block.
    pub fn raise_data(&mut self, path: &Path, block: DataBlock) -> Result<(), Error> {
        let raised = self.data.raise(block.0);
        raised.map(drop).map_err(|what| misfit(path, "data block", block.0, what))
    }

    /// One more mapping leads to a data block that is mapped already.
    pub fn share_data(&mut self, path: &Path, block: DataBlock) -> Result<(), Error> {
        if self.data.get(block.0) == Some(0) {
            return Err(misfit(path, "data block", block.0, Misfit::Zero));
        }
        self.raise_data(path, block)
    }

    /// One mapping less leads to a data block.
    pub fn lower_data(&mut self, path: &Path, block: DataBlock) -> Result<(), Error> {
        let lowered = self.data.lower(block.0);
        if lowered.map_err(|what| misfit(path, "data block", block.0, what))? == 0 {
            self.freed_data.insert(block.0);
        }
        Ok(())
    }

    /// The commit is durable: its fresh blocks are fresh no more, and the blocks that it freed may
    /// be allocated. Returns the data blocks that no durable mapping leads to any more.
    pub fn turn(&mut self) -> Vec<DataRun> {
        self.fresh.clear();
        for block in std::mem::take(&mut self.freed) {
            self.set_free(block);
        }
        let freed = self.freed_data.take();
        DataRun::join(freed.filter(|&block| self.data.get(block) == Some(0)))
    }
}

fn misfit(path: &Path, what: &str, block: u64, misfit: Misfit) -> Error {
    let detail = match misfit {
        Misfit::Beyond => format!("{what}: found {block}, expected one inside the space map"),
        Misfit::Zero => {
            format!("count of {what} {block}: found 0, expected 1 or more, since it is in use")
        }
        Misfit::Overflow => {
            format!("count of {what} {block}: found {}, expected less", u32::MAX)
        }
    };
    Error::damaged(path.clone(), detail)
}

/// The path of a block that is no part of a tree.
pub(super) fn outside(place: MetadataPart, block: MetadataBlock) -> Path {
    Path { place, block, keys: super::nodes::ALL_KEYS }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_set_of_many_blocks_is_small() {
        let mut set = BlockSet::default();
        (10..1_000_010).rev().for_each(|block| set.insert(block));
        assert_eq!(set.0.len(), 15_626);
        assert!(set.take().eq(10..1_000_010));
        assert_eq!(set.take().next(), None);
    }

    proptest! {
        #[test]
        fn a_set_of_blocks_agrees_with_a_set(
            blocks in prop::collection::vec(prop_oneof![0u64..300, any::<u64>()], 0..100),
        ) {
            let mut set = BlockSet::default();
            blocks.iter().for_each(|&block| set.insert(block));
            let expected: BTreeSet<u64> = blocks.into_iter().collect();
            prop_assert!(set.take().eq(expected));
        }
    }
}
