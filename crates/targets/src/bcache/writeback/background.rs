//! Writeback in the background: what keeps the amount of dirty data near its target, and makes
//! buckets free when they are short.

use std::time::Duration;

use cairn_block::Env;

use super::Undrained;
use crate::bcache::set::Set;
use crate::bcache::volume::Bcache;

/// How long a pass waits after one that found nothing to do, or failed.
const PAUSE: Duration = Duration::from_secs(5);
/// Dirty data is written back above this part of the cache, in percent: the default of the kernel's
/// `writeback_percent`.
const PERCENT: u64 = 10;

impl Bcache {
    /// Writes back until the volume is suspended or its set is broken.
    pub(in super::super) async fn write_back(&self, env: &Env) {
        let core = self.core.as_ref().expect("it has a cache");
        let (mut from, mut pause_until) = (0, env.now());
        loop {
            env.until_or_time(&core.changed, None, || {
                self.is_resting() || core.is_broken() || core.with(|set| self.wants_room(set))
            })
            .await;
            if env.now() < pause_until {
                env.until_or_time(&core.changed, Some(pause_until), || self.is_resting()).await;
            }
            if self.is_resting() || core.is_broken() {
                return;
            }
            match self.write_back_some(env, from).await {
                Ok(Some(next)) => from = next,
                Ok(None) if from > 0 => from = 0,
                Ok(None) => pause_until = env.now() + PAUSE,
                Err(error) => {
                    let volume = &self.config.volume;
                    env.warn(volume, || format!("{volume}: writeback: {error}"));
                    (from, pause_until) = (0, env.now() + PAUSE);
                }
            }
        }
    }

    /// True if dirty data is to be written back.
    fn wants_room(&self, set: &Set) -> bool {
        let all = set.buckets.count_all() as u64 * set.superblock.geometry().bucket_sectors();
        let dirty = self.dirty_sectors();
        dirty > 0 && (set.is_short() || dirty > all * PERCENT / 100)
    }

    /// Writes back one batch, from a sector on. Answers where the next one begins; none if nothing
    /// was dirty from there on, or nothing could be copied.
    async fn write_back_some(&self, env: &Env, from: u64) -> Result<Option<u64>, Undrained> {
        let _turn = self.draining.lock().await;
        let keys = self.next_dirty(from);
        if keys.is_empty() {
            return Ok(None);
        }
        let batch = self.write_batch(env, keys, &|| self.is_resting()).await?;
        if batch.written.is_empty() {
            return Ok(None);
        }
        self.make_clean(env, &batch.written).await?;
        self.core.as_ref().expect("it has a cache").changed.notify(usize::MAX);
        Ok(Some(batch.next))
    }
}
