//! `resume` with another table, and `replace`: one table takes another's place. `resize`, and the
//! verbs of `cache` that change a table, are a `replace` by a table that they make.
//!
//! Order, and what a kill between two steps leaves:
//! 1. Checks: claims, the content beneath snapshots, and the size of a volume that is in use.
//! 2. With `--flush`, the caches of the old table write back while clients are served. During a
//!    `cache detach` nothing becomes dirty in the meantime, so that this ends.
//! 3. The old table is suspended. A target that drains at a suspend does so.
//! 4. Verdict: a table that uses the origin of dirty data without its cache is refused.
//! 5. Recorded: the caches that are given up; then the new table, with the old one as `former`.
//!    Then backing devices of bcache that the new table uses without their caches are detached (see
//!    `world::attached`).
//! 6. The new table starts. If it cannot, these devices are attached again before the old table
//!    starts, but for those that the new table may have written to.
//! 7. Recorded: the new table alone, without words that ask for what its start has done.
//! 8. The new table serves requests.
//!
//! A kill before 5 leaves the old table. After a kill between 5 and 7 the next start tries the new
//! table, and serves the old one if the new one cannot start: no request has reached the new table,
//! so the old one has all writes of clients. The start tries the new one first, because step 6 may
//! have begun something that must continue: a merge, or the growth of a pool. One case is left: a
//! kill behind a detach of 5, with a new table that cannot start. The next start can start neither
//! table and says so. The backing device has all data, for a table without the cache.
//!
//! After 7 the next start serves the new table or refuses the volume, because the old table lacks
//! the writes to the new one.
//!
//! A new table that cannot start at 6 is dropped; the old one is live and recorded again. If the
//! old one cannot start either, it is recorded with the new one as inactive table. If the state
//! file cannot be written at 7, or for undoing 5, the verb continues; the next change that can be
//! written corrects the file. Until then a kill leaves the record of 5. Once the new table has
//! started, no error undoes the swap: the verb reports the error at its end.
//!
//! If step 3 loses writes, `replace` is undone. `resume` continues and reports the loss at its end,
//! because it may be the verb that replaces a failed device.
//!
//! After a refusal the old table serves again, also if the volume was suspended before. A table
//! that `load` had loaded stays inactive; the table of `replace`, which is not recorded, is
//! dropped.
//!
//! Steps 2 and 3 may take long, so they run outside the turn: `under_way` says which verbs are
//! refused until they end. If the caller is gone by the end of step 3, the old table continues to
//! serve.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use cairn_block::{
    CallOff, ConfigError, ConfigKind, Dirty, Fate, MappedDevice, NewTable, SuspendMode, Table,
    Target,
};
use cairn_outcome::failure::{Outcome, refused, unless_lost};

use crate::control::server::{Caller, TheServer};
use crate::lasting::lasting;
use crate::names::{parent_of, real_of, snapshot_of};
use crate::reach::Named;
use crate::state::{CacheRecord, Record};
use crate::under_way::Doing;
use crate::verbs::changes::Changes;
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::verb::{Done, declare};
use crate::verbs::{InTurn, Verbs, interrupted};
use crate::world::{Parted, message_refused, size_of};

/// The reason of a swap, and its new table.
struct Swap<'a> {
    name: &'a str,
    table: String,
    doing: Doing,
    allowed: Allowed,
}

declare! {
    /// `resume`
    VolumeResume = "volume_resume" -> Done {
        /// The volume
        name: String,
    } flags {
        /// Make caches write back first, while clients are served; Ctrl-C keeps the old table
        flush,
        /// Give up what only a cache has, although the new table uses its origin
        discard_dirty,
        /// Make a volume shorter although clients or other volumes use it
        shrink,
        /// The new device beneath snapshots holds the same bytes, as a copy of the old one does
        same_content,
    }
    |verb, verbs, caller| verbs.resume(&verb, caller)
}

declare! {
    /// `replace`
    VolumeReplace = "volume_replace" -> Done {
        /// The volume
        name: String,
        /// The table
        #[arg(skip)]
        table: String,
    } flags {
        /// Make caches write back first, while clients are served; Ctrl-C keeps the old table
        flush,
        /// Give up what only a cache has, although the new table uses its origin
        discard_dirty,
        /// Make a volume shorter although clients or other volumes use it
        shrink,
        /// The new device beneath snapshots holds the same bytes, as a copy of the old one does
        same_content,
    }
    |verb, verbs, caller| verbs.replace(&verb, caller)
}

