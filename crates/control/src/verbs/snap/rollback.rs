//! `snap rollback` and `snap merge`: the beginning, the progress and the end of a merge.
//!
//! The records say whether the snapshot is kept: it is, if it stands on the merging volume. So the
//! end needs only the records, also after a restart.

use cairn_block::{ConfigError, ConfigKind, Report};
use cairn_outcome::failure::{Losses, Outcome, refused, wrong};
use cairn_targets::snapshot;

use super::SnapCreate;
use super::{SnapWords, Step, log_undo_failure, merge_line, origin_line, snapshot_line, store};
use crate::arguments::device;
use crate::control::server::{Caller, TheServer};
use crate::names::{SnapName, merge_of, real_of};
use crate::reach::Named;
use crate::state::{ExportChanges, Record, Store};
use crate::verbs::verb::{Done, declare};
use crate::verbs::{Changes, Verbs};

/// The state of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Merge {
    /// This much of the former store is still to be copied to the origin.
    Left {
        /// In bytes, with its records.
        bytes: u64,
    },
    /// Everything is merged.
    Done,
    /// A device failed; the next resume tries again.
    Failed,
}

declare! {
    /// `snap rollback`: answers when the merge has begun.
    SnapRollback = "snap_rollback" -> Done {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME")]
        name: String,
        /// The store that the snapshot goes on with (default: a file beside the state file)
        #[arg(long, value_name = "PATH", value_parser = device())]
        store: Option<String>,
    }
    |verb, verbs, caller| {
        let store = verb.store.as_deref();
        verbs.merge_snapshot(&verb.name, Afterwards::Kept { store }, caller)
    }
}

declare! {
    /// `snap merge`: answers when the merge has begun.
    SnapMerge = "snap_merge" -> Done {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME")]
        name: String,
    } flags {
        /// Disconnect the clients that use the snapshot
        force,
    }
    |verb, verbs, caller| {
        let force = verb.force;
        verbs.merge_snapshot(&verb.name, Afterwards::Gone { force }, caller)
    }
}

/// What becomes of a snapshot that is merged.
#[derive(Clone, Copy)]
pub enum Afterwards<'a> {
    /// A rollback: it goes on with this empty store, or one beside the state file.
    Kept {
        /// As a table names it.
        store: Option<&'a str>,
    },
    /// A merge: it is removed.
    Gone {
        /// Clients that use it are disconnected.
        force: bool,
    },
}

impl Merge {
    /// What the merge's report says.
    pub fn of_report(report: &Report) -> Merge {
        let share = report.share(snapshot::ALLOCATED).map(|(allocated, _)| allocated);
        let (Some(allocated), Some(metadata)) = (share, report.number(snapshot::METADATA)) else {
            return Merge::Failed;
        };
        match allocated.saturating_sub(metadata) {
            0 => Merge::Done,
            sectors => Merge::Left { bytes: sectors * 512 },
        }
    }
}

