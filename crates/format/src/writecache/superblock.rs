//! The superblock: the fixed root of a cache device, and the decision whether a device has one.
//!
//! Promises that a [`Superblock`] value always has the right magic and version, a legal block size
//! and a slot count in range, and that encoding it returns every byte it was read from, the
//! reserved ones included. Whether its slots fit on the device is checked by
//! [`Geometry::of_superblock`](super::Geometry::of_superblock).

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BlockSize, Error, Field, Geometry, N_BLOCKS_END, Seq};

/// The first four bytes of a cache device, as a little-endian number.
pub const MAGIC: u32 = 0x2348_9321;
/// The only version of this format.
pub const VERSION: u32 = 1;
/// Size of the superblock; the slot table starts here.
pub const SUPERBLOCK_BYTES: usize = 64;
/// A superblock update rewrites the area from its start for this many bytes, or for one cache block
/// if that is larger, but never past the metadata.
pub const SUPERBLOCK_WRITE_BYTES: u64 = 4096;

/// The superblock as it lies on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    magic: U32,
    version: U32,
    block_size: U32,
    pad: U32,
    n_blocks: U64,
    /// 8-byte aligned, so that persistent memory can store it atomically.
    seq_count: U64,
    padding: [u8; 32],
}

macro_rules! field {
    ($name:ident, $size:expr) => {
        Field { name: stringify!($name), offset: offset_of!(RawSuperblock, $name), size: $size }
    };
}

/// Where each field of the superblock lies.
pub const SUPERBLOCK_FIELDS: [Field; 7] = [
    field!(magic, 4),
    field!(version, 4),
    field!(block_size, 4),
    field!(pad, 4),
    field!(n_blocks, 8),
    field!(seq_count, 8),
    field!(padding, 32),
];

const _: () = {
    assert!(size_of::<RawSuperblock>() == SUPERBLOCK_BYTES);
    assert!(offset_of!(RawSuperblock, magic) == 0);
    assert!(offset_of!(RawSuperblock, version) == 4);
    assert!(offset_of!(RawSuperblock, block_size) == 8);
    assert!(offset_of!(RawSuperblock, pad) == 12);
    assert!(offset_of!(RawSuperblock, n_blocks) == 16);
    assert!(offset_of!(RawSuperblock, seq_count) == 24);
    assert!(offset_of!(RawSuperblock, padding) == 32);
};

/// What opening a cache device finds at the start of its area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// Magic and version are both zero: the device is to be formatted.
    Format,
    /// A cache with the block size asked for.
    Existing(Superblock),
}

impl Opening {
    /// Decides between formatting and opening from the first [`SUPERBLOCK_BYTES`] of the area (more
    /// bytes are ignored). Only magic and version decide; the rest of a blank device may hold
    /// anything.
    ///
    /// # Errors
    /// Every way in which the header is neither blank nor a cache of block size `expected`.
    pub fn decide(area_start: &[u8], expected: BlockSize) -> Result<Opening, Error> {
        let raw = read_raw(area_start)?;
        if raw.magic.get() == 0 && raw.version.get() == 0 {
            return Ok(Opening::Format);
        }
        check_magic_and_version(raw)?;
        let found = raw.block_size.get();
        if found != expected.bytes() {
            return Err(Error::BlockSizeMismatch { found, expected: expected.bytes() });
        }
        Superblock::validate(raw).map(Opening::Existing)
    }
}

/// A validated superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    block_size: BlockSize,
    n_blocks: u64,
    seq: Seq,
    pad: u32,
    padding: [u8; 32],
}

impl Superblock {
    /// The superblock of a cache just formatted: no commit yet, reserved bytes zero.
    #[must_use]
    pub fn fresh(geometry: &Geometry) -> Superblock {
        Superblock {
            block_size: geometry.block_size(),
            n_blocks: geometry.n_blocks(),
            seq: Seq::ZERO,
            pad: 0,
            padding: [0; 32],
        }
    }

