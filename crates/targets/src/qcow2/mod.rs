//! `qcow2`: an image of qemu that is read and written, on a device or in a file that grows, perhaps
//! over a backing image. The format is in `docs/formats/qcow2.md`.
//!
//! ```text
//!   read, write -- has data? -- yes -> its cluster of the image
//!   read           no -> the backing device, or zeros
//!   write          no, whole clusters -> new clusters, and their entries with its completion
//!                  no, a part         -> waits until a new cluster is filled
//!   discard, zeroes -> whole clusters lose their entries
//!   flush -> the commit: data, refcounts and new tables; then entries
//! ```
//!
//! Files: `config` (table line), `image` (the device), `tables` (the mapping in memory), `space`
//! (clusters and refcounts), `state` (jobs, and changes that are not durable), `map` (verdicts),
//! `fill` (new clusters for a write of a part), `commit`, `release` (clusters that are free again,
//! and growth), `coverage` (a larger refcount table), `load` (reading the tables), `open` (resume
//! and suspend), `acknowledged` (the crash log), `status`.
//!
//! # Invariants
//! I1. Images are taken in which each cluster has one reference at most: without internal
//!     snapshots, compressed clusters or bitmaps. So a cluster with data is written in place.
//! I2. An entry names a cluster in memory once all of its content is there. Only then does a
//!     request go there.
//! I3. An entry is written to the disk after what it names is durable: the data, the refcount, the
//!     new L2 table. A crash may keep any of the writes since the last flush: an entry on the disk
//!     names a cluster with the refcount 1 all the same.
//! I4. A cluster that no entry names is used again, and its refcount becomes 0, after the entries
//!     on the disk do not name it either, durably.
//! I5. Before that, all requests end that may have found it: a read of it in flight does not see
//!     what is written there next.
//! I6. A flush that finds entries that are not durable is a commit. So is what follows a write or
//!     write-zeroes with FUA.
//! I7. If the device has failed before new content was durable, its entries are withdrawn: what is
//!     there may be lost, with what the cluster held before the write. First the entries become
//!     what they were, then every write ends that may not have seen that, then the loss is counted
//!     for all clients.
//! I8. A write is answered after the entry has changed, and its record is in the crash log.
//! I9. The backing device is never written.
//! I10. What a start has read is durable before anything rests on it. If the device has failed, it
//!      may show what it does not keep; then all that was read is written again. So it is if a
//!      server has left a mark, and its count of failures is not known.
//!
//! # What a crash leaves
//! Power cut: the entries of the last commit, or of one that was under way, each cluster of the
//! content for itself. Either names content that was durable first (I3, I4). Clusters with the
//! refcount 1 which nothing names: they are found when the image is opened, and used again. Kill:
//! the same, and the crash log has the entries of answered requests (I8). They are committed before
//! anything is served.

mod acknowledged;
mod commit;
mod config;
mod coverage;
mod fill;
mod image;
mod load;
mod map;
mod open;
mod release;
mod space;
mod state;
mod status;
mod tables;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;

#[cfg(feature = "canary")]
pub mod canary;
#[cfg(not(feature = "canary"))]
mod canary;

use std::sync::{Arc, Weak};

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::AtomicU64;
use cairn_block::{
    Attribute, Claim, ClaimKind, ConfigError, Copier, Disk, EndIo, Env, Events, Extent,
    FailureCount, IoError, IoResult, Limits, LocalFuture, Report, Request, Sector, SectorRange,
    SuspendMode, Target, TaskGroup, Verdict,
};
use event_listener::Event;

use crate::epochs::Epochs;

pub use config::SPEC;
pub use open::KIND;

use acknowledged::Place;
use config::Config;
use image::{Geometry, Image};
use state::State;
use tables::Tables;

/// Bytes of memory that copies from the backing device may take.
const COPY_BYTES: u64 = 16 << 20;

