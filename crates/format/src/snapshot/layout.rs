//! The layout of a COW device: the only source of its chunk numbers and offsets.
//!
//! Promises that a [`Layout`] fits the device it was made for, so that none of its arithmetic can
//! overflow, whatever the header or a record said. A chunk number read from disk may be passed
//! unchecked to [`is_data_chunk`](Layout::is_data_chunk) and [`next_free`](Layout::next_free), and
//! to every other method only if `is_data_chunk` returned true.

use core::ops::Range;

use super::{COW_CHUNKS_END, ChunkSize, CowChunk, Error, RECORD_BYTES, SECTOR_BYTES};

/// The first data chunk: header and area 0 precede it.
const FIRST_DATA: CowChunk = CowChunk(2);
/// Sectors whose byte offsets fit a signed number of 64 bits: the limit of the kernel.
pub(super) const DEVICE_SECTORS_MAX: u64 = 1 << 54;

const _: () = assert!(DEVICE_SECTORS_MAX < COW_CHUNKS_END, "a record can name every chunk");

/// The layout of one COW device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    chunk_size: ChunkSize,
    device_sectors: u64,
    /// Whole chunks on the device.
    chunks: u64,
}

impl Layout {
    /// Lays out a device.
    ///
    /// # Errors
    /// [`Error::DeviceTooSmall`] unless header and first area fit.
    pub fn new(chunk_size: ChunkSize, device_sectors: u64) -> Result<Layout, Error> {
        let chunk_sectors = u64::from(chunk_size.sectors());
        // No device is larger. A device that claims to be must not make a byte offset overflow.
        let chunks = device_sectors.min(DEVICE_SECTORS_MAX) / chunk_sectors;
        if chunks < FIRST_DATA.0 {
            let needed_sectors = FIRST_DATA.0 * chunk_sectors;
            return Err(Error::DeviceTooSmall { device_sectors, needed_sectors });
        }
        Ok(Layout { chunk_size, device_sectors, chunks })
    }

    /// Sectors of the smallest device that holds this many records and their chunks, packed; `None`
    /// if no device does.
    #[must_use]
    pub fn needed_sectors(chunk_size: ChunkSize, records: u64) -> Option<u64> {
        // One area more than the records fill, since the list needs an end.
        let areas = records / chunk_size.records_per_area() + 1;
        let chunks = records.checked_add(areas)?.checked_add(1)?;
        let sectors = chunks.checked_mul(u64::from(chunk_size.sectors()))?;
        (sectors <= DEVICE_SECTORS_MAX).then_some(sectors)
    }

    /// The store's chunk size.
    #[must_use]
    pub fn chunk_size(&self) -> ChunkSize {
        self.chunk_size
    }

    /// Size of the device in sectors, including a partial last chunk.
    #[must_use]
    pub fn device_sectors(&self) -> u64 {
        self.device_sectors
    }

    /// Whole chunks on the device, at least 2.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Records that an area holds.
    #[must_use]
    pub fn records_per_area(&self) -> u64 {
        self.chunk_size.records_per_area()
    }

    /// Chunks from one area to the next.
    fn stride(&self) -> u64 {
        self.records_per_area() + 1
    }

    /// Number of areas on the device, at least 1.
    #[must_use]
    pub fn area_count(&self) -> u64 {
        (self.chunks - 1).div_ceil(self.stride())
    }

    /// Whether an area lies on the device.
    #[must_use]
    pub fn has_area(&self, area: u64) -> bool {
        area < self.area_count()
    }

    /// Whether an area may become full: only if the list can continue in a next one.
    #[must_use]
    pub fn may_fill(&self, area: u64) -> bool {
        area + 1 < self.area_count()
    }

    /// The chunk of an area.
    ///
    /// # Panics
    /// If the device has no such area.
    #[must_use]
    pub fn area_chunk(&self, area: u64) -> CowChunk {
        assert!(self.has_area(area), "area {area} of {}", self.area_count());
        CowChunk(1 + area * self.stride())
    }

    /// Byte range of an area on the device.
    ///
    /// # Panics
    /// If the device has no such area.
    #[must_use]
    pub fn area_bytes(&self, area: u64) -> Range<u64> {
        let begin = self.chunk_sector(self.area_chunk(area)) * SECTOR_BYTES;
        begin..begin + self.chunk_size.bytes()
    }

