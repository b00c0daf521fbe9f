//! Discard and long write-zeroes: taking blocks out of the cache.
//!
//! While a removal is under way, writes, discards and write-zeroes of its blocks wait for it,
//! and none of its blocks goes into writeback.
//!
//! # Discard
//! Under the ledger, so that no commit runs: entries of the range are freed durably, then the
//! discard goes to the origin. A block with a version being written back, or with a write in
//! flight, keeps its versions (as in the kernel). *Crash*: any subset of the entries is free;
//! what shows through is older data, which a discard allows.
//!
//! # Write-zeroes of the origin
//! 1. Wait until no version in the range is being written back or written; from then on they
//!    are *leaving*: no overwrite in place, no writeback.
//! 2. Zero the origin, flush it. *Crash*: entries count, reads give the old data; the request
//!    had not completed.
//! 3. Free the entries durably (I3), then complete. *Crash*: each block is old or zero.

use std::ops::Range;

use cairn_block::{Env, ErrorKind, Flags, Io, IoError, IoResult, Op, Request, RequestId};
use cairn_block::{SectorRange, Verdict};

use super::index::{IN_WRITEBACK, LEAVING, Life, Run};
use super::{Count, State, WriteCache};

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

    /// True if a version of the blocks is being written, or written back.
    fn is_moving(&self, blocks: &Range<u64>) -> bool {
        self.versions_of(blocks)
            .iter()
            .any(|run| run.has(IN_WRITEBACK) || self.index.is_written(run.slot, run.len))
    }

    /// The parts of a run of cached blocks that no version is moving of.
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

    /// The versions of blocks whose entries are to be freed; those of one block leave the index
    /// together, so that nobody sees an older one (I9). Without any entry on disk they are
    /// dropped at once. The caller holds the ledger and no commit has failed: nothing is frozen.
    /// An older version may go before the newer one is committed (against I8) because what
    /// replaces both is durable on the origin, or undefined.
    fn take_leaving(&mut self, blocks: &Range<u64>) -> Vec<(u32, u32)> {
        let mut freed = Vec::new();
        let leaving = self.versions_of(blocks).into_iter().filter(|run| run.has(LEAVING));
        for run in leaving {
            match self.index.life(&run) {
                Life::Frozen => unreachable!("nothing is frozen without the ledger"),
                Life::Committed => freed.push((run.slot, run.len)),
                Life::Uncommitted if !self.index.has_older(run.block, run.len) => {
                    self.index.drop_uncommitted(&run);
                }
                Life::Uncommitted => {
                    for (block, slot) in (run.block..).zip(run.slot..run.end()) {
                        if self.index.has_older(block, 1) {
                            freed.push((slot, 1));
                        } else {
                            self.index.drop_uncommitted(&Run { slot, block, len: 1, ..run });
                        }
                    }
                }
            }
        }
        freed
    }
}

impl WriteCache {
    /// A discard, or a write-zeroes that is not worth going through the cache.
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
        self.spawn(env, move |cache, env| async move { cache.remove(&env, asked).await });
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
        let mut ledger = self.ledger.lock().await;
        let entries = {
            let mut state = self.state.lock();
            if state.broken {
                return Err(IoError::IO);
            }
            let mut entries = Vec::new();
            for run in state.cached_in(&blocks) {
                for part in state.still_parts(run) {
                    state.set_leaving(&part, true);
                    entries.extend(state.take_leaving(&part));
                }
            }
            entries
        };
        if !entries.is_empty() {
            self.free_entries(env, &mut ledger, entries).await?;
        }
        drop(ledger);
        if !self.origin.limits().discard {
            return Ok(());
        }
        let result = env.io(&self.origin, Io::on(Op::Discard, asked.range)).await;
        self.state.lock().origin_writes += 1;
        result
            .or_else(|error| if error.kind == ErrorKind::Unsupported { Ok(()) } else { Err(error) })
    }

    async fn zero(&self, env: &Env, asked: Asked) -> IoResult {
        let blocks = self.range_of(asked);
        self.make_leave(&blocks).await;
        let result = self.zero_origin(env, asked).await;
        if result.is_err() {
            let mut state = self.state.lock();
            state.set_leaving(&blocks, false);
            return result;
        }
        let mut ledger = self.ledger.lock().await;
        let entries = {
            let mut state = self.state.lock();
            if state.broken {
                return Err(IoError::IO);
            }
            state.take_leaving(&blocks)
        };
        if entries.is_empty() {
            return Ok(());
        }
        self.free_entries(env, &mut ledger, entries).await
    }

    /// Step 1.
    async fn make_leave(&self, blocks: &Range<u64>) {
        loop {
            let changed = self.changed.listen();
            {
                let mut state = self.state.lock();
                if !state.is_moving(blocks) {
                    return state.set_leaving(blocks, true);
                }
            }
            changed.await;
        }
    }

    /// Step 2.
    async fn zero_origin(&self, env: &Env, asked: Asked) -> IoResult {
        let flags = asked.flags & (Flags::NO_UNMAP | Flags::FAST_ZERO);
        let io = Io::on(Op::WriteZeroes, asked.range).with(flags);
        env.io(&self.origin, io).await?;
        self.state.lock().origin_writes += 1;
        self.flush_origin(env).await
    }
}
