//! What one client of a disk was told of its failures: see [`FailureCount`](crate::FailureCount),
//! whose invariants F1 and F2 are cited here.

use std::sync::Arc;

use crate::disk::Disk;
use crate::error::{IoError, IoResult};
use crate::mutants;

/// What one client of a disk was told.
#[derive(Debug)]
pub struct FailureCursor {
    count: u64,
    /// An earlier process lost writes of the client and did not tell it.
    owes: bool,
}

impl FailureCursor {
    /// The cursor of a client that connects to `disk` now. It will hear of losses that no client
    /// was told of (F2): it may be the one that wrote, connected again.
    pub fn new(disk: &Arc<dyn Disk>) -> FailureCursor {
        FailureCursor { count: disk.failures_told(), owes: false }
    }

    /// The client was told of nothing that its writes met in an earlier process: its next flush
    /// fails.
    pub fn owe(&mut self) {
        self.owes = true;
    }

    /// True if the client's next flush will report a loss.
    pub fn is_behind(&self, disk: &Arc<dyn Disk>) -> bool {
        self.owes || self.count != disk.failures()
    }

    /// The result of the client's flush, which the disk answered with `result`. Once the client has
    /// it, call [`FailureCursor::was_told`].
    ///
    /// # Errors
    /// The disk's, or EIO if completed writes may be lost since the client was last told.
    pub fn end_of_flush(&mut self, disk: &Arc<dyn Disk>, result: IoResult) -> IoResult {
        let count = disk.failures();
        let owes = std::mem::take(&mut self.owes);
        if mutants::same("client: failure count at the end of a flush", self.count, count) && !owes
        {
            return result;
        }
        self.count = count;
        result.and(Err(IoError::IO))
    }

    /// The client has received the results of its flushes so far. If it disconnects before, the
    /// loss stays unreported (F2).
    pub fn was_told(&self, disk: &Arc<dyn Disk>) {
        disk.acknowledge_failures(self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Flow;
    use crate::env::Env;
    use crate::error::ErrorKind;
    use crate::failures::FailureCount;
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