    /// Area and slot of a record, by its index in the list.
    #[must_use]
    pub fn place(&self, index: u64) -> (u64, u64) {
        (index / self.records_per_area(), index % self.records_per_area())
    }

    /// Byte offset on the device of a record, by its index in the list.
    ///
    /// # Panics
    /// If the device has no such area.
    #[must_use]
    pub fn record_offset(&self, index: u64) -> u64 {
        let (area, slot) = self.place(index);
        self.area_bytes(area).start + slot * RECORD_BYTES as u64
    }

    /// Whether a chunk holds the header or an area, on this device or a larger one.
    #[must_use]
    pub fn is_metadata_chunk(&self, chunk: CowChunk) -> bool {
        chunk.0 == 0 || chunk.0 % self.stride() == 1
    }

    /// Whether a record may name this chunk: it lies wholly on the device and holds no metadata.
    #[must_use]
    pub fn is_data_chunk(&self, chunk: CowChunk) -> bool {
        chunk.0 < self.chunks && !self.is_metadata_chunk(chunk)
    }

    /// First sector of a chunk on the device.
    ///
    /// # Panics
    /// If the chunk lies beyond the device.
    #[must_use]
    pub fn chunk_sector(&self, chunk: CowChunk) -> u64 {
        assert!(chunk.0 < self.chunks, "chunk {chunk} of {}", self.chunks);
        chunk.0 * u64::from(self.chunk_size.sectors())
    }

    /// Data chunks on the device.
    #[must_use]
    pub fn data_chunks(&self) -> u64 {
        self.chunks - 1 - self.area_count()
    }

    /// Data chunks for which records can be committed. If the records for all of them would fill
    /// the last area, it is one fewer: the list needs an end.
    #[must_use]
    pub fn usable_data_chunks(&self) -> u64 {
        let slots = self.area_count() * self.records_per_area();
        self.data_chunks().min(slots - 1)
    }

    /// The next data chunk to allocate, given the highest chunk that a record names, which may be
    /// any number from disk. May lie beyond the device: then there [is no room](Layout::has_room).
    #[must_use]
    pub fn next_free(&self, highest: Option<CowChunk>) -> CowChunk {
        match highest {
            Some(chunk) if chunk >= FIRST_DATA => self.next_after(chunk),
            _ => FIRST_DATA,
        }
    }

    /// The data chunk to allocate after this one. May lie beyond the device.
    #[must_use]
    pub fn next_after(&self, chunk: CowChunk) -> CowChunk {
        let next = CowChunk(chunk.0.saturating_add(1));
        if self.is_metadata_chunk(next) { CowChunk(next.0.saturating_add(1)) } else { next }
    }

    /// Whether the next free chunk lies wholly on the device.
    #[must_use]
    pub fn has_room(&self, next_free: CowChunk) -> bool {
        next_free.0 < self.chunks
    }

    /// The metadata of the status line, in sectors: header and areas, up to the area in which the
    /// list ends.
    #[must_use]
    pub fn metadata_sectors(&self, last_area: u64) -> u64 {
        (last_area.saturating_add(2)).saturating_mul(u64::from(self.chunk_size.sectors()))
    }

