//! Free slots: a bitmap below a tree that has the longest run of each of its parts.
//!
//! A slot is free when its entry's `seq = -1` is durable and no I/O to it is in flight (I3, I11).
//! The callers see to that; this file counts and finds free slots.
//!
//! # Policy
//! The slots form a ring. The *frontier* is where the last run was taken. The *hand* is where
//! writeback has come to: it writes blocks back in the order of slots, so that one long run of free
//! slots forms behind it, which the frontier then uses.
//!
//! ```text
//!   hand                           middle                        frontier           hand
//!    |  old: holes stay until        |  young: small requests       |  free, in one    |
//!    |  the hand has passed them     |  fill the holes              |  long run        |
//! ```
//!
//! - A large request takes the next run after the frontier that is long enough for all of it. If
//!   there is none, it takes the longest run, so that it is cut into as few pieces as a greedy
//!   choice allows.
//! - A small request first fills a *hole*: a run shorter than any large request, between slots in
//!   use (within 256 aligned slots). Holes appear when neighbours on the origin are written back
//!   together with a victim, before their turn. Without a hole it is placed like a large one.
//! - Only the younger half of the slots between hand and frontier is filled. Blocks just ahead of
//!   the hand would be written back at once, or be uncommitted when the hand comes.
//!
//! Why this works over a long time: the hand leaves only slots with I/O in flight behind it, so
//! that one round of the ring removes all fragmentation, and small requests fill the holes that
//! open in between. The caller also moves the hand when few slots are in use but the free ones are
//! in short runs ([`FreeSpace::is_cut_up`]).
//!
//! Worst case: every second slot is in use, in a cache that is never idle and never full enough for
//! writeback. A large request is then cut into single slots until its own allocations make the hand
//! move.
//!
//! # Cost
//! Finding and taking are logarithmic in the cache; the trees and the bitmap are half a byte per
//! slot at most.

use std::ops::Range;

use super::bits::{self, BITS, Bits};

/// Requests of this length and more are large. A run of this length is no hole.
const LARGE: u32 = 64;
/// Below this number of free slots, fragmentation is not judged.
const PLENTY: u32 = 4 * BITS;

/// The runs of free slots in a part of the cache: at its begin, at its end, and the longest.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Runs {
    head: u32,
    tail: u32,
    longest: u32,
}

impl Runs {
    /// The runs of a leaf, and its longest hole.
    fn of(bits: &Bits) -> (Runs, u8) {
        let mut runs = Runs { head: bits::next_zero(bits, 0), ..Runs::default() };
        let (mut at, mut hole) = (0, 0);
        loop {
            at = bits::next_one(bits, at);
            if at == BITS {
                return (runs, hole);
            }
            let end = bits::next_zero(bits, at);
            runs.longest = runs.longest.max(end - at);
            if end == BITS {
                runs.tail = end - at;
            } else if is_hole(at, end) {
                hole = hole.max((end - at) as u8);
            }
            at = end;
        }
    }

    /// Two neighbours of `size` slots each.
    fn join(left: Runs, right: Runs, size: u32) -> Runs {
        Runs {
            head: if left.head == size { size + right.head } else { left.head },
            tail: if right.tail == size { size + left.tail } else { right.tail },
            longest: left.longest.max(right.longest).max(left.tail + right.head),
        }
    }
}

/// True if a run of a leaf is a hole.
fn is_hole(from: u32, to: u32) -> bool {
    from > 0 && to < BITS && to - from < LARGE
}

/// The free slots of a cache.
pub(in super::super) struct FreeSpace {
    leaves: Vec<Bits>,
    /// Node 1 is the root, the children of n are 2n and 2n+1; the leaves are the second half.
    tree: Vec<Runs>,
    /// In the same order: the longest hole.
    holes: Vec<u8>,
    slots: u32,
    free: u32,
    /// Leaves that are free as a whole.
    clear: u32,
    frontier: u32,
    hand: u32,
    /// The leaf where the last hole was filled.
    filling: u32,
}

