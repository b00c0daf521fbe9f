//! The superblock: the roots of all trees, in one sector, rewritten last by every commit.
//!
//! Promises that a [`Superblock`] was verified, is of a known format, and has legal block sizes;
//! not that the blocks it names exist. The held superblock of a metadata snapshot is one too, in
//! another block and with empty space maps.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{self, BLOCK_BYTES, Block, Kind};
use super::space_map::RawSpaceMapRoot;
use super::value::MAPPING_TIME_BITS;
use super::{DataBlockSize, Error, Feature, Field, MetadataBlock, SpaceMapRoot};

/// The number at byte 32 of a superblock.
pub const MAGIC: u64 = 27_022_010;
/// The version to write. Reading ignores it, as the kernel does.
pub const VERSION: u32 = 2;
/// The flag that forbids use until the metadata has been checked.
pub const FLAG_NEEDS_CHECK: u32 = 1;
/// The largest time that mappings can hold. A snapshot at this time must be refused.
pub const TIME_MAX: u32 = (1 << MAPPING_TIME_BITS) - 1;

const METADATA_BLOCK_SECTORS: u32 = (BLOCK_BYTES / 512) as u32;
const SECTOR_BYTES: usize = 512;

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
    time: U32,
    trans_id: U64,
    held_root: U64,
    data_space_map_root: RawSpaceMapRoot,
    /// Not part of the format; the kernel leaves garbage here.
    data_slack: [u8; 96],
    metadata_space_map_root: RawSpaceMapRoot,
    /// Not part of the format; the kernel leaves garbage here.
    metadata_slack: [u8; 96],
    data_mapping_root: U64,
    device_details_root: U64,
    data_block_size: U32,
    metadata_block_size: U32,
    metadata_nr_blocks: U64,
    compat_flags: U32,
    compat_ro_flags: U32,
    incompat_flags: U32,
}

macro_rules! field {
    ($name:ident, $size:expr) => {
        Field { name: stringify!($name), offset: offset_of!(RawSuperblock, $name), size: $size }
    };
}

/// Where each field of the superblock lies. The roots of the space maps are shown with the slack
/// behind them.
pub const SUPERBLOCK_FIELDS: [Field; 19] = [
    field!(csum, 4),
    field!(flags, 4),
    field!(blocknr, 8),
    field!(uuid, 16),
    field!(magic, 8),
    field!(version, 4),
    field!(time, 4),
    field!(trans_id, 8),
    field!(held_root, 8),
    field!(data_space_map_root, 128),
    field!(metadata_space_map_root, 128),
    field!(data_mapping_root, 8),
    field!(device_details_root, 8),
    field!(data_block_size, 4),
    field!(metadata_block_size, 4),
    field!(metadata_nr_blocks, 8),
    field!(compat_flags, 4),
    field!(compat_ro_flags, 4),
    field!(incompat_flags, 4),
];

const _: () = {
    assert!(size_of::<RawSuperblock>() == 364);
    // A drive writes one sector whole.
    assert!(size_of::<RawSuperblock>() <= SECTOR_BYTES);
    assert!(offset_of!(RawSuperblock, magic) == 32);
    assert!(offset_of!(RawSuperblock, trans_id) == 48);
    assert!(offset_of!(RawSuperblock, data_space_map_root) == 64);
    assert!(offset_of!(RawSuperblock, metadata_space_map_root) == 192);
    assert!(offset_of!(RawSuperblock, data_mapping_root) == 320);
    assert!(offset_of!(RawSuperblock, data_block_size) == 336);
    assert!(offset_of!(RawSuperblock, incompat_flags) == 360);
};

/// What opening a metadata device finds in its first block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// Every byte is zero: the device is to be formatted.
    Blank,
    /// Metadata of a pool.
    Existing(Box<Superblock>),
}

impl Opening {
    /// Decides between formatting and opening from block 0.
    ///
    /// # Errors
    /// Every way in which the bytes are neither blank nor a superblock.
    pub fn decide(bytes: &Block) -> Result<Opening, Error> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(Opening::Blank);
        }
        let superblock = Superblock::decode(bytes, MetadataBlock::SUPERBLOCK)?;
        Ok(Opening::Existing(Box::new(superblock)))
    }
}

