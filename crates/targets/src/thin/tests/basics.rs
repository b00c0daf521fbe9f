//! Provisioning, reading, committing, opening again.

use super::fixture::*;
use cairn_block::{Extent, ExtentKind, Flags, Op, SectorCount};

#[test]
fn what_was_never_written_reads_as_zeros_and_takes_no_block() {
    let test = PoolFixture::with_volume(128, 16, 8);
    assert_eq!(test.bytes("thin", 0, 8 * BLOCK), vec![0; 8 * BLOCK as usize]);
    assert_eq!(test.status("thin"), "0 -");
    assert!(test.status("pool").contains(" 0/16 - rw discard_passdown queue_if_no_space - 32"));
}

#[test]
fn a_fresh_pool_tells_what_the_kernel_tells() {
    let test = PoolFixture::new(128, 32);
    test.load_pool("0 0");
    let expected = "0 21/128 0/32 - rw discard_passdown queue_if_no_space - 32";
    assert_eq!(test.status("pool"), expected);
}

#[test]
fn a_partly_written_block_is_zero_around_the_data() {
    let test = PoolFixture::with_volume(128, 16, 8);
    test.write("thin", BLOCK + 5, 3, 7).unwrap();
    let mut expected = vec![0; 3 * BLOCK as usize];
    expected[BLOCK as usize + 5..][..3].fill(7);
    assert_eq!(test.bytes("thin", 0, 3 * BLOCK), expected);
    assert_eq!(test.status("thin"), "128 255");
}

#[test]
fn a_write_that_covers_blocks_goes_to_the_data_device_in_one_piece() {
    let test = PoolFixture::with_volume(256, 16, 8);
    test.flush("thin").unwrap();
    test.forget();
    test.write("thin", 0, 4 * BLOCK, 9).unwrap();
    assert_eq!(test.ops("data"), [(Op::Write, 0, 4 * BLOCK)]);
    test.write("thin", 2, 4 * BLOCK - 2, 8).unwrap();
    assert_eq!(test.ops("data"), [(Op::Write, 2, 4 * BLOCK - 2)]);
    let mut expected = vec![8; 4 * BLOCK as usize];
    expected[..2].fill(9);
    assert_eq!(test.bytes("thin", 0, 4 * BLOCK), expected);
}

#[test]
fn what_was_flushed_is_there_after_a_power_cut() {
    let test = PoolFixture::with_volume(128, 16, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.write("thin", 3 * BLOCK + 1, 2, 2).unwrap();
    test.flush("thin").unwrap();
    test.write("thin", 5 * BLOCK, BLOCK, 3).unwrap();
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 8);
    assert_eq!(again.bytes("thin", 0, BLOCK), vec![1; BLOCK as usize]);
    assert_eq!(again.bytes("thin", 3 * BLOCK, 4), [0, 2, 2, 0]);
    assert_eq!(again.bytes("thin", 5 * BLOCK, 1), [0]);
    assert_eq!(again.status("thin"), "256 511");
}

#[test]
fn a_fua_write_is_durable_by_itself() {
    let test = PoolFixture::with_volume(128, 16, 8);
    for (start, count, byte) in [(BLOCK, 4, 5), (2 * BLOCK, BLOCK, 6), (BLOCK + 1, 1, 7)] {
        test.io("thin", |env| write_io(env, start, count, byte).with(Flags::FUA)).unwrap();
    }
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 8);
    assert_eq!(again.bytes("thin", BLOCK, 5), [5, 7, 5, 5, 0]);
    assert_eq!(again.bytes("thin", 2 * BLOCK, 1), [6]);
}

#[test]
fn a_flush_without_changes_goes_to_the_data_device_alone() {
    let test = PoolFixture::with_volume(128, 16, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.flush("thin").unwrap();
    test.forget();
    test.write("thin", 0, 1, 2).unwrap();
    test.flush("thin").unwrap();
    assert_eq!(test.ops("meta"), []);
    assert_eq!(test.ops("data"), [(Op::Write, 0, 1), (Op::Flush, 0, 0)]);
}

#[test]
fn a_change_is_committed_within_a_second_or_so() {
    let test = PoolFixture::with_volume(128, 16, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.run(std::time::Duration::from_millis(2100));
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 8);
    assert_eq!(again.bytes("thin", 0, 1), [1]);
}

#[test]
fn extents_tell_what_is_mapped() {
    let test = PoolFixture::with_volume(128, 16, 8);
    test.write("thin", BLOCK, 2 * BLOCK, 1).unwrap();
    let extent = |count: u64, kind| vec![Extent { count: SectorCount(count), kind }];
    let found = |start, count| test.extents("thin", range(start, count)).unwrap();
    assert_eq!(found(0, 8 * BLOCK), extent(BLOCK, ExtentKind::Hole));
    assert_eq!(found(BLOCK + 3, 8), extent(8, ExtentKind::Data));
    assert_eq!(found(BLOCK, 7 * BLOCK), extent(2 * BLOCK, ExtentKind::Data));
    assert_eq!(found(3 * BLOCK, 5 * BLOCK), extent(5 * BLOCK, ExtentKind::Hole));
}
