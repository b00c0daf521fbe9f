//! Tests of the planner: examples, and a model that is compared step by step.

use cairn_block::{Sector, SectorCount, SectorRange};
use proptest::prelude::{Just, Strategy, prop_oneof, proptest};

use super::reference::{GRAIN, Reference};
use super::{Members, PART_SECTORS, Piece, Planner, TURN_SECTORS, ZONE_SECTORS};

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector(start), SectorCount(count))
}

/// A disk of several stretches: the zones and grains of each, and the device that it lies on.
fn members(parts: &[(u64, u64, usize)]) -> Members {
    Members::of_devices(
        parts
            .iter()
            .map(|&(zones, grains, device)| (zones * ZONE_SECTORS + grains * GRAIN, device)),
    )
}

/// Looks through all of a piece and takes a sector.
fn look(planner: &mut Planner) -> Option<Piece> {
    let piece = planner.next()?;
    planner.looked(&piece, piece.range.end(), SectorCount(1));
    Some(piece)
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Add {
        grain: u64,
        count: u64,
    },
    /// Looks at so many of 64 parts of the next piece.
    Look {
        share: u64,
        taken: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let add = (0u64..4096, 1u64..400).prop_map(|(grain, count)| Step::Add { grain, count });
    let share = prop_oneof![Just(64u64), Just(0), 0u64..=64];
    let look = (share, 0u64..9999).prop_map(|(share, taken)| Step::Look { share, taken });
    proptest::collection::vec(prop_oneof![add, look.clone(), look], 1..120)
}

proptest! {
    #[test]
    fn pieces_are_those_of_the_reference_model(
        shape in prop_oneof![
            Just(vec![(16u64, 0u64, 0usize)]),
            Just(vec![(3, 5, 0), (5, 1, 1)]),
            Just(vec![(2, 7, 0), (1, 0, 1), (0, 9, 0), (2, 3, 2)]),
        ],
        steps in steps(),
    ) {
        let grains: u64 = shape.iter().map(|(zones, grains, _)| zones * 256 + grains).sum();
        let members = members(&shape);
        let (mut planner, mut naive) = (Planner::new(members.clone()), Reference::new(members));
        let look = |planner: &mut Planner, naive: &mut Reference, share: u64, taken| {
            let piece = planner.next();
            assert_eq!(piece, naive.next());
            let Some(piece) = piece else { return };
            let to = piece.range.count.0 * share / 64 / GRAIN * GRAIN;
            let to = Sector(piece.range.start.0 + to);
            planner.looked(&piece, to, SectorCount(taken));
            naive.looked(&piece, to, SectorCount(taken));
        };
        for step in steps {
            match step {
                Step::Add { grain, count } => {
                    let grain = grain % grains;
                    let range = range(grain * GRAIN, count.min(grains - grain) * GRAIN);
                    planner.add(range);
                    naive.add(range);
                }
                Step::Look { share, taken } => look(&mut planner, &mut naive, share, taken),
            }
        }
        // P2: twice over at most 1024 parts.
        (0..2048).for_each(|_| look(&mut planner, &mut naive, 64, 1));
        assert!(naive.is_clean());
        assert_eq!(planner.next(), None);
    }
}

#[test]
fn parts_come_by_rising_sectors_and_then_from_the_first() {
    let mut planner = Planner::new(members(&[(100, 0, 0)]));
    let part =
        |zone: u64, part: u64| range(zone * ZONE_SECTORS + part * PART_SECTORS, PART_SECTORS);
    for (zone, number) in [(50, 9), (7, 63), (50, 3), (8, 2)] {
        planner.add(range(part(zone, number).start.0 + 100, 8));
    }
    let first: Vec<_> = (0..2).filter_map(|_| look(&mut planner)).collect();
    planner.add(part(7, 0));
    planner.add(part(50, 4));
    let all: Vec<SectorRange> = first
        .into_iter()
        .chain(std::iter::from_fn(|| look(&mut planner)))
        .map(|piece| piece.range)
        .collect();
    let both = range(part(50, 3).start.0, 2 * PART_SECTORS);
    assert_eq!(all, [part(7, 63), part(8, 2), both, part(50, 9), part(7, 0)]);
}

#[test]
fn a_range_over_several_zones_is_offered_in_each() {
    let mut planner = Planner::new(members(&[(2, 3, 0), (9, 0, 1)]));
    planner.add(range(ZONE_SECTORS - 1, ZONE_SECTORS + 3 * GRAIN + 2));
    let end = 2 * ZONE_SECTORS + 3 * GRAIN;
    let ranges: Vec<SectorRange> =
        std::iter::from_fn(|| look(&mut planner)).map(|piece| piece.range).collect();
    let expected = [
        range(ZONE_SECTORS - PART_SECTORS, PART_SECTORS),
        range(end, PART_SECTORS),
        range(ZONE_SECTORS, ZONE_SECTORS),
        range(2 * ZONE_SECTORS, 3 * GRAIN),
    ];
    assert_eq!(ranges, expected);
}

#[test]
fn data_added_before_the_cursor_in_its_part_is_offered_in_the_next_round() {
    let mut planner = Planner::new(members(&[(2, 0, 0)]));
    planner.add(range(0, 8));
    let piece = planner.next().expect("a dirty part");
    planner.looked(&piece, Sector(512), SectorCount(8));
    planner.add(range(0, 600));
    planner.add(range(2 * ZONE_SECTORS, 8));
    let starts: Vec<Sector> =
        std::iter::from_fn(|| look(&mut planner)).map(|piece| piece.range.start).collect();
    assert_eq!(starts, [Sector(512), Sector(0)]);
}

#[test]
fn members_have_turns_by_the_sectors_that_they_were_given() {
    let mut planner = Planner::new(members(&[(4, 0, 5), (4, 0, 6)]));
    planner.add(range(0, 8 * ZONE_SECTORS));
    let mut turns = Vec::new();
    for taken in [TURN_SECTORS, 3 * TURN_SECTORS, TURN_SECTORS, TURN_SECTORS, 0, 0] {
        let piece = planner.next().expect("eight zones");
        assert_eq!(piece.most, SectorCount(TURN_SECTORS));
        planner.looked(&piece, piece.range.start + SectorCount(8), SectorCount(taken));
        turns.push(piece.member);
    }
    assert_eq!(turns, [0, 1, 0, 0, 0, 0]);
}

#[test]
fn parts_on_one_device_are_one_member() {
    let members = members(&[(1, 0, 3), (1, 0, 4), (1, 0, 3), (0, 8, 3)]);
    assert_eq!(members.count(), 2);
    let at = |sector| members.zone_of(Sector(sector));
    assert_eq!(at(0), (0, range(0, ZONE_SECTORS)));
    assert_eq!(at(ZONE_SECTORS), (1, range(ZONE_SECTORS, ZONE_SECTORS)));
    assert_eq!(at(3 * ZONE_SECTORS), (0, range(3 * ZONE_SECTORS, 8 * GRAIN)));
}
