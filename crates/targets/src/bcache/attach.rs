//! Attaching: the backing device joins the cache set of its table line.
//!
//! The word `attach` of the line asks for it, and resume acts on it. It is a word and not a method
//! of the target like `detach`, for three reasons. The set may be open already, for other
//! volumes, and only a resume has the handover of its core. The swap of tables (`volume::swap` of
//! the crate `control`) has drained and flushed by then what passed through. And the state file has
//! the line before the first write, so a start after a kill goes on with it. A device that belongs
//! to the set already is served as without the word; the word is not printed from then on, and the
//! record of the swap drops it. So it does not act on a device that left the set later.
//!
//! # Invariants
//! M1. A number of the set (an inode) is never used twice: the device gets an entry of the array
//!     that is all zeros. An entry that names the device, from before it was detached or became
//!     inconsistent, becomes invalid, so keys of its inode count for no volume.
//! M2. The superblock names the set only after the array has the device, durably.
//! M3. A device with data that only another cache has is refused: that would be lost.
//! M4. Nothing of the volume is cached when it is attached, so the cache hides nothing of what was
//!     written without it.
//!
//! # Order
//! 1. Both devices are flushed (R12), and the set is read.
//! 2. A session begins (`set::session`).
//! 3. The array of uuids with the new entry (`set::uuids`), and the entry of the journal that names
//!    it, durably.
//! 4. The superblock of the backing device, with FUA: the set, and the state `clean`.
//!
//! # What a crash leaves
//! - Before 3: a device that belongs to no set.
//! - Between 3 and 4: the same, and an entry of the array that names it. The next attach, here or
//!   in a kernel, makes that entry invalid and takes another one.
//! - After 4: an attached device of which nothing is cached.
//!
//! If step 4 fails, the former superblock is written again, as far as the device takes it. Either
//! superblock is sound, with and without the cache: nothing is cached (M4).

use cairn_block::{ConfigError, ConfigKind, Env};
use cairn_format::bcache::{BackingState, BackingSuperblock, CacheSuperblock, Superblock, Uuid};

use super::canary::{Bug, planted};
use super::set::{Core, Entered};
use super::superblocks::{find_superblock, write_backing};
use super::volume::Bcache;
use crate::args::Device;
use cairn_block::mutants;

/// What the word `attach` means for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joining {
    /// It belongs to the set.
    Member,
    /// It is to join the set.
    Joins,
    /// It has data of another set (M3).
    Dirty,
    /// Its blocks are smaller than those of the set.
    SmallBlocks,
}

/// See [`Joining`].
pub(super) fn joining(backing: &BackingSuperblock, cache: &CacheSuperblock) -> Joining {
    let is_own = backing.set_uuid() == cache.set_uuid();
    match backing.state() {
        BackingState::Clean | BackingState::Dirty if is_own => Joining::Member,
        BackingState::Dirty => Joining::Dirty,
        _ if backing.block_sectors() < cache.geometry().block_sectors() => Joining::SmallBlocks,
        BackingState::None | BackingState::Clean | BackingState::Stale => Joining::Joins,
    }
}

/// Refuses a device that cannot join.
///
/// # Errors
/// One line about it.
pub(super) fn refuse_unfit(
    device: &Device,
    backing: &BackingSuperblock,
    cache: &CacheSuperblock,
    read_only: bool,
) -> Result<(), ConfigError> {
    let refuse = |field: &str, found: String, expected: String| {
        Err(ConfigError::argument(&device.argument, field, found, &expected))
    };
    let set = cache.set_uuid();
    match joining(backing, cache) {
        Joining::Member => Ok(()),
        Joining::Joins if read_only => {
            let found = "a device that is not of the set, open read-only".to_owned();
            refuse("attach", found, format!("one of the set {set}, or a writable one"))
        }
        Joining::Joins => Ok(()),
        Joining::Dirty => {
            let found = format!("{} in state dirty", backing.set_uuid());
            let expected = format!("{set}, or a drained device: only that set has all its data");
            refuse("set_uuid", found, expected)
        }
        Joining::SmallBlocks => {
            let found = format!("{} sectors", backing.block_sectors());
            let least = cache.geometry().block_sectors();
            refuse("block_size", found, format!("at least that of the cache, {least} sectors"))
        }
    }
}

/// What a cache device of bcache offers to a device that joins its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheFound {
    /// The set.
    pub set: Uuid,
    /// Bytes of a block.
    pub block_bytes: u64,
}

