//! What is copied, how often it is read, and who waits for whom.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Extent, ExtentKind, Io, Op, SectorCount, SuspendMode};
use cairn_sim::{Effect, Fault, OpSet};
use futures_util::future::join;

use super::fixture::{SnapshotFixture, initial_bytes, range, write_io};

fn reads(seen: &[(Op, u64, u64)]) -> Vec<(u64, u64)> {
    seen.iter().filter(|seen| seen.0 == Op::Read).map(|seen| (seen.1, seen.2)).collect()
}

fn two_snapshots() -> SnapshotFixture {
    let test = SnapshotFixture::new(1024, &[2048, 2048]);
    test.load("s0", "0 1024 snapshot origin cow0 P 8");
    test.load("s1", "0 1024 snapshot origin cow1 N 32");
    test.load("o", "0 1024 snapshot-origin origin");
    test.forget();
    test
}

#[test]
fn one_read_of_the_origin_serves_every_snapshot() {
    let test = two_snapshots();
    test.write("o", 100, 1, 200).unwrap();
    assert_eq!(reads(&test.ops("origin")), [(96, 32)], "once, for the larger chunk");
    for name in ["s0", "s1"] {
        assert_eq!(test.bytes(name, 0, 1024), initial_bytes(0, 1024), "{name}");
        assert_eq!(test.core(name).exceptions.pending(), 0);
    }
    assert_eq!(test.bytes("o", 100, 1), [200]);
    test.forget();
    test.write("o", 100, 2, 201).unwrap();
    assert_eq!(test.ops("origin"), [(Op::Write, 100, 2)], "nothing is left to copy");
}

#[test]
fn drives_that_copy_by_themselves_are_sent_neither_reads_nor_the_chunks() {
    let test = two_snapshots();
    test.set_copies();
    test.write("o", 100, 40, 200).unwrap();
    assert_eq!(test.ops("origin"), [(Op::Write, 100, 40)]);
    let cow0 = test.ops("cow0");
    assert!(cow0.iter().all(|seen| seen.0 != Op::Write || seen.1 < 16), "{cow0:?}");
    for name in ["s0", "s1"] {
        assert_eq!(test.bytes(name, 0, 1024), initial_bytes(0, 1024), "{name}");
    }
    test.write("s0", 300, 1, 201).unwrap();
    assert_eq!(
        test.bytes("s0", 296, 8),
        [&initial_bytes(296, 4)[..], &[201], &initial_bytes(301, 3)].concat()
    );
    assert_eq!(test.bytes("s1", 296, 8), initial_bytes(296, 8));
}

#[test]
fn a_failed_copy_ends_the_snapshot_whose_drive_failed_and_no_other() {
    let test = two_snapshots();
    test.set_copies();
    test.drive("cow0").faults().add(Fault::error(OpSet::WRITES).shots(1));
    test.write("o", 100, 1, 200).unwrap();
    assert_eq!(test.status("s0"), "Invalid");
    assert_eq!(test.bytes("s1", 0, 1024), initial_bytes(0, 1024));
    test.drive("origin").faults().add(Fault::error(OpSet::READS).shots(1));
    test.write("o", 500, 1, 200).unwrap();
    assert_eq!(test.status("s1"), "Invalid");
}

#[test]
fn neighbouring_chunks_are_copied_as_one_request() {
    let test = two_snapshots();
    test.write("o", 128, 64, 200).unwrap();
    assert_eq!(reads(&test.ops("origin")), [(128, 64)]);
    let data: Vec<_> = test.ops("cow0").into_iter().filter(|seen| seen.2 == 64).collect();
    assert_eq!(data, [(Op::Write, 16, 64)], "eight chunks, one write");
    test.forget();
    for (label, at) in [("a", 512), ("b", 520), ("c", 528)] {
        test.start("o", label, |env| write_io(env, at, 8, 201));
    }
    test.settle();
    assert_eq!(test.labels().len(), 3);
    assert_eq!(test.bytes("s0", 512, 24), initial_bytes(512, 24));
}

