//! Discard and long write-zeroes: taking blocks out of the cache.
//!
//! While a removal is under way, writes, discards and write-zeroes of its blocks wait for it, and
//! none of its blocks goes into writeback. A range is processed in pieces, with a yield between
//! them. The metadata lock is held throughout, and a piece that has no I/O in flight stays so.
//!
//! # Discard
//! A discard runs under the metadata lock, so that no commit runs. Entries of the range are freed
//! durably, then the discard goes to the origin. A block with a version in writeback, or with a
//! write in flight, keeps its versions (as in the kernel). *Crash*: any subset of the entries is
//! free. Reads of those blocks return older data, which a discard allows.
//!
//! # Write-zeroes of the origin
//! 1. Wait, piece by piece, until no version in the range is in writeback or being written. From
//!    then on the versions are *leaving*: no overwrite in place, no writeback.
//! 2. Zero the origin and flush it. If the origin failed since the step began, whichever user met
//!    the failure, the request fails. *Crash*: the entries count, so reads return the old data. The
//!    request had not completed.
//! 3. Free the entries durably (I3). Where a block has several committed versions, the oldest is
//!    freed first, each durably before the next. Then complete the request. *Crash*: each block
//!    holds its old data or zeros. No older version is visible.

use std::ops::Range;

use cairn_block::{Env, ErrorKind, Flags, Io, IoError, IoResult, Op, Request, RequestId, until};
use cairn_block::{SectorRange, Verdict, mutants, yield_once};

use super::index::{FREED, IN_WRITEBACK, LEAVING, Life, Run};
use super::{Count, State, WriteCache};

/// How many blocks are looked at under one lock.
const PIECE_BLOCKS: u64 = 4096;

fn pieces(blocks: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = blocks.end;
    let starts = blocks.clone().step_by(PIECE_BLOCKS as usize);
    starts.map(move |start| start..(start + PIECE_BLOCKS).min(end))
}

/// A removal under way.
pub(super) struct Removal {
    id: u64,
    pub blocks: Range<u64>,
    /// Requests that wait for its end.
    pub waiting: Vec<RequestId>,
}

/// What was asked for.
#[derive(Clone, Copy)]
struct Asked {
    removal: u64,
    request: RequestId,
    op: Op,
    flags: Flags,
    range: SectorRange,
}

impl State {
    fn overlapping_removal(&self, blocks: &Range<u64>) -> Option<usize> {
        self.removals
            .iter()
            .position(|other| other.blocks.start < blocks.end && blocks.start < other.blocks.end)
    }

    /// The cached blocks of a range, as runs.
    fn cached_in(&self, blocks: &Range<u64>) -> Vec<Range<u64>> {
        let runs = self.index.cached_in(blocks);
        runs.into_iter().map(|run| run.block..run.block + u64::from(run.len)).collect()
    }

    /// Every version of cached blocks, as runs of slots.
    fn versions_of(&self, blocks: &Range<u64>) -> Vec<Run> {
        let mut runs = self.index.cached_in(blocks);
        runs.extend(self.index.older_in(blocks));
        runs
    }

    /// A run with a version that is being written, or written back.
    fn moving(&self, blocks: &Range<u64>) -> Option<Run> {
        let moves = |run: &Run| run.has(IN_WRITEBACK) || self.index.is_written(run.slot, run.len);
        self.versions_of(blocks).into_iter().find(moves)
    }

    fn is_moving(&self, blocks: &Range<u64>) -> bool {
        self.moving(blocks).is_some()
    }

    /// Takes the blocks of a piece that have no I/O in flight. Returns the slots whose entries are
    /// to be freed.
    fn take_still(&mut self, piece: &Range<u64>) -> Vec<(u32, u32)> {
        let still = if self.is_moving(piece) {
            let runs = self.cached_in(piece);
            runs.into_iter().flat_map(|run| self.still_parts(run)).collect()
        } else {
            vec![piece.clone()]
        };
        let mut entries = Vec::new();
        for part in still {
            self.set_leaving(&part, true);
            entries.extend(self.take_leaving(&part));
        }
        entries
    }

