//! Tests of the rate of the background writeback, over a set of 1406 buckets of 64 KiB: its target
//! is 17 996 sectors.

use std::time::Duration;

use super::*;
use cairn_block::TURN_BYTES;

/// Nothing is dirty. Streams do not bypass the cache, and it may be dirty for the most part.
fn test_set() -> Fixture {
    let [cache, backing] = large(&[]);
    let test = Fixture::new([("c", cache), ("b", backing)]);
    test.load("v", &format!("0 {LARGE} bcache b c 0"));
    set(&test, "sequential_cutoff", "0");
    set(&test, "cutoff_writeback", "70");
    test
}

fn set(test: &Fixture, name: &'static str, value: &'static str) {
    test.message("v", &["set", name, value]).expect("a value in its range");
}

fn get(test: &Fixture, name: &'static str) -> String {
    test.message("v", &["get", name]).expect("an attribute")
}

fn dirty(test: &Fixture) -> u64 {
    test.target("v").report().number("dirty_data").expect("a field")
}

/// Writes so many times 4 KiB, apart from each other.
fn write_apart(test: &Fixture, count: u64) {
    (0..count).for_each(|at| test.write("v", at * 16, 8, 7).expect("the drives are well"));
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Writes of data and flushes that the backing device got since the last call.
fn written_back(test: &Fixture) -> (usize, usize) {
    let ops = test.ops("b");
    let data = ops.iter().filter(|(op, at, _)| *op == Op::Write && *at >= 16).count();
    (data, ops.iter().filter(|(op, ..)| *op == Op::Flush).count())
}

#[test]
fn data_below_the_target_waits_for_the_delay_and_is_written_back_at_the_lowest_rate() {
    let test = test_set();
    set(&test, "idle_max_writeback_rate", "0");
    write_apart(&test, 100);
    test.forget();
    test.run(seconds(29));
    assert_eq!(written_back(&test), (0, 0));
    test.run(seconds(41));
    // Two seconds at once, then one of 4 KiB each second. A batch takes ten seconds.
    let (writes, flushes) = written_back(&test);
    assert!((38..=45).contains(&writes) && (3..=5).contains(&flushes), "{writes} {flushes}");
    assert_eq!(get(&test, "writeback_rate"), "8");
    assert!((100 - 45) * 8 <= dirty(&test) && dirty(&test) <= (100 - 28) * 8);
    // A batch has what was its amount when it began.
    set(&test, "writeback_rate_minimum", "80");
    test.run(seconds(20));
    assert_eq!(dirty(&test), 0);
}

#[test]
fn data_above_the_target_is_written_back_at_a_rate_that_at_most_doubles() {
    let test = test_set();
    (0..40).for_each(|at| test.write("v", at * 2048, 2000, 7).expect("the drives are well"));
    assert_eq!(dirty(&test), 80_000);
    let rate = || get(&test, "writeback_rate").parse::<u64>().expect("a number");
    assert_eq!(rate(), 1024);
    test.run(seconds(6));
    // 80 000 - 17 996 is 62 004: its 40th part, and 5 times its 10 000th one.
    assert_eq!(rate(), 1550 + 31);
    set(&test, "writeback_rate_p_term_inverse", "1");
    let mut rates = vec![rate()];
    for _ in 0..3 {
        test.run(seconds(5));
        rates.push(rate());
    }
    let doubled: Vec<u64> = (0..4).map(|times| rates[0] << times).collect();
    assert_eq!(rates[..3], doubled[..3]);
    let left = dirty(&test);
    let slow: u64 = rates[..2].iter().map(|rate| rate * 5).sum::<u64>() + 1024 * 6;
    assert!(80_000 - left > slow / 2 && 80_000 - left < slow * 3, "{left} {rates:?}");
}

#[test]
fn nothing_is_written_back_while_writeback_is_off_but_by_a_drain() {
    let test = test_set();
    set(&test, "writeback_running", "0");
    (0..40).for_each(|at| test.write("v", at * 2048, 2000, 7).expect("the drives are well"));
    test.forget();
    test.run(seconds(300));
    assert_eq!(written_back(&test), (0, 0));
    let debug = get(&test, "writeback_rate_debug");
    let expected = "rate:\t\t0.0k/sec\ndirty:\t\t39.0M\ntarget:\t\t8.7M\nproportional:\t0.0k\n\
                    integral:\t0.0k\nchange:\t\t0.0k/sec\nnext io:\t0ms";
    assert_eq!(debug, expected);
    drain(&test).expect("the drives are well");
    assert_eq!(dirty(&test), 0);
}

#[test]
fn data_is_written_back_at_once_if_none_may_be_dirty() {
    let test = test_set();
    set(&test, "writeback_percent", "0");
    (0..40).for_each(|at| test.write("v", at * 2048, 2000, 7).expect("the drives are well"));
    test.run(seconds(1));
    assert_eq!(dirty(&test), 0);
}

#[test]
fn drain_waits_for_no_pace() {
    let test = test_set();
    set(&test, "writeback_delay", "0");
    set(&test, "writeback_rate", "8");
    set(&test, "writeback_running", "0");
    write_apart(&test, 400);
    set(&test, "writeback_running", "1");
    test.run(seconds(5));
    assert!(dirty(&test) == 3200 && written_back(&test).0 > 5, "a batch waits for its pace");
    let began = test.sim.now();
    drain(&test).expect("the drives are well");
    let took = test.sim.now().since(began);
    assert!(dirty(&test) == 0 && took < seconds(1), "{took:?}");
}

#[test]
fn idle_device_is_written_back_at_once_until_the_next_request() {
    let [cache, backing] = large(&[]);
    let slow = DriveModel { fixed: Duration::from_millis(50), ..drive_options("b").model };
    let slow = DriveOptions { model: slow, ..drive_options("b") };
    let test = Fixture::with_options(1, [(drive_options("c"), cache), (slow, backing)]);
    test.load("v", &format!("0 {LARGE} bcache b c 0"));
    set(&test, "writeback_delay", "1000");
    write_apart(&test, 2000);
    // The times at which the rate is updated began with the first write.
    test.run(seconds(29));
    test.forget();
    test.run(seconds(7));
    assert!(written_back(&test).0 > 500, "32 writes each 50 ms");
    assert_eq!(get(&test, "writeback_rate_debug").lines().next(), Some("rate:\t\t0.9T/sec"));
    test.read("v", 80_000, 8).expect("the drives are well");
    test.run(seconds(1));
    test.forget();
    test.run(seconds(20));
    assert_eq!(written_back(&test), (0, 0), "what was in flight has ended");
    test.run(seconds(40));
    assert_eq!(dirty(&test), 0, "no request came");
}

#[test]
fn data_is_written_back_without_a_free_bucket_although_writeback_is_off() {
    let test = test_set();
    set(&test, "writeback_running", "0");
    let rng = &mut fastrand::Rng::with_seed(3);
    (0..40).for_each(|at| test.write("v", at * 2048, 2048, 7).expect("the drives are well"));
    // Writes of what was discarded take new buckets, and leave dirty data in the old ones.
    for _ in 0..15_000 {
        let start = rng.u64(..40 * 256) * 8;
        test.discard("v", start, 8).expect("the drives are well");
        test.write("v", start, 8, 8).expect("a bucket is freed for it");
    }
    assert!(written_back(&test).0 > 0);
}

#[test]
fn flash_only_volume_is_not_written_back() {
    let uuid = Uuid([3; 16]);
    let volume = UuidEntry { uuid, flags: 1, sectors: LARGE, ..UuidEntry::default() };
    let test = Fixture::new([("c", cache_of(&[], &[volume]))]);
    test.load("v", &format!("0 {LARGE} bcache - c 2 flash {uuid}"));
    (0..40).for_each(|at| test.write("v", at * 2048, 2000, 7).expect("the drive is well"));
    test.run(seconds(300));
    assert!(test.bytes("v", 0, 2000).iter().all(|byte| *byte == 7));
    let error = test.message("v", &["set", "writeback_percent", "1"]).expect_err("it has none");
    assert!(error.to_string().contains("expected a backing device with its cache"), "{error}");
    assert_eq!(get(&test, "writeback_percent"), "-");
}

#[test]
fn attributes_are_answered_by_name() {
    let test = test_set();
    for (name, expected) in [
        ("state", "dirty"),
        ("bucket_size", "128"),
        ("writeback_percent", "10"),
        ("Writeback_Rate_FP_Term_High", "1000"),
        ("set", "-"),
    ] {
        assert_eq!(get(&test, name), expected);
    }
    let error = test.message("v", &["get", "speed"]).expect_err("there is none").to_string();
    let expected = "message: found 'get speed', expected get and the name of an attribute";
    assert!(error.contains(expected), "{error}");
    let error = test.message("v", &["set", "writeback_percent", "41"]).expect_err("too many");
    assert!(error.to_string().contains("found '41', expected a number of percent from 0 to 40"));
}

#[test]
fn limit_of_background_copies_counts_beside_the_rate_and_holds_up_no_drain() {
    let test = test_set();
    write_apart(&test, 3000);
    set(&test, "writeback_rate_minimum", "65536");
    test.limit_background_after_a_turn(TURN_BYTES / 4);
    set(&test, "writeback_delay", "0");
    let before = dirty(&test);
    test.run(seconds(3));
    assert_eq!(dirty(&test), before, "it waits");
    test.forget();
    test.run(seconds(6));
    let blocks = (before - dirty(&test)) / 8;
    // Two turns, at 3.9 and 7.9 seconds.
    assert!(blocks > 1024 && blocks <= 2048, "{blocks}");
    let (_, flushes) = written_back(&test);
    assert!(flushes <= 3, "{flushes}");
    test.in_no_time(|| test.suspend("v", SuspendMode::Flush));
    test.resume("v").expect("the drives are well");
    test.run(seconds(1));
    assert!(dirty(&test) > 100 * 8);
    test.in_no_time(|| drain(&test)).expect("the drives are well");
    assert_eq!(dirty(&test), 0);
}

#[test]
fn client_of_a_set_that_breaks_waits_for_no_limit_of_background_copies() {
    let test = test_set();
    set(&test, "idle_max_writeback_rate", "0");
    test.limit_background_after_a_turn(1);
    set(&test, "writeback_delay", "0");
    write_apart(&test, 50);
    test.run(seconds(3));
    assert_eq!((dirty(&test), test.sim.env(0).background().waiters()), (50 * 8, 1));
    test.drive("c").faults().add(Fault::error(OpSet::ALL));
    test.in_no_time(|| {
        for start in 0..20 {
            let _ = test.read("v", start * 4, 4);
        }
        assert!(test.write("v", 0, 8, 9).is_err(), "its dirty data is lost");
    });
    test.run(seconds(1));
    assert_eq!(test.sim.env(0).background().waiters(), 0, "the task has ended");
}
