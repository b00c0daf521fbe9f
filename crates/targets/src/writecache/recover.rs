//! Opening a cache: constructor, formatting and recovery. Also stopping it.
//!
//! The constructor checks arguments and the header only. Resume reads the header again, because
//! another user may have changed the device since. It formats a blank device. For an existing
//! cache, recovery decides about every entry:
//!
//! - an entry whose seq is not below the superblock's never counted, so its slot is free;
//! - of several committed entries of one block the highest seq wins, the others are freed;
//! - two with the same seq mean a corrupt device: nothing is written, and reads keep working;
//! - more than `VERSIONS_MAX` committed entries of one block are refused: no cache wrote such
//!   metadata.
//!
//! The metadata just read is made durable first, since the drive's cache may hold writes of a
//! killed process. The decisions are durable before the first request is admitted. A second crash
//! therefore finds each entry either in its old or in its decided state, and the same decisions
//! follow. If the cache device failed at any time while this server ran, a flush does not make
//! durable what was read: all metadata is written again, as read and decided, superblock included.
//! The superblock may be written, since its seq was raised only when the entries that it counts
//! were durable.
//!
//! Only a blank device is formatted (see `blank`), and only in front of an origin that is no cache,
//! store or pool itself. Formatting writes the area with a blank superblock, flushes, then writes
//! the superblock with FUA. A crash in between leaves a superblock of zeros with entries of a fresh
//! cache or zeros behind it; this counts as blank.
//!
//! With `read_only` nothing is written: slots are freed in memory only.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::dirty_marker::NO_UUID;
use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, ConfigKind, Copier, Counters, CrashLog, Ctor, Env, ErrorKind, Flags, Io, IoError,
    Left, Record, Sector, SectorCount, SectorRange, Target, failures_at_opening, failures_beneath,
    invariants, mutants,
};
use cairn_format::probe::Kind;
use cairn_format::writecache::{
    BlockSize, ENTRY_BYTES, Entry, EntryState, Error as FormatError, Geometry, MAX_BLOCK_SIZE,
    Opening, SUPERBLOCK_BYTES, Seq, Superblock,
};

use super::acknowledged::{Place, replay};
use super::commit::Metadata;
use super::config::{Config, SPEC};
use super::index::{BLOCK_END, Builder, Index, SLOTS_END, VERSIONS_MAX};
use super::pace::Pace;
use super::writeback::{Undrained, copy_budget_bytes};
use super::{State, WriteCache};
use crate::args::Device;
use crate::blank::{Formatting, read_sectors, unreadable};
use crate::fair::Fair;
use crate::flushes::Flushes;
use crate::kind::TargetKind;
use crate::losses::{FAILED, UNTOLD};
use crate::origin_marker::{OriginMarker, Plans};

/// Metadata is read and formatted in pieces of this many bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// How many pieces are read at once.
const READS_AHEAD: usize = 4;
/// The time of an insertion is known to within this part of max_age.
const AGE_GRAINS: u32 = 64;
/// The same without max_age, where the time only tells how old dirty data is.
const AGE_GRAIN: Duration = Duration::from_secs(60);

/// The state of a blank cache device, for its crash log.
const BLANK: u64 = u64::MAX - 1;
/// Why a suspend may have lost something.
const NOT_FLUSHED: &str =
    "suspended while the server ends, what was written around the cache may not be durable";

/// The kind of target `writecache`.
pub const KIND: TargetKind =
    TargetKind { spec: &SPEC, construct: |env, ctor| Box::pin(construct(env, ctor)) };

