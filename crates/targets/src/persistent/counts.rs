//! [`Counts`]: the reference counts of a space map, in memory.
//!
//! The counts are kept as the bitmaps of the device, two bits each, and a table of the counts of 3
//! and more. So raising and lowering a count is a step in memory that allocates no metadata. The
//! commit writes the changes (see `commit`); only there does the metadata space map change itself.
//!
//! C1. A block's count is in the table exactly if its bitmap says 3.
//! C2. Every bitmap and every table entry that differs from the durable one is recorded as changed.
//! C3. The index entry of a bitmap (number of free entries, first free entry) is kept with it: a
//!     commit writes the index of all bitmaps, and reads only those that changed.
//! C4. Counts beyond the end, which the device may have, are dropped: in memory at once, on the
//!     device before a longer map gives them a meaning.

use cairn_format::thin::{
    BITMAP_ENTRIES, BLOCK_BYTES, Bitmap, BitmapMut, Block, COUNT_IN_TREE, IndexEntry,
    MetadataBlock, RefCount, bitmap_of,
};
use rustc_hash::FxHashMap;

/// A bitmap and its metadata block.
pub(super) struct Page {
    pub bits: Box<Block>,
    /// Its metadata block, if it was ever written.
    pub at: Option<MetadataBlock>,
    /// It differs from that block's content.
    changed: bool,
    /// C3: entries that are free, those beyond the end of the map included.
    free: u32,
    /// C3: the first of them, or how many entries there are.
    first_free: usize,
}

impl Page {
    fn new(bits: Box<Block>, at: Option<MetadataBlock>, changed: bool) -> Page {
        let (bitmap, all) = (Bitmap::cached(&bits), 0..BITMAP_ENTRIES as usize);
        let first_free = bitmap.find_free(all.clone()).unwrap_or(all.end);
        let free = bitmap.count_free(all);
        Page { bits, at, changed, free, first_free }
    }

    /// Writes a count that fits in two bits.
    fn set(&mut self, index: usize, old: u32, new: u32) {
        BitmapMut::cached(&mut self.bits).set(index, new);
        self.free = self.free + u32::from(new == 0) - u32::from(old == 0);
        if new == 0 {
            self.first_free = self.first_free.min(index);
        } else if self.first_free == index {
            let behind = index + 1..BITMAP_ENTRIES as usize;
            let next = Bitmap::cached(&self.bits).find_free(behind);
            self.first_free = next.unwrap_or(BITMAP_ENTRIES as usize);
        }
    }
}

/// A count that can't be raised or lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// The block lies beyond the end of the map.
    Beyond,
    /// The count is zero and was to be lowered.
    Zero,
    /// The count does not fit in 32 bits.
    Overflow,
}

/// Reference counts.
pub(super) struct Counts {
    blocks: u64,
    allocated: u64,
    pages: Vec<Page>,
    changed_pages: Vec<usize>,
    large: FxHashMap<u64, u32>,
    changed_large: Vec<u64>,
    /// C4: the bitmap on the device has counts beyond the end.
    has_tail: bool,
}

impl Counts {
    /// The counts of no blocks.
    pub fn empty() -> Counts {
        Counts {
            blocks: 0,
            allocated: 0,
            pages: Vec::new(),
            changed_pages: Vec::new(),
            large: FxHashMap::default(),
            changed_large: Vec::new(),
            has_tail: false,
        }
    }

    /// Builds the counts from what was read: bitmaps with their blocks, and the counts of 3 and
    /// more.
    ///
    /// # Errors
    /// The block whose bitmap and table entry contradict each other (C1).
    pub fn load(
        blocks: u64,
        mut pages: Vec<(MetadataBlock, Box<Block>)>,
        large: impl IntoIterator<Item = (u64, u32)>,
    ) -> Result<Counts, u64> {
        let mut counts = Counts::empty();
        counts.blocks = blocks;
        if let Some((_, last)) = pages.last_mut() {
            counts.has_tail = clear_tail(last, blocks);
        }
        counts.pages =
            pages.into_iter().map(|(at, bits)| Page::new(bits, Some(at), false)).collect();
        for (block, count) in large {
            if counts.bits(block) != Some(COUNT_IN_TREE) || count < COUNT_IN_TREE {
                return Err(block);
            }
            counts.large.insert(block, count);
        }
        let mut threes = 0;
        for (number, page) in counts.pages.iter().enumerate() {
            let bitmap = Bitmap::cached(&page.bits);
            counts.allocated += BITMAP_ENTRIES - u64::from(page.free);
            let all = 0..BITMAP_ENTRIES as usize;
            for index in all.filter(|&index| bitmap.get(index) == COUNT_IN_TREE) {
                let block = number as u64 * BITMAP_ENTRIES + index as u64;
                threes += 1;
                if !counts.large.contains_key(&block) {
                    return Err(block);
                }
            }
        }
        debug_assert_eq!(threes, counts.large.len());
        Ok(counts)
    }

