//! The state file: the tables that verbs changed at run time, so that the next start has them.
//!
//! Owns the file's schema and its replacement. A volume is recorded only while its tables differ
//! from those that the command line or the TOML file configures. The record has the configured text
//! too, so that the start notices a later change of the configuration instead of overriding it
//! silently.
//!
//! Replacement, and what a crash between two steps leaves:
//! 1. write `FILE.new` and fsync it: the old record (and a stray file, overwritten next time);
//! 2. rename it over `FILE`: the old or the new record, whole;
//! 3. fsync the folder: the new record, durable. Only now a verb answers.
//!
//! If step 3 fails, `FILE` may be the new one although the verb is refused. The old record is
//! written again at once or, if that fails too, with the next change.
//!
//! A snapshot has *lost* its content without its store saying so, if the store could not be
//! written. The state file has a note of it, independent of any verb; the write to the origin waits
//! for the note (see `cairn_block::LossLog`). A note that could not be written is *owed*. It holds
//! for this server at once. It is written with the next replacement, and the server tries every
//! minute, until the file has it or the store is marked after all. A server that stops with an owed
//! note reports it and fails.
//!
//! The file also records caches that may hold data that their origins lack: see `caches`; and which
//! dirty markers stand beside origins that other hosts reach: see `markers`.
//!
//! Beside the file lie the maps of dirty zones of bcache volumes: see `zones`.
//!
//! If acknowledged writes were lost and no client was told before the server ended, the file has
//! the names of their volumes. After the next start the first flush of each client fails.
//!
//! A server that may change the file holds a lock on `FILE.lock`, an empty file that stays. `FILE`
//! itself cannot be locked, because each replacement makes a new file. If the server cannot replace
//! `FILE`, it is refused at its start, not at its first verb.
//!
//! A field that a file of an older version lacks is empty. A field that a newer version added is
//! refused, because the next change would drop it.
//!
//! After a failed replacement the file may name objects that the verb is about to undo. While
//! [`StateFile::is_sure`] is false, a verb deletes nothing that its refused record names.

mod caches;
mod exports;
mod forget;
mod lost;
mod markers;
mod renaming;
mod show;
mod zones;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind, TableLine};
use cairn_outcome::failure::{Outcome, refused, system, wrong};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use caches::{CacheRecord, CacheState, Extent, Known, forget_cache};
pub use exports::{Export, ExportChanges};
pub use forget::forget;
pub use lost::Noting;
pub use markers::{Adopted, MarkerNotes, keep_markers};
pub use renaming::Renaming;
pub use show::{Shown, shown};
pub use zones::ZoneFiles;

const VERSION: u32 = 1;

/// Number of attempts to lock, and the pause between two. A killed server needs a moment to end.
const TRIES: usize = 200;
const PAUSE: Duration = Duration::from_millis(10);

/// The tables of one volume, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The volume.
    pub name: String,
    /// The table of the command line or TOML file; none for a volume made by `create`.
    pub configured: Option<String>,
    /// The live table; none if the volume was removed or has none yet.
    pub table: Option<String>,
    /// The loaded table, which a resume makes live.
    pub inactive: Option<String>,
    /// The table to serve if `table` cannot start. It is set during a swap, while no request has
    /// reached `table` yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<String>,
    /// The exception store of a snapshot, or of the merge of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<Store>,
    /// The thin volume that has this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thin: Option<Thin>,
    /// When `pool create` made the pool, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_made_s: Option<u64>,
}

/// A thin volume, with fields that tell it from a later volume of the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thin {
    /// The pool.
    pub pool: String,
    /// The device id in the pool.
    pub id: u32,
    /// The pool's transaction id when the volume was created.
    pub transaction_id: u64,
    /// The pool's time then: the number of snapshots that it had made, this one included.
    pub creation_time: u32,
    /// When it was created, in seconds since 1970; none if it was only given a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_s: Option<u64>,
}

/// An exception store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// The snapshot's own name.
    pub snapshot: String,
    /// The store as the table names it.
    pub argument: String,
    /// The store is a file that was made for the snapshot and is removed with it.
    pub made: bool,
    /// When the snapshot was made, in seconds since 1970.
    pub created_s: u64,
    /// How many bytes the file grows by when it is nearly full; none: it does not grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grow_bytes: Option<u64>,
}

