//! [`BlockSpan`]: the range of a request on its volume, in blocks and in sectors.

use cairn_block::{SectorCount, SectorRange};

/// A request as the virtual blocks it touches.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockSpan {
    pub sector: u64,
    /// The first.
    pub block: u64,
    /// How many sectors into it the request begins.
    pub offset: u64,
    /// How many it touches.
    pub blocks: u64,
    sectors: u64,
    block_sectors: u64,
}

impl BlockSpan {
    pub fn of(range: SectorRange, block_sectors: u64) -> BlockSpan {
        let (sector, sectors) = (range.start.0, range.count.0);
        let (block, offset) = (sector / block_sectors, sector % block_sectors);
        let blocks = (offset + sectors).div_ceil(block_sectors);
        BlockSpan { sector, block, offset, blocks, sectors, block_sectors }
    }

    /// How many blocks it covers from the first on.
    pub fn whole(&self) -> u64 {
        if self.offset == 0 { self.sectors / self.block_sectors } else { 0 }
    }

    /// Its sectors in the first `count` blocks.
    pub fn head(&self, count: u64) -> SectorCount {
        SectorCount(self.sectors.min(count.saturating_mul(self.block_sectors) - self.offset))
    }

    /// Its bytes in the block `index` after the first, as offset and length in its data.
    pub fn bytes(&self, index: u64) -> (usize, usize) {
        let from = if index == 0 { 0 } else { index * self.block_sectors - self.offset };
        let to = self.head(index + 1).0;
        ((from * 512) as usize, ((to - from) * 512) as usize)
    }
}
