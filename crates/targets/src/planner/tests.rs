//! Tests of the planner: examples, and a model that is compared step by step.

use std::time::Duration;

use cairn_block::{Sector, SectorCount, SectorRange, Time};
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};

use super::reference::{GRAIN, Reference};
use super::{
    AGE_MAX, Answer, Members, PART_SECTORS, Piece, Planner, Price, Prices, STEP, TURN_SECTORS,
    Urgency, ZONE_SECTORS,
};

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

/// Asks until there is an answer.
fn ask(planner: &mut Planner, urgency: Urgency<'_>) -> Option<Piece> {
    loop {
        match planner.next(urgency) {
            Answer::Look(piece) => return Some(piece),
            Answer::Again => {}
            Answer::Nothing => return None,
        }
    }
}

/// Looks through all of a piece of a drain and takes a sector.
fn look(planner: &mut Planner) -> Option<Piece> {
    let piece = ask(planner, Urgency::Drain)?;
    planner.looked(&piece, piece.range.end(), SectorCount(1));
    Some(piece)
}

/// A drive with an arm, one for which only the amount of data counts, and one for which the way is
/// most of a price.
const FAR: Price = Price { seek: 0.0, way: 1e-5, sector: 3e-6 };
const ARM: Price = Price { seek: 0.006, way: 1e-6, sector: 3e-6 };
const CHIP: Price = Price { seek: 0.0, way: 0.0, sector: 1e-6 };

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
        is_drain: bool,
    },
    /// Time passes.
    Wait(u64),
    /// Members have other prices.
    Price(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let add = (0u64..4096, 1u64..400).prop_map(|(grain, count)| Step::Add { grain, count });
    let share = prop_oneof![Just(64u64), Just(0), 0u64..=64];
    let look = (share, 0u64..9999, any::<bool>()).prop_map(|(share, taken, is_drain)| Step::Look {
        share,
        taken,
        is_drain,
    });
    let wait = (0u64..3000).prop_map(Step::Wait);
    let price = any::<bool>().prop_map(Step::Price);
    proptest::collection::vec(prop_oneof![add, look.clone(), look, wait, price], 1..120)
}

/// The planner and the model, asked the same.
struct Both {
    planner: Planner,
    naive: Reference,
    now: Time,
    prices: Prices,
}

impl Both {
    fn look(&mut self, share: u64, taken: u64, is_drain: bool) {
        let urgency = match is_drain {
            true => Urgency::Drain,
            false => Urgency::Target { now: self.now, prices: &self.prices },
        };
        let piece = ask(&mut self.planner, urgency);
        assert_eq!(piece, self.naive.next(urgency));
        let Some(piece) = piece else { return };
        let to = piece.range.count.0 * share / 64 / GRAIN * GRAIN;
        let to = Sector(piece.range.start.0 + to);
        self.planner.looked(&piece, to, SectorCount(taken));
        self.naive.looked(&piece, to, SectorCount(taken));
    }
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
        ends_with_drain in any::<bool>(),
    ) {
        let grains: u64 = shape.iter().map(|(zones, grains, _)| zones * 256 + grains).sum();
        let members = members(&shape);
        let prices = Prices::fixed(&[ARM; 3]);
        let (planner, naive) = (Planner::new(members.clone()), Reference::new(members));
        let mut both = Both { planner, naive, now: Time(0), prices };
        for step in steps {
            match step {
                Step::Add { grain, count } => {
                    let grain = grain % grains;
                    let range = range(grain * GRAIN, count.min(grains - grain) * GRAIN);
                    both.planner.add(range, both.now);
                    both.naive.add(range, both.now);
                }
                Step::Look { share, taken, is_drain } => both.look(share, taken, is_drain),
                Step::Wait(seconds) => both.now = both.now + Duration::from_secs(seconds),
                Step::Price(is_arm) => {
                    both.prices = Prices::fixed(&[if is_arm { ARM } else { CHIP }; 3]);
                }
            }
        }
        // P2: twice over at most 1024 parts.
        (0..2048).for_each(|_| both.look(64, 1, ends_with_drain));
        assert!(both.naive.is_clean());
        assert_eq!(both.planner.next(Urgency::Drain), Answer::Nothing);
    }
}

/// A caller that looks at nothing of a drain, and asks for a target in between.
#[test]
fn passes_of_a_drain_do_not_count_once_a_target_was_asked_for() {
    let members = members(&[(16, 0, 0)]);
    let prices = Prices::fixed(&[ARM; 3]);
    let (planner, naive) = (Planner::new(members.clone()), Reference::new(members));
    let mut both = Both { planner, naive, now: Time(0), prices };
    let add = |both: &mut Both, grain: u64, count: u64| {
        both.planner.add(range(grain * GRAIN, count * GRAIN), both.now);
        both.naive.add(range(grain * GRAIN, count * GRAIN), both.now);
    };
    add(&mut both, 1792, 1);
    both.look(0, 0, false);
    add(&mut both, 256, 1);
    both.look(64, 0, false);
    add(&mut both, 505, 8);
    both.look(0, 1928, true);
    both.look(64, 0, false);
    add(&mut both, 0, 1);
    (0..64).for_each(|_| both.look(64, 1, true));
    assert!(both.naive.is_clean());
}

/// A planner of one member with runs of 8 sectors at even distances in zones: the zone, how many,
/// and since when.
fn planner_of(zones: u64, runs: &[(u64, u64, Time)]) -> Planner {
    let mut planner = Planner::new(members(&[(zones, 0, 0)]));
    for &(zone, count, since) in runs {
        for number in 0..count {
            let start = zone * ZONE_SECTORS + number * (ZONE_SECTORS / count);
            planner.add(range(start, 8), since);
        }
    }
    planner
}