#[test]
fn a_write_to_the_snapshot_that_covers_its_chunks_copies_nothing() {
    let test = two_snapshots();
    test.write("s0", 64, 16, 9).unwrap();
    test.write("s1", 64, 32, 9).unwrap();
    assert_eq!(reads(&test.ops("origin")), []);
    test.write("s0", 81, 1, 10).unwrap();
    assert_eq!(reads(&test.ops("origin")), [(80, 8)], "a part needs the rest");
    let mut expected = initial_bytes(64, 24);
    expected[..16].fill(9);
    expected[17] = 10;
    assert_eq!(test.bytes("s0", 64, 24), expected);
    assert_eq!(test.bytes("o", 64, 24), initial_bytes(64, 24), "the origin is not concerned");
    let unaligned = test.zero("s0", 90, 20);
    unaligned.unwrap();
    assert_eq!(test.bytes("s0", 90, 20), [0; 20]);
    assert_eq!(test.bytes("s0", 110, 2), initial_bytes(110, 2));
}

#[test]
fn a_write_to_the_origin_waits_for_the_snapshots_readers() {
    let test = two_snapshots();
    let slow = Effect::Delay(Duration::from_millis(5));
    let fault = Fault { effect: slow, ..Fault::error(OpSet::READS) };
    test.drive("origin").faults().add(fault.shots(1));
    test.start("s0", "read", |env| Io::read(range(200, 8), env.segs(SectorCount(8))));
    test.start("o", "write", |env| write_io(env, 200, 8, 99));
    test.settle();
    assert_eq!(test.labels(), ["read", "write"], "I4");
    test.start("s0", "hit", |env| Io::read(range(200, 8), env.segs(SectorCount(8))));
    test.start("o", "again", |env| write_io(env, 200, 8, 98));
    test.settle();
    assert_eq!(test.labels().len(), 4);
    assert_eq!(test.bytes("s0", 200, 8), initial_bytes(200, 8));
}

#[test]
fn discards_and_zeroes_of_the_origin_make_exceptions_first() {
    let test = two_snapshots();
    for op in [Op::Discard, Op::WriteZeroes] {
        let start = if op == Op::Discard { 300 } else { 700 };
        test.on("o", op, start, 100).unwrap();
    }
    for name in ["s0", "s1"] {
        assert_eq!(test.bytes(name, 0, 1024), initial_bytes(0, 1024), "{name}");
    }
    assert_eq!(test.bytes("o", 700, 100), [0; 100]);
}

#[test]
fn the_features_decide_about_discards_of_the_snapshot() {
    let test = two_snapshots();
    assert!(test.discard("s0", 0, 8).is_err());
    test.load("s0", "0 1024 snapshot origin cow0 P 8 1 discard_zeroes_cow");
    test.write("s0", 0, 8, 7).unwrap();
    test.discard("s0", 0, 16).unwrap();
    assert_eq!(test.bytes("s0", 0, 8), [0; 8], "zeroed where there is an exception");
    assert_eq!(test.bytes("s0", 8, 8), initial_bytes(8, 8), "nothing happens where there is none");
    let both = "2 discard_zeroes_cow discard_passdown_origin";
    test.load("s0", &format!("0 1024 snapshot origin cow0 P 8 {both}"));
    test.forget();
    test.discard("s0", 0, 16).unwrap();
    let passed = test.ops("origin");
    assert!(passed.iter().all(|seen| seen.0 == Op::Discard) && passed.len() == 2, "{passed:?}");
}

#[test]
fn suspends_of_either_kind_end_while_chunks_are_copied() {
    for mode in [SuspendMode::Flush, SuspendMode::NoFlush] {
        let test = two_snapshots();
        for at in (0..1024).step_by(64) {
            test.start("o", "origin", |env| write_io(env, at, 8, 50));
            test.start("s0", "snapshot", |env| write_io(env, at + 17, 2, 51));
        }
        test.suspend("s0", mode);
        test.suspend("o", mode);
        test.resume("s0").unwrap();
        test.resume("o").unwrap();
        test.settle();
        assert_eq!(test.labels().len(), 32, "{mode:?}");
        assert!(test.ends.all().iter().all(|(_, result)| result.is_ok()));
        assert_eq!(test.bytes("s1", 0, 1024), initial_bytes(0, 1024));
    }
}

