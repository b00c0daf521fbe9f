//! [`Places`]: what the arm could do next, by cylinder.
//!
//! The nearest in time is found from the arm's cylinder outwards. A seek takes at least as long
//! over a longer distance, so the search ends where the seek alone takes longer than the best
//! place found. What the search and the order need is kept apart from the rest, so that it fits
//! into few lines of the processor's cache and moves cheaply.

use cairn_block::{Sector, Time};

use super::geometry::{Arm, Geometry, Position};
use super::slab::Slab;

/// What the arm could do next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub position: Position,
    pub start: Sector,
    /// Older ones have smaller numbers.
    pub order: u64,
    /// What its owner knows it by.
    pub key: usize,
}

/// A candidate's place.
#[derive(Clone, Copy)]
struct Spot {
    cylinder: u32,
    head: u32,
    angle: u32,
    /// Number of the candidate.
    candidate: u32,
}

/// Candidates, by cylinder and age.
#[derive(Default)]
pub(super) struct Places {
    spots: Vec<Spot>,
    candidates: Slab<Candidate>,
}

impl Places {
    pub fn len(&self) -> usize {
        self.spots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.spots.is_empty()
    }

    /// The candidates on a cylinder and those inside it, in order, with their indexes. An index
    /// holds until the next change.
    pub fn from(&self, cylinder: u32) -> impl Iterator<Item = (usize, &Candidate)> {
        let first = self.first_from(cylinder);
        let spots = self.spots.iter().enumerate().skip(first);
        spots.map(|(index, spot)| (index, self.candidate(*spot)))
    }

    fn candidate(&self, spot: Spot) -> &Candidate {
        self.candidates.get(spot.candidate as usize)
    }

    /// How many candidates come before one of this cylinder and age.
    fn rank(&self, cylinder: u32, order: u64) -> usize {
        let first = self.first_from(cylinder);
        let is_before =
            |spot: &&Spot| spot.cylinder == cylinder && self.candidate(**spot).order < order;
        first + self.spots[first..].iter().take_while(is_before).count()
    }

    /// How many candidates are on lower cylinders.
    #[inline]
    fn first_from(&self, cylinder: u32) -> usize {
        self.spots.partition_point(|spot| spot.cylinder < cylinder)
    }

    pub fn insert(&mut self, to: Candidate) {
        let Position { cylinder, head, angle, .. } = to.position;
        let index = self.rank(cylinder, to.order);
        let candidate = self.candidates.insert(to) as u32;
        self.spots.insert(index, Spot { cylinder, head, angle, candidate });
    }

    /// Takes out the candidate of this cylinder and age.
    pub fn remove(&mut self, cylinder: u32, order: u64) {
        let removed = self.take(self.rank(cylinder, order));
        debug_assert_eq!((removed.position.cylinder, removed.order), (cylinder, order));
    }

    /// Takes out the candidate with this index.
    pub fn take(&mut self, index: usize) -> Candidate {
        let spot = self.spots.remove(index);
        self.candidates.remove(spot.candidate as usize)
    }

    /// The index of the candidate that the arm can begin first; of equals, the oldest.
    pub fn nearest(&self, geometry: &Geometry, arm: &Arm, now: Time) -> Option<usize> {
        let moment = geometry.moment(arm, now);
        let first = self.first_from(arm.cylinder);
        let mut best = Best { time: u32::MAX, index: usize::MAX };
        let mut index = first;
        while let Some(spot) = self.spots.get(index).filter(|spot| spot.cylinder == arm.cylinder) {
            let time = if spot.head == arm.head {
                let to = self.candidate(*spot);
                geometry.approach_at(&moment, to.start, to.position).total()
            } else {
                geometry.head_switch + geometry.rotation(&moment, geometry.head_switch, spot.angle)
            };
            self.consider(&mut best, index, time);
            index += 1;
        }
        // Both ways in turns, so that the bound is soon near what it will be. Which of the two is
        // nearer is not asked: a processor predicts that badly. Below zero there is no spot.
        let (mut next, steps) = ([index, first.wrapping_sub(1)], [1, usize::MAX]);
        let (mut side, mut is_other_open) = (0, true);
        loop {
            let index = next[side];
            let is_near = self.spots.get(index).is_some_and(|spot| {
                let seek = geometry.seek(arm.cylinder.abs_diff(spot.cylinder));
                let is_near = seek <= best.time;
                if is_near {
                    let time = seek + geometry.rotation(&moment, seek, spot.angle);
                    self.consider(&mut best, index, time);
                }
                is_near
            });
            next[side] = index.wrapping_add(steps[side]);
            if is_other_open {
                side = 1 - side;
                is_other_open = is_near;
            } else if !is_near {
                break;
            }
        }
        (best.index != usize::MAX).then_some(best.index)
    }

    #[inline(always)]
    fn consider(&self, best: &mut Best, index: usize, time: u32) {
        if time < best.time || (time == best.time && self.is_older(index, best.index)) {
            *best = Best { time, index };
        }
    }

    /// Equal times are rare.
    #[cold]
    fn is_older(&self, one: usize, other: usize) -> bool {
        let order = |index: usize| self.candidate(self.spots[index]).order;
        order(one) < order(other)
    }
}

/// The best candidate so far: its time, and its index among the spots.
struct Best {
    time: u32,
    index: usize,
}
