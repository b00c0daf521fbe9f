//! Tests of the policies of the background writeback.

use std::time::Duration;

use cairn_sim::{Fault, OpSet, Spindle};

use super::*;

const POLICIES: [&str; 4] = ["completion", "strict", "sorted", "sweep"];

/// A cache whose reads overtake each other, with these extents; nothing is written back yet.
fn test_set(policy: &'static str, extents: &[(u64, u64)]) -> Fixture {
    let [cache, backing] = large(&[]);
    let jitter = Duration::from_micros(900);
    let model = DriveModel { jitter, ..drive_options("c").model };
    let cache_options = DriveOptions { model, ..drive_options("c") };
    let test = Fixture::with_options(7, [(cache_options, cache), (drive_options("b"), backing)]);
    test.load("v", &format!("0 {LARGE} bcache b c 0"));
    for [name, value] in [
        ["sequential_cutoff", "0"],
        ["writeback_running", "0"],
        ["writeback_delay", "0"],
        ["writeback_policy", policy],
    ] {
        test.message("v", &["set", name, value]).expect("in its range");
    }
    assert_eq!(test.message("v", &["get", "writeback_policy"]).as_deref().ok(), Some(policy));
    for (start, count) in extents {
        test.write("v", *start, *count, (*start / 8) as u8).expect("the drives are well");
    }
    test.forget();
    test
}

fn set(test: &Fixture, name: &'static str, value: &'static str) {
    test.message("v", &["set", name, value]).expect("in its range");
}

/// The writes of data to the backing device since the last call: where they begin, and their
/// lengths.
fn writes(test: &Fixture) -> Vec<(u64, u64)> {
    let data = test.ops("b").into_iter().filter(|(op, at, _)| *op == Op::Write && *at >= 16);
    data.map(|(_, at, count)| (at - 16, count)).collect()
}

fn dirty(test: &Fixture) -> u64 {
    test.target("v").report().number("dirty_data").expect("a field")
}

/// 1200 extents, each apart from the others.
fn apart() -> Vec<(u64, u64)> {
    (0..1200).map(|at| (at * 24, 8)).collect()
}

/// 600 extents in a row. Each second one is written later, so they are no neighbours in the cache.
fn row() -> Vec<(u64, u64)> {
    let half = |first: u64| (first..600).step_by(2).map(|at| (at * 8, 8));
    half(0).chain(half(1)).collect()
}

#[test]
fn policies_write_all_back_in_their_order() {
    for policy in POLICIES {
        let test = test_set(policy, &apart());
        set(&test, "writeback_percent", "0");
        set(&test, "writeback_running", "1");
        test.run(Duration::from_secs(20));
        assert_eq!(dirty(&test), 0, "{policy}");
        let found = writes(&test);
        let is_in_order = found.is_sorted();
        assert_eq!(is_in_order, ["strict", "sweep"].contains(&policy), "{policy}");
        if policy != "sweep" {
            let buffers: Vec<u64> = found.iter().map(|(at, _)| at / 24 / 500).collect();
            assert!(buffers.is_sorted(), "{policy}: a buffer ends before the next one begins");
        }
        let mut found = found;
        found.sort_unstable();
        assert_eq!(found, apart(), "{policy}");
        let data = test.contents("b");
        for (start, _) in apart() {
            let at = (16 + start) as usize * SECTOR;
            assert!(data[at..at + 8 * SECTOR].iter().all(|byte| *byte == (start / 8) as u8));
        }
    }
}

#[test]
fn extents_that_touch_are_merged_by_the_sweep_alone() {
    let row = row();
    let counts = POLICIES.map(|policy| {
        let test = test_set(policy, &row);
        set(&test, "writeback_percent", "0");
        set(&test, "writeback_running", "1");
        test.run(Duration::from_secs(20));
        assert_eq!(dirty(&test), 0, "{policy}");
        writes(&test).len()
    });
    assert_eq!(counts, [600, 600, 600, 3]);
}

#[test]
fn extents_in_a_row_wait_for_the_rate_as_the_policy_says() {
    let row = row();
    // Each extent is a second at this rate, and two seconds are made up for.
    let counts = ["completion", "strict", "sorted"].map(|policy| {
        let test = test_set(policy, &row);
        set(&test, "idle_max_writeback_rate", "0");
        test.run(Duration::from_secs(3));
        set(&test, "writeback_rate", "8");
        set(&test, "writeback_running", "1");
        test.run(Duration::from_millis(400));
        writes(&test).len()
    });
    assert_eq!(counts, [4, 5, 80]);
}

