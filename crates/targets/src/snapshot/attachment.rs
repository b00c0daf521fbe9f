//! A table's attachment to a COW device: construction, opening the store, taking over a core,
//! leaving. `snapshot` and `snapshot-merge` share this code.
//!
//! The constructor checks arguments and the header only. Resume reads the header again. It formats
//! a blank device (see `blank`; never in front of an origin that is itself a cache, store or pool),
//! and reads the records of an existing store. If the core of a suspended or ended table can be
//! taken over unchanged, nothing is read, and a transient store survives.
//!
//! A closed table may be resumed again, because its replacement cannot start. Its store is then
//! read again. The same holds if another table, a merge, took the store from a suspended one and
//! could not open it. Until a table serves the store again, the store copies nothing before writes
//! to the origin. If it lacks such a copy, the snapshot has ended.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_block::{
    Claim, ClaimKind, ConfigError, ConfigKind, Ctor, Disk, Env, Events, FailureCount, IoError,
    MappedDevice, Report, Sector, SectorCount, SectorRange, TaskGroup, invariants, mutants,
};
use cairn_format::probe::Kind as Signature;
use cairn_format::snapshot::{ChunkSize, Error as FormatError, Header, Layout, Opening};

use super::acknowledged::{self, Kept, Place};
use super::config::Config;
use super::core::{Condition, Core, LOST, Parts, Terms};
use super::kin::Kin;
use super::status;
use super::store::{LoadError, Loaded, Metadata};
use super::table::Locks;
use crate::args::Device;
use crate::blank::{Formatting, read_sectors, unreadable};
use crate::shared_core::{Former, Served, SharedCore, User};
use crate::spec::Spec;

/// See the module's description.
pub(super) struct Attachment {
    pub config: Config,
    pub read_only: bool,
    pub kin: Arc<Kin>,
    pub tasks: Arc<TaskGroup>,
    merging: bool,
    /// How exceptions are guarded; sharded but for a comparison.
    pub locks: Locks,
    /// Of a transient store.
    crash_log: Option<Place>,
    user: User<Core>,
    events: Events,
    failures: Arc<FailureCount>,
    core: OnceLock<Arc<Core>>,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if let Some(core) = self.user.leave() {
            self.kin.remove(&core);
            core.acknowledged.lock().give_up();
        }
        if let Some(core) = self.core.get() {
            self.kin.end_merging(core);
            if core.condition() >= Condition::Closed {
                self.kin.remove(core);
            }
        }
    }
}

fn damaged(device: &Device, error: &FormatError) -> ConfigError {
    let kind = match error {
        FormatError::WrongMagic { .. } | FormatError::WrongVersion { .. } => ConfigKind::Damaged,
        FormatError::BadChunkSize { .. } | FormatError::ShortHeader { .. } => ConfigKind::Damaged,
        _ => ConfigKind::Argument,
    };
    let detail = format!("{error} ({})", error.kernel_errno());
    ConfigError::new(kind, &device.argument, detail)
}

/// What a snapshot, its origin and a merge claim of the origin.
pub fn origin_claim(origin: &Arc<dyn Disk>) -> Claim {
    Claim::from(origin, Sector(0), ClaimKind::Kin, "snapshot origin")
}

/// True if `disk` is `other`, or stands on it.
fn reaches(disk: &Arc<dyn Disk>, other: &Arc<dyn Disk>) -> bool {
    let stands_on = |mapped: &MappedDevice| {
        let tables = [mapped.live_table(), mapped.inactive_table()];
        let mut lines = tables.iter().flatten().flat_map(|table| table.lines());
        lines.any(|line| line.target.lowers().iter().any(|lower| reaches(lower, other)))
    };
    Arc::ptr_eq(disk, other) || disk.mapped().is_some_and(stands_on)
}

