//! Tests of writes in place (R15).

use cairn_block::{Disk, Flags};

use super::*;
use crate::fixture::{Seen, write_io};

/// A served set that has dirty data in 64 sectors from 0 on, durably, and does not write it back by
/// itself.
fn served() -> Fixture {
    let [cache, backing] = large(&[]);
    let test = Fixture::new([("c", cache), ("b", backing)]);
    test.load("v", &format!("0 {LARGE} bcache b c 0"));
    test.message("v", &["set", "writeback_running", "0"]).expect("in its range");
    test.write("v", 0, 64, 1).expect("the drives are well");
    test.flush("v").expect("the drives are well");
    test.forget();
    test
}

fn write_fua(test: &Fixture, start: u64, count: u64, byte: u8) {
    let io = test.io("v", |env| write_io(env, start, count, byte).with(Flags::FUA));
    io.expect("the drives are well");
}

/// What the cache device got since the last call: writes with FUA, other writes, flushes.
fn cache_got(test: &Fixture) -> (usize, usize, usize) {
    let seen = test.seen("c");
    let count = |is_it: &dyn Fn(&Seen) -> bool| seen.iter().filter(|seen| is_it(seen)).count();
    (
        count(&|seen| seen.op == Op::Write && seen.fua),
        count(&|seen| seen.op == Op::Write && !seen.fua),
        count(&|seen| seen.op == Op::Flush),
    )
}

/// What a power cut leaves of the volume.
fn after_power_cut(test: &Fixture) -> Fixture {
    let drives: Vec<_> = ["c", "b"].into_iter().zip(test.durable()).collect();
    let test = Fixture::new(drives);
    test.load("v", &format!("0 {LARGE} bcache b c 0"));
    test
}

#[test]
fn a_write_over_durable_dirty_data_needs_no_entry() {
    let test = served();
    write_fua(&test, 8, 16, 2);
    assert_eq!(cache_got(&test), (1, 0, 0), "its data alone");
    test.write("v", 0, 8, 3).expect("the drives are well");
    assert_eq!(cache_got(&test), (0, 1, 0));
    test.flush("v").expect("the drives are well");
    assert_eq!(cache_got(&test), (0, 0, 1), "the flush pays a flush of the device");
    test.flush("v").expect("nothing is left to do");
    assert_eq!(cache_got(&test), (0, 0, 0));
    let expected: Vec<u8> = (0..64).map(|at| [3, 2, 2, 1, 1, 1, 1, 1][at / 8]).collect();
    assert_eq!(after_power_cut(&test).bytes("v", 0, 64), expected);
}

#[test]
fn a_write_over_a_key_that_is_not_durable_takes_a_new_place() {
    let test = served();
    test.write("v", 200, 8, 2).expect("the drives are well");
    test.forget();
    write_fua(&test, 200, 8, 3);
    assert_eq!(cache_got(&test), (1, 1, 1), "data, flush, entry");
    assert_eq!(after_power_cut(&test).bytes("v", 200, 8), [3; 8]);
}

#[test]
fn a_write_over_what_is_being_written_back_takes_a_new_place_and_stays_dirty() {
    let test = served();
    // The copies to the backing device take so long.
    let effect = Effect::Delay(Duration::from_millis(5));
    test.drive("b").faults().add(Fault { effect, ..Fault::error(OpSet::WRITES) });
    let volume = test.volume("v");
    let env = test.sim.env(0).clone();
    test.sim.env(0).spawn(async move {
        volume.drain_caches(&env).await.expect("the drives are well");
    });
    test.run(Duration::from_millis(2));
    test.forget();
    write_fua(&test, 8, 8, 2);
    assert_eq!(cache_got(&test), (1, 1, 1), "data, flush, entry");
    test.run(Duration::from_secs(2));
    assert!(test.bytes("v", 8, 8) == [2; 8] && test.bytes("v", 16, 8) == [1; 8]);
    drain(&test).expect("the drives are well");
    let alone = test.contents("b");
    assert_eq!((alone[(16 + 8) * SECTOR], alone[(16 + 16) * SECTOR]), (2, 1));
}

#[test]
fn a_drain_waits_for_a_write_in_place_before_it_copies() {
    let test = served();
    let effect = Effect::Delay(Duration::from_millis(5));
    test.drive("c").faults().add(Fault { effect, ..Fault::error(OpSet::WRITES) }.shots(1));
    test.start("v", "write", |env| write_io(env, 8, 8, 2));
    test.run(Duration::from_micros(60));
    drain(&test).expect("the drives are well");
    assert_eq!(test.labels(), ["write"]);
    assert_eq!(test.contents("b")[(16 + 8) * SECTOR], 2);
}

#[test]
fn a_failure_of_the_cache_device_is_told_if_it_may_have_lost_a_write_in_place() {
    for is_flushed in [false, true] {
        let test = served();
        test.write("v", 0, 8, 2).expect("the drives are well");
        if is_flushed {
            test.flush("v").expect("the drives are well");
        }
        let volume = test.volume("v");
        let known = volume.failures();
        test.lose_by_another("c");
        // A read notices it. The volume has dirty data, so it is stopped.
        assert!(test.read("v", 0, 8).is_err());
        assert_eq!(volume.failures() > known, !is_flushed, "{is_flushed}");
        let suspended = test.try_suspend("v", SuspendMode::Flush);
        assert_eq!(suspended.is_err(), !is_flushed, "a suspend says so, too");
    }
}
