//! Which clients find an export, by the names in their certificates.
//!
//! The configuration gives names to exports and to volumes. An export that the configuration makes
//! has its own names, if it has any. Every other one, also one that a verb adds and that of a
//! snapshot, has those of its volume. A volume without names of its own has all names of its
//! exports in the configuration, or none if one of these has none: who may read a volume may read
//! its snapshots. An export without names is found by every client.

use std::collections::BTreeMap;

use crate::names::parent_of;
use crate::state::Export;

/// The names that the configuration gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsNames {
    /// By the name of the export.
    pub exports: BTreeMap<String, Vec<String>>,
    /// By the name of the volume.
    pub volumes: BTreeMap<String, Vec<String>>,
}

impl TlsNames {
    /// True if no client is kept from any export.
    pub fn is_empty(&self) -> bool {
        self.exports.is_empty() && self.volumes.is_empty()
    }

    /// The names of the clients that find an export; empty means all. `configured` are the exports
    /// of the configuration.
    pub fn of(&self, export: &Export, configured: &[Export]) -> Vec<String> {
        let is_it = |it: &Export| (&it.name, &it.volume) == (&export.name, &export.volume);
        if configured.iter().any(is_it)
            && let Some(names) = self.exports.get(&export.name)
        {
            return names.clone();
        }
        let volume = parent_of(&export.volume).unwrap_or(&export.volume);
        if let Some(names) = self.volumes.get(volume) {
            return names.clone();
        }
        let exports = configured.iter().filter(|it| it.volume == volume);
        let lists: Option<Vec<_>> = exports.map(|it| self.exports.get(&it.name)).collect();
        lists.unwrap_or_default().into_iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::TlsNames;
    use crate::state::Export;

    fn export(name: &str, volume: &str) -> Export {
        let (name, volume) = (name.to_owned(), volume.to_owned());
        Export { name, volume, description: String::new(), read_only: false }
    }

    fn names(exports: &[(&str, &[&str])], volumes: &[(&str, &[&str])]) -> TlsNames {
        let map = |lists: &[(&str, &[&str])]| {
            let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            lists.iter().map(|&(key, names)| (key.to_owned(), owned(names))).collect()
        };
        TlsNames { exports: map(exports), volumes: map(volumes) }
    }

    #[test]
    fn exports_have_their_own_names_or_those_of_their_volume() {
        let configured = [export("a", "disk"), export("b", "disk")];
        let names = names(&[("a", &["alice"])], &[("disk", &["admin"])]);
        let of = |name, volume| names.of(&export(name, volume), &configured);
        assert_eq!(of("a", "disk"), ["alice"]);
        assert_eq!(of("b", "disk"), ["admin"]);
        assert_eq!(of("added", "disk"), ["admin"]);
        assert_eq!(of("disk@monday", "disk@monday"), ["admin"]);
        assert!(of("other", "other").is_empty());
    }

    #[test]
    fn snapshots_are_for_those_that_read_their_volume_by_any_export() {
        let configured = [export("a", "disk"), export("b", "disk"), export("c", "open")];
        let names = names(&[("a", &["alice"]), ("b", &["bob", "carol"])], &[]);
        let of = |name: &str| names.of(&export(name, name), &configured);
        assert_eq!(of("disk@monday"), ["alice", "bob", "carol"]);
        assert!(of("open@monday").is_empty());
    }

    #[test]
    fn name_of_a_configured_export_says_nothing_about_another_volume() {
        let configured = [export("a", "disk")];
        let names = names(&[("a", &["alice"])], &[("secret", &["root"])]);
        assert_eq!(names.of(&export("a", "secret"), &configured), ["root"]);
    }
}
