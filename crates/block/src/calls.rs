//! [`Calls`]: messages, block status and other calls into the targets of a live table, ordered
//! with the verbs that stop and start those targets.
//!
//! C1. No call runs while a target's `suspend`, `close` or `resume` does. These wait for the
//!     running calls, and new calls wait for them.
//! C2. A call never waits for a stop that waits for it. A stop announces itself
//!     ([`Calls::announce`]) before the targets give back parked requests. So whatever a call waits
//!     for ends, and no new wait begins.

use event_listener::Event;

use crate::sync::Mutex;
use crate::wait::until_some;

#[derive(Default)]
struct State {
    running: usize,
    /// At most one: verbs of a device take turns.
    stopping: bool,
}

/// The calls of one mapped device.
#[derive(Default)]
pub(crate) struct Calls {
    state: Mutex<State>,
    changed: Event,
}

/// A call that runs, until it is dropped.
#[must_use]
pub struct Call<'a>(&'a Calls);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.state.lock().running -= 1;
        self.0.changed.notify(usize::MAX);
    }
}

/// No new call begins while it exists.
pub(crate) struct Stop<'a>(&'a Calls);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.state.lock().stopping = false;
        self.0.changed.notify(usize::MAX);
    }
}

impl Stop<'_> {
    /// Waits until every call has ended that began before.
    pub async fn wait(&self) {
        self.0.until(|state| (state.running == 0).then_some(())).await;
    }
}

impl Calls {
    /// Begins a call, after the stop under way.
    pub async fn begin(&self) -> Call<'_> {
        let enter = |state: &mut State| (!state.stopping).then(|| state.running += 1);
        self.until(enter).await;
        Call(self)
    }

    /// Lets no new call begin.
    pub fn announce(&self) -> Stop<'_> {
        let stopping = std::mem::replace(&mut self.state.lock().stopping, true);
        debug_assert!(!stopping, "verbs of a device take turns");
        Stop(self)
    }

    async fn until<T>(&self, mut condition: impl FnMut(&mut State) -> Option<T>) -> T {
        until_some(&self.changed, || condition(&mut self.state.lock())).await
    }
}
