//! Cells: who may touch a range while somebody else does.
//!
//! A holder of a cell is either *shared* (ordinary writes, which may overlap each other) or
//! *exclusive* (a read-modify-write). A request whose range conflicts with a holder, or with a
//! request that waited earlier, waits its turn, so that none starves.
//!
//! Holders and waiters lie in one map, ordered by their first sector. What overlaps a range
//! begins before its end, and less than the longest cell before its start.
//!
//! C1. No two holders overlap unless both are shared.
//! C2. A newcomer never overtakes a conflicting waiter.

use std::collections::BTreeMap;
use std::sync::Arc;

use event_listener::Event;

use crate::invariants;
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
    is_held: bool,
}

impl Cell {
    fn conflicts(&self, other: &Cell) -> bool {
        let alone = self.mode == CellMode::Exclusive || other.mode == CellMode::Exclusive;
        alone && self.range.overlaps(other.range)
    }

    fn key(&self) -> (u64, u64) {
        (self.range.start.0, self.ticket)
    }
}

#[derive(Default)]
struct Inner {
    next_ticket: u64,
    cells: BTreeMap<(u64, u64), Cell>,
    /// No cell is longer, in sectors.
    longest: u64,
}

impl Inner {
    fn cell(&mut self, range: SectorRange, mode: CellMode) -> Cell {
        self.next_ticket += 1;
        Cell { ticket: self.next_ticket, range, mode, is_held: false }
    }

    /// True if `cell` may be held: no holder and no earlier waiter is in its way.
    fn admits(&self, cell: &Cell) -> bool {
        let begin = cell.range.start.0.saturating_sub(self.longest);
        let mut near = self.cells.range((begin, 0)..(cell.range.end().0, 0));
        let comes_first = |other: &Cell| other.is_held || other.ticket < cell.ticket;
        !near.any(|(_, other)| comes_first(other) && other.conflicts(cell))
    }

    fn insert(&mut self, cell: Cell) {
        self.longest = self.longest.max(cell.range.count.0);
        self.cells.insert(cell.key(), cell);
    }

    /// Turns a waiting cell into a holder, if it may be held.
    fn admit(&mut self, mut cell: Cell) -> bool {
        cell.is_held = self.admits(&cell);
        if cell.is_held {
            self.insert(cell);
        }
        cell.is_held
    }

    fn check_state(&self) {
        let held = || self.cells.values().filter(|cell| cell.is_held);
        for cell in held() {
            let others = || held().filter(|other| other.ticket != cell.ticket);
            assert!(!others().any(|other| other.conflicts(cell)), "C1");
        }
    }

    fn remove(&mut self, key: (u64, u64)) {
        invariants::sample(|| self.check_state());
        self.cells.remove(&key);
        if self.cells.is_empty() {
            self.longest = 0;
        }
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
    key: (u64, u64),
}

impl Cells {
    /// Holds `range` if nothing is in the way.
    pub fn try_hold(&self, range: SectorRange, mode: CellMode) -> Option<CellGuard> {
        let mut inner = self.0.inner.lock();
        let cell = inner.cell(range, mode);
        let admitted = inner.admit(cell);
        admitted.then(|| CellGuard { cells: self.clone(), key: cell.key() })
    }

    /// Waits until `range` can be held. Cancel-safe: a dropped wait leaves the queue.
    pub async fn hold(&self, range: SectorRange, mode: CellMode) -> CellGuard {
        let cell = {
            let mut inner = self.0.inner.lock();
            let cell = inner.cell(range, mode);
            inner.insert(cell);
            cell
        };
        let guard = CellGuard { cells: self.clone(), key: cell.key() };
        until(&self.0.released, || self.0.inner.lock().admit(cell)).await;
        guard
    }
}

impl Drop for CellGuard {
    fn drop(&mut self) {
        self.cells.0.inner.lock().remove(self.key);
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
    #[should_panic = "C1"]
    fn overlapping_holders_are_noticed() {
        let cells = Cells::default();
        let held = cells.try_hold(range(0, 8), CellMode::Exclusive);
        let mut inner = cells.0.inner.lock();
        let second = Cell { is_held: true, ..inner.cell(range(7, 1), CellMode::Shared) };
        inner.check_state();
        inner.insert(second);
        // Its guard locks again, which must not happen while this panics.
        std::mem::forget(held);
        inner.check_state();
    }

    #[test]
    fn a_newcomer_does_not_overtake_a_waiter() {
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
