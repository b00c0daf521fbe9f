//! Verdicts and completions.
//!
//! The ready path is a look at the tables: requests for clusters with data enter an epoch and take
//! no lock. A change of a cluster without data looks again under the lock (T1 of `tables`).

use std::ops::Range;

use cairn_block::sync::MutexGuard;
use cairn_block::sync::atomic::Ordering;
use cairn_block::{
    EndIo, Env, Extent, ExtentKind, Flags, IoError, IoResult, Op, Request, RequestId, SECTOR_BYTES,
    Sector, SectorCount, SectorRange, Verdict,
};
use cairn_format::qcow2::write::{ZEROS, named_by};

use super::Qcow2;
use super::acknowledged::changed;
use super::canary::{Bug, planted};
use super::state::{Cause, Job, State};
use super::tables::Place;
use crate::epochs::Epoch;
use crate::group_commit::Waiter;
use crate::span::Span;

/// In the word of a request: it fills the clusters of a job. Else it is in an epoch.
const COVERS: u64 = 1 << 32;
/// The rest of the word is how often entries had been withdrawn, in its low bits.
const WITHDRAWALS_SHIFT: u32 = 33;

/// Most clusters of one job.
const JOB_CLUSTERS_MAX: u64 = 256;
/// Most clusters that lose their entries in one step.
const HOLES_MAX: u64 = 8192;
/// Most entries that are not durable; more wait for a commit.
const CHANGES_MAX: usize = 128 << 10;
/// A commit begins with so many.
const CHANGES_DUE: usize = 16 << 10;

/// Why a request cannot go on now.
enum Wait {
    /// For a commit, which empties the crash log.
    Room,
    /// For clusters of the image.
    Space,
}

impl Qcow2 {
    pub(super) fn span_of(&self, range: SectorRange) -> Span {
        Span::of(range, self.geometry.cluster_sectors(), self.geometry.sectors())
    }

    /// How many clusters from the first one on it fills. What is behind the end of the content
    /// belongs to a cluster, too.
    fn filled_by(&self, range: SectorRange) -> u64 {
        Span::of(range, self.geometry.cluster_sectors(), u64::MAX).whole()
    }

    /// Clusters from this one on that the backing device shows.
    pub(super) fn shown_from(&self, cluster: u64) -> u64 {
        let shown = self.backing_sectors.div_ceil(self.geometry.cluster_sectors());
        shown.saturating_sub(cluster)
    }