/// A verified superblock, or the held copy of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Kept as found; see [`FLAG_NEEDS_CHECK`].
    pub flags: u32,
    /// Zeros from the kernel; kept as found.
    pub uuid: [u8; 16],
    /// Kept as found.
    pub version: u32,
    /// How many snapshots were taken in the pool's life.
    pub time: u32,
    /// The user's transaction id.
    pub transaction_id: u64,
    /// The superblock of the metadata snapshot, if one is held.
    pub held_root: Option<MetadataBlock>,
    /// Reference counts of data blocks.
    pub data_space_map: SpaceMapRoot,
    /// Reference counts of metadata blocks.
    pub metadata_space_map: SpaceMapRoot,
    /// Root of the top-level tree: device id to root of its mapping tree.
    pub mapping_root: MetadataBlock,
    /// Root of the details tree: device id to [`DeviceDetails`](super::DeviceDetails).
    pub details_root: MetadataBlock,
    /// The unit of mapping.
    pub data_block_size: DataBlockSize,
    /// Metadata blocks when the pool was formatted. Growth does not update it; do not rely on it.
    pub metadata_blocks_at_format: u64,
    /// Kept as found: features that a program may ignore.
    pub compat_flags: u32,
    /// Kept as found; see [`Superblock::refuse_writing`].
    pub compat_ro_flags: u32,
}

impl Superblock {
    /// Reads the superblock that lies at `at`: block 0, or where a metadata snapshot is held.
    ///
    /// # Errors
    /// What is wrong with it. The magic is checked first: without it this is not thin metadata.
    pub fn decode(bytes: &Block, at: MetadataBlock) -> Result<Superblock, Error> {
        let (raw, _rest) = RawSuperblock::ref_from_prefix(bytes)
            .expect("a block is longer than the used part, which needs no alignment");
        match raw.magic.get() {
            MAGIC => block::verify(bytes, Kind::Superblock, at)?,
            found => return Err(Error::WrongMagic { found }),
        }
        match raw.metadata_block_size.get() {
            METADATA_BLOCK_SECTORS => {}
            found => return Err(Error::BadMetadataBlockSize { found }),
        }
        match raw.incompat_flags.get() {
            0 => {}
            found => return Err(Error::UnknownFeature { feature: Feature::Incompat, found }),
        }
        Superblock::from_raw(raw)
    }

    fn from_raw(raw: &RawSuperblock) -> Result<Superblock, Error> {
        Ok(Superblock {
            flags: raw.flags.get(),
            uuid: raw.uuid,
            version: raw.version.get(),
            time: raw.time.get(),
            transaction_id: raw.trans_id.get(),
            held_root: Some(MetadataBlock(raw.held_root.get())).filter(|root| root.0 != 0),
            data_space_map: raw.data_space_map_root.decode(),
            metadata_space_map: raw.metadata_space_map_root.decode(),
            mapping_root: MetadataBlock(raw.data_mapping_root.get()),
            details_root: MetadataBlock(raw.device_details_root.get()),
            data_block_size: DataBlockSize::new(raw.data_block_size.get())?,
            metadata_blocks_at_format: raw.metadata_nr_blocks.get(),
            compat_flags: raw.compat_flags.get(),
            compat_ro_flags: raw.compat_ro_flags.get(),
        })
    }

    /// Refuses writing if the metadata has a feature that forbids it to programs without it.
    ///
    /// # Errors
    /// [`Error::UnknownFeature`] for any compat_ro flag.
    pub fn refuse_writing(&self) -> Result<(), Error> {
        match self.compat_ro_flags {
            0 => Ok(()),
            found => Err(Error::UnknownFeature { feature: Feature::CompatRo, found }),
        }
    }

    /// Whether use is forbidden until the metadata was checked.
    #[must_use]
    pub fn needs_check(&self) -> bool {
        self.flags & FLAG_NEEDS_CHECK != 0
    }

    /// Sets or clears the flag of [`Superblock::needs_check`].
    pub fn set_needs_check(&mut self, needs_check: bool) {
        self.flags = self.flags & !FLAG_NEEDS_CHECK | u32::from(needs_check);
    }

    /// What a metadata snapshot of this superblock holds: the trees, and no space maps.
    #[must_use]
    pub fn held_copy(&self) -> Superblock {
        Superblock {
            held_root: None,
            data_space_map: SpaceMapRoot::EMPTY,
            metadata_space_map: SpaceMapRoot::EMPTY,
            ..self.clone()
        }
    }

