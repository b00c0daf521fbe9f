//! Resuming: a volume begins to serve.
//!
//! The superblocks are read again, so a device that another server or the kernel changed since the
//! table was loaded is noticed. The set is read if no other volume serves it; otherwise the volume
//! takes part in what is in memory (`set::users`). A backing device that is to join the set does so
//! then (`attach`). Clean extents that may differ from the backing device leave the set (`trust`).
//!
//! Opening for more than reading flushes both devices before anything that it reads is relied on
//! (R12): a killed server leaves completed writes in volatile caches. If another volume opened the
//! set for reading alone, the cache device is flushed now: a failure since it was opened would have
//! ended the set.

use std::ops::Range;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{ConfigError, ConfigKind, Env, failures_beneath, mutants};
use cairn_format::bcache::places::is_beyond;
use cairn_format::bcache::{BackingState, BackingSuperblock, CacheMode, Key};

use super::btree::Which;
use super::canary::{Bug, planted};
use super::config::Devices;
use super::degraded::Service;
use super::set::{Core, Serving, open};
use super::superblocks::{Superblocks, intact, read_superblocks};
use super::trust::Judged;
use super::volume::Bcache;
use super::writes::Ready;
use crate::args::Device;
use crate::blank::unreadable;
use crate::origin_marker::Plans;

impl Bcache {
    /// Begins to serve.
    ///
    /// # Errors
    /// A device cannot be read, or is not what the table and its superblock say.
    pub(super) async fn start(&self, env: &Env) -> Result<(), ConfigError> {
        self.ready.store(Ready::Read as u8, Ordering::Relaxed);
        self.has_written_state.store(false, Ordering::Relaxed);
        self.wanted.store(Ready::Read as u8, Ordering::Relaxed);
        let is_uncached = self.resume_degraded(env).await?;
        match &self.core {
            Some(_) if is_uncached => {
                if let Some(marker) = &self.marker {
                    marker.fall(env).await;
                }
            }
            Some(core) => {
                let _handover = core.handover().await;
                let is_first = core.users().are_none();
                if is_first {
                    core.close();
                }
                let started = self.start_cached(env, core, is_first).await;
                if started.is_err() && is_first {
                    // No drain or detach works with it, and no task of the set goes on.
                    core.stop().await;
                    core.close();
                }
                started?;
            }
            None => {
                let backing = self.read_devices(env).await?.backing;
                let backing = backing.expect("a volume without a cache has a backing device");
                self.end_marker_of_no_set(env, &backing).await?;
                self.start_bare(env, backing).await?;
            }
        }
        self.suspending.store(false, Ordering::Relaxed);
        self.is_handing_back.store(false, Ordering::Relaxed);
        self.resting.store(false, Ordering::Relaxed);
        self.is_leaving.store(false, Ordering::Relaxed);
        self.is_serving.store(true, Ordering::Relaxed);
        self.start_statistics(env);
        Ok(())
    }

    /// Makes durable what the backing device has (R12), and reads the superblocks.
    async fn read_devices(&self, env: &Env) -> Result<Superblocks, ConfigError> {
        if let Some(backing) = self.config.devices.backing() {
            self.flush_at_opening(env, backing).await?;
        }
        let superblocks = read_superblocks(env, &self.config, self.read_only).await?;
        let first = superblocks.backing.as_ref().map_or(0, BackingSuperblock::data_offset);
        self.check_first(first)?;
        if let Some(backing) = &superblocks.backing {
            self.check_fixed(backing)?;
        }
        self.set_backing(superblocks.backing.clone());
        Ok(superblocks)
    }

    /// What the backing device has is durable on return (R12).
    pub(super) async fn flush_at_opening(
        &self,
        env: &Env,
        backing: &Device,
    ) -> Result<(), ConfigError> {
        let is_cached = matches!(self.config.devices, Devices::Cached { .. });
        // Nobody was told of it: a server was killed.
        let is_lost = backing.disk.failures() > backing.disk.failures_told();
        if !self.read_only && !planted(Bug::NoFlushAtOpening) {
            let known = backing.disk.failures();
            let flush = env.make_durable(&backing.disk);
            let flushed = mutants::step("bcache: flush at opening", (), flush).await;
            let flushed = flushed.and(intact(backing, known));
            flushed.map_err(|error| unreadable(backing, "flush", error))?;
        }
        self.traffic.open(backing.disk.failures());
        if is_lost && is_cached && !self.read_only {
            self.traffic.lose_unseen();
        }
        Ok(())
    }

    /// The data still begins at this sector of the backing device.
    pub(super) fn check_first(&self, first: u64) -> Result<(), ConfigError> {
        let Some(device) = self.config.devices.backing().filter(|_| first != self.first) else {
            return Ok(());
        };
        let expected = format!("{}, as when the table was loaded", self.first);
        Err(ConfigError::argument(&device.argument, "data_offset", first, &expected))
    }

