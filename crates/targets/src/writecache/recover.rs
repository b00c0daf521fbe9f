//! Opening a cache: constructor, formatting, recovery, and stopping again.
//!
//! The constructor checks arguments and the header only. At resume the header is read anew
//! (whoever had the device until now may have changed it), a blank device is formatted, and
//! recovery decides about every entry of an existing one:
//!
//! - an entry whose seq is not below the superblock's never counted: its slot is free;
//! - of several committed entries of one block the highest seq wins, the others are freed;
//! - two with the same seq mean a corrupt device: nothing is written, reads keep working.
//!
//! What was read is made durable first (the drive's cache may hold what a killed process
//! wrote); what was decided is durable before the first request is let in, so that a second crash finds
//! either the old or the decided state, entry by entry; deciding again gives the same.
//!
//! Formatting writes the area with a blank superblock, flushes, then writes the superblock
//! with FUA: a crash in between leaves a blank device.
//!
//! With `read_only` nothing is written: free slots are free in memory only.

use std::collections::HashMap;
use std::sync::Arc;

use async_lock::Mutex as AsyncMutex;
use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, ConfigKind, Copier, Counters, Ctor, Env, Flags, LocalFuture, Sector, SectorCount,
    SectorRange, Target, TargetType,
};
use cairn_format::writecache::{
    BlockSize, Entry, EntryState, Error as FormatError, Geometry, Opening, SUPERBLOCK_BYTES, Seq,
    Superblock,
};
use rustc_hash::FxBuildHasher;

use super::commit::Ledger;
use super::config::Config;
use super::index::SlotState;
use super::writeback::copy_budget_bytes;
use super::{State, WriteCache};
use crate::args::Device;
use crate::blank::{read_sectors, refuse_signatures, unreadable};

/// Metadata is read and formatted in pieces of this many bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// The kind of target `writecache`.
pub struct WriteCacheType;

impl TargetType for WriteCacheType {
    fn name(&self) -> &'static str {
        "writecache"
    }

    fn version(&self) -> [u32; 3] {
        [1, 6, 0]
    }

    fn construct<'a>(
        &'a self,
        env: &'a Env,
        ctor: Ctor<'a>,
    ) -> LocalFuture<'a, Result<Arc<dyn Target>, ConfigError>> {
        Box::pin(async move {
            let config = Config::parse(&ctor)?;
            check_devices(&config, &ctor)?;
            let geometry = match read_header(env, &config).await? {
                Opening::Existing(superblock) => geometry_of(&config, &superblock)?,
                Opening::Format => {
                    refuse_signatures(env, &config.cache, config.start()).await?;
                    let area = area_bytes(&config);
                    Geometry::for_format(area, config.block_size)
                        .map_err(|error| damaged(&config.cache, &error))?
                }
            };
            let slots = u32::try_from(geometry.n_blocks()).ok().filter(|&n| n < u32::MAX);
            if slots.is_none() {
                let detail = format!(
                    "n_blocks: found {}, expected at most {} (more is not supported)",
                    geometry.n_blocks(),
                    u32::MAX - 1
                );
                let cache = &config.cache.argument;
                return Err(ConfigError::new(ConfigKind::Unsupported, cache, detail));
            }
            let target: Arc<dyn Target> = WriteCache::new(env, config, geometry, ctor.read_only);
            Ok(target)
        })
    }
}

fn damaged(device: &Device, error: &FormatError) -> ConfigError {
    let kind = match error {
        // Another size than the table's is the table's fault, if it is one a cache can have.
        FormatError::BlockSizeMismatch { found, .. } if BlockSize::new(*found).is_ok() => {
            ConfigKind::Argument
        }
        FormatError::NoSpace { .. } => ConfigKind::Argument,
        _ => ConfigKind::Damaged,
    };
    let detail = format!("{error} ({})", error.kernel_text());
    ConfigError::new(kind, &device.argument, detail)
}

/// Bytes of the cache device from the start sector on.
fn area_bytes(config: &Config) -> u64 {
    config.cache.disk.sectors().to_bytes() - config.start().to_bytes()
}

