//! Zeros that cost nothing, and zeros that are data.

use super::fixture::*;
use cairn_block::{Flags, Op};

fn detecting() -> PoolFixture {
    let test = PoolFixture::new(256, 64);
    test.load_pool("0 2 detect_zeroes unmap");
    test.message(&["create_thin", "0"]).unwrap();
    test.load_thin("thin", 0, 16);
    test
}

#[test]
fn zeros_provision_nothing() {
    let test = detecting();
    test.forget();
    test.write("thin", 3, 5 * BLOCK, 0).unwrap();
    assert_eq!((test.ops("data"), test.status("thin")), (vec![], "0 -".to_owned()));
    assert_eq!(test.bytes("thin", 0, 8), [0; 8]);
}

#[test]
fn a_request_with_some_zeros_is_split_at_blocks() {
    let test = detecting();
    test.io("thin", |env| {
        let io = write_io(env, BLOCK / 2, 4 * BLOCK, 0);
        // Blocks 1 and 3 hold one byte each.
        for sector in [BLOCK, 3 * BLOCK + 7] {
            io.segs.copy_in(((sector - BLOCK / 2) * 512) as usize + 511, &[9]);
        }
        io
    })
    .unwrap();
    assert_eq!(test.status("thin"), format!("{} {}", 2 * BLOCK, 4 * BLOCK - 1));
    let all = test.read("thin", 0, 5 * BLOCK).unwrap();
    let found: Vec<usize> = (0..all.len()).filter(|at| all[*at] != 0).collect();
    assert_eq!(found, [(BLOCK * 512 + 511) as usize, ((3 * BLOCK + 7) * 512 + 511) as usize]);
}

#[test]
fn whole_blocks_of_zeros_are_released() {
    let test = detecting();
    test.write("thin", 0, 3 * BLOCK, 1).unwrap();
    test.write("thin", BLOCK, BLOCK, 0).unwrap();
    test.write("thin", 2 * BLOCK + 1, 4, 0).unwrap();
    assert_eq!(test.bytes("thin", BLOCK - 1, 2), [1, 0]);
    assert_eq!(test.bytes("thin", 2 * BLOCK, 6), [1, 0, 0, 0, 0, 1]);
    assert!(test.status("thin").starts_with("256 "));
}

#[test]
fn an_elided_write_is_as_durable_as_any() {
    let test = detecting();
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.flush("thin").unwrap();
    test.discard("thin", 0, BLOCK).unwrap();
    // The discard is not durable: without a commit the old data would come back.
    test.io("thin", |env| write_io(env, 3, 1, 0).with(Flags::FUA)).unwrap();
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 16);
    assert_eq!(again.bytes("thin", 0, 4), [0; 4]);
}

#[test]
fn zeros_are_data_where_new_blocks_are_not_zeroed() {
    for detect in ["0 1 skip_block_zeroing", "0 3 skip_block_zeroing detect_zeroes unmap"] {
        let test = PoolFixture::new(256, 64);
        test.load_pool(detect);
        test.message(&["create_thin", "0"]).unwrap();
        test.load_thin("thin", 0, 16);
        // To holes, as data and as a request without data; a part of a block and a whole one.
        test.write("thin", 0, 8, 0).unwrap();
        test.zero("thin", BLOCK, 8).unwrap();
        test.write("thin", 2 * BLOCK, BLOCK, 0).unwrap();
        test.zero("thin", 3 * BLOCK, BLOCK).unwrap();
        // To what is mapped.
        test.write("thin", 4 * BLOCK, 2 * BLOCK, 1).unwrap();
        test.write("thin", 4 * BLOCK, BLOCK, 0).unwrap();
        test.zero("thin", 5 * BLOCK, BLOCK).unwrap();
        // The data device holds no zeros, so that they would not survive as a hole.
        for block in 0..6 {
            test.write("thin", block * BLOCK + 8, 8, 1).unwrap();
            assert_eq!(test.bytes("thin", block * BLOCK, 8), [0; 8], "{detect}, block {block}");
        }
        assert!(test.status("thin").starts_with(&format!("{} ", 6 * BLOCK)));
        test.flush("thin").unwrap();
        let again = test.reopen_durable();
        again.load_pool(detect);
        again.load_thin("thin", 0, 16);
        for block in 0..6 {
            assert_eq!(again.bytes("thin", block * BLOCK, 8), [0; 8], "{detect}, block {block}");
        }
    }
}

#[test]
fn detection_is_changed_by_a_message_and_off_without_a_word() {
    let test = PoolFixture::with_volume(256, 64, 16);
    test.write("thin", 0, BLOCK, 0).unwrap();
    assert!(test.status("thin").starts_with("128 "));
    test.message(&["detect_zeroes", "unmap"]).unwrap();
    test.write("thin", BLOCK, BLOCK, 0).unwrap();
    assert!(test.status("thin").starts_with("128 "));
    test.message(&["detect_zeroes", "off"]).unwrap();
    test.write("thin", BLOCK, BLOCK, 0).unwrap();
    assert!(test.status("thin").starts_with("256 "));
}

#[test]
fn write_zeroes_touches_no_data_of_unprovisioned_blocks_and_releases_whole_ones() {
    let test = PoolFixture::with_volume(256, 64, 16);
    test.write("thin", BLOCK, 2 * BLOCK, 1).unwrap();
    test.flush("thin").unwrap();
    test.forget();
    test.zero("thin", 0, BLOCK + 5).unwrap();
    assert_eq!(test.ops("data"), [(Op::WriteZeroes, 0, 5)]);
    test.zero("thin", BLOCK, 2 * BLOCK).unwrap();
    assert_eq!(test.ops("data"), []);
    assert_eq!(test.status("thin").split(' ').next(), Some("0"));
    assert_eq!(test.bytes("thin", 0, 3 * BLOCK), vec![0; 3 * BLOCK as usize]);
}

#[test]
fn write_zeroes_that_must_not_unmap_zeroes_in_place() {
    let test = PoolFixture::with_volume(256, 64, 16);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.io("thin", |_| {
        cairn_block::Io::on(Op::WriteZeroes, range(0, BLOCK)).with(Flags::NO_UNMAP)
    })
    .unwrap();
    assert!(test.status("thin").starts_with("128 "));
    assert_eq!(test.bytes("thin", 0, BLOCK), vec![0; BLOCK as usize]);
}

#[test]
fn zeros_over_shared_blocks_leave_the_other_side_alone() {
    let test = detecting();
    test.write("thin", 0, 2 * BLOCK, 1).unwrap();
    test.message(&["create_snap", "1", "0"]).unwrap();
    test.load_thin("snap", 1, 16);
    test.write("thin", 0, BLOCK, 0).unwrap();
    test.zero("thin", BLOCK + 1, 2).unwrap();
    assert_eq!(test.bytes("snap", 0, 2 * BLOCK), vec![1; 2 * BLOCK as usize]);
    assert_eq!(test.bytes("thin", BLOCK - 1, 5), [0, 1, 0, 0, 1]);
}
