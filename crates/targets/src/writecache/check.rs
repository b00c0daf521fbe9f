//! The invariants of a cache's state, numbered in the head of the module.

use super::State;
use super::index::{IN_WRITEBACK, Life};

impl State {
    /// Checks what must hold between any two steps, and the whole index. Linear in the cache.
    pub fn check_whole(&self) {
        self.check_state();
        let index = &self.index;
        index.check();
        if !self.broken {
            self.commits.check_state();
        }
        if !self.commits.is_running() && !self.broken {
            let frozen = index.runs().find(|run| index.life(run) == Life::Frozen);
            assert_eq!(frozen, None, "I12: only a commit freezes");
        }
        for run in index.runs() {
            match index.life(&run) {
                Life::Uncommitted => assert_eq!(run.seq, index.stamp_seq, "I2"),
                Life::Committed => assert!(run.seq < index.durable_seq, "I2"),
                Life::Frozen => (),
            }
            assert!(!run.has(IN_WRITEBACK) || !index.is_written(run.slot, run.len), "I10");
        }
    }

    /// Checks what must hold between any two steps, in a few steps whatever the size.
    pub fn check_state(&self) {
        let index = &self.index;
        self.origin_flushes.check_state();
        assert!(index.durable_seq <= index.stamp_seq, "I2: stamped before it is durable");
        assert!(index.stamp_seq.0 <= index.durable_seq.0 + 1 || self.broken, "I12: one at a time");
    }
}
