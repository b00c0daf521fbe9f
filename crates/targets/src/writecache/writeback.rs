//! Writeback: which blocks are copied to the origin, when, and in which order that is safe.
//!
//! Policy: to free slots, writeback goes in the order of slots (`hand`). This is the order of
//! insertion except where holes were filled, and it leaves long runs of free slots. Cached
//! neighbours on the origin are written in the same request, up to 256 blocks. Writeback starts
//! when free slots fall to the high watermark and stops at the low one. Three more classes are
//! written back: blocks older than max_age, all blocks under `cleaner`, and all blocks inserted
//! before a `flush` message or before a suspend that asks for writeback. The search for them goes
//! by insertion, the least recent one first. A drain of more than a batch begins with a sweep over
//! the origin (`sweep`), and the search finds what the sweep left. With `pause_writeback` ordinary
//! writeback waits until no write has gone around the cache for that long. `pace` decides how much
//! writeback may copy while clients use the devices.
//!
//! The background task (`keep`) collects a batch of victims, up to half of the blocks that may be
//! in writeback, in the order of positions on the origin. Lanes process the batch: each lane is a
//! task that copies one job after the other. While they do, the background task collects the next
//! batch. Many entries are freed at once: after each batch, at a quarter of the blocks that may be
//! in writeback, or at once if a request waits for a slot; in a drain after as many copies as the
//! origin takes some seconds to make durable (`pace`). The copier's budget bounds the memory.
//!
//! A block is passed over while a write to it is in flight (I10). If the block must be written back
//! (rather than any block to free a slot), it is closed: new writes to it wait until its writeback
//! has begun, which happens when the last write in flight ends. One run is closed at a time.
//!
//! # Order, and what a crash between the steps leaves
//! 1. Copy slots to the origin. *Crash*: the entries count, so reads come from the cache.
//! 2. Flush the origin (one flush per batch, unless the copies were FUA), and check that its
//!    failure count did not change since before step 1. *Crash*: the same.
//! 3. Write `seq = -1` to the entries, flush the cache device (I4). *Crash*: any subset of the
//!    entries is free. Their data is durable on the origin, and no request has gone around the
//!    cache for these blocks yet (I9).
//! 4. The slots leave the index and are free (I3).
//!
//! If the origin fails, blocks stay dirty and committed, and writeback tries again with back-off. A
//! new write to a block that is being written back takes a new slot (I10).

use std::time::Duration;

use cairn_block::{CopyError, CopyJob, CopyPiece, Env, Flags, IoError, Time, mutants, yield_once};

use super::canary::{self, Bug};
use super::hand::Met;
use super::index::{
    COVERED, FREED, IN_WRITEBACK, Inserted, LEAVING, Life, Order, QueuePosition, Run, Stock,
};
use super::limit::{Limit, Turns, sleep_or_change};
use super::{State, WriteCache};

/// Most blocks in one request to the origin.
const JOB_BLOCKS_MAX: u64 = 256;
/// Most bytes in one request to the origin.
const JOB_BYTES_MAX: u64 = 1 << 20;
/// How many insertions are passed over in the search for blocks to write back. Those that are being
/// written back already do not count.
const SCAN_MAX: usize = 1024;
/// Most bytes that lanes copy within one turn of the reactor's loop.
const LOOP_BYTES: u64 = 256 << 10;
/// Most bytes that a drain has copied when it is flushed.
const UNFLUSHED_BYTES: u64 = 64 << 20;
/// Memory for copies, unless `writeback_jobs` says otherwise.
pub(super) const COPY_BYTES: u64 = 16 << 20;
/// Most memory for copies, whatever `writeback_jobs` says.
const COPY_BYTES_MAX: u64 = 256 << 20;

/// Bytes that copies may hold at once.
pub(super) fn copy_budget_bytes(config: &super::Config) -> u64 {
    let block = u64::from(config.block_size.bytes());
    let asked = config.writeback_blocks_max.map(|blocks| blocks.saturating_mul(block));
    asked.map_or(COPY_BYTES, |bytes| bytes.clamp(block, COPY_BYTES_MAX))
}

