//! `snap remove`: ends a snapshot. With the last one the volume gets its own table back.

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::failure::{Losses, Outcome, refused};

use super::{Step, log_undo_failure, store};
use crate::control::server::Caller;
use crate::names::{SnapName, parent_of, real_of};
use crate::reach::Named;
use crate::state::{ExportChanges, Record};
use crate::thin_line::ThinLine;
use crate::verbs::verb::{Done, declare};
use crate::verbs::{Changes, Verbs};

/// What a verb does when a step loses acknowledged writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// Fails, and is undone.
    Undoes,
    /// Continues, and reports the loss at its end.
    Told,
    /// The same, in the undo of a verb that made the snapshot: what cannot be recorded now is
    /// recorded with the next change.
    Undone,
}

declare! {
    /// `snap remove`
    SnapRemove = "snap_remove" -> Done {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME")]
        name: String,
    } flags {
        /// Disconnect the clients that use it
        force,
    }
    |verb, verbs, caller| verbs.remove_snapshot(&verb.name, verb.force, caller)
}

impl Verbs {
    /// `snap remove`, also of a volume that could not be brought up at the start: answers what a
    /// person should know.
    ///
    /// # Errors
    /// As for [`Verbs::remove_live_snapshot`].
    pub fn remove_snapshot(
        &self,
        name: &str,
        force: bool,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let volume = SnapName::parse(name)?.volume;
        if self.world.why_not_served(&volume).is_none() || !self.is_recorded(name) {
            return self.remove_live_snapshot(name, force, caller).map(|()| Vec::new());
        }
        self.state_forget(name, true, caller)?;
        Ok(vec![format!(
            "gone; {volume} is served from the next start on, if nothing else is missing"
        )])
    }

    /// `snap remove`: also of a snapshot that is recorded and cannot be brought up, which keeps its
    /// volume suspended.
    ///
    /// # Errors
    /// The snapshot is unchanged, unless the message says otherwise. Of kind [`ConfigKind::Lost`]:
    /// it is removed, but acknowledged writes of its volume may be lost.
    pub fn remove_live_snapshot(
        &self,
        name: &str,
        force: bool,
        caller: &dyn Caller,
    ) -> Outcome<()> {
        let snap = SnapName::parse(name)?;
        let changes = self.change_table(&Named::volume(&snap.volume), "snap remove", caller)?;
        self.refuse_connected(name, force)?;
        let (_, known) = self.record_of_snapshot(&changes, &snap)?;
        match self.keeper.is_stuck(&snap.volume) {
            true => self.refuse_changing(&snap.volume)?,
            false => self.ready(&snap.volume).map(drop)?,
        }
        if self.world.volume(&snap.full()).is_ok() {
            self.world.refuse_users(&snap.full())?;
        }
        let before = changes.records_of(&[&snap.full(), &snap.volume, &real_of(&snap.volume)]);
        let after = changes.without(&snap);
        let before = (before, self.exports.changes());
        let losses = match self.take_out(&changes, &snap, after.clone(), Loss::Undoes) {
            Err(error) if changes.record_of(&snap.full()).table.is_some() => {
                tracing::error!("{error}");
                self.put_back_or_end(&changes, &snap, before, after, error)
            }
            taken => taken,
        };
        let losses = losses.inspect_err(|_| self.note_if_stuck(&snap.volume))?;
        self.keeper.leave_alone(&snap.volume);
        if known.made {
            store::discard(&self.place(&known.argument));
        }
        self.step(Step::Done);
        losses.told()
    }

