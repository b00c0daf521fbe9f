//! A permutation of the numbers below a size, from a key, in no memory.
//!
//! A Feistel network of four rounds permutes the numbers of an even count of bits; a result beyond
//! the size is permuted again until it is below ("cycle walking": Black and Rogaway, "Ciphers with
//! arbitrary finite domains", 2002). It is not meant to keep secrets.

/// See the head of this file.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    size: u64,
    key: u64,
    /// Of half a number.
    bits: u32,
}

const ROUNDS: u64 = 4;

impl Permutation {
    /// Of the numbers below `size`, which is not zero.
    pub fn new(size: u64, key: u64) -> Permutation {
        assert!(size > 0, "there is a number");
        let bits = (u64::BITS - (size - 1).leading_zeros()).div_ceil(2).max(1);
        Permutation { size, key, bits }
    }

    /// Where `number`, which is below the size, goes. Numbers differ if and only if their places do.
    pub fn place(&self, number: u64) -> u64 {
        debug_assert!(number < self.size);
        let mut place = self.network(number);
        // The numbers of the network are at most four times as many as those below the size.
        while place >= self.size {
            place = self.network(place);
        }
        place
    }

    fn network(&self, number: u64) -> u64 {
        let mask = (1 << self.bits) - 1;
        let (mut left, mut right) = (number >> self.bits, number & mask);
        for round in 0..ROUNDS {
            let mixed = mix(right ^ mix(self.key.wrapping_add(round)));
            (left, right) = (right, left ^ (mixed & mask));
        }
        (left << self.bits) | right
    }
}

/// The finaliser of the `splitmix64` generator: each bit of the result depends on all bits.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::Permutation;

    #[test]
    fn every_place_is_taken_once() {
        for size in [1, 2, 3, 4, 5, 16, 17, 1000, 4097] {
            let permutation = Permutation::new(size, 7);
            let mut places: Vec<u64> = (0..size).map(|number| permutation.place(number)).collect();
            if size > 16 {
                assert!(!places.is_sorted(), "{size}");
            }
            places.sort_unstable();
            assert!(places.into_iter().eq(0..size), "{size}");
        }
    }

    #[test]
    fn largest_sizes_and_other_keys_work() {
        let last = u64::MAX - 1;
        let place = |key| Permutation::new(u64::MAX, key).place(last);
        assert!(place(1) < u64::MAX && place(2) < u64::MAX);
        assert_ne!(place(1), place(2));
    }
}