/// The state of a search from left to right: the length of the free run that ends at its position.
struct Reached {
    len: u32,
}

impl FreeSpace {
    /// All of `slots` slots in use.
    pub fn full(slots: u32) -> FreeSpace {
        let leaves = slots.div_ceil(BITS).max(1) as usize;
        let nodes = 2 * leaves.next_power_of_two();
        FreeSpace {
            leaves: vec![[0; 4]; leaves],
            tree: vec![Runs::default(); nodes],
            holes: vec![0; nodes],
            slots,
            free: 0,
            clear: 0,
            frontier: 0,
            hand: 0,
            filling: 0,
        }
    }

    /// How many slots are free.
    pub fn count(&self) -> u32 {
        self.free
    }

    pub fn is_free(&self, slot: u32) -> bool {
        bits::get(&self.leaves[(slot / BITS) as usize], slot % BITS)
    }

    /// True if many slots are free, but too few of them lie in long runs: fewer than a half,
    /// or than three quarters once the caller has begun to mend (`mending`).
    ///
    /// The hand goes round in the order of slots and so defragments with few blocks: when a share f
    /// of the slots is free and evenly spread, it has to empty 0.75 f / (0.25 + 0.75 f) of the
    /// cache, in which 1 - f of the slots are in use. That is a third of all slots at most.
    pub fn is_cut_up(&self, mending: bool) -> bool {
        let (free, clear) = (u64::from(self.free), u64::from(self.clear) * u64::from(BITS));
        let wanted = if mending { free / 4 * 3 } else { free / 2 };
        self.free >= PLENTY && clear < wanted
    }

    /// The slot that writeback has reached.
    pub fn hand(&self) -> u32 {
        self.hand
    }

    pub fn set_hand(&mut self, slot: u32) {
        self.hand = slot;
    }

    /// Puts the frontier at the begin of the longest run and the hand at its end: most likely where
    /// they were before the cache was closed.
    pub fn find_place(&mut self) {
        let longest = self.tree[1].longest;
        let start = self.find(0, longest.max(1)).unwrap_or(0);
        (self.frontier, self.hand) = (start, (start + longest) % self.slots.max(1));
    }

    /// Gives slots back.
    pub fn free(&mut self, slot: u32, len: u32) {
        assert!(slot + len <= self.slots);
        self.change(slot, len, |leaf, from, to| {
            assert!(bits::next_one(leaf, from) >= to, "a slot is freed once");
            bits::set(leaf, from, to);
        });
        self.free += len;
    }

    /// Takes these slots. False, and nothing is taken, if one of them is not free or not there.
    pub fn take_free(&mut self, slot: u32, len: u32) -> bool {
        let end = slot.checked_add(len).filter(|&end| len > 0 && end <= self.slots);
        let are_free = end.is_some_and(|end| (slot..end).all(|slot| self.is_free(slot)));
        if are_free {
            self.change(slot, len, bits::clear);
            self.free -= len;
        }
        are_free
    }

    fn change(&mut self, slot: u32, len: u32, change: impl Fn(&mut Bits, u32, u32)) {
        let (first, last) = (slot / BITS, (slot + len - 1) / BITS);
        let half = self.tree.len() / 2;
        let clear = |runs: &Runs| u32::from(runs.longest == BITS);
        for index in first..=last {
            let from = slot.saturating_sub(index * BITS);
            let to = (slot + len - index * BITS).min(BITS);
            let leaf = &mut self.leaves[index as usize];
            change(leaf, from, to);
            let (runs, hole) = Runs::of(leaf);
            let place = half + index as usize;
            self.clear = self.clear + clear(&runs) - clear(&self.tree[place]);
            (self.tree[place], self.holes[place]) = (runs, hole);
        }
        let (mut low, mut high) = (half + first as usize, half + last as usize);
        let mut size = BITS;
        while low > 1 {
            (low, high) = (low / 2, high / 2);
            let mut same = true;
            for node in low..=high {
                let runs = Runs::join(self.tree[2 * node], self.tree[2 * node + 1], size);
                let hole = self.holes[2 * node].max(self.holes[2 * node + 1]);
                same &= (self.tree[node], self.holes[node]) == (runs, hole);
                (self.tree[node], self.holes[node]) = (runs, hole);
            }
            if same {
                return;
            }
            size = size.saturating_mul(2);
        }
    }

