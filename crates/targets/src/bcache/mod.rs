//! `bcache`: a cache set as Linux bcache makes it: a cache device with buckets, and a backing
//! device or a volume that is all in the cache. Read, and drained; not written yet.
//!
//! ```text
//!     reads                       cache device
//!       |                         +------------+---------+---------------------------------+
//! map.rs v                        | superblock | journal | buckets: data, nodes, uuids ... |
//!   +----------------+            +------------+---------+---------------------------------+
//!   | extent         |--- hit -------------------------------------->   |  ^ set, btree, journal
//!   | hole           |--- miss ---.                                     |  | (keys become clean)
//!   +----------------+            v                                     v writeback
//!                           backing device: superblock | data  <--------'
//! ```
//!
//! Rooms: `config` (the table line), `attributes` and `status` (what is reported), `volume` (the
//! target: opening and ending), `superblocks` (reading, checking, and writing that of the backing
//! device), `measure` (the length of a line), `map` (verdicts), `set` (what is in memory
//! of the cache, opening, sessions), `journal` (the ring), `btree` (nodes, lookup, insertion,
//! splits, writing), `buckets` (what each holds, allocation), `writeback` (batches, the drain),
//! `detach` (the backing device leaves its set), `canary` (planted ordering bugs).
//!
//! # Invariants
//! I1. Without a drain or a detach no byte is written to any device, at no opening and at no
//!     ending.
//! I2. A drain changes no content: each sector of the volume reads the same at any time, and after
//!     any crash.
//! I3. A key becomes clean only after its data is durable on the backing device (R2, R10).
//! I4. A session that ends anywhere leaves a set that opens, here and in a kernel, with every dirty
//!     key whose data the backing device lacks. What a crash leaves is argued in `writeback`,
//!     `set::session` and `btree::write`.
//! I5. A bucket is reused only if no key that counts leads to it (K1), and the requests that had
//!     found one have ended (R6).
//! I6. The backing device is called clean only when nothing in the cache is dirty, durably (R11).
//!
//! What may be stale (R13): this version writes no write-intent map, so clean extents are
//! served as the kernel does, with a warning.

mod attributes;
mod btree;
mod buckets;
#[cfg(feature = "canary")]
pub mod canary;
mod config;
mod detach;
mod journal;
mod map;
mod measure;
mod set;
mod status;
mod superblocks;
#[cfg(test)]
mod tests;
mod volume;
mod writeback;

#[cfg(not(feature = "canary"))]
mod canary {
    //! Known ordering bugs, absent from this build.

    #[derive(Clone, Copy)]
    pub(super) enum Bug {
        CleanBeforeFlush,
        HeadBeforeTail,
        ParentBeforeChild,
        JournalBeforeLeaves,
        ReuseBeforeDurable,
        EntryBeforePriorities,
        CleanStateFirst,
        PartBeforeLeaves,
        ArrayBeforeSuperblock,
    }

    pub(super) fn planted(_bug: Bug) -> bool {
        false
    }
}

pub use config::without_cache;
pub use detach::Attached;
pub use volume::{BACKING_ROLE, Bcache, CACHE_ROLE, KIND};
