//! What the origin was written, and making it durable there.
//!
//! A drive tells one flusher of its trouble, and may have dropped what others wrote: their own
//! flushes succeed afterwards. Therefore
//! - one flush of the origin is under way at a time and serves whoever waits for one; who wants
//!   more than it covers has the next one made. So nobody's flush overtakes one that fails;
//! - a flush that fails, fails for everybody who waits for one then;
//! - if it may have lost writes from above, the next flush from above fails, whoever had asked
//!   for this one ([`Untold`]): writeback has nobody above to tell. A write that was in flight
//!   when a flush failed may have been done before, and counts as lost, too.
//!
//! Copies of writeback that may be lost stay dirty: see `writeback`.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{ConfigError, Env, Io, IoError, IoResult, Registry};
use event_listener::EventListener;

use super::WriteCache;

/// That writes from above may be lost and nobody above knows. Belongs to the origin: it outlives
/// suspends, and tables that follow each other.
#[derive(Default)]
pub(super) struct Untold(Mutex<Loss>);

#[derive(Default)]
struct Loss {
    untold: Option<IoError>,
    /// How often one was told, and the last one.
    told: u64,
    last: Option<IoError>,
}

impl Untold {
    pub fn keep(&self, error: IoError) {
        self.0.lock().untold = Some(error);
    }

    pub fn is_none(&self) -> bool {
        self.0.lock().untold.is_none()
    }

    /// How often one was told so far.
    pub fn told(&self) -> u64 {
        self.0.lock().told
    }

    /// Tells it to a flush that came when there had been `told`. Others that are under way then
    /// are told, too: they may have come after the writes, and this one before.
    pub fn tell(&self, told: u64) -> IoResult {
        let mut loss = self.0.lock();
        if let Some(error) = loss.untold.take() {
            loss.last = Some(error);
            loss.told += 1;
        }
        if loss.told == told { Ok(()) } else { loss.last.map_or(Ok(()), Err) }
    }
}

/// Writes that completed on the origin, and its flushes.
pub(super) struct OriginWrites {
    done: u64,
    /// How many of them a flush made durable.
    flushed: u64,
    /// How many there were with the last one from above.
    from_above: u64,
    /// A flush is under way.
    flushing: bool,
    /// How many flushes failed, and how the last one did.
    failures: u64,
    failed: IoError,
}

/// What comes next for who wants the origin flushed.
enum Next {
    Answer(IoResult),
    Begin(EventListener),
    Wait(EventListener),
}

impl OriginWrites {
    pub fn new() -> OriginWrites {
        // What the origin got before this table was live is not known to be durable.
        let (done, from_above) = (1, 1);
        OriginWrites {
            done,
            flushed: 0,
            from_above,
            flushing: false,
            failures: 0,
            failed: IoError::IO,
        }
    }

    pub fn are_durable(&self) -> bool {
        self.flushed == self.done
    }

    /// How many flushes failed so far.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// What was written meanwhile is not lost: no flush failed since there had been `failures`.
    ///
    /// # Errors
    /// The last one that did.
    pub fn kept_since(&self, failures: u64) -> IoResult {
        if failures == self.failures { Ok(()) } else { Err(self.failed) }
    }

    /// A write ended that nobody above relies on.
    pub fn add(&mut self) {
        self.done += 1;
    }

    /// A write from above ended, which began when there had been `failures` (the low bits).
    ///
    /// # Errors
    /// It may be lost.
    pub fn add_from_above(&mut self, failures: u32) -> IoResult {
        self.done += 1;
        self.from_above = self.done;
        if failures == self.failures as u32 { Ok(()) } else { Err(self.failed) }
    }

    /// A flush failed. True if writes from above may be lost.
    pub fn fail(&mut self, error: IoError) -> bool {
        self.flushing = false;
        self.failures += 1;
        self.failed = error;
        self.from_above > self.flushed
    }

    fn succeed(&mut self, covered: u64) {
        self.flushing = false;
        self.flushed = covered;
    }

    /// Checks what must hold between any two steps.
    #[cfg(test)]
    pub fn check(&self) {
        assert!(self.flushed <= self.done && self.from_above <= self.done);
    }
}

impl WriteCache {
    /// Makes writes to the origin durable that completed before, if there were any.
    ///
    /// # Errors
    /// A flush failed meanwhile, whoever had asked for it.
    pub(super) async fn flush_origin(&self, env: &Env) -> IoResult {
        let (wanted, failures) = {
            let state = self.state.lock();
            (state.origin_writes.done, state.origin_writes.failures)
        };
        loop {
            let ended = match self.next_flush(wanted, failures) {
                Next::Answer(result) => return result,
                Next::Begin(ended) => {
                    self.spawn(env, |cache, env| async move { cache.flush_once(&env).await });
                    ended
                }
                Next::Wait(ended) => ended,
            };
            ended.await;
        }
    }

    fn next_flush(&self, wanted: u64, failures: u64) -> Next {
        let mut state = self.state.lock();
        let writes = &mut state.origin_writes;
        if let Err(error) = writes.kept_since(failures) {
            Next::Answer(Err(error))
        } else if writes.flushed >= wanted {
            Next::Answer(Ok(()))
        } else if std::mem::replace(&mut writes.flushing, true) {
            Next::Wait(self.changed.listen())
        } else {
            Next::Begin(self.changed.listen())
        }
    }

    async fn flush_once(&self, env: &Env) {
        let covered = self.state.lock().origin_writes.done;
        let began = env.now();
        match env.io(&self.origin, Io::flush()).await {
            Ok(()) => {
                let mut state = self.state.lock();
                state.pace.origin_flushed(env.now().since(began));
                state.origin_writes.succeed(covered);
            }
            Err(error) => self.origin_flush_failed(env, error),
        }
        self.changed.notify(usize::MAX);
    }
}

/// The `Untold` of an origin, for as long as a table with it is there.
pub(super) fn untold_of(registry: &Registry, origin: &str) -> Result<Arc<Untold>, ConfigError> {
    Ok(registry.kin(&registry.identify(origin)?, Arc::<Untold>::default))
}
