//! Detaching: the backing device leaves its cache set.
//!
//! While the superblock names a set and the state is `clean` or `dirty`, the cache of that set
//! counts: its clean extents are served instead of what the backing device has. So a backing device
//! that is written without its cache must be detached first, or be called inconsistent.
//!
//! # Order of a detach
//! 1. Nothing is dirty, durably, and the state is `clean` (`writeback`).
//! 2. The superblock of the backing device, with FUA: no set, state `none`. From then on no cache
//!    counts: cairn refuses the pair, and a kernel that attaches the device gives it a new volume
//!    in the set.
//! 3. The array of uuids without the volume (`set::uuids`).
//!
//! A swap of tables does step 2 alone ([`Attached::leave`]), so that it can be undone
//! ([`Attached::attach_again`]) if the new table is refused: `control::world::attached`.
//!
//! # What a crash leaves
//! - Before 2: a set that is drained.
//! - Between 2 and 3: a device of no set, and an entry of the array that names it. A kernel that
//!   attaches the device invalidates that entry and takes another one.
//!
//! With 3 before 2, a power cut between them would leave an attached device that its set does not
//! know: cairn would refuse the pair.
//!
//! A backing device that is dirty, and whose dirty data the user gives up, becomes `inconsistent`
//! (R11), as when a kernel is forced to run it: cairn refuses its cache, and the kernel makes a new
//! volume when it attaches the device.

use std::sync::Arc;

use cairn_block::{
    ConfigError, Disk, Env, IoResult, Line, MessageError, Registry, Sector, SectorRange, Table,
    mutants,
};
use cairn_format::bcache::{BackingState, BackingSuperblock, Superblock, Uuid};

use super::canary::{Bug, planted};
use super::config::Devices;
use super::degraded::Service;
use super::set::Session;
use super::superblocks::{find_superblock, keep_uncounted, write_backing};
use super::volume::Bcache;
use super::zones::forget_zones;
use crate::args::Device;
use crate::blank::unreadable;

/// A backing device that a cache counts for: its superblock names a set, and the state is `clean`
/// or `dirty`.
#[derive(Clone)]
pub struct Attached {
    device: Device,
    superblock: BackingSuperblock,
}

impl Attached {
    /// Reads the superblock of a device. None if no cache counts for it, which is durable on
    /// return; also if there is no superblock, or it is damaged: then no cache can be opened with
    /// it either.
    ///
    /// # Errors
    /// The device failed.
    pub async fn of(env: &Env, device: Device) -> Result<Option<Attached>, ConfigError> {
        let Ok(Superblock::Backing(superblock)) = find_superblock(env, &device).await? else {
            return Ok(None);
        };
        let counts = matches!(superblock.state(), BackingState::Clean | BackingState::Dirty);
        let is_attached = counts && !superblock.set_uuid().is_zero();
        keep_uncounted(env, &device, &superblock).await?;
        Ok(is_attached.then_some(Attached { device, superblock }))
    }

    /// The device as the table names it.
    pub fn argument(&self) -> &str {
        &self.device.argument
    }

    /// True if it is this device.
    pub fn is_on(&self, device: &Device) -> bool {
        Arc::ptr_eq(&self.device.disk, &device.disk)
    }

    /// True if a table changes none of its data: each line writes no further than to the
    /// superblock, or is read-only, and at least one is. Such a table composes a device whose data
    /// nothing writes (`fixed`), of which nothing is dirty.
    pub fn keeps_data(&self, table: &Table) -> bool {
        let data = Sector(self.superblock.data_offset());
        let is_before = |(disk, range): &(Arc<dyn Disk>, SectorRange)| {
            Arc::ptr_eq(disk, &self.device.disk) && range.end() <= data
        };
        let keeps = |line: &Line| {
            let whole = SectorRange::new(Sector(0), line.len);
            let places = line.target.remaps(whole);
            line.is_read_only() || places.is_some_and(|places| places.iter().all(is_before))
        };
        let lines = table.lines();
        !self.is_dirty() && lines.iter().any(Line::is_read_only) && lines.iter().all(keeps)
    }

    /// The set whose cache counts.
    pub fn set(&self) -> Uuid {
        self.superblock.set_uuid()
    }

    /// True if the cache may have data that the device lacks.
    pub fn is_dirty(&self) -> bool {
        self.superblock.state() == BackingState::Dirty
    }

    /// Takes a clean device out of its set, durably: no cache counts for it from then on.
    ///
    /// # Errors
    /// The device failed.
    pub async fn leave(&self, env: &Env) -> Result<(), ConfigError> {
        let mut superblock = self.superblock.clone();
        leave(&mut superblock);
        self.write(env, &superblock).await
    }

    /// The device stays out of its set: drops the maps of its dirty zones.
    pub fn forget_zones(&self, registry: &Registry) {
        if let Some(maps) = registry.zone_maps() {
            forget_zones(maps.as_ref(), self.superblock.uuid());
        }
    }

