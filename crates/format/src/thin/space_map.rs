//! Space maps: a reference count per block, in two bits, and a tree for the large counts.
//!
//! ```text
//! root --> index: bitmap number -> (its block, free entries, a hint)     a tree for data blocks,
//!            |                                                          one block for metadata
//!            +-> bitmap: 16320 counts of 0, 1, 2 or "3 and more: see the tree"
//!      --> tree of counts: block number -> count of 3 and more
//! ```
//!
//! Promises that only this module knows the order of a count's two bits, which is unusual. The
//! index's free counts and hints are as their writer left them; a reader recomputes them with
//! [`Bitmap::count_free`].

use core::mem::{offset_of, size_of};
use core::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{self, BLOCK_BYTES, Block, Kind};
use super::{Error, Field, MetadataBlock, Value};

/// Bytes before the entries of a bitmap or an index block: checksum, unused, the block's number.
const HEADER_BYTES: usize = 16;
/// Counts in one bitmap.
pub const BITMAP_ENTRIES: u64 = ((BLOCK_BYTES - HEADER_BYTES) * 4) as u64;
/// The count in a bitmap that stands for 3 and more.
pub const COUNT_IN_TREE: u32 = 3;
/// Size of an index entry.
pub const INDEX_ENTRY_BYTES: usize = 16;
/// Bitmaps that the index block of a metadata space map can name.
pub const BITMAPS_MAX: usize = (BLOCK_BYTES - HEADER_BYTES) / INDEX_ENTRY_BYTES;
/// Metadata blocks that can be counted; further blocks cannot be used.
pub const METADATA_BLOCKS_MAX: u64 = BITMAPS_MAX as u64 * BITMAP_ENTRIES;

const ENTRIES_PER_WORD: usize = 32;
/// The lower of the two bits of each entry of a word.
const LOW_BITS: u64 = 0x5555_5555_5555_5555;

const _: () = {
    assert!(BITMAP_ENTRIES == 16320);
    assert!(METADATA_BLOCKS_MAX == 4_161_600);
    assert!((BLOCK_BYTES - HEADER_BYTES).is_multiple_of(size_of::<u64>()));
};

/// The bitmap that holds a block's count, and the entry within.
#[must_use]
pub fn bitmap_of(block: u64) -> (u64, usize) {
    (block / BITMAP_ENTRIES, (block % BITMAP_ENTRIES) as usize)
}

/// The root of a space map as it lies in a superblock.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawSpaceMapRoot {
    nr_blocks: U64,
    nr_allocated: U64,
    bitmap_root: U64,
    ref_count_root: U64,
}

macro_rules! field {
    ($raw:ident, $name:ident, $type:ty) => {
        Field { name: stringify!($name), offset: offset_of!($raw, $name), size: size_of::<$type>() }
    };
}

/// Where each field of a space map's root lies.
pub const SPACE_MAP_ROOT_FIELDS: [Field; 4] = [
    field!(RawSpaceMapRoot, nr_blocks, U64),
    field!(RawSpaceMapRoot, nr_allocated, U64),
    field!(RawSpaceMapRoot, bitmap_root, U64),
    field!(RawSpaceMapRoot, ref_count_root, U64),
];

const _: () = assert!(size_of::<RawSpaceMapRoot>() == 32);

/// The place and the size of a space map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceMapRoot {
    /// Blocks that it counts.
    pub blocks: u64,
    /// Blocks with a count above zero, according to the writer.
    pub allocated: u64,
    /// The index: a tree's root for data blocks, an index block for metadata blocks.
    pub bitmap_root: MetadataBlock,
    /// Root of the tree of counts of 3 and more.
    pub ref_count_root: MetadataBlock,
}

impl SpaceMapRoot {
    /// In a held superblock, in place of a space map.
    pub const EMPTY: SpaceMapRoot = SpaceMapRoot {
        blocks: 0,
        allocated: 0,
        bitmap_root: MetadataBlock(0),
        ref_count_root: MetadataBlock(0),
    };