/// Slots: the first, and how many.
type Slots = (u32, u32);

/// Neighbouring blocks to write as one request.
pub(super) struct Job {
    block: u64,
    /// Their slots, in the order of blocks.
    slots: Vec<Slots>,
}

impl Job {
    fn blocks(&self) -> u32 {
        self.slots.iter().map(|(_, len)| len).sum()
    }
}

/// Slots whose data has been copied to the origin and is not durable there.
#[derive(Default)]
pub(super) struct Written {
    slots: Vec<Slots>,
    blocks: u64,
    jobs: usize,
}

impl Written {
    fn add(&mut self, job: Job) {
        self.jobs += 1;
        self.blocks += u64::from(job.blocks());
        self.slots.extend(job.slots);
    }

    pub fn take(&mut self) -> Vec<Slots> {
        std::mem::take(self).slots
    }
}

/// A turn of the reactor's loop, and the bytes that lanes copied within it.
#[derive(Default)]
pub(super) struct Turn {
    at: Time,
    bytes: u64,
}

/// Why a drain ended early.
pub(super) enum Undrained {
    Failed(IoError),
    /// A suspend began.
    Suspending,
}

/// What the background task does next.
pub(super) enum Action {
    Stop,
    /// Asks again, after the other tasks.
    Again,
    Commit,
    Copy,
    Sleep(Time),
    Wait,
    /// Waits for the turn of a background copy, until then at most.
    Turn(Option<Time>),
}

/// The victims found so far.
pub(super) struct Batch {
    pub jobs: Vec<Job>,
    pub blocks: u64,
    /// How many blocks it may have.
    pub most: u64,
}

impl State {
    /// Whether an insertion is to be written back now, apart from freeing slots: `Some(true)` if no
    /// pause may delay it.
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
            // Rare and short: the run is written back in parts.
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

    /// The blocks from `block` on that can be written back, as far as they lie in one run.
    fn eligible_from(&self, block: u64, most: u32) -> Option<Slots> {
        let slot = self.index.newest(block)?;
        let run = self.index.at(slot)?;
        let len = self.eligible(&Run { len: run.len.min(most), ..run });
        (len > 0).then_some((slot, len))
    }

    /// The blocks before `block` that can be written back, as far as they lie in one run.
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

    /// `run` and its neighbours on the origin that can be written back with it, as one job.
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

    /// Takes slots out of writeback that were not written back. A slot that a newer version covers
    /// is freed as soon as the newer version is committed.
    fn give_up(&mut self, slots: &[Slots]) {
        for &(slot, len) in slots {
            self.index.end_writeback(slot, len);
        }
    }

    /// Gives up the jobs that no lane has taken.
    fn give_up_jobs(&mut self) {
        for job in std::mem::take(&mut self.jobs) {
            self.give_up(&job.slots);
        }
    }

    /// True if no lane has anything to copy.
    fn has_copied_all(&self) -> bool {
        self.jobs.is_empty() && self.lanes == 0
    }

    /// How many lanes there may be now.
    fn lanes_max(&self, now: Time) -> u32 {
        self.copies_max(now).min(self.jobs.len() as u32)
    }

    /// How many copies may be in flight now.
    fn copies_max(&self, now: Time) -> u32 {
        self.pace.lanes(now, self.sweep.is_some())
    }

    /// Records why an insertion had nothing to write back. If the reason is a write in flight,
    /// closes the run. True if all of the insertion is in writeback.
    fn pass_over(&mut self, inserted: &Inserted, batch: &mut Batch) -> bool {
        let written = |run: &Run| self.index.is_written(run.slot, run.len);
        self.passed_over |= self.index.left_of(inserted).any(|run| written(&run));
        if self.closed.is_none() {
            let stays = |run: &Run| written(run) && self.index.life(run) == Life::Committed;
            let busy = self.index.left_of(inserted).find(stays);
            let most = (batch.most - batch.blocks) as u32;
            self.closed = busy.map(|run| Run { len: run.len.min(most), ..run });
            batch.most -= self.closed.map_or(0, |run| u64::from(run.len));
        }
        self.index.left_of(inserted).all(|run| run.has(IN_WRITEBACK))
    }

