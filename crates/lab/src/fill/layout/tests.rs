//! Every block has one place, and buckets have what the rule of their pattern says.

use super::super::arrivals::{Share, arrivals};
use super::*;

const PATTERNS: [Pattern; 6] = [
    Pattern::Uniform,
    Pattern::Clustered,
    Pattern::OutOfOrder,
    Pattern::Fragmented { one_in: 16 },
    Pattern::Fragmented { one_in: 3 },
    Pattern::Aged,
];

fn sums(mixes: &[Mix]) -> (u64, u64) {
    let sum = |of: fn(&Mix) -> u32| mixes.iter().map(|mix| u64::from(of(mix))).sum();
    (sum(|mix| mix.dirty), sum(|mix| mix.clean))
}

#[test]
fn buckets_have_all_blocks_and_none_has_more_than_its_room() {
    for pattern in PATTERNS {
        for (dirty, clean) in
            [(0, 0), (1, 0), (0, 1), (1000, 0), (17, 5000), (5000, 17), (640, 640)]
        {
            for (room, buckets) in [(8, 10_000), (128, 10_000), (128, 40), (1, 10_000)] {
                let mixes = mixes(pattern, dirty, clean, room, buckets);
                assert_eq!(sums(&mixes), (dirty, clean), "{pattern}");
                let fits = |mix: &Mix| u64::from(mix.dirty) + u64::from(mix.clean) <= room;
                assert!(mixes.iter().all(fits), "{pattern}: {mixes:?}");
            }
        }
    }
}

#[test]
fn full_patterns_leave_no_gap_and_part_dirty_from_clean() {
    let mixes = mixes(Pattern::Uniform, 300, 200, 128, 10);
    let expected = [(128, 0), (128, 0), (44, 0), (0, 128), (0, 72)];
    assert_eq!(mixes, expected.map(|(dirty, clean)| Mix { dirty, clean }));
}

#[test]
fn fragmented_buckets_keep_one_block_dirty_of_so_many() {
    let pattern = Pattern::Fragmented { one_in: 16 };
    let mixed = mixes(pattern, 800, 6000, 128, 1000);
    assert_eq!(mixed.len(), 100);
    assert!(mixed.iter().all(|mix| *mix == Mix { dirty: 8, clean: 60 }), "{mixed:?}");
    let more_clean = mixes(pattern, 800, 12_128, 128, 1000);
    assert_eq!(more_clean.len(), 101);
    assert_eq!(
        (more_clean[0], more_clean[100]),
        (Mix { dirty: 8, clean: 120 }, Mix { dirty: 0, clean: 128 })
    );
    let small = mixes(pattern, 5, 0, 8, 1000);
    assert_eq!(small, [Mix { dirty: 1, clean: 0 }; 5]);
}

#[test]
fn aged_buckets_are_the_dirtier_the_later_they_were_filled() {
    let aged = mixes(Pattern::Aged, 4000, 2000, 128, 1000);
    assert_eq!(aged.len(), 71, "a third of nine thousand blocks is lost");
    assert!(aged.windows(2).all(|pair| pair[0].dirty <= pair[1].dirty + 1), "{aged:?}");
    assert!(aged[0].dirty <= 1 && aged[70].dirty >= 110, "{aged:?}");
    let lost = 71 * 128 - 6000;
    assert!((3000..3200).contains(&lost), "{lost}");
    // Fewer buckets: less was lost, and later buckets are full.
    let short = mixes(Pattern::Aged, 4000, 2000, 128, 50);
    assert_eq!((short.len(), sums(&short)), (50, (4000, 2000)));
    assert_eq!(short[49].dirty, 128);
}

#[test]
fn each_block_that_came_has_one_place_in_one_bucket() {
    for (pattern, seed) in PATTERNS.into_iter().zip(1..) {
        for room in [8, 128] {
            let shares = [
                Share { blocks: 5000, dirty: 1000, clean: 300 },
                Share { blocks: 9000, dirty: 500, clean: 700 },
            ];
            let mut rng = Rng::with_seed(seed);
            let mixes = mixes(pattern, 1500, 1000, room, 10_000);
            let came = arrivals(pattern, &shares, 4096, &mut Rng::with_seed(seed));
            let extents = lay_out(pattern, &mixes, came, room, &mut rng);
            let came = arrivals(pattern, &shares, 4096, &mut Rng::with_seed(seed));
            let blocks =
                |piece: Piece| (piece.start()..piece.end()).map(move |at| (piece.device(), at));
            for (stream, is_dirty) in [(came.0, true), (came.1, false)] {
                let mut expected: Vec<_> = stream.flat_map(blocks).collect();
                expected.sort_unstable();
                let laid = extents.iter().filter(|it| it.is_dirty() == is_dirty);
                assert!(laid.flat_map(|it| blocks(it.piece)).eq(expected), "{pattern}");
            }
            let mut places: Vec<_> = extents.iter().map(|it| (it.place(), it)).collect();
            places.sort_unstable();
            let end = |it: &Extent| it.place() + it.piece.count();
            assert!(places.windows(2).all(|pair| end(pair[0].1) <= pair[1].0), "{pattern}");
            assert!(places.iter().all(|(at, it)| at / room == (end(it) - 1) / room), "{pattern}");
            let mut found = vec![Mix::default(); mixes.len()];
            for (at, extent) in places {
                let mix = &mut found[(at / room) as usize];
                let field = if extent.is_dirty() { &mut mix.dirty } else { &mut mix.clean };
                *field += extent.piece.count() as u32;
            }
            assert_eq!(found, mixes, "{pattern}");
        }
    }
}

#[test]
fn places_follow_the_order_of_arrival_where_nothing_was_lost() {
    let shares = [Share { blocks: 50_000, dirty: 2000, clean: 0 }];
    for pattern in [Pattern::Uniform, Pattern::OutOfOrder] {
        let came = || arrivals(pattern, &shares, 4096, &mut Rng::with_seed(9));
        let mixes = mixes(pattern, 2000, 0, 128, 100);
        let mut extents = lay_out(pattern, &mixes, came(), 128, &mut Rng::with_seed(1));
        assert!(extents.is_sorted());
        extents.sort_unstable_by_key(Extent::place);
        let starts = extents.iter().map(|it| it.piece.start());
        assert!(starts.eq(came().0.map(|piece| piece.start())), "{pattern}");
    }
}

#[test]
fn blocks_of_a_thinned_bucket_lie_in_random_order() {
    let shares = [Share { blocks: 50_000, dirty: 800, clean: 0 }];
    let pattern = Pattern::Fragmented { one_in: 16 };
    let mixes = mixes(pattern, 800, 0, 128, 100);
    let came = arrivals(pattern, &shares, 4096, &mut Rng::with_seed(9));
    let extents = lay_out(pattern, &mixes, came, 128, &mut Rng::with_seed(1));
    let late = extents.iter().filter(|it| it.place() % 128 >= 64).count();
    assert!((350..450).contains(&late), "{late} of 800 in second halves");
}
