//! The commit, and what follows a failure of the destination.
//!
//! # The order of a commit, and what a crash between its steps leaves
//! 0. The bits that are set are frozen, and the crash log sealed, in one step. *Power cut*: the
//!    bits of the last commit. *Kill*: the log has the rest.
//! 1. The destination is flushed. The content of all regions in step 0 is durable, if its failure
//!    count is what it was before the first write of any of them (I3). *Crash*: as before.
//! 2. The bits are committed: see `persistent::bits`. *Crash*: the old bits or the new ones.
//! 3. The waiters get their result.
//!
//! After a failure in step 2 the bits stay set, and all jobs go on but hydration: what is on the
//! destination is right. Each later commit reads first which bits the device has, and tries again.
//! Until one succeeds flushes fail, and the mode of the metadata is `ro`.
//!
//! After a failure in step 1 see I6. The writes that are lost with the regions were answered, and
//! not flushed: each client's next flush fails, as after any failed flush.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Env, IoError, IoResult, RequestId, failures_beneath, mutants};
use cairn_format::clone::WORDS_MAX;

use super::Clone;
use super::acknowledged::record;
use super::canary::{Bug, planted};
use super::regions::{Bits, Cause, State};
use crate::group_commit::{Ticket, Waiter, tell};
use crate::persistent::BitStore;

/// Bits are not committed later than this.
const PERIOD: Duration = Duration::from_secs(1);

/// The metadata device, for one commit at a time.
pub(super) struct Metadata {
    pub store: Option<BitStore>,
    /// The words on the device. After a commit that failed, those of before: the device has these
    /// or the ones of that commit.
    pub durable: Vec<u64>,
}

/// What one commit covers.
struct Batch {
    waiters: Vec<Waiter>,
    /// Requests that waited for room in the crash log.
    mapped_again: Vec<RequestId>,
    /// The array blocks that change, each with its words.
    arrays: Vec<(usize, Vec<u64>)>,
    /// Regions that it makes durable.
    regions: u64,
    /// R5.
    known: u64,
}

impl Batch {
    /// Exchanges its words and those of the whole bitset.
    fn swap(&mut self, all: &mut [u64]) {
        for (array, words) in &mut self.arrays {
            let place = words_of(*array, all.len());
            all[place].swap_with_slice(words);
        }
    }
}

/// The words of an array block.
fn words_of(array: usize, words: usize) -> Range<usize> {
    array * WORDS_MAX..words.min((array + 1) * WORDS_MAX)
}

/// Runs of regions whose bit is set in memory and not on the device.
pub(super) fn uncommitted_runs(bits: &Bits, durable: &[u64]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (at, own) in durable.iter().enumerate() {
        let mut new = bits.word(at) & !own;
        while new != 0 {
            let region = at as u64 * 64 + u64::from(new.trailing_zeros());
            new &= new - 1;
            match runs.last_mut() {
                Some(run) if run.end == region => run.end += 1,
                _ => runs.push(region..region + 1),
            }
        }
    }
    runs
}

impl Clone {
    /// Starts the commit task on this reactor unless one runs.
    pub(super) fn kick_commit(&self, env: &Env) {
        if self.state.lock().commits.starts() {
            self.spawn(env, async |clone, env| clone.commit_loop(env).await);
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
            let is_wanted = !state.room_waiters.is_empty() && !state.changed.is_empty();
            let more = is_wanted && !state.is_failing;
            if !state.commits.goes_on(more) {
                drop(state);
                self.changed.notify(usize::MAX);
                return;
            }
        }
    }

    async fn commit_once(&self, env: &Env) {
        let mut metadata = self.metadata.lock().await;
        // Also if the metadata device has failed: what is lost must not be read.
        if self.has_lost() {
            self.repair(env, &metadata).await;
        }
        let result = self.reopen_broken(env, &mut metadata).await;
        let mut batch = self.freeze(result.is_ok());
        batch.mapped_again.iter().for_each(|id| env.remap(*id));
        let result = match result {
            Ok(()) => self.write_commit(env, &mut metadata, &mut batch).await,
            Err(error) => Err(error),
        };
        drop(metadata);
        if result.is_err() {
            let mut state = self.state.lock();
            state.handing_back |= state.suspending;
            state.hand_back(env);
        }
        tell(env, batch.waiters, result);
        self.changed.notify(usize::MAX);
    }

