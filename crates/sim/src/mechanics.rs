//! What the drives of one world share: time, randomness, the drive operations in flight, the count
//! of writes and the power switch.
//!
//! Every reactor's [`cairn_block::Env`] carries it as its mechanism, so that a drive finds the
//! world of its caller. It holds no `Env`: nothing here may keep a world alive.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::Time;

use crate::drive::{DriveShared, OpId, Started};
use crate::models::Models;

/// At which moment of a write the power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutWhen {
    /// When the write was submitted to a drive; the drive may do all, some or none of it.
    Submitted,
    /// When a drive has done the write, before its request completes.
    Completed,
}

/// Where the power is cut: at a write of any drive of the world, counted from 0 in order of
/// submission. Flushes, write-zeroes and discards count as writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Which write.
    pub index: u64,
    /// At which moment of it.
    pub when: CutWhen,
}

/// A drive operation in flight.
pub(crate) struct InFlight {
    pub drive: Arc<DriveShared>,
    pub started: Started,
}

/// What the drives of one world share.
pub(crate) struct Mechanics {
    now: Cell<Time>,
    pub rng: RefCell<fastrand::Rng>,
    in_flight: RefCell<BTreeMap<(Time, u64), InFlight>>,
    /// Operations that wait for the arm of their drive.
    waiting: RefCell<Vec<InFlight>>,
    /// The drives with timing models.
    pub models: RefCell<Models>,
    count: Cell<u64>,
    writes: Cell<u64>,
    /// Written as metadata.
    metadata_bytes: Cell<u64>,
    /// Requests that passed the gate of their drive.
    gated: Cell<u64>,
    cut: Cell<Option<Cut>>,
    powerless: Cell<bool>,
    fingerprint: Cell<u64>,
}

impl Mechanics {
    pub fn new(seed: u64) -> Mechanics {
        Mechanics {
            now: Cell::default(),
            rng: RefCell::new(fastrand::Rng::with_seed(seed)),
            in_flight: RefCell::default(),
            waiting: RefCell::default(),
            models: RefCell::default(),
            count: Cell::default(),
            writes: Cell::default(),
            metadata_bytes: Cell::default(),
            gated: Cell::default(),
            cut: Cell::default(),
            powerless: Cell::default(),
            fingerprint: Cell::new(0xcbf2_9ce4_8422_2325),
        }
    }

    pub fn now(&self) -> Time {
        self.now.get()
    }

    pub fn set_now(&self, now: Time) {
        debug_assert!(now >= self.now.get(), "time never goes back");
        self.now.set(now);
    }

    /// Schedules the end of an operation; operations that end at the same time do so in seeded
    /// order.
    pub fn plan(&self, after: Duration, op: InFlight) {
        let count = self.count.get();
        self.count.set(count + 1);
        let tie = self.rng.borrow_mut().u64(..1 << 16) << 48 | count;
        self.in_flight.borrow_mut().insert((self.now() + after, tie), op);
    }

    /// Keeps an operation until the arm of its drive starts it.
    pub fn wait(&self, op: InFlight) {
        self.waiting.borrow_mut().push(op);
    }

    /// Takes out a kept operation of a drive.
    pub fn take_waiting(&self, drive: &Arc<DriveShared>, op: OpId) -> InFlight {
        let mut waiting = self.waiting.borrow_mut();
        let own = |kept: &InFlight| kept.started.id == op && Arc::ptr_eq(&kept.drive, drive);
        let index = waiting.iter().position(own).expect("what waits for an arm is kept");
        waiting.swap_remove(index)
    }

    /// When a drive has something to do next.
    pub fn next_end(&self) -> Option<Time> {
        let planned = self.in_flight.borrow().first_key_value().map(|((at, _), _)| *at);
        planned.into_iter().chain(self.models.borrow().next()).min()
    }

    /// Takes the operation that ends first.
    pub fn pop(&self) -> Option<InFlight> {
        self.in_flight.borrow_mut().pop_first().map(|(_, op)| op)
    }

    /// Returns the index of a new write; cuts the power if a cut is set at its submission.
    pub fn count_write(&self) -> u64 {
        let index = self.writes.get();
        self.writes.set(index + 1);
        self.switch(index, CutWhen::Submitted);
        index
    }

    /// A drive has done a write; cuts the power if a cut is set there.
    pub fn write_done(&self, index: u64) {
        self.switch(index, CutWhen::Completed);
    }

    fn switch(&self, index: u64, when: CutWhen) {
        if self.cut.get() == Some(Cut { index, when }) {
            self.powerless.set(true);
        }
    }

    /// Metadata is written.
    pub fn count_metadata(&self, bytes: u64) {
        self.metadata_bytes.set(self.metadata_bytes.get() + bytes);
    }

    /// A request of a drive passes its gate.
    pub fn count_gated(&self) {
        self.gated.set(self.gated.get() + 1);
    }

    pub fn gated(&self) -> u64 {
        self.gated.get()
    }

    pub fn metadata_bytes(&self) -> u64 {
        self.metadata_bytes.get()
    }

    pub fn writes(&self) -> u64 {
        self.writes.get()
    }

    pub fn cut_at(&self, cut: Option<Cut>) {
        self.cut.set(cut);
    }

    /// Switches the power off now.
    pub fn power_off(&self) {
        self.powerless.set(true);
    }

    pub fn is_powerless(&self) -> bool {
        self.powerless.get()
    }

    /// Mixes an event into the run's fingerprint (FNV-1a over words).
    pub fn note(&self, words: &[u64]) {
        let mut hash = self.fingerprint.get();
        for word in words {
            hash = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
        self.fingerprint.set(hash);
    }

    pub fn fingerprint(&self) -> u64 {
        self.fingerprint.get()
    }

    /// Drops everything in flight; for the end of a world.
    pub fn clear(&self) {
        self.in_flight.borrow_mut().clear();
        self.waiting.borrow_mut().clear();
        *self.models.borrow_mut() = Models::default();
    }
}
