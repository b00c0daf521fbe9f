//! The superblocks of a volume's devices: reading, checking, and writing that of the backing
//! device.
//!
//! What is checked here is known before the set is read: that the devices are what their arguments
//! say, belong to one set, and hold what the line and their superblocks claim.

use cairn_block::{
    ConfigError, ConfigKind, Env, Flags, IoError, IoResult, Sector, SectorCount, SectorRange,
    failures_beneath, mutants,
};
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheSuperblock, Error as FormatError, SUPERBLOCK_BYTES,
    SUPERBLOCK_SECTOR, Superblock,
};

use super::attach::refuse_unfit;
use super::config::{Config, Devices};
use super::passing::refuse_force;
use super::set::write_io;
use crate::args::Device;
use crate::blank::read_sectors;

/// The superblocks of a volume's devices.
pub(super) struct Superblocks {
    pub backing: Option<BackingSuperblock>,
    pub cache: Option<CacheSuperblock>,
}

pub(super) fn damaged(device: &Device, error: &FormatError) -> ConfigError {
    let kind = match error {
        FormatError::Kind { .. } | FormatError::DeviceSize { .. } => ConfigKind::Argument,
        _ => ConfigKind::Damaged,
    };
    ConfigError::new(kind, &device.argument, error.to_string())
}

/// Reads the superblock of a device. The inner error says why there is none.
///
/// # Errors
/// The device cannot be read.
pub(super) async fn find_superblock(
    env: &Env,
    device: &Device,
) -> Result<Result<Superblock, FormatError>, ConfigError> {
    let count = SectorCount::of_bytes(SUPERBLOCK_BYTES as u64);
    let range = SectorRange::new(Sector(SUPERBLOCK_SECTOR), count);
    if !range.fits_in(device.disk.sectors()) {
        let (found, expected) = (device.disk.sectors().0, range.end().0);
        return Ok(Err(FormatError::DeviceSize { found, expected }));
    }
    Ok(Superblock::decode(&read_sectors(env, device, range).await?))
}

async fn read_superblock(env: &Env, device: &Device) -> Result<Superblock, ConfigError> {
    find_superblock(env, device).await?.map_err(|error| damaged(device, &error))
}

/// Reads the superblock of a cache device.
pub(super) async fn read_cache(env: &Env, device: &Device) -> Result<CacheSuperblock, ConfigError> {
    match read_superblock(env, device).await? {
        Superblock::Cache(cache) => Ok(cache),
        Superblock::Backing(_) => {
            let (found, expected) = ("that of a backing device", "that of a cache device");
            Err(damaged(device, &FormatError::Kind { found, expected }))
        }
    }
}

/// Reads the superblock of a backing device.
pub(super) async fn read_backing(
    env: &Env,
    device: &Device,
) -> Result<BackingSuperblock, ConfigError> {
    match read_superblock(env, device).await? {
        Superblock::Backing(backing) => Ok(backing),
        Superblock::Cache(_) => {
            let (found, expected) = ("that of a cache device", "that of a backing device");
            Err(damaged(device, &FormatError::Kind { found, expected }))
        }
    }
}

/// Reads the superblocks, and checks that the devices belong together and hold the line.
pub(super) async fn read_superblocks(
    env: &Env,
    config: &Config,
    read_only: bool,
) -> Result<Superblocks, ConfigError> {
    let mut superblocks = Superblocks { backing: None, cache: None };
    if let Some(device) = config.devices.cache() {
        let cache = read_cache(env, device).await?;
        check_cache(device, &cache, read_only)?;
        superblocks.cache = Some(cache);
    }
    if let Some(device) = config.devices.backing() {
        let backing = read_backing(env, device).await?;
        let size = device.disk.sectors().0;
        let sectors = backing.data_sectors(size).map_err(|error| damaged(device, &error))?;
        if config.len.0 > sectors {
            let (found, expected) = (size, config.len.0 + backing.data_offset());
            return Err(damaged(device, &FormatError::DeviceSize { found, expected }));
        }
        superblocks.backing = Some(backing);
    }
    check_set(config, &superblocks, read_only)?;
    check_blocks(config, &superblocks)?;
    Ok(superblocks)
}

/// Refuses a set whose blocks are smaller than those of one of its devices: what it caches, and
/// what a drain writes, is in its own.
fn check_blocks(config: &Config, superblocks: &Superblocks) -> Result<(), ConfigError> {
    let Some(cache) = &superblocks.cache else { return Ok(()) };
    let block = cache.geometry().block_bytes();
    let devices = [config.devices.cache(), config.devices.backing()];
    for device in devices.into_iter().flatten() {
        let logical = device.disk.limits().logical_block;
        if block < logical as usize {
            let expected = format!("at least the device's logical block size, {logical} bytes");
            let found = format!("{block} bytes in the cache");
            let argument = &device.argument;
            return Err(ConfigError::argument(argument, "block_size", found, &expected));
        }
    }
    Ok(())
}

