//! What is copied, how often it is read, and who waits for whom.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Extent, ExtentKind, Io, Op, SectorCount, SuspendMode};
use cairn_sim::{Effect, Fault, OpSet};
use futures_util::future::join;

use super::bed::{Bed, initial_byte, range, write_io};

fn reads(seen: &[(Op, u64, u64)]) -> Vec<(u64, u64)> {
    seen.iter().filter(|seen| seen.0 == Op::Read).map(|seen| (seen.1, seen.2)).collect()
}

fn initial(start: u64, count: u64) -> Vec<u8> {
    (start..start + count).map(initial_byte).collect()
}

fn two_snapshots() -> Bed {
    let bed = Bed::new(1024, &[2048, 2048]);
    bed.load("s0", "0 1024 snapshot origin cow0 P 8");
    bed.load("s1", "0 1024 snapshot origin cow1 N 32");
    bed.load("o", "0 1024 snapshot-origin origin");
    bed.forget();
    bed
}

#[test]
fn one_read_of_the_origin_serves_every_snapshot() {
    let bed = two_snapshots();
    bed.write("o", 100, 1, 200).unwrap();
    assert_eq!(reads(&bed.ops("origin")), [(96, 32)], "once, for the larger chunk");
    for name in ["s0", "s1"] {
        assert_eq!(bed.bytes(name, 0, 1024), initial(0, 1024), "{name}");
        assert_eq!(bed.core(name).exceptions.pending(), 0);
    }
    assert_eq!(bed.bytes("o", 100, 1), [200]);
    bed.forget();
    bed.write("o", 100, 2, 201).unwrap();
    assert_eq!(bed.ops("origin"), [(Op::Write, 100, 2)], "nothing is left to copy");
}

#[test]
fn drives_that_copy_by_themselves_are_sent_neither_reads_nor_the_chunks() {
    let bed = two_snapshots();
    bed.set_copies();
    bed.write("o", 100, 40, 200).unwrap();
    assert_eq!(bed.ops("origin"), [(Op::Write, 100, 40)]);
    let cow0 = bed.ops("cow0");
    assert!(cow0.iter().all(|seen| seen.0 != Op::Write || seen.1 < 16), "{cow0:?}");
    for name in ["s0", "s1"] {
        assert_eq!(bed.bytes(name, 0, 1024), initial(0, 1024), "{name}");
    }
    bed.write("s0", 300, 1, 201).unwrap();
    assert_eq!(bed.bytes("s0", 296, 8), [&initial(296, 4)[..], &[201], &initial(301, 3)].concat());
    assert_eq!(bed.bytes("s1", 296, 8), initial(296, 8));
}

#[test]
fn a_failed_copy_ends_the_snapshot_whose_drive_failed_and_no_other() {
    let bed = two_snapshots();
    bed.set_copies();
    bed.drive("cow0").faults().add(Fault::error(OpSet::WRITES).shots(1));
    bed.write("o", 100, 1, 200).unwrap();
    assert_eq!(bed.status("s0"), "Invalid");
    assert_eq!(bed.bytes("s1", 0, 1024), initial(0, 1024));
    bed.drive("origin").faults().add(Fault::error(OpSet::READS).shots(1));
    bed.write("o", 500, 1, 200).unwrap();
    assert_eq!(bed.status("s1"), "Invalid");
}

#[test]
fn neighbouring_chunks_are_copied_as_one_request() {
    let bed = two_snapshots();
    bed.write("o", 128, 64, 200).unwrap();
    assert_eq!(reads(&bed.ops("origin")), [(128, 64)]);
    let data: Vec<_> = bed.ops("cow0").into_iter().filter(|seen| seen.2 == 64).collect();
    assert_eq!(data, [(Op::Write, 16, 64)], "eight chunks, one write");
    bed.forget();
    for (label, at) in [("a", 512), ("b", 520), ("c", 528)] {
        bed.start("o", label, |env| write_io(env, at, 8, 201));
    }
    bed.settle();
    assert_eq!(bed.labels().len(), 3);
    assert_eq!(bed.bytes("s0", 512, 24), initial(512, 24));
}

