//! Which sectors of a disk refuse writes.
//!
//! A disk refuses all writes or none. A volume may be composed of both kinds, for example of a
//! file and an image of a web server, so read-only is a property of a range there, and
//! [`Limits::read_only`](crate::Limits) says that all of it refuses writes.
//!
//! A target that writes to a lower disk asks for the range that it needs, when its table is built.
//! What a volume beneath gets as its next table is not foreseen: a write there fails then.

use crate::disk::Disk;
use crate::table::{Line, Table};
use crate::target::Target;
use crate::units::{Sector, SectorRange};

/// The parts of a range of a disk that refuse writes, in order; parts that touch are one.
pub fn read_only_parts(disk: &dyn Disk, range: SectorRange) -> Vec<SectorRange> {
    let mut parts = Vec::new();
    let table = disk.mapped().and_then(|device| device.live_table());
    match table {
        Some(table) => of_table(&table, range, &mut parts),
        None if disk.limits().read_only => add(&mut parts, range),
        None => {}
    }
    parts
}

/// True if a range of a remapper refuses all writes. `None` if the target is no remapper.
pub(crate) fn refuses_all(target: &dyn Target, range: SectorRange) -> Option<bool> {
    let mut parts = Vec::new();
    of_remapper(target, range, &mut parts)?;
    Some(!range.is_empty() && parts == [range])
}

fn of_table(table: &Table, range: SectorRange, parts: &mut Vec<SectorRange>) {
    if table.limits().read_only {
        return add(parts, range);
    }
    for line in table.lines() {
        let Some(shared) = range.intersect(line.range()) else { continue };
        if line.read_only {
            add(parts, shared);
            continue;
        }
        let inside = SectorRange::new(inside_of(line, shared.start), shared.count);
        let mut found = Vec::new();
        // A target that decides takes each write, unless its line is read-only.
        let _ = of_remapper(line.target.as_ref(), inside, &mut found);
        for part in found {
            let start = Sector(line.start.0 + part.start.0);
            add(parts, SectorRange::new(start, part.count));
        }
    }
}

fn inside_of(line: &Line, sector: Sector) -> Sector {
    Sector(sector.0 - line.start.0)
}

/// Adds the parts of a range of a target. `None` if it is no remapper.
fn of_remapper(
    target: &dyn Target,
    range: SectorRange,
    parts: &mut Vec<SectorRange>,
) -> Option<()> {
    let places = target.remaps(range)?;
    if let [(disk, place)] = &places[..]
        && place.count == range.count
    {
        for part in read_only_parts(disk.as_ref(), *place) {
            let start = Sector(range.start.0 + (part.start.0 - place.start.0));
            add(parts, SectorRange::new(start, part.count));
        }
        return Some(());
    }
    // Stripes: which of its sectors lie where is the target's matter.
    let refuses = |(disk, place): &(_, _)| {
        let disk: &std::sync::Arc<dyn Disk> = disk;
        !read_only_parts(disk.as_ref(), *place).is_empty()
    };
    if places.iter().any(refuses) {
        add(parts, range);
    }
    Some(())
}

fn add(parts: &mut Vec<SectorRange>, part: SectorRange) {
    match parts.last_mut().filter(|last| last.end() == part.start) {
        Some(last) => last.count += part.count,
        None => parts.push(part),
    }
}
