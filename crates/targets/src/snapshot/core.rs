//! The core of a snapshot: exceptions, readers and store, and their common invariants. It belongs
//! to a COW device, not to a target: tables hand it over, and writers of the origin use it too.
//!
//! Owns the condition of the snapshot (valid, overflowed, invalid) and the one way from a written
//! copy to a settled exception: [`Core::commit`], then [`Core::settle`].
//!
//! # The end of the server
//! An error may be caused by the end of the server alone: by a disk beneath that stays suspended,
//! or by a store that no program will grow any more. The snapshot is then *stopped*. Nothing is
//! committed any more, its device stays unchanged, and its waiters fail, including writes to the
//! origin. So the origin still matches the snapshot when the next server opens both.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
use cairn_block::sync::{Mutex, Padded};
use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, ErrorKind, Events, FailureCount, IoError, IoResult, Sector,
    SectorRange, failures_beneath, mutants, until, yield_once,
};
use cairn_format::snapshot::{ChunkSize, Record};
use event_listener::Event;

use super::acknowledged::Acknowledged;
use super::losses::Losses;
use super::store::{Batch, Metadata, News, Setback, Store};
use super::table::{Bell, Exceptions, Locks, STRIPES, Until, Waiter, stripe_of};
use crate::args::Device;
use crate::epochs::Epochs;
use crate::shared_core::SharedCore;

/// The condition of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Condition {
    /// Serving.
    Valid = 0,
    /// A write found no room (store `PO`): no more writes to the snapshot.
    Overflow = 1,
    /// On its way to invalid: the origin may not yet be written without an exception.
    Ending = 2,
    /// The server ends: the device stays unchanged, and the origin must not change.
    Stopped = 3,
    /// Its table was closed and may be resumed: until then it keeps nothing, but notes whether it
    /// missed anything.
    Closed = 4,
    /// Its content is lost, or served by another table.
    Invalid = 5,
}

/// Why a transient snapshot ends (C3 of `losses`).
pub(super) const LOST: &str = "a flush failed: what it holds may be lost";

/// The error of a stop for a snapshot whose end could not be recorded anywhere.
const UNTOLD_END: &str = "snapshot: it ended, and its header could not be written: its content \
                          must not be trusted, though it looks valid: remove it";

/// The error of a write for which the file system beneath the COW device has no room.
pub(super) const NO_SPACE: IoError = IoError::new(ErrorKind::NoSpace);

/// The error of waiting requests when the server ends.
pub(super) const SHUTDOWN: IoError = IoError::new(ErrorKind::Shutdown);

/// How often the mark of an invalid snapshot is tried, and the time between.
const MARK_ATTEMPTS: u32 = 3;
const MARK_PAUSE: Duration = Duration::from_millis(50);

/// How often a job that waits for room checks for it.
const ROOM_LOOK: Duration = Duration::from_millis(20);
/// Most jobs that wait for room; another one ends the snapshot.
const ROOM_WAITS_MAX: u32 = 1024;

/// Percent of the store from which on an event is wanted; this value: never.
const NO_MARK: u64 = u64::MAX;

/// How many turns of its reactor the owner of a batch waits for another owner's quick commit before
/// it sleeps: about as long as it takes to fall asleep and be woken.
const LOOKS: u32 = 64;

