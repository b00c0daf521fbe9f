//! The limits of exports: which are in force, and the throttles that keep to them.
//!
//! An export has one throttle for all protocols while it is served. Limits of a verb take the place
//! of those of the configuration, which say nothing about an export that a verb has put in the
//! place of a configured one.

use std::sync::Arc;

use cairn_block::{Throttle, Waited};

use super::Exports;
use crate::throttles::Limits;

impl Exports {
    /// The limits of an export by the configuration alone.
    pub fn configured_limits(&self, name: &str) -> Limits {
        let is_replaced = self.changes.lock().added.iter().any(|added| added.name == name);
        let configured = self.configured_limits.get(name).filter(|_| !is_replaced);
        configured.cloned().unwrap_or_default()
    }

    /// The limits of an export.
    pub fn limits_of(&self, name: &str) -> Limits {
        let changed = self.changes.lock().throttles.get(name).cloned();
        changed.unwrap_or_else(|| self.configured_limits(name))
    }

    /// Has the limits of an export that is served, now those of [`Exports::limits_of`], count.
    pub fn apply_limits(&self, name: &str) {
        let throttle = self.throttles.lock().get(name).cloned();
        if let Some(throttle) = throttle {
            throttle.set(&self.limits_of(name).of_throttle());
        }
    }

    /// How often and how long requests of an export have waited for its limits.
    pub fn waited(&self, name: &str) -> Waited {
        self.throttles.lock().get(name).map(|throttle| throttle.waited()).unwrap_or_default()
    }

    /// The throttle of an export that is served, or is about to be.
    pub(super) fn throttle_of(&self, name: &str) -> Arc<Throttle> {
        let mut throttles = self.throttles.lock();
        let throttle = throttles.entry(name.to_owned());
        let limits = || self.limits_of(name).of_throttle();
        throttle.or_insert_with(|| Arc::new(Throttle::new(&limits()))).clone()
    }

    /// An export could not be served: the next one of its name has its own limits. If the name is
    /// that of an export that is served, it keeps its throttle.
    pub(super) fn forget_unserved_throttle(&self, name: &str) {
        if self.served_as(name).is_none() {
            self.forget_throttle(name);
        }
    }

    /// An export is not served any more.
    pub(super) fn forget_throttle(&self, name: &str) {
        self.throttles.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use cairn_exports::nbd::NbdOptions;

    use super::Exports;
    use crate::state::{Export, ExportChanges};
    use crate::throttles::Limits;
    use crate::verbs::snap::tests::TestServer;

    #[test]
    fn export_that_could_not_be_added_leaves_no_limits_behind() {
        let folder = tempfile::tempdir().unwrap();
        let server = TestServer::fresh(folder.path(), "v=0 1024 linear disk 0");
        // Longer than a name of the protocol may be.
        let name = "x".repeat(5000);
        let (volume, description) = ("v".to_owned(), String::new());
        let export = Export { name: name.clone(), volume, description, read_only: false };
        let changes = ExportChanges {
            added: vec![export],
            throttles: [(name.clone(), Limits::parse("x", "iops-total=1").unwrap())].into(),
            ..ExportChanges::default()
        };
        let (none, options) = (ExportChanges::default(), NbdOptions::default());
        let exports = Exports::new(&server.world, Vec::new(), Vec::new(), none, options);
        exports.add_volume(&server.world, "v").unwrap();
        exports.set_changes(changes);
        exports.add_volume(&server.world, "v").unwrap_err();
        let known: Vec<_> = exports.throttles.lock().keys().cloned().collect();
        assert_eq!(known, ["v"], "and the one that is served keeps its own");
    }
}
