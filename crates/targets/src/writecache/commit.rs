//! Commits: make entries durable in one atomic step. Also the metadata lock: the right to change
//! and to write metadata.
//!
//! # The order of a commit, and what a crash between its steps leaves
//! 0. Freeze: take the set of entries whose data has completed. Entries that complete later get the
//!    next seq.
//! 1. Write the changed granules of the entry table. Frozen entries carry the seq N that the
//!    superblock has on disk. *Crash*: any of them may be there, torn or whole. None is below N, so
//!    recovery frees them all. The slots' former entries were -1 (I3), so nothing is lost.
//! 2. Flush the cache device and check that its failure count did not change (I13): data (I1) and
//!    entries (I2) are durable. *Crash*: as above.
//! 3. Write the superblock with seq N+1 and FUA, together with the entries in the same 4 KiB,
//!    unchanged since step 2 (I12). *Crash*: the sector with the superblock is old or new, the
//!    other sectors did not change: all frozen entries count, or none. Flushes and FUA writes that
//!    waited complete now.
//! 4. Free the older committed version of each block just committed (I8). *Crash*: recovery
//!    finds two committed entries of one block and keeps the higher seq.
//! 5. Flush the cache device; only then are those slots free (I3). *Crash*: as after step 4.
//!
//! If a step fails, or the failure count changed, the commit fails. Every waiter gets the error.
//! The cache is broken until a table is loaded again, and writes that were acknowledged and not
//! committed count as lost (I14). The device then holds one of the crash states above.
//!
//! If nothing is uncommitted but a committed slot was overwritten in place, only the flush of
//! step 2 happens; the seq stays.
//!
//! One commit runs at a time, under the metadata lock. A caller that asks while it runs joins the
//! next commit. The metadata lock is granted in order of request, so that back-to-back commits do
//! not keep writeback and removals from freeing entries.

use std::ops::Range;
use std::sync::Arc;

use cairn_block::{
    Env, Flags, Io, IoError, IoFuture, IoResult, Request, RequestId, SectorRange, Verdict,
};
use cairn_block::{Sector, SectorCount, invariants, mutants, yield_once};
use cairn_format::writecache::{SUPERBLOCK_BYTES, Seq, Superblock};
use smallvec::SmallVec;

use super::canary::{self, Bug};
use super::index::{FREED, Life, Run, granule_of};
use super::{Count, State, WriteCache};
use crate::group_commit::{Ticket, Waiter, tell};

/// Metadata is written in granules of this many bytes (clipped at its end), neighbours merged.
pub(super) const GRANULE_BYTES: u64 = 4096;
/// Most requests of metadata in flight.
const WRITES_MAX: usize = 32;
/// How many runs of slots are freed under one lock.
const FREED_AT_ONCE: usize = 4096;
/// Most granules in one request.
const WRITE_GRANULES_MAX: u32 = 256;

/// The changed granules of the metadata. The holder of the metadata lock is the only writer of
/// metadata. Only the holder changes which entries are committed, frozen or freed.
pub(super) struct Metadata {
    superblock: Option<Superblock>,
    /// The bytes between the last entry and the end of the metadata; written back unchanged.
    tail: Vec<u8>,
    changed: Vec<u32>,
    /// The changed granules as ranges. Empty between two steps; kept to reuse its memory.
    ranges: Vec<Range<u32>>,
}

impl Metadata {
    /// The metadata of a cache that is not open.
    pub fn empty() -> Metadata {
        Metadata { superblock: None, tail: Vec::new(), changed: Vec::new(), ranges: Vec::new() }
    }

    /// The metadata of a device: its superblock, and the bytes after its last entry.
    pub fn of(superblock: Superblock, tail: Vec<u8>) -> Metadata {
        Metadata { superblock: Some(superblock), tail, ..Metadata::empty() }
    }

    /// True if nothing is to be written.
    pub fn is_unchanged(&self) -> bool {
        self.changed.is_empty()
    }

    /// Notes that the entries of these slots are to be written.
    pub fn touch(&mut self, slot: u32, len: u32) {
        self.changed.extend(granule_of(slot)..=granule_of(slot + len - 1));
    }

    /// Makes ranges of the changed granules, neighbours merged.
    fn take_changed(&mut self) {
        self.changed.sort_unstable();
        for granule in self.changed.drain(..) {
            match self.ranges.last_mut() {
                Some(last) if last.end == granule + 1 => (),
                Some(last) if last.end == granule && last.len() < WRITE_GRANULES_MAX as usize => {
                    last.end += 1;
                }
                _ => self.ranges.push(granule..granule + 1),
            }
        }
    }
}

