//! What every metadata block has: a checksum, salted by the block's kind, and its own number.
//!
//! Promises that a block that [`verify`] accepts has the expected kind and place, unless it was
//! forged. Never reads the rest of a block.

use super::{Error, MetadataBlock};

/// Bytes of a metadata block.
pub const BLOCK_BYTES: usize = 4096;
/// The bytes of one metadata block.
pub type Block = [u8; BLOCK_BYTES];

const CHECKSUM: core::ops::Range<usize> = 0..4;

/// What a block is; only the salt of its checksum distinguishes the kinds. The metadata of a clone
/// is made of the same blocks, with a superblock of its own and array blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The superblock, or the held copy of it.
    Superblock,
    /// A node of any B-tree.
    Node,
    /// A bitmap of either space map.
    Bitmap,
    /// The index of the metadata space map's bitmaps.
    Index,
    /// The superblock of a clone.
    CloneSuperblock,
    /// An array block of a clone's bitset.
    Array,
}

impl Kind {
    /// Every kind that a thin pool has.
    pub const ALL: [Kind; 4] = [Kind::Superblock, Kind::Node, Kind::Bitmap, Kind::Index];

    /// The number that the checksum is combined with.
    #[must_use]
    pub fn salt(self) -> u32 {
        match self {
            Kind::Superblock => 160_774,
            Kind::Node => 121_107,
            Kind::Bitmap => 240_779,
            Kind::Index => 160_478,
            Kind::CloneSuperblock => 257_649_492,
            Kind::Array => 595_846_735,
        }
    }

    /// Where a block of this kind has its own number.
    fn number(self) -> core::ops::Range<usize> {
        match self {
            Kind::Array => 16..24,
            _ => 8..16,
        }
    }

    /// The kind in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Superblock => "superblock",
            Kind::Node => "node",
            Kind::Bitmap => "bitmap",
            Kind::Index => "index block",
            Kind::CloneSuperblock => "clone superblock",
            Kind::Array => "array block",
        }
    }
}

/// The checksum that a block of this kind should have.
#[must_use]
pub fn checksum(bytes: &Block, kind: Kind) -> u32 {
    // The format leaves out the final inversion of the usual CRC-32C.
    !crc32c::crc32c(&bytes[CHECKSUM.end..]) ^ kind.salt()
}

/// Sets the number and the checksum of a block: the last change before it is written.
pub fn seal(bytes: &mut Block, kind: Kind, at: MetadataBlock) {
    bytes[kind.number()].copy_from_slice(&at.0.to_le_bytes());
    let sum = checksum(bytes, kind);
    bytes[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
}

/// Whether a block is of this kind and belongs at `at`.
///
/// # Errors
/// [`Error::WrongChecksum`] or [`Error::WrongBlockNumber`].
pub fn verify(bytes: &Block, kind: Kind, at: MetadataBlock) -> Result<(), Error> {
    let (found, expected) = (stored_checksum(bytes), checksum(bytes, kind));
    if found != expected {
        let looks_like = looks_like(bytes, found, expected, kind);
        return Err(Error::WrongChecksum { at, kind, found, expected, looks_like });
    }
    match number_at(bytes, kind.number()) {
        number if number == at => Ok(()),
        found => Err(Error::WrongBlockNumber { at, kind, found }),
    }
}

/// The kind whose checksum is right, if any.
#[must_use]
pub fn identify(bytes: &Block) -> Option<Kind> {
    let unsalted = checksum(bytes, Kind::Node) ^ Kind::Node.salt();
    let found = stored_checksum(bytes);
    Kind::ALL.into_iter().find(|kind| unsalted ^ kind.salt() == found)
}

/// The number that a block of a thin pool contains.
#[must_use]
pub fn number(bytes: &Block) -> MetadataBlock {
    number_at(bytes, Kind::Node.number())
}

fn number_at(bytes: &Block, place: core::ops::Range<usize>) -> MetadataBlock {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[place]);
    MetadataBlock(u64::from_le_bytes(field))
}

/// A slice as a block.
///
/// # Errors
/// [`Error::WrongLength`] if it has not exactly [`BLOCK_BYTES`].
pub fn of(bytes: &[u8]) -> Result<&Block, Error> {
    bytes.try_into().map_err(|_| Error::WrongLength { found: bytes.len() })
}

fn stored_checksum(bytes: &Block) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[CHECKSUM]);
    u32::from_le_bytes(field)
}

fn looks_like(bytes: &Block, found: u32, expected: u32, kind: Kind) -> Option<&'static str> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some("all zeros");
    }
    let unsalted = expected ^ kind.salt();
    let other = Kind::ALL.into_iter().find(|kind| unsalted ^ kind.salt() == found);
    other.map(Kind::name)
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, Kind, identify, number, of, seal, verify};
    use crate::thin::{Error, MetadataBlock};

    #[test]
    fn a_sealed_block_is_known_by_kind_and_place() {
        for kind in Kind::ALL {
            let mut bytes = [0x5A; BLOCK_BYTES];
            seal(&mut bytes, kind, MetadataBlock(77));
            assert_eq!(verify(&bytes, kind, MetadataBlock(77)), Ok(()));
            assert_eq!((identify(&bytes), number(&bytes)), (Some(kind), MetadataBlock(77)));
            let (at, found) = (MetadataBlock(78), MetadataBlock(77));
            let misplaced = Err(Error::WrongBlockNumber { at, kind, found });
            assert_eq!(verify(&bytes, kind, at), misplaced);
        }
    }

    #[test]
    fn block_of_another_kind_or_of_zeros_is_named_in_the_error() {
        let mut bytes = [1; BLOCK_BYTES];
        seal(&mut bytes, Kind::Bitmap, MetadataBlock(3));
        let error = verify(&bytes, Kind::Node, MetadataBlock(3)).unwrap_err();
        assert!(error.to_string().ends_with("(it looks like: bitmap)"), "{error}");
        let error = verify(&[0; BLOCK_BYTES], Kind::Node, MetadataBlock(3)).unwrap_err();
        assert!(error.to_string().ends_with("(it looks like: all zeros)"), "{error}");
    }

    #[test]
    fn any_flipped_bit_breaks_the_checksum() {
        let mut bytes = [0; BLOCK_BYTES];
        seal(&mut bytes, Kind::Index, MetadataBlock(1));
        for place in [0, 3, 4, 8, 15, 16, 2000, 4095] {
            bytes[place] ^= 0x10;
            assert!(verify(&bytes, Kind::Index, MetadataBlock(1)).is_err(), "{place}");
            bytes[place] ^= 0x10;
        }
        assert_eq!(of(&bytes[1..]), Err(Error::WrongLength { found: 4095 }));
    }
}