async fn construct(env: &Env, ctor: Ctor<'_>) -> Result<Arc<dyn Target>, ConfigError> {
    let config = Config::parse(&ctor)?;
    check_devices(&config, &ctor)?;
    let header = read_header(env, &config).await?;
    let formats = matches!(header, Opening::Format);
    let geometry = match header {
        Opening::Existing(superblock) => geometry_of(&config, &superblock)?,
        Opening::Format => {
            refuse_to_format(env, &config).await?;
            let area = area_bytes(&config);
            Geometry::for_format(area, config.block_size)
                .map_err(|error| damaged(&config.cache, &error))?
        }
    };
    let slots = u32::try_from(geometry.n_blocks()).ok().filter(|&n| n < SLOTS_END);
    if slots.is_none() {
        let detail = format!(
            "n_blocks: found {}, expected at most {} (more is not supported)",
            geometry.n_blocks(),
            SLOTS_END - 1
        );
        let cache = &config.cache.argument;
        return Err(ConfigError::new(ConfigKind::Unsupported, cache, detail));
    }
    Ok(WriteCache::new(env, config, geometry, formats, &ctor)?)
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
    config.cache.disk.sectors().to_bytes() - config.start.to_bytes()
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
    let (start, size) = (config.start, cache.disk.sectors());
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
    if !ctor.read_only {
        origin.refuse_read_only("origin", SectorRange::new(Sector(0), ctor.len))?;
        let own = SectorRange::between(Sector(start.0), Sector(cache.disk.sectors().0));
        cache.refuse_read_only("cache", own)?;
    }
    if size.0 / u64::from(config.block_size.sectors()) >= BLOCK_END {
        let detail = format!("size: found {size} sectors, expected fewer than 2^48 cache blocks");
        return Err(ConfigError::new(ConfigKind::Unsupported, &origin.argument, detail));
    }
    if !ctor.len.0.is_multiple_of(u64::from(config.block_size.sectors())) {
        let expected = format!("a multiple of the block size, {} sectors", block / 512);
        return refuse(origin, "length of the table line", ctor.len.to_string(), &expected);
    }
    Ok(())
}

async fn read_header(env: &Env, config: &Config) -> Result<Opening, ConfigError> {
    let start = Sector(config.start.0);
    let sector = SectorRange::new(start, SectorCount::of_bytes(512));
    let bytes = read_sectors(env, &config.cache, sector).await?;
    match Opening::decide(&bytes, config.block_size) {
        Ok(opening) => Ok(opening),
        Err(error) => {
            let refusal = damaged(&config.cache, &error);
            Err(formatting(config).with_signatures(env, Kind::Writecache, refusal).await)
        }
    }
}

/// What formatting the cache would write over.
fn formatting(config: &Config) -> Formatting<'_> {
    let mut options = String::new();
    if config.block_size.bytes() != MAX_BLOCK_SIZE {
        options.push_str(&format!(" --block-size {}", config.block_size.bytes()));
    }
    if config.start > SectorCount::ZERO {
        options.push_str(&format!(" --start-sector {}", config.start));
    }
    Formatting {
        device: &config.cache,
        start: config.start,
        kind: "writecache",
        options,
        is_own_remainder: Geometry::is_interrupted_format,
    }
}

/// Refuses a cache device that is not blank, and an origin that is no origin.
async fn refuse_to_format(env: &Env, config: &Config) -> Result<(), ConfigError> {
    let formatting = formatting(config);
    formatting.refuse_unless_blank(env).await?;
    formatting.refuse_layer(env, &config.origin).await
}

fn geometry_of(config: &Config, superblock: &Superblock) -> Result<Geometry, ConfigError> {
    let seq = superblock.seq();
    if seq >= Seq::END {
        let detail = format!("superblock seq_count: found {}, expected less than 2^63", seq.0);
        return Err(ConfigError::new(ConfigKind::Damaged, &config.cache.argument, detail));
    }
    Geometry::of_superblock(superblock, area_bytes(config))
        .map_err(|error| damaged(&config.cache, &error))
}

/// What the metadata held.
struct Found {
    builder: Builder,
    /// Slots whose entries never counted.
    uncommitted: Vec<u32>,
    /// The bytes after the last entry.
    tail: Vec<u8>,
    next_slot: u32,
}

