//! `thin-pool`: the target, and how a pool is opened, handed from table to table, and grown.
//!
//! The constructor checks arguments and the superblock's fixed fields. At resume the pool is
//! formatted if its metadata device is blank (see `blank`), opened, or taken over unchanged from a
//! suspended table. Then it is grown to the table's length and to the size of the metadata device.
//! Recovery is reading the superblock, and the crash log if a process was killed (`acknowledged`).
//!
//! H1. A metadata device has one open pool, served by one live table. The table answers for this
//!     pool only.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{
    Attribute, Claim, ClaimKind, ConfigError, ConfigKind, Ctor, Disk, Env, Events, Extent, IoError,
    Limits, LocalFuture, MessageError, Report, Request, Sector, SectorCount, SectorRange, Target,
    Verdict,
};
use cairn_format::probe::Kind;
use cairn_format::thin::{DataBlockSize, Opening};

use super::acknowledged::Place;
use super::config::{DetectZeroes, Discards, POOL_SPEC, PoolConfig};
use super::losses::Owed;
use super::message::not_serving;
use super::metadata::{MetadataError, PoolMetadata};
use super::pool::{Mode, Pool, Terms};
use super::status;
use super::stock::Purpose;
use crate::args::{Args, Device};
use crate::blank::Formatting;
use crate::kind::TargetKind;
use crate::persistent::{Error, Store, Working};
use crate::shared_core::{Served, SharedCore, User};

/// The kind of target `thin-pool`.
pub const KIND: TargetKind =
    TargetKind { spec: &POOL_SPEC, construct: |env, ctor| Box::pin(construct(env, ctor)) };

async fn construct(env: &Env, ctor: Ctor<'_>) -> Result<Arc<dyn Target>, ConfigError> {
    let config = PoolConfig::parse(&ctor)?;
    look(env, &config).await?;
    let identity = ctor.registry.identify(&config.metadata.argument)?;
    let user = ctor.registry.kin(&identity, Arc::<SharedCore<Pool>>::default).join();
    let events = ctor.events.clone();
    let detect = Mutex::new(config.options.detect);
    let owed = ctor.registry.kin(&identity, Arc::<Owed>::default);
    let crash_log = Place::of(&ctor, &config)?;
    let table = ThinPool { config, user, events, pool: Mutex::default(), detect, crash_log, owed };
    // If the pool is live, this refuses now what the resume would refuse.
    let live = table.user.core().filter(|pool| goes_on(pool));
    live.map_or(Ok(()), |pool| table.refuse_other_discards(&pool))?;
    Ok(Arc::new(table))
}

/// An error of the metadata as one line about a device.
pub(super) fn config_error(device: &Device, error: &MetadataError) -> ConfigError {
    let kind = match error {
        MetadataError::Data(_) | MetadataError::Commit(_) => ConfigKind::System,
        MetadataError::Metadata(Error::Io { .. }) => ConfigKind::System,
        MetadataError::Metadata(Error::Damaged { .. }) => ConfigKind::Damaged,
        MetadataError::Metadata(Error::Unsupported(_)) => ConfigKind::Unsupported,
        _ => ConfigKind::Argument,
    };
    ConfigError::new(kind, &device.argument, error.to_string())
}

fn metadata_error(config: &PoolConfig, error: Error) -> ConfigError {
    config_error(&config.metadata, &MetadataError::Metadata(error))
}

fn block_size(config: &PoolConfig) -> DataBlockSize {
    let sectors = u32::try_from(config.block_sectors).expect("the parser looked");
    DataBlockSize::new(sectors).expect("the parser looked")
}

fn device_blocks(config: &PoolConfig) -> u64 {
    config.metadata.disk.sectors().0 / METADATA_BLOCK_SECTORS
}

/// Refuses a metadata device with fewer blocks than `least`.
fn refuse_smaller(config: &PoolConfig, least: u64, why: &str) -> Result<(), ConfigError> {
    let blocks = device_blocks(config);
    if blocks >= least {
        return Ok(());
    }
    let (device, found) = (&config.metadata.argument, format!("{blocks} blocks"));
    let expected = format!("at least {least}, {why} (EINVAL)");
    Err(ConfigError::argument(device, "size", found, &expected))
}

