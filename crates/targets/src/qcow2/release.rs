//! Clusters that become free: those that entries have ceased to name, and those by which the image
//! grows.

use std::collections::BTreeSet;
use std::ops::Range;

use cairn_block::{
    Env, ErrorKind, Flags, Io, IoError, Op, RequestId, SECTOR_BYTES, SectorCount, mutants,
};

use super::Qcow2;

/// The image grows by at least so many bytes.
const GROWTH_BYTES: u64 = 64 << 20;

impl Qcow2 {
    /// Clusters that the disk does not name any more, durably, become free once no request uses
    /// them (I5). What they held goes to the file system.
    pub(super) async fn release(&self, env: &Env, clusters: BTreeSet<u64>) {
        if clusters.is_empty() {
            return;
        }
        let left = async {
            self.users.quiesce(0).await;
            Ok::<(), IoError>(())
        };
        _ = mutants::step("qcow2: wait for users of clusters", (), left).await;
        if self.disk().limits().discard {
            let discards = runs(&clusters).map(|run| {
                let range = self.geometry.sectors_of(&run);
                env.io(self.disk(), Io::on(Op::Discard, range).with(Flags::BACKGROUND))
            });
            for discard in discards.collect::<Vec<_>>() {
                // It says only that nobody needs it.
                _ = discard.await;
            }
        }
        let mut state = self.state.lock();
        clusters.into_iter().for_each(|cluster| state.space.release(cluster));
    }

    /// Makes the image larger. True if it is, and there are new clusters.
    pub(super) async fn grow(&self, env: &Env) -> bool {
        let (capacity, coverage) = {
            let state = self.state.lock();
            (state.space.capacity(), state.space.coverage())
        };
        let cluster_bytes = self.geometry.cluster_bytes;
        let wanted = coverage.min(capacity + (GROWTH_BYTES / cluster_bytes).max(16));
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
        state.space.capacity() > capacity
    }

    /// Requests that waited for clusters: there are some now, or by the next commit, or they fail.
    pub(super) fn end_space_waiters(&self, env: &Env, waiters: Vec<RequestId>) {
        let mut state = self.state.lock();
        let has_space = state.space.used() < state.space.capacity();
        if !has_space && !state.dropped.is_empty() && !state.is_failing {
            state.space_waiters.extend(waiters);
            state.hand_back(env);
            return;
        }
        drop(state);
        for id in waiters {
            match has_space {
                true => env.remap(id),
                false => env.complete(id, Err(IoError::new(ErrorKind::NoSpace))),
            }
        }
    }
}

/// Neighbours joined.
fn runs(clusters: &BTreeSet<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
    let mut rest = clusters.iter().copied().peekable();
    std::iter::from_fn(move || {
        let first = rest.next()?;
        let mut end = first + 1;
        while rest.next_if_eq(&end).is_some() {
            end += 1;
        }
        Some(first..end)
    })
}
