//! The rate of writeback: a controller that keeps the amount of dirty data near its target, and the
//! times at which writes may begin at that rate. Pure: it has no clock, no lock and no I/O.
//!
//! ```text
//! target        the percentage of the cache, less dirty data of flash-only volumes, times the
//!               device's share of all backing devices of the set
//! proportional  (dirty - target) / p_inverse; or the fragmentation term, if that is more
//! integral      the sum of (dirty - target) * seconds / i_inverse
//! rate          proportional + integral, from the minimum to RATE_MAX, in sectors each second
//! ```
//!
//! These are the kernel's terms; all divisions truncate toward 0.
//!
//! # Rules
//! W1. The rate at most doubles in one step, unless the minimum is more. It falls at once.
//! W2. The sum grows only while writeback keeps up with its rate: a rate that the device cannot
//!     reach does not raise it.
//! W3. The fragmentation term counts when more than [`FRAGMENTED`] percent of the cache are in use
//!     and buckets with dirty data are on average filled by less than a quarter: then writeback
//!     makes many buckets free for few sectors. It does not count while such buckets are packed
//!     inside the cache (`gc`).

use std::time::Duration;

use cairn_block::Time;

/// The rate of a controller that has seen nothing yet.
pub(in super::super) const RATE_FIRST: u64 = 1024;
/// The highest rate, in sectors each second.
const RATE_MAX: i64 = 1_000_000_000;
/// Above so much of the cache in use, in percent, fragmentation counts: a little, more, and most.
const FRAGMENTED: u64 = 50;
const FRAGMENTED_MID: u64 = 57;
const FRAGMENTED_HIGH: u64 = 64;
/// Dirty data is sparse if the buckets in use have more than so many times its dirty sectors.
const SPARSE: u64 = 3;
/// Fractions of shares are of this many bits.
const SHARE_BITS: u32 = 14;
/// Writeback keeps up if its next write is at most so much behind its time.
const BEHIND: Duration = Duration::from_millis(1);
/// A write that is late makes later ones earlier by this at most.
const EARLIEST: Duration = Duration::from_secs(2);
/// The longest wait for one write.
const LATEST: Duration = Duration::from_millis(2500);
/// So many updates without a request make the device idle.
const IDLE_UPDATES: u32 = 6;

/// The constants of the controller, which messages set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub percent: u64,
    pub p_inverse: u64,
    pub i_inverse: u64,
    pub minimum: u64,
    pub update_seconds: u64,
    pub considers_fragments: bool,
    pub fragment_low: u64,
    pub fragment_mid: u64,
    pub fragment_high: u64,
}

/// What is in the cache now; sizes are in sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Dirty data of this device.
    pub dirty: u64,
    /// Dirty data of flash-only volumes, which is never written back.
    pub flash_dirty: u64,
    pub bucket_sectors: u64,
    pub buckets: u64,
    /// Buckets with dirty data or metadata.
    pub buckets_in_use: u64,
    /// This backing device, and all that the set has attached.
    pub backing: u64,
    pub attached: u64,
}

/// What the controller remembers from one step to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub rate: u64,
    /// The sum of the integral term, before its division.
    pub sum: i64,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub rate: u64,
    pub sum: i64,
    /// The terms, as reports show them.
    pub proportional: i64,
    pub integral: i64,
    pub change: i64,
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Load {
    /// How many sectors may be dirty.
    pub fn target(&self, percent: u64) -> u64 {
        let cache = (self.buckets * self.bucket_sectors).saturating_sub(self.flash_dirty);
        let share = (u128::from(self.backing) << SHARE_BITS) / u128::from(self.attached.max(1));
        let target = u128::from(cache * percent / 100) * share.max(1);
        (target >> SHARE_BITS) as u64
    }

    /// The fragmentation term (W3).
    fn fragmentation(&self, terms: &Terms) -> Option<i64> {
        let in_use = self.buckets_in_use * 100 / self.buckets.max(1);
        let is_sparse = is_sparse(self.buckets_in_use, [self.bucket_sectors, self.dirty]);
        if !terms.considers_fragments || in_use <= FRAGMENTED || !is_sparse {
            return None;
        }
        let (term, over) = if in_use <= FRAGMENTED_MID {
            (terms.fragment_low, in_use - FRAGMENTED)
        } else if in_use <= FRAGMENTED_HIGH {
            (terms.fragment_mid, in_use - FRAGMENTED_MID)
        } else {
            (terms.fragment_high, in_use - FRAGMENTED_HIGH)
        };
        let each = self.dirty / self.buckets_in_use.max(1);
        Some(signed(each.saturating_mul(term.saturating_mul(over))))
    }
}

