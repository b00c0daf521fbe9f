//! A core that several tables share and that outlives each of them: the in-memory state of a device
//! with metadata.
//!
//! Every table that was constructed on the device is a user of its core. A user serves the core
//! from a resume until it is paused. One user may serve it (a snapshot's store, a pool), or several
//! (the set of a cache device, with a user for each backing device): a user that finds others
//! serving it decides whether it takes part.
//!
//! ```text
//!   join -> [user] --serve_or: take the core, or open one--> [serves] --pause--> [paused]
//!              ^                                                ^                   |
//!              |                                                `----- serve_or ----+
//!              `--leave: the last user takes the core along-------------------------'
//! ```
//!
//! H1. A device has one core in use. Another one is opened only when no user serves the old one.
//!     Who opens it waits for the tasks that still work with the old one ([`Former`]).
//! H2. A task that finds, opens or closes a core holds the handover lock, until the core serves.
//! H3. A user serves only the core that is held here. Without a core no user serves, and none is
//!     the last that served.
//! H4. The core is held as long as there is a user; the last user takes it along. Every user that
//!     serves is counted.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use cairn_block::invariants;
use cairn_block::sync::Mutex;
use futures_util::lock::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};

struct State<C> {
    next_user: u64,
    users: usize,
    /// The users that serve the core now.
    live: BTreeSet<u64>,
    /// The user that began to serve it last.
    last: Option<u64>,
    core: Option<Arc<C>>,
    /// The core that was served last, perhaps in use by a task.
    former: Weak<C>,
}

impl<C> State<C> {
    /// Takes the core out of use, which no other user than this serves.
    fn clear(&mut self, user: u64) {
        self.live.remove(&user);
        assert!(self.live.is_empty(), "H1: no user serves a core that is replaced");
        self.core = None;
        self.last = None;
    }

    /// Checks what must hold whenever the lock is free.
    fn check_state(&self) {
        assert!(self.live.is_empty() || self.core.is_some(), "H3: a user serves the core");
        assert!(self.last.is_none() || self.core.is_some(), "H3: a user has served the core");
        assert!(self.live.len() <= self.users, "H4: who serves is a user");
        assert!(self.users > 0 || self.core.is_none(), "H4: the last user takes the core along");
    }
}

/// The core of a device, and its users.
pub(crate) struct SharedCore<C> {
    state: Mutex<State<C>>,
    handover: AsyncMutex<()>,
}

impl<C> Default for SharedCore<C> {
    fn default() -> SharedCore<C> {
        let (live, last, core, former) = (BTreeSet::new(), None, None, Weak::new());
        let state = State { next_user: 0, users: 0, live, last, core, former };
        SharedCore { state: Mutex::new(state), handover: AsyncMutex::default() }
    }
}

/// A table that uses the core of a device.
pub(crate) struct User<C> {
    shared: Arc<SharedCore<C>>,
    id: u64,
}

/// Which user serves the core that a user found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// Other users, now.
    Live,
    /// None now; the user that found it was the last.
    Own,
    /// None now; another user was the last, and is paused or gone.
    Paused,
}

/// The core before the one that a user opens (H1). Tasks may still work with it.
pub(crate) enum Former<C> {
    /// The user did not take it: its service ends now.
    Refused(Arc<C>),
    /// Its service has ended.
    Ended(Arc<C>),
    /// There is none.
    None,
}

/// The lock of H2.
pub(crate) type Handover<'a> = AsyncMutexGuard<'a, ()>;

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
    pub async fn handover(&self) -> Handover<'_> {
        self.shared.handover.lock().await
    }

    /// Begins to serve: the core that there is, if `takes` accepts it, or the one that `open` makes
    /// in its place. `set_up` is the last step that may refuse. The core serves on return; the
    /// caller keeps the lock of H2 until other users may find it.
    ///
    /// A core that other users serve can be taken or be an error, but cannot be replaced (H1).
    ///
    /// # Errors
    /// Those of the three steps. If `open` was called, no core is held.
    pub async fn serve_or<E>(
        &self,
        takes: impl FnOnce(&Arc<C>, Served) -> Result<bool, E>,
        open: impl AsyncFnOnce(Former<C>) -> Result<Arc<C>, E>,
        set_up: impl AsyncFnOnce(&Arc<C>) -> Result<(), E>,
    ) -> Result<(Arc<C>, Handover<'_>), E> {
        let handover = self.handover().await;
        let core = match self.find() {
            Some((core, served)) if takes(&core, served)? => core,
            Some((core, _)) => {
                self.clear();
                open(Former::Refused(core)).await?
            }
            None => {
                let former = self.shared.state.lock().former.upgrade();
                open(former.map_or(Former::None, Former::Ended)).await?
            }
        };
        set_up(&core).await?;
        self.serve(&core);
        Ok((core, handover))
    }

    /// The core, and which user serves it.
    fn find(&self) -> Option<(Arc<C>, Served)> {
        let state = self.shared.state.lock();
        let served = match state.live.iter().any(|user| *user != self.id) {
            true => Served::Live,
            false if state.last == Some(self.id) => Served::Own,
            false => Served::Paused,
        };
        state.core.clone().map(|core| (core, served))
    }

    /// The core that some user serves, or served last.
    pub fn core(&self) -> Option<Arc<C>> {
        self.shared.state.lock().core.clone()
    }

    fn serve(&self, core: &Arc<C>) {
        let mut state = self.shared.state.lock();
        let same = state.core.as_ref().is_none_or(|held| Arc::ptr_eq(held, core));
        assert!(same, "H1: a device has one core in use");
        state.live.insert(self.id);
        state.last = Some(self.id);
        state.former = Arc::downgrade(core);
        state.core = Some(core.clone());
        invariants::always(|| state.check_state());
    }

    /// True if the user serves the core.
    pub fn is_live(&self) -> bool {
        self.shared.state.lock().live.contains(&self.id)
    }

    /// The user is suspended.
    pub fn pause(&self) {
        let mut state = self.shared.state.lock();
        state.live.remove(&self.id);
        invariants::always(|| state.check_state());
    }

    /// The user serves the core no more, and no other does: the next one is new. The caller holds
    /// the lock of H2.
    pub fn clear(&self) {
        self.shared.state.lock().clear(self.id);
    }

    /// True if the user is the last that served the core, and there is no other user.
    pub fn is_alone(&self) -> bool {
        let state = self.shared.state.lock();
        state.users == 1 && state.last == Some(self.id)
    }

    /// The user has ended; it does nothing after this. Returns the core if it was the last user.
    pub fn leave(&self) -> Option<Arc<C>> {
        let mut state = self.shared.state.lock();
        state.users -= 1;
        state.live.remove(&self.id);
        if state.last == Some(self.id) {
            state.last = None;
        }
        let last = if state.users == 0 { state.core.take() } else { None };
        invariants::always(|| state.check_state());
        last
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;

#[cfg(all(test, shuttle))]
mod interleavings;
