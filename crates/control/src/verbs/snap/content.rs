//! Whether two tables show the same content. The table beneath a volume with snapshots may be
//! replaced only by a table with the same content: the stores of the snapshots have only what the
//! volume has overwritten, and the rest of a snapshot is read from the volume's own table.
//!
//! A table is brought to a list of runs: each is a range of the table and what it shows.
//!
//! - S1. A line that sends every request of a range to one range of one disk shows that range. It
//!   is followed through volumes beneath, down to a disk or a line of another kind.
//! - S2. A cache shows a range of its origin: a table that would leave dirty blocks behind is
//!   refused by the rules for dirty data, and one that leaves a bcache set without detaching the
//!   backing device by the rules for sets (see `verbs::volume::swap`).
//! - S3. A line of another kind shows what a line shows with the same words over the same disks.
//!   The devices of `striped` are compared as disks alone, whatever they are called.
//! - S4. The new table shows the same content if its runs begin with those of the old one.
//!
//! Disks are compared as the registry knows them: one device is one [`Disk`], whatever its name.

use std::sync::Arc;

use cairn_block::{ConfigKind, DeviceId, Disk, Line, MappedDevice, Sector, SectorRange, Table};

use cairn_outcome::failure::{Outcome, refused};
use cairn_targets::bcache::BACKING_ROLE;

use crate::names::{merge_of, parent_of, real_of};
use crate::verbs::{Changes, Verbs};

/// A device that is not followed further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LowerDisk {
    Disk(usize),
    Volume(DeviceId),
}

/// What a run shows.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    /// A range of a device.
    Range(LowerDisk),
    /// A line of another kind (S3): its words, and what its disks show.
    Line { words: String, disks: Vec<Vec<Run>> },
}

/// A range of a table, with what it shows from `offset` on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    len: u64,
    offset: u64,
    shown: Shown,
}

/// True if `new` shows at least what `old` does (S4).
pub fn is_same_content(old: &Table, new: &Table) -> bool {
    let whole = SectorRange::new(Sector(0), old.sectors());
    old.sectors() <= new.sectors() && runs_of(old, whole) == runs_of(new, whole)
}

fn runs_of(table: &Table, range: SectorRange) -> Vec<Run> {
    let mut runs = Vec::new();
    in_table(table, range, &mut runs);
    joined(runs)
}

fn in_table(table: &Table, range: SectorRange, runs: &mut Vec<Run>) {
    for line in table.lines() {
        let Some(mut inside) = range.intersect(line.range()) else { continue };
        inside.start = Sector(inside.start.0 - line.start.0);
        in_line(line, inside, runs);
    }
}

fn in_line(line: &Line, inside: SectorRange, runs: &mut Vec<Run>) {
    let lowers = line.target.lowers();
    if let Some((origin, range)) = line.target.shows_of_origin(inside) {
        return in_disk(&origin, range, runs);
    }
    if let Some([(disk, range)]) = line.target.remaps(inside).as_deref()
        && range.count == inside.count
    {
        return in_disk(disk, *range, runs);
    }
    let shown = shown_by(line, &lowers);
    runs.push(Run { len: inside.count.0, offset: inside.start.0, shown });
}

fn in_disk(disk: &Arc<dyn Disk>, range: SectorRange, runs: &mut Vec<Run>) {
    let table = disk.mapped().and_then(MappedDevice::live_table);
    if let Some(table) = table.filter(|table| range.end() <= Sector(0) + table.sectors()) {
        return in_table(&table, range, runs);
    }
    let place = match disk.mapped() {
        Some(device) => LowerDisk::Volume(device.id()),
        None => LowerDisk::Disk(Arc::as_ptr(disk).cast::<()>().addr()),
    };
    runs.push(Run { len: range.count.0, offset: range.start.0, shown: Shown::Range(place) });
}

/// What a line of another kind shows (S3).
fn shown_by(line: &Line, lowers: &[Arc<dyn Disk>]) -> Shown {
    let table = line.target.table();
    let is_device = |at: usize| line.name == "striped" && at >= 2 && at.is_multiple_of(2);
    let words = table.split_whitespace().enumerate().filter(|(at, _)| !is_device(*at));
    let words: Vec<&str> = words.map(|(_, word)| word).collect();
    let words = format!("{} {} {}", line.len, line.name, words.join(" "));
    let disks = lowers.iter().map(|disk| {
        let mut runs = Vec::new();
        in_disk(disk, SectorRange::new(Sector(0), disk.sectors()), &mut runs);
        joined(runs)
    });
    Shown::Line { words, disks: disks.collect() }
}

/// Runs that go on from each other, as one.
fn joined(runs: Vec<Run>) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.shown == run.shown && last.offset + last.len == run.offset => {
                last.len += run.len;
            }
            _ => joined.push(run),
        }
    }
    joined
}

impl Verbs {
    /// Refuses a loaded table that shows another content than the live one, unless the caller says
    /// that the bytes are the same: of `V@real`, which ruins the snapshots of `V`, or of a backing
    /// device of bcache, whose cache would show the former content.
    ///
    /// # Errors
    /// It shows another content.
    pub(crate) fn refuse_other_content(
        &self,
        changes: &Changes,
        name: &str,
        same_content: bool,
    ) -> Outcome<()> {
        let volume = self.world.volume(name)?;
        let (Some(live), Some(waiting)) = (volume.live_table(), volume.inactive_table()) else {
            return Ok(());
        };
        let mut ruined = Vec::new();
        if let Some(parent) = parent_of(name).filter(|parent| name == real_of(parent)) {
            let snapshots = changes.snapshots_of(parent);
            ruined.extend(snapshots.iter().map(|own| format!("{parent}@{own}")));
            if changes.record_of(&merge_of(parent)).table.is_some() {
                ruined.push("a merge under way".to_owned());
            }
        }
        let first = match ruined.is_empty() {
            true => "remove the cached volume",
            false => "remove or merge the snapshots",
        };
        let claimants = volume.claimants().into_iter();
        let caches = claimants.filter(|claimant| claimant.role == BACKING_ROLE);
        ruined.extend(caches.map(|claimant| format!("the cache of {}", claimant.volume)));
        if same_content || ruined.is_empty() || is_same_content(&live, &waiting) {
            return Ok(());
        }
        let found = format!("other content than now, which ruins {}", ruined.join(", "));
        let expected = format!(
            "the same device, with a cache or without ({first} first; --same-content if it is a \
             copy)"
        );
        Err(refused(ConfigKind::Busy, name, "table", found, expected))
    }
}
