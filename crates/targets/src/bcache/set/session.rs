//! A session: changes the set on the device.
//!
//! # Order
//! 1. The superblock with another sequence, durably: it says that a session began.
//! 2. What the journal has enters the leaves, durably.
//! 3. An entry of the journal that says so: no entry before it counts.
//! 4. Keys that become clean enter the leaves, batch by batch. They are not in the journal: losing
//!    them leaves dirty keys to the same data.
//! 5. The priorities (`priorities`), and the entry that names them and says that nothing before it
//!    counts. If a volume leaves the set ([`Session::forget_volume`]), or if the array of uuids has
//!    the layout of old kernels, the new array (`uuids`) is written before the priorities, and the
//!    same entry names it.
//!
//! # What a crash leaves
//! - Before 3: the same entries of the journal, over leaves that have some of their keys already.
//!   The next opening replays them, to the same effect.
//! - Before the end of 4: each key dirty or clean.
//! - Before the entry of 5: the priorities, and the array of uuids, of the session before.
//!
//! # A full set
//! A leaf without room needs free buckets. If there are too few even to replace it, and the nodes
//! above it, by nodes that are as large, buckets that have only clean data are emptied (`emptying`;
//! writing leaves does so by itself).
//!
//! # A full ring
//! The entries found at opening enter in parts if the ring lacks room (`replay`); an entry without
//! keys between them frees what the part before it came from. See `journal` for why this makes
//! progress.

use cairn_block::{Env, IoError, yield_once};
use cairn_format::bcache::{Key, SUPERBLOCK_SECTOR};

use super::emptying::Clean;
use super::replay::Replay;
use super::{Core, Set};
use crate::bcache::btree::{Fill, NoBucket, Plan, READ_AT_ONCE, Span, Unwritten, write_plan};
use crate::bcache::canary::{Bug, planted};
use crate::bcache::journal::{EntryWrite, NoEntry, SPARE};
use crate::bcache::work;

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum WriteError {
    /// The cache device failed.
    #[error("the cache device failed: {0}")]
    Cache(IoError),
    /// No bucket is free, and none can be emptied.
    #[error("buckets: found none free and none with clean data alone, expected {0}")]
    NoBucket(usize),
    /// The journal has no room.
    #[error("journal: {0}")]
    Journal(#[from] NoEntry),
    /// The superblock has the highest sequence number.
    #[error("superblock seq: found {}, expected a number to be left", u64::MAX)]
    Numbers,
    /// Too many requests of the cache device failed.
    #[error("{0} requests of the cache device failed: cache/io_error_limit is reached")]
    Errors(u64),
    /// A leaf cannot be read, or is damaged.
    #[error("node at sector {0}: it cannot be read or is damaged; see: cairn check")]
    Leaf(u64),
    /// The set could not be written before.
    #[error("the set is in error: see the log, then suspend and resume its volumes")]
    Broken,
}

/// See the module's description.
pub(in super::super) struct Session<'a> {
    pub env: &'a Env,
    pub core: &'a Core,
}

