//! The pool: the state that its volumes and both kinds of target share, from the first resume of a
//! `thin-pool` table until its last user has gone. It outlives tables: a longer table, or one with
//! other options, uses the same pool.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use cairn_block::{
    Copier, Disk, Env, Events, FailureCount, IoError, IoResult, RequestId, Sector, SectorCount,
    SectorRange,
};
use cairn_format::thin::{DataBlock, DeviceId};
use event_listener::{Event, EventListener};
use futures_util::future::select;

use super::arena::{Arena, GROUP_BLOCKS};
use super::commit::Numbers;
use super::config::{DetectZeroes, Discards, Options};
use super::edits::Order;
use super::index::Stamp;
use super::losses::{Losses, Owed};
use super::metadata::{Leaves, MetadataError, PoolMetadata};
use super::space::WARNINGS;
use super::stock::{Room, Stocks, Taken};
use super::volume::Volume;
use crate::args::Device;
use crate::epochs::Epochs;
use crate::group_commit::GroupCommit;
use cairn_block::TaskGroup;

/// Memory for copies, all volumes of one pool together.
const COPY_BYTES: u64 = 32 << 20;

/// How long a task waits at most before it looks again whether another has done its part.
const MOMENT: Duration = Duration::from_millis(5);

/// How often a task tries to have a group loaded before it gives up.
const LOAD_ATTEMPTS: u32 = 3;

/// The mode of a pool: what it can do now, from everything to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Mode {
    /// Everything.
    Write,
    /// Everything but to provide data blocks.
    OutOfData,
    /// Everything except changes that take metadata permanently: mappings and volumes are removed,
    /// and none is added.
    OutOfMetadata,
    /// Reads, and writes of what is mapped and not shared.
    ReadOnly,
    /// Nothing.
    Fail,
}

impl Mode {
    const ALL: [Mode; 5] =
        [Mode::Write, Mode::OutOfData, Mode::OutOfMetadata, Mode::ReadOnly, Mode::Fail];

    /// What it means, for the log.
    fn description(self) -> &'static str {
        match self {
            Mode::Write => "writable",
            Mode::OutOfData => "out of data space",
            Mode::OutOfMetadata => "out of metadata space",
            Mode::ReadOnly => "read-only",
            Mode::Fail => "failed",
        }
    }

    /// True if mappings may change.
    pub fn is_writable(self) -> bool {
        self <= Mode::OutOfMetadata
    }

    /// True if mappings may be made, given data blocks.
    pub fn provides(self) -> bool {
        self <= Mode::OutOfData
    }
}

/// A request that waits for something of the pool, and the table that sent it.
#[derive(Clone, Copy)]
pub(super) struct Parked {
    pub id: RequestId,
    pub attachment: u64,
}

/// What tasks and requests share, under one short lock that no ready path takes.
pub(super) struct State {
    pub commits: GroupCommit,
    /// The edit that the next commit makes (X1).
    pub order: Option<Order>,
    /// What became of the last edit that a commit took.
    pub edited: Option<Result<(), MetadataError>>,
    /// Requests at a closed gate.
    pub at_gate: Vec<Parked>,
    /// Writes that wait for a data block; `space` wakes them.
    pub starving: Vec<Parked>,
    /// Requests that wait for room in the metadata, which a commit makes.
    pub crowded: Vec<Parked>,
    /// A task is looking for data blocks.
    pub seeking: bool,
    /// A task is making room in the metadata.
    pub making_room: bool,
    /// Data blocks that are free in the metadata and not allocatable yet.
    pub quarantined: u64,
    /// Waiting for space has timed out: writes fail until there is some.
    pub impatient: bool,
    pub options: Options,
    pub low_water_blocks: u64,
    /// Warnings that were given, and are not repeated until the condition has cleared.
    pub warned: [bool; WARNINGS],
    pub stopping: bool,
    pub events: Events,
}

