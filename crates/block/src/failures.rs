//! Failure counts: how often a disk may have lost completed writes, and to whom this was reported.
//!
//! A failed flush may have dropped completed writes of any user of the disk, and the system below
//! reports it once (errseq_t of Linux is the model). So a failure concerns more users than the one
//! whose flush met it. Each disk has a count that only rises. Every user that relies on completed
//! writes remembers a value of it and compares:
//!
//! - a *client* has a [`crate::FailureCursor`]: set when it connects, compared at the end of each
//!   of its flushes, moved only when the flush reports the loss. So each client gets the error
//!   once;
//! - an *internal user* (commit group, batch, merge step, copy) reads the count before the first
//!   write of its unit and compares after the unit's flush. After a failure it reads the count
//!   again and writes again, from its own copy.
//!
//! A mapped device's count is the losses of its own targets plus the counts that its live table
//! passes on ([`crate::Target::failures`]).
//!
//! Invariants:
//! F1. The count rises before the request that failed completes: a user that compares after a later
//!     completion sees it.
//! F2. `told <= count`, and neither falls. `told` counts the failures that were reported to a user,
//!     or repaired: a client that connects later gets no error for them. A loss that no client got
//!     an error for is reported to those who connect later, and after a restart.

use crate::sync::atomic::{AtomicU64, Ordering};

/// The count of one disk. It lives as long as the server, by the disk's identity
/// ([`crate::Registry::failure_count`]), not as long as an open handle.
#[derive(Debug, Default)]
pub struct FailureCount {
    count: AtomicU64,
    told: AtomicU64,
}

impl FailureCount {
    /// Completed writes may be lost. Called before the failing request completes (F1).
    pub fn raise(&self) {
        self.add(1);
    }

    /// The same, for several failures at once.
    pub(crate) fn add(&self, failures: u64) {
        self.count.fetch_add(failures, Ordering::AcqRel);
    }

    /// How many failures there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Up to which failure a user was told, or made it good.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Acquire)
    }

    /// A user was told of the failures up to `count`, or made them good.
    pub fn acknowledge(&self, count: u64) {
        self.told.fetch_max(count, Ordering::AcqRel);
    }
}
