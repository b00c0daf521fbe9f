//! Writeback: which blocks go home, when, and in which order that is safe.
//!
//! Policy: to make room, in the order of slots (`hand`), which is that of insertion but for holes
//! that were filled, so that what goes home leaves long runs of free slots; cached neighbours on
//! the origin ride along as one request of up to 256 blocks. It starts when free slots fall to
//! the high watermark and goes on until the low one. Blocks older than max_age, everything under
//! `cleaner`, and everything inserted before a `flush` message or a suspend that asks for it, go
//! too, least recently inserted first. With
//! `pause_writeback` ordinary writeback waits until nothing went around the cache for that
//! long. Memory is bounded by the copier's budget.
//!
//! # Order, and what a crash between the steps leaves
//! 1. Copy slots to the origin. *Crash*: the entries count, reads come from the cache.
//! 2. Flush the origin (one flush per batch; or the copies were FUA). *Crash*: the same.
//! 3. Write `seq = -1` to the entries, flush the cache device (I4). *Crash*: any subset of the
//!    entries is free; their data is durable on the origin, nobody went around yet (I9).
//! 4. The slots leave the index and are free (I3).
//!
//! If the origin fails, blocks stay dirty and committed; writeback tries again with back-off.
//! A new write to a block that is being written back takes a new slot (I10).

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{CopyError, CopyJob, CopyPiece, Env, Flags, IoError, IoResult, Time};
use event_listener::EventListener;
use futures_util::future::{self, Either};

use super::canary::{self, Bug};
use super::hand::Met;
use super::index::{COVERED, FREED, IN_WRITEBACK, Inserted, LEAVING, Life, Order, Place, Run};
use super::{State, WriteCache};

/// Most blocks in one request to the origin.
const JOB_BLOCKS_MAX: u64 = 256;
/// Most bytes in one request to the origin.
const JOB_BYTES_MAX: u64 = 1 << 20;
/// How far from the oldest a block to write back is looked for.
const SCAN_MAX: usize = 1024;
/// Memory for copies, unless `writeback_jobs` says otherwise.
const COPY_BYTES: u64 = 16 << 20;
/// Most memory for copies, whatever `writeback_jobs` says.
const COPY_BYTES_MAX: u64 = 256 << 20;

/// Bytes that copies may hold at once.
pub(super) fn copy_budget_bytes(config: &super::Config) -> u64 {
    let block = u64::from(config.block_size.bytes());
    let asked = config.writeback_blocks_max().map(|blocks| blocks.saturating_mul(block));
    asked.map_or(COPY_BYTES, |bytes| bytes.clamp(block, COPY_BYTES_MAX))
}

/// Slots: the first, and how many.
type Slots = (u32, u32);

/// Neighbouring blocks to write as one request.
pub(super) struct Job {
    block: u64,
    /// Where they are, in the order of blocks.
    slots: Vec<Slots>,
}

/// What the keeper does next.
enum Action {
    Stop,
    Commit,
    Write(Job),
    Sleep(Time),
    Wait,
}

impl State {
    /// Why an insertion is to be written back, if it is: `Some(true)` if nothing may delay it.
    fn reason(&self, inserted: &Inserted, now: Time, max_age: Option<Duration>) -> Option<bool> {
        if self.cleaner || inserted.number < self.drain_to {
            return Some(true);
        }
        let old = max_age.is_some_and(|age| now.since(inserted.born) >= age);
        old.then_some(false)
    }

    /// How many blocks of a run, from its first on, may be written back.
    fn eligible(&self, run: &Run) -> u32 {
        if self.index.life(run) != Life::Committed
            || run.has(IN_WRITEBACK | LEAVING | COVERED | FREED)
        {
            return 0;
        }
        let Ok(clear) = self.clear_of_removals(run.block, u64::from(run.len)) else { return 0 };
        let len = self.index.clear_of_writes(run).min(clear as u32);
        if self.index.has_older(run.block, len) {
            // Rare, and over soon: the run goes home in parts.
            return u32::from(!self.index.has_older(run.block, 1)).min(len);
        }
        len
    }

    /// The first part of a run that may be written back.
    pub(super) fn eligible_part(&self, run: &Run) -> Option<Run> {
        if run.has(IN_WRITEBACK | LEAVING | COVERED | FREED) {
            return None;
        }
        let rest = |skip: u32| Run {
            slot: run.slot + skip,
            len: run.len - skip,
            block: run.block + u64::from(skip),
            ..*run
        };
        let part = |rest: Run| Some(Run { len: self.eligible(&rest), ..rest });
        (0..run.len).map(rest).filter_map(part).find(|part| part.len > 0)
    }

