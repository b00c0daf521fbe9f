//! The keeper: the thread that does the work on snapshots and pools that no user asks for. It ends
//! a merge that is complete. It grows a store or pool that may grow by itself (see
//! `pool::autogrow`). It announces a store whose file system has no more room. It brings up a
//! volume that a failed verb left suspended, as soon as the volume's devices work. It records the
//! table of a volume that went on without its failed cache. It removes a volume that was in use
//! when its user removed it.
//!
//! The thread sleeps until it is called: by a verb, by an event of a snapshot or a merge, or by a
//! write that waits for its store to grow. It also wakes by itself to retry what failed, and to
//! check the file systems of stores, and volumes that are to be removed once they are not in use,
//! which raise no event.
//!
//! The thread only looks. It acts through the same verbs as a user, each in a thread of its own: a
//! verb may wait for its turn behind another one, and a store that does not grow in time ends its
//! snapshot. While it acts for a name it does not look at it. So the thread is called at the end of
//! each act: calls that came meanwhile are not lost.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Losses, Outcome, refused, system};
use cairn_targets::snapshot;
use parking_lot::Mutex;

use super::snap::SnapWords;
use super::snap::rollback::Merge;
use super::snap::store::Room;
use crate::control::server::TheServer;
use crate::names::{is_hidden, parent_of, snapshot_of};
use crate::reach::Named;
use crate::state::Record;
use crate::verbs::pool::PoolGrow;
use crate::verbs::{Changes, Verbs};

/// How often the keeper checks the file systems of stores.
const LOOK: Duration = Duration::from_secs(1);
/// The pause before a retry.
const PAUSE: Duration = Duration::from_secs(5);

/// Something to watch.
struct Watched {
    name: String,
    /// The store of a snapshot; none: this is a merge.
    store: Option<Filling>,
}

/// A store that fills up.
struct Filling {
    argument: String,
    words: SnapWords,
    /// By how much it grows.
    grow_bytes: Option<u64>,
}

impl Filling {
    /// True if `used` of `total` sectors reaches the snapshot's mark.
    fn reaches_mark(&self, used: u64, total: u64) -> bool {
        used * 100 >= total * self.words.fill_percent
    }

    /// True if it is time to grow: at the mark, or when the next chunk may find no room.
    fn is_full(&self, used: u64, total: u64) -> bool {
        self.reaches_mark(used, total) || used + 2 * u64::from(self.words.chunk) > total
    }
}

impl Verbs {
    /// Starts the thread; it ends with the verbs.
    ///
    /// # Errors
    /// The system refused.
    pub fn watch_over(self: &Arc<Verbs>) -> Outcome<()> {
        let receive = self.keeper.start();
        let verbs = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("snapshots".to_owned());
        let spawned = thread.spawn(move || keep(&verbs, &receive));
        spawned.map(drop).map_err(|error| system("snapshots", "thread", error))
    }

    /// Everything to watch; none if the server is going away.
    fn watched(&self) -> Option<Vec<Watched>> {
        if self.is_closed() {
            return None;
        }
        let (told, mut all) = (self.told(), Vec::new());
        let is_served = |record: &&Record| self.world.volume(&record.name).is_ok();
        let recorded = told.values().filter(|record| record.table.is_some());
        for record in recorded.filter(is_served) {
            let Some(store) = &record.store else { continue };
            let name = record.name.clone();
            if is_hidden(&name) {
                all.push(Watched { name, store: None });
            } else if let Ok(words) = SnapWords::of(record) {
                let (argument, grow_bytes) = (store.argument.clone(), store.grow_bytes);
                all.push(Watched { name, store: Some(Filling { argument, words, grow_bytes }) });
            }
        }
        Some(all)
    }

    /// What a watched snapshot or merge needs. `announced`: the snapshots whose file systems are
    /// low, and the merges that failed, whose event was raised.
    fn look(&self, watched: &Watched, announced: &mut HashSet<String>) -> Outcome<Option<Deed>> {
        let name = &watched.name;
        let Some(store) = &watched.store else { return self.look_at_merge(name, announced) };
        self.look_at_store(name, store, announced)
    }

