//! The volume: the target, from its constructor to its end.
//!
//! The constructor reads the superblocks; resume (`start`) reads the set.

use std::sync::{Arc, Weak};

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use cairn_block::{
    Attribute, Claim, ClaimKind, ConfigError, Copier, Counters, Ctor, Dirty, Disk, EndIo, Env,
    Extent, FailureCount, IoError, IoResult, Limits, LocalFuture, MessageError, Report, Request,
    RequestId, SECTOR_BYTES, Sector, SectorCount, SectorRange, SuspendMode, Target, TaskGroup,
    Verdict,
};
use cairn_format::bcache::{BackingSuperblock, CacheMode};

use super::backing::Traffic;
use super::bypass::Bypass;
use super::config::{Config, Devices, LAB_SPEC, SPEC, leave_set};
use super::coverage::{self, Path};
use super::degraded::Degraded;
use super::fixed::find_fixed;
use super::passing::passes;
use super::set::{Core, Set};
use super::statistics::Statistics;
use super::stripes::Stripes;
use super::superblocks::{Superblocks, read_superblocks};
use super::writeback::{Ahead, COPY_BYTES, Throttle};
use super::writes::Ready;
use super::zones::Zones;
use crate::args::Device;
use crate::fair::Fair;
use crate::kind::TargetKind;
use crate::origin_marker::OriginMarker;
use crate::spec::{NO_DEVICE, Spec};

/// What the backing device is claimed as.
pub const BACKING_ROLE: &str = "backing device";
/// What the cache device is claimed as.
pub const CACHE_ROLE: &str = "cache device of bcache";

/// The kind of target `bcache`.
pub const KIND: TargetKind =
    TargetKind { spec: &SPEC, construct: |env, ctor| Box::pin(construct(env, ctor, &SPEC)) };

/// The same with the words of experiments, some of which lose data: for the lab, never for a
/// server.
pub const LAB_KIND: TargetKind = TargetKind {
    spec: &LAB_SPEC,
    construct: |env, ctor| Box::pin(construct(env, ctor, &LAB_SPEC)),
};

