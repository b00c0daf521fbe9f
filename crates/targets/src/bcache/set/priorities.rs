//! Priorities: the generations and priorities of the buckets after a session, for the next opening.
//!
//! P1. They are written when no plan is: the generation of a bucket whose node was replaced is not
//!     on the device before the set of its parent that says so.
//!     Clients take buckets for data while they are planned; K2 allows the priorities to be behind.
//! P2. They go to free buckets (K1). The entry of the journal that names the first of these is
//!     written after a flush; the buckets of the old ones are free once that entry is durable.
//!
//! A power cut leaves the old priorities or the new ones; both are sound (K2). A set without free
//! buckets keeps the old ones.

use cairn_block::yield_once;
use cairn_format::bcache::priorities::encode_chain;

use super::{Session, Set};

/// Priorities to write.
pub(super) struct Chain {
    /// Pieces, each with its first sector.
    pub pieces: Vec<(u64, Vec<u8>)>,
    /// The first bucket.
    pub first: u64,
    /// The buckets of the old ones.
    replaced: Vec<u64>,
}

impl Session<'_> {
    /// Plans new priorities, unless those on the device are of now or there is no room.
    pub(super) async fn plan_priorities(&self) -> Option<Chain> {
        if !self.with(|set| set.buckets.have_changed()) {
            return None;
        }
        if self.with(|set| set.buckets.free() < set.priorities.len()) {
            self.refill().await;
        }
        let chain = self.with(Set::take_chain)?;
        self.with(|set| set.buckets.begin_records());
        let mut records = Vec::new();
        while !self.with(|set| set.buckets.records(&mut records)) {
            yield_once().await;
        }
        let superblock = self.with(|set| set.superblock.clone());
        let (geometry, magic) = (superblock.geometry(), superblock.set_uuid().set_magic());
        let mut pieces = Vec::with_capacity(chain.len());
        for piece in encode_chain(&records, &chain, geometry, magic) {
            pieces.push(piece);
            yield_once().await;
        }
        let first = chain[0];
        let replaced = self.with(|set| std::mem::replace(&mut set.priorities, chain));
        Some(Chain { pieces, first, replaced })
    }
}

impl Set {
    /// Takes buckets for priorities, if there are enough.
    fn take_chain(&mut self) -> Option<Vec<u64>> {
        let count = self.priorities.len();
        if self.buckets.free() < count {
            return None;
        }
        let geometry = *self.superblock.geometry();
        let taken = std::iter::from_fn(|| self.buckets.take_for_metadata()).take(count);
        Some(taken.map(|at| geometry.bucket_of(at.sector())).collect())
    }

    /// The entry that names these priorities is durable.
    pub(super) fn priorities_written(&mut self, chain: &Chain) {
        self.buckets.structure_replaced(&chain.replaced);
    }
}
