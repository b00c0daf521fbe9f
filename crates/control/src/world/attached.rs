//! Tables that write to a backing device of bcache without its cache.
//!
//! The superblock of a backing device names the set whose cache counts for it. A table that writes
//! to the device without that cache leaves clean extents there that hide what it writes, and dirty
//! ones that overwrite it later. So:
//!
//! - A1. A table that writes to such a device, other than by a line that serves it with its set, is
//!   not made live. `cairn flush --detach` is the way out. A table that writes only to the
//!   superblock and has else nothing but lines that are read-only may be: with its set it is
//!   served as a volume.
//! - A2. A swap from the table with the set detaches the device after a drain, before the new table
//!   starts. If that cannot start, the former superblock is written again before the old table
//!   starts, unless a target of the new table may have written to the device: a line that only maps
//!   the device writes nothing when it starts, but a cache may write back, a merge may copy, and a
//!   pool may commit before a later line is refused. Such a device stays detached, because the
//!   clean extents of its set may differ from it. It has all data; the old table cannot start.
//! - A3. No option of a verb gives up what only the cache has: `cairn flush --detach
//!   --discard-dirty=SET` does, which takes the UUID of the set.
//!
//! What a crash leaves: before the detach of A2, or after its undo, a new table that A1 refuses,
//! so that the next start serves the old one. In between, a device that no cache counts for: the
//! next start serves the new table. If that cannot start, it serves neither, and says so; the
//! device has all data then.
//!
//! Only the superblock of a file or block device that a line names is read: the content of a volume
//! is its clients' own, also if they run bcache on it. `serve --guest-sets` says the same of files
//! and block devices, but for those that a live table has with their sets. A volume is no backing
//! device of a set that is written, unless its data is read-only: `bcache` refuses that.

use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind, Disk, Identity, Table};
use cairn_outcome::failure::Outcome;
use cairn_targets::args::Device;
use cairn_targets::bcache::Attached;
use cairn_targets::spec::{Arg, Use, words_of};

use super::{World, lines_of, of_volume};

/// Backing devices that a verb has detached.
pub struct Parted<'a> {
    world: &'a World,
    name: String,
    left: Vec<Attached>,
    /// The devices that the loaded table may write to when it starts.
    kept: Vec<Device>,
}

impl World {
    /// Refuses a loaded table that breaks A1.
    ///
    /// # Errors
    /// It does; or there is no such volume.
    pub fn refuse_attached(&self, name: &str) -> Outcome<()> {
        match self.attached_beneath(name)?.first().filter(|_| !self.sets_of_clients) {
            Some(attached) => Err(refusal(name, attached, &way_out(attached))),
            None => Ok(()),
        }
    }

    /// The same for a table that takes the place of the live one, whose set may be left: `flush`
    /// drains it.
    ///
    /// # Errors
    /// It breaks A1 all the same.
    pub fn refuse_attached_beneath_swap(&self, name: &str, flush: bool) -> Outcome<()> {
        let (own, others) = self.attached_of_swap(name)?;
        if let Some(own) = own.first().filter(|_| !flush) {
            return Err(refusal(name, own, "--flush drains the cache and detaches the device"));
        }
        match others.first().filter(|_| !self.sets_of_clients) {
            Some(other) => Err(refusal(name, other, &way_out(other))),
            None => Ok(()),
        }
    }

