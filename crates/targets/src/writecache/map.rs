//! Verdicts: where each request goes, and what its completion changes in the state.
//!
//! Deciding helpers return a plan and `map_request` acts on it. A plan covers the longest head of
//! the request that can go as one request: to a run of consecutive slots, or to blocks that are not
//! cached.

use std::ops::Range;
use std::time::Duration;

use cairn_block::{
    EndIo, Env, Flags, IoError, IoResult, Op, Request, Sector, SectorCount, Time, Verdict,
    invariants, mutants,
};

use super::index::{COVERED, IN_WRITEBACK, LEAVING, Life, Run};
use super::limit::Limit;
use super::pace::Origin;
use super::{Count, State, WriteCache};
use crate::group_commit::Waiter;

/// Write-zeroes up to this many bytes go through the write path; longer ones zero the origin.
const ZEROES_AS_DATA_BYTES: u64 = 64 << 10;

/// Where the head of a request goes.
enum Plan {
    /// Read or overwrite `count` consecutive slots.
    Slots {
        slot: u32,
        count: u64,
    },
    /// Fill `count` fresh slots.
    Fill {
        slot: u32,
        count: u64,
    },
    /// To the origin.
    Around {
        count: u64,
    },
    /// Every slot is taken and the block cannot go around the cache.
    WaitForSlot,
    /// The crash log is full.
    WaitForCommit,
    /// The block is about to be written back, once the writes to its slot have ended (I10).
    WaitForWriteback,
    /// A discard or write-zeroes of these blocks is under way.
    WaitForRemoval(usize),
    Fail,
}

/// The class of a watched request. It is kept in the request's word, with the time of mapping and a
/// number: the flight, the first slot of a fill, or the known failures of the origin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Hit = 1,
    Fill = 2,
    Overwrite = 3,
    Around = 4,
    /// An overwrite of committed slots, sent with FUA.
    OverwriteThrough = 5,
}

/// Bits of a word that hold the class, above those of the microsecond; it wraps after minutes.
const CLASS_BITS: u32 = 3;
const MICROS_BITS: u32 = 32 - CLASS_BITS;

fn micros(at: Time) -> u32 {
    (at.0 / 1000) as u32 & ((1 << MICROS_BITS) - 1)
}

fn word(class: Class, at: Time, name: u32) -> u64 {
    u64::from((class as u32) << MICROS_BITS | micros(at)) << 32 | u64::from(name)
}

fn class_of(word: u64) -> (Class, u32) {
    let class = match word >> (32 + MICROS_BITS) {
        1 => Class::Hit,
        2 => Class::Fill,
        3 => Class::Overwrite,
        5 => Class::OverwriteThrough,
        _ => Class::Around,
    };
    (class, word as u32)
}

/// How long ago the request of a word was mapped.
fn took(word: u64, now: Time) -> Duration {
    let then = (word >> 32) as u32;
    let micros = micros(now).wrapping_sub(then) & ((1 << MICROS_BITS) - 1);
    Duration::from_micros(u64::from(micros))
}

/// True if a write may go into the slots in place (I10).
fn takes_overwrite(marks: u8) -> bool {
    marks & (IN_WRITEBACK | LEAVING) == 0
}

impl State {
    /// True if writes of uncached blocks go to the origin although slots may be free.
    fn steps_aside(&self, now: Time) -> bool {
        self.draining && self.pace.origin(now) == Origin::Quick
    }

    fn plan_read(&self, block: u64, want: u64) -> Plan {
        if want == 1 {
            let newest = self.index.newest(block);
            return newest.map_or(Plan::Around { count: 1 }, |slot| Plan::Slots { slot, count: 1 });
        }
        match self.index.first_cached(block, want) {
            Some((first, slot)) if first == block => {
                let count = self.index.hits(block, slot, want, |_| true);
                Plan::Slots { slot, count }
            }
            Some((first, _)) => Plan::Around { count: first - block },
            None => Plan::Around { count: want },
        }
    }

    /// The part of a planned read that the cache device cannot have lost. A slot that was not
    /// committed may hold its former content, which belongs to another block.
    fn only_committed(&self, plan: Plan) -> Plan {
        let Plan::Slots { slot, count } = plan else { return plan };
        let runs = self.index.runs_of(slot, count as u32);
        let is_committed = |run: &Run| self.index.life(run) == Life::Committed;
        match runs.take_while(is_committed).map(|run| u64::from(run.len)).sum() {
            0 => Plan::Fail,
            count => Plan::Slots { slot, count },
        }
    }