    /// The blocks from `block` on that can go home, as far as they lie in one run.
    fn eligible_from(&self, block: u64, most: u32) -> Option<Slots> {
        let slot = self.index.newest(block)?;
        let run = self.index.at(slot)?;
        let len = self.eligible(&Run { len: run.len.min(most), ..run });
        (len > 0).then_some((slot, len))
    }

    /// The blocks before `block` that can go home, as far as they lie in one run.
    fn eligible_before(&self, block: u64, most: u32) -> Option<Slots> {
        let last = self.index.newest(block.checked_sub(1)?)?;
        let run = self.index.whole(last)?;
        let len = (last + 1 - run.slot).min(most);
        let (slot, start) = (last + 1 - len, block - u64::from(len));
        if self.eligible(&Run { slot, len, block: start, ..run }) == len {
            return Some((slot, len));
        }
        let single = Run { slot: last, len: 1, block: block - 1, ..run };
        (self.eligible(&single) == 1).then_some((last, 1))
    }

    /// `run`, and its neighbours on the origin that can go home with it, as one job.
    fn gather(&mut self, run: &Run, most: u32) -> Job {
        let mut len = run.len.min(most);
        let (mut block, mut slots) = (run.block, vec![(run.slot, len)]);
        while len < most
            && let Some(before) = self.eligible_before(block, most - len)
        {
            slots.push(before);
            block -= u64::from(before.1);
            len += before.1;
        }
        slots.reverse();
        while len < most
            && let Some(after) = self.eligible_from(block + u64::from(len), most - len)
        {
            slots.push(after);
            len += after.1;
        }
        slots.iter().for_each(|&(slot, len)| self.index.begin_writeback(slot, len));
        Job { block, slots }
    }

    /// Takes slots out of writeback that did not make it. One that a newer version covers is to
    /// be freed as soon as that is committed.
    fn give_up(&mut self, slots: &[Slots]) {
        for &(slot, len) in slots {
            self.index.end_writeback(slot, len);
        }
    }
}

impl WriteCache {
    /// True if so few slots are free that writeback starts. Slots being written back count as
    /// free: they will be.
    pub(super) fn is_past_high_watermark(&self, state: &State) -> bool {
        let (start, _) = self.config.watermarks(state.index.len());
        state.index.free_count() + state.index.in_writeback <= start
    }

    fn is_past_low_watermark(&self, state: &State) -> bool {
        let (_, stop) = self.config.watermarks(state.index.len());
        state.index.free_count() + state.index.in_writeback <= stop
    }

    fn blocks_in_writeback_max(&self) -> u64 {
        let bytes = u64::from(self.config.block_size.bytes());
        let memory = (copy_budget_bytes(&self.config) / bytes).max(1);
        self.config.writeback_blocks_max().map_or(memory, |jobs| jobs.min(memory))
    }

    /// The background task: timers, and deciding what goes home. Stops when told.
    pub(super) async fn keep(self: Arc<Self>, env: Env) {
        loop {
            let changed = self.changed.listen();
            match self.next_action(env.now()) {
                Action::Stop => return,
                Action::Commit => {
                    self.kick_commit(&env);
                    changed.await;
                }
                Action::Write(job) => {
                    self.spawn(&env, |cache, env| async move { cache.write_back(&env, job).await });
                }
                Action::Sleep(at) => sleep_or_change(&env, at, changed).await,
                Action::Wait => changed.await,
            }
        }
    }

    fn next_action(&self, now: Time) -> Action {
        let mut state = self.state.lock();
        if state.stopping {
            return Action::Stop;
        }
        if state.broken {
            return Action::Wait;
        }
        if state.autocommit_at.is_some_and(|at| at <= now) && !state.committing {
            return Action::Commit;
        }
        let writeback = self.next_writeback(&mut state, now);
        match (writeback, state.autocommit_at.filter(|_| !state.committing)) {
            (Action::Sleep(at), Some(commit)) => Action::Sleep(at.min(commit)),
            (Action::Wait, Some(commit)) => Action::Sleep(commit),
            (action, _) => action,
        }
    }

    fn next_writeback(&self, state: &mut State, now: Time) -> Action {
        state.draining = (state.draining || self.is_past_high_watermark(state))
            && self.is_past_low_watermark(state);
        if u64::from(state.index.in_writeback) >= self.blocks_in_writeback_max() {
            return Action::Wait;
        }
        // What lies before the place of the last job was not eligible then.
        let from = state.index.scan();
        let mut action = self.scan_from(state, now, from);
        if !matches!(action, Action::Write(_)) && from != Place::default() {
            action = self.scan_from(state, now, Place::default());
        }
        state.judge_space();
        if !(state.draining || state.mending) {
            return action;
        }
        match action {
            Action::Sleep(at) => match self.follow_hand(state, now) {
                Action::Sleep(other) => Action::Sleep(at.min(other)),
                Action::Wait => Action::Sleep(at),
                action => action,
            },
            Action::Wait => self.follow_hand(state, now),
            action => action,
        }
    }