    /// True if the destination has failed since the oldest write of a region whose bit is not
    /// durable (I6).
    fn has_lost(&self) -> bool {
        let now = self.destination.failures();
        let state = self.state.lock();
        let is_kept = mutants::same("clone: failure count of a commit", state.known, now);
        state.uncommitted > 0 && !is_kept && !planted(Bug::TrustAfterFailure)
    }

    /// After a request: if the destination has failed, a commit looks at what that lost (I6).
    pub(super) fn look_at_failures(&self, env: &Env) {
        let now = self.destination.failures();
        if self.seen_failures.load(Ordering::Relaxed) != now {
            self.seen_failures.store(now, Ordering::Relaxed);
            if !self.state.lock().is_durable() {
                self.kick_commit(env);
            }
        }
    }

    /// Step 0; of waiters alone, if the metadata is of no use now.
    fn freeze(&self, is_usable: bool) -> Batch {
        let mut state = self.state.lock();
        let waiters = state.commits.take();
        let changed = if is_usable { std::mem::take(&mut state.changed) } else { BTreeSet::new() };
        let words = |array| words_of(array, self.bits.words()).map(|at| self.bits.word(at));
        let arrays: Vec<_> =
            changed.into_iter().map(|array| (array, words(array).collect())).collect();
        let mut mapped_again = Vec::new();
        if !arrays.is_empty() {
            state.acknowledged.seal(None);
            mapped_again = state.take_room_waiters();
        }
        let (regions, known) = (state.uncommitted, state.known);
        Batch { waiters, mapped_again, arrays, regions, known }
    }

    /// Steps 1 and 2.
    async fn write_commit(
        &self,
        env: &Env,
        metadata: &mut Metadata,
        batch: &mut Batch,
    ) -> IoResult {
        let beneath = failures_beneath(self.destination.as_ref());
        let flushed = match planted(Bug::BitsBeforeData) {
            true => Ok(()),
            false => {
                let flush = async { env.make_durable(&self.destination).await };
                mutants::step("clone: flush before bits", (), flush).await
            }
        };
        if batch.regions > 0 {
            let now = self.destination.failures();
            let is_kept = mutants::same("clone: failure count of a commit", batch.known, now);
            if !is_kept && !planted(Bug::TrustAfterFailure) {
                self.repair(env, metadata).await;
                return Err(IoError::IO);
            }
        }
        if flushed.is_err() || batch.arrays.is_empty() {
            self.give_back(metadata, batch);
            return flushed;
        }
        self.write_bits(env, metadata, batch, beneath).await
    }

    /// Step 2.
    async fn write_bits(
        &self,
        env: &Env,
        metadata: &mut Metadata,
        batch: &mut Batch,
        beneath: u64,
    ) -> IoResult {
        let Metadata { store, durable } = metadata;
        let store = store.as_mut().ok_or(IoError::READ_ONLY)?;
        batch.swap(durable);
        let arrays: Vec<usize> = batch.arrays.iter().map(|(array, _)| *array).collect();
        let name = |state| self.state.lock().acknowledged.name_state(state);
        let done = store.commit(env, durable, &arrays, Some(name)).await;
        let blocks = store.blocks();
        let mut state = self.state.lock();
        match done {
            Ok(()) => {
                state.acknowledged.committed();
                state.acknowledged.survived(beneath);
                state.uncommitted -= batch.regions;
                (state.is_failing, state.blocks) = (false, blocks);
                if state.acknowledged.is_lost() {
                    self.restart_log(&mut state, metadata, beneath);
                }
                Ok(())
            }
            Err(error) => {
                batch.swap(durable);
                state.changed.extend(arrays);
                state.is_failing = true;
                drop(state);
                self.warn_of_metadata(env, &error);
                Err(IoError::IO)
            }
        }
    }

    fn warn_of_metadata(&self, env: &Env, error: &crate::persistent::Error) {
        let (volume, device) = (&self.config.volume, &self.config.metadata.argument);
        env.warn(&format!("{volume} {device}"), || format!("{volume}: {device}: {error}"));
    }

    /// The commit wrote nothing: what it took is to be written by the next.
    fn give_back(&self, metadata: &Metadata, batch: &Batch) {
        if batch.arrays.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.changed.extend(batch.arrays.iter().map(|(array, _)| *array));
        self.restart_log(&mut state, metadata, failures_beneath(self.destination.as_ref()));
    }