/// Looks at the superblock: true if there is none, and one may be written.
async fn look(env: &Env, config: &PoolConfig) -> Result<bool, ConfigError> {
    let metadata = &config.metadata;
    let opening = match Store::look(env, &metadata.disk).await {
        Ok(opening) => opening,
        Err(error) => {
            let is_read = !matches!(error, Error::Io { .. });
            let refusal = metadata_error(config, error);
            return Err(match is_read {
                true => formatting(config).with_signatures(env, Kind::ThinMetadata, refusal).await,
                false => refusal,
            });
        }
    };
    let superblock = match opening {
        Opening::Existing(superblock) => superblock,
        Opening::Blank if config.options.read_only => {
            let detail = "superblock: found zeros, expected a formatted pool to read (EPERM)";
            return Err(ConfigError::new(ConfigKind::Argument, &metadata.argument, detail));
        }
        Opening::Blank => {
            refuse_smaller(config, FORMAT_BLOCKS_MIN, "for a pool without anything in it")?;
            formatting(config).refuse_unless_blank(env).await?;
            return Ok(true);
        }
    };
    refuse_smaller(config, superblock.metadata_space_map.blocks, "as the metadata counts")?;
    let (found, expected) = (superblock.data_block_size, block_size(config));
    if found != expected {
        let expected = format!("{} sectors, as in the superblock", found.sectors());
        let found = format!("{} sectors in the table", config.block_sectors);
        let field = "block_sectors";
        return Err(ConfigError::argument(&metadata.argument, field, found, &expected));
    }
    Ok(false)
}

/// The device that formatting the metadata would overwrite.
fn formatting(config: &PoolConfig) -> Formatting<'_> {
    let block_bytes = block_size(config).sectors() * 512;
    Formatting {
        device: &config.metadata,
        start: SectorCount::ZERO,
        kind: "thin-pool",
        options: format!(" --block-size {block_bytes}"),
        is_own_remainder: |_| false,
    }
}

/// True if the next table takes the pool over unchanged; otherwise it opens it again.
fn goes_on(pool: &Pool) -> bool {
    pool.mode() != Mode::Fail || pool.open_volumes().iter().any(|volume| volume.is_used())
}

/// The target.
pub struct ThinPool {
    pub(super) config: PoolConfig,
    user: User<Pool>,
    events: Events,
    /// The pool that it served last; none before it was ever live.
    pool: Mutex<Option<Arc<Pool>>>,
    /// How zeros are handled: as the table says, then as the last message does.
    detect: Mutex<DetectZeroes>,
    /// Where its crash log is; none if there is none.
    pub(super) crash_log: Option<Place>,
    owed: Arc<Owed>,
}

impl Drop for ThinPool {
    fn drop(&mut self) {
        drop(self.user.leave());
    }
}

impl ThinPool {
    /// The pool, if the table was ever live.
    pub(super) fn pool(&self) -> Option<Arc<Pool>> {
        self.pool.lock().clone()
    }

    /// Handles zeros as the last message to `former` said, which is another table of this pool. The
    /// caller sees to it that neither table gets a message or serves a request now.
    pub fn keep_detect(&self, former: &ThinPool) {
        let mode = *former.detect.lock();
        *self.detect.lock() = mode;
        self.pool().inspect(|pool| pool.set_detect(mode));
    }

    pub(super) fn busy(&self, found: &str, expected: &str) -> ConfigError {
        let detail = format!("pool: found {found}, expected {expected}");
        ConfigError::new(ConfigKind::Busy, &self.config.metadata.argument, detail)
    }

    async fn start(&self, env: &Env) -> Result<(), ConfigError> {
        let serve = self.user.serve_or(
            |pool, served| self.takes(pool, served),
            async |_| self.open(env).await,
            async |pool| self.set_up(env, pool).await,
        );
        let (pool, _handover) = serve.await?;
        // Only now: a pool whose setup failed has no table.
        *self.pool.lock() = Some(pool.clone());
        pool.know_data();
        pool.start_keeper(env);
        pool.open(env);
        pool.space_came();
        Ok(())
    }

    /// True if the table serves a pool that is there; false if it is to be opened again.
    fn takes(&self, pool: &Pool, served: Served) -> Result<bool, ConfigError> {
        if served == Served::Live {
            return Err(self.busy("it served by a live table", "a suspended one"));
        }
        if pool.block != self.config.block() || !self.has_same_devices(pool) {
            return Err(self.busy("other devices or another block size", "those it serves"));
        }
        if !goes_on(pool) || self.must_replay(pool)? {
            return Ok(false);
        }
        self.refuse_other_discards(pool).map(|()| true)
    }

