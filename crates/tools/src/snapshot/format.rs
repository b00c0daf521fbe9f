//! Writes an empty exception store.

use cairn_block::SECTOR_BYTES;
use cairn_format::snapshot::{ChunkSize, Header, Layout};
use cairn_outcome::failure::{Outcome, wrong};

use crate::source::Source;

/// Refuses a device without space for one chunk.
///
/// # Errors
/// It is too small.
pub fn check_size(name: &str, chunk: ChunkSize, bytes: u64) -> Outcome<()> {
    match Layout::new(chunk, bytes / SECTOR_BYTES) {
        Ok(layout) if layout.usable_data_chunks() > 0 => Ok(()),
        _ => Err(wrong(name, "size", bytes, format!("at least {} bytes", 3 * chunk.bytes()))),
    }
}

/// Writes the first area, then the header: a crash leaves a blank device or an empty store.
///
/// # Errors
/// The system refused.
pub fn format(source: &Source, chunk: ChunkSize) -> Outcome<()> {
    const PIECE_BYTES: u64 = 1 << 20;
    let (mut at, end) = (0, 2 * chunk.bytes());
    while at < end {
        let piece = PIECE_BYTES.min(end - at);
        source.write_at(at, &vec![0; piece as usize])?;
        at += piece;
    }
    source.flush()?;
    source.write_at(0, &Header::fresh(chunk).encode())?;
    source.flush()
}