    /// A merge that is done is to be ended. A failure is an event of the volume, once.
    pub(in crate::verbs) fn look_at_merge(
        &self,
        name: &str,
        announced: &mut HashSet<String>,
    ) -> Outcome<Option<Deed>> {
        let volume = parent_of(name).unwrap_or_default();
        match self.merge_of(volume)? {
            Merge::Done => return Ok(Some(Deed::EndMerge(volume.to_owned()))),
            Merge::Left { .. } => _ = announced.remove(name),
            Merge::Failed if announced.insert(name.to_owned()) => {
                self.world.volume(volume)?.raise_event();
            }
            Merge::Failed => {}
        }
        Ok(None)
    }

    fn look_at_store(
        &self,
        name: &str,
        store: &Filling,
        announced: &mut HashSet<String>,
    ) -> Outcome<Option<Deed>> {
        let Some((used, total)) = self.report_of(name)?.share(snapshot::ALLOCATED) else {
            return Ok(None);
        };
        self.look_at_file_system(name, store, (used, total), announced)?;
        let grow_bytes = store.grow_bytes.filter(|_| store.is_full(used, total));
        Ok(grow_bytes.map(|bytes| {
            let (name, bytes) = (name.to_owned(), (total * 512 + bytes) / 512 * 512);
            Deed::GrowStore { name, bytes }
        }))
    }

    /// Announces, once, that the file system of a store has so little space that the store has
    /// reached its mark. (The volume itself announces a store that is full.)
    fn look_at_file_system(
        &self,
        name: &str,
        store: &Filling,
        (used, total): (u64, u64),
        announced: &mut HashSet<String>,
    ) -> Outcome<()> {
        let path = self.place(&store.argument);
        let Some(room) = Room::of(&path) else { return Ok(()) };
        let left = room.left_sectors(used, total);
        let is_low = used + left < total && store.reaches_mark(used, used + left);
        if !is_low {
            announced.remove(name);
        } else if announced.insert(name.to_owned()) {
            let (store, bytes) = (&store.argument, left * 512);
            tracing::warn!("{name}: the file system of {store} has room for {bytes} more bytes");
            self.world.volume(name)?.raise_event();
        }
        Ok(())
    }

    /// Called after a verb failed that had suspended a live volume. If the volume is still
    /// suspended, the keeper brings it up as soon as it can.
    pub(crate) fn note_if_stuck(&self, name: &str) {
        if self.world.volume(name).is_ok_and(|volume| volume.is_suspended()) {
            self.keeper.note_stuck(name);
        }
    }

    /// The volumes that verbs left suspended.
    pub(crate) fn stuck(&self) -> Vec<String> {
        let is_suspended =
            |name: &str| self.world.volume(name).is_ok_and(|volume| volume.is_suspended());
        self.keeper.stuck(is_suspended)
    }

    /// Tries again to bring up a volume that a verb left suspended, as it is recorded.
    ///
    /// # Errors
    /// It is still suspended.
    pub(crate) fn bring_back(&self, name: &str) -> Outcome<()> {
        let changes = self.change(&Named::volume(name), "resume", &TheServer)?;
        self.bring_back_in(&changes, name)
    }

    /// The same, in the caller's turn.
    pub(in crate::verbs) fn bring_back_in(&self, changes: &Changes, name: &str) -> Outcome<()> {
        if !self.keeper.is_stuck(name) {
            return Ok(());
        }
        self.refuse_being_suspended(name)?;
        let is_snapshot = parent_of(name).is_some_and(|on| snapshot_of(name, on).is_some());
        let mut losses = Losses::default();
        let record = changes.record_of(name);
        losses.keep(match (is_snapshot, &record.inactive) {
            (true, _) => self.bring_in_line(&record),
            // A table that a user loaded stays inactive.
            (false, Some(_)) => self.world.resume_live(name),
            (false, None) => self.assemble(changes, name),
        })?;
        self.exports.settle(&self.world, name);
        self.keeper.leave_alone(name);
        tracing::warn!("{name}: live again");
        Ok(())
    }
}

/// What the keeper does.
pub(in crate::verbs) enum Deed {
    /// Brings up a volume that a verb left suspended.
    BringBack(String),
    /// Records a volume that went on without its cache.
    KeepUncached(String),
    /// Removes a volume that was in use when its user removed it.
    Remove(String),
    /// Ends the merge of a volume.
    EndMerge(String),
    /// Makes the file of a store longer.
    GrowStore { name: String, bytes: u64 },
    /// Makes the data file of a pool longer.
    GrowPool { name: String, bytes: u64 },
}

