//! Eviction: buckets with only clean data become free.
//!
//! # Order
//! 1. The victims: closed buckets without dirty data ([`Buckets::choose_victims`]).
//! 2. Leaf by leaf, their extents leave the tree in memory; the leaves on the device are behind
//!    there. Reads of these sectors go to the backing device, which has the same data durably. An
//!    absent leaf is read, and becomes present if it has some of these extents. If memory is short
//!    after some such leaves, others leave, which may take a checkpoint.
//! 3. A checkpoint: the leaves follow, and the buckets are free.
//!
//! A write into the cache may enter an extent there at any time; a victim takes no new data, as it
//! is closed. A checkpoint of step 2 may make it free: its next user has another generation, and is
//! no victim. Until the checkpoint has ended, the sectors are ghosts (N5).
//!
//! [`Buckets::choose_victims`]: crate::bcache::buckets::Buckets::choose_victims

use cairn_block::yield_once;

use super::Set;
use super::session::{Session, WriteError};
use crate::bcache::btree::{FIRST, LeafPlace, Position};
use crate::bcache::buckets::{Choice, Marks};
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
            from = match self.with(|set| set.evict_some(at, &victims)) {
                Ok(next) => next,
                Err(absent) => self.evict_absent(&absent, &victims).await?,
            };
            yield_once().await;
        }
        self.checkpoint().await?;
        Ok(true)
    }

    /// Step 2 of leaves in a row that were absent. Answers where to go on.
    ///
    /// # Errors
    /// The set cannot be written.
    async fn evict_absent(
        &self,
        leaves: &[LeafPlace],
        victims: &Marks,
    ) -> Result<Option<Position>, WriteError> {
        let (mut next, mut has_entered) = (None, false);
        for (leaf, extents) in leaves.iter().zip(self.core.read(self.env, leaves).await?) {
            next = self.with(|set| set.behind(set.tree.leaf_of(leaf.after)));
            // What was not read is present by now.
            let Some(extents) = extents else {
                self.with(|set| set.evict_entered(leaf, victims));
                continue;
            };
            if extents.iter().any(|key| victims.have(key)) {
                self.with(|set| set.tree.enter(leaf, &extents));
                yield_once().await;
                self.with(|set| set.evict_entered(leaf, victims));
                has_entered = true;
            }
            yield_once().await;
        }
        if has_entered {
            self.trim().await?;
        }
        Ok(next)
    }

    /// Step 1: the marks of the victims. None if there are none.
    async fn victims(&self) -> Option<Marks> {
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
        victims: &Marks,
    ) -> Result<Option<Position>, Vec<LeafPlace>> {
        let (mut at, mut looked) = (from, 0);
        while looked < work::piece() {
            let leaf = self.tree.leaf_of(at);
            let absent = self.tree.absent_from(leaf);
            if !absent.is_empty() {
                return if at > from { Ok(Some(at)) } else { Err(absent) };
            }
            looked += self.tree.count_of(leaf).max(1);
            self.evict_leaf(leaf, victims);
            match self.behind(leaf) {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// Step 2 of a leaf that is present by now: only the holder of the turn has leaves leave, and
    /// replaces them.
    fn evict_entered(&mut self, leaf: &LeafPlace, victims: &Marks) {
        self.evict_leaf(self.tree.leaf_of(leaf.after), victims);
    }

    /// Where the next leaf begins. None if this is the last.
    fn behind(&self, leaf: usize) -> Option<Position> {
        (leaf + 1 < self.tree.leaves()).then(|| self.tree.bounds_of(leaf).1)
    }
}