/// The target.
pub struct Bcache {
    me: Weak<Bcache>,
    pub(super) config: Config,
    pub(super) read_only: bool,
    /// Nothing writes the data of the backing device (`fixed`).
    pub(super) is_fixed: bool,
    /// Requests pass through to the backing device (`passing`).
    pub(super) passes: bool,
    /// The first sector of the volume on the backing device; keys count from there, too.
    pub(super) first: u64,
    /// Bytes of a block of the set, or of the backing device where requests pass through.
    block_bytes: u32,
    /// Where the cache may have had newer data, which is not there.
    pub(super) is_suspect: AtomicBool,
    /// What it shares with other volumes of the set; none without a cache.
    pub(super) core: Option<Arc<Core>>,
    /// The volume's number in the set.
    pub(super) inode: AtomicU64,
    /// For what the set and the superblock of the backing device are ready, as a number of
    /// [`super::writes::Ready`], and for what they are to be.
    pub(super) ready: AtomicU8,
    pub(super) wanted: AtomicU8,
    /// How it is served after failures.
    pub(super) degraded: Degraded,
    /// Those of the backing device, if there is one with its cache.
    pub(super) stripes: Option<Stripes>,
    /// What clients write to the backing device.
    pub(super) traffic: Traffic,
    /// Which requests bypass the cache; none if they have nowhere else to go, or there is no cache.
    pub(super) bypass: Option<Bypass>,
    /// A task makes them ready, and the requests that wait for that.
    pub(super) beginning: AtomicBool,
    /// The task runs that writes back in the background.
    pub(super) is_writing_back: AtomicBool,
    pub(super) parked: Mutex<Vec<RequestId>>,
    pub(super) counters: Arc<Counters<{ super::status::COUNTERS }>>,
    pub(super) statistics: Statistics,
    /// The task runs that folds the counters into the windows.
    pub(super) is_ticking: AtomicBool,
    /// The backing device belongs to the set: the word `attach` has been acted upon.
    pub(super) is_member: AtomicBool,
    /// The superblock of the backing device, as it is there.
    pub(super) backing: Mutex<Option<BackingSuperblock>>,
    /// Its mode, which requests read without the lock.
    mode: AtomicU8,
    pub(super) copier: Copier,
    /// One drain at a time, and how many wait.
    pub(super) draining: Fair<()>,
    /// One batch of writeback at a time, or discards.
    pub(super) batching: Fair<()>,
    pub(super) drains_waiting: AtomicUsize,
    /// Extents that were written back, and that could not be.
    pub(super) keys_done: AtomicU64,
    /// How much was copied to the backing device.
    pub(super) sectors_written_back: AtomicU64,
    pub(super) keys_failed: AtomicU64,
    /// A drain is under way whose end is a table without the cache.
    pub(super) is_leaving: AtomicBool,
    /// The writes whose sectors are written back first.
    pub(super) ahead: Ahead,
    /// How fast data is written back in the background.
    pub(super) throttle: Throttle,
    /// The state in the superblock of the backing device was written since the last resume.
    pub(super) has_written_state: AtomicBool,
    /// Its clean extents are what the backing device has (T2).
    pub(super) is_vouched: AtomicBool,
    /// Which zones may become dirty; none without a backing device, or a server that keeps maps.
    pub(super) zones: Option<Zones>,
    /// One writer of the superblock of the backing device at a time.
    pub(super) states: Fair<()>,
    /// Between a resume and a suspend: the superblock is this volume's to write. It changes in the
    /// turn of `states`.
    pub(super) is_serving: AtomicBool,
    /// Sectors that only the cache has.
    pub(super) dirty_sectors: AtomicU64,
    /// A suspend has begun: a drain ends early.
    pub(super) suspending: AtomicBool,
    /// The next suspend writes back what is dirty.
    pub(super) flush_on_suspend: AtomicBool,
    /// No request is left: writeback ends.
    pub(super) resting: AtomicBool,
    /// A suspend that does not wait has begun: requests that would wait go back.
    pub(super) is_handing_back: AtomicBool,
    /// The tasks of the volume, which a suspend waits for.
    pub(super) tasks: Arc<TaskGroup>,
    /// The failure count of the mapped device.
    pub(super) failures: Arc<FailureCount>,
    /// The dirty marker of the backing device.
    pub(super) marker: Option<OriginMarker>,
    /// A client was told that nothing is written for it.
    pub(super) is_told: AtomicBool,
}

/// A target, or why there is none.
type Built = Result<Arc<dyn Target>, ConfigError>;

