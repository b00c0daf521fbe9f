//! Stripes of the backing device: on one with parity, a write of a part of a stripe reads first.
//!
//! While `partial_stripes_expensive` is on, a write to a stripe that has dirty data joins it in the
//! cache, so that more of the stripe goes home at once. Which stripes have dirty data is looked up
//! in the tree; nothing is counted, so this takes no memory. It is a hint: after [`LOOKED_AT`]
//! extents of the stripe a write goes as if there were none.

use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicU64, Ordering::Relaxed};
use cairn_block::{Disk, SECTOR_BYTES, Shape};

use super::btree::Span;
use super::set::Set;

/// How many extents of a stripe are looked at.
const LOOKED_AT: usize = 256;

/// See the module's description.
pub(super) struct Stripes {
    /// Sectors of a stripe; 0 if the device has none, or does not say so.
    size: u64,
    /// The attribute `partial_stripes_expensive`.
    pub expensive: AtomicU64,
}

impl Stripes {
    /// Of a backing device.
    pub fn of(disk: &Arc<dyn Disk>) -> Stripes {
        match disk.nature().shape {
            Shape::Parity { chunk, data_members } => {
                Stripes::new(chunk.0 * u64::from(data_members), true)
            }
            _ => Stripes::new(u64::from(disk.limits().io_opt) / SECTOR_BYTES, false),
        }
    }

    fn new(size: u64, is_expensive: bool) -> Stripes {
        Stripes { size, expensive: AtomicU64::new(u64::from(is_expensive)) }
    }

    /// Sectors of a stripe; 0 if the device has none, or does not say so.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Sectors of a stripe, if parts of stripes are expensive; otherwise 0.
    pub fn expensive_size(&self) -> u64 {
        if self.expensive.load(Relaxed) != 0 { self.size } else { 0 }
    }

    /// True if these sectors lie in a stripe that has dirty data, and parts of stripes are
    /// expensive.
    #[inline]
    pub fn are_joined(&self, set: &Set, span: &Span) -> bool {
        self.expensive_size() > 0 && has_dirty(set, &self.around(span))
    }

    /// The whole stripes in which the sectors lie.
    fn around(&self, span: &Span) -> Span {
        let start = span.start / self.size * self.size;
        Span { start, end: span.end.next_multiple_of(self.size), ..*span }
    }
}

/// False, too, if a leaf is absent: this only chooses the faster way.
fn has_dirty(set: &Set, span: &Span) -> bool {
    set.tree.absent_in(span).is_empty()
        && set.tree.extents_in(span).take(LOOKED_AT).any(|key| key.is_dirty())
}

#[cfg(test)]
mod tests {
    use super::{Span, Stripes};

    #[test]
    fn stripes_are_whole() {
        let stripes = Stripes::new(96, true);
        for (start, end, expected) in [(0, 1, (0, 96)), (95, 97, (0, 192)), (96, 192, (96, 192))] {
            let around = stripes.around(&Span { inode: 3, start, end });
            assert_eq!((around.start, around.end), expected);
        }
    }
}