    /// The allocated space of the status line, in sectors.
    #[must_use]
    pub fn allocated_sectors(&self, next_free: CowChunk) -> u64 {
        next_free.0.saturating_mul(u64::from(self.chunk_size.sectors()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::Layout;
    use crate::snapshot::{ChunkSize, CowChunk, Error};

    fn layout(chunk_sectors: u32, device_sectors: u64) -> Layout {
        Layout::new(ChunkSize::new(chunk_sectors).unwrap(), device_sectors).unwrap()
    }

    #[test]
    fn areas_follow_each_other_with_their_data_between() {
        let layout = layout(1, 160);
        assert_eq!((layout.records_per_area(), layout.area_count()), (32, 5));
        let areas: Vec<u64> = (0..5).map(|area| layout.area_chunk(area).0).collect();
        assert_eq!(areas, [1, 34, 67, 100, 133]);
        assert_eq!(layout.area_bytes(1), 34 * 512..35 * 512);
        assert_eq!(layout.record_offset(33), 34 * 512 + 16);
        assert!(layout.may_fill(3) && !layout.may_fill(4));
        let metadata = (0..160).filter(|chunk| layout.is_metadata_chunk(CowChunk(*chunk)));
        assert_eq!(metadata.collect::<Vec<_>>(), [0, 1, 34, 67, 100, 133]);
    }

    #[test]
    fn the_last_area_is_never_filled_without_a_successor() {
        // 34 chunks hold 32 data chunks, but the 32nd record would fill the only area.
        assert_eq!((layout(1, 34).data_chunks(), layout(1, 34).usable_data_chunks()), (32, 31));
        assert_eq!((layout(1, 35).data_chunks(), layout(1, 35).usable_data_chunks()), (32, 32));
        assert_eq!((layout(1, 40).data_chunks(), layout(1, 40).usable_data_chunks()), (37, 37));
        assert_eq!((layout(1, 2).data_chunks(), layout(1, 2).usable_data_chunks()), (0, 0));
    }

    #[test]
    fn allocation_skips_areas_and_goes_on_after_the_highest_chunk() {
        let layout = layout(1, 160);
        assert_eq!(layout.next_free(None), CowChunk(2));
        assert_eq!(layout.next_free(Some(CowChunk(1))), CowChunk(2));
        assert_eq!(layout.next_free(Some(CowChunk(32))), CowChunk(33));
        assert_eq!(layout.next_free(Some(CowChunk(33))), CowChunk(35));
        assert!(layout.has_room(CowChunk(159)) && !layout.has_room(CowChunk(160)));
    }

    #[test]
    fn a_device_without_room_for_header_and_area_is_refused() {
        let size = ChunkSize::new(8).unwrap();
        let expected = Error::DeviceTooSmall { device_sectors: 15, needed_sectors: 16 };
        assert_eq!(Layout::new(size, 15), Err(expected));
        assert_eq!(Layout::new(size, 17).unwrap().chunks(), 2);
    }

    #[test]
    fn a_packed_store_needs_an_end_after_a_full_area() {
        let size = ChunkSize::new(1).unwrap();
        assert_eq!(Layout::needed_sectors(size, 0), Some(2));
        assert_eq!(Layout::needed_sectors(size, 31), Some(33));
        assert_eq!(Layout::needed_sectors(size, 32), Some(35));
        assert_eq!(Layout::needed_sectors(size, u64::MAX), None);
    }

    proptest! {
        #[test]
        fn usable_chunks_are_what_counting_upwards_finds(chunks in 2u64..300, shift in 0u32..3) {
            let layout = layout(1 << shift, chunks << shift);
            let (mut next, mut committed) = (layout.next_free(None), 0);
            while layout.has_room(next) {
                let (area, slot) = layout.place(committed);
                if slot + 1 == layout.records_per_area() && !layout.has_area(area + 1) {
                    break;
                }
                prop_assert!(layout.is_data_chunk(next));
                committed += 1;
                next = layout.next_after(next);
            }
            prop_assert_eq!(layout.usable_data_chunks(), committed);
            let needed = Layout::needed_sectors(layout.chunk_size(), committed).unwrap();
            prop_assert!(needed <= layout.device_sectors());
        }

        #[test]
        fn no_number_from_disk_overflows(
            shift in 0u32..=21,
            sectors in 1u64 << 22..=u64::MAX,
            chunk in any::<u64>(),
        ) {
            let layout = layout(1 << shift, sectors);
            let chunk = CowChunk(chunk);
            let next = layout.next_free(Some(chunk));
            prop_assert!(next > chunk || chunk.0 == u64::MAX);
            if layout.is_data_chunk(chunk) {
                prop_assert!(layout.chunk_sector(chunk) < sectors);
            }
            let last = layout.area_count() - 1;
            prop_assert!(layout.area_bytes(last).end / 512 <= sectors);
            prop_assert!(layout.allocated_sectors(next) > 0);
            prop_assert!(layout.usable_data_chunks() < layout.chunks());
        }
    }
}