    /// How many blocks from `block`, up to `want`, need a fresh slot; `caches` says whether
    /// those that are not cached do.
    fn needing_slots(&self, block: u64, want: u64, caches: bool) -> u64 {
        let mut needing = 0;
        while needing < want {
            let cached = self.index.first_cached(block + needing, want - needing);
            let missing = cached.map_or(want - needing, |(first, _)| first - block - needing);
            if missing > 0 && !caches {
                break;
            }
            needing += missing;
            let Some((first, slot)) = cached else { break };
            let held = |marks| !takes_overwrite(marks);
            let covered = self.index.hits(first, slot, want - needing, held);
            if covered == 0 {
                break;
            }
            needing += covered;
        }
        needing
    }

    /// Blocks up to the next removal under way, or the removal that `block` must wait for.
    pub(super) fn clear_of_removals(&self, block: u64, want: u64) -> Result<u64, usize> {
        let mut clear = want;
        for (index, removal) in self.removals.iter().enumerate() {
            if removal.blocks.contains(&block) {
                return Err(index);
            }
            if removal.blocks.start > block {
                clear = clear.min(removal.blocks.start - block);
            }
        }
        Ok(clear)
    }

    /// How many blocks come before the closed run; zero if `block` is in it.
    fn clear_of_closed(&self, block: u64, want: u64) -> u64 {
        let Some(run) = &self.closed else { return want };
        let blocks = run.block..run.block + u64::from(run.len);
        match blocks.start.checked_sub(block) {
            Some(clear) => want.min(clear),
            None if block < blocks.end => 0,
            None => want,
        }
    }

    /// `caches` says whether a block that is not cached may enter.
    fn plan_write(&mut self, block: u64, want: u64, caches: bool) -> Plan {
        if self.broken {
            return Plan::Fail;
        }
        let want = match self.clear_of_removals(block, want) {
            Ok(clear) => clear,
            Err(removal) => return Plan::WaitForRemoval(removal),
        };
        let want = self.clear_of_closed(block, want);
        if want == 0 {
            return Plan::WaitForWriteback;
        }
        // A single block is looked up once.
        let newest = if want == 1 { self.index.newest_marked(block) } else { None };
        let cached = match newest {
            None if want > 1 => self.index.first_cached(block, want),
            _ => newest.map(|(slot, _)| (block, slot)),
        };
        let missing = cached.map_or(want, |(first, _)| first - block);
        if let Some((first, slot)) = cached
            && first == block
        {
            let count = match newest {
                Some((_, marks)) => u64::from(takes_overwrite(marks)),
                None => self.index.hits(block, slot, want, takes_overwrite),
            };
            if count > 0 {
                return Plan::Slots { slot, count };
            }
        } else if !caches {
            return Plan::Around { count: missing };
        }
        let needed = if missing == want { want } else { self.needing_slots(block, want, caches) };
        if !self.acknowledged.reserve() {
            return Plan::WaitForCommit;
        }
        match self.index.take_run(u32::try_from(needed).unwrap_or(u32::MAX)) {
            Some((slot, count)) => Plan::Fill { slot, count: u64::from(count) },
            None => {
                self.acknowledged.cancel();
                if missing > 0 { Plan::Around { count: missing } } else { Plan::WaitForSlot }
            }
        }
    }
}

