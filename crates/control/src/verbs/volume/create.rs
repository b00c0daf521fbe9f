//! `create`: a volume with its table, live and exported.

use cairn_outcome::failure::Outcome;

use crate::names::refuse_at_sign;
use crate::state::{CacheRecord, Record};
use crate::verbs::Verbs;
use crate::verbs::changes::Changes;
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::verb::{Done, declare};

declare! {
    /// `create`
    VolumeCreate = "volume_create" -> Done {
        /// The volume
        name: String,
        /// The table
        #[arg(skip)]
        table: String,
    } flags {
        /// Leave behind what only a cache has, though the table uses its origin: it is lost
        discard_dirty,
    }
    |verb, verbs, _| verbs.create_volume(&verb)
}

impl Verbs {
    /// `create`: answers what a person should know.
    pub(in crate::verbs) fn create_volume(&self, params: &VolumeCreate) -> Outcome<Vec<String>> {
        let name = params.name.as_str();
        refuse_at_sign(name)?;
        let mut changes = self.change_table(name, "create")?;
        self.refuse_recorded(name)?;
        let table = self.world.measured(name, &params.table)?;
        let table = table.as_str();
        self.world.refuse_suspended_in(name, table)?;
        self.world.create(name)?;
        let served = self.exports.served();
        let before = self.caches().map(|caches| caches.recorded());
        let made = self.bring_up(&mut changes, name, table, params.discard_dirty);
        if made.is_err() {
            log_undo_failure(name, changes.record(name, Record::clear));
            log_undo_failure(name, self.take_down(name));
            if let (Some(caches), Some(before)) = (self.caches(), before) {
                caches.put_back(name, before);
            }
        }
        made.map(|mut notes| {
            notes.extend(self.exports_ended(name, &served));
            notes
        })
    }

    fn bring_up(
        &self,
        changes: &mut Changes,
        name: &str,
        table: &str,
        discard_dirty: bool,
    ) -> Outcome<Vec<String>> {
        self.set_owner(name)?;
        self.world.load(name, table)?;
        let given_up = self.given_up_by(name, discard_dirty)?;
        self.give_up(&given_up)?;
        self.make_live(name)?;
        self.step(Step::Resumed);
        changes.record(name, |tables| tables.table = Some(table.to_owned()))?;
        self.step(Step::Recorded);
        self.exports.add_volume(&self.world, name)?;
        Ok(given_up.iter().map(CacheRecord::farewell).collect())
    }
}
