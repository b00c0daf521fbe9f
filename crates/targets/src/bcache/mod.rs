//! `bcache`: a cache set as Linux bcache makes it: a cache device with buckets, and a backing
//! device or a volume that is all in the cache.
//!
//! ```text
//!          requests                     cache device
//!             |                         +------------+---------+---------------------------------+
//!     map.rs  v  writes.rs              | superblock | journal | buckets: data, nodes, uuids ... |
//!   +-------------------+               +------------+---------+---------------------------------+
//!   | extent            |--- hit ------------------------------------->   |  ^ set, btree, journal
//!   | write             |--- cache --- data, then its key ------------>   |  | (groups, leaves)
//!   | hole, other write |--- miss, around --.                             |  |
//!   +-------------------+                   v                             v writeback
//!                           backing device: superblock | data  <----------'
//! ```
//!
//! Rooms: `config` (the table line), `attributes`, `status` and `message` (what is reported and
//! changed), `tunables` (the numbers that a message changes), `volume` (the target), `stop` (its
//! suspend), `superblocks` (reading, checking, and writing that of the backing device), `states`
//! (`dirty` and `clean`), `measure` (the length of a line), `map` (verdicts of reads), `writes`
//! (those of writes), `route` (where a write goes), `bypass` (sequential streams, congestion),
//! `word` (what a watched request says), `fill` (clean data enters the cache), `removal`
//! (discards), `zeroes` (large write-zeroes), `stripes` (of a backing device with parity),
//! `statistics` (the windows of sysfs), `human` (amounts as text), `trust` (which clean extents of
//! a start count), `backing` (what clients write there, and its flushes), `set` (what is in memory
//! of the cache, opening, changing it), `journal` (the ring, and group commits), `btree` (nodes,
//! lookup, changes, splits, writing), `buckets` (what each holds, allocation), `writeback`
//! (batches, in the background and in a drain, and their rate), `gc` (what became sparse is
//! packed), `degraded` (a volume whose set or backing device has failed), `attach` and `detach`
//! (the backing device joins a set, or leaves it), `flash` (volumes that lie in the cache alone),
//! `passing` (the backing device alone), `fixed` (one whose data nothing writes), `zones` (the map
//! of dirty zones, for when the cache is gone), `work` (how much is done at once), `canary`
//! (planted ordering bugs), `coverage` (the paths that a campaign has taken).
//!
//! # Invariants
//! I1. Without a write of a client, a read that misses, a drain, a detach, a message, or a word of
//!     the line that asks for it (`attach`, `force`) no byte is written to any device, at no
//!     opening and at no ending; but for clean extents that may differ from the backing device,
//!     which leave the set at an opening (T1), and for keys that a killed process had acknowledged
//!     (`set::acknowledged`).
//! I2. A drain, a checkpoint, an eviction and a pass of collecting change no content: each sector
//!     of the volume reads the same at any time, and after any crash.
//! I3. A key becomes clean only after its data is durable on the backing device (R2, R10).
//! I4. A session that ends anywhere leaves a set that opens, here and in a kernel, with every dirty
//!     key whose data the backing device lacks. What a crash leaves is argued in `writes`,
//!     `journal::groups`, `set::checkpoint`, `set::overwrites`, `writeback`, `set::session` and
//!     `btree::write`. What a kill leaves is argued in `set::acknowledged`.
//! I5. A bucket is reused only if no key that counts leads to it (K1), and the requests that had
//!     found one have ended (R6).
//! I6. The backing device is called clean only when nothing in the cache is dirty, durably; it is
//!     called dirty, durably, before something is (R11).
//! I7. A flush ends well only if the keys of all writes that had completed are durable, the cache
//!     device was flushed after those in place (V4), and the backing device after those that went
//!     there (R1).
//! I8. No data is sent to the backing device where a key of the cache may hide it after a power cut
//!     (R9, N5), but for zeros of a request that has not ended (`zeroes`).
//! I9. Clean data that enters the cache is durable on the backing device, and no write from above
//!     has come between (L1, L2).
//! I10. The clean extents of a volume have what its backing device has, durably: those that a start
//!     finds, too (R13, T1).
//! I11. If the server keeps maps of dirty zones, data becomes dirty only in a zone that the map of
//!     the volume names, durably (Y1).

mod attach;
mod attributes;
mod backing;
mod btree;
mod buckets;
mod bypass;
#[cfg(feature = "canary")]
pub mod canary;
#[cfg(not(feature = "canary"))]
mod canary;
mod config;
#[cfg(feature = "canary")]
pub mod coverage;
#[cfg(not(feature = "canary"))]
mod coverage;
mod degraded;
mod detach;
mod fill;
mod fixed;
mod flash;
mod flushing;
mod gc;
mod human;
#[cfg(all(test, shuttle))]
mod interleavings;
mod journal;
mod map;
mod measure;
mod message;
mod passing;
mod removal;
mod route;
mod set;
mod start;
mod states;
mod statistics;
mod status;
mod stop;
mod stripes;
mod superblocks;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
mod trust;
mod tunables;
mod volume;
mod word;
mod work;
mod writeback;
mod writes;
mod zeroes;
mod zones;

pub use attach::{CacheFound, first_sector_of};
pub use config::{without_attach, without_cache};
pub use detach::Attached;
pub use flushing::flush_policies;
pub use volume::{BACKING_ROLE, Bcache, CACHE_ROLE, KIND, LAB_KIND};
