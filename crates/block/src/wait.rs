//! Waiting for a condition that an event announces.
//!
//! The caller listens to the event before it checks the condition. A change that is notified after
//! the check wakes the caller, so none is missed.

use event_listener::Event;

/// Waits until `value` returns `Some`. Code that changes its inputs notifies `event`.
pub async fn until_some<T>(event: &Event, mut value: impl FnMut() -> Option<T>) -> T {
    loop {
        let notified = event.listen();
        if let Some(value) = value() {
            return value;
        }
        notified.await;
    }
}

/// Waits until `condition` holds. Code that changes its inputs notifies `event`.
pub async fn until(event: &Event, mut condition: impl FnMut() -> bool) {
    until_some(event, || condition().then_some(())).await;
}
