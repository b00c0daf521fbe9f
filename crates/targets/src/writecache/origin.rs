//! Flushes of the origin: making durable what it was written, and dealing with its failures.
//!
//! What a flush covered and what a failure may have lost is counted by `flushes` (F1 to F3). The
//! origin's failure count is compared at each client's flush, each copy, each batch of writeback,
//! and at a suspend.
//!
//! O1. A failure is dealt with before a flush that comes after it is noted (F1): otherwise that
//!     flush would seem to cover what the failure lost.
//! O2. Copies of writeback are absorbed: a copy is noted as written only if no failure came since
//!     before it began, and dealing with a failure takes out all copies that are noted. Their
//!     blocks are still dirty and committed, and are copied again. No client is told. (FUA copies
//!     are durable by themselves.)
//! O3. Writes around the cache have no other copy. If a failure may have lost acknowledged ones
//!     (F2, F3), the mapped device's own failure count rises before the flush that met it ends.
//!     One with FUA answers for itself.
//! O4. So the origin's count is not passed on ([`cairn_block::Target::failures`]), and is
//!     acknowledged when it is dealt with: later users of the origin need not hear of it.

use cairn_block::{Env, Io, IoError, IoResult, mutants};

use super::WriteCache;

impl WriteCache {
    /// Makes durable what clients did to the origin before, if there was anything.
    ///
    /// # Errors
    /// The flush failed, or acknowledged writes may be lost by another one's (O3).
    pub(super) async fn flush_origin(&self, env: &Env) -> IoResult {
        let (wanted, losses) = {
            let state = self.state.lock();
            (state.origin_flushes.wanted(), state.losses)
        };
        loop {
            self.look_at_origin(env);
            let known = {
                let state = self.state.lock();
                if state.losses != losses {
                    return Err(IoError::IO);
                }
                if state.origin_flushes.has_covered(wanted) {
                    return Ok(());
                }
                state.origin_flushes.known()
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
        let covered = self.state.lock().origin_flushes.done();
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
        state.origin_flushes.succeed(covered);
        Ok(true)
    }

    /// Deals with failures of the origin that anyone met since the last look.
    pub(super) fn look_at_origin(&self, env: &Env) {
        let count = self.origin.failures();
        if count > self.state.lock().origin_flushes.known() {
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
            let lost = state.origin_flushes.fail(count);
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
