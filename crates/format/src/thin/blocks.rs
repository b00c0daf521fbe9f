//! How the readers of metadata get blocks: the caller's I/O, behind one small trait.
//!
//! A reader asks for many blocks at once, in ascending order, so that a disk is read as it likes to
//! be; nothing here says how, or keeps a block.

use core::convert::Infallible;

use super::block::{self, BLOCK_BYTES, Block};
use super::{Error, MetadataBlock};

/// A metadata device to read.
pub trait Blocks {
    /// What ends the reading: a system that fails, a user who interrupts.
    type Error;

    /// Whole blocks on the device.
    fn count(&self) -> u64;

    /// Hands the blocks in `wanted` to `each`, in that order. They ascend, none twice, all below
    /// [`Blocks::count`]. `None` is a block that cannot be read.
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
    /// Takes the bytes of a device; what follows the last whole block is left out.
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

/// Why a block is not what was hoped for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Bad {
    /// It lies beyond the end.
    #[error("block {at}: expected one of the {count} blocks of the device")]
    Outside {
        /// The block.
        at: MetadataBlock,
        /// Blocks on the device.
        count: u64,
    },
    /// The drive does not give it.
    #[error("block {at}: it cannot be read")]
    Unreadable {
        /// The block.
        at: MetadataBlock,
    },
    /// It holds something else.
    #[error(transparent)]
    Wrong(#[from] Error),
}

/// Reads one block and has it decoded.
///
/// # Errors
/// Outside, reading has to end; inside, what is wrong with the block.
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
