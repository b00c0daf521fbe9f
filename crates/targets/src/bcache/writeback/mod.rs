//! Writeback: what only the cache has goes to the backing device.
//!
//! # Order of a drain
//! 1. A session begins (`set`), so that the journal has nothing that leaves lack.
//! 2. A batch: dirty extents in the order of the backing device, none of which shares a sector with
//!    another: of two copies to one sector the older could end last. They are taken out of use in
//!    place until 4 has ended (V3: a compare does not see a write in place). Their keys enter the
//!    journal, durably. Then their data is copied there; what touches is one write (`batch`).
//! 3. The backing device is flushed.
//! 4. The keys of the batch enter the leaves as clean ones, durably. Then 2, until each dirty
//!    extent was tried.
//! 5. The session ends: the priorities are written, and an entry of the journal says that no
//!    earlier one counts, durably.
//! 6. If no extent failed, the superblock of the backing device gets the state clean, with FUA
//!    (R11).
//!
//! # What a crash leaves
//! - Before 4: dirty keys whose data may be on the backing device as well. Copying it again writes
//!   the same data. A key that was not durable when its data was copied could leave an older clean
//!   extent in front of newer data: the volume would go back to the older data, and later forth.
//! - During 4: each key dirty, or clean with its data durable on the backing device.
//! - Before 6: a backing device in state dirty although nothing is. The next drain corrects it.
//!
//! # Failures
//! - *An extent cannot be copied*: the cache device cannot read it, or the backing device cannot
//!   write it. It stays dirty, so the cache counts for its sectors, also where a part of the failed
//!   write reached the backing device. The drain goes on with the others, does not do step 6, and
//!   ends with a message that names the extents. The next drain tries them again.
//! - *A flush of the backing device fails*, of this drain or of another user. It may have dropped
//!   all writes since the last flush that did not fail (R2), so the batch counts only if the
//!   device's failure count is what it was before the batch's first write. Otherwise the whole
//!   batch stays dirty, and the drain ends. The next one copies it again from the cache.
//! - *Both in one batch*: the count may have risen because of the writes that failed, and the flush
//!   may cover none of the writes around them. The drain writes the batch again without the extents
//!   that failed, after it has read the count again, and flushes again. It does so [`ATTEMPTS`]
//!   times at most.
//! - *A device is dead*: after [`FAILED_IN_A_ROW`] extents in a row that failed, the drain copies a
//!   sample of the others. If none can be copied, it gives up.
//! - *The set cannot be written*: the drain ends, and nothing is written to the set until it is
//!   opened again.
//!
//! So a key becomes clean only if its own copy has succeeded, and a flush that began after that
//! copy has, with the failure count unchanged since before the copy.
//!
//! A drain copies the next batch while one is flushed and its keys become clean (R10). The next one
//! has other extents, and a failure count of its own from before its first copy. If extents of a
//! batch failed, some of its middle were not tried, or another task waits to remove data, the next
//! one begins after that.
//!
//! A batch is sealed by keys, bytes or time, or early by a suspend; so a suspend waits for the
//! copies in flight, one flush and one insertion. If nothing is dirty after that, the drain ends as
//! if no suspend had come: the answer is the state that the superblock has.
//!
//! A write over dirty data waits for a batch of its own while the backing device is about to leave
//! its set (`ahead`); the batch of the drain is sealed then.
//!
//! The background writeback (`background`) makes the same batches (steps 2 to 4) at the pace of the
//! throttle (`throttle`, with the controller in `rate`), in the order of a policy (`policy`;
//! `sweep` asks the planner). Its batch is also sealed when a drain waits for its turn, or buckets
//! are short.

mod ahead;
mod background;
mod batch;
mod policy;
mod rate;
mod sweep;
mod throttle;
mod uncopied;

use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::atomic::{AtomicUsize, Ordering};
use cairn_block::{Env, IoError, IoResult, MessageError, mutants};
use cairn_format::bcache::{BackingState, Key};
use futures_util::future::join;

