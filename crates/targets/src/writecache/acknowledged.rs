//! What the cache has acknowledged and not committed, in the crash log: a killed process loses the
//! entries of these blocks, not their data.
//!
//! The log's state is the superblock's seq. Records are of two kinds.
//! - *Filled*: from a slot on, consecutive slots have the newest versions of consecutive blocks.
//! - *Dropped*: the versions in these slots were taken out before they had an entry.
//!
//! A1. A record is appended when the index changes, under its lock: after the data has reached the
//!     slots (I7), before the answer. So records are in the order of the index, and a slot that was
//!     freed and filled again has its last record last.
//! A2. A fill that supersedes an uncommitted version drops it, here and in a replay: no record.
//! A3. A commit seals the records of what it freezes, in the same step. If it lands, the seq on the
//!     device is that of the other half.
//! A4. A slot of a record is free on the device, for I3 holds: its entry was durably free before it
//!     was taken. If it is not, somebody else used the device in between.
//! A5. A replay ends with a commit of its own before the first request. A kill during it finds the
//!     seq of before, and replays again, or that of after, which includes all records.
//! A6. If the cache device has failed while something was not durable, nothing is replayed: what
//!     the device shows may be another block's data. The clients are told. The log has the failure
//!     counts beneath, of before the count that commits compare with (I13), so that a kill before
//!     they do hides nothing.
//! A7. A start that writes nothing replays into memory, and leaves the log as it is.

use std::sync::Arc;

use cairn_block::{
    Base, ConfigError, CrashLog, CrashMemory, Ctor, Left, LogPlace, Record, Sector, Time,
};
use cairn_format::bcache::crc64;
use cairn_format::writecache::{Geometry, Seq};

use super::State;
use super::config::Config;
use super::index::{Index, Life, Run, Stock};

/// The kinds of records.
const FILLED: u64 = 1;
const DROPPED: u64 = 2;

/// The log of a live cache, if there is a place for one.
#[derive(Default)]
pub(super) struct Acknowledged {
    log: Option<CrashLog>,
    /// A request waits for room.
    is_wanted: bool,
}

fn record(kind: u64, slot: u32, len: u32, block: u64) -> Record {
    [kind, u64::from(slot) | u64::from(len) << 32, block]
}

impl Acknowledged {
    /// Records from now on.
    pub fn keep(&mut self, log: Option<CrashLog>) {
        self.log = log;
    }

    /// Makes room for the record of a fill. False if the fill has to wait for a commit.
    pub fn reserve(&mut self) -> bool {
        let has_room = self.log.as_mut().is_none_or(CrashLog::reserve);
        self.is_wanted |= !has_room;
        has_room
    }

    /// Requests wait for room, or there is not much left: a commit should follow the one that ends.
    pub fn wants_commit(&self) -> bool {
        self.is_wanted || self.log.as_ref().is_some_and(CrashLog::is_half_full)
    }

    /// A fill has failed.
    pub fn cancel(&mut self) {
        if let Some(log) = &mut self.log {
            log.cancel();
        }
    }

    /// A fill has ended. True if a commit should begin, since there is not much room left.
    pub fn filled(&mut self, slot: u32, len: u32, block: u64) -> bool {
        let Some(log) = &mut self.log else { return false };
        log.append(record(FILLED, slot, len, block));
        log.is_half_full()
    }

    /// Uncommitted versions were taken out. False if there is no room to say so.
    fn dropped(&mut self, slot: u32, len: u32) -> bool {
        let record = record(DROPPED, slot, len, 0);
        self.log.as_mut().is_none_or(|log| log.append_unreserved(record))
    }

    /// A commit begins, of the entries with this seq, or of none. True if requests that wait for
    /// room can be mapped again.
    pub fn seal(&mut self, frozen: Option<Seq>, durable: Seq) -> bool {
        if let Some(log) = &mut self.log {
            match frozen.and_then(Seq::next) {
                Some(next) => log.seal(Some(next.0)),
                None => log.compact(durable.0, std::iter::empty()),
            }
        }
        std::mem::take(&mut self.is_wanted)
    }

