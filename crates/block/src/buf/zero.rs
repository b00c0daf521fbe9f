//! The exact zero test: whether every byte of a slice is zero, at the speed of reading it.
//!
//! Promises: exact for any alignment and length; a slice whose first bytes are not zero is
//! rejected at once. Must never read beyond the slice, nor need `unsafe`.

/// What is read before the next look at the result: large enough that the loop runs at the speed of
/// memory, small enough that most data is rejected at its first stride. (A look at the first word
/// before that costs a quarter of the speed where cold blocks of 4 KiB are zeros.)
const STRIDE_BYTES: usize = 128;

/// True if every byte is zero.
#[inline(always)]
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    match bytes.split_first_chunk::<STRIDE_BYTES>() {
        Some((stride, rest)) => any_of(stride) == 0 && rest_is_zero(rest),
        None => tail_is_zero(bytes),
    }
}

/// Not part of the caller: most data never comes here.
#[inline(never)]
fn rest_is_zero(bytes: &[u8]) -> bool {
    let mut strides = bytes.chunks_exact(STRIDE_BYTES);
    let whole = strides.by_ref().all(|stride| any_of(stride) == 0);
    whole && tail_is_zero(strides.remainder())
}

/// The bits of all words; the length is a multiple of a word's.
#[inline(always)]
fn any_of(stride: &[u8]) -> u128 {
    let (words, rest) = stride.as_chunks::<16>();
    debug_assert!(rest.is_empty());
    words.iter().fold(0, |bits, word| bits | u128::from_ne_bytes(*word))
}

#[inline(never)]
fn tail_is_zero(tail: &[u8]) -> bool {
    let (words, rest) = tail.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::{STRIDE_BYTES, is_zero};

    fn byte_loop(bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| byte == 0)
    }

    #[test]
    fn zeros_are_zero_at_every_alignment_and_length() {
        let bytes = [0; 3 * STRIDE_BYTES];
        for start in 0..40 {
            for len in 0..2 * STRIDE_BYTES + 40 {
                assert!(is_zero(&bytes[start..start + len]), "{start} {len}");
            }
        }
    }

    #[test]
    fn one_bit_anywhere_is_seen_and_none_beside_the_slice() {
        let mut bytes = [0; 3 * STRIDE_BYTES];
        for at in 0..bytes.len() {
            bytes[at] = 1 << (at % 8);
            for start in [0, 1, 15, 16, 17, at.saturating_sub(1), at, at + 1] {
                for end in [bytes.len(), bytes.len() - 1, at, at + 1, at + 17] {
                    let (start, end) = (start.min(bytes.len()), end.min(bytes.len()));
                    let slice = &bytes[start.min(end)..end];
                    assert_eq!(is_zero(slice), byte_loop(slice), "{at} in {start}..{end}");
                }
            }
            bytes[at] = 0;
        }
    }

    #[test]
    fn sparse_bytes_agree_with_a_byte_loop() {
        let mut rng = fastrand::Rng::with_seed(4);
        for _ in 0..20_000 {
            let mut bytes = vec![0; rng.usize(..2048)];
            for _ in 0..rng.usize(..3) {
                if !bytes.is_empty() {
                    let at = rng.usize(..bytes.len());
                    bytes[at] = rng.u8(..);
                }
            }
            let start = rng.usize(..=bytes.len().min(64));
            assert_eq!(is_zero(&bytes[start..]), byte_loop(&bytes[start..]));
        }
    }
}
