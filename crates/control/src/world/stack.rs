//! Which volumes stand on which, and which of them wait because a lower volume is suspended.

use std::collections::HashSet;
use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind, Disk, MappedDevice, TableLine};
use cairn_outcome::failure::{Outcome, refused};

use super::World;

impl World {
    /// Refuses if another volume stands on this one.
    ///
    /// # Errors
    /// One does, or there is no such volume.
    pub fn refuse_users(&self, name: &str) -> Outcome<()> {
        self.volume(name)?;
        let Some(user) = self.users_of(name).into_iter().next() else { return Ok(()) };
        let detail = format!("users: found volume '{user}' on it, expected none");
        Err(ConfigError::new(ConfigKind::Busy, name, detail))
    }

    /// Refuses to change the content of a volume on which another one relies: as its source, its
    /// external origin, or what its cache is for.
    ///
    /// # Errors
    /// One does, or there is no such volume.
    pub fn refuse_relied_on(&self, name: &str) -> Outcome<()> {
        let Some(claimant) = self.volume(name)?.claimants().into_iter().next() else {
            return Ok(());
        };
        let (volume, role) = (claimant.volume, claimant.role);
        let found = format!("volume '{volume}', for which it is the {role}");
        Err(refused(ConfigKind::Busy, name, "users", found, "none"))
    }

    /// Refuses a volume whose requests would wait: it is suspended, or one beneath it is.
    ///
    /// # Errors
    /// It is so, or there is no such volume.
    pub fn refuse_suspended(&self, name: &str) -> Outcome<()> {
        refuse_waiting(name, self.waits_in(&*self.volume(name)?))
    }

    /// Refuses a volume on top of one that is suspended.
    ///
    /// # Errors
    /// It is one, or there is no such volume.
    pub fn refuse_suspended_beneath(&self, name: &str) -> Outcome<()> {
        refuse_waiting(name, self.waits_beneath(&*self.volume(name)?))
    }

    /// Refuses a table for `name` on top of a volume that is suspended.
    ///
    /// # Errors
    /// It is one. What is no table is told by who loads it.
    pub fn refuse_suspended_in(&self, name: &str, table: &str) -> Outcome<()> {
        let lines = TableLine::parse_all(table).unwrap_or_default();
        let named =
            lines.iter().flat_map(|line| &line.args).filter_map(|arg| arg.strip_prefix('@'));
        let volumes = named.filter(|on| *on != name).filter_map(|on| self.volume(on).ok());
        refuse_waiting(name, volumes.into_iter().find_map(|volume| self.waits_in(&volume)))
    }

    /// The first volume that is suspended, or will be: this one, or one beneath.
    fn waits_in(&self, volume: &MappedDevice) -> Option<String> {
        let waits = volume.is_suspended() || self.under_way.on(volume.volume()).is_some();
        let own = waits.then(|| volume.volume().to_owned());
        own.or_else(|| self.waits_beneath(volume))
    }

    fn waits_beneath(&self, volume: &MappedDevice) -> Option<String> {
        lower_volumes(volume).iter().find_map(|lower| self.waits_in(lower.mapped()?))
    }

    /// The volumes that stand on this one.
    pub fn users_of(&self, name: &str) -> Vec<String> {
        let volumes = self.volumes();
        let users = volumes.iter().filter(|user| stands_on(user, name));
        users.map(|user| user.volume().to_owned()).collect()
    }

    /// The names of all volumes, those that stand on others first.
    pub fn users_first(&self) -> Vec<String> {
        let (mut seen, mut lowers_first) = (HashSet::new(), Vec::new());
        for volume in self.volumes() {
            visit(&volume, &mut seen, &mut lowers_first);
        }
        lowers_first.reverse();
        lowers_first
    }
}

/// Every live and inactive lower volume of `volume`.
fn lower_volumes(volume: &MappedDevice) -> Vec<Arc<dyn Disk>> {
    let tables = [volume.live_table(), volume.inactive_table()];
    let lines = tables.iter().flatten().flat_map(|table| table.lines());
    lines.flat_map(|line| line.target.lowers()).filter(|lower| lower.mapped().is_some()).collect()
}

fn refuse_waiting(name: &str, suspended: Option<String>) -> Outcome<()> {
    let Some(on) = suspended else { return Ok(()) };
    let found = format!("@{on} suspended");
    Err(refused(ConfigKind::Busy, name, "state", &found, "a live volume"))
}

fn visit(volume: &MappedDevice, seen: &mut HashSet<String>, lowers_first: &mut Vec<String>) {
    if !seen.insert(volume.volume().to_owned()) {
        return;
    }
    for lower in lower_volumes(volume) {
        visit(lower.mapped().expect("only mapped devices were kept"), seen, lowers_first);
    }
    lowers_first.push(volume.volume().to_owned());
}

fn stands_on(user: &MappedDevice, name: &str) -> bool {
    let is_it = |lower: &Arc<dyn Disk>| lower.mapped().is_some_and(|on| on.volume() == name);
    user.volume() != name && lower_volumes(user).iter().any(is_it)
}
