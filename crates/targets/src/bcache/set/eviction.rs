//! Eviction: buckets with only clean data become free.
//!
//! # Order
//! 1. The victims: closed buckets without dirty data ([`Buckets::choose_victims`]).
//! 2. Leaf by leaf, their extents leave the tree in memory; the leaves on the device are behind
//!    there. Reads of these sectors go to the backing device, which has the same data durably.
//! 3. A checkpoint: the leaves follow, and the buckets are free.
//!
//! A write into the cache may enter an extent there at any time; a victim takes no new data, as it
//! is closed. Until the checkpoint has ended, the sectors are ghosts (N5).
//!
//! [`Buckets::choose_victims`]: crate::bcache::buckets::Buckets::choose_victims

use cairn_block::yield_once;

use super::Set;
use super::session::{Session, WriteError};
use crate::bcache::buckets::Choice;
use crate::bcache::coverage::{self, Path};
use crate::bcache::work;

/// Which part of the buckets is emptied at once.
const PART: usize = 32;

impl Session<'_> {
    /// Empties buckets that have only clean data, and makes them free. False if there are none.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn evict(&self) -> Result<bool, WriteError> {
        let Some(victims) = self.victims().await else { return Ok(false) };
        coverage::take(Path::Evict);
        let mut leaf = 0;
        while self.with(|set| set.evict_some(&mut leaf, &victims)) {
            yield_once().await;
        }
        self.checkpoint().await?;
        Ok(true)
    }

    /// Step 1: a mark for each bucket. None if there are none.
    async fn victims(&self) -> Option<Vec<bool>> {
        let (mut next, mut least) = (0, None);
        while !self.with(|set| set.buckets.least_used(&mut next, &mut least)) {
            yield_once().await;
        }
        let least = least?;
        let count = self.with(|set| set.buckets.wanted().max(set.buckets.count_all() / PART));
        let mut choice = Choice::new(count);
        while !self.with(|set| set.buckets.choose_victims(least, &mut choice)) {
            yield_once().await;
        }
        let victims = choice.into_buckets();
        (!victims.is_empty()).then(|| self.with(|set| set.buckets.marks(&victims)))
    }
}

impl Set {
    /// Step 2 of some leaves from `leaf` on. True if there are more.
    fn evict_some(&mut self, leaf: &mut usize, victims: &[bool]) -> bool {
        let mut looked = 0;
        while *leaf < self.tree.leaves() && looked < work::piece() {
            looked += self.tree.extents_in(*leaf).max(1);
            self.evict_leaf(*leaf, victims);
            *leaf += 1;
        }
        *leaf < self.tree.leaves()
    }
}
