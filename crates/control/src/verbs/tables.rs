//! The steps that verbs share: making tables live, taking volumes down, and going back to the
//! former table.
//!
//! Every table becomes live through [`Verbs::make_live`]: the volumes that it claims are no longer
//! exported, and the rules for recorded caches are applied (see `caches`).

use std::path::PathBuf;
use std::sync::Arc;

use cairn_block::{Claimed, ConfigError, ConfigKind, MappedDevice, NewTable, Report, SuspendMode};
use cairn_outcome::failure::{Outcome, refused, unless_lost};

use super::Verbs;
use super::changes::Changes;
use super::steps::{Step, log_undo_failure};
use crate::caches::{Caches, Leave};
use crate::live_pool::will_be_pool;
use crate::names::merge_of;
use crate::state::{CacheRecord, Export, Record};
use crate::world::Ended;

/// Which volumes may be changed now.
impl Verbs {
    /// The volume whose snapshots are to change, if it can be changed now.
    pub(crate) fn ready(&self, name: &str) -> Outcome<Arc<MappedDevice>> {
        let volume = self.world.volume(name)?;
        if volume.live_table().is_none() || volume.is_suspended() {
            return Err(refused(ConfigKind::Busy, name, "state", "suspended", "a live volume"));
        }
        self.refuse_changing(name)?;
        self.world.refuse_suspended_beneath(name)?;
        if volume.inactive_table().is_some() {
            let expected = "none (cairn resume or cairn clear)";
            return Err(refused(ConfigKind::Busy, name, "state", "a loaded table", expected));
        }
        Ok(volume)
    }

    /// Refuses a change of a volume that cannot be changed now, even while suspended.
    pub(super) fn refuse_changing(&self, name: &str) -> Outcome<()> {
        self.refuse_being_suspended(name)?;
        if self.world.volume(&merge_of(name)).is_ok() {
            let detail = "a merge is under way; cairn snap list shows how far it is";
            return Err(ConfigError::new(ConfigKind::Busy, name, detail));
        }
        Ok(())
    }

    /// Refuses a verb that would wait for another one on the same volume.
    pub(crate) fn refuse_being_suspended(&self, name: &str) -> Outcome<()> {
        self.world.under_way().refuse(name)
    }
}

/// Making tables live.
impl Verbs {
    /// Makes a volume with its table and brings it up. Removes it again after a failure.
    pub(crate) fn bring_up_volume(&self, name: &str, table: &str) -> Outcome<()> {
        self.world.create(name)?;
        self.set_owner(name)?;
        let up = self.world.load(name, table).and_then(|()| self.make_live(name));
        up.inspect_err(|_| self.remove_unused(name))
    }

    /// Makes a volume and loads its table, which a resume would not refuse for what others use.
    /// A verb that records the volume before it is live asks here first. No volume is left after a
    /// failure.
    ///
    /// # Errors
    /// A target refuses the table; another volume or client uses a device that it claims.
    pub(crate) fn set_up_volume(&self, name: &str, table: &str) -> Outcome<()> {
        self.world.create(name)?;
        self.set_owner(name)?;
        let set_up = self.world.load(name, table).and_then(|()| self.clear_the_way(name));
        set_up.inspect_err(|_| self.remove_unused(name))
    }

    /// Removes a volume that was never served.
    pub(crate) fn remove_unused(&self, name: &str) {
        log_undo_failure(name, self.world.remove(name));
        self.exports.settle(&self.world, name);
    }

    /// Makes the loaded table live. Stops exporting the volumes that it claims, and exports those
    /// again that the former table claimed.
    ///
    /// # Errors
    /// Another volume or client uses a device that it claims, or a target cannot start.
    pub(crate) fn make_live(&self, name: &str) -> Outcome<()> {
        self.make_live_with(name, |_| ())
    }

    /// The same. `decided` runs once it is known whether the loaded table starts: before that
    /// serves a request, or the former one starts again.
    pub(super) fn make_live_with(&self, name: &str, decided: impl FnOnce(NewTable)) -> Outcome<()> {
        self.clear_the_way(name)?;
        let resume = || self.world.resume_with(name, decided);
        let resumed = match self.caches() {
            Some(caches) => {
                let judged = caches.judge(name, Leave::Forget);
                judged.and_then(|_| caches.go_live(name, resume))
            }
            None => resume(),
        };
        self.exports.settle(&self.world, name);
        // It may be a pool that grows by itself.
        self.keeper.poke();
        resumed
    }

    /// Refuses a resume that claims would refuse, and stops exporting the volumes that the loaded
    /// table is about to claim.
    ///
    /// # Errors
    /// Another volume claims one of them or writes to it, or a client is connected to it.
    pub(super) fn clear_the_way(&self, name: &str) -> Outcome<()> {
        self.world.refuse_claimed(name)?;
        let volume = self.world.volume(name)?;
        let mut claimed = volume.will_claim();
        if will_be_pool(&volume) {
            claimed.push(Claimed { volume: name.to_owned(), may_be_read: false });
        }
        self.exports.give_way(&self.world, name, &claimed)
    }

    /// Messages about the exports that ended since `before` because `name` claims their volumes.
    pub(super) fn exports_ended(&self, name: &str, before: &[Export]) -> Vec<String> {
        let ended = before.iter().filter(|export| {
            let gave_way = self.exports.gave_way(&export.volume, name);
            let is_there = self.world.volume(&export.volume).is_ok();
            gave_way && is_there && self.exports.served_as(&export.name).is_none()
        });
        let told =
            |export: &Export| format!("export '{}' has ended: {name} uses its volume", export.name);
        ended.map(told).collect()
    }

