//! The process is killed, and another one opens a transient snapshot.

use cairn_block::{ErrorKind, SuspendMode};
use cairn_sim::{Fault, OpSet};

use super::fixture::{SnapshotFixture, initial_byte, initial_bytes, write_io};

const SNAPSHOT: &str = "0 512 snapshot origin cow0 N 8";
const ORIGIN: &str = "0 512 snapshot-origin origin";

fn live() -> SnapshotFixture {
    let test = SnapshotFixture::new(512, &[2048, 2048]);
    test.load("s", SNAPSHOT);
    test.load("o", ORIGIN);
    test
}

/// The next process opens the same volumes.
fn after_kill(test: SnapshotFixture, snapshot: &str) -> SnapshotFixture {
    let test = test.killed();
    test.load("s", snapshot);
    test.load("o", ORIGIN);
    test
}

#[test]
fn a_transient_snapshot_outlives_kills() {
    let mut test = live();
    for life in 0..5 {
        let at = life * 24;
        test.write("o", at, 16, 200).unwrap();
        test.write("s", at + 20, 2, 201).unwrap();
        test = after_kill(test, SNAPSHOT);
        let mut expected = initial_bytes(0, 512);
        for at in (0..=life).map(|life| life as usize * 24) {
            expected[at + 20..at + 22].fill(201);
        }
        assert_eq!(test.bytes("s", 0, 512), expected, "{life}");
        assert_eq!(test.bytes("o", at, 17)[..16], [200; 16]);
        assert_eq!(test.status("s"), format!("{}/2048 0", (life + 1) * 24));
    }
}

#[test]
fn a_power_cut_leaves_an_empty_transient_snapshot() {
    let test = live();
    test.write("s", 0, 8, 7).unwrap();
    let again = test.reopen_durable();
    again.load("s", SNAPSHOT);
    assert_eq!(again.status("s"), "0/2048 0");
}

#[test]
fn a_snapshot_that_ended_has_ended_after_a_kill_too() {
    let mut test = SnapshotFixture::new(512, &[8]);
    test.load("s", SNAPSHOT);
    test.load("o", ORIGIN);
    test.write("o", 0, 16, 7).unwrap();
    for _ in 0..2 {
        test = after_kill(test, SNAPSHOT);
        assert_eq!(test.status("s"), "Invalid");
        assert_eq!(test.read("s", 0, 8).unwrap_err().kind, ErrorKind::Io);
    }
}

#[test]
fn a_failure_of_the_cow_device_before_a_kill_ends_the_snapshot() {
    for has_exceptions in [true, false] {
        let mut test = live();
        if has_exceptions {
            test.write("o", 0, 8, 7).unwrap();
        }
        test.lose_by_another("cow0");
        if !has_exceptions {
            // The snapshot learns of the failure, and goes on.
            test.flush("s").unwrap();
            test.write("o", 0, 8, 7).unwrap();
        }
        for _ in 0..2 {
            test = after_kill(test, SNAPSHOT);
            assert_eq!(test.status("s") == "Invalid", has_exceptions);
        }
    }
}

#[test]
fn a_failure_beneath_a_volume_ends_the_snapshot_after_a_kill_if_it_lost_something() {
    for fails_again in [false, true] {
        let load = |test: &SnapshotFixture| {
            test.load("low", "0 2048 linear cow0 0");
            test.load("s", "0 512 snapshot origin @low N 8");
            test.load("o", ORIGIN);
        };
        let test = SnapshotFixture::new(512, &[2048]);
        load(&test);
        test.lose_by_another("cow0");
        // The snapshot learns of the failure, and goes on.
        test.flush("s").unwrap();
        test.write("o", 0, 8, 7).unwrap();
        if fails_again {
            test.lose_by_another("cow0");
        }
        let test = test.killed();
        load(&test);
        assert_eq!(test.status("s") == "Invalid", fails_again);
    }
}

#[test]
fn exceptions_that_continue_each_other_need_one_record() {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", "0 512 snapshot origin cow0 N 1");
    test.load("o", ORIGIN);
    // In order, and twice as many as a half has room for.
    (0..300).for_each(|at| test.write("o", at, 1, 200).unwrap());
    let test = after_kill(test, "0 512 snapshot origin cow0 N 1");
    assert_eq!(test.bytes("s", 0, 512), initial_bytes(0, 512));
    assert_eq!(test.status("s"), "300/2048 0");
}