use super::btree::Span;
use super::canary::{Bug, planted};
use super::config::Devices;
use super::coverage::{self, Path};
use super::degraded::Service;
use super::flushing::Covered;
use super::set::{Session, TakenOut, WriteError};
use super::volume::Bcache;
use crate::fair::{Fair, Held};

use batch::{Copied, FAILED_IN_A_ROW, apart};
use policy::Shape;
use sweep::rows_of;
use uncopied::{AllUncopied, Uncopied};

pub(super) use ahead::Ahead;
pub(super) use batch::COPY_BYTES;
pub(super) use policy::Policy;
pub(super) use rate::is_sparse;
pub(super) use throttle::{Settings, Throttle};

/// How often a batch is written at most, each time without the extents that failed.
const ATTEMPTS: usize = 3;

/// How a batch is copied.
#[derive(Clone, Copy)]
struct How<'e> {
    /// Says whether it is to be sealed early.
    ends: &'e dyn Fn() -> bool,
    /// Its writes begin at the pace of the throttle, not as soon as possible.
    is_paced: bool,
    /// It is sealed after this time, without the waits for its pace, and after the second one with
    /// them.
    time: Duration,
    paced_time: Duration,
    /// How they are issued.
    shape: Shape,
}

/// How the batches of a drain ended.
enum Drained {
    /// Each dirty extent was tried.
    All,
    /// It was to end early.
    Suspended,
}

/// A batch whose copies have ended, and that no flush covers yet.
struct Open {
    copied: Copied,
    /// The failures of the backing device before the first copy.
    known: u64,
    /// Where its last key ends.
    end: u64,
    /// No client writes its extents in place until they are clean (V3).
    taken: TakenOut,
}

impl Open {
    fn has_failed(&self) -> bool {
        !self.copied.failed.is_empty()
    }

    /// Where the next batch begins, if none has failed.
    fn next(&self) -> u64 {
        self.copied.untried.iter().map(Key::start).min().unwrap_or(self.end)
    }

    /// True if the next batch would have extents of this one: some behind its beginning were
    /// copied. These must not be copied again while they become clean: a clean extent may be
    /// overwritten around the cache, and the older data would come after that (A2).
    fn reaches_into_the_next(&self) -> bool {
        let next = self.next();
        self.copied.written.iter().any(|key| key.end() > next)
    }
}

/// How a batch ended.
struct Batch {
    /// The extents that the backing device has durably, in order.
    written: Vec<Key>,
    /// The extents that could not be copied.
    failed: Vec<Uncopied>,
    /// The extents that were not tried.
    untried: Vec<Key>,
    /// In the order of sectors, the next batch begins here.
    next: u64,
    /// How many extents failed after the last one that was copied.
    failed_in_a_row: usize,
    /// No client writes the extents in place until they are clean (V3).
    _taken: TakenOut,
}

/// Why a drain ended before nothing was dirty.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undrained {
    /// A suspend began.
    #[error("a suspend began")]
    Suspending,
    /// No flush covers the copies of a batch.
    #[error("the flush of the backing device failed: {0}; the extents of this batch stay dirty")]
    Flush(IoError),
    /// The set cannot be written.
    #[error(transparent)]
    Set(#[from] WriteError),
    /// The superblock of the backing device cannot be written.
    #[error("the superblock of the backing device could not be written: {0}")]
    Superblock(IoError),
}

