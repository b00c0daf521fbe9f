//! [`HostQueue`]: what waits before a drive. Reads and writes that touch and wait together become
//! one operation of the drive.
//!
//! - Q1. Order is that of arrival; a merged operation has the place of its oldest part.
//! - Q2. Only reads with reads and writes with writes merge, both with FUA or both without, up to
//!   the longest operation of the drive.
//! - Q3. Flushes wait apart: all that wait when the drive takes one share it. What they must cover
//!   ended before they arrived, so no order between them and the rest is needed.

use std::collections::VecDeque;

use cairn_block::{Op, Sector, SectorCount, SectorRange};
use rustc_hash::FxHashMap;

use super::{Arrival, OpId};

/// One or several arrivals that the drive does as one.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub op: Op,
    pub range: SectorRange,
    pub is_fua: bool,
    first: OpId,
    others: Vec<OpId>,
}

impl Operation {
    pub fn new(arrival: &Arrival) -> Operation {
        Operation {
            op: arrival.op,
            range: arrival.range,
            is_fua: arrival.is_fua,
            first: arrival.id,
            others: Vec::new(),
        }
    }

    /// How many arrivals it is.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// Reports the ends of its arrivals.
    pub fn end(&self, ended: &mut Vec<OpId>) {
        ended.push(self.first);
        ended.extend_from_slice(&self.others);
    }

    fn absorb(&mut self, right: Operation) {
        debug_assert_eq!(self.range.end(), right.range.start);
        self.range.count += right.range.count;
        self.others.push(right.first);
        self.others.extend(right.others);
    }

    fn key(&self, at: Sector) -> Key {
        at.0 << 2 | u64::from(self.op == Op::Write) << 1 | u64::from(self.is_fua)
    }

    fn may_merge(&self) -> bool {
        matches!(self.op, Op::Read | Op::Write)
    }
}

/// What merges with what, and an end of its range.
type Key = u64;

/// Number of an operation in order of arrival.
type Place = u64;

/// What waits before a drive.
pub(super) struct HostQueue {
    longest: SectorCount,
    /// Gaps are operations that became part of an older one.
    waiting: VecDeque<Option<Operation>>,
    /// The place of the front.
    front: Place,
    /// Where the ranges of mergeable operations start and end. Of two with the same end the later
    /// one is known. They are never iterated.
    starts: FxHashMap<Key, Place>,
    ends: FxHashMap<Key, Place>,
    /// What waits before this place is indexed. The last operation is not until another one
    /// arrives: most leave before.
    indexed: Place,
    flushes: Vec<OpId>,
    merges: u64,
}

impl HostQueue {
    pub fn new(longest: SectorCount) -> HostQueue {
        HostQueue {
            longest,
            waiting: VecDeque::new(),
            front: 0,
            starts: FxHashMap::default(),
            ends: FxHashMap::default(),
            indexed: 0,
            flushes: Vec::new(),
            merges: 0,
        }
    }

    pub fn push(&mut self, arrival: &Arrival) {
        if arrival.op == Op::Flush {
            return self.flushes.push(arrival.id);
        }
        self.index_last();
        let (operation, place) = (Operation::new(arrival), self.end());
        if operation.may_merge() && place > self.front {
            self.waiting.push_back(None);
            self.join(operation, place);
        } else {
            self.waiting.push_back(Some(operation));
        }
    }

    /// The place after all that waits.
    fn end(&self) -> Place {
        self.front + self.waiting.len() as u64
    }

    fn index_last(&mut self) {
        let end = self.end();
        if self.indexed < end {
            self.index(end - 1);
            self.indexed = end;
        }
    }

    fn index(&mut self, place: Place) {
        let operation = self.waiting[(place - self.front) as usize].as_ref();
        let Some(operation) = operation.filter(|operation| operation.may_merge()) else { return };
        self.starts.insert(operation.key(operation.range.start), place);
        self.ends.insert(operation.key(operation.range.end()), place);
    }

    /// Merges an operation with the neighbours on both sides, and puts it in its place.
    fn join(&mut self, mut operation: Operation, mut place: Place) {
        let range = operation.range;
        if let Some(&left) = self.ends.get(&operation.key(range.start))
            && self.fits(left, &operation)
        {
            let mut left_operation = self.take(left);
            left_operation.absorb(operation);
            (operation, place) = (left_operation, left);
            self.merges += 1;
        }
        if let Some(&right) = self.starts.get(&operation.key(range.end()))
            && self.fits(right, &operation)
        {
            let right_operation = self.take(right);
            operation.absorb(right_operation);
            place = place.min(right);
            self.merges += 1;
        }
        self.waiting[(place - self.front) as usize] = Some(operation);
        while self.waiting.back().is_some_and(Option::is_none) {
            self.waiting.pop_back();
        }
        self.indexed = self.end() - 1;
        if place < self.indexed {
            self.index(place);
            self.indexed = self.end();
        }
    }