fn check_cache(
    device: &Device,
    cache: &CacheSuperblock,
    read_only: bool,
) -> Result<(), ConfigError> {
    let refuse = |kind, detail: &str| Err(ConfigError::new(kind, &device.argument, detail));
    let size = device.disk.sectors().0;
    cache.geometry().fits(size).map_err(|error| damaged(device, &error))?;
    if !cache.is_in_use() {
        let detail = "superblock flags: found a cache that was never used, expected one in use";
        return refuse(ConfigKind::Argument, detail);
    }
    if cache.is_obsolete() && !read_only {
        let detail = "superblock feature_incompat: found the obsolete form of bucket_size, which \
                      is only read: use --read-only";
        return refuse(ConfigKind::Unsupported, detail);
    }
    Ok(())
}

/// Refuses devices of different sets, and a backing device that was used without its cache.
fn check_set(
    config: &Config,
    superblocks: &Superblocks,
    read_only: bool,
) -> Result<(), ConfigError> {
    let expected = superblocks.cache.as_ref().map(CacheSuperblock::set_uuid);
    if let (Some(device), Some(found), Some(wanted)) =
        (config.devices.cache(), expected, config.set)
        && found != wanted
    {
        let wanted = wanted.to_string();
        return Err(ConfigError::argument(&device.argument, "set_uuid", found, &wanted));
    }
    let (Some(device), Some(backing)) = (config.devices.backing(), &superblocks.backing) else {
        return Ok(());
    };
    if let Some(cache) = superblocks.cache.as_ref().filter(|_| config.attach) {
        return refuse_unfit(device, backing, cache, read_only);
    }
    let found = backing.set_uuid();
    if let Some(wanted) = expected.or(config.set).filter(|wanted| *wanted != found) {
        let (found, hint) = match found.is_zero() {
            true => ("none".to_owned(), ": it was detached, or went on when its cache failed"),
            false => (found.to_string(), ""),
        };
        let expected = format!("{wanted}, the set of the cache{hint}");
        return Err(ConfigError::argument(&device.argument, "set_uuid", found, &expected));
    }
    if let Devices::Bare { force, .. } = config.devices {
        return force.map_or(Ok(()), |set| refuse_force(device, backing, set, read_only));
    }
    if backing.state() == BackingState::None {
        // The kernel attaches such a device with a new volume, and nothing of the old one counts.
        let (found, expected) = ("none", "clean or dirty: a cache counts for no other state");
        return Err(ConfigError::argument(&device.argument, "state", found, expected));
    }
    if backing.state() == BackingState::Stale {
        let detail = "state: found inconsistent: it was used without its cache although that had \
                      data it lacked; without the cache it is read with '-' as cache and stale_ok";
        return Err(ConfigError::new(ConfigKind::Damaged, &device.argument, detail));
    }
    Ok(())
}

/// Success if the failure count of a device is still `known`: no flush has failed since, of this
/// user or another, so that what has completed is as durable as the device says.
pub(super) fn intact(device: &Device, known: u64) -> IoResult {
    match device.disk.failures() == known {
        true => Ok(()),
        false => Err(IoError::IO),
    }
}

/// Writes the superblock of a backing device. `fua` makes the write durable.
///
/// # Errors
/// The device failed, or a flush of it by another user.
pub(super) async fn write_backing(
    env: &Env,
    device: &Device,
    superblock: &BackingSuperblock,
    fua: Flags,
) -> IoResult {
    let write = write_io(env, SUPERBLOCK_SECTOR, &superblock.encode());
    let known = device.disk.failures();
    env.io(&device.disk, write.with(fua)).await?;
    intact(device, known)
}

/// The result of a write of a superblock, as one of a start.
pub(super) fn written(device: &Device, result: IoResult) -> Result<(), ConfigError> {
    result.map_err(|error| {
        let detail = format!("superblock: could not be written: {error}");
        ConfigError::new(ConfigKind::System, &device.argument, detail)
    })
}

/// If no cache counts for the device by this superblock, that is durable on return: if the device
/// has failed since the system started, a killed process may have written what the device shows and
/// has lost, so it is written again.
///
/// # Errors
/// The device failed.
pub(super) async fn keep_uncounted(
    env: &Env,
    device: &Device,
    superblock: &BackingSuperblock,
) -> Result<(), ConfigError> {
    let counts = matches!(superblock.state(), BackingState::Clean | BackingState::Dirty);
    let disk = device.disk.as_ref();
    if counts || disk.limits().read_only || failures_beneath(disk) == 0 {
        return Ok(());
    }
    let fua = mutants::fua("bcache: FUA of a state that is found");
    written(device, write_backing(env, device, superblock, fua).await)
}
