//! [`Models`]: the drives of a world whose times models tell ([`crate::drives`]), and their
//! operations in flight.

use std::sync::Arc;

use cairn_block::{Flags, Time};

use crate::drive::{DriveShared, OpId, Started};
use crate::drives::slab::Slab;
use crate::drives::{Arrival, Timing, Used};

struct Timed {
    drive: Arc<DriveShared>,
    model: Box<dyn Timing>,
    running: Slab<Started>,
    /// When the model has something to do.
    next: Option<Time>,
}

/// See the module's description. Drives are known by numbers, in the order of their adding.
#[derive(Default)]
pub(crate) struct Models {
    drives: Vec<Timed>,
    /// Those that ended in the last step.
    ended: Vec<OpId>,
}

impl Models {
    /// The number of the next drive.
    pub fn next_number(&self) -> usize {
        self.drives.len()
    }

    pub fn add(&mut self, drive: Arc<DriveShared>, model: Box<dyn Timing>) {
        self.drives.push(Timed { drive, model, running: Slab::default(), next: None });
    }

    /// An operation reaches a drive. The model begins with it when the world has time: what arrives
    /// in one turn of a reactor merges.
    pub fn arrive(&mut self, number: usize, now: Time, started: Started) {
        let timed = &mut self.drives[number];
        let (op, range) = (started.op, started.range);
        let is_fua = started.flags.contains(Flags::FUA);
        let id = timed.running.insert(started) as OpId;
        timed.model.arrive(now, Arrival { id, op, range, is_fua });
        timed.next = Some(now);
    }

    /// When the first of them has something to do.
    pub fn next(&self) -> Option<Time> {
        self.drives.iter().filter_map(|timed| timed.next).min()
    }

    /// Has one of them do the first thing that is due, and passes on each operation that ended. So
    /// the ends of several drives come in order of time, however late that is.
    pub fn go_on(&mut self, now: Time, mut end: impl FnMut(&DriveShared, &Started)) {
        let due = self.drives.iter_mut().filter(|timed| timed.next.is_some_and(|at| at <= now));
        let Some(timed) = due.min_by_key(|timed| timed.next) else { return };
        let at = timed.next.expect("it is due");
        timed.model.go_on(at, &mut self.ended);
        for id in self.ended.drain(..) {
            end(&timed.drive, &timed.running.remove(id as usize));
        }
        timed.next = timed.model.next();
    }

    /// What the model of a drive counted.
    pub fn used(&self, number: usize) -> Used {
        self.drives[number].model.used()
    }
}
