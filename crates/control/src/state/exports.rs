//! The part of the state file that says what verbs changed of the exports.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use serde::{Deserialize, Serialize};

use crate::throttles::Limits;

/// A volume under a name for clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// The name clients ask for.
    pub name: String,
    /// The volume.
    pub volume: String,
    /// A line for a person.
    #[serde(default)]
    pub description: String,
    /// Refuse writes.
    #[serde(default)]
    pub read_only: bool,
}

/// The exports that verbs added and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportChanges {
    /// Served whenever their volumes are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<Export>,
    /// Names that are not served, although the configuration has them or a volume has the name.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub removed: BTreeSet<String>,
    /// Limits in place of those that the configuration gives to an export.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub throttles: BTreeMap<String, Limits>,
}

impl ExportChanges {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        *self == ExportChanges::default()
    }

    /// Makes the exports, and the limits of these names, what they were before. Other verbs may
    /// have changed limits of others since; what else is here only a verb changes that has the turn
    /// of all names.
    pub fn go_back(&mut self, before: &ExportChanges, names: &[&str]) {
        (self.added, self.removed) = (before.added.clone(), before.removed.clone());
        for name in names {
            self.throttles.remove(*name);
            let limits = before.throttles.get(*name).cloned();
            self.throttles.extend(limits.map(|limits| ((*name).to_owned(), limits)));
        }
    }

    /// Takes the limits of some exports out. Those of an export that a verb added stay, as it does.
    pub fn take_limits(&mut self, is_gone: impl Fn(&str) -> bool) -> BTreeMap<String, Limits> {
        let ExportChanges { added, throttles, .. } = self;
        let stays = |name: &str| added.iter().any(|export| export.name == name);
        let (gone, kept) =
            mem::take(throttles).into_iter().partition(|(name, _)| is_gone(name) && !stays(name));
        *throttles = kept;
        gone
    }
}
