//! Emptying: buckets with only clean data become free at once, where a session needs buckets to
//! write a leaf, so that no checkpoint can make them free.
//!
//! # Order
//! 1. The buckets: closed ones with only clean data, settled on the device as in memory; those with
//!    the least data. Their extents, leaf by leaf. One look finds more of them than are needed now:
//!    the next time that the same leaves lack buckets, those are taken that are such still, and
//!    were not reused. A bucket that is closed gets no more extents, so that none is missed.
//! 2. An entry of the journal makes holes of what the tree still has of these extents when the
//!    entry is built, durably. Then no key that counts leads to it. A key of a client that enters
//!    the tree later is in a later entry.
//! 3. The tree in memory gets the same holes, where it still has the extents (compare and swap).
//! 4. The requests end that had found them, and the buckets are free: but for those that lost
//!    anything to clients between 1 and 2. (The device may have a key to that until a checkpoint.)
//!    What they lose to clients later is hidden by the holes. If clients took from all of them, the
//!    session chooses again.
//!
//! The holes enter the leaves before all else, so that the entry is open for a short time. A bucket
//! counts as clean once its extents are clean in the tree in memory, since their data is durable on
//! the backing device by then.

use cairn_block::{mutants, yield_once};
use cairn_format::bcache::Key;

use super::Set;
use super::session::{Left, Session, WriteError};
use crate::bcache::btree::{Which, holes_of};
use crate::bcache::buckets::{Choice, Marks};
use crate::bcache::canary::{Bug, planted};
use crate::bcache::coverage::{self, Path};
use crate::bcache::journal::{EntryWrite, NoEntry, SPARE};
use crate::bcache::work;

/// A look finds so many buckets and extents at most.
const BUCKETS_MAX: usize = 256;
const EXTENTS_MAX: usize = 1 << 16;

/// Buckets to empty, and their extents, in order.
struct Emptied {
    buckets: Vec<u64>,
    extents: Vec<Key>,
}

/// What a look found, and was not needed yet.
pub(super) struct Clean {
    /// Those with the least data first.
    buckets: Vec<u64>,
    extents: Vec<Key>,
    marks: Marks,
}

/// What an entry says of them.
#[derive(Default)]
struct Built {
    holes: Vec<Key>,
    /// The buckets that have lost nothing to clients until then.
    settled: Vec<u64>,
}

impl Session<'_> {
    /// Makes `needed` buckets free that have only clean data; fewer if an entry of the journal has
    /// no room for more.
    ///
    /// # Errors
    /// There are none, or the set cannot be written.
    pub(super) async fn empty_buckets(
        &self,
        left: &mut Left,
        needed: usize,
    ) -> Result<(), WriteError> {
        let most = self.with(|set| set.journal.holes_max());
        let mut emptied = self.clean_buckets(&mut left.clean, needed).await?;
        while holes_of(&emptied.extents).len() > most {
            self.with(|set| set.keep_half(&mut emptied));
        }
        if emptied.buckets.is_empty() {
            return Err(match most {
                0 => WriteError::Journal(NoEntry::Full),
                _ => WriteError::NoBucket(needed),
            });
        }
        coverage::take(Path::EmptyBuckets);
        let mut built = Built::default();
        if planted(Bug::ReuseBeforeDurable) {
            built = self.with(|set| set.holes_left(&emptied));
        } else {
            let build = |set: &mut Set| {
                built = set.holes_left(&emptied);
                // Clients may have cut the extents since, and a group taken of the room.
                while built.holes.len() > set.journal.holes_max() {
                    set.keep_half(&mut emptied);
                    built = set.holes_left(&emptied);
                }
                set.entry_of_holes(&built.holes)
            };
            self.write_entry_of(build).await?;
        }
        if built.settled.is_empty() {
            // Clients have taken from all of them since. The next plan looks again.
            return Ok(());
        }
        self.with(|set| set.empty(&emptied.extents, &built.settled));
        left.holes.add(&built.holes);
        if !mutants::skips("bcache: wait for readers of emptied buckets") {
            self.core.readers.quiesce(0).await;
        }
        // None is free if tasks copy from all of them. They are not chosen again: this ends.
        self.refill().await;
        Ok(())
    }

    /// Step 1.
    async fn clean_buckets(
        &self,
        clean: &mut Option<Clean>,
        count: usize,
    ) -> Result<Emptied, WriteError> {
        let mut buckets = self.with(|set| set.take_clean(clean, count));
        if buckets.is_empty() {
            *clean = Some(self.find_clean(count).await?);
            buckets = self.with(|set| set.take_clean(clean, count));
        }
        let marks = self.with(|set| set.buckets.marks(&buckets));
        let found =
            clean.iter_mut().flat_map(|it| it.extents.extract_if(.., |key| marks.have(key)));
        let extents: Vec<Key> = found.collect();
        // They stay so: only the holder of the turn has leaves leave.
        for some in extents.chunks(work::changes()) {
            self.with_present(some, |_| ()).await?;
            yield_once().await;
        }
        Ok(Emptied { buckets, extents })
    }

    /// A look for `count` buckets or more.
    async fn find_clean(&self, count: usize) -> Result<Clean, WriteError> {
        let mut choice = Choice::new(count.max(BUCKETS_MAX));
        while !self.with(|set| set.buckets.choose_clean(&mut choice)) {
            yield_once().await;
        }
        let mut buckets = choice.into_buckets();
        let marks = self.with(|set| set.buckets.marks(&buckets));
        let extents = self.core.extents_in(self.env, &mut buckets, EXTENTS_MAX, Which::All).await?;
        Ok(Clean { buckets, extents, marks })
    }
}

impl Set {
    /// Step 1: the next buckets that were found, and may be emptied still.
    fn take_clean(&self, clean: &mut Option<Clean>, count: usize) -> Vec<u64> {
        let Some(clean) = clean else { return Vec::new() };
        let (mut taken, mut looked) = (Vec::new(), 0);
        for at in &clean.buckets {
            if taken.len() == count {
                break;
            }
            looked += 1;
            taken.extend(self.buckets.may_be_emptied(*at, &clean.marks).then_some(*at));
        }
        clean.buckets.drain(..looked);
        taken
    }

    /// Gives up half of the buckets.
    fn keep_half(&self, emptied: &mut Emptied) {
        emptied.buckets.truncate(emptied.buckets.len() / 2);
        let marks = self.buckets.marks(&emptied.buckets);
        emptied.extents.retain(|key| marks.have(key));
    }

    /// Step 2: the holes of what the tree still has.
    fn holes_left(&self, emptied: &Emptied) -> Built {
        let left: Vec<Key> =
            emptied.extents.iter().flat_map(|key| self.tree.parts_left(key)).collect();
        let settled = emptied.buckets.iter().filter(|at| self.buckets.is_settled(**at));
        Built { holes: holes_of(&left), settled: settled.copied().collect() }
    }

    /// Step 2: the next entry.
    fn entry_of_holes(&mut self, holes: &[Key]) -> Result<EntryWrite, NoEntry> {
        let entry = self.journal.entry(holes, self.open(), SPARE)?;
        self.open_holes.get_or_insert(self.journal.newest());
        Ok(entry)
    }

    /// Step 3. `settled` are the buckets that had lost nothing when the entry was built: its holes
    /// hide on the device all that these have lost since (K1).
    fn empty(&mut self, extents: &[Key], settled: &[u64]) {
        for key in extents {
            self.tree.replace(key, &key.without_pointer(), &mut self.buckets);
        }
        settled.iter().for_each(|at| self.buckets.call_settled(*at));
    }
}