    async fn start_cached(
        &self,
        env: &Env,
        core: &Core,
        is_first: bool,
    ) -> Result<(), ConfigError> {
        let device = core.cache.device();
        if !self.read_only {
            let durable = core.make_durable(env).await;
            durable.map_err(|error| unreadable(device, "flush", error))?;
        }
        let Superblocks { backing, cache } = self.read_devices(env).await?;
        let set = cache.as_ref().map(|cache| cache.set_uuid().to_string()).unwrap_or_default();
        if let Some(marker) = &self.marker {
            marker.look(env, &set).await?;
        }
        if is_first {
            let superblock = cache.expect("the superblock of the cache was read");
            let has_failed = failures_beneath(device.disk.as_ref()) != 0;
            let set = open(env, core, superblock, has_failed && !self.read_only).await?;
            let opened = core.open(env, set).await;
            opened.map_err(|error| core.unread(&error))?;
        } else if core.is_broken() {
            let users = core.users().names();
            let detail = format!(
                "set: found that it could not be written while it serves {users}, expected these \
                 volumes to be suspended: then it is opened again"
            );
            return Err(ConfigError::new(ConfigKind::Busy, &device.argument, detail));
        }
        let begun = core.begin_log(env, self.read_only).await;
        begun.map_err(|error| core.unread(&error))?;
        let backing = match backing {
            Some(backing) => Some(self.join_set(env, core, backing).await?),
            None => None,
        };
        self.set_backing(backing.clone());
        self.is_member.store(true, Ordering::Relaxed);
        let sectors = self.find_in_set(core, backing.as_ref())?;
        self.tell_of_loss(core);
        let (cached, dirty) = self.count_extents(env, core, &sectors).await?;
        self.refuse_dirty_if_fixed(dirty)?;
        self.dirty_sectors.store(dirty, Ordering::Relaxed);
        self.stand_marker(env, &set, self.mode()).await?;
        let named = self.name_dirty_zones(env, core).await;
        named.map_err(|error| core.unread(&error))?;
        let has_clean = cached > dirty && backing.is_some();
        let (judged, gone) = self.settle_trust(env, core, backing.as_ref(), has_clean).await?;
        self.report_found(dirty, backing.as_ref().map(BackingSuperblock::state));
        self.report_trust(&judged, cached - dirty, gone);
        core.join(Serving {
            inode: self.inode(),
            volume: self.config.volume.clone(),
            failures: self.failures.clone(),
            backing_sectors: self.backing_sectors(),
            counters: self.counters.clone(),
        });
        Ok(())
    }

    /// Reads what stands beside the backing device, if this cache has put nothing there.
    pub(super) async fn look_before_writeback(
        &self,
        env: &Env,
        set: &str,
    ) -> Result<(), ConfigError> {
        match self.marker.as_ref().filter(|marker| !marker.stands()) {
            Some(marker) => marker.look(env, set).await,
            None => Ok(()),
        }
    }

    /// Has the dirty marker stand if something is dirty, or becomes so in this mode.
    pub(super) async fn stand_marker(
        &self,
        env: &Env,
        set: &str,
        mode: CacheMode,
    ) -> Result<(), ConfigError> {
        let Some(marker) = self.marker.as_ref().filter(|_| self.service() == Service::Cached)
        else {
            return Ok(());
        };
        let is_dirty = self.dirty_sectors() > 0;
        let makes_dirty = mode == CacheMode::Writeback && !self.read_only && !self.is_fixed;
        marker.stand(env, set, Plans { is_dirty, makes_dirty, read_only: self.read_only }).await
    }

    /// Refuses a backing device alone beside which a marker stands. If it belongs to no set, it has
    /// all data: then the marker is one that a killed server has not removed.
    async fn end_marker_of_no_set(
        &self,
        env: &Env,
        backing: &BackingSuperblock,
    ) -> Result<(), ConfigError> {
        let Some(marker) = &self.marker else { return Ok(()) };
        match backing.state() {
            BackingState::None if !self.read_only => {
                // No cache of bcache counts, whichever set it is of.
                marker.end_any(env).await
            }
            _ => marker.refuse(env).await,
        }
    }

    /// Sectors of the backing device; 0 without one.
    pub(super) fn backing_sectors(&self) -> u64 {
        self.config.devices.backing().map_or(0, |device| device.disk.sectors().0)
    }