async fn construct(env: &Env, ctor: Ctor<'_>, spec: &'static Spec) -> Built {
    let config = Config::parse(spec, &ctor)?;
    refuse_one_device(&config)?;
    let superblocks = read_superblocks(env, &config, ctor.read_only).await?;
    let first = superblocks.backing.as_ref().map_or(0, BackingSuperblock::data_offset);
    let is_fixed = find_fixed(&config, superblocks.backing.as_ref(), ctor.read_only)?;
    let passes = passes(&config, superblocks.backing.as_ref());
    let reactors = env.post().reactors();
    let core = core_of(&ctor, reactors, &config)?;
    let is_cached = matches!(config.devices, Devices::Cached { .. });
    Ok(Arc::new_cyclic(|me| Bcache {
        me: me.clone(),
        read_only: ctor.read_only,
        is_fixed,
        passes,
        first,
        block_bytes: block_bytes_of(&superblocks, passes),
        is_suspect: AtomicBool::new(false),
        core,
        inode: AtomicU64::new(0),
        ready: AtomicU8::new(Ready::Read as u8),
        wanted: AtomicU8::new(Ready::Read as u8),
        degraded: Degraded::default(),
        stripes: match &config.devices {
            Devices::Cached { backing, .. } => Some(Stripes::of(&backing.disk)),
            _ => None,
        },
        traffic: Traffic::new(ctor.failures.clone(), &config),
        bypass: is_cached.then(|| Bypass::new(reactors)),
        beginning: AtomicBool::new(false),
        is_writing_back: AtomicBool::new(false),
        parked: Mutex::default(),
        counters: Arc::new(Counters::new(env)),
        statistics: Statistics::new(reactors),
        is_ticking: AtomicBool::new(false),
        mode: AtomicU8::new(mode_of(superblocks.backing.as_ref()) as u8),
        backing: Mutex::new(superblocks.backing),
        is_member: AtomicBool::new(false),
        copier: Copier::new(COPY_BYTES),
        draining: Fair::new(()),
        batching: Fair::new(()),
        drains_waiting: AtomicUsize::new(0),
        keys_done: AtomicU64::new(0),
        sectors_written_back: AtomicU64::new(0),
        keys_failed: AtomicU64::new(0),
        is_leaving: AtomicBool::new(false),
        ahead: Ahead::default(),
        throttle: Throttle::default(),
        has_written_state: AtomicBool::new(false),
        is_vouched: AtomicBool::new(false),
        zones: zones_of(&ctor, &config),
        states: Fair::new(()),
        is_serving: AtomicBool::new(false),
        dirty_sectors: AtomicU64::new(0),
        suspending: AtomicBool::new(false),
        flush_on_suspend: AtomicBool::new(false),
        resting: AtomicBool::new(false),
        is_handing_back: AtomicBool::new(false),
        tasks: Arc::default(),
        failures: ctor.failures.clone(),
        marker: marker_of(&ctor, &config, spec),
        is_told: AtomicBool::new(false),
        config,
    }))
}

/// The dirty marker of the backing device.
fn marker_of(ctor: &Ctor<'_>, config: &Config, spec: &Spec) -> Option<OriginMarker> {
    let backing = config.devices.backing()?;
    let cache = config.devices.cache().map_or(NO_DEVICE, |cache| &cache.argument);
    Some(OriginMarker::new(ctor, &config.volume, spec.name, (backing, cache)))
}

/// What the volume shares with others of its set; none without a cache.
fn core_of(
    ctor: &Ctor<'_>,
    reactors: u16,
    config: &Config,
) -> Result<Option<Arc<Core>>, ConfigError> {
    let Some(device) = config.devices.cache() else { return Ok(None) };
    let identity = ctor.registry.identify(&device.argument)?;
    let place = (&device.disk, Sector(0));
    let place = ctor.registry.crash_log_of("bcache", place, &[], ctor.read_only)?;
    let memory = place.map(|place| place.memory);
    Ok(Some(ctor.registry.kin(&identity, || Core::new(reactors, device.clone(), memory))))
}

/// The dirty zones of a volume, if the server keeps maps of them.
fn zones_of(ctor: &Ctor<'_>, config: &Config) -> Option<Zones> {
    let backing = config.devices.backing().filter(|_| !ctor.read_only)?;
    let (maps, sectors) = (ctor.registry.zone_maps()?, backing.disk.sectors().0);
    Some(Zones::new(maps, &config.volume, ctor.start.0, sectors))
}

/// Refuses a device that is both.
fn refuse_one_device(config: &Config) -> Result<(), ConfigError> {
    match &config.devices {
        Devices::Cached { backing, cache } if Arc::ptr_eq(&backing.disk, &cache.disk) => {
            let (cache, found) = (&cache.argument, "the backing device");
            Err(ConfigError::argument(cache, "cache", found, "another device"))
        }
        _ => Ok(()),
    }
}

/// Bytes of a block, if there is one: of the set; or of the backing device where requests pass, so
/// that its clients may use it with a set of the same blocks later, as in the kernel.
fn block_bytes_of(superblocks: &Superblocks, passes: bool) -> u32 {
    match (&superblocks.cache, &superblocks.backing) {
        (Some(cache), _) => cache.geometry().block_bytes() as u32,
        (None, Some(backing)) if passes => backing.block_sectors() * SECTOR_BYTES as u32,
        (None, _) => 0,
    }
}

