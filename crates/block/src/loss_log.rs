//! The loss log: a durable record outside a target, for facts that the target's own device can no
//! longer store.
//!
//! A snapshot that ends records this on its COW device before its origin is written without it. If
//! that device takes no more writes, the end must be recorded elsewhere. Otherwise a later start
//! would trust exceptions that are no longer true. A target knows no such place; the server of the
//! volume may.

use std::sync::{Arc, OnceLock};

use event_listener::Event;

use crate::wait::until_some;

/// Keeps what is said of one volume.
pub trait LossLog: Send + Sync {
    /// The volume's content is lost. Called on a reactor: must not wait. The receipt is given
    /// from any thread, when it is durably known; dropped, it says that it is not.
    fn content_lost(&self, receipt: Receipt);

    /// The volume's own device says that its content is lost, after all. Must not wait.
    fn content_marked(&self) {}
}

#[derive(Default)]
struct Answer {
    kept: OnceLock<bool>,
    told: Event,
}

impl Answer {
    fn tell(&self, kept: bool) {
        self.kept.get_or_init(|| kept);
        self.told.notify(usize::MAX);
    }
}

/// What a loss log gives back.
pub struct Receipt(Arc<Answer>);

impl Receipt {
    /// It is durably known.
    pub fn give(self) {
        self.0.tell(true);
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.0.tell(false);
    }
}

/// Tells a loss log that a volume's content is lost, and waits. True if it is durably known.
pub(crate) async fn tell_content_lost(loss_log: &dyn LossLog) -> bool {
    until_kept(|receipt| loss_log.content_lost(receipt)).await
}

/// Hands out a receipt, and waits. True if it was given.
pub(crate) async fn until_kept(tell: impl FnOnce(Receipt)) -> bool {
    let answer = Arc::<Answer>::default();
    tell(Receipt(answer.clone()));
    until_some(&answer.told, || answer.kept.get().copied()).await
}