impl Record {
    /// A volume as configured, or unknown to the configuration.
    pub fn as_configured(name: &str, configured: Option<&str>) -> Record {
        let table = configured.map(str::to_owned);
        let configured = table.clone();
        Record {
            name: name.to_owned(),
            configured,
            table,
            inactive: None,
            former: None,
            store: None,
            thin: None,
            pool_made_s: None,
        }
    }

    /// Removes all tables: the volume is removed.
    pub fn clear(&mut self) {
        let (name, configured) = (std::mem::take(&mut self.name), self.configured.take());
        *self = Record { configured, table: None, ..Record::as_configured(&name, None) };
    }

    /// True if the record adds nothing to the configuration.
    fn is_as_configured(&self) -> bool {
        let same = is_same_table(self.table.as_deref(), self.configured.as_deref());
        same && self.inactive.is_none() && self.former.is_none() && self.pool_made_s.is_none()
    }
}

/// True if two tables have the same lines, independent of spaces. The length `N` or `whole` is
/// equal to any number, because a record has the number in its place.
pub fn is_same_table(one: Option<&str>, other: Option<&str>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return one == other };
    let lines = |text| TableLine::parse_all(text).unwrap_or_default();
    let (mut lines_of_one, mut lines_of_other) = (lines(one), lines(other));
    if let (Some(one), Some(other)) = (lines_of_one.last_mut(), lines_of_other.last_mut())
        && [one.len, other.len].contains(&TableLine::WHOLE)
    {
        (one.len, other.len) = (TableLine::WHOLE, TableLine::WHOLE);
    }
    one == other || (!lines_of_one.is_empty() && lines_of_one == lines_of_other)
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    #[serde(default)]
    volumes: Vec<Record>,
    /// Snapshots whose content is lost although their stores look valid.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    lost: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "ExportChanges::is_empty")]
    exports: ExportChanges,
    /// Volumes made by verbs that the configuration exported at the last start.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    exported: BTreeSet<String>,
    /// Volumes that lost acknowledged writes of which no client was told.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    untold: BTreeSet<String>,
    /// Caches that may be dirty, or are given up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    caches: Vec<CacheRecord>,
    /// The generations of dirty markers, by disk.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    markers: BTreeMap<String, Vec<String>>,
    /// No verb has changed anything: the file exists only for the caches and markers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    caches_only: bool,
}

impl Contents {
    /// Parses and checks the text of a file.
    fn parse(shown: &str, text: &str) -> Outcome<Contents> {
        let damaged = |found: String| {
            let detail = format!(
                "not a state file of version 1: {found}; restore a copy of the file (without it \
                 the snapshots and the names of volumes in pools are lost)"
            );
            ConfigError::new(ConfigKind::Damaged, shown, detail)
        };
        let newer = |found: String| {
            let expected = "what this version knows: a newer cairn wrote the file";
            refused(ConfigKind::Unsupported, shown, "state", found, expected)
        };
        let value: Value =
            serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
        match value.get("version").and_then(Value::as_u64) {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) if version > u64::from(VERSION) => {
                return Err(newer(format!("version {version}")));
            }
            Some(version) => return Err(damaged(format!("version {version}"))),
            None => return Err(damaged("no version".to_owned())),
        }
        serde_json::from_value(value).map_err(|error| {
            let found = error.to_string();
            match found.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) {
                Some((field, _)) => newer(format!("a field '{field}'")),
                None => damaged(found),
            }
        })
    }
    fn record_of(&self, name: &str) -> Option<&Record> {
        self.volumes.iter().find(|record| record.name == name)
    }

    /// The contents with some records changed. A snapshot stays lost while its store is the same.
    fn with(&self, records: Vec<Record>) -> Contents {
        let mut next = self.clone();
        for record in records {
            let place = next.volumes.iter().position(|known| known.name == record.name);
            match (place, record.is_as_configured()) {
                (Some(place), true) => drop(next.volumes.remove(place)),
                (Some(place), false) => next.volumes[place] = record,
                (None, true) => {}
                (None, false) => next.volumes.push(record),
            }
        }
        let store = |contents: &Contents, name: &str| {
            contents.record_of(name).and_then(|record| record.store.clone())
        };
        let lost = self.lost.iter().filter(|name| {
            let former = store(self, name);
            former.is_some() && former == store(&next, name)
        });
        next.lost = lost.cloned().collect();
        next
    }
}

