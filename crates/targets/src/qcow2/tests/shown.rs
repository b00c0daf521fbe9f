//! What a device shows after a failure and does not keep: a start does not rest on it.

use std::time::Duration;

use cairn_block::{Io, Op, Resumed, SectorCount, SuspendMode};
use cairn_format::qcow2::Severity;
use cairn_format::qcow2::write::{Blank, named_by};
use cairn_sim::{Fault, Image, OpSet};

use super::fixture::{ALONE, Qcow2Fixture};
use crate::fixture::{Client, OneVolume, SECTOR, Seen, drive_options, write_io};

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

/// No power cut now leaves a damaged image.
fn are_all_sound(test: &Qcow2Fixture) {
    for seed in 0..30 {
        let cut = test.drive("image").power_cut(&mut fastrand::Rng::with_seed(seed));
        let (report, _) = Qcow2Fixture::check(&cut);
        assert!(report.severity < Severity::Damaged, "{seed}: {:?}", report.findings);
    }
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
fn a_replay_uses_no_cluster_again_before_its_dropped_entry_is_durable() {
    let test = Qcow2Fixture::loaded(ALONE);
    test.write(0, 2, 7).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    test.run(Duration::from_secs(3));
    test.on(Op::WriteZeroes, 0, 2).unwrap();
    test.forget();
    test.start(1, "flush", |_| Io::flush());
    while !test.seen("image").iter().any(|seen| seen.op == Op::Write && is_within(8, seen)) {
        test.run(Duration::from_micros(1));
    }
    // Its replay needs a new table.
    test.start(0, "late", |env| write_io(env, 600, 2, 9));
    while test.ends.of("late").is_none() {
        test.run(Duration::from_micros(1));
    }
    let entry = |image: &[u8]| image[8 * SECTOR..8 * SECTOR + 8].to_vec();
    let test = test.killed();
    test.drive("image").faults().add(Fault::error(OpSet::FLUSHES));
    test.try_load_refused(ALONE);
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let cut = test.drive("image").power_cut(&mut rng).to_vec();
        let named = entry(&cut).iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        if let Some(byte) = named_by(named) {
            let sector = &cut[byte as usize..byte as usize + SECTOR];
            assert!(sector.iter().all(|byte| [0, 7].contains(byte)), "{seed}");
        }
    }
    test.drive("image").faults().clear();
    let client = test.client();
    test.load(ALONE);
    // The failed flush may have lost the rest, and says so.
    assert!(test.flush_of(&client).is_err());
    assert_eq!(test.bytes(0, 2), [0; 2]);
}

#[test]
fn a_server_that_does_not_know_the_failures_of_another_one_writes_all_again() {
    for is_known in [true, false] {
        let test = Qcow2Fixture::loaded(ALONE);
        test.write(0, 2, 7).unwrap();
        test.on(Op::Flush, 0, 0).unwrap();
        let killed = test.0.killed();
        // Else with a place for crash logs of its own.
        let test = match is_known {
            true => Qcow2Fixture(killed),
            false => Qcow2Fixture(OneVolume::of(killed.fixture.with_logs_of(64))),
        };
        test.forget();
        test.load(ALONE);
        // The L1 table.
        let is_written = |seen: &Seen| seen.op == Op::Write && is_within(6, seen);
        assert_eq!(test.seen("image").iter().any(is_written), !is_known);
    }
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
        let fault = match per_mille % 60 {
            0 => Fault::losing_flushes(),
            _ => Fault::error(OpSet::FLUSHES),
        };
        test.drive("image").faults().add(fault.per_mille(per_mille).shots(1));
        test.build("test", "0 6144 qcow2 image -").unwrap();
        if test.try_resume().and_then(Resumed::whole).is_err() {
            failed += 1;
            test.drive("image").faults().clear();
            are_all_sound(&test);
            test.load("0 6144 qcow2 image -");
        }
        test.write(256, 1024, 9).unwrap();
        go_on(&test, &client);
        assert!(test.durable().0.severity < Severity::Damaged, "{per_mille}");
    }
    assert!(failed > 5, "{failed}");
}
