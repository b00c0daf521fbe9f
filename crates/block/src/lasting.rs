//! Names of places on disks that a later process finds for the same places, and the failure counts
//! that it finds.
//!
//! A place on a volume is followed to where it lies: through targets that only remap to a sector of
//! a file or block device, and else to the target, by the places of its lower disks. So the name is
//! the same whatever volumes are called, whichever options they have and however long they are.
//!
//! A volume's own failure count begins anew in each process, so a crash log has the counts of the
//! lowest disks beneath, which are kept (F3 of `failures`). A loss without a failure of a disk
//! below is known to the volume's targets alone: they keep it, and the next process counts it when
//! it starts them ([`failures_at_opening`]).

use std::sync::Arc;

use crate::crash_log::{Content, CrashMemory};
use crate::device::MappedDevice;
use crate::disk::Disk;
use crate::error::ConfigError;
use crate::registry::Registry;
use crate::units::{Sector, SectorCount, SectorRange};

/// A place for a crash log.
pub struct LogPlace {
    /// The memory of the log.
    pub memory: Arc<dyn CrashMemory>,
    /// The disks that its records speak of outlive this process. Otherwise no log is kept: a record
    /// would say that data is there which is gone, and what was there before would show. The memory
    /// is what an earlier process left then, which had other disks.
    pub is_kept: bool,
}

impl Registry {
    /// The crash log of what a target of this kind has at this sector of a disk. Its records say
    /// that data is there, or on the disks in `data`. None if there is no place for logs, or if
    /// nothing of the disk outlives this process. A target that writes nothing looks at what an
    /// earlier process left.
    ///
    /// # Errors
    /// Another process has it.
    pub fn crash_log_of(
        &self,
        kind: &str,
        (disk, sector): (&Arc<dyn Disk>, Sector),
        data: &[&Arc<dyn Disk>],
        read_only: bool,
    ) -> Result<Option<LogPlace>, ConfigError> {
        let (logs, place) = (self.crash_logs(), self.lasting_name_of(disk, sector));
        let (Some(logs), Some(place)) = (logs, place) else { return Ok(None) };
        let name = format!("{kind}-{place}");
        let is_kept = data.iter().all(|disk| self.lasting_name_of(disk, Sector(0)).is_some());
        let memory = match read_only || !is_kept {
            true => logs.find(&name, Content::Records)?,
            false => logs.open(&name, Content::Records)?,
        };
        Ok(memory.map(|memory| LogPlace { memory, is_kept }))
    }

    /// The name of a sector of a disk: none if nothing of the disk outlives this process.
    pub fn lasting_name_of(&self, disk: &Arc<dyn Disk>, sector: Sector) -> Option<String> {
        match disk.mapped() {
            Some(volume) => self.name_on_volume(volume, sector),
            None => {
                let name = self.identity_of(disk)?.lasting_name()?;
                Some(format!("{name}-{}", sector.0))
            }
        }
    }

    fn name_on_volume(&self, volume: &MappedDevice, sector: Sector) -> Option<String> {
        let table = volume.live_table().or_else(|| volume.inactive_table())?;
        let (_, line) = table.line_at(sector)?;
        let inside = Sector(sector.0.checked_sub(line.start.0)?);
        if let Some(places) = line.target.remaps(SectorRange::new(inside, SectorCount(1))) {
            let (lower, range) = places.first()?;
            return self.lasting_name_of(lower, range.start);
        }
        let lowers = line.target.lowers();
        let lowers = lowers.iter().map(|lower| self.lasting_name_of(lower, Sector(0)));
        let lowers = lowers.collect::<Option<Vec<String>>>()?.join(",");
        let (kind, part) = (&line.name, line.target.part());
        let name = format!("{kind} {part} {lowers} {}", inside.0);
        Some(format!("volume-{:016x}", digest(name.as_bytes())))
    }
}

/// The failure counts of all files and block devices beneath a disk, for a crash log. A user that
/// finds in its own count that nothing is lost reads this one before: a failure in between is told
/// as a loss then, and never hidden.
pub fn failures_beneath(disk: &dyn Disk) -> u64 {
    sum_beneath(disk, |_| 0)
}

/// What a crash log compares with the [`failures_beneath`] of an earlier process, when it is
/// opened: also differs if a volume beneath has lost something in this process, or knows that an
/// earlier one has.
pub fn failures_at_opening(disk: &dyn Disk) -> u64 {
    sum_beneath(disk, |volume| volume.failure_count().count())
}

fn sum_beneath(disk: &dyn Disk, own: fn(&MappedDevice) -> u64) -> u64 {
    let Some(volume) = disk.mapped() else { return disk.failures() };
    let table = volume.live_table().or_else(|| volume.inactive_table());
    let lowers = table.map(|table| table.lowers()).unwrap_or_default();
    own(volume) + lowers.iter().map(|lower| sum_beneath(lower.as_ref(), own)).sum::<u64>()
}

/// FNV-1a. It protects from no malice.
fn digest(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}