/// One snapshot.
pub(super) struct Core {
    /// As long as a task uses the core, a new table for the same COW device finds it here.
    _shared: Arc<SharedCore<Core>>,
    pub origin: Device,
    pub store: Store,
    pub exceptions: Exceptions,
    /// Readers of the snapshot that went to the origin.
    pub readers: Arc<Epochs<STRIPES>>,
    /// Writers of a merging snapshot that went to the COW device.
    pub writers: Arc<Epochs<STRIPES>>,
    pub merging: bool,
    /// The snapshot's end, in sectors of the origin.
    end_sector: AtomicU64,
    /// Writes that find no room overflow the snapshot instead of ending it.
    overflows: AtomicBool,
    condition: AtomicU8,
    /// While it was closed, a chunk of the origin changed that it has no copy of.
    missed: AtomicBool,
    /// It ended, and its device does not record that.
    unmarked: AtomicBool,
    /// Its loss log does not record it either.
    untold: AtomicBool,
    ended: Mutex<Arc<Bell>>,
    events: Mutex<Events>,
    /// Of the COW device.
    pub losses: Losses,
    /// Of a transient store.
    pub acknowledged: Mutex<Acknowledged>,
    fill_mark_percent: AtomicU64,
    announced: AtomicBool,
    wait_for_room_ms: AtomicU64,
    waits_for_room: AtomicU32,
    users: Padded<AtomicUsize>,
    unused: Event,
}

/// What a new core is made of.
pub(super) struct Parts {
    pub shared: Arc<SharedCore<Core>>,
    pub origin: Device,
    pub cow: Device,
    pub chunk: ChunkSize,
    pub persistent: bool,
    pub merging: bool,
    pub locks: Locks,
    pub events: Events,
}

/// The options that the serving table sets.
pub(super) struct Terms {
    /// The snapshot's end on the mapped device.
    pub end: Sector,
    /// No room for a write overflows the snapshot (store `PO`).
    pub overflows: bool,
    /// When to announce that the store fills up.
    pub fill_mark_percent: Option<u64>,
    /// The events to raise.
    pub events: Events,
    /// Where to count acknowledged writes that are lost.
    pub failures: Arc<FailureCount>,
    /// How long a write to the origin that finds no room waits for the store to grow.
    pub wait_for_room: Duration,
}

/// The result of a wait for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// There is room, or the snapshot has ended: the waiter looks again.
    Over,
    /// It was given up.
    GivenUp,
}

/// A task works with the core: its COW device is in use.
pub(super) struct InUse(Arc<Core>);

impl Drop for InUse {
    fn drop(&mut self) {
        if self.0.users.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.unused.notify(usize::MAX);
        }
    }
}

/// Wakes the waiters.
pub(super) fn wake(env: &Env, waiters: Vec<Waiter>) {
    for waiter in waiters {
        match waiter {
            Waiter::Request(id) => env.remap(id),
            Waiter::Bell(bell) => bell.ring(),
        }
    }
}

impl Core {
    pub fn new(env: &Env, parts: Parts) -> Core {
        let reactors = env.post().reactors();
        let chunks = parts.chunk.chunks_of(parts.origin.disk.sectors().0);
        let losses = Losses::new(parts.cow.disk.as_ref());
        Core {
            _shared: parts.shared,
            origin: parts.origin,
            store: Store::new(parts.cow, parts.chunk, parts.persistent),
            exceptions: Exceptions::new(parts.locks, chunks),
            readers: Epochs::new(reactors),
            writers: Epochs::new(reactors),
            merging: parts.merging,
            end_sector: AtomicU64::new(0),
            overflows: AtomicBool::new(false),
            condition: AtomicU8::new(Condition::Valid as u8),
            missed: AtomicBool::new(false),
            unmarked: AtomicBool::new(false),
            untold: AtomicBool::new(false),
            ended: Mutex::default(),
            events: Mutex::new(parts.events),
            losses,
            acknowledged: Mutex::default(),
            fill_mark_percent: AtomicU64::new(NO_MARK),
            announced: AtomicBool::new(false),
            wait_for_room_ms: AtomicU64::new(0),
            waits_for_room: AtomicU32::new(0),
            users: Padded::default(),
            unused: Event::new(),
        }
    }