fn check_devices(config: &Config, ctor: &Ctor<'_>) -> Result<(), ConfigError> {
    let Config { origin, cache, .. } = config;
    let refuse = |device: &Device, field: &str, found: String, expected: &str| {
        Err(ConfigError::argument(&device.argument, field, found, expected))
    };
    if Arc::ptr_eq(&origin.disk, &cache.disk) {
        return refuse(cache, "cache", "the origin itself".into(), "another device");
    }
    let block = config.block_size.bytes();
    for device in [origin, cache] {
        let logical = device.disk.limits().logical_block;
        if block < logical {
            let expected = format!("at least the device's logical block size, {logical} bytes");
            return refuse(device, "block_size", format!("{block} bytes"), &expected);
        }
    }
    let (start, size) = (config.start(), cache.disk.sectors());
    if start >= size {
        let expected = format!("a sector below the device's end, {size}");
        return refuse(cache, "start_sector", start.to_string(), &expected);
    }
    let logical = cache.disk.limits().logical_sectors();
    if !start.0.is_multiple_of(logical.0) {
        let expected = format!("a multiple of the logical block size, {logical} sectors");
        return refuse(cache, "start_sector", start.to_string(), &expected);
    }
    let size = origin.disk.sectors();
    if ctor.len > size {
        let expected = format!("at least the target's length, {} sectors", ctor.len);
        return refuse(origin, "size", format!("{size} sectors"), &expected);
    }
    if !ctor.len.0.is_multiple_of(u64::from(config.block_size.sectors())) {
        let expected = format!("a multiple of the block size, {} sectors", block / 512);
        return refuse(origin, "length of the table line", ctor.len.to_string(), &expected);
    }
    Ok(())
}

async fn read_header(env: &Env, config: &Config) -> Result<Opening, ConfigError> {
    let start = Sector(config.start().0);
    let sector = SectorRange::new(start, SectorCount::of_bytes(512));
    let bytes = read_sectors(env, &config.cache, sector).await?;
    Opening::decide(&bytes, config.block_size).map_err(|error| damaged(&config.cache, &error))
}

fn geometry_of(config: &Config, superblock: &Superblock) -> Result<Geometry, ConfigError> {
    if superblock.seq().next().is_none_or(|next| next.is_free()) {
        let detail = format!("superblock seq_count: found {}, expected less", superblock.seq().0);
        return Err(ConfigError::new(ConfigKind::Damaged, &config.cache.argument, detail));
    }
    Geometry::of_superblock(superblock, area_bytes(config))
        .map_err(|error| damaged(&config.cache, &error))
}

/// What recovery decided about the entries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Decisions {
    /// Slots that hold the newest committed version of a block.
    keep: Vec<(u32, Entry)>,
    /// Slots whose entry is to be made free on disk.
    free: Vec<u32>,
    /// Two slots with the same block and the same seq.
    identical: Option<(u32, u32)>,
}

/// Decides about every entry, in the order of slots.
fn decide(entries: impl Iterator<Item = Entry>, superblock: Seq) -> Decisions {
    let mut newest: HashMap<u64, (u32, Entry), FxBuildHasher> = HashMap::default();
    let mut decisions = Decisions::default();
    for (slot, entry) in (0u32..).zip(entries) {
        match entry.state(superblock) {
            EntryState::Committed => (),
            EntryState::Free => continue,
            EntryState::Uncommitted => {
                decisions.free.push(slot);
                continue;
            }
        }
        let Some(&(other, held)) = newest.get(&entry.original_sector) else {
            newest.insert(entry.original_sector, (slot, entry));
            continue;
        };
        if held.seq > entry.seq {
            decisions.free.push(slot);
            continue;
        }
        if held.seq == entry.seq {
            decisions.identical = decisions.identical.or(Some((other, slot)));
        } else {
            decisions.free.push(other);
        }
        newest.insert(entry.original_sector, (slot, entry));
    }
    decisions.keep = newest.into_values().collect();
    decisions.keep.sort_unstable_by_key(|(slot, _)| *slot);
    decisions
}