impl Verbs {
    /// `snap rollback` and `snap merge`: returns when the merge has begun. A merge
    /// that is under way already is not changed; a failed one is retried.
    ///
    /// # Errors
    /// Nothing has changed, unless the message says otherwise.
    pub fn merge_snapshot(
        &self,
        name: &str,
        afterwards: Afterwards<'_>,
        caller: &dyn Caller,
    ) -> Outcome<()> {
        let snap = SnapName::parse(name)?;
        let (verb, store) = match afterwards {
            Afterwards::Kept { store } => ("snap rollback", Some(self.chosen_store(&snap, store)?)),
            Afterwards::Gone { .. } => ("snap merge", None),
        };
        let device = store.as_ref().map(|store| store.argument.as_str());
        let changes =
            self.change_table(&Named::volume(&snap.volume).with_device(device), verb, caller)?;
        if let Afterwards::Gone { force } = afterwards {
            self.refuse_connected(name, force)?;
        }
        if self.is_merging(&changes, &snap) {
            return self.go_on_merging(&changes, &snap);
        }
        let volume = self.ready(&snap.volume)?;
        self.world.refuse_relied_on(&snap.volume)?;
        let (record, former) = self.record_of_snapshot(&changes, &snap)?;
        if self.report_of(&snap.full())?.state() == Some("Invalid") {
            let (found, expected) =
                ("Invalid", "a valid snapshot: the content of this one is lost");
            return Err(refused(ConfigKind::Damaged, snap.full(), "status", found, expected));
        }
        self.world.refuse_users(&snap.full())?;
        let words = SnapWords::of(&record)?;
        let next = match &store {
            Some(store) => {
                let chunk_sectors = Some(words.chunk);
                let params = SnapCreate { chunk_sectors, ..SnapCreate::default() };
                let (next, made) = self.make_store(&snap, &volume, store, &params)?;
                Some((SnapWords { store: next.store, ..words.clone() }, made))
            }
            None => None,
        };
        self.step(Step::StoreMade);
        let kept = next.as_ref().map(|(words, made)| Kept::new(&snap, words, *made, &former));
        let begun = self.begin(&changes, &snap, &words, former, kept.as_ref());
        if let (Err(_), Some((words, true))) = (&begun, &next)
            && changes.is_sure()
            && !self.is_merging(&changes, &snap)
        {
            store::discard(&self.place(&words.store));
        }
        let losses = begun.inspect_err(|_| self.note_if_stuck(&snap.volume))?;
        self.step(Step::Done);
        self.keeper.poke();
        losses.told()
    }

    fn is_merging(&self, changes: &Changes, snap: &SnapName) -> bool {
        let record = changes.record_of(&merge_of(&snap.volume));
        record.table.is_some() && record.store.is_some_and(|store| store.snapshot == snap.name)
    }

    /// The state of the merge of a snapshot of `volume`.
    pub(in crate::verbs) fn merge_of(&self, volume: &str) -> Outcome<Merge> {
        Ok(Merge::of_report(&self.report_of(&merge_of(volume))?))
    }

    /// Steps 2 and 3.
    fn begin(
        &self,
        changes: &Changes,
        snap: &SnapName,
        words: &SnapWords,
        former: Store,
        kept: Option<&Kept>,
    ) -> Outcome<Losses> {
        let (full, merge) = (snap.full(), merge_of(&snap.volume));
        let before = changes.records_of(&[&full, &snap.volume, &merge]);
        let line = merge_line(words, &real_of(&snap.volume));
        let top = origin_line(words.sectors, &merge);
        let mut records = vec![
            Record { table: Some(line.clone()), store: Some(former), ..changes.record_of(&merge) },
            Record { table: Some(top.clone()), ..changes.record_of(&snap.volume) },
            Record { table: None, store: None, ..changes.record_of(&full) },
        ];
        if let Some(kept) = kept {
            (records[2].table, records[2].store) =
                (Some(kept.line.clone()), Some(kept.store.clone()));
        }
        let before = (before, changes.record_gone(&self.exports, records)?);
        self.step(Step::Recorded);
        if let Err(error) = self.start_merging(snap, &line, kept.is_some()) {
            log_undo_failure(&snap.volume, self.call_off(changes, snap, before, kept.is_some()));
            return Err(error);
        }
        self.step(Step::Arranged);
        let mut losses = Losses::default();
        let swapped = match kept {
            Some(kept) => losses.keep(self.swap(&full, &kept.line)),
            None => self.remove_beneath(&snap.volume, &full, &mut losses),
        };
        let swapped = swapped.and_then(|()| losses.keep(self.swap(&snap.volume, &top)));
        // Bring up what is recorded: the failure may have been temporary.
        let swapped = swapped.or_else(|error| {
            tracing::error!("{error}");
            losses.keep(self.assemble(changes, &snap.volume))
        });
        self.step(Step::Resumed);
        swapped.map(|()| losses).map_err(|error| {
            let begun = "the merge has begun, the volume is suspended until a resume or restart";
            ConfigError::new(error.kind, &snap.volume, format!("{begun}: {error}"))
        })
    }