    /// Writeback that makes room.
    fn follow_hand(&self, state: &mut State, now: Time) -> Action {
        let mut until = self.delay(state, now, false);
        if !state.draining {
            if u64::from(state.index.in_writeback) >= JOB_BLOCKS_MAX {
                return Action::Wait;
            }
            let idle = state.mends_from(self.config.pause_writeback());
            until = until.max(Some(idle).filter(|&idle| idle > now));
        }
        if let Some(until) = until {
            return Action::Sleep(until);
        }
        match state.move_hand() {
            Met::Run(run) => Action::Write(self.job_of(state, &run)),
            Met::Uncommitted => Action::Commit,
            Met::Nothing => Action::Wait,
        }
    }

    fn scan_from(&self, state: &mut State, now: Time, from: Place) -> Action {
        let max_age = self.config.max_age();
        let mut at = from;
        state.index.set_scan(Place::default());
        for _ in 0..SCAN_MAX {
            let Some(inserted) = state.index.inserted_from(at) else { return Action::Wait };
            let Some(urgent) = state.reason(&inserted, now, max_age) else {
                return max_age.map_or(Action::Wait, |age| Action::Sleep(inserted.born + age));
            };
            if let Some(until) = self.delay(state, now, urgent) {
                return Action::Sleep(until);
            }
            let eligible = |run: Run| match state.index.life(&run) {
                // I6: everything older has been taken; this one is next, so commit it.
                Life::Uncommitted if !state.committing => Some(None),
                _ => state.eligible_part(&run).map(Some),
            };
            let found = state.index.left_of(&inserted).find_map(eligible);
            match found {
                Some(None) => return Action::Commit,
                Some(Some(run)) => {
                    state.index.set_scan(Order::place(&inserted));
                    return Action::Write(self.job_of(state, &run));
                }
                None => {
                    let mut left = state.index.left_of(&inserted);
                    let written = left.any(|run| state.index.is_written(run.slot, run.len));
                    state.passed_over |= written;
                    at = Order::after(&inserted);
                }
            }
        }
        Action::Wait
    }

    fn job_of(&self, state: &mut State, run: &Run) -> Job {
        let left = self.blocks_in_writeback_max() - u64::from(state.index.in_writeback);
        let bytes = u64::from(self.config.block_size.bytes());
        let most = left.min(JOB_BYTES_MAX / bytes).clamp(1, JOB_BLOCKS_MAX);
        state.gather(run, most as u32)
    }

    /// Until when writeback must wait: for an origin that failed, or for one that is busy with
    /// writes around the cache.
    fn delay(&self, state: &State, now: Time, urgent: bool) -> Option<Time> {
        let pause = if urgent { Duration::ZERO } else { self.config.pause_writeback() };
        let paused = if pause.is_zero() { Time(0) } else { state.last_around + pause };
        let until = state.origin.retry_at.max(paused);
        (until > now).then_some(until)
    }

    /// Step 1 for one job; step 2 and on in the finisher.
    async fn write_back(&self, env: &Env, job: Job) {
        let copy = self.copy_job(&job);
        let failures = self.state.lock().origin_flush_failures;
        let copied = self.copier.copy(env, &copy).await;
        match copied {
            Ok(()) if self.origin_lost_since(failures) => {
                self.origin_failed(env, &job.slots, IoError::IO);
            }
            Ok(()) => {
                let mut state = self.state.lock();
                state.origin_writes += u64::from(!self.config.writeback_with_fua());
                state.written.extend(&job.slots);
            }
            Err(CopyError::Write(error)) => self.origin_failed(env, &job.slots, error),
            Err(CopyError::Read(error)) => {
                self.state.lock().give_up(&job.slots);
                self.break_down(env, "reading for writeback failed", error);
            }
        }
        self.kick_finisher(env);
    }

    /// True if a flush of the origin failed since there had been `failures`. The drive told one
    /// flusher and may have dropped what others wrote: it stays dirty and is copied again. FUA
    /// copies are durable by themselves.
    fn origin_lost_since(&self, failures: u64) -> bool {
        let now = self.state.lock().origin_flush_failures;
        now != failures && !self.config.writeback_with_fua()
    }

    /// What was copied and waits for a flush is not known to be on the origin any more.
    pub(super) fn origin_flush_failed(&self, env: &Env, error: IoError) {
        let written = {
            let mut state = self.state.lock();
            state.origin_flush_failures += 1;
            if self.config.writeback_with_fua() {
                Vec::new()
            } else {
                std::mem::take(&mut state.written)
            }
        };
        if !written.is_empty() {
            self.origin_failed(env, &written, error);
        }
    }

