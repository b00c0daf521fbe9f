//! Refuses to overwrite what only a cache has.

use cairn_outcome::failure::Outcome;

use super::source::Source;
use super::{bcache, writecache};

/// Refuses to overwrite dirty data: that of a cache that begins at this sector, or of one at the
/// start of the device.
///
/// # Errors
/// There is such a cache, or the device cannot be read.
pub fn refuse(source: &Source, start_sector: u64, discard_dirty: bool) -> Outcome<()> {
    if discard_dirty {
        return Ok(());
    }
    for place in [start_sector, 0] {
        writecache::refuse_dirty(source, place)?;
        bcache::refuse_dirty(source, place)?;
    }
    Ok(())
}