impl WriteCache {
    fn new(
        env: &Env,
        config: Config,
        geometry: Geometry,
        formats: bool,
        ctor: &Ctor<'_>,
    ) -> Result<Arc<WriteCache>, ConfigError> {
        let crash_log = Place::of(ctor, &config, &geometry)?;
        let devices = (&config.origin, config.cache.argument.as_str());
        let marker = OriginMarker::new(ctor, &config.volume, SPEC.name, devices);
        let mut state = State::new(Index::new(0, None));
        state.cleaner = config.cleaner;
        Ok(Arc::new_cyclic(|me| WriteCache {
            me: me.clone(),
            read_only: ctor.read_only,
            failures: ctor.failures.clone(),
            origin: config.origin.disk.clone(),
            cache: config.cache.disk.clone(),
            block_sectors: u64::from(geometry.sectors_per_block()),
            geometry,
            formats,
            crash_log,
            marker,
            copier: Copier::new(copy_budget_bytes(&config)),
            counters: Counters::new(env),
            tasks: Arc::default(),
            config,
            state: Mutex::new(state),
            metadata: Fair::new(Metadata::empty()),
            changed: event_listener::Event::new(),
        }))
    }

    /// Resume: reads the metadata, recovers, starts the background task.
    pub(super) async fn start(&self, env: &Env) -> Result<(), ConfigError> {
        let beneath = failures_beneath(self.cache.as_ref());
        let known = self.cache.failures();
        self.marker.look(env, NO_UUID).await?;
        let superblock = match read_header(env, &self.config).await? {
            Opening::Existing(superblock) => superblock,
            Opening::Format if self.read_only => return self.start_empty(env).await,
            Opening::Format => {
                refuse_to_format(env, &self.config).await?;
                self.marker.refuse(env).await?;
                self.open_crash_log(BLANK)?;
                self.format(env).await?
            }
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
        let found = self.read_metadata(env, &superblock).await?;
        let seq = superblock.seq();
        let crash_log = self.open_crash_log(seq.0)?;
        let (mut index, decided) = found.builder.finish(env.now());
        if let Some((block, versions)) = decided.crowded {
            return Err(self.crowded(block, versions));
        }
        (index.durable_seq, index.stamp_seq) = (seq, seq);
        let mut state = State::new(index);
        state.broken = decided.identical.is_some();
        state.cache_known = known;
        self.take_over(env, state);
        self.make_what_was_read_durable(env, known).await?;
        if let Some((first, second)) = decided.identical {
            self.report_identical(first, second);
        } else if !self.read_only {
            let mut metadata = self.metadata.lock().await;
            *metadata = Metadata::of(superblock, found.tail);
            let freed = found.uncommitted.iter().chain(&decided.superseded);
            freed.for_each(|&slot| metadata.touch(slot, 1));
            if known > 0 {
                metadata.touch(0, geometry.n_blocks() as u32);
            }
            self.settle(env, &mut metadata).await?;
            drop(metadata);
            if let Some((log, left)) = crash_log {
                self.replay(env, log, left, beneath).await?;
            }
            self.make_origin_durable(env).await;
        } else if let Some((mut log, Left::Records(records))) = crash_log {
            if log.take_loss() {
                let (volume, cache) = (&self.config.volume, &self.config.cache.argument);
                tracing::warn!(
                    "{volume}: {cache}: a server was killed after a failure of the cache device: \
                     acknowledged writes may be missing in what is read"
                );
            }
            self.enter(env, &records)?;
        }
        self.stand_marker(env).await?;
        self.report_found(found.uncommitted.len());
        self.open(env);
        Ok(())
    }

    /// Has the marker stand, before anything is written to the origin.
    async fn stand_marker(&self, env: &Env) -> Result<(), ConfigError> {
        let is_dirty = self.what_is_dirty().is_some();
        let (makes_dirty, read_only) = (!self.read_only, self.read_only);
        self.marker.stand(env, NO_UUID, Plans { is_dirty, makes_dirty, read_only }).await
    }

    /// The crash log, with what a killed process left in it. What fails from now on fails the
    /// start.
    ///
    /// # Errors
    /// It is of another state of the device.
    fn open_crash_log(&self, state: u64) -> Result<Option<(CrashLog, Left)>, ConfigError> {
        let failures = failures_at_opening(self.cache.as_ref());
        let opened = self.crash_log.as_ref().map(|place| place.open(&place.base(state, failures)));
        let Some((_, Left::Foreign(states))) = &opened else { return Ok(opened) };
        let states: Vec<String> = states.iter().map(u64::to_string).collect();
        let expected = if state == BLANK { "none".to_owned() } else { state.to_string() };
        let detail = format!(
            "crash log: found acknowledged writes of a killed server on top of seq_count {}, \
             expected {expected} as on the device: it was used by something else, or for another \
             origin; `cairn serve --discard-crash-log` gives these writes up",
            states.join(" and "),
        );
        Err(ConfigError::new(ConfigKind::Damaged, &self.config.cache.argument, detail))
    }

    /// Enters what a killed process had acknowledged, and commits it (A5).
    async fn replay(
        &self,
        env: &Env,
        mut log: CrashLog,
        left: Left,
        beneath: u64,
    ) -> Result<(), ConfigError> {
        let (volume, cache) = (&self.config.volume, &self.config.cache.argument);
        let place = self.crash_log.as_ref().expect("the log was opened there");
        if self.state.lock().broken {
            // I16: no record stands for data. The log stays as it is until a table is loaded.
            self.state.lock().acknowledged.keep(Some(log));
            return Ok(());
        }
        if let Left::Records(records) = left
            && !records.is_empty()
        {
            if let Some(next) = self.enter(env, &records)? {
                log.include(next.0);
                self.commit_once(env).await;
            }
            // No request was admitted yet. The next resume reads the crash log and the failure
            // counts again.
            if std::mem::take(&mut self.state.lock().broken) {
                return Err(unreadable(&self.config.cache, "crash log", IoError::IO));
            }
            let count = records.len();
            tracing::warn!(
                "{volume}: {cache}: a server was killed: {count} records of acknowledged writes \
                 are in the cache again, and durable"
            );
        }
        let is_lost = log.take_loss();
        let mut state = self.state.lock();
        log.begin(&place.base(state.index.durable_seq.0, beneath));
        state.acknowledged.keep(Some(log));
        if is_lost {
            tracing::error!(
                "{volume}: {cache}: acknowledged writes of a server that was killed may be lost"
            );
            self.lose(&mut state);
        }
        Ok(())
    }

    /// Enters records into the index. Answers with the seq that a commit of them will leave, if
    /// something is uncommitted then.
    fn enter(&self, env: &Env, records: &[Record]) -> Result<Option<Seq>, ConfigError> {
        let mut state = self.state.lock();
        if !replay(&mut state.index, records, env.now()) {
            let detail = "crash log: a record names a slot that is in use; the device was used by \
                          something else since a server was killed";
            let cache = &self.config.cache.argument;
            return Err(ConfigError::new(ConfigKind::Damaged, cache, detail));
        }
        let has_any = state.index.uncommitted > 0;
        Ok(state.index.stamp_seq.next().filter(|_| has_any))
    }

    /// Writes around the cache by a killed process may be in the origin's volatile cache only.
    /// Clients read them, and no failure count of a client would report their loss. A failure may
    /// have lost them already, with nobody there to be told (O5).
    async fn make_origin_durable(&self, env: &Env) {
        let flushed = env.make_durable(&self.origin).await;
        if let Err(error) = flushed {
            let (volume, origin) = (&self.config.volume, &self.config.origin.argument);
            tracing::warn!("{volume}: {origin}: flush failed: {error}; what was read may be lost");
        }
        let count = self.origin.failures();
        let is_untold = count != self.origin.failures_told();
        if flushed.is_err() || is_untold {
            self.lose(&mut self.state.lock());
            self.tell_loss_around(env);
        }
        self.origin.acknowledge_failures(count);
    }

    /// Logs what was recovered.
    fn report_found(&self, uncommitted: usize) {
        let (volume, cache) = (&self.config.volume, &self.config.cache.argument);
        let dirty = self.state.lock().index.cached_blocks();
        if dirty > 0 || uncommitted > 0 {
            tracing::info!(
                "{volume}: {dirty} dirty blocks found on {cache}, {uncommitted} entries dropped \
                 that were not committed"
            );
        }
    }

    fn crowded(&self, block: u64, versions: usize) -> ConfigError {
        let detail = format!(
            "entries of sector {}: found {versions} that count, expected at most {VERSIONS_MAX}",
            block * self.block_sectors
        );
        ConfigError::new(ConfigKind::Damaged, &self.config.cache.argument, detail)
    }

    /// A blank device that is open read-only is served as an empty cache.
    async fn start_empty(&self, env: &Env) -> Result<(), ConfigError> {
        self.marker.refuse(env).await?;
        let cache = &self.config.cache.argument;
        let volume = &self.config.volume;
        tracing::warn!("{volume}: {cache}: found blank, read-only: opened as an empty cache");
        let (index, _) = Builder::new(self.empty_index()).finish(env.now());
        self.take_over(env, State::new(index));
        self.open(env);
        Ok(())
    }

    fn empty_index(&self) -> Index {
        let grain = self.config.max_age.map_or(AGE_GRAIN, |age| age / AGE_GRAINS);
        Index::new(self.geometry.n_blocks() as u32, Some(grain))
    }

    /// Reads the metadata with several large requests in flight, and decodes it in their buffers.
    async fn read_metadata(
        &self,
        env: &Env,
        superblock: &Superblock,
    ) -> Result<Found, ConfigError> {
        let mut found = Found {
            builder: Builder::new(self.empty_index()),
            uncommitted: Vec::new(),
            tail: Vec::new(),
            next_slot: 0,
        };
        let end = self.geometry.metadata_bytes();
        let mut ahead = VecDeque::new();
        let mut at = 0;
        while at < end || !ahead.is_empty() {
            while at < end && ahead.len() < READS_AHEAD {
                let len = PIECE_BYTES.min(end - at);
                let start = Sector::of_byte(at) + self.config.start;
                let range = SectorRange::new(start, SectorCount::of_bytes(len));
                let segs = env.segs(range.count);
                let read = env.io(&self.cache, Io::read(range, segs.clone()).with(Flags::META));
                ahead.push_back((at, range, segs, read));
                at += len;
            }
            let (from, range, segs, read) = ahead.pop_front().expect("something is left to read");
            let failed = |error| unreadable(&self.config.cache, &format!("sectors {range}"), error);
            read.await.map_err(failed)?;
            let skip = if from == 0 { SUPERBLOCK_BYTES } else { 0 };
            let mut result = Ok(());
            segs.for_each(skip, segs.bytes() - skip, |bytes| {
                if result.is_ok() {
                    result = self.take_entries(superblock.seq(), &mut found, bytes);
                }
            });
            result?;
        }
        Ok(found)
    }

    fn take_entries(&self, seq: Seq, found: &mut Found, bytes: &[u8]) -> Result<(), ConfigError> {
        let left = self.geometry.n_blocks() - u64::from(found.next_slot);
        let len = (left as usize).saturating_mul(ENTRY_BYTES).min(bytes.len());
        let (entries, tail) = bytes.split_at(len);
        found.tail.extend_from_slice(tail);
        let size = self.origin.sectors();
        for entry in Entry::iter(entries) {
            let slot = found.next_slot;
            found.next_slot += 1;
            match entry.state(seq) {
                EntryState::Free => (),
                EntryState::Uncommitted => found.uncommitted.push(slot),
                EntryState::Committed => {
                    let block = self.block_of(slot, &entry, size)?;
                    found.builder.push(slot, block, entry.seq);
                }
            }
        }
        Ok(())
    }

    /// The block of an entry. One beyond the origin belongs to another device, or the origin
    /// shrank.
    fn block_of(&self, slot: u32, entry: &Entry, size: SectorCount) -> Result<u64, ConfigError> {
        let sector = entry.original_sector;
        let end = sector.checked_add(self.block_sectors);
        // A power of two: 26 million divisions would be seen.
        if end.is_none_or(|end| end > size.0) || sector & (self.block_sectors - 1) != 0 {
            let detail = format!(
                "entry {slot} original_sector: found {sector}, expected a multiple of {} \
                 with a block before the end of the origin, sector {size}",
                self.block_sectors
            );
            let cache = &self.config.cache.argument;
            return Err(ConfigError::new(ConfigKind::Damaged, cache, detail));
        }
        Ok(sector >> self.block_sectors.trailing_zeros())
    }

    /// A killed process leaves completed writes in the drive's volatile cache, and recovery has
    /// just read them. Slots are reused (I3) and flushes answered on the basis of what was read, so
    /// it must be durable first.
    async fn make_what_was_read_durable(&self, env: &Env, known: u64) -> Result<(), ConfigError> {
        if self.read_only || self.state.lock().broken {
            return Ok(());
        }
        let failed = |error| unreadable(&self.config.cache, "flush", error);
        let flush = self.flush_cache(env);
        mutants::step("writecache: flush at opening", (), flush).await.map_err(failed)?;
        let name = "writecache: failure count at opening";
        let kept = mutants::same(name, known, self.cache.failures());
        if kept { Ok(()) } else { Err(failed(IoError::IO)) }
    }

    /// Makes what was decided durable.
    async fn settle(&self, env: &Env, metadata: &mut Metadata) -> Result<(), ConfigError> {
        if metadata.is_unchanged() || self.state.lock().broken {
            return Ok(());
        }
        let failed = |error| unreadable(&self.config.cache, "entries", error);
        let name = "writecache: flush of what recovery decided";
        self.write_durably(env, metadata, name).await.map_err(failed)
    }

    /// Installs the recovered state. No request is admitted yet.
    fn take_over(&self, env: &Env, mut state: State) {
        state.last_around = env.now();
        state.last_write = state.last_around;
        state.pace = Pace::of(self.cache.nature(), self.origin.nature());
        state.origin_flushes = Flushes::new(self.origin.failures());
        let mut old = self.state.lock();
        state.cleaner = old.cleaner;
        state.flush_on_suspend = old.flush_on_suspend;
        state.broken |= old.broken;
        *old = state;
    }

    fn report_identical(&self, first: u32, second: u32) {
        let (volume, cache) = (&self.config.volume, &self.config.cache.argument);
        let seq = self.state.lock().index.at(second).map_or(0, |run| run.seq.0);
        tracing::error!(
            "{volume}: {cache}: entries {first} and {second} have the same sector and \
             seq_count {seq}: corrupt; keeping {second}, no writes until it is repaired"
        );
    }

    /// Starts serving.
    fn open(&self, env: &Env) {
        let mut state = self.state.lock();
        state.suspended = false;
        if state.cleaner {
            self.begin_sweep(&mut state);
        }
        drop(state);
        if !self.read_only {
            self.spawn(env, async |cache, env| cache.keep(env).await);
        }
    }

    async fn format(&self, env: &Env) -> Result<Superblock, ConfigError> {
        let failed = |error| unreadable(&self.config.cache, "metadata", error);
        let failures = self.cache.failures();
        let end = self.geometry.metadata_bytes();
        let superblock = Superblock::fresh(&self.geometry);
        for at in (0..end).step_by(PIECE_BYTES as usize) {
            let mut piece = vec![0; PIECE_BYTES.min(end - at) as usize];
            self.geometry.fill_fresh(&[0; SUPERBLOCK_BYTES], at, &mut piece);
            self.write_area(env, at, &piece, Flags::empty()).await.map_err(failed)?;
        }
        let flush = self.flush_cache(env);
        mutants::step("writecache: flush of a fresh table", (), flush).await.map_err(failed)?;
        let name = "writecache: failure count of a fresh table";
        if !mutants::same(name, failures, self.cache.failures()) {
            return Err(failed(IoError::IO));
        }
        let range = self.geometry.superblock_write();
        let mut first = vec![0; (range.end - range.start) as usize];
        self.geometry.fill_fresh(&superblock.encode(), range.start, &mut first);
        let flags = mutants::fua("writecache: FUA of a fresh superblock");
        self.write_area(env, range.start, &first, flags).await.map_err(failed)?;
        Ok(superblock)
    }

    /// Suspend: writes back if that was asked for, commits, stops every task.
    ///
    /// # Errors
    /// Acknowledged writes may be lost.
    pub(super) async fn stop(&self, env: &Env) -> Result<(), ConfigError> {
        let (live, write_back) = {
            let mut state = self.state.lock();
            let live = !state.suspended && !self.read_only;
            let asked = std::mem::take(&mut state.flush_on_suspend) || state.cleaner;
            (live, asked && !state.broken)
        };
        let rest = if live { self.bring_to_rest(env, write_back).await } else { Rest::default() };
        self.state.lock().stopping = true;
        self.changed.notify(usize::MAX);
        self.tasks.idle().await;
        if rest.is_durable && self.what_is_dirty().is_none() {
            self.marker.fall(env).await;
        }
        let mut state = self.state.lock();
        invariants::always(|| state.check_whole());
        state.suspended = true;
        (state.suspending, state.handing_back) = (false, false);
        if mutants::skips("writecache: result of a suspend") {
            return Ok(());
        }
        let is_untold = state.losses.are_untold();
        let (device, detail) = match (state.broken && state.has_volatile(), is_untold) {
            (true, _) => (&self.config.cache, FAILED),
            (false, true) if rest.left_suspended => (&self.config.origin, NOT_FLUSHED),
            (false, true) => (&self.config.origin, UNTOLD),
            (false, false) => return Ok(()),
        };
        Err(ConfigError::new(ConfigKind::System, &device.argument, detail))
    }

    /// Writes back if asked to, and commits. `stop` reports failures at its end.
    async fn bring_to_rest(&self, env: &Env, write_back: bool) -> Rest {
        let (volume, cache) = (&self.config.volume, &self.config.cache.argument);
        if write_back && let Err(Undrained::Failed(error)) = self.drain(env, false).await {
            tracing::warn!("{volume}: {cache}: writeback on suspend did not finish: {error}");
        }
        let broken = self.state.lock().broken;
        let [committed, flushed] = if broken {
            [Ok(()), self.flush_origin(env).await]
        } else {
            self.flush_each(env).await
        };
        if let Err(error) = committed {
            tracing::error!("{volume}: {cache}: commit on suspend failed: {error}");
        }
        let origin = &self.config.origin.argument;
        let mut left_suspended = false;
        match flushed {
            // No device failed.
            Err(error) if error.kind == ErrorKind::Shutdown => {
                let line = format!("{volume}: {origin}: {NOT_FLUSHED}");
                env.warn(&line, || line.clone());
                left_suspended = true;
            }
            Err(error) => {
                tracing::error!("{volume}: {origin}: flush on suspend failed: {error}");
            }
            Ok(()) => {}
        }
        Rest { left_suspended, is_durable: committed.is_ok() && flushed.is_ok() && !broken }
    }
}

/// How a live volume came to rest.
#[derive(Default)]
struct Rest {
    /// The server ends while the origin is suspended.
    left_suspended: bool,
    /// Both devices have durably what they were given.
    is_durable: bool,
}
