//! The properties of a throttle (T1, T2, T6) and of its buckets.

use std::num::NonZeroU64;
use std::time::Duration;

use proptest::prelude::*;

use super::{Burst, Direction, Passage, Rate, Rates, Throttle, ThrottleLimits};
use crate::units::Time;

const SECOND: u64 = 1_000_000_000;

fn rate(per_second: u64, burst: Option<(u64, u64)>) -> Rate {
    let number = |number| NonZeroU64::new(number).unwrap();
    let burst = burst.map(|(per_second, seconds)| Burst {
        per_second: number(per_second),
        seconds: number(seconds),
    });
    Rate { per_second: number(per_second), burst }
}

fn total(rate: Rate) -> Rates {
    Rates { total: Some(rate), ..Rates::default() }
}

fn of_bytes(rate: Rate) -> Throttle {
    Throttle::new(&ThrottleLimits { bytes: total(rate), ..ThrottleLimits::default() })
}

fn of_operations(rate: Rate) -> Throttle {
    Throttle::new(&ThrottleLimits { iops: total(rate), ..ThrottleLimits::default() })
}

fn read(bytes: u64) -> Passage {
    Passage { direction: Direction::Read, bytes }
}

fn write(bytes: u64) -> Passage {
    Passage { direction: Direction::Write, bytes }
}

/// How many pass at once.
fn pass_at(throttle: &Throttle, at: u64, passage: Passage) -> u64 {
    (0..).take_while(|_| throttle.try_pass(Time(at), passage)).count() as u64
}

#[test]
fn limit_without_burst_lets_a_tenth_of_a_second_pass_at_once() {
    let throttle = of_operations(rate(1000, None));
    assert_eq!(pass_at(&throttle, 0, read(4096)), 101);
    assert_eq!(pass_at(&throttle, SECOND, write(4096)), 101);
    assert_eq!(pass_at(&throttle, SECOND + SECOND / 1000, read(4096)), 1);
}

#[test]
fn burst_of_a_second_passes_at_once_and_the_rate_after_it() {
    let throttle = of_operations(rate(100, Some((1000, 1))));
    assert_eq!(pass_at(&throttle, 0, read(512)), 1001);
    assert_eq!(pass_at(&throttle, SECOND, read(512)), 100);
}

#[test]
fn burst_of_ten_seconds_keeps_to_its_own_rate() {
    let throttle = of_operations(rate(100, Some((1000, 10))));
    assert_eq!(pass_at(&throttle, 0, read(512)), 101);
    let mut passed = 101;
    for tenth in 1..200 {
        passed += pass_at(&throttle, tenth * SECOND / 10, read(512));
    }
    // 10 000 of the burst, and what leaks in 19.9 seconds.
    assert_eq!(passed, 10_000 + 1990 + 1);
    assert_eq!(pass_at(&throttle, 20 * SECOND, read(512)), 10);
}

#[test]
fn operation_of_more_bytes_than_the_size_counts_as_several() {
    let iops = total(rate(1000, None));
    let limits = ThrottleLimits { iops, iops_size: NonZeroU64::new(4096), ..Default::default() };
    let throttle = Throttle::new(&limits);
    assert_eq!(pass_at(&throttle, 0, read(4096)), 101);
    throttle.set(&limits);
    assert_eq!(pass_at(&throttle, 0, read(8192)), 51);
    throttle.set(&limits);
    assert_eq!(pass_at(&throttle, 0, read(512)), 101);
}

#[test]
fn write_limit_holds_up_no_read_and_a_total_one_both() {
    let bytes = Rates { write: Some(rate(1000, None)), ..Rates::default() };
    let throttle = Throttle::new(&ThrottleLimits { bytes, ..ThrottleLimits::default() });
    assert!(throttle.try_pass(Time(0), write(5000)) && !throttle.try_pass(Time(0), write(0)));
    assert!(throttle.try_pass(Time(0), read(1 << 40)) && throttle.try_pass(Time(0), read(1)));
    let throttle = of_bytes(rate(1000, None));
    assert!(throttle.try_pass(Time(0), write(5000)) && !throttle.try_pass(Time(0), read(0)));
}

#[test]
fn nothing_is_too_large_to_pass_and_what_follows_pays_for_it() {
    let throttle = of_bytes(rate(1 << 20, None));
    assert!(throttle.try_pass(Time(0), write(32 << 20)));
    // 31.9 seconds until a tenth of a second's bytes are left.
    assert!(!throttle.try_pass(Time(31_899_999_999), read(1)));
    assert!(throttle.try_pass(Time(31_900_000_000), read(1)));
}

