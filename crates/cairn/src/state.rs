//! The state file: tables that verbs changed at run time, so that they survive the server.
//!
//! Owns the file's schema and its replacement. A volume is recorded only while its tables differ
//! from what the command line or TOML file configures; the configured text is kept beside, so
//! that a later change of the configuration is noticed instead of silently losing to the record.
//!
//! Replacement, and what a crash between two steps leaves:
//! 1. write `FILE.new` and fsync it: the old record (and a stray file, overwritten next time);
//! 2. rename it over `FILE`: the old or the new record, whole;
//! 3. fsync the folder: the new record, durable. Only now a verb answers.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use cairn_block::ConfigKind;
use serde::{Deserialize, Serialize};

use crate::failure::{Outcome, refused, system};

const VERSION: u32 = 1;

/// The tables of one volume, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The volume.
    pub name: String,
    /// What the command line or TOML file says; none for a volume made by `create`.
    pub configured: Option<String>,
    /// The live table; none if the volume was removed or has none yet.
    pub table: Option<String>,
    /// The table that waits for a resume.
    pub inactive: Option<String>,
    /// The exception store of a snapshot, or of the merge of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<Store>,
}

/// An exception store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// The snapshot's own name.
    pub snapshot: String,
    /// The store as the table names it.
    pub argument: String,
    /// It is a file that was made for the snapshot, and goes with it.
    pub made: bool,
    /// When the snapshot was made, in seconds since 1970.
    pub created_s: u64,
    /// How much longer the file gets when it fills up; none: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grow_bytes: Option<u64>,
}

impl Record {
    /// A volume as configured, or unknown to the configuration.
    pub fn as_configured(name: &str, configured: Option<&str>) -> Record {
        let table = configured.map(str::to_owned);
        let configured = table.clone();
        Record { name: name.to_owned(), configured, table, inactive: None, store: None }
    }

    /// Without any table: the volume is removed.
    pub fn clear(&mut self) {
        (self.table, self.inactive, self.store) = (None, None, None);
    }

    fn is_as_configured(&self) -> bool {
        self.table == self.configured && self.inactive.is_none()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    volumes: Vec<Record>,
}

/// An open state file.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    contents: Contents,
}

impl StateFile {
    /// Reads the file; a missing one is empty and is made by the first change.
    ///
    /// # Errors
    /// It cannot be read or is no state file of this version.
    pub fn open(path: &Path) -> Outcome<StateFile> {
        let shown = path.display().to_string();
        let path = path.to_owned();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let contents = Contents { version: VERSION, volumes: Vec::new() };
                return Ok(StateFile { path, contents });
            }
            Err(error) => return Err(system(shown, "read", error)),
        };
        let damaged = |found: String| {
            refused(ConfigKind::Damaged, &shown, "state", found, "a state file of version 1")
        };
        let contents: Contents =
            serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        if contents.version != VERSION {
            return Err(damaged(format!("version {}", contents.version)));
        }
        Ok(StateFile { path, contents })
    }

    /// Every record, in the order they were made.
    pub fn records(&self) -> &[Record] {
        &self.contents.volumes
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records the tables of some volumes: all of them or none. Durable when it returns.
    ///
    /// # Errors
    /// The system refused to write.
    pub fn record(&mut self, records: Vec<Record>) -> Outcome<()> {
        let mut next = self.contents.clone();
        for record in records {
            let place = next.volumes.iter().position(|known| known.name == record.name);
            match (place, record.is_as_configured()) {
                (Some(place), true) => drop(next.volumes.remove(place)),
                (Some(place), false) => next.volumes[place] = record,
                (None, true) => {}
                (None, false) => next.volumes.push(record),
            }
        }
        if next != self.contents {
            self.replace(&next)?;
            self.contents = next;
        }
        Ok(())
    }

    fn replace(&self, contents: &Contents) -> Outcome<()> {
        let failed = |error| system(self.path.display().to_string(), "write", error);
        let mut text = serde_json::to_string_pretty(contents).map_err(|e| failed(e.into()))?;
        text.push('\n');
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let fresh = self.path.with_file_name(name);
        let mut file = File::create(&fresh).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        fs::rename(&fresh, &self.path).map_err(failed)?;
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::{Record, StateFile};
    use std::fs;

    fn changed(name: &str) -> Record {
        let table = Some("0 16 zero".to_owned());
        Record { table, ..Record::as_configured(name, Some("0 8 zero")) }
    }

    #[test]
    fn a_record_survives_reopening_and_goes_when_it_is_as_configured() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        let mut state = StateFile::open(&path).unwrap();
        state.record(vec![Record::as_configured("v", Some("0 8 zero"))]).unwrap();
        assert!(!path.exists());
        state.record(vec![changed("v")]).unwrap();
        assert_eq!(StateFile::open(&path).unwrap().records(), [changed("v")]);
        state.record(vec![Record::as_configured("v", Some("0 8 zero"))]).unwrap();
        assert!(StateFile::open(&path).unwrap().records().is_empty());
    }

    #[test]
    fn a_failed_replacement_changes_neither_the_file_nor_the_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        let mut state = StateFile::open(&path).unwrap();
        state.record(vec![changed("v")]).unwrap();
        let before = fs::read(&path).unwrap();
        fs::create_dir(folder.path().join("vm.state.new")).unwrap();
        state.record(vec![changed("w")]).unwrap_err();
        assert_eq!(state.records(), [changed("v")]);
        assert_eq!(fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_half_written_replacement_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        StateFile::open(&path).unwrap().record(vec![changed("v")]).unwrap();
        fs::write(folder.path().join("vm.state.new"), "{\"ver").unwrap();
        assert_eq!(StateFile::open(&path).unwrap().records(), [changed("v")]);
    }

    #[test]
    fn what_is_no_state_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        for text in ["", "frob", "{\"version\":2,\"volumes\":[]}", "{\"version\":1}"] {
            fs::write(&path, text).unwrap();
            let line = StateFile::open(&path).unwrap_err().to_string();
            assert!(line.contains("expected a state file of version 1"), "{line}");
        }
    }
}
