//! The volumes of a set that serve it now.
//!
//! # Invariants
//! U1. The set is read when a volume is resumed and no other one serves it: another program may
//!     have changed it since. A volume that is resumed later takes part in the set in memory.
//! U2. A volume of the set is served once.
//! U3. The last volume that is suspended leaves the set as small as it can be, and no task of the
//!     set runs after that.
//! U4. A resume, and the end of a suspend, have the handover: one at a time.

use std::sync::Arc;

use cairn_block::{Counters, FailureCount};

use crate::bcache::status::{COUNTERS, Count};

/// A volume that serves the set.
pub(in super::super) struct Serving {
    /// Its number in the set.
    pub inode: u32,
    /// Its name, for the log and for refusals.
    pub volume: String,
    /// The failure count of its mapped device.
    pub failures: Arc<FailureCount>,
    /// Sectors of its backing device, which its share of the dirty data follows; 0 without one.
    pub backing_sectors: u64,
    /// Its counters.
    pub counters: Arc<Counters<COUNTERS>>,
}

/// See the module's description.
#[derive(Default)]
pub(in super::super) struct Users {
    serving: Vec<Serving>,
}

impl Users {
    /// True if no volume serves the set.
    pub fn are_none(&self) -> bool {
        self.serving.is_empty()
    }

    /// The name of the volume that serves this one already.
    pub fn serves(&self, inode: u32) -> Option<&str> {
        self.serving.iter().find(|it| it.inode == inode).map(|it| &*it.volume)
    }

    /// A volume begins to serve the set.
    pub fn join(&mut self, serving: Serving) {
        assert!(self.serves(serving.inode).is_none(), "U2: a volume is served once");
        self.serving.push(serving);
    }

    /// A volume does not serve the set any more.
    pub fn leave(&mut self, inode: u32) {
        self.serving.retain(|it| it.inode != inode);
    }

    /// Sectors of all backing devices that are served, and how many these are.
    pub fn attached(&self) -> (u64, u64) {
        let backing = self.serving.iter().filter(|it| it.backing_sectors > 0);
        backing.fold((0, 0), |(sectors, count), it| (sectors + it.backing_sectors, count + 1))
    }

    /// Requests that clients have sent to these volumes.
    pub fn requests(&self) -> u64 {
        let requests = |it: &Serving| it.counters.read()[Count::Requests as usize];
        self.serving.iter().map(requests).sum()
    }

    /// Sectors of data that these volumes have written into the cache.
    pub fn written(&self) -> u64 {
        let written = |it: &Serving| it.counters.read()[Count::CachedSectors as usize];
        self.serving.iter().map(written).sum()
    }

    /// Keys of these volumes are lost: their clients are told. Answers the failure count of each
    /// that has the loss; none if it does not serve.
    pub fn tell(&self, lost: &[u32]) -> impl Iterator<Item = (u32, Option<u64>)> {
        lost.iter().map(|&inode| {
            let serving = self.serving.iter().find(|it| it.inode == inode);
            let count = serving.map(|it| {
                it.failures.raise();
                it.failures.count()
            });
            (inode, count)
        })
    }

    /// The names, for the log.
    pub fn names(&self) -> String {
        self.serving.iter().map(|it| &*it.volume).collect::<Vec<_>>().join(", ")
    }
}