    /// Blocks that are counted.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks with a count above zero.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Counts of 3 and more.
    pub fn large(&self) -> u64 {
        self.large.len() as u64
    }

    /// Bitmaps.
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    fn bits(&self, block: u64) -> Option<u32> {
        let (page, index) = bitmap_of(block);
        let page = self.pages.get(page as usize).filter(|_| block < self.blocks)?;
        Some(Bitmap::cached(&page.bits).get(index))
    }

    /// A block's count; none beyond the end.
    pub fn get(&self, block: u64) -> Option<u32> {
        match self.bits(block)? {
            COUNT_IN_TREE => self.large.get(&block).copied(),
            small => Some(small),
        }
    }

    /// Adds one to a count; returns the new one.
    pub fn raise(&mut self, block: u64) -> Result<u32, Misfit> {
        let old = self.get(block).ok_or(Misfit::Beyond)?;
        let new = old.checked_add(1).ok_or(Misfit::Overflow)?;
        self.set(block, old, new);
        Ok(new)
    }

    /// Subtracts one from a count; returns the new one.
    pub fn lower(&mut self, block: u64) -> Result<u32, Misfit> {
        let old = self.get(block).ok_or(Misfit::Beyond)?;
        let new = old.checked_sub(1).ok_or(Misfit::Zero)?;
        self.set(block, old, new);
        Ok(new)
    }

    fn set(&mut self, block: u64, old: u32, new: u32) {
        if new >= COUNT_IN_TREE {
            self.large.insert(block, new);
        } else if old >= COUNT_IN_TREE {
            self.large.remove(&block);
        }
        if old.max(new) >= COUNT_IN_TREE {
            self.changed_large.push(block);
        }
        self.allocated = self.allocated + u64::from(old == 0) - u64::from(new == 0);
        let (number, index) = bitmap_of(block);
        let page = &mut self.pages[number as usize];
        if old.min(COUNT_IN_TREE) != new.min(COUNT_IN_TREE) {
            page.set(index, old.min(COUNT_IN_TREE), new.min(COUNT_IN_TREE));
            self.note_changed(number as usize);
        }
    }

    fn note_changed(&mut self, page: usize) {
        if !std::mem::replace(&mut self.pages[page].changed, true) {
            self.changed_pages.push(page);
        }
    }

    /// Makes the map longer, with counts of zero.
    pub fn grow(&mut self, blocks: u64) {
        assert!(blocks >= self.blocks, "a map never shrinks");
        if blocks > self.blocks && std::mem::take(&mut self.has_tail) {
            self.note_changed(bitmap_of(self.blocks).0 as usize);
        }
        self.blocks = blocks;
        while (self.pages.len() as u64) < blocks.div_ceil(BITMAP_ENTRIES) {
            self.changed_pages.push(self.pages.len());
            self.pages.push(Page::new(Box::new([0; BLOCK_BYTES]), None, true));
        }
    }

    /// Returns the changed pages and marks them unchanged: the caller writes them from memory.
    pub fn take_changed_pages(&mut self) -> Vec<usize> {
        let mut pages = std::mem::take(&mut self.changed_pages);
        pages.sort_unstable();
        for &page in &pages {
            self.pages[page].changed = false;
        }
        pages
    }

    /// Returns the changes to the counts of 3 and more, by block, and marks them unchanged. `None`:
    /// below 3.
    pub fn take_changed_large(&mut self) -> Vec<(u64, Option<RefCount>)> {
        let mut blocks = std::mem::take(&mut self.changed_large);
        blocks.sort_unstable();
        blocks.dedup();
        let count = |block| (block, self.large.get(&block).map(|&count| RefCount(count)));
        blocks.into_iter().map(count).collect()
    }

