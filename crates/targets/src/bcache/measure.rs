//! How long a line of length `N` is: what the superblock of the backing device leaves for data, or
//! the size of a flash-only volume, which the cache has.

use cairn_block::{ConfigError, ConfigKind, Env, Registry, SectorCount};
use cairn_format::bcache::Uuid;
use cairn_format::bcache::load::{LoadError, load_volumes};
use cairn_format::bcache::uuids::UuidEntry;

use super::config::{LAB_SPEC, SPEC};
use super::set::DiskSource;
use super::superblocks::{damaged, read_backing, read_cache};
use crate::args::Device;
use crate::spec::{Measure, NO_DEVICE, Spec};

/// See the module's description.
pub(super) const MEASURE: Measure =
    |env, registry, words, read_only| Box::pin(measure(env, registry, words, read_only, &SPEC));

/// Of a line of the lab.
pub(super) const LAB_MEASURE: Measure =
    |env, registry, words, read_only| Box::pin(measure(env, registry, words, read_only, &LAB_SPEC));

async fn measure(
    env: &Env,
    registry: &Registry,
    words: &[String],
    read_only: bool,
    spec: &Spec,
) -> Result<SectorCount, ConfigError> {
    let (words, split) = spec.split(words.iter().map(String::as_str));
    split?;
    let named = |name| words.argument(name).filter(|word| *word != NO_DEVICE);
    let backing = named("backing");
    let Some(argument) = backing.or_else(|| named("cache")) else {
        let expected = "a device to take its length from";
        return Err(ConfigError::argument(spec.name, "length", "no number", expected));
    };
    let disk = registry.open_on(env, argument, read_only).await?;
    disk.refresh()?;
    let device = Device { argument: argument.to_owned(), disk };
    match backing {
        Some(_) => {
            let superblock = read_backing(env, &device).await?;
            let sectors = superblock.data_sectors(device.disk.sectors().0);
            sectors.map(SectorCount).map_err(|error| damaged(&device, &error))
        }
        None => {
            let flash = words.option(spec, "flash").and_then(|values| values.first());
            flash_sectors(env, &device, flash.and_then(|word| word.parse().ok())).await
        }
    }
}

async fn flash_sectors(
    env: &Env,
    device: &Device,
    wanted: Option<Uuid>,
) -> Result<SectorCount, ConfigError> {
    let superblock = read_cache(env, device).await?;
    let argument = &device.argument;
    let size = device.disk.sectors().0;
    superblock.geometry().fits(size).map_err(|error| damaged(device, &error))?;
    let volumes = match load_volumes(&mut DiskSource::new(env, device, false), &superblock).await {
        Ok(volumes) => volumes,
        Err(LoadError::Source(never)) => match never {},
        Err(LoadError::Fault(fault)) => {
            return Err(ConfigError::new(ConfigKind::Damaged, argument, fault.to_string()));
        }
    };
    let is_it =
        |entry: &&UuidEntry| entry.is_live() && entry.is_flash_only() && Some(entry.uuid) == wanted;
    let found = volumes.iter().find(is_it).map(|entry| SectorCount(entry.sectors));
    found.ok_or_else(|| {
        let found = wanted.map_or_else(|| "nothing".to_owned(), |uuid| uuid.to_string());
        ConfigError::argument(argument, "flash", found, "a flash-only volume of the cache")
    })
}
