//! The checksum of every bcache structure: CRC-64/WE, the polynomial of ECMA-182 from the most
//! significant bit on, with all ones before and after.
//!
//! Sets of keys in a node differ in the value before: it is the pointer that leads to the node, so
//! that a node which was moved or reused does not verify in its old place.

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// The checksum of `bytes`, which begin behind the checksum's own field.
#[must_use]
pub fn crc64(bytes: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64We, bytes)
}

/// The checksum of `bytes` that begins with `seed` instead of all ones.
#[must_use]
pub fn crc64_seeded(seed: u64, bytes: &[u8]) -> u64 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64We, seed);
    digest.update(bytes);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{crc64, crc64_seeded};

    /// The definition, bit by bit.
    fn bitwise(seed: u64, bytes: &[u8]) -> u64 {
        let step = |crc: u64, byte: &u8| {
            (0..8).fold(crc ^ (u64::from(*byte) << 56), |crc, _| {
                (crc << 1) ^ if crc >> 63 == 1 { 0x42f0_e1eb_a9ea_3693 } else { 0 }
            })
        };
        !bytes.iter().fold(seed, step)
    }

    #[test]
    fn the_check_value_of_the_catalogue_comes_out() {
        assert_eq!(crc64(b"123456789"), 0x62ec_59e3_f1a4_f00a);
    }

    proptest! {
        #[test]
        fn both_agree_with_the_definition(
            seed: u64,
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            prop_assert_eq!(crc64(&bytes), bitwise(u64::MAX, &bytes));
            prop_assert_eq!(crc64_seeded(seed, &bytes), bitwise(seed, &bytes));
        }
    }
}
