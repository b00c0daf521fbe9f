//! Kills of the process: what was answered is there again.

use std::time::Duration;

use cairn_block::{Env, Io, Op, SectorCount};
use cairn_format::qcow2::Severity;
use cairn_format::qcow2::write::{mark_of, set_mark};
use cairn_sim::{Fault, OpSet};

use super::fixture::{ALONE, OVER, Qcow2Fixture, model};
use crate::fixture::{OneVolume, SECTOR, drive_options, range, write_io};

/// Writes these bytes to the beginning.
fn data_io(env: &Env, bytes: &[u8]) -> Io {
    let count = bytes.len() / SECTOR;
    let segs = env.segs(SectorCount(count as u64));
    segs.copy_in(0, bytes);
    Io::write(range(0, count as u64), segs)
}

#[test]
fn answered_requests_survive_a_kill_without_a_flush() {
    let (test, mut expected) = (Qcow2Fixture::loaded(OVER), model(true));
    test.write(13, 2, 200).unwrap();
    test.write(14, 1, 201).unwrap();
    test.write(64, 16, 202).unwrap();
    test.on(Op::Discard, 68, 4).unwrap();
    test.write(1002, 1, 203).unwrap();
    (expected[13], expected[14], expected[1002]) = (200, 201, 203);
    expected[64..80].fill(202);
    expected[68..72].fill(0);
    assert_eq!(test.durable_data(), 0);
    let test = test.killed();
    test.load(OVER);
    let (report, layout) = test.durable();
    assert_eq!(report.counts.data, 9, "committed before anything is served");
    assert_eq!(test.all(), expected);
    assert!(mark_of(layout.autoclear) != 0);
    let test = test.killed();
    test.load(OVER);
    assert_eq!(test.all(), expected);
}

#[test]
fn a_kill_during_a_commit_loses_nothing() {
    for steps in 1..60 {
        let (test, mut expected) = (Qcow2Fixture::loaded(ALONE), model(false));
        test.write(13, 200, 200).unwrap();
        test.on(Op::Discard, 100, 20).unwrap();
        expected[13..213].fill(200);
        expected[100..120].fill(0);
        test.start(1, "flush", |_| Io::flush());
        test.run(Duration::from_micros(steps * 20));
        let test = test.killed();
        test.load(ALONE);
        assert_eq!(test.all(), expected, "{steps}");
        let severity = test.durable().0.severity;
        assert!(severity < Severity::Damaged, "{steps}");
    }
}

#[test]
fn a_log_that_is_full_makes_requests_wait_for_a_commit() {
    let (test, mut expected) = (Qcow2Fixture::loaded(OVER), model(true));
    for cluster in 0..240 {
        let byte = cluster as u8 + 1;
        test.start(1, "write", move |env| write_io(env, cluster * 4, 2, byte));
        expected[cluster as usize * 4..cluster as usize * 4 + 2].fill(byte);
    }
    test.run(Duration::from_millis(500));
    assert_eq!((test.ends.count(), test.all()), (240, expected.clone()));
    let test = test.killed();
    test.load(OVER);
    assert_eq!(test.all(), expected);
}

#[test]
fn an_image_that_another_program_wrote_after_a_kill_is_refused() {
    let test = Qcow2Fixture::loaded(OVER);
    test.write(13, 2, 200).unwrap();
    let test = test.killed();
    // What qemu does before it writes to it.
    test.fixture.load("other", "0 1200 linear image 0");
    let mut first = test.drive("image").visible().to_vec();
    set_mark(&mut first[..SECTOR], 0);
    test.fixture.io("other", |env| data_io(env, &first[..SECTOR])).unwrap();
    test.fixture.remove("other");
    let reader = test.try_load_read_only(OVER).unwrap_err().to_string();
    let test = test.killed();
    for line in [reader, test.try_load_refused(OVER)] {
        assert!(line.contains("crash log") && line.contains("--discard-crash-log"), "{line}");
    }
}

#[test]
fn an_image_that_another_server_wrote_after_a_kill_is_refused() {
    let here = Qcow2Fixture::loaded(ALONE);
    here.write(0, 2, 7).unwrap();
    let here = here.killed();
    // Another host opens it, with crash logs of its own, and loses its power.
    let image = here.drive("image").visible();
    let there = Qcow2Fixture::seeded(2, drive_options("image"), image);
    there.load(ALONE);
    there.write(0, 2, 9).unwrap();
    there.on(Op::Flush, 0, 0).unwrap();
    let image = there.drive("image").durable().to_vec();
    here.fixture.load("other", "0 1200 linear image 0");
    here.fixture.io("other", |env| data_io(env, &image)).unwrap();
    here.fixture.remove("other");
    let line = here.try_load_refused(ALONE);
    assert!(line.contains("crash log") && line.contains("or server"), "{line}");
}

#[test]
fn a_commit_that_failed_leaves_one_record_for_neighbours() {
    let drives = Qcow2Fixture::drives(600).with_logs_of(16);
    let test = Qcow2Fixture(OneVolume::of(drives));
    test.load(ALONE);
    test.write(0, 400, 5).unwrap();
    test.drive("image").faults().add(Fault::error(OpSet::WRITES).shots(1));
    assert!(test.on(Op::Flush, 0, 0).is_err());
    let test = test.killed();
    let client = test.client();
    test.load(ALONE);
    assert_eq!(test.bytes(0, 400), [5; 400]);
    test.flush_of(&client).unwrap();
}

#[test]
fn a_read_only_volume_shows_what_a_kill_left_and_writes_nothing() {
    let test = Qcow2Fixture::loaded(OVER);
    test.write(13, 2, 200).unwrap();
    test.write(801, 2, 201).unwrap();
    test.on(Op::Discard, 20, 10).unwrap();
    let before = test.all();
    let test = test.killed();
    test.try_load_read_only(OVER).unwrap();
    test.forget();
    assert_eq!(test.all(), before);
    test.on(Op::Flush, 0, 0).unwrap();
    test.run(Duration::from_secs(3));
    assert!(test.seen("image").iter().all(|seen| [Op::Read, Op::Flush].contains(&seen.op)));
    assert_eq!(test.target().status().split(' ').next_back(), Some("ro"));
}
