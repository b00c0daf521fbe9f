//! `state show`: the records, and the volumes that a running server could not bring up.

use std::path::PathBuf;

use cairn_outcome::failure::{Outcome, wrong};
use serde::{Deserialize, Serialize};

use super::{CacheRecord, CacheState, ExportChanges, Record, StateFile};
use crate::names::parent_of;

/// The state file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Shown {
    /// Where it is.
    pub file: PathBuf,
    /// The volumes that differ from what is configured.
    pub volumes: Vec<ShownVolume>,
    /// The exports that verbs changed.
    pub exports: ExportChanges,
    /// The caches that may be dirty, or are given up.
    #[serde(default)]
    pub caches: Vec<CacheRecord>,
}

/// One volume.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShownVolume {
    /// What is recorded.
    pub record: Record,
    /// It is a snapshot whose content is lost, whatever its store says.
    pub lost: bool,
    /// Why a server that runs does not serve it.
    pub not_served: Option<String>,
}

/// The records of a state file: of one volume with its snapshots, or all.
///
/// # Errors
/// Nothing is recorded of the volume.
pub fn shown(state: &StateFile, name: Option<&str>) -> Outcome<Shown> {
    let wanted = |record: &Record| {
        name.is_none_or(|name| record.name == name || parent_of(&record.name) == Some(name))
    };
    let volumes = state.records().into_iter().filter(wanted).map(|record| ShownVolume {
        lost: state.is_lost(&record.name),
        not_served: None,
        record,
    });
    let volumes: Vec<ShownVolume> = volumes.collect();
    let exports = if name.is_none() { state.exports() } else { ExportChanges::default() };
    let mut caches = state.caches();
    caches.retain(|cache| name.is_none_or(|name| cache.volume == name || cache.is_called(name)));
    match name.filter(|_| volumes.is_empty() && caches.is_empty()) {
        Some(name) => Err(wrong(name, "state", "no record of it", "a volume that verbs changed")),
        None => Ok(Shown { file: state.path().to_owned(), volumes, exports, caches }),
    }
}

impl Shown {
    /// The answer as text.
    pub fn text(&self) -> String {
        let mut lines = Vec::new();
        for volume in &self.volumes {
            let name = &volume.record.name;
            lines.extend(volume.facts().into_iter().map(|fact| format!("{name}: {fact}")));
        }
        for export in &self.exports.added {
            let access = if export.read_only { ", read-only" } else { "" };
            lines.push(format!("export '{}': added, of {}{access}", export.name, export.volume));
        }
        lines.extend(self.exports.removed.iter().map(|name| format!("export '{name}': removed")));
        let limits = self.exports.throttles.iter();
        lines.extend(limits.map(|(name, limits)| format!("export '{name}': limits: {limits}")));
        lines.extend(self.caches.iter().map(CacheRecord::fact));
        if lines.is_empty() {
            lines.push("No records found".to_owned());
        }
        lines.join("\n") + "\n"
    }
}

impl CacheRecord {
    fn fact(&self) -> String {
        let (cache, origin) = &self.names;
        match self.state {
            CacheState::InUse => format!("cache {cache}: of {origin}, in use by {}", self.volume),
            CacheState::Left => {
                format!("cache {cache}: left by {}: {}", self.volume, self.what_it_keeps())
            }
            CacheState::GivenUp => {
                format!("cache {cache}: given up: to be formatted before it is a cache again")
            }
        }
    }
}

impl ShownVolume {
    fn facts(&self) -> Vec<String> {
        let Record { configured, table, inactive, former, store, thin, .. } = &self.record;
        let mut facts = lines_of(table.as_deref().unwrap_or("removed"), "");
        facts.extend(configured.iter().flat_map(|text| lines_of(text, "configured: ")));
        facts.extend(inactive.iter().flat_map(|text| lines_of(text, "waits for a resume: ")));
        facts.extend(former.iter().flat_map(|text| lines_of(text, "if that cannot start: ")));
        facts.extend(store.iter().map(|store| format!("store: {}", store.argument)));
        facts.extend(thin.iter().map(|thin| format!("volume {} of pool {}", thin.id, thin.pool)));
        facts.extend(self.lost.then(|| "its content is lost".to_owned()));
        facts.extend(self.not_served.iter().map(|why| format!("not served: {why}")));
        facts
    }
}

fn lines_of(text: &str, what: &str) -> Vec<String> {
    text.trim().lines().map(|line| format!("{what}{line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{Shown, ShownVolume};
    use crate::state::Export;
    use crate::state::{ExportChanges, Record};
    use crate::throttles::Limits;

    #[test]
    fn each_fact_is_one_line_that_names_its_volume() {
        let record = Record {
            table: Some("0 8 zero\n8 8 zero".to_owned()),
            inactive: Some("0 8 error".to_owned()),
            ..Record::as_configured("v", Some("0 8 zero"))
        };
        let not_served = Some("it is not there".to_owned());
        let volumes = vec![ShownVolume { record, lost: false, not_served }];
        let added = Export {
            name: "x".to_owned(),
            volume: "v".to_owned(),
            description: String::new(),
            read_only: true,
        };
        let limits = Limits::parse("x", "iops-total=5").unwrap();
        let exports = ExportChanges {
            added: vec![added],
            removed: ["v".to_owned()].into(),
            throttles: [("x".to_owned(), limits)].into(),
        };
        let text = Shown { file: "s".into(), volumes, exports, caches: Vec::new() }.text();
        let expected = "v: 0 8 zero\nv: 8 8 zero\nv: configured: 0 8 zero\n\
                        v: waits for a resume: 0 8 error\nv: not served: it is not there\n\
                        export 'x': added, of v, read-only\nexport 'v': removed\n\
                        export 'x': limits: iops-total=5\n";
        assert_eq!(text, expected);
    }
}