/// What a user allows a swap to do.
#[derive(Clone, Copy)]
struct Allowed {
    flush: bool,
    discard_dirty: bool,
    shrink: bool,
    same_content: bool,
}

impl VolumeResume {
    fn allowed(&self) -> Allowed {
        let VolumeResume { flush, discard_dirty, shrink, same_content, .. } = *self;
        Allowed { flush, discard_dirty, shrink, same_content }
    }
}

impl VolumeReplace {
    fn allowed(&self) -> Allowed {
        let VolumeReplace { flush, discard_dirty, shrink, same_content, .. } = *self;
        Allowed { flush, discard_dirty, shrink, same_content }
    }
}

impl Swap<'_> {
    /// True for a loaded table; it stays inactive if it is refused.
    fn is_loaded(&self) -> bool {
        self.doing == Doing::Resume
    }
}

impl Verbs {
    /// `resume`: returns notes for a person.
    ///
    /// # Errors
    /// The old table is live again, unless the message says otherwise.
    pub(crate) fn resume(
        &self,
        params: &VolumeResume,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let name = params.name.as_str();
        self.call_off_under_way(name, caller)?;
        let changes = self.change(&Named::volume(name), "resume", caller)?;
        self.refuse_being_suspended(name)?;
        // With snapshots, the suspended volumes beneath are brought up first.
        let is_part = parent_of(name).is_some_and(|volume| snapshot_of(name, volume).is_some());
        if !is_part && changes.record_of(&real_of(name)).table.is_none() {
            self.world.refuse_suspended_beneath(name)?;
        }
        if self.world.volume(name)?.inactive_table().is_none() {
            return self.bring_live(&changes, name, |_, _| ()).map(|()| Vec::new());
        }
        self.refuse_swaps_above(name)?;
        let record = changes.record_of(name);
        let table = record.inactive.or(record.table).unwrap_or_default();
        let swap = Swap { name, table, doing: Doing::Resume, allowed: params.allowed() };
        let swapped = self.swap_tables(changes, &swap, caller);
        if swapped.as_ref().err().is_none_or(|error| error.kind == ConfigKind::Lost) {
            self.world.note_live(name);
        }
        swapped
    }

    /// `replace`: returns notes for a person.
    ///
    /// # Errors
    /// Nothing has changed, unless the message says otherwise.
    pub(crate) fn replace(
        &self,
        params: &VolumeReplace,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let named = Named::volume(&params.name).with_table(&params.table);
        let changes = self.change_table(&named, "replace", caller)?;
        self.replace_in_turn(changes, params, caller)
    }

