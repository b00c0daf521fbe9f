//! The layout of a cache device: the only source of its offsets.
//!
//! Promises that a [`Geometry`] fits the area it was made for, so that none of its arithmetic can
//! overflow, whatever numbers the superblock held. Must never be built from unchecked numbers.

use core::ops::Range;

use super::{
    ENTRY_BYTES, Entry, Error, SECTOR_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_WRITE_BYTES, Superblock,
};

/// Smallest cache block: one sector.
pub const MIN_BLOCK_SIZE: u32 = 512;
/// Largest cache block: one page.
pub const MAX_BLOCK_SIZE: u32 = 4096;
/// First slot count that is too large; at 4 KiB a block, metadata and slots stay below 2^60 bytes.
pub const N_BLOCKS_END: u64 = 1 << 47;
/// SSD mode writes its metadata in regions of this size, clipped at the end of the metadata.
pub const METADATA_REGION_BYTES: u64 = 64 << 10;

/// A legal cache block size: a power of two from 512 to 4096 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(u32);

impl BlockSize {
    /// Takes a size in bytes.
    ///
    /// # Errors
    /// [`Error::BadBlockSize`] if the format does not allow it.
    pub fn new(bytes: u32) -> Result<BlockSize, Error> {
        if bytes.is_power_of_two() && (MIN_BLOCK_SIZE..=MAX_BLOCK_SIZE).contains(&bytes) {
            Ok(BlockSize(bytes))
        } else {
            Err(Error::BadBlockSize { found: bytes })
        }
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        self.0
    }

    /// The size in sectors of 512 bytes.
    #[must_use]
    pub fn sectors(self) -> u32 {
        self.0 / MIN_BLOCK_SIZE
    }
}

/// The layout of one cache device. Offsets are bytes from the start of the area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    block_size: BlockSize,
    n_blocks: u64,
    data_offset: u64,
}

impl Geometry {
    /// Lays out a fresh cache with as many slots as fit in `area_bytes`.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if not one slot fits, [`Error::TooManyBlocks`] if more fit than the
    /// format can count.
    pub fn for_format(area_bytes: u64, block_size: BlockSize) -> Result<Geometry, Error> {
        let block_bytes = u64::from(block_size.bytes());
        // Without the superblock and the rounding this is too high by a slot or two, and never too
        // low.
        let mut n_blocks = area_bytes / (block_bytes + ENTRY_BYTES as u64);
        if n_blocks >= N_BLOCKS_END {
            return Err(Error::TooManyBlocks { found: n_blocks });
        }
        while n_blocks > 0 {
            let geometry = Geometry::with_n_blocks(n_blocks, block_size);
            if geometry.area_bytes() <= area_bytes {
                return Ok(geometry);
            }
            n_blocks -= 1;
        }
        let needed_bytes = Geometry::with_n_blocks(1, block_size).area_bytes();
        Err(Error::NoSpace { block_size: block_size.bytes(), needed_bytes, area_bytes })
    }

    /// Lays out an existing cache. The superblock's slot count is authoritative: on a device that
    /// has grown since, the cache keeps its old size.
    ///
    /// # Errors
    /// [`Error::AreaTooSmall`] if the slots do not fit in `area_bytes`.
    pub fn of_superblock(superblock: &Superblock, area_bytes: u64) -> Result<Geometry, Error> {
        let geometry = Geometry::with_n_blocks(superblock.n_blocks(), superblock.block_size());
        let needed_bytes = geometry.area_bytes();
        if needed_bytes > area_bytes {
            let n_blocks = geometry.n_blocks;
            return Err(Error::AreaTooSmall { n_blocks, needed_bytes, area_bytes });
        }
        Ok(geometry)
    }

    fn with_n_blocks(n_blocks: u64, block_size: BlockSize) -> Geometry {
        assert!(n_blocks < N_BLOCKS_END, "the slot count was checked before laying it out");
        let table_end = SUPERBLOCK_BYTES as u64 + n_blocks * ENTRY_BYTES as u64;
        let data_offset = table_end.next_multiple_of(u64::from(block_size.bytes()));
        Geometry { block_size, n_blocks, data_offset }
    }

    /// The cache's block size.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Number of slots, at least 1.
    #[must_use]
    pub fn n_blocks(&self) -> u64 {
        self.n_blocks
    }

    /// Sectors in one cache block: `original_sector` is a multiple of it.
    #[must_use]
    pub fn sectors_per_block(&self) -> u32 {
        self.block_size.sectors()
    }

    /// Byte offset of slot 0, a multiple of the block size.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Size of the metadata: superblock, slot table and padding, which end where slot 0 begins.
    #[must_use]
    pub fn metadata_bytes(&self) -> u64 {
        self.data_offset
    }

    /// Bytes of the area in use: metadata and slots.
    #[must_use]
    pub fn area_bytes(&self) -> u64 {
        self.data_offset + self.n_blocks * u64::from(self.block_size.bytes())
    }

