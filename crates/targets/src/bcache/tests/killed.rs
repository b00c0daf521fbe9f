//! Tests of what a killed process leaves, and of the next start.

use cairn_block::{Disk, Env, Flags, IoError};

use super::several::{B, D, flash_line, shared};
use super::*;
use crate::fixture::write_io;

fn line() -> String {
    format!("0 {LARGE} bcache b c 0")
}

/// A set that writes keys into the journal, and data back, only on demand.
fn served() -> Fixture {
    let [cache, backing] = large(&[]);
    let test = Fixture::new([("c", cache), ("b", backing)]);
    test.load("v", &line());
    keep_quiet(&test);
    test
}

fn keep_quiet(test: &Fixture) {
    test.message("v", &["set", "writeback_running", "0"]).expect("in its range");
    test.message("v", &["set", "journal_delay_ms", "10000"]).expect("in its range");
}

fn write(test: &Fixture, volume: &str, start: u64, count: u64, byte: u8) {
    test.write(volume, start, count, byte).expect("the drives are well");
}

/// True if a client relies on a key that is only in memory.
fn owes(test: &Fixture) -> bool {
    let owed = |it: &Bcache| it.look(|set| set.changes.owe_a_commit());
    test.with_target("v", owed).expect("the set is open")
}

/// What a power cut leaves of these drives.
fn after_power_cut(test: &Fixture, drives: &[&'static str]) -> Fixture {
    let drives = drives.iter().map(|&name| (name, test.drive(name).durable()));
    Fixture::new(drives.collect::<Vec<_>>())
}

/// The whole of a drive is what it was at another time.
fn restore(test: &Fixture, name: &str, bytes: &[u8]) {
    let disk = test.registry.open(name, false).expect("it is there");
    let count = SectorCount::of_bytes(bytes.len() as u64).0;
    let restored = test.sim.block_on(0, |env: Env| {
        let segs = env.segs(SectorCount(count));
        segs.copy_in(0, bytes);
        let io = Io::write(range(0, count), segs);
        async move { env.io(&disk, io).await }
    });
    restored.expect("the drive is well");
}

fn metadata_writes(test: &Fixture) -> usize {
    let ops = ["b", "c"].map(|name| test.ops(name));
    ops.iter().flatten().filter(|(op, ..)| *op == Op::Write).count()
}

#[test]
fn a_kill_loses_nothing_that_was_acknowledged() {
    let test = served();
    write(&test, "v", 0, 64, 1);
    test.flush("v").expect("the drives are well");
    // In place, over what is durable.
    write(&test, "v", 8, 8, 2);
    write(&test, "v", 100, 60, 3);
    test.discard("v", 104, 8).expect("the drives are well");
    test.zero("v", 120, 8).expect("the drives are well");
    test.io("v", |env| write_io(env, 200, 8, 4).with(Flags::FUA)).expect("the drives are well");
    write(&test, "v", 16, 8, 5);
    write(&test, "v", 20, 8, 6);
    write(&test, "v", 140, 8, 7);
    write(&test, "v", 204, 8, 8);
    assert!(owes(&test), "keys are in memory alone");
    let expected = test.bytes("v", 0, 256);
    let test = test.killed();
    test.load("v", &line());
    assert_eq!(test.bytes("v", 0, 256), expected);
    let again = after_power_cut(&test, &["c", "b"]);
    again.load("v", &line());
    assert_eq!(again.bytes("v", 0, 256), expected, "it is durable before the first request");
}

#[test]
fn a_second_kill_finds_nothing_to_do() {
    let test = served();
    write(&test, "v", 0, 8, 1);
    let test = test.killed();
    test.load("v", &line());
    write(&test, "v", 0, 8, 2);
    let test = test.killed();
    test.load("v", &line());
    test.forget();
    let test = test.killed();
    test.load("v", &line());
    assert_eq!(metadata_writes(&test), 0);
    assert_eq!(test.bytes("v", 0, 8), [2; 8]);
}

#[test]
fn what_was_acknowledged_waits_for_a_start_that_succeeds() {
    let killed = || {
        let test = served();
        write(&test, "v", 0, 8, 1);
        write(&test, "v", 4, 8, 2);
        test.killed()
    };
    let test = killed();
    test.load("v", &line());
    let writes: Vec<_> = test.ops("c").into_iter().filter(|(op, ..)| *op == Op::Write).collect();
    assert!(writes.len() >= 2, "the superblock and a leaf: {writes:?}");
    for (_, start, count) in writes {
        let test = killed();
        test.drive("c").faults().add(Fault::error(OpSet::WRITES).on(range(start, count)));
        test.try_load("v", &line()).expect_err("the set cannot be written");
        test.drive("c").faults().clear();
        let test = test.killed();
        test.load("v", &line());
        let expected = [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2];
        assert_eq!(test.bytes("v", 0, 12), expected, "after a failure at {start}");
    }
}

#[test]
fn a_kill_after_a_failure_of_the_cache_is_told_to_each_client_once() {
    let test = served();
    write(&test, "v", 0, 8, 1);
    test.drive("c").faults().add(Fault::losing_flushes().shots(1));
    test.flush("v").expect_err("the commit failed");
    let test = test.killed();
    let clients = [test.client("v"), test.client("v")];
    test.load("v", &line());
    assert_eq!(test.bytes("v", 0, 8), [0; 8], "it is lost");
    for client in &clients {
        test.flush_of(client).expect_err("it is told");
        test.flush_of(client).expect("once");
    }
    write(&test, "v", 0, 8, 2);
    let test = test.killed();
    let client = test.client("v");
    test.load("v", &line());
    test.flush_of(&client).expect("nothing was lost since");
    assert_eq!(test.bytes("v", 0, 8), [2; 8]);
}

/// What was known of a failure when the server was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Unseen,
    Seen,
    Told,
}

