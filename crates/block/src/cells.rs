//! Cells: who may touch a range while somebody else does.
//!
//! A holder of a cell is either *shared* (ordinary writes, which may overlap each other) or
//! *exclusive* (a read-modify-write, a copy-on-write). A request whose range conflicts with a
//! holder, or with somebody who waited earlier, is an waiter: it waits its turn, so nobody
//! starves. The number of cells is bounded by the requests in flight; a scan of the holders is
//! shorter than a tree would be.
//!
//! C1. No two holders overlap unless both are shared.
//! C2. A newcomer never overtakes a conflicting waiter.

use std::sync::Arc;

use event_listener::Event;

use crate::sync::Mutex;
use crate::units::SectorRange;
use crate::wait::until;

/// How a range is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellMode {
    /// With other shared holders.
    Shared,
    /// Alone.
    Exclusive,
}

#[derive(Clone, Copy)]
struct Cell {
    ticket: u64,
    range: SectorRange,
    mode: CellMode,
}

impl Cell {
    fn conflicts(&self, other: &Cell) -> bool {
        let alone = self.mode == CellMode::Exclusive || other.mode == CellMode::Exclusive;
        alone && self.range.overlaps(other.range)
    }
}

#[derive(Default)]
struct Inner {
    next_ticket: u64,
    holders: Vec<Cell>,
    waiting: Vec<Cell>,
}

impl Inner {
    /// True if `cell` may be held: no holder and no earlier waiter is in its way.
    fn admits(&self, cell: &Cell) -> bool {
        let earlier = self.waiting.iter().take_while(|waiter| waiter.ticket < cell.ticket);
        !self.holders.iter().chain(earlier).any(|other| other.conflicts(cell))
    }

    /// Turns a waiting cell into a holder, if it may be held.
    fn admit(&mut self, cell: &Cell) -> bool {
        let admits = self.admits(cell);
        if admits {
            self.waiting.retain(|waiter| waiter.ticket != cell.ticket);
            self.holders.push(*cell);
        }
        admits
    }
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    released: Event,
}

/// The cells of one device.
#[derive(Clone, Default)]
pub struct Cells(Arc<Shared>);

/// A held range; dropping it lets the next in.
pub struct CellGuard {
    cells: Cells,
    ticket: u64,
}

impl Cells {
    fn cell(inner: &mut Inner, range: SectorRange, mode: CellMode) -> Cell {
        inner.next_ticket += 1;
        Cell { ticket: inner.next_ticket, range, mode }
    }

    /// Holds `range` if nobody is in the way.
    pub fn try_hold(&self, range: SectorRange, mode: CellMode) -> Option<CellGuard> {
        let mut inner = self.0.inner.lock();
        let cell = Cells::cell(&mut inner, range, mode);
        if !inner.admits(&cell) {
            return None;
        }
        inner.holders.push(cell);
        Some(CellGuard { cells: self.clone(), ticket: cell.ticket })
    }

    /// Waits until `range` can be held. Cancel-safe: a dropped wait leaves the queue.
    pub async fn hold(&self, range: SectorRange, mode: CellMode) -> CellGuard {
        let cell = {
            let mut inner = self.0.inner.lock();
            let cell = Cells::cell(&mut inner, range, mode);
            inner.waiting.push(cell);
            cell
        };
        let guard = CellGuard { cells: self.clone(), ticket: cell.ticket };
        until(&self.0.released, || self.0.inner.lock().admit(&cell)).await;
        guard
    }
}

impl Drop for CellGuard {
    fn drop(&mut self) {
        let mut inner = self.cells.0.inner.lock();
        let other = |cell: &Cell| cell.ticket != self.ticket;
        inner.holders.retain(other);
        inner.waiting.retain(other);
        drop(inner);
        self.cells.0.released.notify(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Sector, SectorCount};
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn range(start: u64, count: u64) -> SectorRange {
        SectorRange::new(Sector(start), SectorCount(count))
    }

    #[test]
    fn shared_holders_overlap_and_an_exclusive_one_waits_for_both() {
        let cells = Cells::default();
        let first = cells.try_hold(range(0, 8), CellMode::Shared).unwrap();
        let second = cells.try_hold(range(4, 8), CellMode::Shared).unwrap();
        assert!(cells.try_hold(range(6, 1), CellMode::Exclusive).is_none());
        drop(first);
        assert!(cells.try_hold(range(6, 1), CellMode::Exclusive).is_none());
        drop(second);
        assert!(cells.try_hold(range(6, 1), CellMode::Exclusive).is_some());
    }

    #[test]
    fn a_newcomer_does_not_overtake_an_inmate() {
        let cells = Cells::default();
        let holder = cells.try_hold(range(0, 8), CellMode::Shared).unwrap();
        let mut cx = Context::from_waker(Waker::noop());
        let mut waiter = pin!(cells.hold(range(0, 8), CellMode::Exclusive));
        assert!(waiter.as_mut().poll(&mut cx).is_pending());
        assert!(cells.try_hold(range(0, 8), CellMode::Shared).is_none(), "C2");
        assert!(cells.try_hold(range(8, 8), CellMode::Shared).is_some(), "elsewhere");
        drop(holder);
        let Poll::Ready(guard) = waiter.as_mut().poll(&mut cx) else { panic!("its turn came") };
        assert!(cells.try_hold(range(7, 1), CellMode::Shared).is_none(), "C1");
        drop(guard);
        assert!(cells.try_hold(range(7, 1), CellMode::Shared).is_some());
    }
}
