//! The records of all volumes. A change is written to the state file first.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cairn_outcome::failure::Outcome;
use parking_lot::Mutex;

use crate::exports::Exports;
use crate::state::{ExportChanges, Record, Renaming, StateFile};

/// Records by the names of their volumes.
pub type Records = Arc<HashMap<String, Record>>;

/// The records. A verb changes only those of volumes that its turn holds.
pub(crate) struct Changes {
    /// The state file, if there is one.
    pub(crate) state: Option<StateFile>,
    /// What could not be written. The next change writes it, too. Held while the file is written,
    /// so that the file, `told` and the changes of exports change in the same order.
    owed: Mutex<Owed>,
    /// Every volume's record, by name.
    told: Mutex<Records>,
}

/// What the state file lacks of changes that have already happened.
#[derive(Default)]
struct Owed {
    records: Vec<Record>,
    /// Renames that were undone, in order, with the changes of exports.
    renamings: Vec<(Renaming, ExportChanges)>,
}

impl Owed {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.renamings.is_empty()
    }

    /// The last state of some volumes is to be written.
    fn put(&mut self, records: &[Record]) {
        self.records.retain(|owed| records.iter().all(|record| record.name != owed.name));
        self.records.extend(records.iter().cloned());
    }
}

impl Changes {
    /// The records of the start.
    pub(super) fn new(state: Option<StateFile>, records: Vec<Record>) -> Changes {
        let named = records.into_iter().map(|record| (record.name.clone(), record));
        let told = Mutex::new(Arc::new(named.collect()));
        Changes { state, owed: Mutex::default(), told }
    }

    /// The records, as they are now. Waits for no verb and no file.
    pub(crate) fn records(&self) -> Records {
        self.told.lock().clone()
    }

    /// Writes the records that could not be written before.
    pub(super) fn record_owed(&self) -> Outcome<()> {
        let mut owed = self.owed.lock();
        if owed.is_empty() { Ok(()) } else { self.write(&mut owed, Vec::new()) }
    }

    /// Changes the record of a volume, in the state file first.
    pub(super) fn record(&self, name: &str, change: impl FnOnce(&mut Record)) -> Outcome<()> {
        let mut record = self.record_of(name);
        change(&mut record);
        self.record_all(vec![record])
    }

    /// Changes the records of several volumes, in the state file first: all of them or none.
    ///
    /// # Errors
    /// The system refused to write.
    pub(crate) fn record_all(&self, records: Vec<Record>) -> Outcome<()> {
        self.write(&mut self.owed.lock(), records)
    }

    /// The same with what else the state file has by the name of one of them. Answers the changes
    /// of exports before.
    ///
    /// # Errors
    /// The system refused to write.
    pub(crate) fn record_renaming(
        &self,
        exports: &Exports,
        records: Vec<Record>,
        renaming: &Renaming,
    ) -> Outcome<ExportChanges> {
        let mut owed = self.owed.lock();
        let before = exports.changes();
        let after = exports.changes_for_name(&renaming.from, &renaming.to);
        let write = |state: &StateFile, records| state.record_renaming(records, renaming, &after);
        self.write_by(&mut owed, records, write)?;
        exports.set_changes(after);
        Ok(before)
    }

    /// Undoes a rename that the state file has: the volume already has its former name again. If
    /// that cannot be written now, the next change or the stop writes it.
    ///
    /// # Errors
    /// The system refused to write.
    pub(crate) fn record_renaming_back(
        &self,
        exports: &Exports,
        records: Vec<Record>,
        renaming: Renaming,
        before: &ExportChanges,
    ) -> Outcome<()> {
        let mut owed = self.owed.lock();
        let mut after = exports.changes();
        after.go_back(before, &[&renaming.from, &renaming.to]);
        exports.set_changes(after.clone());
        let write = |state: &StateFile, records| state.record_renaming(records, &renaming, &after);
        let recorded = self.write_by(&mut owed, records.clone(), write);
        if recorded.is_err() {
            owed.put(&records);
            owed.renamings.push((renaming, after));
            self.tell(records);
        }
        recorded
    }