/// True if the buckets in use have little dirty data (W3). `sectors` are those of a bucket, and of
/// the dirty data.
pub(in super::super) fn is_sparse(in_use: u64, sectors: [u64; 2]) -> bool {
    let [bucket_sectors, dirty] = sectors;
    dirty > 0 && in_use * bucket_sectors / dirty > SPARSE
}

/// One step of the controller. `keeps_up` says whether writeback reaches its rate (W2).
pub(super) fn step(memory: Memory, terms: &Terms, load: &Load, keeps_up: bool) -> Step {
    let error = signed(load.dirty) - signed(load.target(terms.percent));
    let mut proportional = error / signed(terms.p_inverse.max(1));
    let mut sum = memory.sum;
    if error < 0 && sum > 0 || error > 0 && keeps_up {
        sum = sum.saturating_add(error.saturating_mul(signed(terms.update_seconds)));
    }
    let integral = sum / signed(terms.i_inverse.max(1));
    if let Some(fragmentation) = load.fragmentation(terms) {
        proportional = proportional.max(fragmentation);
    }
    let minimum = signed(terms.minimum).clamp(1, RATE_MAX);
    let wanted = proportional.saturating_add(integral).min(signed(memory.rate.saturating_mul(2)));
    let rate = wanted.clamp(minimum, RATE_MAX);
    let change = rate - signed(memory.rate);
    Step { rate: rate as u64, sum, proportional, integral, change }
}

/// When the next write may begin.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pacer {
    next: Time,
}

impl Pacer {
    /// When the next write may begin.
    pub fn next(&self) -> Time {
        self.next
    }

    /// A write of so many sectors begins: the one after it has to wait.
    pub fn begin(&mut self, now: Time, sectors: u64, rate: u64) {
        let nanos = u128::from(sectors) * 1_000_000_000 / u128::from(rate.max(1));
        let took = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let earliest = Time(now.0.saturating_sub(EARLIEST.as_nanos() as u64));
        self.next = Time(self.next.0.saturating_add(took.as_nanos() as u64));
        self.next = self.next.clamp(earliest, now + LATEST);
    }

    /// True if writeback is not behind (W2).
    pub fn keeps_up(&self, now: Time) -> bool {
        now < self.next + BEHIND
    }
}

/// Whether clients are active.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Idle {
    /// Requests of clients, as of the last update.
    requests: u64,
    /// Updates since then that saw no request.
    updates: u32,
}

impl Idle {
    /// The rate is updated; clients have sent so many requests until now.
    pub fn update(&mut self, requests: u64) {
        let is_quiet = requests == self.requests;
        self.updates = if is_quiet { self.updates.saturating_add(1) } else { 0 };
        self.requests = requests;
    }

