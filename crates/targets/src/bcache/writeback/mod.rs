//! Writeback: what only the cache has goes to the backing device.
//!
//! # Order of a drain
//! 1. A session begins (`set`), so that the journal has nothing that leaves lack.
//! 2. A batch: dirty extents in the order of the backing device are copied there; what touches is
//!    one write (`batch`).
//! 3. The backing device is flushed.
//! 4. The keys of the batch enter the leaves as clean ones, durably. Then 2, until nothing is
//!    dirty.
//! 5. The session ends: the priorities are written, and the journal forgets what 4 may have put
//!    into it, durably.
//! 6. The superblock of the backing device says that it is clean, with FUA (R11).
//!
//! # What a crash leaves
//! - Before 4: dirty keys whose data may be on the backing device as well. Copying it again writes
//!   the same data.
//! - During 4: each key dirty, or clean with its data durable on the backing device.
//! - Before 6: a backing device that is called dirty although nothing is. The next opening
//!   finds out.
//!
//! # Failures
//! A failed flush of the backing device may have dropped all writes since the last one, of this
//! batch and of others (R2): the batch counts only if the device's failure count is what it was
//! before the batch's first write. After a copy or a flush that fails, the whole batch stays dirty,
//! also what was copied of it; the next drain copies it again from the cache. A failure of the
//! cache device ends writing until the set is opened again.
//!
//! A batch is sealed by keys, bytes or time, or early by a suspend; so a suspend waits for the
//! copies in flight, one flush and one insertion. If nothing is dirty after that, the drain ends as
//! if no suspend had come: the answer is the state that the superblock has.

mod batch;

use std::sync::Arc;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Env, IoError, MessageError, mutants};
use cairn_format::bcache::{BackingState, Key, SUPERBLOCK_SECTOR};

use super::canary::{Bug, planted};
use super::config::Devices;
use super::set::{Session, WriteError, write_io};
use super::volume::Bcache;

pub(super) use batch::COPY_BYTES;

/// Why a drain ended before nothing was dirty.
#[derive(Debug, thiserror::Error)]
enum Undrained {
    /// A suspend began.
    #[error("a suspend began")]
    Suspending,
    /// A device failed while data was copied or flushed.
    #[error("copying failed: {0}; the extents of this batch stay dirty")]
    Copy(IoError),
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
        if self.broken.load(Ordering::Relaxed) {
            let text =
                format!("flush: {cache}: the cache could not be written before; see the log");
            return Err(MessageError::Failed(text));
        }
        let _turn = self.draining.lock().await;
        match self.drain_all(env).await {
            Ok(()) => Ok(()),
            Err(Undrained::Suspending) => {
                let dirty = self.dirty_sectors.load(Ordering::Relaxed);
                let text = format!("flush: a suspend ended the drain, {dirty} sectors are dirty");
                Err(MessageError::Busy(text))
            }
            Err(error) => {
                if let Undrained::Set(_) = error {
                    self.broken.store(true, Ordering::Relaxed);
                }
                Err(MessageError::Failed(format!("flush: {backing} with {cache}: {error}")))
            }
        }
    }

    fn is_suspending(&self) -> bool {
        self.suspending.load(Ordering::Relaxed)
    }

    async fn drain_all(&self, env: &Env) -> Result<(), Undrained> {
        let cache = self.cache.as_ref().expect("a cache is drained");
        let session = Session { env, cache, set: &self.set, readers: &self.readers };
        if planted(Bug::CleanStateFirst) {
            self.call_clean(env).await?;
        }
        session.begin().await?;
        let mut from = 0;
        loop {
            let keys = self.next_dirty(from);
            if keys.is_empty() {
                break;
            }
            if self.is_suspending() {
                session.end().await?;
                return Err(Undrained::Suspending);
            }
            let written = self.write_batch(env, keys).await?;
            from = written.last().map_or(from, Key::end);
            let sectors: u64 = written.iter().map(Key::sectors).sum();
            session.insert(written.iter().map(|key| key.with_dirty(false)).collect()).await?;
            self.dirty_sectors.fetch_sub(sectors, Ordering::Relaxed);
        }
        session.end().await?;
        self.call_clean(env).await
    }

    /// Copies keys, as many as there is time for, and makes them durable on the backing device.
    /// Answers which.
    async fn write_batch(&self, env: &Env, mut keys: Vec<Key>) -> Result<Vec<Key>, Undrained> {
        let backing = &self.config.devices.backing().expect("a volume that is drained").disk;
        let known = backing.failures();
        let copied = self.copy_keys(env, &keys).await.map_err(Undrained::Copy)?;
        keys.truncate(copied);
        if keys.is_empty() || planted(Bug::CleanBeforeFlush) {
            return Ok(keys);
        }
        env.make_durable(backing).await.map_err(Undrained::Copy)?;
        match mutants::same("bcache: failure count of a batch", known, backing.failures()) {
            true => Ok(keys),
            false => Err(Undrained::Copy(IoError::IO)),
        }
    }

    /// Nothing is dirty, durably: the superblock of the backing device says so.
    async fn call_clean(&self, env: &Env) -> Result<(), Undrained> {
        let backing = self.config.devices.backing().expect("a volume that is drained");
        let Some(mut superblock) = self.backing.lock().clone() else { return Ok(()) };
        if superblock.state() != BackingState::Dirty {
            return Ok(());
        }
        superblock.set_state(BackingState::Clean);
        let write = write_io(env, SUPERBLOCK_SECTOR, &superblock.encode());
        let write = write.with(mutants::fua("bcache: FUA of the clean state"));
        let known = backing.disk.failures();
        env.io(&backing.disk, write).await.map_err(Undrained::Superblock)?;
        if backing.disk.failures() != known {
            return Err(Undrained::Superblock(IoError::IO));
        }
        *self.backing.lock() = Some(superblock);
        Ok(())
    }

    /// The devices of a copy: from the cache, to the backing device.
    fn copied_between(&self) -> [Arc<dyn cairn_block::Disk>; 2] {
        let of = |device: Option<&crate::args::Device>| {
            device.expect("a volume that is drained has both").disk.clone()
        };
        [of(self.config.devices.cache()), of(self.config.devices.backing())]
    }
}
