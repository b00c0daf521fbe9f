//! Health of the origin: the error flag of the status line, and the back-off of writeback.
//!
//! Several writebacks are in flight at a time, and a fault of the origin may affect some sectors
//! only: the success of other blocks does not show that the origin works. So a block that failed is
//! remembered, and the flag is cleared when that block was written back or left the cache. Failures
//! of writebacks that were in flight together count as one for the back-off.

use std::time::Duration;

use cairn_block::Time;

const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// What writeback has seen of the origin.
#[derive(Default)]
pub(super) struct OriginHealth {
    failed: bool,
    /// A block that failed: its writeback is the retry that must succeed. `None`: any block will
    /// do.
    suspect: Option<u64>,
    /// How many writebacks failed in total.
    pub failures: u64,
    /// Nothing is written back before this time.
    pub retry_at: Time,
    backoff: Duration,
}

impl OriginHealth {
    /// A writeback failed, or the flush after it.
    pub fn fail(&mut self, now: Time, suspect: Option<u64>) {
        self.failed = true;
        self.suspect = suspect;
        self.failures += 1;
        if now >= self.retry_at {
            self.backoff = (self.backoff * 2).clamp(BACKOFF_MIN, BACKOFF_MAX);
            self.retry_at = now + self.backoff;
        }
    }

    /// These blocks are durable on the origin.
    pub fn succeed(&mut self, mut blocks: impl Iterator<Item = u64>) {
        if self.suspect.is_none_or(|suspect| blocks.any(|block| block == suspect)) {
            *self = OriginHealth { failures: self.failures, ..OriginHealth::default() };
        }
    }

    /// True if the origin failed and no retry succeeded, unless the block that failed is no longer
    /// cached.
    pub fn has_failed(&self, is_cached: impl Fn(u64) -> bool) -> bool {
        self.failed && self.suspect.is_none_or(is_cached)
    }
}

#[cfg(test)]
mod tests {
    use super::{BACKOFF_MAX, OriginHealth, Time};
    use std::time::Duration;

    const NOW: Time = Time(1_000_000_000);

    #[test]
    fn error_flag_clears_when_the_failed_block_is_written_back() {
        let mut health = OriginHealth::default();
        assert!(!health.has_failed(|_| true));
        health.fail(NOW, Some(7));
        health.succeed([5, 6].into_iter());
        assert!(health.has_failed(|_| true), "others went home, the one that failed did not");
        assert!(health.retry_at > NOW);
        health.succeed([6, 7].into_iter());
        assert!(!health.has_failed(|_| true));
        assert_eq!(health.retry_at, Time(0));
    }

    #[test]
    fn error_flag_clears_when_the_failed_block_leaves_the_cache() {
        let mut health = OriginHealth::default();
        health.fail(NOW, Some(7));
        assert!(!health.has_failed(|block| block != 7));
    }

    #[test]
    fn concurrent_failures_raise_the_back_off_once() {
        let mut health = OriginHealth::default();
        for block in 0..9 {
            health.fail(NOW, Some(block));
        }
        assert_eq!((health.failures, health.retry_at), (9, NOW + Duration::from_secs(1)));
        let later = health.retry_at;
        health.fail(later, Some(1));
        assert_eq!(health.retry_at, later + Duration::from_secs(2));
        for _ in 0..9 {
            health.fail(health.retry_at, Some(1));
        }
        let last = health.retry_at;
        health.fail(last, Some(1));
        assert_eq!(health.retry_at, last + BACKOFF_MAX);
    }
}
