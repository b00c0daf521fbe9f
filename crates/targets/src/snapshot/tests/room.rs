//! No room: on the file system beneath a sparse store, and in a store that is about to grow.

use std::time::Duration;

use cairn_block::{ErrorKind, SectorCount, SuspendMode};
use cairn_sim::{Effect, Fault, OpSet};

use super::fixture::{SnapshotFixture, initial_bytes, range};

fn no_space(start: u64, count: u64) -> Fault {
    let effect = Effect::Error(ErrorKind::NoSpace);
    Fault { effect, ..Fault::error(OpSet::WRITES) }.on(range(start, count))
}

#[test]
fn a_write_to_the_snapshot_without_room_on_its_file_system_fails_alone() {
    for (kind, room) in [("P", 24), ("PO", 24), ("N", 8)] {
        let test = SnapshotFixture::new(512, &[2048]);
        test.load("s", &format!("0 512 snapshot origin cow0 {kind} 8"));
        test.load("o", "0 512 snapshot-origin origin");
        test.write("s", 0, 8, 7).unwrap();
        let before = test.status("s");
        test.drive("cow0").faults().add(no_space(room, 2048 - room));
        for _ in 0..3 {
            let whole = test.write("s", 64, 16, 8).unwrap_err();
            let part = test.write("s", 101, 2, 8).unwrap_err();
            assert_eq!((whole.kind, part.kind), (ErrorKind::NoSpace, ErrorKind::NoSpace));
        }
        assert_eq!(test.status("s"), before, "nothing leaks");
        test.write("s", 0, 8, 9).unwrap();
        assert_eq!(test.core("s").exceptions.pending(), 0);
        test.drive("cow0").faults().clear();
        test.write("s", 64, 16, 8).unwrap();
        test.write("s", 101, 2, 8).unwrap();
        test.write("o", 64, 64, 1).unwrap();
        let mut expected = initial_bytes(0, 512);
        expected[..8].fill(9);
        expected[64..80].fill(8);
        expected[101..103].fill(8);
        assert_eq!(test.bytes("s", 0, 512), expected);
    }
}

#[test]
fn a_write_to_the_origin_without_room_on_the_file_system_ends_the_snapshot() {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", "0 512 snapshot origin cow0 PO 8");
    test.load("o", "0 512 snapshot-origin origin");
    test.drive("cow0").faults().add(no_space(16, 2032));
    test.write("o", 64, 16, 8).unwrap();
    assert_eq!(test.status("s"), "Invalid");
}

#[test]
fn an_area_that_finds_no_room_fails_the_write_that_needs_it() {
    // 32 records to an area; the second one is sector 34.
    let test = SnapshotFixture::new(512, &[400]);
    test.load("s", "0 512 snapshot origin cow0 P 1");
    test.load("o", "0 512 snapshot-origin origin");
    test.write("s", 0, 31, 7).unwrap();
    test.drive("cow0").faults().add(no_space(34, 1));
    assert_eq!(test.write("s", 100, 1, 8).unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(test.write("s", 100, 4, 8).unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(test.status("s"), "33/400 2");
    test.drive("cow0").faults().clear();
    test.write("s", 100, 4, 9).unwrap();
    test.write("o", 0, 200, 1).unwrap();
    let again = test.reopen_durable();
    again.load("s", "0 512 snapshot origin cow0 P 1");
    let mut expected = initial_bytes(0, 512);
    expected[..31].fill(7);
    expected[100..104].fill(9);
    assert_eq!(again.bytes("s", 0, 512), expected);
}

/// A store of three chunks that is about to grow, and a write to the origin that waits for it.
fn waiting(seconds: u64) -> SnapshotFixture {
    let test = SnapshotFixture::new(512, &[5 * 8]);
    test.load("s", &format!("0 512 snapshot origin cow0 PO 8 2 wait_for_room {seconds}"));
    test.load("o", "0 512 snapshot-origin origin");
    test.write("o", 0, 16, 7).unwrap();
    test.start("o", "write", |env| super::fixture::write_io(env, 64, 64, 8));
    test.settle();
    assert_eq!(test.labels(), [""; 0]);
    test
}

#[test]
fn a_write_to_the_origin_waits_while_the_store_grows() {
    let test = waiting(5);
    // Not enough at first.
    test.drive("cow0").resize(SectorCount(7 * 8));
    test.run(Duration::from_secs(2));
    assert_eq!(test.labels(), [""; 0]);
    assert_eq!(test.bytes("s", 0, 512), initial_bytes(0, 512));
    test.drive("cow0").resize(SectorCount(2048));
    test.run(Duration::from_secs(1));
    assert_eq!(test.labels(), ["write"]);
    assert_eq!(test.bytes("s", 0, 512), initial_bytes(0, 512));
    assert_eq!(test.bytes("o", 64, 64), [8; 64]);
}

#[test]
fn a_store_that_does_not_grow_in_time_ends_the_snapshot() {
    let test = waiting(5);
    test.run(Duration::from_secs(4));
    assert_eq!((test.labels(), test.status("s")), (vec![], "40/40 16".to_owned()));
    test.run(Duration::from_secs(2));
    assert_eq!((test.labels(), test.status("s")), (vec!["write"], "Invalid".to_owned()));
    assert_eq!(test.bytes("o", 64, 64), [8; 64]);
}

#[test]
fn after_a_suspend_that_was_called_off_writes_wait_for_room_again() {
    for mode in [SuspendMode::NoFlush, SuspendMode::Flush] {
        let test = waiting(600);
        test.call_off("o", mode);
        test.settle();
        assert_eq!(test.labels(), [""; 0]);
        test.drive("cow0").resize(SectorCount(2048));
        test.suspend("s", mode);
        test.resume("s").unwrap();
        test.settle();
        assert_eq!(test.labels(), ["write"]);
        assert!(test.ends.all().iter().all(|(_, result)| result.is_ok()));
        assert_eq!(test.bytes("s", 0, 512), initial_bytes(0, 512));
    }
}

#[test]
fn suspend_hands_back_what_waits_for_room() {
    for mode in [SuspendMode::NoFlush, SuspendMode::Flush] {
        let test = waiting(600);
        test.suspend("o", mode);
        assert_eq!(test.labels(), [""; 0]);
        assert_eq!(test.status("s"), "40/40 16");
        test.drive("cow0").resize(SectorCount(2048));
        test.resume("o").unwrap();
        test.settle();
        assert_eq!(test.labels(), ["write"]);
        assert_eq!(test.bytes("s", 0, 512), initial_bytes(0, 512));
    }
}
