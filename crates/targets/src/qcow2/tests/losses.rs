//! Failures of the devices.

use std::time::Duration;

use cairn_block::{Io, Op, SuspendMode};
use cairn_format::qcow2::Severity;
use cairn_sim::{Effect, Fault, OpSet};

use super::fixture::{ALONE, OVER, Qcow2Fixture, model};
use crate::fixture::{DRIVE_TIME, range, write_io};

#[test]
fn a_backing_device_that_cannot_be_read_fails_what_needs_it_and_nothing_else() {
    let test = Qcow2Fixture::loaded(OVER);
    test.drive("base").faults().add(Fault::error(OpSet::READS).on(range(80, 8)));
    assert!(test.write(81, 1, 5).is_err());
    assert!(test.read(80, 1).is_err());
    test.write(80, 8, 6).unwrap();
    assert_eq!(test.bytes(80, 8), [6; 8]);
    test.write(401, 1, 7).unwrap();
}

#[test]
fn a_device_that_fails_a_write_fails_the_request_and_the_content_stays() {
    let test = Qcow2Fixture::loaded(OVER);
    for (start, count) in [(81, 1), (160, 8)] {
        test.drive("image").faults().add(Fault::error(OpSet::WRITES).shots(1));
        assert!(test.write(start, count, 5).is_err());
        test.settle();
    }
    assert_eq!(test.all(), model(true));
    test.write(81, 1, 5).unwrap();
    test.suspend(SuspendMode::Flush);
    let (report, _) = test.durable();
    assert_eq!((report.severity, report.counts.data), (Severity::Sound, 1));
}

#[test]
fn content_that_a_failed_flush_may_have_lost_is_withdrawn() {
    let (test, mut expected) = (Qcow2Fixture::loaded(OVER), model(true));
    let client = test.client();
    test.write(100, 10, 4).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    expected[100..110].fill(4);
    test.write(81, 1, 5).unwrap();
    test.on(Op::Discard, 104, 2).unwrap();
    test.write(104, 2, 6).unwrap();
    test.drive("image").faults().add(Fault::losing_flushes().shots(1));
    assert!(test.on(Op::Flush, 0, 0).is_err());
    assert_eq!(test.all(), expected, "what was durable");
    test.write(82, 1, 7).unwrap();
    expected[82] = 7;
    assert!(test.flush_of(&client).is_err(), "each client is told once");
    test.flush_of(&client).unwrap();
    assert_eq!(test.all(), expected);
    test.suspend(SuspendMode::Flush);
    assert_eq!(test.durable().0.severity, Severity::Sound);
    test.resume();
    assert_eq!(test.all(), expected);
}

#[test]
fn a_failure_by_another_user_withdraws_what_was_not_durable() {
    let test = Qcow2Fixture::loaded(ALONE);
    let client = test.client();
    test.write(10, 4, 5).unwrap();
    test.lose_by_another("image");
    test.run(Duration::from_secs(3));
    assert_eq!(test.bytes(10, 4), [0; 4]);
    test.are_told_once(&[client]);
}

#[test]
fn a_commit_that_failed_is_tried_again_and_loses_nothing() {
    // Each write of the commit in turn: refcounts, a new table, entries.
    for failing in 0..6 {
        let (test, mut expected) = (Qcow2Fixture::loaded(OVER), model(true));
        test.write(10, 30, 5).unwrap();
        test.write(600, 2, 6).unwrap();
        expected[10..40].fill(5);
        expected[600..602].fill(6);
        let metadata = range(0, 8);
        let fault = match failing {
            0 => Fault::error(OpSet::WRITES).on(metadata).shots(1),
            1 => Fault::error(OpSet::WRITES).shots(3),
            2 => Fault::error(OpSet::WRITES).shots(8),
            3 => Fault::error(OpSet::FLUSHES).shots(1),
            4 => Fault::error(OpSet::FLUSHES).shots(3),
            _ => Fault::error(OpSet::WRITES).on(metadata).shots(3),
        };
        test.drive("image").faults().add(fault);
        assert!(test.on(Op::Flush, 0, 0).is_err(), "{failing}");
        test.run(Duration::from_secs(20));
        if failing < 3 || failing == 5 {
            assert_eq!(test.all(), expected, "{failing}");
            test.on(Op::Flush, 0, 0).unwrap();
        }
        test.drive("image").faults().clear();
        let all = test.all();
        let test = test.killed();
        let client = test.client();
        test.load(OVER);
        assert_eq!(test.all(), all, "{failing}");
        // The next server tells its clients of a loss, too.
        assert_eq!(test.flush_of(&client).is_err(), failing == 3 || failing == 4, "{failing}");
        assert!(test.durable().0.severity < Severity::Damaged, "{failing}");
    }
}

#[test]
fn a_suspend_fails_for_a_loss_of_a_killed_server_that_no_client_was_told_of() {
    for is_told in [false, true] {
        let test = Qcow2Fixture::loaded(ALONE);
        test.write(10, 2, 5).unwrap();
        test.lose_by_another("image");
        let test = test.killed();
        let client = test.client();
        test.load(ALONE);
        if is_told {
            test.flush_of(&client).expect_err("a loss");
        }
        let suspended = test.try_suspend(SuspendMode::Flush).map_err(|error| error.to_string());
        let untold = "image: acknowledged writes may be lost, and no client was told of it yet";
        assert_eq!(suspended, if is_told { Ok(()) } else { Err(untold.to_owned()) });
        test.resume();
        test.suspend(SuspendMode::Flush);
    }
}

