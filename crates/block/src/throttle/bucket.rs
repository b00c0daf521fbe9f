//! [`Bucket`]: one limit of a [`Throttle`](super::Throttle), as a level that leaks.
//!
//! Levels are in units (operations or bytes) times nanoseconds. A level of `n` units is `n` times
//! [`UNIT`], and what leaks in some nanoseconds is their number times the rate: no rounding.

use super::{Burst, Rate};

/// One operation or byte.
pub(super) const UNIT: u128 = 1_000_000_000;

/// A limit without a burst has room for a second divided by this; so has a burst.
const SLACK_PART: u128 = 10;

/// See the module's description.
pub(super) struct Bucket {
    rate: Rate,
    level: u128,
    /// Rises with the level, and leaks at the rate of the burst; unused unless that lasts for more
    /// than a second.
    burst_level: u128,
}

impl Bucket {
    /// An empty bucket.
    pub(super) fn new(rate: Rate) -> Bucket {
        Bucket { rate, level: 0, burst_level: 0 }
    }

    fn per_second(&self) -> u128 {
        self.rate.per_second.get().into()
    }

    /// How far the level may be exceeded.
    fn size(&self) -> u128 {
        match self.rate.burst {
            None => self.per_second() * UNIT / SLACK_PART,
            Some(Burst { per_second, seconds }) => {
                let size = u128::from(per_second.get()) * u128::from(seconds.get());
                size.saturating_mul(UNIT)
            }
        }
    }

    /// The rate of a burst that lasts for more than a second.
    fn long_burst(&self) -> Option<u128> {
        let burst = self.rate.burst.filter(|burst| burst.seconds.get() > 1);
        burst.map(|burst| burst.per_second.get().into())
    }

    /// Some nanoseconds pass.
    pub(super) fn leak(&mut self, nanos: u64) {
        let leaked = |per_second: u128| per_second * u128::from(nanos);
        self.level = self.level.saturating_sub(leaked(self.per_second()));
        if let Some(per_second) = self.long_burst() {
            self.burst_level = self.burst_level.saturating_sub(leaked(per_second));
        }
    }

    /// Something of this cost passes.
    pub(super) fn fill(&mut self, cost: u128) {
        self.level = self.level.saturating_add(cost);
        if self.long_burst().is_some() {
            self.burst_level = self.burst_level.saturating_add(cost);
        }
    }

    /// Something of this cost did not pass, which filled the bucket so many nanoseconds ago. What
    /// may have leaked of it since stays: it may be the cost of others that is left.
    pub(super) fn take_back(&mut self, cost: u128, nanos: u64) {
        let kept = |per_second: u128| cost.saturating_sub(per_second * u128::from(nanos));
        self.level = self.level.saturating_sub(kept(self.per_second()));
        if let Some(per_second) = self.long_burst() {
            self.burst_level = self.burst_level.saturating_sub(kept(per_second));
        }
    }

    /// Nanoseconds until neither level is over its size.
    pub(super) fn time_to_room(&self) -> u64 {
        let over = self.level.saturating_sub(self.size());
        let nanos = over.div_ceil(self.per_second());
        let nanos = self.long_burst().map_or(nanos, |per_second| {
            let over = self.burst_level.saturating_sub(per_second * UNIT / SLACK_PART);
            nanos.max(over.div_ceil(per_second))
        });
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}
