//! [`Pause`]: all clients of a server wait between two requests; then they go on, or leave for
//! another process.
//!
//! Owns the phase, and how many clients wait. May be used from any thread.
//!
//! P1. A client that waits has no request that is not answered, and its task takes no byte from it.
//! P2. A client leaves from a wait only. So what it leaves with is all that is known of it.

use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use cairn_block::until_some;
use event_listener::Event;

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// They are served.
    Going = 0,
    /// Their requests end, and then they wait.
    Pausing = 1,
    /// Those that wait leave.
    Leaving = 2,
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct Pause {
    phase: AtomicU8,
    waiting: AtomicUsize,
    changed: Event,
}

impl Pause {
    /// What clients do now.
    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Going,
            1 => Phase::Pausing,
            _ => Phase::Leaving,
        }
    }

    /// Tells the clients.
    pub(crate) fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::SeqCst);
        self.changed.notify(usize::MAX);
    }

    /// Waits for a phase that `is_it` accepts; returns it.
    pub(crate) async fn phase_that(&self, is_it: impl Fn(Phase) -> bool) -> Phase {
        until_some(&self.changed, || Some(self.phase()).filter(|phase| is_it(*phase))).await
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// A client waits until the returned value is dropped. (P1)
    pub(crate) fn wait(self: &Arc<Self>) -> Waiting {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self.clone())
    }
}

/// A client that waits.
pub(crate) struct Waiting(Arc<Pause>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