    /// Volumes have told their clients whether they take discards: that cannot change while the
    /// pool is live.
    fn refuse_other_discards(&self, pool: &Pool) -> Result<(), ConfigError> {
        let word = |ignores: bool| if ignores { "ignore_discard" } else { "no ignore_discard" };
        let ignores = |discards: Discards| discards == Discards::Ignore;
        let (wanted, live) = (ignores(self.config.options.discards), ignores(pool.discards()));
        if wanted == live {
            return Ok(());
        }
        let argument = &self.config.metadata.argument;
        let expected = format!("{}, as while the pool is live (EINVAL)", word(live));
        Err(ConfigError::argument(argument, "features", word(wanted), &expected))
    }

    /// The arguments as they are now.
    fn args(&self) -> Args {
        self.config.now(*self.detect.lock())
    }

    fn has_same_devices(&self, pool: &Pool) -> bool {
        let (metadata, data) = (&self.config.metadata.disk, &self.config.data.disk);
        Arc::ptr_eq(&pool.metadata_device.disk, metadata) && Arc::ptr_eq(&pool.data.disk, data)
    }

    async fn open(&self, env: &Env) -> Result<Arc<Pool>, ConfigError> {
        let config = &self.config;
        let metadata = &config.metadata.disk;
        let of = |error| metadata_error(config, error);
        if look(env, config).await? {
            self.refuse_log_of_another()?;
            Store::format_fresh(env, metadata, block_size(config)).await.map_err(of)?;
        }
        let read_only = config.options.read_only;
        let metadata = PoolMetadata::open(env, metadata, block_size(config), read_only).await;
        let terms = Terms {
            metadata_device: config.metadata.clone(),
            data: config.data.clone(),
            block: config.block(),
            options: config.options,
            low_water_blocks: config.low_water_blocks,
            events: self.events.clone(),
            owed: self.owed.clone(),
        };
        Ok(Pool::new(env, terms, metadata.map_err(of)?))
    }

    /// Applies the table to the pool: options, mode, sizes.
    async fn set_up(&self, env: &Env, pool: &Pool) -> Result<(), ConfigError> {
        let config = &self.config;
        if pool.mode() == Mode::Fail {
            // Volumes are open that must not wait for ever: they hear of it when they go on.
            return Ok(());
        }
        let (blocks, _) = pool.metadata.data_use();
        if config.data_blocks < blocks {
            let expected = format!("at least {blocks}, as the metadata maps (EINVAL)");
            let found = format!("{} data blocks", config.data_blocks);
            return Err(ConfigError::argument(&config.data.argument, "length", found, &expected));
        }
        let mut options = config.options;
        options.detect = *self.detect.lock();
        pool.set_options(options, config.low_water_blocks, &self.events);
        if pool.metadata.facts().needs_check {
            pool.metadata.mark(env).await;
            pool.set_mode(Mode::ReadOnly, "the metadata needs a check");
            return self.leave_log(pool).await;
        }
        if config.options.read_only {
            pool.set_mode(Mode::ReadOnly, "the table says read_only");
            return self.leave_log(pool).await;
        }
        let of = |error| metadata_error(config, error);
        pool.metadata.working().await.allow_changes(env).await.map_err(of)?;
        let log = self.take_log(env, pool).await?;
        self.grow(env, pool).await?;
        pool.price(pool.metadata.facts().shares());
        self.keep_log(pool, log).await;
        if pool.has_room(Purpose::Provide) {
            pool.set_mode(Mode::Write, "resumed");
        } else {
            pool.set_mode(Mode::OutOfMetadata, "no room is left in the metadata");
        }
        Ok(())
    }

