//! A backing device whose data nothing writes: a volume composed of a file of a few sectors, which
//! has the superblock, and of an image that is only read.
//!
//! ```text
//! sector 0        data_offset                                end
//!   | superblock      | data                                  |
//!   | takes writes    | refuses writes: the volume is fixed   |
//! ```
//!
//! # Invariants
//! X1. A fixed volume is read-only for its clients, so nothing of it becomes dirty. Reads that miss
//!     fill the cache, and the intent map in the superblock vouches for that at the next start
//!     (`trust`).
//! X2. It does not start if the cache has dirty data of it, which could never be written back.
//! X3. A volume (`@NAME`) is a backing device with a cache that is written only if it is fixed.
//!     What another table writes to a volume is its clients' own, so nothing else would keep them
//!     from changing the data without the cache.

use cairn_block::{ConfigError, Sector, SectorRange, read_only_parts};
use cairn_format::bcache::{BackingSuperblock, SUPERBLOCK_SECTOR};

use super::config::{Config, Devices};
use super::volume::Bcache;
use crate::args::Device;

/// Sectors of a superblock.
const SUPERBLOCK_SECTORS: u64 = 8;

/// True if the volume is fixed. Nothing is, for a table that writes nothing.
///
/// # Errors
/// The superblock cannot be written that the line needs to write, or the cache device; or only a
/// part of the data can; or the backing device is a volume that is not fixed (X3).
pub(super) fn find_fixed(
    config: &Config,
    backing: Option<&BackingSuperblock>,
    read_only: bool,
) -> Result<bool, ConfigError> {
    if read_only {
        return Ok(false);
    }
    if let Some(cache) = config.devices.cache() {
        cache.refuse_if_read_only("cache")?;
    }
    let (Some(device), Some(superblock)) = (config.devices.backing(), backing) else {
        return Ok(false);
    };
    let writes_superblock = match &config.devices {
        Devices::Bare { force, .. } => force.is_some(),
        Devices::Cached { .. } | Devices::Flash { .. } => true,
    };
    if writes_superblock {
        let start = Sector(SUPERBLOCK_SECTOR);
        let end = Sector(SUPERBLOCK_SECTOR + SUPERBLOCK_SECTORS);
        device.refuse_read_only("superblock", SectorRange::between(start, end))?;
    }
    let end = Sector(device.disk.sectors().0);
    let data = SectorRange::between(Sector(superblock.data_offset()), end);
    let parts = read_only_parts(device.disk.as_ref(), data);
    if parts == [data] {
        return Ok(true);
    }
    refuse_mixed(device, &parts)?;
    refuse_volume(device).map(|()| false)
}

/// Refuses data of which a part only can be written.
fn refuse_mixed(device: &Device, parts: &[SectorRange]) -> Result<(), ConfigError> {
    let Some(part) = parts.first() else { return Ok(()) };
    let found = format!("only sectors {part} read-only");
    let expected = "all of the data read-only, or none";
    Err(ConfigError::argument(&device.argument, "data", found, expected))
}

/// X3, of a device whose data is written.
fn refuse_volume(device: &Device) -> Result<(), ConfigError> {
    if !device.argument.starts_with('@') {
        return Ok(());
    }
    let expected = "a file or block device, a volume whose data is read-only, or --read-only";
    Err(ConfigError::argument(&device.argument, "backing", "a volume", expected))
}

impl Bcache {
    /// What nothing writes is still that, since the table was loaded.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn check_fixed(&self, superblock: &BackingSuperblock) -> Result<(), ConfigError> {
        if find_fixed(&self.config, Some(superblock), self.read_only)? == self.is_fixed {
            return Ok(());
        }
        let device = self.config.devices.backing().expect("it has a superblock");
        let state = |is_fixed| if is_fixed { "read-only" } else { "writable" };
        let expected = format!("{}, as when the table was loaded", state(self.is_fixed));
        let found = state(!self.is_fixed);
        Err(ConfigError::argument(&device.argument, "data", found, &expected))
    }

    /// X2.
    pub(super) fn refuse_dirty_if_fixed(&self, dirty: u64) -> Result<(), ConfigError> {
        let Some(device) = self.config.devices.backing().filter(|_| self.is_fixed && dirty > 0)
        else {
            return Ok(());
        };
        let found = format!("read-only with {dirty} dirty sectors in the cache");
        let expected = "none, as they could not be written back";
        Err(ConfigError::argument(&device.argument, "data", found, expected))
    }
}
