//! `writecache`: a fast cache device in front of a slow origin, in the format and with the
//! behaviour of the kernel's dm-writecache (SSD mode), and stricter where the kernel loses data.
//!
//! ```text
//!            requests                     cache device, from start_sector
//!               |                         +------------+---------------+------------------+
//!        map.rs v                         | superblock | entries[n]    | slots[n]         |
//!   +-------------------+                 | seq        | sector, seq   | block_size each  |
//!   | hit   -> slot     |--- overwrite -->+------------+---------------+------------------+
//!   | miss  -> new slot |--- fill ------->          ^ commit.rs (Metadata)        | writeback.rs
//!   | full  -> origin   |--- around --.                                         v
//!   +-------------------+             `------------------------------------> origin
//! ```
//!
//! Files: `config` (the table line), `map` (verdicts and completions), `index` (what is cached and
//! what is free, by runs), `commit` (makes entries durable), `acknowledged` (what a killed process
//! would lose), `writeback` (copies blocks to the origin), `hand` (which blocks are written back to
//! free slots), `sweep` (the order of a drain), `pace` (the share of client I/O and writeback),
//! `limit` (the limit of background copies), `origin` (flushes the origin), `removal` (discard and
//! write-zeroes), `recover` (opening and stopping), `status`.
//!
//! # Invariants
//! I1. Slot data is durable before the superblock's seq makes its entry committed.
//! I2. Entries are durable before the superblock's seq is raised; a new entry carries the seq
//!     that the superblock has on disk, so it does not count yet, torn or whole.
//! I3. A slot is reused only after the `seq = -1` of its entry is durable.
//! I4. After writeback, the origin's data is durable before `seq = -1` is written.
//! I5. While an older version of a block is being written back, a newer one is neither written
//!     back nor freed.
//! I6. Only committed blocks are written back.
//! I7. A read sees a slot only when its data is there: a fill enters the index at its end.
//! I8. A superseded entry is freed only after the superseding one is committed.
//! I9. An entry leaves the index only after its `seq = -1` is durable, or if it was never written
//!     and it hides no older version. Until then no request for its block goes around the cache,
//!     and no read returns the version that it superseded.
//! I10. Writeback of a block starts only when no write to its slot is in flight. From then on until
//!      it ends, writes to the block take a new slot. A block that must be written back although
//!      clients keep overwriting it is closed: writes to it wait until its writeback has begun.
//! I11. A slot with any I/O in flight is not reused, whichever task freed it.
//! I12. A commit works on a frozen set: the entries whose data had completed when it began. Data
//!      that completes later belongs to the next commit. Metadata is encoded from entries that are
//!      committed, or frozen and not freed. Only the holder of the metadata lock changes this set.
//!      Uncommitted entries are never encoded. So a rewrite of the superblock's granule repeats the
//!      entries that the last flush made durable.
//! I13. A flush of the cache device counts only if the device's failure count did not change
//!      between the first write that the flush is to cover and the end of the flush. It does not
//!      matter which user of the device met the failure. If the count changed, metadata is written
//!      again from memory. Data in slots has no other copy, so the commit fails, and the cache with
//!      it.
//! I14. Acknowledged writes that may be lost raise the mapped device's own failure count: at the
//!      failure, and at a suspend that gives up writes which could not be committed. The counts of
//!      the lower disks are not passed on. `origin` describes how failures of the origin are
//!      handled.
//! I15. Every wait ends. A `flush` message ends when a suspend begins. With
//!      [`SuspendMode::NoFlush`], which the server uses when it exits, requests that wait for a
//!      slot are handed back. A wait for a lower disk ends with that disk's answer.
//! I16. A broken cache gains no uncommitted entries, and its crash log no records: a fill that ends
//!      after the failure fails. If an entry was uncommitted at the failure, the log is marked as
//!      lost. If not, the records of the log cancel each other. So a resume of the same table
//!      replays nothing, and succeeds.
//!
//! # What a crash leaves
//! `commit` has the order of a commit and what recovery finds after a crash in each gap;
//! `writeback` has the same for writeback, and `removal` for discard and write-zeroes. FUA writes
//! and flushes complete after the superblock write (the kernel completes FUA before: design section
//! 4). A FUA overwrite of a committed block needs only FUA data.
//!
//! # Concurrent writes of one block
//! Two fills of the same block may be in flight together. The one that completes last is the
//! newest. A version that was never frozen is dropped at once when superseded, so no two entries of
//! one block ever carry the same seq on disk.

mod acknowledged;
mod check;
mod commit;
mod config;
mod hand;
mod health;
mod index;
mod limit;
mod map;
#[cfg(test)]
#[cfg(not(shuttle))]
mod model;
mod origin;
mod pace;
mod recover;
mod removal;
mod status;
mod sweep;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
mod writeback;

