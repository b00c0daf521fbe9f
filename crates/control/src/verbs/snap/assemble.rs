//! Assembling a volume with snapshots: bringing up all its recorded parts. The start does this, and
//! a resume after a verb that failed half way.
//!
//! No client may write to an origin before every recorded snapshot of it is live, and a volume that
//! is being merged is written only through the merge. So the parts come up from the lowest to the
//! volume. If one of them cannot be brought up, the volume stays suspended.

use cairn_block::TableLine;
use cairn_outcome::failure::{Losses, Outcome};
use cairn_targets::spec::words_of;

use super::log_undo_failure;
use super::rollback::Merge;
use crate::names::{SnapName, merge_of, parent_of, real_of, snapshot_of};
use crate::state::Record;
use crate::verbs::{Changes, Verbs};

/// The records of a volume and of its parts, in the order in which they come up: its own table, the
/// snapshots, a merge, the volumes that stand on the merge, the volume.
pub fn family<'a>(records: impl IntoIterator<Item = &'a Record>, volume: &str) -> Vec<&'a Record> {
    let (real, merge) = (real_of(volume), merge_of(volume));
    let on_merge = format!(" @{merge} ");
    let place = |record: &Record| match record.name.as_str() {
        name if name == real => Some(0),
        name if name == merge => Some(2),
        name if name == volume => Some(4),
        name if parent_of(name) != Some(volume) => None,
        _ if record.table.as_ref()?.contains(&on_merge) => Some(3),
        _ => Some(1),
    };
    let there = records.into_iter().filter(|record| record.table.is_some());
    let mut parts: Vec<_> = there.filter_map(|record| Some((place(record)?, record))).collect();
    parts.sort_by_key(|(place, _)| *place);
    parts.into_iter().map(|(_, record)| record).collect()
}

impl Verbs {
    /// Brings up a suspended volume with all its recorded parts. Without snapshots this is a plain
    /// resume.
    ///
    /// # Errors
    /// A part can't be live as it is recorded: the volume stays suspended. Or all of it is live,
    /// but acknowledged writes may be lost.
    pub(crate) fn assemble(&self, changes: &Changes, volume: &str) -> Outcome<()> {
        let device = self.world.volume(volume)?;
        let records = changes.records();
        let parts = family(records.values(), volume);
        let mut losses = Losses::default();
        if !device.is_suspended() || !parts.iter().any(|part| part.name == real_of(volume)) {
            losses.keep(self.make_live(volume))?;
        } else {
            for left in self.left_over(changes, volume) {
                self.discard_volume(&left)?;
            }
            for part in parts {
                losses.keep(self.bring_in_line(part))?;
            }
        }
        self.take_down_unrecorded(changes, volume);
        losses.told()
    }

    /// Removes the volume's own table and its merge if they are live and not recorded.
    pub(crate) fn take_down_unrecorded(&self, changes: &Changes, volume: &str) {
        for left in [merge_of(volume), real_of(volume)] {
            if changes.record_of(&left).table.is_none() {
                log_undo_failure(&left, self.take_down(&left));
            }
        }
    }

    /// Live snapshots of a volume that are not recorded.
    fn left_over(&self, changes: &Changes, volume: &str) -> Vec<String> {
        let volumes = self.world.volumes();
        let names = volumes.iter().map(|part| part.volume().to_owned());
        let unknown = |name: &String| changes.record_of(name).table.is_none();
        names.filter(|name| snapshot_of(name, volume).is_some()).filter(unknown).collect()
    }

    /// Brings up one part with its recorded table.
    ///
    /// # Errors
    /// It cannot be. Or it is, but acknowledged writes may be lost.
    pub(crate) fn bring_in_line(&self, part: &Record) -> Outcome<()> {
        let (name, table) = (part.name.as_str(), part.table.as_deref().unwrap_or_default());
        let volume = parent_of(name).unwrap_or(name);
        let is_snapshot = snapshot_of(name, volume).is_some();
        let Ok(device) = self.world.volume(name) else {
            self.bring_up_volume(name, table)?;
            return if is_snapshot { self.exports.add_volume(&self.world, name) } else { Ok(()) };
        };
        let waits = device.inactive_table().is_some();
        // Only these verbs load tables for the volume and its snapshots. A table that a user loaded
        // for a volume beneath stays inactive until the user's resume.
        let own = is_snapshot || name == volume;
        let reload = own && (waits || !self.stands_as_recorded(part));
        if !reload && (!device.is_suspended() || waits) {
            return Ok(());
        }
        if reload {
            self.world.load(name, table)?;
        }
        let mut losses = Losses::default();
        let mut resumed = losses.keep(self.make_live(name));
        if resumed.is_err() && is_snapshot && !reload {
            // Its store was handed over; only a new table gets it back.
            self.world.load(name, table)?;
            resumed = losses.keep(self.make_live(name));
        }
        if resumed.is_err() && is_snapshot && device.is_suspended() && reload {
            // Its former store belongs to another volume now: drop all state.
            self.discard_volume(name)?;
            return self.bring_in_line(part);
        }
        resumed?;
        if is_snapshot {
            self.exports.add_volume(&self.world, name)?;
        }
        losses.told()
    }

    /// True if a live part stands on what its record names first.
    fn stands_as_recorded(&self, part: &Record) -> bool {
        let live = self.world.volume(&part.name).ok().and_then(|device| device.live_table());
        let lowers = live.as_ref().and_then(|table| table.lines().first());
        let lowers = lowers.map(|line| line.target.lowers()).unwrap_or_default();
        let lower = lowers.first().map(|lower| lower.name());
        let recorded = TableLine::parse_all(part.table.as_deref().unwrap_or_default());
        let recorded = recorded.unwrap_or_default();
        let origin = recorded.first().and_then(|line| words_of(line)?.1.argument("origin"));
        lower.is_some_and(|lower| origin == Some(lower.as_str()))
    }

    /// Continues a merge when its verb is called again: retries a failed one and completes the
    /// steps that are left.
    pub(super) fn go_on_merging(&self, changes: &Changes, snap: &SnapName) -> Outcome<()> {
        let merge = merge_of(&snap.volume);
        let mut losses = Losses::default();
        if self.world.volume(&merge).is_ok() && self.merge_of(&snap.volume)? == Merge::Failed {
            losses.keep(self.hold(&merge))?;
        }
        if self.world.volume(&merge).is_ok() {
            losses.keep(self.make_live(&merge))?;
        }
        losses.keep(self.assemble(changes, &snap.volume))?;
        losses.told()
    }
}
