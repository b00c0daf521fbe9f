//! [`Events`]: the events of a mapped device, counted and awaited (as by `dmsetup wait`), and the
//! log for lost content of its volume. They outlive its tables.

use std::sync::Arc;

use event_listener::Event;

use crate::loss_log::{LossLog, tell_content_lost};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::wait::until_some;

/// What calls the owner of a volume.
type CallOwner = Arc<dyn Fn() + Send + Sync>;

/// The events of a mapped device, for those that raise them and those that wait for them.
#[derive(Clone, Default)]
pub struct Events(Arc<EventsInner>);

#[derive(Default)]
struct EventsInner {
    /// Whose events they are.
    volume: String,
    count: AtomicU64,
    raised: Event,
    loss_log: Mutex<Option<Arc<dyn LossLog>>>,
    owner: Mutex<Option<CallOwner>>,
}

impl Events {
    /// The events of a volume of this name.
    pub fn of(volume: &str) -> Events {
        Events(Arc::new(EventsInner { volume: volume.to_owned(), ..EventsInner::default() }))
    }

    /// The volume's name, for the log.
    pub fn volume(&self) -> &str {
        &self.0.volume
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.0.count.load(Ordering::Acquire)
    }

    /// Tells every waiter that something worth looking at happened.
    pub fn raise(&self) {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        self.0.raised.notify(usize::MAX);
        self.call_owner();
    }

    /// From now on `owner` is called at each event, and when a target needs the owner of its
    /// volume. It does not block.
    pub fn set_owner(&self, owner: Arc<dyn Fn() + Send + Sync>) {
        *self.0.owner.lock() = Some(owner);
    }

    /// A target needs what only the owner of its volume does, say a larger device. This is no
    /// event.
    pub fn call_owner(&self) {
        let owner = self.0.owner.lock().clone();
        if let Some(owner) = owner {
            owner();
        }
    }

    /// From now on `loss_log` records the losses that the volume's devices can't record.
    pub fn set_loss_log(&self, loss_log: Arc<dyn LossLog>) {
        *self.0.loss_log.lock() = Some(loss_log);
    }

    /// The volume's content is lost, and its own device can't say so any more. True when the
    /// volume's loss log knows it durably; false if there is none, or it failed.
    pub async fn content_lost(&self) -> bool {
        let loss_log = self.0.loss_log.lock().clone();
        match loss_log {
            Some(loss_log) => tell_content_lost(loss_log.as_ref()).await,
            None => false,
        }
    }

    /// The volume's own device says that its content is lost: its loss log need not.
    pub fn content_marked(&self) {
        let loss_log = self.0.loss_log.lock().clone();
        if let Some(loss_log) = loss_log {
            loss_log.content_marked();
        }
    }

    /// Waits until there were more than `seen`; answers how many.
    pub async fn wait(&self, seen: u64) -> u64 {
        until_some(&self.0.raised, || Some(self.count()).filter(|now| *now > seen)).await
    }
}

#[cfg(test)]
mod tests {
    use super::Events;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn the_owner_is_called_at_each_event_and_when_a_target_needs_it() {
        let (events, calls) = (Events::of("v"), Arc::new(AtomicU64::new(0)));
        events.raise();
        let counted = calls.clone();
        events.set_owner(Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        events.raise();
        events.call_owner();
        assert_eq!((events.count(), calls.load(Ordering::Relaxed)), (2, 2));
    }
}
