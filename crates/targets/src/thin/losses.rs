//! Losses: the writes that a failed flush or commit may have lost, and which clients get an error.
//!
//! L1. The failure count of the data device is `known` from before the first write into any data
//!     block that no commit has mapped. A commit compares after its flush of the data device. If
//!     the count rose, that write may be lost, and the block may hold the former data of another
//!     volume. No new mapping may become durable then: the commit fails, because there is no other
//!     copy of the data.
//! L2. `known` takes the new count when nothing depends on the former value: all writes have ended
//!     that began before the new value was read, and no volume has a change. This is checked by a
//!     flush or write that fails here, and, for failures that other users met, by each commit and
//!     by the background task.
//! L3. A write in place goes to the data device only: a volume passes on that device's failure
//!     count. Failures of the metadata device concern the volumes whose changes were rolled back.
//!     The external origin is only read: its failures are reported to its own writers.
//! L4. A volume whose changes are rolled back raises the failure counts of the mapped devices that
//!     serve it, before any waiter is answered. Each client gets one error, at its next flush, even
//!     if table and pool are gone by then.
//! L5. The suspend of the pool reports, once, which volumes lost changes since the last suspend.
//! L6. The crash log says that there is a loss until clients were told: a client of each volume
//!     that has it and is served. If the process is killed before, the next one raises the failure
//!     count of the first mapped device that serves each volume, for the log does not say which
//!     volumes lost something.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairn_block::{ConfigError, ConfigKind, Env, FailureCount, IoError, failures_beneath, mutants};
use cairn_format::thin::DeviceId;

use super::metadata::MetadataError;
use super::pool::Pool;

/// Changes that were rolled back.
#[derive(Clone)]
struct Loss {
    /// The device that failed.
    device: String,
    why: String,
    volumes: Vec<DeviceId>,
}

impl Loss {
    fn as_error(&self) -> ConfigError {
        let volumes: Vec<_> = self.volumes.iter().map(ToString::to_string).collect();
        let detail =
            format!("{}; changes of thin devices {} are lost", self.why, volumes.join(", "));
        ConfigError::new(ConfigKind::System, &self.device, detail)
    }
}

/// The state of a pool's losses.
pub(super) struct Losses {
    /// L1.
    known: AtomicU64,
    /// A task checks whether `known` may follow.
    looking: AtomicBool,
    /// The last one.
    last: Mutex<Option<Loss>>,
    /// No suspend has reported it.
    untold: AtomicBool,
    owed: Arc<Owed>,
}

/// The losses of a metadata device's volumes that no client was told of (L6). They outlive its
/// pools.
#[derive(Default)]
pub(super) struct Owed(Mutex<Debts>);

#[derive(Default)]
struct Debts {
    /// Volumes that no table has served since an earlier process lost something.
    unserved: BTreeSet<DeviceId>,
    raised: Vec<Raised>,
    /// Changes are being rolled back: more may come.
    is_growing: bool,
}

/// The failure count of a mapped device, and its value after a loss.
pub(super) type Raised = (Arc<FailureCount>, u64);

fn raise(failures: &Arc<FailureCount>) -> Raised {
    failures.raise();
    (failures.clone(), failures.count())
}

impl Losses {
    /// No losses of this pool. `failures` is the data device's failure count.
    pub fn new(failures: u64, owed: Arc<Owed>) -> Losses {
        Losses {
            known: AtomicU64::new(failures),
            looking: AtomicBool::new(false),
            last: Mutex::default(),
            untold: AtomicBool::new(false),
            owed,
        }
    }

    /// A mapped device with this failure count begins to serve a volume (L6).
    pub fn serve(&self, volume: DeviceId, failures: &Arc<FailureCount>) {
        let mut debts = self.owed.0.lock();
        if debts.unserved.remove(&volume) {
            debts.raised.push(raise(failures));
        }
    }
}

impl Pool {
    /// True if the data device failed since L1's count.
    pub fn has_data_failed(&self) -> bool {
        let known = self.losses.known.load(Ordering::Acquire);
        !mutants::same("thin: failure count of the data device", known, self.data_disk().failures())
    }

    /// Everything is durable or rolled back, and no request is under way: L1 begins here.
    pub fn know_data(&self) {
        self.know(self.data_failures());
    }

    /// The failure counts beneath the data device, and then its own.
    fn data_failures(&self) -> (u64, u64) {
        let beneath = failures_beneath(self.data_disk().as_ref());
        (beneath, self.data_disk().failures())
    }

    /// Nothing depends on failures until these counts.
    fn know(&self, (beneath, failures): (u64, u64)) {
        self.losses.known.store(failures, Ordering::Release);
        self.metadata.acknowledged().survived(beneath);
    }

