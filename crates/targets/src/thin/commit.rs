//! Commits: make every change of a pool durable in one atomic step.
//!
//! # The order of a commit, and what a crash between its steps leaves
//! 0. Freeze: take the waiters, then the pending changes of every volume. Later changes belong to
//!    the next commit. Requests are served throughout.
//! 1. Flush the data device: the data of the frozen mappings is durable (T1). *Crash*: the former
//!    mappings, none of whose data blocks was overwritten (T2).
//! 2. Apply the changes to shadows of the trees, and the edit of a verb if one waits (`edits`),
//!    write them, flush, and write the superblock with a flush (steps 2 to 4 of the store).
//!    *Crash*: the former superblock or the new one. Now flushes and FUA writes that waited
//!    complete.
//! 3. The data blocks that the commit freed are in quarantine. No lookup finds them any more, but
//!    requests that found them earlier may be in flight, even writes. The blocks may be taken again
//!    (T3) when those requests have ended, and client discards have been sent to the data device.
//!    *Crash*: they are free in the durable metadata, so their content does not matter.
//!
//! One commit runs at a time. A caller that asks while it runs joins the next.
//!
//! A flush of the data device by another user may fail at any time and drop writes to new blocks,
//! while the flush of step 1 succeeds. So step 1 also compares the device's failure count (L1 in
//! `losses`), and fails if the commit maps blocks. A FUA write into a block whose mapping is not
//! durable also waits for a commit, which may be later than the commit of the mapping. The write
//! fails if the count changed after the write was sent.
//!
//! A failed commit rolls the metadata back to the last durable state. The pool becomes read-only
//! and needs a check, and every volume with a change that is not durable reports a loss to its
//! clients (L4). There are three exceptions. A commit without changes that cannot flush the data
//! device has nothing to roll back. If the server ends and a device under the pool is suspended,
//! the metadata needs no check. If the superblock's own write failed and cannot be repeated, a
//! crash may leave either state, so that no write can be promised: the pool fails.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{Env, ErrorKind, IoError, IoResult, failures_beneath, invariants, mutants};

use super::canary::{self, Bug};
use super::config::Discards;
use super::edits::Order;
use super::index::{Change, Stamp};
use super::metadata::MetadataError;
use super::pool::{Mode, Pool};
use super::volume::Volume;
use crate::group_commit::{Ticket, Waiter, tell, tell_of_failures};
use crate::persistent::DataRun;

/// The longest time that a change stays uncommitted without a request for a commit.
const COMMIT_PERIOD: Duration = Duration::from_secs(1);

/// The changes of one volume that a commit takes: each block once, in order.
struct Frozen {
    volume: Arc<Volume>,
    changes: Vec<Change>,
}

/// The changes that a commit takes.
#[derive(Default)]
struct Batch {
    frozen: Vec<Frozen>,
    /// How many changes were made, counting each of a block.
    made: u64,
    /// Data blocks that were mapped and freed within one commit; the store never sees them.
    passing: Vec<u64>,
    /// Data blocks that a client discarded.
    discarded: Vec<u64>,
}

impl Batch {
    /// True if it maps a block.
    fn maps(&self) -> bool {
        let mut changes = self.frozen.iter().flat_map(|frozen| &frozen.changes);
        changes.any(|change| change.mapping.is_some())
    }

    fn is_empty(&self) -> bool {
        self.frozen.iter().all(|frozen| frozen.changes.is_empty())
    }
}

/// What a commit did.
struct Written {
    /// The data blocks that it freed.
    freed: Vec<DataRun>,
    /// What became of its edit, if it had one.
    edited: Option<Result<(), MetadataError>>,
}

/// Reduces the changes of one volume to the last one of each block.
fn settle(mut changes: Vec<Change>, batch: &mut Batch) -> Vec<Change> {
    // Stable: the changes of one block stay in their order.
    changes.sort_by_key(|change| change.block);
    batch.made += changes.len() as u64;
    let discarded = changes.iter().filter(|change| change.discarded);
    batch.discarded.extend(discarded.filter_map(|change| change.old.map(|old| old.block.0)));
    changes.dedup_by(|change, last| {
        let is_same = last.block == change.block;
        if is_same {
            batch.passing.extend(last.mapping.map(|mapping| mapping.block.0));
            last.mapping = change.mapping;
        }
        is_same
    });
    // The store does not know mappings that were made and removed since.
    changes.retain(|change| change.old.is_some() || change.mapping.is_some());
    changes
}

