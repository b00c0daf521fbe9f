//! The transient store: the device holds only data, from its first chunk on. The table lives as
//! long as a target serves or is about to serve the snapshot.

use cairn_format::snapshot::ChunkSize;

/// Chunk 0 holds data.
pub(super) const FIRST_FREE: u64 = 0;

/// How many chunks from `next_free` on lie wholly on the device.
pub(super) fn room(chunk: ChunkSize, device_sectors: u64, next_free: u64) -> u64 {
    (device_sectors / u64::from(chunk.sectors())).saturating_sub(next_free)
}
