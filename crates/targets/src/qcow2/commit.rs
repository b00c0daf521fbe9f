//! The commit, and what follows a failure of the device.
//!
//! # The order of a commit, and what a crash between its steps leaves
//! 0. What has changed is frozen, as the bytes to write, and the crash log sealed, in one step.
//!    *Power cut*: the entries of the last commit. *Kill*: the log has the rest.
//! 1. Refcounts, new refcount blocks and new L2 tables are written, and the device is flushed. All
//!    data that entries of step 0 name is durable then, too, if the failure count is what it was
//!    before the first write of any of it (I3). *Crash*: refcounts without references. A refcount
//!    that becomes 0 here is of a cluster which the entries of the last commit do not name (I4).
//! 2. If there are new refcount blocks: the refcount table names them; flush. *Crash*: as before.
//! 3. Entries of L2 tables and of the L1 table are written; flush. *Crash*: each entry is the old
//!    or the new one. What the old one named has not been released, and the new one is right (I3).
//! 4. The waiters get their result. A task releases what the old entries named.
//!
//! After a failure in any step all of it is to be written again, as it is by then: each step may be
//! done twice. A table or block that step 1 has made durable may be named from then on, so it is
//! changed in place after that, as any other. New ones that nothing needs are given up: there may
//! be no room for them. What the entries of both commits name stays in use. Until a commit succeeds
//! flushes fail, and the mode is `failing`. If the failure may have lost new content, see I7: the
//! writes that are lost with it were answered, and not flushed; each client's next flush fails, as
//! after any failed flush.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Env, IoError, IoResult, RequestId, failures_beneath, mutants};
use cairn_format::qcow2::write::entry_of;

use super::Qcow2;
use super::acknowledged::{record, runs_of};
use super::canary::{Bug, planted};
use super::image::Writes;
use super::space::Due;
use super::state::{Change, State};
use crate::group_commit::{Ticket, Waiter, tell};

/// Changes are not committed later than this.
const PERIOD: Duration = Duration::from_secs(1);

/// What one commit covers.
struct Batch {
    waiters: Vec<Waiter>,
    /// Requests that waited for room in the crash log.
    mapped_again: Vec<RequestId>,
    changes: BTreeMap<u64, Change>,
    new_tables: BTreeSet<usize>,
    unnamed_tables: BTreeSet<usize>,
    dropped: BTreeSet<u64>,
    due: Due,
    /// R4.
    known: Option<u64>,
    /// The bytes of steps 1 to 3.
    first: Writes,
    refcount_table: Writes,
    entries: Writes,
}

impl Batch {
    fn is_empty(&self) -> bool {
        let Batch { first, refcount_table, entries, dropped, .. } = self;
        first.is_empty() && refcount_table.is_empty() && entries.is_empty() && dropped.is_empty()
    }
}

impl Qcow2 {
    /// Starts the commit task on this reactor unless one runs.
    pub(super) fn kick_commit(&self, env: &Env) {
        if self.state.lock().commits.starts() {
            self.spawn(env, async |own, env| own.commit_loop(env).await);
        }
    }

    /// Waits for a commit that covers everything completed before.
    pub(super) async fn commit(&self, env: &Env) -> IoResult {
        let ticket = std::sync::Arc::new(Ticket::default());
        self.state.lock().commits.join(Waiter::Ticket(ticket.clone()));
        self.kick_commit(env);
        ticket.wait().await
    }

    async fn commit_loop(&self, env: &Env) {
        loop {
            self.commit_once(env).await;
            let mut state = self.state.lock();
            let for_room = !state.room_waiters.is_empty() && !state.changes.is_empty();
            let for_space = !state.space_waiters.is_empty() && state.releasing == 0;
            let more = (for_room && !state.is_failing) || for_space;
            if !state.commits.goes_on(more) {
                drop(state);
                self.changed.notify(usize::MAX);
                return;
            }
        }
    }

