//! The metadata of a dm-thin pool, version 2: the contents of a metadata device.
//!
//! ```text
//! block 0      superblock; the last block written by a commit
//! elsewhere    B-tree nodes, bitmaps, one index block: found only through the superblock
//!
//! superblock --> top-level tree --> one mapping tree per device --> (data block, time)
//!            --> details tree   --> size and times of each device
//!            --> two space maps, each: index --> bitmaps; tree of counts of 3 and more
//!            --> held superblock: the roots of a metadata snapshot
//! ```
//!
//! A metadata device is an array of blocks of [`BLOCK_BYTES`]. Every block contains its own number
//! and a checksum ([`mod@block`]). Bytes are validated in steps: a block is verified and becomes a
//! [`Superblock`], a [`Node`], a [`Bitmap`] or an [`IndexBlock`]; its values become [`Mapping`],
//! [`DeviceDetails`], [`IndexEntry`], [`RefCount`] or a child's number. [`NodeMut`] and
//! [`BitmapMut`] change blocks in memory and decide nothing.
//!
//! Above the codec, each reading through [`blocks::Blocks`] in the order of blocks on disk:
//! - [`check`]: [walks](walk) every tree, counts every reference, compares both space maps
//! - [`stream`]: the contents, device by device, from the [`leaves`] of one tree after another; as
//!   [`xml`], or by data block as [`mod@rmap`]
//! - [`build`]: new metadata from a stream; [`repair`]: from damaged metadata
//!
//! When to copy, allocate and commit is policy and is deliberately absent. The byte tables are in
//! `docs/formats/thin.md`; a test compares that document with the codec's fields.

pub mod block;
pub mod blocks;
pub mod build;
pub mod check;
mod counts;
mod error;
pub mod leaves;
mod node;
mod node_mut;
pub mod repair;
pub mod rmap;
mod space_map;
pub mod stream;
mod superblock;
mod units;
mod value;
pub mod walk;
pub mod xml;

pub use crate::field::Field;
pub use block::{BLOCK_BYTES, Block, Kind};
pub use error::{Error, Feature};
pub use node::{NODE_FIELDS, NODE_HEADER_BYTES, Node, NodeKind, capacity};
pub use node_mut::NodeMut;
pub(crate) use space_map::RawSpaceMapRoot;
pub use space_map::{
    BITMAP_ENTRIES, BITMAPS_MAX, Bitmap, BitmapMut, COUNT_IN_TREE, INDEX_ENTRY_BYTES,
    INDEX_ENTRY_FIELDS, IndexBlock, IndexBlockMut, IndexEntry, METADATA_BLOCKS_MAX,
    SPACE_MAP_ROOT_FIELDS, SpaceMapRoot, bitmap_of,
};
pub use superblock::{
    FLAG_NEEDS_CHECK, MAGIC, Opening, SUPERBLOCK_FIELDS, Superblock, TIME_MAX, VERSION,
};
pub use units::{
    DATA_BLOCK_SECTORS_MAX, DATA_BLOCK_SECTORS_STEP, DataBlock, DataBlockSize, DeviceId,
    MetadataBlock, VirtualBlock,
};
pub use value::{
    DEVICE_DETAILS_FIELDS, DeviceDetails, MAPPING_TIME_BITS, Mapping, RefCount, Value,
};
