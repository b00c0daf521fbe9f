//! Block numbers, device ids and the data block size: the units of a thin pool, each a type of its
//! own.
//!
//! Promises that a [`DeviceId`] fits 24 bits and that a [`DataBlockSize`] is one that the kernel
//! takes. A block number may be any number read from disk: the space maps know which of them exist.

use core::fmt;

use super::Error;

/// A data block is a multiple of this many sectors, and at least as large: 64 KiB.
pub const DATA_BLOCK_SECTORS_STEP: u32 = 128;
/// Sectors of the largest data block: 1 GiB.
pub const DATA_BLOCK_SECTORS_MAX: u32 = 1 << 21;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A block of the metadata device, counted in units of 4096 bytes.
    MetadataBlock
}
number! {
    /// A block of the data device, counted in units of the pool's data block size.
    DataBlock
}
number! {
    /// A block of a thin volume, counted in units of the pool's data block size.
    VirtualBlock
}

impl MetadataBlock {
    /// Where the superblock lies.
    pub const SUPERBLOCK: MetadataBlock = MetadataBlock(0);
}

impl DataBlock {
    /// The first number too large for a mapping.
    pub const END: DataBlock = DataBlock(1 << 40);
}

/// The number of a thin volume in messages and tables: at most 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(u32);

impl DeviceId {
    /// The largest id.
    pub const MAX: DeviceId = DeviceId((1 << 24) - 1);

    /// Takes an id from a table, a message or the key of a tree.
    ///
    /// # Errors
    /// [`Error::BadDeviceId`] beyond 24 bits.
    pub fn new(id: u64) -> Result<DeviceId, Error> {
        match u32::try_from(id) {
            Ok(id) if id <= DeviceId::MAX.0 => Ok(DeviceId(id)),
            _ => Err(Error::BadDeviceId { found: id }),
        }
    }

    /// The id as a number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// The id as the key of the top-level and the details tree.
    #[must_use]
    pub fn key(self) -> u64 {
        u64::from(self.0)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A legal data block size: a multiple of 64 KiB, up to 1 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataBlockSize(u32);

impl DataBlockSize {
    /// Takes a size in sectors.
    ///
    /// # Errors
    /// [`Error::BadDataBlockSize`] if the format does not allow it.
    pub fn new(sectors: u32) -> Result<DataBlockSize, Error> {
        let whole = sectors != 0 && sectors.is_multiple_of(DATA_BLOCK_SECTORS_STEP);
        if whole && sectors <= DATA_BLOCK_SECTORS_MAX {
            Ok(DataBlockSize(sectors))
        } else {
            Err(Error::BadDataBlockSize { found: sectors })
        }
    }

    /// The size in sectors.
    #[must_use]
    pub fn sectors(self) -> u32 {
        self.0
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        u64::from(self.0) * 512
    }
}

#[cfg(test)]
mod tests {
    use super::{DataBlockSize, DeviceId};
    use crate::thin::Error;

    #[test]
    fn a_device_id_has_24_bits() {
        assert_eq!(DeviceId::new(16_777_215), Ok(DeviceId::MAX));
        for found in [16_777_216, u64::MAX] {
            assert_eq!(DeviceId::new(found), Err(Error::BadDeviceId { found }));
        }
    }

    #[test]
    fn a_data_block_is_a_multiple_of_64_kib_up_to_1_gib() {
        for legal in [128, 384, 2_097_152] {
            assert_eq!(DataBlockSize::new(legal).unwrap().sectors(), legal);
        }
        for found in [0, 1, 127, 129, 2_097_280] {
            assert_eq!(DataBlockSize::new(found), Err(Error::BadDataBlockSize { found }));
        }
        assert_eq!(DataBlockSize::new(128).unwrap().bytes(), 65536);
    }
}
