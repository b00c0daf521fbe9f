//! The metadata of a thin pool: copy-on-write B-trees, two space maps, transactions.
//!
//! ```text
//!  data path, any reactor                         the committer, one at a time
//!      |  read_leaves   take, put_back, release        |  apply, create_*, delete_*, ...
//!      v                     v                         v
//!  +-- Store ---------------------------+      +-- Working ---------------------------+
//!  | last durable roots (generation)    |<-----| Transaction: counts of both maps,    |
//!  | cache of clean nodes               | com- |   fresh blocks, what was let go      |
//!  | DataAllocator: a bit per data block| mit  | Editor: changes a tree in bulk       |
//!  +------------------------------------+      +--------------------------------------+
//!      |                                               |
//!      v   large sorted requests                       v
//!  ---------------------- the metadata device -----------------------------------------
//! ```
//!
//! The data path keeps the newest mappings in memory and hands them to a commit in batches. So
//! there are two faces. A [`Store`] is shared by every reactor: it reads the last *durable* state,
//! also while a commit runs, and hands out data blocks. A [`Working`] is the right to change the
//! metadata, for one owner at a time: it changes trees and counts in memory, and makes all of it
//! durable in one step. Nothing that readers see is ever changed in place, and nobody but the
//! committer needs a lock.
//!
//! # Invariants
//! - P1. Whatever the durable superblock leads to is never overwritten (T1, T2 of `transaction`).
//! - P2. There is one writer: whoever has the [`Working`].
//! - P3. A metadata block's count is the number of pointers to it from distinct blocks, a data
//!   block's the number of mappings to it from distinct leaves. At every commit, exactly.
//! - P4. A data block is handed out only if its count is zero in the working, the committing and
//!   the last durable map (A1 of `allocator`).
//! - P5. A reader sees one durable state from root to leaf (R1 of `read`).
//! - P6. Nothing read is trusted: kind, checksum, own number, keys within the parent's, block
//!   numbers within their map, counts above zero for what is in use, depth. What fails is an error
//!   with the path to it; nothing is written after it but through an abort.
//!
//! # What a crash leaves
//! The old state, whole, until the superblock's sector is durable; then the new one, whole. The
//! steps are in `commit`. There is no journal, and recovery is opening.

mod allocator;
mod cache;
mod canary;
mod commit;
mod compare;
mod cost;
mod counts;
mod disk;
mod edit;
mod error;
#[cfg(all(test, shuttle))]
mod interleavings;
mod load;
#[cfg(test)]
mod model;
mod nodes;
mod read;
mod store;
#[cfg(test)]
mod tests;
mod transaction;
mod working;

pub use allocator::{DataAllocator, DataRun};
pub use compare::Stretch;
pub use cost::Change;
pub use error::{Error, Path, Place};
pub use read::Leaf;
pub use store::{Device, MetadataUse, Options, Store};
pub use working::Working;
