//! `thin-pool` and `thin`: many volumes on one pool of data blocks, given out when they are first
//! written, shared by snapshots; in the format and with the behaviour of the kernel's dm-thin.
//!
//! ```text
//!   requests of a volume, on any reactor
//!        |
//!   map  v                 group not known: load -----------------.
//!   +- VolumeMap (sharded) ------------+                          |
//!   | mapped, ours  -> remap --------------------------------.    |
//!   | mapped, shared-> take blocks,    |  fill, then map     |    |
//!   | hole          ->  put in a cell -+-- at the end -----. |    |
//!   |  changes: pending list per shard |                   v v    |
//!   +----------------+-----------------+               data device|
//!        freeze      v                                      ^     |
//!   commit: 1. flush the data device ----------------------'     |
//!           2. apply, write, superblock --> metadata device ------'
//!           3. quarantine: freed blocks, until who found them has ended
//! ```
//!
//! Files: `config` (table lines), `map` (verdicts and completions of a volume), `attachment` (a
//! table's attachment to a volume), `place` (a request's range in blocks), `index` (the volume
//! map), `groups` (its loaded groups), `arena` (their memory), `fill` (partly written blocks),
//! `discard`, `commit`, `acknowledged` (the crash log), `losses` (reports of failures), `stock`
//! (blocks and metadata that a reactor hands out), `space` (running out), `volume`, `pool`,
//! `metadata`, `recover` (opening, handover, growth), `edits` (volumes made and deleted by verbs
//! and messages), `message` (parsed to edits), `status`, `inspect` (queries of verbs), `trim`.
//!
//! # Invariants
//! T1. The data of a mapping is durable on the data device before the mapping is durable.
//! T2. A data block that the durable metadata maps is overwritten only through that very mapping,
//!     and only if it is not shared.
//! T3. A data block is taken only if it is free in the working, the committing and the durable
//!     metadata, and every request that found it mapped has ended.
//! T4. A block is mapped when all of its data is on the data device (with `skip_block_zeroing`:
//!     when it is taken). So no read returns stale data or a partial copy.
//! T5. A mapping is shared if it is older than its volume's last snapshot. Snapshots are taken
//!     while no request to the volume is in flight. A shared data block is never written.
//! T6. A flush, and a FUA write, completes when every change that its client knows of is durable.
//!     An elided zero write still counts as a write: with FUA it completes after the unmap that
//!     made the hole is durable.
//! T7. A change has its metadata blocks reserved before it is made (S2 in `stock`): no commit runs
//!     out.
//! T8. After a failed commit nothing changes any more. The mapped devices of every volume that lost
//!     a change raise their failure counts: each client gets one error (`losses`).
//!
//! # What a crash leaves
//! The last durable metadata and every data block it maps, as of the last flush or later (T1, T2).
//! Blocks that were being filled, or were mapped by an unfinished commit, are free. `commit` has
//! the steps of a commit, and what recovery finds in each gap.
//! After a kill of the process alone, the crash log adds what was acknowledged (`acknowledged`).

mod acknowledged;
mod arena;
mod attachment;
mod commit;
mod config;
mod discard;
mod edits;
mod fill;
mod groups;
mod index;
mod inspect;
#[cfg(all(test, shuttle))]
mod interleavings;
mod losses;
mod map;
mod message;
mod metadata;
#[cfg(test)]
#[cfg(not(shuttle))]
mod model;
mod pool;
mod recover;
mod space;
mod span;
mod status;
mod stock;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
mod trim;
mod volume;

#[cfg(feature = "canary")]
pub mod canary;
#[cfg(not(feature = "canary"))]
mod canary;

pub use edits::Plan;
pub use inspect::{Figures, ThinDevice};
pub use map::KIND;
pub use recover::{KIND as POOL_KIND, ThinPool};
