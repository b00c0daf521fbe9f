//! Congestion of the cache device: how slow its requests have been lately, and how long a stream
//! must be to bypass it for that.
//!
//! The count is at most 0. A request of the cache device that takes longer than the threshold of
//! its direction lowers it by its milliseconds, at most to -[`MAX`]; any other request raises it by
//! one. A millisecond is 1024 microseconds here, as in the kernel.
//!
//! All reactors share the count. While the device is quick they only read it.

use std::time::Duration;

use cairn_block::Time;
use cairn_block::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// The count is this much below 0 at most.
const MAX: i64 = 1024;
/// Bits of the fraction in the exponent that the count is.
const FRACTION: u32 = 6;
/// Microseconds of a millisecond.
const MILLISECOND: i64 = 1024;

/// The direction of a request of the cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Direction {
    Read,
    Write,
}

/// See the module's description.
pub(in super::super) struct Congestion {
    count: AtomicI64,
    /// When a request was last too slow, in microseconds.
    last_slow_us: AtomicU64,
    /// The attributes `congested_read_threshold_us` and `congested_write_threshold_us`: 0 turns
    /// the measurement off.
    pub read_threshold_us: AtomicU64,
    pub write_threshold_us: AtomicU64,
}

impl Default for Congestion {
    fn default() -> Congestion {
        Congestion {
            count: AtomicI64::new(0),
            last_slow_us: AtomicU64::new(0),
            read_threshold_us: AtomicU64::new(2_000),
            write_threshold_us: AtomicU64::new(20_000),
        }
    }
}

fn micros(time: Time) -> u64 {
    time.0 / 1000
}

impl Congestion {
    /// A request of the cache device has ended.
    #[inline]
    pub fn ended(&self, now: Time, direction: Direction, took: Duration) {
        let threshold = match direction {
            Direction::Read => &self.read_threshold_us,
            Direction::Write => &self.write_threshold_us,
        };
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        match threshold.load(Relaxed) {
            0 => {}
            threshold if took_us > threshold => self.was_slow(now, took_us),
            _ if self.count.load(Relaxed) < 0 => {
                self.count.fetch_add(1, Relaxed);
            }
            _ => {}
        }
    }

    #[cold]
    fn was_slow(&self, now: Time, took_us: u64) {
        self.last_slow_us.store(micros(now), Relaxed);
        let took = i64::try_from(took_us).unwrap_or(i64::MAX) / MILLISECOND;
        let lower = |count: i64| Some(count - took.min(MAX + count));
        let _ = self.count.fetch_update(Relaxed, Relaxed, lower);
    }

    /// How many sectors a stream must have to bypass the cache; none if the device is not
    /// congested. Only a congested device uses the random number, which keeps clients from
    /// bypassing it all at once.
    #[inline]
    pub fn limit(&self, now: Time, random: impl FnOnce() -> u32) -> Option<u64> {
        match self.count.load(Relaxed) {
            0.. => None,
            count => self.limit_of(count, now, random),
        }
    }

    #[cold]
    fn limit_of(&self, count: i64, now: Time, random: impl FnOnce() -> u32) -> Option<u64> {
        if self.read_threshold_us.load(Relaxed) == 0 && self.write_threshold_us.load(Relaxed) == 0 {
            return None;
        }
        // A time that lies ahead is one that another reactor wrote in a later turn.
        let since = micros(now).saturating_sub(self.last_slow_us.load(Relaxed));
        let count = count.saturating_add_unsigned(since / MILLISECOND as u64);
        if count >= 0 {
            return None;
        }
        let sectors = exp2((count + MAX).max(0) as u64) - i64::from(random().count_ones());
        Some(sectors.max(1) as u64)
    }
}

