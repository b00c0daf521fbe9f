//! What users asked for of a volume that no table says: marks that end with the volume, and with
//! the server, as those of the kernel's driver end with the machine. No file has them.
//!
//! Whether the kernel's block devices of a volume are read-only is kept here, and not where they
//! are made, because a table is loaded by one run of `cairn-dmsetup` and made live by another one,
//! and a device that is attached again in between has lost what the kernel knew.

use std::collections::HashMap;

use cairn_block::{DeviceId, MappedDevice};
use parking_lot::Mutex;

use super::World;

/// The marks of one volume.
#[derive(Clone, Copy)]
struct Marks {
    /// A later volume of the same name has none of these.
    id: DeviceId,
    /// It is removed once it is not in use.
    removal_deferred: bool,
    /// Its block devices are to be read-only.
    device_read_only: bool,
    /// Whether they are to be once the loaded table is live; none if that says nothing.
    loaded_read_only: Option<bool>,
}

/// The marks of all volumes, by name.
#[derive(Default)]
pub(super) struct AllMarks(Mutex<HashMap<String, Marks>>);

impl World {
    /// Marks a volume: it is removed once it is not in use.
    pub fn defer_removal(&self, name: &str) {
        self.mark(name, |marks| marks.removal_deferred = true);
    }

    /// Takes that mark away.
    pub fn cancel_removal(&self, name: &str) {
        self.mark(name, |marks| marks.removal_deferred = false);
    }

    /// True if a volume is to be removed once it is not in use.
    pub fn is_removal_deferred(&self, volume: &MappedDevice) -> bool {
        self.marks_of(volume).is_some_and(|marks| marks.removal_deferred)
    }

    /// The volumes that are to be removed once they are not in use, those that stand on others
    /// first.
    pub fn deferred_removals(&self) -> Vec<String> {
        if self.marks.0.lock().is_empty() {
            return Vec::new();
        }
        let mut names = self.users_first();
        names.retain(|name| self.volume(name).is_ok_and(|it| self.is_removal_deferred(&it)));
        names
    }

    /// Says whether the block devices of a volume are to be read-only.
    pub fn note_read_only(&self, name: &str, read_only: bool) {
        self.mark(name, |marks| marks.device_read_only = read_only);
    }

    /// The same for when the loaded table is live.
    pub fn note_loaded(&self, name: &str, read_only: Option<bool>) {
        self.mark(name, |marks| marks.loaded_read_only = read_only);
    }

    /// The loaded table is live.
    pub fn note_live(&self, name: &str) {
        self.mark(name, |marks| {
            let loaded = marks.loaded_read_only.take();
            marks.device_read_only = loaded.unwrap_or(marks.device_read_only);
        });
    }

    /// True if the block devices of a volume are to be read-only.
    pub fn is_device_read_only(&self, volume: &MappedDevice) -> bool {
        self.marks_of(volume).is_some_and(|marks| marks.device_read_only)
    }

    /// True if they are to be once the loaded table is live.
    pub fn is_loaded_read_only(&self, volume: &MappedDevice) -> bool {
        let loaded = self.marks_of(volume).and_then(|marks| marks.loaded_read_only);
        volume.inactive_table().is_some() && loaded == Some(true)
    }

    fn marks_of(&self, volume: &MappedDevice) -> Option<Marks> {
        let marks = self.marks.0.lock().get(volume.volume()).copied();
        marks.filter(|marks| marks.id == volume.id())
    }

    /// Changes the marks of a volume, if it is there.
    fn mark(&self, name: &str, change: impl FnOnce(&mut Marks)) {
        let Ok(volume) = self.volume(name) else { return };
        let fresh = Marks {
            id: volume.id(),
            removal_deferred: false,
            device_read_only: false,
            loaded_read_only: None,
        };
        let mut all = self.marks.0.lock();
        let marks = all.entry(name.to_owned()).or_insert(fresh);
        if marks.id != fresh.id {
            *marks = fresh;
        }
        change(marks);
    }

    /// A volume has ended.
    pub(super) fn forget_marks(&self, name: &str) {
        self.marks.0.lock().remove(name);
    }
}
