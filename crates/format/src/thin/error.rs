//! What can be wrong with one block of thin metadata, in one line: block, field, found, expected.
//!
//! The caller knows the device, and the tree and keys that lead to the block, and prints them
//! first.

use core::fmt;

use super::{
    BLOCK_BYTES, DATA_BLOCK_SECTORS_MAX, DATA_BLOCK_SECTORS_STEP, DeviceId, Kind, MAGIC,
    MetadataBlock,
};

/// A set of feature flags of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Feature {
    /// A program that does not know the feature must not write the metadata.
    CompatRo,
    /// A program that does not know the feature must not use the metadata at all.
    Incompat,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Feature::CompatRo => "compat_ro_flags",
            Feature::Incompat => "incompat_flags",
        })
    }
}

/// A fault of one block, or of a number that will be written to one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not the size of a block.
    #[error("block: found {found} bytes, expected {}", BLOCK_BYTES)]
    WrongLength {
        /// Bytes given.
        found: usize,
    },
    /// The checksum is wrong, or the block is of another kind.
    #[error(
        "block {at}, {} checksum: found {found:#010x}, expected {expected:#010x}{}",
        kind.name(),
        looks_like.map_or(String::new(), |what| format!(" (it looks like: {what})"))
    )]
    WrongChecksum {
        /// The block's place.
        at: MetadataBlock,
        /// The kind it should be.
        kind: Kind,
        /// The stored checksum.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
        /// What the bytes look like instead.
        looks_like: Option<&'static str>,
    },
    /// The block contains another number: a misdirected write or a wrong pointer.
    #[error("block {at}, {} blocknr: found {found}, expected {at}", kind.name())]
    WrongBlockNumber {
        /// Where the block lies.
        at: MetadataBlock,
        /// What it is.
        kind: Kind,
        /// The number that it contains.
        found: MetadataBlock,
    },
    /// This is not thin metadata.
    #[error("superblock magic: found {found}, expected {}", MAGIC)]
    WrongMagic {
        /// Magic on the device.
        found: u64,
    },
    /// The metadata needs a feature that cairn does not know.
    #[error("superblock {feature}: found {found:#x}, expected none of those bits")]
    UnknownFeature {
        /// Which flags.
        feature: Feature,
        /// The unknown bits.
        found: u32,
    },
    /// Metadata blocks of another size.
    #[error("superblock metadata_block_size: found {found} sectors, expected 8")]
    BadMetadataBlockSize {
        /// Size in sectors.
        found: u32,
    },
    /// A data block size, in the superblock or a table, that no pool may have.
    #[error(
        "data block size: found {found} sectors, expected a multiple of {} up to {}",
        DATA_BLOCK_SECTORS_STEP,
        DATA_BLOCK_SECTORS_MAX
    )]
    BadDataBlockSize {
        /// Size in sectors.
        found: u32,
    },
    /// A device id beyond 24 bits.
    #[error("device id: found {found}, expected at most {}", DeviceId::MAX)]
    BadDeviceId {
        /// The id.
        found: u64,
    },
    /// A node that is neither internal nor a leaf.
    #[error("block {at}, node flags: found {found:#x}, expected 1 (internal) or 2 (leaf)")]
    BadNodeFlags {
        /// Where the node lies.
        at: MetadataBlock,
        /// The flags.
        found: u32,
    },
    /// A node whose values have another size than its tree's.
    #[error("block {at}, node value_size: found {found}, expected {expected}")]
    BadValueSize {
        /// Where the node lies.
        at: MetadataBlock,
        /// Size of a value in bytes.
        found: u32,
        /// What this node's values should have.
        expected: u32,
    },
    /// A node with another capacity than its value size gives.
    #[error("block {at}, node max_entries: found {found}, expected {expected}")]
    BadMaxEntries {
        /// Where the node lies.
        at: MetadataBlock,
        /// Entries that it says there is room for.
        found: u32,
        /// What there is room for.
        expected: u32,
    },
    /// More entries than there is room for, or an internal node without any.
    #[error("block {at}, node nr_entries: found {found}, expected {least} to {most}")]
    BadEntryCount {
        /// Where the node lies.
        at: MetadataBlock,
        /// Entries that it says it has.
        found: u32,
        /// Fewest that it may have.
        least: u32,
        /// Most that it may have.
        most: u32,
    },
    /// Keys that do not increase.
    #[error("block {at}, node keys[{index}]: found {found}, expected more than {before}")]
    KeysOutOfOrder {
        /// Where the node lies.
        at: MetadataBlock,
        /// Place in the node.
        index: usize,
        /// The key there.
        found: u64,
        /// The key before it.
        before: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::{Error, Feature};
    use crate::thin::{Kind, MetadataBlock};

    #[test]
    fn messages_name_block_field_found_and_expected() {
        let at = MetadataBlock(7);
        let said = [
            Error::WrongBlockNumber { at, kind: Kind::Bitmap, found: MetadataBlock(8) },
            Error::UnknownFeature { feature: Feature::Incompat, found: 4 },
            Error::BadDataBlockSize { found: 100 },
            Error::BadEntryCount { at, found: 300, least: 0, most: 252 },
        ]
        .map(|error| error.to_string());
        let expected = [
            "block 7, bitmap blocknr: found 8, expected 7",
            "superblock incompat_flags: found 0x4, expected none of those bits",
            "data block size: found 100 sectors, expected a multiple of 128 up to 2097152",
            "block 7, node nr_entries: found 300, expected 0 to 252",
        ];
        assert_eq!(said, expected);
    }
}
