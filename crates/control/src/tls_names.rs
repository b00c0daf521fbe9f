//! Which clients find an export, by the names in their certificates.
//!
//! The configuration gives names to exports and to volumes. An export that the configuration makes
//! has its own names, if it has any. Every other one, also one that a verb adds and that of a
//! snapshot, has those of its volume. A volume without names of its own has all names of its
//! exports in the configuration, or none if one of these has none: who may read a volume may read
//! its snapshots. An export that may be written has the names of exports that may be written alone.
//! An export without names is found by every client.
//!
//! Once the configuration names clients, a volume that it does not know is for no client: it may be
//! a copy of one that has names.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::parent_of;
use crate::state::Export;

/// The names that the configuration gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsNames {
    /// By the name of the export.
    pub exports: BTreeMap<String, Vec<String>>,
    /// By the name of the volume.
    pub volumes: BTreeMap<String, Vec<String>>,
    /// The volumes of the configuration and of the command line.
    pub known: BTreeSet<String>,
}

impl TlsNames {
    /// True if no client is kept from any export.
    pub fn is_empty(&self) -> bool {
        self.exports.is_empty() && self.volumes.is_empty()
    }

    /// The names of the clients that find an export; empty means all, and none that no client does.
    /// `configured` are the exports of the configuration.
    pub fn of(&self, export: &Export, configured: &[Export]) -> Option<Vec<String>> {
        let is_it = |it: &Export| (&it.name, &it.volume) == (&export.name, &export.volume);
        if configured.iter().any(is_it)
            && let Some(names) = self.exports.get(&export.name)
        {
            return Some(names.clone());
        }
        let volume = parent_of(&export.volume).unwrap_or(&export.volume);
        if let Some(names) = self.volumes.get(volume) {
            return Some(names.clone());
        }
        let of_volume = || configured.iter().filter(|it| it.volume == volume);
        if of_volume().next().is_none() {
            let is_open = self.is_empty() || self.known.contains(volume);
            return is_open.then(Vec::new);
        }
        let may_write = !export.read_only && export.volume == volume;
        let alike = of_volume().filter(|it| !may_write || !it.read_only);
        let lists: Vec<_> = alike.map(|it| self.exports.get(&it.name)).collect();
        let all: Option<Vec<_>> = lists.iter().copied().collect();
        (!lists.is_empty())
            .then(|| all.unwrap_or_default().into_iter().flatten().cloned().collect())
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
        let known = ["disk", "open", "other"].map(str::to_owned).into();
        TlsNames { exports: map(exports), volumes: map(volumes), known }
    }

    #[test]
    fn exports_have_their_own_names_or_those_of_their_volume() {
        let configured = [export("a", "disk"), export("b", "disk")];
        let names = names(&[("a", &["alice"])], &[("disk", &["admin"])]);
        let of = |name, volume| names.of(&export(name, volume), &configured).unwrap();
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
        let of = |name: &str| names.of(&export(name, name), &configured).unwrap();
        assert_eq!(of("disk@monday"), ["alice", "bob", "carol"]);
        assert!(of("open@monday").is_empty());
    }

    #[test]
    fn name_of_a_configured_export_says_nothing_about_another_volume() {
        let configured = [export("a", "disk")];
        let names = names(&[("a", &["alice"])], &[("secret", &["root"])]);
        assert_eq!(names.of(&export("a", "secret"), &configured).unwrap(), ["root"]);
    }

    #[test]
    fn volume_that_is_not_configured_is_for_no_client() {
        let configured = [export("a", "disk")];
        let some = names(&[("a", &["alice"])], &[]);
        for volume in ["copy", "copy@monday"] {
            assert_eq!(some.of(&export(volume, volume), &configured), None);
            assert_eq!(TlsNames::default().of(&export(volume, volume), &[]), Some(Vec::new()));
        }
    }

    #[test]
    fn export_that_may_be_written_is_not_for_those_that_may_only_read() {
        let reads = |name| Export { read_only: true, ..export(name, "disk") };
        let configured = [export("a", "disk"), reads("b")];
        let names = names(&[("a", &["alice"]), ("b", &["bob"])], &[]);
        let of = |added: Export| names.of(&added, &configured).unwrap();
        assert_eq!(of(export("added", "disk")), ["alice"]);
        assert_eq!(of(reads("added")), ["alice", "bob"]);
        assert_eq!(of(export("disk@monday", "disk@monday")), ["alice", "bob"]);
        let configured = [reads("b")];
        assert_eq!(names.of(&export("added", "disk"), &configured), None);
    }
}
