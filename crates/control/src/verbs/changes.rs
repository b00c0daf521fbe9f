//! What verbs changed: every volume's record, kept in the state file first.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_outcome::failure::Outcome;
use parking_lot::Mutex;

use crate::state::{Record, StateFile};

/// Records by the names of their volumes.
pub type Records = Arc<HashMap<String, Record>>;
/// The same, for those that read them at any time.
pub type Told = Arc<Mutex<Records>>;

/// What verbs changed.
pub(crate) struct Changes {
    /// Where it is kept.
    pub(crate) state: Option<StateFile>,
    /// Every volume's, by name.
    pub(crate) records: Records,
    /// Of these, what the state file could not be given. The next change writes it, too.
    owed: Vec<Record>,
    told: Told,
}

impl Changes {
    /// What is recorded at the start.
    pub(super) fn new(state: Option<StateFile>, records: Vec<Record>) -> Changes {
        let named = records.into_iter().map(|record| (record.name.clone(), record));
        let records: Records = Arc::new(named.collect());
        let told = Arc::new(Mutex::new(records.clone()));
        Changes { state, records, owed: Vec::new(), told }
    }

    /// The records, as they are at any time.
    pub(super) fn told(&self) -> Told {
        self.told.clone()
    }

    /// Writes what the state file could not be given before.
    pub(super) fn record_owed(&mut self) -> Outcome<()> {
        if self.owed.is_empty() { Ok(()) } else { self.record_all(Vec::new()) }
    }

    /// Changes what is recorded of a volume, in the state file first.
    pub(super) fn record(&mut self, name: &str, change: impl FnOnce(&mut Record)) -> Outcome<()> {
        let mut record = self.record_of(name);
        change(&mut record);
        self.record_all(vec![record])
    }

    /// Changes what is recorded of several volumes, in the state file first: all of it or nothing.
    ///
    /// # Errors
    /// The system refused to write.
    pub(crate) fn record_all(&mut self, records: Vec<Record>) -> Outcome<()> {
        if let Some(state) = &mut self.state {
            let is_new = |owed: &&Record| records.iter().all(|record| record.name != owed.name);
            let owed = self.owed.iter().filter(is_new).cloned();
            state.record(owed.chain(records.iter().cloned()).collect())?;
        }
        self.owed.clear();
        self.tell(records);
        Ok(())
    }

    /// Records what a volume has already: what cannot be written now is written with the next
    /// change, or at the end.
    ///
    /// # Errors
    /// The system refused to write.
    pub(crate) fn record_fact(&mut self, record: Record) -> Outcome<()> {
        let recorded = self.record_all(vec![record.clone()]);
        if recorded.is_err() {
            self.owed.retain(|owed| owed.name != record.name);
            self.owed.push(record.clone());
            self.tell(vec![record]);
        }
        recorded
    }

    fn tell(&mut self, records: Vec<Record>) {
        let named = records.into_iter().map(|record| (record.name.clone(), record));
        Arc::make_mut(&mut self.records).extend(named);
        *self.told.lock() = self.records.clone();
    }

    /// What is recorded of a volume.
    pub(crate) fn record_of(&self, name: &str) -> Record {
        let known = self.records.get(name).cloned();
        known.unwrap_or_else(|| Record::as_configured(name, None))
    }

    /// False if the state file may name what a refused record named: nothing of that is deleted.
    pub(crate) fn is_sure(&self) -> bool {
        self.state.as_ref().is_none_or(StateFile::is_sure)
    }

    /// What is recorded of some volumes.
    pub(crate) fn records_of(&self, names: &[&str]) -> Vec<Record> {
        names.iter().map(|name| self.record_of(name)).collect()
    }
}