fn check_devices(config: &Config) -> Result<(), ConfigError> {
    let Config { origin, cow, .. } = config;
    if reaches(&origin.disk, &cow.disk) {
        let (found, expected) = ("the origin itself", "another device");
        return Err(ConfigError::argument(&cow.argument, "cow", found, expected));
    }
    let (end, size) = (config.end, origin.disk.sectors());
    if end.0 > size.0 {
        let expected = format!("at least the end of the table line, sector {end}");
        let found = format!("{size} sectors");
        return Err(ConfigError::argument(&origin.argument, "size", found, &expected));
    }
    let (size, chunk) = (cow.disk.sectors(), config.chunk.sectors());
    if size.0 < u64::from(chunk) {
        let found = format!("{size} sectors");
        let expected = format!("at least one chunk, {chunk} sectors");
        return Err(ConfigError::argument(&cow.argument, "size", found, &expected));
    }
    Ok(())
}

async fn read_header(env: &Env, config: &Config) -> Result<Opening, ConfigError> {
    let first = SectorRange::new(cairn_block::Sector(0), SectorCount(1));
    let bytes = read_sectors(env, &config.cow, first).await?;
    match Opening::decide(&bytes) {
        Ok(opening) => Ok(opening),
        Err(error) => {
            let refusal = damaged(&config.cow, &error);
            Err(formatting(config).with_signatures(env, Signature::Snapshot, refusal).await)
        }
    }
}

/// What formatting the store would write over.
fn formatting(config: &Config) -> Formatting<'_> {
    Formatting {
        device: &config.cow,
        start: SectorCount::ZERO,
        kind: "snapshot",
        options: format!(" --chunk {}", config.chunk.sectors()),
        is_own_remainder: |_| false,
    }
}

/// Refuses a COW device that is not blank, and an origin that is no origin.
async fn refuse_to_format(env: &Env, config: &Config) -> Result<(), ConfigError> {
    let formatting = formatting(config);
    formatting.refuse_unless_blank(env).await?;
    formatting.refuse_layer(env, &config.origin).await
}

/// The chunk size of a store that exists, if the table and the devices agree to it.
fn chunk_of(config: &Config, header: &Header) -> Result<ChunkSize, ConfigError> {
    let chunk = header.chunk_size();
    for device in [&config.origin, &config.cow] {
        let block = device.disk.limits().logical_block;
        chunk.suits(block).map_err(|error| damaged(device, &error))?;
    }
    if !config.any_chunk && chunk != config.chunk {
        let found = format!("{} sectors in the table", config.chunk.sectors());
        let expected = format!("{}, as in the store's header, or 0", chunk.sectors());
        return Err(ConfigError::argument(&config.cow.argument, "chunk_size", found, &expected));
    }
    Ok(chunk)
}

fn layout_of(config: &Config) -> Result<Layout, ConfigError> {
    let size = config.cow.disk.sectors().0;
    Layout::new(config.chunk, size).map_err(|error| damaged(&config.cow, &error))
}

impl Attachment {
    /// Checks a table line and the header of its store.
    pub async fn take(
        spec: &'static Spec,
        merging: bool,
        env: &Env,
        ctor: &Ctor<'_>,
    ) -> Result<Attachment, ConfigError> {
        let mut config = Config::parse(spec, ctor)?;
        if merging && !config.kind.is_persistent() {
            let expected = "P or PO: a transient store can't be merged";
            return Err(ConfigError::argument(spec.name, "store", "N", expected));
        }
        check_devices(&config)?;
        if !ctor.read_only {
            config.cow.refuse_if_read_only("cow")?;
        }
        if merging && !ctor.read_only {
            let range = SectorRange::between(ctor.start, ctor.start + ctor.len);
            config.origin.refuse_read_only("origin", range)?;
        }
        if config.kind.is_persistent() {
            match read_header(env, &config).await? {
                Opening::Existing(header) => config.chunk = chunk_of(&config, &header)?,
                Opening::Blank => refuse_to_format(env, &config).await?,
            }
            layout_of(&config)?;
        }
        let origin = ctor.registry.identify(&config.origin.argument)?;
        let cow = ctor.registry.identify(&config.cow.argument)?;
        let kin = ctor.registry.kin(&origin, || Kin::new(env));
        let shared = ctor.registry.kin(&cow, Arc::<SharedCore<Core>>::default);
        let crash_log = Place::of(ctor, &config)?;
        Ok(Attachment {
            config,
            read_only: ctor.read_only,
            kin,
            tasks: Arc::new(TaskGroup::default()),
            merging,
            locks: Locks::default(),
            crash_log,
            user: shared.join(),
            events: ctor.events.clone(),
            failures: ctor.failures.clone(),
            core: OnceLock::new(),
        })
    }