    /// The log has what is set in memory, on top of what the device has. If that is not known, it
    /// stays as it is: each half names its state.
    fn restart_log(&self, state: &mut State, metadata: &Metadata, beneath: u64) {
        let Some((place, store)) = self.crash_log.as_ref().zip(metadata.store.as_ref()) else {
            return;
        };
        if store.is_broken() {
            return;
        }
        let runs = uncommitted_runs(&self.bits, &metadata.durable);
        let are_kept = runs.is_empty() || state.known == self.destination.failures();
        let base = place.base(store.state(), beneath);
        state.acknowledged.restart(&base, runs.iter().map(record), are_kept);
    }

    /// After a commit that failed in step 2: which bits the device has.
    async fn reopen_broken(&self, env: &Env, metadata: &mut Metadata) -> IoResult {
        let Some(store) = metadata.store.as_mut().filter(|store| store.is_broken()) else {
            return Ok(());
        };
        match store.reopen(env).await {
            Ok(words) => metadata.durable = words,
            Err(error) => {
                self.warn_of_metadata(env, &error);
                return Err(IoError::IO);
            }
        }
        let beneath = failures_beneath(self.destination.as_ref());
        let mut state = self.state.lock();
        let runs = uncommitted_runs(&self.bits, &metadata.durable);
        state.uncommitted = runs.iter().map(|run| run.end - run.start).sum();
        self.restart_log(&mut state, metadata, beneath);
        Ok(())
    }

    /// I6.
    async fn repair(&self, env: &Env, metadata: &Metadata) {
        let beneath = failures_beneath(self.destination.as_ref());
        let (runs, known) = {
            let mut state = self.state.lock();
            let known = self.destination.failures();
            state.acknowledged.lose();
            let runs = uncommitted_runs(&self.bits, &metadata.durable);
            runs.iter().for_each(|run| state.withdraw(&self.bits, run, known));
            (runs, known)
        };
        self.writers.quiesce(0).await;
        let mut waiters = Vec::new();
        let mut state = self.state.lock();
        state.losses.add(&self.failures);
        state.acknowledged.count_loss();
        for run in &runs {
            let job = state.jobs.remove(&run.start).expect("I2: only this task ends it");
            debug_assert_eq!(job.cause, Cause::Repair);
            waiters.extend(job.waiters);
            state.uncommitted -= run.end - run.start;
        }
        state.known = known;
        self.restart_log(&mut state, metadata, beneath);
        waiters.extend(state.take_room_waiters());
        // A write with FUA may have joined before its region was withdrawn.
        let joined = state.commits.take();
        drop(state);
        tell(env, joined, Err(IoError::IO));
        waiters.into_iter().for_each(|id| env.remap(id));
        let (volume, device) = (&self.config.volume, &self.config.destination.argument);
        tracing::error!(
            "{volume}: {device}: a failure may have lost what was written last; {} regions are \
             copied again",
            runs.iter().map(|run| run.end - run.start).sum::<u64>()
        );
        self.changed.notify(usize::MAX);
    }

    /// The background task that commits periodically, and says when the clone is complete: once the
    /// bits of all regions are durable.
    pub(super) async fn commit_periodically(&self, env: &Env, was_complete: bool) {
        let mut is_told = was_complete;
        let regions = self.bits.regions();
        loop {
            let end = Some(env.now() + PERIOD);
            let is_over = || {
                let state = self.state.lock();
                state.stopping || (!is_told && state.hydrated == regions)
            };
            env.until_or_time(&self.changed, end, is_over).await;
            if self.state.lock().stopping {
                return;
            }
            let is_dirty = !self.state.lock().is_durable();
            // Clients get a failure from their own flushes.
            let committed = if is_dirty { self.commit(env).await } else { Ok(()) };
            let is_complete = {
                let state = self.state.lock();
                state.hydrated == regions && state.is_durable()
            };
            if !is_told && is_complete {
                is_told = true;
                let (volume, source) = (&self.config.volume, &self.config.source.argument);
                tracing::info!("{volume}: all regions are hydrated; {source} is not needed now");
                self.events.raise();
            } else if committed.is_err() {
                let end = Some(env.now() + PERIOD);
                let is_over = || self.state.lock().stopping;
                env.until_or_time(&self.changed, end, is_over).await;
            }
        }
    }
}
