//! What can be wrong with a superblock, in one line: field, found, expected.
//!
//! The caller knows the device's name and prints it first.

use super::superblock::{BUCKETS_MIN, MAGIC, SUPERBLOCK_BYTES};

/// A fault of a superblock, or of the device that it describes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than a superblock has.
    #[error("superblock: found {found} bytes, expected {}", SUPERBLOCK_BYTES)]
    Short {
        /// Bytes available.
        found: usize,
    },
    /// The device holds something else.
    #[error("superblock magic: found {}, expected {}", Hex(found), Hex(&MAGIC))]
    Magic {
        /// Magic on the device.
        found: [u8; 16],
    },
    /// The superblock says that it lies elsewhere.
    #[error("superblock offset: found sector {found}, expected 8")]
    Offset {
        /// Offset on the device.
        found: u64,
    },
    /// A version that this format does not have.
    #[error("superblock version: found {found}, expected 0, 1, 3, 4, 5 or 6")]
    Version {
        /// Version on the device.
        found: u64,
    },
    /// The other kind of device was expected.
    #[error("superblock version: found {found}, expected {expected}")]
    Kind {
        /// What it is.
        found: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// The bytes changed since they were written.
    #[error("superblock checksum: found {found:#018x}, expected {expected:#018x}")]
    Checksum {
        /// Checksum on the device.
        found: u64,
        /// Checksum of the bytes.
        expected: u64,
    },
    /// More journal buckets than there is room for.
    #[error("superblock keys: found {found}, expected at most 256")]
    JournalBuckets {
        /// Number on the device.
        found: u16,
    },
    /// A number that is out of range.
    #[error("superblock {field}: found {found}, expected {expected}")]
    Field {
        /// The field's name in the format's documentation.
        field: &'static str,
        /// Value on the device.
        found: u64,
        /// What it should be.
        expected: &'static str,
    },
    /// An identifier of zeros.
    #[error("superblock {field}: found zeros, expected a UUID")]
    NoUuid {
        /// The field's name.
        field: &'static str,
    },
    /// Features that this crate does not know.
    #[error("superblock {field}: found {found:#x}, expected no bits but {known:#x}")]
    Features {
        /// The field's name.
        field: &'static str,
        /// Bits on the device.
        found: u64,
        /// Bits that are known.
        known: u64,
    },
    /// A cache that needs more buckets.
    #[error("superblock nbuckets: found {found}, expected at least {}", BUCKETS_MIN)]
    FewBuckets {
        /// Number on the device.
        found: u64,
    },
    /// A journal bucket that is not where the others say.
    #[error("superblock journal bucket {index}: found bucket {found}, expected {expected}")]
    JournalBucket {
        /// Which.
        index: usize,
        /// Bucket on the device.
        found: u64,
        /// Where it should be.
        expected: u64,
    },
    /// The device is too small for what the superblock says.
    #[error("device size: found {found} sectors, expected at least {expected}")]
    DeviceSize {
        /// Sectors of the device.
        found: u64,
        /// Sectors that it should have.
        expected: u64,
    },
}

struct Hex<'a>(&'a [u8; 16]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
