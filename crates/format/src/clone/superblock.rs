//! The superblock: sizes and roots, in one sector, rewritten last by every commit.
//!
//! Promises that a [`Superblock`] was verified, is of a known version, and has legal sizes; not
//! that the blocks it names exist.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Error, WORDS_MAX};
use crate::field::Field;
use crate::thin::block::{self, BLOCK_BYTES, Block, Kind};
use crate::thin::{MetadataBlock, RawSpaceMapRoot, SpaceMapRoot};

/// The number at byte 32 of a superblock.
pub const MAGIC: u64 = 0x8af2_7f64;
/// The version to write, and the only one that is read.
pub const VERSION: u32 = 1;
/// Sectors of the smallest region.
pub const REGION_SECTORS_MIN: u64 = 8;
/// Sectors of the largest region: 1 GiB.
pub const REGION_SECTORS_MAX: u64 = 1 << 21;

const SECTOR_BYTES: usize = 512;
/// Sectors that have a byte offset.
const SECTORS_MAX: u64 = u64::MAX >> 9;
const WORD_BITS: u64 = 64;

/// The used part of a superblock as it lies on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    csum: U32,
    flags: U32,
    blocknr: U64,
    uuid: [u8; 16],
    magic: U64,
    version: U32,
    metadata_space_map_root: RawSpaceMapRoot,
    /// Not used.
    slack: [u8; 96],
    region_size: U64,
    target_size: U64,
    bitset_root: U64,
}

macro_rules! field {
    ($name:ident, $size:expr) => {
        Field { name: stringify!($name), offset: offset_of!(RawSuperblock, $name), size: $size }
    };
}

/// Where each field of the superblock lies. The root of the space map is shown with the slack
/// behind it.
pub const SUPERBLOCK_FIELDS: [Field; 10] = [
    field!(csum, 4),
    field!(flags, 4),
    field!(blocknr, 8),
    field!(uuid, 16),
    field!(magic, 8),
    field!(version, 4),
    field!(metadata_space_map_root, 128),
    field!(region_size, 8),
    field!(target_size, 8),
    field!(bitset_root, 8),
];

const _: () = {
    assert!(size_of::<RawSuperblock>() == 196);
    // A drive writes one sector whole.
    assert!(size_of::<RawSuperblock>() <= SECTOR_BYTES);
    assert!(offset_of!(RawSuperblock, metadata_space_map_root) == 44);
    assert!(offset_of!(RawSuperblock, bitset_root) == 188);
};

/// A legal size of a region: a power of two from 4 KiB to 1 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSize(u64);

impl RegionSize {
    /// Takes a size in sectors.
    ///
    /// # Errors
    /// [`Error::BadRegionSize`] if the format does not allow it.
    pub fn new(sectors: u64) -> Result<RegionSize, Error> {
        let is_legal = (REGION_SECTORS_MIN..=REGION_SECTORS_MAX).contains(&sectors);
        match is_legal && sectors.is_power_of_two() {
            true => Ok(RegionSize(sectors)),
            false => Err(Error::BadRegionSize { found: sectors }),
        }
    }

    /// The size in sectors.
    #[must_use]
    pub fn sectors(self) -> u64 {
        self.0
    }

    /// Regions of a clone of so many sectors.
    #[must_use]
    pub fn regions_of(self, sectors: u64) -> u64 {
        sectors.div_ceil(self.0)
    }
}

/// What opening a metadata device finds in its first block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// Every byte is zero: the device is to be formatted.
    Blank,
    /// The metadata of a clone.
    Existing(Superblock),
}

impl Opening {
    /// Decides between formatting and opening from block 0.
    ///
    /// # Errors
    /// Every way in which the bytes are neither blank nor a superblock.
    pub fn decide(bytes: &Block) -> Result<Opening, Error> {
        match bytes.iter().all(|byte| *byte == 0) {
            true => Ok(Opening::Blank),
            false => Superblock::decode(bytes).map(Opening::Existing),
        }
    }
}

/// A verified superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Kept as found.
    pub flags: u32,
    /// Zeros from the kernel; kept as found.
    pub uuid: [u8; 16],
    /// Reference counts of metadata blocks.
    pub metadata_space_map: SpaceMapRoot,
    /// The unit of hydration.
    pub region_size: RegionSize,
    /// Sectors of the clone.
    pub target_sectors: u64,
    /// Root of the tree of array blocks.
    pub bitset_root: MetadataBlock,
}

impl Superblock {
    /// Reads block 0.
    ///
    /// # Errors
    /// What is wrong with it. The magic is checked first: without it this is no clone.
    pub fn decode(bytes: &Block) -> Result<Superblock, Error> {
        let (raw, _rest) = RawSuperblock::ref_from_prefix(bytes)
            .expect("a block is longer than the used part, which needs no alignment");
        match raw.magic.get() {
            MAGIC => block::verify(bytes, Kind::CloneSuperblock, MetadataBlock::SUPERBLOCK)?,
            found => return Err(Error::WrongMagic { found }),
        }
        match raw.version.get() {
            VERSION => {}
            found => return Err(Error::WrongVersion { found }),
        }
        let (found, most) = (raw.target_size.get(), SECTORS_MAX);
        if found == 0 || found > most {
            return Err(Error::BadTargetSize { found, most });
        }
        Ok(Superblock {
            flags: raw.flags.get(),
            uuid: raw.uuid,
            metadata_space_map: raw.metadata_space_map_root.decode(),
            region_size: RegionSize::new(raw.region_size.get())?,
            target_sectors: found,
            bitset_root: MetadataBlock(raw.bitset_root.get()),
        })
    }

