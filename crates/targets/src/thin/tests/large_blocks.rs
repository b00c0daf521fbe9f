//! Data blocks that are too large to be put together in memory: they are filled in pieces.

use super::fixture::*;
use crate::fixture::SECTOR;
use cairn_block::{Disk, Io, Op, SectorCount};
use cairn_sim::{Fault, OpSet};

/// Sectors of a data block: 2 MiB.
const LARGE: u64 = 4096;

/// A pool of six large blocks, and the volume `thin` of three with id 0 and more table words.
fn large(features: &str, words: &str) -> PoolFixture {
    let test = PoolFixture::new(256, 6 * LARGE / BLOCK);
    test.load("pool", &format!("0 {} thin-pool meta data {LARGE} {features}", 6 * LARGE));
    test.message(&["create_thin", "0"]).unwrap();
    test.load("thin", &format!("0 {} thin @pool 0{words}", 3 * LARGE));
    test
}

/// A byte that tells a sector from those around it, unlike what the drives hold.
fn own_byte(sector: u64) -> u8 {
    (sector % 113) as u8 + 1
}

/// Writes each sector with its own byte.
fn write_own(test: &PoolFixture, start: u64, count: u64) {
    let written = test.io("thin", |env| {
        let segs = env.segs(SectorCount(count));
        let bytes = (start..start + count).flat_map(|sector| [own_byte(sector); SECTOR]);
        segs.copy_in(0, &bytes.collect::<Vec<u8>>());
        Io::write(range(start, count), segs)
    });
    written.unwrap();
}

fn own_bytes(start: u64, count: u64) -> Vec<u8> {
    (start..start + count).map(own_byte).collect()
}

#[test]
fn the_preferred_request_is_the_largest_power_of_two_that_divides_a_block() {
    let cases = [(128, 64 << 10), (384, 64 << 10), (1536, 256 << 10), (2048, 1 << 20)];
    for (sectors, preferred) in cases {
        let test = PoolFixture::new(256, 2 * sectors / BLOCK);
        test.load("pool", &format!("0 {} thin-pool meta data {sectors} 0", 2 * sectors));
        test.message(&["create_thin", "0"]).unwrap();
        test.load("thin", &format!("0 {sectors} thin @pool 0"));
        let limits = test.volume("thin").limits();
        assert_eq!((limits.io_min, limits.io_opt), (preferred, sectors as u32 * 512), "{sectors}");
    }
}

#[test]
fn a_large_block_is_zero_around_the_first_write() {
    for (start, count) in [(0, 5), (1000, 7), (LARGE - 3, 3), (1, LARGE - 1), (2500, 1)] {
        let test = large("0 0", "");
        test.forget();
        write_own(&test, LARGE + start, count);
        let zeroed = test.ops("data").into_iter().filter(|(op, ..)| *op == Op::WriteZeroes);
        assert_eq!(zeroed.map(|(.., zeroed)| zeroed).sum::<u64>(), LARGE - count);
        let mut expected = vec![0; LARGE as usize];
        expected[start as usize..][..count as usize]
            .copy_from_slice(&own_bytes(LARGE + start, count));
        assert_eq!(test.bytes("thin", LARGE, LARGE), expected, "{start} {count}");
        assert_eq!(test.status("thin"), "4096 8191");
    }
}

#[test]
fn a_large_block_is_not_zeroed_with_skip_block_zeroing() {
    let test = large("0 1 skip_block_zeroing", "");
    write_own(&test, 1000, 7);
    let mut expected: Vec<u8> = (0..LARGE).map(initial_byte).collect();
    expected[1000..1007].copy_from_slice(&own_bytes(1000, 7));
    assert_eq!(test.bytes("thin", 0, LARGE), expected);
    // Zeros are data then.
    test.zero("thin", LARGE + 1000, 7).unwrap();
    let mut expected: Vec<u8> = (LARGE..2 * LARGE).map(initial_byte).collect();
    expected[1000..1007].fill(0);
    assert_eq!(test.bytes("thin", LARGE, LARGE), expected);
}

#[test]
fn a_large_shared_block_is_copied_around_a_write() {
    for (start, count) in [(0, 5), (1000, 7), (LARGE - 3, 3), (1, LARGE - 2)] {
        for zeroes in [false, true] {
            let test = large("0 0", "");
            write_own(&test, 0, LARGE);
            test.message(&["create_snap", "1", "0"]).unwrap();
            let mut expected = own_bytes(0, LARGE);
            let written = &mut expected[start as usize..][..count as usize];
            if zeroes {
                test.zero("thin", start, count).unwrap();
                written.fill(0);
            } else {
                test.write("thin", start, count, 250).unwrap();
                written.fill(250);
            }
            assert_eq!(test.bytes("thin", 0, LARGE), expected, "{start} {count} {zeroes}");
            test.load("snap", &format!("0 {LARGE} thin @pool 1"));
            assert_eq!(test.bytes("snap", 0, LARGE), own_bytes(0, LARGE));
            assert!(test.status("pool").contains(" 2/6 "), "{}", test.status("pool"));
        }
    }
}

#[test]
fn a_large_block_in_which_the_origin_ends_is_copied_so_far_and_zero_after_it() {
    // Before the end, over it, and after it.
    for (start, count) in [(3, 5), (ORIGIN_SECTORS - 2, 4), (ORIGIN_SECTORS, 2), (2000, 9)] {
        for zeroes in [false, true] {
            let test = large("0 0", " origin");
            let mut expected: Vec<u8> = (0..ORIGIN_SECTORS).map(initial_byte).collect();
            expected.resize(2 * LARGE as usize, 0);
            assert_eq!(test.bytes("thin", 0, 2 * LARGE), expected);
            if zeroes {
                test.zero("thin", start, count).unwrap();
                expected[start as usize..][..count as usize].fill(0);
            } else {
                write_own(&test, start, count);
                let own = own_bytes(start, count);
                expected[start as usize..][..count as usize].copy_from_slice(&own);
            }
            assert!(test.status("thin").starts_with("4096 "), "{}", test.status("thin"));
            assert_eq!(test.bytes("thin", 0, 2 * LARGE), expected, "{start} {count} {zeroes}");
        }
    }
}

#[test]
fn a_large_block_behind_the_origin_is_not_zeroed_with_skip_block_zeroing() {
    let test = large("0 1 skip_block_zeroing", " origin");
    test.forget();
    write_own(&test, 2000, 9);
    assert!(test.ops("data").iter().all(|(op, ..)| *op == Op::Write));
    let origin: Vec<u8> = (0..ORIGIN_SECTORS).map(initial_byte).collect();
    assert_eq!(test.bytes("thin", 0, ORIGIN_SECTORS), origin);
    assert_eq!(test.bytes("thin", 2000, 9), own_bytes(2000, 9));
}

#[test]
fn a_large_block_that_cannot_be_filled_is_not_mapped() {
    for piece in [range(0, 1000), range(1000, 7), range(1007, LARGE - 1007)] {
        let test = large("0 0", "");
        test.drive("data").faults().add(Fault::error(OpSet::WRITES).on(piece).shots(1));
        assert!(test.write("thin", 1000, 7, 9).is_err());
        assert_eq!(test.status("thin"), "0 -");
        assert_eq!(test.bytes("thin", 0, LARGE), vec![0; LARGE as usize]);
    }
}