    async fn grow(&self, env: &Env, pool: &Pool) -> Result<(), ConfigError> {
        let mut working = pool.metadata.working().await;
        let (data, metadata) = (working.data_blocks(), working.metadata_blocks());
        refuse_smaller(&self.config, metadata, "as the metadata counts")?;
        let device_blocks =
            device_blocks(&self.config).min(cairn_format::thin::METADATA_BLOCKS_MAX);
        if device_blocks == metadata && self.config.data_blocks == data {
            return Ok(());
        }
        let grown = grow_maps(env, &mut working, device_blocks, self.config.data_blocks).await;
        if matches!(grown, Err(Error::NoMetadataSpace)) {
            // Nothing was written yet: the metadata is sound, only too small for so much data.
            working.abort(env).await.map_err(|error| metadata_error(&self.config, error))?;
        }
        pool.metadata.note(&working);
        let broken = working.is_broken();
        drop(working);
        let Err(error) = grown else { return Ok(()) };
        let error = MetadataError::Metadata(error);
        if broken {
            // Half a change: only the durable state helps.
            pool.roll_back(env, &error).await;
        }
        Err(config_error(&self.config.metadata, &error))
    }
}

/// Makes the maps at least so long, durably.
async fn grow_maps(
    env: &Env,
    working: &mut Working,
    metadata_blocks: u64,
    data_blocks: u64,
) -> Result<(), Error> {
    if metadata_blocks > working.metadata_blocks() {
        working.grow_metadata(metadata_blocks)?;
    }
    if data_blocks > working.data_blocks() {
        working.grow_data(data_blocks)?;
    }
    working.commit(env).await.map(drop)
}

/// A block of the metadata device.
const METADATA_BLOCK_SECTORS: u64 = 8;
/// Fewer can't be formatted: superblock, five roots, an index block and a bitmap.
const FORMAT_BLOCKS_MIN: u64 = 8;

impl Target for ThinPool {
    /// The pool itself is the data device.
    fn map<'a>(&'a self, _env: &Env, request: &mut Request) -> Verdict<'a> {
        Verdict::Remapped { disk: self.config.data.disk.as_ref(), sector: request.range.start }
    }

    fn straight(&self) -> Option<(Arc<dyn Disk>, Sector)> {
        Some((self.config.data.disk.clone(), Sector(0)))
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        vec![self.config.metadata.disk.clone(), self.config.data.disk.clone()]
    }

    /// The pool's own sectors too: they are its volumes' data blocks.
    fn claims(&self) -> Vec<Claim> {
        let PoolConfig { metadata, data, .. } = &self.config;
        let blocks = SectorCount(self.config.data_blocks * self.config.block_sectors);
        let used = SectorRange::new(Sector(0), blocks);
        vec![
            Claim::from(&metadata.disk, Sector(0), ClaimKind::Own, "metadata device"),
            Claim::on(&data.disk, used, ClaimKind::Own, "data device"),
            Claim::of_itself("data device"),
        ]
    }

    fn limits(&self, _stacked: Limits) -> Limits {
        let data = self.config.data.disk.limits();
        let discard = data.discard && self.config.options.discards == Discards::PassDown;
        Limits { discard, ..data }
    }

    fn resume<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.start(env))
    }

    fn suspend<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            if let Some(pool) = self.pool().filter(|_| self.user.is_live()) {
                pool.close().await;
                pool.stop(env).await;
                self.user.pause();
                return pool.take_loss();
            }
            Ok(())
        })
    }

    /// Failures of the metadata device concern the volumes that were rolled back (L3).
    fn failures(&self) -> u64 {
        self.config.data.disk.failures()
    }

    fn failures_told(&self) -> u64 {
        self.config.data.disk.failures_told()
    }

    fn acknowledge_failures(&self) {
        let data = &self.config.data.disk;
        data.acknowledge_failures(data.failures());
    }

    fn report(&self) -> Report {
        match self.pool() {
            Some(pool) => status::of_pool(&pool),
            None => status::of_fresh_pool(&self.config),
        }
    }

    fn attributes(&self) -> Vec<Attribute> {
        self.args().attributes()
    }

    fn table(&self) -> String {
        self.args().to_string()
    }

    fn message<'a>(
        &'a self,
        env: &'a Env,
        words: &'a [&'a str],
    ) -> LocalFuture<'a, Result<String, MessageError>> {
        Box::pin(async move {
            match self.pool() {
                Some(pool) => {
                    let answer = pool.act_on_message(env, words).await;
                    *self.detect.lock() = pool.detect();
                    answer
                }
                None => Err(not_serving(words)),
            }
        })
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        self.config.data.disk.extents(env, range)
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }
}
