//! Verdicts: where each request goes, and what its completion changes.
//!
//! Deciding helpers return a plan; `map_request` acts on it. A plan covers the longest head of
//! the request that goes one way as one request: a run of consecutive slots, or of blocks that
//! are not cached.

use cairn_block::{
    EndIo, Env, Flags, IoError, IoResult, Op, Request, Sector, SectorCount, Verdict,
};

use super::commit::Waiter;
use super::index::SlotState;
use super::{Count, State, WriteCache};

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
    /// A discard or write-zeroes of these blocks is under way.
    WaitForRemoval(usize),
    Fail,
}

/// What a watched request was; kept in its word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Hit = 1,
    Fill = 2,
    Overwrite = 3,
    Around = 4,
    /// An overwrite of committed slots, sent with FUA.
    OverwriteThrough = 5,
}

fn word(class: Class, slot: u32) -> u64 {
    (class as u64) << 32 | u64::from(slot)
}

fn class_of(word: u64) -> (Class, u32) {
    let class = match word >> 32 {
        1 => Class::Hit,
        2 => Class::Fill,
        3 => Class::Overwrite,
        5 => Class::OverwriteThrough,
        _ => Class::Around,
    };
    (class, word as u32)
}

impl State {
    /// How many blocks from `block`, up to `want`, are cached in consecutive slots from `slot`
    /// and satisfy `fits`.
    fn run_of(&self, block: u64, want: u64, slot: u32, fits: impl Fn(&State, u32) -> bool) -> u64 {
        let consecutive = |&ahead: &u64| {
            let at = u64::from(slot) + ahead;
            self.index.newest(block + ahead).is_some_and(|slot| u64::from(slot) == at)
                && fits(self, at as u32)
        };
        (0..want).take_while(consecutive).count() as u64
    }

    /// How many blocks from `block`, up to `want`, are not cached.
    fn run_of_misses(&self, block: u64, want: u64) -> u64 {
        (0..want).take_while(|ahead| self.index.newest(block + ahead).is_none()).count() as u64
    }

    fn takes_overwrite(&self, slot: u32) -> bool {
        self.index.slot(slot).takes_overwrite()
    }

    fn plan_read(&self, block: u64, want: u64) -> Plan {
        match self.index.newest(block) {
            Some(slot) => Plan::Slots { slot, count: self.run_of(block, want, slot, |_, _| true) },
            None => Plan::Around { count: self.run_of_misses(block, want) },
        }
    }

    /// Blocks up to the next removal under way, or the removal that `block` must wait for.
    fn clear_of_removals(&self, block: u64, want: u64) -> Result<u64, usize> {
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

    /// `caches` says whether a block that is not cached may enter.
    fn plan_write(&mut self, block: u64, want: u64, caches: bool) -> Plan {
        if self.broken {
            return Plan::Fail;
        }
        let want = match self.clear_of_removals(block, want) {
            Ok(clear) => clear,
            Err(removal) => return Plan::WaitForRemoval(removal),
        };
        let newest = self.index.newest(block);
        if let Some(slot) = newest
            && self.takes_overwrite(slot)
        {
            let count = self.run_of(block, want, slot, State::takes_overwrite);
            return Plan::Slots { slot, count };
        }
        if newest.is_none() && !caches {
            return Plan::Around { count: self.run_of_misses(block, want) };
        }
        let needs_slot = |ahead: &u64| match self.index.newest(block + ahead) {
            Some(slot) => !self.takes_overwrite(slot),
            None => caches,
        };
        let needed = (0..want).take_while(needs_slot).count() as u64;
        match self.index.take_run(u32::try_from(needed).unwrap_or(u32::MAX)) {
            Some((slot, count)) => Plan::Fill { slot, count: u64::from(count) },
            None if newest.is_none() => Plan::Around { count: self.run_of_misses(block, want) },
            None => Plan::WaitForSlot,
        }
    }
}

impl WriteCache {
    pub(super) fn map_request<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
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
        let plan = state.plan_read(block, want);
        if let Plan::Slots { slot, count } = plan {
            for slot in slot..slot + count as u32 {
                state.index.slot_mut(slot).reads += 1;
            }
        }
        drop(state);
        match plan {
            Plan::Slots { slot, count } => {
                self.count(env, Count::Reads, count);
                self.count(env, Count::ReadHits, count);
                request.watch(word(Class::Hit, slot));
                self.to_slots(request, slot, count)
            }
            Plan::Around { count } => {
                self.count(env, Count::Reads, count);
                self.to_origin(request, count)
            }
            _ => unreachable!("a read hits or misses"),
        }
    }

