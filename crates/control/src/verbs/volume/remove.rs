//! `remove`: removes a volume.

use cairn_outcome::failure::Outcome;

use crate::control::server::Caller;
use crate::reach::Named;
use crate::state::Record;
use crate::thin_line::ThinLine;
use crate::verbs::Verbs;
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::verb::{Done, declare};

declare! {
    /// `remove`
    VolumeRemove = "volume_remove" -> Done {
        /// The volume
        name: String,
    } flags {
        /// Disconnect the clients that use it
        force,
    }
    |verb, verbs, caller| verbs.remove_volume(&verb.name, verb.force, caller)
}

impl Verbs {
    /// `remove`, `snap remove`, `snap merge` and `thin remove`: clients that are connected refuse
    /// it, unless they are to be disconnected. Called in the verb's turn: a client may have come
    /// while it waited.
    ///
    /// # Errors
    /// A client is connected.
    pub(in crate::verbs) fn refuse_connected(&self, name: &str, force: bool) -> Outcome<()> {
        // A volume of a pool may be named with its pool.
        let volume = name.rsplit('/').next().unwrap_or_default();
        let expected = "none (--force disconnects them)";
        if force { Ok(()) } else { self.exports.refuse_clients(volume, expected) }
    }

    /// `remove`: returns notes for a person.
    pub(in crate::verbs) fn remove_volume(
        &self,
        name: &str,
        force: bool,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let changes = self.change_table(&Named::volume(name), "remove", caller)?;
        self.refuse_connected(name, force)?;
        self.refuse_thin(&changes, name, "remove")?;
        self.refuse_snapshots(name, "remove", "none (cairn snap remove takes snapshots away)")?;
        self.world.refuse_users(name)?;
        self.refuse_being_suspended(name)?;
        self.refuse_to_wait_beneath(name)?;
        let before = changes.record_of(name);
        changes.record(name, Record::clear)?;
        self.step(Step::Recorded);
        let table = self.world.volume(name)?.live_table();
        let removed = self.take_down(name);
        if removed.is_err() && self.world.volume(name).is_ok() {
            log_undo_failure(name, changes.record_all(vec![before]));
        }
        let left = self.left_by(table.as_deref());
        if removed.is_ok() {
            self.record_left(name, table.as_deref());
        }
        if removed.is_err() {
            left.iter().for_each(|what| tracing::warn!("{name}: removed: {what}"));
        }
        removed.map(|()| left)
    }

    /// Refuses to remove a volume whose requests may wait for one that is suspended. Those of a
    /// volume of a suspended pool wait at the pool, and are handed back.
    pub(in crate::verbs) fn refuse_to_wait_beneath(&self, name: &str) -> Outcome<()> {
        let Some(line) = ThinLine::of_volume(&*self.world.volume(name)?) else {
            return self.world.refuse_suspended_beneath(name);
        };
        if !self.world.volume(&line.pool)?.is_suspended() {
            return self.world.refuse_suspended_beneath(name);
        }
        let origin = line.origin.as_deref().and_then(|origin| origin.strip_prefix('@'));
        origin.map_or(Ok(()), |origin| self.world.refuse_suspended(origin))
    }
}
