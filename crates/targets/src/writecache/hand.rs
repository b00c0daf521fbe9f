//! The hand: writeback that frees slots goes through the ring of slots in order, so that the slots
//! it frees form one long run (`index::space` says why). Writeback that was requested has orders of
//! its own: that of insertion for old blocks, that of the origin for `flush`, `cleaner` and suspend
//! (`sweep`).
//!
//! The hand moves for one of two reasons:
//! - *draining*: free slots fell to the high watermark. It ends at the low watermark.
//! - *mending*: many slots are free but in short runs, which may be so when a cache is opened.
//!   Mending empties at most a third of the cache. It stops when three quarters of the free slots
//!   lie in long runs. It keeps few blocks in flight, and waits until no client has written for
//!   `pause_writeback`.

use std::time::Duration;

use cairn_block::Time;

use super::State;
use super::index::{IN_WRITEBACK, Life, Run};

/// How many runs, not counting those in writeback, are looked at for one that can be written back.
const SCAN_MAX: usize = 1024;

/// The next run that the hand meets.
pub(super) enum Met {
    /// Blocks that may be written back.
    Run(Run),
    /// Blocks that must be committed first (I6).
    Uncommitted,
    Nothing,
}

impl State {
    /// Recomputes whether to mend.
    pub(super) fn judge_space(&mut self) {
        self.mending = self.index.is_cut_up(self.mending);
    }

    /// When mending may begin, given the pause. No client asked for mending, so it waits.
    pub(super) fn mends_from(&self, pause: Duration) -> Time {
        if pause.is_zero() { Time(0) } else { self.last_write + pause }
    }

    /// Moves the hand to the next run that may be written back.
    pub(super) fn move_hand(&mut self) -> Met {
        let (mut met, mut written) = (Met::Nothing, false);
        let idle = self.index.runs_from_hand().filter(|run| !run.has(IN_WRITEBACK));
        for run in idle.take(SCAN_MAX) {
            if self.index.life(&run) == Life::Uncommitted && !self.commits.is_running() {
                met = Met::Uncommitted;
                break;
            }
            if let Some(part) = self.eligible_part(&run) {
                met = Met::Run(part);
                break;
            }
            written |= self.index.is_written(run.slot, run.len);
        }
        match met {
            Met::Run(run) => self.index.set_hand(run.slot),
            _ => self.passed_over |= written,
        }
        met
    }
}