    /// Applies the options of a table that begins to serve the snapshot. An overflow ends if there
    /// is room now, because the store grew.
    pub fn serve(&self, terms: &Terms) {
        self.end_sector.store(terms.end.0, Ordering::Release);
        self.overflows.store(terms.overflows, Ordering::Release);
        let mark = terms.fill_mark_percent.unwrap_or(NO_MARK);
        self.fill_mark_percent.store(mark, Ordering::Release);
        let wait_ms = u64::try_from(terms.wait_for_room.as_millis()).unwrap_or(u64::MAX);
        self.wait_for_room_ms.store(wait_ms, Ordering::Release);
        *self.events.lock() = terms.events.clone();
        self.losses.count_on(&terms.failures);
        if self.condition() == Condition::Overflow && self.store.has_room() {
            let (from, to) = (Condition::Overflow as u8, Condition::Valid as u8);
            let _ = self.condition.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        }
        self.announced.store(false, Ordering::Release);
        self.look_at_fill();
    }

    pub fn chunk(&self) -> ChunkSize {
        self.store.chunk
    }

    pub fn chunk_sectors(&self) -> u64 {
        u64::from(self.store.chunk.sectors())
    }

    /// The chunks, first and end, of a range of the origin that belong to the snapshot.
    pub fn chunks_of(&self, range: SectorRange) -> (u64, u64) {
        let end = range.end().0.min(self.end_sector.load(Ordering::Acquire));
        let first = self.chunk().chunk_of(range.start.0).0;
        if range.start.0 >= end { (first, first) } else { (first, self.chunk().chunks_of(end)) }
    }

    /// The range of the origin that is `count` chunks from `chunk`, as far as the origin goes.
    pub fn origin_range(&self, chunk: u64, count: u64) -> SectorRange {
        let end = (chunk + count) * self.chunk_sectors();
        let end = end.min(self.origin.disk.sectors().0);
        let start = (chunk * self.chunk_sectors()).min(end);
        SectorRange::between(Sector(start), Sector(end))
    }

    /// The parts of a range of the origin that have an exception, in order: whole chunks, cut to
    /// the range.
    pub fn changed(&self, range: SectorRange) -> Vec<SectorRange> {
        let (first, end) = self.chunks_of(range);
        let cut = |run: std::ops::Range<u64>| {
            self.origin_range(run.start, run.end - run.start).intersect(range)
        };
        self.exceptions.changed(first, end).into_iter().filter_map(cut).collect()
    }

    /// Where a chunk of the COW device begins.
    pub fn cow_sector(&self, chunk: u64) -> Sector {
        Sector(chunk * self.chunk_sectors())
    }

    pub fn cow(&self) -> &Arc<dyn Disk> {
        &self.store.cow.disk
    }

    pub fn condition(&self) -> Condition {
        match self.condition.load(Ordering::Acquire) {
            0 => Condition::Valid,
            1 => Condition::Overflow,
            2 => Condition::Ending,
            3 => Condition::Stopped,
            4 => Condition::Closed,
            _ => Condition::Invalid,
        }
    }

    /// True if the content can still be read.
    pub fn is_readable(&self) -> bool {
        self.condition() < Condition::Ending
    }

    /// Keeps the COW device in use until the returned guard is dropped. A task that then finds the
    /// content readable finishes its work before a removal of the snapshot returns.
    pub fn enter(self: &Arc<Core>) -> InUse {
        self.users.0.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        InUse(self.clone())
    }

    /// Waits until no task works with the core. Callers have ended it before.
    pub async fn unused(&self) {
        fence(Ordering::SeqCst);
        until(&self.unused, || self.users.0.load(Ordering::Acquire) == 0).await;
    }

    /// Tells the clients of failures of the COW device that concern them (C2 of `losses`). False
    /// if the whole content may be lost (C3): the snapshot is to end.
    pub fn look_at_failures(&self) -> bool {
        let beneath = failures_beneath(self.cow().as_ref());
        if !self.losses.look(self.cow().as_ref()) || self.store.is_persistent() {
            return true;
        }
        let has_none = self.store.committed() == 0;
        if has_none {
            self.acknowledged.lock().survived(beneath);
        }
        has_none
    }

