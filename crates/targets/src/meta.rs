//! Tests: a target's own metadata goes down as such ([`cairn_block::Flags::META`]), its clients'
//! data does not. A write cache with `metadata_only` beneath it tells them apart. In the same way
//! copies go down as [`cairn_block::Flags::BACKGROUND`].

use cairn_block::Op;

use crate::fixture::{Fixture, image};

fn fixture() -> Fixture {
    let test = Fixture::new(["slow", "fast", "a", "b"].map(|name| (name, image(8192, |_| 0))));
    test.load("cached", "0 8192 writecache s slow fast 4096 1 metadata_only");
    test
}

/// How many blocks of the cache were taken for writes, and how many writes went around it.
fn allocated_and_around(test: &Fixture) -> (u64, u64) {
    let report = test.target("cached").report();
    let number = |name: &str| report.number(name).expect("a field of writecache");
    (number("writes_allocated"), number("writes_around"))
}

#[test]
fn a_pools_metadata_is_cached_as_such() {
    let test = fixture();
    test.load("pool", "0 8192 thin-pool @cached a 128 0");
    test.message("pool", &["create_thin", "0"]).unwrap();
    test.load("thin", "0 4096 thin @pool 0");
    test.write("thin", 0, 8, 7).unwrap();
    test.flush("thin").unwrap();
    let (allocated, around) = allocated_and_around(&test);
    assert!(allocated > 0 && around == 0, "{allocated} {around}");
}

#[test]
fn the_records_of_a_store_are_cached_as_such_and_its_chunks_are_not() {
    let test = fixture();
    test.load("snap", "0 8192 snapshot a @cached P 16");
    test.write("snap", 0, 16, 7).unwrap();
    test.flush("snap").unwrap();
    let (allocated, around) = allocated_and_around(&test);
    assert!(allocated > 0, "header, area and records");
    assert_eq!(around, 2, "the chunk of data: two blocks of the cache");
}

/// What a drive has seen of these operations, and whether it was marked as background.
fn marks(test: &Fixture, drive: &str, ops: &[Op]) -> Vec<(Op, bool)> {
    test.recording(drive).take_hints().into_iter().filter(|(op, _)| ops.contains(op)).collect()
}

#[test]
fn writeback_is_background_and_the_write_before_it_is_not() {
    let test = Fixture::new(["slow", "fast"].map(|name| (name, image(8192, |_| 0))));
    test.load("cached", "0 8192 writecache s slow fast 4096 0");
    test.forget();
    test.write("cached", 0, 8, 7).unwrap();
    test.flush("cached").unwrap();
    assert!(marks(&test, "fast", &[Op::Write]).iter().all(|(_, background)| !background));
    test.message("cached", &["flush"]).unwrap();
    assert_eq!(marks(&test, "fast", &[Op::Read]), [(Op::Read, true)]);
    assert_eq!(marks(&test, "slow", &[Op::Write]), [(Op::Write, true)]);
}

#[test]
fn copy_on_write_and_merge_are_background_and_the_clients_write_is_not() {
    let test = Fixture::new(["o", "c"].map(|name| (name, image(1024, |at| at as u8))));
    test.load("base", "0 1024 snapshot-origin o");
    test.load("snap", "0 1024 snapshot o c N 16");
    test.forget();
    test.write("base", 0, 16, 7).unwrap();
    assert_eq!(marks(&test, "c", &[Op::Write]), [(Op::Write, true)]);
    assert_eq!(marks(&test, "o", &[Op::Read, Op::Write]), [(Op::Read, true), (Op::Write, false)]);
}

#[test]
fn a_partial_first_write_reads_the_rest_of_its_block_in_the_background() {
    let test = Fixture::new(["o", "m", "d"].map(|name| (name, image(8192, |_| 0))));
    test.load("pool", "0 8192 thin-pool m d 128 0");
    test.message("pool", &["create_thin", "0"]).unwrap();
    test.load("thin", "0 4096 thin @pool 0 o");
    test.forget();
    test.write("thin", 8, 8, 7).unwrap();
    assert_eq!(marks(&test, "o", &[Op::Read]), [(Op::Read, true); 2]);
    assert_eq!(marks(&test, "d", &[Op::Write]), [(Op::Write, false)]);
}
