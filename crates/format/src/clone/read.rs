//! Reading the whole metadata of a clone, and checking it: the bitset, and the space map against
//! what the superblock leads to.
//!
//! Memory is bounded by the device's size: a superblock that claims more regions than the device
//! has array blocks for is refused first. The first fault ends the reading.

use super::{ArrayBlock, Error, Opening, Superblock, WORDS_MAX};
use crate::thin::block::Block;
use crate::thin::blocks::{Bad, Blocks, read_one};
use crate::thin::{
    BITMAPS_MAX, Bitmap, COUNT_IN_TREE, IndexBlock, MetadataBlock, Node, RefCount, Value, bitmap_of,
};

/// No tree is this deep; a loop of pointers is.
const DEPTH_MAX: usize = 16;
const WORD_BITS: u64 = 64;

/// What is wrong, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A block that cannot be had.
    #[error(transparent)]
    Bad(#[from] Bad),
    /// A block with wrong content.
    #[error(transparent)]
    Wrong(#[from] Error),
    /// The device is blank.
    #[error("superblock: found zeros, expected a formatted clone")]
    Blank,
    /// Blocks, keys or counts that do not fit each other.
    #[error("{what}: found {found}, expected {expected}")]
    Misfit {
        /// Which number, of which block.
        what: String,
        /// On the device.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// A block with two pointers to it, or a tree that is too deep.
    #[error("block {at}: found it twice or too deep in a tree, expected it once")]
    NoTree {
        /// The block.
        at: MetadataBlock,
    },
}

impl From<crate::thin::Error> for Fault {
    fn from(error: crate::thin::Error) -> Fault {
        Fault::Wrong(error.into())
    }
}

/// The metadata of a clone, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bitset {
    /// The superblock.
    pub superblock: Superblock,
    /// The bits of all regions.
    pub words: Vec<u64>,
    /// Metadata blocks in use.
    pub used: u64,
}

impl Bitset {
    /// Hydrated regions.
    #[must_use]
    pub fn hydrated(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// True if the content of this region is on the destination.
    #[must_use]
    pub fn is_hydrated(&self, region: u64) -> bool {
        let word = self.words.get((region / WORD_BITS) as usize);
        word.is_some_and(|word| word >> (region % WORD_BITS) & 1 == 1)
    }
}

/// Reads and checks everything. The inner error is what is wrong with the metadata.
///
/// # Errors
/// Reading has to end.
pub fn read<B: Blocks>(blocks: &mut B) -> Result<Result<Bitset, Fault>, B::Error> {
    let counts = vec![0; blocks.count() as usize];
    let mut reader = Reader { blocks, counts };
    Ok(match reader.run() {
        Ok(bitset) => Ok(bitset),
        Err(End::Fault(fault)) => Err(fault),
        Err(End::Stop(error)) => return Err(error),
    })
}

/// Why the reader ends early.
enum End<E> {
    Fault(Fault),
    Stop(E),
}

impl<E, F: Into<Fault>> From<F> for End<E> {
    fn from(fault: F) -> End<E> {
        End::Fault(fault.into())
    }
}

struct Reader<'b, B> {
    blocks: &'b mut B,
    /// Pointers to each block that were found.
    counts: Vec<u32>,
}

fn same(what: impl FnOnce() -> String, found: u64, expected: u64) -> Result<(), Fault> {
    match found == expected {
        true => Ok(()),
        false => Err(Fault::Misfit { what: what(), found, expected }),
    }
}

impl<B: Blocks> Reader<'_, B> {
    /// A block to which a pointer leads.
    fn block(&mut self, at: MetadataBlock) -> Result<Box<Block>, End<B::Error>> {
        let read = read_one(self.blocks, at, |bytes| Ok(Box::new(*bytes)));
        let bytes = read.map_err(End::Stop)??;
        let count = &mut self.counts[at.0 as usize];
        *count += 1;
        match *count {
            1 => Ok(bytes),
            _ => Err(Fault::NoTree { at }.into()),
        }
    }

    fn run(&mut self) -> Result<Bitset, End<B::Error>> {
        let first = self.block(MetadataBlock::SUPERBLOCK)?;
        let Opening::Existing(superblock) = Opening::decide(&first)? else {
            return Err(Fault::Blank.into());
        };
        let (arrays, device) = (superblock.arrays(), self.blocks.count());
        if arrays > device {
            let what = "superblock target_size: array blocks that it needs".to_owned();
            return Err(Fault::Misfit { what, found: arrays, expected: device }.into());
        }
        let words = self.bitset(&superblock)?;
        let used = self.space_map(&superblock)?;
        Ok(Bitset { superblock, words, used })
    }

    fn bitset(&mut self, superblock: &Superblock) -> Result<Vec<u64>, End<B::Error>> {
        let entries = self.tree::<MetadataBlock>(superblock.bitset_root)?;
        same(|| "bitset: array blocks".into(), entries.len() as u64, superblock.arrays())?;
        let mut words = Vec::with_capacity(entries.len() * WORDS_MAX);
        for ((key, at), number) in entries.into_iter().zip(0..) {
            same(|| "bitset: number of an array block".into(), key, number)?;
            let bytes = self.block(at)?;
            let array = ArrayBlock::decode(&bytes, at, superblock.words_of_array(number))?;
            words.extend(array.words());
        }
        let tail = superblock.regions() % WORD_BITS;
        let beyond = words.last().filter(|_| tail > 0).map_or(0, |last| last >> tail);
        same(|| "bitset: bits beyond the last region".into(), beyond, 0)?;
        Ok(words)
    }

    /// The entries of a tree, in order.
    fn tree<V: Value>(&mut self, root: MetadataBlock) -> Result<Vec<(u64, V)>, End<B::Error>> {
        let (mut level, mut all) = (vec![root], Vec::new());
        for _ in 0..DEPTH_MAX {
            let mut below = Vec::new();
            for at in std::mem::take(&mut level) {
                let bytes = self.block(at)?;
                let node = Node::decode(&bytes, at)?.expect::<V>()?;
                match node.is_leaf() {
                    true => all.extend(node.entries::<V>()),
                    false => below.extend((0..node.len()).map(|index| node.child(index))),
                }
            }
            if below.is_empty() {
                all.sort_by_key(|(key, _)| *key);
                return Ok(all);
            }
            level = below;
        }
        Err(Fault::NoTree { at: root }.into())
    }

    /// Compares the space map with the pointers; answers with the blocks in use.
    fn space_map(&mut self, superblock: &Superblock) -> Result<u64, End<B::Error>> {
        let root = &superblock.metadata_space_map;
        let device = self.blocks.count();
        let most = device.min(BITMAPS_MAX as u64 * crate::thin::BITMAP_ENTRIES);
        if root.blocks == 0 || root.blocks > most {
            let what = "metadata_space_map_root nr_blocks".to_owned();
            return Err(Fault::Misfit { what, found: root.blocks, expected: most }.into());
        }
        let bytes = self.block(root.bitmap_root)?;
        let index = IndexBlock::decode(&bytes, root.bitmap_root)?;
        let mut bitmaps = Vec::new();
        for number in 0..root.bitmaps() as usize {
            let at = index.entry(number).bitmap;
            let bytes = self.block(at)?;
            Bitmap::decode(&bytes, at)?;
            bitmaps.push(bytes);
        }
        let large = self.tree::<RefCount>(root.ref_count_root)?;
        let mut used = 0;
        for block in 0..root.blocks {
            let (page, at) = bitmap_of(block);
            let found = match Bitmap::cached(&bitmaps[page as usize]).get(at) {
                COUNT_IN_TREE => {
                    let own = large.binary_search_by_key(&block, |(key, _)| *key);
                    own.map_or(COUNT_IN_TREE, |own| large[own].1.0)
                }
                small => small,
            };
            used += u64::from(found > 0);
            let expected = u64::from(self.counts[block as usize]);
            same(|| format!("count of block {block}"), u64::from(found), expected)?;
        }
        same(|| "metadata_space_map_root nr_allocated".into(), root.allocated, used)?;
        Ok(used)
    }
}
