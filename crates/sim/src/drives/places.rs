//! [`Places`]: what the arm could do next, by cylinder.
//!
//! The nearest in time is found from the arm's cylinder outwards. A seek takes at least as long
//! over a longer distance, so the search ends where the seek alone takes longer than the best
//! place found.

use cairn_block::{Sector, Time};

use super::geometry::{Arm, Geometry, Position};

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

impl Candidate {
    fn rank(&self) -> (u32, u64) {
        (self.position.cylinder, self.order)
    }
}

/// Candidates, by cylinder and age.
#[derive(Default)]
pub(super) struct Places(Vec<Candidate>);

impl Places {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Candidate> {
        self.0.iter()
    }

    pub fn insert(&mut self, to: Candidate) {
        let index = self.0.partition_point(|other| other.rank() < to.rank());
        self.0.insert(index, to);
    }

    pub fn remove(&mut self, cylinder: u32, order: u64) {
        let index = self.0.partition_point(|other| other.rank() < (cylinder, order));
        debug_assert_eq!(self.0[index].rank(), (cylinder, order));
        self.0.remove(index);
    }

    /// The candidate that the arm can begin first; of equals, the oldest.
    pub fn nearest(&self, geometry: &Geometry, arm: &Arm, now: Time) -> Option<Candidate> {
        let moment = geometry.moment(arm, now);
        let here = arm.position.cylinder;
        let middle = self.0.partition_point(|to| to.position.cylinder < here);
        let (inner, outer) = (self.0[middle..].iter(), self.0[..middle].iter().rev());
        let mut best: Option<(u32, u64, &Candidate)> = None;
        let mut consider = |to| {
            let to: &Candidate = to;
            let distance = here.abs_diff(to.position.cylinder);
            if best.is_some_and(|(time, ..)| geometry.seek(distance) > time) {
                return false;
            }
            let time = geometry.approach_at(&moment, to.start, to.position).total();
            if best.is_none_or(|(other, order, _)| (time, to.order) < (other, order)) {
                best = Some((time, to.order, to));
            }
            true
        };
        // Both ways at once would end earlier; one after the other is simpler, and the first finds
        // a bound for the second.
        for to in inner {
            if !consider(to) {
                break;
            }
        }
        for to in outer {
            if !consider(to) {
                break;
            }
        }
        best.map(|(_, _, to)| *to)
    }
}