    /// Makes durable what clients wrote in place; no request is under way.
    ///
    /// # Errors
    /// It may be lost.
    pub async fn flush_in_place(self: &Arc<Core>, env: &Env) -> Result<(), ConfigError> {
        if !self.losses.has_in_place() || !self.is_readable() {
            return Ok(());
        }
        let flushed = self.losses.flush(env, &self.store.cow).await;
        if flushed.is_err() && !self.store.is_persistent() {
            self.invalidate(env, LOST).await;
        }
        flushed
    }

    /// Checks what must hold between any two steps: of the exceptions, and of the store.
    pub fn check_state(&self) {
        self.exceptions.check_state();
        self.store.check_state();
    }

    /// Raises an event when the store is filled to the mark, once.
    pub fn look_at_fill(&self) {
        let mark = self.fill_mark_percent.load(Ordering::Acquire);
        if mark == NO_MARK {
            return;
        }
        let [allocated, total, _] = self.store.usage();
        let reached = u128::from(allocated) * 100 >= u128::from(total) * u128::from(mark);
        if reached && !self.announced.swap(true, Ordering::AcqRel) {
            tracing::warn!("{}: {allocated} of {total} sectors are in use", self.named());
            self.events.lock().raise();
        }
    }

    /// The volume that serves it, and the COW device, for the log.
    fn named(&self) -> String {
        format!("{}: {}", self.events.lock().volume(), self.store.cow.argument)
    }

    /// True if a write to the origin that finds no room waits for the store to grow.
    pub fn may_wait_for_room(&self) -> bool {
        self.wait_for_room_ms.load(Ordering::Acquire) > 0
    }

    /// Waits until the store has room again; ends the snapshot if it has none in time. The caller
    /// holds nothing.
    pub async fn wait_for_room(self: &Arc<Core>, env: &Env, gives_up: impl Fn() -> bool) -> Waited {
        let limit = Duration::from_millis(self.wait_for_room_ms.load(Ordering::Acquire));
        let (named, began) = (self.named(), env.now());
        env.warn(&format!("{named}: a write to the origin waits for room"), || {
            format!("{named}: full, a write to the origin waits {limit:?} for it to grow")
        });
        let others = self.waits_for_room.fetch_add(1, Ordering::AcqRel);
        self.events.lock().call_owner();
        let waited = loop {
            // If the system does not report the size, it is unchanged.
            let _ = self.cow().refresh();
            if self.store.has_room() || !self.is_readable() {
                break Waited::Over;
            }
            if gives_up() {
                break Waited::GivenUp;
            }
            if env.now().since(began) >= limit || others >= ROOM_WAITS_MAX {
                self.invalidate(env, "no space left, and the store did not grow").await;
                break Waited::Over;
            }
            env.sleep(ROOM_LOOK).await;
        };
        self.waits_for_room.fetch_sub(1, Ordering::AcqRel);
        waited
    }

    /// A write to the snapshot found no room; true if the snapshot goes on, for readers.
    pub fn overflow(&self) -> bool {
        if !self.overflows.load(Ordering::Acquire) {
            return false;
        }
        let (from, to) = (Condition::Valid as u8, Condition::Overflow as u8);
        let changed =
            self.condition.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        if changed.is_ok() {
            tracing::warn!("{}: full, writes are refused", self.named());
            self.events.lock().raise();
        }
        true
    }

    /// Ends the snapshot. On return its end is durable, if any place could record it (see
    /// [`Core::mark`]), and the origin may be written.
    pub async fn invalidate(self: &Arc<Core>, env: &Env, why: &str) {
        let _in_use = self.enter();
        let first = self.begin_end();
        self.finish_end(env, first, why).await;
    }

    /// Nothing is committed any more. True for the first caller, which must finish the end.
    fn begin_end(&self) -> bool {
        let before = self.condition.fetch_max(Condition::Ending as u8, Ordering::AcqRel);
        before < Condition::Ending as u8
    }

