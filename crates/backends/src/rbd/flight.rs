//! [`Flight`]: how many calls the cluster has not answered, and whether it is silent.
//!
//! librbd sends a call again until the cluster answers. It has options that end the wait
//! (`rados_osd_op_timeout`), but they end the wait for writes, too, and the cluster may still do
//! such a write later: over one that came after it. So they stay unset, no request is answered
//! before librbd has answered it, and only the end of the process gives one up.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cairn_block::Time;

use super::clock;

/// See the module's description.
#[derive(Default)]
pub(super) struct Flight {
    count: AtomicUsize,
    /// When the cluster last answered, or the first of these calls began; on [`clock`].
    heard: AtomicU64,
}

impl Flight {
    /// A call begins at this time.
    pub fn begin(&self, now: Time) {
        if self.count.load(Ordering::Relaxed) == 0 {
            self.heard.fetch_max(now.0, Ordering::Release);
        }
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// So many calls have been answered.
    pub fn end(&self, count: usize) {
        self.heard.fetch_max(clock::now().0, Ordering::Release);
        self.count.fetch_sub(count, Ordering::AcqRel);
    }

    /// True if calls wait, and none was answered for so long.
    pub fn is_silent(&self, patience: Duration) -> bool {
        let waits = self.count.load(Ordering::Acquire) > 0;
        waits && clock::now().since(Time(self.heard.load(Ordering::Acquire))) >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_cluster_is_silent_if_calls_wait_and_none_is_answered() {
        let flight = Flight::default();
        assert!(!flight.is_silent(Duration::ZERO), "nothing waits");
        flight.begin(clock::now());
        flight.begin(clock::now());
        assert!(flight.is_silent(Duration::ZERO) && !flight.is_silent(LONG));
        std::thread::sleep(Duration::from_millis(60));
        assert!(flight.is_silent(Duration::from_millis(50)));
        flight.end(1);
        assert!(!flight.is_silent(Duration::from_millis(50)), "it has answered");
        flight.end(1);
        assert!(!flight.is_silent(Duration::ZERO));
    }
}