    /// The origin is shared by its kin; the store goes from a suspended target to the next.
    pub fn claims(&self) -> Vec<Claim> {
        let Config { origin, cow, .. } = &self.config;
        vec![
            origin_claim(&origin.disk),
            Claim::from(&cow.disk, Sector(0), ClaimKind::Handed, "COW device"),
        ]
    }

    /// What is served; requests come after a resume only.
    pub fn core(&self) -> &Arc<Core> {
        self.core.get().expect("a table serves after its resume")
    }

    /// What is served, if the table was ever live.
    pub fn core_if_live(&self) -> Option<&Arc<Core>> {
        self.core.get()
    }

    /// Begins to serve.
    pub async fn resume(&self, env: &Env) -> Result<(), ConfigError> {
        let mut former = None;
        let serve = self.user.serve_or(
            |core, served| self.takes(core, served),
            async |old| {
                former = self.retire_former(env, old).await;
                self.open(env).await
            },
            async |core| self.begin_merging(core),
        );
        let (core, _handover) = serve.await?;
        let former = former.filter(|former| !Arc::ptr_eq(former, &core));
        self.core.get_or_init(|| core.clone());
        core.serve(&Terms {
            end: self.config.end,
            overflows: self.config.kind == super::config::Kind::PersistentOverflow,
            fill_mark_percent: self.config.fill_event_percent,
            events: self.events.clone(),
            failures: self.failures.clone(),
            wait_for_room: Duration::from_secs(self.config.wait_for_room_s.unwrap_or(0)),
        });
        if !self.merging && !self.read_only {
            self.kin.add(&core, former.as_ref());
        }
        if !core.look_at_failures() {
            core.invalidate(env, LOST).await;
        }
        let mut missed = core.has_missed() || core.is_unmarked();
        if let Some(former) = former {
            missed |= self.follow(env, &former).await;
        }
        if missed {
            core.invalidate(env, "the origin was written while nothing served it").await;
        }
        Ok(())
    }

    /// True if the table serves a core that is there; false if the store is to be opened again.
    fn takes(&self, core: &Arc<Core>, served: Served) -> Result<bool, ConfigError> {
        match served {
            Served::Live => {
                let detail = "cow: found it served by a live snapshot, expected a suspended one";
                Err(ConfigError::new(ConfigKind::Busy, &self.config.cow.argument, detail))
            }
            Served::Own => Ok(true),
            Served::Paused => Ok(self.was_served(core) && self.fits(core)),
        }
    }

    /// Waits until no task uses the COW device for the core before the one that is opened now.
    async fn retire_former(&self, env: &Env, former: Former<Core>) -> Option<Arc<Core>> {
        match former {
            Former::Refused(former) => {
                self.retire(env, &former).await;
                Some(former)
            }
            Former::Ended(former) => {
                former.unused().await;
                Some(former)
            }
            Former::None => None,
        }
    }

    /// A merge is the only one of its origin.
    fn begin_merging(&self, core: &Arc<Core>) -> Result<(), ConfigError> {
        if self.merging && !self.kin.begin_merging(core) {
            let detail = "origin: found another snapshot merging, expected none";
            return Err(ConfigError::new(ConfigKind::Busy, &self.config.origin.argument, detail));
        }
        Ok(())
    }

    /// The core that served the store before serves no table any more. True if the store lacks a
    /// copy of a chunk that changed since then.
    async fn follow(&self, env: &Env, former: &Arc<Core>) -> bool {
        self.kin.remove(former);
        former.dismiss(env, Condition::Invalid).await;
        let same_store = self.config.kind.is_persistent() && former.store.is_persistent();
        (former.has_missed() || former.is_unmarked()) && same_store
    }

    /// True if a core is what this table served before, if it served any.
    fn was_served(&self, core: &Arc<Core>) -> bool {
        self.core.get().is_none_or(|own| Arc::ptr_eq(own, core))
    }