    /// Takes a run, and its neighbours, into the batch. Returns where they end on the origin.
    pub(super) fn take_job(&mut self, run: &Run, most: u64, batch: &mut Batch) -> u64 {
        let job = self.gather(run, most.clamp(1, JOB_BLOCKS_MAX) as u32);
        let (begin, blocks) = (job.block, u64::from(job.blocks()));
        batch.blocks += blocks;
        batch.jobs.push(job);
        begin + blocks
    }
}

impl WriteCache {
    /// True if so few slots are free that writeback starts. Slots in writeback count as free,
    /// because they will be.
    pub(super) fn is_past_high_watermark(&self, state: &State) -> bool {
        let (start, _) = self.config.watermarks(state.index.len());
        state.index.free_count() + state.index.in_writeback <= start
    }

    fn is_past_low_watermark(&self, state: &State) -> bool {
        let (_, stop) = self.config.watermarks(state.index.len());
        state.index.free_count() + state.index.in_writeback <= stop
    }

    /// How many blocks may wait for their copy, or be copied.
    fn blocks_in_writeback_max(&self) -> u64 {
        let bytes = u64::from(self.config.block_size.bytes());
        let memory = (copy_budget_bytes(&self.config) / bytes).max(1);
        self.config.writeback_blocks_max.map_or(memory, |jobs| jobs.min(memory))
    }

    /// How many blocks beyond these a drain may have copied when it is flushed: few of the cache,
    /// as they can neither be overwritten in place nor be taken for other blocks, and none while
    /// clients use the origin.
    fn blocks_unflushed_max(&self, state: &State, now: Time) -> u64 {
        let is_told = self.config.writeback_blocks_max.is_some() || self.config.writeback_with_fua;
        if is_told || state.sweep.is_none() || state.copies_max(now) == 1 {
            return 0;
        }
        let most = UNFLUSHED_BYTES / u64::from(self.config.block_size.bytes());
        let slots = (state.index.len() / 8).min(state.index.free_count());
        most.min(u64::from(slots))
    }

    /// The background task: starts commits and writeback, and waits on timers. Ends when `stopping`
    /// is set.
    pub(super) async fn keep(&self, env: &Env) {
        let mut turns = Turns::new(env, u64::from(self.config.block_size.bytes()));
        loop {
            let changed = self.changed.listen();
            self.reopen(env);
            self.stock_index();
            let (action, limit) = self.next_action(env.now(), turns.limit());
            turns.count(limit);
            if !matches!(action, Action::Turn(_) | Action::Commit | Action::Again) {
                turns.leave();
            }
            match action {
                Action::Turn(at) => turns.wait(at, changed).await,
                Action::Stop => return,
                Action::Commit => {
                    self.kick_commit(env);
                    changed.await;
                }
                Action::Again => yield_once().await,
                Action::Copy => self.start_lanes(env),
                Action::Sleep(at) => sleep_or_change(env, at, changed).await,
                Action::Wait => changed.await,
            }
        }
    }

    /// Adds memory to the index before a request needs it.
    fn stock_index(&self) {
        if self.state.lock().index.is_low() {
            let stock = Stock::new();
            self.state.lock().index.add(stock);
        }
    }

    pub(super) fn action(&self, state: &mut State, now: Time) -> Action {
        if state.stopping || state.broken {
            state.give_up_jobs();
            return if state.stopping { Action::Stop } else { Action::Wait };
        }
        if state.autocommit_at.is_some_and(|at| at <= now) && !state.commits.is_running() {
            return Action::Commit;
        }
        let writeback = self.next_writeback(state, now);
        match (writeback, state.autocommit_at.filter(|_| !state.commits.is_running())) {
            (Action::Sleep(at), Some(commit)) => Action::Sleep(at.min(commit)),
            (Action::Wait, Some(commit)) => Action::Sleep(commit),
            (Action::Turn(at), Some(commit)) => {
                Action::Turn(Some(at.map_or(commit, |at| at.min(commit))))
            }
            (action, _) => action,
        }
    }