    async fn commit_once(&self, env: &Env) {
        let mut starving = self.state.lock().take_space_waiters();
        if !starving.is_empty() && self.grow(env).await {
            std::mem::take(&mut starving).into_iter().for_each(|(id, _)| env.remap(id));
        }
        if self.has_lost() {
            self.withdraw(env).await;
        }
        let mut batch = self.freeze();
        batch.mapped_again.drain(..).for_each(|id| env.remap(id));
        let waiters = std::mem::take(&mut batch.waiters);
        let written = match waiters.is_empty() && batch.is_empty() {
            true => Ok(BTreeSet::new()),
            false => self.write_commit(env, batch).await,
        };
        let result = written.as_ref().map(drop).map_err(|error| *error);
        tell(env, waiters, result);
        self.begin_release(env, written.unwrap_or_default());
        if result.is_err() {
            let mut state = self.state.lock();
            state.handing_back |= state.suspending;
            state.hand_back(env);
        }
        self.end_space_waiters(env, starving, result);
        self.changed.notify(usize::MAX);
    }

    /// True if the device has failed since the oldest write of volatile content (I7).
    fn has_lost(&self) -> bool {
        let now = self.disk().failures();
        let known = self.state.lock().known;
        known.is_some_and(|known| !self.is_kept(known, now))
    }

    fn is_kept(&self, known: u64, now: u64) -> bool {
        mutants::same("qcow2: failure count of a commit", known, now)
            || planted(Bug::TrustAfterFailure)
    }

    /// After a request: if the device has failed, a commit looks at what that lost (I7).
    pub(super) fn look_at_failures(&self, env: &Env) {
        let now = self.disk().failures();
        if self.seen_failures.load(Ordering::Relaxed) != now {
            self.seen_failures.store(now, Ordering::Relaxed);
            if !self.state.lock().is_durable() {
                self.kick_commit(env);
            }
        }
    }

    /// Step 0.
    fn freeze(&self) -> Batch {
        let mut state = self.state.lock();
        let waiters = state.commits.take();
        state.drop_unneeded(&self.tables);
        let changes = std::mem::take(&mut state.changes);
        let new_tables = std::mem::take(&mut state.new_tables);
        let unnamed_tables = std::mem::take(&mut state.unnamed_tables);
        let dropped = std::mem::take(&mut state.dropped);
        let due = state.space.take_due();
        let mut mapped_again = Vec::new();
        if !changes.is_empty() {
            let mark = state.mark;
            state.acknowledged.seal(Some(mark));
            mapped_again = state.take_room_waiters();
        }
        let known = state.known.take();
        let (mut first, mut refcount_table, mut entries) = Default::default();
        self.put_refcounts(&state, &due, &mut first, &mut refcount_table);
        for index in &new_tables {
            let at = self.tables.at(*index).expect("T2: it was made");
            first.insert(at, self.bytes_of_table(*index, 0..self.geometry.cluster_bytes));
        }
        for index in new_tables.iter().chain(&unnamed_tables) {
            self.put_l1(*index, &mut entries);
        }
        for cluster in changes.keys() {
            let (index, entry) = self.tables.place_of(*cluster);
            if !new_tables.contains(&index) {
                self.put_l2(index, entry as u64 * 8, &mut entries);
            }
        }
        Batch {
            waiters,
            mapped_again,
            changes,
            new_tables,
            unnamed_tables,
            dropped,
            due,
            known,
            first,
            refcount_table,
            entries,
        }
    }

