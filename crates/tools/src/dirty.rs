//! Refuses to overwrite what only a cache has.

use cairn_outcome::failure::Outcome;

use super::source::Source;
use super::{bcache, writecache};
use crate::args::DiscardDirty;

/// Refuses to overwrite dirty data: that of a cache that begins at this sector, or of one at the
/// start of the device. Tells what is lost of a bcache set that is given up by its UUID.
///
/// # Errors
/// There is such a cache, or the device cannot be read.
pub fn refuse(source: &Source, start_sector: u64, discard: Option<DiscardDirty>) -> Outcome<()> {
    let places = [Some(start_sector), (start_sector != 0).then_some(0)];
    for place in places.into_iter().flatten() {
        if discard.is_none() {
            writecache::refuse_dirty(source, place)?;
        }
        bcache::refuse_dirty(source, place, discard)?;
    }
    Ok(())
}
