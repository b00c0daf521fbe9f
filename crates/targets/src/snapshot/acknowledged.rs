//! The exceptions of a transient store, in the crash log: a killed process loses its table, not the
//! data of the chunks.
//!
//! A record says that consecutive chunks of the origin lie in consecutive chunks of the COW device.
//! The store never commits, so there is one state, and the log grows: when a half is full, its
//! records are joined where they continue each other. If that frees little, the log is given up: a
//! kill ends the snapshot then.
//!
//! K1. A record is appended when the data of its chunks has reached the COW device, and before the
//!     exceptions are published: before the origin changes, before a write to the snapshot is
//!     answered.
//! K2. The end of the snapshot is a record, appended before the origin changes without an
//!     exception. It replaces all others.
//! K3. A replay keeps the records as they are. So a kill during it finds them again.
//! K4. If the COW device failed after a record, the snapshot has ended (C3 of `losses`). The log
//!     has the failure counts that its records survived, so that a kill before that hides nothing.
//! K5. When no table serves the snapshot any more and none is about to, and at the end of the
//!     server, its content is given up, and the records with it.

use std::sync::Arc;

use cairn_block::{
    Base, ConfigError, ConfigKind, CrashLog, CrashMemory, Ctor, Disk, Left, LogPlace, Record,
    Sector, failures_at_opening, failures_beneath,
};
use cairn_format::bcache::crc64;
use cairn_format::snapshot::{CowChunk, OriginChunk, Record as Exception};

use super::config::Config;
use super::table::Exceptions;

/// The only state of a store that has no metadata.
const STATE: u64 = 1;

/// The record of an end, in the place of a chunk of the origin.
const ENDED: u64 = u64::MAX;

/// The log of a transient store, if there is a place for one.
#[derive(Default)]
pub(super) struct Acknowledged {
    log: Option<CrashLog>,
    /// So many exceptions do not fit: a kill ends the snapshot.
    is_given_up: bool,
}

/// Neighbours that continue each other as one record each.
fn joined(records: impl Iterator<Item = Record>) -> Vec<Record> {
    let mut runs: Vec<Record> = Vec::new();
    for [old, new, count] in records {
        match runs.last_mut() {
            Some(run) if run[0] + run[2] == old && run[1] + run[2] == new => run[2] += count,
            _ => runs.push([old, new, count]),
        }
    }
    runs
}

/// What a table has, as records.
fn runs_of(exceptions: &Exceptions) -> Vec<Record> {
    let mut runs = Vec::new();
    for chunks in exceptions.changed(0, u64::MAX) {
        let mut old = chunks.start;
        while old < chunks.end {
            let run = exceptions.find(old, chunks.end - old);
            runs.extend(run.cow.map(|new| [old, new, run.count]));
            old += run.count;
        }
    }
    joined(runs.into_iter())
}

impl Acknowledged {
    /// Exceptions have data and are about to be published. False if the log had to be given up.
    pub fn keep(&mut self, exceptions: &[Exception]) -> bool {
        let Some(log) = self.log.as_mut().filter(|_| !self.is_given_up) else { return true };
        let records = exceptions.iter().map(|exception| [exception.old.0, exception.new.0, 1]);
        for record in joined(records) {
            if !log.append_unreserved(record) {
                let mut records = log.records();
                records.push(record);
                records.sort_unstable();
                log.compact(STATE, joined(records.into_iter()).into_iter());
                if log.is_nearly_full() {
                    log.lose();
                    self.is_given_up = true;
                    return false;
                }
            }
        }
        true
    }

    /// The snapshot has ended (K2).
    pub fn end(&mut self) {
        if let Some(log) = self.log.as_mut().filter(|_| !self.is_given_up) {
            log.compact(STATE, std::iter::once([ENDED, 0, 0]));
        }
    }

    /// Nobody serves the snapshot, or will (K5).
    pub fn give_up(&mut self) {
        if let Some(mut log) = self.log.take() {
            log.empty();
        }
    }

    /// Failures of the COW device so far have lost nothing that is recorded.
    pub fn survived(&mut self, failures: u64) {
        if let Some(log) = &mut self.log {
            log.survived(failures);
        }
    }
}

/// What a killed process has left of a snapshot.
pub(super) enum Kept {
    Exceptions(Vec<Record>),
    /// It had ended, or a failure of the COW device has ended it.
    Ended,
}