    fn next_writeback(&self, state: &mut State, now: Time) -> Action {
        state.draining = (state.draining || self.is_past_high_watermark(state))
            && self.is_past_low_watermark(state);
        let idle = if state.jobs.is_empty() { self.collect(state, now) } else { Action::Wait };
        if state.lanes < state.lanes_max(now) { Action::Copy } else { idle }
    }

    /// Collects a batch. Returns the action to take if there is none.
    fn collect(&self, state: &mut State, now: Time) -> Action {
        let max = self.blocks_in_writeback_max();
        let unflushed = self.blocks_unflushed_max(state, now);
        let reserved = state.closed.map_or(0, |run| u64::from(run.len));
        let taken = u64::from(state.index.in_writeback) + reserved;
        let room = (max + unflushed).saturating_sub(taken);
        if room == 0 {
            return Action::Wait;
        }
        // A block that waits for a lane cannot be overwritten in place: take few if there is one
        // lane.
        let most = if state.copies_max(now) == 1 { JOB_BLOCKS_MAX } else { max / 2 };
        let most = room.min(most.max(1));
        let mut batch = Batch { jobs: Vec::new(), blocks: 0, most };
        let mut action = self.collect_swept(state, now, &mut batch);
        if let (Action::Wait, []) = (&action, &batch.jobs[..]) {
            action = self.collect_unswept(state, now, &mut batch);
            batch.jobs.sort_unstable_by_key(|job| job.block);
        }
        state.free_from = batch.blocks.min(max / 4);
        state.jobs = batch.jobs.into();
        state.pace.spend(batch.blocks * u64::from(self.config.block_size.bytes()));
        action
    }

    /// Collects blocks that were asked for or are old, and blocks to free slots.
    fn collect_unswept(&self, state: &mut State, now: Time, batch: &mut Batch) -> Action {
        // Insertions before the position of the last victim were not eligible then.
        let from = state.index.scan();
        state.index.set_scan(QueuePosition::default());
        let mut action = self.collect_from(state, now, (from, None), batch);
        if batch.jobs.is_empty() && from != QueuePosition::default() {
            action = self.collect_from(state, now, (QueuePosition::default(), Some(from)), batch);
        }
        state.judge_space();
        match action {
            Action::Sleep(at) => match self.follow_hand(state, now, batch) {
                Action::Sleep(other) => Action::Sleep(at.min(other)),
                Action::Wait => Action::Sleep(at),
                Action::Turn(_) => Action::Turn(Some(at)),
                action => action,
            },
            Action::Wait => self.follow_hand(state, now, batch),
            action => action,
        }
    }

    /// Collects blocks that were asked for or are old, of the insertions from `at` up to `end`.
    fn collect_from(
        &self,
        state: &mut State,
        now: Time,
        (mut at, end): (QueuePosition, Option<QueuePosition>),
        batch: &mut Batch,
    ) -> Action {
        let max_age = self.config.max_age;
        let mut passed_over = 0;
        while batch.blocks < batch.most && passed_over < SCAN_MAX {
            let inserted = state.index.inserted_from(at);
            let inserted = inserted.filter(|found| end.is_none_or(|end| Order::place(found) < end));
            let Some(inserted) = inserted else { return Action::Wait };
            let Some(urgent) = state.reason(&inserted, now, max_age) else {
                return max_age.map_or(Action::Wait, |age| Action::Sleep(inserted.born + age));
            };
            if let Some(until) = self.delay(state, now, urgent) {
                return Action::Sleep(until);
            }
            let eligible = |run: Run| match state.index.life(&run) {
                // I6: everything older has been taken; this one is next, so commit it.
                Life::Uncommitted if !state.commits.is_running() => Some(None),
                _ => state.eligible_part(&run).map(Some),
            };
            let found = state.index.left_of(&inserted).find_map(eligible);
            match found {
                Some(None) => return Action::Commit,
                Some(Some(run)) => {
                    state.index.set_scan(Order::place(&inserted));
                    state.take_job(&run, self.job_blocks_max(batch), batch);
                }
                None => {
                    passed_over += usize::from(!state.pass_over(&inserted, batch));
                    at = Order::after(&inserted);
                }
            }
        }
        Action::Wait
    }