    /// Reads a superblock of any block size, for tools that were not given one. A blank device is
    /// an error here.
    ///
    /// # Errors
    /// Wrong magic or version, a bad block size or slot count, or fewer than
    /// [`SUPERBLOCK_BYTES`] bytes.
    pub fn parse(area_start: &[u8]) -> Result<Superblock, Error> {
        let raw = read_raw(area_start)?;
        check_magic_and_version(raw)?;
        Superblock::validate(raw)
    }

    fn validate(raw: &RawSuperblock) -> Result<Superblock, Error> {
        let block_size = BlockSize::new(raw.block_size.get())?;
        match raw.n_blocks.get() {
            0 => Err(Error::NoBlocks),
            found @ N_BLOCKS_END.. => Err(Error::TooManyBlocks { found }),
            n_blocks => Ok(Superblock {
                block_size,
                n_blocks,
                seq: Seq(raw.seq_count.get()),
                pad: raw.pad.get(),
                padding: raw.padding,
            }),
        }
    }

    /// The cache's block size.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Number of slots, from 1 up to but not including [`N_BLOCKS_END`].
    #[must_use]
    pub fn n_blocks(&self) -> u64 {
        self.n_blocks
    }

    /// Number of completed commits: entries below it are committed.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// The same superblock after another commit.
    #[must_use]
    pub fn with_seq(&self, seq: Seq) -> Superblock {
        Superblock { seq, ..self.clone() }
    }

    /// Whether the reserved bytes are zero, as every known writer leaves them.
    #[must_use]
    pub fn reserved_is_zero(&self) -> bool {
        self.pad == 0 && self.padding == [0; 32]
    }

    /// The bytes to write at the start of the area.
    #[must_use]
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        self.encode_with_magic(MAGIC)
    }

    /// The bytes to write first when formatting, with the magic still 0. After a crash between this
    /// write and that of [`encode`](Superblock::encode) the device is refused; a slot table that is
    /// only partly initialised is never trusted.
    #[must_use]
    pub fn encode_unfinished(&self) -> [u8; SUPERBLOCK_BYTES] {
        self.encode_with_magic(0)
    }

    fn encode_with_magic(&self, magic: u32) -> [u8; SUPERBLOCK_BYTES] {
        zerocopy::transmute!(RawSuperblock {
            magic: U32::new(magic),
            version: U32::new(VERSION),
            block_size: U32::new(self.block_size.bytes()),
            pad: U32::new(self.pad),
            n_blocks: U64::new(self.n_blocks),
            seq_count: U64::new(self.seq.0),
            padding: self.padding,
        })
    }
}

fn read_raw(area_start: &[u8]) -> Result<&RawSuperblock, Error> {
    match RawSuperblock::ref_from_prefix(area_start) {
        Ok((raw, _rest)) => Ok(raw),
        Err(_) => Err(Error::ShortSuperblock { found: area_start.len() as u64 }),
    }
}

