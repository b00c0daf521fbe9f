//! Flushes of the origin, and handling of its failures.
//!
//! `flushes` counts what a flush covered and what a failure may have lost (F1 to F3). The origin's
//! failure count is compared at each client's flush, each copy, each batch of writeback, and at a
//! suspend.
//!
//! O1. A failure is handled before any flush that comes after it is recorded (F1). Otherwise that
//!     flush would seem to cover the writes that the failure lost.
//! O2. Failures of writeback's copies are absorbed. A copy is recorded as written only if the
//!     failure count did not change since before the copy began. Handling a failure takes out all
//!     recorded copies. Their blocks are still dirty and committed, and are copied again. No client
//!     gets an error. (FUA copies are durable by themselves.)
//! O3. Writes around the cache have no other copy. If a failure may have lost acknowledged ones
//!     (F2, F3), the mapped device's own failure count rises before the flush that met the failure
//!     ends. A write with FUA reports its own result.
//! O4. So the origin's count is not passed on ([`cairn_block::Target::failures`]). It is
//!     acknowledged when the failure is handled: later users of the origin do not see it.
//! O5. A loss is counted, in the crash log too, before its failure is acknowledged. So a kill in
//!     between hides nothing: a start that may write takes a failure that was not acknowledged for
//!     a loss, of what a killed process had written around the cache.

use cairn_block::{Env, IoError, IoResult, mutants};

use super::WriteCache;

impl WriteCache {
    /// If another host uses the origin (M7 of the crate's `origin_marker`): what the cache has
    /// belongs to no origin any more.
    pub(super) fn break_down_if_lost(&self, env: &Env) {
        if self.marker.is_lost() && !self.state.lock().broken {
            let why = "another host uses its origin: all requests fail";
            self.break_down(env, why, IoError::FENCED);
        }
    }

    /// Makes earlier client writes, discards and zeroes to the origin durable, if there were any.
    ///
    /// # Errors
    /// The flush failed, or another flush found that acknowledged writes may be lost (O3).
    pub(super) async fn flush_origin(&self, env: &Env) -> IoResult {
        let (wanted, losses) = {
            let state = self.state.lock();
            (state.origin_flushes.wanted(), state.losses.count())
        };
        loop {
            self.look_at_origin(env);
            let known = {
                let state = self.state.lock();
                if state.losses.count() != losses {
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
    /// was `known`. False if the count has changed; the failure has then been handled.
    ///
    /// # Errors
    /// The flush failed. The failure has been handled.
    pub(super) async fn flush_origin_once(&self, env: &Env, known: u64) -> Result<bool, IoError> {
        // O1: this flush does not cover what an earlier failure may have lost, even if the caller
        // has already seen that failure in the count.
        self.look_at_origin(env);
        let covered = self.state.lock().origin_flushes.done();
        let began = env.now();
        if let Err(error) = env.make_durable(&self.origin).await {
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

    /// Handles failures of the origin since the last call, whichever user met them.
    pub(super) fn look_at_origin(&self, env: &Env) {
        let count = self.origin.failures();
        if count > self.state.lock().origin_flushes.known() {
            self.origin_may_have_lost(env, IoError::IO);
        }
    }

    /// Handles a failure of the origin: O2, O3, O4.
    fn origin_may_have_lost(&self, env: &Env, error: IoError) {
        // A later change of the count is another failure.
        let count = self.origin.failures();
        let (written, lost) = {
            let mut state = self.state.lock();
            let lost = state.origin_flushes.fail(count);
            if lost {
                self.lose(&mut state);
            }
            let absorbs = !self.config.writeback_with_fua;
            (if absorbs { state.written.take() } else { Vec::new() }, lost)
        };
        self.origin.acknowledge_failures(count);
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
