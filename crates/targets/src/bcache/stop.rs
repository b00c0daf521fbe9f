//! Suspending: what clients wrote becomes durable. The last volume of a set leaves it as small as
//! it can be (`set::users`). From the end of a suspend to the next resume no message writes the
//! superblock of the backing device.

use cairn_block::sync::atomic::Ordering;
use cairn_block::{ConfigError, ConfigKind, Env, IoError};

use super::degraded::Service;
use super::set::{Core, WriteError};
use super::volume::Bcache;
use super::writeback::Undrained;
use super::writes::Ready;

impl Bcache {
    /// No request is left: commits, ends the tasks of the volume, and leaves the set.
    ///
    /// # Errors
    /// Acknowledged writes may be lost.
    pub(super) async fn stop(&self, env: &Env) -> Result<(), ConfigError> {
        let Some(core) = &self.core else {
            self.end_serving().await;
            return Ok(());
        };
        let volume = &self.config.volume;
        self.resting.store(true, Ordering::Relaxed);
        core.changed.notify(usize::MAX);
        self.traffic.flushed().notify(usize::MAX);
        let drains = self.flush_on_suspend.swap(false, Ordering::Relaxed) && !self.read_only;
        let is_uncached = self.service() == Service::Uncached;
        let rested = match self.is_ready(Ready::Change) || drains || is_uncached {
            true => self.bring_to_rest(env, core, drains).await,
            false => Ok(()),
        };
        self.tasks.idle().await;
        self.end_serving().await;
        let lost = self.look(|set| set.changes.have_lost_data(self.inode())).unwrap_or_default();
        let is_served = core.users().serves(self.inode()).is_some();
        let left = match is_served {
            true => core.leave(env, self.inode()).await,
            false => Ok(()),
        };
        let rested = rested.and(left.map_err(Undrained::Set));
        let rested = rested.inspect_err(|error| tracing::error!("{volume}: suspend: {error}"));
        self.is_writing_back.store(false, Ordering::Relaxed);
        self.ready.store(Ready::Read as u8, Ordering::Relaxed);
        rested.or(if lost { Err(Undrained::Flush(IoError::IO)) } else { Ok(()) }).map_err(|error| {
            let argument = &core.cache.device().argument;
            let detail = format!("{error}; acknowledged writes may be lost");
            ConfigError::new(ConfigKind::System, argument, detail)
        })
    }

    /// From now on no message writes the superblock: the next table may change it, and a swap of
    /// tables may take the device out of its set.
    async fn end_serving(&self) {
        let _turn = self.states.lock().await;
        self.is_serving.store(false, Ordering::Relaxed);
    }

    async fn bring_to_rest(&self, env: &Env, core: &Core, drains: bool) -> Result<(), Undrained> {
        let flushed = self.flush_traffic(env).await;
        if self.service() == Service::Uncached {
            return flushed.map_err(Undrained::Flush);
        }
        if drains {
            self.drain_at_rest(env).await?;
        }
        if self.is_ready(Ready::Change) {
            core.commit(env).await.map_err(WriteError::Cache)?;
        }
        // A batch that still runs makes keys clean, which the state and the map are to say.
        self.tasks.idle().await;
        self.call_clean(env).await?;
        if self.is_ready(Ready::Change) {
            let _turn = self.states.lock().await;
            // The map of the session stays, which vouches, too.
            let _ = self.write_map(env, true).await;
            self.close_zones(env).await;
        }
        flushed.map_err(Undrained::Flush)
    }
}
