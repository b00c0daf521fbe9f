//! Flushes of one lower disk: which completed writes a flush made durable, and what a failure of
//! the disk may have lost.
//!
//! Writes are counted as they complete. A flush covers the writes that had completed when it was
//! submitted, if no failure came between. A failed flush by any user may have dropped completed
//! writes, so the disk's failure count ([`cairn_block::FailureCount`]) decides, not the result of
//! the owner's own flush.
//!
//! F1. `known` is the failure count up to which the owner has handled failures. It handles a
//!     failure ([`Flushes::fail`]) before it records a later flush ([`Flushes::succeed`]).
//! F2. A write is acknowledged if a client got its success. If an acknowledged write is not covered
//!     when a failure is handled, the owner counts a loss for its clients.
//! F3. A write that was in flight during a failure may have been done before it: if `known` has
//!     changed since the write began, it counts as lost when it completes.
//!
//! Counting takes the owner's lock at each completed write. The origin of a write cache needs it:
//! most of what the cache writes there is its own and can be written again, so only the counts say
//! whether a client lost something. A snapshot's COW device and a pool's data device do without,
//! and spare their ready paths the lock. They compare the failure count with the last one that they
//! handled. After a failure a snapshot reports a loss if a client wrote in place since the last
//! suspend (`snapshot/losses.rs`). A pool passes the failure on to its volumes, and fails the
//! commit of new blocks (`thin/losses.rs`).

/// See the module's description. The owner guards it with its lock.
pub(crate) struct Flushes {
    known: u64,
    done: u64,
    /// How many writes a flush made durable.
    covered: u64,
    /// How many writes a client's flush must cover.
    wanted: u64,
    /// The number of the last acknowledged write that is not durable by itself.
    acknowledged: u64,
}

impl Flushes {
    /// For a disk whose failure count is `known`.
    pub fn new(known: u64) -> Flushes {
        // Earlier writes to the disk are not known to be durable.
        Flushes { known, done: 1, covered: 0, wanted: 1, acknowledged: 0 }
    }

    /// The failure count up to which failures are handled.
    pub fn known(&self) -> u64 {
        self.known
    }

    /// How many writes have completed: what a flush that begins now covers.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// How many writes a client's flush that begins now must cover.
    pub fn wanted(&self) -> u64 {
        self.wanted
    }

    /// True if a flush has covered this many writes.
    pub fn has_covered(&self, wanted: u64) -> bool {
        self.covered >= wanted
    }

    /// True if a client's flush needs no flush of this disk.
    pub fn are_durable(&self) -> bool {
        self.has_covered(self.wanted)
    }

    /// A write of the owner's completed: no client relies on it.
    pub fn add_own(&mut self) {
        self.done += 1;
    }

    /// A client's discard completed, or its write failed: the client relies on no content, but its
    /// next flush covers what is there.
    pub fn add_undefined(&mut self) {
        self.done += 1;
        self.wanted = self.done;
    }

    /// A client's write succeeded that began when the low bits of `known` were `began`. True if it
    /// may be lost already (F3).
    pub fn add_acknowledged(&mut self, began: u32) -> bool {
        self.add_undefined();
        if began != self.known as u32 {
            return true;
        }
        self.acknowledged = self.done;
        false
    }

    /// Deals with failures up to `count`. True if acknowledged writes may be lost (F2).
    pub fn fail(&mut self, count: u64) -> bool {
        self.known = self.known.max(count);
        let lost = self.acknowledged > self.covered;
        self.acknowledged = self.acknowledged.min(self.covered);
        lost
    }

    /// A flush succeeded that began after so many writes, with no failure since (F1).
    pub fn succeed(&mut self, covered: u64) {
        self.covered = self.covered.max(covered);
    }

    /// Checks what must hold between any two steps.
    pub fn check_state(&self) {
        assert!(self.covered <= self.done, "F1: a flush covers what has completed");
        assert!(self.wanted <= self.done, "F2: a flush waits for what has completed");
        assert!(self.acknowledged <= self.wanted, "F2: a flush covers what is acknowledged");
    }
}

#[cfg(test)]
mod tests {
    use super::Flushes;

    #[test]
    fn a_failure_loses_acknowledged_writes_that_no_flush_covered() {
        let mut flushes = Flushes::new(3);
        assert!(!flushes.fail(4), "what came before belongs to nobody");
        assert!(!flushes.add_acknowledged(4));
        flushes.succeed(flushes.done());
        assert!(flushes.are_durable() && !flushes.fail(5), "it was durable");
        assert!(!flushes.add_acknowledged(5));
        assert!(!flushes.are_durable() && flushes.fail(6));
        assert!(!flushes.fail(7), "a loss counts once");
    }

    #[test]
    #[should_panic = "F1"]
    fn a_flush_that_covers_later_writes_is_noticed() {
        let mut flushes = Flushes::new(0);
        flushes.check_state();
        flushes.succeed(flushes.done() + 1);
        flushes.check_state();
    }

    #[test]
    fn a_write_that_was_in_flight_during_a_failure_counts_as_lost() {
        let mut flushes = Flushes::new(0);
        let began = flushes.known() as u32;
        flushes.fail(1);
        assert!(flushes.add_acknowledged(began), "F3");
        flushes.add_own();
        flushes.add_undefined();
        assert!(!flushes.fail(2), "no client relies on these");
        flushes.check_state();
    }
}
