//! Who is told what failed flushes and commits have cost, and what does not become durable then.

use std::time::Duration;

use super::fixture::*;
use crate::fixture::DRIVE_TIME;
use cairn_block::{Flags, Io, IoResult, SuspendMode};
use cairn_sim::{Fault, OpSet};

/// A pool with the volumes `thin` and `second`, whose block 0 is durable.
fn two() -> PoolFixture {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.message(&["create_thin", "1"]).unwrap();
    test.load_thin("second", 1, 8);
    for name in ["thin", "second"] {
        test.write_through(name, 0, BLOCK, 1);
    }
    test
}

fn fail_commit(test: &PoolFixture) {
    test.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
}

#[test]
fn flush_fails_once_per_client_after_a_failed_commit_under_any_table() {
    for reload in [false, true] {
        let test = two();
        let clients = [test.client("thin"), test.client("thin")];
        test.write("thin", BLOCK, BLOCK, 2).unwrap();
        fail_commit(&test);
        assert!(test.flush_of(&clients[0]).is_err());
        if reload {
            test.load_thin("thin", 0, 8);
        }
        assert_eq!(test.flush_of(&clients[0]), Ok(()));
        test.are_told_once(&clients[1..]);
        // In place, and durable.
        let fua = test.io("thin", |env| write_io(env, 0, 1, 3).with(Flags::FUA));
        assert_eq!(fua, Ok(()));
        assert_eq!(test.flush_of(&test.client("thin")), Ok(()), "somebody was told");
    }
}

#[test]
fn failed_commit_does_not_fail_flushes_of_unaffected_volumes() {
    let test = two();
    let (thin, second) = (test.client("thin"), test.client("second"));
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    test.write("second", 0, 1, 5).unwrap();
    fail_commit(&test);
    test.are_told_once(&[thin]);
    assert_eq!(test.flush_of(&second), Ok(()));
    test.check_metadata();
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("second", 1, 8);
    assert_eq!(again.bytes("second", 0, 2), [5, 1]);
}

#[test]
fn failed_flush_of_the_data_device_is_told_to_volumes_that_overwrote_in_place() {
    for changes in [false, true] {
        let test = two();
        let clients = [test.client("thin"), test.client("second")];
        if changes {
            test.write("thin", BLOCK, BLOCK, 2).unwrap();
        }
        test.write("second", 0, 1, 5).unwrap();
        test.drive("data").faults().add(Fault::losing_flushes().shots(1));
        test.are_told_once(&clients);
        test.pool_says(if changes { " ro " } else { " rw " });
    }
}

#[test]
fn commit_maps_no_block_whose_data_a_flush_of_another_volume_lost() {
    for part in [BLOCK, 3] {
        let test = two();
        let clients = [test.client("second"), test.client("thin")];
        test.write("thin", BLOCK, part, 2).unwrap();
        test.drive("data").faults().add(Fault::losing_flushes().shots(1));
        assert!(test.flush_of(&clients[0]).is_err());
        assert!(test.flush_of(&clients[1]).is_err());
        test.pool_says(" ro ");
        test.pool_says(" needs_check ");
        let again = test.reopen_durable();
        again.load_pool("0 0");
        again.load_thin("thin", 0, 8);
        assert_eq!(again.bytes("thin", BLOCK, 1), [0], "a stranger's data");
    }
}

#[test]
fn fua_write_fails_if_another_users_failed_flush_dropped_it() {
    let moments = || (0..500).step_by(25).map(Duration::from_micros);
    for (first, then) in moments().flat_map(|first| moments().map(move |then| (first, then))) {
        let test = two();
        test.start("thin", "fill", |env| write_io(env, BLOCK, 1, 2).with(Flags::FUA));
        test.run(first);
        test.start("thin", "fua", |env| write_io(env, BLOCK, 1, 3).with(Flags::FUA));
        test.run(then);
        test.drive("data").faults().add(Fault::losing_flushes().shots(1));
        test.start("second", "flush", |_| Io::flush());
        test.settle();
        let ended_well = |(label, end): &(&str, IoResult)| *label == "fua" && end.is_ok();
        if test.ends.all().iter().any(ended_well) {
            let again = test.reopen_durable();
            again.load_pool("0 0");
            again.load_thin("thin", 0, 8);
            assert_eq!(again.bytes("thin", BLOCK, 1), [3], "{first:?}, {then:?}");
        }
    }
}