#[test]
fn a_kill_ends_a_snapshot_with_more_exceptions_than_its_log_holds() {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", "0 512 snapshot origin cow0 N 1");
    test.load("o", ORIGIN);
    (0..250).for_each(|at| test.write("o", at * 2, 1, 200).unwrap());
    assert_eq!(test.bytes("s", 0, 512), initial_bytes(0, 512));
    let test = after_kill(test, "0 512 snapshot origin cow0 N 1");
    assert_eq!(test.status("s"), "Invalid");
}

#[test]
fn a_snapshot_that_nobody_serves_any_more_leaves_nothing() {
    let test = live();
    test.write("o", 0, 8, 7).unwrap();
    test.remove("s");
    let test = after_kill(test, SNAPSHOT);
    assert_eq!(test.status("s"), "0/2048 0");
    test.write("o", 0, 8, 7).unwrap();
    for name in ["s", "o"] {
        let volume = test.volume(name);
        test.sim.block_on(0, |env| async move { volume.give_up(&env).await });
    }
    test.suspend("o", SuspendMode::NoFlush);
    test.suspend("s", SuspendMode::NoFlush);
    let test = after_kill(test, SNAPSHOT);
    assert_eq!(test.status("s"), "0/2048 0", "the server has ended");
}

#[test]
fn what_a_transient_snapshot_kept_over_its_close_outlives_a_kill() {
    let test = live();
    test.write("o", 16, 8, 200).unwrap();
    test.build("s", "0 512 snapshot origin cow1 P 8").unwrap();
    test.drive("cow1").faults().add(Fault::error(OpSet::READS));
    test.resume("s").unwrap_err();
    test.write("o", 40, 8, 201).unwrap();
    let test = after_kill(test, SNAPSHOT);
    assert_eq!(test.bytes("s", 0, 64), initial_bytes(0, 64));
}

#[test]
fn another_origin_or_chunk_size_is_refused_and_loses_nothing() {
    let test = live();
    test.write("o", 0, 8, 7).unwrap();
    let test = test.killed();
    for other in ["0 512 snapshot origin cow0 N 16", "0 512 snapshot cow1 cow0 N 8"] {
        let line = test.refusal("s", other);
        assert!(line.contains("cow0") && line.contains("--discard-crash-log"), "{line}");
    }
    test.load("s", SNAPSHOT);
    assert_eq!(test.bytes("s", 0, 1), [initial_byte(0)]);
}

#[test]
fn a_server_that_writes_nothing_replays_and_keeps_the_log() {
    let test = live();
    test.write("o", 0, 8, 7).unwrap();
    let mut test = test.killed();
    for _ in 0..2 {
        test.forget();
        test.build_read_only("s", SNAPSHOT).unwrap();
        test.resume("s").unwrap();
        assert_eq!(test.bytes("s", 0, 1), [initial_byte(0)]);
        assert!(test.recording("cow0").only_read());
        test = test.killed();
    }
    test.load("s", SNAPSHOT);
    assert_eq!(test.bytes("s", 0, 1), [initial_byte(0)]);
}

/// The kill comes while copies are made: what was answered counts, at each moment.
#[test]
fn a_kill_at_any_moment_of_a_copy_keeps_what_was_answered() {
    for moment in (0..400).step_by(10).map(std::time::Duration::from_micros) {
        let test = live();
        test.start("o", "origin", |env| write_io(env, 0, 16, 200));
        test.start("s", "snapshot", |env| write_io(env, 24, 8, 201));
        test.run(moment);
        let has_snapshot = test.labels().contains(&"snapshot");
        let test = after_kill(test, SNAPSHOT);
        assert_eq!(test.bytes("s", 0, 24), initial_bytes(0, 24), "{moment:?}");
        let found = test.bytes("s", 24, 1)[0];
        assert!(found == 201 || !has_snapshot && found == initial_byte(24), "{moment:?}");
    }
}
