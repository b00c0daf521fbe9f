//! Suspending: what clients wrote becomes durable, and the set is left as small as it can be.

use cairn_block::sync::atomic::Ordering;
use cairn_block::{ConfigError, ConfigKind, Env, IoError};

use super::set::Core;
use super::volume::Bcache;
use super::writeback::Undrained;
use super::writes::Ready;

impl Bcache {
    /// No request is left: commits, brings the leaves up to date, and ends the tasks.
    ///
    /// # Errors
    /// Acknowledged writes may be lost.
    pub(super) async fn stop(&self, env: &Env) -> Result<(), ConfigError> {
        let Some(core) = &self.core else { return Ok(()) };
        self.resting.store(true, Ordering::Relaxed);
        core.changed.notify(usize::MAX);
        self.traffic.flushed().notify(usize::MAX);
        let drains = self.flush_on_suspend.swap(false, Ordering::Relaxed) && !self.read_only;
        let rested = match self.is_ready(Ready::Change) || drains {
            true => self.bring_to_rest(env, core, drains).await,
            false => Ok(()),
        };
        core.stop().await;
        self.is_writing_back.store(false, Ordering::Relaxed);
        self.ready.store(Ready::Read as u8, Ordering::Relaxed);
        let lost = core.lock().as_ref().is_some_and(|set| set.changes.have_lost());
        rested.or(if lost { Err(Undrained::Flush(IoError::IO)) } else { Ok(()) }).map_err(|error| {
            let argument = &core.cache.device().argument;
            let detail = format!("{error}; acknowledged writes may be lost");
            ConfigError::new(ConfigKind::System, argument, detail)
        })
    }

    async fn bring_to_rest(&self, env: &Env, core: &Core, drains: bool) -> Result<(), Undrained> {
        let volume = &self.config.volume;
        let rest = async {
            let flushed = self.flush_traffic(env).await;
            core.with(|set| set.open_buckets.close_all(&mut set.buckets));
            if drains {
                self.drain_at_rest(env).await?;
            }
            if self.is_ready(Ready::Change) {
                core.checkpoint(env).await?;
            }
            core.change(env, async |session| session.end().await).await?;
            self.call_clean(env).await?;
            flushed.map_err(Undrained::Flush)
        };
        self.resting.store(true, Ordering::Relaxed);
        core.changed.notify(usize::MAX);
        let rested = rest.await;
        rested.inspect_err(|error| tracing::error!("{volume}: suspend: {error}"))
    }
}