    /// True if no request came during the last updates, nor since. A set with more backing devices
    /// takes more updates.
    pub fn is_idle(&self, requests: u64, attached: u64) -> bool {
        u64::from(self.updates) >= u64::from(IDLE_UPDATES) * attached && requests == self.requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TERMS: Terms = Terms {
        percent: 10,
        p_inverse: 40,
        i_inverse: 10_000,
        minimum: 8,
        update_seconds: 5,
        considers_fragments: true,
        fragment_low: 1,
        fragment_mid: 10,
        fragment_high: 1000,
    };

    /// A cache of 10 000 buckets of 512 KiB: its target is 1 024 000 sectors.
    const LOAD: Load = Load {
        dirty: 1_024_000,
        flash_dirty: 0,
        bucket_sectors: 1024,
        buckets: 10_000,
        buckets_in_use: 1000,
        backing: 7,
        attached: 7,
    };

    const FAST: Memory = Memory { rate: 1 << 40, sum: 0 };

    #[test]
    fn target_is_the_share_of_a_part_of_the_cache() {
        for (percent, flash_dirty, backing, attached, expected) in [
            (10, 0, 7, 7, 1_024_000),
            (10, 240_000, 7, 7, 1_000_000),
            (0, 0, 7, 7, 0),
            (40, 0, 7, 7, 4_096_000),
            (10, 0, 1, 4, 256_000),
            (10, 0, 1, 3, 1_024_000 * 5461 / 16_384),
            (10, 0, 1, 1 << 40, 62),
            (10, 20_000_000, 7, 7, 0),
        ] {
            let load = Load { flash_dirty, backing, attached, ..LOAD };
            assert_eq!(load.target(percent), expected, "{percent} {flash_dirty} {backing}");
        }
    }

    #[test]
    fn rate_is_the_sum_of_the_proportional_and_the_integral_term() {
        // Over the target, the sum before, whether it keeps up -> both terms, the sum, the rate.
        for (over, sum, keeps_up, proportional, integral, sum_after, rate) in [
            (0, 0, true, 0, 0, 0, 8),
            (39, 0, true, 0, 0, 195, 8),
            (40_000, 0, true, 1000, 20, 200_000, 1020),
            (40_000, 0, false, 1000, 0, 0, 1000),
            (40_000, 190_000, false, 1000, 19, 190_000, 1019),
            (-40_000, 0, true, -1000, 0, 0, 8),
            (-40_000, 300_000, true, -1000, 10, 100_000, 8),
            (-40_000, 300_000, false, -1000, 10, 100_000, 8),
            (-40_000, 100_000_000, true, -1000, 9980, 99_800_000, 8980),
            (-40_000, 100_000, true, -1000, -10, -100_000, 8),
            (-40_000, -100_000, true, -1000, -10, -100_000, 8),
            (-79, 0, true, -1, 0, 0, 8),
        ] {
            let dirty = LOAD.dirty.checked_add_signed(over).expect("in range");
            let load = Load { dirty, ..LOAD };
            let found = step(Memory { sum, ..FAST }, &TERMS, &load, keeps_up);
            let change = rate as i64 - (1 << 40);
            let expected = Step { rate, sum: sum_after, proportional, integral, change };
            assert_eq!(found, expected, "{over} {sum} {keeps_up}");
        }
    }

    #[test]
    fn rate_at_most_doubles_and_stays_in_its_range() {
        // The rate before, over the target, the minimum -> the rate.
        for (before, over, minimum, expected) in [
            (8, 4_000_000, 8, 16),
            (1024, 4_000_000, 8, 2048),
            (60_000, 4_000_000, 8, 102_000),
            (1, 4_000_000, 8, 8),
            (1 << 30, 0, 8, 8),
            (8, 0, 100, 100),
            (u64::MAX, 1 << 60, 8, 1_000_000_000),
            (8, 0, 1 << 50, 1_000_000_000),
            (8, -1_024_000, 0, 1),
        ] {
            let terms = Terms { minimum, ..TERMS };
            let load = Load { dirty: LOAD.dirty.checked_add_signed(over).expect("fits"), ..LOAD };
            let found = step(Memory { rate: before, sum: 0 }, &terms, &load, true);
            assert_eq!(found.rate, expected, "{before} {over} {minimum}");
        }
    }

    #[test]
    fn fragmented_cache_is_written_back_the_faster_the_fuller_it_is() {
        // Buckets in use, dirty sectors -> the proportional term.
        for (buckets_in_use, dirty, is_considered, expected) in [
            (5099, 1_020_000, true, -100),
            (5100, 1_020_000, true, 200),
            (5100, 1_020_000, false, -100),
            (5799, 1_020_000, true, 175 * 7),
            (5800, 1_020_000, true, 175 * 10),
            (6400, 1_020_000, true, 159 * 70),
            (6499, 1_020_000, true, 156 * 70),
            (6500, 1_020_000, true, 156 * 1000),
            (9000, 1_020_000, true, 113 * 26_000),
            (9000, 2_400_000, true, 34_400),
            (9000, 2_304_000, true, 256 * 26_000),
            (6500, 50, true, 0),
            (6500, 0, true, -25_600),
        ] {
            let load = Load { buckets_in_use, dirty, ..LOAD };
            let terms = Terms { considers_fragments: is_considered, ..TERMS };
            let found = step(FAST, &terms, &load, true);
            assert_eq!(found.proportional, expected, "{buckets_in_use} {dirty} {is_considered}");
        }
        let load = Load { buckets_in_use: 5100, dirty: 1_304_000, ..LOAD };
        assert_eq!(step(FAST, &TERMS, &load, true).proportional, 7000, "the larger one counts");
    }

    #[test]
    fn writes_begin_at_the_rate_after_a_short_burst() {
        let second = |seconds: u64| Time(seconds * 1_000_000_000);
        let mut pacer = Pacer::default();
        let now = second(100);
        assert!(!pacer.keeps_up(now), "nothing was written");
        for burst in 0..20 {
            assert!(pacer.next() <= now, "{burst}");
            pacer.begin(now, 1024, 10_240);
        }
        pacer.begin(now, 1024, 10_240);
        assert_eq!(pacer.next(), Time(second(100).0), "two seconds are made up for");
        pacer.begin(now, 1024, 10_240);
        assert_eq!(pacer.next(), now + Duration::from_millis(100));
        assert!(pacer.keeps_up(now));
        pacer.begin(now, 1 << 40, 8);
        assert_eq!(pacer.next(), now + Duration::from_millis(2500), "no wait is longer");
        pacer.begin(second(103), 0, 8);
        assert!(!pacer.keeps_up(second(103)), "half a second late");
        pacer.begin(second(200), 8, 8);
        assert_eq!(pacer.next(), second(198), "the rest of the time is gone");
    }

    #[test]
    fn device_is_idle_after_six_updates_without_a_request_until_the_next() {
        let mut idle = Idle::default();
        for update in 0..7 {
            assert!(!idle.is_idle(50, 1), "{update}");
            idle.update(50);
        }
        assert!(idle.is_idle(50, 1));
        assert!(!idle.is_idle(51, 1), "a request came");
        idle.update(51);
        assert!(!idle.is_idle(51, 1));
        (0..6).for_each(|_| idle.update(51));
        assert!(idle.is_idle(51, 1));
    }

    /// The formulas of the format's description, in wide integers.
    fn naive(memory: Memory, terms: &Terms, load: &Load, keeps_up: bool) -> i128 {
        let wide = i128::from;
        let number = |number: u64| i128::from(number);
        let cache = number(load.buckets) * number(load.bucket_sectors) - number(load.flash_dirty);
        let share = ((number(load.backing) << 14) / number(load.attached)).max(1);
        let target = ((cache.max(0) * number(terms.percent) / 100) * share) >> 14;
        let error = number(load.dirty) - target;
        let mut p = error / number(terms.p_inverse);
        let mut sum = wide(memory.sum);
        if (error < 0 && sum > 0) || (error > 0 && keeps_up) {
            sum += error * number(terms.update_seconds);
        }
        let in_use = number(load.buckets_in_use) * 100 / number(load.buckets);
        if terms.considers_fragments && in_use > 50 && load.dirty > 0 {
            let used = number(load.buckets_in_use);
            let t = if in_use <= 57 {
                number(terms.fragment_low) * (in_use - 50)
            } else if in_use <= 64 {
                number(terms.fragment_mid) * (in_use - 57)
            } else {
                number(terms.fragment_high) * (in_use - 64)
            };
            let f = number(load.dirty) / used * t;
            if used * number(load.bucket_sectors) / number(load.dirty) > 3 && f > p {
                p = f;
            }
        }
        let rate = p + sum / number(terms.i_inverse);
        let rate = rate.min(number(memory.rate) * 2);
        rate.max(number(terms.minimum)).min(1_000_000_000)
    }

    prop_compose! {
        fn any_terms()(
            percent in 0..=40_u64,
            p_inverse in 1..100_000_u64,
            i_inverse in 1..100_000_u64,
            minimum in 1..5000_u64,
            update_seconds in 1..=60_u64,
            considers_fragments in any::<bool>(),
            [fragment_low, fragment_mid, fragment_high] in [1..1000_u64, 1..10_000, 1..100_000],
        ) -> Terms {
            Terms {
                percent, p_inverse, i_inverse, minimum, update_seconds, considers_fragments,
                fragment_low, fragment_mid, fragment_high,
            }
        }
    }

    prop_compose! {
        fn any_load()(buckets in 7..5_000_000_u64, bucket_sectors in prop::sample::select(
            vec![16_u64, 128, 1024, 16_384],
        ))(
            buckets in Just(buckets),
            bucket_sectors in Just(bucket_sectors),
            buckets_in_use in 0..=buckets,
            full in 0..=1024_u64,
            flash_dirty in prop_oneof![Just(0), 0..1_000_000_u64],
            (backing, others) in (1..1_u64 << 40, prop_oneof![Just(0), 0..1_u64 << 40]),
        ) -> Load {
            let dirty = buckets_in_use * bucket_sectors / 1024 * full;
            let attached = backing + others;
            Load { dirty, flash_dirty, bucket_sectors, buckets, buckets_in_use, backing, attached }
        }
    }

    proptest! {
        #[test]
        fn steps_are_those_of_the_naive_model(
            terms in any_terms(),
            loads in proptest::collection::vec((any_load(), any::<bool>()), 1..20),
        ) {
            let mut memory = Memory { rate: RATE_FIRST, sum: 0 };
            for (load, keeps_up) in loads {
                let found = step(memory, &terms, &load, keeps_up);
                prop_assert_eq!(i128::from(found.rate), naive(memory, &terms, &load, keeps_up));
                prop_assert!(found.rate <= (memory.rate * 2).max(terms.minimum), "W1");
                memory = Memory { rate: found.rate, sum: found.sum };
            }
        }

        /// A device that writes at the rate, below clients that write at another.
        #[test]
        fn dirty_data_settles_near_its_target(
            writes in 0..20_000_u64,
            dirty in 0..5_000_000_u64,
        ) {
            let (mut memory, mut load) = (Memory { rate: RATE_FIRST, sum: 0 }, LOAD);
            load.dirty = dirty;
            for _ in 0..40_000 {
                let Step { rate, sum, .. } = step(memory, &TERMS, &load, true);
                memory = Memory { rate, sum };
                load.dirty = (load.dirty + writes * 5).saturating_sub(rate * 5);
            }
            let target = load.target(TERMS.percent);
            // The lowest rate is less than what is written by so much until now.
            let grown = writes.saturating_sub(TERMS.minimum) * 5 * 40_000;
            let least = grown.min(target * 9 / 10);
            let expected = least..target * 11 / 10;
            prop_assert!(expected.contains(&load.dirty), "{} of {target}", load.dirty);
        }
    }
}
