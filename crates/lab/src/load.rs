//! A closed loop over a timing model: a number of operations in flight, each followed by the next
//! when it ends.

use cairn_block::Time;
use cairn_sim::drives::{Arrival, OpId, Timing};

use crate::workload::Operation;

/// How long a load took.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Operations that ended.
    pub count: u64,
    /// In this time.
    pub nanos: u64,
}

impl Measured {
    /// Operations per second.
    pub fn per_second(self) -> f64 {
        self.count as f64 * 1e9 / self.nanos as f64
    }

    /// Mean time between two ends; of one operation if one is in flight.
    pub fn nanos_each(self) -> f64 {
        self.nanos as f64 / self.count as f64
    }
}

/// Loads on one model, one after another.
pub struct Loop<'a> {
    timing: &'a mut dyn Timing,
    now: Time,
    next_id: OpId,
    in_flight: usize,
}

impl<'a> Loop<'a> {
    /// Begins at the start of the model's time, or at the end of an earlier loop.
    pub fn new(timing: &'a mut dyn Timing) -> Loop<'a> {
        Loop { timing, now: Time(0), next_id: 0, in_flight: 0 }
    }

    /// Sends `count` operations, `depth` at a time, and waits until `count` have ended. Those in
    /// flight at the end stay so: the next load goes on from a drive that is in use.
    ///
    /// # Panics
    /// If an operation waits before its start: a loop like this keeps the drive busy.
    pub fn run(
        &mut self,
        depth: usize,
        count: u64,
        mut next: impl FnMut() -> Operation,
    ) -> Measured {
        let start = self.now;
        let mut ended = Vec::new();
        let mut left = count;
        while left > 0 {
            while self.in_flight < depth {
                let Operation { op, range, is_fua, think, not_before } = next();
                assert!(think.is_zero() && not_before == Time(0), "it would wait");
                let arrival = Arrival { id: self.next_id, op, range, is_fua };
                self.timing.arrive(self.now, arrival);
                self.next_id += 1;
                self.in_flight += 1;
            }
            self.now = self.timing.next().expect("an operation in flight ends");
            self.timing.go_on(self.now, &mut ended);
            self.in_flight -= ended.len();
            left = left.saturating_sub(ended.len() as u64);
            ended.clear();
        }
        Measured { count, nanos: self.now.0 - start.0 }
    }
}