    /// Starts the merge, with everything above it suspended. If it fails, nothing is merged, and
    /// the snapshot can serve again.
    fn start_merging(&self, snap: &SnapName, line: &str, keep: bool) -> Outcome<()> {
        if !keep {
            self.exports.remove_volume(&self.world, &snap.full())?;
        }
        self.hold(&snap.volume)?;
        self.hold(&snap.full())?;
        self.step(Step::Suspended);
        self.bring_up_volume(&merge_of(&snap.volume), line)
    }

    /// Undoes [`Verbs::start_merging`].
    fn call_off(
        &self,
        changes: &Changes,
        snap: &SnapName,
        (records, exports): (Vec<Record>, ExportChanges),
        keep: bool,
    ) -> Outcome<()> {
        let mut losses = Losses::default();
        let recorded = changes.record_back(&self.exports, records, &exports);
        // Bring up what is recorded, even if that is the merge.
        losses.keep(self.assemble(changes, &snap.volume))?;
        recorded?;
        if !keep {
            self.exports.add_volume(&self.world, &snap.full())?;
        }
        losses.told()
    }

    /// Makes another table live.
    fn swap(&self, name: &str, table: &str) -> Outcome<()> {
        self.world.load(name, table)?;
        self.make_live(name)
    }

    /// Ends a merge whose last record is merged: steps 4 to 7, and an event of the volume. False if
    /// records are left.
    ///
    /// # Errors
    /// The merge stays as it is. Of kind [`ConfigKind::Lost`]: it has ended, but acknowledged
    /// writes may be lost.
    pub(in crate::verbs) fn end_merge(&self, volume: &str) -> Outcome<bool> {
        let changes = self.change_table(&Named::volume(volume), "snap merge", &TheServer)?;
        self.end_merge_in(&changes, volume)
    }

    fn end_merge_in(&self, changes: &Changes, volume: &str) -> Outcome<bool> {
        if self.world.volume(&merge_of(volume)).is_err() || self.merge_of(volume)? != Merge::Done {
            return Ok(false);
        }
        if self.world.volume(volume)?.is_suspended() {
            let found = "a suspended volume";
            return Err(refused(ConfigKind::Busy, volume, "end of merge", found, "a live one"));
        }
        self.world.refuse_suspended_beneath(volume)?;
        let ending = Ending::of(changes, volume)?;
        // Not before: a volume that its user suspended stays so.
        self.carry_out(changes, &ending).inspect_err(|_| self.note_if_stuck(volume))
    }

    fn carry_out(&self, changes: &Changes, ending: &Ending) -> Outcome<bool> {
        let volume = ending.volume.as_str();
        let before = ending.before(changes);
        let arranged = self.arrange_end(changes, ending);
        if arranged.is_err() {
            log_undo_failure(volume, self.go_on(changes, ending, before));
        }
        arranged?;
        self.step(Step::Recorded);
        let mut losses = Losses::default();
        if let Some((kept, _)) = &ending.kept {
            losses.keep(self.make_live(kept))?;
        }
        losses.keep(self.make_live(volume))?;
        self.step(Step::Resumed);
        self.remove_beneath(volume, &merge_of(volume), &mut losses)?;
        if ending.names.is_empty() {
            self.remove_beneath(volume, &real_of(volume), &mut losses)?;
        }
        if ending.former.made {
            let argument = &ending.former.argument;
            store::discard(&self.place(argument));
        }
        self.world.volume(volume)?.raise_event();
        self.step(Step::Done);
        losses.told().map(|()| true)
    }

    /// Suspends the volumes, loads the tables without the merge, and records them.
    fn arrange_end(&self, changes: &Changes, ending: &Ending) -> Outcome<()> {
        let Ending { volume, kept, names, .. } = ending;
        self.hold(volume)?;
        if let Some((kept, _)) = kept {
            self.hold(kept)?;
        }
        self.hold(&merge_of(volume))?;
        if names.is_empty() {
            self.hold(&real_of(volume))?;
        }
        self.step(Step::Suspended);
        if let Some((kept, line)) = kept {
            self.world.load(kept, line)?;
        }
        self.world.load(volume, &ending.top)?;
        self.step(Step::Arranged);
        changes.record_all(ending.records(changes))
    }