    /// The parts of a run of cached blocks of which no version is moving.
    fn still_parts(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        if !self.is_moving(&blocks) {
            return vec![blocks];
        }
        let single = blocks.map(|block| block..block + 1);
        single.filter(|block| !self.is_moving(block)).collect()
    }

    fn set_leaving(&mut self, blocks: &Range<u64>, leaving: bool) {
        let (set, clear) = if leaving { (LEAVING, 0) } else { (0, LEAVING) };
        for run in self.versions_of(blocks) {
            self.index.mark(run.slot, run.len, set, clear);
        }
    }

    /// The oldest version of each block of a range that has several, if it is leaving.
    fn oldest_leaving(&self, blocks: &Range<u64>) -> Vec<(u32, u32)> {
        let leaving = |slot: &u32| self.index.at(*slot).is_some_and(|run| run.has(LEAVING));
        let mut slots = self.index.oldest_in(blocks);
        slots.retain(leaving);
        slots.into_iter().map(|slot| (slot, 1)).collect()
    }

    /// The leaving versions whose entries are to be freed. Those of one block leave the index
    /// together, so that no read returns an older one (I9). Versions without any entry on disk are
    /// dropped at once. The caller holds the metadata lock and no commit has failed, so nothing is
    /// frozen. An older version may be freed before the newer one is committed (against I8),
    /// because what replaces both is durable on the origin, or undefined. The returned slots are
    /// marked FREED under this lock: a fill in flight may drop an uncommitted version and its slot
    /// may be taken by another block before the entries are free. Only the mark tells them apart.
    fn take_leaving(&mut self, blocks: &Range<u64>) -> Vec<(u32, u32)> {
        let mut freed = Vec::new();
        let leaving = self.versions_of(blocks).into_iter().filter(|run| run.has(LEAVING));
        for run in leaving {
            match self.index.life(&run) {
                Life::Frozen => unreachable!("nothing is frozen without the metadata lock"),
                Life::Committed => freed.push((run.slot, run.len)),
                Life::Uncommitted if !self.index.has_older(run.block, run.len) => {
                    self.drop_uncommitted(&run);
                }
                Life::Uncommitted => {
                    for (block, slot) in (run.block..).zip(run.slot..run.end()) {
                        if self.index.has_older(block, 1) {
                            freed.push((slot, 1));
                        } else {
                            self.drop_uncommitted(&Run { slot, block, len: 1, ..run });
                        }
                    }
                }
            }
        }
        freed.iter().for_each(|&(slot, len)| self.index.mark(slot, len, FREED, 0));
        freed
    }
}