    /// Bitmaps that it needs.
    #[must_use]
    pub fn bitmaps(&self) -> u64 {
        self.blocks.div_ceil(BITMAP_ENTRIES)
    }
}

impl RawSpaceMapRoot {
    pub(crate) fn decode(&self) -> SpaceMapRoot {
        SpaceMapRoot {
            blocks: self.nr_blocks.get(),
            allocated: self.nr_allocated.get(),
            bitmap_root: MetadataBlock(self.bitmap_root.get()),
            ref_count_root: MetadataBlock(self.ref_count_root.get()),
        }
    }

    pub(crate) fn encode(root: &SpaceMapRoot) -> RawSpaceMapRoot {
        RawSpaceMapRoot {
            nr_blocks: U64::new(root.blocks),
            nr_allocated: U64::new(root.allocated),
            bitmap_root: U64::new(root.bitmap_root.0),
            ref_count_root: U64::new(root.ref_count_root.0),
        }
    }
}

/// An index entry as it lies in a leaf or an index block.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawIndexEntry {
    blocknr: U64,
    nr_free: U32,
    none_free_before: U32,
}

/// Where each field of an index entry lies.
pub const INDEX_ENTRY_FIELDS: [Field; 3] = [
    field!(RawIndexEntry, blocknr, U64),
    field!(RawIndexEntry, nr_free, U32),
    field!(RawIndexEntry, none_free_before, U32),
];

const _: () = {
    assert!(size_of::<RawIndexEntry>() == INDEX_ENTRY_BYTES);
    assert!(offset_of!(RawIndexEntry, nr_free) == 8);
    assert!(offset_of!(RawIndexEntry, none_free_before) == 12);
};

/// The place of one bitmap, and what its writer stored about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// The bitmap.
    pub bitmap: MetadataBlock,
    /// Free entries. For the last bitmap the kernel also counts the entries beyond the end. If this
    /// is zero, the kernel skips the bitmap.
    pub free: u32,
    /// A hint: no entry before this one is free.
    pub none_free_before: u32,
}

impl Value for IndexEntry {
    const BYTES: usize = INDEX_ENTRY_BYTES;

    fn decode(bytes: &[u8]) -> IndexEntry {
        let raw = RawIndexEntry::ref_from_bytes(bytes).expect("the caller gives 16 bytes");
        IndexEntry {
            bitmap: MetadataBlock(raw.blocknr.get()),
            free: raw.nr_free.get(),
            none_free_before: raw.none_free_before.get(),
        }
    }

    fn encode(&self, bytes: &mut [u8]) {
        let raw = RawIndexEntry {
            blocknr: U64::new(self.bitmap.0),
            nr_free: U32::new(self.free),
            none_free_before: U32::new(self.none_free_before),
        };
        bytes.copy_from_slice(raw.as_bytes());
    }
}

/// The index block of a metadata space map.
#[derive(Debug, Clone, Copy)]
pub struct IndexBlock<'a>(&'a Block);

impl<'a> IndexBlock<'a> {
    /// Reads the index block that lies at `at`.
    ///
    /// # Errors
    /// It is not an index block, or belongs elsewhere.
    pub fn decode(bytes: &'a Block, at: MetadataBlock) -> Result<IndexBlock<'a>, Error> {
        block::verify(bytes, Kind::Index, at).map(|()| IndexBlock(bytes))
    }

    /// The entry of bitmap `index`, below [`BITMAPS_MAX`].
    #[must_use]
    pub fn entry(&self, index: usize) -> IndexEntry {
        IndexEntry::decode(
            &self.0[HEADER_BYTES..][index * INDEX_ENTRY_BYTES..][..INDEX_ENTRY_BYTES],
        )
    }
}

/// An index block being written.
#[derive(Debug)]
pub struct IndexBlockMut<'a>(&'a mut Block);