/// What one commit covers.
struct Batch {
    /// The seq of the frozen entries.
    frozen: Option<Seq>,
    overwritten: bool,
    waiters: Vec<Waiter>,
    /// Requests that waited for room in the crash log.
    mapped_again: Vec<RequestId>,
    broken: bool,
}

impl WriteCache {
    pub(super) fn map_flush<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        self.count(env, Count::Flushes, 1);
        let origin_failures = self.origin.failures();
        let mut state = self.state.lock();
        state.pace.flush_asked(env.now());
        if state.broken {
            return Verdict::Failed(IoError::IO);
        }
        let quiet =
            state.index.uncommitted == 0 && !state.overwritten && !state.commits.is_running();
        let writes = &state.origin_flushes;
        let durable = writes.are_durable() && writes.known() >= origin_failures;
        if quiet {
            self.look_at_cache(&mut state);
        }
        drop(state);
        if quiet && durable {
            return Verdict::Completed;
        }
        let id = request.id();
        self.spawn(env, async move |cache, env| env.complete(id, cache.flush_both(env).await));
        Verdict::Queued
    }

    /// Commits and flushes the origin, concurrently.
    pub(super) async fn flush_both(&self, env: &Env) -> IoResult {
        let [cache, origin] = self.flush_each(env).await;
        cache.and(origin)
    }

    /// Like [`Self::flush_both`], with the results of the cache device and of the origin.
    pub(super) async fn flush_each(&self, env: &Env) -> [IoResult; 2] {
        let commit = self.join_commit(env);
        let flush = self.flush_origin(env);
        let origin = mutants::step("writecache: flush of the origin for clients", (), flush).await;
        [commit.wait().await, origin]
    }

    fn join_commit(&self, env: &Env) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::default());
        self.state.lock().commits.join(Waiter::Ticket(ticket.clone()));
        self.kick_commit(env);
        ticket
    }

    /// Waits for a commit that covers everything completed before.
    pub(super) async fn commit(&self, env: &Env) -> IoResult {
        self.join_commit(env).wait().await
    }

    /// Starts the commit task on this reactor unless one runs.
    pub(super) fn kick_commit(&self, env: &Env) {
        if self.state.lock().commits.starts() {
            self.spawn(env, async |cache, env| cache.commit_loop(env).await);
        }
    }

    /// Commits until no caller waits, the number of uncommitted blocks is below the limit, and the
    /// crash log has room.
    async fn commit_loop(&self, env: &Env) {
        loop {
            self.commit_once(env).await;
            let mut state = self.state.lock();
            invariants::sample(|| state.check_whole());
            let full = state.index.uncommitted >= self.config.autocommit_blocks.max(1)
                || state.acknowledged.wants_commit();
            let broken = state.broken;
            if !state.commits.goes_on(full && !broken) {
                drop(state);
                self.changed.notify(usize::MAX);
                return;
            }
        }
    }

    pub(super) async fn commit_once(&self, env: &Env) {
        let mut metadata = self.metadata.lock().await;
        let mut batch = self.freeze(&mut metadata);
        self.remap_all(env, std::mem::take(&mut batch.mapped_again));
        let result = if batch.broken {
            Err(IoError::IO)
        } else {
            self.write_commit(env, &mut metadata, &batch).await
        };
        if let Err(error) = result
            && !batch.broken
        {
            self.state.lock().overwritten |= batch.overwritten;
            self.break_down(env, "commit failed", error);
        }
        tell(env, batch.waiters, result);
        if result.is_ok() && batch.frozen.is_some() {
            self.free_superseded(env, &mut metadata).await;
        }
        self.changed.notify(usize::MAX);
    }

    /// Step 0.
    fn freeze(&self, metadata: &mut Metadata) -> Batch {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.autocommit_at = None;
        let frozen = state.index.freeze(&mut metadata.changed);
        let has_room = !state.broken && state.acknowledged.seal(frozen, state.index.durable_seq);
        Batch {
            frozen,
            overwritten: std::mem::take(&mut state.overwritten),
            waiters: state.commits.take(),
            mapped_again: if has_room { state.take_slot_waiters() } else { Vec::new() },
            broken: state.broken,
        }
    }

    /// Steps 1 to 3.
    async fn write_commit(&self, env: &Env, metadata: &mut Metadata, batch: &Batch) -> IoResult {
        let Some(seq) = batch.frozen else {
            let alone = batch.overwritten && !mutants::skips("writecache: flush without entries");
            return if alone { self.flush_data(env).await } else { Ok(()) };
        };
        let superblock = metadata.superblock.as_ref().expect("set by recovery");
        assert_eq!(seq, superblock.seq(), "I2: a new entry carries the seq on disk");
        self.write_changed(env, metadata).await?;
        let next = seq.next().expect("freeze took it");
        if canary::planted(Bug::SuperblockBeforeFlush) {
            self.write_superblock(env, metadata, next).await?;
            self.flush_data(env).await?;
        } else {
            let flush = self.flush_data(env);
            mutants::step("writecache: flush before the superblock", (), flush).await?;
            self.write_superblock(env, metadata, next).await?;
        }
        let mut state = self.state.lock();
        state.index.durable_seq = next;
        state.acknowledged.committed();
        Ok(())
    }

    /// Steps 4 and 5.
    async fn free_superseded(&self, env: &Env, metadata: &mut Metadata) {
        let slots = self.state.lock().index.superseded();
        if !slots.is_empty() {
            // An error broke the cache down already; the commit itself stands.
            let _ = self.free_entries(env, metadata, slots).await;
        }
    }

    /// Frees the entries of committed slots durably, then takes the slots out of the index (I9) and
    /// frees them (I3). Slots that are not committed must be marked FREED, and may have left the
    /// index already.
    pub(super) async fn free_entries(
        &self,
        env: &Env,
        metadata: &mut Metadata,
        slots: Vec<(u32, u32)>,
    ) -> IoResult {
        for slots in slots.chunks(FREED_AT_ONCE) {
            let mut state = self.state.lock();
            if state.broken {
                return Err(IoError::IO);
            }
            for &(slot, len) in slots {
                let mut runs: Vec<Run> = state.index.runs_of(slot, len).collect();
                runs.retain(|run| state.index.life(run) == Life::Committed);
                runs.iter().for_each(|run| state.index.mark(run.slot, run.len, FREED, 0));
                metadata.touch(slot, len);
            }
        }
        if canary::planted(Bug::ReuseBeforeDurable) {
            self.take_out(env, &slots).await;
            return self.write_changed(env, metadata).await;
        }
        let name = "writecache: flush of freed entries";
        let result = self.write_durably(env, metadata, name).await;
        match result {
            Ok(()) => self.take_out(env, &slots).await,
            Err(error) => self.break_down(env, "freeing entries failed", error),
        }
        result
    }

    /// Takes slots out of the index, the last ones first, and yields now and then. The older
    /// versions of a block come after the newer ones in `slots`, so that none of them becomes
    /// visible (I9).
    async fn take_out(&self, env: &Env, slots: &[(u32, u32)]) {
        let mut left = slots.rchunks(FREED_AT_ONCE);
        while let Some(slots) = left.next() {
            let waiting = {
                let mut state = self.state.lock();
                for &(slot, len) in slots.iter().rev() {
                    let runs: Vec<Run> = state.index.runs_of(slot, len).collect();
                    runs.iter().for_each(|run| take_out(&mut state, run));
                }
                state.take_slot_waiters()
            };
            self.remap_all(env, waiting);
            self.changed.notify(usize::MAX);
            if left.len() > 0 {
                yield_once().await;
            }
        }
    }

    /// Makes the changed granules durable. They are written again if a failure that another user of
    /// the device met may have lost them (I13). `flush` is the name of the flush for mutation
    /// tests.
    pub(super) async fn write_durably(
        &self,
        env: &Env,
        metadata: &mut Metadata,
        flush: &str,
    ) -> IoResult {
        metadata.take_changed();
        let result = loop {
            let failures = self.cache.failures();
            let mut result = self.write_ranges(env, metadata).await;
            if result.is_ok() {
                result = mutants::step(flush, (), self.flush_cache(env)).await;
            }
            let name = "writecache: failure count of freed entries";
            if result.is_err() || mutants::same(name, failures, self.cache.failures()) {
                break result;
            }
        };
        metadata.ranges.clear();
        result
    }

    async fn write_changed(&self, env: &Env, metadata: &mut Metadata) -> IoResult {
        metadata.take_changed();
        let result = self.write_ranges(env, metadata).await;
        metadata.ranges.clear();
        result
    }

    /// Writes the taken ranges of granules, with at most `WRITES_MAX` requests in flight. Returns
    /// when all have completed.
    async fn write_ranges(&self, env: &Env, metadata: &Metadata) -> IoResult {
        let mut result = Ok(());
        let mut writes: SmallVec<[IoFuture; WRITES_MAX]> = SmallVec::new();
        for window in metadata.ranges.chunks(WRITES_MAX) {
            let start = |granules: &Range<u32>| {
                self.write_granules(env, metadata, granules.clone(), Flags::empty())
            };
            writes.extend(window.iter().map(start));
            for write in writes.drain(..) {
                result = result.and(write.await);
            }
            if result.is_err() {
                break;
            }
        }
        result
    }

    /// Writes granules, encoded straight into the request's memory (I12).
    fn write_granules(
        &self,
        env: &Env,
        metadata: &Metadata,
        granules: Range<u32>,
        flags: Flags,
    ) -> IoFuture {
        let area_end = self.geometry.metadata_bytes();
        let from = u64::from(granules.start) * GRANULE_BYTES;
        let end = (u64::from(granules.end) * GRANULE_BYTES).min(area_end);
        let count = SectorCount::of_bytes(end - from);
        let segs = env.segs(count);
        for granule in granules {
            let at = u64::from(granule) * GRANULE_BYTES;
            let len = GRANULE_BYTES.min(area_end - at) as usize;
            segs.for_each_mut((at - from) as usize, len, |out| {
                self.encode_granule(metadata, granule, out);
            });
        }
        let start = Sector::of_byte(from) + self.config.start;
        env.io(
            &self.cache,
            Io::write(SectorRange::new(start, count), segs).with(flags | Flags::META),
        )
    }

    fn encode_granule(&self, metadata: &Metadata, granule: u32, out: &mut [u8]) {
        let mut entries = out;
        if granule == 0 {
            let superblock = metadata.superblock.as_ref().expect("set by recovery");
            let (head, rest) = entries.split_at_mut(SUPERBLOCK_BYTES);
            head.copy_from_slice(&superblock.encode());
            entries = rest;
        }
        let from = (u64::from(granule) * GRANULE_BYTES).max(SUPERBLOCK_BYTES as u64);
        let table_end = self.geometry.metadata_bytes() - metadata.tail.len() as u64;
        let len = (entries.len() as u64).min(table_end.saturating_sub(from)) as usize;
        let (entries, tail) = entries.split_at_mut(len);
        let skip = metadata.tail.len() - tail.len();
        tail.copy_from_slice(&metadata.tail[skip..]);
        self.state.lock().index.encode(granule, self.block_sectors, entries);
    }

    /// Writes `bytes` at a byte offset of the area.
    pub(super) fn write_area(
        &self,
        env: &Env,
        offset: u64,
        bytes: &[u8],
        flags: Flags,
    ) -> IoFuture {
        let count = SectorCount::of_bytes(bytes.len() as u64);
        let segs = env.segs(count);
        segs.copy_in(0, bytes);
        let start = Sector::of_byte(offset) + self.config.start;
        env.io(
            &self.cache,
            Io::write(SectorRange::new(start, count), segs).with(flags | Flags::META),
        )
    }

    /// Makes durable all completed writes to slots, and the metadata written since.
    ///
    /// # Errors
    /// The flush failed, or another user met a failure that may have lost some of the data (I13).
    async fn flush_data(&self, env: &Env) -> IoResult {
        self.flush_cache(env).await?;
        let known = self.state.lock().cache_known;
        let name = "writecache: failure count of a commit";
        let kept = mutants::same(name, known, self.cache.failures());
        if kept { Ok(()) } else { Err(IoError::IO) }
    }

    pub(super) async fn flush_cache(&self, env: &Env) -> IoResult {
        let began = env.now();
        let result = env.make_durable(&self.cache).await;
        self.state.lock().pace.cache_flushed(env.now().since(began));
        result
    }

    async fn write_superblock(&self, env: &Env, metadata: &mut Metadata, seq: Seq) -> IoResult {
        let superblock = metadata.superblock.as_ref().expect("set by recovery").with_seq(seq);
        metadata.superblock = Some(superblock);
        let bytes = self.geometry.superblock_write();
        assert!(bytes.start == 0 && bytes.end <= GRANULE_BYTES);
        let flags = mutants::fua("writecache: FUA of the superblock");
        self.write_granules(env, metadata, 0..1, flags).await
    }
}

/// Takes slots out of the index and frees them. A slot that a fill in flight has dropped since is
/// gone, or belongs to another request.
fn take_out(state: &mut State, run: &Run) {
    let index = &mut state.index;
    match index.life(run) {
        Life::Committed => {
            index.end_writeback(run.slot, run.len);
            index.remove(run.slot, run.len);
            index.release(run.slot, run.len);
        }
        Life::Uncommitted if run.has(FREED) => _ = state.drop_uncommitted(run),
        Life::Uncommitted | Life::Frozen => (),
    }
}