#[test]
fn pool_stays_writable_after_a_failed_flush_that_no_new_block_depends_on() {
    let test = two();
    let second = test.client("second");
    for round in 1..4 {
        test.drive("data").faults().add(Fault::losing_flushes().shots(1));
        assert!(test.flush_of(&second).is_err());
        test.settle();
        test.write_through("thin", round * BLOCK, BLOCK, 2);
        test.pool_says(" rw ");
    }
    // A failure that only others met.
    test.drive("data").faults().add(Fault::losing_flushes().shots(1));
    assert!(test.flush("pool").is_err());
    test.run(std::time::Duration::from_millis(1100));
    test.write_through("thin", 4 * BLOCK, BLOCK, 2);
    test.pool_says(" rw ");
}

#[test]
fn commit_without_changes_that_cannot_flush_the_data_device_leaves_the_pool_writable() {
    let test = two();
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    // The first commits; the others share one that has nothing to commit.
    test.start("thin", "first", |_| cairn_block::Io::flush());
    test.run(DRIVE_TIME / 2);
    test.start("thin", "second", |_| cairn_block::Io::flush());
    test.run(DRIVE_TIME);
    test.drive("data").faults().add(Fault::error(OpSet::FLUSHES).shots(1));
    test.settle();
    assert!(matches!(test.ends.all()[..], [("first", Ok(())), ("second", Err(_))]));
    test.pool_says(" rw ");
    test.write_through("thin", 2 * BLOCK, BLOCK, 3);
}

#[test]
fn suspend_of_a_volume_tells_what_its_commit_lost_and_it_goes_on() {
    let test = two();
    let clients = [test.client("thin")];
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    fail_commit(&test);
    let lost = test.try_suspend("thin", SuspendMode::Flush).unwrap_err().to_string();
    assert!(lost.starts_with("meta: commit failed: "), "{lost}");
    assert!(lost.ends_with("changes of thin devices 0 are lost"), "{lost}");
    test.resume("thin").unwrap();
    test.are_told_once(&clients);
    test.suspend("thin", SuspendMode::Flush);
    test.resume("thin").unwrap();
    assert_eq!(test.bytes("thin", 0, 1), [1]);
}

#[test]
fn suspend_of_the_pool_tells_once_which_volumes_lost_changes_and_so_are_they() {
    let test = two();
    let clients = [test.client("thin"), test.client("second")];
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    test.discard("second", 0, BLOCK).unwrap();
    fail_commit(&test);
    let lost = test.try_suspend("pool", SuspendMode::Flush).unwrap_err().to_string();
    assert!(lost.ends_with("changes of thin devices 0, 1 are lost"), "{lost}");
    test.resume("pool").unwrap();
    test.are_told_once(&clients);
    test.suspend("pool", SuspendMode::Flush);
    test.resume("pool").unwrap();
}

#[test]
fn what_a_commit_lost_before_is_told_by_the_next_suspend_of_the_pool() {
    let test = two();
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    fail_commit(&test);
    // The pool commits by itself.
    test.run(std::time::Duration::from_secs(2));
    test.pool_says(" ro ");
    let lost = test.load_after_loss("pool", &test.pool_table("0 0")).to_string();
    assert!(lost.contains("thin devices 0 are lost"), "{lost}");
    assert!(test.flush_of(&test.client("thin")).is_err(), "nobody was told yet");
}

#[test]
fn clients_are_told_after_a_failed_pool_was_opened_anew() {
    let test = two();
    let clients = [test.client("thin"), test.client("thin")];
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    for ops in [OpSet::WRITES, OpSet::READS] {
        test.drive("meta").faults().add(Fault::error(ops));
    }
    assert!(test.flush_of(&clients[0]).is_err());
    assert_eq!(test.status("pool"), "Fail");
    test.drive("meta").faults().clear();
    for name in ["thin", "second"] {
        test.load(name, "0 1024 zero");
    }
    test.try_suspend("pool", SuspendMode::Flush).unwrap_err();
    test.resume("pool").unwrap();
    for (name, id) in [("thin", 0), ("second", 1)] {
        test.load_thin(name, id, 8);
    }
    test.pool_says(" rw ");
    assert_eq!(test.flush_of(&clients[0]), Ok(()));
    test.are_told_once(&clients[1..]);
    assert_eq!(test.flush_of(&test.client("second")), Ok(()));
}

