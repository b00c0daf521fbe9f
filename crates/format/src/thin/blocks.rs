//! How the readers of metadata get blocks: by the caller's I/O, behind a small trait.
//!
//! A reader asks for many blocks at once, in ascending order, which is fastest on a disk. This
//! module neither does the I/O nor caches blocks.

use core::convert::Infallible;

use super::block::{self, BLOCK_BYTES, Block};
use super::{Error, MetadataBlock};

/// A metadata device to read.
pub trait Blocks {
    /// Why reading ends: a failure of the system, an interruption by the user.
    type Error;

    /// Whole blocks on the device.
    fn count(&self) -> u64;

    /// Calls `each` for the blocks in `wanted`, in that order. They ascend, without duplicates, all
    /// below [`Blocks::count`]. `None` means that the block cannot be read.
    ///
    /// # Errors
    /// Reading has to end.
    fn read(
        &mut self,
        wanted: &[MetadataBlock],
        each: &mut dyn FnMut(MetadataBlock, Option<&Block>),
    ) -> Result<(), Self::Error>;
}

/// A whole metadata device in memory.
#[derive(Debug, Clone, Copy)]
pub struct MemoryBlocks<'a>(&'a [u8]);

impl<'a> MemoryBlocks<'a> {
    /// Takes the bytes of a device; bytes after the last whole block are ignored.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> MemoryBlocks<'a> {
        MemoryBlocks(bytes)
    }
}

impl Blocks for MemoryBlocks<'_> {
    type Error = Infallible;

    fn count(&self) -> u64 {
        (self.0.len() / BLOCK_BYTES) as u64
    }

    fn read(
        &mut self,
        wanted: &[MetadataBlock],
        each: &mut dyn FnMut(MetadataBlock, Option<&Block>),
    ) -> Result<(), Infallible> {
        for at in wanted {
            let begin =
                usize::try_from(at.0).map_or(usize::MAX, |at| at.saturating_mul(BLOCK_BYTES));
            let bytes = self.0.get(begin..).and_then(|rest| rest.get(..BLOCK_BYTES));
            each(*at, bytes.and_then(|bytes| block::of(bytes).ok()));
        }
        Ok(())
    }
}

/// Why a block cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// It lies beyond the end of the device.
    #[error("block {at}: expected one of the {count} blocks of the device")]
    Outside {
        /// The block.
        at: MetadataBlock,
        /// Blocks on the device.
        count: u64,
    },
    /// The device cannot read it.
    #[error("block {at}: it cannot be read")]
    Unreadable {
        /// The block.
        at: MetadataBlock,
    },
    /// It is not what it should be.
    #[error(transparent)]
    Wrong(#[from] Error),
}

/// Reads one block and decodes it.
///
/// # Errors
/// Outer: reading has to end. Inner: what is wrong with the block.
pub fn read_one<B: Blocks, T>(
    blocks: &mut B,
    at: MetadataBlock,
    decode: impl FnOnce(&Block) -> Result<T, Error>,
) -> Result<Result<T, Bad>, B::Error> {
    let count = blocks.count();
    if at.0 >= count {
        return Ok(Err(Bad::Outside { at, count }));
    }
    let (mut decode, mut read) = (Some(decode), Err(Bad::Unreadable { at }));
    blocks.read(&[at], &mut |_, bytes| {
        if let (Some(bytes), Some(decode)) = (bytes, decode.take()) {
            read = decode(bytes).map_err(Bad::Wrong);
        }
    })?;
    Ok(read)
}
