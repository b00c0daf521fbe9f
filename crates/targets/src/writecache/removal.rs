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

use super::index::SlotState;
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

    /// The cached blocks of a range, in order.
    fn cached_in(&self, blocks: &Range<u64>) -> Vec<u64> {
        let mut cached: Vec<u64> = if blocks.end - blocks.start <= self.index.cached_blocks() {
            blocks.clone().filter(|&block| self.index.newest(block).is_some()).collect()
        } else {
            self.index.blocks().filter(|block| blocks.contains(block)).collect()
        };
        cached.sort_unstable();
        cached
    }

    fn versions_of(&self, block: u64) -> Vec<u32> {
        self.index.versions(block).collect()
    }

    /// True if a version of the block is being written, or written back.
    fn is_moving(&self, block: u64) -> bool {
        self.index.versions(block).any(|slot| {
            let entry = self.index.slot(slot);
            entry.in_writeback || entry.writes > 0
        })
    }

    fn set_leaving(&mut self, block: u64, leaving: bool) {
        for slot in self.versions_of(block) {
            self.index.slot_mut(slot).leaving = leaving;
        }
    }

    /// The versions of a block whose entries are to be freed; they leave the index together, so
    /// that nobody sees an older one (I9). Without any entry on disk they are dropped at once.
    /// The caller holds the ledger and no commit has failed: nothing is frozen. An older version
    /// may go before the newer one is committed (against I8) because what replaces both is
    /// durable on the origin, or undefined.
    fn take_leaving(&mut self, block: u64) -> Vec<u32> {
        let mut versions = self.versions_of(block);
        versions.retain(|&slot| self.index.slot(slot).leaving);
        let state = |slot: &u32| self.index.slot(*slot).state;
        assert!(versions.iter().all(|slot| state(slot) != SlotState::Frozen), "the ledger is held");
        if versions.iter().any(|slot| state(slot) == SlotState::Committed) {
            return versions;
        }
        for slot in versions {
            self.uncommitted_count -= 1;
            self.index.remove(slot);
            self.index.release(slot);
        }
        Vec::new()
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
            for block in state.cached_in(&blocks) {
                if !state.is_moving(block) {
                    state.set_leaving(block, true);
                    entries.extend(state.take_leaving(block));
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
            for block in state.cached_in(&blocks) {
                state.set_leaving(block, false);
            }
            return result;
        }
        let mut ledger = self.ledger.lock().await;
        let entries = {
            let mut state = self.state.lock();
            if state.broken {
                return Err(IoError::IO);
            }
            let cached = state.cached_in(&blocks);
            cached.into_iter().flat_map(|block| state.take_leaving(block)).collect::<Vec<_>>()
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
                let cached = state.cached_in(blocks);
                if !cached.iter().any(|&block| state.is_moving(block)) {
                    cached.into_iter().for_each(|block| state.set_leaving(block, true));
                    return;
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
