//! `snapshot`, `snapshot-origin`, `snapshot-merge`: an origin and its copies of one moment, in the
//! format and with the behaviour of the kernel's dm-snapshot.
//!
//! ```text
//!   writes                        reads and writes
//!     v                                  v
//!   snapshot-origin                  snapshot --- write of whole chunks --> covering: allocate,
//!     | kin: who needs it?               | table: exception?                   write the chunks
//!     | no                yes            | yes -> COW    no, read -> origin       |
//!     |                    v             | no, write                              |
//!     |                 copying: claim in every snapshot, allocate, <-'           |
//!     v                 read the origin once, write every COW device              v
//!   origin <--(settled)-- commit in the order of allocation --(published)--> COW device
//! ```
//!
//! Files: `config` (table lines), `map` (verdicts of `snapshot`), `origin` and `kin` (writes to an
//! origin that has snapshots), `merge`, `copying` and `covering` (jobs), `table` and `group`
//! (exceptions), `losses` (failed flushes), `acknowledged` (the crash log of store `N`), `store`
//! (allocation, areas, commits), `core` (the state of one snapshot), `attachment` (opening,
//! handover between tables), `status`.
//!
//! # Invariants
//! I1. The data of a chunk is durable before its record; the record is durable before the origin's
//!     chunk is overwritten, and before the write to the snapshot that made it completes.
//! I2. The next area is durably zero before the record that fills an area is durable.
//! I3. A record is never changed or removed, except by a merge, from the end of the list.
//! I4. The origin is written only when every snapshot of it has a settled exception: committed,
//!     and the snapshot's reads that were sent to the origin's chunk have ended.
//! I5. A merged record is cleared only when the origin's content is durable.
//! I6. A cause that ends one snapshot (no room, an error of its COW device) ends only that one, and
//!     the end is recorded on its device before the origin is written without an exception.
//! I7. "Durable" means: flushed, with the failure count of the device the same after the flush as
//!     before the first write. Otherwise data that may be lost is written again from another copy
//!     (S3 of `store`, step 3 of `merge`), or the clients that wrote it get an error (C2 of
//!     `losses`).
//! I8. The end of the server changes nothing: requests fail that wait for an event that will not
//!     come, writes to the origin too, and no snapshot ends because of it.

mod acknowledged;
mod attachment;
mod config;
mod copying;
mod core;
mod covering;
mod group;
#[cfg(all(test, shuttle))]
mod interleavings;
mod kin;
mod losses;
mod map;
mod merge;
#[cfg(test)]
#[cfg(not(shuttle))]
mod model;
mod origin;
mod status;
mod store;
mod table;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;

#[cfg(feature = "canary")]
pub mod canary;
#[cfg(not(feature = "canary"))]
mod canary;

pub use attachment::origin_claim;
pub use config::{MERGE_SPEC, SNAPSHOT_SPEC};
pub use map::{KIND, SINGLE_LOCK_KIND, Snapshot};
pub use merge::{KIND as MERGE_KIND, Merge};
pub use origin::KIND as ORIGIN_KIND;
pub use status::{ALLOCATED, METADATA};
pub use table::Locks;
