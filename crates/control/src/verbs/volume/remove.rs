//! `remove`: removes a volume, or marks it if it is in use: then the keeper removes it, by the same
//! steps, once it is not. Until then clients and tables may begin to use it, as in the kernel.

use cairn_block::{ConfigKind, MappedDevice};
use cairn_outcome::failure::{Outcome, refused};

use crate::control::server::{Caller, TheServer};
use crate::reach::Named;
use crate::thin_line::ThinLine;
use crate::verbs::Verbs;
use crate::verbs::changes::Changes;
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::verb::{Done, declare};

/// The note of a removal that is deferred.
const DEFERRED: &str = "in use: removal deferred until no client and no volume uses it";

declare! {
    /// `remove`
    VolumeRemove = "volume_remove" -> Done {
        /// The volume
        name: String,
    } flags {
        /// Disconnect the clients that use it
        force,
        /// If it is in use, remove it once it is not
        deferred,
    }
    |verb, verbs, caller| verbs.remove_volume(&verb, caller)
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
        params: &VolumeRemove,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let name = params.name.as_str();
        let changes = self.change_table(&Named::volume(name), "remove", caller)?;
        let used =
            self.refuse_connected(name, params.force).and_then(|()| self.world.refuse_users(name));
        self.refuse_of_other_verbs(&changes, name)?;
        match used {
            Err(error) if params.deferred && error.kind == ConfigKind::Busy => {
                self.world.defer_removal(name);
                self.keeper.poke();
                Ok(vec![DEFERRED.to_owned()])
            }
            used => used.and_then(|()| self.remove_unused_volume(&changes, name)),
        }
    }

    /// Refuses what another verb removes.
    fn refuse_of_other_verbs(&self, changes: &Changes, name: &str) -> Outcome<()> {
        self.refuse_thin(changes, name, "remove")?;
        self.refuse_snapshots(name, "remove", "none (cairn snap remove takes snapshots away)")
    }

    /// Removes a volume that is marked and not in use. A loss of acknowledged writes is logged: the
    /// volume is gone, as after any removal.
    ///
    /// # Errors
    /// The volume stays. Of kind [`ConfigKind::Busy`]: with the mark, because a verb on it or a
    /// suspended volume beneath is in the way. Else without it.
    pub(in crate::verbs) fn remove_deferred(&self, name: &str) -> Outcome<()> {
        let changes = self.change_table(&Named::volume(name), "remove", &TheServer)?;
        if !self.is_unused_and_marked(name) {
            return Ok(());
        }
        let removed = self
            .refuse_of_other_verbs(&changes, name)
            .and_then(|()| self.remove_unused_volume(&changes, name));
        match removed {
            Err(lost) if lost.kind == ConfigKind::Lost => {
                tracing::error!("{lost}");
                tracing::error!("{name}: removed; writes may be lost");
                Ok(())
            }
            Err(error) if error.kind == ConfigKind::Busy => Err(error),
            Err(error) => {
                self.world.cancel_removal(name);
                Err(error)
            }
            Ok(notes) => {
                tracing::info!("{name}: removed: it is no longer in use");
                notes.iter().for_each(|note| tracing::warn!("{name}: removed: {note}"));
                Ok(())
            }
        }
    }

    /// Refuses a verb that the removal of a marked volume would undo, or that would keep it from
    /// ever being removed.
    pub(in crate::verbs) fn refuse_marked(&self, volume: &MappedDevice) -> Outcome<()> {
        if !self.world.is_removal_deferred(volume) {
            return Ok(());
        }
        let (found, expected) =
            ("a deferred removal", "none (cairn message NAME 0 @cancel_deferred_remove)");
        Err(refused(ConfigKind::Busy, volume.volume(), "state", found, expected))
    }

    /// True if a volume is marked, and has neither clients nor users.
    pub(in crate::verbs) fn is_unused_and_marked(&self, name: &str) -> bool {
        let is_marked =
            self.world.volume(name).is_ok_and(|volume| self.world.is_removal_deferred(&volume));
        is_marked && !self.exports.has_users(name) && self.world.users_of(name).is_empty()
    }

    /// `message NAME SECTOR @...`: one to the volume, not to a target. It takes the volume's turn:
    /// a removal that has begun is not cancelled, and the message fails.
    ///
    /// # Errors
    /// There is no such message or volume.
    pub(super) fn message_to_volume(
        &self,
        name: &str,
        words: &[String],
        caller: &dyn Caller,
    ) -> Outcome<()> {
        let _turn = self.change(&Named::volume(name), "message", caller)?;
        self.world.volume(name)?;
        match words {
            [word] if word.eq_ignore_ascii_case("@cancel_deferred_remove") => {
                self.world.cancel_removal(name);
                Ok(())
            }
            _ => {
                let (found, expected) =
                    (format!("'{}'", words.join(" ")), "@cancel_deferred_remove");
                Err(refused(ConfigKind::Argument, name, "message", found, expected))
            }
        }
    }

    fn remove_unused_volume(&self, changes: &Changes, name: &str) -> Outcome<Vec<String>> {
        self.refuse_being_suspended(name)?;
        self.refuse_to_wait_beneath(name)?;
        let record = changes.record_of(name);
        let mut cleared = record.clone();
        cleared.clear();
        let before = changes.record_gone(&self.exports, vec![cleared])?;
        self.step(Step::Recorded);
        let table = self.world.volume(name)?.live_table();
        let removed = self.take_down(name);
        if removed.is_err() && self.world.volume(name).is_ok() {
            log_undo_failure(name, changes.record_back(&self.exports, vec![record], &before));
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
