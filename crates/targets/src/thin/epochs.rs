//! Who is under way: striped counters of the requests that were mapped and have not ended.
//!
//! Whoever took something out of what a lookup finds waits, before it is used for something else,
//! until every request that may have found it has ended ([`Epochs::quiesce`]).
//!
//! E1. A request is counted in the same critical section as its lookup, and what a lookup finds
//!     changes in one of the same lock: a request that found what is gone is seen.
//! E2. Waiting ends although new requests keep coming: they are counted in two phases, and a wait
//!     turns the newcomers to the other phase before it waits for the old one to drain.
//!
//! A request that took the phase before a turn and counts itself after it found what a change left
//! (E1), so it does no harm; the next wait, which begins by draining the idle phase, waits for it.

use std::sync::Arc;

use cairn_block::ReactorId;
use cairn_block::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use event_listener::Event;

/// One reactor's counters: only it writes them.
#[repr(align(128))]
struct Row([AtomicU64; 2]);

/// The requests under way in one pool.
pub(super) struct Epochs {
    rows: Box<[Row]>,
    phase: AtomicU32,
    /// One wait turns the phase at a time.
    turn: futures_util::lock::Mutex<()>,
    waiting: AtomicUsize,
    left: Event,
}

/// Where a request counted itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase(u32);

impl Phase {
    /// As a bit.
    pub fn bit(self) -> u64 {
        u64::from(self.0)
    }

    /// Of the lowest bit of a word.
    pub fn of_bit(word: u64) -> Phase {
        Phase((word & 1) as u32)
    }
}

impl Epochs {
    /// Nobody yet, on so many reactors.
    pub fn new(reactors: u16) -> Arc<Epochs> {
        let row = |_| Row([AtomicU64::new(0), AtomicU64::new(0)]);
        Arc::new(Epochs {
            rows: (0..reactors).map(row).collect(),
            phase: AtomicU32::new(0),
            turn: futures_util::lock::Mutex::default(),
            waiting: AtomicUsize::new(0),
            left: Event::new(),
        })
    }

    fn counter(&self, reactor: ReactorId, phase: Phase) -> &AtomicU64 {
        &self.rows[usize::from(reactor.0)].0[phase.0 as usize]
    }

    /// Counts a request on its own reactor, under the lock of its lookup (E1).
    pub fn enter(&self, reactor: ReactorId) -> Phase {
        let phase = Phase(self.phase.load(Ordering::Relaxed));
        let counter = self.counter(reactor, phase);
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        phase
    }

    /// The request has ended, on the same reactor.
    pub fn leave(&self, reactor: ReactorId, phase: Phase) {
        let counter = self.counter(reactor, phase);
        counter.store(counter.load(Ordering::Relaxed) - 1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.left.notify(usize::MAX);
        }
    }

    fn is_drained(&self, phase: u32) -> bool {
        self.rows.iter().all(|row| row.0[phase as usize].load(Ordering::Acquire) == 0)
    }

    /// Waits until every request has ended that may not have seen a change made before this call.
    pub async fn quiesce(&self) {
        if self.is_drained(0) && self.is_drained(1) {
            return;
        }
        let _turn = self.turn.lock().await;
        let old = self.phase.load(Ordering::Relaxed);
        self.wait_drained(old ^ 1).await;
        self.phase.store(old ^ 1, Ordering::Relaxed);
        self.wait_drained(old).await;
    }

    async fn wait_drained(&self, phase: u32) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        loop {
            let listener = self.left.listen();
            fence(Ordering::SeqCst);
            if self.is_drained(phase) {
                break;
            }
            listener.await;
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::Epochs;
    use cairn_block::ReactorId;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn a_wait_ends_with_the_requests_before_it_and_not_with_later_ones() {
        let (epochs, mut cx) = (Epochs::new(2), Context::from_waker(Waker::noop()));
        let (a, b) = (ReactorId(0), ReactorId(1));
        let (first, second) = (epochs.enter(a), epochs.enter(b));
        let mut wait = pin!(epochs.quiesce());
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        let later = epochs.enter(a);
        assert_ne!(later, first, "newcomers are counted apart");
        epochs.leave(a, first);
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        epochs.leave(b, second);
        assert!(wait.as_mut().poll(&mut cx).is_ready());
        epochs.leave(a, later);
        assert!(pin!(epochs.quiesce()).poll(&mut cx).is_ready());
    }
}
