//! The regions of answered writes whose bits are not durable, in the crash log: a killed process
//! loses the bits, not the data.
//!
//! The log's state is a number for the superblock. A record says that consecutive regions were
//! hydrated.
//!
//! A1. A record is appended when the bits are set, under the lock of the state: after the data has
//!     reached the destination, before an answer. A write in place is in a region whose bit is
//!     durable, or that has a record.
//! A2. A job has room for its record before it begins. Without room its request waits for a commit.
//! A3. A commit seals the records of the bits that it takes, in the same step.
//! A4. A replay is a commit, before anything is served. A kill during it finds the state of before,
//!     and replays again, or that of after, which includes all records.
//! A5. If the destination has failed, nothing is replayed (I6): what is there may be lost. The log
//!     has the failure counts that its records survived, so that a kill before a commit notices
//!     hides nothing.
//! A6. A log that has not all records is lost: a kill loses answered writes, and the next process
//!     tells its clients. That stays so, although clients were told of other losses, until a
//!     commit is durable. Then the log starts over.

use std::ops::Range;

use cairn_block::{
    Base, ConfigError, CrashLog, Ctor, Left, LogPlace, Record, Sector, failures_at_opening,
};
use cairn_format::bcache::crc64;

use super::canary::{Bug, planted};
use super::config::Config;
use crate::args::Device;

/// The log of a live clone, if there is a place for one. Without one there is room for everything.
#[derive(Default)]
pub(super) struct Acknowledged {
    log: Option<CrashLog>,
    /// Clients were not told of all losses.
    owes: bool,
}

fn record(regions: &Range<u64>) -> Record {
    [regions.start, regions.end - regions.start, 0]
}

impl Acknowledged {
    /// Records from now on.
    pub fn keep(&mut self, log: Option<CrashLog>) {
        self.log = log;
    }

    /// Makes room for the record of a job. False if it has to wait for a commit.
    pub fn reserve(&mut self) -> bool {
        self.log.as_mut().is_none_or(CrashLog::reserve)
    }

    /// A job has failed.
    pub fn cancel(&mut self) {
        if let Some(log) = &mut self.log {
            log.cancel();
        }
    }

    /// A job has ended. True if a commit should begin, since there is not much room left.
    pub fn hydrated(&mut self, regions: &Range<u64>) -> bool {
        let Some(log) = &mut self.log else { return false };
        match planted(Bug::NoRecord) {
            true => log.cancel(),
            false => log.append(record(regions)),
        }
        log.is_half_full()
    }

    /// A commit begins, of all bits until now.
    pub fn seal(&mut self) {
        if let Some(log) = &mut self.log {
            log.seal(None);
        }
    }

    /// The commit will leave this state.
    pub fn name_state(&mut self, state: u64) {
        if let Some(log) = &mut self.log {
            log.name_state(state);
        }
    }

    /// The commit is durable.
    pub fn committed(&mut self) {
        if let Some(log) = &mut self.log {
            log.empty_sealed();
        }
    }

    /// Starts over, on top of what the device has now: with these regions, whose bits are not
    /// durable. If they have no room, or a failure may have lost them, a kill loses them (A6).
    pub fn restart(&mut self, base: &Base, uncommitted: &[Range<u64>], are_kept: bool) {
        let Some(log) = &mut self.log else { return };
        // A kill before all records are there is a loss.
        log.count_loss();
        log.begin(base);
        let mut records = uncommitted.iter().map(record);
        if !(are_kept && records.all(|record| log.append_unreserved(record))) {
            log.lose();
        } else if !self.owes {
            log.told();
        }
    }

    /// Clients are to be told of a loss, also after a kill.
    pub fn count_loss(&mut self) {
        self.owes = true;
        if let Some(log) = &mut self.log {
            log.count_loss();
        }
    }

    /// What is not durable may be lost (A5).
    pub fn lose(&mut self) {
        if let Some(log) = &mut self.log {
            log.lose();
        }
    }

    /// Failures of the destination so far have lost nothing that is recorded.
    pub fn survived(&mut self, failures: u64) {
        if let Some(log) = &mut self.log {
            log.survived(failures);
        }
    }

    /// True if a kill now would lose what was answered, since the log has not all of it.
    pub fn is_lost(&self) -> bool {
        self.log.as_ref().is_some_and(CrashLog::is_lost)
    }

    /// A client was told of all losses. A kill may still lose more (A6).
    pub fn told(&mut self) {
        self.owes = false;
        if let Some(log) = self.log.as_mut().filter(|log| !log.is_lost()) {
            log.told();
        }
    }
}

/// Where the log of a clone is.
pub(super) struct Place {
    log: LogPlace,
    /// Stands for both devices and the size of a region.
    owner: u64,
}

impl Place {
    /// None if there is none: see [`cairn_block::Registry::crash_log_of`].
    ///
    /// # Errors
    /// Another process has the log.
    pub fn of(ctor: &Ctor<'_>, config: &Config) -> Result<Option<Place>, ConfigError> {
        let (at, data) = ((&config.metadata.disk, Sector(0)), &config.destination.disk);
        let log = ctor.registry.crash_log_of("clone", at, &[data], ctor.read_only)?;
        let Some(log) = log else { return Ok(None) };
        let name = |device: &Device| {
            ctor.registry.lasting_name_of(&device.disk, Sector(0)).unwrap_or_default()
        };
        let (destination, source) = (name(&config.destination), name(&config.source));
        let owner = format!("{destination} {source} {}", config.region_size.sectors());
        Ok(Some(Place { log, owner: crc64(owner.as_bytes()) }))
    }

    /// What the clone is now.
    pub fn base(&self, state: u64, failures: u64) -> Base {
        Base { owner: self.owner, state, failures }
    }

    /// The log, and what an earlier process left.
    pub fn open(&self, state: u64, config: &Config) -> (CrashLog, Left) {
        let failures = failures_at_opening(config.destination.disk.as_ref());
        CrashLog::open(self.log.memory.clone(), &self.base(state, failures))
    }

    /// True if this process has a log there.
    pub fn is_kept(&self) -> bool {
        self.log.is_kept
    }
}

/// The regions of records, if all of them exist.
pub(super) fn regions_of(records: &[Record], regions: u64) -> Option<Vec<Range<u64>>> {
    let regions_of = |&[start, count, _]: &Record| {
        let end = start.checked_add(count).filter(|end| *end <= regions && count > 0)?;
        Some(start..end)
    };
    records.iter().map(regions_of).collect()
}
