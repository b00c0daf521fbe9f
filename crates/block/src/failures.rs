//! Failure counts: how often a disk may have lost completed writes, and to whom this was reported.
//!
//! A failed flush may have dropped completed writes of any user of the disk, and the system below
//! reports it once (errseq_t of Linux is the model). So a failure concerns more users than the one
//! whose flush met it. Each disk has a count that only rises. Every user that relies on completed
//! writes remembers a value of it and compares:
//!
//! - a *client* has a [`FailureCursor`]: set when it connects, compared at the end of each of its
//!   flushes, moved only when the flush reports the loss. So each client gets the error once;
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

use std::sync::Arc;

use crate::disk::Disk;
use crate::error::{IoError, IoResult};
use crate::mutants;
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

/// What one client of a disk was told.
#[derive(Debug)]
pub struct FailureCursor(u64);

impl FailureCursor {
    /// The cursor of a client that connects to `disk` now. It will hear of losses that no client
    /// was told of (F2): it may be the one that wrote, connected again.
    pub fn new(disk: &Arc<dyn Disk>) -> FailureCursor {
        FailureCursor(disk.failures_told())
    }

    /// The result of the client's flush, which the disk answered with `result`. Once the client has
    /// it, call [`FailureCursor::was_told`].
    ///
    /// # Errors
    /// The disk's, or EIO if completed writes may be lost since the client was last told.
    pub fn end_of_flush(&mut self, disk: &Arc<dyn Disk>, result: IoResult) -> IoResult {
        let count = disk.failures();
        if mutants::same("client: failure count at the end of a flush", self.0, count) {
            return result;
        }
        self.0 = count;
        result.and(Err(IoError::IO))
    }

    /// The client has received the results of its flushes so far. If it disconnects before, the
    /// loss stays unreported (F2).
    pub fn was_told(&self, disk: &Arc<dyn Disk>) {
        disk.acknowledge_failures(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Flow;
    use crate::env::Env;
    use crate::error::ErrorKind;
    use crate::request::Request;
    use crate::units::SectorCount;

    #[derive(Default)]
    struct Lossy(FailureCount);

    impl Disk for Lossy {
        fn name(&self) -> String {
            "lossy".to_owned()
        }

        fn sectors(&self) -> SectorCount {
            SectorCount(8)
        }

        fn submit(&self, _env: &Env, _request: &mut Request) -> Flow {
            Flow::Done
        }

        fn failures(&self) -> u64 {
            self.0.count()
        }

        fn failures_told(&self) -> u64 {
            self.0.told()
        }

        fn acknowledge_failures(&self, upto: u64) {
            self.0.acknowledge(upto);
        }
    }

    fn lossy() -> (Arc<Lossy>, Arc<dyn Disk>) {
        let lossy = Arc::<Lossy>::default();
        (lossy.clone(), lossy)
    }

    #[test]
    fn flush_fails_once_per_client() {
        let (lossy, disk) = lossy();
        let mut clients = [FailureCursor::new(&disk), FailureCursor::new(&disk)];
        lossy.0.raise();
        lossy.0.raise();
        for client in &mut clients {
            assert_eq!(client.end_of_flush(&disk, Ok(())), Err(IoError::IO));
            assert_eq!(client.end_of_flush(&disk, Ok(())), Ok(()));
        }
    }

    #[test]
    fn a_failed_flush_reports_the_loss_with_its_own_error() {
        let (lossy, disk) = lossy();
        let mut client = FailureCursor::new(&disk);
        lossy.0.raise();
        let full = Err(IoError::new(ErrorKind::NoSpace));
        assert_eq!(client.end_of_flush(&disk, full), full);
        assert_eq!(client.end_of_flush(&disk, Ok(())), Ok(()));
    }

    #[test]
    fn a_later_clients_flush_fails_unless_another_client_got_the_report() {
        let (lossy, disk) = lossy();
        lossy.0.raise();
        for vanishes in [true, false] {
            let mut later = FailureCursor::new(&disk);
            assert!(later.end_of_flush(&disk, Ok(())).is_err());
            if !vanishes {
                later.was_told(&disk);
            }
        }
        let mut last = FailureCursor::new(&disk);
        assert!(last.end_of_flush(&disk, Ok(())).is_ok());
    }
}