impl Session<'_> {
    /// Looks at the set, under its lock.
    pub fn with<T>(&self, look: impl FnOnce(&mut Set) -> T) -> T {
        self.core.with(look)
    }

    /// Acts on the set once the leaves are present that have sectors of keys.
    ///
    /// # Errors
    /// The set is broken.
    pub async fn with_present<T>(
        &self,
        keys: &[Key],
        act: impl FnOnce(&mut Set) -> T,
    ) -> Result<T, WriteError> {
        self.core.with_present(self.env, keys.iter().map(Span::of), act).await
    }

    /// Begins, unless the set has a session already.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn begin(&self) -> Result<(), WriteError> {
        if !self.with(|set| set.replay.is_some()) {
            return Ok(());
        }
        let now_s = self.env.unix_time().as_secs() as u32;
        let superblock = self.with(|set| match set.superblock.seq() {
            u64::MAX => Err(WriteError::Numbers),
            _ => Ok(set.superblock.registered(now_s)),
        })?;
        let bytes = superblock.encode();
        let wrote = self.core.cache.commit(self.env, SUPERBLOCK_SECTOR, &bytes).await;
        wrote.map_err(WriteError::Cache)?;
        self.with(|set| set.superblock = superblock);
        let early = planted(Bug::JournalBeforeLeaves);
        if early {
            self.write_entry_of(|set| set.journal.entry(&[], None, SPARE)).await?;
        }
        let first = |set: &mut Set| set.replay.as_ref().and_then(Replay::first);
        while let Some((keys, part)) = self.with(first) {
            let part = Unwritten::gather(&keys[part]).await;
            drop(keys);
            match part.is_empty() {
                true => self.with(|set| set.replay.iter_mut().for_each(Replay::leave)),
                false => self.write_leaves(part).await?,
            }
            if !early && self.with(|set| set.open().is_some()) {
                self.write_entry().await?;
            }
        }
        self.with(|set| set.replay = None);
        self.close_journal().await
    }

    /// Makes dirty extents clean, in memory and in the leaves durably, where the tree still has
    /// them: their data is durable on the backing device. `cleaned` gets how many sectors, once
    /// they are in memory.
    ///
    /// # Errors
    /// The set cannot be written. Some of the keys may be in leaves.
    pub async fn clean(&self, keys: &[Key], cleaned: impl Fn(u64)) -> Result<(), WriteError> {
        let (mut rest, mut unwritten) = (keys, keys);
        while !rest.is_empty() {
            let is_short = self.core.is_above_limit();
            let mut some = &rest[..work::changes().min(rest.len())];
            if is_short {
                some = &some[..self.with(|set| set.tree.prefix_in(some, READ_AT_ONCE))];
            }
            rest = &rest[some.len()..];
            let clean = |set: &mut Set| set.tree.clean(some, &mut set.buckets);
            cleaned(self.with_present(some, clean).await?);
            if is_short {
                let written = &unwritten[..unwritten.len() - rest.len()];
                self.write_leaves(Unwritten::gather(written).await).await?;
                self.trim().await?;
                unwritten = rest;
            }
            yield_once().await;
        }
        self.write_leaves(Unwritten::gather(unwritten).await).await
    }

    /// Brings the leaves on the device up to date, durably.
    pub(super) async fn write_leaves(&self, sectors: Unwritten) -> Result<(), WriteError> {
        let mut left = Left::of(sectors);
        while !left.is_empty() {
            self.keep_room().await?;
            self.write_some(&mut left).await?;
        }
        Ok(())
    }

    /// Leaves room in the journal for a checkpoint, which fresh roots take as well: if there is
    /// not, one frees it now.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn keep_room(&self) -> Result<(), WriteError> {
        let is_short = |set: &mut Set| {
            let journal = &set.journal;
            set.changes.open().is_some() && !journal.has_room(journal.clients_spare())
        };
        if self.with(is_short) { self.checkpoint().await } else { Ok(()) }
    }

    /// One plan, or fewer buckets with clean data.
    pub(super) async fn write_some(&self, left: &mut Left) -> Result<(), WriteError> {
        let mut planned = self.plan(left.next(), Fill::Roomy).await;
        if planned.is_err() {
            self.refill().await;
            planned = self.plan(left.next(), Fill::Roomy).await;
        }
        if planned.is_err() {
            // The fewest that it takes.
            planned = self.plan(left.next(), Fill::Tight).await;
        }
        match planned {
            Ok(plan) => self.carry_out(plan, left).await,
            Err(NoBucket { needed }) => self.empty_buckets(left, needed).await,
        }
    }

    /// Plans the next writes, in pieces.
    async fn plan(&self, unwritten: &mut Unwritten, fill: Fill) -> Result<Plan, NoBucket> {
        let mut next_seq = || 1 + self.env.random_below(u64::MAX - 1);
        let mut planning = self.with(|set| set.tree.begin_plan(0, fill));
        loop {
            let goes_on = self.with(|set| {
                let Set { tree, buckets, .. } = set;
                tree.plan_some(&mut planning, unwritten, buckets, &mut next_seq)
            });
            if !goes_on? {
                break;
            }
            yield_once().await;
        }
        Ok(self.with(|set| {
            let Set { tree, buckets, .. } = set;
            tree.end_plan(planning, buckets, &mut next_seq)
        }))
    }

    /// Finds all buckets that are free now. No plan is being written (K4).
    pub async fn refill(&self) {
        while self.with(|set| set.buckets.refill()) {
            yield_once().await;
        }
    }

    /// Writes a plan that is not about unwritten sectors. There was room in the journal when it was
    /// begun ([`Session::keep_room`]).
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn carry_out_alone(&self, plan: Plan) -> Result<(), WriteError> {
        self.carry_out(plan, &Left::of(Unwritten::default())).await
    }

    async fn carry_out(&self, plan: Plan, left: &Left) -> Result<(), WriteError> {
        self.core.check()?;
        write_plan(self.env, &self.core.cache, &plan).await.map_err(WriteError::Cache)?;
        self.with(|set| set.planned(left));
        if plan.has_new_root {
            self.with(|set| set.journal.name_root(set.tree.root()));
            match planted(Bug::JournalBeforeLeaves) {
                true => self.write_entry_of(|set| set.journal.entry(&[], None, SPARE)).await?,
                false => self.write_entry().await?,
            }
        }
        self.with(|set| set.release(&plan));
        Ok(())
    }

    /// Ends the changes: what the next opening reads is as small and as new as it can be.
    ///
    /// # Errors
    /// The set cannot be written.
    pub async fn end(&self) -> Result<(), WriteError> {
        self.keep_room().await?;
        self.refill_for_array().await;
        let array = self.with(Set::plan_long_uuids);
        let replaced = match &array {
            Some(array) => self.write_array(array).await?,
            None => None,
        };
        self.write_priorities().await?;
        self.with(|set| set.array_written(replaced));
        Ok(())
    }

    /// Writes the priorities, if they changed, and the last entry.
    pub(super) async fn write_priorities(&self) -> Result<(), WriteError> {
        let Some(chain) = self.plan_priorities().await else {
            return self.close_journal().await;
        };
        let early = planted(Bug::EntryBeforePriorities);
        if early {
            self.with(|set| set.journal.name_priorities(chain.first));
            self.write_entry().await?;
        }
        let pieces: Vec<(u64, &[u8])> =
            chain.pieces.iter().map(|(sector, bytes)| (*sector, &bytes[..])).collect();
        self.core.cache.write_all(self.env, &pieces).await.map_err(WriteError::Cache)?;
        if !early {
            self.with(|set| set.journal.name_priorities(chain.first));
            self.write_entry().await?;
        }
        self.with(|set| set.priorities_written(&chain));
        Ok(())
    }

    /// Says which entries of the journal are open, unless the newest one says so.
    ///
    /// # Errors
    /// The entry cannot be written.
    pub(super) async fn close_journal(&self) -> Result<(), WriteError> {
        match self.with(|set| set.journal.says(set.open())) {
            true => Ok(()),
            false => self.write_entry().await,
        }
    }

    /// Writes an entry without keys, durably, after all that was written before. It says which
    /// entries are open.
    pub(super) async fn write_entry(&self) -> Result<(), WriteError> {
        self.write_entry_of(|set| set.journal.entry(&[], set.open(), SPARE)).await
    }

    pub(super) async fn write_entry_of(
        &self,
        build: impl FnOnce(&mut Set) -> Result<EntryWrite, NoEntry>,
    ) -> Result<(), WriteError> {
        self.core.write_entry(self.env, build).await
    }
}

