//! The dm-snapshot persistent exception store, version 1: the contents of a COW device.
//!
//! ```text
//! chunk 0               header, 16 bytes, zeros to the end of the chunk
//! chunk 1 + a * (E+1)   area a: E records of 16 bytes      (E: records that fit in a chunk)
//! every other chunk     data
//! ```
//!
//! A record says that chunk `old` of the origin was kept as chunk `new` of the COW device. The
//! records form one list: the first whose `new` is zero ends it, and after a full area it continues
//! in the next one. Bytes are validated in steps: raw bytes become a [`Header`], its chunk size and
//! the size of the device become a [`Layout`], and only a layout returns chunk numbers and offsets.
//! There are no checksums in this format. Whether the records make sense is checked by [`check`];
//! [`repair`] decides which of them can be saved.
//!
//! When to copy, commit and merge is policy and is deliberately absent. The byte tables are in
//! `docs/formats/snapshot.md`; a test compares that document with [`HEADER_FIELDS`] and
//! [`RECORD_FIELDS`].

pub mod check;
mod chunk;
mod error;
mod fault;
mod header;
mod layout;
mod record;
pub mod repair;
mod walk;

pub use crate::field::Field;
pub use chunk::{
    CHUNK_SECTORS_MAX, COW_CHUNKS_END, ChunkSize, CowChunk, DEFAULT_CHUNK_SECTORS, OriginChunk,
};
pub use error::Error;
pub use header::{HEADER_BYTES, HEADER_FIELDS, Header, MAGIC, Opening, VERSION};
pub use layout::Layout;
pub use record::{RECORD_BYTES, RECORD_FIELDS, Record, records};
pub use walk::{Slot, Walk};

/// Bytes in a sector.
pub const SECTOR_BYTES: u64 = 512;
