//! qcow2 images, versions 2 and 3, for reading, checking and writing: the header and the two levels
//! of tables, and what a check compares with them.
//!
//! ```text
//! header --> L1 table --> L2 tables --> data clusters, compressed clusters, zeros, or nothing
//!        --> name and format of the backing image, which shows where there is nothing
//! ```
//!
//! A reader parses the [`Header`] out of the image's first bytes. For a guest offset it asks the
//! header where the entry of the L1 table is, what table that entry names, where the entry of the
//! L2 table is, and what is there ([`Run`]). It reads these entries itself: nothing here keeps a
//! table.
//!
//! A reader of the active state needs no refcounts, internal snapshots and bitmaps. These are in
//! [`Layout`], for the [`check()`]. The layout is described in `docs/formats/qcow2.md`; a test
//! compares that document with [`HEADER_FIELDS`].

pub mod check;
mod error;
mod header;
mod layout;
mod refcounts;
mod table;
#[cfg(test)]
mod tests;
pub mod write;

pub use crate::severity::Severity;
pub use check::check;
pub use error::Error;
pub use header::{
    Backing, CLUSTER_BITS_MAX, CLUSTER_BITS_MIN, Compression, HEADER_BYTES, HEADER_FIELDS, Header,
    L1_ENTRIES_MAX, MAGIC, PROLOGUE_BYTES, Prologue,
};
pub use layout::{Bitmaps, CLUSTERS_MAX, Layout};
pub use refcounts::{per_block, refcount, set_refcount};
pub use table::{Place, Run};
