//! Modes: what a pool in each of them does, and that every change is an event.

use std::time::Duration;

use super::fixture::*;
use cairn_block::{ErrorKind, IoError, IoResult, SectorCount};
use cairn_sim::{Fault, Image, OpSet};

const NO_SPACE: IoError = IoError::new(ErrorKind::NoSpace);

/// Words that have warnings given with the first commits already, so that none comes later.
const WARNED: &str = "data_mark 1 metadata_mark 1";

/// Runs `act`, and tells how many events there were until then.
fn events(test: &PoolFixture, act: impl FnOnce()) -> u64 {
    let before = test.volume("pool").event_nr();
    act();
    test.run(Duration::from_millis(1));
    test.volume("pool").event_nr() - before
}

#[test]
fn running_out_of_data_losing_patience_and_new_space_are_events() {
    let mut test = PoolFixture::new(256, 8);
    test.data_blocks = 4;
    let features = format!("1000 6 no_space_timeout 3 {WARNED}");
    test.serve(&features, 16);
    test.write_through("thin", 0, 4 * BLOCK, 1);
    // Of the table itself, and the warnings once more.
    let reload = events(&test, || test.load_pool(&features));
    let full = events(&test, || test.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 1, 2)));
    assert_eq!(full, 1);
    test.pool_says(" out_of_data_space ");
    assert_eq!(events(&test, || test.run(Duration::from_secs(2))), 0);
    assert_eq!(events(&test, || test.run(Duration::from_secs(2))), 1, "no_space_timeout");
    assert_eq!(*test.ends.all(), [("waits", Err(NO_SPACE))]);
    test.pool_says("error_if_no_space");
    let freed = events(&test, || {
        test.discard("thin", 0, BLOCK).unwrap();
        test.flush("thin").unwrap();
    });
    assert_eq!(freed, 1);
    test.pool_says(" rw ");
    test.write_through("thin", 0, BLOCK, 1);
    test.start("thin", "waits again", |env| write_io(env, 4 * BLOCK, 1, 2));
    test.run(Duration::from_millis(10));
    test.pool_says(" out_of_data_space ");
    test.data_blocks = 8;
    assert_eq!(events(&test, || test.load_pool(&features)), reload + 1);
    test.pool_says(" 5/8 - rw ");
    assert_eq!(test.ends.all()[1], ("waits again", Ok(())));
}

#[test]
fn running_out_of_metadata_and_new_room_are_events() {
    let test = PoolFixture::new(48, 4096);
    test.serve(&format!("10000 5 error_if_no_space {WARNED}"), 1 << 21);
    let write = |at: u64| test.write("thin", at * 1031 % 4096 * 300 * BLOCK, 1, 1);
    let mut before = 0;
    let mut is_full = |at: &u64| {
        before = test.volume("pool").event_nr();
        write(*at).is_err()
    };
    let count = (0..4000).find(&mut is_full).expect("so little metadata");
    test.pool_says(" ro ");
    assert_eq!(test.volume("pool").event_nr() - before, 1);
    let freed = events(&test, || {
        for at in count / 2..count {
            test.discard("thin", at * 1031 % 4096 * 300 * BLOCK, BLOCK).unwrap();
        }
        test.flush("thin").unwrap();
    });
    assert_eq!(freed, 1);
    test.pool_says(" rw ");
}

#[test]
fn a_failed_commit_is_an_event_and_so_is_metadata_that_cannot_be_read() {
    for (also, count, mode) in [(None, 1, " ro "), (Some(OpSet::READS), 2, "Fail")] {
        let test = PoolFixture::new(256, 16);
        test.serve(&format!("1000 4 {WARNED}"), 16);
        test.write_through("thin", 0, BLOCK, 1);
        test.write("thin", BLOCK, BLOCK, 2).unwrap();
        for ops in also.into_iter().chain([OpSet::WRITES]) {
            test.drive("meta").faults().add(Fault::error(ops));
        }
        assert_eq!(events(&test, || assert!(test.flush("thin").is_err())), count, "{mode}");
        test.pool_says(mode);
        assert_eq!(test.status("pool").contains(" needs_check "), mode != "Fail");
        test.drive("meta").faults().clear();
    }
}

#[test]
fn a_table_that_makes_the_pool_read_only_or_writable_is_an_event() {
    let test = PoolFixture::new(256, 16);
    let writable = format!("0 4 {WARNED}");
    let read_only = format!("0 5 read_only {WARNED}");
    test.serve(&writable, 16);
    // Of the table itself, and the warnings once more.
    let reload = events(&test, || test.load_pool(&writable));
    for (table, more, mode) in
        [(&read_only, 1, " ro "), (&read_only, 0, " ro "), (&writable, 1, " rw ")]
    {
        assert_eq!(events(&test, || test.load_pool(table)), reload + more, "{table}");
        test.pool_says(mode);
    }
}

/// What is done to a volume, beside flushes.
#[derive(Clone, Copy, Debug)]
enum Act {
    Read(u8),
    Write,
    WriteZeroes,
    Discard,
    Extents,
}

