//! What can be wrong with the metadata of a clone, in one line: block, field, found, expected. The
//! caller prints the device first.

use super::{MAGIC, REGION_SECTORS_MAX, REGION_SECTORS_MIN, VERSION, WORDS_MAX};
use crate::thin::{self, MetadataBlock};

/// A fault of one block, or of a number in a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A fault that any block may have.
    #[error(transparent)]
    Block(#[from] thin::Error),
    /// This is not the metadata of a clone.
    #[error("superblock magic: found {found:#x}, expected {MAGIC:#x}")]
    WrongMagic {
        /// Magic on the device.
        found: u64,
    },
    /// A version that cairn does not know.
    #[error("superblock version: found {found}, expected {VERSION}")]
    WrongVersion {
        /// Version on the device.
        found: u32,
    },
    /// A region size, in the superblock or a table, that no clone may have.
    #[error(
        "region_size: found {found} sectors, expected a power of two from {REGION_SECTORS_MIN} to \
         {REGION_SECTORS_MAX}"
    )]
    BadRegionSize {
        /// Size in sectors.
        found: u64,
    },
    /// A clone without a sector, or with more than fit.
    #[error("superblock target_size: found {found} sectors, expected 1 to {most}")]
    BadTargetSize {
        /// Size in sectors.
        found: u64,
        /// Most that have a byte offset.
        most: u64,
    },
    /// An array block of values that are no words.
    #[error("block {at}, array value_size: found {found}, expected 8")]
    BadValueSize {
        /// Where it lies.
        at: MetadataBlock,
        /// Size of a value in bytes.
        found: u32,
    },
    /// An array block with another capacity.
    #[error("block {at}, array max_entries: found {found}, expected {}", WORDS_MAX)]
    BadMaxEntries {
        /// Where it lies.
        at: MetadataBlock,
        /// Words that it says there is room for.
        found: u32,
    },
    /// An array block with more or fewer words than the clone needs there.
    #[error("block {at}, array nr_entries: found {found}, expected {expected}")]
    BadEntryCount {
        /// Where it lies.
        at: MetadataBlock,
        /// Words that it says it has.
        found: u32,
        /// What this array block should have.
        expected: u32,
    },
}
