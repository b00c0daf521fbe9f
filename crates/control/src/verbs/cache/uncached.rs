//! Volumes of bcache that went on without their caches.
//!
//! A volume without dirty data whose cache fails leaves its set, durably, and its line prints as
//! that of the backing device alone from then on. The table with the cache would be refused at the
//! next start, so the state file gets the line that the volume prints: the keeper records it after
//! the event of the volume, and the stop records what the keeper has not.
//!
//! A kill between the end of the cache and the record leaves the table with the cache. The next
//! start refuses it, and says why; the device has all data for a table without the cache.

use cairn_block::MappedDevice;
use cairn_outcome::failure::Outcome;

use super::{CacheLine, cache_lines};
use crate::control::server::TheServer;
use crate::reach::Named;
use crate::state::{Record, is_same_table};
use crate::verbs::Verbs;

impl Verbs {
    /// The volumes that went on without a cache that their records have.
    pub(in crate::verbs) fn uncached(&self) -> Vec<String> {
        if self.state.is_none() {
            return Vec::new();
        }
        let volumes = self.world.volumes();
        let found = volumes.iter().filter(|volume| self.record_uncached(volume).is_some());
        found.map(|volume| volume.volume().to_owned()).collect()
    }

    /// Records a volume without the caches that it went on without.
    ///
    /// # Errors
    /// The server stops, or the file could not be written: the next change writes it.
    pub(in crate::verbs) fn keep_uncached(&self, name: &str) -> Outcome<()> {
        let changes = self.change(&Named::volume(name), "record", &TheServer)?;
        let volume = self.world.volume(name)?;
        match self.record_uncached(&volume) {
            Some(record) => {
                tracing::warn!("{name}: recorded without the cache that it went on without");
                changes.record_fact(record)
            }
            None => Ok(()),
        }
    }

    /// Called when the server stops and no verb runs: the same for all volumes.
    pub fn keep_all_uncached(&self) {
        if self.state.is_none() || self.world.read_only() {
            return;
        }
        let volumes = self.world.volumes();
        let records: Vec<Record> =
            volumes.iter().filter_map(|volume| self.record_uncached(volume)).collect();
        if records.is_empty() {
            return;
        }
        if let Err(error) = self.changes.record_facts(records) {
            tracing::warn!("volumes that went on without their caches are not recorded: {error}");
        }
    }

    /// The new record of a volume that went on without a cache that its record has; none of
    /// another volume. A swap that is under way has a record of its own.
    fn record_uncached(&self, volume: &MappedDevice) -> Option<Record> {
        if !cache_lines(volume).iter().any(CacheLine::went_on_alone) {
            return None;
        }
        let record = self.changes.record_of(volume.volume());
        let table = self.world.printed(volume.volume()).ok()??;
        let is_recorded = is_same_table(record.table.as_deref(), Some(&table));
        let is_new = !is_recorded && record.former.is_none();
        is_new.then_some(Record { table: Some(table), ..record })
    }
}
