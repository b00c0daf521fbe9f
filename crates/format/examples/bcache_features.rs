//! Raises the superblock of a bcache device that is not yet in use to the version with feature
//! bits, as bcache-tools from 1.1 on write it: of a cache 3 to 5, with its bucket size as a
//! logarithm (the feature `large_bucket`); of a backing device 1 or 4 to 6.
//!
//!     cargo run --release -p cairn-format --example bcache_features DEVICE...
//!
//! The tests with the real kernel need such devices with buckets of every size. `cairn format`
//! makes the version that a size needs.

#![allow(clippy::disallowed_types, reason = "it prepares images, as the tools do")]

use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::unix::fs::FileExt;

use cairn_format::bcache::{SECTOR_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_SECTOR, Superblock, crc64};

/// Where the fields lie, by `docs/formats/bcache.md`.
const VERSION: usize = 16;
const FEATURE_INCOMPAT: usize = 128;
const DATA_OFFSET: usize = 184;
const BUCKET_SIZE: usize = 194;
/// Behind what the checksum covers, while there is no journal.
const CHECKED_END: usize = 208;
/// The feature `large_bucket`.
const LARGE_BUCKET: u64 = 2;

fn main() -> Result<()> {
    for path in std::env::args().skip(1) {
        raise(&OpenOptions::new().read(true).write(true).open(path)?)?;
    }
    Ok(())
}

fn raise(device: &File) -> Result<()> {
    let at = SUPERBLOCK_SECTOR * SECTOR_BYTES as u64;
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_exact_at(&mut bytes, at)?;
    let before = Superblock::decode(&bytes).map_err(Error::other)?;
    match &before {
        Superblock::Cache(cache) => {
            if cache.is_in_use() {
                return Err(Error::other("found a cache in use, expected a fresh one"));
            }
            let buckets = cache.geometry().bucket_sectors();
            put(&mut bytes, VERSION, 5);
            put(&mut bytes, FEATURE_INCOMPAT, LARGE_BUCKET);
            let logarithm = buckets.ilog2() as u16;
            bytes[BUCKET_SIZE..][..2].copy_from_slice(&logarithm.to_le_bytes());
        }
        Superblock::Backing(backing) => {
            put(&mut bytes, VERSION, 6);
            put(&mut bytes, DATA_OFFSET, backing.data_offset());
        }
    }
    let checksum = crc64(&bytes[8..CHECKED_END]);
    put(&mut bytes, 0, checksum);
    let after = Superblock::decode(&bytes).map_err(Error::other)?;
    let is_same = match (&before, &after) {
        (Superblock::Cache(before), Superblock::Cache(after)) => {
            before.geometry().bucket_sectors() == after.geometry().bucket_sectors()
        }
        (Superblock::Backing(before), Superblock::Backing(after)) => {
            before.data_offset() == after.data_offset()
        }
        _ => false,
    };
    if !is_same {
        return Err(Error::other(format!("found {after:?}, expected the sizes of {before:?}")));
    }
    device.write_all_at(&bytes, at)
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..][..8].copy_from_slice(&value.to_le_bytes());
}
