//! No room: on the file system beneath a sparse store, and in a store that is about to grow.

use std::time::Duration;

use cairn_block::{ErrorKind, SectorCount, SuspendMode};
use cairn_sim::{Effect, Fault, OpSet};

use super::bed::{Bed, initial_byte, range};

fn initial(start: u64, count: u64) -> Vec<u8> {
    (start..start + count).map(initial_byte).collect()
}

fn no_space(start: u64, count: u64) -> Fault {
    let effect = Effect::Error(ErrorKind::NoSpace);
    Fault { effect, ..Fault::error(OpSet::WRITES) }.on(range(start, count))
}

#[test]
fn a_write_to_the_snapshot_without_room_on_its_file_system_fails_alone() {
    for (kind, room) in [("P", 24), ("PO", 24), ("N", 8)] {
        let bed = Bed::new(512, &[2048]);
        bed.load("s", &format!("0 512 snapshot origin cow0 {kind} 8"));
        bed.load("o", "0 512 snapshot-origin origin");
        bed.write("s", 0, 8, 7).unwrap();
        let before = bed.status("s");
        bed.drive("cow0").faults().add(no_space(room, 2048 - room));
        for _ in 0..3 {
            let whole = bed.write("s", 64, 16, 8).unwrap_err();
            let part = bed.write("s", 101, 2, 8).unwrap_err();
            assert_eq!((whole.kind, part.kind), (ErrorKind::NoSpace, ErrorKind::NoSpace));
        }
        assert_eq!(bed.status("s"), before, "nothing leaks");
        bed.write("s", 0, 8, 9).unwrap();
        assert_eq!(bed.core("s").exceptions.pending(), 0);
        bed.drive("cow0").faults().clear();
        bed.write("s", 64, 16, 8).unwrap();
        bed.write("s", 101, 2, 8).unwrap();
        bed.write("o", 64, 64, 1).unwrap();
        let mut expected = initial(0, 512);
        expected[..8].fill(9);
        expected[64..80].fill(8);
        expected[101..103].fill(8);
        assert_eq!(bed.bytes("s", 0, 512), expected);
    }
}

#[test]
fn a_write_to_the_origin_without_room_on_the_file_system_ends_the_snapshot() {
    let bed = Bed::new(512, &[2048]);
    bed.load("s", "0 512 snapshot origin cow0 PO 8");
    bed.load("o", "0 512 snapshot-origin origin");
    bed.drive("cow0").faults().add(no_space(16, 2032));
    bed.write("o", 64, 16, 8).unwrap();
    assert_eq!(bed.status("s"), "Invalid");
}

#[test]
fn an_area_that_finds_no_room_fails_the_write_that_needs_it() {
    // 32 records to an area; the second one is sector 34.
    let bed = Bed::new(512, &[400]);
    bed.load("s", "0 512 snapshot origin cow0 P 1");
    bed.load("o", "0 512 snapshot-origin origin");
    bed.write("s", 0, 31, 7).unwrap();
    bed.drive("cow0").faults().add(no_space(34, 1));
    assert_eq!(bed.write("s", 100, 1, 8).unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(bed.write("s", 100, 4, 8).unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(bed.status("s"), "33/400 2");
    bed.drive("cow0").faults().clear();
    bed.write("s", 100, 4, 9).unwrap();
    bed.write("o", 0, 200, 1).unwrap();
    let again = bed.reopen_durable();
    again.load("s", "0 512 snapshot origin cow0 P 1");
    let mut expected = initial(0, 512);
    expected[..31].fill(7);
    expected[100..104].fill(9);
    assert_eq!(again.bytes("s", 0, 512), expected);
}

/// A store of three chunks that is about to grow, and a write to the origin that waits for it.
fn waiting(seconds: u64) -> Bed {
    let bed = Bed::new(512, &[5 * 8]);
    bed.load("s", &format!("0 512 snapshot origin cow0 PO 8 2 wait_for_room {seconds}"));
    bed.load("o", "0 512 snapshot-origin origin");
    bed.write("o", 0, 16, 7).unwrap();
    bed.start("o", "write", |env| super::bed::write_io(env, 64, 64, 8));
    bed.settle();
    assert_eq!(bed.labels(), [""; 0]);
    bed
}

#[test]
fn a_write_to_the_origin_waits_while_the_store_grows() {
    let bed = waiting(5);
    // Not enough at first.
    bed.drive("cow0").resize(SectorCount(7 * 8));
    bed.sim.run_for(Duration::from_secs(2));
    assert_eq!(bed.labels(), [""; 0]);
    assert_eq!(bed.bytes("s", 0, 512), initial(0, 512));
    bed.drive("cow0").resize(SectorCount(2048));
    bed.sim.run_for(Duration::from_secs(1));
    assert_eq!(bed.labels(), ["write"]);
    assert_eq!(bed.bytes("s", 0, 512), initial(0, 512));
    assert_eq!(bed.bytes("o", 64, 64), [8; 64]);
}

#[test]
fn a_store_that_does_not_grow_in_time_ends_the_snapshot() {
    let bed = waiting(5);
    bed.sim.run_for(Duration::from_secs(4));
    assert_eq!((bed.labels(), bed.status("s")), (vec![], "40/40 16".to_owned()));
    bed.sim.run_for(Duration::from_secs(2));
    assert_eq!((bed.labels(), bed.status("s")), (vec!["write"], "Invalid".to_owned()));
    assert_eq!(bed.bytes("o", 64, 64), [8; 64]);
}

#[test]
fn after_a_suspend_that_was_called_off_writes_wait_for_room_again() {
    for mode in [SuspendMode::NoFlush, SuspendMode::Flush] {
        let bed = waiting(600);
        bed.call_off("o", mode);
        bed.settle();
        assert_eq!(bed.labels(), [""; 0]);
        bed.drive("cow0").resize(SectorCount(2048));
        bed.suspend("s", mode);
        bed.resume("s").unwrap();
        bed.settle();
        assert_eq!(bed.labels(), ["write"]);
        assert!(bed.ends.borrow().iter().all(|(_, result)| result.is_ok()));
        assert_eq!(bed.bytes("s", 0, 512), initial(0, 512));
    }
}

#[test]
fn suspend_hands_back_what_waits_for_room() {
    for mode in [SuspendMode::NoFlush, SuspendMode::Flush] {
        let bed = waiting(600);
        bed.suspend("o", mode);
        assert_eq!(bed.labels(), [""; 0]);
        assert_eq!(bed.status("s"), "40/40 16");
        bed.drive("cow0").resize(SectorCount(2048));
        bed.resume("o").unwrap();
        bed.settle();
        assert_eq!(bed.labels(), ["write"]);
        assert_eq!(bed.bytes("s", 0, 512), initial(0, 512));
    }
}
