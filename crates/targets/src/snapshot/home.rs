//! Who serves the snapshot of a COW device: the handover of its core between tables.
//!
//! A home is the kin of all targets on one COW device. One of them owns the core; another may
//! take it over when the owner is suspended, or has gone and left it behind because somebody was
//! about to take it.
//!
//! H1. A COW device has one living core. A new one is made only when nobody works with the old.

use std::sync::{Arc, Weak};

use cairn_block::sync::Mutex;

use super::core::Core;

/// Names a target on a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TenantId(u64);

#[derive(Default)]
struct State {
    next_tenant: u64,
    /// Targets that were constructed and are not dropped.
    tenants: u64,
    owner: Option<TenantId>,
    /// The owner serves requests.
    active: bool,
    core: Option<Arc<Core>>,
    /// The core before, perhaps in use by a task.
    former: Weak<Core>,
}

/// The home of a COW device's snapshot.
#[derive(Default)]
pub(super) struct Home {
    state: Mutex<State>,
    /// Held while a target finds or makes the core it will serve.
    pub door: futures_util::lock::Mutex<()>,
}

/// What a target that is about to serve finds.
pub(super) enum Found {
    /// It owns this core already.
    Own(Arc<Core>),
    /// Left by, or taken from, a suspended target.
    Other(Arc<Core>),
    /// Nothing; wait until nobody uses what was there before.
    Nothing(Weak<Core>),
    /// A live target serves it.
    Busy,
}

impl Home {
    /// A target was constructed.
    pub fn move_in(&self) -> TenantId {
        let mut state = self.state.lock();
        state.next_tenant += 1;
        state.tenants += 1;
        TenantId(state.next_tenant)
    }

    /// Looks for a core that `tenant` may serve.
    pub fn find(&self, tenant: TenantId) -> Found {
        let state = self.state.lock();
        let own = state.owner == Some(tenant);
        match &state.core {
            Some(_) if state.active && !own => Found::Busy,
            Some(core) if own => Found::Own(core.clone()),
            Some(core) => Found::Other(core.clone()),
            None => Found::Nothing(state.former.clone()),
        }
    }

    /// `tenant` serves `core` from now on.
    pub fn serve(&self, tenant: TenantId, core: &Arc<Core>) {
        let mut state = self.state.lock();
        state.owner = Some(tenant);
        state.active = true;
        state.former = Arc::downgrade(core);
        state.core = Some(core.clone());
    }

    /// Nobody serves the core any more; another will be made.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.core = None;
        state.owner = None;
        state.active = false;
    }

    /// `tenant` is suspended.
    pub fn pause(&self, tenant: TenantId) {
        let mut state = self.state.lock();
        if state.owner == Some(tenant) {
            state.active = false;
        }
    }

    /// True if `tenant` owns the core and nobody else is about to serve it.
    pub fn is_alone(&self, tenant: TenantId) -> bool {
        let state = self.state.lock();
        state.tenants == 1 && state.owner == Some(tenant)
    }

    /// A target has ended. Answers the core if nobody is left to serve it.
    pub fn move_out(&self, tenant: TenantId) -> Option<Arc<Core>> {
        let mut state = self.state.lock();
        state.tenants -= 1;
        if state.owner == Some(tenant) {
            state.owner = None;
            state.active = false;
        }
        if state.tenants == 0 { state.core.take() } else { None }
    }
}
