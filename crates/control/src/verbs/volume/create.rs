//! `create`: a volume with its table, live and exported.

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused};

use crate::control::server::Caller;
use crate::lasting::lasting;
use crate::names::refuse_at_sign;
use crate::reach::Named;
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
        /// The kernel's block devices of the volume are to be read-only
        #[arg(skip)]
        #[serde(default)]
        read_only: bool,
    } flags {
        /// Give up what only a cache has, although the table uses its origin
        discard_dirty,
        /// Make the volume without a table, which load and resume give it; until then it ends with
        /// the server
        notable,
    }
    |verb, verbs, caller| verbs.create_volume(&verb, caller)
}

impl Verbs {
    /// `create`: returns notes for a person.
    pub(in crate::verbs) fn create_volume(
        &self,
        params: &VolumeCreate,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let name = params.name.as_str();
        refuse_at_sign(name)?;
        if params.notable {
            return self.create_without_table(params, caller);
        }
        let named = Named::volume(name).with_table(&params.table);
        let changes = self.change_table(&named, "create", caller)?;
        self.refuse_recorded(name)?;
        let table = self.world.measured(name, &params.table)?;
        let table = table.as_str();
        self.world.refuse_suspended_in(name, table)?;
        self.world.create(name)?;
        let served = self.exports.served();
        let before = self.caches().map(|caches| caches.recorded()).unwrap_or_default();
        let mut touched = Vec::new();
        let made = self.bring_up(&changes, name, table, params.discard_dirty, &mut touched);
        if made.is_err() {
            log_undo_failure(name, changes.record(name, Record::clear));
            log_undo_failure(name, self.take_down(name));
            self.put_back_caches(name, &before, &touched);
        }
        self.world.note_read_only(name, params.read_only);
        made.map(|mut notes| {
            notes.extend(self.exports_ended(name, &served));
            notes
        })
    }

    /// `create --notable`: a restart has no such volume, unless a table has become live.
    fn create_without_table(
        &self,
        params: &VolumeCreate,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let name = params.name.as_str();
        if !params.table.is_empty() {
            return Err(refused(ConfigKind::Argument, name, "table", "one", "none with --notable"));
        }
        let changes = self.change_table(&Named::volume(name), "create", caller)?;
        self.refuse_recorded(name)?;
        self.world.create(name)?;
        if changes.record_of(name).inactive.is_some() {
            // Of a volume of this name that had no live table when an earlier server ended.
            let cleared = changes.record(name, |tables| tables.inactive = None);
            log_undo_failure(name, cleared);
        }
        let owned = self.set_owner(name);
        if owned.is_err() {
            log_undo_failure(name, self.world.remove(name));
        }
        owned.map(|()| Vec::new())
    }

    /// `touched`: the caches whose records it changes, for who undoes it.
    fn bring_up(
        &self,
        changes: &Changes,
        name: &str,
        table: &str,
        discard_dirty: bool,
        touched: &mut Vec<CacheRecord>,
    ) -> Outcome<Vec<String>> {
        self.set_owner(name)?;
        self.world.load(name, table)?;
        touched.extend(self.caches_of_loaded(name));
        let given_up = self.given_up_by(name, discard_dirty)?;
        touched.extend(given_up.iter().cloned());
        self.give_up(&given_up)?;
        self.make_live(name)?;
        self.step(Step::Resumed);
        changes.record(name, |tables| {
            let table = Some(lasting(table));
            (tables.table, tables.inactive, tables.former) = (table, None, None);
        })?;
        self.step(Step::Recorded);
        self.exports.add_volume(&self.world, name)?;
        Ok(given_up.iter().map(CacheRecord::farewell).collect())
    }
}
