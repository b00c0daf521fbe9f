//! [`Calls`]: how many calls of the control socket are under way, and whether more are taken.
//!
//! Not counted are those that wait for an event, which change nothing, and the upgrade itself.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused};

/// See the module's description.
#[derive(Default)]
pub(super) struct Calls {
    under_way: AtomicUsize,
    is_closed: AtomicBool,
}

/// A call under way.
pub(super) struct Call<'a>(&'a Calls);

impl Calls {
    /// Begins a call. It counts before it looks, and [`Calls::close`] closes before it looks: so
    /// one of the two sees the other.
    ///
    /// # Errors
    /// No more are taken.
    pub fn begin(&self) -> Outcome<Call<'_>> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let call = Call(self);
        if self.is_closed() {
            let found = "a server that is being upgraded";
            return Err(refused(ConfigKind::Busy, "", "server", found, "one that takes verbs"));
        }
        Ok(call)
    }

    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    pub fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// True if none is under way.
    pub fn are_none(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) == 0
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::Calls;

    #[test]
    fn no_call_begins_once_they_are_closed_and_those_under_way_are_seen() {
        let calls = Calls::default();
        let call = calls.begin().unwrap();
        calls.close();
        assert!(!calls.are_none() && calls.begin().is_err());
        drop(call);
        assert!(calls.are_none());
        calls.open();
        calls.begin().unwrap();
    }
}
