//! [`Span`]: a range of a target as the blocks that it touches: regions of a clone, clusters of an
//! image. A block is a fixed number of sectors, and the last one of the target may be shorter.

use std::ops::Range;

use cairn_block::SectorRange;

/// See the module's description.
pub(crate) struct Span {
    pub blocks: Range<u64>,
    start: u64,
    end: u64,
    block_sectors: u64,
    sectors: u64,
}

impl Span {
    /// On a target of so many sectors.
    pub fn of(range: SectorRange, block_sectors: u64, sectors: u64) -> Span {
        let (start, end) = (range.start.0, range.start.0 + range.count.0);
        let blocks = start / block_sectors..end.div_ceil(block_sectors);
        Span { blocks, start, end, block_sectors, sectors }
    }

    /// How many blocks it covers from the first on. The last block may be shorter.
    pub fn whole(&self) -> u64 {
        if !self.start.is_multiple_of(self.block_sectors) {
            return 0;
        }
        let end =
            if self.end == self.sectors { self.blocks.end } else { self.end / self.block_sectors };
        end.saturating_sub(self.blocks.start)
    }

    /// Its sectors in the first `count` blocks.
    pub fn head(&self, count: u64) -> u64 {
        let end = (self.blocks.start + count) * self.block_sectors;
        self.end.min(end) - self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_block::{Sector, SectorCount};

    fn span(start: u64, count: u64) -> Span {
        Span::of(SectorRange::new(Sector(start), SectorCount(count)), 8, 1003)
    }

    #[test]
    fn a_span_knows_what_it_covers() {
        let middle = span(16, 20);
        assert_eq!((middle.blocks.clone(), middle.whole()), (2..5, 2));
        assert_eq!((middle.head(1), middle.head(2), middle.head(3)), (8, 16, 20));
        assert_eq!((span(17, 7).whole(), span(17, 7).head(1)), (0, 7));
        assert_eq!((span(992, 11).blocks, span(992, 11).whole()), (124..126, 2));
        assert_eq!((span(1000, 3).whole(), span(1000, 2).whole()), (1, 0));
    }
}