impl Deed {
    fn act(self, verbs: &Verbs) -> Outcome<()> {
        match self {
            Deed::BringBack(name) => verbs.bring_back(&name),
            Deed::KeepUncached(name) => verbs.keep_uncached(&name),
            Deed::Remove(name) => verbs.remove_deferred(&name),
            Deed::EndMerge(volume) => verbs.end_merge(&volume).map(drop),
            Deed::GrowStore { name, bytes } => {
                tracing::info!("{name}: the store grows to {bytes} bytes");
                verbs.snap_grow(&name, bytes, &TheServer)
            }
            Deed::GrowPool { name, bytes } => {
                tracing::info!("{name}: the data file grows to {bytes} bytes");
                let data_bytes = Some(bytes);
                verbs.pool_grow(&PoolGrow { name, data_bytes, ..PoolGrow::default() }, &TheServer)
            }
        }
    }
}

/// What is under way or to be retried, by the name of what is watched.
#[derive(Clone, Default)]
struct Deeds {
    doing: Arc<Mutex<HashMap<String, Doing>>>,
    /// The last failure that was logged. Retries that fail in the same way log nothing.
    logged: Arc<Mutex<HashMap<String, String>>>,
}

#[derive(Clone, Copy)]
enum Doing {
    /// It is under way.
    Now,
    /// It failed: not before this.
    After(Instant),
}

impl Deeds {
    /// True if nothing is under way for `name`, and nothing failed a short time ago.
    fn is_free(&self, name: &str, now: Instant) -> bool {
        match self.doing.lock().get(name) {
            Some(Doing::Now) => false,
            Some(Doing::After(until)) => now >= *until,
            None => true,
        }
    }

    /// Looks at something, and does what it needs in a thread of its own.
    fn attend(&self, verbs: &Arc<Verbs>, name: &str, look: impl FnOnce() -> Outcome<Option<Deed>>) {
        if !self.is_free(name, Instant::now()) {
            return;
        }
        let deed = match look() {
            Ok(Some(deed)) => deed,
            Ok(None) => return self.ended(name, Ok(()), Instant::now()),
            Err(error) => return self.ended(name, Err(error), Instant::now()),
        };
        self.doing.lock().insert(name.to_owned(), Doing::Now);
        let (deeds, verbs, owned) = (self.clone(), verbs.clone(), name.to_owned());
        let act = move || {
            let done = catch_unwind(AssertUnwindSafe(|| deed.act(&verbs)));
            let panicked =
                |_| Err(refused(ConfigKind::System, &owned, "keeper", "a panic", "none"));
            deeds.ended(&owned, done.unwrap_or_else(panicked), Instant::now());
            // For the calls that came meanwhile, and to sleep until a retry.
            verbs.keeper.poke();
        };
        let spawned = std::thread::Builder::new().name("snapshots".to_owned()).spawn(act);
        if let Err(error) = spawned {
            self.ended(name, Err(system(name, "thread", error)), Instant::now());
        }
    }

    fn ended(&self, name: &str, outcome: Outcome<()>, now: Instant) {
        let Err(error) = outcome else {
            self.doing.lock().remove(name);
            self.logged.lock().remove(name);
            return;
        };
        let line = error.to_string();
        let before = self.logged.lock().insert(name.to_owned(), line.clone());
        if before.as_ref() != Some(&line) {
            tracing::warn!("{line}");
        }
        self.doing.lock().insert(name.to_owned(), Doing::After(now + PAUSE));
    }

    /// Forgets what was logged about others than these: a later failure is logged again.
    fn keep_logged(&self, is_kept: impl Fn(&str) -> bool) {
        self.logged.lock().retain(|name, _| is_kept(name));
    }

    /// How long to sleep unless called: for ever if nothing failed and there is no store.
    fn sleep(&self, watched: &[Watched], now: Instant) -> Option<Duration> {
        let mut all = self.doing.lock();
        all.retain(|_, doing| !matches!(doing, Doing::After(until) if *until <= now));
        let retries = all.values().filter_map(|doing| match doing {
            Doing::After(until) => Some(until.duration_since(now)),
            Doing::Now => None,
        });
        let look = watched.iter().any(|watched| watched.store.is_some()).then_some(LOOK);
        retries.chain(look).min()
    }
}