    /// Takes a core out of service for now: on return no task uses its COW device.
    async fn retire(&self, env: &Env, core: &Arc<Core>) {
        core.dismiss(env, Condition::Closed).await;
        self.kin.end_merging(core);
        self.user.clear();
        core.unused().await;
        core.acknowledged.lock().give_up();
    }

    /// The table is given up, or resumed after all. Unless another is about to serve the
    /// snapshot, copies under way for it end here: who removes a snapshot may use its COW device
    /// for something else.
    pub async fn close(&self, env: &Env) {
        let _handover = self.user.handover().await;
        if let Some(core) = self.core_if_live().filter(|_| self.user.is_alone()) {
            self.retire(env, core).await;
        }
    }

    /// True if a core can be served as it is.
    fn fits(&self, core: &Core) -> bool {
        !self.merging
            && !core.merging
            // The loss of a transient store is known to its core only.
            && (core.condition() < Condition::Ending || !core.store.is_persistent())
            && core.chunk() == self.config.chunk
            && core.store.is_persistent() == self.config.kind.is_persistent()
            && Arc::ptr_eq(&core.origin.disk, &self.config.origin.disk)
            && Arc::ptr_eq(core.cow(), &self.config.cow.disk)
    }

    /// Opens the store, or formats it.
    async fn open(&self, env: &Env) -> Result<Arc<Core>, ConfigError> {
        let core = match self.core.get() {
            // Nothing on a transient store's device says what it held: the core still knows.
            Some(own) if !self.config.kind.is_persistent() => {
                self.keep_log_again(own);
                if own.condition() == Condition::Closed {
                    own.revive();
                }
                return Ok(own.clone());
            }
            Some(own) => {
                own.unused().await;
                own.reset().await;
                own.clone()
            }
            None => Arc::new(self.new_core(env)),
        };
        self.fill(env, &core).await?;
        Ok(core)
    }

    fn new_core(&self, env: &Env) -> Core {
        let config = &self.config;
        let parts = Parts {
            shared: self.user.shared().clone(),
            origin: config.origin.clone(),
            cow: config.cow.clone(),
            chunk: config.chunk,
            persistent: config.kind.is_persistent(),
            merging: self.merging,
            locks: self.locks,
            events: self.events.clone(),
        };
        Core::new(env, parts)
    }

    /// The volume, for the log.
    pub fn volume(&self) -> &str {
        self.events.volume()
    }

    /// Reads the store of a core, or formats it.
    async fn fill(&self, env: &Env, core: &Arc<Core>) -> Result<(), ConfigError> {
        let config = &self.config;
        if !config.kind.is_persistent() {
            return self.replay(env, core).await;
        }
        let layout = layout_of(config)?;
        match read_header(env, config).await? {
            Opening::Existing(header) if header.chunk_size() != config.chunk => {
                let found = format!("{} sectors in the header", header.chunk_size().sectors());
                let expected = format!("{}, as when the table was loaded", config.chunk.sectors());
                let cow = &config.cow.argument;
                return Err(ConfigError::argument(cow, "chunk_size", found, &expected));
            }
            Opening::Existing(header) if !header.is_valid() => {
                tracing::warn!("{}: {}: found invalid", self.volume(), config.cow.argument);
                if !self.read_only {
                    // I6: a killed process may have left the mark in the drive's cache only.
                    let failed = |error: IoError| unreadable(&config.cow, "header", error);
                    let flush = core.store.flush(env);
                    let name = "snapshot: flush of a mark found";
                    mutants::step(name, (), flush).await.map_err(failed)?;
                }
                core.dismiss(env, Condition::Invalid).await;
                return Ok(());
            }
            Opening::Existing(_) => self.load(env, core).await?,
            Opening::Blank if self.read_only => {
                tracing::warn!("{}: {}: found blank", self.volume(), config.cow.argument);
            }
            Opening::Blank => {
                refuse_to_format(env, config).await?;
                self.settle_origin(env).await?;
                let failed = |error: IoError| unreadable(&config.cow, "format", error);
                core.store.format(env, &layout).await.map_err(failed)?;
            }
        }
        core.revive();
        Ok(())
    }

