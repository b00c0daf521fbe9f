//! The dm-writecache on-disk format, version 1, the same for SSD and PMEM mode.
//!
//! ```text
//! byte 0     superblock, 64 bytes
//! byte 64    slot table: one 16-byte entry per slot
//! byte D     slot data: slot i at D + i * block_size    (D: slot table end, rounded up to a block)
//! ```
//!
//! All offsets count from the start of the *area*: the cache device from its `start_sector` on.
//! Bytes are validated in steps: raw bytes become a [`Superblock`] (its own fields are legal), the
//! superblock and the size of the area become a [`Geometry`] (all its slots fit), and only a
//! geometry returns offsets. There are no checksums in this format. What cannot be validated here
//! (an entry's sector, a commit number) is checked by [`check`].
//!
//! Recovery, commit order and writeback are policy and are deliberately absent. The byte tables are
//! in `docs/formats/writecache.md`; a test compares that document with [`SUPERBLOCK_FIELDS`] and
//! [`ENTRY_FIELDS`].

pub mod build;
pub mod check;
mod entry;
mod error;
mod geometry;
mod superblock;

pub use crate::field::Field;
pub use entry::{ENTRY_BYTES, ENTRY_FIELDS, Entry, EntryState, NO_SECTOR, Seq};
pub use error::Error;
pub use geometry::{
    BlockSize, Geometry, MAX_BLOCK_SIZE, METADATA_REGION_BYTES, MIN_BLOCK_SIZE, N_BLOCKS_END,
};
pub use superblock::{
    MAGIC, Opening, SUPERBLOCK_BYTES, SUPERBLOCK_FIELDS, SUPERBLOCK_WRITE_BYTES, Superblock,
    VERSION,
};

/// Bytes in a sector; every sector number of this format counts these.
pub const SECTOR_BYTES: u64 = 512;
