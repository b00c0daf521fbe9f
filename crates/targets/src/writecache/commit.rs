//! Commits: making entries durable in one atomic step, and the ledger they are written from.
//!
//! # The order of a commit, and what a crash between its steps leaves
//! 0. Freeze: take the set of entries whose data has completed; later ones get the next seq.
//! 1. Write the changed granules of the entry table. Frozen entries carry the seq N that the
//!    superblock has on disk. *Crash*: any of them may be there, torn or whole; none is below
//!    N, so recovery frees them all. The slots' former entries were -1 (I3), nothing is lost.
//! 2. Flush the cache device: data (I1) and entries (I2) are durable. *Crash*: as above.
//! 3. Write the superblock with seq N+1 and FUA, with the entries that share its 4 KiB, as
//!    they are since step 2 (I12). *Crash*: the sector with the superblock is old or new, the
//!    others did not change: all frozen entries count, or none.
//!    Now flushes and FUA writes that waited complete.
//! 4. Free the older committed version of each block just committed (I8). *Crash*: recovery
//!    finds two committed entries of one block and keeps the higher seq.
//! 5. Flush the cache device; only then are those slots free (I3). *Crash*: as after step 4.
//!
//! If nothing is uncommitted but a committed slot was overwritten in place, only the flush of
//! step 2 happens; the seq stays.
//!
//! One commit runs at a time (it holds the ledger); whoever asks while it runs joins the next.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{Env, Flags, Io, IoError, IoResult, Request, RequestId, SectorRange, Verdict};
use cairn_block::{Sector, SectorCount};
use cairn_format::writecache::{Entry, Seq, Superblock};
use event_listener::Event;

use super::canary::{self, Bug};
use super::index::SlotState;
use super::{Count, State, WriteCache};

/// Metadata is written in pieces of this many bytes (clipped at its end), neighbours merged.
const GRANULE_BYTES: u64 = 4096;
/// Most bytes of metadata in one request.
const WRITE_BYTES_MAX: u64 = 1 << 20;
/// Most requests of metadata in flight.
const WRITES_MAX: usize = 32;

/// The metadata as it is on disk, or will be when the running step ends. Whoever holds the
/// ledger is the only writer of metadata.
pub(super) struct Ledger {
    bytes: Vec<u8>,
    superblock: Option<Superblock>,
    changed: BTreeSet<u64>,
}

impl Ledger {
    /// A ledger of nothing yet.
    pub fn empty() -> Ledger {
        Ledger { bytes: Vec::new(), superblock: None, changed: BTreeSet::new() }
    }

    /// A ledger over the metadata area as read from the device.
    pub fn of(bytes: Vec<u8>, superblock: Superblock) -> Ledger {
        Ledger { bytes, superblock: Some(superblock), changed: BTreeSet::new() }
    }

    /// Changes an entry in the image.
    pub fn set(&mut self, slot: u32, entry: Entry) {
        entry.write_at(&mut self.bytes, u64::from(slot));
        let offset = 64 + u64::from(slot) * 16;
        self.changed.insert(offset / GRANULE_BYTES);
    }

    /// Makes an entry free in the image; its sector stays, as the kernel leaves it.
    pub fn set_free(&mut self, slot: u32) {
        let entry = Entry::read_at(&self.bytes, u64::from(slot)).expect("the slot exists");
        self.set(slot, Entry { seq: Seq::FREE, ..entry });
    }

    /// Takes the changed pieces as byte ranges, neighbours merged.
    fn take_changed(&mut self) -> Vec<(u64, u64)> {
        let end = self.bytes.len() as u64;
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        for granule in std::mem::take(&mut self.changed) {
            let (from, to) = (granule * GRANULE_BYTES, ((granule + 1) * GRANULE_BYTES).min(end));
            match pieces.last_mut() {
                Some(last) if last.1 == from && to - last.0 <= WRITE_BYTES_MAX => last.1 = to,
                _ => pieces.push((from, to)),
            }
        }
        pieces
    }
}

/// Who waits for a commit.
pub(super) enum Waiter {
    /// A held request, completed with the commit's result.
    Request(RequestId),
    /// A task.
    Ticket(Arc<Ticket>),
}

/// The result of a commit for a task that waits for it.
#[derive(Default)]
pub(super) struct Ticket {
    result: Mutex<Option<IoResult>>,
    event: Event,
}

impl Ticket {
    fn tell(&self, result: IoResult) {
        *self.result.lock() = Some(result);
        self.event.notify(usize::MAX);
    }

    async fn wait(&self) -> IoResult {
        loop {
            let listener = self.event.listen();
            if let Some(result) = *self.result.lock() {
                return result;
            }
            listener.await;
        }
    }
}

/// What one commit covers.
struct Batch {
    /// Slot and entry, as frozen.
    frozen: Vec<(u32, Entry)>,
    overwritten: bool,
    waiters: Vec<Waiter>,
    broken: bool,
}

