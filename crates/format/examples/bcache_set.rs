//! Fills a set that `cairn format bcache` made with extents, as a test wants it: some dirty, some
//! clean, at random places.
//!
//!     cargo run --release -p cairn-format --example bcache_set CACHE BACKING EXPECTED SEED
//!
//! The cache is built anew, the backing device becomes dirty. EXPECTED becomes a file with what the
//! volume then holds.

#![allow(clippy::disallowed_types, reason = "it prepares images, as the tools do")]

use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::unix::fs::FileExt;

use cairn_format::bcache::build::{Builder, WriteSectors};
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheSuperblock, Key, NewCache, SECTOR_BYTES,
    SUPERBLOCK_BYTES, SUPERBLOCK_SECTOR, Superblock,
};

/// The most blocks of an extent, and between two of them.
const BLOCKS_MAX: u64 = 40;

struct Device<'a>(&'a File);

impl WriteSectors for Device<'_> {
    type Error = Error;

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_all_at(bytes, sector * SECTOR_BYTES as u64)
    }
}

/// Random numbers, the same for each seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.next().to_le_bytes()[..piece.len()]);
        }
    }
}

fn superblock(device: &File) -> Result<Superblock> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_exact_at(&mut bytes, SUPERBLOCK_SECTOR * SECTOR_BYTES as u64)?;
    Superblock::decode(&bytes).map_err(Error::other)
}

/// The superblock of a cache with the identifiers and sizes of another, not yet in use.
fn unused(of: &CacheSuperblock) -> Result<CacheSuperblock> {
    let geometry = of.geometry();
    let new = NewCache {
        uuid: of.uuid(),
        set_uuid: of.set_uuid(),
        block_sectors: geometry.block_sectors() as u16,
        bucket_sectors: geometry.bucket_sectors(),
        device_sectors: geometry.sectors(),
        replacement: of.replacement(),
        discard: of.discards(),
    };
    CacheSuperblock::fresh(&new).map_err(Error::other)
}

/// Writes extents to a cache, and what they hold to `content`.
fn fill(
    cache: &File,
    of: &CacheSuperblock,
    backing: &BackingSuperblock,
    content: &mut [u8],
    random: &mut Random,
) -> Result<CacheSuperblock> {
    let mut builder = Builder::new(&unused(of)?, random.next(), Device(cache));
    let block = u64::from(of.block_sectors());
    let first = backing.data_offset();
    let end = (content.len() / SECTOR_BYTES) as u64 / block * block;
    let mut at = 0;
    loop {
        at += random.next() % BLOCKS_MAX * block;
        let sectors = (random.next() % BLOCKS_MAX + 1) * block;
        if at + sectors > end {
            break;
        }
        let is_dirty = random.next().is_multiple_of(2);
        let held = &mut content[at as usize * SECTOR_BYTES..][..sectors as usize * SECTOR_BYTES];
        if is_dirty {
            random.fill(held);
        }
        at += sectors;
        let extent = Key::new(0, first + at, sectors).with_dirty(is_dirty);
        let mut rest = &*held;
        for piece in builder.add(extent).map_err(|error| Error::other(format!("{error:?}")))? {
            let sector = piece.cached_at().expect("a builder gives each a place").sector();
            let (now, behind) = rest.split_at(piece.sectors() as usize * SECTOR_BYTES);
            Device(cache).write(sector, now)?;
            rest = behind;
        }
    }
    let volume = UuidEntry { uuid: backing.uuid(), ..UuidEntry::default() };
    builder.finish(&[volume]).map_err(|error| Error::other(format!("{error:?}")))
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [cache, backing, expected, seed] = &arguments[..] else {
        return Err(Error::other("expected CACHE BACKING EXPECTED SEED"));
    };
    let open = |path| OpenOptions::new().read(true).write(true).open(path);
    let (cache, backing) = (open(cache)?, open(backing)?);
    let (Superblock::Cache(of_cache), Superblock::Backing(mut of_backing)) =
        (superblock(&cache)?, superblock(&backing)?)
    else {
        return Err(Error::other("found the devices in another order, expected CACHE BACKING"));
    };
    let begin = of_backing.data_offset() * SECTOR_BYTES as u64;
    let mut content = vec![0; (backing.metadata()?.len() - begin) as usize];
    backing.read_exact_at(&mut content, begin)?;
    let mut random = Random(seed.parse::<u64>().map_err(Error::other)? | 1 << 40);
    let filled = fill(&cache, &of_cache, &of_backing, &mut content, &mut random)?;
    Device(&cache).write(SUPERBLOCK_SECTOR, &filled.encode())?;
    of_backing.set_state(BackingState::Dirty);
    Device(&backing).write(SUPERBLOCK_SECTOR, &of_backing.encode())?;
    std::fs::write(expected, content)
}