impl WriteCache {
    pub(super) fn map_request<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        // What the origin has is another host's, and what the cache has belongs to no origin.
        if self.marker.is_lost() {
            return Verdict::Failed(IoError::FENCED);
        }
        match request.op {
            Op::Read => self.map_read(env, request),
            Op::Write => self.map_write(env, request),
            Op::Flush => self.map_flush(env, request),
            Op::Discard => self.map_removal(env, request),
            Op::WriteZeroes => {
                let short = request.range.to_bytes() <= ZEROES_AS_DATA_BYTES;
                if short && !request.flags.contains(Flags::FAST_ZERO) {
                    self.map_write(env, request)
                } else {
                    self.map_removal(env, request)
                }
            }
        }
    }

    fn map_read<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let (block, want) = self.blocks_of(request.range);
        let mut state = self.state.lock();
        invariants::sample(|| state.check_state());
        let mut plan = state.plan_read(block, want);
        if state.broken && self.cache.failures() != state.cache_known {
            plan = state.only_committed(plan);
        }
        let flight = match plan {
            Plan::Slots { slot, count } => state.index.begin_io(slot, count as u32, false),
            _ => {
                state.pace.missed(env.now());
                0
            }
        };
        drop(state);
        match plan {
            Plan::Slots { slot, count } => {
                self.count(env, Count::Reads, count);
                self.count(env, Count::ReadHits, count);
                request.watch(word(Class::Hit, env.now(), flight));
                self.to_slots(request, slot, count)
            }
            Plan::Around { count } => {
                self.count(env, Count::Reads, count);
                self.to_origin(request, count)
            }
            Plan::Fail => Verdict::Failed(IoError::IO),
            _ => unreachable!("a read hits, misses or fails"),
        }
    }

    fn map_write<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let (block, want) = self.blocks_of(request.range);
        let mut state = self.state.lock();
        invariants::sample(|| state.check_state());
        let meta = request.flags.contains(Flags::META);
        let now = env.now();
        let caches = !state.cleaner && (meta || !self.config.metadata_only);
        let caches = caches && !state.steps_aside(now);
        let plan = state.plan_write(block, want, caches);
        match plan {
            Plan::Slots { slot, count } => {
                let committed = committed_in(&state, slot, count);
                let flight = state.index.begin_io(slot, count as u32, true);
                self.note_write(&mut state, request, count, now);
                drop(state);
                self.count(env, Count::Writes, count);
                self.count(env, Count::WriteHitsCommitted, committed);
                self.count(env, Count::WriteHitsUncommitted, count - committed);
                let class = if committed == count && request.is_fua() {
                    Class::OverwriteThrough
                } else {
                    // Only a commit makes these durable; its flush covers the data.
                    request.flags.remove(Flags::FUA);
                    Class::Overwrite
                };
                request.watch(word(class, now, flight));
                self.write_slots(env, request, slot, count)
            }
            Plan::Fill { slot, count } => {
                self.after_allocation(&mut state);
                self.note_write(&mut state, request, count, now);
                drop(state);
                self.count(env, Count::Writes, count);
                self.count(env, Count::WritesAllocated, count);
                request.flags.remove(Flags::FUA);
                request.watch(word(Class::Fill, now, slot));
                self.write_slots(env, request, slot, count)
            }
            Plan::Around { count } => {
                let bytes = self.note_write(&mut state, request, count, now);
                state.pace.went_around(now, bytes);
                let failures = state.origin_flushes.known() as u32;
                drop(state);
                self.count(env, Count::Writes, count);
                self.count(env, Count::WritesAround, count);
                request.watch(word(Class::Around, now, failures));
                self.to_origin(request, count)
            }
            Plan::WaitForSlot | Plan::WaitForCommit | Plan::WaitForWriteback => {
                self.wait(env, state, request, &plan);
                Verdict::Queued
            }
            Plan::WaitForRemoval(index) => {
                state.removals[index].waiting.push(request.id());
                Verdict::Queued
            }
            Plan::Fail => Verdict::Failed(IoError::IO),
        }
    }

    /// A write waits until slots are free, or a commit or the last writes to its slot have ended.
    fn wait(
        &self,
        env: &Env,
        mut state: cairn_block::sync::MutexGuard<'_, State>,
        request: &Request,
        plan: &Plan,
    ) {
        let (handing_back, is_limited) = (state.handing_back, state.limit != Limit::None);
        if !handing_back {
            state.slot_waiters.push(request.id());
            state.is_slot_wanted |= matches!(plan, Plan::WaitForSlot);
        }
        drop(state);
        match plan {
            Plan::WaitForCommit => self.kick_commit(env),
            Plan::WaitForSlot => {
                self.count(env, Count::WritesBlocked, 1);
                if is_limited {
                    self.changed.notify(usize::MAX);
                }
            }
            _ => {}
        }
        if handing_back {
            env.hand_back(request.id());
        }
    }

    /// Counts a write for the pace; returns its bytes.
    fn note_write(&self, state: &mut State, request: &Request, count: u64, now: Time) -> u64 {
        let bytes = SectorCount(count * self.block_sectors).to_bytes();
        state.pace.wrote(bytes);
        if request.is_fua() {
            state.pace.flush_asked(now);
        }
        bytes
    }

    /// Starts writeback when the allocation went past the high watermark.
    fn after_allocation(&self, state: &mut State) {
        if !state.draining && self.is_past_high_watermark(state) {
            state.draining = true;
            self.changed.notify(usize::MAX);
        }
    }

    fn write_slots<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        slot: u32,
        count: u64,
    ) -> Verdict<'a> {
        if request.op == Op::WriteZeroes {
            request.op = Op::Write;
            request.flags.remove(Flags::NO_UNMAP);
            request.segs = env.zeros(SectorCount(count * self.block_sectors));
        }
        self.to_slots(request, slot, count)
    }

    fn to_slots<'a>(&'a self, request: &mut Request, slot: u32, count: u64) -> Verdict<'a> {
        let range = self.slot_range(slot, count);
        request.accept(range.count);
        Verdict::Remapped { disk: self.cache.as_ref(), sector: range.start }
    }

    fn to_origin<'a>(&'a self, request: &mut Request, count: u64) -> Verdict<'a> {
        request.accept(SectorCount(count * self.block_sectors));
        Verdict::Remapped { disk: self.origin.as_ref(), sector: Sector(request.range.start.0) }
    }

    pub(super) fn end_request(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        let (class, name) = class_of(request.word());
        let (block, count) = self.blocks_of(request.range);
        let count = count as u32;
        match class {
            Class::Hit => {
                let mut state = self.state.lock();
                let (_, freed) = state.index.end_io(name);
                self.wake_after_release(env, state, freed);
                EndIo::Done(result)
            }
            Class::Around => {
                let mut state = self.state.lock();
                let lost = match result {
                    Ok(()) if request.is_fua() => false,
                    Ok(()) => state.origin_flushes.add_acknowledged(name),
                    Err(_) => {
                        state.origin_flushes.add_undefined();
                        false
                    }
                };
                if lost {
                    self.lose(&mut state);
                }
                state.last_around = env.now();
                state.pace.origin_answered(took(request.word(), env.now()));
                drop(state);
                if lost {
                    self.tell_loss_around(env);
                }
                EndIo::Done(result)
            }
            Class::Fill => self.end_fill(env, request, (block, name, count), result),
            Class::Overwrite | Class::OverwriteThrough => {
                let through = class == Class::OverwriteThrough;
                self.end_overwrite(env, request, name, through, result)
            }
        }
    }

    /// I7: the data is in the slots; now the blocks enter the index. Not those of a broken cache:
    /// no commit would follow (I16), so the write fails.
    fn end_fill(
        &self,
        env: &Env,
        request: &Request,
        (block, slot, count): (u64, u32, u32),
        result: IoResult,
    ) -> EndIo {
        let mut state = self.state.lock();
        if result.is_err() || state.broken {
            // The slots were never in the index.
            state.index.release(slot, count);
            state.acknowledged.cancel();
            self.wake_after_release(env, state, true);
            return EndIo::Done(result.and(Err(IoError::IO)));
        }
        let now = env.now();
        let freed = state.index.insert(slot, count, block, now);
        let is_log_full = state.acknowledged.filled(slot, count, block);
        state.last_write = now;
        state.pace.cache_answered(took(request.word(), now));
        if state.autocommit_at.is_none() {
            state.autocommit_at = Some(now + self.config.autocommit_time);
            self.changed.notify(usize::MAX);
        } else if state.index.is_low() {
            self.changed.notify(usize::MAX);
        }
        let waits = !mutants::skips("writecache: wait of a FUA write for its commit");
        let held = waits && request.is_fua();
        if held {
            state.commits.join(Waiter::Request(request.id()));
        }
        let commit =
            held || is_log_full || state.index.uncommitted >= self.config.autocommit_blocks;
        self.wake_after_release(env, state, freed);
        if commit {
            self.kick_commit(env);
        }
        if held { EndIo::Held } else { EndIo::Done(Ok(())) }
    }

    fn end_overwrite(
        &self,
        env: &Env,
        request: &Request,
        flight: u32,
        through: bool,
        result: IoResult,
    ) -> EndIo {
        let mut state = self.state.lock();
        let (slots, freed) = state.index.end_io(flight);
        state.pace.cache_answered(took(request.word(), env.now()));
        // A write sent without FUA is durable only after a flush that begins now, even if its entry
        // was committed in between. A fill that completed in between may cover these slots without
        // being committed.
        let durable = through && are_newest(&state, &slots);
        if result.is_err() {
            self.look_at_cache(&mut state);
        }
        state.overwritten = true;
        state.last_write = env.now();
        let held = request.is_fua() && !durable && result.is_ok();
        if held {
            state.commits.join(Waiter::Request(request.id()));
        }
        if std::mem::take(&mut state.passed_over) || !state.removals.is_empty() {
            self.changed.notify(usize::MAX);
        }
        self.wake_after_release(env, state, freed);
        if held {
            self.kick_commit(env);
            return EndIo::Held;
        }
        EndIo::Done(result)
    }

    /// Maps the requests that wait for a slot again, if one became free.
    fn wake_after_release(
        &self,
        env: &Env,
        mut state: cairn_block::sync::MutexGuard<'_, State>,
        freed: bool,
    ) {
        let waiting = if freed { state.take_slot_waiters() } else { Vec::new() };
        drop(state);
        self.remap_all(env, waiting);
    }
}

/// How many of the slots are committed.
fn committed_in(state: &State, slot: u32, count: u64) -> u64 {
    let runs = state.index.runs_of(slot, count as u32);
    let committed = |run: &Run| state.index.life(run) == Life::Committed;
    runs.filter(committed).map(|run| u64::from(run.len)).sum()
}

/// True if the slots hold the newest versions of their blocks.
fn are_newest(state: &State, slots: &Range<u32>) -> bool {
    let len = slots.end - slots.start;
    let newest = |run: &Run| !run.has(COVERED);
    state.index.runs_of(slots.start, len).filter(newest).map(|run| run.len).sum::<u32>() == len
}
