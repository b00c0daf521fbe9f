//! What requests and tasks share, under one short lock: jobs, changes that are not durable, space.
//!
//! R1. Jobs do not overlap, and none has a cluster with data.
//! R2. `changes` has each cluster of the content whose entry differs from that on the disk, or may.
//! R3. `dropped` has each cluster of the image that an entry has named, in memory or on the disk,
//!     and that no entry in memory names: a task releases it after the next commit.
//! R4. `known` is the failure count of the device from before the oldest write of a cluster whose
//!     content is *volatile*: neither in the image nor durable. None if there is none.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use cairn_block::RequestId;
use cairn_format::qcow2::write::named_by;

use super::canary::{Bug, planted};
use super::space::Space;
use super::tables::{Place, Tables};
use crate::group_commit::GroupCommit;
use crate::live_log::LiveLog;
use crate::losses::Losses;

/// What fills new clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A write that covers them.
    Cover,
    /// A copy for a write of a part.
    Fill,
}

/// Clusters of the content that have no data, and get new clusters of the image.
pub(super) struct Job {
    pub end: u64,
    /// The first cluster of the image.
    pub to: u64,
    pub cause: Cause,
    /// The failure count of the device before its first write.
    pub failures: u64,
    /// Requests that are mapped again at its end.
    pub waiters: Vec<RequestId>,
}

/// An entry that was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// The entry on the disk; after a commit that failed, it may be the new one.
    pub before: u64,
    /// What the new entry names is volatile (R4).
    pub is_volatile: bool,
}

/// See the module's description.
pub(super) struct State {
    pub space: Space,
    /// By their first cluster (R1).
    pub jobs: BTreeMap<u64, Job>,
    /// R2.
    pub changes: BTreeMap<u64, Change>,
    /// L2 tables whose content is not on the disk, and that the L1 table does not name.
    pub new_tables: BTreeSet<usize>,
    /// L2 tables that are on the disk, and that the L1 table may not name. They are changed in
    /// place: it may name them, too.
    pub unnamed_tables: BTreeSet<usize>,
    /// R3.
    pub dropped: BTreeSet<u64>,
    /// How many clusters are being released, which no entry on the disk names, durably.
    pub releasing: u64,
    /// Rises when clusters become free that a request can use.
    pub freed: u64,
    /// R4.
    pub known: Option<u64>,
    pub commits: GroupCommit,
    pub acknowledged: LiveLog,
    /// The image's mark.
    pub mark: u64,
    pub losses: Losses,
    /// Requests that wait for room in the crash log.
    pub room_waiters: Vec<RequestId>,
    /// Requests that wait for clusters of the image. Each has the `freed` of when it began to wait.
    pub space_waiters: Vec<(RequestId, u64)>,
    /// The last commit failed.
    pub is_failing: bool,
    /// A suspend has begun that does not wait for a commit: no request waits for room any more.
    pub handing_back: bool,
    pub suspending: bool,
    /// Tasks end.
    pub stopping: bool,
}

impl State {
    pub fn new(space: Space) -> State {
        State {
            space,
            jobs: BTreeMap::new(),
            changes: BTreeMap::new(),
            new_tables: BTreeSet::new(),
            unnamed_tables: BTreeSet::new(),
            dropped: BTreeSet::new(),
            releasing: 0,
            freed: 0,
            known: None,
            commits: GroupCommit::default(),
            acknowledged: LiveLog::default(),
            mark: 0,
            losses: Losses::default(),
            room_waiters: Vec::new(),
            space_waiters: Vec::new(),
            is_failing: false,
            handing_back: false,
            suspending: false,
            stopping: false,
        }
    }

    /// The job that has a cluster.
    pub fn job_of(&mut self, cluster: u64) -> Option<&mut Job> {
        let (_, job) = self.jobs.range_mut(..=cluster).next_back()?;
        (cluster < job.end).then_some(job)
    }

