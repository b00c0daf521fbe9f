//! Serving, and what becomes of clusters.

use std::time::Duration;

use cairn_block::{Extent, ExtentKind, Flags, Io, Op, SectorCount, SuspendMode};
use cairn_format::qcow2::Severity;

use super::fixture::{ALONE, BACKING, OVER, Qcow2Fixture, SECTORS, model};
use crate::fixture::{DRIVE_TIME, range, write_io};

#[test]
fn a_fresh_image_reads_as_its_backing_device_and_zeros_behind_it() {
    for (table, has_backing) in [(OVER, true), (ALONE, false)] {
        let test = Qcow2Fixture::loaded(table);
        assert_eq!(test.all(), model(has_backing));
        assert_eq!(test.target().status(), "2 4/600 0 rw");
        assert_eq!(test.target().table(), table.trim_start_matches("0 1003 qcow2 "));
    }
}

#[test]
fn a_write_of_a_part_keeps_the_rest_of_its_cluster() {
    for (table, has_backing) in [(OVER, true), (ALONE, false)] {
        let (test, mut expected) = (Qcow2Fixture::loaded(table), model(has_backing));
        // In what the backing device shows, at its end, behind it, and in the last cluster.
        for (sector, byte) in [(11, 201), (299, 202), (801, 203), (1002, 204)] {
            test.write(sector, 1, byte).unwrap();
            expected[sector as usize] = byte;
        }
        assert_eq!(test.all(), expected);
        test.on(Op::Flush, 0, 0).unwrap();
        assert_eq!(test.durable_data(), 4);
        test.suspend(SuspendMode::Flush);
        test.resume();
        assert_eq!(test.all(), expected, "the tables were read again");
    }
}

#[test]
fn whole_clusters_are_written_once_and_lie_next_to_each_other() {
    let test = Qcow2Fixture::loaded(OVER);
    test.forget();
    test.write(10, 100, 7).unwrap();
    let writes: Vec<_> = test.ops("image").into_iter().filter(|op| op.0 == Op::Write).collect();
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!(writes[0].2, 100);
    test.forget();
    assert_eq!(test.bytes(10, 100), [7; 100]);
    assert_eq!(test.ops("image").len(), 1, "one read");
    test.forget();
    test.write(20, 3, 8).unwrap();
    assert_eq!(test.ops("image"), [(Op::Write, writes[0].1 + 10, 3)], "in place");
}

#[test]
fn writes_to_one_cluster_wait_for_what_fills_it() {
    let test = Qcow2Fixture::loaded(OVER);
    for (reactor, label, sector) in [(0, "a", 20), (1, "b", 21), (1, "c", 20)] {
        let byte = label.as_bytes()[0];
        test.start(reactor, label, move |env| write_io(env, sector, 1, byte));
    }
    test.settle();
    assert_eq!(test.ends.count(), 3);
    let found = test.bytes(20, 2);
    assert!([b'a', b'c'].contains(&found[0]) && found[1] == b'b', "{found:?}");
    test.on(Op::Flush, 0, 0).unwrap();
    assert_eq!(test.durable_data(), 1);
}

#[test]
fn zeros_and_discards_free_whole_clusters_and_hide_the_backing_device() {
    for (table, op) in [(OVER, Op::Discard), (OVER, Op::WriteZeroes), (ALONE, Op::Discard)] {
        let (test, mut expected) = (Qcow2Fixture::loaded(table), model(table == OVER));
        test.write(0, 200, 7).unwrap();
        expected[..200].fill(7);
        test.on(op, 100, 200).unwrap();
        test.on(op, 800, 200).unwrap();
        expected[100..300].fill(0);
        expected[800..1000].fill(0);
        assert_eq!(test.all(), expected);
        // Header and tables of 4, an L2 table for each 128, 50 of data.
        test.run(Duration::from_secs(5));
        let tables = if table == OVER { 2 } else { 1 };
        assert_eq!(test.used(), format!("{}/600", 4 + tables + 50), "{op:?}");
        test.suspend(SuspendMode::Flush);
        let (report, layout) = test.durable();
        assert_eq!((report.severity, report.counts.data), (Severity::Sound, 50));
        assert_eq!(layout.autoclear, 0, "the mark is gone");
        test.resume();
        assert_eq!(test.all(), expected);
    }
}

