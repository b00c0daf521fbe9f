//! Chunk numbers and the chunk size: the units of a snapshot, each a type of its own.
//!
//! Promises that a [`ChunkSize`] is a power of two of at most [`CHUNK_SECTORS_MAX`] sectors. A
//! chunk number may be any number read from disk: the [`Layout`](super::Layout) knows which of them
//! exist.

use core::fmt;

use super::{Error, RECORD_BYTES, SECTOR_BYTES};

/// Largest chunk size in sectors that the kernel takes; the largest power of two within is 1 GiB.
pub const CHUNK_SECTORS_MAX: u32 = (1 << 22) - 1;
/// Chunk size in sectors of a table that asks for 0, unless the devices' blocks are larger.
pub const DEFAULT_CHUNK_SECTORS: u32 = 32;
/// First chunk number that a record cannot name: the kernel keeps a run length in the bits above.
pub const COW_CHUNKS_END: u64 = 1 << 56;

/// A chunk of the origin, counted from sector 0 of the mapped device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginChunk(pub u64);

/// A chunk of the COW device, counted from its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CowChunk(pub u64);

impl fmt::Display for OriginChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for CowChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A legal chunk size: a power of two sectors, from one sector to 1 GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkSize(u32);

impl ChunkSize {
    /// Takes a size in sectors.
    ///
    /// # Errors
    /// [`Error::BadChunkSize`] if the format does not allow it.
    pub fn new(sectors: u32) -> Result<ChunkSize, Error> {
        if sectors.is_power_of_two() && sectors <= CHUNK_SECTORS_MAX {
            Ok(ChunkSize(sectors))
        } else {
            Err(Error::BadChunkSize { found: sectors })
        }
    }

    /// Takes the size from a table line, in sectors: 0 means the default. `block_bytes` is the
    /// larger of both devices' logical block sizes.
    ///
    /// # Errors
    /// The format does not allow the size, or it is not a multiple of a logical block.
    pub fn from_table(sectors: u32, block_bytes: u32) -> Result<ChunkSize, Error> {
        let default = DEFAULT_CHUNK_SECTORS.max(block_bytes.div_ceil(SECTOR_BYTES as u32));
        let size = ChunkSize::new(if sectors == 0 { default } else { sectors })?;
        size.suits(block_bytes).map(|()| size)
    }

    /// Whether devices with logical blocks of `block_bytes` can hold chunks of this size.
    ///
    /// # Errors
    /// [`Error::ChunkWithinBlock`] if a chunk is not a multiple of a block.
    pub fn suits(self, block_bytes: u32) -> Result<(), Error> {
        match self.bytes().checked_rem(u64::from(block_bytes)) {
            Some(0) | None => Ok(()),
            Some(_) => Err(Error::ChunkWithinBlock { found: self.0, block_bytes }),
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
        u64::from(self.0) * SECTOR_BYTES
    }

    /// Records that an area holds: from 32 to 2^26.
    #[must_use]
    pub fn records_per_area(self) -> u64 {
        self.bytes() / RECORD_BYTES as u64
    }

    /// The chunk that contains a sector of the mapped device.
    #[must_use]
    pub fn chunk_of(self, sector: u64) -> OriginChunk {
        OriginChunk(sector >> self.0.trailing_zeros())
    }

    /// How many sectors into its chunk a sector lies.
    #[must_use]
    pub fn offset_in_chunk(self, sector: u64) -> u64 {
        sector & u64::from(self.0 - 1)
    }

    /// Chunks on a device of this many sectors, including a partial last one.
    #[must_use]
    pub fn chunks_of(self, sectors: u64) -> u64 {
        sectors.div_ceil(u64::from(self.0))
    }

    /// First sector of an origin chunk; `None` beyond every possible device.
    #[must_use]
    pub fn origin_sector(self, chunk: OriginChunk) -> Option<u64> {
        chunk.0.checked_mul(u64::from(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::{ChunkSize, OriginChunk};
    use crate::snapshot::Error;

    #[test]
    fn a_chunk_is_a_power_of_two_up_to_one_gibibyte() {
        for legal in [1, 2, 8, 1 << 21] {
            assert_eq!(ChunkSize::new(legal).unwrap().sectors(), legal);
        }
        for found in [0, 3, 24, (1 << 22) - 1, 1 << 22, u32::MAX] {
            assert_eq!(ChunkSize::new(found), Err(Error::BadChunkSize { found }));
        }
        assert_eq!(ChunkSize::new(1 << 21).unwrap().bytes(), 1 << 30);
        assert_eq!(ChunkSize::new(1 << 21).unwrap().records_per_area(), 1 << 26);
    }

    #[test]
    fn a_table_may_leave_the_chunk_size_open_but_not_below_a_block() {
        assert_eq!(ChunkSize::from_table(0, 512).unwrap().sectors(), 32);
        assert_eq!(ChunkSize::from_table(0, 65536).unwrap().sectors(), 128);
        assert_eq!(ChunkSize::from_table(8, 4096).unwrap().sectors(), 8);
        let expected = Error::ChunkWithinBlock { found: 4, block_bytes: 4096 };
        assert_eq!(ChunkSize::from_table(4, 4096), Err(expected));
        assert_eq!(ChunkSize::from_table(0, u32::MAX), Err(Error::BadChunkSize { found: 1 << 23 }));
    }

    #[test]
    fn sectors_fall_into_chunks_of_the_mapped_device() {
        let size = ChunkSize::new(8).unwrap();
        assert_eq!((size.chunk_of(17), size.offset_in_chunk(17)), (OriginChunk(2), 1));
        assert_eq!(size.chunks_of(17), 3);
        assert_eq!(size.origin_sector(OriginChunk(2)), Some(16));
        assert_eq!(size.origin_sector(OriginChunk(u64::MAX)), None);
    }
}