    /// Collects blocks to free slots.
    fn follow_hand(&self, state: &mut State, now: Time, batch: &mut Batch) -> Action {
        let bytes = u64::from(self.config.block_size.bytes());
        while batch.blocks < batch.most {
            if state.limit.most() == 0 {
                return Action::Wait;
            }
            // The batch so far may be enough for the low watermark.
            state.draining &= self.is_past_low_watermark(state);
            if let Some(wait) = self.hand_waits(state, now) {
                return wait;
            }
            let spent = batch.blocks * bytes;
            let allowance = match state.pace.allowance(now) {
                Ok(allowance) if spent == 0 || spent < allowance => allowance,
                Ok(_) => return Action::Sleep(now),
                Err(until) => return Action::Sleep(until),
            };
            // A client that waits for a slot waits for no limit.
            if state.limit == Limit::Waits && !state.is_slot_wanted {
                return Action::Turn(None);
            }
            match state.move_hand() {
                Met::Run(run) => {
                    let most = self.job_blocks_max(batch).min((allowance - spent) / bytes);
                    let before = batch.blocks;
                    state.take_job(&run, most.min(state.limit.most()), batch);
                    state.limit.take(batch.blocks - before);
                }
                Met::Uncommitted => return Action::Commit,
                Met::Nothing => return Action::Wait,
            }
        }
        Action::Wait
    }

    /// The action to take while the hand must not move.
    fn hand_waits(&self, state: &State, now: Time) -> Option<Action> {
        let mut until = self.delay(state, now, false);
        if !state.draining {
            if !state.mending || u64::from(state.index.in_writeback) >= JOB_BLOCKS_MAX {
                return Some(Action::Wait);
            }
            let idle = state.mends_from(self.config.pause_writeback);
            until = until.max(Some(idle).filter(|&idle| idle > now));
        }
        until.map(Action::Sleep)
    }

    /// How many blocks the next job of a batch may have.
    pub(super) fn job_blocks_max(&self, batch: &Batch) -> u64 {
        let bytes = u64::from(self.config.block_size.bytes());
        (batch.most - batch.blocks).min(JOB_BYTES_MAX / bytes)
    }

    /// Begins the writeback of the closed run if no write to it is in flight any more, and maps
    /// again the writes that wait for that.
    fn reopen(&self, env: &Env) {
        let waiting = {
            let mut state = self.state.lock();
            let Some(run) = state.closed else { return };
            let left = state.index.runs_of(run.slot, run.len).find(|left| left.block == run.block);
            let left = left.map(|left| Run { len: left.len.min(run.len), ..left });
            if let Some(left) = left {
                if state.index.is_written(left.slot, left.len) {
                    // One write ended and woke this task; the last one must wake it too.
                    state.passed_over = true;
                    return;
                }
                if !state.broken
                    && !state.stopping
                    && let Some(part) = state.eligible_part(&left)
                {
                    state.index.begin_writeback(part.slot, part.len);
                    let slots = vec![(part.slot, part.len)];
                    state.jobs.push_front(Job { block: part.block, slots });
                }
            }
            state.closed = None;
            state.take_slot_waiters()
        };
        self.remap_all(env, waiting);
    }

    /// Until when writeback must wait: because the origin failed, or because writes go around the
    /// cache.
    pub(super) fn delay(&self, state: &State, now: Time, urgent: bool) -> Option<Time> {
        let pause = if urgent { Duration::ZERO } else { self.config.pause_writeback };
        let paused = if pause.is_zero() { Time(0) } else { state.last_around + pause };
        let until = state.origin.retry_at.max(paused);
        (until > now).then_some(until)
    }

