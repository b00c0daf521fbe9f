//! The entries of answered requests that are not durable, in the crash log: a killed process loses
//! the entries, not the data.
//!
//! A record says that consecutive clusters of the content are in consecutive clusters of the image;
//! or that all of them are zeros, or nowhere.
//!
//! The device's state is its *mark*: autoclear features in the header, which are durable while
//! there may be records. One says that there is a mark, the others are random, and others at each
//! start. A program that does not know them clears them before it writes to the image, as the
//! format demands, and another server puts its own; then the records are foreign, and refused. A
//! record may be replayed on top of itself, so a commit leaves the state as it is.
//!
//! A1. A record is appended when entries change, under the lock of the state: after the data has
//!     reached the image, before an answer.
//! A2. A request has room for its record before it changes anything. Without room it waits for a
//!     commit.
//! A3. A commit seals the records of the changes that it takes, in the same step. They are emptied
//!     before a cluster is released, so no record names a cluster that is something else by then.
//! A4. A replay is a commit, before anything is served. A kill during it replays again.
//! A5. If the device has failed, nothing is replayed (I7): what is there may be lost. The log has
//!     the failure counts that its records survived, so that a kill before a commit notices hides
//!     nothing.
//! A6. What a log without all records loses, and who is told: V2 of [`crate::live_log`].

use std::collections::BTreeMap;
use std::ops::Range;

use cairn_block::{
    Base, ConfigError, CrashLog, Ctor, Left, LogPlace, Record, Sector, failures_at_opening,
};
use cairn_format::bcache::crc64;
use cairn_format::qcow2::write::{is_zeros, named_by};

use super::canary::{Bug, planted};
use super::config::Config;
use crate::live_log::LiveLog;

/// Entries have changed for which a record has room. True if a commit should begin.
pub(super) fn changed(log: &mut LiveLog, clusters: &Range<u64>, word: u64) -> bool {
    if planted(Bug::NoRecord) {
        log.cancel();
        return false;
    }
    log.append(record(clusters, word))
}

/// Clusters of the content, and the entry of the first one.
pub(super) fn record(clusters: &Range<u64>, word: u64) -> Record {
    [clusters.start, clusters.end - clusters.start, word]
}

/// Where the log of an image is.
pub(super) struct Place {
    log: LogPlace,
    /// Stands for the device.
    owner: u64,
}

impl Place {
    /// None if there is none: see [`cairn_block::Registry::crash_log_of`].
    ///
    /// # Errors
    /// Another process has the log.
    pub fn of(ctor: &Ctor<'_>, config: &Config) -> Result<Option<Place>, ConfigError> {
        let disk = &config.image.disk;
        let log =
            ctor.registry.crash_log_of("qcow2", (disk, Sector(0)), &[disk], ctor.read_only)?;
        let Some(log) = log else { return Ok(None) };
        let name = ctor.registry.lasting_name_of(disk, Sector(0)).unwrap_or_default();
        Ok(Some(Place { log, owner: crc64(name.as_bytes()) }))
    }

    /// What the image is now.
    pub fn base(&self, mark: u64, failures: u64) -> Base {
        Base { owner: self.owner, state: mark, failures }
    }

    /// The log, and what an earlier process left.
    pub fn open(&self, mark: u64, config: &Config) -> (CrashLog, Left) {
        let failures = failures_at_opening(config.image.disk.as_ref());
        CrashLog::open(self.log.memory.clone(), &self.base(mark, failures))
    }

    /// True if the log that is there is of an image with this mark. It then has the count of
    /// failures of the server that left it.
    pub fn knows(&self, mark: u64) -> bool {
        CrashLog::names(self.log.memory.as_ref(), mark)
    }

    /// True if this process has a log there.
    pub fn is_kept(&self) -> bool {
        self.log.is_kept
    }
}

/// Entries of clusters, which rise, as records: neighbours joined that lie next to each other.
pub(super) fn runs_of(
    entries: impl Iterator<Item = (u64, u64)>,
    cluster_bytes: u64,
) -> impl Iterator<Item = (Range<u64>, u64)> {
    let mut rest = entries.peekable();
    std::iter::from_fn(move || {
        let (first, word) = rest.next()?;
        let (mut end, mut next) = (first + 1, word + step_of(word, cluster_bytes));
        while rest.next_if_eq(&(end, next)).is_some() {
            (end, next) = (end + 1, next + step_of(word, cluster_bytes));
        }
        Some((first..end, word))
    })
}

/// By how much the entries of a record rise.
fn step_of(word: u64, cluster_bytes: u64) -> u64 {
    let has_data = !is_zeros(word) && named_by(word).is_some();
    if has_data { cluster_bytes } else { 0 }
}

/// The entries that records leave, by their clusters. None if a record is of another image: of
/// clusters beyond `clusters`.
pub(super) fn entries_of(
    records: &[Record],
    clusters: u64,
    cluster_bytes: u64,
) -> Option<BTreeMap<u64, u64>> {
    let mut entries = BTreeMap::new();
    for [first, count, word] in records.iter().copied() {
        let end = first.checked_add(count).filter(|end| *end <= clusters)?;
        let step = step_of(word, cluster_bytes);
        let last = word.checked_add(step.checked_mul(count)?)?;
        if step > 0 && (last ^ word) & (1 << 63) != 0 {
            return None;
        }
        entries.extend((first..end).map(|at| (at, word + (at - first) * step)));
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_format::qcow2::write::{ZEROS, entry_of};

    #[test]
    fn the_last_record_of_a_cluster_counts() {
        let records = [[4, 3, entry_of(512)], [5, 1, ZEROS], [6, 2, 0]];
        let expected = [(4, entry_of(512)), (5, ZEROS), (6, 0), (7, 0)];
        assert_eq!(entries_of(&records, 8, 512), Some(BTreeMap::from(expected)));
    }

    #[test]
    fn neighbours_become_one_record_if_they_lie_next_to_each_other() {
        let entries = [(1, entry_of(512)), (2, entry_of(1024)), (3, entry_of(512)), (5, 0), (6, 0)];
        let runs: Vec<_> = runs_of(entries.into_iter(), 512).collect();
        assert_eq!(runs, [(1..3, entry_of(512)), (3..4, entry_of(512)), (5..7, 0)]);
        let records: Vec<_> = runs.iter().map(|(clusters, word)| record(clusters, *word)).collect();
        assert_eq!(entries_of(&records, 8, 512), Some(BTreeMap::from(entries)));
    }

    #[test]
    fn a_record_of_another_image_is_refused() {
        for record in [[7, 2, 0], [u64::MAX, 2, 0], [0, 1 << 60, entry_of(512)]] {
            assert_eq!(entries_of(&[record], 8, 512), None, "{record:?}");
        }
    }
}