/// Numbers commits, in the order in which they freeze.
///
/// N1. A change with the stamp n is taken by the commit n, or by the one before: when the commit n
///     is durable, so is the change. A request that makes changes marks the volume, then reads the
///     number, then makes them, all under the lock of the shard. A commit that freezes raises the
///     number, then looks at the mark, then takes each shard's changes under its lock. So either
///     the number was raised before it was read, or the commit sees the mark and waits for the
///     lock.
pub(super) struct Numbers {
    /// The next to freeze.
    next: AtomicU64,
    /// The last that is durable.
    durable: AtomicU64,
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers { next: AtomicU64::new(1), durable: AtomicU64::new(0) }
    }
}

impl Numbers {
    /// The stamp of changes of `volume` that are about to be made, under the lock of their shard.
    pub fn stamp(&self, volume: &Volume) -> Stamp {
        volume.set_dirty();
        Stamp { commit: self.next.load(Ordering::SeqCst) }
    }

    /// The last commit that is durable.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Begins a commit; its number. Only then may it look for changes.
    fn begin(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    /// The commit of this number is durable.
    fn end(&self, number: u64) {
        self.durable.store(number, Ordering::Release);
    }
}

/// Step 0, after the commit has its number.
fn freeze(volumes: Vec<Arc<Volume>>) -> Batch {
    let mut batch = Batch::default();
    for volume in volumes {
        if !volume.freeze() {
            continue;
        }
        let mut taken = Vec::new();
        for mut shard in volume.map.shards() {
            taken.append(&mut shard.take_pending());
        }
        let changes = settle(taken, &mut batch);
        batch.frozen.push(Frozen { volume, changes });
    }
    batch
}

impl Pool {
    /// Waits for a commit that covers everything done before.
    pub async fn commit(&self, env: &Env) -> IoResult {
        let ticket = Arc::new(Ticket::default());
        self.join_commit(env, Waiter::Ticket(ticket.clone()));
        ticket.wait().await
    }

    /// Adds a waiter for a commit that covers every change made before.
    pub fn join_commit(&self, env: &Env, waiter: Waiter) {
        self.join_commit_with(env, waiter, None);
    }

    /// Commits an edit, in the commit that its waiter joins (X1).
    pub async fn commit_edit(&self, env: &Env, order: Order) -> Result<(), MetadataError> {
        let ticket = Arc::new(Ticket::default());
        self.join_commit_with(env, Waiter::Ticket(ticket.clone()), Some(order));
        let committed = ticket.wait().await;
        // None: the mode forbade the commit.
        let edited = self.state.lock().edited.take();
        edited.unwrap_or_else(|| Err(MetadataError::Commit(committed.err().unwrap_or(IoError::IO))))
    }

    /// An edit and its waiter join under one lock, so that the same commit takes both.
    fn join_commit_with(&self, env: &Env, waiter: Waiter, order: Option<Order>) {
        let mut state = self.state.lock();
        state.commits.join(waiter);
        if order.is_some() {
            assert!(state.order.is_none(), "X1: one edit at a time");
            (state.order, state.edited) = (order, None);
        }
        let starts = state.commits.starts();
        drop(state);
        if !starts {
            return;
        }
        self.spawn(env, async |pool, env| pool.commit_loop(env).await);
    }

    /// Commits until there is no waiter.
    async fn commit_loop(&self, env: &Env) {
        loop {
            self.commit_once(env).await;
            if !self.state.lock().commits.goes_on(false) {
                return;
            }
        }
    }

    async fn commit_once(&self, env: &Env) {
        // Before the changes: each waiter's own changes were made before it joined.
        let (waiters, order) = {
            let mut state = self.state.lock();
            (state.commits.take(), state.order.take())
        };
        if !self.can_commit() {
            // The waiters had changes that are lost by now.
            return tell(env, waiters, Err(IoError::IO));
        }
        let acknowledged = self.metadata.acknowledged();
        // Before the freeze: A2 of `acknowledged`.
        if !canary::planted(Bug::SealLate) {
            acknowledged.seal();
        }
        let number = self.numbers.begin();
        let batch = freeze(self.open_volumes());
        let result = match self.write_commit(env, &batch, order).await {
            Ok(Written { freed, edited }) => {
                if edited.is_some() {
                    self.state.lock().edited = edited;
                }
                acknowledged.committed();
                self.numbers.end(number);
                self.note_highest(env, &batch).await;
                let Batch { frozen, made, passing, discarded } = batch;
                // Before the changes count as durable: a task that looks for free blocks finds them
                // in one place or the other.
                self.quarantine(env, freed, passing, discarded);
                frozen.iter().for_each(|frozen| frozen.volume.thaw());
                self.room.end(&self.metadata, made);
                Ok(())
            }
            Err(MetadataError::Data(error)) if self.has_nothing(&batch).await => {
                batch.frozen.iter().for_each(|frozen| frozen.volume.thaw());
                self.room.end(&self.metadata, batch.made);
                acknowledged.unchanged(self.metadata.state().await);
                if order.is_some() {
                    self.state.lock().edited = Some(Err(MetadataError::Data(error)));
                }
                Err(error)
            }
            Err(error) => {
                self.roll_back(env, &error).await;
                let result = Err(error.io());
                if order.is_some() {
                    self.state.lock().edited = Some(Err(error));
                }
                result
            }
        };
        let compared = ("thin: failure count of a FUA write", self.data_disk().failures());
        tell_of_failures(env, waiters, result, compared);
        self.look_at_data(env);
        self.after_commit();
        invariants::sample(|| self.check_state());
    }

