//! `cairn snap`: snapshots of the volumes of a running server.
//!
//! ```text
//!   V with its table          V: snapshot-origin @V@real      V: snapshot-origin @V@merge
//!                     create        |    V@mon: snapshot            |   V@mon: snapshot, new store
//!   V: linear disk   ------->       v   v                  merge    v   v
//!                   <-------  V@real: linear disk         ------> V@merge: snapshot-merge
//!                     remove                                        v   (V@mon's former store)
//!                                                             V@real: linear disk
//! ```
//!
//! The volume `V` stays the same object throughout. Its table is replaced under suspend, so its
//! clients only see a pause. Snapshots are volumes of their own, `V@NAME`. When the last one is
//! removed, `V` gets its own table back. A merge inserts `snapshot-merge`. A rollback keeps the
//! snapshot above the merge, with a new and empty store: it does not have the writes to `V` that
//! happen during the merge.
//!
//! # Orders, and what a crash between two steps leaves
//! The next start assembles what the state file records, snapshots first, before any client can
//! write to the origin. If that fails, the start leaves the volume out. So the records must be true
//! at every moment of a change:
//!
//! Create: 0. claims are checked: a volume that writes the origin past its snapshots would not be
//! served with them at the next start; 1. the store, empty, durable; 2. recorded; 3. `V` suspended,
//! targets inserted, resumed; then the answer.
//! - Before 2: an empty store without a record; the volume is unchanged.
//! - After 2: the snapshot is assembled with an empty store: it is of the moment of the crash. No
//!   caller was told of an earlier moment.
//! - After 3: every exception is in the store before its chunk of the origin is overwritten.
//!
//! Remove: 1. `V` suspended, the snapshot ended; 2. recorded; 3. `V` resumed; 4. the store removed.
//! - Before 2: the snapshot is assembled; nothing was written since, as `V` is suspended.
//! - After 2: the volume without the snapshot, perhaps a file without a record.
//!
//! Merge and rollback: 1. the new store (rollback) durable; 2. recorded: `V@merge` with the former
//! store; 3. `V` and the snapshot suspended, `V@merge` started, both resumed above it. The end,
//! when the last record is merged: 4. all suspended; 5. recorded without `V@merge`; 6. resumed; 7.
//! the former store removed.
//! - Before 2: as before, and an empty store without a record.
//! - From 2 to 5: the merge continues where it was; `V` has the snapshot's content at once. Merging
//!   a record again changes nothing, and a record is cleared only when the origin has its chunk
//!   durably.
//! - After 5: the store had no record left, so leaving it out changes nothing.
//!
//! A step that fails without a crash is undone before the refusal. If it cannot be undone, or if a
//! merge has begun, the volume stays suspended. The same verb again, a resume or a restart brings
//! up what is recorded, or is refused (see `assemble`); the keeper also tries. A removal whose
//! snapshot cannot be brought up again continues to its end, because only that lets the volume
//! serve again.
//!
//! A step that succeeded but lost acknowledged writes counts as done. Before the record, the verb
//! is undone nevertheless. After the record, the verb continues and reports the loss at its end.

pub mod assemble;
mod content;
mod create;
pub mod diff;
mod grow;
pub mod list;
mod remove;
pub(super) mod rollback;
pub mod store;
#[cfg(test)]
pub(crate) mod tests;

use cairn_block::{ConfigError, ConfigKind, TableLine};
use cairn_outcome::failure::{Losses, Outcome, wrong};
use cairn_targets::spec::words_of;

pub use create::SnapCreate;
pub use diff::SnapDiff;
pub use grow::SnapGrow;
pub use list::SnapList;
pub use remove::SnapRemove;
#[cfg(test)]
pub use rollback::Afterwards;
pub use rollback::{SnapMerge, SnapRollback};

use crate::names::{SnapName, real_of, snapshot_of};
use crate::state::{Record, Store};
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::{Changes, Verbs};

/// The words of a snapshot's table line that a change of its table keeps.
#[derive(Clone)]
pub(super) struct SnapWords {
    pub(super) sectors: u64,
    pub(super) store: String,
    pub(super) chunk: u32,
    /// When to announce that the store fills up.
    pub(super) fill_percent: u64,
    /// How many seconds a write to the origin waits for a full store to grow.
    pub(super) wait_for_room_s: Option<u64>,
}

