//! Kills of the process: what was answered is there again.

use std::time::Duration;

use cairn_block::{Io, Op};
use cairn_format::qcow2::Severity;
use cairn_format::qcow2::write::{MARK, set_mark};

use super::fixture::{ALONE, OVER, Qcow2Fixture, model};
use crate::fixture::{SECTOR, write_io};

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
    assert_eq!((test.all(), layout.autoclear), (expected.clone(), MARK));
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
    let volume = test.volume("other");
    test.fixture.load("other", "0 1200 linear image 0");
    let mut first = test.drive("image").visible().to_vec();
    set_mark(&mut first[..SECTOR], false);
    let first = first[..SECTOR].to_vec();
    test.fixture
        .io("other", |env| {
            let segs = env.segs(cairn_block::SectorCount(1));
            segs.copy_in(0, &first);
            Io::write(crate::fixture::range(0, 1), segs)
        })
        .unwrap();
    drop(volume);
    test.fixture.remove("other");
    let line = test.try_load_refused(OVER);
    assert!(line.contains("crash log") && line.contains("--discard-crash-log"), "{line}");
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