    /// The same, in the caller's turn.
    pub(super) fn replace_in_turn<'a>(
        &'a self,
        changes: InTurn<'a>,
        params: &VolumeReplace,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        self.swap_in_turn(changes, Doing::Replace, params, caller)
    }

    /// The same, for a verb that is carried out by a replace.
    ///
    /// # Errors
    /// Those of [`Verbs::replace`].
    pub(in crate::verbs) fn swap_in_turn<'a>(
        &'a self,
        changes: InTurn<'a>,
        doing: Doing,
        params: &VolumeReplace,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let name = params.name.as_str();
        let table = self.world.measured(name, &params.table)?;
        self.refuse_loading(&changes, name, &table)?;
        self.refuse_swaps_above(name)?;
        self.ready(name)?;
        self.world.load(name, &table)?;
        let allowed = params.allowed();
        self.swap_tables(changes, &Swap { name, table, doing, allowed }, caller)
    }

    fn swap_tables<'a>(
        &'a self,
        changes: InTurn<'a>,
        swap: &Swap<'_>,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let (same, served) = (swap.allowed.same_content, self.exports.served());
        let looked = (self.clear_the_way(swap.name))
            .and_then(|()| self.refuse_other_content(&changes, swap.name, same))
            .and_then(|()| self.refuse_shrinking(swap))
            .and_then(|()| self.refuse_leaving_sets(swap))
            .and_then(|()| self.given_up_by(swap.name, swap.allowed.discard_dirty));
        if let Err(error) = looked {
            return Err(self.serve_on(swap, error));
        }
        let ended = self.exports_ended(swap.name, &served);
        let under_way = self.world.under_way().begin(swap.name, swap.doing);
        drop(changes);
        let held = self.drain(swap, under_way.call_off(), caller);
        let held = held.and_then(|()| self.suspend_for(swap, under_way.call_off(), caller));
        // Also without its caller: the volume is suspended, and must serve on.
        let named = Named::volume(swap.name).with_table(&swap.table);
        let changes = self.change(&named, swap.doing.verb(), &TheServer);
        let changes = changes.inspect_err(|_| self.set_leaving(swap.name, false))?;
        drop(under_way);
        let caches_before = self.caches().map(|caches| caches.recorded()).unwrap_or_default();
        let mut touched = self.caches_of_loaded(swap.name);
        let judged = held.and_then(|lost| {
            let (mut notes, mut given_up) = self.judge(swap)?;
            let others = self.given_up_by(swap.name, swap.allowed.discard_dirty)?;
            notes.extend(others.iter().map(CacheRecord::farewell));
            given_up.extend(others);
            touched.extend(given_up.iter().cloned());
            self.give_up(&given_up)?;
            let (before, after) = self.record_swap(&changes, swap)?;
            Ok((lost, notes, before, after))
        });
        let (lost, mut notes, before, after) = match judged {
            Ok(judged) => judged,
            Err(error) => {
                self.put_back_caches(swap.name, &caches_before, &touched);
                return Err(self.serve_on(swap, error));
            }
        };
        let old = self.world.volume(swap.name)?.live_table();
        let (also_lost, parted) = match self.start_new(&changes, swap, &after) {
            Ok(started) => started,
            Err(error) => {
                self.put_back_caches(swap.name, &caches_before, &touched);
                return Err(self.go_back(&changes, before, error));
            }
        };
        self.step(Step::Resumed);
        let exported = match old {
            None => self.exports.add_volume(&self.world, swap.name),
            Some(_) => Ok(()),
        };
        notes.extend(parted);
        if lost.is_none() && also_lost.is_none() {
            self.record_left(swap.name, old.as_deref());
        }
        if let Err(error) = changes.record_fact(after) {
            notes.push(format!("the new table serves; the next change records it: {error}"));
        }
        notes.iter().for_each(|note| tracing::warn!("{}: {note}", swap.name));
        notes.extend(ended);
        lost.or(also_lost).or(exported.err()).map_or(Ok(notes), Err)
    }

    /// Steps 5 to 7: backing devices are detached, the new table starts, and that is recorded.
    /// Returns the error that the verb reports although the new table serves, if there is one, and
    /// a note for each detached device.
    ///
    /// # Errors
    /// The new table does not serve.
    fn start_new(
        &self,
        changes: &Changes,
        swap: &Swap<'_>,
        after: &Record,
    ) -> Outcome<(Option<ConfigError>, Vec<String>)> {
        let name = swap.name;
        self.step(Step::Recorded);
        let parted = self.world.part_from_caches(name)?;
        if !parted.is_empty() {
            self.step(Step::Detached);
        }
        let (parted, served) = (Cell::new(Some(parted)), Cell::new(None));
        let undo = || {
            if let Some(parted) = parted.take().filter(|parted| !parted.is_empty()) {
                parted.undo();
                self.step(Step::Attached);
            }
        };
        let decided = |changes: &Changes, new_table| match new_table {
            NewTable::Started => {
                // Consumed: from now on the detach cannot be undone.
                served.set(parted.take().map(Parted::into_notes));
                if swap.is_loaded() {
                    // Also if a later step fails: the new table serves.
                    self.world.note_live(name);
                }
                self.step(Step::Started);
                // Retried by the caller.
                drop(changes.record_fact(after.clone()));
            }
            NewTable::Refused => {
                parted.set(parted.take().map(Parted::but_for_written));
                undo();
            }
        };
        let brought = unless_lost(self.bring_live(changes, name, decided));
        match (served.into_inner(), brought) {
            (Some(notes), Ok(lost)) => Ok((lost, notes)),
            // The new table serves. The error is the verb's at its end; it undoes nothing.
            (Some(notes), Err(error)) => Ok((Some(error), notes)),
            (None, Ok(lost)) => Ok((lost, parted.take().map_or(Vec::new(), Parted::into_notes))),
            (None, Err(error)) => {
                // If the resume was refused before it tried the new table.
                undo();
                Err(error)
            }
        }
    }

    /// Makes the loaded table live, if there is one, with all recorded parts beneath, and admits
    /// requests. `decided` runs once it is known whether a table that a user loaded starts: before
    /// that serves a request, or the former one starts again.
    fn bring_live(
        &self,
        changes: &Changes,
        name: &str,
        decided: impl FnOnce(&Changes, NewTable),
    ) -> Outcome<()> {
        match parent_of(name) {
            Some(volume) if snapshot_of(name, volume).is_some() => {
                self.bring_in_line(&changes.record_of(name))
            }
            Some(_) => self.make_live_with(name, |new_table| decided(changes, new_table)),
            // With snapshots, only these verbs load its table, and its parts come up first.
            None if changes.record_of(&real_of(name)).table.is_some() => {
                self.assemble(changes, name)
            }
            None => {
                self.make_live_with(name, |new_table| decided(changes, new_table))?;
                self.take_down_unrecorded(changes, name);
                Ok(())
            }
        }
    }

    /// Step 2. Writes during a round are written back in further rounds, each shorter than the
    /// last; the rest is written back in the suspend.
    fn drain(&self, swap: &Swap<'_>, call_off: &CallOff, caller: &dyn Caller) -> Outcome<()> {
        if !swap.allowed.flush {
            return Ok(());
        }
        let volume = self.world.volume(swap.name)?;
        // A suspended cache does not write back.
        self.world.resume_live(swap.name)?;
        if swap.doing == Doing::Detach {
            self.set_leaving(swap.name, true);
        }
        let mut left = dirty_sectors(&volume);
        loop {
            // Also if nothing is dirty: the origin may not say so yet.
            self.drain_caches(swap.name, Some((call_off, swap.doing)), caller)?;
            let before = std::mem::replace(&mut left, dirty_sectors(&volume));
            if left == 0 || left > before / 2 {
                break;
            }
        }
        Ok(())
    }

    /// Makes the caches of a volume write back the blocks that are dirty now, and waits until the
    /// server stops, the caller is gone, or the verb is called off. A cache continues to write back
    /// after that.
    pub(in crate::verbs) fn drain_caches(
        &self,
        name: &str,
        verb: Option<(&CallOff, Doing)>,
        caller: &dyn Caller,
    ) -> Outcome<()> {
        const STEP: Duration = Duration::from_millis(100);
        let volume = self.world.volume(name)?;
        let (send, receive) = channel();
        self.world.reactors().spawn(self.world.home(name), move |env| async move {
            let drained = volume.drain_caches(&env).await;
            // After the wait was given up, no one receives the result.
            drop(send.send(drained));
        });
        loop {
            let drained = receive.recv_timeout(STEP);
            self.refuse_closed()?;
            if caller.is_gone() {
                return Err(interrupted(name, "flush"));
            }
            if let Some((_, doing)) = verb.filter(|(call_off, _)| call_off.is_called()) {
                return Err(called_off(name, doing));
            }
            match drained {
                Ok(drained) => return drained.map_err(|error| message_refused(name, &error)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let found = "no answer of the cache";
                    return Err(refused(ConfigKind::System, name, "flush", found, "one"));
                }
            }
        }
    }

    /// Step 3. With `--flush`, the suspend writes back what is left. If it does not take place, no
    /// later suspend does: a stop of the server would take as long as that.
    fn suspend_for(
        &self,
        swap: &Swap<'_>,
        call_off: &Arc<CallOff>,
        caller: &dyn Caller,
    ) -> Outcome<Option<ConfigError>> {
        let mut asked = match swap.allowed.flush {
            true => caches_of(self.world.volume(swap.name)?.as_ref()),
            false => Vec::new(),
        };
        // A user may have asked for that by a message, which stays.
        asked.retain(|cache| !cache.drain_in_suspend(true));
        let suspended = self.suspend_unless_gone(swap, call_off, caller);
        if suspended.is_err() {
            for cache in asked {
                cache.drain_in_suspend(false);
            }
        }
        suspended
    }

    /// Returns the loss, if there was one. A loss undoes `replace`; `resume` continues, because it
    /// may be the verb that replaces a failed device.
    fn suspend_unless_gone(
        &self,
        swap: &Swap<'_>,
        call_off: &Arc<CallOff>,
        caller: &dyn Caller,
    ) -> Outcome<Option<ConfigError>> {
        let (mode, is_gone) = (SuspendMode::Flush, || caller.is_gone());
        let suspended = self.world.suspend_unless(swap.name, mode, call_off, &is_gone);
        let lost = match swap.is_loaded() {
            true => unless_lost(suspended.map(drop))?,
            false if call_off.is_called() => None,
            false => suspended.and_then(|_| self.world.hold(swap.name, mode)).map(|()| None)?,
        };
        lost.iter().for_each(|lost| tracing::error!("{lost}"));
        self.step(Step::Suspended);
        match (caller.is_gone(), call_off.is_called()) {
            (true, _) => Err(interrupted(swap.name, swap.doing.verb())),
            (false, true) => Err(called_off(swap.name, swap.doing)),
            (false, false) => Ok(lost),
        }
    }

    /// Step 4. Returns messages about the dirty data that is left behind, and the caches that are
    /// given up.
    fn judge(&self, swap: &Swap<'_>) -> Outcome<(Vec<String>, Vec<CacheRecord>)> {
        let Allowed { flush, discard_dirty, .. } = swap.allowed;
        let (mut notes, mut given_up) = (Vec::new(), Vec::new());
        for (dirty, fate) in self.world.volume(swap.name)?.fates() {
            match fate {
                Fate::Kept => {}
                Fate::Left => notes.push(self.world.what_stays(&dirty)),
                Fate::Orphaned if discard_dirty => {
                    let is_to_format = self.must_be_formatted(swap.name, &dirty)?;
                    notes.push(self.given_up(&dirty, is_to_format));
                    given_up.extend(self.record_of_cache(swap.name, &dirty));
                }
                Fate::Orphaned => {
                    let expected = match (self.is_cached(swap.name, &dirty)?, flush) {
                        (false, _) => "none (a merge brings it home; --discard-dirty loses it)",
                        (_, true) => {
                            "none (a device failed, see the log; --discard-dirty loses it)"
                        }
                        (_, false) => {
                            "none (--flush writes it back first, --discard-dirty loses it)"
                        }
                    };
                    let (size, origin) = (size_of(&dirty), self.world.origin_of(&dirty));
                    let found = format!("{size} on {} that {origin} lacks", dirty.device);
                    let kind = ConfigKind::Argument;
                    return Err(refused(kind, swap.name, "dirty data", found, expected));
                }
            }
        }
        Ok((notes, given_up))
    }

    /// Step 5. Returns the former record and that of the new table.
    fn record_swap(&self, changes: &Changes, swap: &Swap<'_>) -> Outcome<(Record, Record)> {
        let before = changes.record_of(swap.name);
        let table = Some(swap.table.clone());
        let during = Record { table, inactive: None, ..before.clone() };
        let after = Record { table: Some(lasting(&swap.table)), ..during.clone() };
        changes.record_all(vec![Record { former: before.table.clone(), ..during }])?;
        Ok((before, after))
    }

    /// Refuses a shorter table for a volume that is in use, unless that is allowed.
    fn refuse_shrinking(&self, swap: &Swap<'_>) -> Outcome<()> {
        let volume = self.world.volume(swap.name)?;
        let sectors = |table: Option<Arc<Table>>| table.map(|table| table.sectors().0);
        let (Some(now), Some(then)) =
            (sectors(volume.live_table()), sectors(volume.inactive_table()))
        else {
            return Ok(());
        };
        if swap.allowed.shrink || then >= now {
            return Ok(());
        }
        let user = self.world.users_of(swap.name).into_iter().next();
        let used = match user {
            Some(user) => Some(format!("volume '{user}' on it")),
            None => {
                let clients = self.exports.refuse_clients(swap.name, "").is_err();
                clients.then(|| "clients that are connected".to_owned())
            }
        };
        let Some(used) = used else { return Ok(()) };
        let found = format!("{then} sectors with {used}");
        let expected = format!("at least {now} (--shrink makes it shorter)");
        Err(refused(ConfigKind::Busy, swap.name, "size", found, expected))
    }

    /// Refuses a table that writes to a backing device of bcache without its cache, unless the swap
    /// leaves the set.
    fn refuse_leaving_sets(&self, swap: &Swap<'_>) -> Outcome<()> {
        self.world.refuse_attached_beneath_swap(swap.name, swap.allowed.flush)
    }

    /// Whether the caches of a volume are about to leave it: nothing becomes dirty then.
    fn set_leaving(&self, name: &str, is_leaving: bool) {
        let caches = self.world.volume(name).map(|volume| caches_of(&volume)).unwrap_or_default();
        caches.iter().for_each(|cache| cache.set_leaving(is_leaving));
    }

    /// Makes the old table serve again after a refusal. Returns the error for the caller.
    fn serve_on(&self, swap: &Swap<'_>, error: ConfigError) -> ConfigError {
        if !swap.is_loaded() {
            log_undo_failure(swap.name, self.world.clear(swap.name));
        }
        self.set_leaving(swap.name, false);
        // Nothing writes past snapshots that are recorded.
        let has_snapshots = self.changes.record_of(&real_of(swap.name)).table.is_some();
        let is_first = || self.world.volume(swap.name).is_ok_and(|it| it.live_table().is_none());
        let back = match has_snapshots {
            true => self.assemble(&self.changes, swap.name),
            false if is_first() => Ok(()),
            false => self.world.resume_live(swap.name),
        };
        self.exports.settle(&self.world, swap.name);
        let Err(second) = back else { return error };
        self.note_if_stuck(swap.name);
        let kind = error.kind;
        let detail = format!("{error}; it stays suspended, as its table is refused too: {second}");
        ConfigError::new(kind, "", detail)
    }
}

