//! Verdicts and completions.
//!
//! The ready path is a look at the bits: reads take no lock, and writes to hydrated regions enter
//! an epoch. A request that finds a region not hydrated looks again under the lock (R1).

use cairn_block::{
    EndIo, Env, Extent, Flags, IoError, IoResult, Op, Request, RequestId, Sector, SectorCount,
    SectorRange, Verdict,
};

use super::Clone;
use super::canary::{Bug, planted};
use super::regions::{Cause, Job, State};
use crate::epochs::Epoch;
use crate::group_commit::Waiter;
use crate::span::Span;

/// In the word of a request: it covers the regions of a job. Else it is in an epoch.
const COVERS: u64 = 1 << 32;

impl Clone {
    pub(super) fn span_of(&self, range: SectorRange) -> Span {
        Span::of(range, self.config.region_size.sectors(), self.config.sectors)
    }

    pub(super) fn map_request<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        match request.op {
            Op::Read => self.map_read(request),
            Op::Flush => self.map_flush(env, request),
            Op::Write | Op::WriteZeroes | Op::Discard => self.map_change(env, request),
        }
    }

    fn map_read<'a>(&'a self, request: &mut Request) -> Verdict<'a> {
        let span = self.span_of(request.range);
        let (is_hydrated, count) = self.bits.run(&span.blocks);
        request.accept(SectorCount(span.head(count)));
        let disk = if is_hydrated { &self.destination } else { &self.source };
        Verdict::Remapped { disk: disk.as_ref(), sector: request.range.start }
    }

    fn map_flush<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let mut state = self.state.lock();
        let is_quiet = state.is_durable() && !state.commits.is_running();
        if is_quiet || planted(Bug::FlushWithoutCommit) {
            // Regions may be hydrated before it fails.
            request.watch(0);
            return Verdict::Remapped { disk: self.destination.as_ref(), sector: Sector(0) };
        }
        state.commits.join(Waiter::Request(request.id()));
        drop(state);
        self.kick_commit(env);
        Verdict::Queued
    }

    fn to_destination(&self, request: &Request) -> Verdict<'_> {
        Verdict::Remapped { disk: self.destination.as_ref(), sector: request.range.start }
    }

    /// True if discards go to the destination.
    pub(super) fn passes_down(&self) -> bool {
        !self.config.args.has(super::config::NO_PASSDOWN) && self.destination.limits().discard
    }

    fn map_change<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let span = self.span_of(request.range);
        if request.op == Op::Discard && !self.passes_down() {
            return Verdict::Completed;
        }
        loop {
            let epoch = self.writers.announce(env.reactor(), 0);
            let (is_hydrated, count) = self.bits.run(&span.blocks);
            if is_hydrated {
                request.accept(SectorCount(span.head(count)));
                request.watch(epoch.to_word());
                return self.to_destination(request);
            }
            self.writers.leave(env.reactor(), epoch);
            if let Some(verdict) = self.map_missing(env, request, &span) {
                return verdict;
            }
        }
    }

    /// A change whose first region is not hydrated. None if it is by now.
    fn map_missing<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        span: &Span,
    ) -> Option<Verdict<'a>> {
        let (first, id) = (span.blocks.start, request.id());
        let mut state = self.state.lock();
        let (is_hydrated, count) = self.bits.run(&span.blocks);
        if is_hydrated {
            return None;
        }
        let mut whole = span.whole().min(count).min(state.free(&span.blocks));
        if planted(Bug::PartForWhole) && request.op == Op::Write {
            whole = whole.max(u64::from(state.free(&span.blocks) > 0));
        }
        // A part of a region that is on the source stays as it is.
        if request.op == Op::Discard && whole == 0 {
            request.accept(SectorCount(span.head(1)));
            return Some(Verdict::Completed);
        }
        if let Some(job) = state.job_of(first) {
            job.waiters.push(id);
            request.accept(SectorCount(span.head(job.end - first)));
            return Some(Verdict::Queued);
        }
        if !state.acknowledged.reserve() {
            request.accept(SectorCount(span.head(1)));
            if state.handing_back {
                drop(state);
                env.hand_back(id);
                return Some(Verdict::Queued);
            }
            state.room_waiters.push(id);
            drop(state);
            self.kick_commit(env);
            return Some(Verdict::Queued);
        }
        let failures = self.destination.failures();
        if whole > 0 {
            let job =
                Job { end: first + whole, cause: Cause::Cover, failures, waiters: Vec::new() };
            state.jobs.insert(first, job);
            request.accept(SectorCount(span.head(whole)));
            request.watch(COVERS);
            if request.op == Op::Discard {
                // A discard may leave what the destination held before it was one.
                request.op = Op::WriteZeroes;
            }
            return Some(self.to_destination(request));
        }
        let job = Job { end: first + 1, cause: Cause::Wanted, failures, waiters: vec![id] };
        state.jobs.insert(first, job);
        drop(state);
        request.accept(SectorCount(span.head(1)));
        self.spawn(env, async move |clone, env| clone.copy(env, first..first + 1).await);
        Some(Verdict::Queued)
    }

    pub(super) fn end_request(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        self.look_at_failures(env);
        if request.op == Op::Flush {
            return EndIo::Done(result);
        }
        if request.word() & COVERS == 0 {
            // Looked at before it leaves: a region that is withdrawn is not copied until then.
            let regions = self.span_of(request.range).blocks;
            let is_there = self.bits.run(&regions) == (true, regions.end - regions.start);
            self.writers.leave(env.reactor(), Epoch::of_word(request.word()));
            if !is_there && result.is_ok() {
                return EndIo::Requeue;
            }
        } else {
            let first = self.span_of(request.range).blocks.start;
            if !self.end_job(env, first, result) && result.is_ok() {
                // A failure of the destination may have dropped a part of it.
                return EndIo::Requeue;
            }
        }
        match request.flags.contains(Flags::FUA) && result.is_ok() {
            true => self.hold_until_durable(env, request),
            false => EndIo::Done(result),
        }
    }

    /// I5: the content is durable, the bits of its regions may not be. If one was withdrawn since
    /// (I6), the content is not there.
    fn hold_until_durable(&self, env: &Env, request: &Request) -> EndIo {
        let regions = self.span_of(request.range).blocks;
        let mut state = self.state.lock();
        if self.bits.run(&regions) != (true, regions.end - regions.start) {
            return EndIo::Requeue;
        }
        if state.is_durable() {
            return EndIo::Done(Ok(()));
        }
        state.commits.join(Waiter::Request(request.id()));
        drop(state);
        self.kick_commit(env);
        EndIo::Held
    }

    /// The disk that has the content says what is there: of the first regions that are alike, or
    /// of a part of them, if the disk answers for less. The caller asks again for the rest.
    pub(super) async fn extents_of(
        &self,
        env: &Env,
        range: SectorRange,
    ) -> Result<Vec<Extent>, IoError> {
        let span = self.span_of(range);
        loop {
            let (is_hydrated, count) = self.bits.run(&span.blocks);
            let disk = if is_hydrated { &self.destination } else { &self.source };
            let head = SectorRange::new(range.start, SectorCount(span.head(count)));
            let extents = disk.extents(env, head).await?;
            // A write may have been answered in between, whose content is on the other disk.
            let regions = span.blocks.start..span.blocks.start + count;
            if self.bits.run(&regions) == (is_hydrated, count) {
                return Ok(extents);
            }
        }
    }
}

impl State {
    /// The requests that wait for room, to be mapped again.
    pub(super) fn take_room_waiters(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.room_waiters)
    }

    /// Gives back the requests that wait for room, if that is to be done. Under the lock: a suspend
    /// that is called off comes after them.
    pub(super) fn hand_back(&mut self, env: &Env) {
        if self.handing_back {
            self.room_waiters.drain(..).for_each(|id| env.hand_back(id));
        }
    }
}
