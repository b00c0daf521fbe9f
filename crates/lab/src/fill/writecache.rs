//! A write cache that is full of dirty data: [`Plan`], laid out as [`Layout`], written through a
//! sink.
//!
//! W1. Slots are taken in order, by blocks in their order of arrival; all of them are committed.
//! W2. The commit number of the entries rises with each [`COMMIT_BLOCKS`] of them, as that many
//!     blocks make the target commit by itself, and the superblock's is above all.
//!
//! A write cache has no clean data, and a slot holds one block: patterns that differ in what shares
//! a bucket mean nothing here.

use cairn_format::WriteSectors;
use cairn_format::writecache::build::{BuildError, Builder};
use cairn_format::writecache::{BlockSize, Entry, Geometry, SECTOR_BYTES, Seq};
use fastrand::Rng;

use super::arrivals::{Share, arrivals};
use super::{FillError, Pattern, percent_of, shares_of};

/// Blocks of one commit.
const COMMIT_BLOCKS: u64 = 1 << 16;

/// What a cache is to have.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Sectors of the cache device, from its start sector on.
    pub cache_sectors: u64,
    /// Bytes of a block of the cache.
    pub cache_block_bytes: u32,
    /// Sectors of the origin.
    pub origin_sectors: u64,
    /// How many of the slots are dirty, in percent.
    pub dirty_percent: f64,
    /// Sectors that were written at once: whole blocks of the cache.
    pub block_sectors: u64,
    /// How the data came there.
    pub pattern: Pattern,
    /// What is random follows from it.
    pub seed: u64,
}

/// A plan that fits.
pub struct Layout {
    plan: Plan,
    geometry: Geometry,
    share: Share,
    /// Blocks of the cache in what was written at once.
    blocks_per_write: u64,
}

impl Plan {
    /// Decides how much there is of it.
    ///
    /// # Errors
    /// A value is not legal, or there is more data than the origin has room for.
    pub fn lay_out(&self) -> Result<Layout, FillError> {
        if matches!(self.pattern, Pattern::Fragmented { .. } | Pattern::Aged) {
            let expected = "uniform, clustered or out-of-order for a write cache";
            return Err(FillError::value("pattern", self.pattern, expected));
        }
        let block_size = BlockSize::new(self.cache_block_bytes)?;
        let geometry = Geometry::for_format(self.cache_sectors * SECTOR_BYTES, block_size)?;
        let block = u64::from(block_size.sectors());
        if self.block_sectors == 0 || !self.block_sectors.is_multiple_of(block) {
            let expected = "whole blocks of the cache";
            return Err(FillError::value("block_sectors", self.block_sectors, expected));
        }
        let blocks_per_write = self.block_sectors / block;
        let dirty = percent_of("dirty_percent", self.dirty_percent, geometry.n_blocks())?;
        let origin = [(self.origin_sectors / self.block_sectors, 1)];
        let share = shares_of(&origin, dirty / blocks_per_write, 0)?[0];
        Ok(Layout { plan: *self, geometry, share, blocks_per_write })
    }
}

impl Layout {
    /// How many slots are dirty.
    pub fn dirty_blocks(&self) -> u64 {
        self.share.dirty * self.blocks_per_write
    }

    /// How many slots the cache has.
    pub fn slots(&self) -> u64 {
        self.geometry.n_blocks()
    }

    /// The entries, from slot 0 on.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let mut rng = Rng::with_seed(self.plan.seed);
        let bytes = self.plan.block_sectors * SECTOR_BYTES;
        let (dirty, _) = arrivals(self.plan.pattern, &[self.share], bytes, &mut rng);
        let sectors = u64::from(self.geometry.sectors_per_block());
        let per_write = self.blocks_per_write;
        let blocks = dirty.flat_map(move |it| it.start() * per_write..it.end() * per_write);
        (0..)
            .zip(blocks)
            .map(move |(slot, block)| Entry { original_sector: block * sectors, seq: seq_of(slot) })
    }

    /// Writes the metadata of the cache device.
    ///
    /// # Errors
    /// The sink refused.
    pub fn write<W: WriteSectors>(&self, cache: W) -> Result<(), BuildError<W::Error>> {
        let mut builder = Builder::new(self.geometry, cache);
        for entry in self.entries() {
            builder.add(entry)?;
        }
        builder.finish(Seq(seq_of(self.dirty_blocks()).0 + 1))
    }
}

fn seq_of(slot: u64) -> Seq {
    Seq(slot / COMMIT_BLOCKS)
}

#[cfg(test)]
mod tests;