    /// Finds the volume in the open set. Answers its sectors, as keys count them.
    fn find_in_set(
        &self,
        core: &Core,
        backing: Option<&BackingSuperblock>,
    ) -> Result<Range<u64>, ConfigError> {
        let argument = &core.cache.device().argument;
        let uuid = match (&self.config.devices, backing) {
            (Devices::Flash { volume, .. }, _) => *volume,
            (_, Some(backing)) => backing.uuid(),
            (_, None) => unreachable!("a volume without a backing device is flash"),
        };
        let is_flash = backing.is_none();
        let found = core.with(|set| {
            let found = set.volume(uuid).filter(|(_, entry)| entry.is_flash_only() == is_flash);
            found.map(|(inode, entry)| (inode, entry.sectors))
        });
        let Some((inode, sectors)) = found else {
            let what = if is_flash { "flash-only volume" } else { "backing device" };
            let detail = format!("uuids: found no {what} {uuid}, expected it among the volumes");
            return Err(ConfigError::new(ConfigKind::Argument, argument, detail));
        };
        if is_flash && self.config.len.0 > sectors {
            let found = format!("{sectors} sectors");
            let expected = format!("at least the target's length, {} sectors", self.config.len);
            return Err(ConfigError::argument(argument, "size of the volume", found, &expected));
        }
        if let Some(other) = core.users().serves(inode) {
            let detail = format!("volume {uuid}: found it served by {other}, expected by none");
            return Err(ConfigError::new(ConfigKind::Busy, argument, detail));
        }
        self.inode.store(u64::from(inode), Ordering::Relaxed);
        Ok(match backing {
            Some(backing) => backing.data_offset()..self.backing_sectors(),
            None => 0..sectors,
        })
    }

    /// An earlier process lost what it had acknowledged: the clients of the volume are told, once.
    fn tell_of_loss(&self, core: &Core) {
        if core.tells_of_loss(self.inode(), || self.traffic.count_loss_of_set()) {
            let (volume, cache) = (&self.config.volume, &core.cache.device().argument);
            tracing::error!(
                "{volume}: {cache}: acknowledged writes of a server that was killed may be lost"
            );
        }
    }

    /// Counts the sectors of the volume that are cached, and those that are dirty. Other volumes go
    /// on; they do not change which of its sectors are dirty.
    ///
    /// # Errors
    /// A dirty extent does not lie within the volume.
    async fn count_extents(
        &self,
        env: &Env,
        core: &Core,
        sectors: &Range<u64>,
    ) -> Result<(u64, u64), ConfigError> {
        let (mut cached, mut dirty, mut beyond) = (0, 0, None);
        let mut count = |key: &Key| {
            cached += key.sectors();
            dirty += if key.is_dirty() { key.sectors() } else { 0 };
            beyond = Some(*key).filter(|key| key.is_dirty() && is_beyond(key, sectors));
            beyond.is_none()
        };
        let counted = core.scan_volume(env, self.inode(), Which::All, &mut count).await;
        counted.map_err(|error| core.unread(&error))?;
        match beyond {
            None => Ok((cached, dirty)),
            Some(key) => {
                let argument = &core.cache.device().argument;
                let (first, last) = (sectors.start, sectors.end.saturating_sub(1));
                let detail = format!(
                    "extent {key:?}: found beyond its volume, expected sectors {first} to {last}; \
                     see: cairn check {argument}"
                );
                Err(ConfigError::new(ConfigKind::Damaged, argument, detail))
            }
        }
    }

    /// Logs the dirty data that was found.
    fn report_found(&self, dirty: u64, state: Option<BackingState>) {
        let volume = &self.config.volume;
        let Devices::Cached { backing, cache } = &self.config.devices else { return };
        let (backing, cache) = (&backing.argument, &cache.argument);
        match state {
            _ if dirty == 0 => {}
            Some(BackingState::Dirty) => tracing::info!(
                "{volume}: {dirty} dirty sectors found on {cache}, which {backing} lacks"
            ),
            // The kernel counts the keys in this state, too.
            _ => tracing::warn!(
                "{volume}: the state of {backing} is clean, but {dirty} dirty sectors were found \
                 on {cache}: they are served, and written back by a drain"
            ),
        }
    }

    /// Logs what was done with clean extents that may differ from the backing device.
    fn report_trust(&self, judged: &Judged, clean: u64, gone: u64) {
        let volume = &self.config.volume;
        let Devices::Cached { backing, cache } = &self.config.devices else { return };
        let (backing, cache) = (&backing.argument, &cache.argument);
        match judged {
            Judged::Vouched => {}
            Judged::Kept => tracing::warn!(
                "{volume}: {cache}: {clean} clean sectors are served as the kernel does: after a \
                 power cut they may differ from {backing}, as no write-intent map vouches for them"
            ),
            Judged::Suspect(_) => tracing::warn!(
                "{volume}: {cache}: {gone} clean sectors are not used: no write-intent map vouches \
                 for them, and after a power cut under a kernel they may differ from {backing}"
            ),
        }
    }

    pub(super) fn serve_bare(&self, state: BackingState) {
        let is_sound = matches!(state, BackingState::None | BackingState::Clean);
        let Devices::Bare { backing, stale_ok, .. } = &self.config.devices else { return };
        let (volume, backing) = (&self.config.volume, &backing.argument);
        self.is_suspect.store(!is_sound && !stale_ok, Ordering::Relaxed);
        if !is_sound {
            let how = if *stale_ok { "is read as it is" } else { "fails to be read" };
            tracing::warn!("{volume}: {backing}: its cache may have newer data: all {how}");
        }
    }
}
