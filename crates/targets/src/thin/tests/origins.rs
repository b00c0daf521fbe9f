//! External origins.

use super::fixture::*;

fn over_origin(features: &str) -> PoolFixture {
    let test = PoolFixture::new(256, 64);
    test.load_pool(features);
    test.message(&["create_thin", "0"]).unwrap();
    test.load("thin", &format!("0 {} thin @pool 0 origin", 6 * BLOCK));
    test
}

fn origin_bytes(from: u64, count: u64) -> Vec<u8> {
    (from..from + count).map(initial_byte).collect()
}

#[test]
fn what_is_not_mapped_reads_as_the_origin_and_beyond_its_end_as_zeros() {
    let test = over_origin("0 0");
    let mut expected = origin_bytes(0, BLOCK * 5 / 2);
    expected.resize(6 * BLOCK as usize, 0);
    assert_eq!(test.bytes("thin", 0, 6 * BLOCK), expected);
    assert_eq!(test.status("thin"), "0 -");
}

#[test]
fn the_first_write_of_a_block_copies_the_origin_around_it() {
    let test = over_origin("0 0");
    test.write("thin", BLOCK + 3, 1, 7).unwrap();
    test.write("thin", 3 * BLOCK - 2, 1, 8).unwrap();
    test.write("thin", 5 * BLOCK + 1, 1, 9).unwrap();
    let mut expected = origin_bytes(0, BLOCK * 5 / 2);
    expected.resize(6 * BLOCK as usize, 0);
    for (sector, byte) in [(BLOCK + 3, 7), (3 * BLOCK - 2, 8), (5 * BLOCK + 1, 9)] {
        expected[sector as usize] = byte;
    }
    assert_eq!(test.bytes("thin", 0, 6 * BLOCK), expected);
    assert!(test.status("thin").starts_with("384 "));
}

#[test]
fn zeros_over_an_origin_are_data() {
    let test = over_origin("0 2 detect_zeroes unmap");
    test.write("thin", 0, BLOCK, 0).unwrap();
    test.zero("thin", BLOCK, BLOCK).unwrap();
    test.zero("thin", 2 * BLOCK, 1).unwrap();
    test.write("thin", 4 * BLOCK, BLOCK, 0).unwrap();
    assert!(test.status("thin").starts_with("384 "), "{}", test.status("thin"));
    let mut expected = vec![0; 2 * BLOCK as usize + 1];
    expected.extend(origin_bytes(2 * BLOCK + 1, 3));
    assert_eq!(test.bytes("thin", 0, 2 * BLOCK + 4), expected);
}

#[test]
fn a_discarded_block_shows_the_origin_again() {
    let test = over_origin("0 0");
    test.write("thin", 0, BLOCK, 7).unwrap();
    test.discard("thin", 0, BLOCK).unwrap();
    assert_eq!(test.bytes("thin", 0, 4), origin_bytes(0, 4));
}

#[test]
fn an_origin_that_needs_the_same_pool_is_refused() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.message(&["create_thin", "1"]).unwrap();
    test.load("above", &format!("0 {} linear @thin 0", 8 * BLOCK));
    for origin in ["thin", "above"] {
        let table = format!("0 {} thin @pool 1 @{origin}", 8 * BLOCK);
        test.refuses("second", &table, "origin: found a volume of the same pool");
    }
}
