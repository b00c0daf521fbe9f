//! Tables that write to a backing device of bcache without its cache.
//!
//! The superblock of a backing device names the set whose cache counts for it. A table that writes
//! to the device without that cache leaves clean extents there that hide what it writes, and dirty
//! ones that overwrite it later. So:
//!
//! - A1. A table that writes to such a device, other than by a line that serves it with its set, is
//!   not made live. `cairn flush --detach` is the way out.
//! - A2. A swap from the table with the set makes no cache count any more before the new table
//!   starts: after a drain the device is detached, and if its dirty data is given up it becomes
//!   inconsistent. If the new table cannot start, the superblock is written as it was, so that the
//!   old table can be live again. No table has written to the device between the two.
//!
//! What a crash leaves: before A2, a new table that is refused by A1, so that the next start serves
//! the old one; after it, a device that no cache counts for.
//!
//! Only the superblock of a file or block device that a line names is read: the content of a volume
//! is its clients' own, also if they run bcache on it. `serve --guest-sets` says the same of files
//! and block devices.

use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind, Disk, Identity, Table};
use cairn_outcome::failure::Outcome;
use cairn_targets::args::Device;
use cairn_targets::bcache::Attached;
use cairn_targets::spec::{Arg, words_of};

use super::{World, lines_of, of_volume};

/// Backing devices that no cache counts for any more, since a verb said so.
pub struct Parted<'a> {
    world: &'a World,
    name: String,
    left: Vec<Attached>,
}

impl World {
    /// Refuses a loaded table that breaks A1.
    ///
    /// # Errors
    /// It does; or there is no such volume.
    pub fn refuse_attached(&self, name: &str) -> Outcome<()> {
        match self.attached_beneath(name)?.first() {
            Some(attached) => Err(refusal(name, attached, &way_out(attached))),
            None => Ok(()),
        }
    }

    /// The same for a table that takes the place of the live one, whose set may be left: `flush`
    /// drains it, `discard` gives up what only a cache has.
    ///
    /// # Errors
    /// It breaks A1 all the same.
    pub fn refuse_attached_beneath_swap(
        &self,
        name: &str,
        flush: bool,
        discard: bool,
    ) -> Outcome<()> {
        if discard {
            return Ok(());
        }
        let attached = self.attached_beneath(name)?;
        let live = self.volume(name)?.live_table();
        let own = live.map(|table| self.devices_of(&table, |arg| arg.with_set)).unwrap_or_default();
        let is_own = |other: &Attached| own.iter().any(|own| own.argument == other.argument());
        match attached.iter().find(|other| !(flush && is_own(other))) {
            Some(other) if is_own(other) => {
                let way = "--flush drains the cache and detaches the device, --discard-dirty gives \
                           up what only the cache has";
                Err(refusal(name, other, way))
            }
            Some(other) => Err(refusal(name, other, &way_out(other))),
            None => Ok(()),
        }
    }

    /// Makes no cache count for the devices that the loaded table writes to (A2).
    ///
    /// # Errors
    /// A device is dirty and not given up, or failed. Nothing has changed.
    pub fn part_from_caches(&self, name: &str, discard: bool) -> Outcome<Parted<'_>> {
        let mut parted = Parted { world: self, name: name.to_owned(), left: Vec::new() };
        for attached in self.attached_beneath(name)? {
            let result = match attached.is_dirty() && !discard {
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

    /// The devices that the loaded table writes to although a cache counts for them.
    fn attached_beneath(&self, name: &str) -> Outcome<Vec<Attached>> {
        let is_judged = !self.read_only() && !self.may_write_past_caches();
        let Some(table) = self.volume(name)?.inactive_table().filter(|_| is_judged) else {
            return Ok(Vec::new());
        };
        let devices = self.devices_of(&table, |arg| arg.is_written() && !arg.with_set);
        let attached = self.on_home(name, move |env| async move {
            let mut found = Vec::new();
            for device in devices {
                found.extend(Attached::of(&env, device).await);
            }
            found
        });
        Ok(attached)
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
    /// What became of the devices, a line each for a person.
    pub fn notes(&self) -> Vec<String> {
        let note = |left: &Attached| match left.is_dirty() {
            true => format!("{}: inconsistent: its cache does not count any more", left.argument()),
            false => format!("{}: detached from set {}", left.argument(), left.set()),
        };
        self.left.iter().map(note).collect()
    }

    /// Writes the superblocks as they were.
    pub fn undo(self) {
        let Parted { world, name, left } = self;
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
    let device = attached.argument();
    format!(
        "use a table with the cache, or first: cairn flush --detach --table '0 N bcache {device} \
         CACHE 0'"
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