    fn copy_job(&self, job: &Job) -> CopyJob {
        let mut from: Vec<CopyPiece> = Vec::new();
        for &(slot, len) in &job.slots {
            let range = self.slot_range(slot, u64::from(len));
            match from.last_mut() {
                Some(last) if last.range.end() == range.start => last.range.count += range.count,
                _ => from.push(CopyPiece { disk: self.cache.clone(), range }),
            }
        }
        let flags = if self.config.writeback_with_fua() { Flags::FUA } else { Flags::empty() };
        let start = self.origin_range(job.block, 1).start;
        CopyJob { from, to: self.origin.clone(), start, flags }
    }

    fn origin_failed(&self, env: &Env, slots: &[Slots], error: IoError) {
        let waiting = {
            let mut state = self.state.lock();
            state.give_up(slots);
            let first = slots.first().and_then(|&(slot, _)| state.index.at(slot));
            let suspect = first.map(|run| run.block);
            state.origin.fail(env.now(), suspect);
            // Their blocks can be overwritten in place again.
            state.take_slot_waiters()
        };
        let count: u32 = slots.iter().map(|(_, len)| len).sum();
        let origin = &self.config.origin.argument;
        tracing::warn!("writecache: {origin}: writeback of {count} blocks failed: {error}");
        self.remap_all(env, waiting);
        self.changed.notify(usize::MAX);
    }

    /// Starts freeing what has been written, unless somebody does already.
    fn kick_finisher(&self, env: &Env) {
        {
            let mut state = self.state.lock();
            if state.finishing {
                return;
            }
            state.finishing = true;
        }
        self.spawn(env, |cache, env| async move { cache.finish_loop(&env).await });
    }

    async fn finish_loop(&self, env: &Env) {
        loop {
            let (written, failures) = {
                let mut state = self.state.lock();
                let idle = state.written.is_empty() && state.index.superseded().is_empty();
                if idle || state.broken {
                    let written = std::mem::take(&mut state.written);
                    state.give_up(&written);
                    state.finishing = false;
                    break;
                }
                (std::mem::take(&mut state.written), state.origin_flush_failures)
            };
            // Superseded versions alone need nothing of the origin.
            let on_origin = if written.is_empty() || canary::planted(Bug::FreeBeforeOriginFlush) {
                Ok(())
            } else {
                self.flush_origin(env).await
            };
            match on_origin {
                Ok(()) if !written.is_empty() && self.origin_lost_since(failures) => {
                    self.origin_failed(env, &written, IoError::IO);
                }
                Ok(()) => self.free_written(env, written).await,
                Err(error) => self.origin_failed(env, &written, error),
            }
        }
        self.changed.notify(usize::MAX);
    }

    /// Steps 3 and 4, together with superseded versions that wait.
    async fn free_written(&self, env: &Env, written: Vec<Slots>) {
        let mut ledger = self.ledger.lock().await;
        let mut slots = self.state.lock().index.superseded();
        slots.extend(&written);
        if !written.is_empty() {
            let State { index, origin, .. } = &mut *self.state.lock();
            let runs = written.iter().flat_map(|&(slot, len)| index.runs_of(slot, len));
            origin.succeed(runs.flat_map(|run| run.block..run.block + u64::from(run.len)));
        }
        if !slots.is_empty() && self.free_entries(env, &mut ledger, slots).await.is_err() {
            self.state.lock().give_up(&written);
        }
    }

    /// Writes back everything inserted so far and waits until it is free.
    ///
    /// # Errors
    /// The origin failed once meanwhile, the cache device is broken, or the target is being
    /// stopped.
    pub(super) async fn drain(&self, env: &Env) -> IoResult {
        let (target, failures) = {
            let mut state = self.state.lock();
            let target = state.index.seal();
            state.drain_to = state.drain_to.max(target);
            state.origin.retry_at = Time(0);
            (target, state.origin.failures)
        };
        self.changed.notify(usize::MAX);
        self.commit(env).await?;
        loop {
            let changed = self.changed.listen();
            {
                let mut state = self.state.lock();
                if state.broken || state.stopping || state.origin.failures != failures {
                    return Err(IoError::IO);
                }
                if state.index.oldest_number().is_none_or(|number| number >= target) {
                    return Ok(());
                }
            }
            changed.await;
        }
    }
}

async fn sleep_or_change(env: &Env, at: Time, changed: EventListener) {
    match future::select(std::pin::pin!(env.sleep_until(at)), changed).await {
        Either::Left(((), _)) | Either::Right(((), _)) => (),
    }
}