/// A range of sectors, by what it is: block 0 is shared, block 1 is not, the others are holes.
const SHARED: (u64, u64) = (0, BLOCK);
const SHARED_PART: (u64, u64) = (3, 2);
const OWN: (u64, u64) = (BLOCK, BLOCK);
const OWN_PART: (u64, u64) = (BLOCK + 3, 2);
const HOLE: (u64, u64) = (5 * BLOCK, BLOCK);
const HOLE_PART: (u64, u64) = (5 * BLOCK + 3, 2);

/// A pool with a volume `thin` as said, everything durable.
fn with_shared_block() -> PoolFixture {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, 2 * BLOCK, 1).unwrap();
    test.message(&["create_snap", "1", "0"]).unwrap();
    test.write_through("thin", BLOCK, BLOCK, 2);
    test
}

fn read_only() -> PoolFixture {
    let test = with_shared_block();
    test.load_pool("0 1 read_only");
    test.pool_says(" ro ");
    test
}

/// Read-only because a commit failed, and a volume that has lost nothing.
fn needs_check() -> PoolFixture {
    let test = with_shared_block();
    test.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
    test.message(&["create_thin", "2"]).unwrap_err();
    test.load_thin("thin", 0, 8);
    test.pool_says(" ro ");
    test.pool_says(" needs_check ");
    test
}

fn failed() -> PoolFixture {
    let test = with_shared_block();
    for ops in [OpSet::WRITES, OpSet::READS] {
        test.drive("meta").faults().add(Fault::error(ops));
    }
    test.message(&["create_thin", "2"]).unwrap_err();
    test.drive("meta").faults().clear();
    test.pool_says("Fail");
    test
}

fn act(test: &PoolFixture, act: Act, (start, count): (u64, u64)) -> IoResult {
    match act {
        Act::Read(byte) => {
            let read = test.read("thin", start, count)?;
            assert!(read.iter().all(|&found| found == byte), "{start} {count}: {read:?}");
            Ok(())
        }
        Act::Write => test.write("thin", start, count, 9),
        Act::WriteZeroes => test.zero("thin", start, count),
        Act::Discard => test.discard("thin", start, count),
        Act::Extents => {
            let extents = test.extents("thin", range(start, count))?;
            assert_eq!(extents.iter().map(|extent| extent.count.0).sum::<u64>(), count);
            Ok(())
        }
    }
}

/// What is done where, and what comes of it.
type Step = (Act, (u64, u64), IoResult);

const EIO: IoResult = Err(IoError::IO);

#[test]
fn every_mode_refuses_what_it_must_and_serves_the_rest() {
    let read_only_acts: &[Step] = &[
        (Act::Read(1), SHARED, Ok(())),
        (Act::Read(2), OWN, Ok(())),
        (Act::Read(0), HOLE, Ok(())),
        (Act::Write, SHARED, EIO),
        (Act::Write, SHARED_PART, EIO),
        (Act::WriteZeroes, SHARED, EIO),
        (Act::WriteZeroes, SHARED_PART, EIO),
        (Act::Write, HOLE, EIO),
        (Act::Write, HOLE_PART, EIO),
        (Act::Extents, SHARED, Ok(())),
        (Act::Discard, OWN, Ok(())),
        // Without effect.
        (Act::Read(1), SHARED, Ok(())),
        (Act::Read(2), OWN, Ok(())),
        (Act::Read(0), HOLE, Ok(())),
        (Act::Write, OWN, Ok(())),
        (Act::Read(9), OWN, Ok(())),
        (Act::WriteZeroes, OWN_PART, Ok(())),
        (Act::Read(0), OWN_PART, Ok(())),
    ];
    let failed_acts: Vec<Step> =
        [Act::Read(0), Act::Write, Act::WriteZeroes, Act::Discard, Act::Extents]
            .into_iter()
            .flat_map(|act| [SHARED, OWN_PART, HOLE].map(|at| (act, at, EIO)))
            .collect();
    let table = [
        (read_only(), read_only_acts, Ok(()), "256 255"),
        (needs_check(), read_only_acts, Ok(()), "256 255"),
        (failed(), &failed_acts, EIO, "Fail"),
    ];
    for (row, (test, acts, flush, status)) in table.into_iter().enumerate() {
        for (kind, at, expected) in acts {
            assert_eq!(act(&test, *kind, *at), *expected, "row {row}: {kind:?} {at:?}");
        }
        assert_eq!(test.flush("thin"), flush, "row {row}");
        assert_eq!(test.status("thin"), status, "row {row}");
    }
}

#[test]
fn metadata_is_formatted_on_a_blank_device_only() {
    let meta = |at: usize, mark: &[u8]| {
        let mut bytes = vec![0; 256 * 4096];
        bytes[at..at + mark.len()].copy_from_slice(mark);
        PoolFixture::of_images(Image::of_bytes(&bytes), Image::new(SectorCount(8 * BLOCK)), 8)
    };
    let test = meta(32769, b"CD001");
    let found = "meta: not blank: found iso9660 at byte 32768";
    let way_on = format!("cairn format thin-pool meta --block-size {} --yes", BLOCK * 512);
    test.refuses("pool", &test.pool_table("0 0"), &format!("{found}; to lose that: {way_on}"));
    meta(32769, b"CD002").load_pool("0 0");
    let test = meta(0, b"XFSB");
    test.refuses("pool", &test.pool_table("0 0"), "; found xfs at byte 0; to lose that: cairn");
}