#[cfg(feature = "canary")]
pub mod canary;
#[cfg(not(feature = "canary"))]
mod canary;

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use cairn_block::sync::Mutex;
use cairn_block::{
    Attribute, Claim, ClaimKind, ConfigError, Copier, Counters, Dirty, Disk, EndIo, Env, Extent,
    FailureCount, IoError, IoResult, Limits, LocalFuture, MessageError, Report, Request, RequestId,
    Sector, SectorCount, SectorRange, SuspendMode, Target, TaskGroup, Time, Verdict,
    failures_beneath,
};
use cairn_format::writecache::Geometry;
use event_listener::Event;

use crate::fair::Fair;

pub use recover::KIND;

use acknowledged::{Acknowledged, Place};
use commit::Metadata;
use config::Config;
use health::OriginHealth;
use index::{Index, Run};
use limit::Limit;
use pace::Pace;
use removal::Removal;
use sweep::Sweep;
use writeback::{Job, Turn, Written};

use crate::flushes::Flushes;
use crate::group_commit::GroupCommit;
use crate::losses::Losses;
use crate::origin_marker::OriginMarker;

/// What the origin is claimed as.
pub const ORIGIN_ROLE: &str = "cached origin";
/// What the cache device is claimed as, from its start sector on.
pub const CACHE_ROLE: &str = "cache device";

/// What the tasks and requests share, under one short lock.
struct State {
    index: Index,
    /// A slot was overwritten in place since the last flush of the cache device began.
    overwritten: bool,
    /// The failure count of the cache device since before the oldest write to a slot that is not
    /// durable (I13).
    cache_known: u64,
    losses: Losses,
    /// The crash log.
    acknowledged: Acknowledged,
    commits: GroupCommit,
    /// When uncommitted entries are committed without a request for it.
    autocommit_at: Option<Time>,
    origin_flushes: Flushes,
    /// When a write last went around the cache.
    last_around: Time,
    /// Slots whose data is on the origin, not yet durable there.
    written: Written,
    /// How many blocks writeback has copied to the origin.
    blocks_written_back: u64,
    finishing: bool,
    /// The jobs to copy next, sorted by position on the origin, and the number of tasks that copy.
    jobs: VecDeque<Job>,
    lanes: u32,
    /// Once this many blocks are written, their entries are freed.
    free_from: u64,
    /// What lanes copied within this turn of the reactor's loop.
    turn: Turn,
    /// A run that is written back as soon as no write to it is in flight. New writes to it wait
    /// until then.
    closed: Option<Run>,
    pace: Pace,
    /// Writeback runs until free slots reach the low watermark.
    draining: bool,
    /// Writeback runs until the free slots lie in long runs again.
    mending: bool,
    /// When a write to a slot last ended.
    last_write: Time,
    /// Insertions below this number are written back, independent of the watermarks.
    drain_to: u64,
    /// The background task passed over a block because a write to it was in flight. The end of that
    /// write wakes the task.
    passed_over: bool,
    /// The order in which a drain takes blocks; none once it has passed over the whole origin.
    sweep: Option<Sweep>,
    cleaner: bool,
    flush_on_suspend: bool,
    /// Requests that need a slot and cannot go around, or wait for a writeback to begin.
    slot_waiters: Vec<RequestId>,
    /// One of them waits for a free slot, not for a commit or for writes in flight.
    is_slot_wanted: bool,
    /// What the limit of background copies says to the next block of the hand.
    limit: Limit,
    /// Discards and write-zeroes under way.
    removals: Vec<Removal>,
    next_removal: u64,
    /// The cache device failed or is corrupt. Stays set until a table is loaded.
    broken: bool,
    /// Failures of the origin, and when writeback tries again. The blocks stay dirty.
    origin: OriginHealth,
    /// A suspend has begun: a `flush` message ends early.
    suspending: bool,
    /// Requests are handed back instead of waiting for a slot.
    handing_back: bool,
    suspended: bool,
    stopping: bool,
}

impl State {
    fn new(index: Index) -> State {
        State {
            index,
            overwritten: false,
            cache_known: 0,
            losses: Losses::default(),
            acknowledged: Acknowledged::default(),
            commits: GroupCommit::default(),
            autocommit_at: None,
            origin_flushes: Flushes::new(0),
            last_around: Time(0),
            written: Written::default(),
            blocks_written_back: 0,
            finishing: false,
            jobs: VecDeque::new(),
            lanes: 0,
            free_from: 0,
            turn: Turn::default(),
            closed: None,
            pace: Pace::default(),
            draining: false,
            limit: Limit::default(),
            mending: false,
            last_write: Time(0),
            drain_to: 0,
            passed_over: false,
            sweep: None,
            cleaner: false,
            flush_on_suspend: false,
            slot_waiters: Vec::new(),
            is_slot_wanted: false,
            removals: Vec::new(),
            next_removal: 0,
            broken: false,
            origin: OriginHealth::default(),
            suspending: false,
            handing_back: false,
            suspended: true,
            stopping: false,
        }
    }

