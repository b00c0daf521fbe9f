//! What the volumes of one set share: the cache device, the set in memory, and the right to change
//! the set on the device.
//!
//! # Who changes what
//! - The set in memory changes under its lock, which no one holds across I/O. Reads look for hits
//!   beside each other (H1 to H3).
//! - Leaves, priorities, the array of uuids and the superblock are written by the holder of the
//!   *turn* ([`Core::change`]): a drain, a checkpoint, a detach.
//! - Entries of the journal are written by the holder of the turn of the journal, one at a time
//!   (J1): by group commits (`journal::groups`), and by the holder of the other turn.
//!
//! # Hits
//! H1. A read that finds an extent takes the lock for reading alone ([`Core::look`]). It changes
//!     only what is atomic, and what no decision of another read depends on: its leaf was found
//!     (M4), its bucket was used, and its reactor has requested so many sectors. A read that finds
//!     anything else looks again under the lock for changes ([`Core::lock`]).
//! H2. A hit enters the epoch of the readers under the lock for reading. What it found is changed
//!     under the other one, which comes before the whole lookup or after it. So rule E1 of `epochs`
//!     holds as with one lock.
//! H3. The set is open, and not broken, whenever a lookup says so: while requests are in flight
//!     both change under the lock for changes.
//!
//! # Failures
//! C1. After the first write or flush of metadata that fails, or the error that reaches
//!     `cache/io_error_limit`, the set is *broken*: nothing is written to it until it is opened
//!     again. `degraded` says what its volumes do then.
//! C2. Keys that a client relies on and that no durable entry has are lost with that, so the counts
//!     of failures of their volumes rise, and these are stopped.

use std::sync::{Arc, Weak};

use cairn_block::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use cairn_block::sync::{Mutex, MutexGuard, Padded};
use cairn_block::{
    BiasedLock, Copier, CrashMemory, Env, Exclusive, IoError, IoResult, RequestId, TaskGroup,
    mutants,
};
use cairn_format::bcache::Key;
use event_listener::Event;
use futures_util::lock::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};

use super::acknowledged::Untold;
use super::errors::Errors;
use super::leaves::{NODE_CACHE_BYTES, Trimming};
use super::session::{Session, WriteError};
use super::users::{Serving, Users};
use super::{CacheDevice, Set};
use crate::args::Device;
use crate::bcache::btree::Which;
use crate::bcache::canary::{Bug, planted};
use crate::bcache::coverage::{self, Path};
use crate::bcache::gc::Gc;
use crate::bcache::superblocks::intact;
use crate::bcache::work;
use crate::epochs::Epochs;
use crate::fair::Fair;

/// The default of `journal_delay_ms`.
const JOURNAL_DELAY_MS: u64 = 100;
/// The default of `cache/io_error_limit`: after so many errors of the device the set is in error.
const ERROR_LIMIT: u64 = 8;
/// Memory of the copies inside the cache.
const COPY_BYTES: u64 = 8 << 20;

/// See the module's description.
pub(in super::super) struct Core {
    me: Weak<Core>,
    pub cache: CacheDevice,
    /// The set; none before the first resume.
    set: BiasedLock<Option<Set>>,
    /// Sectors that each reactor has requested and the clock of uses does not count yet.
    requested: Box<[Padded<AtomicU64>]>,
    /// Requests that read from the cache device.
    pub readers: Arc<Epochs<1>>,
    /// Requests that write to a new place on the cache device, until their key is in the tree.
    pub writers: Arc<Epochs<1>>,
    /// Requests that write in place on the cache device (V3).
    pub overwriters: Arc<Epochs<1>>,
    turn: Fair<()>,
    pub(in super::super) journal_turn: Fair<()>,
    /// The attribute of this name: how long a key waits for the journal at most.
    pub journal_delay_ms: AtomicU64,
    /// Of its requests, but for those of metadata.
    pub errors: Errors,
    /// The set could not be written: nothing more is, until it is opened again.
    broken: AtomicBool,
    /// The keeper runs.
    is_kept: AtomicBool,
    /// The tasks end.
    stopping: AtomicBool,
    pub tasks: Arc<TaskGroup>,
    /// Notified at every change that a task may wait for.
    pub changed: Event,
    /// Notified when the data of a write has arrived.
    pub arrived: Event,
    /// The volumes that serve the set, and the lock of U4.
    users: Mutex<Users>,
    handover: AsyncMutex<()>,
    /// The device was flushed since the set was closed (R12).
    is_flushed: AtomicBool,
    /// Dirty sectors of its flash-only volumes.
    flash_dirty: AtomicU64,
    pub gc: Gc,
    /// Memory of the copies inside the cache.
    pub copier: Copier,
    /// The attribute `btree_cache_size`: the limit of the extents in memory, in bytes.
    pub node_cache: AtomicU64,
    pub(super) trimming: Trimming,
    /// The memory of its crash log; none if there is no place for one.
    pub(super) log_memory: Option<Arc<dyn CrashMemory>>,
    /// The lock of F6.
    pub(super) untold: Mutex<Untold>,
    /// How many tasks read leaves while none may be marked to leave (`leaves`).
    pub(super) gathering: AtomicUsize,
}