impl Bcache {
    /// What `cairn flush` asks for.
    pub(super) async fn write_all_back(&self, env: &Env) -> Result<(), MessageError> {
        let Devices::Cached { backing, cache } = &self.config.devices else { return Ok(()) };
        let (backing, cache) = (&backing.argument, &cache.argument);
        if self.read_only {
            return Err(MessageError::Failed("flush: the device is open read-only".to_owned()));
        }
        let _turn = self.turn_to_drain().await;
        match self.service() {
            Service::Cached => {}
            Service::Uncached => return Ok(()),
            Service::Stopped => {
                let text = format!("flush: {backing}: the volume is stopped after failures");
                return Err(MessageError::Failed(text));
            }
        }
        // After its turn: the drain before it may have broken the set.
        if self.is_broken() {
            let text = format!(
                "flush: {cache}: the cache cannot be written since a failure; see the log, and \
                 open it again"
            );
            return Err(MessageError::Failed(text));
        }
        let mut uncopied = AllUncopied::default();
        let drained = self.drain_all(env, &mut uncopied, &|| self.is_suspending()).await;
        let failures = uncopied.text(backing, cache);
        let text = match drained {
            Ok(()) if uncopied.is_empty() => return Ok(()),
            Ok(()) => failures.to_string(),
            Err(Undrained::Suspending) => {
                let dirty = self.dirty_sectors();
                let text = format!("flush: a suspend ended the drain, {dirty} sectors are dirty");
                return Err(MessageError::Busy(text));
            }
            Err(error) => match uncopied.is_empty() {
                true => error.to_string(),
                false => format!("{error}; before that, {failures}"),
            },
        };
        Err(MessageError::Failed(format!("flush: {backing} with {cache}: {text}")))
    }

    /// Writes all back in a suspend, when no request is left. What cannot be copied stays dirty.
    pub(super) async fn drain_at_rest(&self, env: &Env) -> Result<(), Undrained> {
        let Devices::Cached { backing, cache } = &self.config.devices else { return Ok(()) };
        if self.service() == Service::Uncached {
            return Ok(());
        }
        let _turn = self.draining.lock().await;
        let mut uncopied = AllUncopied::default();
        let drained = self.drain_all(env, &mut uncopied, &|| false).await;
        if !uncopied.is_empty() {
            let text = uncopied.text(&backing.argument, &cache.argument);
            tracing::warn!("{}: writeback on suspend: {text}", self.config.volume);
        }
        drained
    }