#[derive(Debug)]
struct Inner {
    contents: Contents,
    /// Lost snapshots whose notes are not in the file.
    owed: BTreeSet<String>,
    /// A thread tries to write those notes.
    tried_again: bool,
    /// The file may differ from `contents`.
    unsure: bool,
    /// How the folder is made durable.
    sync_folder: fn(&File) -> io::Result<()>,
    /// It belongs to another server, perhaps.
    read_only: bool,
    /// Held until the last clone is dropped.
    lock: Option<File>,
}

impl Inner {
    /// The contents of the next replacement: those of the file, with the owed notes.
    fn latest(&self) -> Contents {
        let mut latest = self.contents.clone();
        latest.lost.extend(self.owed.iter().cloned());
        latest
    }

    /// Notes that the file has these contents, which were made from [`latest`](Inner::latest).
    fn keeps(&mut self, contents: Contents) {
        self.contents = contents;
        self.owed.clear();
    }
}

/// An open state file; clones are the same one.
#[derive(Clone, Debug)]
pub struct StateFile {
    path: PathBuf,
    inner: Arc<Mutex<Inner>>,
}

impl StateFile {
    /// Keeps other servers from the file, then reads it.
    ///
    /// # Errors
    /// Another server has it, nothing can be written in its folder, or as
    /// [`open`](StateFile::open).
    pub fn open_alone(path: &Path) -> Outcome<StateFile> {
        let path = &*itself(path);
        let shown = path.display().to_string();
        let lock = File::create(beside(path, ".lock")).map_err(|e| unwritable(&shown, e))?;
        for _ in 0..TRIES {
            match lock.try_lock() {
                Ok(()) => return StateFile::open_locked(path, lock),
                Err(TryLockError::Error(error)) => return Err(system(shown, "lock", error)),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            }
        }
        let found = "another server that keeps its state here";
        Err(refused(ConfigKind::Busy, shown, "lock", found, "no other user"))
    }

    /// Reads the file under a lock that keeps other servers from it, and that the server before
    /// this one may have taken.
    ///
    /// # Errors
    /// Nothing can be written in its folder, or as [`open`](StateFile::open).
    pub fn open_locked(path: &Path, lock: File) -> Outcome<StateFile> {
        let path = &*itself(path);
        let shown = path.display().to_string();
        let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let own = lock.metadata().map(place).ok();
        if own.is_none() || own != fs::metadata(beside(path, ".lock")).map(place).ok() {
            let found = "the lock of another state file";
            return Err(refused(ConfigKind::Busy, shown, "lock", found, "that of this one"));
        }
        probe_folder(path).map_err(|error| unwritable(&shown, error))?;
        let state = StateFile::open(path)?;
        state.inner.lock().lock = Some(lock);
        Ok(state)
    }

    /// The lock, for the server after this one.
    ///
    /// # Errors
    /// The system refused.
    pub fn lock(&self) -> Outcome<Option<File>> {
        let lock = self.inner.lock().lock.as_ref().map(File::try_clone).transpose();
        lock.map_err(|error| system(self.path.display().to_string(), "lock", error))
    }

    /// From now on another process writes the file.
    pub fn leave(&self) {
        self.inner.lock().read_only = true;
    }

