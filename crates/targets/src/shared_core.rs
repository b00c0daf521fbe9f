//! A core that several tables share and that outlives each of them: the in-memory state of a device
//! with metadata.
//!
//! Every table that was constructed on the device is a user. One user at a time serves the core.
//! Another user takes it over when the first is suspended, or was dropped without closing it.
//!
//! ```text
//!   join -> [user] --find, open or take over, serve--> [live] --pause--> [paused]
//!                                                       [paused] --serve--> [live]
//!                                                       [paused] --leave--> gone
//! ```
//!
//! H1. A device has one core in use. Another one is made only when no task works with the old one.
//! H2. A task that finds, opens or closes a core holds the handover lock.

use std::sync::{Arc, Weak};

use cairn_block::invariants;
use cairn_block::sync::Mutex;
use futures_util::lock::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};

struct State<C> {
    next_user: u64,
    users: u64,
    /// The user that serves the core, or served it last.
    owner: Option<u64>,
    /// The owner serves requests.
    live: bool,
    core: Option<Arc<C>>,
    /// The core that was served last, perhaps in use by a task.
    former: Weak<C>,
}

impl<C> State<C> {
    /// Checks what must hold whenever the lock is free.
    fn check_state(&self) {
        assert!(!self.live || self.owner.is_some(), "H1: a live core has one owner");
        assert!(self.owner.is_none() || self.core.is_some(), "H1: an owner has served the core");
        assert!(self.users > 0 || self.core.is_none(), "H1: the last user takes the core along");
    }
}

/// The core of a device, and its users.
pub(crate) struct SharedCore<C> {
    state: Mutex<State<C>>,
    handover: AsyncMutex<()>,
}

impl<C> Default for SharedCore<C> {
    fn default() -> SharedCore<C> {
        let (owner, core, former) = (None, None, Weak::new());
        let state = State { next_user: 0, users: 0, owner, live: false, core, former };
        SharedCore { state: Mutex::new(state), handover: AsyncMutex::default() }
    }
}

/// A table that uses the core of a device.
pub(crate) struct User<C> {
    shared: Arc<SharedCore<C>>,
    id: u64,
}

/// The result of [`User::find`], for a user that is about to serve.
pub(crate) enum Found<C> {
    /// The core that it served before.
    Own(Arc<C>),
    /// The core of a user that is paused or gone.
    Other(Arc<C>),
    /// No core. Tasks may still work with the former one.
    Nothing(Weak<C>),
    /// Another user is live.
    Busy,
}

impl<C> SharedCore<C> {
    /// Adds a user.
    pub fn join(self: &Arc<SharedCore<C>>) -> User<C> {
        let mut state = self.state.lock();
        state.next_user += 1;
        state.users += 1;
        User { shared: self.clone(), id: state.next_user }
    }
}

impl<C> User<C> {
    /// The shared core that it uses.
    pub fn shared(&self) -> &Arc<SharedCore<C>> {
        &self.shared
    }

    /// The lock of H2.
    pub async fn handover(&self) -> AsyncMutexGuard<'_, ()> {
        self.shared.handover.lock().await
    }

    /// Looks for a core to serve.
    pub fn find(&self) -> Found<C> {
        let state = self.shared.state.lock();
        let own = state.owner == Some(self.id);
        match &state.core {
            Some(_) if state.live && !own => Found::Busy,
            Some(core) if own => Found::Own(core.clone()),
            Some(core) => Found::Other(core.clone()),
            None => Found::Nothing(state.former.clone()),
        }
    }

    /// The core that some user serves, or served last.
    pub fn core(&self) -> Option<Arc<C>> {
        self.shared.state.lock().core.clone()
    }

    /// The user serves `core` from now on.
    pub fn serve(&self, core: &Arc<C>) {
        let mut state = self.shared.state.lock();
        state.owner = Some(self.id);
        state.live = true;
        state.former = Arc::downgrade(core);
        state.core = Some(core.clone());
        invariants::always(|| state.check_state());
    }

    /// True if the user serves the core.
    pub fn is_live(&self) -> bool {
        let state = self.shared.state.lock();
        state.live && state.owner == Some(self.id)
    }

    /// The user is suspended.
    pub fn pause(&self) {
        let mut state = self.shared.state.lock();
        if state.owner == Some(self.id) {
            state.live = false;
        }
        invariants::always(|| state.check_state());
    }

    /// No user serves the core any more: the next one is new.
    pub fn clear(&self) {
        let mut state = self.shared.state.lock();
        state.core = None;
        state.owner = None;
        state.live = false;
    }

    /// True if the user owns the core and there is no other user.
    pub fn is_alone(&self) -> bool {
        let state = self.shared.state.lock();
        state.users == 1 && state.owner == Some(self.id)
    }

    /// The user has ended; it does nothing after this. Returns the core if it was the last user.
    pub fn leave(&self) -> Option<Arc<C>> {
        let mut state = self.shared.state.lock();
        state.users -= 1;
        if state.owner == Some(self.id) {
            state.owner = None;
            state.live = false;
        }
        let last = if state.users == 0 { state.core.take() } else { None };
        invariants::always(|| state.check_state());
        last
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, SharedCore};
    use std::sync::Arc;

    #[test]
    fn a_user_takes_the_core_over_once_its_owner_is_paused() {
        let shared = Arc::<SharedCore<u32>>::default();
        let (first, second) = (shared.join(), shared.join());
        assert!(matches!(first.find(), Found::Nothing(_)));
        first.serve(&Arc::new(7));
        assert!(matches!(second.find(), Found::Busy), "H1");
        first.pause();
        assert!(matches!(first.find(), Found::Own(core) if *core == 7));
        let Found::Other(core) = second.find() else { panic!("it is paused") };
        second.serve(&core);
        assert!(second.is_live() && !first.is_live() && !second.is_alone());
    }

    #[test]
    #[should_panic = "H1"]
    fn a_live_core_without_an_owner_is_noticed() {
        let shared = Arc::<SharedCore<u32>>::default();
        let user = shared.join();
        user.serve(&Arc::new(7));
        shared.state.lock().owner = None;
        shared.state.lock().check_state();
    }

    #[test]
    fn the_last_user_takes_the_core_along() {
        let shared = Arc::<SharedCore<u32>>::default();
        let (first, second) = (shared.join(), shared.join());
        first.serve(&Arc::new(7));
        assert!(first.leave().is_none());
        assert!(matches!(second.find(), Found::Other(_)), "left behind for the second");
        assert_eq!(second.leave().as_deref(), Some(&7));
    }
}
