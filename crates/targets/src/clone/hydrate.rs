//! Copies: of regions that a write waits for, and in the background.
//!
//! A write starts its copy itself, with a budget of memory that hydration does not share: it never
//! waits behind the background, except for the copy of its own region. Hydration takes regions in
//! order, `hydration_batch_size` together, and at most `hydration_threshold` at a time. A region
//! that cannot be copied is passed over, and tried again after a rest.

use std::ops::Range;
use std::pin::pin;
use std::time::Duration;

use cairn_block::{
    CopyError, CopyJob, CopyPiece, Env, Flags, IoError, IoResult, Sector, SectorRange, invariants,
    mutants, until,
};
use futures_util::future::{Either, select};

use super::Clone;
use super::acknowledged::hydrated;
use super::canary::{Bug, planted};
use super::regions::{Cause, Job};

/// How long hydration rests after a copy that failed.
const REST: Duration = Duration::from_secs(1);

impl Clone {
    fn range_of(&self, regions: &Range<u64>) -> SectorRange {
        let size = self.config.region_size.sectors();
        let end = (regions.end * size).min(self.config.sectors);
        SectorRange::between(Sector(regions.start * size), Sector(end))
    }

    /// Copies the regions of a job, and ends it.
    pub(super) async fn copy(&self, env: &Env, regions: Range<u64>) {
        if planted(Bug::BitBeforeCopy) {
            self.end_job(env, regions.start, Ok(()));
        }
        let range = self.range_of(&regions);
        let cause = self.state.lock().jobs.get(&regions.start).map(|job| job.cause);
        let copier = match cause {
            Some(Cause::Hydration) => &self.background,
            _ => &self.foreground,
        };
        let from = vec![CopyPiece { disk: self.source.clone(), range }];
        let to = self.destination.clone();
        let copy = CopyJob { from, to, start: range.start, flags: Flags::empty() };
        let result = match copier.copy(env, &copy).await {
            Ok(_) => Ok(()),
            Err(CopyError::Read(error)) => Err(self.warn(env, &self.config.source.argument, error)),
            Err(CopyError::Write(error)) => {
                Err(self.warn(env, &self.config.destination.argument, error))
            }
        };
        if !planted(Bug::BitBeforeCopy) {
            self.end_job(env, regions.start, result);
        }
    }

    fn warn(&self, env: &Env, device: &str, error: IoError) -> IoError {
        let volume = &self.config.volume;
        env.warn(&format!("{volume} {device}"), || format!("{volume}: {device}: copy: {error}"));
        error
    }

    /// The regions of a job are hydrated, unless it failed, or the destination did while it ran.
    /// False then.
    pub(super) fn end_job(&self, env: &Env, first: u64, result: IoResult) -> bool {
        let now = self.destination.failures();
        let mut state = self.state.lock();
        let job = state.jobs.remove(&first).expect("I2: a job is ended once");
        let is_kept = mutants::same("clone: failure count of a job", job.failures, now);
        let is_hydrated = result.is_ok() && is_kept;
        let mut is_commit_due = false;
        if is_hydrated {
            let regions = first..job.end;
            state.hydrate(&self.bits, regions.clone(), job.failures);
            is_commit_due = hydrated(&mut state.acknowledged, &regions);
        } else {
            state.acknowledged.cancel();
            if job.cause == Cause::Hydration {
                state.rests_until = Some(env.now() + REST);
            }
        }
        let for_room = state.take_room_waiters();
        invariants::sample(|| state.check_state(&self.bits));
        drop(state);
        for id in job.waiters {
            match result {
                // A write of whole regions that failed: those that wait have a copy made.
                Err(error) if job.cause != Cause::Cover => env.complete(id, Err(error)),
                _ => env.remap(id),
            }
        }
        for_room.into_iter().for_each(|id| env.remap(id));
        if is_commit_due {
            self.kick_commit(env);
        }
        self.changed.notify(usize::MAX);
        is_hydrated
    }

    /// The background task: hydrates until it is stopped.
    pub(super) async fn hydrate(&self, env: &Env) {
        let mut cursor = 0;
        loop {
            self.until_work(env).await;
            if self.state.lock().stopping {
                return;
            }
            let stopped = until(&self.changed, || self.state.lock().stopping);
            let turn = env.background().turn(env);
            let Either::Left((turn, _)) = select(pin!(turn), pin!(stopped)).await else { return };
            let changed = self.changed.listen();
            let Some(regions) = self.next_batch(env, &mut cursor) else {
                // What is left is in jobs, or the crash log has no room.
                changed.await;
                continue;
            };
            turn.spend(self.range_of(&regions).to_bytes());
            self.spawn(env, async move |clone, env| clone.copy(env, regions).await);
        }
    }

    /// Waits until there is something to do, or the task is to stop.
    async fn until_work(&self, env: &Env) {
        loop {
            let rest = self.state.lock().rests_until;
            let is_over = || {
                let state = self.state.lock();
                let is_resting = state.rests_until.is_some_and(|end| end > env.now());
                let may = state.may_hydrate() && state.hydrated < self.bits.regions();
                state.stopping || (may && !is_resting)
            };
            if is_over() {
                return;
            }
            let begins_to_rest = || self.state.lock().rests_until != rest;
            let end = rest.filter(|end| *end > env.now());
            env.until_or_time(&self.changed, end, || is_over() || begins_to_rest()).await;
        }
    }

    /// Claims the next regions to copy in the background.
    fn next_batch(&self, env: &Env, cursor: &mut u64) -> Option<Range<u64>> {
        let mut state = self.state.lock();
        if !state.may_hydrate() {
            return None;
        }
        let mut from = *cursor;
        let first = loop {
            match self.bits.next_clear(from) {
                Some(region) => match state.job_of(region) {
                    Some(job) => from = job.end,
                    None => break region,
                },
                None if from > 0 && *cursor > 0 => (from, *cursor) = (0, 0),
                None => return None,
            }
        };
        let room = state.settings.threshold - state.hydrating();
        let most = state.settings.batch.max(1).min(room);
        let range = first..self.bits.regions().min(first + most);
        let count = self.bits.run(&range).1.min(state.free(&range));
        if !state.acknowledged.reserve() {
            drop(state);
            self.kick_commit(env);
            return None;
        }
        let failures = self.destination.failures();
        let (end, cause, waiters) = (first + count, Cause::Hydration, Vec::new());
        state.jobs.insert(first, Job { end, cause, failures, waiters });
        *cursor = end;
        Some(first..end)
    }
}

impl super::regions::State {
    /// True if a copy in the background may begin.
    fn may_hydrate(&self) -> bool {
        let is_allowed = self.settings.hydrates && !self.suspending && !self.is_failing;
        is_allowed && !self.stopping && self.hydrating() < self.settings.threshold
    }
}
