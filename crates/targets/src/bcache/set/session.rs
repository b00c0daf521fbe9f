//! A session: changes the set on the device.
//!
//! # Order
//! 1. The superblock with another sequence, durably: it says that a session began.
//! 2. What the journal has enters the leaves ([`Session::insert`]), durably.
//! 3. An entry of the journal that says so: no entry before it counts.
//! 4. Keys that become clean enter the leaves, batch by batch. They are not in the journal: losing
//!    them leaves dirty keys to the same data.
//! 5. The priorities (`priorities`), and the entry that names them and says that nothing before it
//!    counts.
//!
//! # What a crash leaves
//! - Before 3: the journal as it was found, over leaves that have some of its keys already. It is
//!   replayed again, to the same effect.
//! - Before the end of 4: each key dirty or clean.
//! - Before 5: the priorities of the session before.
//!
//! # A full set
//! A leaf without room needs free buckets. If there are none, buckets that have only clean data are
//! emptied ([`Session::insert`] does so by itself): an entry of the journal makes their extents
//! holes, durably. Then no key that counts leads to them, and the requests that had found them end.
//! The holes enter the leaves with all else, and a last entry says so. A bucket that holds data
//! counts as clean once the keys of its data are to enter as clean ones, since their data is
//! durable on the backing device by then.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{Env, IoError, mutants};
use cairn_format::bcache::{Key, SUPERBLOCK_SECTOR};

use super::{CacheDevice, Set};
use crate::bcache::btree::{Insertion, NoBucket, Plan, write_plan};
use crate::bcache::canary::{Bug, planted};
use crate::epochs::Epochs;

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum WriteError {
    /// The cache device failed.
    #[error("the cache device failed: {0}")]
    Cache(IoError),
    /// No bucket is free, and none can be emptied.
    #[error("buckets: found none free and none with clean data alone, expected {0}")]
    NoBucket(usize),
    /// Each bucket of the ring has entries that count.
    #[error("journal: found no room for an entry, expected some")]
    RingFull,
}

/// See the module's description.
pub(in super::super) struct Session<'a> {
    pub env: &'a Env,
    pub cache: &'a CacheDevice,
    pub set: &'a Mutex<Option<Set>>,
    /// The requests that read from the cache device.
    pub readers: &'a Arc<Epochs<1>>,
}