    /// Byte offset of a slot's data.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn slot_offset(&self, slot: u64) -> u64 {
        assert!(slot < self.n_blocks, "slot {slot} of {}", self.n_blocks);
        self.data_offset + slot * u64::from(self.block_size.bytes())
    }

    /// Sector of a slot's data, from the start of the area.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn slot_sector(&self, slot: u64) -> u64 {
        self.slot_offset(slot) / SECTOR_BYTES
    }

    /// Byte offset of a slot's entry.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn entry_offset(&self, slot: u64) -> u64 {
        assert!(slot < self.n_blocks, "slot {slot} of {}", self.n_blocks);
        SUPERBLOCK_BYTES as u64 + slot * ENTRY_BYTES as u64
    }

    /// Number of metadata regions; the last may be short.
    #[must_use]
    pub fn region_count(&self) -> u64 {
        self.metadata_bytes().div_ceil(METADATA_REGION_BYTES)
    }

    /// Index of the metadata region that holds a slot's entry. An entry never straddles two.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use]
    pub fn region_of_entry(&self, slot: u64) -> u64 {
        self.entry_offset(slot) / METADATA_REGION_BYTES
    }

    /// Byte range of a metadata region: [`METADATA_REGION_BYTES`] long, clipped at the end of the
    /// metadata, hence always whole blocks.
    ///
    /// # Panics
    /// If there is no such region.
    #[must_use]
    pub fn region_bytes(&self, region: u64) -> Range<u64> {
        assert!(region < self.region_count(), "region {region} of {}", self.region_count());
        let begin = region * METADATA_REGION_BYTES;
        begin..self.metadata_bytes().min(begin + METADATA_REGION_BYTES)
    }

    /// Byte range of the write that commits: it rewrites the superblock and the first entries.
    #[must_use]
    pub fn superblock_write(&self) -> Range<u64> {
        let len = SUPERBLOCK_WRITE_BYTES.max(u64::from(self.block_size.bytes()));
        0..self.metadata_bytes().min(len)
    }

    /// Whether the first bytes of an area are those of an interrupted format: a superblock of
    /// zeros, and entries that are marked unused or were never written. No other data looks like
    /// this.
    #[must_use]
    pub fn is_interrupted_format(area_start: &[u8]) -> bool {
        let Some((superblock, entries)) = area_start.split_at_checked(SUPERBLOCK_BYTES) else {
            return false;
        };
        let unused = Entry::NEVER_USED.encode();
        superblock.iter().all(|byte| *byte == 0)
            && entries
                .chunks(ENTRY_BYTES)
                .all(|entry| entry == unused || entry.iter().all(|byte| *byte == 0))
    }

    /// Fills a piece of the metadata that starts at byte `offset` of the area with the bytes that
    /// formatting writes there: unused entries, zeros around them, and the given superblock bytes.
    pub fn fill_fresh(&self, superblock: &[u8; SUPERBLOCK_BYTES], offset: u64, piece: &mut [u8]) {
        piece.fill(0);
        let table_end = SUPERBLOCK_BYTES as u64 + self.n_blocks * ENTRY_BYTES as u64;
        let unused = Entry::NEVER_USED.encode();
        for (position, byte) in (offset..).zip(piece.iter_mut()) {
            *byte = match usize::try_from(position) {
                Ok(i) if i < SUPERBLOCK_BYTES => superblock[i],
                _ if position < table_end => unused[(position % ENTRY_BYTES as u64) as usize],
                _ => break,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::{BlockSize, Geometry, METADATA_REGION_BYTES, N_BLOCKS_END};
    use crate::writecache::{Error, SUPERBLOCK_BYTES, Superblock};

    fn bs(bytes: u32) -> BlockSize {
        BlockSize::new(bytes).unwrap()
    }

    /// The formatting rule by counting upwards: the reference model.
    fn naive_n_blocks(area_bytes: u64, block_size: u64) -> u64 {
        let mut n_blocks = 0;
        loop {
            let mut data_offset = 0;
            while data_offset < 64 + 16 * (n_blocks + 1) {
                data_offset += block_size;
            }
            if data_offset + (n_blocks + 1) * block_size > area_bytes {
                return n_blocks;
            }
            n_blocks += 1;
        }
    }

    #[test]
    fn the_examples_of_the_specification_come_out() {
        let large = Geometry::for_format(256 << 10, bs(4096)).unwrap();
        assert_eq!((large.n_blocks(), large.data_offset()), (63, 4096));
        let small = Geometry::for_format(36352, bs(512)).unwrap();
        assert_eq!((small.n_blocks(), small.data_offset()), (68, 1536));
    }

    #[test]
    fn an_area_without_room_for_one_slot_is_refused() {
        let found = Geometry::for_format(8191, bs(4096));
        let expected = Error::NoSpace { block_size: 4096, needed_bytes: 8192, area_bytes: 8191 };
        assert_eq!(found, Err(expected));
        assert_eq!(Geometry::for_format(8192, bs(4096)).unwrap().n_blocks(), 1);
    }

    #[test]
    fn an_area_beyond_the_slot_limit_is_refused() {
        let found = Geometry::for_format(u64::MAX, bs(512));
        assert_eq!(found, Err(Error::TooManyBlocks { found: u64::MAX / 528 }));
    }

    #[test]
    fn a_shrunken_device_is_refused_and_a_grown_one_keeps_its_size() {
        let geometry = Geometry::for_format(256 << 10, bs(4096)).unwrap();
        let superblock = Superblock::fresh(&geometry);
        assert_eq!(Geometry::of_superblock(&superblock, 1 << 40), Ok(geometry));
        let too_small = Geometry::of_superblock(&superblock, (256 << 10) - 1);
        let expected =
            Error::AreaTooSmall { n_blocks: 63, needed_bytes: 262_144, area_bytes: 262_143 };
        assert_eq!(too_small, Err(expected));
    }

    #[test]
    fn the_last_slot_of_the_largest_cache_has_an_offset() {
        let geometry = Geometry::with_n_blocks(N_BLOCKS_END - 1, bs(4096));
        let last = geometry.slot_offset(N_BLOCKS_END - 2);
        assert_eq!(last + 4096, geometry.area_bytes());
        assert!(geometry.entry_offset(N_BLOCKS_END - 2) < geometry.metadata_bytes());
    }

    #[test]
    fn interrupted_format_is_distinguished_from_other_data() {
        let geometry = Geometry::for_format(36352, bs(512)).unwrap();
        let mut head = vec![0; 4096];
        assert!(Geometry::is_interrupted_format(&head));
        geometry.fill_fresh(&[0; SUPERBLOCK_BYTES], 0, &mut head);
        assert!(Geometry::is_interrupted_format(&head));
        // A sector that was not written yet.
        head[512..1024].fill(0);
        assert!(Geometry::is_interrupted_format(&head));
        for (place, byte) in [(0, 1), (63, 0xFF), (64, 0), (600, 0xFF), (4095, 1)] {
            let mut other = head.clone();
            other[place] = byte;
            assert!(!Geometry::is_interrupted_format(&other), "{place}");
        }
        assert!(!Geometry::is_interrupted_format(&head[..63]));
    }

    #[test]
    fn fresh_metadata_is_the_same_in_pieces_as_in_one() {
        let geometry = Geometry::for_format(36352, bs(512)).unwrap();
        let superblock = Superblock::fresh(&geometry).encode();
        let mut whole = vec![0xAA; 1536];
        geometry.fill_fresh(&superblock, 0, &mut whole);
        assert_eq!(whole[..SUPERBLOCK_BYTES], superblock);
        assert!(whole[64..64 + 68 * 16].iter().all(|byte| *byte == 0xFF));
        assert!(whole[64 + 68 * 16..].iter().all(|byte| *byte == 0));
        let mut pieces = vec![0xAA; 1536];
        for (i, piece) in pieces.chunks_mut(33).enumerate() {
            geometry.fill_fresh(&superblock, i as u64 * 33, piece);
        }
        assert_eq!(pieces, whole);
    }

    proptest! {
        #[test]
        fn formatting_picks_what_counting_picks(area in 0u64..3_000_000, shift in 9u32..=12) {
            let naive = naive_n_blocks(area, 1 << shift);
            match Geometry::for_format(area, bs(1 << shift)) {
                Ok(geometry) => {
                    prop_assert_eq!(geometry.n_blocks(), naive);
                    prop_assert!(geometry.area_bytes() <= area);
                    prop_assert_eq!(geometry.data_offset() % (1 << shift), 0);
                }
                Err(error) => {
                    let refused = matches!(error, Error::NoSpace { .. });
                    prop_assert!(refused);
                    prop_assert_eq!(naive, 0);
                }
            }
        }

        #[test]
        fn regions_tile_the_metadata_and_hold_their_entries(
            n_blocks in 1u64..100_000,
            shift in 9u32..=12,
            pick in any::<u64>(),
        ) {
            let geometry = Geometry::with_n_blocks(n_blocks, bs(1 << shift));
            let mut end = 0;
            for region in 0..geometry.region_count() {
                let range = geometry.region_bytes(region);
                prop_assert_eq!(range.start, end);
                prop_assert!(range.end - range.start <= METADATA_REGION_BYTES);
                prop_assert_eq!(range.end % (1 << shift), 0);
                end = range.end;
            }
            prop_assert_eq!(end, geometry.metadata_bytes());
            let slot = pick % n_blocks;
            let entry = geometry.entry_offset(slot);
            let region = geometry.region_bytes(geometry.region_of_entry(slot));
            prop_assert!(region.start <= entry && entry + 16 <= region.end);
        }
    }
}
