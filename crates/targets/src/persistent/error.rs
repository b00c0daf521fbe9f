//! Errors of the store, one line each: path, field, found, expected.
//!
//! The path names the damaged place: device, tree, block, key range. The caller adds the metadata
//! device's name in front.

use std::fmt;
use std::ops::Range;

use cairn_block::IoError;
use cairn_format::thin::{DeviceId, MetadataBlock};

/// A tree or table of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataPart {
    /// Metadata block 0, or the held copy of it.
    Superblock,
    /// Device id to root of the device's mappings.
    TopLevel,
    /// The mappings of a device.
    Mappings(DeviceId),
    /// The mappings of an unknown device: deletion does not know which.
    SomeMappings,
    /// Device id to details.
    Details,
    /// Bitmap number to bitmap of the data space map.
    DataIndex,
    /// A bitmap of the data space map.
    DataBitmap,
    /// The reference counts of 3 and more of the data space map.
    DataCounts,
    /// The index block of the metadata space map.
    MetadataIndex,
    /// A bitmap of the metadata space map.
    MetadataBitmap,
    /// The reference counts of 3 and more of the metadata space map.
    MetadataCounts,
    /// The tree of a clone's bitset.
    Bitset,
    /// An array block of a clone's bitset.
    BitsetArray,
}

impl fmt::Display for MetadataPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetadataPart::Superblock => f.write_str("superblock"),
            MetadataPart::TopLevel => f.write_str("top-level tree"),
            MetadataPart::Mappings(device) => write!(f, "device {device}, mapping tree"),
            MetadataPart::SomeMappings => f.write_str("mapping tree"),
            MetadataPart::Details => f.write_str("details tree"),
            MetadataPart::DataIndex => f.write_str("data space map, index tree"),
            MetadataPart::DataBitmap => f.write_str("data space map, bitmap"),
            MetadataPart::DataCounts => f.write_str("data space map, count tree"),
            MetadataPart::MetadataIndex => f.write_str("metadata space map, index block"),
            MetadataPart::MetadataBitmap => f.write_str("metadata space map, bitmap"),
            MetadataPart::MetadataCounts => f.write_str("metadata space map, count tree"),
            MetadataPart::Bitset => f.write_str("bitset"),
            MetadataPart::BitsetArray => f.write_str("bitset, array block"),
        }
    }
}

/// Where in the metadata something was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Which tree or table.
    pub place: MetadataPart,
    /// Which metadata block.
    pub block: MetadataBlock,
    /// The keys that the block may hold; all keys if it is not part of a tree.
    pub keys: Range<u64>,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, block {}", self.place, self.block)?;
        match self.keys {
            Range { start: 0, end: u64::MAX } => Ok(()),
            Range { start, end: u64::MAX } => write!(f, ", keys {start}.."),
            Range { start, end } => write!(f, ", keys {start}..{end}"),
        }
    }
}

/// Why the store refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The metadata device failed.
    #[error("metadata {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the device said.
        source: IoError,
    },
    /// The metadata is damaged.
    #[error("{path}: {detail}")]
    Damaged {
        /// Where.
        path: Box<Path>,
        /// Field, found, expected.
        detail: String,
    },
    /// The device does not fit what is asked of it.
    #[error("{0}")]
    Geometry(String),
    /// The superblock asks for something that is not known here.
    #[error("{0}")]
    Unsupported(String),
    /// No metadata block is left. Reservations are there to prevent it.
    #[error("metadata: no free block is left")]
    NoMetadataSpace,
    /// No such thin device.
    #[error("device {0}: found none, expected a thin device of this id")]
    NoDevice(DeviceId),
    /// There is such a thin device already.
    #[error("device {0}: found one of this id already")]
    DeviceExists(DeviceId),
    /// The time counter is as high as a mapping can hold.
    #[error("time: found {0:#x}, expected less: mappings have 24 bits for it")]
    TimeExhausted(u32),
    /// There is a metadata snapshot already.
    #[error("metadata snapshot: found one in block {0}, expected none")]
    Held(MetadataBlock),
    /// There is no metadata snapshot.
    #[error("metadata snapshot: found none")]
    NotHeld,
    /// Changes wait for a commit that has to come first.
    #[error("metadata: found uncommitted changes, expected a commit before")]
    Uncommitted,
    /// An earlier error left the transaction half done: only an abort helps.
    #[error("metadata: an earlier error ended this transaction, which has to be aborted")]
    Broken,
    /// The last write of the superblock failed.
    #[error("superblock: the last write of it failed; a crash may leave the one before")]
    Doubtful,
    /// It was opened to be read only.
    #[error("metadata: found it opened to be read only, expected it opened for changes")]
    ReadOnly,
    /// The superblock is marked: the metadata has to be checked before it is changed.
    #[error("superblock flags: found needs_check, expected checked metadata")]
    NeedsCheck,
}

impl Error {
    /// A damaged place.
    pub(super) fn damaged(path: Path, detail: impl Into<String>) -> Error {
        Error::Damaged { path: Box::new(path), detail: detail.into() }
    }
}