    /// True if changes can become durable. A pool whose metadata ran full has room for those that
    /// it let happen.
    fn can_commit(&self) -> bool {
        self.mode().is_writable()
    }

    /// True if a commit would change nothing.
    async fn has_nothing(&self, batch: &Batch) -> bool {
        batch.is_empty() && batch.passing.is_empty() && !self.metadata.is_changed().await
    }

    /// Steps 1 and 2.
    async fn write_commit(
        &self,
        env: &Env,
        batch: &Batch,
        order: Option<Order>,
    ) -> Result<Written, MetadataError> {
        if !canary::planted(Bug::NoDataFlush) {
            let flush = async { env.make_durable(self.data_disk()).await };
            let flushed = mutants::step("thin: flush of the data device", (), flush).await;
            flushed.map_err(MetadataError::data)?;
            if canary::planted(Bug::SealLate) {
                self.metadata.acknowledged().seal();
            }
            if batch.maps() && self.has_data_failed() {
                return Err(MetadataError::DataLost);
            }
        }
        let mut working = self.metadata.working().await;
        let (before, after) = match order {
            Some(order) if order.edit.precedes_changes() => (Some(order), None),
            order => (None, order),
        };
        let mut edited = self.make_edit(env, &mut working, before).await?;
        for Frozen { volume, changes } in &batch.frozen {
            let changes: Vec<_> =
                changes.iter().map(|change| (change.block, change.mapping)).collect();
            working.apply(env, volume.id, &changes).await?;
        }
        edited = edited.or(self.make_edit(env, &mut working, after).await?);
        let acknowledged = self.metadata.acknowledged();
        let name = acknowledged.is_kept().then_some(|state| acknowledged.name_state(state));
        let freed = working.commit_naming(env, name).await?;
        self.metadata.note(&working);
        Ok(Written { freed, edited })
    }

    /// Looks up which blocks are the highest now, where that may have changed.
    async fn note_highest(&self, env: &Env, batch: &Batch) {
        for Frozen { volume, changes } in &batch.frozen {
            let mapped = changes.iter().rfind(|change| change.mapping.is_some());
            let unmapped = changes.iter().rfind(|change| change.mapping.is_none());
            let known = volume.durable_highest().max(mapped.map(|change| change.block));
            if unmapped.is_none_or(|change| Some(change.block) < known) {
                volume.set_highest(known);
            } else if let Ok(highest) = self.metadata.highest(env, volume.id).await {
                // Only the status line uses it, so an error is ignored.
                volume.set_highest(highest);
            }
        }
    }

    /// Step 3: the blocks that the store freed, and those that it never saw.
    fn quarantine(
        &self,
        env: &Env,
        freed: Vec<DataRun>,
        mut passing: Vec<u64>,
        mut discarded: Vec<u64>,
    ) {
        if freed.is_empty() && passing.is_empty() {
            return;
        }
        passing.sort_unstable();
        discarded.sort_unstable();
        let passing = DataRun::join(passing);
        let count: u64 = freed.iter().chain(&passing).map(|run| run.count).sum();
        self.state.lock().quarantined += count;
        self.spawn(env, async move |pool, env| {
            let skipped = mutants::skips("thin: wait for requests to freed blocks");
            if !skipped && !canary::planted(Bug::NoQuarantine) {
                pool.epochs.quiesce(0).await;
            }
            pool.pass_down(env, &freed, &discarded).await;
            let allocator = pool.metadata.allocator();
            freed.iter().for_each(|run| allocator.release(*run));
            passing.iter().for_each(|run| allocator.put_back(*run));
            pool.state.lock().quarantined -= count;
            pool.space_came();
        });
    }

