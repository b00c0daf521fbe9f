//! What comes is what was asked for, and follows the rules of its pattern.

use super::*;

const PATTERNS: [Pattern; 5] = [
    Pattern::Uniform,
    Pattern::Clustered,
    Pattern::OutOfOrder,
    Pattern::Fragmented { one_in: 16 },
    Pattern::Aged,
];

fn came(pattern: Pattern, shares: &[Share], block_bytes: u64, seed: u64) -> [Vec<Piece>; 2] {
    let (dirty, clean) = arrivals(pattern, shares, block_bytes, &mut Rng::with_seed(seed));
    [dirty.collect(), clean.collect()]
}

fn blocks(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.count()).sum()
}

#[test]
fn each_device_has_as_many_blocks_as_were_asked_for_and_none_twice() {
    let share = |blocks, dirty, clean| Share { blocks, dirty, clean };
    let sets = [
        vec![share(1000, 300, 200)],
        vec![share(1, 1, 0), share(17, 0, 17), share(40_000, 12_345, 0)],
        vec![share(5000, 0, 0)],
        // All of a device.
        vec![share(4096, 4000, 96), share(333, 333, 0)],
        vec![share(100_000, 7, 1), share(100_000, 50_000, 30_000)],
    ];
    for (pattern, seed) in PATTERNS.into_iter().zip(1..) {
        for (shares, block_bytes) in sets.iter().flat_map(|it| [(it, 4096), (it, 65_536)]) {
            let [dirty, clean] = came(pattern, shares, block_bytes, seed);
            for (device, share) in shares.iter().enumerate() {
                let of = |pieces: &[Piece]| -> Vec<Piece> {
                    pieces.iter().copied().filter(|it| it.device() == device).collect()
                };
                let (dirty, clean) = (of(&dirty), of(&clean));
                let found =
                    Share { blocks: share.blocks, dirty: blocks(&dirty), clean: blocks(&clean) };
                assert_eq!(found, *share, "{pattern}");
                let mut all = [dirty, clean].concat();
                all.sort_unstable();
                assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].start()), "{pattern}");
                assert!(all.last().is_none_or(|last| last.end() <= share.blocks), "{pattern}");
            }
        }
    }
}

#[test]
fn same_seed_gives_the_same_arrivals_and_another_seed_others() {
    let shares = [Share { blocks: 10_000, dirty: 2000, clean: 1000 }; 2];
    for pattern in PATTERNS {
        let first = came(pattern, &shares, 4096, 1);
        assert_eq!(first, came(pattern, &shares, 4096, 1), "{pattern}");
        assert_ne!(first, came(pattern, &shares, 4096, 2), "{pattern}");
    }
}

/// 4 GiB with 400 MiB of dirty data, in blocks of 4 KiB.
const LARGE: Share = Share { blocks: 1 << 20, dirty: 100_000, clean: 0 };

fn rising(pieces: &[Piece]) -> usize {
    pieces.windows(2).filter(|pair| pair[0].start() < pair[1].start()).count()
}

#[test]
fn single_blocks_lie_anywhere_and_come_in_no_order() {
    let shares = [LARGE, Share { blocks: 1 << 20, dirty: 50_000, clean: 0 }];
    let [dirty, _] = came(Pattern::Uniform, &shares, 4096, 3);
    assert!((74_000..76_000).contains(&rising(&dirty)), "{}", rising(&dirty));
    for eighth in 0..8 {
        let is_in = |it: &&Piece| it.device() == 0 && it.start() >> 17 == eighth;
        let count = dirty.iter().filter(is_in).count();
        assert!((12_000..13_000).contains(&count), "{eighth}: {count}");
    }
    let early = dirty[..15_000].iter().filter(|it| it.device() == 1).count();
    assert!((4700..5300).contains(&early), "a third of what comes is of the device: {early}");
}

#[test]
fn each_length_of_runs_has_the_same_share_of_the_data() {
    let [dirty, _] = came(Pattern::Clustered, &[LARGE], 4096, 3);
    for length in 0..=8 {
        let of_length: Vec<Piece> =
            dirty.iter().copied().filter(|it| it.count() == 1 << length).collect();
        let share = blocks(&of_length) as f64 / 100_000.0;
        // At the end of a region a run is cut.
        assert!((0.08..0.15).contains(&share), "{} blocks: {share}", 1 << length);
    }
    assert!((dirty.len() / 2 - 1500..dirty.len() / 2 + 1500).contains(&rising(&dirty)));
}

#[test]
fn clustered_data_lies_in_some_regions() {
    let [dirty, _] = came(Pattern::Clustered, &[LARGE], 4096, 7);
    // 64 regions of 64 MiB.
    let mut regions = [0; 64];
    for piece in &dirty {
        regions[piece.start() as usize >> 14] += piece.count();
    }
    regions.sort_unstable_by_key(|blocks| std::cmp::Reverse(*blocks));
    let hot: u64 = regions[..8].iter().sum();
    assert!((89_000..=91_000).contains(&hot), "{hot} of 100000 in an eighth: {regions:?}");
    assert!(regions[7] > 16_384 / 2 && regions[8] < 300 && regions[63] > 100, "{regions:?}");
}

#[test]
fn blocks_of_a_run_come_together_and_out_of_order() {
    // The mean of one divided by the length of a run is 0.024 and 0.23.
    for (block_bytes, longest, least) in [(4096, 256, 0.96), (65_536, 16, 0.73)] {
        let [dirty, _] = came(Pattern::OutOfOrder, &[LARGE], block_bytes, 7);
        assert!(dirty.iter().all(|it| it.count() == 1));
        let part = |count: usize| count as f64 / dirty.len() as f64;
        let is_near = |pair: &&[Piece]| pair[0].start().abs_diff(pair[1].start()) < longest;
        let near = part(dirty.windows(2).filter(is_near).count());
        assert!(near > least, "{near} come next to a block of their run");
        let mut sorted = dirty.clone();
        sorted.sort_unstable();
        let in_row = |pieces: &[Piece]| {
            part(pieces.windows(2).filter(|pair| pair[0].end() == pair[1].start()).count())
        };
        assert!(in_row(&sorted) > least, "{} have a neighbour", in_row(&sorted));
        assert!(in_row(&dirty) < 0.25, "{} come behind their neighbour", in_row(&dirty));
        let rising = part(rising(&dirty));
        assert!((0.48..0.52).contains(&rising), "{rising}");
    }
}
