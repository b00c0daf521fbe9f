//! Another name for a volume: its record, its exports, the records of its caches and the note of
//! its losses, in one replacement of the file. So after a crash all of them have one name.

use cairn_outcome::failure::Outcome;

use super::{Contents, ExportChanges, Record, StateFile};

/// A volume that gets another name.
#[derive(Clone, Debug)]
pub struct Renaming {
    /// Its name so far.
    pub from: String,
    /// Its name from now on.
    pub to: String,
    /// It lost acknowledged writes of which no client was told.
    pub is_untold: bool,
}

impl StateFile {
    /// Records some volumes and the changes of exports, and moves what the file has by the name of
    /// one: all or nothing. Durable when it returns.
    ///
    /// # Errors
    /// The system refused to write.
    pub fn record_renaming(
        &self,
        records: Vec<Record>,
        renaming: &Renaming,
        exports: &ExportChanges,
    ) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let mut next = inner.latest().with(records);
        next.exports = exports.clone();
        next.rename(renaming);
        self.put(&mut inner, next)
    }
}

impl Contents {
    fn rename(&mut self, renaming: &Renaming) {
        let Renaming { from, to, is_untold } = renaming;
        for cache in self.caches.iter_mut().filter(|cache| cache.volume == *from) {
            cache.volume.clone_from(to);
        }
        if self.untold.remove(from) || *is_untold {
            self.untold.insert(to.clone());
        }
    }
}
