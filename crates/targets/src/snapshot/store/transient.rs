//! The transient store: nothing on the device but data, from its first chunk on. The table lives
//! as long as somebody serves or is about to serve the snapshot.

use cairn_format::snapshot::ChunkSize;

/// Chunk 0 holds data.
pub(super) const FIRST_FREE: u64 = 0;

/// The next chunk to hand out, if it lies wholly on the device.
pub(super) fn room(chunk: ChunkSize, device_sectors: u64, next_free: u64) -> Option<u64> {
    (next_free < device_sectors / u64::from(chunk.sectors())).then_some(next_free)
}