    /// The sealed block. All but the first sector is zeros and so never changes: that makes a torn
    /// write of the block harmless.
    #[must_use]
    pub fn encode(&self) -> Block {
        let raw = RawSuperblock {
            csum: U32::ZERO,
            flags: U32::new(self.flags),
            blocknr: U64::ZERO,
            uuid: self.uuid,
            magic: U64::new(MAGIC),
            version: U32::new(VERSION),
            metadata_space_map_root: RawSpaceMapRoot::encode(&self.metadata_space_map),
            slack: [0; 96],
            region_size: U64::new(self.region_size.sectors()),
            target_size: U64::new(self.target_sectors),
            bitset_root: U64::new(self.bitset_root.0),
        };
        let mut bytes = [0; BLOCK_BYTES];
        bytes[..size_of::<RawSuperblock>()].copy_from_slice(raw.as_bytes());
        block::seal(&mut bytes, Kind::CloneSuperblock, MetadataBlock::SUPERBLOCK);
        bytes
    }

    /// Regions of the clone.
    #[must_use]
    pub fn regions(&self) -> u64 {
        self.region_size.regions_of(self.target_sectors)
    }

    /// Words of the bitset.
    #[must_use]
    pub fn words(&self) -> u64 {
        self.regions().div_ceil(WORD_BITS)
    }

    /// Array blocks of the bitset.
    #[must_use]
    pub fn arrays(&self) -> u64 {
        self.words().div_ceil(WORDS_MAX as u64)
    }

    /// Words that array block `number` has.
    #[must_use]
    pub fn words_of_array(&self, number: u64) -> usize {
        let before = number * WORDS_MAX as u64;
        (self.words().saturating_sub(before) as usize).min(WORDS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::{Opening, RegionSize, SUPERBLOCK_FIELDS, Superblock};
    use crate::clone::Error;
    use crate::thin::block::{self, BLOCK_BYTES, Block, Kind};
    use crate::thin::{MetadataBlock, SpaceMapRoot};

    fn superblock() -> Superblock {
        let metadata_space_map = SpaceMapRoot {
            blocks: 64,
            allocated: 6,
            bitmap_root: MetadataBlock(1),
            ref_count_root: MetadataBlock(2),
        };
        Superblock {
            flags: 0,
            uuid: [7; 16],
            metadata_space_map,
            region_size: RegionSize::new(8).unwrap(),
            target_sectors: 8191,
            bitset_root: MetadataBlock(4),
        }
    }

    fn patched(field: &str, value: u32) -> Block {
        let mut bytes = superblock().encode();
        let field = SUPERBLOCK_FIELDS.iter().find(|known| known.name == field).unwrap();
        bytes[field.offset..field.offset + 4].copy_from_slice(&value.to_le_bytes());
        block::seal(&mut bytes, Kind::CloneSuperblock, MetadataBlock::SUPERBLOCK);
        bytes
    }

    #[test]
    fn a_superblock_survives_encoding_and_counts_its_regions() {
        let bytes = superblock().encode();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
        assert!(bytes[196..].iter().all(|byte| *byte == 0));
        assert_eq!((superblock().regions(), superblock().words()), (1024, 16));
        assert_eq!((superblock().arrays(), superblock().words_of_array(0)), (1, 16));
        let large = Superblock { target_sectors: 2_400_004, ..superblock() };
        assert_eq!((large.regions(), large.arrays()), (300_001, 10));
        assert_eq!((large.words_of_array(8), large.words_of_array(9)), (509, 107));
    }

    #[test]
    fn only_a_whole_block_of_zeros_is_blank() {
        assert_eq!(Opening::decide(&[0; BLOCK_BYTES]), Ok(Opening::Blank));
        let mut bytes = [0; BLOCK_BYTES];
        bytes[4095] = 1;
        assert_eq!(Opening::decide(&bytes), Err(Error::WrongMagic { found: 0 }));
    }

    #[test]
    fn each_wrong_field_is_named() {
        for (field, value, expected) in [
            ("magic", 1, "superblock magic: found 0x1, expected 0x8af27f64"),
            ("version", 2, "superblock version: found 2, expected 1"),
            (
                "region_size",
                24,
                "region_size: found 24 sectors, expected a power of two from 8 to 2097152",
            ),
            (
                "target_size",
                0,
                "superblock target_size: found 0 sectors, expected 1 to 36028797018963967",
            ),
        ] {
            let error = Superblock::decode(&patched(field, value)).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        let mut bytes = superblock().encode();
        bytes[400] ^= 1;
        let error = Superblock::decode(&bytes).unwrap_err().to_string();
        assert!(error.starts_with("block 0, clone superblock checksum: found 0x"), "{error}");
    }

    #[test]
    fn a_region_is_a_power_of_two_from_4_kib_to_1_gib() {
        for legal in [8, 16, 2_097_152] {
            assert_eq!(RegionSize::new(legal).unwrap().sectors(), legal);
        }
        for found in [0, 4, 7, 24, 4_194_304] {
            assert_eq!(RegionSize::new(found), Err(Error::BadRegionSize { found }));
        }
    }
}