    fn map_write<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let (block, want) = self.blocks_of(request.range);
        let mut state = self.state.lock();
        let meta = request.flags.contains(Flags::META);
        let caches = !state.cleaner && (meta || !self.config.metadata_only);
        let plan = state.plan_write(block, want, caches);
        match plan {
            Plan::Slots { slot, count } => {
                let committed = self.begin_overwrite(&mut state, slot, count);
                drop(state);
                self.count(env, Count::Writes, count);
                self.count(env, Count::WriteHitsCommitted, committed);
                self.count(env, Count::WriteHitsUncommitted, count - committed);
                let class = if committed == count && request.is_fua() {
                    Class::OverwriteThrough
                } else {
                    // Only a commit makes these durable; the data rides on its flush.
                    request.flags.remove(Flags::FUA);
                    Class::Overwrite
                };
                self.write_slots(env, request, class, slot, count)
            }
            Plan::Fill { slot, count } => {
                self.after_allocation(&mut state);
                drop(state);
                self.count(env, Count::Writes, count);
                self.count(env, Count::WritesAllocated, count);
                request.flags.remove(Flags::FUA);
                self.write_slots(env, request, Class::Fill, slot, count)
            }
            Plan::Around { count } => {
                drop(state);
                self.count(env, Count::Writes, count);
                self.count(env, Count::WritesAround, count);
                request.watch(word(Class::Around, 0));
                self.to_origin(request, count)
            }
            Plan::WaitForSlot => {
                let handing_back = state.handing_back;
                if !handing_back {
                    state.slot_waiters.push(request.id());
                }
                drop(state);
                self.count(env, Count::WritesBlocked, 1);
                if handing_back {
                    env.hand_back(request.id());
                }
                Verdict::Queued
            }
            Plan::WaitForRemoval(index) => {
                state.removals[index].waiting.push(request.id());
                Verdict::Queued
            }
            Plan::Fail => Verdict::Failed(IoError::IO),
        }
    }

    /// Marks slots as being written; answers how many of them are committed.
    fn begin_overwrite(&self, state: &mut State, slot: u32, count: u64) -> u64 {
        let mut committed = 0;
        for slot in slot..slot + count as u32 {
            let slot = state.index.slot_mut(slot);
            assert!(slot.takes_overwrite(), "I10");
            slot.writes += 1;
            committed += u64::from(slot.state == SlotState::Committed);
        }
        committed
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
        class: Class,
        slot: u32,
        count: u64,
    ) -> Verdict<'a> {
        if request.op == Op::WriteZeroes {
            request.op = Op::Write;
            request.flags.remove(Flags::NO_UNMAP);
            request.segs = env.zeros(SectorCount(count * self.block_sectors));
        }
        request.watch(word(class, slot));
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
        let (class, slot) = class_of(request.word());
        let (block, count) = self.blocks_of(request.range);
        let slots = slot..slot + count as u32;
        match class {
            Class::Hit => {
                self.end_hit(env, slots);
                EndIo::Done(result)
            }
            Class::Around => {
                let mut state = self.state.lock();
                state.origin_writes += 1;
                state.last_around = env.now();
                EndIo::Done(result)
            }
            Class::Fill if result.is_err() => {
                self.abandon_fill(env, slots);
                EndIo::Done(result)
            }
            Class::Fill => self.end_fill(env, request, block, slots),
            Class::Overwrite | Class::OverwriteThrough => {
                let through = class == Class::OverwriteThrough;
                self.end_overwrite(env, request, slots, through, result)
            }
        }
    }

    fn end_hit(&self, env: &Env, slots: std::ops::Range<u32>) {
        let mut state = self.state.lock();
        let mut freed = false;
        for slot in slots {
            state.index.slot_mut(slot).reads -= 1;
            freed |= release_if_doomed(&mut state, slot);
        }
        self.wake_after_release(env, state, freed);
    }

    /// The data could not be written: the slots were never anybody's.
    fn abandon_fill(&self, env: &Env, slots: std::ops::Range<u32>) {
        let mut state = self.state.lock();
        for slot in slots {
            let entry = state.index.slot_mut(slot);
            entry.writes -= 1;
            entry.state = SlotState::Doomed;
            state.index.release(slot);
        }
        self.wake_after_release(env, state, true);
    }

    /// I7: the data is there, now the blocks enter the index.
    fn end_fill(
        &self,
        env: &Env,
        request: &Request,
        block: u64,
        slots: std::ops::Range<u32>,
    ) -> EndIo {
        let mut state = self.state.lock();
        let mut freed = false;
        let (seq, now) = (state.stamp_seq, env.now());
        for (block, slot) in (block..).zip(slots) {
            freed |= drop_unwritten(&mut state, block);
            state.index.slot_mut(slot).writes -= 1;
            state.index.insert(slot, block, seq, SlotState::Uncommitted, now);
            state.uncommitted.push(slot);
            state.uncommitted_count += 1;
        }
        if state.autocommit_at.is_none() {
            state.autocommit_at = Some(now + self.config.autocommit_time());
            self.changed.notify(usize::MAX);
        }
        let held = request.is_fua();
        if held {
            state.waiters.push(Waiter::Request(request.id()));
        }
        let commit = held || state.uncommitted_count >= self.config.autocommit_blocks();
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
        slots: std::ops::Range<u32>,
        through: bool,
        result: IoResult,
    ) -> EndIo {
        let mut state = self.state.lock();
        // Sent without FUA, the data is durable only after a flush that begins now, even if its
        // entry was committed meanwhile.
        let (mut freed, mut durable) = (false, through);
        for slot in slots {
            state.index.slot_mut(slot).writes -= 1;
            // A fill that completed meanwhile may cover this slot without being committed.
            durable &= state.index.is_newest(slot);
            freed |= release_if_doomed(&mut state, slot);
        }
        state.overwritten = true;
        let held = request.is_fua() && !durable && result.is_ok();
        if held {
            state.waiters.push(Waiter::Request(request.id()));
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

    /// Lets the requests that wait for a slot try again, if one became free.
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

/// A doomed slot becomes free with the end of its last I/O (I11).
fn release_if_doomed(state: &mut State, slot: u32) -> bool {
    state.index.slot(slot).state == SlotState::Doomed && state.index.release(slot)
}

/// Drops the newest version of a block if no commit has begun to write its entry: on disk its
/// slot is still free.
fn drop_unwritten(state: &mut State, block: u64) -> bool {
    let Some(slot) = state.index.newest(block) else { return false };
    if state.index.slot(slot).state != SlotState::Uncommitted {
        return false;
    }
    state.uncommitted_count -= 1;
    state.index.remove(slot);
    state.index.release(slot)
}