    /// Tells the data device of freed blocks that a client discarded.
    async fn pass_down(&self, env: &Env, freed: &[DataRun], discarded: &[u64]) {
        let wanted = self.discards() == Discards::PassDown && self.data_disk().limits().discard;
        if discarded.is_empty() || !wanted {
            return;
        }
        let both = freed.iter().flat_map(|run| run.blocks()).map(|block| block.0);
        let both = both.filter(|block| discarded.binary_search(block).is_ok());
        // A discard is advice: an error is ignored.
        let _ = self.discard_runs(env, &DataRun::join(both)).await;
    }

    /// Rolls back to the last durable state. No change is possible after it.
    pub async fn roll_back(&self, env: &Env, error: &MetadataError) {
        tracing::error!("{}: commit failed: {error}", self.name());
        self.begin_loss();
        self.lower_mode(Mode::ReadOnly, "a commit failed; the metadata needs a check");
        let is_end = error.io().kind == ErrorKind::Shutdown;
        let aborted = self.metadata.abort(env, !is_end, &self.name()).await;
        let (mut lost, mut raised) = (Vec::new(), Vec::new());
        for volume in self.open_volumes() {
            // Its details are the durable ones. If they cannot be read, the volume is not served
            // either.
            let details = self.metadata.details(volume.id);
            let mapped = details.map_or(0, |details| details.mapped_blocks);
            volume.map.roll_back(mapped);
            // Here no request can change a map any more that was rolled back after the mode
            // changed.
            if let Some(told) = volume.lose() {
                lost.push(volume.id);
                raised.extend(told);
            }
            // Last: a FUA write to a block that was rolled back meets a change, and fails.
            volume.map.settle();
        }
        self.note_loss(error, lost);
        // Nothing is recorded any more, and what was is lost.
        let failures = failures_beneath(self.data_disk().as_ref());
        let state = self.metadata.state().await;
        self.metadata.acknowledged().begin(state, failures);
        self.end_loss(raised);
        // The clients of each affected volume get the error from that volume.
        self.metadata_device.disk.acknowledge_failures(self.metadata_device.disk.failures());
        if let Err(error) = aborted {
            tracing::error!("{}: metadata: {error}", self.name());
            self.lower_mode(Mode::Fail, "the metadata cannot be read");
        }
    }

    /// Acts on the free space after a commit.
    fn after_commit(&self) {
        self.forget_unused();
        self.metadata_came();
        self.look_at_marks();
        self.changed.notify(usize::MAX);
    }

    /// Starts the background task that commits periodically.
    pub fn start_keeper(&self, env: &Env) {
        self.state.lock().stopping = false;
        self.spawn(env, async |pool, env| {
            loop {
                pool.rest_until_due(env).await;
                if pool.state.lock().stopping {
                    return;
                }
                pool.look_at_data(env);
                let is_dirty = || pool.open_volumes().iter().any(|volume| volume.is_dirty());
                if pool.metadata.acknowledged().is_filling() || is_dirty() {
                    // Clients get a failure from their own flushes.
                    let _ = pool.commit(env).await;
                }
            }
        });
    }

    /// Checks what must hold between any two steps.
    pub fn check_state(&self) {
        self.state.lock().commits.check_state();
        assert!(self.numbers.durable() < self.numbers.next.load(Ordering::SeqCst), "N1");
        self.stocks.check_state(&self.room);
        self.open_volumes().iter().for_each(|volume| volume.map.check_state());
    }

    /// Waits until a commit is due, or the pool is stopped.
    async fn rest_until_due(&self, env: &Env) {
        let (end, acknowledged) = (Some(env.now() + COMMIT_PERIOD), self.metadata.acknowledged());
        let is_due = || acknowledged.is_filling() || self.state.lock().stopping;
        env.until_or_time(&self.changed, end, is_due).await;
    }

    /// Stops every task, with everything durable. No request is under way.
    pub async fn stop(&self, env: &Env) {
        self.state.lock().stopping = true;
        self.changed.notify(usize::MAX);
        if self.can_commit() {
            // A failure is kept for the verb (L5), and reported to clients at their flushes.
            let _ = self.commit(env).await;
        }
        self.tasks.idle().await;
        invariants::always(|| self.check_state());
    }
}

#[cfg(all(test, shuttle))]
mod interleavings {
    //! Changes and their records against a commit under shuttle: see `interleaved`.

    use super::super::acknowledged::{Acknowledged, Changed};
    use super::super::groups::Group;
    use super::super::interleavings::{mapping, volume};
    use super::*;
    use crate::interleaved::rounds;
    use cairn_block::{Base, CrashLog, KeptMemory, Left};
    use shuttle::thread;

