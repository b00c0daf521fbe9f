//! What clients changed in memory and the device does not have yet.
//!
//! # Invariants
//! N1. A key enters the tree and [`Changes::pending`] in one step, in the order in which the data
//!     of the writes completed. It gets the next number then. A group commit takes all pending keys
//!     at once: they are *committing* until their entries are written, and have *entered* until
//!     these are durable. So all keys up to some number are durable, and none behind it. A flush of
//!     a client waits for the last key that was acknowledged before it was durable; the key of a
//!     FUA write that is not answered yet concerns no flush.
//! N2. An entry with keys of clients is open until a checkpoint has ended that began after the
//!     entry was planned: the tree had its keys then, so the leaves have them, or newer ones.
//! N3. The data of an extent is copied to the backing device only after its dirty key is in a
//!     durable entry. So no power cut leaves an older clean extent in front of it there; and a
//!     checkpoint that begins after an extent became clean and was evicted closes all entries with
//!     a key to it.
//! N4. A key that was pending when a checkpoint began is in a durable entry when it ends, and so is
//!     what replaced it before. So no entry that is written later leads to a bucket that the
//!     checkpoint made free.
//! N5. A sector is a *ghost* if a clean key on the device may lead to data for it that the tree in
//!     memory does not have: its extent was evicted, or replaced by a hole. It is one until the
//!     hole is durable, by an entry of the journal or by a checkpoint. Nothing is sent to the
//!     backing device for a ghost: after a power cut the clean key would hide it.

use cairn_block::{RequestId, StreamId, Time};
use cairn_format::bcache::{Key, Pointer};

use super::Set;
use super::ghosts::Ghosts;
use super::overwrites::Taken;
use super::recent::Recent;
use crate::bcache::btree::{Change, Span};
use crate::bcache::buckets::Marks;
use crate::bcache::canary::{Bug, planted};
use crate::bcache::fill::Fills;
use crate::bcache::journal::{EntryWrite, NoEntry};
use crate::bcache::route::Overlap;
use crate::group_commit::{GroupCommit, Waiter};

/// The longest hole in one key, as the kernel makes them, in sectors.
const HOLE_MAX: u64 = 32_768;

/// See the module's description.
#[derive(Default)]
pub(in super::super) struct Changes {
    /// Keys that the tree has and no entry of the journal.
    pending: Vec<Key>,
    /// Keys that a group commit is writing.
    committing: Vec<Key>,
    /// Keys of the group whose entry is written and not durable.
    entered: Vec<Key>,
    /// The number of the last key that is in the tree, in a closed group, in an entry that is
    /// written, and in a durable one.
    inserted: u64,
    closed: u64,
    written: u64,
    durable: u64,
    /// The number of the last key that a client relies on although it was not durable.
    acknowledged: u64,
    /// Where keys lie that are not durable.
    recent: Recent,
    /// Extents that are not written in place now, and the number of the last that were.
    pub(super) taken: Vec<Taken>,
    pub(super) last_taken: u64,
    /// The volumes that rely on writes in place, each with the number of its last one.
    pub(super) overwrote: Vec<(u32, u64)>,
    /// When pending keys enter the journal without a request for it.
    commit_at: Option<Time>,
    pub commits: GroupCommit,
    pub arrivals: Arrivals,
    /// Keys that came since the last checkpoint began.
    behind: Vec<Key>,
    /// Of these, keys of fills, and those that the checkpoint under way takes: the cache device may
    /// lose their data.
    filled: Vec<Key>,
    filled_before: Vec<Key>,
    /// The oldest open entry with keys of clients: of those planned before the last checkpoint
    /// began, and since.
    open_before: Option<u64>,
    open_since: Option<u64>,
    /// How often a checkpoint freed entries of the journal, and whether a commit waits for one.
    pub freed: u64,
    pub needs_room: bool,
    pub ghosts: Ghosts,
    pub fills: Fills,
    /// Requests that wait for a bucket, with the numbers of their volumes.
    pub waiting: Vec<(u32, RequestId)>,
    /// Keys to dirty data that are lost, as the set broke (C2).
    lost: Vec<Key>,
    /// The volumes with such keys, or with writes in place that are lost with them.
    lossy: Vec<u32>,
}

