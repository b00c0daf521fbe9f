//! What the origin was written, making it durable there, and what a failure may have lost.
//!
//! A failed flush of the origin may have dropped completed writes of anyone, and anyone may have
//! met it: another volume, another connection, writeback. So what counts is the origin's failure
//! count ([`cairn_block::FailureCount`]), not who was told. It is compared at each flush from
//! above, each copy and each batch of writeback, and at a suspend.
//!
//! O1. `known` is the value of the count up to which failures are dealt with. A flush covers what
//!     completed before only if the count was `known` until it ended.
//! O2. Copies of writeback are absorbed: a copy is noted as written only if the count has been
//!     `known` since before it began, and dealing with a failure takes out all that are noted.
//!     Their blocks are still dirty and committed, and are copied again. No client is told. (FUA
//!     copies are durable by themselves.)
//! O3. Writes around the cache have no other copy. If a failure is dealt with and acknowledged
//!     ones are not known durable, the mapped device's own count rises before the flush that met
//!     it ends. One that was in flight meanwhile may have been done before: the count rises when
//!     it ends. One with FUA answers for itself.
//! O4. So the origin's count is not passed on ([`cairn_block::Target::failures`]), and is
//!     acknowledged when it is dealt with: who uses the origin later need not hear of it.

use cairn_block::{Env, Io, IoError, IoResult, mutants};

use super::WriteCache;

/// Writes that completed on the origin, counted, and what is known of them.
pub(super) struct OriginWrites {
    known: u64,
    done: u64,
    /// How many of them a flush made durable.
    flushed: u64,
    /// How many of them a flush from above must cover.
    from_above: u64,
    /// How many there were with the last one that would be lost if it is not durable.
    acknowledged: u64,
}

impl OriginWrites {
    /// Of an origin whose failure count is `known` now.
    pub fn new(known: u64) -> OriginWrites {
        // What the origin got before this table was live is not known to be durable.
        OriginWrites { known, done: 1, flushed: 0, from_above: 1, acknowledged: 0 }
    }

    /// Up to which failure they are dealt with.
    pub fn known(&self) -> u64 {
        self.known
    }

    /// True if a flush from above needs nothing of the origin.
    pub fn are_durable(&self) -> bool {
        self.flushed >= self.from_above
    }

    /// A write ended that nobody above relies on.
    pub fn add(&mut self) {
        self.done += 1;
    }

    /// A discard from above ended, or a write that failed: nobody relies on what it left.
    pub fn add_undefined(&mut self) {
        self.done += 1;
        self.from_above = self.done;
    }

    /// A write from above succeeded, which began when `known` was `began` (the low bits). True if it
    /// may be lost already (O3).
    pub fn add_from_above(&mut self, began: u32) -> bool {
        self.done += 1;
        self.from_above = self.done;
        if began != self.known as u32 {
            return true;
        }
        self.acknowledged = self.done;
        false
    }

    /// Failures up to `count` are dealt with. True if acknowledged writes may be lost.
    fn fail(&mut self, count: u64) -> bool {
        self.known = self.known.max(count);
        let lost = self.acknowledged > self.flushed;
        self.acknowledged = self.acknowledged.min(self.flushed);
        lost
    }

    fn succeed(&mut self, covered: u64) {
        self.flushed = self.flushed.max(covered);
    }

    /// Checks what must hold between any two steps.
    #[cfg(test)]
    pub fn check(&self) {
        assert!(self.flushed <= self.done && self.from_above <= self.done);
        assert!(self.acknowledged <= self.from_above);
    }
}

impl WriteCache {
    /// Makes durable what clients did to the origin before, if there was anything.
    ///
    /// # Errors
    /// The flush failed, or acknowledged writes may be lost by another one's (O3).
    pub(super) async fn flush_origin(&self, env: &Env) -> IoResult {
        let (wanted, losses) = {
            let state = self.state.lock();
            (state.origin_writes.from_above, state.losses)
        };
        loop {
            self.look_at_origin(env);
            let known = {
                let state = self.state.lock();
                if state.losses != losses {
                    return Err(IoError::IO);
                }
                if state.origin_writes.flushed >= wanted {
                    return Ok(());
                }
                state.origin_writes.known
            };
            self.flush_origin_once(env, known).await?;
        }
    }

    /// One flush of the origin. True if it made durable what was written since the failure count
    /// was `known`; if not, the count has changed, and that is dealt with.
    ///
    /// # Errors
    /// The flush failed, which is dealt with.
    pub(super) async fn flush_origin_once(&self, env: &Env, known: u64) -> Result<bool, IoError> {
        // O1: this flush does not cover what a failure before it may have lost, also if the caller
        // has seen that failure in the count.
        self.look_at_origin(env);
        let covered = self.state.lock().origin_writes.done;
        let began = env.now();
        if let Err(error) = env.io(&self.origin, Io::flush()).await {
            self.origin_may_have_lost(env, error);
            return Err(error);
        }
        let name = "writecache: failure count of the origin";
        if !mutants::same(name, known, self.origin.failures()) {
            self.look_at_origin(env);
            return Ok(false);
        }
        let mut state = self.state.lock();
        state.pace.origin_flushed(env.now().since(began));
        state.origin_writes.succeed(covered);
        Ok(true)
    }

    /// Deals with failures of the origin that anyone met since the last look.
    pub(super) fn look_at_origin(&self, env: &Env) {
        let count = self.origin.failures();
        if count > self.state.lock().origin_writes.known {
            self.origin_may_have_lost(env, IoError::IO);
        }
    }

    /// Deals with a failure of the origin: O2, O3, O4.
    fn origin_may_have_lost(&self, env: &Env, error: IoError) {
        // What comes from here on is another failure.
        let count = self.origin.failures();
        self.origin.acknowledge_failures(count);
        let (written, lost) = {
            let mut state = self.state.lock();
            let lost = state.origin_writes.fail(count);
            if lost {
                self.lose(&mut state);
            }
            let absorbs = !self.config.writeback_with_fua();
            (if absorbs { state.written.take() } else { Vec::new() }, lost)
        };
        if lost {
            self.tell_loss_around(env);
        }
        if !written.is_empty() {
            self.origin_failed(env, &written, error);
        }
    }

    /// Logs that acknowledged writes may be lost.
    pub(super) fn tell_loss_around(&self, env: &Env) {
        let (volume, origin) = (&self.config.volume, &self.config.origin.argument);
        let key = format!("{volume}: {origin}: a failure may have lost writes around the cache");
        env.warn(&key, || key.clone());
    }
}
