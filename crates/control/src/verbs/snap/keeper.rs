//! The keeper: the thread that does the work on snapshots and pools that no user asks for. It ends
//! a merge that is complete. It grows a store or pool that may grow by itself (see
//! `pool::autogrow`). It announces a store whose file system has no more room. It brings up a
//! volume that a failed verb left suspended, as soon as the volume's devices work.
//!
//! The thread sleeps until it is called: by a verb, by an event of a snapshot or a merge, or by a
//! write that waits for its store to grow. It also wakes by itself to retry what failed, and to
//! check the file systems of stores, which raise no event. It acts through the same verbs as a
//! user.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cairn_outcome::failure::{Losses, Outcome, system};
use cairn_targets::snapshot;

use super::SnapWords;
use super::rollback::Merge;
use crate::names::{is_hidden, parent_of, snapshot_of};
use crate::reach::Named;
use crate::state::Record;
use crate::verbs::Verbs;

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

    /// Does what a watched snapshot or merge needs. `announced`: the snapshots whose file systems
    /// are low, and the merges that failed, whose event was raised.
    fn attend(&self, watched: &Watched, announced: &mut HashSet<String>) -> Outcome<()> {
        let name = &watched.name;
        let Some(store) = &watched.store else { return self.attend_merge(name, announced) };
        self.attend_store(name, store, announced)
    }

    /// Ends a merge that is done. A failure is an event of the volume, once.
    pub(super) fn attend_merge(&self, name: &str, announced: &mut HashSet<String>) -> Outcome<()> {
        let volume = parent_of(name).unwrap_or_default();
        match self.merge_of(volume)? {
            Merge::Done => return self.end_merge(volume).map(drop),
            Merge::Left { .. } => _ = announced.remove(name),
            Merge::Failed if announced.insert(name.to_owned()) => {
                self.world.volume(volume)?.raise_event();
            }
            Merge::Failed => {}
        }
        Ok(())
    }

    fn attend_store(
        &self,
        name: &str,
        store: &Filling,
        announced: &mut HashSet<String>,
    ) -> Outcome<()> {
        let Some((used, total)) = self.report_of(name)?.share(snapshot::ALLOCATED) else {
            return Ok(());
        };
        self.look_at_file_system(name, store, (used, total), announced)?;
        match store.grow_bytes {
            Some(bytes) if store.is_full(used, total) => {
                let bytes = (total * 512 + bytes) / 512 * 512;
                tracing::info!("{name}: the store grows to {bytes} bytes");
                self.snap_grow(name, bytes)
            }
            _ => Ok(()),
        }
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
        let Some(room) = super::store::Room::of(&path) else { return Ok(()) };
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
        let changes = self.change(&Named::volume(name))?;
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
            (false, None) => self.assemble(&changes, name),
        })?;
        self.exports.settle(&self.world, name);
        self.keeper.leave_alone(name);
        tracing::warn!("{name}: live again");
        Ok(())
    }
}

/// When to retry.
#[derive(Default)]
struct Retries(HashMap<String, Instant>);

impl Retries {
    /// Runs `act` for a volume, unless it failed a short time ago.
    fn attend(&mut self, name: &str, act: impl FnOnce() -> Outcome<()>) {
        if self.0.get(name).is_some_and(|until| Instant::now() < *until) {
            return;
        }
        self.0.remove(name);
        if let Err(error) = act() {
            tracing::warn!("{error}");
            self.0.insert(name.to_owned(), Instant::now() + PAUSE);
        }
    }

    /// How long to sleep unless called: for ever if nothing failed and there is no store.
    fn sleep(&mut self, watched: &[Watched], now: Instant) -> Option<Duration> {
        self.0.retain(|_, until| *until > now);
        let retry = self.0.values().min().map(|until| until.duration_since(now));
        let look = watched.iter().any(|watched| watched.store.is_some()).then_some(LOOK);
        retry.into_iter().chain(look).min()
    }
}

fn keep(verbs: &Weak<Verbs>, receive: &Receiver<()>) {
    let (mut retries, mut sleep) = (Retries::default(), None);
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
        let Some(watched) = verbs.watched() else { return };
        announced.retain(|name| watched.iter().any(|watched| watched.name == *name));
        for name in &verbs.stuck() {
            retries.attend(name, || verbs.bring_back(name));
        }
        let growing = verbs.growing_pools();
        full.retain(|name| growing.contains(name));
        for name in &growing {
            retries.attend(name, || verbs.grow_if_low(name, &mut full));
        }
        for watched in &watched {
            retries.attend(&watched.name, || verbs.attend(watched, &mut announced));
        }
        sleep = retries.sleep(&watched, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::{Filling, LOOK, PAUSE, Retries, SnapWords, Watched};
    use std::time::Instant;

    #[test]
    fn the_keeper_sleeps_until_it_is_called_unless_something_failed_or_there_is_a_store() {
        let mut retries = Retries::default();
        let merge = Watched { name: "v@merge".to_owned(), store: None };
        assert_eq!(retries.sleep(&[], Instant::now()), None);
        assert_eq!(retries.sleep(std::slice::from_ref(&merge), Instant::now()), None);
        let (store, wait_for_room_s) = ("c".to_owned(), None);
        let words = SnapWords { sectors: 8, store, chunk: 8, fill_percent: 80, wait_for_room_s };
        let store = Filling { argument: "c".to_owned(), words, grow_bytes: Some(512) };
        let snapshot = Watched { name: "v@mon".to_owned(), store: Some(store) };
        assert_eq!(retries.sleep(&[snapshot], Instant::now()), Some(LOOK));
        let error = cairn_block::ConfigError::new(cairn_block::ConfigKind::Busy, "v", "busy");
        retries.attend("v@merge", || Err(error));
        retries.attend("v@merge", || unreachable!("it failed just now"));
        let sleep = retries.sleep(&[], Instant::now()).unwrap();
        assert!(!sleep.is_zero() && sleep <= PAUSE);
        assert_eq!(retries.sleep(&[], Instant::now() + PAUSE), None);
    }
}