    /// How many clusters from the first of a range on are in no job.
    pub fn free(&mut self, range: &Range<u64>) -> u64 {
        if self.job_of(range.start).is_some() {
            return 0;
        }
        let next = self.jobs.range(range.clone()).next().map_or(range.end, |(start, _)| *start);
        next - range.start
    }

    /// True if a flush of the device makes everything durable that was acknowledged.
    pub fn is_durable(&self) -> bool {
        self.changes.is_empty() && !self.is_failing
    }

    /// True if a commit has nothing to write or to release.
    pub fn is_committed(&self) -> bool {
        self.is_durable()
            && self.new_tables.is_empty()
            && self.unnamed_tables.is_empty()
            && self.dropped.is_empty()
            && self.space.is_settled()
    }

    /// True if the disk says what memory says, and leaks nothing.
    pub fn is_settled(&self) -> bool {
        self.is_committed() && self.releasing == 0
    }

    /// The entry of a cluster is another one now. Its table is there.
    pub fn change(&mut self, tables: &Tables, cluster: u64, word: u64, volatile: Option<u64>) {
        let before = tables.replace(cluster, word);
        let of = |word| named_by(word).map(|byte| byte / tables.cluster_bytes());
        match planted(Bug::ReleaseAtOnce) {
            true => of(before).into_iter().for_each(|cluster| self.space.release(cluster)),
            false => self.dropped.extend(of(before)),
        }
        let change = self.changes.entry(cluster).or_insert(Change { before, is_volatile: false });
        change.is_volatile = volatile.is_some();
        if let Some(failures) = volatile {
            self.known = Some(self.known.map_or(failures, |known| known.min(failures)));
        }
    }

    /// The entries with volatile content are again what they were before, and have to be written
    /// all the same.
    pub fn withdraw(&mut self, tables: &Tables) -> u64 {
        let of = |word| named_by(word).map(|byte| byte / tables.cluster_bytes());
        let mut count = 0;
        for (cluster, change) in self.changes.iter_mut().filter(|(_, change)| change.is_volatile) {
            let lost = tables.replace(*cluster, change.before);
            change.is_volatile = false;
            self.dropped.extend(of(lost));
            of(change.before).iter().for_each(|kept| _ = self.dropped.remove(kept));
            count += 1;
        }
        self.known = None;
        count
    }

    /// Gives up new tables that no change needs, and refcount blocks of clusters that are free: the
    /// device may have no room for them, and a commit without them succeeds.
    pub fn drop_unneeded(&mut self, tables: &Tables) {
        let is_needed = |index: &usize| {
            let clusters = tables.clusters_of(*index);
            let has_change = self.changes.range(clusters.clone()).next().is_some();
            has_change || self.jobs.range(clusters).next().is_some()
        };
        let (needed, others) = self.new_tables.iter().partition(|index| is_needed(index));
        let others: BTreeSet<usize> = others;
        self.new_tables = needed;
        for index in others {
            let at = tables.remove(index);
            self.space.release(at / tables.cluster_bytes());
        }
        self.space.drop_unneeded_blocks();
    }

    /// Checks what must hold whenever the lock is free.
    pub fn check_state(&self, tables: &Tables) {
        let ends = self.jobs.values().map(|job| job.end);
        let starts = self.jobs.keys().skip(1);
        assert!(starts.zip(ends).all(|(start, end)| end <= *start), "R1: jobs do not overlap");
        for (start, job) in &self.jobs {
            let has_data = |at| matches!(tables.run(&(at..at + 1)).0, Place::Data(_));
            assert!(!(*start..job.end).any(has_data), "R1: what a job has is no data");
        }
        for cluster in self.changes.keys() {
            let byte = named_by(tables.word(*cluster));
            let is_dropped =
                byte.is_some_and(|byte| self.dropped.contains(&(byte / tables.cluster_bytes())));
            assert!(!is_dropped, "R3: what an entry names is not dropped");
        }
        let has_volatile = self.changes.values().any(|change| change.is_volatile);
        assert!(!has_volatile || self.known.is_some(), "R4: failures of volatile content count");
        self.commits.check_state();
    }
}
