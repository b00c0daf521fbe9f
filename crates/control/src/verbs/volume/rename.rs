//! `rename`: a volume under another name. Clients and tables know a volume by its name, so it has
//! neither clients nor users; what the state file has by the name moves with it. A name that is
//! written elsewhere, by the configuration, is a reason to refuse. So is a table whose content ends
//! with it: the new name gets another table of the same text.
//!
//! Order, and what a kill between two steps leaves:
//! 1. The volume ends: its targets commit. A kill leaves the old name.
//! 2. Recorded, in one replacement of the state file: the old name has no table; the new one has
//!    it, with the exports, the limits, the caches and a loss that no client was told of. A kill
//!    leaves the new name.
//! 3. The volume begins under the new name, as at a start.
//!
//! If one of these fails, the volume begins under the old name again, and the state file has it
//! again. If the file cannot be written for that, the next change or the stop writes it; until then
//! a kill leaves the new name. If the volume cannot begin under the old name either, it is not
//! served, and recorded under the old name: the next start tries it again. A loss of acknowledged
//! writes at 1 undoes the rename, too; clients of the old name are told of it.
//!
//! The disks of the table stay open from 1 to 3, so that no other process takes their locks. The
//! volumes that the table claims stay claimed by what the exports await, so that no client comes.

use std::sync::Arc;

use cairn_block::{Claimed, ConfigError, ConfigKind, Disk, Registry, TableLine, unescape_word};
use cairn_outcome::failure::{Outcome, refused};
use cairn_targets::spec::words_of;

use crate::control::server::Caller;
use crate::names::{parent_of, refuse_at_sign};
use crate::reach::Named;
use crate::state::{CacheRecord, ExportChanges, Known, Record, Renaming};
use crate::verbs::Verbs;
use crate::verbs::changes::Changes;
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::verb::{Done, declare};

declare! {
    /// `rename`
    VolumeRename = "volume_rename" -> Done {
        /// The volume
        name: String,
        /// The new name
        to: String,
    }
    |verb, verbs, caller| verbs.rename_volume(&verb.name, &verb.to, caller)
}

/// What it takes to serve the volume of a rename under either name.
struct RenamedVolume {
    /// Its record under each name, before and after.
    before: Vec<Record>,
    after: Vec<Record>,
    table: String,
    /// What its table claims.
    claimed: Vec<Claimed>,
    /// What its table uses.
    _disks: Vec<Arc<dyn Disk>>,
    /// Its block devices are to be read-only.
    device_read_only: bool,
    renaming: Renaming,
    /// The changes of exports before, once the state file has the new name.
    exports: Option<ExportChanges>,
}

impl Verbs {
    /// `rename`
    pub(in crate::verbs) fn rename_volume(
        &self,
        name: &str,
        to: &str,
        caller: &dyn Caller,
    ) -> Outcome<()> {
        refuse_at_sign(to)?;
        let named = Named::volume(name).and(to).with_export_names();
        let changes = self.change_table(&named, "rename", caller)?;
        self.refuse_to_rename(&changes, name)?;
        self.refuse_new_name(&changes, to)?;
        self.exports.refuse_to_rename(name, to)?;
        let mut one = self.plan_rename(&changes, name, to)?;
        // Its claims: they outlast the volume.
        self.exports.give_way(&self.world, to, &one.claimed)?;
        if let Err(error) = self.rename_to(&changes, &mut one) {
            return Err(self.undo_rename(&changes, &one, error));
        }
        self.world.forget_loss(name);
        self.exports.settle(&self.world, name);
        self.step(Step::Done);
        Ok(())
    }

    fn plan_rename(&self, changes: &Changes, name: &str, to: &str) -> Outcome<RenamedVolume> {
        let (old, new) = (changes.record_of(name), changes.record_of(to));
        let mut cleared = old.clone();
        cleared.clear();
        let volume = self.world.volume(name)?;
        let table = volume.live_table();
        let lines = table.iter().flat_map(|table| table.lines());
        Ok(RenamedVolume {
            after: vec![cleared, Record { name: to.to_owned(), ..old.clone() }],
            table: old.table.clone().unwrap_or_default(),
            before: vec![old, new],
            claimed: volume.will_claim(),
            _disks: lines.flat_map(|line| line.target.lowers()).collect(),
            device_read_only: self.world.is_device_read_only(&volume),
            exports: None,
            renaming: Renaming {
                from: name.to_owned(),
                to: to.to_owned(),
                is_untold: self.is_untold(name),
            },
        })
    }