    /// Changes what verbs changed of the exports, and records with it, in the state file first: all
    /// of it or nothing. Answers what it was before.
    ///
    /// # Errors
    /// The system refused to write.
    pub(super) fn record_with(
        &self,
        exports: &Exports,
        records: Vec<Record>,
        edit: impl FnOnce(&mut ExportChanges),
    ) -> Outcome<ExportChanges> {
        let mut owed = self.owed.lock();
        let before = exports.changes();
        let mut after = before.clone();
        edit(&mut after);
        self.write_by(&mut owed, records, |state, all| state.record_with(all, after.clone()))?;
        exports.set_changes(after);
        Ok(before)
    }

    /// Changes the records of volumes, of which those without a table are removed: the limits of
    /// their exports go with them, because a later volume of the name is another one.
    ///
    /// # Errors
    /// The system refused to write.
    pub(super) fn record_gone(
        &self,
        exports: &Exports,
        records: Vec<Record>,
    ) -> Outcome<ExportChanges> {
        let gone = records.iter().filter(|record| record.table.is_none());
        let gone: HashSet<String> = gone.map(|record| record.name.clone()).collect();
        self.record_with(exports, records, |changes| {
            changes.take_limits(|export| gone.contains(&exports.volume_of(export)));
        })
    }

    /// Undoes [`Changes::record_gone`], which answered `before`: other verbs may have changed other
    /// exports since.
    ///
    /// # Errors
    /// The system refused to write.
    pub(super) fn record_back(
        &self,
        exports: &Exports,
        records: Vec<Record>,
        before: &ExportChanges,
    ) -> Outcome<()> {
        let back: HashSet<String> = records.iter().map(|record| record.name.clone()).collect();
        let is_back = |export: &str| back.contains(&exports.volume_of(export));
        let limits = before.clone().take_limits(is_back);
        let done = self.record_with(exports, records, |changes| {
            changes.take_limits(is_back);
            changes.throttles.extend(limits);
        });
        done.map(drop)
    }

    fn write(&self, owed: &mut Owed, records: Vec<Record>) -> Outcome<()> {
        self.write_by(owed, records, StateFile::record)
    }

    fn write_by(
        &self,
        owed: &mut Owed,
        records: Vec<Record>,
        write: impl FnOnce(&StateFile, Vec<Record>) -> Outcome<()>,
    ) -> Outcome<()> {
        if let Some(state) = &self.state {
            for (renaming, exports) in &owed.renamings {
                state.record_renaming(owed.records.clone(), renaming, exports)?;
            }
            owed.renamings.clear();
            let is_new = |owed: &&Record| records.iter().all(|record| record.name != owed.name);
            let before = owed.records.iter().filter(is_new).cloned();
            write(state, before.chain(records.iter().cloned()).collect())?;
        }
        *owed = Owed::default();
        self.tell(records);
        Ok(())
    }

    /// Records a change that has already happened. If it cannot be written now, the next change or
    /// the stop writes it.
    ///
    /// # Errors
    /// The system refused to write.
    pub(crate) fn record_fact(&self, record: Record) -> Outcome<()> {
        self.record_facts(vec![record])
    }

    /// The same for several volumes.
    ///
    /// # Errors
    /// The system refused to write.
    pub(crate) fn record_facts(&self, records: Vec<Record>) -> Outcome<()> {
        let mut owed = self.owed.lock();
        let recorded = self.write(&mut owed, records.clone());
        if recorded.is_err() {
            owed.put(&records);
            self.tell(records);
        }
        recorded
    }

    fn tell(&self, records: Vec<Record>) {
        let named = records.into_iter().map(|record| (record.name.clone(), record));
        Arc::make_mut(&mut *self.told.lock()).extend(named);
    }

    /// The record of a volume.
    pub(crate) fn record_of(&self, name: &str) -> Record {
        let known = self.records().get(name).cloned();
        known.unwrap_or_else(|| Record::as_configured(name, None))
    }

    /// False if the state file may have a record that was refused. The caller then deletes nothing
    /// that this record names.
    pub(crate) fn is_sure(&self) -> bool {
        self.state.as_ref().is_none_or(StateFile::is_sure)
    }

    /// The records of some volumes.
    pub(crate) fn records_of(&self, names: &[&str]) -> Vec<Record> {
        names.iter().map(|name| self.record_of(name)).collect()
    }
}