    /// The sealed block for this place. All but the first sector is zeros and so never changes:
    /// that makes a torn write of the block harmless.
    #[must_use]
    pub fn encode(&self, at: MetadataBlock) -> Block {
        let raw = RawSuperblock {
            csum: U32::ZERO,
            flags: U32::new(self.flags),
            blocknr: U64::ZERO,
            uuid: self.uuid,
            magic: U64::new(MAGIC),
            version: U32::new(self.version),
            time: U32::new(self.time),
            trans_id: U64::new(self.transaction_id),
            held_root: U64::new(self.held_root.map_or(0, |root| root.0)),
            data_space_map_root: RawSpaceMapRoot::encode(&self.data_space_map),
            data_slack: [0; 96],
            metadata_space_map_root: RawSpaceMapRoot::encode(&self.metadata_space_map),
            metadata_slack: [0; 96],
            data_mapping_root: U64::new(self.mapping_root.0),
            device_details_root: U64::new(self.details_root.0),
            data_block_size: U32::new(self.data_block_size.sectors()),
            metadata_block_size: U32::new(METADATA_BLOCK_SECTORS),
            metadata_nr_blocks: U64::new(self.metadata_blocks_at_format),
            compat_flags: U32::new(self.compat_flags),
            compat_ro_flags: U32::new(self.compat_ro_flags),
            incompat_flags: U32::ZERO,
        };
        let mut bytes = [0; BLOCK_BYTES];
        bytes[..size_of::<RawSuperblock>()].copy_from_slice(raw.as_bytes());
        block::seal(&mut bytes, Kind::Superblock, at);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::{FLAG_NEEDS_CHECK, Opening, SUPERBLOCK_FIELDS, Superblock, VERSION};
    use crate::thin::block::{self, BLOCK_BYTES, Block, Kind};
    use crate::thin::{DataBlockSize, Error, Feature, MetadataBlock, SpaceMapRoot};

    fn superblock() -> Superblock {
        Superblock {
            flags: 0,
            uuid: [7; 16],
            version: VERSION,
            time: 3,
            transaction_id: 42,
            held_root: Some(MetadataBlock(54)),
            data_space_map: SpaceMapRoot {
                blocks: 900,
                allocated: 12,
                bitmap_root: MetadataBlock(11),
                ref_count_root: MetadataBlock(12),
            },
            metadata_space_map: SpaceMapRoot {
                blocks: 128,
                allocated: 20,
                bitmap_root: MetadataBlock(1),
                ref_count_root: MetadataBlock(2),
            },
            mapping_root: MetadataBlock(13),
            details_root: MetadataBlock(14),
            data_block_size: DataBlockSize::new(128).unwrap(),
            metadata_blocks_at_format: 128,
            compat_flags: 0,
            compat_ro_flags: 0,
        }
    }

    fn patched(field: &str, value: u32) -> Block {
        let mut bytes = superblock().encode(MetadataBlock::SUPERBLOCK);
        let field = SUPERBLOCK_FIELDS.iter().find(|known| known.name == field).unwrap();
        bytes[field.offset..field.offset + 4].copy_from_slice(&value.to_le_bytes());
        block::seal(&mut bytes, Kind::Superblock, MetadataBlock::SUPERBLOCK);
        bytes
    }

    #[test]
    fn a_superblock_survives_encoding_at_any_place() {
        for at in [MetadataBlock::SUPERBLOCK, MetadataBlock(54)] {
            let bytes = superblock().encode(at);
            assert_eq!(Superblock::decode(&bytes, at), Ok(superblock()));
            assert!(bytes[364..].iter().all(|byte| *byte == 0));
        }
        let held = superblock().held_copy();
        assert_eq!((held.held_root, held.data_space_map), (None, SpaceMapRoot::EMPTY));
    }

    #[test]
    fn only_a_whole_block_of_zeros_is_blank() {
        assert_eq!(Opening::decide(&[0; BLOCK_BYTES]), Ok(Opening::Blank));
        let mut bytes = [0; BLOCK_BYTES];
        bytes[4095] = 1;
        assert_eq!(Opening::decide(&bytes), Err(Error::WrongMagic { found: 0 }));
        let bytes = superblock().encode(MetadataBlock::SUPERBLOCK);
        assert_eq!(Opening::decide(&bytes), Ok(Opening::Existing(Box::new(superblock()))));
    }

    #[test]
    fn unknown_superblock_values_are_refused_each_with_its_own_error() {
        let cases = [
            ("magic", 1, Error::WrongMagic { found: 1 }),
            ("data_block_size", 100, Error::BadDataBlockSize { found: 100 }),
            ("metadata_block_size", 16, Error::BadMetadataBlockSize { found: 16 }),
            ("incompat_flags", 2, Error::UnknownFeature { feature: Feature::Incompat, found: 2 }),
        ];
        for (field, value, expected) in cases {
            assert_eq!(
                Superblock::decode(&patched(field, value), MetadataBlock::SUPERBLOCK),
                Err(expected)
            );
        }
        let read_only =
            Superblock::decode(&patched("compat_ro_flags", 1), MetadataBlock::SUPERBLOCK).unwrap();
        let expected = Error::UnknownFeature { feature: Feature::CompatRo, found: 1 };
        assert_eq!(read_only.refuse_writing(), Err(expected));
        assert_eq!(superblock().refuse_writing(), Ok(()));
    }

    #[test]
    fn needs_check_is_one_bit_of_the_flags() {
        let mut superblock = superblock();
        superblock.flags = 6;
        superblock.set_needs_check(true);
        assert_eq!((superblock.flags, superblock.needs_check()), (6 | FLAG_NEEDS_CHECK, true));
        superblock.set_needs_check(false);
        assert_eq!((superblock.flags, superblock.needs_check()), (6, false));
    }
}