    /// A transient snapshot that its table had given up is served after all.
    fn keep_log_again(&self, core: &Core) {
        let Some(place) = self.crash_log.as_ref().filter(|_| !self.read_only) else { return };
        let mut kept = place.open_again(core.cow().as_ref(), &core.exceptions);
        if core.condition() != Condition::Closed {
            kept.end();
        }
        *core.acknowledged.lock() = kept;
    }

    /// Takes what a killed process had acknowledged of a transient store.
    async fn replay(&self, env: &Env, core: &Core) -> Result<(), ConfigError> {
        let Some(place) = &self.crash_log else { return Ok(()) };
        let (volume, cow) = (self.volume(), &self.config.cow.argument);
        let kept = place.open(&self.config, &mut core.acknowledged.lock())?;
        let records = match kept {
            Kept::Ended => {
                tracing::warn!("{volume}: {cow}: a server was killed, and the snapshot had ended");
                core.dismiss(env, Condition::Invalid).await;
                return Ok(());
            }
            Kept::Exceptions(records) => records,
        };
        let (next_free, count) = acknowledged::replay(&self.config, &core.exceptions, &records)?;
        if count > 0 {
            tracing::warn!("{volume}: {cow}: a server was killed: its {count} exceptions are back");
        }
        let metadata = Metadata::default();
        core.store.take_over(Loaded { next_free, records: count, metadata }).await;
        Ok(())
    }

    /// A new snapshot holds what the origin shows now: also after a power cut, which would take
    /// what is volatile there. A process that was killed may have left it so.
    async fn settle_origin(&self, env: &Env) -> Result<(), ConfigError> {
        let Device { disk, .. } = &self.config.origin;
        // A flush of a suspended volume would wait, and who suspended it has flushed it.
        if disk.mapped().is_some_and(|beneath| beneath.is_suspended()) {
            return Ok(());
        }
        let flush = async { env.make_durable(disk).await };
        let flushed = mutants::step("snapshot: flush of the origin at a format", (), flush).await;
        flushed.map_err(|error| unreadable(&self.config.origin, "flush", error))
    }

    async fn load(&self, env: &Env, core: &Core) -> Result<(), ConfigError> {
        let size = self.config.origin.disk.sectors();
        let loaded = core.store.load(env, &core.exceptions, size, self.read_only).await;
        let loaded = loaded.map_err(|error| match error {
            LoadError::Io(error) => unreadable(&self.config.cow, "records", error),
            LoadError::Damaged(detail) => {
                ConfigError::new(ConfigKind::Damaged, &self.config.cow.argument, detail)
            }
        })?;
        core.store.take_over(loaded).await;
        let [allocated, total, _] = core.store.usage();
        let (volume, cow) = (self.events.volume(), &self.config.cow.argument);
        tracing::info!("{volume}: {allocated} of {total} sectors in use on {cow}");
        if !self.read_only {
            core.losses.tell_of_untold(core.cow().as_ref(), &self.failures);
        }
        Ok(())
    }

    /// Something deserves attention.
    pub fn announce(&self) {
        self.events.raise();
    }

    /// Stops serving for now.
    ///
    /// # Errors
    /// What clients wrote in place may be lost.
    pub async fn pause(&self, env: &Env) -> Result<(), ConfigError> {
        self.tasks.idle().await;
        let flushed = match self.core_if_live() {
            Some(core) => core.flush_in_place(env).await,
            None => Ok(()),
        };
        let marked = match self.core_if_live() {
            Some(core) => core.mark_at_the_stop(env).await,
            None => Ok(()),
        };
        if let Some(core) = self.core_if_live() {
            if env.is_ending() {
                // K5.
                core.acknowledged.lock().give_up();
            }
            invariants::always(|| core.check_state());
        }
        self.user.pause();
        flushed.and(marked)
    }

    /// What the table says about itself.
    pub fn report(&self, merge_failed: bool) -> Report {
        let chunk = u64::from(self.config.chunk.sectors());
        let head = if self.config.kind.is_persistent() { 2 * chunk } else { 0 };
        let fresh = [head, self.config.cow.disk.sectors().0, head];
        let core = self.core_if_live().map(Arc::as_ref);
        status::report(core, merge_failed, fresh)
    }
}
