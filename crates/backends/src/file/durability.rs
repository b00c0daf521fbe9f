//! Flush in the page-cache mode.
//!
//! When the system fails to write a cached page back, it says so to one fdatasync and then
//! forgets: the page counts as clean and the next fdatasync succeeds. A disk must not pass
//! that on, so:
//!
//! D1. After one failed fdatasync every later flush and FUA write fails, until the file is
//!     opened again.
//! D2. No two run at once: a success cannot overtake the failure that belonged to the same
//!     pages. Whoever waited is served by the next one, together with all who waited.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use cairn_block::sync::Mutex;
use rustix::io::Errno;

/// The durability of one file's cached pages.
#[derive(Default)]
pub(super) struct PageCacheSync {
    /// How many flushes were asked for.
    asked: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Flushes up to this number are covered by an fdatasync that began after they were asked.
    covered: u64,
    lost: bool,
}

impl PageCacheSync {
    /// Makes every write durable that completed before this call. Blocks: for helper threads,
    /// which also hold the lock while the system call runs (D2).
    pub fn sync(&self, fd: &OwnedFd) -> Result<(), Errno> {
        self.sync_by(|| rustix::io::retry_on_intr(|| rustix::fs::fdatasync(fd)))
    }

    fn sync_by(&self, fdatasync: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let ticket = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut state = self.state.lock();
        if state.lost {
            return Err(Errno::IO);
        }
        if state.covered >= ticket {
            return Ok(());
        }
        let upto = self.asked.load(Ordering::Acquire);
        match fdatasync() {
            Ok(()) => state.covered = upto,
            Err(error) => {
                state.lost = true;
                return Err(error);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn after_a_failed_sync_no_flush_succeeds() {
        let sync = PageCacheSync::default();
        assert_eq!(sync.sync_by(|| Ok(())), Ok(()));
        assert_eq!(sync.sync_by(|| Err(Errno::NOSPC)), Err(Errno::NOSPC));
        assert_eq!(sync.sync_by(|| Ok(())), Err(Errno::IO));
    }

    #[test]
    fn each_flush_is_covered_by_a_sync_that_began_after_it() {
        let sync = Arc::new(PageCacheSync::default());
        let (begun, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        let first = std::thread::spawn({
            let sync = sync.clone();
            move || {
                sync.sync_by(|| {
                    begun.send(()).unwrap();
                    may_go.recv().unwrap();
                    Ok(())
                })
            }
        });
        has_begun.recv().unwrap();
        let (count, counted) = mpsc::channel();
        let late = |count: mpsc::Sender<()>| {
            let sync = sync.clone();
            std::thread::spawn(move || {
                sync.sync_by(|| {
                    count.send(()).unwrap();
                    Ok(())
                })
            })
        };
        let waiters: Vec<_> = (0..4).map(|_| late(count.clone())).collect();
        while sync.asked.load(Ordering::Acquire) < 5 {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        assert_eq!(first.join().unwrap(), Ok(()));
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Ok(()));
        }
        drop(count);
        assert_eq!(counted.iter().count(), 1, "four waiters share one sync, not the first");
    }
}