/// Messages about dirty data.
impl Verbs {
    /// The message about the dirty bytes of a table that was replaced.
    pub(super) fn left_by(&self, table: Option<&Table>) -> Vec<String> {
        let lines = table.into_iter().flat_map(|table| table.lines());
        let dirty = lines.filter_map(|line| line.target.dirty());
        dirty.map(|dirty| self.world.what_stays(&dirty)).collect()
    }

    /// Records the dirty bytes that a replaced table leaves. If that fails, its caches count as in
    /// use, and their devices are read when a table needs to know.
    pub(super) fn record_left(&self, name: &str, table: Option<&Table>) {
        if let (Some(caches), Some(table)) = (self.caches(), table) {
            log_undo_failure(name, caches.left_by(name, table));
        }
    }

    /// The record of a dirty cache of a volume's live table.
    fn record_of_cache(&self, name: &str, dirty: &Dirty) -> Option<CacheRecord> {
        let table = self.world.volume(name).ok()?.live_table()?;
        let mut own = self.caches()?.caches_in(name, &table).into_iter();
        let record = own.find(|record| record.names.0 == dirty.device)?;
        Some(CacheRecord { bytes: Some(dirty.sectors.to_bytes()), ..record })
    }

    /// True if nothing on the devices says that dirty data which is given up must not be written
    /// back: the cache must be formatted first.
    fn must_be_formatted(&self, name: &str, dirty: &Dirty) -> Outcome<bool> {
        let caches = caches_of(self.world.volume(name)?.as_ref());
        let mut own = caches.iter().filter(|cache| !cache.detaches());
        Ok(own.any(|cache| cache.dirty().is_some_and(|other| other.device == dirty.device)))
    }