    /// Undoes `arrange_end` after a failure: continues the merge.
    fn go_on(&self, changes: &Changes, ending: &Ending, before: Vec<Record>) -> Outcome<()> {
        let Ending { volume, kept, .. } = ending;
        log_undo_failure(volume, changes.record_all(before));
        for name in kept.iter().map(|(name, _)| name).chain([volume]) {
            self.world.clear(name)?;
        }
        self.assemble(changes, volume)
    }
}

/// The snapshot that a rollback keeps.
struct Kept {
    line: String,
    store: Store,
}

impl Kept {
    fn new(snap: &SnapName, words: &SnapWords, made: bool, former: &Store) -> Kept {
        let store = Store {
            snapshot: snap.name.clone(),
            argument: words.store.clone(),
            made,
            created_s: former.created_s,
            grow_bytes: former.grow_bytes,
        };
        let line = snapshot_line(words, &merge_of(&snap.volume));
        Kept { line, store }
    }
}

/// The names and lines that the end of a merge needs.
struct Ending {
    volume: String,
    former: Store,
    /// The snapshot that stands on the merging volume, with its line without it.
    kept: Option<(String, String)>,
    /// Every snapshot that stays.
    names: Vec<String>,
    /// The volume's line without the merge.
    top: String,
}

impl Ending {
    fn of(changes: &Changes, volume: &str) -> Outcome<Ending> {
        let record = changes.record_of(&merge_of(volume));
        let words = SnapWords::of(&record)?;
        let former = record.store.ok_or_else(|| {
            wrong(volume, "recorded merge", "no store", "the store that is merged")
        })?;
        let (merge, real) = (merge_of(volume), real_of(volume));
        let full = SnapName { volume: volume.to_owned(), name: former.snapshot.clone() }.full();
        let line = changes.record_of(&full).table;
        let line = line.filter(|line| line.contains(&format!(" @{merge} ")));
        let kept =
            line.map(|line| (full, line.replace(&format!(" @{merge} "), &format!(" @{real} "))));
        let names = changes.snapshots_of(volume);
        let own = changes.own_table(volume).filter(|_| names.is_empty());
        let top = own.unwrap_or_else(|| origin_line(words.sectors, &real));
        Ok(Ending { volume: volume.to_owned(), former, kept, names, top })
    }

    /// The records that the end changes, as they are before it.
    fn before(&self, changes: &Changes) -> Vec<Record> {
        self.records(changes).iter().map(|record| changes.record_of(&record.name)).collect()
    }

    fn records(&self, changes: &Changes) -> Vec<Record> {
        let mut merge = changes.record_of(&merge_of(&self.volume));
        merge.clear();
        let mut records = vec![merge];
        if let Some((kept, line)) = &self.kept {
            records.push(Record { table: Some(line.clone()), ..changes.record_of(kept) });
        }
        match self.names.is_empty() {
            true => records.extend(changes.own_again(&self.volume)),
            false => {
                let table = Some(self.top.clone());
                records.push(Record { table, ..changes.record_of(&self.volume) });
            }
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use super::{Merge, Report};
    use cairn_block::Value;
    use cairn_targets::snapshot::MERGE_SPEC;

    #[test]
    fn the_report_of_a_merge_tells_how_much_is_left() {
        let usage = |allocated| {
            let values = [Value::Share(allocated, 128), Value::Gauge(16)];
            Merge::of_report(&Report::new(MERGE_SPEC.status_fields, values))
        };
        assert_eq!(usage(48), Merge::Left { bytes: 32 * 512 });
        assert_eq!(usage(16), Merge::Done);
        assert_eq!(Merge::of_report(&Report::State("Merge failed")), Merge::Failed);
    }
}