/// Writes of clients whose data is on its way into the cache.
#[derive(Default)]
pub(in super::super) struct Arrivals {
    begun: u64,
    ended: u64,
    /// Of those in flight.
    sectors: u64,
}

impl Arrivals {
    /// One of so many sectors begins.
    pub fn begin(&mut self, sectors: u64) {
        self.begun += 1;
        self.sectors += sectors;
    }

    /// One of so many sectors has ended.
    pub fn end(&mut self, sectors: u64) {
        self.ended += 1;
        self.sectors -= sectors;
    }

    /// How many have begun, and how many of them are in flight.
    pub fn in_flight(&self) -> (u64, u64) {
        (self.begun, self.begun - self.ended)
    }

    /// How many sectors those in flight have.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// True if none is in flight, or `more` have ended than had begun.
    pub fn have_ended(&self, begun: u64, more: u64) -> bool {
        self.ended == self.begun || self.ended >= begun + more
    }
}

impl Changes {
    /// The oldest open entry that has keys of clients.
    pub fn open(&self) -> Option<u64> {
        self.open_before.or(self.open_since)
    }

    /// The write of the key that was inserted last is answered, although the key is not durable.
    pub fn acknowledge(&mut self) {
        self.acknowledged = self.inserted;
    }

    /// True if no key of these sectors is volatile. May be false for others.
    pub(super) fn are_durable(&self, span: &Span) -> bool {
        self.recent.are_durable(span, self.durable)
    }

    /// True if a client relies on a key that is in no durable entry of the journal.
    pub fn owe_a_commit(&self) -> bool {
        self.acknowledged > self.durable
    }

    /// How many keys the leaves are behind.
    pub fn behind(&self) -> usize {
        self.behind.len()
    }

    /// A key of a fill: the leaves do not have it, and it needs no entry of the journal.
    pub fn add_filled(&mut self, key: &Key) {
        self.behind.push(*key);
        self.filled.push(*key);
    }

    /// True if keys to dirty data of a volume were lost.
    pub fn have_lost_data(&self, inode: u32) -> bool {
        self.lost.iter().any(|key| key.inode() == inode)
    }

    /// True if a volume counted a loss when the set broke (C2, V5).
    pub fn have_lost_writes(&self, inode: u32) -> bool {
        self.lossy.contains(&inode)
    }

    /// The requests of a volume that wait for a bucket.
    pub fn take_waiting_of(&mut self, inode: u32) -> Vec<RequestId> {
        self.waiting.extract_if(.., |(of, _)| *of == inode).map(|(_, id)| id).collect()
    }

    /// The requests that wait for a bucket, all of them.
    pub fn take_waiting(&mut self) -> Vec<RequestId> {
        self.waiting.drain(..).map(|(_, id)| id).collect()
    }

    /// When the next group commit begins without a request for it. None while one runs: the keeper
    /// looks again at its end, for keys that are pending since.
    pub fn commit_due(&self) -> Option<Time> {
        self.commit_at.filter(|_| !self.commits.is_running())
    }

    /// A group commit begins: its waiters.
    pub fn begin_commit(&mut self) -> Vec<Waiter> {
        assert!(self.committing.is_empty(), "one commit runs at a time");
        std::mem::swap(&mut self.pending, &mut self.committing);
        self.closed = self.inserted;
        self.commit_at = None;
        self.commits.take()
    }

    /// A bug: keys join a group whose flush has begun. True if there are some.
    pub fn close_again(&mut self) -> bool {
        self.committing.append(&mut self.pending);
        self.closed = self.inserted;
        !self.committing.is_empty()
    }

    /// How many keys a group commit writes.
    pub fn committing(&self) -> usize {
        self.committing.len()
    }
}

impl Set {
    /// A place for the data of these sectors, or for the first of them. None if no bucket is free.
    pub fn place(&mut self, span: Span, stream: StreamId) -> Option<(Pointer, u64)> {
        let (start, want) = ((span.inode, span.start), span.end - span.start);
        self.open_buckets.place(&mut self.buckets, start, want, stream)
    }