    /// Maps block 0 to data block 7, as a write that has ended.
    fn change(numbers: &Numbers, volume: &Volume) {
        let mut shard = volume.map.shard(0);
        let stamp = numbers.stamp(volume);
        shard.change(0, Some(mapping(7)), stamp, false);
    }

    #[test]
    fn what_looks_durable_was_taken_by_a_commit_that_is() {
        let life = || {
            let (volume, numbers) = (volume(0, None), Arc::new(Numbers::default()));
            volume.map.end_load(0, &Group::empty(), || true, 0);
            let writer = {
                let (volume, numbers) = (volume.clone(), numbers.clone());
                thread::spawn(move || change(&numbers, &volume))
            };
            let mut taken = 0;
            for _ in 0..2 {
                let number = numbers.begin();
                let batch = freeze(vec![volume.clone()]);
                taken += batch.made;
                numbers.end(number);
                batch.frozen.iter().for_each(|frozen| frozen.volume.thaw());
            }
            writer.join().expect("no panic");
            let dirty = volume.map.shard(0).is_dirty(numbers.durable());
            assert!(dirty || taken == 1, "N1");
            assert!(volume.is_dirty() || taken == 1, "the next commit takes it");
        };
        shuttle::check_random(life, rounds());
    }

    /// Maps a block, with its record, as a write that has ended.
    fn acknowledged_change(
        (acknowledged, numbers): (&Acknowledged, &Numbers),
        volume: &Volume,
        block: u64,
    ) {
        assert_eq!(acknowledged.reserve(1), 1);
        let mut shard = volume.map.shard(block);
        let stamp = numbers.stamp(volume);
        shard.change(block, Some(mapping(7 + block)), stamp, false);
        let changed = Changed::mapped(volume.id, block, mapping(7 + block), 1);
        acknowledged.append(changed.record(), 1);
    }

    #[test]
    fn a_change_whose_record_is_gone_was_taken_by_a_commit_that_is_durable() {
        let life = || {
            let (volume, numbers) = (volume(0, None), Arc::new(Numbers::default()));
            volume.map.end_load(0, &Group::empty(), || true, 0);
            let memory = Arc::new(KeptMemory::new(4));
            let acknowledged = Arc::new(Acknowledged::in_memory(memory.clone(), 0));
            let writer = {
                let (volume, numbers) = (volume.clone(), numbers.clone());
                let acknowledged = acknowledged.clone();
                let parts = move |block| {
                    acknowledged_change((&acknowledged, &numbers), &volume, block);
                };
                thread::spawn(move || (0..2).for_each(parts))
            };
            let mut taken = 0;
            for state in 1..3 {
                acknowledged.seal();
                let number = numbers.begin();
                let batch = freeze(vec![volume.clone()]);
                taken += batch.made;
                acknowledged.name_state(state);
                acknowledged.committed();
                numbers.end(number);
                batch.frozen.iter().for_each(|frozen| frozen.volume.thaw());
            }
            writer.join().expect("no panic");
            // A kill now, after the last commit has landed.
            let base = Base { owner: 0, state: 2, failures: 0 };
            let Left::Records(records) = CrashLog::open(memory, &base).1 else {
                panic!("the state is the last commit's")
            };
            assert!(taken as usize + records.len() >= 2, "A2");
        };
        shuttle::check_random(life, rounds());
    }
}

/// The result of a request on the data device as a reason for a failed commit.
impl MetadataError {
    fn data(error: IoError) -> MetadataError {
        MetadataError::Data(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_format::thin::{DataBlock, Mapping};

    fn mapping(block: u64) -> Option<Mapping> {
        Some(Mapping { block: DataBlock(block), time: 0 })
    }

    #[test]
    fn the_last_change_of_a_block_counts_and_what_passed_is_remembered() {
        let change = |block, old: Option<u64>, new: Option<u64>, discarded| Change {
            block,
            mapping: new.and_then(mapping),
            old: old.and_then(mapping),
            discarded,
        };
        let mut batch = Batch::default();
        let settled = settle(
            vec![
                change(7, None, Some(1), false),
                change(3, Some(9), None, true),
                change(7, Some(1), None, true),
                change(7, None, Some(2), false),
            ],
            &mut batch,
        );
        assert_eq!(settled.len(), 2);
        assert_eq!((settled[0].block, settled[0].mapping), (3, None));
        assert_eq!((settled[1].block, settled[1].mapping), (7, mapping(2)));
        assert_eq!((batch.made, batch.passing), (4, vec![1]));
        assert_eq!(batch.discarded, [9, 1]);
    }
}