#[test]
fn a_write_to_the_snapshot_that_covers_its_chunks_copies_nothing() {
    let bed = two_snapshots();
    bed.write("s0", 64, 16, 9).unwrap();
    bed.write("s1", 64, 32, 9).unwrap();
    assert_eq!(reads(&bed.ops("origin")), []);
    bed.write("s0", 81, 1, 10).unwrap();
    assert_eq!(reads(&bed.ops("origin")), [(80, 8)], "a part needs the rest");
    let mut expected = initial(64, 24);
    expected[..16].fill(9);
    expected[17] = 10;
    assert_eq!(bed.bytes("s0", 64, 24), expected);
    assert_eq!(bed.bytes("o", 64, 24), initial(64, 24), "the origin is not concerned");
    let unaligned = bed.io("s0", |_| Io::on(Op::WriteZeroes, range(90, 20)));
    unaligned.unwrap();
    assert_eq!(bed.bytes("s0", 90, 20), [0; 20]);
    assert_eq!(bed.bytes("s0", 110, 2), initial(110, 2));
}

#[test]
fn a_write_to_the_origin_waits_for_the_snapshots_readers() {
    let bed = two_snapshots();
    let slow = Effect::Delay(Duration::from_millis(5));
    let fault = Fault { effect: slow, ..Fault::error(OpSet::READS) };
    bed.drive("origin").faults().add(fault.shots(1));
    bed.start("s0", "read", |env| Io::read(range(200, 8), env.segs(SectorCount(8))));
    bed.start("o", "write", |env| write_io(env, 200, 8, 99));
    bed.settle();
    assert_eq!(bed.labels(), ["read", "write"], "I4");
    bed.start("s0", "hit", |env| Io::read(range(200, 8), env.segs(SectorCount(8))));
    bed.start("o", "again", |env| write_io(env, 200, 8, 98));
    bed.settle();
    assert_eq!(bed.labels().len(), 4);
    assert_eq!(bed.bytes("s0", 200, 8), initial(200, 8));
}

#[test]
fn discards_and_zeroes_of_the_origin_make_exceptions_first() {
    let bed = two_snapshots();
    for op in [Op::Discard, Op::WriteZeroes] {
        let start = if op == Op::Discard { 300 } else { 700 };
        bed.io("o", |_| Io::on(op, range(start, 100))).unwrap();
    }
    for name in ["s0", "s1"] {
        assert_eq!(bed.bytes(name, 0, 1024), initial(0, 1024), "{name}");
    }
    assert_eq!(bed.bytes("o", 700, 100), [0; 100]);
}

#[test]
fn the_features_decide_about_discards_of_the_snapshot() {
    let bed = two_snapshots();
    assert!(bed.io("s0", |_| Io::on(Op::Discard, range(0, 8))).is_err());
    bed.load("s0", "0 1024 snapshot origin cow0 P 8 1 discard_zeroes_cow");
    bed.write("s0", 0, 8, 7).unwrap();
    bed.io("s0", |_| Io::on(Op::Discard, range(0, 16))).unwrap();
    assert_eq!(bed.bytes("s0", 0, 8), [0; 8], "zeroed where there is an exception");
    assert_eq!(bed.bytes("s0", 8, 8), initial(8, 8), "nothing happens where there is none");
    let both = "2 discard_zeroes_cow discard_passdown_origin";
    bed.load("s0", &format!("0 1024 snapshot origin cow0 P 8 {both}"));
    bed.forget();
    bed.io("s0", |_| Io::on(Op::Discard, range(0, 16))).unwrap();
    let passed = bed.ops("origin");
    assert!(passed.iter().all(|seen| seen.0 == Op::Discard) && passed.len() == 2, "{passed:?}");
}

#[test]
fn suspends_of_either_kind_end_while_chunks_are_copied() {
    for mode in [SuspendMode::Flush, SuspendMode::NoFlush] {
        let bed = two_snapshots();
        for at in (0..1024).step_by(64) {
            bed.start("o", "origin", |env| write_io(env, at, 8, 50));
            bed.start("s0", "snapshot", |env| write_io(env, at + 17, 2, 51));
        }
        bed.suspend("s0", mode);
        bed.suspend("o", mode);
        bed.resume("s0").unwrap();
        bed.resume("o").unwrap();
        bed.settle();
        assert_eq!(bed.labels().len(), 32, "{mode:?}");
        assert!(bed.ends.borrow().iter().all(|(_, result)| result.is_ok()));
        assert_eq!(bed.bytes("s1", 0, 1024), initial(0, 1024));
    }
}