    /// What is due, as bytes: of refcount blocks, and of the refcount table, which names new ones.
    fn put_refcounts(&self, state: &State, due: &Due, first: &mut Writes, table: &mut Writes) {
        let (space, cluster_bytes) = (&state.space, self.geometry.cluster_bytes);
        let mut put = |number: usize, bytes: Range<u64>| {
            let Some(block) = space.block(number) else { return };
            let start = block.cluster * cluster_bytes;
            let within = (bytes.start - start) as usize..(bytes.end - start) as usize;
            first.entry(bytes.start).or_insert_with(|| space.bytes_of_block(number, within));
        };
        for number in &due.blocks {
            let block = space.block(*number).expect("S3: a block that is due");
            let start = block.cluster * cluster_bytes;
            // By units: counts may put the same ones.
            for at in (start..start + cluster_bytes).step_by(self.image.unit as usize) {
                put(*number, self.image.unit_of(at));
            }
        }
        for number in due.blocks.iter().chain(&due.unnamed_blocks) {
            let unit = self.image.unit_of(space.table() + *number as u64 * 8);
            let numbers = (unit.start - space.table()) / 8..;
            let words = numbers.take((self.image.unit / 8) as usize);
            let words = words.map(|number| space.block(number as usize).map_or(0, |b| b.cluster));
            let bytes = words.flat_map(|cluster| (cluster * cluster_bytes).to_be_bytes());
            table.insert(unit.start, bytes.collect());
        }
        for cluster in due.counts.keys() {
            let (number, _) = space.place_of(*cluster);
            let block = space.block(number).expect("S3: a cluster has its block");
            let start = block.cluster * cluster_bytes;
            put(number, self.image.unit_of(start + space.byte_in_block(*cluster) as u64));
        }
    }

    /// Bytes of an L2 table, as it is now.
    fn bytes_of_table(&self, index: usize, bytes: Range<u64>) -> Vec<u8> {
        let entries = (bytes.start / 8) as usize..(bytes.end / 8) as usize;
        self.tables.words(index, entries).flat_map(u64::to_be_bytes).collect()
    }

    /// The unit of an L2 table that has this byte of it.
    fn put_l2(&self, index: usize, byte: u64, entries: &mut Writes) {
        let at = self.tables.at(index).expect("T2: it was made");
        let unit = self.image.unit_of(at + byte);
        let within = unit.start - at..unit.end - at;
        entries.entry(unit.start).or_insert_with(|| self.bytes_of_table(index, within));
    }

    /// The unit of the L1 table that names this table. Each table is on the disk, or is in this
    /// commit.
    fn put_l1(&self, index: usize, entries: &mut Writes) {
        let unit = self.image.unit_of(self.geometry.l1.0 + index as u64 * 8);
        entries.entry(unit.start).or_insert_with(|| {
            let first = (unit.start - self.geometry.l1.0) / 8;
            let words = (first..first + self.image.unit / 8).map(|index| {
                let is_there = index < self.geometry.l1.1;
                is_there.then(|| self.tables.at(index as usize)).flatten().map_or(0, entry_of)
            });
            words.flat_map(u64::to_be_bytes).collect()
        });
    }

    /// Steps 1 to 3. Answers what may be released.
    async fn write_commit(&self, env: &Env, mut batch: Batch) -> Result<BTreeSet<u64>, IoError> {
        let beneath = failures_beneath(self.disk().as_ref());
        match self.write_steps(env, &mut batch).await {
            Ok(()) => {
                let mut state = self.state.lock();
                state.is_failing = false;
                state.acknowledged.committed();
                state.acknowledged.survived(beneath);
                if state.acknowledged.is_lost() {
                    self.restart_log(&mut state, beneath);
                }
                Ok(batch.dropped)
            }
            Err(error) => {
                let (volume, device) = (&self.config.volume, &self.config.image.argument);
                env.warn(&format!("{volume} {device}"), || {
                    format!("{volume}: {device}: commit: {error}")
                });
                self.give_back(batch);
                if self.has_lost() {
                    self.withdraw(env).await;
                }
                Err(error)
            }
        }
    }