/// The pool.
pub(super) struct Pool {
    me: Weak<Pool>,
    pub metadata_device: Device,
    pub data: Device,
    pub block: SectorCount,
    pub metadata: PoolMetadata,
    pub stocks: Stocks,
    pub room: Room,
    pub epochs: Arc<Epochs<1>>,
    pub arena: Arc<Arena>,
    pub copier: Copier,
    pub tasks: Arc<TaskGroup>,
    pub state: Mutex<State>,
    pub volumes: Mutex<BTreeMap<DeviceId, Arc<Volume>>>,
    /// Held while an edit is made, and while a volume is opened.
    pub verb_lock: futures_util::lock::Mutex<()>,
    /// Notified at every change that a task may wait for.
    pub changed: Event,
    mode: AtomicU8,
    closed: AtomicBool,
    prices_sharing: AtomicBool,
    pub time: AtomicU32,
    pub numbers: Numbers,
    pub losses: Losses,
    skip_zeroing: AtomicBool,
    detect: AtomicBool,
    discards: AtomicU8,
    next_attachment: AtomicU64,
}

/// Devices and options of a pool that is about to serve.
pub(super) struct Terms {
    pub metadata_device: Device,
    pub data: Device,
    pub block: SectorCount,
    pub options: Options,
    pub low_water_blocks: u64,
    pub events: Events,
    pub owed: Arc<Owed>,
}

impl Pool {
    /// A pool over open metadata, closed.
    pub fn new(env: &Env, terms: Terms, metadata: PoolMetadata) -> Arc<Pool> {
        let mode = if metadata.facts().needs_check { Mode::ReadOnly } else { Mode::Write };
        let losses = Losses::new(terms.data.disk.failures(), terms.owed);
        Arc::new_cyclic(|me| Pool {
            me: me.clone(),
            metadata_device: terms.metadata_device,
            data: terms.data,
            block: terms.block,
            stocks: Stocks::new(env),
            room: Room::new(&metadata),
            epochs: Epochs::new(env.post().reactors()),
            arena: Arc::default(),
            copier: Copier::new(COPY_BYTES),
            tasks: Arc::new(TaskGroup::default()),
            state: Mutex::new(State {
                commits: GroupCommit::default(),
                order: None,
                edited: None,
                at_gate: Vec::new(),
                starving: Vec::new(),
                crowded: Vec::new(),
                seeking: false,
                making_room: false,
                quarantined: 0,
                impatient: false,
                options: terms.options,
                low_water_blocks: terms.low_water_blocks,
                warned: [false; WARNINGS],
                stopping: true,
                events: terms.events,
            }),
            volumes: Mutex::default(),
            verb_lock: futures_util::lock::Mutex::default(),
            changed: Event::new(),
            mode: AtomicU8::new(mode as u8),
            closed: AtomicBool::new(true),
            prices_sharing: AtomicBool::new(false),
            time: AtomicU32::new(metadata.facts().time),
            numbers: Numbers::default(),
            losses,
            skip_zeroing: AtomicBool::new(terms.options.skip_zeroing),
            detect: AtomicBool::new(false),
            discards: AtomicU8::new(0),
            next_attachment: AtomicU64::new(0),
            metadata,
        })
    }

    /// A counted reference to itself.
    pub fn arc(&self) -> Arc<Pool> {
        self.me.upgrade().expect("a pool that is called is alive")
    }