impl CacheFound {
    /// Reads the superblock of a device; none if it is not a cache device of bcache.
    ///
    /// # Errors
    /// The device cannot be read.
    pub async fn of(env: &Env, device: &Device) -> Result<Option<CacheFound>, ConfigError> {
        let Ok(Superblock::Cache(cache)) = find_superblock(env, device).await? else {
            return Ok(None);
        };
        let block_bytes = cache.geometry().block_bytes() as u64;
        Ok(Some(CacheFound { set: cache.set_uuid(), block_bytes }))
    }
}

/// Where the data of a backing device begins, in sectors; none if it has no superblock of one.
///
/// # Errors
/// The device cannot be read.
pub async fn first_sector_of(env: &Env, device: &Device) -> Result<Option<u64>, ConfigError> {
    Ok(match find_superblock(env, device).await? {
        Ok(Superblock::Backing(backing)) => Some(backing.data_offset()),
        _ => None,
    })
}

impl Bcache {
    /// Steps 2 to 4, if the line asks for them and the device is no member yet. The caller has the
    /// handover, and the set is open. Answers the superblock of the device.
    ///
    /// # Errors
    /// The set has no place for the device, or serves a device of the same UUID; or a device
    /// failed.
    pub(super) async fn join_set(
        &self,
        env: &Env,
        core: &Core,
        backing: BackingSuperblock,
    ) -> Result<BackingSuperblock, ConfigError> {
        let cache = core.with(|set| set.superblock.clone());
        if !self.config.attach || joining(&backing, &cache) != Joining::Joins {
            return Ok(backing);
        }
        self.refuse_double(core, backing.uuid())?;
        let mut attached = backing.clone();
        attached.set_set_uuid(cache.set_uuid());
        attached.set_state(BackingState::Clean);
        if planted(Bug::SuperblockBeforeArray) {
            self.write_attached(env, &backing, &attached).await?;
        }
        self.enter_array(env, core, &backing).await?;
        self.write_attached(env, &backing, &attached).await?;
        let (volume, set) = (&self.config.volume, cache.set_uuid());
        let device = &self.backing_device().argument;
        tracing::info!("{volume}: {device}: attached to set {set}; nothing of it is cached yet");
        Ok(attached)
    }

    fn backing_device(&self) -> &Device {
        self.config.devices.backing().expect("a volume that joins a set has a backing device")
    }

    /// Refuses a device whose UUID another volume of the set has, which is served.
    fn refuse_double(&self, core: &Core, uuid: Uuid) -> Result<(), ConfigError> {
        let inode = core.with(|set| set.volume(uuid).map(|(inode, _)| inode));
        let user = inode.and_then(|inode| core.users().serves(inode).map(str::to_owned));
        let Some(user) = user else { return Ok(()) };
        let device = &self.backing_device().argument;
        let detail = format!(
            "uuid: found {uuid}, which {user} serves from another device of the set, expected \
             another one: a copy of a device has its UUID, too"
        );
        Err(ConfigError::new(ConfigKind::Busy, device, detail))
    }

    /// Steps 2 and 3.
    async fn enter_array(
        &self,
        env: &Env,
        core: &Core,
        backing: &BackingSuperblock,
    ) -> Result<(), ConfigError> {
        let now_s = env.unix_time().as_secs() as u32;
        let entry = backing.as_volume(now_s);
        let entered = core.change(env, async |session| session.enter_volume(entry).await).await;
        let cache = &core.cache.device().argument;
        let refuse = |kind, detail: String| Err(ConfigError::new(kind, cache, detail));
        match entered {
            Ok(Entered::At(_)) => Ok(()),
            Ok(refused) => refuse(ConfigKind::Argument, refused.text().to_owned()),
            Err(error) => refuse(ConfigKind::System, format!("attach: {error}")),
        }
    }

    /// Step 4.
    async fn write_attached(
        &self,
        env: &Env,
        former: &BackingSuperblock,
        attached: &BackingSuperblock,
    ) -> Result<(), ConfigError> {
        let device = self.backing_device();
        let fua = mutants::fua("bcache: FUA of an attach");
        let Err(error) = write_backing(env, device, attached, fua).await else { return Ok(()) };
        let volume = &self.config.volume;
        if let Err(second) = write_backing(env, device, former, fua).await {
            let device = &device.argument;
            tracing::error!("{volume}: {device}: superblock: not written back: {second}");
        }
        let detail = format!("superblock: could not be written: {error}");
        Err(ConfigError::new(ConfigKind::System, &device.argument, detail))
    }
}
