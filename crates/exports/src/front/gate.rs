//! [`WriteGate`]: excludes whole-block writes of one disk from blocks under read-modify-write.
//!
//! A client that was not told block sizes may write half a block. The export then reads the block,
//! changes it and writes it back, and every other write to that block must wait. As long as no
//! client does so, a write only counts itself, on a counter of its reactor, so that reactors share
//! no cache line. Once a client did, all writes hold cells until that client disconnects.
//!
//! - G1. A loose write (one without a cell) begins only while no connection requires cells, or
//!   leaves again at once. A write counts itself before it reads `cells_required`; a connection
//!   raises `cells_required` before it reads the counts. So one of the two sees the other.
//! - G2. A read-modify-write requires cells, waits until no loose write is left, and holds its
//!   whole blocks exclusively; writes in cells hold theirs shared. Therefore no write lands in a
//!   block between its being read and written back.
//!
//! Discards need no cell: the contents they leave are undefined until the next write, so the old
//! bytes that a read-modify-write puts back are allowed.

use cairn_block::sync::atomic::{AtomicUsize, Ordering};
use cairn_block::{Cells, ReactorId, invariants, until};
use event_listener::Event;

/// A counter on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Counter(AtomicUsize);

/// See the module's description.
pub(super) struct WriteGate {
    cells_required: AtomicUsize,
    loose: Box<[Counter]>,
    drained: Event,
    cells: Cells,
}

impl WriteGate {
    /// The gate of a disk used by `reactors` reactors.
    pub(super) fn new(reactors: u16) -> WriteGate {
        WriteGate {
            cells_required: AtomicUsize::new(0),
            loose: (0..reactors).map(|_| Counter::default()).collect(),
            drained: Event::new(),
            cells: Cells::default(),
        }
    }

    /// Begins a loose write; false if writes must hold cells now. (G1)
    pub(super) fn enter_loose(&self, reactor: ReactorId) -> bool {
        self.loose[usize::from(reactor.0)].0.fetch_add(1, Ordering::SeqCst);
        if self.cells_required.load(Ordering::SeqCst) == 0 {
            return true;
        }
        self.leave_loose(reactor);
        false
    }

    /// Ends a loose write.
    pub(super) fn leave_loose(&self, reactor: ReactorId) {
        let before = self.loose[usize::from(reactor.0)].0.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "G1: a write leaves once");
        if before == 1 && self.cells_required.load(Ordering::SeqCst) > 0 {
            self.drained.notify(usize::MAX);
        }
    }

    /// From now on every write holds a cell, until as many calls of
    /// [`WriteGate::stop_requiring_cells`].
    pub(super) fn require_cells(&self) {
        self.cells_required.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes back one [`WriteGate::require_cells`].
    pub(super) fn stop_requiring_cells(&self) {
        let before = self.cells_required.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "G1: a connection stops once");
    }

    /// At the start of a read-modify-write, whose caller requires cells. (G2)
    pub(super) fn check_state(&self) {
        assert!(self.cells_required.load(Ordering::SeqCst) > 0, "G2");
        // A loose write may look in at any time, and leaves again at once: at most one per reactor
        // counts itself then.
        assert!(self.loose.iter().all(|count| count.0.load(Ordering::SeqCst) <= 1), "G1");
    }

    /// Waits until no loose write is left. Only for a caller that requires cells. (G2)
    pub(super) async fn no_loose_writes(&self) {
        debug_assert!(self.cells_required.load(Ordering::SeqCst) > 0);
        let is_drained = || self.loose.iter().all(|count| count.0.load(Ordering::SeqCst) == 0);
        until(&self.drained, is_drained).await;
        invariants::sample(|| self.check_state());
    }

    /// The cells that writes hold while a connection requires them.
    pub(super) fn cells(&self) -> &Cells {
        &self.cells
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use cairn_block::ReactorId;

    use super::WriteGate;

    #[test]
    #[should_panic = "G1"]
    fn a_loose_write_during_a_read_modify_write_is_noticed() {
        let gate = WriteGate::new(1);
        gate.require_cells();
        gate.check_state();
        gate.loose[0].0.store(2, std::sync::atomic::Ordering::SeqCst);
        gate.check_state();
    }

    #[test]
    fn requiring_cells_waits_for_loose_writes_of_all_reactors() {
        let gate = WriteGate::new(2);
        assert!(gate.enter_loose(ReactorId(0)) && gate.enter_loose(ReactorId(1)));
        gate.require_cells();
        assert!(!gate.enter_loose(ReactorId(0)), "G1");
        let mut cx = Context::from_waker(Waker::noop());
        let mut wait = pin!(gate.no_loose_writes());
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        gate.leave_loose(ReactorId(1));
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        gate.leave_loose(ReactorId(0));
        assert!(wait.as_mut().poll(&mut cx).is_ready(), "G2");
        gate.stop_requiring_cells();
        assert!(gate.enter_loose(ReactorId(0)));
    }
}
