//! Suspending: what clients wrote becomes durable. The last volume of a set leaves it as small as
//! it can be (`set::users`). From the end of a suspend to the next resume no message writes the
//! superblock of the backing device.
//!
//! A suspend fails if acknowledged writes may be lost: those that the set had not made durable when
//! it broke (C2), and those around the cache that no flush covers, or that a failure may have lost
//! before without a client being told (A4). What else fails is logged: dirty data stays in the
//! cache, and the next opening reads what is durable.

use cairn_block::sync::atomic::Ordering;
use cairn_block::{ConfigError, ConfigKind, Env, IoError, IoResult};
use cairn_format::bcache::{BackingState, BackingSuperblock};

use super::degraded::Service;
use super::set::{Core, Set, WriteError};
use super::volume::Bcache;
use super::writeback::Undrained;
use super::writes::Ready;

/// Why a suspend may have lost something.
const SET_FAILED: &str = "the set is in error, what was last written may not be durable";
const NOT_FLUSHED: &str = "what was written around the cache may not be durable";

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
        let rests = self.is_ready(Ready::Change) || drains || is_uncached;
        let flushed = if rests { self.flush_traffic(env).await } else { Ok(()) };
        let rested = match rests && !is_uncached && !core.is_broken() {
            true => self.bring_to_rest(env, core, drains).await,
            false => Ok(()),
        };
        self.tasks.idle().await;
        self.end_serving().await;
        self.look_at_backing();
        let lost = self.has_lost_writes();
        let untold = if self.traffic.has_untold_loss() { Err(IoError::IO) } else { Ok(()) };
        let is_served = core.users().serves(self.inode()).is_some();
        let left = match is_served {
            true => core.leave(env, self.inode()).await,
            false => Ok(()),
        };
        let rested = rested.and(left.map_err(Undrained::Set));
        // Without a write since the start, the flush at the opening has made all durable.
        if !self.read_only && !core.is_broken() && rested.is_ok() && flushed.is_ok() {
            self.end_marker(env).await;
        }
        if let Err(error) = rested {
            tracing::error!("{volume}: suspend: {error}");
        }
        self.is_writing_back.store(false, Ordering::Relaxed);
        self.ready.store(Ready::Read as u8, Ordering::Relaxed);
        self.losses(&core.cache.device().argument, lost, flushed.and(untold))
    }

    /// Removes the dirty marker if the backing device has all data, and durably says so.
    async fn end_marker(&self, env: &Env) {
        let is_marked_dirty = |backing: &BackingSuperblock| backing.state() == BackingState::Dirty;
        let is_dirty = self.backing.lock().as_ref().is_some_and(is_marked_dirty);
        if let Some(marker) =
            self.marker.as_ref().filter(|_| !is_dirty && self.dirty_sectors() == 0)
        {
            marker.fall(env).await;
        }
    }

    /// True if the set broke before acknowledged writes of the volume were durable there.
    fn has_lost_writes(&self) -> bool {
        let have_lost = |set: &Set| set.changes.have_lost_writes(self.inode());
        self.service() != Service::Uncached && self.look(have_lost).unwrap_or_default()
    }

    /// The error of a suspend, if there is one: `lost` by the set, or not `flushed` past it.
    fn losses(&self, cache: &str, lost: bool, flushed: IoResult) -> Result<(), ConfigError> {
        let (argument, detail) = match (lost, flushed) {
            (false, Ok(())) => return Ok(()),
            (true, _) => (cache, SET_FAILED.to_owned()),
            (false, Err(error)) => {
                let backing = self.config.devices.backing();
                (backing.map_or(cache, |it| &it.argument), format!("{NOT_FLUSHED}: {error}"))
            }
        };
        tracing::error!("{}: suspend: {argument}: {detail}", self.config.volume);
        Err(ConfigError::new(ConfigKind::System, argument, detail))
    }

    /// From now on no message writes the superblock: the next table may change it, and a swap of
    /// tables may take the device out of its set.
    async fn end_serving(&self) {
        let _turn = self.states.lock().await;
        self.is_serving.store(false, Ordering::Relaxed);
    }

    async fn bring_to_rest(&self, env: &Env, core: &Core, drains: bool) -> Result<(), Undrained> {
        let drained = if drains { self.drain_at_rest(env).await } else { Ok(()) };
        let committed = match self.is_ready(Ready::Change) {
            true => core.commit(env).await.map_err(|error| WriteError::Cache(error).into()),
            false => Ok(()),
        };
        drained.and(committed)?;
        // A batch that still runs makes keys clean, which the state and the map are to say.
        self.tasks.idle().await;
        self.call_clean(env).await?;
        if self.is_ready(Ready::Change) {
            let _turn = self.states.lock().await;
            // The map of the session stays, which vouches, too.
            let _ = self.write_map(env, true).await;
            self.close_zones(env).await;
        }
        Ok(())
    }
}
