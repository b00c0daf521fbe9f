//! [`Area`]: the range of a lower disk that a table line uses.
//!
//! Promises: the range lay inside the disk, and began at a logical block, when the table was
//! loaded.

use std::fmt;
use std::sync::Arc;

use cairn_block::{
    ConfigError, Disk, Env, Extent, IoError, LocalFuture, Request, Sector, SectorCount,
    SectorRange, Verdict,
};

use crate::args::Device;

/// A range of a lower disk.
#[derive(Clone)]
pub struct Area {
    /// The device as the user named it.
    pub argument: String,
    /// The lower disk.
    pub disk: Arc<dyn Disk>,
    /// Where the range begins on it.
    pub start: Sector,
}

impl Area {
    /// The range of `len` sectors from `start` of `device`; `field` is the name of the start.
    ///
    /// # Errors
    /// The device does not hold that range, or it does not begin at a logical block.
    pub fn new(
        target: &str,
        device: Device,
        field: &str,
        start: Sector,
        len: SectorCount,
    ) -> Result<Area, ConfigError> {
        let Device { argument, disk } = device;
        let (range, size) = (SectorRange::new(start, len), disk.sectors());
        let field = format!("{target} {field}");
        if !range.fits_in(size) {
            let found = format!("{start} for {len} sectors");
            let expected = format!("a range inside the device, which has {size} sectors");
            return Err(ConfigError::argument(&argument, &field, found, &expected));
        }
        let block = disk.limits().logical_sectors();
        if !start.0.is_multiple_of(block.0) {
            let expected = format!("a multiple of the logical block size, {block} sectors");
            return Err(ConfigError::argument(&argument, &field, start, &expected));
        }
        Ok(Area { argument, disk, start })
    }

    /// Where a sector of the target lies on the disk.
    pub fn sector(&self, sector: Sector) -> Sector {
        self.start + SectorCount(sector.0)
    }

    /// Sends a request on to the disk.
    pub fn remap(&self, request: &Request) -> Verdict<'_> {
        Verdict::Remapped { disk: self.disk.as_ref(), sector: self.sector(request.range.start) }
    }

    /// Where a range of the target lies, for claims.
    pub fn place(&self, range: SectorRange) -> (Arc<dyn Disk>, SectorRange) {
        (self.disk.clone(), SectorRange::new(self.sector(range.start), range.count))
    }

    /// The extents of a range of the target, as reported by the disk.
    pub fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        self.disk.extents(env, SectorRange::new(self.sector(range.start), range.count))
    }
}

/// As in a table line: the device and the offset.
impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.argument, self.start)
    }
}
