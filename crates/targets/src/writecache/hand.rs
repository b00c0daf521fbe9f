//! The hand: writeback that makes room goes round the ring of slots, so that what it frees is one
//! long run (`index::space` tells why). Order of insertion decides only where somebody asked for
//! it: age, `flush`, `cleaner`, suspend.
//!
//! The hand moves for one of two reasons:
//! - *draining*: free slots fell to the high watermark; until the low one is reached.
//! - *mending*: free slots are many but cut up, as a cache may be found at its opening. This
//!   empties a third of the cache at most, stops when three quarters of the free slots lie in
//!   long runs, keeps few blocks on their way, and waits until nobody has written for as long as
//!   `pause_writeback`.

use std::time::Duration;

use cairn_block::Time;

use super::State;
use super::index::{IN_WRITEBACK, Life, Run};

/// How far from the hand a run to write back is looked for, in runs that are not on their way.
const SCAN_MAX: usize = 1024;

/// What the hand comes to next.
pub(super) enum Met {
    /// Blocks that may be written back.
    Run(Run),
    /// Blocks that must be committed first (I6).
    Uncommitted,
    Nothing,
}

impl State {
    /// Decides anew whether to mend.
    pub(super) fn judge_space(&mut self) {
        self.mending = self.index.is_cut_up(self.mending);
    }

    /// Until when mending waits, given the pause; nobody asked for it.
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