    async fn write_steps(&self, env: &Env, batch: &mut Batch) -> IoResult {
        if planted(Bug::EntriesBeforeData) {
            let name = "qcow2: flush of entries";
            self.image.write_durably(env, name, &batch.entries).await?;
        }
        let name = "qcow2: flush of data and refcounts";
        self.image.write_durably(env, name, &batch.first).await?;
        if let Some(known) = batch.known.take() {
            if !self.is_kept(known, self.disk().failures()) {
                batch.known = Some(known);
                return Err(IoError::IO);
            }
            batch.changes.values_mut().for_each(|change| change.is_volatile = false);
        }
        // From here on the disk may name them.
        batch.unnamed_tables.append(&mut batch.new_tables);
        let Due { blocks, unnamed_blocks, .. } = &mut batch.due;
        unnamed_blocks.append(blocks);
        if !batch.refcount_table.is_empty() {
            let name = "qcow2: flush of the refcount table";
            self.image.write_durably(env, name, &batch.refcount_table).await?;
        }
        if !batch.entries.is_empty() {
            let name = "qcow2: flush of entries";
            self.image.write_durably(env, name, &batch.entries).await?;
        }
        Ok(())
    }

    /// After a failure: all of it is to be written by the next commit.
    fn give_back(&self, batch: Batch) {
        let mut state = self.state.lock();
        for (cluster, old) in batch.changes {
            let change = state.changes.entry(cluster).or_insert(old);
            change.before = old.before;
        }
        state.new_tables.extend(batch.new_tables);
        state.unnamed_tables.extend(batch.unnamed_tables);
        state.dropped.extend(batch.dropped);
        state.space.give_back(batch.due);
        state.known = match (state.known, batch.known) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        state.is_failing = true;
        self.restart_log(&mut state, failures_beneath(self.disk().as_ref()));
    }

    /// The log has what changed in memory and is not durable.
    fn restart_log(&self, state: &mut State, beneath: u64) {
        let Some(place) = self.crash_log.as_ref() else { return };
        let are_kept = state.known.is_none_or(|known| known == self.disk().failures());
        let State { acknowledged, changes, mark, .. } = state;
        let entries = changes.keys().map(|at| (*at, self.tables.word(*at)));
        let runs = runs_of(entries, self.geometry.cluster_bytes);
        let records = runs.map(|(clusters, word)| record(&clusters, word));
        acknowledged.restart(&place.base(*mark, beneath), records, are_kept);
    }

    /// I7.
    async fn withdraw(&self, env: &Env) {
        let count = {
            let mut state = self.state.lock();
            state.acknowledged.lose();
            let count = state.withdraw(&self.tables);
            self.withdrawals.fetch_add(1, Ordering::Release);
            count
        };
        self.users.quiesce(0).await;
        let mut state = self.state.lock();
        state.losses.add(&self.failures);
        state.acknowledged.count_loss();
        self.restart_log(&mut state, failures_beneath(self.disk().as_ref()));
        let for_room = state.take_room_waiters();
        // A write with FUA may have joined before its entry was withdrawn.
        let joined = state.commits.take();
        drop(state);
        tell(env, joined, Err(IoError::IO));
        for_room.into_iter().for_each(|id| env.remap(id));
        let (volume, device) = (&self.config.volume, &self.config.image.argument);
        let bytes = count * self.geometry.cluster_bytes;
        tracing::error!(
            "{volume}: {device}: a failure may have lost what was written last; {bytes} bytes \
             are as before"
        );
        self.events.raise();
        self.changed.notify(usize::MAX);
    }

    /// The background task that commits periodically.
    pub(super) async fn commit_periodically(&self, env: &Env) {
        loop {
            let is_over = || self.state.lock().stopping;
            env.until_or_time(&self.changed, Some(env.now() + PERIOD), is_over).await;
            if self.state.lock().stopping {
                return;
            }
            let is_due = {
                let state = self.state.lock();
                let may_wait = self.is_lower_suspended() && state.is_durable();
                !may_wait && !state.is_committed()
            };
            if is_due {
                // Clients get a failure from their own flushes.
                _ = self.commit(env).await;
            }
        }
    }
}
