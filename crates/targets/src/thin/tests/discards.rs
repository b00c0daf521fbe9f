//! Discards, and what becomes of the blocks.

use super::fixture::*;
use cairn_block::{IoError, Op};

fn written(features: &str) -> PoolFixture {
    let test = PoolFixture::new(256, 64);
    test.load_pool(features);
    test.message(&["create_thin", "0"]).unwrap();
    test.load_thin("thin", 0, 200);
    test.write("thin", 0, 3 * BLOCK, 1).unwrap();
    test.write("thin", 150 * BLOCK, BLOCK, 2).unwrap();
    test
}

#[test]
fn whole_blocks_go_and_edges_stay() {
    let test = written("0 0");
    test.discard("thin", 5, 2 * BLOCK + 10).unwrap();
    assert_eq!(test.bytes("thin", 0, 1), [1]);
    assert_eq!(test.bytes("thin", BLOCK, BLOCK), vec![0; BLOCK as usize]);
    assert_eq!(test.bytes("thin", 2 * BLOCK, 1), [1]);
    assert_eq!(test.status("thin"), "384 19327");
}

#[test]
fn a_large_discard_goes_from_group_to_group() {
    let test = written("0 0");
    test.flush("thin").unwrap();
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 200);
    again.discard("thin", BLOCK, 199 * BLOCK).unwrap();
    assert_eq!(again.bytes("thin", 150 * BLOCK, 1), [0]);
    assert_eq!(again.bytes("thin", 0, 1), [1]);
    again.flush("thin").unwrap();
    assert_eq!(again.status("thin"), "128 127");
    assert!(again.status("pool").contains(" 1/64 "), "{}", again.status("pool"));
}

#[test]
fn discarded_blocks_are_passed_down_after_the_commit_and_used_again() {
    let test = written("0 0");
    test.flush("thin").unwrap();
    test.forget();
    test.discard("thin", 0, 2 * BLOCK).unwrap();
    assert_eq!(test.ops("data"), []);
    test.flush("thin").unwrap();
    test.run(std::time::Duration::from_millis(1));
    assert_eq!(test.ops("data"), [(Op::Flush, 0, 0), (Op::Discard, 0, 2 * BLOCK)]);
    test.write("thin", 10 * BLOCK, 62 * BLOCK, 3).unwrap();
    assert_eq!(test.bytes("thin", 70 * BLOCK, 1), [3]);
    assert!(test.status("pool").contains(" 64/64 "), "{}", test.status("pool"));
}

#[test]
fn without_passdown_the_data_device_hears_nothing() {
    let test = written("0 1 no_discard_passdown");
    test.flush("thin").unwrap();
    test.forget();
    test.discard("thin", 0, 2 * BLOCK).unwrap();
    test.flush("thin").unwrap();
    test.run(std::time::Duration::from_millis(1));
    assert_eq!(test.ops("data"), [(Op::Flush, 0, 0)]);
    assert_eq!(test.bytes("thin", 0, 1), [0]);
}

#[test]
fn discards_that_are_ignored_are_not_supported() {
    let test = written("0 1 ignore_discard");
    assert_eq!(test.discard("thin", 0, BLOCK), Err(IoError::UNSUPPORTED));
    assert_eq!(test.bytes("thin", 0, 1), [1]);
}

#[test]
fn a_fresh_volume_is_discarded_at_once() {
    let test = PoolFixture::new(256, 64);
    test.load_pool("0 0");
    test.message(&["create_thin", "0"]).unwrap();
    test.load_thin("thin", 0, 1 << 30);
    test.forget();
    test.discard("thin", 0, BLOCK << 30).unwrap();
    test.zero("thin", 0, BLOCK << 30).unwrap();
    assert_eq!((test.ops("data"), test.ops("meta")), (vec![], vec![]));
}

#[test]
fn a_shared_block_that_one_side_discards_stays_for_the_other() {
    let test = written("0 0");
    test.message(&["create_snap", "1", "0"]).unwrap();
    test.load_thin("snap", 1, 200);
    test.discard("thin", 0, 200 * BLOCK).unwrap();
    test.flush("thin").unwrap();
    test.run(std::time::Duration::from_millis(1));
    assert_eq!(test.bytes("snap", 0, 1), [1]);
    assert_eq!(test.bytes("snap", 150 * BLOCK, 1), [2]);
    assert_eq!(test.bytes("thin", 150 * BLOCK, 1), [0]);
    test.discard("snap", 0, 200 * BLOCK).unwrap();
    test.flush("snap").unwrap();
    test.run(std::time::Duration::from_millis(1));
    assert!(test.status("pool").contains(" 0/64 "), "{}", test.status("pool"));
}