#[test]
fn snapshots_come_and_go_while_the_origin_is_written() {
    let test = SnapshotFixture::new(1024, &[2048, 4096, 2048]);
    test.load("o", "0 1024 snapshot-origin origin");
    let mut byte = 0;
    for round in 0..60u64 {
        let (name, cow) = [("a", "cow0"), ("b", "cow1"), ("c", "cow2")][round as usize % 3];
        let line = format!("0 1024 snapshot origin {cow} N {}", 1 << (round % 6));
        test.suspend("o", SuspendMode::Flush);
        let before = test.drive("origin").visible().to_vec();
        test.load(name, &line);
        test.resume("o").unwrap();
        for at in 0..12 {
            byte = byte % 250 + 1;
            test.start("o", "write", |env| write_io(env, (at * 83 + round) % 1000, 9, byte));
        }
        if round % 2 == 0 {
            test.settle();
        }
        assert!(test.read(name, 0, 1024).unwrap() == before, "round {round}");
        test.remove(name);
    }
    test.settle();
    assert_eq!(test.labels().len(), 720);
}

#[test]
fn what_changed_since_the_snapshot_is_told_in_runs_and_without_reading() {
    let test = two_snapshots();
    test.write("o", 20, 5, 200).unwrap();
    test.write("o", 1020, 4, 201).unwrap();
    test.write("s0", 32, 8, 202).unwrap();
    test.forget();
    let changed = |name: &str, start, count| {
        let runs = test.changed(name, range(start, count)).unwrap();
        runs.into_iter().map(|run| (run.start.0, run.count.0)).collect::<Vec<_>>()
    };
    assert_eq!(changed("s0", 0, 1024), [(16, 24), (1016, 8)]);
    assert_eq!(changed("s0", 18, 4), [(18, 4)], "cut to the range");
    assert_eq!(changed("s0", 40, 900), []);
    assert_eq!(changed("s1", 0, 1024), [(0, 32), (992, 32)], "whole chunks");
    assert_eq!(test.ops("origin"), []);
    assert_eq!(test.ops("cow0"), []);
}

#[test]
fn block_status_tells_of_the_snapshot_although_the_origin_is_zeroed_meanwhile() {
    let test = two_snapshots();
    let (s0, o) = (test.volume("s0"), test.volume("o"));
    let all = range(64, 64);
    let (found, zeroed) = test.sim.block_on(0, |env| async move {
        let o: Arc<dyn Disk> = o;
        let zero = env.io(&o, Io::on(Op::WriteZeroes, all));
        join(s0.extents(&env, all), zero).await
    });
    zeroed.unwrap();
    assert_eq!(found.unwrap(), [Extent { count: all.count, kind: ExtentKind::Data }]);
    let hole = Extent { count: all.count, kind: ExtentKind::Hole };
    assert_eq!(test.extents("o", all).unwrap(), [hole]);
    assert_eq!(test.extents("s0", range(64, 8)).unwrap()[0].kind, ExtentKind::Data);
    test.write("s0", 200, 8, 0).unwrap();
    assert_eq!(test.extents("s0", range(200, 8)).unwrap()[0].kind, ExtentKind::Data);
}

#[test]
fn block_status_of_a_lost_snapshot_is_an_error() {
    let test = SnapshotFixture::new(512, &[3 * 8]);
    test.load("s", "0 512 snapshot origin cow0 P 8");
    test.load("o", "0 512 snapshot-origin origin");
    let (s, o) = (test.volume("s"), test.volume("o"));
    let found = test.sim.block_on(0, |env| async move {
        let o: Arc<dyn Disk> = o;
        let zero = env.io(&o, Io::on(Op::WriteZeroes, range(0, 64)));
        join(s.extents(&env, range(0, 64)), zero).await.0
    });
    assert_eq!(test.status("s"), "Invalid");
    assert!(found.is_err(), "{found:?}");
    assert!(test.extents("s", range(0, 8)).is_err());
}
