//! Eviction: buckets with only clean data become free.
//!
//! # Order
//! 1. The victims: closed buckets without dirty data ([`Buckets::victims`]).
//! 2. Leaf by leaf, their extents leave the tree in memory; the leaves on the device are behind
//!    there. Reads of these sectors go to the backing device, which has the same data durably.
//! 3. A checkpoint: the leaves follow, and the buckets are free.
//!
//! A write into the cache may enter an extent there at any time; a victim takes no new data, as it
//! is closed. Until the checkpoint has ended, the sectors are ghosts (N5).
//!
//! [`Buckets::victims`]: crate::bcache::buckets::Buckets::victims

use cairn_block::yield_once;

use super::session::{Session, WriteError};

/// Which part of the buckets is emptied at once.
const PART: usize = 32;
/// How many leaves are looked at in one turn of the reactor.
const LEAVES_AT_ONCE: usize = 4;

impl Session<'_> {
    /// Empties buckets that have only clean data, and makes them free. False if there are none.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn evict(&self) -> Result<bool, WriteError> {
        let victims = self.with(|set| {
            let count = set.buckets.wanted().max(set.buckets.count_all() / PART);
            set.buckets.victims(count)
        });
        let Some(victims) = victims else { return Ok(false) };
        let leaves = self.with(|set| set.tree.leaves());
        for first in (0..leaves).step_by(LEAVES_AT_ONCE) {
            self.with(|set| {
                let some = first..leaves.min(first + LEAVES_AT_ONCE);
                some.for_each(|leaf| set.evict_leaf(leaf, &victims));
            });
            yield_once().await;
        }
        self.checkpoint().await?;
        Ok(true)
    }
}