    async fn finish_end(self: &Arc<Core>, env: &Env, first: bool, why: &str) {
        if !first {
            return self.wait_end().await;
        }
        let named = self.named();
        if env.is_ending() {
            tracing::warn!("{named}: stays as it is, the server ends: {why}");
            return self.end(env, Condition::Stopped).await;
        }
        tracing::error!("{named}: invalidated: {why}");
        match self.store.is_persistent() {
            true => self.mark(env).await,
            false => self.acknowledged.lock().end(),
        }
        self.end(env, Condition::Invalid).await;
        self.events.lock().raise();
    }

    /// Makes the end durable: in the header, or in the loss log of the volume. If both fail, the
    /// header is tried again; after that the origin is written nevertheless.
    async fn mark(&self, env: &Env) {
        for attempt in 1..=MARK_ATTEMPTS {
            if self.try_to_mark(env).await {
                return;
            }
            if attempt < MARK_ATTEMPTS {
                env.sleep(MARK_PAUSE).await;
            }
        }
        let named = self.named();
        tracing::error!("{named}: nothing on it says that it ended: never use it again");
    }

    /// True if the end is durable.
    async fn try_to_mark(&self, env: &Env) -> bool {
        let (named, events) = (self.named(), self.events.lock().clone());
        // No other task writes metadata during this.
        let _metadata = self.store.metadata.0.lock().await;
        let Err(error) = self.store.write_invalid(env).await else {
            self.unmarked.store(false, Ordering::Release);
            self.untold.store(false, Ordering::Release);
            events.content_marked();
            return true;
        };
        self.unmarked.store(true, Ordering::Release);
        env.warn(&format!("{named}: header: could not be written"), || {
            format!("{named}: header: could not be written: {error}")
        });
        let kept = events.content_lost().await;
        self.untold.store(!kept, Ordering::Release);
        if kept {
            tracing::warn!("{named}: its end is kept in the state file");
        }
        kept
    }

    /// True if it ended and its device says that it is valid: it must not be opened again.
    pub fn is_unmarked(&self) -> bool {
        self.unmarked.load(Ordering::Acquire)
    }

    /// Its table stops. If the end of the snapshot is not recorded yet, this tries again.
    ///
    /// # Errors
    /// The server ends, and the next one will find a snapshot that looks valid.
    pub async fn mark_at_the_stop(self: &Arc<Core>, env: &Env) -> Result<(), ConfigError> {
        let _in_use = self.enter();
        let is_untold = self.untold.load(Ordering::Acquire);
        if !is_untold || self.try_to_mark(env).await || !env.is_ending() {
            return Ok(());
        }
        Err(ConfigError::new(ConfigKind::Lost, &self.store.cow.argument, UNTOLD_END))
    }

    /// The snapshot was found invalid, or another table serves it from now on, or no table does for
    /// a while: nothing is written.
    pub async fn dismiss(&self, env: &Env, condition: Condition) {
        self.condition.fetch_max(Condition::Ending as u8, Ordering::AcqRel);
        self.end(env, condition).await;
    }

    /// Drops the whole state, to be opened again. The core is dismissed, and no task works with it.
    pub async fn reset(&self) {
        self.exceptions.clear();
        self.store.reset().await;
        self.losses.reset(self.cow().as_ref());
    }

    /// It was opened again: from now on it is a normal snapshot.
    pub fn revive(&self) {
        *self.ended.lock() = Arc::default();
        self.condition.store(Condition::Valid as u8, Ordering::Release);
    }

    /// True if every chunk of a range of the origin has an exception.
    pub fn has_all(&self, range: SectorRange) -> bool {
        let (first, end) = self.chunks_of(range);
        let kept = self.exceptions.changed(first, end);
        first == end || matches!(kept.as_slice(), [run] if *run == (first..end))
    }

