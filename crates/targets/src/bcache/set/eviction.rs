//! Eviction: buckets with only clean data become free.
//!
//! # Order
//! 1. The victims: closed buckets without dirty data ([`Buckets::choose_victims`]).
//! 2. Leaf by leaf, their extents leave the tree in memory; the leaves on the device are behind
//!    there. (If memory is short by then, these follow at once, so that leaves may leave.) Reads of
//!    these sectors go to the backing device, which has the same data durably.
//! 3. A checkpoint: the leaves follow, and the buckets are free.
//!
//! A write into the cache may enter an extent there at any time; a victim takes no new data, as it
//! is closed. Until the checkpoint has ended, the sectors are ghosts (N5).
//!
//! [`Buckets::choose_victims`]: crate::bcache::buckets::Buckets::choose_victims

use cairn_block::yield_once;

use super::Set;
use super::session::{Session, WriteError};
use crate::bcache::btree::{FIRST, LAST, LeafPlace, Position};
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
        let mut from = Some(FIRST);
        while let Some(at) = from {
            match self.with(|set| set.evict_some(at, &victims)) {
                Ok(next) => {
                    from = next;
                    self.trim().await?;
                }
                Err(absent) => self.core.enter(self.env, &absent).await?,
            }
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
    /// Step 2 of some leaves from a position on. Answers where to go on.
    ///
    /// # Errors
    /// These leaves are absent.
    fn evict_some(
        &mut self,
        from: Position,
        victims: &[bool],
    ) -> Result<Option<Position>, Vec<LeafPlace>> {
        let (mut at, mut looked) = (from, 0);
        while looked < work::piece() {
            let leaf = self.tree.leaf_of(at);
            let (after, upto) = self.tree.bounds_of(leaf);
            if !self.tree.absent_between(after, upto).is_empty() {
                let absent = self.tree.absent_between(after, LAST);
                return if at > from { Ok(Some(at)) } else { Err(absent) };
            }
            looked += self.tree.count_of(leaf).max(1);
            self.evict_leaf(leaf, victims);
            if leaf + 1 == self.tree.leaves() {
                return Ok(None);
            }
            at = upto;
        }
        Ok(Some(at))
    }
}