fn keep(verbs: &Weak<Verbs>, receive: &Receiver<()>) {
    let (deeds, mut sleep) = (Deeds::default(), None);
    let (mut announced, mut full) = (HashSet::new(), HashSet::new());
    loop {
        let called = match sleep {
            None => receive.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(sleep) => receive.recv_timeout(sleep),
        };
        if called == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        // Several calls need one pass.
        while receive.try_recv().is_ok() {}
        let Some(verbs) = verbs.upgrade() else { return };
        if verbs.is_paused() {
            sleep = Some(LOOK);
            continue;
        }
        let Some(watched) = verbs.watched() else { return };
        announced.retain(|name| watched.iter().any(|watched| watched.name == *name));
        deeds.keep_logged(|name| verbs.world.volume(name).is_ok());
        for name in verbs.stuck() {
            deeds.attend(&verbs, &name, || Ok(Some(Deed::BringBack(name.clone()))));
        }
        for name in verbs.uncached() {
            deeds.attend(&verbs, &name, || Ok(Some(Deed::KeepUncached(name.clone()))));
        }
        let marked = verbs.world.deferred_removals();
        for name in marked.iter().filter(|name| verbs.is_unused_and_marked(name)) {
            deeds.attend(&verbs, name, || Ok(Some(Deed::Remove(name.clone()))));
        }
        let growing = verbs.growing_pools();
        full.retain(|name| growing.contains(name));
        for name in &growing {
            deeds.attend(&verbs, name, || {
                let bytes = verbs.size_to_grow_to(name, &mut full)?;
                Ok(bytes.map(|bytes| Deed::GrowPool { name: name.clone(), bytes }))
            });
        }
        for watched in &watched {
            deeds.attend(&verbs, &watched.name, || verbs.look(watched, &mut announced));
        }
        sleep = deeds.sleep(&watched, Instant::now());
        if !marked.is_empty() {
            // No event tells that a client has gone.
            sleep = Some(sleep.map_or(LOOK, |sleep| sleep.min(LOOK)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Deeds, Doing, Filling, LOOK, PAUSE, SnapWords, Watched};
    use std::time::Instant;

    #[test]
    fn the_keeper_sleeps_until_it_is_called_unless_something_failed_or_there_is_a_store() {
        let deeds = Deeds::default();
        let merge = Watched { name: "v@merge".to_owned(), store: None };
        assert_eq!(deeds.sleep(&[], Instant::now()), None);
        assert_eq!(deeds.sleep(std::slice::from_ref(&merge), Instant::now()), None);
        let (store, wait_for_room_s) = ("c".to_owned(), None);
        let words = SnapWords { sectors: 8, store, chunk: 8, fill_percent: 80, wait_for_room_s };
        let store = Filling { argument: "c".to_owned(), words, grow_bytes: Some(512) };
        let snapshot = Watched { name: "v@mon".to_owned(), store: Some(store) };
        assert_eq!(deeds.sleep(&[snapshot], Instant::now()), Some(LOOK));
        let error = cairn_block::ConfigError::new(cairn_block::ConfigKind::Busy, "v", "busy");
        let now = Instant::now();
        deeds.ended("v@merge", Err(error), now);
        assert!(!deeds.is_free("v@merge", now) && deeds.is_free("v@merge", now + PAUSE));
        let sleep = deeds.sleep(&[], Instant::now()).unwrap();
        assert!(!sleep.is_zero() && sleep <= PAUSE);
        assert_eq!(deeds.sleep(&[], Instant::now() + PAUSE), None);
        // What was logged is forgotten with the volume, and when the retry succeeds.
        assert!(deeds.logged.lock().contains_key("v@merge"));
        deeds.keep_logged(|name| name == "v@merge");
        deeds.ended("v@merge", Ok(()), now);
        assert!(deeds.logged.lock().is_empty() && deeds.is_free("v@merge", now));
        // An act that is under way is not begun again. Its end calls the keeper.
        deeds.doing.lock().insert("w@s".to_owned(), Doing::Now);
        assert!(!deeds.is_free("w@s", now + PAUSE) && deeds.is_free("v@merge", now));
        assert_eq!(deeds.sleep(&[], now), None);
    }
}