    /// True if a cache of a volume has the dirty data, not a merge, which ends by itself.
    fn is_cached(&self, name: &str, dirty: &Dirty) -> Outcome<bool> {
        let caches = caches_of(self.world.volume(name)?.as_ref());
        let mut cached = caches.iter().filter_map(|cache| cache.dirty());
        Ok(cached.any(|other| other.device == dirty.device))
    }

    fn given_up(&self, dirty: &Dirty, is_to_format: bool) -> String {
        let (device, size, origin) = (&dirty.device, size_of(dirty), self.world.origin_of(dirty));
        let mut note = format!("{size} on {device} that {origin} lacks are given up");
        if is_to_format {
            note.push_str(&format!(
                "; before {device} is a cache again: cairn format writecache {device} --yes \
                 --discard-dirty"
            ));
        }
        note
    }
}

/// A `resume` ended the verb before the swap.
fn called_off(name: &str, doing: Doing) -> ConfigError {
    let detail = format!("{}: called off by a resume", doing.verb());
    ConfigError::new(ConfigKind::Busy, name, detail)
}

/// The targets of a volume that write back their dirty blocks on demand.
fn caches_of(volume: &MappedDevice) -> Vec<Arc<dyn Target>> {
    let table = volume.live_table();
    let lines = table.iter().flat_map(|table| table.lines());
    lines.map(|line| line.target.clone()).filter(|target| target.drains()).collect()
}

fn dirty_sectors(volume: &MappedDevice) -> u64 {
    volume.dirty().iter().map(|dirty| dirty.sectors.0).sum()
}
