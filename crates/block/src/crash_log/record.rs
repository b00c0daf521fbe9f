//! [`Record`]: three words that are the target's own, and the check behind them.

/// What one acknowledged request changed. Its meaning is the target's.
pub type Record = [u64; 3];

/// Words of a record in memory, with its check.
pub(super) const WORDS: usize = 4;

/// 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Tells words from what was there before; never zero. It protects from no malice.
pub(super) fn check(generation: u64, index: usize, words: &[u64]) -> u64 {
    let first = generation.wrapping_mul(SPREAD) ^ index as u64;
    let mix = |sum: u64, word: &u64| (sum.rotate_left(23) ^ word).wrapping_mul(SPREAD);
    words.iter().fold(first, mix) | 1
}