/// The sectors for which leaves on the device are out of date.
pub(super) struct Left {
    /// Those of buckets that were emptied, which are written first.
    pub(super) holes: Unwritten,
    sectors: Unwritten,
    /// Buckets that may be emptied when others are lacking.
    pub(super) clean: Option<Clean>,
}

impl Left {
    pub fn of(sectors: Unwritten) -> Left {
        Left { holes: Unwritten::default(), sectors, clean: None }
    }

    pub fn is_empty(&self) -> bool {
        self.holes.is_empty() && self.sectors.is_empty()
    }

    fn next(&mut self) -> &mut Unwritten {
        if self.holes.is_empty() { &mut self.sectors } else { &mut self.holes }
    }
}

impl Set {
    /// The oldest entry of the journal that is open.
    pub(super) fn open(&self) -> Option<u64> {
        let found = self.replay.as_ref().and_then(Replay::open);
        [found, self.open_holes, self.changes.open()].into_iter().flatten().min()
    }

    /// What is not left any more is in leaves, if the next entry names their root: those that had
    /// it are not open.
    fn planned(&mut self, left: &Left) {
        self.open_holes = self.open_holes.filter(|_| !left.holes.is_empty());
        if left.is_empty() {
            self.replay.iter_mut().for_each(Replay::leave);
        }
    }

    /// The nodes that a plan replaced are gone, durably.
    fn release(&mut self, plan: &Plan) {
        plan.replaced.iter().for_each(|pointer| self.buckets.node_replaced(*pointer));
    }
}
