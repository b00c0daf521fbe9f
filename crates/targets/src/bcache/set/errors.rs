//! Errors of a device: a count that decays with its requests, and the limit of it.
//!
//! E1. Each error adds [`UNIT`]. With a half-life, the count loses a part in 128 each time an 88th
//!     of the half-life of requests has ended, so that after a whole one half of it is left.
//! E2. The limit is reached by an error, not by a change of the limit.
//!
//! Without a half-life, and without an error, a request costs one load.

use cairn_block::IoResult;
use cairn_block::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What an error adds to the count.
const UNIT: u64 = 1 << 20;
/// In so many steps half of the count decays, by 127/128 each.
const STEPS: u64 = 88;

/// See the module's description.
pub(in super::super) struct Errors {
    count: AtomicU64,
    /// Requests that have ended, while there is a half-life.
    ended: AtomicU64,
    /// The attribute `io_error_limit`.
    pub limit: AtomicU64,
    /// The attribute `io_error_halflife`, in requests; 0: no decay.
    pub halflife: AtomicU64,
}

impl Errors {
    /// No errors.
    pub fn new(limit: u64) -> Errors {
        Errors {
            count: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            halflife: AtomicU64::new(0),
        }
    }

    /// A request has ended. True if its error reaches the limit.
    #[inline]
    pub fn ended(&self, result: IoResult) -> bool {
        let halflife = self.halflife.load(Relaxed);
        if result.is_ok() && halflife == 0 {
            return false;
        }
        self.count(result, halflife)
    }

    #[cold]
    fn count(&self, result: IoResult, halflife: u64) -> bool {
        let step = (halflife / STEPS).max(1);
        if halflife > 0 && (self.ended.fetch_add(1, Relaxed) + 1).is_multiple_of(step) {
            let decay = |count: u64| Some(count / 128 * 127 + count % 128 * 127 / 128);
            // The closure always answers a number.
            let _ = self.count.fetch_update(Relaxed, Relaxed, decay);
        }
        if result.is_ok() {
            return false;
        }
        let before = self.count.fetch_add(UNIT, Relaxed);
        (before + UNIT) / UNIT >= self.limit.load(Relaxed)
    }

    /// How many errors count now.
    pub fn read(&self) -> u64 {
        self.count.load(Relaxed) / UNIT
    }

    /// The device is opened again.
    pub fn reset(&self) {
        self.count.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use cairn_block::IoError;

    use super::*;

    fn errors_until(limit: u64, halflife: u64, well_between: u64) -> Option<u64> {
        let errors = Errors::new(limit);
        errors.halflife.store(halflife, Relaxed);
        (1..1000).find(|_| {
            (0..well_between).for_each(|_| assert!(!errors.ended(Ok(()))));
            errors.ended(Err(IoError::IO))
        })
    }

    #[test]
    fn limit_is_reached_by_as_many_errors_as_it_says_without_a_half_life() {
        assert_eq!(errors_until(8, 0, 1_000), Some(8));
        assert_eq!(errors_until(0, 0, 0), Some(1));
    }

    #[test]
    fn errors_that_are_rarer_than_the_half_life_never_reach_the_limit() {
        assert_eq!(errors_until(8, 8_800, 8_800), None);
        // More often than the decay takes them away.
        assert!(errors_until(8, 8_800, 800).is_some_and(|errors| errors > 8));
    }

    #[test]
    fn half_of_the_count_is_left_after_a_half_life() {
        let errors = Errors::new(1 << 30);
        (0..100).for_each(|_| assert!(!errors.ended(Err(IoError::IO))));
        errors.halflife.store(8_800, Relaxed);
        (0..8_800).for_each(|_| assert!(!errors.ended(Ok(()))));
        assert!((49..=51).contains(&errors.read()), "{}", errors.read());
        errors.reset();
        assert_eq!(errors.read(), 0);
    }
}