impl WriteCache {
    fn new(env: &Env, config: Config, geometry: Geometry, read_only: bool) -> Arc<WriteCache> {
        let mut state = State::new(0);
        state.cleaner = config.cleaner;
        Arc::new_cyclic(|me| WriteCache {
            me: me.clone(),
            read_only,
            origin: config.origin.disk.clone(),
            cache: config.cache.disk.clone(),
            block_sectors: u64::from(geometry.sectors_per_block()),
            geometry,
            copier: Copier::new(copy_budget_bytes(&config)),
            counters: Counters::new(env),
            config,
            state: Mutex::new(state),
            ledger: AsyncMutex::new(Ledger::empty()),
            changed: event_listener::Event::new(),
        })
    }

    /// Resume: reads the metadata, recovers, starts the background task.
    pub(super) async fn start(&self, env: &Env) -> Result<(), ConfigError> {
        let superblock = match read_header(env, &self.config).await? {
            Opening::Existing(superblock) => superblock,
            Opening::Format if self.read_only => return self.start_empty(env),
            Opening::Format => self.format(env).await?,
        };
        let geometry = geometry_of(&self.config, &superblock)?;
        if geometry != self.geometry {
            let detail = format!(
                "superblock n_blocks: found {}, expected {} as when the table was loaded",
                geometry.n_blocks(),
                self.geometry.n_blocks()
            );
            let cache = &self.config.cache.argument;
            return Err(ConfigError::new(ConfigKind::Damaged, cache, detail));
        }
        let bytes = self.read_metadata(env).await?;
        let entries =
            Entry::iter(&bytes[SUPERBLOCK_BYTES..]).take(self.geometry.n_blocks() as usize);
        let decisions = decide(entries, superblock.seq());
        self.refuse_foreign(&decisions)?;
        let seq = superblock.seq();
        self.make_what_was_read_durable(env).await?;
        let mut ledger = Ledger::of(bytes, superblock);
        self.settle(env, &mut ledger, &decisions).await?;
        *self.ledger.lock().await = ledger;
        self.take_over(env, seq, &decisions);
        Ok(())
    }

    /// A blank device that may not be written is a cache of nothing.
    fn start_empty(&self, env: &Env) -> Result<(), ConfigError> {
        let cache = &self.config.cache.argument;
        tracing::warn!("writecache: {cache}: found blank, read-only: opened as an empty cache");
        self.take_over(env, Seq::ZERO, &Decisions::default());
        Ok(())
    }

    /// An entry beyond the origin belongs to another device, or the origin shrank.
    fn refuse_foreign(&self, decisions: &Decisions) -> Result<(), ConfigError> {
        let size = self.origin.sectors();
        for (slot, entry) in &decisions.keep {
            let sector = entry.original_sector;
            let end = sector.checked_add(self.block_sectors);
            if end.is_none_or(|end| end > size.0) || !sector.is_multiple_of(self.block_sectors) {
                let detail = format!(
                    "entry {slot} original_sector: found {sector}, expected a multiple of {} \
                     with a block before the end of the origin, sector {size}",
                    self.block_sectors
                );
                let cache = &self.config.cache.argument;
                return Err(ConfigError::new(ConfigKind::Damaged, cache, detail));
            }
        }
        Ok(())
    }

    async fn read_metadata(&self, env: &Env) -> Result<Vec<u8>, ConfigError> {
        let mut bytes = Vec::with_capacity(self.geometry.metadata_bytes() as usize);
        let mut at = 0;
        while at < self.geometry.metadata_bytes() {
            let len = PIECE_BYTES.min(self.geometry.metadata_bytes() - at);
            let start = Sector::of_byte(at) + self.config.start();
            let range = SectorRange::new(start, SectorCount::of_bytes(len));
            bytes.extend(read_sectors(env, &self.config.cache, range).await?);
            at += len;
        }
        Ok(bytes)
    }

    /// A process that died leaves completed writes in the drive's volatile cache, and they were
    /// just read. Slots are handed out (I3) and flushes answered on the strength of what was
    /// read, so it has to be durable first.
    async fn make_what_was_read_durable(&self, env: &Env) -> Result<(), ConfigError> {
        if self.read_only || self.state.lock().broken {
            return Ok(());
        }
        let failed = |error| unreadable(&self.config.cache, "flush", error);
        self.flush_cache(env).await.map_err(failed)
    }

