//! Free slots: a bitmap under a tree that knows the longest run of every part of it.
//!
//! A slot is free when its entry's `seq = -1` is durable and no I/O to it is in flight (I3,
//! I11); this file only counts and finds, the rules are the callers'.
//!
//! # Policy
//! A ring: a request takes the next run after the last one's that is long enough for all of
//! it; when there is none, the longest run there is, so that it is cut into as few pieces as
//! greed can. Small requests and large ones go round with a cursor each: small ones fill the
//! holes that large ones pass over, large ones do not crumble for them.
//!
//! Why this ages well: writeback takes what was inserted longest ago, and slots next to each
//! other were inserted one after the other, so that it frees the ring in the order of slots
//! and runs form again behind it, whatever holes its riders (neighbours on the origin) left
//! on the way; one round of the ring heals every hole. Worst case: every second slot held by
//! blocks that are younger than the rest. A large request is then cut into single slots until
//! the writeback that its own allocations cause has passed them.
//!
//! # Cost
//! Finding and taking are logarithmic in the cache; the tree and the bitmap are half a byte per slot at most.

use super::bits::{self, BITS, Bits};

/// From this length on a request is large.
const LARGE: u32 = 64;

/// The runs of free slots in a part of the cache: at its begin, at its end, and the longest.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Runs {
    head: u32,
    tail: u32,
    longest: u32,
}

impl Runs {
    fn of(bits: &Bits) -> Runs {
        let mut runs = Runs { head: bits::next_zero(bits, 0), ..Runs::default() };
        let mut at = 0;
        loop {
            at = bits::next_one(bits, at);
            if at == BITS {
                return runs;
            }
            let end = bits::next_zero(bits, at);
            runs.longest = runs.longest.max(end - at);
            if end == BITS {
                runs.tail = end - at;
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

/// The free slots of a cache.
pub(in super::super) struct FreeSpace {
    leaves: Vec<Bits>,
    /// Node 1 is the root, the children of n are 2n and 2n+1; the leaves are the second half.
    tree: Vec<Runs>,
    slots: u32,
    free: u32,
    small_cursor: u32,
    large_cursor: u32,
}

/// What a search from left to right has behind it: a run that reaches its place.
struct Reached {
    len: u32,
}

impl FreeSpace {
    /// All of `slots` slots in use.
    pub fn full(slots: u32) -> FreeSpace {
        let leaves = slots.div_ceil(BITS).max(1) as usize;
        FreeSpace {
            leaves: vec![[0; 4]; leaves],
            tree: vec![Runs::default(); 2 * leaves.next_power_of_two()],
            slots,
            free: 0,
            small_cursor: 0,
            large_cursor: 0,
        }
    }

    /// How many slots are free.
    pub fn count(&self) -> u32 {
        self.free
    }

    pub fn is_free(&self, slot: u32) -> bool {
        bits::get(&self.leaves[(slot / BITS) as usize], slot % BITS)
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

    fn change(&mut self, slot: u32, len: u32, change: impl Fn(&mut Bits, u32, u32)) {
        let (first, last) = (slot / BITS, (slot + len - 1) / BITS);
        let half = self.tree.len() / 2;
        for index in first..=last {
            let from = slot.saturating_sub(index * BITS);
            let to = (slot + len - index * BITS).min(BITS);
            let leaf = &mut self.leaves[index as usize];
            change(leaf, from, to);
            self.tree[half + index as usize] = Runs::of(leaf);
        }
        let (mut low, mut high) = (half + first as usize, half + last as usize);
        let mut size = BITS;
        while low > 1 {
            (low, high) = (low / 2, high / 2);
            for node in low..=high {
                self.tree[node] = Runs::join(self.tree[2 * node], self.tree[2 * node + 1], size);
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
        let len = want.min(longest);
        let cursor = if want < LARGE { self.small_cursor } else { self.large_cursor };
        let start = self.find(cursor, len).or_else(|| self.find(0, len));
        let start = start.expect("the tree knows of a run this long");
        self.change(start, len, bits::clear);
        self.free -= len;
        let next = if start + len < self.slots { start + len } else { 0 };
        if want < LARGE {
            self.small_cursor = next;
        } else {
            self.large_cursor = next;
        }
        Some((start, len))
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

    /// Runs of a list of slots: start and length.
    fn runs(free: &[bool]) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (slot, _) in (0u32..).zip(free).filter(|(_, free)| **free) {
            match runs.last_mut() {
                Some((start, len)) if *start + *len == slot => *len += 1,
                _ => runs.push((slot, 1)),
            }
        }
        runs
    }

    /// The policy, slot by slot.
    fn expected(free: &[bool], cursor: u32, want: u32) -> Option<(u32, u32)> {
        let runs = runs(free);
        let len = want.min(runs.iter().map(|run| run.1).max()?);
        let place = |from: u32| {
            let cut = |&(start, len): &(u32, u32)| {
                let skip = from.saturating_sub(start).min(len);
                (start + skip, len - skip)
            };
            runs.iter().map(cut).find(|run| run.1 >= len).map(|run| run.0)
        };
        place(cursor).or_else(|| place(0)).map(|start| (start, len))
    }

    proptest! {
        #[test]
        fn the_next_run_that_is_long_enough_is_taken(
            slots in 1u32..1200,
            steps in proptest::collection::vec((0u8..3, 0u32..1200, 1u32..400), 1..120),
        ) {
            let mut space = FreeSpace::full(slots);
            let mut naive = vec![false; slots as usize];
            let mut cursors = [0, 0];
            for (kind, place, count) in steps {
                let want = if kind == 0 { 1 + count % 80 } else { count };
                if kind < 2 {
                    let cursor = &mut cursors[usize::from(want >= LARGE)];
                    let taken = space.take_run(want);
                    assert_eq!(taken, expected(&naive, *cursor, want));
                    if let Some((start, len)) = taken {
                        naive[start as usize..(start + len) as usize].fill(false);
                        *cursor = (start + len) % slots;
                    }
                } else {
                    let start = place % slots;
                    let used = naive[start as usize..].iter().take(count as usize);
                    let len = used.take_while(|free| !**free).count();
                    if len > 0 {
                        space.free(start, len as u32);
                        naive[start as usize..start as usize + len].fill(true);
                    }
                }
                assert_eq!(space.count() as usize, naive.iter().filter(|free| **free).count());
            }
            for slot in 0..slots {
                assert_eq!(space.is_free(slot), naive[slot as usize]);
            }
        }
    }
}