    /// True if a server holds the file now.
    pub fn is_held(path: &Path) -> bool {
        let path = &*itself(path);
        let lock = File::open(beside(path, ".lock"));
        lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Reads the file for a server that writes nothing, beside one that may hold it.
    ///
    /// # Errors
    /// As for [`open`](StateFile::open).
    pub fn open_to_read(path: &Path) -> Outcome<StateFile> {
        let state = StateFile::open(path)?;
        state.inner.lock().read_only = true;
        Ok(state)
    }

    /// Reads the file; a missing one is empty and is made by the first change.
    ///
    /// # Errors
    /// It cannot be read or is no state file of this version.
    pub fn open(path: &Path) -> Outcome<StateFile> {
        let path = &*itself(path);
        let shown = path.display().to_string();
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let contents =
                    Contents { version: VERSION, caches_only: true, ..Contents::default() };
                return Ok(StateFile::of(path, contents));
            }
            Err(error) => return Err(system(shown, "read", error)),
        };
        Ok(StateFile::of(path, Contents::parse(&shown, &text)?))
    }

    fn of(path: &Path, contents: Contents) -> StateFile {
        let inner = Inner {
            contents,
            owed: BTreeSet::new(),
            tried_again: false,
            unsure: false,
            sync_folder: File::sync_all,
            read_only: false,
            lock: None,
        };
        StateFile { path: path.to_owned(), inner: Arc::new(Mutex::new(inner)) }
    }

    /// Every record, in the order they were made.
    pub fn records(&self) -> Vec<Record> {
        self.inner.lock().contents.volumes.clone()
    }

    /// The exports that verbs changed.
    pub fn exports(&self) -> ExportChanges {
        self.inner.lock().contents.exports.clone()
    }

    /// False if the file may say what the last change was refused for.
    pub fn is_sure(&self) -> bool {
        !self.inner.lock().unsure
    }

    /// True once a verb has changed anything, even if all is as configured again.
    pub fn has_changes(&self) -> bool {
        self.path.exists() && !self.inner.lock().contents.caches_only
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Records the tables of some volumes: all of them or none. Durable when it returns.
    ///
    /// # Errors
    /// The system refused to write.
    pub fn record(&self, records: Vec<Record>) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let next = inner.latest().with(records);
        self.put(&mut inner, next)
    }

    /// The same, with what verbs changed of the exports.
    ///
    /// # Errors
    /// The system refused to write.
    pub fn record_with(&self, records: Vec<Record>, exports: ExportChanges) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let next = Contents { exports, ..inner.latest().with(records) };
        self.put(&mut inner, next)
    }

    /// Volumes that verbs made and the configuration exported at the last start: such an export is
    /// no mistake although the volume was removed since.
    pub fn exported(&self) -> BTreeSet<String> {
        self.inner.lock().contents.exported.clone()
    }

    /// Records these for the next start. Durable when it returns.
    ///
    /// # Errors
    /// The system refused to write.
    pub fn record_exported(&self, exported: BTreeSet<String>) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let next = Contents { exported, ..inner.latest() };
        self.put(&mut inner, next)
    }

    /// Volumes that lost acknowledged writes of which no client was told.
    pub fn untold(&self) -> BTreeSet<String> {
        self.inner.lock().contents.untold.clone()
    }

    /// Keeps the names of such volumes for the next start. Durable when it returns.
    ///
    /// # Errors
    /// The system refused to write.
    pub fn keep_untold(&self, untold: BTreeSet<String>) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let next = Contents { untold, ..inner.latest() };
        self.put(&mut inner, next)
    }

    /// Makes the `fsync` of the folder fail, or succeed again.
    #[cfg(test)]
    pub(crate) fn fail_to_sync_folder(&self, fails: bool) {
        let fail = |_: &File| Err(ErrorKind::Other.into());
        self.inner.lock().sync_folder = if fails { fail } else { File::sync_all };
    }

    fn put(&self, inner: &mut Inner, mut next: Contents) -> Outcome<()> {
        if inner.read_only {
            let path = self.path.display().to_string();
            return Err(wrong(path, "state", "a read-only server", "one that may write its state"));
        }
        let but_for_caches = Contents {
            caches: next.caches.clone(),
            markers: next.markers.clone(),
            ..inner.contents.clone()
        };
        next.caches_only &= next == but_for_caches;
        if next == inner.contents && !inner.unsure {
            inner.keeps(next);
            return Ok(());
        }
        let replaced = self.replace(inner, &next);
        if replaced.is_ok() {
            inner.keeps(next);
        } else if inner.unsure {
            let former = inner.latest();
            match self.replace(inner, &former) {
                Ok(()) => inner.keeps(former),
                Err(error) => {
                    tracing::error!("{error}: it may say what was refused, until the next change");
                }
            }
        }
        replaced
    }

    fn replace(&self, inner: &mut Inner, contents: &Contents) -> Outcome<()> {
        let failed = |error| system(self.path.display().to_string(), "write", error);
        let mut text = serde_json::to_string_pretty(contents).map_err(|e| failed(e.into()))?;
        text.push('\n');
        let fresh = beside(&self.path, ".new");
        let mut file = File::create(&fresh).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        let folder = File::open(folder_of(&self.path)).map_err(failed)?;
        inner.unsure = true;
        fs::rename(&fresh, &self.path).map_err(failed)?;
        (inner.sync_folder)(&folder).map_err(failed)?;
        inner.unsure = false;
        Ok(())
    }
}

