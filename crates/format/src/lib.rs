//! Bytes to structs and back: the on-disk formats.
//!
//! Owns every byte layout that cairn reads or writes, each written once, with sizes and offsets
//! asserted at compile time. Promises that no input, however hostile, makes a decoder panic,
//! overflow or allocate in proportion to a number read from that input. Must never do I/O, read a
//! clock or decide policy: it turns `&[u8]` into validated values and values into bytes, and
//! nothing else.
//!
//! - [`writecache`]: the dm-writecache cache device, its geometry and its checker
//! - [`snapshot`]: the exception store of dm-snapshot, its layout, its checker and its repair
//! - [`thin`]: the metadata of a thin pool, its checker, its XML and its repair
//! - [`clone`]: the metadata of a clone: its bitset and its checker
//! - [`qcow2`]: the header and tables of an image, for reading
//! - [`probe`]: what a device holds, by the signatures in its first and last bytes

pub mod bcache;
pub mod clone;
mod field;
pub mod probe;
pub mod qcow2;
mod severity;
pub mod snapshot;
pub mod thin;
mod write_sectors;
pub mod writecache;

pub use field::Field;
pub use severity::Severity;
pub use write_sectors::WriteSectors;