    /// True if the origin failed and no retry has succeeded. A failed block that has since left the
    /// cache needs no retry.
    fn origin_has_failed(&self) -> bool {
        self.origin.has_failed(|block| self.index.newest(block).is_some())
    }

    /// True if acknowledged writes are not durable on the cache device.
    fn has_volatile(&self) -> bool {
        let frozen = self.index.durable_seq < self.index.stamp_seq;
        self.overwritten || frozen || self.index.uncommitted > 0
    }

    /// Takes the requests that wait for a slot, for the caller to map again.
    fn take_slot_waiters(&mut self) -> Vec<RequestId> {
        self.is_slot_wanted = false;
        std::mem::take(&mut self.slot_waiters)
    }
}

/// Counters of the status line, in cache blocks unless they count events.
#[derive(Clone, Copy)]
enum Count {
    Reads,
    ReadHits,
    Writes,
    WriteHitsUncommitted,
    WriteHitsCommitted,
    WritesAround,
    WritesAllocated,
    WritesBlocked,
    Flushes,
    Discards,
}

const COUNTERS: usize = 10;

/// The target.
pub struct WriteCache {
    me: Weak<WriteCache>,
    config: Config,
    read_only: bool,
    origin: Arc<dyn Disk>,
    cache: Arc<dyn Disk>,
    /// The mapped device's own failure count.
    failures: Arc<FailureCount>,
    geometry: Geometry,
    /// The cache device was blank when the table was built.
    formats: bool,
    /// Where its crash log is; none if there is none.
    crash_log: Option<Place>,
    /// The dirty marker of the origin.
    marker: OriginMarker,
    block_sectors: u64,
    state: Mutex<State>,
    metadata: Fair<Metadata>,
    copier: Copier,
    counters: Counters<COUNTERS>,
    tasks: Arc<TaskGroup>,
    /// Notified at every change that a task may wait for.
    changed: Event,
}

impl WriteCache {
    fn arc(&self) -> Arc<WriteCache> {
        self.me.upgrade().expect("a target that is called is alive")
    }

    fn count(&self, env: &Env, counter: Count, blocks: u64) {
        self.counters.add(env, counter as usize, blocks);
    }

    /// Starts a task that `suspend` waits for.
    fn spawn(&self, env: &Env, task: impl AsyncFnOnce(&WriteCache, &Env) + 'static) {
        let cache = self.arc();
        self.tasks.spawn(env, async move |env| task(&cache, env).await);
    }

    /// Maps again the requests that waited for a slot or a range.
    fn remap_all(&self, env: &Env, requests: Vec<RequestId>) {
        for id in requests {
            env.remap(id);
        }
    }

    /// The range of the cache device that holds `count` slots from `slot`.
    fn slot_range(&self, slot: u32, count: u64) -> SectorRange {
        let start = self.config.start.0 + self.geometry.slot_sector(u64::from(slot));
        let (start, sectors) = (Sector(start), count * self.block_sectors);
        SectorRange::new(start, cairn_block::SectorCount(sectors))
    }

    /// The range of the origin that is `count` blocks from `block`.
    fn origin_range(&self, block: u64, count: u64) -> SectorRange {
        let start = Sector(block * self.block_sectors);
        SectorRange::new(start, cairn_block::SectorCount(count * self.block_sectors))
    }

    /// First block and number of blocks of a request's range.
    fn blocks_of(&self, range: SectorRange) -> (u64, u64) {
        (range.start.0 / self.block_sectors, range.count.0 / self.block_sectors)
    }

    /// Acknowledged writes may be lost (I14).
    fn lose(&self, state: &mut State) {
        state.losses.add(&self.failures);
        state.acknowledged.count_loss();
    }

    /// Acknowledges failures of the cache device that cannot have lost any data.
    fn look_at_cache(&self, state: &mut State) {
        let still = !state.commits.is_running() && !state.has_volatile();
        if still && state.cache_known != self.cache.failures() && state.index.is_still() {
            let beneath = failures_beneath(self.cache.as_ref());
            let count = self.cache.failures();
            self.cache.acknowledge_failures(count);
            state.cache_known = count;
            state.acknowledged.survived(beneath);
        }
    }

