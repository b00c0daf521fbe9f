//! Array blocks: the words of the bitset.
//!
//! Promises that an [`ArrayBlock`] was verified and has the number of words that the caller
//! expects. What the bits say is the caller's.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Error;
use crate::field::Field;
use crate::thin::MetadataBlock;
use crate::thin::block::{self, BLOCK_BYTES, Block, Kind};

/// The header as it lies in the block.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    csum: U32,
    max_entries: U32,
    nr_entries: U32,
    value_size: U32,
    blocknr: U64,
}

macro_rules! field {
    ($name:ident, $size:expr) => {
        Field { name: stringify!($name), offset: offset_of!(RawHeader, $name), size: $size }
    };
}

/// Where each field of the header lies.
pub const ARRAY_FIELDS: [Field; 5] = [
    field!(csum, 4),
    field!(max_entries, 4),
    field!(nr_entries, 4),
    field!(value_size, 4),
    field!(blocknr, 8),
];

/// Bytes of the header.
pub const ARRAY_HEADER_BYTES: usize = size_of::<RawHeader>();
const WORD_BYTES: usize = 8;
/// Words that an array block has room for.
pub const WORDS_MAX: usize = (BLOCK_BYTES - ARRAY_HEADER_BYTES) / WORD_BYTES;

const _: () = {
    assert!(ARRAY_HEADER_BYTES == 24);
    assert!(WORDS_MAX == 509);
};

/// A verified array block.
#[derive(Clone, Copy, Debug)]
pub struct ArrayBlock<'a> {
    words: &'a [U64],
}

impl<'a> ArrayBlock<'a> {
    /// Reads an array block that should have so many words.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(
        bytes: &'a Block,
        at: MetadataBlock,
        words: usize,
    ) -> Result<ArrayBlock<'a>, Error> {
        block::verify(bytes, Kind::Array, at)?;
        let (raw, rest) = RawHeader::ref_from_prefix(bytes)
            .expect("a block is longer than the header, which needs no alignment");
        let expected = words as u32;
        match [raw.value_size.get(), raw.max_entries.get(), raw.nr_entries.get()] {
            [found, _, _] if found as usize != WORD_BYTES => Err(Error::BadValueSize { at, found }),
            [_, found, _] if found as usize != WORDS_MAX => Err(Error::BadMaxEntries { at, found }),
            [_, _, found] if found != expected || words > WORDS_MAX => {
                Err(Error::BadEntryCount { at, found, expected })
            }
            _ => {
                let (words, _rest) = <[U64]>::ref_from_prefix_with_elems(rest, words)
                    .expect("there is room for so many words, which need no alignment");
                Ok(ArrayBlock { words })
            }
        }
    }

    /// Its words.
    pub fn words(&self) -> impl Iterator<Item = u64> + 'a {
        self.words.iter().map(|word| word.get())
    }
}

/// Makes an array block of words and seals it.
///
/// # Panics
/// There are more words than fit.
pub fn encode_array(bytes: &mut Block, at: MetadataBlock, words: &[u64]) {
    assert!(words.len() <= WORDS_MAX, "the caller splits");
    bytes.fill(0);
    let raw = RawHeader {
        csum: U32::ZERO,
        max_entries: U32::new(WORDS_MAX as u32),
        nr_entries: U32::new(words.len() as u32),
        value_size: U32::new(WORD_BYTES as u32),
        blocknr: U64::ZERO,
    };
    bytes[..ARRAY_HEADER_BYTES].copy_from_slice(raw.as_bytes());
    let places = bytes[ARRAY_HEADER_BYTES..].chunks_exact_mut(WORD_BYTES);
    for (place, word) in places.zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    block::seal(bytes, Kind::Array, at);
}

#[cfg(test)]
mod tests {
    use super::{ARRAY_FIELDS, ArrayBlock, WORDS_MAX, encode_array};
    use crate::clone::Error;
    use crate::thin::MetadataBlock;
    use crate::thin::block::{self, BLOCK_BYTES, Block, Kind};

    const AT: MetadataBlock = MetadataBlock(7);

    fn array(words: &[u64]) -> Block {
        let mut bytes = [0xFF; BLOCK_BYTES];
        encode_array(&mut bytes, AT, words);
        bytes
    }

    #[test]
    fn words_survive_encoding() {
        for words in [vec![5], vec![0, u64::MAX, 1 << 63], vec![3; WORDS_MAX]] {
            let bytes = array(&words);
            let decoded = ArrayBlock::decode(&bytes, AT, words.len()).unwrap();
            assert!(decoded.words().eq(words.iter().copied()));
            assert!(ArrayBlock::decode(&bytes, MetadataBlock(8), words.len()).is_err());
        }
    }

    #[test]
    fn each_wrong_field_is_named() {
        for (field, found, expected) in [
            ("value_size", 4, "block 7, array value_size: found 4, expected 8"),
            ("max_entries", 510, "block 7, array max_entries: found 510, expected 509"),
            ("nr_entries", 3, "block 7, array nr_entries: found 3, expected 2"),
        ] {
            let mut bytes = array(&[1, 2]);
            let place = ARRAY_FIELDS.iter().find(|known| known.name == field).unwrap();
            bytes[place.offset..place.offset + 4].copy_from_slice(&u32::to_le_bytes(found));
            block::seal(&mut bytes, Kind::Array, AT);
            let error = ArrayBlock::decode(&bytes, AT, 2).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        let mut bytes = array(&[1, 2]);
        bytes[100] ^= 1;
        assert!(matches!(ArrayBlock::decode(&bytes, AT, 2), Err(Error::Block(_))));
        assert!(ArrayBlock::decode(&array(&[1]), AT, WORDS_MAX + 1).is_err());
    }
}