    /// A group commit begins: its waiters, and whether it has keys.
    pub fn close_group(&mut self) -> (Vec<Waiter>, bool) {
        let (waiters, has_keys) = (self.changes.begin_commit(), self.changes.committing() > 0);
        self.acknowledged.seal();
        if !has_keys {
            self.acknowledged.entered();
        }
        (waiters, has_keys)
    }

    /// The entries of a group commit are written; they are durable if `is_durable`, and otherwise
    /// behind the next flush. The caller has the turn of the journal.
    pub fn group_has_entered(&mut self, is_durable: bool) {
        let changes = &mut self.changes;
        assert!(changes.entered.is_empty(), "O2: one group has entered");
        std::mem::swap(&mut changes.committing, &mut changes.entered);
        changes.written = changes.closed;
        self.acknowledged.entered();
        if is_durable {
            self.group_is_durable();
        }
    }

    /// The group that has entered is durable. The caller has the turn of the journal.
    pub fn group_is_durable(&mut self) {
        self.changes.entered.clear();
        self.changes.durable = self.changes.written;
        self.journal.newest_is_durable();
    }

    /// A client wrote this extent: its data has completed. `at` is when the key is to enter the
    /// journal at the latest. True if the keeper does not know of a time yet.
    pub fn insert(&mut self, key: &Key, at: Time) -> (Change, bool) {
        let change = self.tree.lay(key, &mut self.buckets);
        self.changes.pending.push(*key);
        self.changes.inserted += 1;
        self.changes.recent.add(&Span::of(key), self.changes.inserted);
        self.changes.behind.push(*key);
        let is_first = self.changes.commit_at.is_none();
        self.changes.commit_at.get_or_insert(at);
        (change, is_first)
    }

    /// What the cache has of these sectors.
    pub fn overlap(&self, span: &Span) -> Overlap {
        let ghosts = &self.changes.ghosts;
        let [is_ghost, leaves] = match planted(Bug::GhostsForgotten) {
            true => [false; 2],
            false => [ghosts.overlap(span), ghosts.overlap_hole(span)],
        };
        let (mut is_clean, mut is_dirty) = (is_ghost, false);
        for key in self.tree.extents_in(span) {
            is_clean = true;
            is_dirty |= key.is_dirty() && !planted(Bug::HoleOverDirty);
        }
        match (is_dirty, is_clean) {
            (true, _) => Overlap::Dirty,
            (false, true) => Overlap::Clean,
            (false, false) if leaves => Overlap::Leaving,
            (false, false) => Overlap::None,
        }
    }

    /// Lays a hole over sectors, which are ghosts until it is durable. Answers by how much the
    /// dirty sectors of the volume change.
    pub fn lay_hole(&mut self, span: Span, at: Time) -> i64 {
        let (mut start, mut dirty) = (span.start, 0);
        while start < span.end {
            let sectors = (span.end - start).min(HOLE_MAX);
            start += sectors;
            dirty += self.insert(&Key::new(span.inode, start, sectors), at).0.dirty;
        }
        self.changes.ghosts.lay(span);
        dirty
    }

    /// The read of these sectors of a volume failed at this sector of the cache device. Clean
    /// extents that lead there leave the tree: the backing device has their data, durably. False if
    /// one is dirty.
    pub fn drop_unreadable(&mut self, span: &Span, sector: u64) -> bool {
        let parts = self.tree.extents_in(span);
        let parts = parts.filter_map(|key| key.part(span.start, span.end));
        let leads_there = |part: &Key| {
            let at = part.cached_at().map(|pointer| pointer.sector());
            at == Some(sector + (part.start() - span.start))
        };
        let failed: Vec<Key> = parts.filter(leads_there).collect();
        if failed.iter().any(Key::is_dirty) && !planted(Bug::RetryOfDirty) {
            return false;
        }
        // A bucket that is empty now is not free before a checkpoint (K1).
        self.buckets.serve_clients();
        for part in failed {
            let hole = part.without_pointer();
            self.tree.lay(&hole, &mut self.buckets);
            self.changes.ghosts.evict(&[hole]);
            self.changes.behind.push(hole);
        }
        true
    }

    /// A write of data to this sector failed: its bucket takes no more.
    pub fn write_failed(&mut self, sector: u64) {
        let bucket = self.superblock.geometry().bucket_of(sector);
        self.open_buckets.abandon(&mut self.buckets, bucket);
    }