/// A drive fails and loses what is volatile, and the server is killed. The clients of the next one
/// are told unless one was told before, once.
fn is_told_after_a_kill(test: Fixture, drive: &str, known: Known) -> Fixture {
    let client = test.client("v");
    test.lose_by_another(drive);
    let flushed = match known {
        Known::Unseen => Err(IoError::IO),
        // Nobody is told by this.
        Known::Seen => test.flush("v"),
        Known::Told => test.flush_of(&client),
    };
    flushed.expect_err("it is lost");
    let test = test.killed();
    let clients = [test.client("v"), test.client("v")];
    test.load("v", &line());
    for client in &clients {
        assert_eq!(test.flush_of(client).is_err(), known != Known::Told, "{drive} {known:?}");
        test.flush_of(client).expect("once");
    }
    let test = test.killed();
    let client = test.client("v");
    test.load("v", &line());
    test.flush_of(&client).expect("a client was told");
    test
}

#[test]
fn a_failure_of_a_drive_is_told_after_a_kill_unless_a_client_was_told() {
    for known in [Known::Unseen, Known::Seen, Known::Told] {
        let test = served();
        write(&test, "v", 0, 8, 1);
        let test = is_told_after_a_kill(test, "c", known);
        assert_eq!(test.bytes("v", 0, 8), [0; 8], "it is not replayed");
        // In place, without a record.
        let test = served();
        write(&test, "v", 0, 8, 1);
        test.flush("v").expect("the drives are well");
        write(&test, "v", 0, 8, 2);
        assert!(!owes(&test));
        is_told_after_a_kill(test, "c", known);
        let test = served();
        test.message("v", &["set", "cache_mode", "writearound"]).expect("a mode");
        write(&test, "v", 0, 8, 1);
        is_told_after_a_kill(test, "b", known);
    }
}

#[test]
fn a_loss_is_told_after_each_kill_until_all_volumes_have_told_it() {
    let test = shared();
    let load = |test: &Fixture| {
        test.load("v", B);
        test.load("w", D);
    };
    load(&test);
    keep_quiet(&test);
    write(&test, "v", 0, 8, 1);
    test.lose_by_another("c");
    let mut test = test.killed();
    for round in 0..2 {
        let clients = ["v", "w"].map(|name| test.client(name));
        load(&test);
        test.flush_of(&clients[0]).expect_err("it is told");
        if round == 1 {
            test.flush_of(&clients[1]).expect_err("it is told");
            // The flash-only volume of the set.
            let client = test.client("f");
            test.load("f", &flash_line());
            test.flush_of(&client).expect_err("it is told");
        }
        test = test.killed();
    }
    let client = test.client("v");
    load(&test);
    test.flush_of(&client).expect("all were told");
}

