//! What happens to snapshots while nobody asks: a merge that is finished ends, a store that may
//! grow does so when it fills up, and one that its file system has no more room for is announced.
//!
//! One thread, asleep while there is nothing to watch. It looks at status lines and acts through
//! the same verbs as a user.

use std::collections::{HashMap, HashSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cairn_block::Disk;
use parking_lot::Mutex;

use super::names::{SnapName, is_hidden, parent_of};
use super::rollback::Merge;
use super::{SnapWords, store};
use crate::failure::{Outcome, system};
use crate::state::Record;
use crate::verbs::Verbs;

/// How often something watched is looked at.
const TICK: Duration = Duration::from_millis(50);
/// The same if only the room of file systems is watched.
const SLOW_TICK: Duration = Duration::from_secs(1);
/// How long to leave alone what failed.
const PAUSE: Duration = Duration::from_secs(5);

/// The way to wake the thread.
#[derive(Default)]
pub struct Keeper(Mutex<Option<Sender<()>>>);

impl Keeper {
    /// There may be something to watch.
    pub fn poke(&self) {
        if let Some(send) = &*self.0.lock() {
            // A thread that ended needs no waking.
            let _ = send.send(());
        }
    }
}

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

impl Watched {
    fn is_urgent(&self) -> bool {
        self.store.as_ref().is_none_or(|store| store.grow_bytes.is_some())
    }
}

impl Filling {
    /// True if `used` of `total` sectors is what the snapshot's mark says.
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
        let (send, receive) = channel();
        // The first look: what a restart finds.
        let _ = send.send(());
        *self.keeper.0.lock() = Some(send);
        let verbs = Arc::downgrade(self);
        let thread = std::thread::Builder::new().name("snapshots".to_owned());
        let spawned = thread.spawn(move || keep(&verbs, &receive));
        spawned.map(drop).map_err(|error| system("snapshots", "thread", error))
    }

    /// Everything to watch; none if the server is going away.
    fn watched(&self) -> Option<Vec<Watched>> {
        let changes = self.look()?;
        let mut all = Vec::new();
        let is_served = |record: &&Record| self.world.volume(&record.name).is_ok();
        let recorded = changes.records.values().filter(|record| record.table.is_some());
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

    /// `low`: the snapshots whose file systems were announced.
    fn attend(&self, watched: &Watched, low: &mut HashSet<String>) -> Outcome<()> {
        match &watched.store {
            Some(store) => self.attend_store(&watched.name, store, low),
            None => {
                let volume = parent_of(&watched.name).unwrap_or_default();
                match self.merge_of(volume)? {
                    Merge::Done => self.end_merge(volume).map(drop),
                    Merge::Left { .. } | Merge::Failed => Ok(()),
                }
            }
        }
    }

    fn attend_store(&self, name: &str, store: &Filling, low: &mut HashSet<String>) -> Outcome<()> {
        let status = self.status_of(name)?;
        let mut words = status.split(['/', ' ']).map(str::parse::<u64>);
        let (Some(Ok(used)), Some(Ok(total))) = (words.next(), words.next()) else {
            return Ok(());
        };
        self.look_at_file_system(name, store, (used, total), low)?;
        match store.grow_bytes {
            Some(bytes) if store.is_full(used, total) => {
                let bytes = (total * 512 + bytes) / 512 * 512;
                tracing::info!("{name}: the store grows to {bytes} bytes");
                self.snap_grow(name, bytes)
            }
            _ => Ok(()),
        }
    }

    /// Announces, once, that the file system beneath a store has so little left that the store
    /// is as full as its mark says. (That it is full of itself its volume announces.)
    fn look_at_file_system(
        &self,
        name: &str,
        store: &Filling,
        (used, total): (u64, u64),
        low: &mut HashSet<String>,
    ) -> Outcome<()> {
        let path = self.place(&store.argument);
        let Some(room) = super::store::Room::of(&path) else { return Ok(()) };
        let left = room.left_sectors(used, total);
        let is_low = used + left < total && store.reaches_mark(used, used + left);
        if !is_low {
            low.remove(name);
        } else if low.insert(name.to_owned()) {
            let (store, bytes) = (&store.argument, left * 512);
            tracing::warn!("{name}: the file system of {store} has room for {bytes} more bytes");
            self.world.volume(name)?.raise_event();
        }
        Ok(())
    }

    /// `snap grow`
    ///
    /// # Errors
    /// The store is as it was.
    pub fn snap_grow(&self, name: &str, bytes: u64) -> Outcome<()> {
        let snap = SnapName::parse(name)?;
        let changes = self.change_table(&snap.volume, "snap grow")?;
        let (_, known) = self.record_of_snapshot(&changes, &snap)?;
        store::grow(&known.argument, &self.place(&known.argument), "--size", bytes)?;
        let volume = self.world.volume(name)?;
        volume.refresh()?;
        if volume.is_suspended() {
            return Ok(());
        }
        // A resume looks at the fill mark anew, and ends an overflow.
        self.hold(name)?;
        self.make_live(name)
    }
}

fn keep(verbs: &Weak<Verbs>, receive: &Receiver<()>) {
    let mut paused: HashMap<String, Instant> = HashMap::new();
    let mut low = HashSet::new();
    let mut tick = Some(TICK);
    loop {
        let woken = match tick {
            None => receive.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(tick) => receive.recv_timeout(tick),
        };
        let Some(verbs) = verbs.upgrade() else { return };
        let Some(watched) = verbs.watched() else { return };
        if woken == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        low.retain(|name| watched.iter().any(|watched| watched.name == *name));
        let is_urgent = watched.iter().any(Watched::is_urgent);
        tick = (!watched.is_empty()).then_some(if is_urgent { TICK } else { SLOW_TICK });
        for watched in &watched {
            if paused.get(&watched.name).is_some_and(|until| Instant::now() < *until) {
                continue;
            }
            if let Err(error) = verbs.attend(watched, &mut low) {
                tracing::warn!("{error}");
                paused.insert(watched.name.clone(), Instant::now() + PAUSE);
            }
        }
    }
}
