//! The header of an exception store, and the decision whether a device has one.
//!
//! Promises that a [`Header`] always has the right magic and version and a legal chunk size, and
//! that encoding it returns the sixteen bytes it was read from. Whether the store fits its device
//! is checked by [`Layout::new`](super::Layout::new).

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ChunkSize, Error, Field};

/// The first four bytes of a store, "SnAp", as a little-endian number.
pub const MAGIC: u32 = 0x7041_6e53;
/// The only version of this format.
pub const VERSION: u32 = 1;
/// Size of the header; the rest of chunk 0 is written as zeros.
pub const HEADER_BYTES: usize = 16;

/// The header as it lies on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    valid: U32,
    version: U32,
    chunk_size: U32,
}

macro_rules! field {
    ($name:ident) => {
        Field {
            name: stringify!($name),
            offset: offset_of!(RawHeader, $name),
            size: size_of::<U32>(),
        }
    };
}

/// Where each field of the header lies.
pub const HEADER_FIELDS: [Field; 4] =
    [field!(magic), field!(valid), field!(version), field!(chunk_size)];

const _: () = {
    assert!(size_of::<RawHeader>() == HEADER_BYTES);
    assert!(offset_of!(RawHeader, magic) == 0);
    assert!(offset_of!(RawHeader, valid) == 4);
    assert!(offset_of!(RawHeader, version) == 8);
    assert!(offset_of!(RawHeader, chunk_size) == 12);
};

/// What opening a COW device finds in its first chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The magic is zero: the device is to be formatted.
    Blank,
    /// A store, valid or invalidated. Its chunk size overrides the table's.
    Existing(Header),
}

impl Opening {
    /// Decides between formatting and opening from the first [`HEADER_BYTES`] of the device (more
    /// bytes are ignored). Only the magic decides; the rest of a blank device may hold anything.
    ///
    /// # Errors
    /// Every way in which the bytes are neither blank nor a header.
    pub fn decide(chunk_0: &[u8]) -> Result<Opening, Error> {
        let Ok((raw, _rest)) = RawHeader::ref_from_prefix(chunk_0) else {
            return Err(Error::ShortHeader { found: chunk_0.len() as u64 });
        };
        match (raw.magic.get(), raw.version.get()) {
            (0, _) => Ok(Opening::Blank),
            (MAGIC, VERSION) => {
                let chunk_size = ChunkSize::new(raw.chunk_size.get())?;
                Ok(Opening::Existing(Header { valid: raw.valid.get(), chunk_size }))
            }
            (MAGIC, found) => Err(Error::WrongVersion { found }),
            (found, _) => Err(Error::WrongMagic { found }),
        }
    }
}

/// A validated header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Kept as found: any number but 0 means valid.
    valid: u32,
    chunk_size: ChunkSize,
}

impl Header {
    /// The header of a store just formatted: valid.
    #[must_use]
    pub fn fresh(chunk_size: ChunkSize) -> Header {
        Header { valid: 1, chunk_size }
    }

    /// Reads the header of an existing store; a blank device is an error here.
    ///
    /// # Errors
    /// As [`Opening::decide`], and [`Error::WrongMagic`] for a magic of zero.
    pub fn parse(chunk_0: &[u8]) -> Result<Header, Error> {
        match Opening::decide(chunk_0)? {
            Opening::Existing(header) => Ok(header),
            Opening::Blank => Err(Error::WrongMagic { found: 0 }),
        }
    }

    /// The store's chunk size.
    #[must_use]
    pub fn chunk_size(&self) -> ChunkSize {
        self.chunk_size
    }

    /// Whether the records may be trusted. An invalidated store never becomes valid again.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.valid != 0
    }

    /// The same header, invalidated.
    #[must_use]
    pub fn invalidated(&self) -> Header {
        Header { valid: 0, ..*self }
    }

    /// The first bytes of chunk 0; zeros follow to its end.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        zerocopy::transmute!(RawHeader {
            magic: U32::new(MAGIC),
            valid: U32::new(self.valid),
            version: U32::new(VERSION),
            chunk_size: U32::new(self.chunk_size.sectors()),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{HEADER_BYTES, Header, MAGIC, Opening, VERSION};
    use crate::snapshot::{ChunkSize, Error};

    fn bytes(magic: u32, valid: u32, version: u32, chunk_size: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        for (field, number) in bytes.chunks_mut(4).zip([magic, valid, version, chunk_size]) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_zero_magic_alone_asks_for_formatting() {
        assert_eq!(Opening::decide(&bytes(0, 7, 8, 9)), Ok(Opening::Blank));
        assert_eq!(Header::parse(&[0; 512]), Err(Error::WrongMagic { found: 0 }));
    }

    #[test]
    fn each_wrong_header_is_refused_for_its_own_reason() {
        let cases = [
            (bytes(0xDEAD, 1, 1, 8), Error::WrongMagic { found: 0xDEAD }),
            (bytes(MAGIC, 1, 0, 8), Error::WrongVersion { found: 0 }),
            (bytes(MAGIC, 0, 2, 8), Error::WrongVersion { found: 2 }),
            (bytes(MAGIC, 1, 1, 0), Error::BadChunkSize { found: 0 }),
            (bytes(MAGIC, 0, 1, 9), Error::BadChunkSize { found: 9 }),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Opening::decide(&bytes), Err(expected));
        }
        let short = &bytes(MAGIC, 1, 1, 8)[..15];
        assert_eq!(Opening::decide(short), Err(Error::ShortHeader { found: 15 }));
    }

    #[test]
    fn fresh_header_begins_with_snap_and_is_invalidated_by_one_field() {
        let header = Header::fresh(ChunkSize::new(8).unwrap());
        assert!(header.is_valid());
        assert_eq!(header.encode(), *b"SnAp\x01\0\0\0\x01\0\0\0\x08\0\0\0");
        assert!(!header.invalidated().is_valid());
        assert_eq!(header.invalidated().encode(), bytes(MAGIC, 0, VERSION, 8));
    }

    proptest! {
        #[test]
        fn a_header_survives_decoding_and_encoding(shift in 0u32..=21, valid in any::<u32>()) {
            let encoded = bytes(MAGIC, valid, VERSION, 1 << shift);
            let header = Header::parse(&encoded).unwrap();
            prop_assert_eq!(header.encode(), encoded);
            prop_assert_eq!(header.is_valid(), valid != 0);
            prop_assert_eq!(header.chunk_size().sectors(), 1 << shift);
        }
    }
}
