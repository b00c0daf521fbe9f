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
//! there are two types. A [`Store`] is shared by every reactor: it reads the last *durable* state,
//! also while a commit runs, and hands out data blocks. A [`Working`] is the right to change the
//! metadata, and has one owner at a time: it changes trees and counts in memory, and makes all
//! changes durable in one step. Nothing that readers see is ever changed in place, and only the
//! committer needs a lock.
//!
//! The metadata of a clone is the same without data blocks and devices: a bitset, and a map of the
//! metadata. [`BitStore`] is its only owner, reader and committer.
//!
//! # Invariants
//! - P1. No block that the durable superblock leads to is ever overwritten (T1, T2 of
//!   `transaction`).
//! - P2. There is one writer: the owner of the [`Working`].
//! - P3. A metadata block's count is the number of pointers to it from distinct blocks, a data
//!   block's the number of mappings to it from distinct leaves. At every commit, exactly.
//! - P4. A data block is handed out only if its count is zero in the working, the committing and
//!   the last durable map (A1 of `allocator`).
//! - P5. A reader sees one durable state from root to leaf (R1 of `read`).
//! - P6. Nothing read is trusted. Checked are: kind, checksum, own number, keys within the
//!   parent's, block numbers within their map, counts above zero for blocks in use, depth. A failed
//!   check is an error with the path to the block. After it nothing is written except by an abort.
//!
//! # What a crash leaves
//! The old state as a whole until the superblock's sector is durable, then the new one as a whole.
//! The steps are in `commit`. There is no journal: recovery is the same as opening.

mod allocator;
mod bits;
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
#[cfg(not(shuttle))]
mod model;
mod nodes;
mod read;
mod shadow;
mod store;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
mod transaction;
mod working;

pub use allocator::{DataAllocator, DataRun};
pub use bits::BitStore;
pub use compare::Stretch;
pub use cost::Change;
pub use error::{Error, MetadataPart, Path};
pub use read::Leaf;
pub use store::{Device, MetadataUse, Options, Store};
pub use working::Working;
