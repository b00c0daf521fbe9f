//! Who is reading where, without a shared lock: striped counters, one row per reactor.
//!
//! A reader announces itself in its own reactor's row, then looks its chunk up, and leaves when
//! its read of the origin has ended. Whoever changed what a lookup finds waits until every reader
//! that may have looked before has left ([`Readers::quiesce`]).
//!
//! R1. Announcement and lookup, and change and look at the counters, are each separated by a
//!     SeqCst fence: either the reader sees the change, or the other side sees the reader.
//! R2. No lookup is used without the announcement.
//! R3. Waiting ends although new readers keep coming: a stripe counts in two phases, and a wait
//!     turns the newcomers to the other phase before it waits for the old one to drain.
//!
//! A reader that took the phase before a turn and counts itself after it is no harm to R1 (it
//! sees the change); the next wait, which begins by draining the idle phase, waits for it.

use std::sync::Arc;

use cairn_block::ReactorId;
use cairn_block::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use event_listener::Event;
use futures_util::lock::Mutex as AsyncMutex;

use super::table::STRIPES;

/// One reactor's counters: only it writes them.
#[repr(align(128))]
struct Row([[AtomicU64; 2]; STRIPES]);

/// The readers of one snapshot.
pub(super) struct Readers {
    rows: Box<[Row]>,
    phases: [AtomicU32; STRIPES],
    /// One wait per stripe turns its phase at a time.
    turns: Box<[AsyncMutex<()>]>,
    waiting: AtomicUsize,
    left: Event,
}

/// A reader's announcement: where it counted itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announced {
    stripe: u32,
    phase: u32,
}

impl Announced {
    /// As a word for [`cairn_block::Request::watch`], below 2^32.
    pub fn to_word(self) -> u64 {
        u64::from(self.stripe << 1 | self.phase)
    }

    /// Of the word.
    pub fn of_word(word: u64) -> Announced {
        let word = word as u32;
        Announced { stripe: word >> 1, phase: word & 1 }
    }
}

impl Readers {
    /// Nobody yet, on so many reactors.
    pub fn new(reactors: u16) -> Arc<Readers> {
        let counters = || [AtomicU64::new(0), AtomicU64::new(0)];
        let row = |_| Row(std::array::from_fn(|_| counters()));
        Arc::new(Readers {
            rows: (0..reactors).map(row).collect(),
            phases: std::array::from_fn(|_| AtomicU32::new(0)),
            turns: (0..STRIPES).map(|_| AsyncMutex::new(())).collect(),
            waiting: AtomicUsize::new(0),
            left: Event::new(),
        })
    }

    fn counter(&self, reactor: ReactorId, at: Announced) -> &AtomicU64 {
        &self.rows[usize::from(reactor.0)].0[at.stripe as usize][at.phase as usize]
    }

    /// Announces a reader on its own reactor, before it looks anything up.
    pub fn enter(&self, reactor: ReactorId, stripe: usize) -> Announced {
        let phase = self.phases[stripe].load(Ordering::Relaxed);
        let announced = Announced { stripe: stripe as u32, phase };
        let counter = self.counter(reactor, announced);
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        announced
    }

    /// The reader has ended, on the same reactor.
    pub fn leave(&self, reactor: ReactorId, announced: Announced) {
        let counter = self.counter(reactor, announced);
        counter.store(counter.load(Ordering::Relaxed) - 1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.left.notify(usize::MAX);
        }
    }

    /// True if a phase of a stripe counts nobody. Callers have made their change before.
    fn is_drained(&self, stripe: usize, phase: u32) -> bool {
        let at = phase as usize;
        self.rows.iter().all(|row| row.0[stripe][at].load(Ordering::Acquire) == 0)
    }

    /// True if every reader of these stripes that may not have seen a change made before this
    /// call has left.
    pub fn have_left(&self, mut stripes: impl Iterator<Item = usize>) -> bool {
        fence(Ordering::SeqCst);
        stripes.all(|stripe| self.is_drained(stripe, 0) && self.is_drained(stripe, 1))
    }

    /// Waits until every reader of the stripe that may not have seen a change made before this
    /// call has left.
    pub async fn quiesce(&self, stripe: usize) {
        if self.have_left(std::iter::once(stripe)) {
            return;
        }
        let _turn = self.turns[stripe].lock().await;
        let old = self.phases[stripe].load(Ordering::Relaxed);
        self.wait_drained(stripe, old ^ 1).await;
        self.phases[stripe].store(old ^ 1, Ordering::Relaxed);
        self.wait_drained(stripe, old).await;
    }

    async fn wait_drained(&self, stripe: usize, phase: u32) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        loop {
            let listener = self.left.listen();
            fence(Ordering::SeqCst);
            if self.is_drained(stripe, phase) {
                break;
            }
            listener.await;
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
