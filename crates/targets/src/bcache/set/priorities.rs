//! Priorities: the generations and priorities of the buckets after a session, for the next opening.
//!
//! P1. They are written when no plan is: the generation of a bucket whose node was replaced is not
//!     on the device before the set of its parent that says so.
//! P2. They go to free buckets (K1). The entry of the journal that names the first of these is
//!     written after a flush; the buckets of the old ones are free once that entry is durable.
//!
//! A power cut leaves the old priorities or the new ones; both are sound (K2). A set without free
//! buckets keeps the old ones.

use cairn_format::bcache::priorities::encode_chain;

use super::Set;

/// Priorities to write.
pub(super) struct Chain {
    /// Pieces, each with its first sector.
    pub pieces: Vec<(u64, Vec<u8>)>,
    /// The first bucket.
    pub first: u64,
    /// The buckets of the old ones.
    replaced: Vec<u64>,
}

impl Set {
    /// Plans new priorities, unless those on the device are of now or there is no room.
    pub(super) fn plan_priorities(&mut self) -> Option<Chain> {
        if !self.buckets.have_changed() {
            return None;
        }
        let count = self.priorities.len();
        if self.buckets.free() < count {
            self.buckets.refill();
        }
        if self.buckets.free() < count {
            return None;
        }
        let geometry = *self.superblock.geometry();
        let taken = std::iter::from_fn(|| self.buckets.take_for_metadata()).take(count);
        let chain: Vec<u64> = taken.map(|at| geometry.bucket_of(at.sector())).collect();
        let magic = self.superblock.set_uuid().set_magic();
        let records = self.buckets.records();
        let pieces = encode_chain(&records, &chain, &geometry, magic).collect();
        let first = chain[0];
        let replaced = std::mem::replace(&mut self.priorities, chain);
        Some(Chain { pieces, first, replaced })
    }

    /// The entry that names these priorities is durable.
    pub(super) fn priorities_written(&mut self, chain: &Chain) {
        self.buckets.structure_replaced(&chain.replaced);
    }
}