/// What is done with writes; a volume without a backing device keeps them.
fn mode_of(backing: Option<&BackingSuperblock>) -> CacheMode {
    backing.map_or(CacheMode::Writeback, BackingSuperblock::mode)
}

impl Bcache {
    pub(super) fn inode(&self) -> u32 {
        self.inode.load(Ordering::Relaxed) as u32
    }

    pub(super) fn dirty_sectors(&self) -> u64 {
        self.dirty_sectors.load(Ordering::Relaxed)
    }

    /// True if the set could not be written, and was not opened again since.
    pub(super) fn is_broken(&self) -> bool {
        self.core.as_ref().is_some_and(|core| core.is_broken())
    }

    /// Looks at the set, if it is open.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Set) -> T) -> Option<T> {
        self.core.as_ref().and_then(|core| core.lock().as_ref().map(look))
    }

    /// True if no request is left, and the tasks of the volume end.
    pub(super) fn is_resting(&self) -> bool {
        self.resting.load(Ordering::Relaxed)
    }

    /// What the volume does with writes.
    #[inline]
    pub(super) fn mode(&self) -> CacheMode {
        match self.mode.load(Ordering::Relaxed) {
            mode if mode == CacheMode::Writethrough as u8 => CacheMode::Writethrough,
            mode if mode == CacheMode::Writearound as u8 => CacheMode::Writearound,
            mode if mode == CacheMode::None as u8 => CacheMode::None,
            _ => CacheMode::Writeback,
        }
    }

    /// The superblock of the backing device is this one now, durably.
    pub(super) fn set_backing(&self, superblock: Option<BackingSuperblock>) {
        self.mode.store(mode_of(superblock.as_ref()) as u8, Ordering::Relaxed);
        *self.backing.lock() = superblock;
    }

    /// More, or fewer, sectors are dirty. Answers how many were.
    pub(super) fn add_dirty(&self, sectors: i64) -> u64 {
        if let (Some(core), Devices::Flash { .. }) = (&self.core, &self.config.devices) {
            core.add_flash_dirty(sectors);
        }
        self.dirty_sectors.fetch_add(sectors as u64, Ordering::Relaxed)
    }

    /// A suspend began that does not wait: requests that wait for a bucket go back.
    fn hand_back(&self, env: &Env) {
        let Some(core) = &self.core else { return };
        let mut guard = core.lock();
        self.is_handing_back.store(true, Ordering::Relaxed);
        let Some(set) = guard.as_mut() else { return };
        let own = set.changes.take_waiting_of(self.inode());
        for id in own {
            coverage::take(Path::HandBack);
            env.hand_back(id);
        }
    }

    /// Starts a task that a suspend waits for.
    pub(super) fn spawn(&self, env: &Env, task: impl AsyncFnOnce(&Bcache, &Env) + 'static) {
        let volume = self.me.upgrade().expect("a target that is called is alive");
        self.tasks.spawn(env, async move |env| task(&volume, env).await);
    }
}