#[test]
fn a_part_of_a_cluster_is_zeroed_in_place_or_in_a_new_one() {
    let (test, mut expected) = (Qcow2Fixture::loaded(OVER), model(true));
    test.write(10, 2, 7).unwrap();
    test.on(Op::WriteZeroes, 11, 2).unwrap();
    test.on(Op::WriteZeroes, 301, 1).unwrap();
    (expected[10], expected[11], expected[12]) = (7, 0, 0);
    assert_eq!(test.all(), expected);
    // What shows nothing of the backing device needs no cluster.
    test.on(Op::Flush, 0, 0).unwrap();
    assert_eq!(test.durable_data(), 2);
    // The last cluster is half behind the end: all of it that there is counts.
    test.write(1002, 1, 9).unwrap();
    test.on(Op::Discard, 1002, 1).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    assert_eq!((test.all(), test.durable_data()), (expected, 2));
}

#[test]
fn zeros_that_must_not_free_clusters_keep_them() {
    let test = Qcow2Fixture::loaded(OVER);
    test.write(10, 4, 7).unwrap();
    test.io(|_| Io::on(Op::WriteZeroes, range(8, 8)).with(Flags::NO_UNMAP)).unwrap();
    assert_eq!(test.bytes(8, 8), [0; 8]);
    test.on(Op::Flush, 0, 0).unwrap();
    assert_eq!(test.durable_data(), 4);
}

#[test]
fn extents_are_those_of_the_image_and_of_the_backing_device() {
    let test = Qcow2Fixture::loaded(OVER);
    test.write(10, 10, 7).unwrap();
    test.on(Op::Discard, 20, 10).unwrap();
    let extents = |start, count| test.extents(range(start, count)).unwrap();
    let one = |count, kind| vec![Extent { count: SectorCount(count), kind }];
    assert_eq!(extents(0, 40), one(10, ExtentKind::Data), "of the backing device");
    assert_eq!(extents(11, 40), one(9, ExtentKind::Data));
    assert_eq!(extents(20, 40), one(10, ExtentKind::Zero));
    assert_eq!(extents(30, SECTORS - 30), one(BACKING - 30, ExtentKind::Data));
    assert_eq!(extents(BACKING, 400), one(400, ExtentKind::Hole));
}

#[test]
fn a_flush_makes_the_mapping_durable_and_so_does_a_second() {
    let test = Qcow2Fixture::loaded(ALONE);
    test.write(10, 10, 7).unwrap();
    assert_eq!(test.durable_data(), 0);
    test.on(Op::Flush, 0, 0).unwrap();
    assert_eq!(test.durable_data(), 5);
    test.write(30, 10, 7).unwrap();
    test.run(Duration::from_millis(1500));
    assert_eq!(test.durable_data(), 10);
    test.forget();
    test.on(Op::Flush, 0, 0).unwrap();
    assert_eq!(test.ops("image"), [(Op::Flush, 0, 0)], "nothing to commit");
}

#[test]
fn a_write_with_fua_is_answered_once_it_is_in_the_image() {
    for op in [Op::Write, Op::WriteZeroes] {
        let test = Qcow2Fixture::loaded(OVER);
        let io = |env: &cairn_block::Env| match op {
            Op::Write => write_io(env, 11, 10, 7).with(Flags::FUA),
            op => Io::on(op, range(10, 20)).with(Flags::FUA),
        };
        test.start(0, "fua", io);
        while test.ends.count() == 0 {
            test.run(DRIVE_TIME);
        }
        let (report, _) = test.durable();
        assert_eq!(report.counts.data, if op == Op::Write { 6 } else { 0 });
        let test = test.killed();
        test.load(OVER);
        assert_eq!(test.bytes(12, 2), if op == Op::Write { [7; 2] } else { [0; 2] }, "{op:?}");
    }
}
