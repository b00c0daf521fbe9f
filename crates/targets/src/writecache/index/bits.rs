//! Sets of 256 positions as four words: the building block of `groups` and `space`.
//!
//! Plain functions; positions are below 256, ends at most 256.

/// One bit for each of 256 positions.
pub(super) type Bits = [u64; 4];

/// How many positions a set has.
pub(super) const BITS: u32 = 256;

/// Ones from `from` up to `to`, both within one word (`to` may be 64).
fn mask(from: u32, to: u32) -> u64 {
    if from >= to {
        return 0;
    }
    (u64::MAX << from) & (u64::MAX >> (64 - to))
}

pub(super) fn get(bits: &Bits, at: u32) -> bool {
    bits[at as usize / 64] & (1 << (at % 64)) != 0
}

/// Runs `change` on each word with the mask of the positions `from..to` in it.
fn each_word(bits: &mut Bits, from: u32, to: u32, change: impl Fn(&mut u64, u64)) {
    if to == from + 1 {
        return change(&mut bits[from as usize / 64], 1 << (from % 64));
    }
    for (index, word) in (0u32..).zip(bits.iter_mut()) {
        let low = from.saturating_sub(index * 64).min(64);
        let high = to.saturating_sub(index * 64).min(64);
        let mask = mask(low, high);
        if mask != 0 {
            change(word, mask);
        }
    }
}

pub(super) fn set(bits: &mut Bits, from: u32, to: u32) {
    each_word(bits, from, to, |word, mask| *word |= mask);
}

pub(super) fn clear(bits: &mut Bits, from: u32, to: u32) {
    each_word(bits, from, to, |word, mask| *word &= !mask);
}

/// How many ones lie below `to`.
pub(super) fn rank(bits: &Bits, to: u32) -> usize {
    let full = to as usize / 64;
    let below: u32 = bits[..full].iter().map(|word| word.count_ones()).sum();
    let part = if to.is_multiple_of(64) { 0 } else { (bits[full] & mask(0, to % 64)).count_ones() };
    (below + part) as usize
}

fn next(bits: &Bits, from: u32, flip: u64) -> u32 {
    let mut index = from as usize / 64;
    if index >= bits.len() {
        return BITS;
    }
    let mut word = (bits[index] ^ flip) & (u64::MAX << (from % 64));
    while word == 0 {
        index += 1;
        if index == bits.len() {
            return BITS;
        }
        word = bits[index] ^ flip;
    }
    index as u32 * 64 + word.trailing_zeros()
}

/// The first one at or after `from`, or 256.
pub(super) fn next_one(bits: &Bits, from: u32) -> u32 {
    next(bits, from, 0)
}

/// The first zero at or after `from`, or 256.
pub(super) fn next_zero(bits: &Bits, from: u32) -> u32 {
    next(bits, from, u64::MAX)
}

/// The last one at or before `at`.
pub(super) fn last_one(bits: &Bits, at: u32) -> Option<u32> {
    let mut index = at as usize / 64;
    let mut word = bits[index] & mask(0, at % 64 + 1);
    while word == 0 {
        index = index.checked_sub(1)?;
        word = bits[index];
    }
    Some(index as u32 * 64 + 63 - word.leading_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    proptest! {
        #[test]
        fn sets_of_bits_answer_as_a_list_of_booleans_does(
            ranges in proptest::collection::vec((0u32..256, 0u32..=256, any::<bool>()), 1..12),
            at in 0u32..256,
        ) {
            let (mut bits, mut list) = ([0; 4], [false; 256]);
            for (from, to, value) in ranges {
                if value { set(&mut bits, from, to) } else { clear(&mut bits, from, to) }
                (from..to).for_each(|index| list[index as usize] = value);
            }
            let place = at as usize;
            assert_eq!(get(&bits, at), list[place]);
            assert_eq!(rank(&bits, at), list[..place].iter().filter(|&&one| one).count());
            let after = |wanted| (place..256).find(|&i| list[i] == wanted).unwrap_or(256) as u32;
            assert_eq!((next_one(&bits, at), next_zero(&bits, at)), (after(true), after(false)));
            let before = (0..=place).rev().find(|&i| list[i]).map(|i| i as u32);
            assert_eq!(last_one(&bits, at), before);
        }
    }
}