impl Session<'_> {
    /// Looks at the set, under its lock.
    fn with<T>(&self, look: impl FnOnce(&mut Set) -> T) -> T {
        look(self.set.lock().as_mut().expect("a session is of an open set"))
    }

    /// Begins, unless the set has a session already.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn begin(&self) -> Result<(), WriteError> {
        let Some(replay) = self.with(|set| set.replay.clone()) else { return Ok(()) };
        let now_s = self.env.unix_time().as_secs() as u32;
        let superblock = self.with(|set| set.superblock.registered(now_s));
        let bytes = superblock.encode();
        let wrote = self.cache.commit(self.env, SUPERBLOCK_SECTOR, &bytes).await;
        wrote.map_err(WriteError::Cache)?;
        self.with(|set| set.superblock = superblock);
        if planted(Bug::JournalBeforeLeaves) {
            self.close_journal().await?;
        }
        self.insert(replay).await?;
        self.close_journal().await?;
        self.with(|set| set.replay = None);
        Ok(())
    }

    /// Puts keys into the leaves, durably. They are in order and do not overlap; those without a
    /// pointer make holes. Clean ones lead to data that is durable on the backing device.
    ///
    /// # Errors
    /// The set cannot be written. Some of the keys may be in leaves.
    pub async fn insert(&self, keys: Vec<Key>) -> Result<(), WriteError> {
        let mut insertion = Insertion::new(keys);
        while !insertion.is_empty() {
            let next_seq = || 1 + self.env.random_below(u64::MAX - 1);
            let planned = self.with(|set| set.plan(&mut insertion, next_seq));
            match planned {
                Ok(plan) => self.carry_out(plan).await?,
                Err(NoBucket { needed }) => self.empty_buckets(&mut insertion, needed).await?,
            }
        }
        Ok(())
    }

    async fn carry_out(&self, plan: Plan) -> Result<(), WriteError> {
        write_plan(self.env, self.cache, &plan).await.map_err(WriteError::Cache)?;
        if plan.has_new_root {
            self.write_entry(&[], false).await?;
        }
        self.with(|set| set.release(&plan));
        Ok(())
    }

    /// Makes `needed` buckets free that have only clean data.
    async fn empty_buckets(
        &self,
        insertion: &mut Insertion,
        needed: usize,
    ) -> Result<(), WriteError> {
        let holes = self.with(|set| set.holes_for(insertion, needed));
        if holes.is_empty() {
            return Err(WriteError::NoBucket(needed));
        }
        if !planted(Bug::ReuseBeforeDurable) {
            self.write_entry(&holes, false).await?;
        }
        self.with(|set| {
            set.has_open_entries = true;
            set.tree.apply(&holes, &mut set.buckets);
        });
        insertion.lay_over(&holes);
        if !mutants::skips("bcache: wait for readers of emptied buckets") {
            self.readers.quiesce(0).await;
        }
        self.with(|set| {
            let free = set.buckets.free();
            set.buckets.refill();
            (set.buckets.free() > free).then_some(()).ok_or(WriteError::NoBucket(needed))
        })
    }

    /// Ends the changes: what the next opening reads is as small and as new as it can be.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn end(&self) -> Result<(), WriteError> {
        let Some(chain) = self.with(Set::plan_priorities) else {
            return self.close_journal().await;
        };
        let early = planted(Bug::EntryBeforePriorities);
        if early {
            self.write_entry(&[], true).await?;
        }
        let pieces: Vec<(u64, &[u8])> =
            chain.pieces.iter().map(|(sector, bytes)| (*sector, &bytes[..])).collect();
        self.cache.write_all(self.env, &pieces).await.map_err(WriteError::Cache)?;
        if !early {
            self.write_entry(&[], true).await?;
        }
        self.with(|set| {
            set.has_open_entries = false;
            set.priorities_written(&chain);
        });
        Ok(())
    }

    /// Says that all that the journal has is in leaves, if it has anything.
    ///
    /// # Errors
    /// The entry cannot be written.
    async fn close_journal(&self) -> Result<(), WriteError> {
        if !self.with(|set| set.has_open_entries) {
            return Ok(());
        }
        self.write_entry(&[], true).await?;
        self.with(|set| set.has_open_entries = false);
        Ok(())
    }

    /// Writes the next entry of the journal, durably, after all that was written before.
    async fn write_entry(&self, keys: &[Key], frees: bool) -> Result<(), WriteError> {
        let entry = self.with(|set| set.journal.entry(keys, set.tree.root(), frees));
        let entry = entry.map_err(|_| WriteError::RingFull)?;
        let written = self.cache.commit(self.env, entry.sector, &entry.bytes).await;
        written.map_err(WriteError::Cache)?;
        self.with(|set| set.journal.written());
        Ok(())
    }
}

impl Set {
    /// Plans the next keys; looks for free buckets if there are too few.
    fn plan(
        &mut self,
        insertion: &mut Insertion,
        mut next_seq: impl FnMut() -> u64,
    ) -> Result<Plan, NoBucket> {
        let planned = self.tree.plan(insertion, &mut self.buckets, &mut next_seq);
        planned.or_else(|_| {
            self.buckets.refill();
            self.tree.plan(insertion, &mut self.buckets, next_seq)
        })
    }

    /// The nodes that a plan replaced are gone, durably.
    fn release(&mut self, plan: &Plan) {
        plan.replaced.iter().for_each(|pointer| self.buckets.node_replaced(*pointer));
    }

    /// The holes that empty `needed` buckets with only clean data; fewer buckets if an entry of the
    /// journal has no room for more.
    fn holes_for(&mut self, insertion: &Insertion, needed: usize) -> Vec<Key> {
        // What is to enter counts from now on: as clean, where it was dirty.
        let entering: Vec<Key> = insertion.left().copied().collect();
        self.tree.apply(&entering, &mut self.buckets);
        let (most, geometry) = (self.journal.holes_max(), *self.superblock.geometry());
        let mut wanted = self.buckets.clean();
        wanted.truncate(needed);
        while !wanted.is_empty() {
            wanted.sort_unstable();
            let mut holes: Vec<Key> = Vec::new();
            for key in self.tree.extents() {
                let pointer = key.cached_at().expect("an extent leads somewhere");
                let bucket = geometry.bucket_of(pointer.sector());
                if wanted.binary_search(&bucket).is_err() {
                    continue;
                }
                let hole = key.without_pointer();
                match holes.last().and_then(|last| last.joined(&hole, u64::MAX)) {
                    Some(both) => *holes.last_mut().expect("there is one") = both,
                    None => holes.push(hole),
                }
            }
            if holes.len() <= most {
                return holes;
            }
            wanted.truncate(wanted.len() / 2);
        }
        Vec::new()
    }
}