#[test]
fn sweep_goes_on_behind_the_last_batch_and_then_takes_what_became_dirty() {
    let test = test_set("sweep", &apart());
    set(&test, "writeback_rate_minimum", "1024");
    set(&test, "idle_max_writeback_rate", "0");
    set(&test, "writeback_running", "1");
    test.run(Duration::from_secs(5));
    assert!(dirty(&test) > 4000);
    test.write("v", 0, 8, 9).expect("the drives are well");
    test.run(Duration::from_secs(12));
    let found = writes(&test);
    assert!(found[..1200].is_sorted() && found[1200..] == [(0, 8)], "{:?}", &found[1190..]);
    assert_eq!(dirty(&test), 0);
    assert!(test.contents("b")[16 * SECTOR..24 * SECTOR].iter().all(|byte| *byte == 9));
}

#[test]
fn policy_is_switched_between_batches() {
    let test = test_set("sweep", &apart());
    set(&test, "writeback_rate_minimum", "1024");
    set(&test, "writeback_running", "1");
    for policy in POLICIES.into_iter().chain(POLICIES) {
        set(&test, "writeback_policy", policy);
        test.run(Duration::from_secs(2));
    }
    test.run(Duration::from_secs(60));
    assert_eq!(dirty(&test), 0);
    let error = test.message("v", &["set", "writeback_policy", "fifo"]).expect_err("not one");
    let expected = "writeback_policy: found 'fifo', expected completion, strict, sorted or sweep";
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn extent_that_cannot_be_written_stays_dirty_while_the_others_go_home() {
    for policy in POLICIES {
        let test = test_set(policy, &apart());
        let fault = Fault::error(OpSet::WRITES).on(range(16 + 240, 8));
        let planted = test.drive("b").faults().add(fault);
        set(&test, "writeback_percent", "0");
        set(&test, "writeback_running", "1");
        test.run(Duration::from_secs(30));
        assert_eq!(dirty(&test), 8, "{policy}");
        test.drive("b").faults().remove(planted);
        test.run(Duration::from_secs(30));
        assert_eq!(dirty(&test), 0, "{policy}");
    }
}

/// 3000 dirty extents of 4 KiB, apart from each other, in front of a drive with an arm.
fn on_an_arm() -> Fixture {
    let extents: Vec<Key> = (0..3000).map(|at| Key::new(0, 16 + at * 24 + 8, 8)).collect();
    let [cache, backing] = large(&extents);
    let (spindle, model) = (Some(Spindle::NEARLINE), DriveModel::SLOW);
    let slow = DriveOptions { spindle, model, ..drive_options("b") };
    let test = Fixture::with_options(3, [(drive_options("c"), cache), (slow, backing)]);
    test.load("v", &format!("0 {LARGE} bcache b c 0"));
    test.forget();
    test
}

fn flushes(test: &Fixture) -> usize {
    test.ops("b").iter().filter(|it| it.0 == Op::Flush).count()
}

#[test]
fn a_drain_of_3000_extents_takes_8_flushes_of_the_backing_device_at_most() {
    let test = on_an_arm();
    drain(&test).expect("the drives are well");
    let flushes = flushes(&test);
    assert!((1..=8).contains(&flushes), "{flushes}");
    let counted = test.target("v").attributes().into_iter();
    let counted: Vec<_> = counted
        .filter(|it| ["backing_flushes", "writeback_keys_done"].contains(&it.name))
        .map(|it| it.value)
        .collect();
    assert_eq!(counted, [Value::Counter(flushes as u64), Value::Counter(3000)]);
}

#[cfg(feature = "canary")]
#[test]
fn a_drain_takes_no_longer_than_the_order_of_kernels_without_flushes() {
    use crate::bcache::canary::{Bug, plant};

    let timed = |drains: &dyn Fn(&Fixture)| {
        let test = on_an_arm();
        let began = test.sim.now();
        drains(&test);
        assert_eq!(dirty(&test), 0);
        (test.sim.now().since(began), flushes(&test))
    };
    let (protected, some) = timed(&|test| drain(test).expect("the drives are well"));
    plant(Some(Bug::CleanBeforeFlush));
    let (unprotected, none) = timed(&|test| {
        set(test, "writeback_policy", "completion");
        set(test, "writeback_percent", "0");
        set(test, "writeback_delay", "0");
        test.read("v", 80_000, 8).expect("it begins a session");
        while dirty(test) > 0 {
            test.run(Duration::from_millis(20));
        }
    });
    plant(None);
    println!("{protected:?} with {some} flushes, {unprotected:?} with {none}");
    assert!(protected <= unprotected, "{protected:?} with {some} flushes, {unprotected:?} without");
    assert!(some > 0);
}