    /// The commit is durable.
    pub fn committed(&mut self) {
        if let Some(log) = &mut self.log {
            log.empty_sealed();
        }
    }

    /// Failures of the cache device so far have lost nothing that is recorded.
    pub fn survived(&mut self, failures: u64) {
        if let Some(log) = &mut self.log {
            log.survived(failures);
        }
    }

    /// What is not durable may be lost (A6).
    pub fn lose(&mut self) {
        if let Some(log) = &mut self.log {
            log.lose();
        }
    }

    /// Acknowledged writes may be lost, and clients are to be told, also after a kill.
    pub fn count_loss(&mut self) {
        if let Some(log) = &mut self.log {
            log.count_loss();
        }
    }

    /// A client was told of all losses.
    pub fn told(&mut self) {
        if let Some(log) = &mut self.log {
            log.told();
        }
    }
}

impl State {
    /// Drops uncommitted versions, and says so in the log. The caller holds the metadata lock, so
    /// that no commit is under way.
    pub(super) fn drop_uncommitted(&mut self, run: &Run) -> bool {
        let freed = self.index.drop_uncommitted(run);
        if !self.acknowledged.dropped(run.slot, run.len)
            && let Some(log) = &mut self.acknowledged.log
        {
            let index = &self.index;
            let uncommitted = index.runs().filter(|run| index.life(run) == Life::Uncommitted);
            let filled = uncommitted.map(|run| record(FILLED, run.slot, run.len, run.block));
            log.compact(index.durable_seq.0, filled);
        }
        freed
    }
}

/// Where the log of a cache is.
pub(super) struct Place {
    memory: Arc<dyn CrashMemory>,
    /// Stands for the origin and what the cache was formatted as.
    owner: u64,
}

impl Place {
    /// None if there is none: see [`cairn_block::Registry::crash_log_of`].
    ///
    /// # Errors
    /// Another process has the log.
    pub fn of(
        ctor: &Ctor<'_>,
        config: &Config,
        geometry: &Geometry,
    ) -> Result<Option<Place>, ConfigError> {
        let at = (&config.cache.disk, Sector(config.start.0));
        let place = ctor.registry.crash_log_of("writecache", at, &[], ctor.read_only)?;
        let Some(LogPlace { memory, .. }) = place else { return Ok(None) };
        let origin = ctor.registry.lasting_name_of(&config.origin.disk, Sector(0));
        let origin = origin.unwrap_or_default();
        let owner = format!("{origin} {} {}", geometry.block_size().bytes(), geometry.n_blocks());
        Ok(Some(Place { memory, owner: crc64(owner.as_bytes()) }))
    }

    /// What the cache is now.
    pub fn base(&self, state: u64, failures: u64) -> Base {
        Base { owner: self.owner, state, failures }
    }

    /// The log, and what an earlier process left.
    pub fn open(&self, base: &Base) -> (CrashLog, Left) {
        CrashLog::open(self.memory.clone(), base)
    }
}

/// Enters what records say into an index without uncommitted entries. False if they do not fit it
/// (A4); it is of no use then.
pub(super) fn replay(index: &mut Index, records: &[Record], now: Time) -> bool {
    records.iter().all(|&[kind, slots, block]| {
        let (slot, len) = (slots as u32, (slots >> 32) as u32);
        if index.is_low() {
            index.add(Stock::new());
        }
        match kind {
            FILLED => {
                let fits = index.take_free(slot, len);
                if fits {
                    index.insert(slot, len, block, now);
                }
                fits
            }
            _ => {
                let runs: Vec<Run> = index.runs_of(slot, len).collect();
                let is_uncommitted = |run: &Run| index.life(run) == Life::Uncommitted;
                let fits = runs.iter().all(is_uncommitted);
                if fits {
                    runs.iter().for_each(|run| _ = index.drop_uncommitted(run));
                }
                fits
            }
        }
    })
}
