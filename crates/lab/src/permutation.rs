//! [`Permutation`]: the numbers below a bound in an order that a seed decides, without memory.
//!
//! A Feistel network permutes the numbers of an even count of bits; a number beyond the bound is
//! permuted again until it lies below it. Both steps can be undone, so that no two indexes give the
//! same number.

/// Rounds of the network: with four, neighbours among the indexes give unrelated numbers.
const ROUNDS: usize = 4;

/// The numbers below a bound in seeded order.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    bound: u64,
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// Of the numbers below `bound`.
    pub fn new(bound: u64, rng: &mut fastrand::Rng) -> Permutation {
        let bits = u64::BITS - bound.saturating_sub(1).leading_zeros();
        let keys = std::array::from_fn(|_| rng.u64(..));
        Permutation { bound, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// The number at an index below the bound.
    pub fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.bound, "{index} of {}", self.bound);
        let mut number = index;
        loop {
            number = self.mix(number);
            if number < self.bound {
                return number;
            }
        }
    }

    fn mix(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for key in self.keys {
            // What the top bits of a product are depends on all bits of both factors.
            let mixed = (right ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
            (left, right) = (right, left ^ mixed >> (u64::BITS - self.half_bits));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::Permutation;

    fn all(bound: u64, seed: u64) -> Vec<u64> {
        let permutation = Permutation::new(bound, &mut fastrand::Rng::with_seed(seed));
        (0..bound).map(|index| permutation.at(index)).collect()
    }

    #[test]
    fn each_number_below_the_bound_has_one_index() {
        for bound in [1, 2, 3, 4, 5, 17, 255, 256, 257, 5000] {
            let mut numbers = all(bound, bound);
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..bound), "{bound}");
        }
    }

    #[test]
    fn numbers_are_spread_evenly_and_follow_no_order() {
        let numbers = all(1 << 16, 3);
        let rising = numbers.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((32_000..33_500).contains(&rising), "{rising}");
        // Of the first thousandth of the indexes, each eighth of the numbers has its share.
        let many = all(1 << 20, 4);
        for eighth in 0..8 {
            let count = many[..1024].iter().filter(|it| **it >> 17 == eighth).count();
            assert!((90..170).contains(&count), "{eighth}: {count}");
        }
        assert_ne!(all(1000, 1), all(1000, 2));
    }
}