    pub(super) fn map_request<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        match request.op {
            Op::Read => self.map_read(env, request),
            Op::Flush => self.map_flush(env, request),
            Op::Write => self.map_write(env, request),
            Op::WriteZeroes if request.flags.contains(Flags::NO_UNMAP) => {
                self.map_write(env, request)
            }
            Op::WriteZeroes | Op::Discard => self.map_hole(env, request),
        }
    }

    /// To its place, if all of a head of the request has data in clusters that lie next to each
    /// other; else where its first cluster is. The request is in an epoch then (I5).
    fn to_data(&self, env: &Env, request: &mut Request) -> Result<Verdict<'_>, (Place, u64)> {
        let span = self.span_of(request.range);
        let epoch = self.users.announce(env.reactor(), 0);
        // Before the look: with an entry that is withdrawn later, the number will be another one.
        let withdrawals = self.withdrawals.load(Ordering::Acquire);
        let (place, count) = self.tables.run(&span.blocks);
        let Place::Data(byte) = place else {
            self.users.leave(env.reactor(), epoch);
            return Err((place, count));
        };
        let within = request.range.start.0 % self.geometry.cluster_sectors();
        let mut head = span.head(count);
        if self.read_only {
            // A last cluster that is cut short ends in zeros.
            let there = (self.image.disk.sectors().0).saturating_sub(byte / SECTOR_BYTES + within);
            if there == 0 {
                self.users.leave(env.reactor(), epoch);
                return Err((Place::Zeros, count));
            }
            head = head.min(there);
        }
        request.accept(SectorCount(head));
        request.watch(epoch.to_word() | withdrawals << WITHDRAWALS_SHIFT);
        Ok(self.to_image(byte, within))
    }

    /// To a sector behind a byte of the image.
    fn to_image(&self, byte: u64, within: u64) -> Verdict<'_> {
        let sector = Sector(byte / SECTOR_BYTES + within);
        Verdict::Remapped { disk: self.image.disk.as_ref(), sector }
    }

    fn map_read<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let (place, count) = match self.to_data(env, request) {
            Ok(verdict) => return verdict,
            Err(found) => found,
        };
        let start = request.range.start;
        request.accept(SectorCount(self.span_of(request.range).head(count)));
        match &self.config.backing {
            Some(backing) if place == Place::Nowhere && start.0 < self.backing_sectors => {
                request
                    .accept(SectorCount(self.backing_sectors - start.0).min(request.range.count));
                Verdict::Remapped { disk: backing.disk.as_ref(), sector: start }
            }
            _ => {
                request.segs.zero(0, request.range.to_bytes() as usize);
                Verdict::Completed
            }
        }
    }

    fn map_flush<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let mut state = self.state.lock();
        let is_quiet = state.is_durable() && !state.commits.is_running();
        if is_quiet || planted(Bug::FlushWithoutCommit) {
            // Entries may change before it fails.
            request.watch(0);
            return self.to_image(0, 0);
        }
        state.commits.join(Waiter::Request(request.id()));
        drop(state);
        self.kick_commit(env);
        Verdict::Queued
    }

    fn map_write<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        loop {
            if let Ok(verdict) = self.to_data(env, request) {
                return verdict;
            }
            if let Some(verdict) = self.map_missing(env, request) {
                return verdict;
            }
        }
    }

    /// A write whose first cluster has no data. None if it has by now.
    fn map_missing<'a>(&'a self, env: &Env, request: &mut Request) -> Option<Verdict<'a>> {
        let span = self.span_of(request.range);
        let (first, id) = (span.blocks.start, request.id());
        let mut state = self.state.lock();
        let (place, count) = self.tables.run(&span.blocks);
        if matches!(place, Place::Data(_)) {
            return None;
        }
        if let Some(job) = state.job_of(first) {
            job.waiters.push(id);
            request.accept(SectorCount(span.head(job.end - first)));
            return Some(Verdict::Queued);
        }
        let in_table = self.tables.table_end(first) - first;
        let mut whole = self.filled_by(request.range).min(count).min(in_table);
        if planted(Bug::PartForWhole) {
            whole = whole.max(1);
        }
        whole = whole.min(state.free(&span.blocks)).min(JOB_CLUSTERS_MAX);
        let to = match self.take_space(&mut state, first, whole.max(1)) {
            Ok(to) => to,
            Err(wait) => {
                request.accept(SectorCount(span.head(1)));
                return Some(self.hold(env, state, id, &wait));
            }
        };
        let failures = self.image.disk.failures();
        let end = first + (to.end - to.start);
        let (cause, waiters) = match whole {
            0 => (Cause::Fill, vec![id]),
            _ => (Cause::Cover, Vec::new()),
        };
        state.jobs.insert(first, Job { end, to: to.start, cause, failures, waiters });
        drop(state);
        request.accept(SectorCount(span.head(end - first)));
        if cause == Cause::Cover {
            request.watch(COVERS);
            return Some(self.to_image(to.start * self.geometry.cluster_bytes, 0));
        }
        self.spawn(env, async move |own, env| own.fill(env, first).await);
        Some(Verdict::Queued)
    }

    /// A record, a table and clusters for content from this cluster on.
    fn take_space(&self, state: &mut State, first: u64, most: u64) -> Result<Range<u64>, Wait> {
        if !state.reserve() {
            return Err(Wait::Room);
        }
        let has_table = self.ensure_table(state, first);
        let taken = has_table.then(|| state.space.allocate(most)).flatten();
        taken.ok_or_else(|| {
            state.acknowledged.cancel();
            Wait::Space
        })
    }

    /// Makes an L2 table for a cluster, if there is none. False if there is no space for it.
    pub(super) fn ensure_table(&self, state: &mut State, cluster: u64) -> bool {
        let (index, _) = self.tables.place_of(cluster);
        if self.tables.at(index).is_some() {
            return true;
        }
        let Some(taken) = state.space.allocate(1) else { return false };
        self.tables.put_empty(index, taken.start * self.geometry.cluster_bytes);
        state.new_tables.insert(index);
        true
    }

    /// Keeps a request until a commit or growth has made room for it.
    fn hold(
        &self,
        env: &Env,
        mut state: MutexGuard<'_, State>,
        id: RequestId,
        wait: &Wait,
    ) -> Verdict<'_> {
        if state.handing_back {
            drop(state);
            env.hand_back(id);
            return Verdict::Queued;
        }
        match wait {
            Wait::Room => state.room_waiters.push(id),
            Wait::Space => {
                let freed = state.freed;
                state.space_waiters.push((id, freed));
            }
        }
        drop(state);
        self.kick_commit(env);
        Verdict::Queued
    }

    /// A discard, or write-zeroes that may free clusters.
    fn map_hole<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let span = self.span_of(request.range);
        if span.whole() > 0 {
            return self.drop_clusters(env, request, &span);
        }
        request.accept(SectorCount(span.head(1)));
        if request.op == Op::Discard && !self.image.disk.limits().discard {
            return Verdict::Completed;
        }
        loop {
            let place = match self.to_data(env, request) {
                Ok(verdict) => return verdict,
                Err((place, _)) => place,
            };
            let first = span.blocks.start;
            let is_shown = place == Place::Nowhere && self.shown_from(first) > 0;
            if is_shown && request.op == Op::WriteZeroes {
                match self.map_missing(env, request) {
                    Some(verdict) => return verdict,
                    None => continue,
                }
            }
            let mut state = self.state.lock();
            if let Some(job) = state.job_of(first) {
                job.waiters.push(request.id());
                return Verdict::Queued;
            }
            let (now, _) = self.tables.run(&(first..first + 1));
            if now == place {
                return self.answer(env, state, request);
            }
        }
    }

    /// The same of whole clusters: they lose their entries, and are zeros.
    fn drop_clusters<'a>(&'a self, env: &Env, request: &mut Request, span: &Span) -> Verdict<'a> {
        let (first, id) = (span.blocks.start, request.id());
        let mut state = self.state.lock();
        if let Some(job) = state.job_of(first) {
            job.waiters.push(id);
            request.accept(SectorCount(span.head(job.end - first)));
            return Verdict::Queued;
        }
        let in_table = self.tables.table_end(first) - first;
        let shown = self.shown_from(first);
        let most = span.whole().min(HOLES_MAX).min(in_table).min(state.free(&span.blocks));
        let (word, count) = if shown > 0 { (ZEROS, most.min(shown)) } else { (0, most) };
        let clusters = first..first + count;
        let is_changed = |old: u64| named_by(old).is_some() || (old != ZEROS && word == ZEROS);
        let is_due = match clusters.clone().any(|at| is_changed(self.tables.word(at))) {
            false => false,
            true if !state.reserve() => {
                request.accept(SectorCount(span.head(1)));
                return self.hold(env, state, id, &Wait::Room);
            }
            true if !self.ensure_table(&mut state, first) => {
                state.acknowledged.cancel();
                request.accept(SectorCount(span.head(1)));
                return self.hold(env, state, id, &Wait::Space);
            }
            true => {
                for at in clusters.clone() {
                    if is_changed(self.tables.word(at)) {
                        state.change(&self.tables, at, word, None);
                    }
                }
                state.record(&clusters, word)
            }
        };
        request.accept(SectorCount(span.head(count)));
        if is_due {
            drop(state);
            self.kick_commit(env);
            state = self.state.lock();
        }
        self.answer(env, state, request)
    }

    /// The answer to a change that is done in memory: with FUA it waits for a commit, also if an
    /// earlier one did it (I6).
    fn answer(
        &self,
        env: &Env,
        mut state: MutexGuard<'_, State>,
        request: &Request,
    ) -> Verdict<'_> {
        if !request.is_fua() || (state.is_durable() && !state.commits.is_running()) {
            return Verdict::Completed;
        }
        state.commits.join(Waiter::Request(request.id()));
        drop(state);
        self.kick_commit(env);
        Verdict::Queued
    }

    pub(super) fn end_request(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        self.look_at_failures(env);
        let word = request.word();
        let kept = match request.op {
            Op::Flush => return EndIo::Done(result),
            Op::Read => {
                self.users.leave(env.reactor(), epoch_of(word));
                return EndIo::Done(result);
            }
            _ if word & COVERS == 0 => {
                // Looked at before it leaves: the loss is not counted until then.
                let now = self.withdrawals.load(Ordering::Acquire);
                self.users.leave(env.reactor(), epoch_of(word));
                let is_kept = now << WITHDRAWALS_SHIFT == word & (u64::MAX << WITHDRAWALS_SHIFT);
                is_kept.then_some(now)
            }
            // A failure of the device may have dropped a part of it.
            _ => self.end_job(env, self.span_of(request.range).blocks.start, result),
        };
        match kept {
            _ if result.is_err() => EndIo::Done(result),
            None => EndIo::Requeue,
            Some(now) if request.flags.contains(Flags::FUA) => {
                self.hold_until_durable(env, request.id(), now)
            }
            Some(_) => EndIo::Done(result),
        }
    }

    /// I6: the content is durable, its entries may not be. If some were withdrawn since (I7), the
    /// content may not be there.
    fn hold_until_durable(&self, env: &Env, id: RequestId, withdrawals: u64) -> EndIo {
        let mut state = self.state.lock();
        if self.withdrawals.load(Ordering::Acquire) != withdrawals {
            return EndIo::Requeue;
        }
        if state.is_durable() && !state.commits.is_running() {
            return EndIo::Done(Ok(()));
        }
        state.commits.join(Waiter::Request(id));
        drop(state);
        self.kick_commit(env);
        EndIo::Held
    }

    /// Of the first clusters that are alike, or of a part of them, if the disk that has them
    /// answers for less. The caller asks again for the rest.
    pub(super) async fn extents_of(
        &self,
        env: &Env,
        range: SectorRange,
    ) -> Result<Vec<Extent>, IoError> {
        let span = self.span_of(range);
        loop {
            let (place, count) = self.tables.run(&span.blocks);
            let count = SectorCount(span.head(count));
            let all = |kind, count| vec![Extent { count, kind }];
            let backing = self.config.backing.as_ref().filter(|_| place == Place::Nowhere);
            let left = SectorCount(self.backing_sectors.saturating_sub(range.start.0));
            let extents = match (place, backing) {
                (Place::Data(_), _) => all(ExtentKind::Data, count),
                (Place::Zeros, _) => all(ExtentKind::Zero, count),
                (Place::Nowhere, Some(backing)) if left > SectorCount::ZERO => {
                    let shown = SectorRange::new(range.start, count.min(left));
                    backing.disk.extents(env, shown).await?
                }
                (Place::Nowhere, _) => all(ExtentKind::Hole, count),
            };
            // A write may have been answered in between.
            if self.tables.run(&span.blocks).0 == place {
                return Ok(extents);
            }
        }
    }
}