    /// Takes over the options of a table.
    pub fn set_options(&self, options: Options, low_water_blocks: u64, events: &Events) {
        if !self.skip_zeroing.swap(options.skip_zeroing, Ordering::Relaxed) && options.skip_zeroing
        {
            tracing::warn!(
                "{}: skip_block_zeroing: zeros that were left out before are lost where a part of \
                 their block is written",
                events.volume()
            );
        }
        self.set_detect(options.detect);
        self.discards.store(options.discards as u8, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.options = options;
        state.low_water_blocks = low_water_blocks;
        state.events = events.clone();
        // The kernel gives the low-water warning once per resume.
        state.warned = [false; WARNINGS];
        state.impatient = false;
    }

    /// Detects zeros from now on, or not.
    pub fn set_detect(&self, mode: DetectZeroes) {
        self.detect.store(mode == DetectZeroes::Unmap, Ordering::Relaxed);
    }

    /// What [`Pool::set_detect`] said last.
    pub fn detect(&self) -> DetectZeroes {
        if self.detect.load(Ordering::Relaxed) { DetectZeroes::Unmap } else { DetectZeroes::Off }
    }

    /// New blocks are not zeroed.
    pub fn skips_zeroing(&self) -> bool {
        self.skip_zeroing.load(Ordering::Relaxed)
    }

    /// True if zero writes may be elided: unmapped blocks read as zeros, also in a block that is
    /// later written in part. Where new blocks are not zeroed, zeros are data.
    pub fn elides_zeroes(&self) -> bool {
        !self.skips_zeroing()
    }

    /// True if client writes are checked for zeros.
    pub fn detects_zeroes(&self) -> bool {
        self.detect.load(Ordering::Relaxed) && self.elides_zeroes()
    }

    /// What is done with discards.
    pub fn discards(&self) -> Discards {
        match self.discards.load(Ordering::Relaxed) {
            0 => Discards::PassDown,
            1 => Discards::NoPassDown,
            _ => Discards::Ignore,
        }
    }

    /// A name for a table, so that what it parked can be handed back.
    pub fn new_attachment(&self) -> u64 {
        self.next_attachment.fetch_add(1, Ordering::Relaxed)
    }

    /// Recomputes the metadata reservation of each change. No request is in flight, and everything
    /// is committed.
    pub fn price(&self, shares: bool) {
        self.stocks.empty(&self.room, &self.metadata);
        self.room.price(&self.metadata, shares);
        self.prices_sharing.store(shares, Ordering::Release);
    }

    /// True if changes are priced for volumes that share metadata.
    pub fn prices_sharing(&self) -> bool {
        self.prices_sharing.load(Ordering::Acquire)
    }

    // Modes.

    /// What the pool can do now.
    #[inline(always)]
    pub fn mode(&self) -> Mode {
        Mode::ALL[usize::from(self.mode.load(Ordering::Relaxed))]
    }

    /// Changes the mode; a change is an event. Only while the pool serves no volume: see
    /// `turn_mode`.
    pub fn set_mode(&self, mode: Mode, why: &str) {
        if self.mode.swap(mode as u8, Ordering::AcqRel) != mode as u8 {
            self.announce_mode(mode, why);
        }
    }

    /// Changes the mode if it is still `from`: space comes and goes while a commit may fail on
    /// another reactor, which is final.
    pub fn turn_mode(&self, from: Mode, mode: Mode, why: &str) {
        let (old, new) = (from as u8, mode as u8);
        let turned = self.mode.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
        if from != mode && turned.is_ok() {
            self.announce_mode(mode, why);
        }
    }

    /// Changes the mode to one in which less is possible; never back.
    pub fn lower_mode(&self, mode: Mode, why: &str) {
        if self.mode.fetch_max(mode as u8, Ordering::AcqRel) < mode as u8 {
            self.announce_mode(mode, why);
        }
    }

    fn announce_mode(&self, mode: Mode, why: &str) {
        let name = self.name();
        match mode {
            Mode::Write => tracing::info!("{name}: {why}"),
            _ => tracing::warn!("{name}: {}: {why}", mode.description()),
        }
        self.announce();
        self.changed.notify(usize::MAX);
    }

    /// The name of its volume, for the log.
    pub fn name(&self) -> String {
        self.state.lock().events.volume().to_owned()
    }

    /// Something deserves attention.
    pub fn announce(&self) {
        let events = self.state.lock().events.clone();
        events.raise();
    }

    // Places.

    /// The range of the data device that holds `count` data blocks from `block`.
    pub fn data_range(&self, block: DataBlock, count: u64) -> SectorRange {
        let start = Sector(block.0 * self.block.0);
        SectorRange::new(start, SectorCount(count * self.block.0))
    }

    /// The data device.
    pub fn data_disk(&self) -> &Arc<dyn Disk> {
        &self.data.disk
    }

    /// When changes of a volume are made now: by the end of which commit they are durable. Under
    /// the lock of their shard, which is kept until they are made.
    pub fn stamp(&self, volume: &Volume) -> Stamp {
        self.numbers.stamp(volume)
    }

    /// The last commit that is durable.
    pub fn durable(&self) -> u64 {
        self.numbers.durable()
    }

    // Gates.

    /// True if a request of a volume must wait. Under the lock of its shard.
    #[inline(always)]
    pub fn holds_back(&self, volume: &Volume) -> bool {
        self.is_closed() || volume.is_closed()
    }

    /// Holds back the requests of all volumes; returns when none is under way.
    pub async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let volumes: Vec<_> = self.volumes.lock().values().cloned().collect();
        for volume in volumes {
            // The holder of a shard's lock may have looked before the gate closed.
            volume.map.shards().for_each(drop);
        }
        self.epochs.quiesce(0).await;
    }