    /// Takes up to `want` consecutive free slots by the policy above: first slot and length,
    /// at least one; none if nothing is free.
    pub fn take_run(&mut self, want: u32) -> Option<(u32, u32)> {
        let longest = self.tree[1].longest;
        if longest == 0 || want == 0 {
            return None;
        }
        let (start, len) = match self.find_hole(want) {
            Some(start) => (start, want),
            None => {
                let len = want.min(longest);
                let start = self.at_frontier(len).or_else(|| self.find(self.frontier, len));
                let start = start.or_else(|| self.find(0, len));
                let start = start.expect("the tree knows of a run this long");
                self.move_frontier(start, len);
                (start, len)
            }
        };
        self.change(start, len, bits::clear);
        self.free -= len;
        Some((start, len))
    }

    /// The frontier, if the next slots of its leaf are free.
    fn at_frontier(&self, want: u32) -> Option<u32> {
        let (leaf, at) = (&self.leaves[(self.frontier / BITS) as usize], self.frontier % BITS);
        (bits::next_zero(leaf, at) - at >= want).then_some(self.frontier)
    }

    /// How far it is from one slot to another in the direction of the ring.
    fn distance(&self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { self.slots - from + to }
    }

    /// Moves the frontier behind a run; the hand is not left behind it.
    fn move_frontier(&mut self, start: u32, len: u32) {
        let passed = self.distance(self.frontier, start) + len;
        let met = self.distance(self.frontier, self.hand) < passed;
        self.frontier = if start + len < self.slots { start + len } else { 0 };
        if met {
            self.hand = self.frontier;
        }
    }

    /// A hole for a small request in the younger half of what is in use; where it begins.
    fn find_hole(&mut self, want: u32) -> Option<u32> {
        if want >= LARGE || u32::from(self.holes[1]) < want {
            return None;
        }
        let young = self.distance(self.hand, self.frontier) / 2;
        let middle = if young <= self.frontier {
            self.frontier - young
        } else {
            self.slots - (young - self.frontier)
        };
        let leaves = self.leaves.len() as u32;
        let ahead = |from: u32, to: u32| if to >= from { to - from } else { leaves - from + to };
        let (middle, end) = (middle / BITS, self.frontier / BITS);
        // From where the last hole was filled on; beyond the frontier begin at the middle again.
        let on = ahead(middle, self.filling) < ahead(middle, end);
        let from = if on { self.filling } else { middle };
        let found = if from <= end {
            self.next_hole(from..end, want)
        } else {
            self.next_hole(from..leaves, want).or_else(|| self.next_hole(0..end, want))
        };
        self.filling = found.unwrap_or(middle);
        let leaf = found?;
        let bits = &self.leaves[leaf as usize];
        let mut at = 0;
        loop {
            at = bits::next_one(bits, at);
            let end = bits::next_zero(bits, at);
            if is_hole(at, end) && end - at >= want {
                return Some(leaf * BITS + at);
            }
            at = end;
        }
    }