    /// Undoes a table that could not become live: makes the former one live and records it. If the
    /// former one cannot start either, the keeper tries it again. Returns the error for the caller.
    pub(crate) fn go_back(
        &self,
        changes: &Changes,
        before: Record,
        error: ConfigError,
    ) -> ConfigError {
        let (name, kind) = (before.name.clone(), error.kind);
        let Some(former) = before.table.clone() else {
            // Its first table: it is loaded again.
            let loaded = before.inactive.iter().try_for_each(|it| self.world.load(&name, it));
            log_undo_failure(&name, loaded.and_then(|()| changes.record_fact(before)));
            self.exports.settle(&self.world, &name);
            return error;
        };
        let is_suspended = self.world.volume(&name).is_ok_and(|volume| volume.is_suspended());
        let back = match is_suspended {
            true => self.world.load(&name, &former).and_then(|()| self.make_live(&name)),
            false => self.world.clear(&name),
        };
        self.exports.settle(&self.world, &name);
        let Err(second) = back else {
            log_undo_failure(&name, changes.record_fact(Record { inactive: None, ..before }));
            return error;
        };
        log_undo_failure(&name, changes.record_fact(before));
        self.note_if_stuck(&name);
        let detail =
            format!("{error}; it stays suspended, as its former table is refused too: {second}");
        ConfigError::new(kind, "", detail)
    }
}

/// Suspending volumes and taking them down.
impl Verbs {
    /// Suspends a volume for a verb that replaces its table or a volume beneath it.
    ///
    /// # Errors
    /// It is not suspended. Of kind [`ConfigKind::Lost`]: it is, but acknowledged writes may be
    /// lost.
    pub(crate) fn hold(&self, name: &str) -> Outcome<()> {
        self.refuse_being_suspended(name)?;
        self.world.hold(name, SuspendMode::Flush)
    }

    /// Ends a volume and its exports, if it is there.
    pub(crate) fn take_down(&self, name: &str) -> Outcome<()> {
        if self.world.volume(name).is_err() {
            return Ok(());
        }
        self.exports.remove_volume(&self.world, name)?;
        let removed = self.world.remove(name);
        self.exports.settle(&self.world, name);
        removed
    }

    /// The same for a volume whose content is deleted: lost writes are not a failure.
    pub(crate) fn discard_volume(&self, name: &str) -> Outcome<()> {
        if let Some(lost) = unless_lost(self.take_down(name))? {
            tracing::warn!("{lost}");
        }
        Ok(())
    }
}

/// The caches that the state file remembers.
impl Verbs {
    /// The caches that the state file remembers.
    pub(crate) fn caches(&self) -> Option<Caches<'_>> {
        Caches::of(&self.world, self.state.as_ref())
    }

    /// The records of the caches in the loaded table of `name`, for when it is live.
    pub(super) fn caches_of_loaded(&self, name: &str) -> Vec<CacheRecord> {
        let table = self.world.volume(name).ok().and_then(|volume| volume.inactive_table());
        let caches = self.caches().zip(table).map(|(all, table)| all.caches_in(name, &table));
        caches.unwrap_or_default()
    }

    /// Restores the former records of the caches that a failed verb changed.
    pub(super) fn put_back_caches(
        &self,
        name: &str,
        before: &[CacheRecord],
        changed: &[CacheRecord],
    ) {
        if let Some(caches) = self.caches() {
            caches.put_back(name, before, changed);
        }
    }

    /// The recorded caches that the loaded table of `name` would give up.
    ///
    /// # Errors
    /// The table must not become live (see `caches`).
    pub(crate) fn given_up_by(&self, name: &str, discard_dirty: bool) -> Outcome<Vec<CacheRecord>> {
        let judged = self.caches().map(|all| all.judge(name, Leave::Option(discard_dirty)));
        judged.unwrap_or(Ok(Vec::new()))
    }

    /// Records that the dirty blocks of these caches are given up.
    pub(crate) fn give_up(&self, lost: &[CacheRecord]) -> Outcome<()> {
        self.caches().map_or(Ok(()), |caches| caches.give_up(lost))
    }

    /// Called when the server stops: records the dirty bytes that its caches are left with.
    pub fn keep_caches(&self, ended: &Ended) {
        let Some(caches) = self.caches() else { return };
        if let Err(error) = caches.left_by_all(|name| ended.has_lost(name)) {
            tracing::warn!("what caches keep is not recorded, the next start looks: {error}");
        }
    }
}

/// What verbs read.
impl Verbs {
    /// The report of the target of a volume with one line.
    pub(crate) fn report_of(&self, name: &str) -> Outcome<Report> {
        let table = self.world.volume(name)?.live_table();
        let line = table.as_ref().and_then(|table| table.lines().first());
        Ok(line.map_or(Report::NONE, |line| line.target.report()))
    }

    pub(crate) fn place(&self, argument: &str) -> PathBuf {
        self.world.place(argument)
    }

    /// Tells the tests that a step has ended.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "the tests look here"))]
    pub(crate) fn step(&self, step: Step) {
        tracing::debug!("{step:?}");
        #[cfg(test)]
        {
            // The lock is not held during the call: another verb may reach a step, which the test
            // does not see.
            let mut look = std::mem::replace(&mut *self.at_step.lock(), Box::new(|_| ()));
            look(step);
            *self.at_step.lock() = look;
        }
    }
}