/// Two to the power of `exponent` / 64, linear between powers; 0 for 0.
fn exp2(exponent: u64) -> i64 {
    if exponent == 0 {
        return 0;
    }
    let fraction = 1 << FRACTION;
    let mantissa = fraction + exponent % fraction;
    (mantissa << (exponent / fraction) >> FRACTION) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_micros(1024);

    fn congested(count: i64, at: Time) -> Congestion {
        let congestion = Congestion::default();
        congestion.count.store(count, Relaxed);
        congestion.last_slow_us.store(micros(at), Relaxed);
        congestion
    }

    #[test]
    fn requests_slower_than_their_threshold_lower_the_count_by_their_milliseconds() {
        use Direction::{Read, Write};
        let us = Duration::from_micros;
        for (before, direction, took, expected) in [
            (0, Read, us(2000), 0),
            (0, Read, us(2001), -1),
            (0, Read, us(2048), -2),
            (-5, Read, us(2000), -4),
            (0, Write, us(20_000), 0),
            (0, Write, us(20_001), -19),
            (-1, Write, us(20_000), 0),
            (0, Read, MS * 1023, -1023),
            (0, Read, MS * 5000, -1024),
            (-1000, Read, MS * 30, -1024),
            (-1024, Read, MS * 30, -1024),
            (-1024, Read, Duration::MAX, -1024),
            (-1024, Read, us(1), -1023),
        ] {
            let congestion = congested(before, Time(0));
            congestion.ended(Time(0), direction, took);
            let found = congestion.count.load(Relaxed);
            assert_eq!(found, expected, "{before} {direction:?} {took:?}");
        }
    }

    #[test]
    fn threshold_of_zero_turns_the_measurement_off() {
        let congestion = congested(-3, Time(0));
        congestion.read_threshold_us.store(0, Relaxed);
        congestion.ended(Time(0), Direction::Read, Duration::from_secs(1));
        assert_eq!(congestion.count.load(Relaxed), -3);
        assert!(congestion.limit(Time(0), || 0).is_some(), "writes are still measured");
        congestion.write_threshold_us.store(0, Relaxed);
        assert_eq!(congestion.limit(Time(0), || 0), None);
    }

    #[test]
    fn limit_grows_with_the_time_since_the_last_slow_request() {
        let at = Time(7_000_000_000);
        for (count, ms, random, expected) in [
            (0, 0, 0, None),
            (-1, 0, 0, Some(65_024)),
            (-1, 0, u32::MAX, Some(64_992)),
            (-1, 0, 0b1011, Some(65_021)),
            (-1, 1, 0, None),
            (-64, 0, 0, Some(32_768)),
            (-65, 1, 0, Some(32_768)),
            (-96, 0, 0, Some(24_576)),
            (-512, 0, 0, Some(256)),
            (-1023, 0, 0, Some(1)),
            (-1024, 0, 0, Some(1)),
            (-1024, 64 * 6, 0, Some(64)),
            (-1024, 64 * 6, u32::MAX, Some(32)),
            (-1024, 64 * 5, u32::MAX, Some(1)),
            (-1024, 1023, 0, Some(65_024)),
            (-1024, 1024, 0, None),
            (-1024, 9_000_000, 0, None),
        ] {
            let limit = congested(count, at).limit(at + MS * ms, || random);
            assert_eq!(limit, expected, "{count} {ms} {random:x}");
        }
        assert_eq!(congested(-512, at).limit(Time(0), || 0), Some(256), "a slow request ahead");
    }

    #[test]
    fn device_that_is_not_congested_uses_no_random_number() {
        let limit = congested(0, Time(0)).limit(Time(0), || panic!("no random number"));
        assert_eq!(limit, None);
    }

    proptest! {
        #[test]
        fn count_stays_in_its_range_and_limits_are_a_sector_at_least(
            ends in proptest::collection::vec(
                (any::<bool>(), 0..3_000_000_u64, any::<u32>()),
                1..200,
            ),
        ) {
            let congestion = Congestion::default();
            let mut now = Time(0);
            for (is_read, took, random) in ends {
                now = now + Duration::from_micros(took / 7);
                let direction = if is_read { Direction::Read } else { Direction::Write };
                congestion.ended(now, direction, Duration::from_micros(took));
                let count = congestion.count.load(Relaxed);
                prop_assert!((-MAX..=0).contains(&count), "{count}");
                let limit = congestion.limit(now, || random);
                prop_assert_eq!(limit.is_some(), count < 0, "at the time of the slow request");
                prop_assert!(limit.is_none_or(|sectors| (1..=65_024).contains(&sectors)));
            }
        }
    }
}
