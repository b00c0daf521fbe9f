//! [`Members`]: the devices that a disk is made of, one after another. A part of a disk that lies
//! on stripes, or on a target that decides, is one member.

use std::sync::Arc;

use cairn_block::{Disk, MappedDevice, Sector, SectorRange};

use super::ZONE_SECTORS;

/// A part of a disk: where it ends, and the member that it lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    end: u64,
    member: usize,
}

/// The members of a disk, by parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Members {
    /// In order and gapless; at least one.
    parts: Vec<Part>,
    count: usize,
}

impl Members {
    /// The members of a disk, as far as tables in this process tell: the lines of a mapped device
    /// that lie on different disks. A table may be replaced later; this answer then only costs
    /// speed.
    pub fn of(disk: &Arc<dyn Disk>) -> Members {
        let mut found = Vec::new();
        follow(disk, SectorRange::new(Sector(0), disk.sectors()), &mut found);
        Members::of_devices(found)
    }

    /// The members of a disk whose parts have these lengths and lie on devices of these names.
    pub(super) fn of_devices(devices: impl IntoIterator<Item = (u64, usize)>) -> Members {
        let (mut names, mut parts, mut end) = (Vec::new(), Vec::<Part>::new(), 0);
        for (length, name) in devices {
            let known = names.iter().position(|known| *known == name);
            let member = known.unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            });
            end += length;
            match parts.last_mut() {
                Some(last) if last.member == member => last.end = end,
                _ => parts.push(Part { end, member }),
            }
        }
        Members { parts, count: names.len() }
    }

    /// One member of this length.
    #[cfg(test)]
    pub fn of_one(length: cairn_block::SectorCount) -> Members {
        Members::of_devices([(length.0, 0)])
    }

    /// How many members there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Where the last member ends.
    pub fn end(&self) -> Sector {
        Sector(self.parts.last().map_or(0, |part| part.end))
    }

    /// The member and the zone that a sector of the disk lies in.
    pub fn zone_of(&self, sector: Sector) -> (usize, SectorRange) {
        let at = self.parts.partition_point(|part| part.end <= sector.0);
        let start = at.checked_sub(1).map_or(0, |before| self.parts[before].end);
        let Part { end, member } = self.parts[at];
        let zone = start + (sector.0 - start) / ZONE_SECTORS * ZONE_SECTORS;
        let end = end.min(zone + ZONE_SECTORS);
        (member, SectorRange::between(Sector(zone), Sector(end)))
    }
}

/// Appends the lengths of the parts of a range of a disk, and what each part lies on.
fn follow(disk: &Arc<dyn Disk>, range: SectorRange, found: &mut Vec<(u64, usize)>) {
    let Some(table) = disk.mapped().and_then(MappedDevice::live_table) else {
        return found.push((range.count.0, Arc::as_ptr(disk).cast::<()>().addr()));
    };
    for line in table.lines() {
        let Some(part) = range.intersect(line.range()) else { continue };
        match line.target.straight() {
            Some((lower, start)) => {
                let start = start + (part.start - line.start);
                follow(&lower, SectorRange::new(start, part.count), found);
            }
            // A target that decides: its place in memory is its name.
            None => found.push((part.count.0, Arc::as_ptr(&line.target).cast::<()>().addr())),
        }
    }
}
