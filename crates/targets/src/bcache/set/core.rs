//! What the volumes of one set share: the cache device, the set in memory, and the right to change
//! the set on the device.
//!
//! # Who changes what
//! - The set in memory changes under its lock, which no one holds across I/O.
//! - Leaves, priorities, the array of uuids and the superblock are written by the holder of the
//!   *turn* ([`Core::change`]): a drain, a checkpoint, a detach.
//! - Entries of the journal are written by the holder of the turn of the journal, one at a time
//!   (J1): by group commits (`journal::groups`), and by the holder of the other turn.
//!
//! # Failures
//! C1. After the first write or flush of metadata that fails, the set is *broken*: nothing is
//!     written to it until it is opened again. Requests that need a change fail.
//! C2. Keys that a client relies on and that no durable entry has are lost with that, so the count
//!     of failures of the volume rises. Reads of their sectors fail: the data may be gone from the
//!     device, or be that of another extent.

use std::sync::{Arc, Weak};

use cairn_block::sync::atomic::{AtomicBool, Ordering};
use cairn_block::sync::{Mutex, MutexGuard};
use cairn_block::{Env, FailureCount, RequestId, TaskGroup};
use event_listener::Event;

use super::session::{Session, WriteError};
use super::{CacheDevice, Set};
use crate::args::Device;
use crate::epochs::Epochs;
use crate::fair::Fair;

/// See the module's description.
pub(in super::super) struct Core {
    me: Weak<Core>,
    pub cache: CacheDevice,
    /// The set; none before the first resume.
    set: Mutex<Option<Set>>,
    /// Requests that read from the cache device.
    pub readers: Arc<Epochs<1>>,
    turn: Fair<()>,
    pub(in super::super) journal_turn: Fair<()>,
    /// The set could not be written: nothing more is, until it is opened again.
    broken: AtomicBool,
    /// The keeper runs.
    is_kept: AtomicBool,
    /// The tasks end.
    stopping: AtomicBool,
    pub tasks: Arc<TaskGroup>,
    /// Notified at every change that a task may wait for.
    pub changed: Event,
    /// The failure count of the mapped device.
    failures: Arc<FailureCount>,
    /// The name of the volume, for the log.
    volume: String,
}

impl Core {
    /// The core of a set that is not open.
    pub fn new(
        reactors: u16,
        device: Device,
        volume: &str,
        failures: Arc<FailureCount>,
    ) -> Arc<Core> {
        Arc::new_cyclic(|me| Core {
            me: me.clone(),
            cache: CacheDevice::new(device),
            set: Mutex::new(None),
            readers: Epochs::new(reactors),
            turn: Fair::new(()),
            journal_turn: Fair::new(()),
            broken: AtomicBool::new(true),
            is_kept: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            tasks: Arc::default(),
            changed: Event::new(),
            failures,
            volume: volume.to_owned(),
        })
    }

    /// The set, locked.
    pub fn lock(&self) -> MutexGuard<'_, Option<Set>> {
        self.set.lock()
    }

    /// Looks at the open set, under its lock.
    pub fn with<T>(&self, look: impl FnOnce(&mut Set) -> T) -> T {
        look(self.set.lock().as_mut().expect("the set is open"))
    }

    /// The set is about to be read. What was open before is gone.
    pub fn close(&self) {
        self.broken.store(true, Ordering::Relaxed);
        *self.set.lock() = None;
        self.cache.open();
    }

    /// The set was read.
    pub fn open(&self, set: Set) {
        *self.set.lock() = Some(set);
        self.stopping.store(false, Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
    }

    /// True if the set could not be written, and was not opened again since.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
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
        if self.is_broken() {
            return Err(WriteError::Broken);
        }
        let changed = work(&Session { env, core: self }).await;
        changed.inspect_err(|error| self.break_down(env, error))
    }

    /// The set cannot be written any more (C1, C2).
    pub fn break_down(&self, env: &Env, error: &WriteError) {
        let (waiting, is_lost) = {
            let mut guard = self.set.lock();
            if self.broken.swap(true, Ordering::Relaxed) {
                return;
            }
            guard.as_mut().map_or_else(Default::default, Set::give_up)
        };
        let (volume, cache) = (&self.volume, &self.cache.device().argument);
        let lost = if is_lost { "; acknowledged writes may be lost" } else { "" };
        if is_lost {
            self.failures.raise();
        }
        tracing::error!("{volume}: {cache}: the set cannot be written any more: {error}{lost}");
        self.remap_all(env, waiting);
        self.changed.notify(usize::MAX);
    }

    /// A suspend began that does not wait: requests that wait for a bucket go back.
    pub fn hand_back(&self, env: &Env) {
        let mut guard = self.set.lock();
        let Some(set) = guard.as_mut() else { return };
        set.changes.is_handing_back = true;
        std::mem::take(&mut set.changes.waiting).into_iter().for_each(|id| env.hand_back(id));
    }

    /// The suspend was called off.
    pub fn keep_requests(&self) {
        if let Some(set) = self.set.lock().as_mut() {
            set.changes.is_handing_back = false;
        }
    }

    /// Has requests that waited mapped again.
    pub fn remap_all(&self, env: &Env, requests: Vec<RequestId>) {
        requests.into_iter().for_each(|id| env.remap(id));
    }

    /// Starts the keeper, unless it runs.
    pub fn start_keeper(&self, env: &Env) {
        if !self.is_kept.swap(true, Ordering::Relaxed) {
            self.spawn(env, async |core, env| core.keep(env).await);
        }
    }

    /// Starts a task that a suspend waits for.
    pub fn spawn(&self, env: &Env, task: impl AsyncFnOnce(&Core, &Env) + 'static) {
        let core = self.me.upgrade().expect("a core that is used is alive");
        self.tasks.spawn(env, async move |env| task(&core, env).await);
    }

    /// True once the tasks are to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Ends the tasks.
    pub async fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.changed.notify(usize::MAX);
        self.tasks.idle().await;
        self.is_kept.store(false, Ordering::Relaxed);
    }
}