    /// Makes no cache count for the devices that the loaded table writes to and the live one has
    /// with their sets (A2).
    ///
    /// # Errors
    /// A device is dirty, or failed. Nothing has changed.
    pub fn part_from_caches(&self, name: &str) -> Outcome<Parted<'_>> {
        let kept = self
            .volume(name)?
            .inactive_table()
            .map(|table| self.devices_of(&table, |arg| arg.is_written() && arg.used != Use::Maps));
        let kept = kept.unwrap_or_default();
        let mut parted = Parted { world: self, name: name.to_owned(), left: Vec::new(), kept };
        for attached in self.attached_of_swap(name)?.0 {
            let result = match attached.is_dirty() {
                true => Err(refusal(name, &attached, &way_out(&attached))),
                false => {
                    let leaving = attached.clone();
                    let left = self.on_home(name, |env| async move { leaving.leave(&env).await });
                    left.map_err(|error| of_volume(name, error))
                }
            };
            parted.left.push(attached);
            if let Err(error) = result {
                parted.undo();
                return Err(error);
            }
        }
        Ok(parted)
    }

    /// The devices that the loaded table writes to although a cache counts for them: those that the
    /// live table has with their sets, and the others.
    fn attached_of_swap(&self, name: &str) -> Outcome<(Vec<Attached>, Vec<Attached>)> {
        let attached = self.attached_beneath(name)?;
        let live = self.volume(name)?.live_table();
        let own = live.map(|table| self.devices_of(&table, |arg| arg.with_set)).unwrap_or_default();
        let is_own = |other: &Attached| own.iter().any(|own| other.is_on(own));
        Ok(attached.into_iter().partition(is_own))
    }

    /// The devices that the loaded table writes to although a cache counts for them.
    fn attached_beneath(&self, name: &str) -> Outcome<Vec<Attached>> {
        let Some(table) = self.volume(name)?.inactive_table().filter(|_| !self.read_only()) else {
            return Ok(Vec::new());
        };
        let devices = self.devices_of(&table, |arg| arg.is_written() && !arg.with_set);
        let attached = self.on_home(name, move |env| async move {
            let mut found = Vec::new();
            for device in devices {
                let attached = Attached::of(&env, device).await?;
                found.extend(attached.filter(|attached| !attached.keeps_data(&table)));
            }
            Ok(found)
        });
        attached.map_err(|error| of_volume(name, error))
    }

    /// The files and block devices that a table names by such arguments, each once. The names are
    /// those of the first line with the device.
    fn devices_of(&self, table: &Table, is_wanted: impl Fn(&Arg) -> bool) -> Vec<Device> {
        let mut devices: Vec<Device> = Vec::new();
        for line in lines_of(table) {
            let words = words_of(&line).map(|(_, words)| words.fixed).unwrap_or_default();
            for (_, word) in
                words.iter().filter(|(arg, word)| arg.names_device(word) && is_wanted(arg))
            {
                let Some(disk) = self.opened(word) else { continue };
                if devices.iter().all(|known| !Arc::ptr_eq(&known.disk, &disk)) {
                    devices.push(Device { argument: (*word).to_owned(), disk });
                }
            }
        }
        devices
    }

    /// The disk that a word of a table names, if it is open and no volume.
    fn opened(&self, word: &str) -> Option<Arc<dyn Disk>> {
        match self.registry().identify(word).ok()? {
            Identity::Volume(_) => None,
            identity => self.registry().opened(&identity),
        }
    }
}

impl Parted<'_> {
    /// True if no device was detached.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// The new table has started: the devices stay detached. Returns a note for each.
    pub fn into_notes(self) -> Vec<String> {
        self.left.iter().for_each(|left| left.forget_zones(self.world.registry()));
        let note =
            |left: &Attached| format!("{}: detached from set {}", left.argument(), left.set());
        self.left.iter().map(note).collect()
    }

    /// The new table was tried and refused: leaves out the devices that it may have written to.
    /// They stay detached.
    #[must_use]
    pub fn but_for_written(mut self) -> Self {
        let Parted { name, left, kept, .. } = &mut self;
        left.retain(|left| {
            let is_kept = kept.iter().any(|device| left.is_on(device));
            if is_kept {
                let (device, set) = (left.argument(), left.set());
                tracing::error!(
                    "{name}: {device}: stays detached from set {set}: the table that cannot start \
                     may have written to it; it has all data for a table without the cache"
                );
            }
            !is_kept
        });
        self
    }

    /// Writes the former superblocks again. No table has written to the devices since the detach.
    pub fn undo(self) {
        let Parted { world, name, left, .. } = self;
        let undone = world.on_home(&name, move |env| async move {
            let mut failures = Vec::new();
            for attached in left {
                failures.extend(attached.attach_again(&env).await.err());
            }
            failures
        });
        undone.iter().for_each(|error| tracing::error!("{name}: not attached again: {error}"));
    }
}

/// What to do where the table of the set is not live.
fn way_out(attached: &Attached) -> String {
    let (device, set) = (attached.argument(), attached.set());
    let lost = match attached.is_dirty() {
        true => format!(" (without CACHE: - 0, and --discard-dirty={set})"),
        false => String::new(),
    };
    format!(
        "use a table with the cache, or first: cairn flush --detach --table '0 N bcache {device} \
         CACHE 0'{lost}"
    )
}

fn refusal(name: &str, attached: &Attached, way: &str) -> ConfigError {
    let (device, set) = (attached.argument(), attached.set());
    let state = if attached.is_dirty() { "dirty" } else { "clean" };
    let detail = format!(
        "attached to the bcache set {set} ({state}), whose cache would hide or overwrite what is \
         written here; {way}"
    );
    of_volume(name, ConfigError::new(ConfigKind::Argument, device, detail))
}
