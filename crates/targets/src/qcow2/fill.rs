//! The end of jobs, and the copy that fills a new cluster for a write of a part of it.

use std::collections::BTreeSet;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{
    CopyError, CopyJob, CopyPiece, Env, Flags, Io, IoError, IoResult, Op, Sector, SectorCount,
    SectorRange, invariants, mutants,
};
use cairn_format::qcow2::write::{entry_of, is_zeros};

use super::Qcow2;
use super::state::Cause;

impl Qcow2 {
    /// Fills the new cluster of a job with what its cluster of the content shows, and ends the job.
    pub(super) async fn fill(&self, env: &Env, first: u64) {
        let to = self.state.lock().jobs.get(&first).map(|job| job.to);
        let to = to.expect("R1: only this task ends the job");
        let result = self.fill_cluster(env, first, to).await;
        self.end_job(env, first, result);
    }

    async fn fill_cluster(&self, env: &Env, cluster: u64, to: u64) -> IoResult {
        let sectors = self.geometry.cluster_sectors();
        let start = cluster * sectors;
        let to = self.geometry.sectors_of(&(to..to + 1));
        let is_shown = !is_zeros(self.tables.word(cluster));
        let shown = self.backing_sectors.saturating_sub(start).min(sectors);
        let shown = SectorCount(if is_shown { shown } else { 0 });
        if let Some(backing) = self.config.backing.as_ref().filter(|_| shown > SectorCount::ZERO) {
            let range = SectorRange::new(Sector(start), shown);
            let from = vec![CopyPiece { disk: backing.disk.clone(), range }];
            let (to, start) = (self.disk().clone(), to.start);
            let job = CopyJob { from, to, start, flags: Flags::empty() };
            let copied = self.copier.copy(env, &job).await;
            copied.map_err(|error| match error {
                CopyError::Read(error) => self.warn(env, &backing.argument, error),
                CopyError::Write(error) => self.warn(env, &self.config.image.argument, error),
            })?;
        }
        let rest = SectorRange::between(Sector(to.start.0 + shown.0), to.end());
        match rest.is_empty() {
            true => Ok(()),
            false => env.io(self.disk(), Io::on(Op::WriteZeroes, rest)).await,
        }
    }

    fn warn(&self, env: &Env, device: &str, error: IoError) -> IoError {
        let volume = &self.config.volume;
        env.warn(&format!("{volume} {device}"), || format!("{volume}: {device}: copy: {error}"));
        error
    }

    /// The clusters of a job have data now, unless it failed, or the device did while it ran.
    /// Answers how often entries were withdrawn before.
    pub(super) fn end_job(&self, env: &Env, first: u64, result: IoResult) -> Option<u64> {
        let now = self.disk().failures();
        let mut state = self.state.lock();
        let job = state.jobs.remove(&first).expect("R1: a job is ended once");
        let is_kept = mutants::same("qcow2: failure count of a job", job.failures, now);
        let has_data = result.is_ok() && is_kept;
        let (mut is_due, mut failed) = (false, BTreeSet::new());
        if has_data {
            let word = entry_of(job.to * self.geometry.cluster_bytes);
            for cluster in first..job.end {
                let word = word + (cluster - first) * self.geometry.cluster_bytes;
                state.change(&self.tables, cluster, word, Some(job.failures));
            }
            is_due = state.record(&(first..job.end), word);
        } else {
            state.acknowledged.cancel();
            // No entry has ever named them, and what was written there has ended.
            failed.extend(job.to..job.to + (job.end - first));
        }
        let withdrawals = self.withdrawals.load(Ordering::Acquire);
        let for_room = state.take_room_waiters();
        invariants::sample(|| state.check_state(&self.tables));
        drop(state);
        self.begin_release(env, failed);
        // Those that waited for it may need no copy, or find the device in order.
        let began = usize::from(job.cause == Cause::Fill && result.is_err());
        let (first, others) = job.waiters.split_at(began.min(job.waiters.len()));
        first.iter().for_each(|id| env.complete(*id, result));
        others.iter().for_each(|id| env.remap(*id));
        for_room.into_iter().for_each(|id| env.remap(id));
        if is_due {
            self.kick_commit(env);
        }
        self.changed.notify(usize::MAX);
        has_data.then_some(withdrawals)
    }
}
