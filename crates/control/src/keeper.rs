//! What verbs tell the thread that keeps snapshots (see `verbs::snap`): that there may be something
//! to do, and which volumes they left suspended.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

/// What is known of snapshots beside what is recorded.
#[derive(Default)]
pub struct Keeper {
    /// The way to wake the thread.
    wake: Mutex<Option<Sender<()>>>,
    /// Volumes that a verb suspended and could not bring up again, as a device failed. Others that
    /// are suspended are so by their user's wish.
    stuck: Mutex<HashSet<String>>,
}

impl Keeper {
    /// What calls it, for volumes that may need it after it has ended.
    pub fn caller(keeper: &Arc<Keeper>) -> Arc<dyn Fn() + Send + Sync> {
        let keeper = Arc::downgrade(keeper);
        Arc::new(move || {
            if let Some(keeper) = keeper.upgrade() {
                keeper.poke();
            }
        })
    }

    /// What wakes the thread from now on. It is awake at first: a restart may have left something.
    pub fn start(&self) -> Receiver<()> {
        let (send, receive) = channel();
        let _ = send.send(());
        *self.wake.lock() = Some(send);
        receive
    }

    /// A verb left this volume suspended, as a device failed.
    pub fn note_stuck(&self, name: &str) {
        self.stuck.lock().insert(name.to_owned());
        self.poke();
    }

    /// The volumes that verbs left suspended and that still are.
    pub fn stuck(&self, is_suspended: impl Fn(&str) -> bool) -> Vec<String> {
        let mut stuck = self.stuck.lock();
        stuck.retain(|name| is_suspended(name));
        stuck.iter().cloned().collect()
    }

    /// There may be something to watch.
    pub fn poke(&self) {
        if let Some(send) = &*self.wake.lock() {
            // A thread that ended needs no waking.
            let _ = send.send(());
        }
    }

    /// A verb left this volume suspended.
    pub fn is_stuck(&self, name: &str) -> bool {
        self.stuck.lock().contains(name)
    }

    /// Whether it is suspended is its user's affair from now on.
    pub fn leave_alone(&self, name: &str) {
        self.stuck.lock().remove(name);
    }
}