impl WriteCache {
    /// A discard, or a write-zeroes that is too long for the cache.
    pub(super) fn map_removal<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let (block, count) = self.blocks_of(request.range);
        let blocks = block..block + count;
        let mut state = self.state.lock();
        if state.broken {
            return Verdict::Failed(IoError::IO);
        }
        if let Some(index) = state.overlapping_removal(&blocks) {
            state.removals[index].waiting.push(request.id());
            return Verdict::Queued;
        }
        let id = state.next_removal;
        state.next_removal += 1;
        state.removals.push(Removal { id, blocks, waiting: Vec::new() });
        drop(state);
        let (op, flags) = (request.op, request.flags);
        let asked = Asked { removal: id, request: request.id(), op, flags, range: request.range };
        if op == Op::Discard {
            self.count(env, Count::Discards, count);
        } else {
            self.count(env, Count::Writes, count);
            self.count(env, Count::WritesAround, count);
        }
        self.spawn(env, async move |cache, env| cache.remove(env, asked).await);
        Verdict::Queued
    }

    async fn remove(&self, env: &Env, asked: Asked) {
        let result = if asked.op == Op::Discard {
            self.discard(env, asked).await
        } else {
            self.zero(env, asked).await
        };
        let waiting = {
            let mut state = self.state.lock();
            let index = state.removals.iter().position(|other| other.id == asked.removal);
            let ended = state.removals.swap_remove(index.expect("a removal ends once"));
            let mut waiting = ended.waiting;
            waiting.extend(state.take_slot_waiters());
            waiting
        };
        env.complete(asked.request, result);
        self.remap_all(env, waiting);
        self.changed.notify(usize::MAX);
    }

    fn range_of(&self, asked: Asked) -> Range<u64> {
        let (block, count) = self.blocks_of(asked.range);
        block..block + count
    }

    async fn discard(&self, env: &Env, asked: Asked) -> IoResult {
        let blocks = self.range_of(asked);
        let mut metadata = self.metadata.lock().await;
        let entries = self.take_pieces(&blocks, State::take_still).await?;
        if !entries.is_empty() {
            self.free_entries(env, &mut metadata, entries).await?;
        }
        drop(metadata);
        if !self.origin.limits().discard {
            return Ok(());
        }
        let result = env.io(&self.origin, Io::on(Op::Discard, asked.range)).await;
        self.state.lock().origin_flushes.add_undefined();
        result
            .or_else(|error| if error.kind == ErrorKind::Unsupported { Ok(()) } else { Err(error) })
    }

    async fn zero(&self, env: &Env, asked: Asked) -> IoResult {
        let blocks = self.range_of(asked);
        self.make_leave(&blocks).await;
        let result = self.zero_origin(env, asked).await;
        if result.is_err() {
            for piece in pieces(&blocks) {
                self.state.lock().set_leaving(&piece, false);
            }
            return result;
        }
        let mut metadata = self.metadata.lock().await;
        loop {
            let oldest = self.state.lock().oldest_leaving(&blocks);
            if oldest.is_empty() {
                break;
            }
            self.free_entries(env, &mut metadata, oldest).await?;
        }
        let entries = self.take_pieces(&blocks, State::take_leaving).await?;
        if entries.is_empty() {
            return Ok(());
        }
        self.free_entries(env, &mut metadata, entries).await
    }

    /// The slots that `take` takes of each piece of a range. The caller holds the metadata lock.
    async fn take_pieces(
        &self,
        blocks: &Range<u64>,
        take: impl Fn(&mut State, &Range<u64>) -> Vec<(u32, u32)>,
    ) -> Result<Vec<(u32, u32)>, IoError> {
        let mut entries = Vec::new();
        for piece in pieces(blocks) {
            {
                let mut state = self.state.lock();
                if state.broken {
                    return Err(IoError::IO);
                }
                entries.extend(take(&mut state, &piece));
            }
            if piece.end < blocks.end {
                yield_once().await;
            }
        }
        Ok(entries)
    }

    /// Step 1.
    async fn make_leave(&self, blocks: &Range<u64>) {
        for piece in pieces(blocks) {
            while let Some(moving) = self.mark_leaving(&piece) {
                self.stand_still(&moving).await;
            }
            if piece.end < blocks.end {
                yield_once().await;
            }
        }
    }

    /// Marks a piece as leaving, unless some blocks of it move: these.
    fn mark_leaving(&self, piece: &Range<u64>) -> Option<Range<u64>> {
        let mut state = self.state.lock();
        let moving = state.moving(piece);
        if moving.is_none() {
            state.set_leaving(piece, true);
        }
        moving.map(|run| run.block..run.block + u64::from(run.len))
    }

    /// Waits until no version of the blocks moves.
    async fn stand_still(&self, blocks: &Range<u64>) {
        until(&self.changed, || !self.state.lock().is_moving(blocks)).await;
    }

    /// Step 2.
    async fn zero_origin(&self, env: &Env, asked: Asked) -> IoResult {
        let flags = asked.flags & (Flags::NO_UNMAP | Flags::FAST_ZERO);
        let io = Io::on(Op::WriteZeroes, asked.range).with(flags);
        let failures = self.origin.failures();
        env.io(&self.origin, io).await?;
        self.state.lock().origin_flushes.add_own();
        let flush = self.flush_origin_once(env, failures);
        let name = "writecache: flush of the origin before a removal";
        let durable = mutants::step(name, true, flush).await?;
        if durable { Ok(()) } else { Err(IoError::IO) }
    }
}
