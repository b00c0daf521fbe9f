//! [`Shutdown`]: the end of something that connections use: a server, an export.
//!
//! Owns: its level (how far it has been stopped; it only rises) and the number of its users. May be
//! used from any thread.
//!
//! L1. A user that joins first and reads the level afterwards is either waited for by a stop, or
//!     sees that it came too late. (Both sides write before they read, in one total order.)

use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use cairn_block::{until, until_some};
use event_listener::Event;

/// How far it has been stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Level {
    /// In service.
    Serving = 0,
    /// No new requests; the admitted ones are finished.
    Draining = 1,
    /// Connections are closed, replies are dropped.
    Cut = 2,
}

impl Level {
    fn of(number: u8) -> Level {
        match number {
            0 => Level::Serving,
            1 => Level::Draining,
            _ => Level::Cut,
        }
    }
}

/// See the module's description.
#[derive(Default)]
pub(crate) struct Shutdown {
    level: AtomicU8,
    users: AtomicUsize,
    raised: Event,
    left: Event,
}

impl Shutdown {
    /// How far it has been stopped.
    pub(crate) fn level(&self) -> Level {
        Level::of(self.level.load(Ordering::SeqCst))
    }

    /// How many use it.
    pub(crate) fn users(&self) -> usize {
        self.users.load(Ordering::SeqCst)
    }

    /// Adds a user until the returned value is dropped. Read the level afterwards (L1).
    pub(crate) fn join(self: &Arc<Self>) -> Membership {
        self.users.fetch_add(1, Ordering::SeqCst);
        Membership(self.clone())
    }

    /// Raises the level; a lower one changes nothing.
    pub(crate) fn raise(&self, level: Level) {
        self.level.fetch_max(level as u8, Ordering::SeqCst);
        self.raised.notify(usize::MAX);
    }

    /// Waits until the level is above `seen`; returns it.
    pub(crate) async fn above(&self, seen: Level) -> Level {
        until_some(&self.raised, || Some(self.level()).filter(|level| *level > seen)).await
    }

    /// Waits until it has no users.
    pub(crate) async fn empty(&self) {
        until(&self.left, || self.users() == 0).await;
    }
}

/// A use of a [`Shutdown`], until dropped.
pub(crate) struct Membership(Arc<Shutdown>);

impl Drop for Membership {
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.left.notify(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Level, Shutdown};

    #[test]
    fn a_level_never_falls() {
        let shutdown = Shutdown::default();
        assert_eq!(shutdown.level(), Level::Serving);
        shutdown.raise(Level::Cut);
        shutdown.raise(Level::Draining);
        assert_eq!(shutdown.level(), Level::Cut);
    }

    #[test]
    fn users_are_counted_until_they_leave() {
        let shutdown = Arc::new(Shutdown::default());
        let (first, second) = (shutdown.join(), shutdown.join());
        drop(first);
        assert_eq!(shutdown.users(), 1);
        drop(second);
        assert_eq!(shutdown.users(), 0);
    }
}