impl Core {
    /// The core of a set that is not open.
    pub fn new(
        reactors: u16,
        device: Device,
        log_memory: Option<Arc<dyn CrashMemory>>,
    ) -> Arc<Core> {
        Arc::new_cyclic(|me| Core {
            me: me.clone(),
            cache: CacheDevice::new(device),
            set: BiasedLock::new(reactors, None),
            requested: (0..reactors).map(|_| Padded::default()).collect(),
            readers: Epochs::new(reactors),
            writers: Epochs::new(reactors),
            overwriters: Epochs::new(reactors),
            turn: Fair::new(()),
            journal_turn: Fair::new(()),
            journal_delay_ms: AtomicU64::new(JOURNAL_DELAY_MS),
            errors: Errors::new(ERROR_LIMIT),
            broken: AtomicBool::new(true),
            is_kept: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            tasks: Arc::default(),
            changed: Event::new(),
            arrived: Event::new(),
            users: Mutex::default(),
            handover: AsyncMutex::default(),
            is_flushed: AtomicBool::new(false),
            flash_dirty: AtomicU64::new(0),
            gc: Gc::default(),
            copier: Copier::new(COPY_BYTES),
            node_cache: AtomicU64::new(NODE_CACHE_BYTES),
            trimming: Trimming::default(),
            log_memory,
            untold: Mutex::default(),
            gathering: AtomicUsize::new(0),
        })
    }

