//! The losses of a mapped device around its cache: acknowledged writes that a failure of the lower
//! disk may have dropped.
//!
//! L1. Each raises the failure count of the mapped device ([`cairn_block::FailureCount`]), so that
//!     each client's next flush fails once.
//! L2. A suspend fails while a loss since the last resume is *untold*: no client has got an error
//!     since. It may have come before the suspend, by another user of the disk or by a copy of
//!     writeback, and no client needs to flush again.
//! L3. The mapped device says when a client was told of all its failures, also of those that other
//!     targets pass on ([`cairn_block::Target::acknowledge_failures`]). The count of what was told
//!     has these, too, so that alone it does not tell whether this loss is among them.

use cairn_block::FailureCount;

/// Why a suspend fails whose last commit failed.
pub(crate) const FAILED: &str = "the device failed, what was last written may not be durable";
/// Why a suspend fails by L2. The loss may be one of a killed server.
pub(crate) const UNTOLD: &str = "acknowledged writes may be lost, and no client was told of it yet";

/// See the module's description. The owner guards it with its lock.
#[derive(Default)]
pub(crate) struct Losses {
    count: u64,
    are_untold: bool,
    /// The mapped device's own failure count after the last loss.
    last: u64,
}

impl Losses {
    /// How often acknowledged writes may have been lost.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Acknowledged writes may be lost (L1).
    pub fn add(&mut self, failures: &FailureCount) {
        self.count += 1;
        failures.raise();
        self.last = failures.count();
        self.are_untold = true;
    }

    /// A client was told of all failures (L3). A loss that came since then stays untold.
    pub fn told(&mut self, failures: &FailureCount) {
        self.are_untold &= failures.told() < self.last;
    }

    /// True if no client was told of a loss since the last resume (L2).
    pub fn are_untold(&self) -> bool {
        self.are_untold
    }

    /// The mapped device is resumed: the suspend before reported what was untold.
    pub fn resume(&mut self) {
        self.are_untold = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_untold_until_a_client_was_told_of_it() {
        let (failures, mut losses) = (FailureCount::default(), Losses::default());
        assert!(!losses.are_untold());
        losses.add(&failures);
        losses.told(&failures);
        assert!(losses.are_untold(), "the client was told of what came before it");
        failures.acknowledge(1);
        assert!(losses.are_untold(), "another target's failure may be what it was told of");
        losses.told(&failures);
        assert!(!losses.are_untold());
        losses.add(&failures);
        losses.resume();
        assert!(!losses.are_untold());
        assert_eq!(losses.count(), 2);
    }
}
