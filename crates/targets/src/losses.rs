//! The losses of a mapped device around its cache: acknowledged writes that a failure of the lower
//! disk may have dropped.
//!
//! L1. Each raises the failure count of the mapped device ([`cairn_block::FailureCount`]), so that
//!     each client's next flush fails once.
//! L2. A suspend fails while a loss since the last resume is *untold*: no client has got an error
//!     since. It may have come before the suspend, by another user of the disk or by a copy of
//!     writeback, and no client needs to flush again.

use cairn_block::FailureCount;

/// See the module's description. The owner guards it with its lock.
#[derive(Default)]
pub(crate) struct Losses {
    count: u64,
    /// The failure count of the mapped device after the last loss since the last resume; 0 if there
    /// is none.
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
    }

    /// True if no client was told of a loss since the last resume (L2).
    pub fn are_untold(&self, failures: &FailureCount) -> bool {
        failures.told() < self.last
    }

    /// The mapped device is resumed: the suspend before reported what was untold.
    pub fn resume(&mut self) {
        self.last = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_untold_until_a_client_was_told_of_it() {
        let (failures, mut losses) = (FailureCount::default(), Losses::default());
        assert!(!losses.are_untold(&failures));
        losses.add(&failures);
        failures.raise();
        assert!(losses.are_untold(&failures));
        failures.acknowledge(1);
        assert!(!losses.are_untold(&failures), "the failure after it is another's");
        losses.add(&failures);
        assert!(losses.are_untold(&failures));
        losses.resume();
        assert!(!losses.are_untold(&failures));
        assert_eq!(losses.count(), 2);
    }
}