    /// True if nothing differs from what is durable.
    pub fn is_unchanged(&self) -> bool {
        self.changed_pages.is_empty() && self.changed_large.is_empty()
    }

    /// Sets the block of a page; returns the former one.
    pub fn move_page(&mut self, page: usize, at: MetadataBlock) -> Option<MetadataBlock> {
        self.pages[page].at.replace(at)
    }

    /// The index entry of a page, as the kernel writes it: entries beyond the end are free.
    pub fn index_entry(&self, page: usize) -> IndexEntry {
        let Page { at, free, first_free, .. } = self.pages[page];
        IndexEntry {
            bitmap: at.expect("a page has its place before the index is written"),
            free,
            none_free_before: first_free as u32,
        }
    }
}

/// Clears the entries beyond the last block, which mean nothing; a longer map begins with zeros
/// there. True if some were not zero.
fn clear_tail(last: &mut Block, blocks: u64) -> bool {
    let used = (blocks % BITMAP_ENTRIES) as usize;
    if used == 0 {
        return false;
    }
    let tail = used..BITMAP_ENTRIES as usize;
    let has_tail = Bitmap::cached(last).count_free(tail.clone()) < tail.len() as u32;
    let mut bitmap = BitmapMut::cached(last);
    tail.for_each(|index| bitmap.set(index, 0));
    has_tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_beyond_the_end_below_zero_and_beyond_32_bits_are_refused() {
        let mut counts = Counts::empty();
        counts.grow(10);
        assert_eq!(counts.raise(10), Err(Misfit::Beyond));
        assert_eq!(counts.lower(3), Err(Misfit::Zero));
        let mut bits = Box::new([0; BLOCK_BYTES]);
        BitmapMut::cached(&mut bits).set(1, 3);
        BitmapMut::cached(&mut bits).set(9, 1);
        let at = MetadataBlock(1);
        let mut counts = Counts::load(9, vec![(at, bits.clone())], [(1, u32::MAX)]).unwrap();
        assert_eq!(counts.raise(1), Err(Misfit::Overflow));
        assert_eq!((counts.allocated(), counts.get(9)), (1, None));
        counts.grow(12);
        assert_eq!(counts.get(9), Some(0), "what lay beyond the end is forgotten");
        assert_eq!(counts.take_changed_pages(), [0], "on the device, too");
        assert_eq!(Counts::load(9, vec![(at, bits.clone())], []).err(), Some(1));
        assert_eq!(Counts::load(9, vec![(at, bits)], [(2, 3)]).err(), Some(2));
    }

    proptest! {
        #[test]
        fn counts_agree_with_a_table(
            steps in prop::collection::vec((0u64..40, any::<bool>()), 0..400),
            grow in 30u64..40,
        ) {
            let mut counts = Counts::empty();
            counts.grow(grow);
            let mut table = vec![0u32; grow as usize];
            for (block, up) in steps {
                let expected = match table.get_mut(block as usize) {
                    None => Err(Misfit::Beyond),
                    Some(count) if !up && *count == 0 => Err(Misfit::Zero),
                    Some(count) => {
                        *count = if up { *count + 1 } else { *count - 1 };
                        Ok(*count)
                    }
                };
                let got = if up { counts.raise(block) } else { counts.lower(block) };
                prop_assert_eq!(got, expected);
            }
            let used = table.iter().filter(|&&count| count > 0).count() as u64;
            prop_assert_eq!(counts.allocated(), used);
            counts.move_page(0, MetadataBlock(1));
            let entry = counts.index_entry(0);
            let first_free = table.iter().position(|&count| count == 0).unwrap_or(table.len());
            prop_assert_eq!(u64::from(entry.free), BITMAP_ENTRIES - used, "C3");
            prop_assert_eq!(entry.none_free_before as usize, first_free, "C3");
            for (block, count) in (0..).zip(&table) {
                prop_assert_eq!(counts.get(block), Some(*count));
            }
            counts.take_changed_pages();
            let large = (0..).zip(&table).filter(|(_, count)| **count > 2);
            let large: Vec<_> = large.map(|(block, count)| (block, *count)).collect();
            let pages = vec![(MetadataBlock(1), counts.pages()[0].bits.clone())];
            let again = Counts::load(grow, pages, large).unwrap();
            prop_assert_eq!(again.allocated(), used);
            prop_assert_eq!(again.index_entry(0), entry);
        }
    }
}