impl Target for Bcache {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        self.map_request(env, request)
    }

    fn end_io(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        self.end_request(env, request, result)
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        let devices = self.config.devices.backing().into_iter().chain(self.config.devices.cache());
        devices.map(|device| device.disk.clone()).collect()
    }

    fn claims(&self) -> Vec<Claim> {
        let claim = |device: &Device, kind, role| Claim::from(&device.disk, Sector(0), kind, role);
        let devices = &self.config.devices;
        let backing = devices.backing().map(|it| claim(it, ClaimKind::Own, BACKING_ROLE));
        let cache = devices.cache().map(|it| claim(it, ClaimKind::Kin, CACHE_ROLE));
        backing.into_iter().chain(cache).collect()
    }

    fn limits(&self, stacked: Limits) -> Limits {
        let is_read = matches!(self.config.devices, Devices::Bare { .. }) && !self.passes;
        let (discard, fast_zero) = match self.passes {
            true => (stacked.discard, stacked.fast_zero),
            false => (!is_read && !self.read_only && !self.is_fixed, false),
        };
        let block = self.block_bytes;
        Limits {
            logical_block: stacked.logical_block.max(block),
            physical_block: stacked.physical_block.max(block),
            io_min: stacked.io_min.max(block),
            discard,
            fast_zero,
            read_only: stacked.read_only || self.read_only || self.is_fixed || is_read,
            // In the mode `writethrough` a write goes to both devices.
            stable_data: !self.passes,
            ..stacked
        }
    }

    fn keeps_marker_of(&self) -> Option<Arc<dyn Disk>> {
        self.marker.as_ref().and_then(OriginMarker::disk)
    }

    fn dirty_marker(&self) -> Option<String> {
        self.marker.as_ref().and_then(OriginMarker::generation)
    }

    fn resume<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.start(env))
    }

    fn presuspend(&self, env: &Env, mode: SuspendMode) {
        self.suspending.store(true, Ordering::Relaxed);
        if mode == SuspendMode::NoFlush {
            self.hand_back(env);
        }
    }

    fn presuspend_undo<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, ()> {
        self.suspending.store(false, Ordering::Relaxed);
        self.is_handing_back.store(false, Ordering::Relaxed);
        Box::pin(std::future::ready(()))
    }

    fn suspend<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.stop(env))
    }

    /// Zero with a cache: failures of the lower disks are handled here then, not passed on.
    fn failures(&self) -> u64 {
        self.passes_to().map_or(0, |disk| disk.failures())
    }

    fn failures_told(&self) -> u64 {
        self.passes_to().map_or(0, |disk| disk.failures_told())
    }

    fn acknowledge_failures(&self) {
        self.traffic.told(self.config.devices.backing());
        if let Some(core) = &self.core {
            core.told(self.inode(), &self.failures);
        }
        if let Some(disk) = self.passes_to() {
            disk.acknowledge_failures(disk.failures());
        }
    }

    fn report(&self) -> Report {
        self.make_report()
    }

    fn attributes(&self) -> Vec<Attribute> {
        self.all_attributes()
    }

    fn table(&self) -> String {
        let mut args = self.config.args.clone();
        if self.is_member.load(Ordering::Relaxed) {
            args.set_flag("attach", false);
        }
        if self.has_left_set() {
            leave_set(&mut args);
        }
        args.to_string()
    }

    fn message<'a>(
        &'a self,
        env: &'a Env,
        words: &'a [&'a str],
    ) -> LocalFuture<'a, Result<String, MessageError>> {
        Box::pin(self.act_on_message(env, words))
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        Box::pin(self.extents_of(env, range))
    }

    fn dirty(&self) -> Option<Dirty> {
        self.what_is_dirty()
    }

    fn written_back(&self) -> SectorCount {
        SectorCount(self.sectors_written_back.load(Ordering::Relaxed))
    }

    fn drains(&self) -> bool {
        matches!(self.config.devices, Devices::Cached { .. })
    }

    fn drain<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), MessageError>> {
        Box::pin(self.write_all_back(env))
    }

    fn drain_in_suspend(&self, drains: bool) -> bool {
        self.flush_on_suspend.swap(drains, Ordering::Relaxed)
    }

    fn set_leaving(&self, is_leaving: bool) {
        self.is_leaving.store(is_leaving, Ordering::Relaxed);
    }

    fn detaches(&self) -> bool {
        self.config.devices.backing().is_some()
    }

    fn detach<'a>(
        &'a self,
        env: &'a Env,
        given_up: Option<&'a str>,
    ) -> LocalFuture<'a, Result<Option<String>, MessageError>> {
        Box::pin(async move { self.detach_backing(env, given_up).await.map(Some) })
    }

    fn shows_of_origin(&self, range: SectorRange) -> Option<(Arc<dyn Disk>, SectorRange)> {
        let backing = match &self.config.devices {
            Devices::Cached { backing, .. } => backing,
            Devices::Bare { backing, .. } if self.passes => backing,
            Devices::Bare { .. } | Devices::Flash { .. } => return None,
        };
        let start = range.start + SectorCount(self.first);
        Some((backing.disk.clone(), SectorRange::new(start, range.count)))
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }
}
