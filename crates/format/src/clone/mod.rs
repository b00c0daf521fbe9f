//! The metadata of a dm-clone device, version 1: one bit for each region.
//!
//! ```text
//! block 0      superblock; the last block written by a commit
//! elsewhere    nodes, bitmaps, an index block, array blocks: found only through the superblock
//!
//! superblock --> bitset: a tree of array blocks, each with 509 words of 64 bits
//!            --> space map of the metadata, as in a thin pool
//! ```
//!
//! The blocks below the superblock are those of [`crate::thin`], but for [`ArrayBlock`]. Bytes are
//! validated in steps, as there. When to copy and commit is policy and is deliberately absent. The
//! byte tables are in `docs/formats/clone.md`; a test compares that document with the codec's
//! fields.

mod array;
mod error;
mod read;
mod superblock;

pub use array::{ARRAY_FIELDS, ARRAY_HEADER_BYTES, ArrayBlock, WORDS_MAX, encode_array};
pub use error::Error;
pub use read::{Bitset, Fault, read};
pub use superblock::{
    MAGIC, Opening, REGION_SECTORS_MAX, REGION_SECTORS_MIN, RegionSize, SUPERBLOCK_FIELDS,
    Superblock, VERSION,
};
