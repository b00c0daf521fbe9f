//! Failures of each device.

use std::time::Duration;

use cairn_block::{Io, Op, SuspendMode};
use cairn_sim::{Fault, OpSet};

use super::fixture::{CloneFixture, PAUSED, TABLE, source};
use crate::fixture::{DRIVE_TIME, SECTOR, Seen, range, write_io};

fn bytes_of_source(start: usize, count: usize) -> Vec<u8> {
    source().chunks(SECTOR).skip(start).take(count).map(|sector| sector[0]).collect()
}

#[test]
fn a_source_that_cannot_be_read_fails_what_needs_it_and_nothing_else() {
    let test = CloneFixture::loaded(TABLE);
    test.drive("src").faults().add(Fault::error(OpSet::READS).on(range(80, 8)));
    assert!(test.write(81, 1, 5).is_err());
    test.write(80, 8, 6).unwrap();
    assert!(test.read(80, 8).unwrap().iter().all(|byte| *byte == 6));
    let test = CloneFixture::loaded(TABLE);
    let fault = test.drive("src").faults().add(Fault::error(OpSet::READS).on(range(80, 8)));
    test.run(Duration::from_secs(5));
    assert_eq!(test.hydrated(), 125, "hydration passes over it");
    assert!(test.read(80, 1).is_err());
    test.drive("src").faults().remove(fault);
    test.run(Duration::from_secs(5));
    assert_eq!((test.hydrated(), test.all()), (126, source()));
}

#[test]
fn a_destination_that_fails_a_write_fails_the_request_and_the_region_stays() {
    let test = CloneFixture::loaded(PAUSED);
    test.drive("dest").faults().add(Fault::error(OpSet::WRITES).shots(2));
    assert!(test.write(81, 1, 5).is_err());
    assert!(test.write(160, 8, 5).is_err());
    assert_eq!((test.hydrated(), test.all()), (0, source()));
    test.write(81, 1, 5).unwrap();
    assert_eq!(test.hydrated(), 1);
}

#[test]
fn regions_that_a_failed_flush_may_have_lost_are_copied_again() {
    let test = CloneFixture::loaded(PAUSED);
    let client = test.client();
    test.write(81, 1, 5).unwrap();
    assert_eq!(test.hydrated(), 1);
    test.drive("dest").faults().add(Fault::losing_flushes().shots(1));
    assert!(test.on(Op::Flush, 0, 0).is_err());
    assert_eq!((test.hydrated(), test.durable_bits().hydrated()), (0, 0));
    assert_eq!(test.all(), source(), "the write is lost, and the client knows");
    test.write(82, 1, 6).unwrap();
    assert!(test.flush_of(&client).is_err(), "each client is told once");
    test.flush_of(&client).unwrap();
    let mut model = source();
    model[82 * SECTOR..83 * SECTOR].fill(6);
    assert!(test.all() == model);
    assert_eq!(
        test.drive("dest").durable().to_vec()[80 * SECTOR..88 * SECTOR],
        model[80 * SECTOR..88 * SECTOR]
    );
}

#[test]
fn a_failure_by_another_user_is_noticed_by_the_next_commit() {
    let test = CloneFixture::loaded(TABLE);
    test.run(Duration::from_millis(2));
    let hydrated = test.hydrated();
    assert!(hydrated > 0);
    test.lose_by_another("dest");
    test.run(Duration::from_secs(8));
    assert_eq!((test.hydrated(), test.durable_bits().hydrated()), (126, 126));
    assert_eq!(test.drive("dest").durable().to_vec(), source());
    // The failure concerns the clients of the volume; nothing else is lost.
    assert!(test.on(Op::Flush, 0, 0).is_ok());
}

#[test]
fn a_region_whose_copy_ran_while_the_destination_failed_is_copied_again_before_it_is_written() {
    let test = CloneFixture::loaded(PAUSED);
    test.start(1, "write", |env| write_io(env, 81, 1, 5));
    test.run(DRIVE_TIME / 4);
    // It ends between the read and the write of the copy.
    test.lose_by_another("dest");
    test.settle();
    assert_eq!(test.ends.of("write"), Some(Ok(())));
    assert!(test.on(Op::Flush, 0, 0).is_ok(), "the write came after the failure");
    assert_eq!((test.hydrated(), test.bytes(81, 1)), (1, vec![5]));
}

#[test]
fn a_superblock_that_an_earlier_failure_may_have_lost_is_written_again_at_the_opening() {
    let test = CloneFixture::loaded(PAUSED);
    test.write(80, 8, 5).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    for fails in [false, true] {
        test.load("0 8 zero");
        if fails {
            test.lose_by_another("meta");
        }
        test.forget();
        test.load(PAUSED);
        let seen = test.seen("meta");
        let is_superblock = |seen: &Seen| (seen.op, seen.start) == (Op::Write, 0);
        let writes = seen.iter().filter(|seen| is_superblock(seen)).count();
        assert_eq!((writes, test.hydrated()), (usize::from(fails), 1), "{seen:?}");
    }
}

