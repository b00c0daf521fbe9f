//! A set of bcache that is full of data: [`Plan`], laid out as [`Layout`], written through sinks.
//!
//! B1. Each backing device has its share of the dirty data and of the clean, by its weight.
//! B2. Behind the journal come the buckets with data, then those with metadata, then free ones: a
//!     sixty-fourth of all, and eight at least, as a server cannot begin without any.
//! B3. The superblock of the cache is written last, so that nothing is a set before all is written.
//!
//! The devices of the set must hold zeros where nothing is written here, or what another set left.
//! A server that opens the set finds that its last session was one of cairn, so that the clean data
//! counts.

use std::ops::Range;

use cairn_format::WriteSectors;
use cairn_format::bcache::build::{BuildError, Builder, buckets_behind_journal, metadata_buckets};
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, DATA_OFFSET, Generation,
    IntentMap, Key, NewBacking, NewCache, Pointer, Replacement, SUPERBLOCK_SECTOR, Uuid,
};
use fastrand::Rng;

use super::arrivals::{Share, arrivals};
use super::layout::{Extent, Mix, lay_out, mixes};
use super::{FillError, Pattern, percent_of, shares_of};

/// Sectors of a block of the set: 4 KiB.
const BLOCK_SECTORS: u16 = 8;
/// Sectors of the largest block that is written at once: 1 MiB.
const WRITE_SECTORS_MAX: u64 = 2048;
/// One bucket in so many is left free, and [`SPARE_MIN`] at least.
const SPARE_PART: u64 = 64;
const SPARE_MIN: u64 = 8;

/// The cache device.
#[derive(Clone, Copy, Debug)]
pub struct CacheSpec {
    /// Its sectors.
    pub device_sectors: u64,
    /// Sectors of a bucket.
    pub bucket_sectors: u64,
}

/// A backing device.
#[derive(Clone, Copy, Debug)]
pub struct BackingSpec {
    /// Its sectors; the first [`DATA_OFFSET`] have its superblock.
    pub device_sectors: u64,
    /// How much of the data it has, beside the others.
    pub weight: u32,
}

/// What a set is to have.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cache device.
    pub cache: CacheSpec,
    /// The backing devices. The inode of each is its index.
    pub backings: Vec<BackingSpec>,
    /// How much of the cache is dirty data, in percent of all its buckets.
    pub dirty_percent: f64,
    /// How much of it is clean data.
    pub clean_percent: f64,
    /// Sectors that were written, or read, at once: a power of two, 8 at least.
    pub block_sectors: u64,
    /// How the data came there.
    pub pattern: Pattern,
    /// What is random follows from it.
    pub seed: u64,
}

/// What a set has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filled {
    /// Dirty sectors of each backing device.
    pub dirty_sectors: Vec<u64>,
    /// Clean sectors of each backing device.
    pub clean_sectors: Vec<u64>,
    /// Extents, dirty and clean ones.
    pub extents: u64,
    /// Buckets with data, or that had some.
    pub data_buckets: u64,
    /// Buckets with dirty data.
    pub dirty_buckets: u64,
    /// Buckets with metadata, without the journal.
    pub metadata_buckets: u64,
}

/// A plan that fits, with the place of all its data.
pub struct Layout {
    superblock: CacheSuperblock,
    backings: Vec<BackingSuperblock>,
    block_sectors: u64,
    /// The buckets of the data.
    kept: Range<u64>,
    extents: Vec<Extent>,
    filled: Filled,
    /// What nodes are numbered from.
    seq: u64,
}

impl Plan {
    /// Decides where all of it lies.
    ///
    /// # Errors
    /// A value is not legal, or there is more data than a device has room for.
    pub fn lay_out(&self) -> Result<Layout, FillError> {
        self.check()?;
        let mut rng = Rng::with_seed(self.seed);
        let mut uuid = || Uuid(rng.u128(1..).to_le_bytes());
        let superblock = self.superblock(uuid(), uuid())?;
        let uuids: Vec<Uuid> = self.backings.iter().map(|_| uuid()).collect();
        let geometry = *superblock.geometry();
        let room = geometry.bucket_sectors() / self.block_sectors;
        let shares = self.shares(geometry.sectors() / self.block_sectors)?;
        let [dirty, clean] = [|it: &Share| it.dirty, |it: &Share| it.clean]
            .map(|of| shares.iter().map(of).sum::<u64>());

        let behind = buckets_behind_journal(&geometry);
        let found = behind.end - behind.start;
        let spare = (geometry.buckets() / SPARE_PART).max(SPARE_MIN);
        // No plan has more extents than blocks.
        let most = found.saturating_sub(spare + metadata_buckets(&geometry, dirty + clean));
        let mixes = mixes(self.pattern, dirty, clean, room, most);
        let data_buckets = mixes.len() as u64;
        let fits = |extents| {
            let metadata = metadata_buckets(&geometry, extents);
            let expected = data_buckets + metadata + spare;
            match expected <= found {
                true => Ok(metadata),
                false => Err(FillError::Buckets { found, expected }),
            }
        };
        // Before memory is taken for extents.
        fits(0)?;
        let came = arrivals(self.pattern, &shares, self.block_sectors * 512, &mut rng);
        let extents = lay_out(self.pattern, &mixes, came, room, &mut rng);
        let metadata_buckets = fits(extents.len() as u64)?;
        let sectors = |of: fn(&Share) -> u64| {
            shares.iter().map(|share| of(share) * self.block_sectors).collect::<Vec<_>>()
        };
        let filled = Filled {
            dirty_sectors: sectors(|share| share.dirty),
            clean_sectors: sectors(|share| share.clean),
            extents: extents.len() as u64,
            data_buckets,
            dirty_buckets: mixes.iter().filter(|Mix { dirty, .. }| *dirty > 0).count() as u64,
            metadata_buckets,
        };
        Ok(Layout {
            backings: self.backing_superblocks(&superblock, &uuids, &filled)?,
            superblock,
            block_sectors: self.block_sectors,
            kept: behind.start..behind.start + data_buckets,
            extents,
            filled,
            seq: rng.u64(..),
        })
    }