fn check_magic_and_version(raw: &RawSuperblock) -> Result<(), Error> {
    match (raw.magic.get(), raw.version.get()) {
        (MAGIC, VERSION) => Ok(()),
        (MAGIC, found) => Err(Error::WrongVersion { found }),
        (0, version) if version != 0 => Err(Error::InterruptedFormat { version }),
        (found, _) => Err(Error::WrongMagic { found }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{MAGIC, Opening, SUPERBLOCK_BYTES, Superblock, VERSION};
    use crate::writecache::{BlockSize, Error, Geometry, N_BLOCKS_END, Seq};

    fn bs(bytes: u32) -> BlockSize {
        BlockSize::new(bytes).unwrap()
    }

    fn header(magic: u32, version: u32, block_size: u32, n_blocks: u64) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes[0..4].copy_from_slice(&magic.to_le_bytes());
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        bytes[8..12].copy_from_slice(&block_size.to_le_bytes());
        bytes[16..24].copy_from_slice(&n_blocks.to_le_bytes());
        bytes
    }

    #[test]
    fn a_blank_header_asks_for_formatting_whatever_follows_it() {
        let mut bytes = [0xAB; 4096];
        bytes[..8].fill(0);
        assert_eq!(Opening::decide(&bytes, bs(4096)), Ok(Opening::Format));
    }

    #[test]
    fn a_blank_header_is_no_superblock() {
        assert_eq!(Superblock::parse(&[0; 64]), Err(Error::WrongMagic { found: 0 }));
    }

    #[test]
    fn each_wrong_header_is_refused_for_its_own_reason() {
        let cases = [
            (header(0xDEAD_BEEF, 1, 4096, 9), Error::WrongMagic { found: 0xDEAD_BEEF }),
            (header(0xDEAD_BEEF, 0, 4096, 9), Error::WrongMagic { found: 0xDEAD_BEEF }),
            (header(0, 1, 4096, 9), Error::InterruptedFormat { version: 1 }),
            (header(MAGIC, 0, 4096, 9), Error::WrongVersion { found: 0 }),
            (header(MAGIC, 2, 4096, 9), Error::WrongVersion { found: 2 }),
            (header(MAGIC, 1, 512, 9), Error::BlockSizeMismatch { found: 512, expected: 4096 }),
            (header(MAGIC, 1, 77, 9), Error::BlockSizeMismatch { found: 77, expected: 4096 }),
            (header(MAGIC, 1, 4096, 0), Error::NoBlocks),
            (header(MAGIC, 1, 4096, N_BLOCKS_END), Error::TooManyBlocks { found: N_BLOCKS_END }),
            (header(MAGIC, 1, 4096, u64::MAX), Error::TooManyBlocks { found: u64::MAX }),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Opening::decide(&bytes, bs(4096)), Err(expected));
        }
    }

    #[test]
    fn a_bad_block_size_is_named_when_none_was_asked_for() {
        let bytes = header(MAGIC, 1, 8192, 9);
        assert_eq!(Superblock::parse(&bytes), Err(Error::BadBlockSize { found: 8192 }));
    }

    #[test]
    fn a_device_that_ends_inside_the_superblock_is_refused() {
        let short = &header(MAGIC, VERSION, 4096, 9)[..63];
        let expected = Err(Error::ShortSuperblock { found: 63 });
        assert_eq!(Opening::decide(short, bs(4096)), expected);
    }

    #[test]
    fn an_unfinished_format_is_refused_when_read_back() {
        let geometry = Geometry::for_format(256 << 10, bs(4096)).unwrap();
        let bytes = Superblock::fresh(&geometry).encode_unfinished();
        let found = Opening::decide(&bytes, bs(4096));
        assert_eq!(found, Err(Error::InterruptedFormat { version: 1 }));
    }

    proptest! {
        #[test]
        fn every_byte_of_a_superblock_survives_decoding_and_encoding(
            shift in 9u32..=12,
            n_blocks in 1..N_BLOCKS_END,
            seq in any::<u64>(),
            pad in any::<[u8; 4]>(),
            padding in any::<[u8; 32]>(),
        ) {
            let mut bytes = header(MAGIC, VERSION, 1 << shift, n_blocks);
            bytes[12..16].copy_from_slice(&pad);
            bytes[24..32].copy_from_slice(&seq.to_le_bytes());
            bytes[32..].copy_from_slice(&padding);
            let superblock = Superblock::parse(&bytes).unwrap();
            prop_assert_eq!(superblock.block_size().bytes(), 1 << shift);
            prop_assert_eq!(superblock.n_blocks(), n_blocks);
            prop_assert_eq!(superblock.seq(), Seq(seq));
            prop_assert_eq!(superblock.reserved_is_zero(), pad == [0; 4] && padding == [0; 32]);
            prop_assert_eq!(superblock.encode(), bytes);
            let opened = Opening::decide(&bytes, bs(1 << shift));
            prop_assert_eq!(opened, Ok(Opening::Existing(superblock)));
        }
    }
}
