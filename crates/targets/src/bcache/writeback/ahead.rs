//! Writes over dirty data while nothing may become dirty: the backing device is about to leave its
//! set (R9), or the map of dirty zones cannot be written (Y5). What is dirty is written back first,
//! and is clean, durably. Then the write goes on as over clean data.
//!
//! Z1. While the device is about to leave, no write makes anything dirty. So each dirty extent is
//!     written back once, by a drain or ahead of a write, and the drain ends although clients
//!     overwrite what is dirty all the time.
//! Z2. The batch has the turn of batches: none holds the same sectors (R7), and no discard.
//! Z3. If a range cannot be written back, a device does not leave any more: writes go into the
//!     cache again, so that clients go on while a device fails. The drain reports what it could not
//!     copy. Where there is no map of dirty zones, the write fails: neither device takes it.
//!
//! All writes that wait when a batch begins are in it. A batch of a drain is sealed for them.

use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicUsize, Ordering};
use cairn_block::{Env, IoError, RequestId};
use cairn_format::bcache::Key;

use super::Undrained;
use crate::bcache::btree::Span;
use crate::bcache::set::Set;
use crate::bcache::volume::Bcache;

/// How long a batch waits that finds nothing to write: a write around the cache is in flight where
/// something became dirty since.
const PAUSE: Duration = Duration::from_millis(1);

/// The writes that wait for writeback of their sectors.
#[derive(Default)]
pub(in super::super) struct Ahead {
    queue: Mutex<Queue>,
    /// How many are in the queue.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    writes: Vec<(Span, RequestId)>,
    /// A task takes from the queue.
    is_served: bool,
}

impl Ahead {
    /// True if a write waits for a batch to end.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Adds a write. True if the caller starts the task.
    fn push(&self, span: Span, id: RequestId) -> bool {
        let mut queue = self.queue.lock();
        queue.writes.push((span, id));
        self.waiting.store(queue.writes.len(), Ordering::Relaxed);
        !std::mem::replace(&mut queue.is_served, true)
    }

    /// Takes all; none once the task is to end.
    fn take(&self) -> Option<Vec<(Span, RequestId)>> {
        let mut queue = self.queue.lock();
        let writes = std::mem::take(&mut queue.writes);
        self.waiting.store(0, Ordering::Relaxed);
        queue.is_served = !writes.is_empty();
        queue.is_served.then_some(writes)
    }
}

impl Bcache {
    /// A write waits until nothing of its sectors is dirty; then it is mapped again.
    pub(in super::super) fn wait_for_writeback(&self, env: &Env, span: Span, id: RequestId) {
        if self.ahead.push(span, id) {
            self.spawn(env, async |volume, env| volume.write_back_ahead(env).await);
        }
    }

    async fn write_back_ahead(&self, env: &Env) {
        loop {
            let turn = self.turn_to_remove().await;
            let Some(writes) = self.ahead.take() else { return };
            let spans: Vec<Span> = writes.iter().map(|(span, _)| *span).collect();
            match self.write_back_spans(env, &spans).await {
                Ok(true) => writes.into_iter().for_each(|(_, id)| env.remap(id)),
                Ok(false) => {
                    drop(turn);
                    env.sleep(PAUSE).await;
                    writes.into_iter().for_each(|(_, id)| env.remap(id));
                }
                Err(error) => self.go_on_unwritten(env, &writes, &error).await,
            }
        }
    }

    /// Z3.
    async fn go_on_unwritten(&self, env: &Env, writes: &[(Span, RequestId)], error: &str) {
        let volume = &self.config.volume;
        let may_be_dirty = self.is_leaving.swap(false, Ordering::Relaxed);
        match may_be_dirty {
            true => tracing::warn!("{volume}: writes go into the cache again: {error}"),
            false => env.warn(volume, || format!("{volume}: writes over dirty data fail: {error}")),
        }
        for (span, id) in writes {
            match may_be_dirty || self.dirty_in(env, &[*span]).await.is_empty() {
                true => env.remap(*id),
                false => env.complete(*id, Err(IoError::IO)),
            }
        }
    }

    /// One batch of what is dirty in these spans. False if there was nothing.
    ///
    /// # Errors
    /// Not all of it is written back.
    async fn write_back_spans(&self, env: &Env, spans: &[Span]) -> Result<bool, String> {
        let keys = self.dirty_in(env, spans).await;
        if keys.is_empty() {
            return Ok(false);
        }
        let how = self.how_to_drain(&|| false);
        let failed = |error: Undrained| error.to_string();
        let batch = self.write_batch(env, keys, how).await.map_err(failed)?;
        self.make_clean(env, &batch.written).await.map_err(failed)?;
        match batch.failed.len() {
            0 => Ok(true),
            count => Err(format!("{count} extents were not copied")),
        }
    }

    /// The dirty extents that overlap spans, each once, in order.
    async fn dirty_in(&self, env: &Env, spans: &[Span]) -> Vec<Key> {
        let core = self.core.as_ref().expect("it has a cache");
        let mut keys: Vec<Key> = Vec::new();
        for span in spans {
            let own = |key: &&Key| key.is_dirty() && !self.traffic.overlaps(&Span::of(key));
            let add = |set: &mut Set| keys.extend(set.tree.extents_in(span).filter(own).copied());
            if core.with_present(env, [*span], add).await.is_err() {
                // The volumes of a broken set go on without it, or stop.
                return Vec::new();
            }
        }
        keys.sort_unstable_by_key(Key::start);
        keys.dedup();
        keys
    }
}