/// How full a store is when its event is raised, unless told otherwise.
const FILL_PERCENT: u64 = 80;

/// How long a write to the origin waits for a store to grow that does so by itself.
const GROWTH_SECONDS: u64 = 30;

impl SnapWords {
    pub(super) fn of(record: &Record) -> Outcome<SnapWords> {
        let lines = TableLine::parse_all(record.table.as_deref().unwrap_or_default())?;
        let words = lines.first().and_then(|line| {
            let (spec, words) = words_of(line)?;
            let store = words.argument("cow")?.to_owned();
            let chunk = words.argument("chunk_size")?.parse().ok()?;
            let number = |option| words.option(spec, option)?.first()?.parse().ok();
            let fill_percent = number("fill_event").unwrap_or(FILL_PERCENT);
            let (sectors, wait_for_room_s) = (line.len.0, number("wait_for_room"));
            Some(SnapWords { sectors, store, chunk, fill_percent, wait_for_room_s })
        });
        words.ok_or_else(|| {
            let found = record.table.clone().unwrap_or_else(|| "none".to_owned());
            wrong(&record.name, "recorded table", found, "a snapshot's line")
        })
    }
}

fn origin_line(sectors: u64, on: &str) -> String {
    format!("0 {sectors} snapshot-origin @{on}")
}

fn snapshot_line(words: &SnapWords, on: &str) -> String {
    let SnapWords { sectors, store, chunk, fill_percent, wait_for_room_s } = words;
    let mut features = format!("fill_event {fill_percent}");
    if let Some(seconds) = wait_for_room_s {
        features.push_str(&format!(" wait_for_room {seconds}"));
    }
    let count = features.split(' ').count();
    format!("0 {sectors} snapshot @{on} {store} PO {chunk} {count} {features}")
}

fn merge_line(words: &SnapWords, on: &str) -> String {
    let SnapWords { sectors, store, chunk, .. } = words;
    format!("0 {sectors} snapshot-merge @{on} {store} PO {chunk}")
}

impl Verbs {
    /// What is recorded of a snapshot that these verbs made.
    fn record_of_snapshot(&self, changes: &Changes, snap: &SnapName) -> Outcome<(Record, Store)> {
        self.world.volume(&snap.volume)?;
        let record = changes.record_of(&snap.full());
        match (&record.table, record.store.clone()) {
            (Some(_), Some(store)) => Ok((record, store)),
            _ => {
                let names = changes.snapshots_of(&snap.volume);
                let hint = match names.is_empty() {
                    true => "cairn snap create makes one".to_owned(),
                    false => format!("snapshots of {}: {}", snap.volume, names.join(", ")),
                };
                let detail = format!("there is no snapshot of this name; {hint}");
                Err(ConfigError::new(ConfigKind::Argument, snap.full(), detail))
            }
        }
    }

    /// Ends a volume beneath `top`, which no longer stands on it. What it lost is told to the
    /// clients of `top`, and at the end of the verb.
    fn remove_beneath(&self, top: &str, name: &str, losses: &mut Losses) -> Outcome<()> {
        let removed = self.world.remove(name);
        if removed.as_ref().is_err_and(|error| error.kind == ConfigKind::Lost) {
            self.world.tell_of_loss(top);
        }
        losses.keep(removed)
    }
}

impl Changes {
    /// The names of a volume's snapshots, in the order they were made.
    fn snapshots_of(&self, volume: &str) -> Vec<String> {
        let records = self.records();
        let there = records.values().filter(|record| record.table.is_some());
        let own = |record: &Record| {
            let name = snapshot_of(&record.name, volume)?.to_owned();
            Some((record.store.as_ref()?.created_s, name))
        };
        let mut names: Vec<_> = there.filter_map(own).collect();
        names.sort();
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// The table of `volume` beneath its snapshots.
    fn own_table(&self, volume: &str) -> Option<String> {
        let real = self.record_of(&real_of(volume)).table;
        real.or_else(|| self.record_of(volume).table)
    }
}