#[test]
fn changed_limits_begin_empty_and_none_let_all_pass() {
    let throttle = of_operations(rate(1, None));
    assert!(throttle.is_on() && throttle.try_pass(Time(0), read(1)));
    assert!(!throttle.try_pass(Time(0), read(1)));
    throttle.set(&ThrottleLimits { iops: total(rate(2, None)), ..ThrottleLimits::default() });
    assert!(throttle.try_pass(Time(0), read(1)) && !throttle.try_pass(Time(0), read(1)));
    throttle.set(&ThrottleLimits::default());
    assert!(!throttle.is_on());
    assert!((0..1000).all(|_| throttle.try_pass(Time(0), read(1 << 30))));
}

#[test]
fn time_that_goes_back_leaks_nothing() {
    let throttle = of_operations(rate(10, None));
    assert_eq!(pass_at(&throttle, SECOND, read(1)), 2);
    assert_eq!(pass_at(&throttle, 0, read(1)), 0);
    assert_eq!(pass_at(&throttle, SECOND, read(1)), 0);
}

fn any_rate() -> impl Strategy<Value = Rate> {
    (1..100_000_u64, any::<Option<(u8, u8)>>()).prop_map(|(per_second, burst)| {
        let burst = burst.map(|(times, seconds)| {
            (per_second * (u64::from(times) + 1), u64::from(seconds % 20) + 1)
        });
        rate(per_second, burst)
    })
}

proptest! {
    /// T1, for every interval between two requests.
    #[test]
    fn no_more_passes_than_rate_and_burst_allow(
        rate in any_rate(),
        tries in prop::collection::vec((0..2 * SECOND, 0..200_000_u64), 1..60),
    ) {
        let throttle = of_bytes(rate);
        let (mut now, mut passed) = (0, Vec::new());
        for (pause, bytes) in tries {
            now += pause / 8;
            if throttle.try_pass(Time(now), write(bytes)) {
                passed.push((now, bytes));
            }
        }
        let leaked = |per_second: u64, nanos: u64| {
            u128::from(per_second) * u128::from(nanos) / u128::from(SECOND) + 1
        };
        for (first, &(began, _)) in passed.iter().enumerate() {
            let mut sum = 0_u128;
            for &(at, bytes) in &passed[first..] {
                let (time, per_second) = (at - began, rate.per_second.get());
                let (size, burst) = match rate.burst {
                    None => (leaked(per_second, SECOND / 10), None),
                    Some(burst) => {
                        let max = burst.per_second.get();
                        let is_long = burst.seconds.get() > 1;
                        let size = u128::from(max) * u128::from(burst.seconds.get());
                        (size, is_long.then_some(max))
                    }
                };
                prop_assert!(sum <= size + leaked(per_second, time), "before the last one");
                if let Some(max) = burst {
                    prop_assert!(sum <= leaked(max, SECOND / 10) + leaked(max, time), "burst");
                }
                sum += u128::from(bytes);
            }
        }
    }

    /// T2: each request pays in time for the one before it.
    #[test]
    fn client_within_its_rate_never_waits(
        rate in any_rate(),
        costs in prop::collection::vec(0..1_000_000_u64, 1..100),
    ) {
        let (throttle, mut now) = (of_bytes(rate), 0);
        for bytes in costs {
            prop_assert!(throttle.try_pass(Time(now), read(bytes)));
            let nanos = u128::from(bytes) * u128::from(SECOND);
            let pause = nanos.div_ceil(u128::from(rate.per_second.get()));
            now += u64::try_from(pause).unwrap();
        }
    }

    /// A passage that has to wait may pass at the time that the throttle answers, and not before.
    #[test]
    fn time_to_room_is_exact(rate in any_rate(), bytes in 1..10_000_000_u64) {
        let throttle = of_bytes(rate);
        while throttle.try_pass(Time(0), write(bytes)) {}
        let nanos = throttle.state.lock().time_to_room(Direction::Write);
        prop_assert!(nanos > 0);
        prop_assert!(!throttle.try_pass(Time(0) + Duration::from_nanos(nanos - 1), write(1)));
        prop_assert!(throttle.try_pass(Time(0) + Duration::from_nanos(nanos), write(1)));
    }
}
