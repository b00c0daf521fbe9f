//! [`LiveLog`]: the crash log of a live target that commits all that it has recorded together: a
//! clone, an image.
//!
//! V1. Without a log there is room for everything.
//! V2. A log that has not all records is lost: a kill loses what was answered, and the next process
//!     tells its clients. That stays so, although clients were told of other losses, until a commit
//!     is durable. Then the log starts over.

use cairn_block::{Base, CrashLog, Record};

/// See the module's description. The owner guards it with its lock.
#[derive(Default)]
pub(crate) struct LiveLog {
    log: Option<CrashLog>,
    /// Clients were not told of all losses.
    owes: bool,
}

impl LiveLog {
    /// Records from now on.
    pub fn keep(&mut self, log: Option<CrashLog>) {
        self.log = log;
    }

    /// Makes room for one record. False if the caller has to wait for a commit.
    pub fn reserve(&mut self) -> bool {
        self.log.as_mut().is_none_or(CrashLog::reserve)
    }

    /// What a record was reserved for is not done.
    pub fn cancel(&mut self) {
        if let Some(log) = &mut self.log {
            log.cancel();
        }
    }

    /// Appends a record for which there is room. True if a commit should begin, since there is not
    /// much left.
    pub fn append(&mut self, record: Record) -> bool {
        let Some(log) = &mut self.log else { return false };
        log.append(record);
        log.is_half_full()
    }

    /// A commit begins, of all records until now. It will leave this state; with None,
    /// [`Self::name_state`] says which.
    pub fn seal(&mut self, state: Option<u64>) {
        if let Some(log) = &mut self.log {
            log.seal(state);
        }
    }

    /// The commit will leave this state.
    pub fn name_state(&mut self, state: u64) {
        if let Some(log) = &mut self.log {
            log.name_state(state);
        }
    }

    /// The commit is durable.
    pub fn committed(&mut self) {
        if let Some(log) = &mut self.log {
            log.empty_sealed();
        }
    }

    /// Starts over, on top of what the device has now, with what is not durable. If that has no
    /// room, or a failure may have lost it, a kill loses it (V2).
    pub fn restart(
        &mut self,
        base: &Base,
        mut records: impl Iterator<Item = Record>,
        are_kept: bool,
    ) {
        let Some(log) = &mut self.log else { return };
        // A kill before all records are there is a loss.
        log.count_loss();
        log.begin(base);
        if !(are_kept && records.all(|record| log.append_unreserved(record))) {
            log.lose();
        } else if !self.owes {
            log.told();
        }
    }

    /// Clients are to be told of a loss, also after a kill.
    pub fn count_loss(&mut self) {
        self.owes = true;
        if let Some(log) = &mut self.log {
            log.count_loss();
        }
    }

    /// What is not durable may be lost: a later process replays nothing.
    pub fn lose(&mut self) {
        if let Some(log) = &mut self.log {
            log.lose();
        }
    }

    /// Failures of the device so far have lost nothing that is recorded.
    pub fn survived(&mut self, failures: u64) {
        if let Some(log) = &mut self.log {
            log.survived(failures);
        }
    }

    /// True if a kill now would lose what was answered, since the log has not all of it.
    pub fn is_lost(&self) -> bool {
        self.log.as_ref().is_some_and(CrashLog::is_lost)
    }

    /// A client was told of all losses. A kill may still lose more (V2).
    pub fn told(&mut self) {
        self.owes = false;
        if let Some(log) = self.log.as_mut().filter(|log| !log.is_lost()) {
            log.told();
        }
    }
}