#[test]
fn a_failure_that_lost_nothing_is_told_to_nobody() {
    let test = served();
    write(&test, "v", 0, 8, 1);
    test.flush("v").expect("the drives are well");
    test.message("v", &["set", "cache_mode", "writearound"]).expect("a mode");
    write(&test, "v", 100, 8, 1);
    test.flush("v").expect("the drives are well");
    test.lose_by_another("b");
    test.flush("v").expect("nothing was volatile");
    let test = test.killed();
    let client = test.client("v");
    test.load("v", &line());
    test.flush_of(&client).expect("nothing is lost");
}

#[test]
fn what_the_flush_of_a_start_may_have_lost_is_not_replayed() {
    let test = served();
    write(&test, "v", 0, 8, 1);
    let test = test.killed();
    test.drive("c").faults().add(Fault::losing_flushes().shots(1));
    test.try_load("v", &line()).expect_err("the flush failed");
    let client = test.client("v");
    test.load("v", &line());
    assert_eq!(test.bytes("v", 0, 8), [0; 8], "it is lost");
    test.flush_of(&client).expect_err("it is told");
    test.flush_of(&client).expect("once");
}

#[test]
fn a_failure_that_was_told_is_not_told_again_when_the_set_is_opened_again() {
    let test = served();
    write(&test, "v", 0, 8, 1);
    test.drive("c").faults().add(Fault::losing_flushes().shots(1));
    test.flush("v").expect_err("the commit failed");
    let _ = test.try_suspend("v", SuspendMode::Flush);
    let before = test.volume("v").failures();
    test.resume("v").expect("the drives are well");
    assert_eq!(test.volume("v").failures(), before);
}

#[test]
fn a_start_does_not_rest_on_what_a_device_shows_and_a_failure_has_lost() {
    let mut lost_some = 0;
    for at in 0..40 {
        let test = served();
        (0..20).for_each(|at| write(&test, "v", at * 16, 8, 7));
        test.flush("v").expect("the drives are well");
        let test = test.killed();
        test.load("v", &line());
        // A flush of the first session fails, after some of its writes.
        test.start("v", "write", |env| write_io(env, 600, 8, 5).with(Flags::FUA));
        test.run(Duration::from_micros(25 * at));
        test.drive("c").faults().add(Fault::losing_flushes().shots(1));
        test.run(Duration::from_secs(1));
        test.drive("c").faults().clear();
        let [shown, durable] = [test.drive("c").visible(), test.drive("c").durable()];
        lost_some += u32::from(shown.to_vec() != durable.to_vec());
        let test = test.killed();
        let client = test.client("v");
        test.load("v", &line());
        let _ = test.flush_of(&client);
        write(&test, "v", 1100, 8, 8);
        test.flush_of(&client).expect("the client was told of the loss");
        let shown = test.bytes("v", 0, 1200);
        let test = after_power_cut(&test, &["c", "b"]);
        test.load("v", &line());
        assert!(test.bytes("v", 0, 1200) == shown, "a flush failed after {at} steps");
        assert_eq!([shown[0], shown[1100]], [7, 8]);
    }
    assert!(lost_some > 0);
}

#[test]
fn writes_wait_for_a_group_commit_when_the_crash_log_is_full() {
    let test = served();
    for at in 0..300 {
        test.start("v", "written", move |env| write_io(env, at * 8, 8, at as u8));
    }
    test.run(Duration::from_secs(5));
    assert_eq!(test.ends.all().iter().filter(|(_, result)| result.is_ok()).count(), 300);
    write(&test, "v", 0, 8, 77);
    let test = test.killed();
    test.load("v", &line());
    let bytes: Vec<u8> = (0..2400).map(|at| if at < 8 { 77 } else { (at / 8) as u8 }).collect();
    assert!(test.bytes("v", 0, 2400) == bytes);
}