    /// If the data device failed, starts a task that checks whether anything depends on it (L2).
    pub fn look_at_data(&self, env: &Env) {
        if !self.has_data_failed() || self.losses.looking.swap(true, Ordering::AcqRel) {
            return;
        }
        self.spawn(env, async |pool, _env| {
            let failures = pool.data_failures();
            pool.epochs.quiesce(0).await;
            // Writes that began before are mapped by now, or never will be.
            if !pool.open_volumes().iter().any(|volume| volume.is_changed()) {
                pool.know(failures);
            }
            pool.losses.looking.store(false, Ordering::Release);
        });
    }

    /// An earlier process lost what these volumes may have acknowledged (L6).
    pub fn owe_before(&self, volumes: impl IntoIterator<Item = DeviceId>) {
        let mut debts = self.losses.owed.0.lock();
        debts.unserved.extend(volumes);
        self.forget_loss_if_told(&debts);
    }

    /// What is not durable is about to be rolled back (L6).
    pub fn begin_loss(&self) {
        self.losses.owed.0.lock().is_growing = true;
        self.metadata.acknowledged().lose();
    }

    /// It was, and these failure counts rose.
    pub fn end_loss(&self, raised: Vec<Raised>) {
        let mut debts = self.losses.owed.0.lock();
        debts.is_growing = false;
        debts.raised.extend(raised);
        self.forget_loss_if_told(&debts);
    }

    /// A client of the mapped device with this failure count was told of all its losses.
    pub fn told(&self, failures: &Arc<FailureCount>) {
        let mut debts = self.losses.owed.0.lock();
        let is_untold =
            |(count, value): &Raised| !Arc::ptr_eq(count, failures) || count.told() < *value;
        let before = debts.raised.len();
        debts.raised.retain(is_untold);
        if debts.raised.len() < before {
            // Who is served was told, and those who are not have no client.
            self.forget_loss(&debts);
        }
    }

    fn forget_loss_if_told(&self, debts: &Debts) {
        if debts.unserved.is_empty() {
            self.forget_loss(debts);
        }
    }

    fn forget_loss(&self, debts: &Debts) {
        if debts.raised.is_empty() && !debts.is_growing {
            self.metadata.acknowledged().told();
        }
    }

    /// Notes that these volumes were rolled back.
    pub fn note_loss(&self, error: &MetadataError, volumes: Vec<DeviceId>) {
        if volumes.is_empty() {
            return;
        }
        let device = if error.is_of_data() { &self.data } else { &self.metadata_device };
        let loss = Loss {
            device: device.argument.clone(),
            why: format!("commit failed: {error}"),
            volumes,
        };
        tracing::error!("{}: {}", self.name(), loss.as_error());
        *self.losses.last.lock() = Some(loss);
        self.losses.untold.store(true, Ordering::Release);
    }

    /// The commit of a volume that is suspended failed with `error`.
    pub fn loss_of(&self, error: IoError) -> ConfigError {
        let last = self.losses.last.lock().as_ref().map(Loss::as_error);
        last.unwrap_or_else(|| {
            let failed = ConfigError::new(ConfigKind::System, &self.data.argument, "flush");
            failed.with_source(error)
        })
    }

    /// L5.
    pub fn take_loss(&self) -> Result<(), ConfigError> {
        if !self.losses.untold.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let last = self.losses.last.lock().as_ref().map(Loss::as_error);
        last.map_or(Ok(()), Err)
    }
}

/// The failures of its data device that one table passes on, as a count of its own: it begins where
/// the count of the table's former attachment ended, even if the pool's data device is another by
/// now.
pub(super) struct PassedOn(u64);

impl PassedOn {
    /// The failures since `told` were not reported to any client; `before` were passed on already.
    pub fn new(told: u64, before: u64) -> PassedOn {
        PassedOn(told.wrapping_sub(before))
    }

    /// A count of the data device as one of the table.
    pub fn count(&self, of_device: u64) -> u64 {
        of_device.wrapping_sub(self.0)
    }
}

/// Which mapped devices wrote to a volume (L4).
#[derive(Default)]
pub(super) struct Writers(Mutex<Vec<Arc<FailureCount>>>);

impl Writers {
    /// A table begins to serve the volume.
    pub fn add(&self, failures: &Arc<FailureCount>) {
        self.0.lock().push(failures.clone());
    }

    /// A table has ended, and everything that it wrote is durable or rolled back.
    pub fn remove(&self, failures: &Arc<FailureCount>) {
        let mut writers = self.0.lock();
        if let Some(at) = writers.iter().position(|writer| Arc::ptr_eq(writer, failures)) {
            writers.swap_remove(at);
        }
    }

    /// Their writes may be lost: raises their failure counts.
    pub fn tell(&self) -> Vec<Raised> {
        self.0.lock().iter().map(raise).collect()
    }
}