#[test]
fn pool_fails_if_it_cannot_know_which_superblock_a_crash_leaves() {
    let test = two();
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    test.forget();
    // The second flush of the metadata device fails, and every one after it.
    test.start("thin", "flush", |_| cairn_block::Io::flush());
    while !test.ops("meta").iter().any(|(op, ..)| *op == cairn_block::Op::Flush) {
        test.run(DRIVE_TIME / 10);
    }
    test.run(DRIVE_TIME);
    test.drive("meta").faults().add(Fault::losing_flushes());
    test.settle();
    assert!(matches!(test.ends.all()[..], [("flush", Err(_))]));
    assert_eq!(test.status("pool"), "Fail");
    test.drive("meta").faults().clear();
}

#[test]
fn table_that_was_closed_goes_on_if_the_next_one_cannot_start() {
    let test = two();
    let client = test.client("thin");
    for round in 1..4 {
        test.write("thin", BLOCK, BLOCK, round).unwrap();
        let refused = test.try_load("thin", "0 1024 thin @pool 99").unwrap_err().to_string();
        assert!(refused.contains("device 99: found none"), "{refused}");
        assert_eq!(test.bytes("thin", BLOCK, 1), [round]);
        let used = test.message(&["delete", "0"]).unwrap_err().to_string();
        assert!(used.contains("in use"), "{used}");
        test.write("thin", u64::from(round + 1) * BLOCK, BLOCK, round).unwrap();
        assert_eq!(test.flush_of(&client), Ok(()));
    }
    test.write("thin", 6 * BLOCK, BLOCK, 9).unwrap();
    fail_commit(&test);
    test.are_told_once(&[client]);
    test.remove("thin");
    test.check_metadata();
}

#[test]
fn pool_table_that_was_closed_goes_on_if_the_next_one_cannot_start() {
    let test = two();
    let client = test.client("thin");
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    for table in ["0 8192 thin-pool meta data 256 0", "0 1024 thin @pool 0"] {
        test.try_load("pool", table).unwrap_err();
        test.write("thin", BLOCK, 2 * BLOCK, 3).unwrap();
        assert_eq!(test.flush_of(&client), Ok(()));
    }
    let short = format!("0 {} thin-pool meta data {BLOCK} 0 0", 16 * BLOCK);
    let refused = test.try_load("pool", &short).unwrap_err().to_string();
    assert!(refused.contains("expected at least 64"), "{refused}");
    test.write("thin", 3 * BLOCK, BLOCK, 4).unwrap();
    assert_eq!(test.flush_of(&client), Ok(()));
    test.pool_says(" rw ");
    assert_eq!(test.bytes("thin", 3 * BLOCK, 1), [4]);
}

#[test]
fn what_was_written_below_a_swap_to_a_volume_with_an_external_origin_is_durable() {
    let test = two();
    test.load("disk", &format!("0 {ORIGIN_SECTORS} linear origin 0"));
    let client = test.client("disk");
    test.write("disk", 0, BLOCK, 7).unwrap();
    test.message(&["create_thin", "2"]).unwrap();
    test.load("disk", &format!("0 {ORIGIN_SECTORS} thin @pool 2 origin"));
    assert_eq!(test.bytes("disk", 0, 1), [7]);
    assert_eq!(test.flush_of(&client), Ok(()));
    let origin = test.drive("origin").durable();
    assert_eq!(origin.sector(cairn_block::Sector(0))[0], 7);
}

#[test]
fn failed_flush_of_an_external_origin_before_a_swap_is_told() {
    let test = two();
    test.load("disk", &format!("0 {ORIGIN_SECTORS} linear origin 0"));
    let clients = [test.client("disk")];
    test.write("disk", 0, BLOCK, 7).unwrap();
    test.message(&["create_thin", "2"]).unwrap();
    test.drive("origin").faults().add(Fault::losing_flushes().shots(1));
    test.load_after_loss("disk", &format!("0 {ORIGIN_SECTORS} thin @pool 2 origin"));
    test.are_told_once(&clients);
    // The writers of the volume rely on the origin no more.
    test.drive("origin").faults().add(Fault::losing_flushes().shots(1));
    assert!(test.volume("disk").live_table().is_some());
    assert_eq!(test.flush_of(&clients[0]), Ok(()));
}