impl<'a> IndexBlockMut<'a> {
    /// Starts with no entries.
    pub fn init(bytes: &'a mut Block) -> IndexBlockMut<'a> {
        bytes.fill(0);
        IndexBlockMut(bytes)
    }

    /// Writes the entry of bitmap `index`, below [`BITMAPS_MAX`].
    pub fn set(&mut self, index: usize, entry: IndexEntry) {
        let begin = HEADER_BYTES + index * INDEX_ENTRY_BYTES;
        entry.encode(&mut self.0[begin..begin + INDEX_ENTRY_BYTES]);
    }
}

/// A bitmap: [`BITMAP_ENTRIES`] counts.
#[derive(Debug, Clone, Copy)]
pub struct Bitmap<'a>(&'a Block);

impl<'a> Bitmap<'a> {
    /// Reads the bitmap that lies at `at`.
    ///
    /// # Errors
    /// It is not a bitmap, or belongs elsewhere.
    pub fn decode(bytes: &'a Block, at: MetadataBlock) -> Result<Bitmap<'a>, Error> {
        block::verify(bytes, Kind::Bitmap, at).map(|()| Bitmap(bytes))
    }

    /// Reads a bitmap that was verified before, or is being changed in memory.
    #[must_use]
    pub fn cached(bytes: &'a Block) -> Bitmap<'a> {
        Bitmap(bytes)
    }

    /// The count at `index`; 3 stands for [`COUNT_IN_TREE`].
    #[must_use]
    pub fn get(&self, index: usize) -> u32 {
        count_of(self.0[HEADER_BYTES + index / 4] >> (2 * (index % 4)))
    }

    /// The first free entry in a range, or none. The range ends at [`BITMAP_ENTRIES`] or before.
    #[must_use]
    pub fn find_free(&self, range: Range<usize>) -> Option<usize> {
        self.free_words(range)
            .find(|(_, free)| *free != 0)
            .map(|(begin, free)| begin + free.trailing_zeros() as usize / 2)
    }

    /// Free entries in a range. The range ends at [`BITMAP_ENTRIES`] or before.
    #[must_use]
    pub fn count_free(&self, range: Range<usize>) -> u32 {
        self.free_words(range).map(|(_, free)| free.count_ones()).sum()
    }

    /// For each word that the range touches: its first entry, and a word with one bit set (the
    /// lower of two) for each free entry of the range.
    fn free_words(&self, range: Range<usize>) -> impl Iterator<Item = (usize, u64)> + '_ {
        let words = range.start / ENTRIES_PER_WORD..range.end.div_ceil(ENTRIES_PER_WORD);
        words.map(move |word| {
            let begin = word * ENTRIES_PER_WORD;
            let bits = self.word(word);
            let free = !(bits | bits >> 1) & LOW_BITS;
            (begin, free & entries_from(range.start, begin) & !entries_from(range.end, begin))
        })
    }

    fn word(&self, word: usize) -> u64 {
        let bytes = &self.0[HEADER_BYTES + word * 8..][..8];
        u64::from_le_bytes(bytes.try_into().expect("the slice has eight bytes"))
    }
}

/// The bits of the entries at or after `index` in the word whose first entry is `begin`.
fn entries_from(index: usize, begin: usize) -> u64 {
    let skipped = index.saturating_sub(begin);
    u64::MAX.checked_shl(2 * skipped as u32).unwrap_or(0)
}

/// The count in the two lowest bits. Their order is unusual, here and in [`bits_of`] only: the
/// lower bit is the high bit of the count.
fn count_of(bits: u8) -> u32 {
    u32::from((bits & 1) << 1 | bits >> 1 & 1)
}

fn bits_of(count: u32) -> u8 {
    ((count & 1) << 1 | count >> 1 & 1) as u8
}

/// A bitmap being changed.
#[derive(Debug)]
pub struct BitmapMut<'a>(&'a mut Block);