    /// The set, locked for changes.
    pub fn lock(&self) -> Exclusive<'_, Option<Set>> {
        let guard = self.set.lock();
        work::begin();
        guard
    }

    /// Looks at the set while nothing changes it, beside reads of other reactors (H1).
    #[inline]
    pub fn look<T>(&self, env: &Env, look: impl FnOnce(Option<&Set>) -> T) -> T {
        self.set.read(env.reactor(), |set| {
            work::begin();
            look(set.as_ref())
        })
    }

    /// A request uses so many sectors of the cache. The caller has locked the set. They are added
    /// up per reactor until the clock of uses goes on by them, so that requests of different
    /// reactors share no counter.
    #[inline]
    pub fn requested(&self, env: &Env, set: &Set, sectors: u64) {
        let own = &self.requested[usize::from(env.reactor().0)].0;
        let sum = own.load(Ordering::Relaxed) + sectors;
        let is_tick = sum >= set.buckets.tick();
        own.store(if is_tick { 0 } else { sum }, Ordering::Relaxed);
        if is_tick {
            set.buckets.requested(sum);
        }
    }

    /// Looks at the open set, under its lock.
    pub fn with<T>(&self, look: impl FnOnce(&mut Set) -> T) -> T {
        look(self.lock().as_mut().expect("the set is open"))
    }

    /// The set is about to be read. What was open before is gone.
    pub fn close(&self) {
        self.broken.store(true, Ordering::Relaxed);
        self.is_flushed.store(false, Ordering::Relaxed);
        *self.set.lock() = None;
        self.cache.open();
    }

    /// The set was read.
    ///
    /// # Errors
    /// It is broken by now.
    pub async fn open(&self, env: &Env, set: Set) -> Result<(), WriteError> {
        let flash = set.flash_volumes();
        *self.set.lock() = Some(set);
        self.errors.reset();
        self.stopping.store(false, Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
        let mut dirty = 0;
        for inode in flash {
            let mut count = |key: &Key| {
                dirty += if key.is_dirty() { key.sectors() } else { 0 };
                true
            };
            self.scan_volume(env, inode, Which::Dirty, &mut count).await?;
        }
        self.flash_dirty.store(dirty, Ordering::Relaxed);
        self.trim_soon(env);
        Ok(())
    }

    /// True if the set could not be written, and was not opened again since.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// C1.
    ///
    /// # Errors
    /// The set is broken.
    pub fn check(&self) -> Result<(), WriteError> {
        if self.is_broken() { Err(WriteError::Broken) } else { Ok(()) }
    }

    /// A request for data has ended; its error counts.
    #[inline]
    pub fn count(&self, env: &Env, result: IoResult) {
        if self.errors.ended(result) {
            self.break_down(env, &WriteError::Errors(self.errors.read()));
        }
    }

    /// Changes the set on the device, in turn. After an error the set is broken.
    ///
    /// # Errors
    /// The set cannot be written, or is broken.
    pub async fn change<T>(
        &self,
        env: &Env,
        work: impl AsyncFnOnce(&Session<'_>) -> Result<T, WriteError>,
    ) -> Result<T, WriteError> {
        let _turn = self.turn.lock().await;
        self.check()?;
        let changed = work(&Session { env, core: self }).await;
        changed.inspect_err(|error| self.break_down(env, error))
    }

    /// The set cannot be written any more (C1, C2).
    pub fn break_down(&self, env: &Env, error: &WriteError) {
        // F6.
        let mut untold = self.untold.lock();
        let (waiting, lost) = {
            let mut guard = self.set.lock();
            if self.broken.swap(true, Ordering::Relaxed) {
                return;
            }
            let covered = self.cache.overwrites_covered();
            guard.as_mut().map_or_else(Default::default, |set| set.give_up(covered))
        };
        let volumes = {
            let users = self.users.lock();
            users.tell(&lost).for_each(|(inode, count)| untold.add(inode, count));
            users.names()
        };
        drop(untold);
        coverage::take(Path::Broken);
        let cache = &self.cache.device().argument;
        let lost = if lost.is_empty() { "" } else { "; acknowledged writes may be lost" };
        tracing::error!("{volumes}: {cache}: the set cannot be written any more: {error}{lost}");
        self.remap_all(env, waiting);
        self.changed.notify(usize::MAX);
    }

    /// Has requests that waited mapped again.
    pub fn remap_all(&self, env: &Env, requests: Vec<RequestId>) {
        requests.into_iter().for_each(|id| env.remap(id));
    }

    /// A write of data to this sector has ended. Answers what its client gets. The caller has
    /// locked the set.
    pub fn end_of_write(&self, set: &mut Set, sector: u64, result: IoResult) -> IoResult {
        if result.is_err() {
            set.write_failed(sector);
        }
        result.and(if self.is_broken() { Err(IoError::IO) } else { Ok(()) })
    }

    /// Starts the keeper and the collector, unless they run.
    pub fn start_keeper(&self, env: &Env) {
        if !self.is_kept.swap(true, Ordering::Relaxed) {
            self.spawn(env, async |core, env| core.keep(env).await);
            self.spawn(env, async |core, env| core.keep_packed(env).await);
        }
    }

    /// Starts a task that a suspend waits for.
    pub fn spawn(&self, env: &Env, task: impl AsyncFnOnce(&Core, &Env) + 'static) {
        let core = self.me();
        self.tasks.spawn(env, async move |env| task(&core, env).await);
    }

    /// This core, to keep it.
    pub(super) fn me(&self) -> Arc<Core> {
        self.me.upgrade().expect("a core that is used is alive")
    }

    /// True once the tasks are to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// The lock of U4.
    pub async fn handover(&self) -> Option<AsyncMutexGuard<'_, ()>> {
        match planted(Bug::NoHandover) {
            true => None,
            false => Some(self.handover.lock().await),
        }
    }

    /// The volumes that serve the set.
    pub fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock()
    }

    /// What was written to the device before it was opened is durable on return (R12): copies of
    /// metadata that a failure may have dropped are written again, and the device is flushed.
    ///
    /// # Errors
    /// The device failed.
    pub async fn make_durable(&self, env: &Env) -> IoResult {
        if self.is_flushed.load(Ordering::Relaxed) || planted(Bug::NoFlushAtOpening) {
            return Ok(());
        }
        self.cache.write_again(env).await?;
        let device = self.cache.device();
        let known = device.disk.failures();
        let flush = env.make_durable(&device.disk);
        mutants::step("bcache: flush at opening", (), flush).await?;
        intact(device, known)?;
        self.is_flushed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// A volume begins to serve the set. The caller has the handover.
    pub fn join(&self, serving: Serving) {
        self.users.lock().join(serving);
    }

    /// A volume is suspended. The last one ends the session, and the tasks (U3).
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn leave(&self, env: &Env, inode: u32) -> Result<(), WriteError> {
        let _handover = self.handover().await;
        let is_last = {
            let mut users = self.users.lock();
            users.leave(inode);
            users.are_none()
        };
        if !is_last {
            coverage::take(Path::LeaveShared);
            return Ok(());
        }
        let ended = match self.with(|set| set.has_session()) && !self.is_broken() {
            true => self.end_session(env).await,
            false => Ok(()),
        };
        self.stop().await;
        ended
    }

    async fn end_session(&self, env: &Env) -> Result<(), WriteError> {
        self.with(|set| set.open_buckets.close_all(&mut set.buckets));
        self.checkpoint(env).await?;
        self.change(env, async |session| session.end().await).await
    }

    /// More, or fewer, sectors of flash-only volumes are dirty.
    pub fn add_flash_dirty(&self, sectors: i64) {
        self.flash_dirty.fetch_add(sectors as u64, Ordering::Relaxed);
    }

    /// Dirty sectors of the flash-only volumes of the set.
    pub fn flash_dirty(&self) -> u64 {
        self.flash_dirty.load(Ordering::Relaxed)
    }

    /// Ends the tasks.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.changed.notify(usize::MAX);
        self.tasks.idle().await;
        self.is_kept.store(false, Ordering::Relaxed);
    }
}
