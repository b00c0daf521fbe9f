//! Who is told what failed flushes and commits have cost, and what does not become durable then.

use std::time::Duration;

use super::bed::*;
use cairn_block::{Flags, Io, IoResult, SuspendMode};
use cairn_sim::{Fault, OpSet};

/// A pool with the volumes `thin` and `second`, whose block 0 is durable.
fn two() -> Bed {
    let bed = Bed::with_volume(256, 64, 8);
    bed.message(&["create_thin", "1"]).unwrap();
    bed.load_thin("second", 1, 8);
    for name in ["thin", "second"] {
        bed.write_through(name, 0, BLOCK, 1);
    }
    bed
}

fn fail_commit(bed: &Bed) {
    bed.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
}

#[test]
fn flush_fails_once_per_client_after_a_failed_commit_under_any_table() {
    for reload in [false, true] {
        let bed = two();
        let clients = [bed.client("thin"), bed.client("thin")];
        bed.write("thin", BLOCK, BLOCK, 2).unwrap();
        fail_commit(&bed);
        assert!(bed.flush_of(&clients[0]).is_err());
        if reload {
            bed.load_thin("thin", 0, 8);
        }
        assert_eq!(bed.flush_of(&clients[0]), Ok(()));
        bed.are_told_once(&clients[1..]);
        // In place, and durable.
        let fua = bed.io("thin", |env| write_io(env, 0, 1, 3).with(Flags::FUA));
        assert_eq!(fua, Ok(()));
        assert_eq!(bed.flush_of(&bed.client("thin")), Ok(()), "somebody was told");
    }
}

#[test]
fn failed_commit_does_not_fail_flushes_of_unaffected_volumes() {
    let bed = two();
    let (thin, second) = (bed.client("thin"), bed.client("second"));
    bed.write("thin", BLOCK, BLOCK, 2).unwrap();
    bed.write("second", 0, 1, 5).unwrap();
    fail_commit(&bed);
    bed.are_told_once(&[thin]);
    assert_eq!(bed.flush_of(&second), Ok(()));
    bed.check_metadata();
    let again = bed.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("second", 1, 8);
    assert_eq!(again.bytes("second", 0, 2), [5, 1]);
}

#[test]
fn failed_flush_of_the_data_device_is_told_to_volumes_that_overwrote_in_place() {
    for changes in [false, true] {
        let bed = two();
        let clients = [bed.client("thin"), bed.client("second")];
        if changes {
            bed.write("thin", BLOCK, BLOCK, 2).unwrap();
        }
        bed.write("second", 0, 1, 5).unwrap();
        bed.drive("data").faults().add(Fault::losing_flushes().shots(1));
        bed.are_told_once(&clients);
        bed.pool_says(if changes { " ro " } else { " rw " });
    }
}

#[test]
fn commit_maps_no_block_whose_data_a_flush_of_another_volume_lost() {
    for part in [BLOCK, 3] {
        let bed = two();
        let clients = [bed.client("second"), bed.client("thin")];
        bed.write("thin", BLOCK, part, 2).unwrap();
        bed.drive("data").faults().add(Fault::losing_flushes().shots(1));
        assert!(bed.flush_of(&clients[0]).is_err());
        assert!(bed.flush_of(&clients[1]).is_err());
        bed.pool_says(" ro ");
        bed.pool_says(" needs_check ");
        let again = bed.reopen_durable();
        again.load_pool("0 0");
        again.load_thin("thin", 0, 8);
        assert_eq!(again.bytes("thin", BLOCK, 1), [0], "a stranger's data");
    }
}

#[test]
fn fua_write_fails_if_another_users_failed_flush_dropped_it() {
    let moments = || (0..500).step_by(25).map(Duration::from_micros);
    for (first, then) in moments().flat_map(|first| moments().map(move |then| (first, then))) {
        let bed = two();
        bed.start("thin", "fill", |env| write_io(env, BLOCK, 1, 2).with(Flags::FUA));
        bed.sim.run_for(first);
        bed.start("thin", "fua", |env| write_io(env, BLOCK, 1, 3).with(Flags::FUA));
        bed.sim.run_for(then);
        bed.drive("data").faults().add(Fault::losing_flushes().shots(1));
        bed.start("second", "flush", |_| Io::flush());
        bed.settle();
        let ended_well = |(label, end): &(&str, IoResult)| *label == "fua" && end.is_ok();
        if bed.ends.borrow().iter().any(ended_well) {
            let again = bed.reopen_durable();
            again.load_pool("0 0");
            again.load_thin("thin", 0, 8);
            assert_eq!(again.bytes("thin", BLOCK, 1), [3], "{first:?}, {then:?}");
        }
    }
}

