//! What happens to snapshots while nobody asks: a merge that is finished ends, and a store that
//! may grow does so when it fills up.
//!
//! One thread, asleep while there is nothing to watch. It looks at status lines and acts through
//! the same verbs as a user.

use std::collections::HashMap;
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
    /// How much the store grows; none: this is a merge.
    grow: Option<Growth>,
}

struct Growth {
    bytes: u64,
    words: SnapWords,
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
            let growth = |bytes| Some(Growth { bytes, words: SnapWords::of(record).ok()? });
            let grow = store.grow_bytes.filter(|_| !is_hidden(&record.name)).and_then(growth);
            if grow.is_some() || is_hidden(&record.name) {
                all.push(Watched { name: record.name.clone(), grow });
            }
        }
        Some(all)
    }

    fn attend(&self, watched: &Watched) -> Outcome<()> {
        match &watched.grow {
            Some(growth) => self.grow_if_full(&watched.name, growth),
            None => {
                let volume = parent_of(&watched.name).unwrap_or_default();
                match self.merge_of(volume)? {
                    Merge::Done => self.end_merge(volume).map(drop),
                    Merge::Left { .. } | Merge::Failed => Ok(()),
                }
            }
        }
    }

    fn grow_if_full(&self, name: &str, growth: &Growth) -> Outcome<()> {
        let status = self.status_of(name)?;
        let mut words = status.split(['/', ' ']).map(str::parse::<u64>);
        let (Some(Ok(used)), Some(Ok(total))) = (words.next(), words.next()) else {
            return Ok(());
        };
        if used * 100 < total * growth.words.fill_percent {
            return Ok(());
        }
        let bytes = (total * 512 + growth.bytes) / 512 * 512;
        tracing::info!("{name}: the store grows to {bytes} bytes");
        self.snap_grow(name, bytes)
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
    let mut idle = false;
    loop {
        let woken = match idle {
            true => receive.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => receive.recv_timeout(TICK),
        };
        let Some(verbs) = verbs.upgrade() else { return };
        let Some(watched) = verbs.watched() else { return };
        if woken == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        idle = watched.is_empty();
        for watched in &watched {
            if paused.get(&watched.name).is_some_and(|until| Instant::now() < *until) {
                continue;
            }
            if let Err(error) = verbs.attend(watched) {
                tracing::warn!("{error}");
                paused.insert(watched.name.clone(), Instant::now() + PAUSE);
            }
        }
    }
}
