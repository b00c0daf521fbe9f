//! Clusters that become free: those that entries have ceased to name, and those by which the image
//! grows.

use std::collections::BTreeSet;

use cairn_block::{
    Env, ErrorKind, Flags, Io, IoError, IoResult, Op, RequestId, SECTOR_BYTES, SectorCount, mutants,
};
use cairn_format::qcow2::CLUSTERS_MAX;

use super::Qcow2;
use crate::runs::runs;

/// Most discards at a time.
const DISCARDS_MAX: usize = 32;

/// The image grows by at least so many bytes.
const GROWTH_BYTES: u64 = 64 << 20;

impl Qcow2 {
    /// Releases clusters that the disk does not name any more, durably, in a task of its own: no
    /// flush waits for it.
    pub(super) fn begin_release(&self, env: &Env, clusters: BTreeSet<u64>) {
        if clusters.is_empty() {
            return;
        }
        self.state.lock().releasing += clusters.len() as u64;
        self.spawn(env, async move |own, env| own.release(env, clusters).await);
    }

    /// They become free once no request uses them (I5). What they held goes to the file system.
    async fn release(&self, env: &Env, clusters: BTreeSet<u64>) {
        let left = async {
            self.users.quiesce(0).await;
            Ok::<(), IoError>(())
        };
        _ = mutants::step("qcow2: wait for users of clusters", (), left).await;
        let runs: Vec<_> = runs(clusters.iter().copied(), u64::MAX).collect();
        // A volume beneath keeps requests while it is suspended, and a suspend of this one would
        // wait for them.
        let takes_discards = self.disk().limits().discard && self.disk().mapped().is_none();
        for window in runs.chunks(DISCARDS_MAX).filter(|_| takes_discards) {
            let discard = |run| {
                let range = self.geometry.sectors_of(run);
                env.io(self.disk(), Io::on(Op::Discard, range).with(Flags::BACKGROUND))
            };
            for discard in window.iter().map(discard).collect::<Vec<_>>() {
                // A discard is a hint; its failure changes nothing.
                _ = discard.await;
            }
        }
        let is_waited_for = {
            let mut state = self.state.lock();
            state.releasing -= clusters.len() as u64;
            clusters.into_iter().for_each(|cluster| state.space.release(cluster));
            state.freed += 1;
            !state.space_waiters.is_empty()
        };
        if is_waited_for {
            self.kick_commit(env);
        }
        self.changed.notify(usize::MAX);
    }

    /// Makes the image larger. True if it is, and there are new clusters.
    pub(super) async fn grow(&self, env: &Env) -> bool {
        let (capacity, coverage) = {
            let state = self.state.lock();
            (state.space.capacity(), state.space.coverage())
        };
        let cluster_bytes = self.geometry.cluster_bytes;
        let wanted = coverage.min(capacity + (GROWTH_BYTES / cluster_bytes).max(16));
        let wanted = wanted.min(CLUSTERS_MAX);
        if wanted <= capacity {
            return false;
        }
        let wanted = SectorCount::of_bytes(wanted * cluster_bytes);
        let sectors = match self.disk().grow(env, wanted).await {
            Ok(sectors) => sectors,
            Err(error) => {
                let (volume, device) = (&self.config.volume, &self.config.image.argument);
                env.warn(&format!("{volume} {device} grow"), || {
                    format!("{volume}: {device}: make it larger: {error}")
                });
                return false;
            }
        };
        let mut state = self.state.lock();
        state.space.extend(sectors.0 * SECTOR_BYTES / cluster_bytes);
        let has_grown = state.space.capacity() > capacity;
        state.freed += u64::from(has_grown);
        has_grown
    }

    /// Ends the wait of requests that waited for clusters when a commit began, which has this
    /// result. Where clusters have become free since they began to wait, they are mapped again.
    /// Where some will be, they wait on. Others fail.
    pub(super) fn end_space_waiters(
        &self,
        env: &Env,
        waiters: Vec<(RequestId, u64)>,
        result: IoResult,
    ) {
        let mut state = self.state.lock();
        let freed = state.freed;
        let (mapped, waiting): (Vec<_>, Vec<_>) =
            waiters.into_iter().partition(|(_, before)| *before != freed);
        let will_be = !state.dropped.is_empty() || state.releasing > 0;
        let full = IoError::new(ErrorKind::NoSpace);
        let error = result.err().filter(|_| will_be).unwrap_or(full);
        let may_wait = will_be && (result.is_ok() || state.handing_back);
        let failed = match may_wait {
            true => {
                state.space_waiters.extend(waiting);
                state.hand_back(env);
                Vec::new()
            }
            false => waiting,
        };
        drop(state);
        mapped.into_iter().for_each(|(id, _)| env.remap(id));
        failed.into_iter().for_each(|(id, _)| env.complete(id, Err(error)));
    }
}