/// Has the system say at once whether the file could be replaced.
fn probe_folder(path: &Path) -> io::Result<()> {
    let probe = beside(path, ".new");
    File::create(&probe)?;
    fs::remove_file(&probe)
}

fn unwritable(shown: &str, error: io::Error) -> ConfigError {
    let detail = "state: its folder cannot be written: name a file elsewhere with --state, or \
                  serve with --read-only";
    ConfigError::new(ConfigKind::System, shown, detail).with_source(error)
}

/// The file that a path names: one behind symbolic links is locked and replaced, not the link.
fn itself(path: &Path) -> Cow<'_, Path> {
    match path.is_symlink() {
        true => fs::canonicalize(path).map_or(Cow::Borrowed(path), Cow::Owned),
        false => Cow::Borrowed(path),
    }
}

/// The folder of a file.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The file of the same name with something appended.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::{ExportChanges, Record, StateFile, Store, is_same_table};
    use cairn_block::ConfigKind;
    use std::fs::{self, File};

    fn changed(name: &str) -> Record {
        let table = Some("0 16 zero".to_owned());
        Record { table, ..Record::as_configured(name, Some("0 8 zero")) }
    }

    #[test]
    fn a_length_that_is_left_open_is_the_same_as_any_number() {
        let same = |one, other| is_same_table(Some(one), Some(other));
        assert!(same("0 N linear a 0", "0 8 linear a 0") && same("0 8 zero", "0 whole zero"));
        assert!(same("0 8 zero\n8 8 linear a 0", "0 8 zero\n8 N  linear a 0"));
        assert!(!same("0 N linear a 0", "0 8 linear b 0") && !same("0 8 zero", "0 9 zero"));
        assert!(!same("no table", "another") && same("no table", "no table"));
    }

    #[test]
    fn a_record_survives_reopening_and_goes_when_it_is_as_configured() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        let state = StateFile::open(&path).unwrap();
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
        let state = StateFile::open(&path).unwrap();
        state.record(vec![changed("v")]).unwrap();
        let before = fs::read(&path).unwrap();
        fs::create_dir(folder.path().join("vm.state.new")).unwrap();
        state.record(vec![changed("w")]).unwrap_err();
        assert_eq!(state.records(), [changed("v")]);
        assert_eq!(fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_doubtful_replacement_is_undone_at_once_or_with_the_next_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        let state = StateFile::open(&path).unwrap();
        state.record(vec![changed("v")]).unwrap();
        let before = fs::read(&path).unwrap();
        let fail = |_: &File| Err(std::io::ErrorKind::Other.into());
        state.inner.lock().sync_folder = fail;
        state.record(vec![changed("w")]).unwrap_err();
        assert_eq!(state.records(), [changed("v")]);
        assert_eq!(fs::read(&path).unwrap(), before);
        fs::write(&path, "what a failed attempt left").unwrap();
        state.record(vec![changed("v")]).unwrap_err();
        state.inner.lock().sync_folder = File::sync_all;
        state.record(vec![changed("v")]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), before, "although nothing differs from the record");
    }

    #[test]
    fn a_lost_snapshot_is_so_until_it_has_another_store_or_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        let snapshot = |argument: &str| {
            let argument = argument.to_owned();
            let (snapshot, made, created_s, grow_bytes) = ("mon".to_owned(), true, 5, None);
            let store = Some(Store { snapshot, argument, made, created_s, grow_bytes });
            Record { store, ..changed("v@mon") }
        };
        let state = StateFile::open(&path).unwrap();
        for gone in [Record::as_configured("v@mon", Some("0 8 zero")), snapshot("another")] {
            state.record(vec![snapshot("a")]).unwrap();
            state.note_lost("v@mon").unwrap();
            state.record(vec![changed("w"), snapshot("a")]).unwrap();
            let again = StateFile::open(&path).unwrap();
            assert!(again.is_lost("v@mon") && !again.is_lost("w"));
            state.record(vec![gone]).unwrap();
            assert!(!StateFile::open(&path).unwrap().is_lost("v@mon"));
        }
    }

    #[test]
    fn two_servers_do_not_keep_their_state_in_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        let first = StateFile::open_alone(&path).unwrap();
        first.record(vec![changed("v")]).unwrap();
        let error = StateFile::open_alone(&path).unwrap_err();
        assert_eq!(error.kind, ConfigKind::Busy);
        assert!(error.to_string().contains("another server"), "{error}");
        drop(first);
        assert_eq!(StateFile::open_alone(&path).unwrap().records(), [changed("v")]);
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
    fn a_file_that_is_not_a_state_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        for text in ["", "frob", "[]", r#"{"version":0}"#, r#"{"version":1,"volumes":7}"#] {
            fs::write(&path, text).unwrap();
            let line = StateFile::open(&path).unwrap_err().to_string();
            assert!(line.contains("not a state file of version 1: "), "{line}");
            assert!(line.contains("; restore a copy of the file"), "{line}");
        }
    }

    #[test]
    fn fields_of_a_newer_version_are_refused_and_missing_ones_are_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        let volume = r#"{"name":"v","configured":null,"table":"0 8 zero","inactive":null"#;
        for (text, found) in [
            (r#"{"version":2}"#.to_owned(), "version 2"),
            (r#"{"version":1,"frob":[]}"#.to_owned(), "a field 'frob'"),
            (format!(r#"{{"version":1,"volumes":[{volume},"frob":1}}]}}"#), "a field 'frob'"),
        ] {
            fs::write(&path, &text).unwrap();
            let error = StateFile::open(&path).unwrap_err();
            assert_eq!(error.kind, ConfigKind::Unsupported);
            let line = error.to_string();
            assert!(line.contains(&format!("found {found}, expected what this")), "{line}");
        }
        fs::write(&path, r#"{"version":1}"#).unwrap();
        assert!(StateFile::open(&path).unwrap().records().is_empty());
        fs::write(&path, format!(r#"{{"version":1,"volumes":[{volume}}}]}}"#)).unwrap();
        assert_eq!(StateFile::open(&path).unwrap().records()[0].name, "v");
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_refused_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        fs::create_dir(folder.path().join("vm.state.new")).unwrap();
        for path in [path, folder.path().join("nowhere/vm.state")] {
            let line = StateFile::open_alone(&path).unwrap_err().to_string();
            assert!(line.contains("vm.state: state: its folder cannot be written"), "{line}");
        }
    }

    #[test]
    fn exports_survive_reopening_beside_the_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        let state = StateFile::open(&path).unwrap();
        let removed = ["v".to_owned()].into();
        let exports = ExportChanges { removed, ..ExportChanges::default() };
        state.record_with(Vec::new(), exports.clone()).unwrap();
        state.record(vec![changed("v")]).unwrap();
        let again = StateFile::open(&path).unwrap();
        assert_eq!((again.exports(), again.records()), (exports, vec![changed("v")]));
    }

    #[test]
    fn tables_are_the_same_however_they_are_written() {
        let same = |one, other| is_same_table(Some(one), Some(other));
        assert!(same("0 8 zero", " 0  8 zero \n"));
        assert!(same("no table", "no table") && !same("no table", "none"));
        assert!(!same("0 8 zero", "0 9 zero") && !is_same_table(None, Some("0 8 zero")));
    }
}