    /// Ends the snapshot while its volume is suspended, and records `after`. With the last snapshot
    /// the volume gets its own table back. Lost writes of the snapshot do not matter: its content
    /// is deleted.
    pub(super) fn take_out(
        &self,
        changes: &Changes,
        snap: &SnapName,
        after: Vec<Record>,
        loss: Loss,
    ) -> Outcome<Losses> {
        let (volume, full, real) = (&snap.volume, snap.full(), real_of(&snap.volume));
        let mut losses = Losses::default();
        let mut hold = |name: &str| match loss {
            Loss::Undoes => self.hold(name),
            Loss::Told | Loss::Undone => losses.keep(self.hold(name)),
        };
        hold(volume)?;
        self.step(Step::Suspended);
        self.discard_volume(&full)?;
        let last = changes.snapshots_of(volume).iter().all(|name| *name == snap.name);
        let own = changes.own_table(volume).filter(|_| last && self.world.volume(&real).is_ok());
        match &own {
            Some(own) => {
                hold(&real)?;
                self.world.load(volume, own)?;
            }
            None => self.world.clear(volume)?,
        }
        self.step(Step::Arranged);
        let without = changes.records_of(&[volume, &real]);
        match loss {
            Loss::Undoes | Loss::Told => {
                changes.record_gone(&self.exports, after)?;
            }
            // Nothing was written to the store: a full disk does not keep the volume suspended.
            Loss::Undone => log_undo_failure(volume, changes.record_facts(after)),
        }
        self.step(Step::Recorded);
        // Other snapshots come before their volume.
        let live =
            if own.is_some() { self.make_live(volume) } else { self.assemble(changes, volume) };
        if let Err(error) = losses.keep(live) {
            match &own {
                Some(own) if self.world.volume(volume)?.is_suspended() => {
                    log_undo_failure(volume, self.world.load(volume, own));
                }
                Some(_) => {
                    // Its own table cannot start, so it serves as if it still had snapshots.
                    log_undo_failure(volume, changes.record_all(without));
                    log_undo_failure(&real, self.make_live(&real));
                }
                None => {}
            }
            let detail = format!("{full} is gone, and {volume} cannot go on without it: {error}");
            return Err(ConfigError::new(error.kind, "", detail));
        }
        self.step(Step::Resumed);
        if own.is_some() {
            self.remove_beneath(volume, &real, &mut losses)?;
        }
        Ok(losses)
    }

    /// Undoes a removal that failed with `error`. If the snapshot's device is so broken that it
    /// cannot be brought up again, removes the snapshot after all, because only that lets its
    /// volume serve again.
    ///
    /// # Errors
    /// `error`, if the snapshot is live again; else the reason why neither is possible.
    fn put_back_or_end(
        &self,
        changes: &Changes,
        snap: &SnapName,
        before: (Vec<Record>, ExportChanges),
        after: Vec<Record>,
        error: ConfigError,
    ) -> Outcome<Losses> {
        let Err(second) = self.put_back(changes, snap, before) else { return Err(error) };
        tracing::error!("{}: cannot be brought up again, and ends: {second}", snap.full());
        let taken = self.take_out(changes, snap, after, Loss::Told);
        if taken.is_err() && changes.record_of(&snap.full()).table.is_some() {
            // It waits for the snapshot, with the table that is recorded.
            log_undo_failure(&snap.volume, self.world.clear(&snap.volume));
        }
        taken
    }

    /// Brings the snapshot up again after a failure. A loss is reported only to the clients,
    /// because the verb has failed already.
    fn put_back(
        &self,
        changes: &Changes,
        snap: &SnapName,
        (records, exports): (Vec<Record>, ExportChanges),
    ) -> Outcome<()> {
        let recorded = changes.record_back(&self.exports, records, &exports);
        log_undo_failure(&snap.volume, recorded);
        self.world.clear(&snap.volume)?;
        Losses::default().keep(self.assemble(changes, &snap.volume))
    }

    /// Refuses to change a volume's table past its snapshots.
    ///
    /// # Errors
    /// It has some, or is one.
    pub fn refuse_snapshots(&self, name: &str, verb: &str, hint: &str) -> Outcome<()> {
        // A snapshot in a pool is not a part of its volume.
        let thin = self.world.volume(name).is_ok_and(|it| ThinLine::of_volume(&it).is_some());
        let part = !thin && parent_of(name).is_some_and(|parent| name != real_of(parent));
        if part || self.world.volume(&real_of(name)).is_ok() {
            let found = if part { "a snapshot" } else { "snapshots of it" };
            return Err(refused(ConfigKind::Busy, name, verb, found, hint));
        }
        Ok(())
    }
}

impl Changes {
    /// The records without `snap`.
    pub(super) fn without(&self, snap: &SnapName) -> Vec<Record> {
        let volume = &snap.volume;
        let mut gone = self.record_of(&snap.full());
        gone.clear();
        let mut after = vec![gone];
        if self.snapshots_of(volume).iter().all(|name| *name == snap.name) {
            after.extend(self.own_again(volume));
        }
        after
    }

    /// The records of a volume that has its own table again.
    pub(super) fn own_again(&self, volume: &str) -> Vec<Record> {
        let table = self.own_table(volume);
        let mut real = self.record_of(&real_of(volume));
        real.clear();
        vec![Record { table, ..self.record_of(volume) }, real]
    }
}