#[test]
fn pool_stays_writable_after_a_failed_flush_that_no_new_block_depends_on() {
    let bed = two();
    let second = bed.client("second");
    for round in 1..4 {
        bed.drive("data").faults().add(Fault::losing_flushes().shots(1));
        assert!(bed.flush_of(&second).is_err());
        bed.settle();
        bed.write_through("thin", round * BLOCK, BLOCK, 2);
        bed.pool_says(" rw ");
    }
    // A failure that only others met.
    bed.drive("data").faults().add(Fault::losing_flushes().shots(1));
    assert!(bed.flush("pool").is_err());
    bed.wait(std::time::Duration::from_millis(1100));
    bed.write_through("thin", 4 * BLOCK, BLOCK, 2);
    bed.pool_says(" rw ");
}

#[test]
fn commit_without_changes_that_cannot_flush_the_data_device_leaves_the_pool_writable() {
    let bed = two();
    bed.write("thin", BLOCK, BLOCK, 2).unwrap();
    // The first commits; the others share one that has nothing to commit.
    bed.start("thin", "first", |_| cairn_block::Io::flush());
    bed.sim.run_for(crate::rig::DRIVE_TIME / 2);
    bed.start("thin", "second", |_| cairn_block::Io::flush());
    bed.sim.run_for(crate::rig::DRIVE_TIME);
    bed.drive("data").faults().add(Fault::error(OpSet::FLUSHES).shots(1));
    bed.settle();
    assert!(matches!(bed.ends.borrow()[..], [("first", Ok(())), ("second", Err(_))]));
    bed.pool_says(" rw ");
    bed.write_through("thin", 2 * BLOCK, BLOCK, 3);
}

#[test]
fn suspend_of_a_volume_tells_what_its_commit_lost_and_it_goes_on() {
    let bed = two();
    let clients = [bed.client("thin")];
    bed.write("thin", BLOCK, BLOCK, 2).unwrap();
    fail_commit(&bed);
    let lost = bed.try_suspend("thin", SuspendMode::Flush).unwrap_err().to_string();
    assert!(lost.starts_with("meta: commit failed: "), "{lost}");
    assert!(lost.ends_with("changes of thin devices 0 are lost"), "{lost}");
    bed.resume("thin").unwrap();
    bed.are_told_once(&clients);
    bed.suspend("thin", SuspendMode::Flush);
    bed.resume("thin").unwrap();
    assert_eq!(bed.bytes("thin", 0, 1), [1]);
}

#[test]
fn suspend_of_the_pool_tells_once_which_volumes_lost_changes_and_so_are_they() {
    let bed = two();
    let clients = [bed.client("thin"), bed.client("second")];
    bed.write("thin", BLOCK, BLOCK, 2).unwrap();
    bed.discard("second", 0, BLOCK).unwrap();
    fail_commit(&bed);
    let lost = bed.try_suspend("pool", SuspendMode::Flush).unwrap_err().to_string();
    assert!(lost.ends_with("changes of thin devices 0, 1 are lost"), "{lost}");
    bed.resume("pool").unwrap();
    bed.are_told_once(&clients);
    bed.suspend("pool", SuspendMode::Flush);
    bed.resume("pool").unwrap();
}

#[test]
fn what_a_commit_lost_before_is_told_by_the_next_suspend_of_the_pool() {
    let bed = two();
    bed.write("thin", BLOCK, BLOCK, 2).unwrap();
    fail_commit(&bed);
    // The pool commits by itself.
    bed.wait(std::time::Duration::from_secs(2));
    bed.pool_says(" ro ");
    let lost = bed.load_after_loss("pool", &bed.pool_table("0 0")).to_string();
    assert!(lost.contains("thin devices 0 are lost"), "{lost}");
    assert!(bed.flush_of(&bed.client("thin")).is_err(), "nobody was told yet");
}

#[test]
fn clients_are_told_after_a_failed_pool_was_opened_anew() {
    let bed = two();
    let clients = [bed.client("thin"), bed.client("thin")];
    bed.write("thin", BLOCK, BLOCK, 2).unwrap();
    for ops in [OpSet::WRITES, OpSet::READS] {
        bed.drive("meta").faults().add(Fault::error(ops));
    }
    assert!(bed.flush_of(&clients[0]).is_err());
    assert_eq!(bed.status("pool"), "Fail");
    bed.drive("meta").faults().clear();
    for name in ["thin", "second"] {
        bed.load(name, "0 1024 zero");
    }
    bed.try_suspend("pool", SuspendMode::Flush).unwrap_err();
    bed.resume("pool").unwrap();
    for (name, id) in [("thin", 0), ("second", 1)] {
        bed.load_thin(name, id, 8);
    }
    bed.pool_says(" rw ");
    assert_eq!(bed.flush_of(&clients[0]), Ok(()));
    bed.are_told_once(&clients[1..]);
    assert_eq!(bed.flush_of(&bed.client("second")), Ok(()));
}

