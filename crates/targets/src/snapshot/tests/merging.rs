//! Merging: content at every moment, other snapshots, failures, suspends.

use std::time::Duration;

use cairn_block::SuspendMode;
use cairn_sim::{Effect, Fault, OpSet};

use super::super::merge::Merge;
use super::fixture::{SnapshotFixture, initial_byte, range, write_io};

const MERGE: &str = "0 512 snapshot-merge origin cow0 P 8";

/// A suspended snapshot `s` with exceptions, another one, and what both hold.
fn written() -> (SnapshotFixture, Vec<u8>, Vec<u8>) {
    let test = SnapshotFixture::new(512, &[2048, 2048]);
    test.load("s", "0 512 snapshot origin cow0 P 8");
    test.load("o", "0 512 snapshot-origin origin");
    for at in [400, 16, 24, 32, 200, 90] {
        test.write("s", at, 8, (at % 200) as u8 + 1).unwrap();
    }
    test.write("o", 300, 30, 77).unwrap();
    test.load("other", "0 512 snapshot origin cow1 PO 16");
    let (content, other) = (test.bytes("s", 0, 512), test.bytes("other", 0, 512));
    test.suspend("s", SuspendMode::Flush);
    test.suspend("o", SuspendMode::Flush);
    (test, content, other)
}

#[test]
fn the_volume_has_the_snapshots_content_at_once_and_in_the_end() {
    let (test, content, other) = written();
    test.load("o", MERGE);
    assert_eq!(test.bytes("o", 0, 512), content);
    test.sim.run_until(|| test.status("o") == "16/2048 16");
    assert_eq!(test.bytes("o", 0, 512), content);
    assert_eq!(test.bytes("other", 0, 512), other, "the other snapshot kept what was overwritten");
    let origin = test.drive("origin").durable().to_vec();
    assert!(origin.chunks(512).map(|sector| sector[0]).eq(content.iter().copied()), "durably");
    assert_eq!(test.status("s"), "Invalid", "it was handed over");
    test.load("o", "0 512 snapshot-origin origin");
    assert_eq!(test.bytes("o", 0, 512), content);
}

#[test]
fn what_is_not_merged_yet_is_dirty() {
    let (test, ..) = written();
    let slow =
        Fault { effect: Effect::Delay(Duration::from_millis(3)), ..Fault::error(OpSet::FLUSHES) };
    let fault = test.drive("origin").faults().add(slow);
    test.load("o", MERGE);
    test.run(Duration::from_millis(4));
    test.suspend("o", SuspendMode::NoFlush);
    let merge = test.target("o");
    let dirty = merge.dirty().expect("a part is left");
    let unmerged = merge.as_any().and_then(|any| any.downcast_ref::<Merge>()).unwrap();
    let unmerged = unmerged.unmerged(range(0, 512));
    let left: u64 = unmerged.iter().map(|range| range.count.0).sum();
    assert!(left > 0 && left < 512);
    assert_eq!((dirty.sectors.0, dirty.device.as_str()), (left, "cow0"));
    assert_eq!(dirty.origin.name(), "origin");
    let word = format!("cow0: {} KiB not merged yet", left / 2);
    assert_eq!(merge.parting_word(), Some(word));
    test.drive("origin").faults().remove(fault);
    test.resume("o").unwrap();
    test.sim.run_until(|| test.status("o") == "16/2048 16");
    assert!(merge.dirty().is_none());
}

#[test]
fn writes_during_a_merge_are_not_lost() {
    let (test, mut content, other) = written();
    test.load("o", MERGE);
    for (round, at) in (0..120).map(|round| (round, (round * 37) % 500)) {
        let byte = (round % 250) as u8 + 1;
        test.write("o", at, 9, byte).unwrap();
        content[at as usize..at as usize + 9].fill(byte);
    }
    test.sim.run_until(|| test.status("o") == "16/2048 16");
    assert_eq!(test.bytes("o", 0, 512), content);
    assert_eq!(test.bytes("other", 0, 512), other);
    test.flush("o").unwrap();
}

#[test]
fn a_merge_that_fails_stops_and_goes_on_at_the_next_resume() {
    let (test, content, _) = written();
    let fault = Fault::error(OpSet::WRITES).on(range(16, 24));
    test.drive("origin").faults().add(fault);
    test.load("o", MERGE);
    let events = test.volume("o").event_nr();
    test.settle();
    assert_eq!(test.status("o"), "Merge failed");
    assert!(test.volume("o").event_nr() >= events);
    assert_eq!(test.bytes("o", 0, 512), content, "the mixed state reads right");
    test.write("o", 20, 1, content[20]).unwrap();
    test.drive("origin").faults().clear();
    test.suspend("o", SuspendMode::Flush);
    test.resume("o").unwrap();
    test.sim.run_until(|| test.status("o") == "16/2048 16");
    assert_eq!(test.bytes("o", 0, 512), content);
}

#[test]
fn a_suspend_stops_the_merge_and_a_resume_or_crash_goes_on() {
    let (test, content, _) = written();
    let slow =
        Fault { effect: Effect::Delay(Duration::from_millis(3)), ..Fault::error(OpSet::FLUSHES) };
    test.drive("origin").faults().add(slow);
    test.load("o", MERGE);
    test.start("o", "write", |env| write_io(env, 90, 4, content[90]));
    test.run(Duration::from_millis(4));
    test.suspend("o", SuspendMode::NoFlush);
    assert_ne!(test.status("o"), "16/2048 16");
    let after_crash = test.reopen_durable();
    after_crash.load("o", MERGE);
    after_crash.sim.run_until(|| after_crash.status("o") == "16/2048 16");
    let ended = after_crash.bytes("o", 0, 512);
    assert!(ended[..90] == content[..90] && ended[96..] == content[96..]);
    test.resume("o").unwrap();
    test.sim.run_until(|| test.status("o") == "16/2048 16");
    assert_eq!(test.bytes("o", 0, 512), content);
}

