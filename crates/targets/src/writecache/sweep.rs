//! The sweep: the order of a drain, in which every block goes home (`flush`, `cleaner`, a suspend
//! that writes back).
//!
//! A drain begins with a count of the zones of the origin that have cached blocks. Then the planner
//! says which zone is next, and the blocks found there are written back: one movement of the arm
//! over each spindle, however the blocks were inserted. The sweep looks at each zone once. Blocks
//! that cannot be written back at that moment stay: the search by insertion (`collect_from`), which
//! follows the sweep, finds and closes or commits them. So the sweep decides the order only, and
//! the end of a drain depends on the search alone.
//!
//! Other writeback keeps its own order. To free slots, the hand follows the slots, so that free
//! slots lie in long runs. By age, the order of insertion is that of age.

use std::ops::Range;

use cairn_block::{SECTOR_BYTES, Sector, SectorCount, Time};

use super::writeback::{Action, Batch, COPY_BYTES};
use super::{State, WriteCache, canary};
use crate::planner::{Answer, Members, Planner, Urgency};

/// How many slots are counted while the lock is held.
const COUNT_SLOTS: u32 = 8192;
/// How many pieces of the planner are looked through while the lock is held.
const PIECES_MAX: u32 = 256;
/// Drains of fewer bytes than a batch has by default are not swept: there the search by insertion
/// makes one batch of everything, in the order of the origin.
const SWEEP_BYTES: u64 = COPY_BYTES / 2;

/// A drain's way over the origin.
pub(super) struct Sweep {
    planner: Planner,
    /// The slots before this one are counted.
    counted: u32,
}

impl WriteCache {
    /// A drain begins.
    pub(super) fn begin_sweep(&self, state: &mut State) {
        let bytes = state.index.cached_blocks() * self.block_sectors * SECTOR_BYTES;
        if bytes <= canary::swept_beyond().unwrap_or(SWEEP_BYTES) {
            return;
        }
        state.pace.begin_drain();
        let planner = Planner::new(Members::of(&self.origin));
        state.sweep = Some(Sweep { planner, counted: 0 });
    }

    /// Collects blocks in the order of the sweep. The batch stays empty if there is no sweep, or
    /// nothing is left of it.
    pub(super) fn collect_swept(&self, state: &mut State, now: Time, batch: &mut Batch) -> Action {
        let Some(mut sweep) = state.sweep.take() else { return Action::Wait };
        if sweep.counted < state.index.len() {
            self.count_zones(state, now, &mut sweep);
            state.sweep = Some(sweep);
            return Action::Again;
        }
        if let Some(until) = self.delay(state, now, true) {
            state.sweep = Some(sweep);
            return Action::Sleep(until);
        }
        for _ in 0..PIECES_MAX {
            let piece = match sweep.planner.next(Urgency::Drain) {
                Answer::Look(piece) => piece,
                Answer::Again => continue,
                Answer::Nothing => return Action::Wait,
            };
            let (before, end) = (batch.blocks, piece.range.end().0.div_ceil(self.block_sectors));
            let blocks = piece.range.start.0 / self.block_sectors..end;
            let most = piece.most.0.div_ceil(self.block_sectors);
            let to = self.take_blocks(state, blocks, most, batch);
            let taken = SectorCount((batch.blocks - before) * self.block_sectors);
            let to = if to < end { Sector(to * self.block_sectors) } else { piece.range.end() };
            sweep.planner.looked(&piece, to, taken);
            if batch.blocks >= batch.most {
                break;
            }
        }
        state.sweep = Some(sweep);
        if batch.jobs.is_empty() { Action::Again } else { Action::Wait }
    }

    /// Tells the planner of the blocks in the next slots.
    fn count_zones(&self, state: &State, now: Time, sweep: &mut Sweep) {
        let len = COUNT_SLOTS.min(state.index.len() - sweep.counted);
        for run in state.index.runs_of(sweep.counted, len) {
            sweep.planner.add(self.origin_range(run.block, u64::from(run.len)), now);
        }
        sweep.counted += len;
    }

    /// Takes blocks of a range that can be written back, `most` or a few more. Returns how far it
    /// has looked.
    fn take_blocks(
        &self,
        state: &mut State,
        blocks: Range<u64>,
        most: u64,
        batch: &mut Batch,
    ) -> u64 {
        let (mut at, before) = (blocks.start, batch.blocks);
        while batch.blocks < batch.most && batch.blocks - before < most {
            let found = state.index.first_cached(at, blocks.end.saturating_sub(at));
            let Some((block, slot)) = found else { return blocks.end };
            let run = state.index.at(slot).expect("it is cached there");
            match state.eligible_part(&run) {
                Some(part) => {
                    at = state.take_job(&part, self.job_blocks_max(batch), batch);
                }
                None => at = block + u64::from(run.len),
            }
        }
        at
    }
}