    /// The extents of a leaf in these buckets leave the tree. They are clean.
    pub fn evict_leaf(&mut self, leaf: usize, victims: &Marks) {
        self.evict_of_leaf(leaf, |key| !key.is_dirty() && victims.have(key));
    }

    /// The extents of a leaf leave the tree for which `leaves` answers true. They are clean.
    pub fn evict_of_leaf(&mut self, leaf: usize, leaves: impl FnMut(&Key) -> bool) {
        let holes = self.tree.evict_leaf(leaf, leaves, &mut self.buckets);
        let holes = self.tree.join_holes(&holes);
        self.changes.ghosts.evict(&holes);
        self.changes.behind.extend(holes);
    }

    /// The next entry of a group commit, with its keys from `first` on, and how many these are.
    ///
    /// # Errors
    /// The journal has no room.
    pub fn entry_of_commit(&mut self, first: usize) -> Result<(EntryWrite, usize), NoEntry> {
        let (open, spare) = (self.open(), self.journal.clients_spare());
        // None if the set broke since: the caller sees that.
        let keys = self.changes.committing.get(first..).unwrap_or_default();
        let count = keys.len().min(self.journal.keys_max());
        let entry = self.journal.entry_of_group(&keys[..count], open, spare)?;
        self.acknowledged.begin_entry(&entry);
        let seq = self.journal.newest();
        self.changes.open_since.get_or_insert(seq);
        Ok((entry, count))
    }

    /// A checkpoint begins: the keys in whose sectors leaves are behind, and its number.
    pub fn begin_checkpoint(&mut self) -> (Vec<Key>, u32) {
        let changes = &mut self.changes;
        changes.open_before = changes.open();
        changes.open_since = None;
        changes.ghosts.begin_checkpoint();
        self.tree.forget_large_leaf();
        self.tree.begin_checkpoint();
        changes.filled_before.append(&mut changes.filled);
        (std::mem::take(&mut changes.behind), self.buckets.begin_checkpoint())
    }

    /// The leaves have what they lacked when the checkpoint began.
    pub fn leaves_written(&mut self) {
        self.changes.open_before = None;
        self.changes.filled_before.clear();
    }

    /// An entry says so, durably.
    pub fn entries_freed(&mut self) {
        self.changes.freed += 1;
        self.changes.needs_room = false;
    }

    /// A checkpoint has ended: no entry from before it is open, and the requests have ended that
    /// had found what was replaced before it.
    pub fn end_checkpoint(&mut self, number: u32) {
        self.changes.ghosts.end_checkpoint();
        self.tree.end_checkpoint();
        self.buckets.settle(number);
    }

    /// The set is broken: the requests that wait for a bucket, and the volumes with lost keys.
    /// Fills whose data may be lost leave the tree: the backing device has it. A flush has covered
    /// the first `overwrites` of the writes in place (V5).
    pub fn give_up(&mut self, overwrites: u64) -> (Vec<RequestId>, Vec<u32>) {
        let changes = &mut self.changes;
        for key in changes.filled_before.drain(..).chain(changes.filled.drain(..)) {
            let hole = Key::new(key.inode(), key.end(), key.sectors());
            self.tree.replace(&key, &hole, &mut self.buckets);
        }
        for keys in [&mut changes.entered, &mut changes.committing, &mut changes.pending] {
            changes.lost.append(keys);
        }
        // A lost hole does no harm: the cache counts nowhere any more, or the volume is stopped.
        changes.lost.retain(Key::is_dirty);
        // Clients see the loss in the counts of failures.
        changes.durable = changes.inserted;
        changes.commit_at = None;
        let overwrote = changes.overwrote.drain(..).filter(|(_, number)| *number > overwrites);
        let overwrote: Vec<u32> = overwrote.map(|(inode, _)| inode).collect();
        changes.lossy = changes.lost.iter().map(Key::inode).chain(overwrote).collect();
        if !changes.lossy.is_empty() {
            self.acknowledged.give_up();
        }
        self.acknowledged.entered();
        (changes.take_waiting(), changes.lossy.clone())
    }
}
