//! Losses by failed flushes of the COW device, and which clients get an error.
//!
//! A failed flush may have dropped any completed write of the device that was not durable. These
//! are
//! C1. the data of chunks whose record is not durable: their commit notices and writes it again (S3
//!     of the store);
//! C2. client writes *in place*, where there was an exception: there is no other copy. If there may
//!     be such a write, the clients get an error: at the end of each of their flushes, and at a
//!     suspend, the device's count is compared with the last one seen ([`Losses::look`]), and the
//!     mapped device's own count is raised. A suspend flushes such writes: afterwards there are
//!     none;
//! C3. all data of a transient store, which is flushed only for clients. The snapshot ends.
//!
//! So a snapshot does not pass on its devices' failure counts. A failure that concerns C1 alone is
//! repaired and acknowledged, and one of the origin concerns the writers of the origin.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, Ordering};
use cairn_block::{ConfigError, ConfigKind, Disk, Env, ErrorKind, FailureCount, IoError, mutants};

use crate::args::Device;

/// The state of a COW device's failures.
pub(super) struct Losses {
    /// A client wrote where there was an exception, and no suspend flushed it (C2).
    in_place: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// Failures up to this count were looked at.
    seen: u64,
    /// The count of the mapped device that serves the snapshot.
    own: Arc<FailureCount>,
}

impl Losses {
    /// Nothing is written yet.
    pub fn new(cow: &dyn Disk) -> Losses {
        let state = State { seen: cow.failures(), own: Arc::default() };
        Losses { in_place: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Starts over: no write in place is outstanding, and earlier failures count as seen.
    pub fn reset(&self, cow: &dyn Disk) {
        self.in_place.store(false, Ordering::Release);
        self.state.lock().seen = cow.failures();
    }

    /// From now on `own` counts the losses of clients.
    pub fn count_on(&self, own: &Arc<FailureCount>) {
        self.state.lock().own = own.clone();
    }

    /// A client writes where there is an exception (C2). For the most part one did before.
    pub fn writes_in_place(&self) {
        if !self.in_place.load(Ordering::Relaxed) {
            self.in_place.store(true, Ordering::Release);
        }
    }

    /// Counts failures that concern clients (C2), before a flush of theirs ends. True if there
    /// were failures since the last look.
    pub fn look(&self, cow: &dyn Disk) -> bool {
        // Held while the count is raised: a caller that finds nothing new finds it raised.
        let mut state = self.state.lock();
        let count = cow.failures();
        if state.seen == count {
            return false;
        }
        state.seen = count;
        if self.in_place.load(Ordering::Acquire) {
            state.own.raise();
        }
        // Later users of the device get no error for it.
        cow.acknowledge_failures(count);
        true
    }

    /// The device was opened with a failure that was not reported to any client. It may have
    /// dropped writes of this snapshot's clients.
    pub fn tell_of_untold(&self, cow: &dyn Disk, own: &FailureCount) {
        let count = cow.failures();
        if count != cow.failures_told() {
            own.raise();
            cow.acknowledge_failures(count);
        }
    }

    /// True if there is something that a flush makes durable.
    pub fn has_in_place(&self) -> bool {
        self.in_place.load(Ordering::Acquire)
    }

    /// Makes client writes in place durable; no request is in flight.
    ///
    /// # Errors
    /// It may be lost.
    pub async fn flush(&self, env: &Env, cow: &Device) -> Result<(), ConfigError> {
        // What a suspended volume beneath was given is durable since its suspend, and a flush of
        // it would wait.
        if cow.disk.mapped().is_some_and(|beneath| beneath.is_suspended()) {
            return Ok(());
        }
        let seen = self.state.lock().seen;
        let flush = async { env.make_durable(&cow.disk).await };
        let flushed = mutants::step("snapshot: flush at a suspend", (), flush).await;
        if flushed.is_err_and(|error| error.kind == ErrorKind::Shutdown) {
            // The server ends, and a volume further down is suspended.
            return Ok(());
        }
        let name = "snapshot: failure count at a suspend";
        if flushed.is_ok() && mutants::same(name, seen, cow.disk.failures()) {
            self.in_place.store(false, Ordering::Release);
            return Ok(());
        }
        self.look(cow.disk.as_ref());
        let lost = ConfigError::new(ConfigKind::System, &cow.argument, "flush");
        Err(lost.with_source(flushed.err().unwrap_or(IoError::IO)))
    }
}