    /// The cache device failed: nothing is written until a table is loaded again. Requests that
    /// wait for a slot fail.
    fn break_down(&self, env: &Env, what: &str, error: IoError) {
        let (waiting, lost) = {
            let mut state = self.state.lock();
            let lost = !std::mem::replace(&mut state.broken, true) && state.has_volatile();
            if lost {
                state.acknowledged.lose();
                self.lose(&mut state);
            }
            (state.take_slot_waiters(), lost)
        };
        let lost = if lost { "; acknowledged writes may be lost" } else { "" };
        let (volume, cache) = (&self.config.volume, &self.config.cache.argument);
        tracing::error!("{volume}: {cache}: {what}: {error}{lost}");
        self.remap_all(env, waiting);
        self.changed.notify(usize::MAX);
    }
}

impl Target for WriteCache {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        self.map_request(env, request)
    }

    fn end_io(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        self.end_request(env, request, result)
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        vec![self.origin.clone(), self.cache.clone()]
    }

    /// Claims the origin too, although each block has the same sector there as on the mapped
    /// device. Dirty blocks in the cache are newer, so another user would read old data, and
    /// writeback would overwrite what it writes. The claim covers the whole origin, because a cache
    /// may hold blocks beyond the end of the table line.
    fn claims(&self) -> Vec<Claim> {
        let first = Sector(self.config.start.0);
        vec![
            Claim::from(&self.origin, Sector(0), ClaimKind::Own, ORIGIN_ROLE),
            Claim::from(&self.cache, first, ClaimKind::Own, CACHE_ROLE),
        ]
    }

    fn keeps_marker_of(&self) -> Option<Arc<dyn Disk>> {
        self.marker.disk()
    }

    fn dirty_marker(&self) -> Option<String> {
        self.marker.generation()
    }

    fn limits(&self, stacked: Limits) -> Limits {
        let block = self.config.block_size.bytes();
        Limits {
            logical_block: stacked.logical_block.max(block),
            physical_block: stacked.physical_block.max(block),
            io_min: stacked.io_min.max(block),
            discard: true,
            fast_zero: self.origin.limits().fast_zero,
            read_only: stacked.read_only || self.read_only,
            ..stacked
        }
    }

    fn resume<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.start(env))
    }

    fn presuspend(&self, env: &Env, mode: SuspendMode) {
        let waiting = {
            let mut state = self.state.lock();
            state.suspending = true;
            state.handing_back |= mode == SuspendMode::NoFlush;
            if state.handing_back { state.take_slot_waiters() } else { Vec::new() }
        };
        for id in waiting {
            env.hand_back(id);
        }
        self.changed.notify(usize::MAX);
    }

    /// A `flush` message that the suspend ended has already returned an error that asks for it
    /// again.
    fn presuspend_undo<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, ()> {
        let mut state = self.state.lock();
        (state.suspending, state.handing_back) = (false, false);
        Box::pin(std::future::ready(()))
    }

    fn suspend<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.stop(env))
    }

    /// Zero: failures of the lower disks are handled here (`origin`, I13), not passed on.
    fn failures(&self) -> u64 {
        0
    }

    fn failures_told(&self) -> u64 {
        0
    }

    fn acknowledge_failures(&self) {
        let mut state = self.state.lock();
        state.losses.told(&self.failures);
        if !state.losses.are_untold() {
            state.acknowledged.told();
        }
    }

    fn report(&self) -> Report {
        self.make_report()
    }

    fn attributes(&self) -> Vec<Attribute> {
        self.config.attributes(self.state.lock().cleaner)
    }

    fn table(&self) -> String {
        self.config.print()
    }

    fn message<'a>(
        &'a self,
        env: &'a Env,
        words: &'a [&'a str],
    ) -> LocalFuture<'a, Result<String, MessageError>> {
        Box::pin(self.act_on_message(env, words))
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        Box::pin(self.extents_of(env, range))
    }

    fn dirty(&self) -> Option<Dirty> {
        self.what_is_dirty()
    }

    fn written_back(&self) -> SectorCount {
        SectorCount(self.state.lock().blocks_written_back * self.block_sectors)
    }

    fn formats(&self) -> Option<String> {
        self.formats.then(|| self.config.cache.argument.clone())
    }

    fn drains(&self) -> bool {
        true
    }

    fn drain<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), MessageError>> {
        Box::pin(self.write_all_back(env))
    }

    fn shows_of_origin(&self, range: SectorRange) -> Option<(Arc<dyn Disk>, SectorRange)> {
        Some((self.origin.clone(), range))
    }

    fn drain_in_suspend(&self, drains: bool) -> bool {
        std::mem::replace(&mut self.state.lock().flush_on_suspend, drains)
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }
}
