//! What a device shows after a failure and does not keep: a start does not rest on it.

use std::time::Duration;

use cairn_block::{Io, Op, Resumed, SectorCount, SuspendMode};
use cairn_format::qcow2::Severity;
use cairn_format::qcow2::write::Blank;
use cairn_sim::{Fault, Image};

use super::fixture::{ALONE, Qcow2Fixture};
use crate::fixture::{Client, Seen, drive_options};

/// A flush whose commit loses what it wrote to this sector of the image, which the device shows.
fn lose_commit_at(test: &Qcow2Fixture, sector: u64) {
    test.forget();
    test.start(1, "flush", |_| Io::flush());
    let writes = |seen: &Seen| seen.op == Op::Write && is_within(sector, seen);
    for step in 0.. {
        test.run(Duration::from_micros(5));
        if test.seen("image").iter().any(writes) {
            break;
        }
        assert!(step < 2000, "the commit writes it");
    }
    test.drive("image").faults().add(Fault::losing_flushes());
    test.run(Duration::from_millis(50));
    assert!(test.ends.of("flush").expect("it ended").is_err());
    test.drive("image").faults().clear();
}

fn is_within(sector: u64, seen: &Seen) -> bool {
    (seen.start..seen.start + seen.count).contains(&sector)
}

/// More is written and flushed, until nothing is left to commit.
fn go_on(test: &Qcow2Fixture, client: &Client) {
    _ = test.flush_of(client);
    test.write(2, 2, 9).unwrap();
    test.flush_of(client).unwrap();
    test.run(Duration::from_secs(5));
    test.flush_of(client).unwrap();
}

#[test]
fn an_entry_that_was_lost_is_written_again_after_a_kill_and_after_a_resume() {
    for is_killed in [true, false] {
        let test = Qcow2Fixture::loaded(ALONE);
        test.write(0, 2, 7).unwrap();
        // The L1 table, which names a new table.
        lose_commit_at(&test, 6);
        let test = match is_killed {
            true => test.killed(),
            false => {
                test.drive("image").faults().add(Fault::losing_flushes());
                assert!(test.try_suspend(SuspendMode::Flush).is_err());
                test.drive("image").faults().clear();
                test
            }
        };
        let client = test.client();
        if is_killed {
            test.load(ALONE)
        } else {
            test.resume()
        }
        go_on(&test, &client);
        let data = if test.bytes(0, 1) == [7] { 2 } else { 1 };
        assert_eq!((test.durable_data(), test.bytes(2, 2)), (data, vec![9; 2]), "{is_killed}");
    }
}

#[test]
fn a_cluster_whose_dropped_entry_was_lost_is_not_used_again_before_that_is_durable() {
    let test = Qcow2Fixture::loaded(ALONE);
    test.write(0, 2, 7).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    test.run(Duration::from_secs(3));
    test.on(Op::Discard, 0, 2).unwrap();
    // The L2 table is the fifth cluster.
    lose_commit_at(&test, 8);
    let test = test.killed();
    let client = test.client();
    test.load(ALONE);
    for start in (200..400).step_by(2) {
        test.write(start, 2, 9).unwrap();
    }
    go_on(&test, &client);
    assert!(test.durable().0.severity < Severity::Damaged);
    assert_eq!(test.bytes(200, 200), [9; 200]);
}

#[test]
fn a_refcount_block_that_only_the_lost_table_named_is_named_again() {
    let blank = Blank { size: 100 * 512, cluster_bits: 9, refcount_order: 6, backing: None };
    let mut image = Image::of_bytes(&blank.bytes().unwrap());
    image.resize(SectorCount(200));
    let test = Qcow2Fixture::with(drive_options("image"), image);
    test.load("0 100 qcow2 image -");
    let client = test.client();
    test.write(0, 50, 7).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    test.run(Duration::from_secs(3));
    // A second block, which the refcount table names: the second cluster.
    test.write(50, 30, 8).unwrap();
    lose_commit_at(&test, 1);
    test.drive("image").faults().add(Fault::losing_flushes());
    assert!(test.try_suspend(SuspendMode::Flush).is_err());
    test.drive("image").faults().clear();
    test.resume();
    go_on(&test, &client);
    test.write(80, 10, 9).unwrap();
    test.flush_of(&client).unwrap();
    assert!(test.durable().0.severity < Severity::Damaged);
}

#[test]
fn a_header_that_was_lost_is_written_again_before_the_old_refcount_table_is_used() {
    let mut failed = 0;
    for per_mille in (30..900).step_by(30) {
        let blank = Blank { size: 3 << 20, cluster_bits: 9, refcount_order: 6, backing: None };
        let mut image = Image::of_bytes(&blank.bytes().unwrap());
        image.resize(SectorCount(8000));
        let test = Qcow2Fixture::with(drive_options("image"), image);
        let client = test.client();
        let fault = Fault::losing_flushes().per_mille(per_mille).shots(1);
        test.drive("image").faults().add(fault);
        test.build("test", "0 6144 qcow2 image -").unwrap();
        if test.try_resume().and_then(Resumed::whole).is_err() {
            failed += 1;
            test.drive("image").faults().clear();
            test.load("0 6144 qcow2 image -");
        }
        test.write(256, 1024, 9).unwrap();
        go_on(&test, &client);
        assert!(test.durable().0.severity < Severity::Damaged, "{per_mille}");
    }
    assert!(failed > 5, "{failed}");
}