    fn start_lanes(&self, env: &Env) {
        loop {
            {
                let mut state = self.state.lock();
                if state.lanes >= state.lanes_max(env.now()) {
                    return;
                }
                state.lanes += 1;
            }
            self.spawn(env, async |cache, env| {
                while let Some(job) = cache.next_job(env).await {
                    cache.write_back(env, job).await;
                }
                cache.kick_finisher(env);
                // The background task may start another lane.
                cache.changed.notify(usize::MAX);
            });
        }
    }

    /// The next job for a lane; none if the lane is to end.
    async fn next_job(&self, env: &Env) -> Option<Job> {
        loop {
            if let Some(taken) = self.take_job(env.now()) {
                return taken;
            }
            yield_once().await;
        }
    }

    /// `None` if this turn of the loop has copied enough, `Some(None)` if the lane ends.
    fn take_job(&self, now: Time) -> Option<Option<Job>> {
        let mut state = self.state.lock();
        if state.stopping || state.broken {
            state.give_up_jobs();
        }
        if state.jobs.is_empty() || state.lanes > state.copies_max(now) {
            state.lanes -= 1;
            return Some(None);
        }
        if state.turn.at != now {
            state.turn = Turn { at: now, bytes: 0 };
        }
        if state.turn.bytes >= LOOP_BYTES {
            return None;
        }
        let job = state.jobs.pop_front()?;
        let bytes = u64::from(self.config.block_size.bytes());
        state.turn.bytes += u64::from(job.blocks()) * bytes;
        if state.jobs.is_empty() || state.lanes < state.lanes_max(now) {
            // The background task collects the next batch, or starts another lane.
            self.changed.notify(usize::MAX);
        }
        Some(Some(job))
    }

    /// Step 1 for one job; step 2 and on in the finisher.
    async fn write_back(&self, env: &Env, job: Job) {
        let copy = self.copy_job(&job);
        let failures = self.origin.failures();
        let copied = self.copier.copy_if(env, &copy, || self.marker.look_again(env)).await;
        self.break_down_if_lost(env);
        self.look_at_origin(env);
        match copied {
            Ok(times) => {
                let mut state = self.state.lock();
                // This check and the addition of the job happen under one lock: a failure that is
                // handled later takes the job out again. FUA copies are durable by themselves.
                let fua = self.config.writeback_with_fua;
                if !fua && state.origin_flushes.known() != failures {
                    drop(state);
                    self.origin_failed(env, &job.slots, IoError::IO);
                    return self.kick_finisher(env);
                }
                state.pace.cache_answered(times.read);
                state.pace.origin_answered(times.write);
                if !fua {
                    state.origin_flushes.add_own();
                }
                state.blocks_written_back += u64::from(job.blocks());
                state.written.add(job);
            }
            Err(CopyError::Write(error)) => self.origin_failed(env, &job.slots, error),
            Err(CopyError::Read(error)) => {
                self.state.lock().give_up(&job.slots);
                self.break_down(env, "reading for writeback failed", error);
            }
        }
        self.kick_finisher(env);
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
        let flags = if self.config.writeback_with_fua { Flags::FUA } else { Flags::empty() };
        let start = self.origin_range(job.block, 1).start;
        CopyJob { from, to: self.origin.clone(), start, flags }
    }

    /// Copies failed, or may not be on the origin any more: their blocks stay dirty.
    pub(super) fn origin_failed(&self, env: &Env, slots: &[Slots], error: IoError) {
        let waiting = {
            let mut state = self.state.lock();
            state.give_up(slots);
            state.give_up_jobs();
            let first = slots.first().and_then(|&(slot, _)| state.index.at(slot));
            let suspect = first.map(|run| run.block);
            state.origin.fail(env.now(), suspect);
            // Their blocks can be overwritten in place again.
            state.take_slot_waiters()
        };
        let count: u32 = slots.iter().map(|(_, len)| len).sum();
        let (volume, origin) = (&self.config.volume, &self.config.origin.argument);
        env.warn(&format!("{volume}: {origin}: writeback failed"), || {
            format!("{volume}: {origin}: writeback of {count} blocks failed: {error}")
        });
        self.remap_all(env, waiting);
        self.changed.notify(usize::MAX);
    }