    /// Lets requests in.
    pub fn open(&self, env: &Env) {
        self.closed.store(false, Ordering::Release);
        self.let_in(env);
    }

    /// True if the pool serves no volume.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Maps the requests at the gates again.
    pub fn let_in(&self, env: &Env) {
        let waiting = std::mem::take(&mut self.state.lock().at_gate);
        waiting.into_iter().for_each(|parked| env.remap(parked.id));
    }

    /// Parks a request at the gate of its volume, unless the gate has opened since.
    pub fn park(&self, env: &Env, volume: &Volume, parked: Parked) {
        let mut state = self.state.lock();
        if self.holds_back(volume) {
            state.at_gate.push(parked);
            return;
        }
        drop(state);
        env.remap(parked.id);
    }

    /// A table is being suspended and gets back what waits here.
    pub fn hand_back(&self, env: &Env, attachment: u64) {
        let mut found = Vec::new();
        {
            let mut state = self.state.lock();
            let State { at_gate, starving, crowded, .. } = &mut *state;
            for list in [at_gate, starving, crowded] {
                found.extend(list.extract_if(.., |parked| parked.attachment == attachment));
            }
        }
        found.into_iter().for_each(|parked| env.hand_back(parked.id));
    }

    // Volumes.

    /// The volume of an id, opened if no table serves it yet. The caller becomes a user, for a
    /// mapped device with this failure count.
    pub async fn open_volume(
        &self,
        env: &Env,
        id: DeviceId,
        failures: &Arc<FailureCount>,
    ) -> Result<Arc<Volume>, MetadataError> {
        let _verb = self.verb_lock.lock().await;
        let known = {
            // Entered under the lock, so that no task drops the volume in between.
            let volumes = self.volumes.lock();
            volumes.get(&id).inspect(|volume| volume.enter(failures)).cloned()
        };
        if let Some(volume) = known {
            self.losses.serve(id, failures);
            return Ok(volume);
        }
        let details = self.metadata.details(id)?;
        let highest = self.metadata.highest(env, id).await?;
        let volume = Volume::new(id, details, highest, &self.arena);
        volume.enter(failures);
        self.losses.serve(id, failures);
        self.volumes.lock().insert(id, volume.clone());
        Ok(volume)
    }

    /// A table that used the volume has ended. A volume with changes stays until they are durable.
    pub fn close_volume(&self, volume: &Volume, failures: &Arc<FailureCount>) {
        if volume.leave(failures) {
            self.forget_unused();
        }
    }

