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
//! F3. A count in memory that outlives the process is found by the next one as it was: a loss that
//!     no client was told of before a kill is told after it.

use std::fmt;
use std::sync::Arc;

use crate::crash_log::{CrashMemory, begin_count, count_in, told_in};
use crate::sync::atomic::{AtomicU64, Ordering};

/// The count of one disk. It lives as long as the server, by the disk's identity
/// ([`crate::Registry::failure_count`]), not as long as an open handle.
pub struct FailureCount(Words);

enum Words {
    /// The count, and what was told.
    Own(AtomicU64, AtomicU64),
    /// Both outlive the process (F3).
    Kept(Arc<dyn CrashMemory>),
}

impl fmt::Debug for FailureCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailureCount")
            .field("count", &self.count())
            .field("told", &self.told())
            .finish()
    }
}

impl Default for FailureCount {
    fn default() -> FailureCount {
        FailureCount(Words::Own(AtomicU64::new(0), AtomicU64::new(0)))
    }
}

impl FailureCount {
    /// A count in memory that outlives the process.
    pub(crate) fn kept(memory: Arc<dyn CrashMemory>) -> FailureCount {
        begin_count(&*memory);
        FailureCount(Words::Kept(memory))
    }

    /// What a kill now leaves, for the next process of a simulated machine (F3).
    pub fn after_kill(&self) -> FailureCount {
        FailureCount(Words::Own(AtomicU64::new(self.count()), AtomicU64::new(self.told())))
    }

    /// Completed writes may be lost. Called before the failing request completes (F1).
    pub fn raise(&self) {
        self.add(1);
    }

    /// The same, for several failures at once.
    pub(crate) fn add(&self, failures: u64) {
        match &self.0 {
            Words::Own(count, _) => count.fetch_add(failures, Ordering::AcqRel),
            Words::Kept(memory) => count_in(&**memory).fetch_add(failures, Ordering::AcqRel),
        };
    }

    /// How many failures there were.
    pub fn count(&self) -> u64 {
        match &self.0 {
            Words::Own(count, _) => count.load(Ordering::Acquire),
            Words::Kept(memory) => count_in(&**memory).load(Ordering::Acquire),
        }
    }

    /// Up to which failure a user was told, or made it good.
    pub fn told(&self) -> u64 {
        match &self.0 {
            Words::Own(_, told) => told.load(Ordering::Acquire),
            Words::Kept(memory) => told_in(&**memory).load(Ordering::Acquire),
        }
    }

    /// A user was told of the failures up to `count`, or made them good.
    pub fn acknowledge(&self, count: u64) {
        match &self.0 {
            Words::Own(_, told) => told.fetch_max(count, Ordering::AcqRel),
            Words::Kept(memory) => told_in(&**memory).fetch_max(count, Ordering::AcqRel),
        };
    }
}