impl State {
    /// Takes the slots that may be freed because a committed version covers them (I8). One that
    /// is being written back is freed by that, or comes here again when that failed.
    pub(super) fn take_superseded(&mut self) -> Vec<u32> {
        let mut slots = std::mem::take(&mut self.superseded);
        slots.sort_unstable();
        slots.dedup();
        slots.retain(|&slot| self.is_superseded(slot));
        slots
    }

    fn is_superseded(&self, slot: u32) -> bool {
        let entry = self.index.slot(slot);
        let committed = |&above: &u32| self.index.slot(above).state == SlotState::Committed;
        entry.state == SlotState::Committed
            && !entry.in_writeback
            && self.index.versions(entry.block).take_while(|&v| v != slot).any(|v| committed(&v))
    }
}

impl WriteCache {
    pub(super) fn map_flush<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        self.count(env, Count::Flushes, 1);
        let state = self.state.lock();
        if state.broken {
            return Verdict::Failed(IoError::IO);
        }
        let quiet = state.uncommitted_count == 0 && !state.overwritten && !state.committing;
        let durable = state.origin_flushed == state.origin_writes;
        drop(state);
        if quiet && durable {
            return Verdict::Completed;
        }
        let id = request.id();
        self.spawn(env, move |cache, env| async move {
            let result = cache.flush_both(&env).await;
            env.complete(id, result);
        });
        Verdict::Queued
    }

    /// Commits, and flushes the origin, at the same time.
    pub(super) async fn flush_both(&self, env: &Env) -> IoResult {
        let commit = self.join_commit(env);
        let origin = self.flush_origin(env).await;
        commit.wait().await.and(origin)
    }

    /// Makes writes to the origin durable that completed before, if there were any.
    pub(super) async fn flush_origin(&self, env: &Env) -> IoResult {
        let covered = {
            let state = self.state.lock();
            if state.origin_flushed == state.origin_writes {
                return Ok(());
            }
            state.origin_writes
        };
        if let Err(error) = env.io(&self.origin, Io::flush()).await {
            self.origin_flush_failed(env, error);
            return Err(error);
        }
        let mut state = self.state.lock();
        state.origin_flushed = state.origin_flushed.max(covered);
        Ok(())
    }

    fn join_commit(&self, env: &Env) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::default());
        self.state.lock().waiters.push(Waiter::Ticket(ticket.clone()));
        self.kick_commit(env);
        ticket
    }

    /// Waits for a commit that covers everything completed before.
    pub(super) async fn commit(&self, env: &Env) -> IoResult {
        self.join_commit(env).wait().await
    }

    /// Starts committing on this reactor unless somebody does already.
    pub(super) fn kick_commit(&self, env: &Env) {
        {
            let mut state = self.state.lock();
            if state.committing {
                return;
            }
            state.committing = true;
        }
        self.spawn(env, |cache, env| async move { cache.commit_loop(&env).await });
    }

    /// Commits until nobody waits and no count of blocks asks for it.
    async fn commit_loop(&self, env: &Env) {
        loop {
            self.commit_once(env).await;
            let mut state = self.state.lock();
            let full = state.uncommitted_count >= self.config.autocommit_blocks().max(1);
            let again = !state.waiters.is_empty() || (full && !state.broken);
            if !again {
                state.committing = false;
                drop(state);
                self.changed.notify(usize::MAX);
                return;
            }
        }
    }

    async fn commit_once(&self, env: &Env) {
        let mut ledger = self.ledger.lock().await;
        let batch = self.freeze();
        let result = if batch.broken {
            Err(IoError::IO)
        } else {
            self.write_commit(env, &mut ledger, &batch).await
        };
        if let Err(error) = result
            && !batch.broken
        {
            self.break_down(env, "commit failed", error);
        }
        for waiter in batch.waiters {
            match waiter {
                Waiter::Request(id) => env.complete(id, result),
                Waiter::Ticket(ticket) => ticket.tell(result),
            }
        }
        if result.is_ok() && !batch.frozen.is_empty() {
            self.free_superseded(env, &mut ledger).await;
        }
        self.changed.notify(usize::MAX);
    }

    /// Step 0.
    fn freeze(&self) -> Batch {
        let mut state = self.state.lock();
        let mut frozen = Vec::new();
        for slot in std::mem::take(&mut state.uncommitted) {
            let entry = state.index.slot_mut(slot);
            // A slot that was dropped, or dropped and filled again, shows up once or not.
            if entry.state != SlotState::Uncommitted {
                continue;
            }
            entry.state = SlotState::Frozen;
            let original_sector = entry.block * self.block_sectors;
            frozen.push((slot, Entry { original_sector, seq: entry.seq }));
        }
        state.uncommitted_count = 0;
        state.autocommit_at = None;
        if !frozen.is_empty() {
            let next = state.stamp_seq.next().expect("a commit number far below -1");
            state.stamp_seq = next;
        }
        Batch {
            frozen,
            overwritten: std::mem::take(&mut state.overwritten),
            waiters: std::mem::take(&mut state.waiters),
            broken: state.broken,
        }
    }

    /// Steps 1 to 3.
    async fn write_commit(&self, env: &Env, ledger: &mut Ledger, batch: &Batch) -> IoResult {
        if batch.frozen.is_empty() {
            return if batch.overwritten { self.flush_cache(env).await } else { Ok(()) };
        }
        let seq = batch.frozen[0].1.seq;
        for &(slot, entry) in &batch.frozen {
            assert_eq!(entry.seq, seq, "I12: one commit, one seq");
            ledger.set(slot, entry);
        }
        self.write_changed(env, ledger).await?;
        let next = seq.next().expect("freeze took it");
        if canary::planted(Bug::SuperblockBeforeFlush) {
            self.write_superblock(env, ledger, next).await?;
            self.flush_cache(env).await?;
        } else {
            self.flush_cache(env).await?;
            self.write_superblock(env, ledger, next).await?;
        }
        self.mark_committed(batch, next);
        Ok(())
    }

    fn mark_committed(&self, batch: &Batch, seq: Seq) {
        let mut state = self.state.lock();
        state.durable_seq = seq;
        for &(slot, _) in &batch.frozen {
            let block = state.index.slot(slot).block;
            state.index.slot_mut(slot).state = SlotState::Committed;
            let older: Vec<u32> = state.index.versions(block).collect();
            state.superseded.extend(older.into_iter().skip_while(|&v| v != slot).skip(1));
        }
    }

    /// Steps 4 and 5.
    async fn free_superseded(&self, env: &Env, ledger: &mut Ledger) {
        let slots = self.state.lock().take_superseded();
        if !slots.is_empty() {
            // An error broke the cache down already; the commit itself stands.
            let _ = self.free_entries(env, ledger, slots).await;
        }
    }

    /// Frees the entries of committed slots durably, then takes the slots out of the index (I9)
    /// and frees them (I3).
    pub(super) async fn free_entries(
        &self,
        env: &Env,
        ledger: &mut Ledger,
        slots: Vec<u32>,
    ) -> IoResult {
        if self.state.lock().broken {
            return Err(IoError::IO);
        }
        for &slot in &slots {
            ledger.set_free(slot);
        }
        if canary::planted(Bug::ReuseBeforeDurable) {
            self.take_out(env, &slots);
            return self.write_changed(env, ledger).await;
        }
        let result = match self.write_changed(env, ledger).await {
            Ok(()) => self.flush_cache(env).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => self.take_out(env, &slots),
            Err(error) => self.break_down(env, "freeing entries failed", error),
        }
        result
    }

    fn take_out(&self, env: &Env, slots: &[u32]) {
        let waiting = {
            let mut state = self.state.lock();
            for &slot in slots {
                let entry = *state.index.slot(slot);
                match entry.state {
                    SlotState::Committed => {}
                    SlotState::Uncommitted if entry.leaving => state.uncommitted_count -= 1,
                    // Dropped meanwhile by a fill that had been under way.
                    _ => continue,
                }
                state.index.end_writeback(slot);
                state.index.remove(slot);
                state.index.release(slot);
            }
            state.take_slot_waiters()
        };
        self.remap_all(env, waiting);
        self.changed.notify(usize::MAX);
    }

    /// Writes the changed pieces of the image, a bounded number at a time; returns when all have
    /// completed.
    pub(super) async fn write_changed(&self, env: &Env, ledger: &mut Ledger) -> IoResult {
        let mut result = Ok(());
        for window in ledger.take_changed().chunks(WRITES_MAX) {
            let start = |&(from, to): &(u64, u64)| {
                let bytes = &ledger.bytes[from as usize..to as usize];
                self.write_area(env, from, bytes, Flags::empty())
            };
            for write in window.iter().map(start).collect::<Vec<_>>() {
                result = result.and(write.await);
            }
            result?;
        }
        Ok(())
    }

    /// Writes `bytes` at a byte offset of the area.
    pub(super) fn write_area(
        &self,
        env: &Env,
        offset: u64,
        bytes: &[u8],
        flags: Flags,
    ) -> cairn_block::IoFuture {
        let count = SectorCount::of_bytes(bytes.len() as u64);
        let segs = env.segs(count);
        segs.copy_in(0, bytes);
        let start = Sector::of_byte(offset) + self.config.start();
        env.io(&self.cache, Io::write(SectorRange::new(start, count), segs).with(flags))
    }

    pub(super) async fn flush_cache(&self, env: &Env) -> IoResult {
        env.io(&self.cache, Io::flush()).await
    }

    async fn write_superblock(&self, env: &Env, ledger: &mut Ledger, seq: Seq) -> IoResult {
        let superblock = ledger.superblock.as_ref().expect("set by recovery").with_seq(seq);
        ledger.bytes[..64].copy_from_slice(&superblock.encode());
        ledger.superblock = Some(superblock);
        let range = self.geometry.superblock_write();
        let bytes = &ledger.bytes[range.start as usize..range.end as usize];
        self.write_area(env, range.start, bytes, Flags::FUA).await
    }
}