    /// True if the written slots are to be freed now.
    fn is_free_due(&self, state: &State, now: Time) -> bool {
        let enough = match self.blocks_unflushed_max(state, now) {
            0 => state.written.blocks >= state.free_from,
            most => state.written.blocks >= most || state.written.jobs >= state.pace.batch(),
        };
        let wanted = enough || state.has_copied_all() || !state.slot_waiters.is_empty();
        state.written.blocks > 0 && wanted
    }

    /// Starts the task that frees written slots if it is due and none runs.
    fn kick_finisher(&self, env: &Env) {
        {
            let mut state = self.state.lock();
            let superseded = || state.has_copied_all() && !state.index.superseded().is_empty();
            if state.finishing || !(self.is_free_due(&state, env.now()) || superseded()) {
                return;
            }
            state.finishing = true;
        }
        self.spawn(env, async |cache, env| cache.finish_loop(env).await);
    }

    async fn finish_loop(&self, env: &Env) {
        loop {
            let (written, copies, known, began) = {
                let mut state = self.state.lock();
                let due = self.is_free_due(&state, env.now());
                let idle = !due && state.index.superseded().is_empty();
                if idle || state.broken {
                    if state.broken {
                        let written = state.written.take();
                        state.give_up(&written);
                    }
                    state.finishing = false;
                    break;
                }
                let copies = if due { state.written.jobs } else { 0 };
                let written = if due { state.written.take() } else { Vec::new() };
                (written, copies, state.origin_flushes.known(), env.now())
            };
            // Superseded versions alone need no flush of the origin, nor do FUA copies.
            let needless = written.is_empty() || self.config.writeback_with_fua;
            let on_origin = if needless || canary::planted(Bug::FreeBeforeOriginFlush) {
                Ok(true)
            } else {
                let flush = self.flush_origin_once(env, known);
                mutants::step("writecache: flush of the origin after writeback", true, flush).await
            };
            match on_origin {
                Ok(true) => {
                    let took = env.now().since(began);
                    self.state.lock().pace.batch_flushed(copies, took);
                    self.free_written(env, written).await;
                }
                Ok(false) => self.origin_failed(env, &written, IoError::IO),
                Err(error) => self.origin_failed(env, &written, error),
            }
        }
        self.changed.notify(usize::MAX);
    }

    /// Steps 3 and 4, together with the superseded versions that can be freed.
    async fn free_written(&self, env: &Env, written: Vec<Slots>) {
        let mut metadata = self.metadata.lock().await;
        let mut slots = self.state.lock().index.superseded();
        slots.extend(&written);
        if !written.is_empty() {
            let State { index, origin, .. } = &mut *self.state.lock();
            let runs = written.iter().flat_map(|&(slot, len)| index.runs_of(slot, len));
            origin.succeed(runs.flat_map(|run| run.block..run.block + u64::from(run.len)));
        }
        if !slots.is_empty() && self.free_entries(env, &mut metadata, slots).await.is_err() {
            self.state.lock().give_up(&written);
        }
    }

    /// Writes back every block inserted so far and waits until its slot is free. `message`: a
    /// suspend ends the wait.
    ///
    /// # Errors
    /// The origin failed during the drain, the cache device is broken, or a suspend began.
    pub(super) async fn drain(&self, env: &Env, message: bool) -> Result<(), Undrained> {
        let target = self.state.lock().index.seal();
        self.commit(env).await.map_err(Undrained::Failed)?;
        let failures = {
            let mut state = self.state.lock();
            state.drain_to = state.drain_to.max(target);
            state.origin.retry_at = Time(0);
            self.begin_sweep(&mut state);
            state.origin.failures
        };
        self.changed.notify(usize::MAX);
        loop {
            let changed = self.changed.listen();
            {
                let mut state = self.state.lock();
                if state.broken || state.origin.failures != failures {
                    return Err(Undrained::Failed(IoError::IO));
                }
                if message && (state.suspending || state.suspended) {
                    return Err(Undrained::Suspending);
                }
                if state.index.oldest_number().is_none_or(|number| number >= target) {
                    return Ok(());
                }
            }
            changed.await;
        }
    }
}
