//! Calls to the keeper thread (see `verbs::snap::keeper`): that a snapshot, merge or pool may need
//! it, and which volumes a verb left suspended.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

/// The keeper's wake-up channel, and the volumes that it must bring up.
#[derive(Default)]
pub struct KeeperCalls {
    /// Wakes the thread.
    wake: Mutex<Option<Sender<()>>>,
    /// Volumes that a verb suspended and could not bring up again, because a device failed. All
    /// other suspended volumes were suspended by their users.
    stuck: Mutex<HashSet<String>>,
}

impl KeeperCalls {
    /// A callback that wakes the thread. It may be called after the thread has ended.
    pub fn caller(keeper: &Arc<KeeperCalls>) -> Arc<dyn Fn() + Send + Sync> {
        let keeper = Arc::downgrade(keeper);
        Arc::new(move || {
            if let Some(keeper) = keeper.upgrade() {
                keeper.poke();
            }
        })
    }

    /// The receiver of the wake-ups. The first one is there already, as a restart may have left
    /// work.
    pub fn start(&self) -> Receiver<()> {
        let (send, receive) = channel();
        let _ = send.send(());
        *self.wake.lock() = Some(send);
        receive
    }

    /// Notes that a verb left this volume suspended because a device failed.
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

    /// Wakes the thread.
    pub fn poke(&self) {
        if let Some(send) = &*self.wake.lock() {
            // The thread may have ended.
            let _ = send.send(());
        }
    }

    /// True if a verb left this volume suspended.
    pub fn is_stuck(&self, name: &str) -> bool {
        self.stuck.lock().contains(name)
    }

    /// Forgets the volume: a user has suspended or resumed it.
    pub fn leave_alone(&self, name: &str) {
        self.stuck.lock().remove(name);
    }
}
