//! Trim: discards every free data block of a pool on the data device.
//!
//! Free blocks are taken out of the allocator a few at a time, discarded, and put back. So no
//! request gets a block that is being discarded, and no block that any metadata maps, durable or in
//! progress, is touched (T3). *Crash*: they are free in the durable metadata.
//!
//! Until they are back they count as in quarantine: a write that finds no other block waits for
//! them, and the pool is not out of space.

use cairn_block::{ConfigError, ConfigKind, Env, Flags, Io, IoResult, Op, SectorCount};
use futures_util::future::join_all;

use super::pool::Pool;
use super::recover::ThinPool;
use crate::persistent::DataRun;

/// Most bytes that are out of the allocator at once, if a data block is no larger.
const PIECE_BYTES: u64 = 256 << 20;

/// Discards under way at once.
const DISCARDS_MAX: usize = 32;

impl ThinPool {
    /// Discards every free block on the data device; returns how many sectors it discarded.
    ///
    /// # Errors
    /// The pool is suspended or read-only, the data device takes no discards, or failed.
    pub async fn trim(&self, env: &Env) -> Result<SectorCount, ConfigError> {
        let suspended = || self.busy("it suspended", "a live pool");
        let pool = self.pool().ok_or_else(suspended)?;
        {
            // A message may close the pool for a moment.
            let _verb = pool.verb_lock.lock().await;
            if pool.is_closed() {
                return Err(suspended());
            }
        }
        if !pool.mode().is_writable() {
            return Err(self.busy("it read-only", "a writable one"));
        }
        let data = &self.config.data;
        if !data.disk.limits().discard {
            let detail = "discard: found none supported, expected a data device that takes them";
            return Err(ConfigError::new(ConfigKind::Unsupported, &data.argument, detail));
        }
        // The blocks in the stocks of reactors are free, too.
        pool.stocks.empty(&pool.room, &pool.metadata);
        let (blocks, failed) = pool.tasks.count(pool.trim(env)).await;
        match failed {
            Ok(()) => Ok(SectorCount(blocks * pool.block.0)),
            Err(error) => {
                let detail = format!("discard: {error}");
                Err(ConfigError::new(ConfigKind::System, &data.argument, detail))
            }
        }
    }
}

impl Pool {
    /// Goes through all free blocks, or until the pool is stopped.
    async fn trim(&self, env: &Env) -> (u64, IoResult) {
        let most = (PIECE_BYTES / self.block.to_bytes()).max(1);
        let (mut at, mut trimmed) = (Some(0), 0);
        while let Some(from) = at
            && !self.state.lock().stopping
            && self.mode().is_writable()
        {
            let (runs, next) = self.withhold(from, most);
            let count: u64 = runs.iter().map(|run| run.count).sum();
            let told = self.discard_runs(env, &runs).await;
            let allocator = self.metadata.allocator();
            runs.into_iter().for_each(|run| allocator.put_back(run));
            self.state.lock().quarantined -= count;
            self.space_came();
            if told.is_err() {
                return (trimmed, told);
            }
            (at, trimmed) = (next, trimmed + count);
        }
        (trimmed, Ok(()))
    }

    /// Takes free blocks, counted as in quarantine.
    fn withhold(&self, from: u64, most: u64) -> (Vec<DataRun>, Option<u64>) {
        // Under the lock: a writer that finds no block sees that some will come back.
        let mut state = self.state.lock();
        let (runs, next) = self.metadata.allocator().take_from(from, most);
        state.quarantined += runs.iter().map(|run| run.count).sum::<u64>();
        (runs, next)
    }

    /// Discards these on the data device, some at a time; returns the first error, if any.
    pub async fn discard_runs(&self, env: &Env, runs: &[DataRun]) -> IoResult {
        let mut told = Ok(());
        for runs in runs.chunks(DISCARDS_MAX) {
            let discard = |run: &DataRun| {
                let range = self.data_range(run.start, run.count);
                env.io(self.data_disk(), Io::on(Op::Discard, range).with(Flags::BACKGROUND))
            };
            let ends = join_all(runs.iter().map(discard)).await;
            told = ends.into_iter().fold(told, Result::and);
        }
        told
    }
}