/// Where the log of a transient store is.
pub(super) struct Place {
    memory: Arc<dyn CrashMemory>,
    /// Stands for the origin and the size of a chunk.
    owner: u64,
    read_only: bool,
}

impl Place {
    /// None if there is none: see [`cairn_block::Registry::crash_log_of`].
    ///
    /// # Errors
    /// Another process has the log.
    pub fn of(ctor: &Ctor<'_>, config: &Config) -> Result<Option<Place>, ConfigError> {
        if config.kind.is_persistent() {
            return Ok(None);
        }
        let at = (&config.cow.disk, Sector(0));
        let place = ctor.registry.crash_log_of("snapshot", at, &[], ctor.read_only)?;
        let Some(LogPlace { memory, .. }) = place else { return Ok(None) };
        let origin = ctor.registry.lasting_name_of(&config.origin.disk, Sector(0));
        let owner = format!("{} {}", origin.unwrap_or_default(), config.chunk.sectors());
        let owner = crc64(owner.as_bytes());
        Ok(Some(Place { memory, owner, read_only: ctor.read_only }))
    }

    fn base(&self, failures: u64) -> Base {
        Base { owner: self.owner, state: STATE, failures }
    }

    /// What a killed process has left, and from now on the log of the store (K3).
    ///
    /// # Errors
    /// It is of another snapshot.
    pub fn open(&self, config: &Config, kept: &mut Acknowledged) -> Result<Kept, ConfigError> {
        let cow = config.cow.disk.as_ref();
        let (mut log, left) =
            CrashLog::open(self.memory.clone(), &self.base(failures_at_opening(cow)));
        let Left::Records(records) = left else { return Err(foreign(config)) };
        // Clients are told by the end of the snapshot.
        log.take_loss();
        let is_lost = log.is_lost();
        let has_ended = is_lost || records.iter().any(|record| record[0] == ENDED);
        match records.is_empty() {
            // The log says it as it is.
            _ if is_lost => {}
            true => log.begin(&self.base(failures_beneath(cow))),
            false => log.go_on(STATE, joined(records.iter().copied()).into_iter()),
        }
        if !self.read_only {
            *kept = Acknowledged { log: Some(log), is_given_up: is_lost };
        }
        Ok(if has_ended { Kept::Ended } else { Kept::Exceptions(records) })
    }

    /// The log of a snapshot that is served again after all.
    pub fn open_again(&self, cow: &dyn Disk, exceptions: &Exceptions) -> Acknowledged {
        let base = self.base(failures_beneath(cow));
        let (mut log, _given_up) = CrashLog::open(self.memory.clone(), &base);
        log.begin(&base);
        log.compact(STATE, runs_of(exceptions).into_iter());
        Acknowledged { log: Some(log), is_given_up: false }
    }
}

fn foreign(config: &Config) -> ConfigError {
    let detail = "crash log: found what a killed server kept of a snapshot of another origin, or \
                  with another chunk size, expected nothing or the same; `cairn serve \
                  --discard-crash-log` gives that snapshot up";
    ConfigError::new(ConfigKind::Damaged, &config.cow.argument, detail)
}

/// Enters the exceptions of a killed process into an empty table. Answers with the chunk that the
/// store hands out next, and how many exceptions there are.
///
/// # Errors
/// They do not fit the devices.
pub(super) fn replay(
    config: &Config,
    exceptions: &Exceptions,
    records: &[Record],
) -> Result<(u64, u64), ConfigError> {
    let ends = [&config.origin, &config.cow].map(|device| device.disk.sectors().0);
    let [origin_end, cow_end] = ends.map(|sectors| config.chunk.chunks_of(sectors));
    let (mut next_free, mut count) = (0, 0);
    for &[old, new, run] in records {
        let fits = run > 0 && old.saturating_add(run) <= origin_end;
        let fits = fits && new.saturating_add(run) <= cow_end;
        let is_new = |at: u64| {
            let (old, new) = (OriginChunk(old + at), CowChunk(new + at));
            exceptions.load(Exception { old, new })
        };
        if !fits || !(0..run).all(is_new) {
            let detail = format!(
                "crash log: found the exception of {run} chunks of the origin from {old}, kept \
                 from chunk {new} on, expected chunks of the devices that no other record names"
            );
            return Err(ConfigError::new(ConfigKind::Damaged, &config.cow.argument, detail));
        }
        next_free = next_free.max(new + run);
        count += run;
    }
    Ok((next_free, count))
}
