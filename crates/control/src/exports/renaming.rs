//! The exports of a volume that gets another name.
//!
//! Its export of its own name gets the new name, with its description, its limits, and whether it
//! is served at all. Exports of other names stay. What an earlier volume of the new name left in
//! the changes is replaced.

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused};

use super::Exports;
use crate::state::ExportChanges;

impl Exports {
    /// Refuses another name for a volume whose exports the configuration has by the present one, or
    /// a name that another export has.
    ///
    /// # Errors
    /// One line about the export.
    pub fn refuse_to_rename(&self, volume: &str, to: &str) -> Outcome<()> {
        let expected = "none, or another name in the configuration";
        if let Some(export) = self.configured.iter().find(|export| export.volume == volume) {
            let found = format!("export '{}' of the configuration", export.name);
            return Err(refused(ConfigKind::Busy, volume, "exports", found, expected));
        }
        if let Some(socket) = self.socket_of(volume).filter(|_| self.has_own_name(volume)) {
            let found = format!("socket {} of the configuration", socket.path.display());
            return Err(refused(ConfigKind::Busy, volume, "exports", found, expected));
        }
        let added = self.changes.lock().added.iter().find(|added| added.name == to).cloned();
        let Some(other) = self.served_as(to).or(added) else { return Ok(()) };
        let (device, found) = (format!("export '{to}'"), format!("an export of {}", other.volume));
        Err(refused(ConfigKind::Busy, device, "name", found, "a new one"))
    }

    /// True unless another volume has the export of this volume's name.
    fn has_own_name(&self, volume: &str) -> bool {
        self.volume_of(volume) == volume
    }

    /// The changes that verbs made, for when `volume` is called `to`.
    pub fn changes_for_name(&self, volume: &str, to: &str) -> ExportChanges {
        let mut changes = self.changes();
        for export in changes.added.iter_mut().filter(|export| export.volume == volume) {
            if export.name == volume {
                to.clone_into(&mut export.name);
            }
            to.clone_into(&mut export.volume);
        }
        if !self.has_own_name(volume) {
            return changes;
        }
        if changes.removed.remove(volume) {
            changes.removed.insert(to.to_owned());
        } else if self.configured.iter().all(|export| export.name != to) {
            changes.removed.remove(to);
        }
        let limits = self.limits_of(volume);
        changes.throttles.remove(volume);
        let is_replaced = changes.added.iter().any(|added| added.name == to);
        let configured = self.configured_limits.get(to).filter(|_| !is_replaced);
        match limits == configured.cloned().unwrap_or_default() {
            true => changes.throttles.remove(to),
            false => changes.throttles.insert(to.to_owned(), limits),
        };
        changes
    }
}