    /// Waits for the turn to drain.
    pub(super) async fn turn_to_drain(&self) -> Held<'_, ()> {
        self.turn_before_batches(&self.draining).await
    }

    /// Waits for the turn to remove data: no batch runs.
    pub(super) async fn turn_to_remove(&self) -> Held<'_, ()> {
        self.turn_before_batches(&self.batching).await
    }

    /// The batch that has the turn, if it is a paced one, is sealed at once.
    async fn turn_before_batches<'v>(&'v self, turn: &'v Fair<()>) -> Held<'v, ()> {
        struct Waiting<'v>(&'v AtomicUsize);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.drains_waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.drains_waiting);
        if let Some(core) = &self.core {
            core.changed.notify(usize::MAX);
        }
        turn.lock().await
    }

    fn is_suspending(&self) -> bool {
        self.suspending.load(Ordering::Relaxed)
    }

    /// Drains what can be copied. `uncopied` gets the rest: then the state stays as it is.
    /// Ends early when `ends` answers true.
    async fn drain_all(
        &self,
        env: &Env,
        uncopied: &mut AllUncopied,
        ends: &dyn Fn() -> bool,
    ) -> Result<(), Undrained> {
        let core = self.core.as_ref().expect("a cache is drained");
        if planted(Bug::CleanStateFirst) {
            self.write_state(env, BackingState::Clean).await.map_err(Undrained::Superblock)?;
        }
        core.change(env, async |session| session.begin().await).await?;
        let end = async |session: &Session<'_>| session.end().await;
        if let Drained::Suspended = self.drain_batches(env, uncopied, ends).await? {
            core.change(env, end).await?;
            return Err(Undrained::Suspending);
        }
        core.change(env, end).await?;
        match uncopied.is_empty() {
            true => self.call_clean(env).await,
            false => Ok(()),
        }
    }

    /// How a batch of a drain is copied.
    fn how_to_drain<'e>(&self, ends: &'e dyn Fn() -> bool) -> How<'e> {
        let [time, paced_time] = self.config.flushing.batch_time;
        How { ends, is_paced: false, time, paced_time, shape: Shape::MERGED }
    }

    /// Steps 2 to 4 until each dirty extent was tried. While a batch is flushed and made clean, the
    /// next one is copied, unless extents of the first one failed.
    async fn drain_batches(
        &self,
        env: &Env,
        uncopied: &mut AllUncopied,
        ends: &dyn Fn() -> bool,
    ) -> Result<Drained, Undrained> {
        let seals = || ends() || self.ahead.is_wanted();
        let how = self.how_to_drain(&seals);
        let (mut from, mut failed_in_a_row) = (0, 0);
        let (mut turn, mut open) = (None, None::<Open>);
        loop {
            if turn.is_none() {
                turn = Some(self.batching.lock().await);
            }
            let gives_way = ends() || self.drains_waiting.load(Ordering::Relaxed) > 0;
            let is_settled_first =
                |it: &Open| gives_way || it.has_failed() || it.reaches_into_the_next();
            let is_alone = open.as_ref().is_some_and(is_settled_first);
            let keys = match is_alone {
                true => Vec::new(),
                false => self.next_dirty(env, from, u64::MAX).await,
            };
            if open.is_none() && keys.is_empty() {
                return Ok(Drained::All);
            }
            if open.is_none() && ends() {
                return Ok(Drained::Suspended);
            }
            let (settled, copied) =
                join(self.settle(env, open.take(), how), self.copy_batch(env, keys, how)).await;
            if let (Err(_), Ok(Some(copied))) = (&settled, &copied) {
                self.distrust(&copied.copied.written);
            }
            (open, from) = match copied? {
                Some(copied) => {
                    let next = copied.next();
                    (Some(copied), next)
                }
                None => (None, from),
            };
            let Some(batch) = settled? else { continue };
            if open.is_none() {
                from = batch.next;
            }
            failed_in_a_row = match batch.written.is_empty() {
                true => failed_in_a_row + batch.failed_in_a_row,
                false => batch.failed_in_a_row,
            };
            uncopied.extend(batch.failed);
            if failed_in_a_row >= FAILED_IN_A_ROW {
                failed_in_a_row = 0;
                if self.is_sample_lost(env, from).await? {
                    uncopied.give_up();
                    return Ok(Drained::All);
                }
            }
            if open.is_none() {
                turn = None;
            }
        }
    }

    /// Steps 3 and 4 of a batch, if there is one.
    async fn settle(
        &self,
        env: &Env,
        open: Option<Open>,
        how: How<'_>,
    ) -> Result<Option<Batch>, Undrained> {
        let Some(open) = open else { return Ok(None) };
        let batch = self.cover(env, open, how).await?;
        self.make_clean(env, &batch.written).await?;
        Ok(Some(batch))
    }

    /// Step 4, where the tree still has the extents that were copied.
    async fn make_clean(&self, env: &Env, keys: &[Key]) -> Result<(), Undrained> {
        let core = self.core.as_ref().expect("a cache is drained");
        let cleaned = |sectors: u64| {
            self.add_dirty(-(sectors as i64));
        };
        core.change(env, async |session| session.clean(keys, cleaned).await).await?;
        Ok(())
    }

    /// Steps 2 and 3.
    async fn write_batch(
        &self,
        env: &Env,
        keys: Vec<Key>,
        how: How<'_>,
    ) -> Result<Batch, Undrained> {
        let open = self.copy_batch(env, keys, how).await?;
        let began = env.now();
        let batch = self.cover(env, open.expect("a batch has keys"), how).await?;
        let took = env.now().since(began);
        self.throttle.prices.lock().flushed(rows_of(&batch.written), took);
        Ok(batch)
    }

    /// Step 2: commits keys, if there are any, and copies as many as there is time for. Those that
    /// clients have replaced since they were found may count as not tried.
    async fn copy_batch(
        &self,
        env: &Env,
        keys: Vec<Key>,
        how: How<'_>,
    ) -> Result<Option<Open>, Undrained> {
        let core = self.core.as_ref().expect("a cache is drained");
        let Some(end) = keys.last().map(Key::end) else { return Ok(None) };
        let (keys, replaced) = match planted(Bug::CopiesOverlap) {
            true => (keys, Vec::new()),
            false => apart(keys),
        };
        if !replaced.is_empty() {
            coverage::take(Path::LeaveOut);
        }
        let taken = core.take_out(keys).await;
        if !planted(Bug::CopyBeforeCommit) {
            core.commit(env).await.map_err(WriteError::Cache)?;
        }
        let known = self.backing_failures();
        let mut copied = self.copy_keys(env, &taken.keys, how).await;
        copied.untried.extend(replaced.iter().chain(&taken.lost));
        Ok(Some(Open { copied, known, end, taken }))
    }

    /// Step 3: makes the copies of a batch durable on the backing device.
    async fn cover(&self, env: &Env, open: Open, how: How<'_>) -> Result<Batch, Undrained> {
        let Open { mut copied, mut known, end, mut taken } = open;
        let (mut failed, mut untried) = (Vec::new(), Vec::new());
        for attempt in 1.. {
            untried.extend(copied.untried);
            let has_failed = !copied.failed.is_empty();
            failed.extend(copied.failed);
            let written = copied.written;
            let covered = match self.config.flushing.covered {
                _ if written.is_empty() || planted(Bug::CleanBeforeFlush) => Ok(()),
                Covered::ByFlush => self.flush_backing(env, known).await,
                Covered::ByFua if self.backing_failures() != known => Err(IoError::IO),
                Covered::ByFua | Covered::Nothing => Ok(()),
            };
            match covered {
                Ok(()) => {
                    let next = untried.iter().map(Key::start).min().unwrap_or(end);
                    // What lies behind `next` is tried again by the next batch.
                    failed.retain(|one: &Uncopied| one.key.start() < next);
                    let failed_in_a_row = copied.failed_in_a_row;
                    self.keys_done.fetch_add(written.len() as u64, Ordering::Relaxed);
                    self.keys_failed.fetch_add(failed.len() as u64, Ordering::Relaxed);
                    // The keys are about to become clean: then their buckets may be emptied.
                    taken.end_copies();
                    let _taken = taken;
                    return Ok(Batch { written, failed, untried, next, failed_in_a_row, _taken });
                }
                Err(error) if !has_failed || attempt == ATTEMPTS => {
                    coverage::take(Path::BatchFailed);
                    self.distrust(&written);
                    return Err(Undrained::Flush(error));
                }
                Err(_) => {}
            }
            known = self.backing_failures();
            copied = self.copy_keys(env, &written, how).await;
        }
        unreachable!("the last attempt returns")
    }

    /// What was copied of these may be lost.
    fn distrust(&self, keys: &[Key]) {
        keys.iter().for_each(|key| self.traffic.distrust(&Span::of(key)));
    }

    pub(super) fn backing_failures(&self) -> u64 {
        self.config.devices.backing().expect("a volume that is drained").disk.failures()
    }

    /// Flushes the backing device. `known` is its failure count before the writes to cover.
    pub(super) async fn flush_backing(&self, env: &Env, known: u64) -> IoResult {
        let backing = &self.config.devices.backing().expect("a volume that is drained").disk;
        self.traffic.flushes.fetch_add(1, Ordering::Relaxed);
        let flushed = env.make_durable(backing).await;
        if planted(Bug::FlushedAgain) && flushed.is_err() {
            return env.make_durable(backing).await;
        }
        let is_well = mutants::same("bcache: failure count of a batch", known, backing.failures());
        let flushed = flushed.and(if is_well { Ok(()) } else { Err(IoError::IO) });
        flushed.inspect_err(|_| self.look_at_backing())
    }

    /// The devices of a copy: from the cache, to the backing device.
    fn copied_between(&self) -> [Arc<dyn cairn_block::Disk>; 2] {
        let of = |device: Option<&crate::args::Device>| {
            device.expect("a volume that is drained has both").disk.clone()
        };
        [of(self.config.devices.cache()), of(self.config.devices.backing())]
    }
}