    fn is_untold(&self, name: &str) -> bool {
        self.world.untold_losses().iter().any(|untold| untold == name)
    }

    fn rename_to(&self, changes: &Changes, one: &mut RenamedVolume) -> Outcome<()> {
        let Renaming { from, to, .. } = one.renaming.clone();
        let down = self.take_down(&from);
        self.step(Step::Arranged);
        // A volume that cannot begin under the new name begins under this one.
        self.exports.give_way(&self.world, &from, &one.claimed)?;
        down.map_err(|error| match error.kind {
            ConfigKind::Lost => lost_by(&from, error),
            _ => error,
        })?;
        // A set of bcache may have written its map as it ended.
        self.refuse_zones(&from)?;
        one.renaming.is_untold |= self.is_untold(&from);
        let before = changes.record_renaming(&self.exports, one.after.clone(), &one.renaming)?;
        one.exports = Some(before);
        self.step(Step::Recorded);
        // Losses are known by names, and the clients know the volume by its new one.
        if one.renaming.is_untold {
            self.world.tell_of_loss(&to);
        }
        self.begin_again(&to, one)
    }

    /// Undoes the rename. Returns the error for the caller.
    fn undo_rename(
        &self,
        changes: &Changes,
        one: &RenamedVolume,
        error: ConfigError,
    ) -> ConfigError {
        let Renaming { from, to, .. } = one.renaming.clone();
        log_undo_failure(&to, self.take_down(&to));
        let mut detail = error.to_string();
        if let Some(before) = &one.exports {
            if one.renaming.is_untold {
                // It was raised for the new name. Clients of the old one are still to be told.
                self.world.forget_loss(&to);
            }
            let back = Renaming { from: to.clone(), to: from.clone(), is_untold: false };
            let records = one.before.clone();
            let recorded = changes.record_renaming_back(&self.exports, records, back, before);
            if let Err(second) = recorded {
                tracing::error!("{from}: {second}");
                detail.push_str(&format!("; the state file has '{to}' for now: {second}"));
            }
        }
        let begun = self.begin_again(&from, one);
        self.exports.settle(&self.world, &to);
        if let Err(second) = begun {
            tracing::error!("{from}: {second}");
            let state = match self.world.volume(&from) {
                Ok(_) => "not exported",
                Err(_) => {
                    self.world.keep(&from, [one.table.as_str()], false);
                    self.world.note_not_served([(from.clone(), second.to_string())]);
                    "not served"
                }
            };
            detail.push_str(&format!("; '{from}' is {state}: {second}"));
        }
        if detail == error.to_string() { error } else { ConfigError::new(error.kind, "", detail) }
    }

    fn begin_again(&self, name: &str, one: &RenamedVolume) -> Outcome<()> {
        self.bring_up_volume(name, &one.table)?;
        self.world.note_read_only(name, one.device_read_only);
        self.exports.add_volume(&self.world, name)
    }
}

/// Reasons to refuse.
impl Verbs {
    /// Refuses a volume that others know by its name.
    fn refuse_to_rename(&self, changes: &Changes, name: &str) -> Outcome<()> {
        let busy = |what: &str, found: String, expected: &str| {
            Err(refused(ConfigKind::Busy, name, what, found, expected))
        };
        let volume = self.world.volume(name)?;
        let record = changes.record_of(name);
        if record.thin.is_some() {
            let expected = "none (cairn thin rename gives it another name)";
            return busy("rename", "a volume of a pool".to_owned(), expected);
        }
        self.refuse_snapshots(name, "rename", "none (snapshots have its name)")?;
        if record.configured.is_some() {
            let expected = "one made by cairn create (change the configuration, and start again)";
            return busy("name", "a volume of the configuration".to_owned(), expected);
        }
        self.exports.refuse_clients(name, "none")?;
        self.world.refuse_users(name)?;
        self.ready(name)?;
        self.refuse_parts(changes, name)?;
        if let Some(found) = content_of_table(record.table.as_deref().unwrap_or_default()) {
            let expected = "none (its content ends with the volume's table)";
            return busy("table", found, expected);
        }
        self.refuse_marked(&volume)?;
        if let Some(user) = changes.user_of(name) {
            return busy("users", format!("a recorded table of '{user}' on it"), "none");
        }
        if let Some(owner) = self.world.kept_for(name) {
            return busy("users", format!("it kept for '{owner}', which is not served"), "none");
        }
        let caches = self.caches().map(|caches| caches.recorded()).unwrap_or_default();
        if let Some(cache) = caches.iter().find(|cache| stands_on(cache, name)) {
            return busy("caches", format!("{} recorded on it", cache.names.0), "none");
        }
        self.refuse_zones(name)
    }

