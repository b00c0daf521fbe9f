//! [`CallOff`]: ends a suspend that still waits for requests.
//!
//! O1. A suspend that is called off before its last request has left lets requests in to the live
//!     table again. None is lost: those at the gate enter. Those that a target hands back
//!     (`Target::presuspend`) go to the gate or, once it is open, enter again.
//! O2. A later call has no effect: the targets stop, and the device is suspended.

use event_listener::Event;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::wait::until;

/// Of one suspend; called from any thread, before the suspend begins or while it runs.
#[derive(Default)]
pub struct CallOff {
    called: AtomicBool,
    event: Event,
}

impl CallOff {
    /// Calls the suspend off.
    pub fn call(&self) {
        self.called.store(true, Ordering::Release);
        self.event.notify(usize::MAX);
    }

    /// True once the suspend was called off.
    pub fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }

    /// Waits until the suspend is called off.
    pub(crate) async fn called(&self) {
        until(&self.event, || self.is_called()).await;
    }
}