    fn fits(&self, neighbour: Place, operation: &Operation) -> bool {
        let neighbour = self.waiting[(neighbour - self.front) as usize].as_ref();
        let sum = neighbour.map(|other| other.range.count.0 + operation.range.count.0);
        sum.is_some_and(|sum| sum <= self.longest.0)
    }

    /// Takes out an operation that is indexed.
    fn take(&mut self, place: Place) -> Operation {
        let index = (place - self.front) as usize;
        let operation = self.waiting[index].take().expect("what is indexed waits");
        self.forget(&operation, place);
        operation
    }

    fn forget(&mut self, operation: &Operation, place: Place) {
        let (start, end) = (operation.key(operation.range.start), operation.range.end());
        if self.starts.get(&start) == Some(&place) {
            self.starts.remove(&start);
        }
        if self.ends.get(&operation.key(end)) == Some(&place) {
            self.ends.remove(&operation.key(end));
        }
    }

    /// The next operation for the drive.
    pub fn pop(&mut self) -> Option<Operation> {
        while let Some(front) = self.waiting.pop_front() {
            let place = self.front;
            self.front += 1;
            let is_indexed = place < self.indexed;
            self.indexed = self.indexed.max(self.front);
            if let Some(operation) = front {
                if is_indexed {
                    self.forget(&operation, place);
                }
                return Some(operation);
            }
        }
        None
    }

    pub fn has_flush(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// The flushes that share the drive's next one.
    pub fn take_flushes(&mut self) -> Vec<OpId> {
        std::mem::take(&mut self.flushes)
    }

    pub fn merges(&self) -> u64 {
        self.merges
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn arrival(id: OpId, op: Op, start: u64, count: u64) -> Arrival {
        let range = SectorRange::new(Sector(start), SectorCount(count));
        Arrival { id, op, range, is_fua: false }
    }

    fn drain(queue: &mut HostQueue) -> Vec<(u64, u64, Vec<OpId>)> {
        let operations = std::iter::from_fn(|| queue.pop());
        let told = operations.map(|operation| {
            let mut ended = Vec::new();
            operation.end(&mut ended);
            (operation.range.start.0, operation.range.count.0, ended)
        });
        told.collect()
    }

    #[test]
    fn neighbours_on_both_sides_become_one_in_the_place_of_the_oldest() {
        let mut queue = HostQueue::new(SectorCount(2048));
        for (id, start) in [(0, 16), (1, 100), (2, 0), (3, 8)] {
            queue.push(&arrival(id, Op::Write, start, 8));
        }
        assert_eq!(drain(&mut queue), [(0, 24, vec![2, 3, 0]), (100, 8, vec![1])]);
        assert_eq!(queue.merges(), 2);
    }

    #[test]
    fn reads_writes_and_fua_writes_stay_apart() {
        let mut queue = HostQueue::new(SectorCount(2048));
        queue.push(&arrival(0, Op::Write, 0, 8));
        queue.push(&arrival(1, Op::Read, 8, 8));
        queue.push(&Arrival { is_fua: true, ..arrival(2, Op::Write, 8, 8) });
        queue.push(&arrival(3, Op::WriteZeroes, 8, 8));
        assert_eq!(drain(&mut queue).len(), 4);
    }

    #[test]
    fn merges_stop_at_the_longest_operation() {
        let mut queue = HostQueue::new(SectorCount(16));
        for id in 0..5 {
            queue.push(&arrival(id, Op::Read, id * 8, 8));
        }
        let lengths: Vec<u64> = drain(&mut queue).iter().map(|found| found.1).collect();
        assert_eq!(lengths, [16, 16, 8]);
    }

    /// The same sectors in any order, also overlapping ones: each arrival leaves once, and what
    /// leaves as one is one piece without a gap.
    #[test]
    fn each_arrival_leaves_once_in_an_operation_that_covers_it() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..300 {
            let mut queue = HostQueue::new(SectorCount(64));
            let mut open: BTreeMap<OpId, SectorRange> = BTreeMap::new();
            for id in 0..60 {
                let new = arrival(id, Op::Write, rng.u64(..40), rng.u64(1..9));
                open.insert(id, new.range);
                queue.push(&new);
                if rng.u8(..4) == 0 {
                    check_leaving(queue.pop(), &mut open);
                }
            }
            while !open.is_empty() {
                check_leaving(queue.pop(), &mut open);
            }
            assert!(queue.pop().is_none());
        }
    }

    fn check_leaving(operation: Option<Operation>, open: &mut BTreeMap<OpId, SectorRange>) {
        let operation = operation.expect("something waits");
        let mut ended = Vec::new();
        operation.end(&mut ended);
        let parts = ended.iter().map(|id| open.remove(id).expect("it leaves once"));
        let sum: u64 = parts.map(|part| part.count.0).sum();
        assert_eq!(sum, operation.range.count.0, "parts lie side by side");
    }
}
