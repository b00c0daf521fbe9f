//! `export add`, `remove` and `throttle`: names under which volumes are served, and their limits,
//! kept in the state file.
//!
//! Order, and what a crash between two steps leaves: the change is recorded, then the export begins
//! or ends. After the record the next start makes the change.

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, wrong};

use super::Verbs;
use crate::arguments::limits;
use crate::control::server::Caller;
use crate::exports::ExportInfo;
use crate::live_pool::is_pool;
use crate::names::is_hidden;
use crate::reach::Named;
use crate::state::Export;
use crate::state::ExportChanges;
use crate::throttles::Limits;
use crate::verbs::steps::log_undo_failure;
use crate::verbs::verb::{Done, declare};

declare! {
    /// `exports`
    ExportList = "export_list" -> Vec<ExportInfo> {}
    |_, verbs, _| Ok(verbs.exports.list(&verbs.world))
}

declare! {
    /// `export add`
    ExportAdd = "export_add" -> Done {
        /// The volume
        #[arg(value_name = "NAME")]
        volume: String,
        /// The name that clients ask for (default: the volume's own)
        #[arg(long = "as", value_name = "EXPORT")]
        name: Option<String>,
        /// A line for a person
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// Limits of its clients together: iops-total=1000,bps-write=100M
        #[arg(long, value_name = "LIMITS", value_parser = limits())]
        throttle: Option<Limits>,
    } flags {
        /// Refuse writes
        read_only,
    }
    |verb, verbs, caller| verbs.export_add(verb, caller)
}

declare! {
    /// `export remove`
    ExportRemove = "export_remove" -> Done {
        /// The export
        #[arg(value_name = "EXPORT")]
        name: String,
    } flags {
        /// Disconnect its clients
        force,
    }
    |verb, verbs, caller| verbs.export_remove(&verb, caller)
}

declare! {
    /// `export throttle`
    ExportThrottle = "export_throttle" -> Done {
        /// The export
        #[arg(value_name = "EXPORT")]
        name: String,
        /// Limits of its clients together, in place of all that it has: iops-total=1000,
        /// bps-write=100M with a comma between two; or none
        #[arg(value_name = "LIMITS", value_parser = limits())]
        limits: Limits,
    }
    |verb, verbs, caller| verbs.export_throttle(verb, caller)
}

impl Verbs {
    /// `export add`
    ///
    /// # Errors
    /// Nothing has changed.
    pub(super) fn export_add(&self, params: ExportAdd, caller: &dyn Caller) -> Outcome<()> {
        let volume = params.volume;
        let _turn =
            self.change_table(&Named::volume(&volume).with_export_names(), "export add", caller)?;
        let device = self.world.volume(&volume)?;
        if is_hidden(&volume) || is_pool(&device) {
            let found = "what other volumes are made of";
            return Err(refused(ConfigKind::Argument, volume, "export", found, "another volume"));
        }
        if let Some(owner) = self.world.kept_for(&volume) {
            let found = format!("it kept for '{owner}', which is not served");
            let expected = format!("another volume (cairn state forget {owner} gives it up)");
            return Err(refused(ConfigKind::Busy, volume, "export", found, expected));
        }
        let owner = device.claimants().into_iter().find(|claimant| !claimant.may_be_read);
        if let Some(owner) = owner {
            let found = format!("that it is the {} of {}", owner.role, owner.volume);
            let expected = format!("another volume, or '{}' removed first", owner.volume);
            return Err(refused(ConfigKind::Busy, volume, "export", found, expected));
        }
        let export = Export {
            name: params.name.unwrap_or_else(|| volume.clone()),
            volume,
            description: params.description.unwrap_or_default(),
            read_only: params.read_only,
        };
        if !self.exports.has_clients(&export) {
            let device = format!("export '{}'", export.name);
            let expected = "tls_names for it or its volume in the TOML file, as others have them";
            return Err(refused(ConfigKind::Argument, device, "tls_names", "none", expected));
        }
        if let Some(served) = self.exports.served_as(&export.name) {
            let found = format!("an export of {}", served.volume);
            let device = format!("export '{}'", export.name);
            return Err(refused(ConfigKind::Busy, device, "name", found, "a new one"));
        }
        let name = &export.name;
        let is_new = self.exports.without_changes(&self.world, name).as_ref() != Some(&export);
        let before = self.record_exports(|changes| {
            changes.added.retain(|added| added.name != *name);
            changes.removed.remove(name);
            changes.added.extend(is_new.then(|| export.clone()));
            changes.throttles.remove(name);
            changes.throttles.extend(params.throttle.map(|limits| (name.clone(), limits)));
        })?;
        let served = self.exports.add_volume(&self.world, &export.volume);
        if served.is_err() {
            let undone = self.record_exports(|changes| changes.go_back(&before, &[name]));
            log_undo_failure(name, undone.map(drop));
        }
        served
    }

    /// `export remove`
    ///
    /// # Errors
    /// Nothing has changed.
    pub(super) fn export_remove(&self, params: &ExportRemove, caller: &dyn Caller) -> Outcome<()> {
        let (name, device) = (&params.name, format!("export '{}'", params.name));
        let volume = self.exports.volume_of(name);
        let named = Named::volume(&volume).with_export_names();
        let _turn = self.change_table(&named, "export remove", caller)?;
        let added = self.exports.changes().added.iter().any(|added| added.name == *name);
        let served = self.exports.served_as(name);
        if served.is_none() && !added {
            let expected = "one of cairn exports";
            return Err(wrong(device, "name", "no export of it", expected));
        }
        if !params.force {
            self.exports.refuse_clients_of(name, "none (--force disconnects them)")?;
        }
        let has_another = self.exports.without_changes(&self.world, name).is_some();
        self.record_exports(|changes| {
            changes.added.retain(|added| added.name != *name);
            changes.removed.extend(has_another.then(|| name.clone()));
            changes.throttles.remove(name);
        })?;
        self.exports.remove_export(&self.world, name);
        Ok(())
    }

    /// `export throttle`
    ///
    /// # Errors
    /// Nothing has changed.
    pub(super) fn export_throttle(
        &self,
        params: ExportThrottle,
        caller: &dyn Caller,
    ) -> Outcome<()> {
        let ExportThrottle { name, limits } = params;
        let volume = self.exports.volume_of(&name);
        let named = Named::volume(&volume).with_export_names();
        let _turn = self.change_table(&named, "export throttle", caller)?;
        let added = self.exports.changes().added.iter().any(|added| added.name == name);
        if self.exports.served_as(&name).is_none() && !added {
            let device = format!("export '{name}'");
            let expected = "one of cairn exports";
            return Err(wrong(device, "name", "no export of it", expected));
        }
        let is_configured = limits == self.exports.configured_limits(&name);
        self.record_exports(|changes| {
            match is_configured {
                true => changes.throttles.remove(&name),
                false => changes.throttles.insert(name.clone(), limits),
            };
        })?;
        self.exports.apply_limits(&name);
        Ok(())
    }

    /// Records and applies a change; returns what was before it.
    fn record_exports(&self, edit: impl FnOnce(&mut ExportChanges)) -> Outcome<ExportChanges> {
        self.changes.record_with(&self.exports, Vec::new(), edit)
    }
}
