//! Reference counts as a checker derives them: one byte per block for small counts.
//!
//! Promises memory only for blocks that were counted: a page is allocated with the first count in
//! it, and a count too large for its byte goes to a map. In addition, each block has one mark.

use rustc_hash::FxHashMap;

const PAGE_BITS: u32 = 14;
const PAGE: usize = 1 << PAGE_BITS;
const MARK: u8 = 0x80;
/// Value of a byte whose count is in the map.
const LARGE: u8 = 0x7F;

/// A count and a mark for each block below a limit.
#[derive(Debug)]
pub struct Counts {
    blocks: u64,
    pages: Vec<Option<Box<[u8; PAGE]>>>,
    large: FxHashMap<u64, u32>,
}

impl Counts {
    /// All counts zero. The list of pages grows as counts are added.
    #[must_use]
    pub fn new(blocks: u64) -> Counts {
        Counts { blocks, pages: Vec::new(), large: FxHashMap::default() }
    }

    /// The number of blocks that can be counted.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Counts a reference. False if there is no such block.
    pub fn add(&mut self, block: u64) -> bool {
        if block >= self.blocks {
            return false;
        }
        let byte = self.byte_mut(block);
        let count = *byte & !MARK;
        if count + 1 < LARGE {
            *byte += 1;
        } else {
            *byte |= LARGE;
            *self.large.entry(block).or_insert(u32::from(LARGE) - 1) += 1;
        }
        true
    }

    /// References counted so far.
    #[must_use]
    pub fn get(&self, block: u64) -> u32 {
        match self.byte(block) & !MARK {
            LARGE => self.large.get(&block).copied().unwrap_or(0),
            count => u32::from(count),
        }
    }

    /// Marks a block. False if it was marked already, or does not exist.
    pub fn mark(&mut self, block: u64) -> bool {
        if block >= self.blocks {
            return false;
        }
        let byte = self.byte_mut(block);
        let fresh = *byte & MARK == 0;
        *byte |= MARK;
        fresh
    }

    /// Whether a block is marked.
    #[must_use]
    pub fn is_marked(&self, block: u64) -> bool {
        self.byte(block) & MARK != 0
    }

    /// Blocks with a count above zero.
    #[must_use]
    pub fn used(&self) -> u64 {
        let used = |page: &[u8; PAGE]| page.iter().filter(|byte| **byte & !MARK != 0).count();
        self.pages.iter().flatten().map(|page| used(page) as u64).sum()
    }

    fn byte(&self, block: u64) -> u8 {
        let page = usize::try_from(block >> PAGE_BITS).unwrap_or(usize::MAX);
        let page = self.pages.get(page).and_then(Option::as_ref);
        page.map_or(0, |page| page[block as usize % PAGE])
    }

    #[inline]
    fn byte_mut(&mut self, block: u64) -> &mut u8 {
        let page = (block >> PAGE_BITS) as usize;
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new([0; PAGE]));
        &mut page[block as usize % PAGE]
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn counts_go_on_beyond_a_byte_and_keep_their_marks() {
        let mut counts = Counts::new(100_000);
        for expected in 1..=1000 {
            assert!(counts.add(99_999));
            assert_eq!(counts.get(99_999), expected);
            assert_eq!(counts.mark(99_999), expected == 1);
        }
        assert!(counts.is_marked(99_999) && !counts.is_marked(0));
        assert_eq!((counts.get(0), counts.get(u64::MAX), counts.used()), (0, 0, 1));
        assert!(!counts.add(100_000) && !counts.mark(100_000));
        assert!(counts.mark(7));
        assert_eq!(counts.used(), 1);
    }
}
