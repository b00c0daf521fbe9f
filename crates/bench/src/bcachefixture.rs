//! Sets of bcache for benchmarks: a cache that is built of extents, and its backing device.

use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind, Disk, Io, IoError, Sector, SectorCount, SectorRange};
use cairn_format::bcache::build::{Builder, WriteSectors};
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, IntentMap, Key, NewBacking,
    NewCache, Replacement, SUPERBLOCK_SECTOR, Uuid,
};
use cairn_outcome::failure::Outcome;

use super::fixture::Fixture;

/// Sectors of a key.
pub const KEY: u64 = 8;
/// Sectors of a bucket.
const BUCKET: u64 = 1024;
/// Sectors of the backing device before its data.
pub const BACKING_FIRST: u64 = 16;

/// Sectors of a cache with room for so many extents.
pub fn sectors_for(extents: u64) -> u64 {
    (extents * KEY / BUCKET * 9 / 8 + 1024) * BUCKET
}

/// Makes the cache of a set: data was never written, and is zeros.
///
/// # Errors
/// The device failed.
pub fn make_cache(fixture: &Fixture, disk: &Arc<dyn Disk>, extents: &[Key]) -> Outcome<()> {
    let new = NewCache {
        uuid: Uuid([1; 16]),
        set_uuid: Uuid([2; 16]),
        block_sectors: 8,
        bucket_sectors: BUCKET,
        device_sectors: disk.sectors().0,
        replacement: Replacement::Lru,
        discard: false,
    };
    let failed = |what: String| ConfigError::new(ConfigKind::System, "bench: cache", what);
    let fresh = CacheSuperblock::fresh(&new).map_err(|error| failed(error.to_string()))?;
    let mut pieces = Writes { fixture, disk };
    let mut builder = Builder::new(&fresh, 1, &mut pieces);
    for key in extents {
        builder.add(*key).map_err(|error| failed(error.to_string()))?;
    }
    let volume = UuidEntry { uuid: Uuid([3; 16]), ..UuidEntry::default() };
    let superblock = builder.finish(&[volume]).map_err(|error| failed(error.to_string()))?;
    let written = pieces.write(SUPERBLOCK_SECTOR, &superblock.encode());
    written.map_err(|error| failed(error.to_string()))
}

/// Gives the backing device its superblock: it is dirty.
///
/// # Errors
/// The device failed.
pub fn make_backing(fixture: &Fixture, disk: &Arc<dyn Disk>) -> Outcome<()> {
    let new = NewBacking {
        uuid: Uuid([3; 16]),
        set_uuid: Uuid([2; 16]),
        block_sectors: 8,
        data_offset: BACKING_FIRST,
        mode: CacheMode::Writeback,
        state: BackingState::Dirty,
        label: [0; 32],
    };
    let mut superblock = BackingSuperblock::fresh(&new).expect("the sizes of a bench are legal");
    // Clean extents count, as if a session of cairn had cached them.
    superblock.set_intent(&IntentMap::new(new.set_uuid, disk.sectors().0));
    let written = Writes { fixture, disk }.write(SUPERBLOCK_SECTOR, &superblock.encode());
    written.map_err(|error| ConfigError::new(ConfigKind::System, "backing", error.to_string()))
}

/// Writes to a disk of the fixture.
struct Writes<'a> {
    fixture: &'a Fixture,
    disk: &'a Arc<dyn Disk>,
}

impl WriteSectors for Writes<'_> {
    type Error = IoError;

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), IoError> {
        let (disk, bytes) = (self.disk.clone(), bytes.to_vec());
        self.fixture.on(move |env| async move {
            let range = SectorRange::new(Sector(sector), SectorCount::of_bytes(bytes.len() as u64));
            let segs = env.segs(range.count);
            segs.copy_in(0, &bytes);
            env.io(&disk, Io::write(range, segs)).await
        })
    }
}