    /// Refuses a name that a volume has, or had when it could not be brought up.
    fn refuse_new_name(&self, changes: &Changes, to: &str) -> Outcome<()> {
        Registry::check_name(to)?;
        self.refuse_recorded(to)?;
        let record = changes.record_of(to);
        let is_recorded = [&record.configured, &record.table, &record.inactive];
        let is_there = self.world.volume(to).is_ok() || self.world.why_not_served(to).is_some();
        if is_there || is_recorded.into_iter().any(Option::is_some) {
            let found = "a volume of this name";
            return Err(refused(ConfigKind::Busy, to, "name", found, "a new one"));
        }
        self.refuse_parts(changes, to)
    }

    /// Refuses a name in front of the `@` of other volumes.
    fn refuse_parts(&self, changes: &Changes, name: &str) -> Outcome<()> {
        let served = self.world.volumes();
        let records = changes.records();
        let recorded = records.values().filter(|record| record.table.is_some());
        let mut names = recorded
            .map(|record| record.name.as_str())
            .chain(served.iter().map(|volume| volume.volume()));
        let Some(part) = names.find(|part| parent_of(part) == Some(name)) else { return Ok(()) };
        let expected = "none with this name before the @";
        Err(refused(ConfigKind::Busy, name, "snapshots", format!("'{part}'"), expected))
    }

    fn refuse_zones(&self, name: &str) -> Outcome<()> {
        let maps = self.world.registry().zone_maps().map(|maps| maps.all()).unwrap_or_default();
        let is_own = |map: &str| map == name || parent_of(map) == Some(name);
        if !maps.iter().any(|(map, _)| is_own(map)) {
            return Ok(());
        }
        let expected = "none (the file of the map has the volume's name)";
        let found = "a map of dirty zones of bcache";
        Err(refused(ConfigKind::Busy, name, "caches", found, expected))
    }
}

/// The volume lost acknowledged writes as it ended. The rename is undone, so the kind is not
/// [`ConfigKind::Lost`].
fn lost_by(name: &str, lost: ConfigError) -> ConfigError {
    tracing::error!("{lost}");
    let detail =
        format!("rename undone; acknowledged writes may be lost, clients of {name} are told");
    ConfigError { kind: ConfigKind::System, device: name.to_owned(), detail, ..lost }
}

/// What a table has whose content ends with it: a disk in memory without a name, or the exceptions
/// of a transient snapshot. The table under another name would have new ones.
fn content_of_table(table: &str) -> Option<String> {
    // It serves, so it is a table.
    let lines = TableLine::parse_all(table).unwrap_or_default();
    let is_unnamed = |word: &&String| {
        let word = unescape_word(word);
        word.starts_with("mem:") && !word.contains(',')
    };
    if let Some(disk) = lines.iter().flat_map(|line| &line.args).find(is_unnamed) {
        return Some(format!("'{disk}', a disk in memory without a name"));
    }
    let is_transient = |line: &TableLine| {
        let snapshot = words_of(line).filter(|_| line.target == "snapshot");
        snapshot.is_some_and(|(_, words)| {
            words.argument("store").is_some_and(|word| word.to_ascii_uppercase().starts_with('N'))
        })
    };
    lines.iter().any(is_transient).then(|| "a snapshot with store N".to_owned())
}

/// True if a device of the recorded cache is the volume of this name.
fn stands_on(cache: &CacheRecord, name: &str) -> bool {
    let mut extents = cache.cache.iter().chain(&cache.origin);
    extents.any(|extent| {
        extent.device.strip_prefix('@') == Some(name)
            || matches!(&extent.identity, Known::Volume(volume) if volume == name)
    })
}

impl Changes {
    /// A volume with a recorded or configured table that names `name`.
    fn user_of(&self, name: &str) -> Option<String> {
        let is_it = |word: &str| word.strip_prefix('@') == Some(name);
        let names_it = |record: &&Record| {
            let Record { configured, table, inactive, former, .. } = record;
            let texts = [configured, table, inactive, former].into_iter().flatten();
            texts.flat_map(|text| text.split_whitespace()).any(is_it)
        };
        self.records().values().find(names_it).map(|record| record.name.clone())
    }
}