#[test]
fn a_log_that_is_half_full_begins_a_group_commit() {
    let test = served();
    for at in 0..40 {
        write(&test, "v", at * 8, 8, 1);
    }
    test.run(Duration::from_secs(1));
    let pending = test.with_target("v", |it: &Bcache| it.look(|set| set.changes.commit_due()));
    assert!(pending.is_some());
    let durable = after_power_cut(&test, &["c", "b"]);
    durable.load("v", &line());
    assert_eq!(durable.bytes("v", 0, 8 * 32), [1; 8 * 32]);
}

#[test]
fn a_set_that_was_used_in_between_is_refused_and_its_log_stays() {
    let test = served();
    write(&test, "v", 0, 8, 1);
    test.flush("v").expect("the drives are well");
    let before = test.contents("c");
    write(&test, "v", 8, 8, 1);
    test.flush("v").expect("the drives are well");
    write(&test, "v", 16, 8, 1);
    let after = test.contents("c");
    let test = test.killed();
    restore(&test, "c", &before);
    for _ in 0..2 {
        let refused = test.try_load("v", &line()).expect_err("it is another state").to_string();
        let found = "c: crash log: found acknowledged writes of a killed server on top of journal \
                     entry";
        assert!(refused.contains(found) && refused.contains(", expected entry "), "{refused}");
    }
    restore(&test, "c", &after);
    test.load("v", &line());
    assert_eq!(test.bytes("v", 16, 8), [1; 8]);
}

#[test]
fn a_set_that_is_formatted_anew_is_refused_while_there_is_a_log_of_the_old_one() {
    let test = served();
    write(&test, "v", 0, 8, 1);
    let before = ["c", "b"].map(|name| test.contents(name));
    let test = test.killed();
    let (set, uuid) = (Uuid([9; 16]), Uuid([3; 16]));
    let cache = cache_in(set, &[], &[UuidEntry { uuid, ..UuidEntry::default() }]);
    restore(&test, "c", &cache.to_vec());
    restore(&test, "b", &backing_in_set(set, uuid).to_vec());
    let refused = test.try_load("v", &line()).expect_err("it is another set").to_string();
    assert!(refused.contains("or formatted; `cairn serve --discard-crash-log`"), "{refused}");
    ["c", "b"].iter().zip(&before).for_each(|(name, bytes)| restore(&test, name, bytes));
    test.load("v", &line());
    assert_eq!(test.bytes("v", 0, 8), [1; 8]);
}

#[test]
fn volumes_of_a_set_share_its_log() {
    let test = shared();
    let load = |test: &Fixture| {
        test.load("v", B);
        test.load("w", D);
        test.load("f", &flash_line());
    };
    load(&test);
    keep_quiet(&test);
    for (volume, byte) in [("v", 1), ("w", 2), ("f", 3)] {
        write(&test, volume, 0, 16, byte);
        write(&test, volume, 8, 16, byte + 10);
    }
    let test = test.killed();
    load(&test);
    for (volume, byte) in [("v", 1), ("w", 2), ("f", 3)] {
        let expected: Vec<u8> = (0..24).map(|at| if at < 8 { byte } else { byte + 10 }).collect();
        assert_eq!(test.bytes(volume, 0, 24), expected, "{volume}");
    }
    let dirty = test.target("f").dirty().map(|dirty| dirty.sectors);
    assert_eq!(dirty, None, "a flash-only volume has none to write back");
}

#[test]
fn a_start_for_reading_alone_reads_what_was_acknowledged_and_writes_nothing() {
    let test = served();
    write(&test, "v", 0, 8, 1);
    let test = test.killed();
    for _ in 0..2 {
        test.forget();
        test.build_read_only("v", &line()).expect("it is sound");
        test.resume("v").expect("it is sound");
        assert_eq!(test.bytes("v", 0, 8), [1; 8]);
        test.remove("v");
        assert_eq!(metadata_writes(&test), 0);
    }
    let test = test.killed();
    test.load("v", &line());
    let durable = after_power_cut(&test, &["c", "b"]);
    durable.load("v", &line());
    assert_eq!(durable.bytes("v", 0, 8), [1; 8]);
}