/// The target.
pub struct Qcow2 {
    me: Weak<Qcow2>,
    config: Config,
    read_only: bool,
    image: Image,
    geometry: Geometry,
    /// Sectors of the backing device that show through; 0 without one.
    backing_sectors: u64,
    /// The mapped device's own failure count.
    failures: Arc<FailureCount>,
    events: Events,
    /// Where its crash log is; none if there is none.
    crash_log: Option<Place>,
    tables: Tables,
    state: Mutex<State>,
    /// Reads and writes in flight to clusters of the image (I5, I7).
    users: Arc<Epochs<1>>,
    /// How often entries were withdrawn (I7).
    withdrawals: AtomicU64,
    copier: Copier,
    tasks: Arc<TaskGroup>,
    /// The failure count of the device that a request has seen last.
    seen_failures: AtomicU64,
    /// Notified at every change that a task may wait for.
    changed: Event,
}

impl Qcow2 {
    /// Starts a task that `suspend` waits for.
    fn spawn(&self, env: &Env, task: impl AsyncFnOnce(&Qcow2, &Env) + 'static) {
        let own = self.me.upgrade().expect("a target that is called is alive");
        self.tasks.spawn(env, async move |env| task(&own, env).await);
    }

    /// Where new content of clusters goes.
    fn disk(&self) -> &Arc<dyn Disk> {
        &self.image.disk
    }
}

impl Target for Qcow2 {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        self.map_request(env, request)
    }

    fn end_io(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        self.end_request(env, request, result)
    }

    /// In the order of the arguments.
    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        let backing = self.config.backing.iter().map(|backing| backing.disk.clone());
        std::iter::once(self.disk().clone()).chain(backing).collect()
    }

    fn claims(&self) -> Vec<Claim> {
        let start = Sector(0);
        let image = Claim::from(self.disk(), start, ClaimKind::Own, "image");
        let backing = self.config.backing.iter();
        let backing = backing
            .map(|backing| Claim::from(&backing.disk, start, ClaimKind::Read, "backing image"));
        std::iter::once(image).chain(backing).collect()
    }

    fn limits(&self, stacked: Limits) -> Limits {
        Limits {
            discard: true,
            fast_zero: false,
            read_only: self.disk().limits().read_only || self.read_only,
            ..stacked
        }
    }

    fn resume<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.start(env))
    }

    /// A commit that makes room for a request may never come, if the device has failed. Without a
    /// flush these requests go back to the mapped device, now and later; else they do once a commit
    /// has failed.
    fn presuspend(&self, env: &Env, mode: SuspendMode) {
        let is_waited_for = {
            let mut state = self.state.lock();
            state.suspending = true;
            state.handing_back |= mode == SuspendMode::NoFlush;
            state.hand_back(env);
            state.is_waited_for()
        };
        if is_waited_for {
            self.kick_commit(env);
        }
        self.changed.notify(usize::MAX);
    }

    fn presuspend_undo<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, ()> {
        let mut state = self.state.lock();
        (state.suspending, state.handing_back) = (false, false);
        drop(state);
        self.changed.notify(usize::MAX);
        Box::pin(std::future::ready(()))
    }

    fn suspend<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.stop(env))
    }

    /// Those of the image: clients' writes are there.
    fn failures(&self) -> u64 {
        self.disk().failures()
    }

    fn failures_told(&self) -> u64 {
        self.disk().failures_told()
    }

    fn acknowledge_failures(&self) {
        self.disk().acknowledge_failures(self.disk().failures());
        let mut state = self.state.lock();
        state.losses.told(&self.failures);
        if !state.losses.are_untold() {
            state.acknowledged.told();
        }
    }

    fn report(&self) -> Report {
        self.make_report()
    }

    fn attributes(&self) -> Vec<Attribute> {
        self.config.args.attributes()
    }

    fn table(&self) -> String {
        self.config.args.to_string()
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        Box::pin(self.extents_of(env, range))
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }
}