    /// Makes what was decided durable.
    async fn settle(
        &self,
        env: &Env,
        ledger: &mut Ledger,
        decisions: &Decisions,
    ) -> Result<(), ConfigError> {
        let untouchable = self.read_only || self.state.lock().broken;
        if untouchable || decisions.identical.is_some() || decisions.free.is_empty() {
            return Ok(());
        }
        decisions.free.iter().for_each(|&slot| ledger.set_free(slot));
        let failed = |error| unreadable(&self.config.cache, "entries", error);
        self.write_changed(env, ledger).await.map_err(failed)?;
        self.flush_cache(env).await.map_err(failed)
    }

    /// Fills the index and starts serving.
    fn take_over(&self, env: &Env, seq: Seq, decisions: &Decisions) {
        let mut state = State::new(self.geometry.n_blocks() as u32);
        for (slot, entry) in &decisions.keep {
            let block = entry.original_sector / self.block_sectors;
            state.index.insert(*slot, block, entry.seq, SlotState::Committed, env.now());
        }
        for slot in 0..state.index.len() {
            if state.index.slot(slot).state == SlotState::Doomed {
                state.index.release(slot);
            }
        }
        (state.durable_seq, state.stamp_seq) = (seq, seq);
        state.last_around = env.now();
        {
            let mut old = self.state.lock();
            state.cleaner = old.cleaner;
            state.flush_on_suspend = old.flush_on_suspend;
            state.broken = old.broken;
            state.tasks = old.tasks;
            *old = state;
            old.suspended = false;
            if let Some((first, second)) = decisions.identical {
                let cache = &self.config.cache.argument;
                let seq = old.index.slot(second).seq.0;
                tracing::error!(
                    "writecache: {cache}: entries {first} and {second} have the same sector and \
                     seq_count {seq}: corrupt; keeping {second}, no writes until it is repaired"
                );
                old.broken = true;
            }
        }
        if !self.read_only {
            self.spawn(env, |cache, env| cache.keep(env));
        }
    }

    async fn format(&self, env: &Env) -> Result<Superblock, ConfigError> {
        let failed = |error| unreadable(&self.config.cache, "metadata", error);
        let end = self.geometry.metadata_bytes();
        let superblock = Superblock::fresh(&self.geometry);
        for at in (0..end).step_by(PIECE_BYTES as usize) {
            let mut piece = vec![0; PIECE_BYTES.min(end - at) as usize];
            self.geometry.fill_fresh(&[0; SUPERBLOCK_BYTES], at, &mut piece);
            self.write_area(env, at, &piece, Flags::empty()).await.map_err(failed)?;
        }
        self.flush_cache(env).await.map_err(failed)?;
        let range = self.geometry.superblock_write();
        let mut first = vec![0; (range.end - range.start) as usize];
        self.geometry.fill_fresh(&superblock.encode(), range.start, &mut first);
        self.write_area(env, range.start, &first, Flags::FUA).await.map_err(failed)?;
        Ok(superblock)
    }

    /// Suspend: writes back if that was asked for, commits, stops every task.
    pub(super) async fn stop(&self, env: &Env) {
        let (live, write_back) = {
            let mut state = self.state.lock();
            let live = !state.suspended && !self.read_only;
            let asked = std::mem::take(&mut state.flush_on_suspend) || state.cleaner;
            (live, asked && !state.broken)
        };
        if live {
            if write_back && let Err(error) = self.drain(env).await {
                let cache = &self.config.cache.argument;
                tracing::warn!("writecache: {cache}: writeback on suspend did not finish: {error}");
            }
            let broken = self.state.lock().broken;
            if !broken && let Err(error) = self.flush_both(env).await {
                let cache = &self.config.cache.argument;
                tracing::error!("writecache: {cache}: commit on suspend failed: {error}");
            }
        }
        self.state.lock().stopping = true;
        self.changed.notify(usize::MAX);
        loop {
            let changed = self.changed.listen();
            if self.state.lock().tasks == 0 {
                break;
            }
            changed.await;
        }
        let mut state = self.state.lock();
        if cfg!(debug_assertions) {
            state.index.check();
        }
        state.suspended = true;
        state.handing_back = false;
    }
}
