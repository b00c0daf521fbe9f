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
//! A6. What a log without all records loses, and who is told: V2 of [`crate::live_log`].

use std::ops::Range;

use cairn_block::{
    Base, ConfigError, CrashLog, Ctor, Left, LogPlace, Record, Sector, failures_at_opening,
};
use cairn_format::bcache::crc64;

use super::canary::{Bug, planted};
use super::config::Config;
use crate::args::Device;
use crate::live_log::LiveLog;

/// Regions are hydrated for which a record has room. True if a commit should begin.
pub(super) fn hydrated(log: &mut LiveLog, regions: &Range<u64>) -> bool {
    if planted(Bug::NoRecord) {
        log.cancel();
        return false;
    }
    log.append(record(regions))
}

pub(super) fn record(regions: &Range<u64>) -> Record {
    [regions.start, regions.end - regions.start, 0]
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