    /// Drops volumes that no table uses and whose changes are durable.
    pub fn forget_unused(&self) {
        let is_unused =
            |_: &DeviceId, volume: &mut Arc<Volume>| !volume.is_used() && !volume.is_changed();
        let unused: Vec<_> = self.volumes.lock().extract_if(.., is_unused).collect();
        // A table may still have a reference to it, while the arena's space is limited.
        unused.iter().for_each(|(_, volume)| volume.map.roll_back(0));
    }

    /// Starts a task that a suspend waits for.
    pub fn spawn(&self, env: &Env, task: impl AsyncFnOnce(&Pool, &Env) + 'static) {
        let pool = self.arc();
        self.tasks.spawn(env, async move |env| task(&pool, env).await);
    }

    /// Every open volume.
    pub fn open_volumes(&self) -> Vec<Arc<Volume>> {
        self.volumes.lock().values().cloned().collect()
    }

    /// Loads a group, as [`Shard::wait_for_group`](super::index::Shard::wait_for_group) asked, then
    /// has everybody who waits for it look again.
    pub fn load(&self, env: &Env, volume: &Arc<Volume>, group: u64) {
        let volume = volume.clone();
        self.spawn(env, async move |pool, env| {
            let waiters = pool.load_groups(env, &volume, group).await;
            let (waiters, result) = match waiters {
                Ok(waiters) => (waiters, None),
                Err(error) => {
                    if volume.is_used() {
                        tracing::error!("{}: mappings: {error}", pool.name());
                    }
                    (volume.map.give_up_load(group), Some(Err(IoError::IO)))
                }
            };
            for id in waiters {
                match result {
                    None => env.remap(id),
                    Some(failed) => env.complete(id, failed),
                }
            }
            pool.changed.notify(usize::MAX);
        });
    }

    /// Reads a group, and what comes with it; answers who waited for one of these.
    async fn load_groups(
        &self,
        env: &Env,
        volume: &Volume,
        group: u64,
    ) -> Result<Vec<RequestId>, MetadataError> {
        let mut waiters = Vec::new();
        let mut loading = Some(group);
        while let Some(wanted) = loading {
            let groups = Leaves::read(env, &self.metadata, volume.id, wanted).await?;
            for (number, own) in groups.groups {
                let current = || self.metadata.is_current(groups.generation);
                let ended = volume.map.end_load(number, &own, current, self.durable());
                // A commit came in between: the groups that were read may be outdated.
                let Some(ended) = ended else { break };
                waiters.extend(ended);
                if number == wanted {
                    loading = None;
                }
            }
        }
        Ok(waiters)
    }

    /// Waits until a group is loaded.
    pub async fn loaded(&self, env: &Env, volume: &Arc<Volume>, group: u64) -> IoResult {
        let first = group * GROUP_BLOCKS;
        for _ in 0..LOAD_ATTEMPTS {
            loop {
                let listener = self.changed.listen();
                {
                    let mut shard = volume.map.shard(first);
                    if shard.is_loaded(first) {
                        return Ok(());
                    }
                    if shard.wait_for_group(group, None) {
                        break;
                    }
                }
                listener.await;
            }
            let listener = self.changed.listen();
            self.load(env, volume, group);
            listener.await;
        }
        Err(IoError::IO)
    }

    /// Waits until an event, or for a moment: for changes without an event.
    pub async fn rest_for_change(&self, env: &Env, listener: EventListener) {
        select(Box::pin(env.sleep(MOMENT)), listener).await;
    }

    // Blocks.

    /// Takes data blocks for the reactor of `env`.
    pub fn take(&self, env: &Env, most: u64) -> Taken {
        self.stocks.take(env.reactor(), most, &self.room, &self.metadata)
    }

    /// Data blocks that no volume uses, in stocks and quarantine too.
    pub fn free_data(&self) -> u64 {
        let quarantined = self.state.lock().quarantined;
        self.metadata.allocator().free() + self.stocks.blocks() + quarantined
    }
}
