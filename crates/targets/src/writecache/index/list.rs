//! Short lists of words whose memory comes out of a pool, sixteen words at a time.
//!
//! A list does not know its pool. The caller passes the same pool each time, and empties a list
//! before it drops it.

use std::ops::Range;

use super::pool::{Pool, Pooled};

/// Sixteen words out of a pool.
pub(super) type Words = [u64; 16];

impl Pooled for Words {
    fn link(&self) -> u32 {
        self[0] as u32
    }

    fn set_link(&mut self, other: u32) {
        self[0] = u64::from(other);
    }
}

/// Up to sixteen times `UNITS` words.
#[derive(Clone)]
pub(super) struct List<const UNITS: usize> {
    units: [u32; UNITS],
    len: u16,
}

impl<const UNITS: usize> Default for List<UNITS> {
    fn default() -> List<UNITS> {
        List { units: [0; UNITS], len: 0 }
    }
}

impl<const UNITS: usize> List<UNITS> {
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub fn get(&self, words: &Pool<Words>, at: usize) -> u64 {
        debug_assert!(at < self.len());
        words.get(self.units[at / 16])[at % 16]
    }

    pub fn set(&self, words: &mut Pool<Words>, at: usize, word: u64) {
        debug_assert!(at < self.len());
        words.get_mut(self.units[at / 16])[at % 16] = word;
    }

    pub fn iter(&self, words: &Pool<Words>) -> impl Iterator<Item = u64> {
        (0..self.len()).map(|at| self.get(words, at))
    }

    pub fn push(&mut self, words: &mut Pool<Words>, word: u64) {
        let at = self.len();
        if at.is_multiple_of(16) {
            self.units[at / 16] = words.take();
        }
        self.len += 1;
        self.set(words, at, word);
    }

    pub fn insert(&mut self, words: &mut Pool<Words>, at: usize, mut word: u64) {
        let last = self.len();
        self.push(words, word);
        for index in at / 16..=last / 16 {
            let unit = words.get_mut(self.units[index]);
            let from = if index == at / 16 { at % 16 } else { 0 };
            let to = if index == last / 16 { last % 16 } else { 15 };
            let next = unit[to];
            unit.copy_within(from..to, from + 1);
            unit[from] = word;
            word = next;
        }
    }

    /// Takes out the words of a range.
    pub fn drain(&mut self, words: &mut Pool<Words>, range: Range<usize>) {
        for (to, from) in (range.start..).zip(range.end..self.len()) {
            let word = self.get(words, from);
            self.set(words, to, word);
        }
        self.truncate(words, self.len() - range.len());
    }

    pub fn truncate(&mut self, words: &mut Pool<Words>, len: usize) {
        let needed = len.div_ceil(16);
        for &unit in &self.units[needed..self.len().div_ceil(16)] {
            words.give(unit);
        }
        self.len = len as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::proptest;

    proptest! {
        #[test]
        fn lists_hold_what_vectors_would(
            steps in proptest::collection::vec((0u8..6, 0usize..300, 0usize..40), 1..400),
        ) {
            let mut words = Pool::new();
            let (mut list, mut naive) = (List::<16>::default(), Vec::new());
            for (word, (kind, at, count)) in (0u64..).zip(steps) {
                let at = at % (naive.len() + 1);
                match kind {
                    0 => {
                        let end = (at + count).min(naive.len());
                        list.drain(&mut words, at..end);
                        naive.drain(at..end);
                    }
                    1 => {
                        list.truncate(&mut words, naive.len().saturating_sub(count));
                        naive.truncate(naive.len().saturating_sub(count));
                    }
                    _ if naive.len() == 256 => (),
                    2 => {
                        list.push(&mut words, word);
                        naive.push(word);
                    }
                    _ => {
                        list.insert(&mut words, at, word);
                        naive.insert(at, word);
                    }
                }
                assert!(list.iter(&words).eq(naive.iter().copied()));
            }
        }
    }
}