#[test]
fn snapshots_come_and_go_while_the_origin_is_written() {
    let bed = Bed::new(1024, &[2048, 4096, 2048]);
    bed.load("o", "0 1024 snapshot-origin origin");
    let mut byte = 0;
    for round in 0..60u64 {
        let (name, cow) = [("a", "cow0"), ("b", "cow1"), ("c", "cow2")][round as usize % 3];
        let line = format!("0 1024 snapshot origin {cow} N {}", 1 << (round % 6));
        bed.suspend("o", SuspendMode::Flush);
        let before = bed.drive("origin").visible().to_vec();
        bed.load(name, &line);
        bed.resume("o").unwrap();
        for at in 0..12 {
            byte = byte % 250 + 1;
            bed.start("o", "write", |env| write_io(env, (at * 83 + round) % 1000, 9, byte));
        }
        if round % 2 == 0 {
            bed.settle();
        }
        assert!(bed.read(name, 0, 1024).unwrap() == before, "round {round}");
        bed.remove(name);
    }
    bed.settle();
    assert_eq!(bed.labels().len(), 720);
}

#[test]
fn what_changed_since_the_snapshot_is_told_in_runs_and_without_reading() {
    let bed = two_snapshots();
    bed.write("o", 20, 5, 200).unwrap();
    bed.write("o", 1020, 4, 201).unwrap();
    bed.write("s0", 32, 8, 202).unwrap();
    bed.forget();
    let changed = |name: &str, start, count| {
        let runs = bed.changed(name, range(start, count)).unwrap();
        runs.into_iter().map(|run| (run.start.0, run.count.0)).collect::<Vec<_>>()
    };
    assert_eq!(changed("s0", 0, 1024), [(16, 24), (1016, 8)]);
    assert_eq!(changed("s0", 18, 4), [(18, 4)], "cut to the range");
    assert_eq!(changed("s0", 40, 900), []);
    assert_eq!(changed("s1", 0, 1024), [(0, 32), (992, 32)], "whole chunks");
    assert_eq!(bed.ops("origin"), []);
    assert_eq!(bed.ops("cow0"), []);
}

#[test]
fn block_status_tells_of_the_snapshot_although_the_origin_is_zeroed_meanwhile() {
    let bed = two_snapshots();
    let (s0, o) = (bed.volume("s0"), bed.volume("o"));
    let all = range(64, 64);
    let (found, zeroed) = bed.sim.block_on(0, |env| async move {
        let o: Arc<dyn Disk> = o;
        let zero = env.io(&o, Io::on(Op::WriteZeroes, all));
        join(s0.extents(&env, all), zero).await
    });
    zeroed.unwrap();
    assert_eq!(found.unwrap(), [Extent { count: all.count, kind: ExtentKind::Data }]);
    let hole = Extent { count: all.count, kind: ExtentKind::Hole };
    assert_eq!(bed.extents("o", all).unwrap(), [hole]);
    assert_eq!(bed.extents("s0", range(64, 8)).unwrap()[0].kind, ExtentKind::Data);
    bed.write("s0", 200, 8, 0).unwrap();
    assert_eq!(bed.extents("s0", range(200, 8)).unwrap()[0].kind, ExtentKind::Data);
}

#[test]
fn block_status_of_a_lost_snapshot_is_an_error() {
    let bed = Bed::new(512, &[3 * 8]);
    bed.load("s", "0 512 snapshot origin cow0 P 8");
    bed.load("o", "0 512 snapshot-origin origin");
    let (s, o) = (bed.volume("s"), bed.volume("o"));
    let found = bed.sim.block_on(0, |env| async move {
        let o: Arc<dyn Disk> = o;
        let zero = env.io(&o, Io::on(Op::WriteZeroes, range(0, 64)));
        join(s.extents(&env, range(0, 64)), zero).await.0
    });
    assert_eq!(bed.status("s"), "Invalid");
    assert!(found.is_err(), "{found:?}");
    assert!(bed.extents("s", range(0, 8)).is_err());
}
