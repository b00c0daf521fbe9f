//! Refcounts as they lie in a refcount block: 1 to 64 bits each, the first one of a byte in its
//! lowest bits, longer ones big-endian.

use super::layout::number;

/// How many a block of one cluster has.
#[must_use]
pub fn per_block(cluster_bytes: u64, bits: u32) -> u64 {
    cluster_bytes * 8 / u64::from(bits)
}

/// The refcount at an index of a block that has it.
#[must_use]
pub fn refcount(block: &[u8], bits: u32, index: usize) -> u64 {
    match bits {
        1 | 2 | 4 => {
            let (per_byte, bits) = (8 / bits as usize, bits as usize);
            let shifted = block[index / per_byte] >> (index % per_byte * bits);
            u64::from(shifted & ((1 << bits) - 1))
        }
        _ => {
            let bytes = bits as usize / 8;
            number(&block[index * bytes..(index + 1) * bytes])
        }
    }
}

/// Sets the refcount at an index of a block that has it, to 0 or 1.
pub fn set_refcount(block: &mut [u8], bits: u32, index: usize, refcount: u8) {
    match bits {
        1 | 2 | 4 => {
            let (per_byte, bits) = (8 / bits as usize, bits as usize);
            let (byte, shift) = (&mut block[index / per_byte], index % per_byte * bits);
            *byte = *byte & !(((1 << bits) - 1) << shift) | refcount << shift;
        }
        _ => {
            let bytes = bits as usize / 8;
            let place = &mut block[index * bytes..(index + 1) * bytes];
            place.fill(0);
            place[bytes - 1] = refcount;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refcount_is_set_and_none_beside_it() {
        for bits in [1, 2, 4, 8, 16, 32, 64] {
            let mut block = [0xff; 64];
            let count = per_block(64, bits) as usize;
            let all = refcount(&block, bits, 0);
            for (index, wanted) in [(0, 0), (count / 2, 1), (count - 1, 0), (count - 1, 1)] {
                set_refcount(&mut block, bits, index, wanted);
                assert_eq!(refcount(&block, bits, index), u64::from(wanted));
                assert_eq!(
                    refcount(&block, bits, (index + 1) % count),
                    if index + 1 == count { 0 } else { all }
                );
            }
        }
    }

    #[test]
    fn refcounts_of_every_width_are_found() {
        let block = [0b1010_0110, 0x5a, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06];
        let all = |bits: u32| {
            let count = per_block(block.len() as u64, bits) as usize;
            (0..count).map(|index| refcount(&block, bits, index)).collect::<Vec<_>>()
        };
        assert_eq!(all(1)[..8], [0, 1, 1, 0, 0, 1, 0, 1]);
        assert_eq!(all(2)[..6], [2, 1, 2, 2, 2, 2]);
        assert_eq!(all(4)[..4], [6, 10, 10, 5]);
        assert_eq!(all(8)[..3], [0xa6, 0x5a, 1]);
        assert_eq!(all(16), [0xa65a, 0x0102, 0x0304, 0x0506]);
        assert_eq!(all(32), [0xa65a_0102, 0x0304_0506]);
        assert_eq!(all(64), [0xa65a_0102_0304_0506]);
    }
}