fn epoch_of(word: u64) -> Epoch {
    Epoch::of_word(word & (COVERS - 1))
}

impl State {
    /// Makes room for one more change. False if it has to wait for a commit.
    fn reserve(&mut self) -> bool {
        self.changes.len() < CHANGES_MAX && self.acknowledged.reserve()
    }

    /// Records changes for which there is room. True if a commit should begin.
    pub(super) fn record(&mut self, clusters: &Range<u64>, word: u64) -> bool {
        let is_half_full = changed(&mut self.acknowledged, clusters, word);
        is_half_full || self.changes.len() >= CHANGES_DUE
    }

    /// The requests that wait for room in the crash log, to be mapped again.
    pub(super) fn take_room_waiters(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.room_waiters)
    }

    /// The requests that wait for clusters, unless some are being released.
    pub(super) fn take_space_waiters(&mut self) -> Vec<(RequestId, u64)> {
        match self.releasing {
            0 => std::mem::take(&mut self.space_waiters),
            _ => Vec::new(),
        }
    }

    /// True if a request waits for a commit or for growth.
    pub(super) fn is_waited_for(&self) -> bool {
        !(self.room_waiters.is_empty() && self.space_waiters.is_empty())
    }

    /// Gives back the requests that wait, if that is to be done. Under the lock: a suspend that is
    /// called off comes after them.
    pub(super) fn hand_back(&mut self, env: &Env) {
        if self.handing_back {
            let space = self.space_waiters.drain(..).map(|(id, _)| id);
            self.room_waiters.drain(..).chain(space).for_each(|id| env.hand_back(id));
        }
    }
}