    /// Records that a range of the origin is about to change while the snapshot is closed.
    pub fn note_missed(&self, range: SectorRange) {
        if !self.has_all(range) {
            self.missed.store(true, Ordering::Release);
        }
    }

    /// True if a chunk changed while it was closed of which it has no copy. Called after the kin
    /// know that it is open again.
    pub fn has_missed(&self) -> bool {
        self.missed.swap(false, Ordering::AcqRel)
    }

    async fn end(&self, env: &Env, condition: Condition) {
        for stripe in 0..STRIPES {
            self.readers.quiesce(stripe).await;
        }
        self.condition.fetch_max(condition as u8, Ordering::AcqRel);
        wake(env, self.exceptions.settle_all());
        self.ended.lock().ring();
    }

    async fn wait_end(&self) {
        let ended = self.ended.lock().clone();
        ended.wait().await;
    }

    /// Waits until an ending snapshot has ended.
    pub async fn wait_ended(&self) {
        if self.condition() == Condition::Ending {
            self.wait_end().await;
        }
    }

    /// Commits a batch whose data is written. Answers once its records are durable and published;
    /// or the snapshot is invalid and the answer an error; or its data is to be written again.
    pub async fn commit(self: &Arc<Core>, env: &Env, batch: &Batch) -> News {
        let mut looks = if self.store.is_quick() { LOOKS } else { 0 };
        let news = loop {
            if let Some(news) = batch.news() {
                break news;
            }
            if (looks == 0 || !self.store.is_led()) && self.store.lead() {
                self.commit_done(env).await;
                self.commit_the_rest(env);
            } else if looks > 0 {
                looks -= 1;
                yield_once().await;
            } else {
                // The leader, or the owner of the first batch that is not done, commits this one.
                batch.wait_news().await;
            }
        };
        if news == News::Ended(Ok(())) {
            wake(env, self.exceptions.publish(&batch.records));
        }
        news
    }

    /// Commits what is done, as the leader, and lets others lead.
    async fn commit_done(self: &Arc<Core>, env: &Env) {
        let began = env.now();
        let mut metadata = self.store.metadata.0.lock().await;
        let batches = self.store.take_done();
        if batches.is_empty() {
            // The former leader took them, between the look at the queue and the start of this one.
            drop(metadata);
            return self.store.stop_leading(self.store.is_quick());
        }
        let written = self.write_batches(env, &mut metadata, &batches).await;
        let result = match written {
            Ok(()) => Ok(()),
            Err(setback) => match self.redo(env, setback, &batches) {
                Some(error) => Err(error),
                None => {
                    drop(metadata);
                    return self.store.stop_leading(false);
                }
            },
        };
        // Before another leader gets the metadata lock, which a failure leaves without its tail.
        let first = result.is_err() && self.begin_end();
        drop(metadata);
        let is_quick = env.now() == began;
        if let Err(error) = result {
            self.finish_end(env, first, &format!("metadata: {error}")).await;
        }
        self.store.stop_leading(is_quick);
        batches.iter().for_each(|batch| batch.end(result));
    }

    /// What a commit that wrote no record leaves to be done. None: the batches are in other
    /// hands; otherwise the snapshot ends.
    fn redo(&self, env: &Env, setback: Setback, batches: &[Arc<Batch>]) -> Option<IoError> {
        match setback {
            Setback::Failed(error) => Some(error),
            Setback::Lost => {
                let line = format!("{}: a flush failed, copies are written again", self.named());
                env.warn(&line, || line.clone());
                let goes_on = self.look_at_failures() && self.store.put_back_lost(batches);
                (!goes_on).then_some(IoError::IO)
            }
            Setback::NoRoom => {
                let (own, origins): (Vec<_>, Vec<_>) =
                    batches.iter().cloned().partition(|batch| batch.until == Until::Published);
                if own.is_empty() {
                    return Some(NO_SPACE);
                }
                self.store.put_back(&origins);
                own.iter().for_each(|batch| self.give_back(env, batch));
                None
            }
        }
    }