    /// The first of some leaves with a hole of `want` slots.
    fn next_hole(&self, leaves: Range<u32>, want: u32) -> Option<u32> {
        let half = self.tree.len() / 2;
        let mut node = half + leaves.start as usize;
        while u32::from(self.holes[node]) < want {
            // On to the subtree to its right.
            node >>= node.trailing_ones();
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < half {
            node *= 2;
            node += usize::from(u32::from(self.holes[node]) < want);
        }
        let leaf = (node - half) as u32;
        (leaf < leaves.end).then_some(leaf)
    }

    /// The first run of `want` free slots that begins at or after `from`.
    fn find(&self, from: u32, want: u32) -> Option<u32> {
        let mut reached = Reached { len: 0 };
        let size = u64::from(BITS) * (self.tree.len() / 2) as u64;
        self.search(1, 0, size, from, want, &mut reached)
    }

    /// Searches the `size` slots from `low`, which node `node` covers.
    fn search(
        &self,
        node: usize,
        low: u64,
        size: u64,
        from: u32,
        want: u32,
        reached: &mut Reached,
    ) -> Option<u32> {
        if low + size <= u64::from(from) {
            return None;
        }
        let runs = self.tree[node];
        if u64::from(from) <= low {
            if reached.len + runs.head >= want {
                return Some(low as u32 - reached.len);
            }
            if runs.longest < want {
                let all = u64::from(runs.head) == size;
                reached.len = if all { reached.len + runs.head } else { runs.tail };
                return None;
            }
        }
        let half = self.tree.len() / 2;
        if node >= half {
            return self.search_leaf(node - half, low as u32, from, want, reached);
        }
        let size = size / 2;
        self.search(2 * node, low, size, from, want, reached)
            .or_else(|| self.search(2 * node + 1, low + size, size, from, want, reached))
    }

    fn search_leaf(
        &self,
        leaf: usize,
        low: u32,
        from: u32,
        want: u32,
        reached: &mut Reached,
    ) -> Option<u32> {
        let bits = self.leaves.get(leaf)?;
        let mut at = from.saturating_sub(low);
        loop {
            at = bits::next_one(bits, at);
            if at == BITS {
                reached.len = 0;
                return None;
            }
            let end = bits::next_zero(bits, at);
            if end - at >= want {
                return Some(low + at);
            }
            if end == BITS {
                reached.len = end - at;
                return None;
            }
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::proptest;

    /// The policy, slot by slot.
    struct Naive {
        free: Vec<bool>,
        frontier: usize,
        hand: usize,
        filling: usize,
    }

    const LEAF: usize = BITS as usize;

    impl Naive {
        fn new(slots: usize) -> Naive {
            Naive { free: vec![false; slots], frontier: 0, hand: 0, filling: 0 }
        }

        /// Runs of free slots within a range: start and length.
        fn runs(&self, slots: Range<usize>) -> Vec<(usize, usize)> {
            let mut runs: Vec<(usize, usize)> = Vec::new();
            for slot in slots.filter(|&slot| self.free[slot]) {
                match runs.last_mut() {
                    Some((start, len)) if *start + *len == slot => *len += 1,
                    _ => runs.push((slot, 1)),
                }
            }
            runs
        }

        /// The first place at or after `from` with `want` free slots.
        fn place(&self, from: usize, want: usize) -> Option<usize> {
            let runs = self.runs(from..self.free.len());
            runs.iter().find(|run| run.1 >= want).map(|run| run.0)
        }

        fn hole(&mut self, want: usize) -> Option<usize> {
            let slots = self.free.len();
            if want >= LARGE as usize {
                return None;
            }
            let leaves = slots.div_ceil(LEAF);
            let hole = |leaf: usize| {
                let (begin, end) = (leaf * LEAF, ((leaf + 1) * LEAF).min(slots));
                let inside = |run: &&(usize, usize)| {
                    run.0 > begin && run.0 + run.1 < begin + LEAF && run.1 < LARGE as usize
                };
                let runs = self.runs(begin..end);
                runs.iter().filter(inside).find(|run| run.1 >= want).map(|run| run.0)
            };
            if (0..leaves).all(|leaf| hole(leaf).is_none()) {
                return None;
            }
            let young = (self.frontier + slots - self.hand) % slots / 2;
            let middle = (self.frontier + slots - young) % slots / LEAF;
            let end = self.frontier / LEAF;
            let ring: Vec<usize> =
                (middle..).map(|leaf| leaf % leaves).take_while(|&leaf| leaf != end).collect();
            let skip = ring.iter().position(|&leaf| leaf == self.filling).unwrap_or(0);
            let found = ring[skip..].iter().find_map(|&leaf| Some((leaf, hole(leaf)?)));
            self.filling = found.map_or(middle, |(leaf, _)| leaf);
            found.map(|(_, slot)| slot)
        }

        fn take(&mut self, want: usize) -> Option<(usize, usize)> {
            let slots = self.free.len();
            let len = want.min(self.runs(0..slots).iter().map(|run| run.1).max()?);
            if let Some(start) = self.hole(want) {
                self.free[start..start + want].fill(false);
                return Some((start, want));
            }
            let start = self.place(self.frontier, len).or_else(|| self.place(0, len))?;
            let ahead = |to: usize| (to + slots - self.frontier) % slots;
            let met = ahead(self.hand) < ahead(start) + len;
            self.frontier = (start + len) % slots;
            if met {
                self.hand = self.frontier;
            }
            self.free[start..start + len].fill(false);
            Some((start, len))
        }
    }

    proptest! {
        #[test]
        fn runs_are_taken_by_the_policy(
            slots in 1u32..1800,
            steps in proptest::collection::vec((0u8..5, 0u32..1800, 1u32..400), 1..160),
        ) {
            let mut space = FreeSpace::full(slots);
            let mut naive = Naive::new(slots as usize);
            for (kind, place, count) in steps {
                let start = (place % slots) as usize;
                match kind {
                    0 | 1 => {
                        let want = if kind == 0 { 1 + count % 12 } else { count };
                        let taken = space.take_run(want);
                        let expected = naive.take(want as usize);
                        assert_eq!(taken, expected.map(|(slot, len)| (slot as u32, len as u32)));
                    }
                    4 => {
                        space.set_hand(start as u32);
                        naive.hand = start;
                    }
                    _ => {
                        let count = if kind == 2 { count } else { 1 + count % 20 } as usize;
                        let used = naive.free[start..].iter().take(count);
                        let len = used.take_while(|free| !**free).count();
                        if len > 0 {
                            space.free(start as u32, len as u32);
                            naive.free[start..start + len].fill(true);
                        }
                    }
                }
                assert_eq!(space.count() as usize, naive.free.iter().filter(|free| **free).count());
                assert_eq!(space.hand() as usize, naive.hand);
                let clear = naive.free.chunks(LEAF).filter(|leaf| {
                    leaf.len() == LEAF && leaf.iter().all(|free| *free)
                });
                assert_eq!(space.clear as usize, clear.count());
            }
            for slot in 0..slots {
                assert_eq!(space.is_free(slot), naive.free[slot as usize]);
            }
        }
    }

    #[test]
    fn small_requests_fill_holes_before_they_cut_a_long_run() {
        let mut space = FreeSpace::full(4096);
        space.free(0, 4096);
        assert_eq!(space.take_run(2048), Some((0, 2048)));
        space.set_hand(0);
        for hole in [300, 1300, 1700] {
            space.free(hole, 8);
        }
        // The one at 300 is old: the hand will be there soon.
        let taken: Vec<_> = (0..3).filter_map(|_| space.take_run(8)).collect();
        assert_eq!(taken, [(1300, 8), (1700, 8), (2048, 8)]);
    }

    #[test]
    fn a_checkerboard_is_cut_up_until_the_hand_has_emptied_enough() {
        let mut space = FreeSpace::full(16_384);
        (0..8192).for_each(|slot| space.free(2 * slot, 1));
        assert!(space.is_cut_up(false));
        let mut emptied = 0;
        while space.is_cut_up(true) {
            space.free(2 * emptied + 1, 1);
            emptied += 1;
        }
        assert!(emptied < 16_384 / 3, "{emptied}");
        assert!(!space.is_cut_up(false));
        assert_eq!(space.take_run(4096).map(|run| run.1), Some(4096));
    }
}
