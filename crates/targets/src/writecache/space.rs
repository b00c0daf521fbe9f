//! Free slots: a bitmap with a next-fit cursor that hands out contiguous runs.
//!
//! A slot is free when its entry's `seq = -1` is durable and no I/O to it is in flight (I3,
//! I11); this file only counts and finds, the rules are the callers'.

/// The free slots of a cache.
pub(super) struct FreeSpace {
    words: Vec<u64>,
    slots: u32,
    free: u32,
    cursor: u32,
}

impl FreeSpace {
    /// All of `slots` slots in use.
    pub fn full(slots: u32) -> FreeSpace {
        let words = vec![0; (slots as usize).div_ceil(64)];
        FreeSpace { words, slots, free: 0, cursor: 0 }
    }

    /// How many slots are free.
    pub fn count(&self) -> u32 {
        self.free
    }

    pub fn is_free(&self, slot: u32) -> bool {
        self.words[slot as usize / 64] & (1 << (slot % 64)) != 0
    }

    /// Gives a slot back.
    pub fn free(&mut self, slot: u32) {
        assert!(!self.is_free(slot), "slot {slot} is freed once");
        self.words[slot as usize / 64] |= 1 << (slot % 64);
        self.free += 1;
    }

    /// Takes up to `want` consecutive free slots, the next after the cursor: first slot and
    /// length, at least one; none if nothing is free.
    pub fn take_run(&mut self, want: u32) -> Option<(u32, u32)> {
        if self.free == 0 {
            return None;
        }
        let start = self.next_free(self.cursor).or_else(|| self.next_free(0));
        let start = start.expect("a slot is free");
        let mut len = 0;
        while len < want && start + len < self.slots && self.is_free(start + len) {
            self.words[(start + len) as usize / 64] &= !(1 << ((start + len) % 64));
            len += 1;
        }
        self.free -= len;
        self.cursor = (start + len) % self.slots;
        Some((start, len))
    }

    fn next_free(&self, from: u32) -> Option<u32> {
        let first = from as usize / 64;
        let head = self.words.get(first)? & (u64::MAX << (from % 64));
        if head != 0 {
            return Some(first as u32 * 64 + head.trailing_zeros());
        }
        let rest = self.words[first + 1..].iter().position(|&word| word != 0)?;
        let index = first + 1 + rest;
        Some(index as u32 * 64 + self.words[index].trailing_zeros())
    }
}

#[cfg(test)]
mod tests {
    use super::FreeSpace;
    use proptest::prelude::{any, proptest};
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn runs_are_free_consecutive_and_as_long_as_they_can_be(
            slots in 1u32..300,
            steps in proptest::collection::vec((any::<bool>(), any::<u32>()), 1..200),
        ) {
            let mut space = FreeSpace::full(slots);
            let mut model: BTreeSet<u32> = BTreeSet::new();
            for (take, word) in steps {
                if take {
                    let want = 1 + word % 80;
                    match space.take_run(want) {
                        None => assert!(model.is_empty()),
                        Some((start, len)) => {
                            assert!(len >= 1 && len <= want);
                            for slot in start..start + len {
                                assert!(model.remove(&slot));
                            }
                            assert!(len == want || !model.contains(&(start + len)));
                        }
                    }
                } else if model.insert(word % slots) {
                    space.free(word % slots);
                }
                assert_eq!(space.count() as usize, model.len());
                for slot in 0..slots {
                    assert_eq!(space.is_free(slot), model.contains(&slot));
                }
            }
        }
    }
}