    /// The file system has no room for a write to the snapshot: that fails, and nothing else.
    fn give_back(&self, env: &Env, batch: &Arc<Batch>) {
        let line = format!("{}: no space on its file system, a write to it failed", self.named());
        env.warn(&line, || line.clone());
        self.store.take_back(batch);
        batch.end(Err(NO_SPACE));
    }

    /// Commits the batches that became done in the meantime, in a task, so that the caller need not
    /// wait.
    fn commit_the_rest(self: &Arc<Core>, env: &Env) {
        if !self.store.lead() {
            return;
        }
        let (core, in_use, env_of_task) = (self.clone(), self.enter(), env.clone());
        env.spawn(async move {
            core.commit_done(&env_of_task).await;
            while core.store.lead() {
                core.commit_done(&env_of_task).await;
            }
            drop(in_use);
        });
    }

    async fn write_batches(
        &self,
        env: &Env,
        metadata: &mut Metadata,
        batches: &[Arc<Batch>],
    ) -> Result<(), Setback> {
        if !self.is_readable() {
            return Err(Setback::Failed(IoError::IO));
        }
        let failures = self.cow().failures();
        if !batches.iter().all(|batch| batch.is_whole(failures)) {
            return Err(Setback::Lost);
        }
        let records: Vec<Record> =
            batches.iter().flat_map(|batch| &batch.records).copied().collect();
        self.store.write_records(env, metadata, &records, failures).await?;
        if !self.acknowledged.lock().keep(&records) {
            let named = self.named();
            tracing::warn!("{named}: more exceptions than its crash log holds: a kill ends it");
        }
        Ok(())
    }

    /// Ends the pending exceptions of committed records: waits until the readers that may have
    /// gone to the origin have left it, then lets its writers on.
    pub async fn settle(&self, env: &Env, records: &[Record]) {
        // Usually there is no reader.
        if self.readers.have_left(records.iter().map(|record| stripe_of(record.old.0))) {
            wake(env, self.exceptions.settle(records.iter().map(|record| record.old.0)));
            return;
        }
        let mut rest = records;
        while let Some(first) = rest.first() {
            let stripe = stripe_of(first.old.0);
            let same = rest.iter().take_while(|record| stripe_of(record.old.0) == stripe).count();
            let (now, later) = rest.split_at(same);
            if !mutants::skips("snapshot: wait for readers of the origin") {
                self.readers.quiesce(stripe).await;
            }
            wake(env, self.exceptions.settle(now.iter().map(|record| record.old.0)));
            rest = later;
        }
    }

    /// The data of a batch could not be written. Returns its owner's result.
    pub async fn fail(self: &Arc<Core>, env: &Env, batch: &Arc<Batch>, failed: Failed) -> IoResult {
        if failed.no_space && batch.until == Until::Published {
            self.give_back(env, batch);
            // Later batches may have waited for it.
            self.commit_the_rest(env);
            return Err(NO_SPACE);
        }
        self.invalidate(env, &failed.why).await;
        batch.set_done();
        // The snapshot has ended: no task waits for the result.
        let _ = self.commit(env, batch).await;
        Err(IoError::IO)
    }
}

/// Why the data of a batch was not written.
pub(super) struct Failed {
    pub why: String,
    /// The file system beneath the COW device has no room.
    pub no_space: bool,
}

impl Failed {
    /// The origin of this name answered `error`.
    pub fn reading(name: &str, error: IoError) -> Failed {
        Failed { why: format!("{name}: could not be read: {error}"), no_space: false }
    }

    /// The COW device answered `error`.
    pub fn writing(error: IoError) -> Failed {
        let no_space = error.kind == ErrorKind::NoSpace;
        Failed { why: format!("could not be written: {error}"), no_space }
    }
}
