//! Epochs: which requests in flight may still use what a lookup found before a change.
//!
//! A request enters on its own reactor and leaves when it ends. The caller that changed what a
//! lookup finds waits with [`Epochs::quiesce`] until every request has left that may have found
//! the old state. There is one row of counters per reactor, so that requests share no cache line.
//! Requests that a change cannot concern are told apart by stripes.
//!
//! E1. Either the request sees the change, or `quiesce` sees the request. [`Epochs::enter`] is
//!     called in the critical section of the lookup, and the change is made under the same lock.
//!     [`Epochs::announce`] is called before a lookup that takes no lock: a SeqCst fence separates
//!     it from the lookup, and another one the change from the look at the counters.
//! E2. No lookup is used without an entry.
//! E3. `quiesce` ends although requests keep entering: a stripe counts in two phases, and
//!     `quiesce` switches new requests to the other phase before it waits for the old one to drain.
//!
//! A request that read the phase before a switch and counts itself after it does no harm: it sees
//! the change (E1). The next `quiesce` waits for it, because it first drains the idle phase.

use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use cairn_block::{ReactorId, until};
use event_listener::Event;
use futures_util::lock::Mutex as AsyncMutex;

/// The counters of one reactor: only it writes them.
#[repr(align(128))]
struct Row<const STRIPES: usize>([[AtomicU64; 2]; STRIPES]);

/// The requests in flight, counted per reactor and stripe.
pub(crate) struct Epochs<const STRIPES: usize> {
    rows: Box<[Row<STRIPES>]>,
    phases: [AtomicU32; STRIPES],
    /// One `quiesce` per stripe switches its phase at a time.
    switches: [AsyncMutex<()>; STRIPES],
    waiting: AtomicUsize,
    left: Event,
}

/// The counter that a request entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch {
    stripe: u32,
    phase: u32,
}

impl Epoch {
    /// As a word for [`cairn_block::Request::watch`]: below twice the number of stripes.
    pub fn to_word(self) -> u64 {
        u64::from(self.stripe << 1 | self.phase)
    }

    /// Of the word.
    pub fn of_word(word: u64) -> Epoch {
        let word = word as u32;
        Epoch { stripe: word >> 1, phase: word & 1 }
    }
}

impl<const STRIPES: usize> Epochs<STRIPES> {
    /// No requests, for this many reactors.
    pub fn new(reactors: u16) -> Arc<Epochs<STRIPES>> {
        let counters = |_| [AtomicU64::new(0), AtomicU64::new(0)];
        let row = |_| Row(std::array::from_fn(counters));
        Arc::new(Epochs {
            rows: (0..reactors).map(row).collect(),
            phases: std::array::from_fn(|_| AtomicU32::new(0)),
            switches: std::array::from_fn(|_| AsyncMutex::new(())),
            waiting: AtomicUsize::new(0),
            left: Event::new(),
        })
    }

    fn counter(&self, reactor: ReactorId, at: Epoch) -> &AtomicU64 {
        &self.rows[usize::from(reactor.0)].0[at.stripe as usize][at.phase as usize]
    }

    /// A request enters on its own reactor, under the lock of its lookup (E1).
    pub fn enter(&self, reactor: ReactorId, stripe: usize) -> Epoch {
        let phase = self.phases[stripe].load(Ordering::Relaxed);
        let epoch = Epoch { stripe: stripe as u32, phase };
        let counter = self.counter(reactor, epoch);
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        epoch
    }

    /// A request enters on its own reactor, before a lookup that takes no lock (E1).
    pub fn announce(&self, reactor: ReactorId, stripe: usize) -> Epoch {
        let epoch = self.enter(reactor, stripe);
        fence(Ordering::SeqCst);
        epoch
    }

    /// The request has ended, on the same reactor.
    #[inline]
    pub fn leave(&self, reactor: ReactorId, epoch: Epoch) {
        let counter = self.counter(reactor, epoch);
        let entered = counter.load(Ordering::Relaxed);
        debug_assert!(entered > 0, "E2: a request leaves what it entered, once");
        counter.store(entered - 1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.left.notify(usize::MAX);
        }
    }

    fn is_drained(&self, stripe: usize, phase: u32) -> bool {
        let at = phase as usize;
        self.rows.iter().all(|row| row.0[stripe][at].load(Ordering::Acquire) == 0)
    }

    /// True if every request of these stripes has left that may not have seen a change made before
    /// this call.
    pub fn have_left(&self, mut stripes: impl Iterator<Item = usize>) -> bool {
        fence(Ordering::SeqCst);
        stripes.all(|stripe| self.is_drained(stripe, 0) && self.is_drained(stripe, 1))
    }

    /// Waits until every request of the stripe has left that may not have seen a change made
    /// before this call.
    pub async fn quiesce(&self, stripe: usize) {
        if self.have_left(std::iter::once(stripe)) {
            return;
        }
        let _switch = self.switches[stripe].lock().await;
        let old = self.phases[stripe].load(Ordering::Relaxed);
        self.drained(stripe, old ^ 1).await;
        self.phases[stripe].store(old ^ 1, Ordering::Relaxed);
        self.drained(stripe, old).await;
    }

    async fn drained(&self, stripe: usize, phase: u32) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        until(&self.left, || {
            fence(Ordering::SeqCst);
            self.is_drained(stripe, phase)
        })
        .await;
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
    fn quiesce_waits_for_the_requests_before_it_and_not_for_later_ones() {
        let (epochs, mut cx) = (Epochs::<2>::new(2), Context::from_waker(Waker::noop()));
        let (a, b) = (ReactorId(0), ReactorId(1));
        let (first, second) = (epochs.enter(a, 1), epochs.enter(b, 1));
        let other_stripe = epochs.announce(a, 0);
        let mut wait = pin!(epochs.quiesce(1));
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        let later = epochs.enter(a, 1);
        assert_ne!(later, first, "later requests are counted apart");
        epochs.leave(a, first);
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        epochs.leave(b, second);
        assert!(wait.as_mut().poll(&mut cx).is_ready());
        epochs.leave(a, later);
        assert!(pin!(epochs.quiesce(1)).poll(&mut cx).is_ready());
        epochs.leave(a, other_stripe);
    }
}
