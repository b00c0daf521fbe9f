//! What can be wrong with an exception store, in one line: field, found, expected.
//!
//! The caller knows the device's name and prints it first. [`Error::kernel_errno`] is the error of
//! the kernel's constructor for the same fault.

use super::{CHUNK_SECTORS_MAX, HEADER_BYTES, MAGIC, VERSION};

/// A fault of the header, of a chunk size, or of the device they are for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Fewer bytes than a header has.
    #[error("header: found {found} bytes, expected at least {}", HEADER_BYTES)]
    ShortHeader {
        /// Bytes available.
        found: u64,
    },
    /// The magic is neither zero nor the right one: the device holds something else.
    #[error("header magic: found {found:#010x}, expected {:#010x}", MAGIC)]
    WrongMagic {
        /// Magic on the device.
        found: u32,
    },
    /// A version this format does not have.
    #[error("header version: found {found}, expected {}", VERSION)]
    WrongVersion {
        /// Version on the device.
        found: u32,
    },
    /// A chunk size, in the header or a table, that is not a power of two in range.
    #[error(
        "chunk size: found {found} sectors, expected a power of two of at most {}",
        CHUNK_SECTORS_MAX
    )]
    BadChunkSize {
        /// Chunk size in sectors.
        found: u32,
    },
    /// The chunk size is not a multiple of a device's logical block.
    #[error(
        "chunk size: found {found} sectors, expected a multiple of the logical block size of \
         {block_bytes} bytes"
    )]
    ChunkWithinBlock {
        /// Chunk size in sectors.
        found: u32,
        /// The device's logical block size.
        block_bytes: u32,
    },
    /// Header and first area do not fit.
    #[error("device: found {device_sectors} sectors, expected at least {needed_sectors}")]
    DeviceTooSmall {
        /// Size of the COW device.
        device_sectors: u64,
        /// Size of two chunks.
        needed_sectors: u64,
    },
}

impl Error {
    /// The name of the error that the kernel's constructor fails with.
    #[must_use]
    pub fn kernel_errno(&self) -> &'static str {
        match self {
            Error::WrongMagic { .. } => "ENXIO",
            Error::WrongVersion { .. }
            | Error::BadChunkSize { .. }
            | Error::ChunkWithinBlock { .. } => "EINVAL",
            Error::ShortHeader { .. } | Error::DeviceTooSmall { .. } => "EIO",
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
            Error::BadChunkSize { found: 24 }.to_string(),
            Error::ChunkWithinBlock { found: 1, block_bytes: 4096 }.to_string(),
            Error::DeviceTooSmall { device_sectors: 8, needed_sectors: 16 }.to_string(),
        ];
        let expected = [
            "header magic: found 0x0000ef53, expected 0x70416e53",
            "header version: found 2, expected 1",
            "chunk size: found 24 sectors, expected a power of two of at most 4194303",
            "chunk size: found 1 sectors, expected a multiple of the logical block size of 4096 \
             bytes",
            "device: found 8 sectors, expected at least 16",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn foreign_bytes_and_a_foreign_version_fail_as_in_the_kernel() {
        assert_eq!(Error::WrongMagic { found: 1 }.kernel_errno(), "ENXIO");
        assert_eq!(Error::WrongVersion { found: 2 }.kernel_errno(), "EINVAL");
    }
}