    /// Writes the superblock that was read. Nothing may have written to the device since.
    ///
    /// # Errors
    /// The device failed.
    pub async fn attach_again(&self, env: &Env) -> Result<(), ConfigError> {
        self.write(env, &self.superblock).await
    }

    async fn write(&self, env: &Env, superblock: &BackingSuperblock) -> Result<(), ConfigError> {
        let written = write(env, &self.device, superblock).await;
        written.map_err(|error| unreadable(&self.device, "superblock", error))
    }
}

/// Refuses a backing device that lacks data, unless the user named the set that had it.
fn refuse_unless_given_up(
    name: &str,
    superblock: &BackingSuperblock,
    given_up: Option<&str>,
) -> Result<(), MessageError> {
    let set = superblock.set_uuid();
    match given_up.map(str::parse::<Uuid>) {
        Some(Ok(given)) if given == set => Ok(()),
        Some(_) => {
            let found = given_up.unwrap_or_default();
            let text = format!("detach: {name}: --discard-dirty: found {found}, expected {set}");
            Err(MessageError::Invalid(text))
        }
        None => {
            let text = format!(
                "detach: {name}: its cache has data that it lacks, how much is not known without \
                 it; --discard-dirty={set}, the set's UUID, gives that up"
            );
            Err(MessageError::Failed(text))
        }
    }
}

/// What the superblock becomes when no cache is to count.
fn leave(superblock: &mut BackingSuperblock) {
    match superblock.state() {
        BackingState::None | BackingState::Clean => {
            superblock.set_set_uuid(Uuid::ZERO);
            superblock.set_state(BackingState::None);
        }
        BackingState::Dirty | BackingState::Stale => superblock.set_state(BackingState::Stale),
    }
}

/// Writes the superblock of a backing device, durably.
async fn write(env: &Env, device: &Device, superblock: &BackingSuperblock) -> IoResult {
    write_backing(env, device, superblock, mutants::fua("bcache: FUA of a detach")).await
}

impl Bcache {
    /// Detaches the backing device, after a drain. If it lacks data of a cache that is gone, and
    /// `given_up` is the set of that cache, it becomes inconsistent. Answers what became of it.
    ///
    /// # Errors
    /// The device belongs to no set, something is dirty and not given up, or a device failed.
    pub(super) async fn detach_backing(
        &self,
        env: &Env,
        given_up: Option<&str>,
    ) -> Result<String, MessageError> {
        let failed = |text: String| Err(MessageError::Failed(format!("detach: {text}")));
        let Some(backing) = self.config.devices.backing() else {
            return failed("a volume without a backing device has none to detach".to_owned());
        };
        let name = &backing.argument;
        if self.service() == Service::Uncached && !self.read_only {
            return Ok(format!("{name}: detached: it belongs to no set"));
        }
        if self.read_only {
            return failed(format!("{name}: the device is open read-only"));
        }
        let _turn = self.turn_to_drain().await;
        let _state = self.states.lock().await;
        let superblock = self.backing.lock().clone();
        let mut superblock = superblock.expect("a live volume has read its superblock");
        if superblock.set_uuid().is_zero() && superblock.state() == BackingState::None {
            return failed(format!("{name}: belongs to no set, so there is none to leave"));
        }
        let is_clean = matches!(superblock.state(), BackingState::None | BackingState::Clean);
        let is_bare = matches!(self.config.devices, Devices::Bare { .. });
        if is_bare && !is_clean {
            refuse_unless_given_up(name, &superblock, given_up)?;
        } else if !is_clean || self.dirty_sectors() > 0 || self.is_broken() {
            return failed(format!("{name}: its cache has data that it lacks; drain it first"));
        }
        leave(&mut superblock);
        let uuid = superblock.uuid();
        if planted(Bug::ArrayBeforeSuperblock) {
            self.forget_volume(env, uuid).await;
        }
        if let Err(error) = write(env, backing, &superblock).await {
            return failed(format!("{name}: superblock: could not be written: {error}"));
        }
        let is_detached = superblock.state() == BackingState::None;
        self.set_backing(Some(superblock));
        if !is_detached {
            return Ok(format!("{name}: inconsistent: what only its cache had is given up"));
        }
        if let Some(zones) = &self.zones {
            zones.forget(uuid);
        }
        self.forget_volume(env, uuid).await;
        Ok(format!("{name}: detached: it belongs to no set"))
    }

    /// Step 3. A failure changes nothing for the backing device.
    async fn forget_volume(&self, env: &Env, uuid: Uuid) {
        let Some(core) = &self.core else { return };
        let name = &core.cache.device().argument;
        let now_s = env.unix_time().as_secs() as u32;
        let kept = "the set still names the backing device, which is detached all the same";
        let forget = async |session: &Session<'_>| session.forget_volume(uuid, now_s).await;
        match core.change(env, forget).await {
            Ok(true) => {}
            Ok(false) => tracing::info!("{name}: no room for the array of uuids: {kept}"),
            Err(error) => tracing::warn!("{name}: the array of uuids: {error}: {kept}"),
        }
    }
}