impl<'a> BitmapMut<'a> {
    /// Starts with every count zero.
    pub fn init(bytes: &'a mut Block) -> BitmapMut<'a> {
        bytes.fill(0);
        BitmapMut(bytes)
    }

    /// Changes a bitmap that was verified before.
    pub fn cached(bytes: &'a mut Block) -> BitmapMut<'a> {
        BitmapMut(bytes)
    }

    /// The bitmap as it is now.
    #[must_use]
    pub fn view(&self) -> Bitmap<'_> {
        Bitmap(self.0)
    }

    /// Writes a count of 0 to 3; 3 stands for [`COUNT_IN_TREE`].
    ///
    /// # Panics
    /// If the count is larger: it belongs in the tree.
    #[inline]
    pub fn set(&mut self, index: usize, count: u32) {
        assert!(count <= COUNT_IN_TREE, "count {count} does not fit in two bits");
        let (byte, shift) = (&mut self.0[HEADER_BYTES + index / 4], 2 * (index % 4));
        *byte = *byte & !(3 << shift) | bits_of(count) << shift;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{
        BITMAP_ENTRIES, BITMAPS_MAX, Bitmap, BitmapMut, IndexBlock, IndexBlockMut, IndexEntry,
    };
    use crate::thin::block::{self, BLOCK_BYTES, Kind};
    use crate::thin::{MetadataBlock, Value};

    #[test]
    fn the_lower_bit_of_an_entry_is_the_high_bit_of_its_count() {
        let mut bytes = [0; BLOCK_BYTES];
        let mut bitmap = BitmapMut::init(&mut bytes);
        for (index, count) in [(0, 1), (1, 2), (2, 3), (3, 0)] {
            bitmap.set(index, count);
            assert_eq!(bitmap.view().get(index), count);
        }
        assert_eq!(bytes[16], 0b00_11_01_10);
    }

    #[test]
    fn an_index_block_holds_255_entries() {
        let mut bytes = [0; BLOCK_BYTES];
        let mut index = IndexBlockMut::init(&mut bytes);
        let entry = |number: u32| IndexEntry {
            bitmap: MetadataBlock(u64::from(number) << 33),
            free: number,
            none_free_before: 2 * number,
        };
        for number in 0..BITMAPS_MAX {
            index.set(number, entry(number as u32));
        }
        block::seal(&mut bytes, Kind::Index, MetadataBlock(9));
        let index = IndexBlock::decode(&bytes, MetadataBlock(9)).unwrap();
        assert!((0..BITMAPS_MAX).all(|number| index.entry(number) == entry(number as u32)));
        assert!(IndexBlock::decode(&bytes, MetadataBlock(8)).is_err());
        assert!(Bitmap::decode(&bytes, MetadataBlock(9)).is_err());
    }

    proptest! {
        #[test]
        fn searching_by_words_finds_what_searching_one_by_one_finds(
            seed in any::<u64>(),
            dense in 1u64..40,
            from in 0..BITMAP_ENTRIES as usize,
            to in 0..=BITMAP_ENTRIES as usize,
        ) {
            let mut bytes = [0; BLOCK_BYTES];
            let mut bitmap = BitmapMut::init(&mut bytes);
            let mut state = seed | 1;
            for index in 0..BITMAP_ENTRIES as usize {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let used = (state >> 33) % dense != 0;
                bitmap.set(index, if used { 1 + (state >> 50) as u32 % 3 } else { 0 });
            }
            let bitmap = Bitmap::cached(&bytes);
            let free = || (from..to).filter(|index| bitmap.get(*index) == 0);
            prop_assert_eq!(bitmap.find_free(from..to), free().next());
            prop_assert_eq!(bitmap.count_free(from..to) as usize, free().count());
        }

        #[test]
        fn an_index_entry_survives_decoding_and_encoding(raw in any::<[u8; 16]>()) {
            let mut encoded = [0; 16];
            IndexEntry::decode(&raw).encode(&mut encoded);
            prop_assert_eq!(encoded, raw);
        }
    }
}