#[test]
fn what_a_failure_may_have_lost_is_not_read_once_a_request_has_ended_after_it() {
    // A flush of another user.
    let test = CloneFixture::loaded(PAUSED);
    test.write(80, 8, 5).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    test.write(160, 8, 6).unwrap();
    test.lose_by_another("dest");
    test.write(80, 8, 7).unwrap();
    test.settle();
    assert_eq!((test.hydrated(), test.bytes(160, 8)), (1, bytes_of_source(160, 8)));
    assert_eq!(test.bytes(80, 8), [7; 8]);
    // A flush that had nothing to commit when it began.
    let test = CloneFixture::loaded(PAUSED);
    test.drive("dest").faults().add(Fault::losing_flushes().shots(1));
    test.start(2, "write", |env| write_io(env, 160, 8, 6));
    test.run(DRIVE_TIME / 2);
    test.start(1, "flush", |_| Io::flush());
    test.settle();
    assert_eq!(test.labels(), ["write", "flush"]);
    assert!(test.ends.of("flush").is_some_and(|result| result.is_err()));
    assert_eq!((test.hydrated(), test.bytes(160, 8)), (0, bytes_of_source(160, 8)));
}

#[test]
fn what_the_destination_lost_is_noticed_although_the_metadata_has_failed() {
    let test = CloneFixture::loaded(PAUSED);
    let client = test.client();
    test.write(80, 8, 5).unwrap();
    test.drive("meta").faults().add(Fault::error(OpSet::WRITES));
    assert!(test.on(Op::Flush, 0, 0).is_err());
    test.write(160, 8, 6).unwrap();
    test.lose_by_another("dest");
    test.run(Duration::from_secs(3));
    assert_eq!((test.hydrated(), test.all()), (0, source()));
    test.write(240, 8, 7).unwrap();
    assert!(test.flush_of(&client).is_err());
    test.drive("meta").faults().clear();
    test.on(Op::Flush, 0, 0).unwrap();
    let mut model = source();
    model[240 * SECTOR..248 * SECTOR].fill(7);
    assert_eq!(test.durable_bits().hydrated(), 1);
    let test = test.killed();
    test.load(PAUSED);
    assert!(test.all() == model);
}

#[test]
fn bits_that_an_unfinished_commit_left_are_withdrawn_before_a_flush_succeeds() {
    let test = CloneFixture::loaded(PAUSED);
    test.write(80, 8, 5).unwrap();
    // The superblock lands, and the flush after it fails.
    test.start(1, "flush", |_| Io::flush());
    test.forget();
    while !test.ops("meta").contains(&(Op::Write, 0, 8)) {
        test.run(DRIVE_TIME / 5);
    }
    test.drive("meta").faults().add(Fault::error(OpSet::FLUSHES));
    test.settle();
    assert!(test.ends.of("flush").is_some_and(|result| result.is_err()));
    test.lose_by_another("dest");
    test.run(Duration::from_secs(3));
    assert_eq!((test.hydrated(), test.all()), (0, source()));
    assert!(test.on(Op::Flush, 0, 0).is_err(), "the device may have the bit");
    test.drive("meta").faults().clear();
    test.on(Op::Flush, 0, 0).unwrap();
    assert_eq!(test.durable_bits().hydrated(), 0);
}

#[test]
fn metadata_that_cannot_be_written_fails_flushes_until_it_can() {
    let test = CloneFixture::loaded(PAUSED);
    test.write(80, 8, 5).unwrap();
    let fault = test.drive("meta").faults().add(Fault::error(OpSet::WRITES));
    assert!(test.on(Op::Flush, 0, 0).is_err());
    assert!(test.target().status().ends_with(" ro"), "{}", test.target().status());
    test.write(160, 4, 6).unwrap();
    assert!(test.on(Op::Flush, 0, 0).is_err());
    assert_eq!(test.durable_bits().hydrated(), 0);
    test.drive("meta").faults().remove(fault);
    test.on(Op::Flush, 0, 0).unwrap();
    assert!(test.target().status().ends_with(" rw"));
    assert_eq!(test.durable_bits().hydrated(), 2);
}

#[test]
fn a_kill_while_metadata_cannot_be_written_loses_nothing() {
    let test = CloneFixture::loaded(PAUSED);
    test.write(80, 8, 5).unwrap();
    test.drive("meta").faults().add(Fault::error(OpSet::WRITES));
    assert!(test.on(Op::Flush, 0, 0).is_err());
    test.write(160, 8, 6).unwrap();
    let before = test.all();
    test.drive("meta").faults().clear();
    let test = test.killed();
    test.load(PAUSED);
    assert!(test.all() == before);
}

#[test]
fn a_suspend_ends_although_writes_wait_for_room_that_no_commit_makes() {
    for mode in [SuspendMode::NoFlush, SuspendMode::Flush] {
        let test = CloneFixture::with_log_of(16);
        test.load(PAUSED);
        test.drive("meta").faults().add(Fault::error(OpSet::WRITES));
        for region in (0..120).step_by(2) {
            test.start(1, "write", move |env| write_io(env, region * 8, 8, 9));
        }
        test.settle();
        assert!(test.ends.count() < 60, "some wait");
        let refused = test.try_suspend(mode).expect_err("nothing can be committed").to_string();
        assert!(refused.starts_with("meta: "), "{refused}");
        test.drive("meta").faults().clear();
        test.resume();
        test.settle();
        assert_eq!(test.ends.count(), 60);
        assert!(test.ends.all().iter().all(|(_, result)| result.is_ok()));
        assert_eq!(test.hydrated(), 60);
    }
}

#[test]
fn a_source_that_is_gone_is_no_loss_when_the_clone_is_replaced() {
    let test = CloneFixture::loaded(TABLE);
    test.run(Duration::from_secs(5));
    assert_eq!(test.hydrated(), 126);
    test.drive("src").faults().add(Fault::error(OpSet::ALL));
    test.load("0 1003 linear dest 0");
    test.flush_of(&test.client()).expect("nothing was lost");
    assert!(test.all() == source());
}
