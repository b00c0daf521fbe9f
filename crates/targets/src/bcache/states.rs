//! The attachment state of the backing device: `dirty` before the first dirty key, `clean` after
//! the last (R11).
//!
//! S1. One writer of the superblock at a time ([`Bcache::states`]).
//! S2. `dirty` is durable before a write is mapped. `clean` is written when no write is mapped or
//!     in flight, nothing in the tree is dirty, and no open entry of the journal has a dirty key;
//!     a write that comes then waits until `dirty` is durable again.
//! S3. A write of the superblock that failed may be there all the same. So after one that failed
//!     the state on the device counts as unknown, and the next one is written.

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Env, Flags, IoResult, mutants};
use cairn_format::bcache::{BackingState, BackingSuperblock};

use super::coverage::{self, Path};
use super::set::WriteError;
use super::superblocks::write_backing;
use super::volume::Bcache;
use super::writeback::Undrained;
use super::writes::Ready;
use super::zones::Zones;
use crate::args::Device;

impl Bcache {
    /// Writes the superblock of the backing device of a volume that is served, if that is still
    /// this cache's (M7 of the crate's `origin_marker`).
    ///
    /// # Errors
    /// Those of [`write_backing`]; another host uses the device.
    pub(super) async fn write_own_backing(
        &self,
        env: &Env,
        device: &Device,
        superblock: &BackingSuperblock,
        fua: Flags,
    ) -> IoResult {
        self.look_at_marker(env).await?;
        write_backing(env, device, superblock, fua).await
    }

    /// Before something is written to the backing device for the cache.
    ///
    /// # Errors
    /// Another host uses the device, or it is not known.
    pub(super) async fn look_at_marker(&self, env: &Env) -> IoResult {
        let Some(marker) = &self.marker else { return Ok(()) };
        let looked = marker.look_again(env).await;
        if marker.is_lost() {
            self.stop_serving(env, "another host uses it");
        }
        looked
    }

    /// Writes the state of the backing device, durably, unless this life has written it already:
    /// what was read at the opening may be what a failed flush has dropped. The caller has the turn
    /// (S1).
    ///
    /// # Errors
    /// The device failed.
    pub(super) async fn write_state(&self, env: &Env, state: BackingState) -> IoResult {
        let Some(backing) = self.config.devices.backing() else { return Ok(()) };
        let Some(mut superblock) = self.backing.lock().clone() else { return Ok(()) };
        let has_news = self.renew_map(&mut superblock, false);
        let is_written = self.has_written_state.load(Ordering::Relaxed);
        if superblock.state() == state && is_written && !has_news {
            return Ok(());
        }
        superblock.set_state(state);
        // S3.
        self.has_written_state.store(false, Ordering::Relaxed);
        let fua = mutants::fua("bcache: FUA of the state");
        self.write_own_backing(env, backing, &superblock, fua).await?;
        self.has_written_state.store(true, Ordering::Relaxed);
        coverage::take(match state {
            BackingState::Dirty => Path::CallDirty,
            _ => Path::CallClean,
        });
        self.set_backing(Some(superblock));
        Ok(())
    }

    /// If nothing is dirty: the superblock of the backing device says so. Until this ends, writes
    /// into the cache wait.
    ///
    /// # Errors
    /// The set, or the superblock, cannot be written.
    pub(super) async fn call_clean(&self, env: &Env) -> Result<(), Undrained> {
        let _turn = self.states.lock().await;
        if self.state_of_backing() != Some(BackingState::Dirty) {
            return Ok(());
        }
        let core = self.core.as_ref().expect("a volume that is drained has a cache");
        let change = Ready::Change as u8;
        let ready = core.with(|_| self.ready.fetch_min(change, Ordering::Relaxed));
        core.writers.quiesce(0).await;
        let called = self.call_clean_if_it_is(env).await;
        let parked = core.with(|_| {
            let is_written = self.has_written_state.load(Ordering::Relaxed);
            match self.state_of_backing() {
                Some(BackingState::Dirty) if is_written => {
                    self.ready.store(ready, Ordering::Relaxed)
                }
                state => {
                    self.wanted.fetch_min(change, Ordering::Relaxed);
                    let is_clean = state == Some(BackingState::Clean) && is_written;
                    let zones = self.zones.as_ref().filter(|_| is_clean);
                    zones.into_iter().for_each(Zones::end_marks);
                }
            }
            std::mem::take(&mut *self.parked.lock())
        });
        core.remap_all(env, parked);
        called
    }

    async fn call_clean_if_it_is(&self, env: &Env) -> Result<(), Undrained> {
        let core = self.core.as_ref().expect("a volume that is drained has a cache");
        if self.dirty_sectors() > 0 {
            return Ok(());
        }
        // The session may be that of another volume: entries may be open from before this one was
        // suspended.
        if core.with(|set| set.has_session()) {
            core.commit(env).await.map_err(WriteError::Cache)?;
            core.checkpoint(env).await?;
        }
        self.write_state(env, BackingState::Clean).await.map_err(Undrained::Superblock)
    }

    fn state_of_backing(&self) -> Option<BackingState> {
        self.backing.lock().as_ref().map(BackingSuperblock::state)
    }
}