    fn check(&self) -> Result<(), FillError> {
        let block = self.block_sectors;
        let most = WRITE_SECTORS_MAX.min(self.cache.bucket_sectors);
        if !block.is_power_of_two() || !(u64::from(BLOCK_SECTORS)..=most).contains(&block) {
            let expected = "a power of two, from 8 to 2048, and a bucket at most";
            return Err(FillError::value("block_sectors", block, expected));
        }
        match self.pattern {
            Pattern::Fragmented { one_in: 0 } => {
                Err(FillError::value("pattern", self.pattern, "one block in 1 or more"))
            }
            _ => Ok(()),
        }
    }

    /// What each backing device has of a cache of so many blocks.
    fn shares(&self, cache_blocks: u64) -> Result<Vec<Share>, FillError> {
        let dirty = percent_of("dirty_percent", self.dirty_percent, cache_blocks)?;
        let clean = percent_of("clean_percent", self.clean_percent, cache_blocks)?;
        let devices: Vec<(u64, u32)> = self
            .backings
            .iter()
            .map(|it| {
                let sectors = it.device_sectors.saturating_sub(DATA_OFFSET);
                (sectors / self.block_sectors, it.weight)
            })
            .collect();
        shares_of(&devices, dirty, clean)
    }

    fn superblock(&self, uuid: Uuid, set_uuid: Uuid) -> Result<CacheSuperblock, FillError> {
        let fresh = CacheSuperblock::fresh(&NewCache {
            uuid,
            set_uuid,
            block_sectors: BLOCK_SECTORS,
            bucket_sectors: self.cache.bucket_sectors,
            device_sectors: self.cache.device_sectors,
            replacement: Replacement::Lru,
            discard: false,
        });
        Ok(fresh?)
    }

    fn backing_superblocks(
        &self,
        cache: &CacheSuperblock,
        uuids: &[Uuid],
        filled: &Filled,
    ) -> Result<Vec<BackingSuperblock>, FillError> {
        let all = self.backings.iter().zip(uuids).zip(&filled.dirty_sectors);
        let superblock = |((backing, uuid), dirty): ((&BackingSpec, &Uuid), &u64)| {
            let mut superblock = BackingSuperblock::fresh(&NewBacking {
                uuid: *uuid,
                set_uuid: cache.set_uuid(),
                block_sectors: BLOCK_SECTORS,
                data_offset: DATA_OFFSET,
                mode: CacheMode::Writeback,
                state: if *dirty > 0 { BackingState::Dirty } else { BackingState::Clean },
                label: [0; 32],
            })?;
            superblock.set_intent(&IntentMap::new(cache.set_uuid(), backing.device_sectors));
            Ok(superblock)
        };
        all.map(superblock).collect()
    }
}

impl Layout {
    /// What the set has.
    pub fn filled(&self) -> &Filled {
        &self.filled
    }

    /// Its extents, in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = Key> {
        let first = self.superblock.geometry().sector_of(self.kept.start);
        let block = self.block_sectors;
        self.extents.iter().map(move |extent| {
            let piece = extent.piece;
            let end = DATA_OFFSET + piece.end() * block;
            let place = Pointer::new(first + extent.place() * block, Generation::default());
            let key = Key::new(piece.device() as u32, end, piece.count() * block);
            key.with_dirty(extent.is_dirty()).at(place)
        })
    }

    /// Writes the metadata of the cache device and of each backing device.
    ///
    /// # Errors
    /// A sink refused.
    ///
    /// # Panics
    /// There is not one sink for each backing device.
    pub fn write<W: WriteSectors>(
        &self,
        mut cache: W,
        backings: &mut [W],
    ) -> Result<(), BuildError<W::Error>> {
        assert_eq!(backings.len(), self.backings.len(), "a sink for each backing device");
        for (sink, superblock) in backings.iter_mut().zip(&self.backings) {
            sink.write(SUPERBLOCK_SECTOR, &superblock.encode()).map_err(BuildError::Write)?;
        }
        let builder = Builder::new(&self.superblock, self.seq, &mut cache);
        let mut builder = builder.keep_for_data(self.kept.clone())?;
        for key in self.keys() {
            builder.add_at(key)?;
        }
        let volumes: Vec<UuidEntry> = self.backings.iter().map(|it| it.as_volume(0)).collect();
        let superblock = builder.finish(&volumes)?;
        cache.write(SUPERBLOCK_SECTOR, &superblock.encode()).map_err(BuildError::Write)
    }
}

#[cfg(test)]
mod tests;