#[test]
fn pool_fails_if_it_cannot_know_which_superblock_a_crash_leaves() {
    let bed = two();
    bed.write("thin", BLOCK, BLOCK, 2).unwrap();
    bed.forget();
    // The second flush of the metadata device fails, and every one after it.
    bed.start("thin", "flush", |_| cairn_block::Io::flush());
    while !bed.ops("meta").iter().any(|(op, ..)| *op == cairn_block::Op::Flush) {
        bed.sim.run_for(crate::rig::DRIVE_TIME / 10);
    }
    bed.sim.run_for(crate::rig::DRIVE_TIME);
    bed.drive("meta").faults().add(Fault::losing_flushes());
    bed.settle();
    assert!(matches!(bed.ends.borrow()[..], [("flush", Err(_))]));
    assert_eq!(bed.status("pool"), "Fail");
    bed.drive("meta").faults().clear();
}

#[test]
fn table_that_was_closed_goes_on_if_the_next_one_cannot_start() {
    let bed = two();
    let client = bed.client("thin");
    for round in 1..4 {
        bed.write("thin", BLOCK, BLOCK, round).unwrap();
        let refused = bed.try_load("thin", "0 1024 thin @pool 99").unwrap_err().to_string();
        assert!(refused.contains("device 99: found none"), "{refused}");
        assert_eq!(bed.bytes("thin", BLOCK, 1), [round]);
        let used = bed.message(&["delete", "0"]).unwrap_err().to_string();
        assert!(used.contains("in use"), "{used}");
        bed.write("thin", u64::from(round + 1) * BLOCK, BLOCK, round).unwrap();
        assert_eq!(bed.flush_of(&client), Ok(()));
    }
    bed.write("thin", 6 * BLOCK, BLOCK, 9).unwrap();
    fail_commit(&bed);
    bed.are_told_once(&[client]);
    bed.remove("thin");
    bed.check_metadata();
}

#[test]
fn pool_table_that_was_closed_goes_on_if_the_next_one_cannot_start() {
    let bed = two();
    let client = bed.client("thin");
    bed.write("thin", BLOCK, BLOCK, 2).unwrap();
    for table in ["0 8192 thin-pool meta data 256 0", "0 1024 thin @pool 0"] {
        bed.try_load("pool", table).unwrap_err();
        bed.write("thin", BLOCK, 2 * BLOCK, 3).unwrap();
        assert_eq!(bed.flush_of(&client), Ok(()));
    }
    let short = format!("0 {} thin-pool meta data {BLOCK} 0 0", 16 * BLOCK);
    let refused = bed.try_load("pool", &short).unwrap_err().to_string();
    assert!(refused.contains("expected at least 64"), "{refused}");
    bed.write("thin", 3 * BLOCK, BLOCK, 4).unwrap();
    assert_eq!(bed.flush_of(&client), Ok(()));
    bed.pool_says(" rw ");
    assert_eq!(bed.bytes("thin", 3 * BLOCK, 1), [4]);
}

#[test]
fn what_was_written_below_a_swap_to_a_volume_with_an_external_origin_is_durable() {
    let bed = two();
    bed.load("disk", &format!("0 {ORIGIN_SECTORS} linear origin 0"));
    let client = bed.client("disk");
    bed.write("disk", 0, BLOCK, 7).unwrap();
    bed.message(&["create_thin", "2"]).unwrap();
    bed.load("disk", &format!("0 {ORIGIN_SECTORS} thin @pool 2 origin"));
    assert_eq!(bed.bytes("disk", 0, 1), [7]);
    assert_eq!(bed.flush_of(&client), Ok(()));
    let origin = bed.drive("origin").durable();
    assert_eq!(origin.sector(cairn_block::Sector(0))[0], 7);
}

#[test]
fn failed_flush_of_an_external_origin_before_a_swap_is_told() {
    let bed = two();
    bed.load("disk", &format!("0 {ORIGIN_SECTORS} linear origin 0"));
    let clients = [bed.client("disk")];
    bed.write("disk", 0, BLOCK, 7).unwrap();
    bed.message(&["create_thin", "2"]).unwrap();
    bed.drive("origin").faults().add(Fault::losing_flushes().shots(1));
    bed.load_after_loss("disk", &format!("0 {ORIGIN_SECTORS} thin @pool 2 origin"));
    bed.are_told_once(&clients);
    // The writers of the volume rely on the origin no more.
    bed.drive("origin").faults().add(Fault::losing_flushes().shots(1));
    assert!(bed.volume("disk").live_table().is_some());
    assert_eq!(bed.flush_of(&clients[0]), Ok(()));
}