/// The zones in the order in which they are taken, all of them.
fn zones_of(planner: &mut Planner, urgency: Urgency<'_>) -> Vec<u64> {
    let mut zones: Vec<u64> = std::iter::from_fn(|| {
        let piece = ask(planner, urgency)?;
        planner.looked(&piece, piece.range.end(), SectorCount(8));
        Some(piece.range.start.0 / ZONE_SECTORS)
    })
    .collect();
    zones.dedup();
    zones
}

#[test]
fn zones_that_bring_most_come_first_and_each_round_by_rising_sectors() {
    let now = Time(0);
    let runs = [(7, 1000, now), (1, 1, now), (5, 40, now), (3, 900, now), (9, 30, now)];
    let mut planner = planner_of(10, &runs);
    let prices = Prices::fixed(&[FAR]);
    let target = Urgency::Target { now, prices: &prices };
    assert_eq!(zones_of(&mut planner.clone(), target), [3, 7, 5, 9, 1]);
    // Runs cost no more in a zone with few of them: one round.
    let prices = Prices::fixed(&[CHIP]);
    let target = Urgency::Target { now, prices: &prices };
    assert_eq!(zones_of(&mut planner.clone(), target), [1, 3, 5, 7, 9]);
    assert_eq!(zones_of(&mut planner, Urgency::Drain), [1, 3, 5, 7, 9]);
}

#[test]
fn zone_goes_home_with_the_next_round_once_it_is_old() {
    let old = Time(AGE_MAX.as_nanos() as u64);
    let (young, now) = (Time(1), old);
    let prices = Prices::fixed(&[FAR]);
    let mut planner = planner_of(10, &[(7, 1000, young), (1, 1, young), (4, 1, Time(0))]);
    let target = Urgency::Target { now, prices: &prices };
    assert_eq!(zones_of(&mut planner, target), [4, 7, 1]);
}

#[test]
fn planner_that_follows_another_keeps_ages_and_cursors() {
    let prices = Prices::fixed(&[FAR]);
    let mut before = planner_of(10, &[(2, 1000, Time(0)), (4, 1, Time(0)), (6, 1000, Time(0))]);
    let early = Urgency::Target { now: Time(0), prices: &prices };
    let piece = ask(&mut before, early).expect("three zones");
    before.looked(&piece, piece.range.end(), SectorCount(8000));
    let now = Time(AGE_MAX.as_nanos() as u64);
    let mut planner = planner_of(10, &[(2, 900, now), (4, 1, now), (6, 1000, now), (8, 1, now)]);
    planner.follow(&before);
    let target = Urgency::Target { now, prices: &prices };
    // 2 has just gone home, so what it has now is young; the others are old, but for 8.
    assert_eq!(zones_of(&mut planner, target), [4, 6, 2, 8]);
}

#[test]
fn question_looks_at_a_bounded_number_of_zones() {
    let count = 3 * STEP as u64;
    let mut planner = planner_of(count, &[(count - 1, 1000, Time(0))]);
    (0..count - 1).for_each(|zone| planner.add(range(zone * ZONE_SECTORS, 8), Time(0)));
    let prices = Prices::fixed(&[FAR]);
    let target = Urgency::Target { now: Time(0), prices: &prices };
    let mut again = 0;
    let piece = loop {
        match planner.next(target) {
            Answer::Look(piece) => break piece,
            Answer::Again => again += 1,
            Answer::Nothing => panic!("all zones are dirty"),
        }
    };
    assert_eq!(piece.range.start.0, (count - 1) * ZONE_SECTORS);
    assert_eq!(again, 4, "twice to measure, twice to go there");
}

#[test]
fn parts_come_by_rising_sectors_and_then_from_the_first() {
    let mut planner = Planner::new(members(&[(100, 0, 0)]));
    let part =
        |zone: u64, part: u64| range(zone * ZONE_SECTORS + part * PART_SECTORS, PART_SECTORS);
    for (zone, number) in [(50, 9), (7, 63), (50, 3), (8, 2)] {
        planner.add(range(part(zone, number).start.0 + 100, 8), Time(0));
    }
    let first: Vec<_> = (0..2).filter_map(|_| look(&mut planner)).collect();
    planner.add(part(7, 0), Time(0));
    planner.add(part(50, 4), Time(0));
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
    planner.add(range(ZONE_SECTORS - 1, ZONE_SECTORS + 3 * GRAIN + 2), Time(0));
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
    planner.add(range(0, 8), Time(0));
    let piece = ask(&mut planner, Urgency::Drain).expect("a dirty part");
    planner.looked(&piece, Sector(512), SectorCount(8));
    planner.add(range(0, 600), Time(0));
    planner.add(range(2 * ZONE_SECTORS, 8), Time(0));
    let starts: Vec<Sector> =
        std::iter::from_fn(|| look(&mut planner)).map(|piece| piece.range.start).collect();
    assert_eq!(starts, [Sector(512), Sector(0)]);
}

#[test]
fn members_have_turns_by_the_sectors_that_they_were_given() {
    let mut planner = Planner::new(members(&[(4, 0, 5), (4, 0, 6)]));
    planner.add(range(0, 8 * ZONE_SECTORS), Time(0));
    let mut turns = Vec::new();
    for taken in [TURN_SECTORS, 3 * TURN_SECTORS, TURN_SECTORS, TURN_SECTORS, 0, 0] {
        let piece = ask(&mut planner, Urgency::Drain).expect("eight zones");
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