#[test]
fn a_suspend_over_a_failing_device_says_so_and_hands_waiting_requests_back() {
    let test = Qcow2Fixture::loaded(ALONE);
    let fault = test.drive("image").faults().add(Fault::error(OpSet::FLUSHES));
    test.write(10, 2, 5).unwrap();
    for cluster in 100..260 {
        test.start(1, "write", move |env| write_io(env, cluster * 2, 2, 9));
    }
    test.run(Duration::from_millis(100));
    let line = test.try_suspend(SuspendMode::Flush).unwrap_err().to_string();
    assert!(line.contains("image") && line.contains("may not be durable"), "{line}");
    test.drive("image").faults().remove(fault);
    test.resume();
    test.run(Duration::from_secs(3));
    let ended = test.ends.count();
    assert_eq!(ended, 160);
    _ = test.io(|_| Io::flush());
}

#[test]
fn a_table_that_the_disk_may_name_is_changed_in_place_after_what_its_entries_name() {
    let test = Qcow2Fixture::loaded(ALONE);
    test.write(0, 2, 7).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    test.run(Duration::from_secs(3));
    // The write of an L2 unit fails; beside it the L1 table names another, new table.
    test.write(2, 2, 7).unwrap();
    test.write(300, 2, 8).unwrap();
    let fault = Fault::error(OpSet::WRITES).on(range(8, 2)).shots(1);
    test.drive("image").faults().add(fault);
    assert!(test.on(Op::Flush, 0, 0).is_err());
    test.write(302, 2, 9).unwrap();
    test.start(1, "flush", |_| Io::flush());
    for _ in 0..40 {
        test.run(Duration::from_micros(20));
        for seed in 0..50 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let (report, _) = Qcow2Fixture::check(&test.drive("image").power_cut(&mut rng));
            assert!(report.severity < Severity::Damaged, "{:?}", report.findings);
        }
    }
}

#[test]
fn a_fill_that_fails_fails_no_request_that_needs_none() {
    let test = Qcow2Fixture::loaded(OVER);
    test.drive("base").faults().add(Fault::error(OpSet::READS).on(range(80, 8)));
    test.start(0, "part", |env| write_io(env, 81, 1, 5));
    test.start(0, "whole", |env| write_io(env, 80, 2, 6));
    test.start(0, "discard", |_| Io::on(Op::Discard, range(80, 2)));
    test.settle();
    let of = |label| test.ends.of(label).expect("it ended");
    assert!(of("part").is_err());
    assert_eq!((of("whole"), of("discard")), (Ok(()), Ok(())));
}

#[test]
fn a_suspend_over_a_suspended_volume_ends_if_all_is_durable() {
    for pause in [0, 20, 1500] {
        let test = Qcow2Fixture::of(super::fixture::blank(false), 600);
        test.fixture.load("low", "0 1200 linear image 0");
        test.load("0 1003 qcow2 @low -");
        test.write(0, 400, 7).unwrap();
        // More runs than are discarded at a time.
        for cluster in (0..150).step_by(2) {
            test.on(Op::Discard, cluster * 2, 2).unwrap();
        }
        test.on(Op::Flush, 0, 0).unwrap();
        // The refcounts of what was discarded are left to write.
        test.fixture.suspend("low", SuspendMode::Flush);
        test.run(Duration::from_millis(pause));
        test.suspend(SuspendMode::Flush);
        assert!(test.durable().0.severity < Severity::Damaged, "{pause}");
    }
}

#[test]
fn a_write_during_which_the_device_failed_is_sent_again() {
    let test = Qcow2Fixture::loaded(ALONE);
    let slow = Effect::Delay(50 * DRIVE_TIME);
    let slow = Fault { effect: slow, ..Fault::error(OpSet::WRITES) };
    test.drive("image").faults().add(slow.shots(1));
    test.start(0, "write", |env| write_io(env, 10, 2, 5));
    test.run(5 * DRIVE_TIME);
    test.lose_by_another("image");
    test.settle();
    assert_eq!(test.ends.of("write"), Some(Ok(())));
    test.run(Duration::from_secs(3));
    assert_eq!((test.bytes(10, 2), test.durable_data()), (vec![5; 2], 1), "it is not lost");
}

#[test]
fn a_commit_that_another_users_failed_flush_may_have_lost_in_part_is_tried_again() {
    let test = Qcow2Fixture::loaded(ALONE);
    // Two tables.
    test.write(0, 2, 5).unwrap();
    test.write(300, 2, 6).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    test.write(4, 2, 7).unwrap();
    test.write(304, 2, 8).unwrap();
    // The entries of the first one are on the device before those of the other one.
    let slow = Effect::Delay(50 * DRIVE_TIME);
    let slow = Fault { effect: slow, ..Fault::error(OpSet::WRITES) };
    test.drive("image").faults().add(slow.on(range(10, 1190)).shots(1));
    test.forget();
    test.start(1, "flush", |_| Io::flush());
    while !test.seen("image").iter().any(|seen| seen.op == Op::Write && seen.start == 8) {
        test.run(DRIVE_TIME / 4);
    }
    test.run(5 * DRIVE_TIME);
    test.lose_by_another("image");
    test.run(200 * DRIVE_TIME);
    assert!(test.ends.of("flush").expect("it ended").is_err());
    test.on(Op::Flush, 0, 0).unwrap();
    assert_eq!(test.durable_data(), 4);
}