#[test]
fn after_a_suspend_that_was_called_off_the_merge_goes_on() {
    for mode in [SuspendMode::NoFlush, SuspendMode::Flush] {
        let (test, content, _) = written();
        test.load("o", MERGE);
        test.call_off("o", mode);
        assert_ne!(test.status("o"), "16/2048 16");
        test.settle();
        assert_eq!(test.status("o"), "16/2048 16");
        assert_eq!(test.bytes("o", 0, 512), content);
    }
}

#[test]
fn limit_of_background_copies_slows_a_merge_and_holds_up_no_client_and_no_suspend() {
    let (test, content, _) = written();
    test.limit_background(4096);
    test.load("o", MERGE);
    let is_merged = || test.status("o") == "16/2048 16";
    test.run(Duration::from_secs(2));
    assert!(!is_merged(), "{}", test.status("o"));
    assert_eq!(test.in_no_time(|| test.bytes("o", 0, 512)), content);
    test.in_no_time(|| test.write("o", 90, 4, content[90])).unwrap();
    test.in_no_time(|| test.suspend("o", SuspendMode::Flush));
    test.resume("o").unwrap();
    assert!(!is_merged(), "{}", test.status("o"));
    let began = test.sim.now();
    test.sim.run_until(is_merged);
    assert!(test.sim.now().since(began) > Duration::from_secs(2));
    assert_eq!(test.bytes("o", 0, 512), content);
}

#[test]
fn a_run_that_is_copied_again_is_one_line_with_the_volumes_name() {
    let (test, content, _) = written();
    test.load("o", MERGE);
    test.drive("origin").faults().add(Fault::losing_flushes().shots(2));
    test.sim.run_until(|| test.status("o") == "16/2048 16");
    let log = test.sim.env(0).post().clone();
    assert_eq!(log.log().counted("o: origin: a flush failed, a run is copied again"), Some(1));
    assert_eq!(test.bytes("o", 0, 512), content);
}

#[test]
fn one_snapshot_of_an_origin_merges_at_a_time() {
    let (test, _, _) = written();
    let slow =
        Fault { effect: Effect::Delay(Duration::from_millis(3)), ..Fault::error(OpSet::FLUSHES) };
    test.drive("origin").faults().add(slow);
    test.load("o", MERGE);
    test.suspend("other", SuspendMode::Flush);
    let busy = test.try_load("p", "0 512 snapshot-merge origin cow1 P 16").unwrap_err();
    assert!(busy.to_string().contains("another snapshot merging"), "{busy}");
}

#[test]
fn merging_an_invalid_snapshot_is_serving_the_origin() {
    let test = SnapshotFixture::new(512, &[3 * 8]);
    test.load("s", "0 512 snapshot origin cow0 P 8");
    test.load("o", "0 512 snapshot-origin origin");
    test.write("o", 0, 64, 9).unwrap();
    assert_eq!(test.status("s"), "Invalid");
    test.remove("s");
    test.load("o", MERGE);
    assert_eq!(test.status("o"), "Invalid");
    test.write("o", 100, 8, 5).unwrap();
    test.flush("o").unwrap();
    assert_eq!(test.bytes("o", 100, 8), [5; 8]);
    assert_eq!(test.bytes("o", 108, 1), [initial_byte(108)]);
}

/// Where the records of `cow0` are.
fn records() -> cairn_block::SectorRange {
    range(8, 8)
}

fn resume_merging(test: &SnapshotFixture) {
    test.suspend("o", SuspendMode::Flush);
    test.resume("o").unwrap();
    test.settle();
}

#[test]
fn a_clearing_that_fails_in_part_loses_no_later_write() {
    let (test, mut content, _) = written();
    let fail_once =
        || test.drive("cow0").faults().add(Fault::error(OpSet::WRITES).on(records()).shots(2));
    fail_once();
    test.load("o", MERGE);
    for _ in 0..20 {
        test.settle();
        assert_eq!(test.status("o"), "Merge failed");
        fail_once();
        resume_merging(&test);
    }
    for at in [300, 400, 16, 24, 32, 200, 90] {
        test.write("o", at, 8, 99).unwrap();
        content[at as usize..at as usize + 8].fill(99);
    }
    test.flush("o").unwrap();
    let after_crash = test.reopen_durable();
    after_crash.load("o", MERGE);
    after_crash.sim.run_until(|| after_crash.status("o") == "16/2048 16");
    assert_eq!(after_crash.bytes("o", 0, 512), content);
}

#[test]
fn a_run_whose_records_may_be_gone_is_not_written_until_they_are_back() {
    let (test, mut content, _) = written();
    test.drive("cow0").faults().add(Fault::error(OpSet::WRITES).on(records()));
    test.load("o", MERGE);
    test.settle();
    assert_eq!(test.status("o"), "Merge failed");
    assert!(test.write("o", 310, 4, 99).is_err(), "the last records' chunks");
    assert_eq!(test.bytes("o", 0, 512), content);
    test.write("o", 400, 8, 99).unwrap();
    content[400..408].fill(99);
    resume_merging(&test);
    assert!(test.write("o", 310, 4, 99).is_err());
    test.drive("cow0").faults().clear();
    test.suspend("o", SuspendMode::Flush);
    test.resume("o").unwrap();
    test.sim.run_until(|| test.status("o") == "16/2048 16");
    assert_eq!(test.bytes("o", 0, 512), content);
    test.write("o", 310, 4, 98).unwrap();
}
