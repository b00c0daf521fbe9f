//! `load` and `clear`: sets and drops the inactive table.

use cairn_outcome::failure::Outcome;

use crate::control::server::Caller;
use crate::reach::Named;
use crate::verbs::Verbs;
use crate::verbs::changes::Changes;
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::verb::{Done, declare};

declare! {
    /// `load`
    VolumeLoad = "volume_load" -> Done {
        /// The volume
        name: String,
        /// The table
        #[arg(skip)]
        table: String,
        /// Once it is live, the kernel's block devices of the volume are to be read-only
        #[arg(skip)]
        #[serde(default)]
        read_only: bool,
    } flags {
        /// The new device beneath snapshots holds the same bytes, as a copy of the old one does
        same_content,
    }
    |verb, verbs, caller| verbs.load_table(&verb, caller)
}

declare! {
    /// `clear`
    VolumeClear = "volume_clear" -> Done {
        /// The volume
        name: String,
    }
    |verb, verbs, caller| verbs.clear(&verb.name, caller)
}

/// What may be loaded for a volume with snapshots.
const LOAD_BENEATH: &str = "none (VOLUME@real takes a table with the same content, say a cache in \
                            front of the same device)";

impl Verbs {
    pub(in crate::verbs) fn load_table(
        &self,
        params: &VolumeLoad,
        caller: &dyn Caller,
    ) -> Outcome<()> {
        let name = params.name.as_str();
        let named = Named::volume(name).with_table(&params.table);
        let changes = self.change_table(&named, "load", caller)?;
        let table = self.world.measured(name, &params.table)?;
        let table = table.as_str();
        self.refuse_loading(&changes, name, table)?;
        self.world.load(name, table)?;
        if let Err(error) = self.refuse_other_content(&changes, name, params.same_content) {
            log_undo_failure(
                name,
                match changes.record_of(name).inactive {
                    Some(former) => self.world.load(name, &former),
                    None => self.world.clear(name),
                },
            );
            return Err(error);
        }
        let inactive = Some(table.to_owned());
        let recorded = changes.record(name, |tables| tables.inactive = inactive);
        if recorded.is_err() {
            self.world.clear(name)?;
        } else {
            self.world.note_loaded(name, Some(params.read_only));
        }
        self.step(Step::Recorded);
        recorded
    }

    /// Refuses a table that must not be loaded by hand, or cannot be now.
    pub(super) fn refuse_loading(&self, changes: &Changes, name: &str, table: &str) -> Outcome<()> {
        self.refuse_snapshots(name, "load", LOAD_BENEATH)?;
        self.refuse_other_thin(changes, name, table)?;
        self.refuse_being_suspended(name)?;
        self.world.refuse_suspended_in(name, table)
    }

    pub(in crate::verbs) fn clear(&self, name: &str, caller: &dyn Caller) -> Outcome<()> {
        let changes = self.change_table(&Named::volume(name), "clear", caller)?;
        self.world.volume(name)?;
        self.refuse_being_suspended(name)?;
        changes.record(name, |tables| tables.inactive = None)?;
        self.step(Step::Recorded);
        self.world.clear(name)
    }
}
