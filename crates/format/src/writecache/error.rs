//! What can be wrong with a cache device's header, in one line: field, found, expected.
//!
//! The caller knows the device's name and prints it first. [`Error::kernel_text`] gives the words
//! of the kernel's constructor for the same fault, for tools that match on them.

use super::{MAGIC, MAX_BLOCK_SIZE, MIN_BLOCK_SIZE, N_BLOCKS_END, SUPERBLOCK_BYTES, VERSION};

/// A fault of the superblock, or of the area it describes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than a superblock has.
    #[error("superblock: found {found} bytes, expected at least {}", SUPERBLOCK_BYTES)]
    ShortSuperblock {
        /// Bytes available.
        found: u64,
    },
    /// The magic is neither zero nor the right one: the device holds something else.
    #[error("superblock magic: found {found:#010x}, expected {:#010x}", MAGIC)]
    WrongMagic {
        /// Magic on the device.
        found: u32,
    },
    /// Magic 0 with version 1, or any other version: formatting stopped before its last write.
    #[error(
        "superblock magic: found 0 with version {version}, expected {:#010x} (formatting was \
         interrupted; zero the first sector to format again)",
        MAGIC
    )]
    InterruptedFormat {
        /// Version on the device, not 0.
        version: u32,
    },
    /// A version this format does not have.
    #[error("superblock version: found {found}, expected {}", VERSION)]
    WrongVersion {
        /// Version on the device.
        found: u32,
    },
    /// A block size that is no power of two from 512 to 4096.
    #[error(
        "block size: found {found} bytes, expected a power of two from {} to {}",
        MIN_BLOCK_SIZE,
        MAX_BLOCK_SIZE
    )]
    BadBlockSize {
        /// Block size given or on the device, in bytes.
        found: u32,
    },
    /// The device was formatted with another block size than the one asked for.
    #[error("superblock block size: found {found} bytes, expected {expected}")]
    BlockSizeMismatch {
        /// Block size on the device, in bytes.
        found: u32,
        /// Block size asked for, in bytes.
        expected: u32,
    },
    /// A cache without a single slot.
    #[error("superblock n_blocks: found 0, expected at least 1")]
    NoBlocks,
    /// More slots than the format allows.
    #[error("superblock n_blocks: found {found}, expected fewer than {}", N_BLOCKS_END)]
    TooManyBlocks {
        /// Number of slots on the device.
        found: u64,
    },
    /// The slots the superblock promises do not fit on the device.
    #[error(
        "area too small: n_blocks {n_blocks} needs {needed_bytes} bytes, the device has \
         {area_bytes}"
    )]
    AreaTooSmall {
        /// Number of slots on the device.
        n_blocks: u64,
        /// Bytes that metadata and slots take.
        needed_bytes: u64,
        /// Bytes from the start sector to the end of the device.
        area_bytes: u64,
    },
    /// Formatting: not even one slot fits.
    #[error(
        "area too small: one block of {block_size} bytes and its metadata need {needed_bytes} \
         bytes, the device has {area_bytes}"
    )]
    NoSpace {
        /// Block size asked for, in bytes.
        block_size: u32,
        /// Bytes that one slot and the metadata take.
        needed_bytes: u64,
        /// Bytes from the start sector to the end of the device.
        area_bytes: u64,
    },
}

impl Error {
    /// The kernel's words for this fault. Where the kernel has no message of its own (a device that
    /// ends inside the superblock, a count of 0 or beyond the limit), the nearest one that it has.
    #[must_use]
    pub fn kernel_text(&self) -> &'static str {
        match self {
            Error::WrongMagic { .. } | Error::InterruptedFormat { .. } => {
                "Invalid magic in the superblock"
            }
            Error::WrongVersion { .. } => "Invalid version in the superblock",
            Error::BadBlockSize { .. } => "Invalid block size",
            Error::BlockSizeMismatch { .. } => "Block size does not match superblock",
            Error::ShortSuperblock { .. }
            | Error::NoBlocks
            | Error::TooManyBlocks { .. }
            | Error::AreaTooSmall { .. }
            | Error::NoSpace { .. } => "Memory area is too small",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Error;

    #[test]
    fn messages_name_field_found_and_expected() {
        let said = [
            Error::WrongMagic { found: 0xEF53 }.to_string(),
            Error::WrongVersion { found: 2 }.to_string(),
            Error::BlockSizeMismatch { found: 512, expected: 4096 }.to_string(),
            Error::BadBlockSize { found: 1000 }.to_string(),
            Error::TooManyBlocks { found: u64::MAX }.to_string(),
        ];
        let expected = [
            "superblock magic: found 0x0000ef53, expected 0x23489321",
            "superblock version: found 2, expected 1",
            "superblock block size: found 512 bytes, expected 4096",
            "block size: found 1000 bytes, expected a power of two from 512 to 4096",
            "superblock n_blocks: found 18446744073709551615, expected fewer than 140737488355328",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn an_interrupted_format_says_what_to_do_in_one_line() {
        let error = Error::InterruptedFormat { version: 1 };
        assert_eq!(
            error.to_string(),
            "superblock magic: found 0 with version 1, expected 0x23489321 (formatting was \
             interrupted; zero the first sector to format again)"
        );
        assert_eq!(error.kernel_text(), "Invalid magic in the superblock");
    }
}
