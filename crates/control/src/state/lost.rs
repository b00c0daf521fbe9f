//! Notes of lost snapshots: their content is lost although their stores look valid.
//!
//! N1. A note holds for this server from the moment when it is made. It is owed until the file has
//!     it.
//! N2. Every replacement of the file writes all owed notes: see `Inner::latest`.
//! N3. A note is dropped when the snapshot is removed or gets another store, or when its store is
//!     marked invalid; never because it could not be written.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_block::{LossLog, Receipt};
use cairn_outcome::failure::Outcome;

use super::StateFile;

/// The pause between two attempts to write an owed note.
const NOTE_PAUSE: Duration = Duration::from_secs(60);

impl StateFile {
    /// True if the content of a snapshot is lost, whatever its store says.
    pub fn is_lost(&self, name: &str) -> bool {
        let inner = self.inner.lock();
        inner.contents.lost.contains(name) || inner.owed.contains(name)
    }

    /// Notes that the content of a snapshot is lost. Durable when it returns.
    ///
    /// # Errors
    /// The system refused to write: the note is owed.
    pub fn note_lost(&self, name: &str) -> Outcome<()> {
        let mut inner = self.inner.lock();
        inner.owed.insert(name.to_owned());
        let next = inner.latest();
        self.put(&mut inner, next)
    }

    /// The store of a lost snapshot is marked: the note is no longer owed.
    pub fn forgive_lost(&self, name: &str) {
        self.inner.lock().owed.remove(name);
    }

    /// Lost snapshots that neither their stores nor the file record.
    pub fn owed(&self) -> BTreeSet<String> {
        self.inner.lock().owed.clone()
    }

    /// Tries again to write the owed notes.
    ///
    /// # Errors
    /// The system refused to write: it stays owed.
    pub fn pay(&self) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let next = inner.latest();
        self.put(&mut inner, next)
    }

    /// Starts to retry, until no note is owed or the file is closed.
    fn pay_later(&self, pause: Duration) {
        if std::mem::replace(&mut self.inner.lock().tried_again, true) {
            return;
        }
        let (path, inner) = (self.path.clone(), Arc::downgrade(&self.inner));
        let wait = move || {
            loop {
                std::thread::sleep(pause);
                let Some(inner) = Weak::upgrade(&inner) else { return };
                let state = StateFile { path: path.clone(), inner };
                // Logged already; the stop reports it again.
                let _ = state.pay();
                let mut inner = state.inner.lock();
                if inner.owed.is_empty() {
                    inner.tried_again = false;
                    return;
                }
            }
        };
        if std::thread::Builder::new().name("state".to_owned()).spawn(wait).is_err() {
            self.inner.lock().tried_again = false;
        }
    }
}

/// Notes in the state file that a snapshot is lost.
pub struct Noting {
    state: StateFile,
    name: String,
}

impl Noting {
    /// For the snapshot `name`.
    pub fn new(state: StateFile, name: &str) -> Arc<Noting> {
        Arc::new(Noting { state, name: name.to_owned() })
    }
}

impl LossLog for Noting {
    fn content_lost(&self, receipt: Receipt) {
        let (state, name) = (self.state.clone(), self.name.clone());
        let note = move || match state.note_lost(&name) {
            Ok(()) => receipt.give(),
            Err(error) => {
                tracing::error!(
                    "{name}: its end is in neither its store nor the state file, which is tried \
                     again every minute: {error}"
                );
                state.pay_later(NOTE_PAUSE);
            }
        };
        // A reactor does not wait for a file.
        if let Err(error) = std::thread::Builder::new().name("state".to_owned()).spawn(note) {
            tracing::error!("{}: its end is not in the state file: {error}", self.name);
            self.state.inner.lock().owed.insert(self.name.clone());
        }
    }

    fn content_marked(&self) {
        self.state.forgive_lost(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::state::{ExportChanges, PAUSE, Record, StateFile, Store};
    use cairn_outcome::failure::Outcome;

    fn changed(name: &str) -> Record {
        let table = Some("0 16 zero".to_owned());
        Record { table, ..Record::as_configured(name, Some("0 8 zero")) }
    }

    #[test]
    fn an_owed_note_is_written_with_the_next_replacement() {
        let folder = tempfile::tempdir().unwrap();
        let (path, fresh) = (folder.path().join("vm.state"), folder.path().join("vm.state.new"));
        let store = Store {
            snapshot: "mon".to_owned(),
            argument: "a".to_owned(),
            made: true,
            created_s: 5,
            grow_bytes: None,
        };
        let snapshot = Record { store: Some(store), ..changed("v@mon") };
        let next: [fn(&StateFile) -> Outcome<()>; 5] = [
            |state| state.record(vec![changed("w")]),
            |state| {
                let removed = ["v".to_owned()].into();
                state.record_with(Vec::new(), ExportChanges { removed, ..ExportChanges::default() })
            },
            |state| state.keep_untold(["v".to_owned()].into()),
            |state| state.note_lost("v@tue"),
            StateFile::pay,
        ];
        for write in next {
            let state = StateFile::open(&path).unwrap();
            state.record(vec![snapshot.clone()]).unwrap();
            fs::create_dir(&fresh).unwrap();
            state.note_lost("v@mon").unwrap_err();
            write(&state).unwrap_err();
            assert!(state.is_lost("v@mon") && state.owed().contains("v@mon"));
            assert!(!StateFile::open(&path).unwrap().is_lost("v@mon"));
            fs::remove_dir(&fresh).unwrap();
            write(&state).unwrap();
            assert!(state.is_lost("v@mon") && state.owed().is_empty());
            assert!(StateFile::open(&path).unwrap().is_lost("v@mon"));
            fs::remove_file(&path).unwrap();
        }
        let state = StateFile::open(&path).unwrap();
        state.record(vec![snapshot]).unwrap();
        fs::create_dir(&fresh).unwrap();
        state.note_lost("v@mon").unwrap_err();
        fs::remove_dir(&fresh).unwrap();
        state.record(vec![Record::as_configured("v@mon", Some("0 8 zero"))]).unwrap();
        assert!(!state.is_lost("v@mon") && state.owed().is_empty(), "it was removed");
    }

    #[test]
    fn an_owed_note_is_retried_while_the_file_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let (path, fresh) = (folder.path().join("vm.state"), folder.path().join("vm.state.new"));
        let state = StateFile::open_alone(&path).unwrap();
        fs::create_dir(&fresh).unwrap();
        state.note_lost("v@mon").unwrap_err();
        state.pay_later(PAUSE);
        fs::remove_dir(&fresh).unwrap();
        while !state.owed().is_empty() {
            std::thread::sleep(PAUSE);
        }
        assert!(StateFile::open(&path).unwrap().is_lost("v@mon"));
        drop(state);
        StateFile::open_alone(&path).unwrap();
    }
}
