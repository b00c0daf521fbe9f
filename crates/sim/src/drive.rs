//! [`SimDrive`]: a drive with a volatile write cache, in virtual time.
//!
//! Fault model, which the code below implements:
//! - A write becomes visible to reads when it completes, whole. Until then a read sees the old
//!   content; or, with [`DriveOptions::torn_reads`], a read that overlaps a write in flight sees
//!   the old or the new content, sector by sector. Requests complete in seeded order.
//! - A flush makes durable the writes that completed before the flush was submitted, and no others.
//!   A FUA write is durable when it completes; it makes no other write durable.
//! - A power cut leaves the durable image plus a seeded choice of the writes that are not durable,
//!   completed or not: each is kept, lost or torn at sectors, in any order (a later one may survive
//!   an earlier one, even where they overlap). Tears lie between logical blocks.
//! - A kill ([`SimDrive::after_kill`]) keeps what is volatile. Each operation in flight is done
//!   wholly, in part or not at all, by a seeded choice; its writes are volatile.
//! - Write-zeroes is a write. A discard leaves zeros, the old content, or garbage that
//!   [`crate::Content`] recognises, and is as volatile as a write.
//! - A failed write was done wholly, in part or not at all.
//! - A failed flush made nothing durable. It, or a failed FUA write, may have lost the writes that
//!   were volatile when it failed ([`crate::Effect::Lose`]), as a drive does that reports its
//!   failure to one flush only: reads still show these writes, but no later flush makes them
//!   durable.
//! - A new size ([`DriveOptions::grows_to`]) is volatile, too: a power cut keeps it, or loses it
//!   with all that was written beyond the old one.
//! - A copy ([`DriveOptions::copies`]) is a read and a write that take no time, with the faults of
//!   both (but no delays) and the volatility of a write.
//! - Flushes and FUA writes go through a [`FlushGate`], as those of a real file do.
//!
//! It panics if a caller breaks these rules: requests are aligned, inside the drive, with data as
//! long as the range, and the data of a write does not change before it completes.

mod light;
mod remote;
mod stamps;
mod versions;

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_block::{
    CopyError, Disk, Env, Flags, Flow, FlushGate, Io, IoError, IoResult, Limits, LocalFuture,
    MarkerPlace, Nature, Op, Request, RequestId, Sector, SectorCount, SectorRange, Segs,
};
use cairn_nbd::session::Care;
use parking_lot::Mutex;

use crate::drives::Timing;
use crate::faults::Faults;
use crate::image::Image;
use crate::markers::{Markers, Shelf};
use crate::mechanics::{InFlight, Mechanics};
use crate::spindle::{Pending, Queue, Spindle};
use crate::stamp;
use light::Light;
use remote::Line;
pub use remote::Remote;
use versions::Versions;

/// Why a drive that keeps less than all contents cannot answer.
const NO_VERSIONS: &str = "the drive does not keep all contents and their versions";

/// How long operations take.
#[derive(Clone, Copy, Debug)]
pub struct DriveModel {
    /// Every operation but a flush, whatever its size.
    pub fixed: Duration,
    /// In addition per KiB.
    pub per_kib: Duration,
    /// A flush.
    pub flush: Duration,
    /// In addition a seeded time up to this, so that requests overtake each other.
    pub jitter: Duration,
}

impl DriveModel {
    /// A solid-state drive.
    pub const FAST: DriveModel = DriveModel {
        fixed: Duration::from_micros(40),
        per_kib: Duration::from_nanos(500),
        flush: Duration::from_micros(300),
        jitter: Duration::from_micros(80),
    };

    /// A spinning disk.
    pub const SLOW: DriveModel = DriveModel {
        fixed: Duration::from_millis(4),
        per_kib: Duration::from_micros(7),
        flush: Duration::from_millis(9),
        jitter: Duration::from_millis(8),
    };

    fn time(&self, op: Op, range: SectorRange, rng: &mut fastrand::Rng) -> Duration {
        let kib = u32::try_from(range.to_bytes().div_ceil(1024)).unwrap_or(u32::MAX);
        let own = match op {
            Op::Flush => self.flush,
            Op::Discard | Op::WriteZeroes => self.fixed,
            Op::Read | Op::Write => self.fixed + self.per_kib * kib,
        };
        let jitter = u64::try_from(self.jitter.as_nanos()).unwrap_or(u64::MAX);
        own + Duration::from_nanos(rng.u64(..=jitter))
    }
}

/// The properties of a drive.
#[derive(Clone, Debug)]
pub struct DriveOptions {
    /// Its name in table lines.
    pub name: String,
    /// Smallest addressable unit in bytes.
    pub logical_block: u32,
    /// Keeps completed writes in volatile memory until a flush.
    pub volatile_cache: bool,
    /// A read may see a write in flight in part.
    pub torn_reads: bool,
    /// Copies from another drive, or inside itself, without a buffer
    /// ([`cairn_block::Disk::copy_from`]).
    pub copies: bool,
    /// How long operations take.
    pub model: DriveModel,
    /// If set, reads and writes wait for an arm and take its times instead of the model's; a flush
    /// takes the model's time.
    pub spindle: Option<Spindle>,
    /// If set, it is the drive of a server, and requests go to it over connections.
    pub remote: Option<Remote>,
    /// It says that it refuses writes.
    pub read_only: bool,
    /// It grows when it is asked to, as a file does, at most to this size.
    pub grows_to: SectorCount,
}

impl DriveOptions {
    /// A fast drive with a volatile cache and blocks of 512 bytes.
    pub fn named(name: &str) -> DriveOptions {
        let model = DriveModel::FAST;
        DriveOptions {
            name: name.to_owned(),
            logical_block: 512,
            volatile_cache: true,
            torn_reads: false,
            copies: false,
            model,
            spindle: None,
            remote: None,
            read_only: false,
            grows_to: SectorCount::ZERO,
        }
    }
}

/// What a drive remembers of its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// All, with all versions since the last flush: for power cuts.
    All,
    /// The bytes of requests with [`Flags::META`], and of data its place only.
    Metadata,
    /// As `Metadata`, and of stamped data ([`crate::Content`]) its stamps: for checking what is
    /// read.
    Stamps,
}

/// The properties of a drive with a timing model ([`crate::drives`]).
#[derive(Clone, Debug)]
pub struct TimedOptions {
    /// Its name in table lines.
    pub name: String,
    /// Smallest addressable unit in bytes.
    pub logical_block: u32,
    /// What it remembers.
    pub contents: Contents,
}

/// Names an operation of a drive, in order of submission.
pub type OpId = u64;

/// What a drive remembers.
enum Memory {
    Versions(Versions),
    Light(Light),
}

impl Memory {
    /// # Panics
    /// It knows no versions.
    fn versions(&self) -> &Versions {
        match self {
            Memory::Versions(versions) => versions,
            Memory::Light(_) => panic!("{NO_VERSIONS}"),
        }
    }

    fn versions_mut(&mut self) -> &mut Versions {
        match self {
            Memory::Versions(versions) => versions,
            Memory::Light(_) => panic!("{NO_VERSIONS}"),
        }
    }

    fn sectors(&self) -> SectorCount {
        match self {
            Memory::Versions(versions) => versions.visible.sectors(),
            Memory::Light(light) => light.sectors(),
        }
    }

    /// An operation ends. Answers how.
    fn end(
        &mut self,
        done: &Started,
        options: &DriveOptions,
        rng: &RefCell<fastrand::Rng>,
    ) -> IoResult {
        match self {
            Memory::Versions(versions) => versions.end(done, options, &mut rng.borrow_mut()),
            Memory::Light(light) => match done.error {
                Some(error) => Err(error),
                None => {
                    light.end(done);
                    Ok(())
                }
            },
        }
    }
}

/// An operation in flight.
pub(crate) struct Started {
    /// Its name, of those that a memory of versions gave.
    pub id: OpId,
    pub op: Op,
    pub flags: Flags,
    pub range: SectorRange,
    pub request: RequestId,
    /// Where a read puts its data; where a write took its data from. Empty if the memory does not
    /// look at it.
    pub segs: Segs,
    /// The index of a write.
    pub write: Option<u64>,
    /// That of a planted fault.
    pub error: Option<IoError>,
}

struct State {
    memory: Memory,
    /// What waits for the arm of [`DriveOptions::spindle`].
    queue: Queue,
}

/// What a drive knows of its timing model, which its world has.
struct Model {
    /// Its number in the world.
    number: usize,
    nature: Nature,
    limits: Limits,
}

/// The part of a drive that operations in flight keep alive.
pub(crate) struct DriveShared {
    options: DriveOptions,
    faults: Faults,
    state: Mutex<State>,
    model: Option<Model>,
    /// Where its dirty marker is, if other hosts reach it.
    shelf: OnceLock<Shelf>,
}

/// A simulated drive, as one process uses it.
pub struct SimDrive {
    shared: Arc<DriveShared>,
    gate: Arc<FlushGate>,
    /// What is beneath the gate: the drive, or the way to it.
    under: Arc<dyn Disk>,
}

/// The drive beneath its flush gate.
struct Medium(Arc<DriveShared>);

impl SimDrive {
    /// A drive that holds `image`, durably.
    pub fn new(options: DriveOptions, image: Image) -> SimDrive {
        let memory = Memory::Versions(Versions::new(image));
        SimDrive::with(options, memory, None)
    }

    fn with(options: DriveOptions, memory: Memory, model: Option<Model>) -> SimDrive {
        let state = Mutex::new(State { memory, queue: Queue::default() });
        let (faults, shelf) = (Faults::default(), OnceLock::new());
        let shared = Arc::new(DriveShared { options, faults, state, model, shelf });
        SimDrive::of(shared, Arc::default())
    }

    fn of(shared: Arc<DriveShared>, gate: Arc<FlushGate>) -> SimDrive {
        let under: Arc<dyn Disk> = match shared.options.remote {
            Some(remote) => Arc::new(Line::new(remote, shared.clone(), gate.clone())),
            None => Arc::new(Medium(shared.clone())),
        };
        SimDrive { shared, gate, under }
    }

    /// A drive which holds `image`. Its world has its timing model, under this number.
    pub(crate) fn timed(
        options: TimedOptions,
        image: Image,
        model: &dyn Timing,
        number: usize,
    ) -> SimDrive {
        let memory = match options.contents {
            Contents::All => Memory::Versions(Versions::new(image)),
            Contents::Metadata => Memory::Light(Light::new(image, false)),
            Contents::Stamps => Memory::Light(Light::new(image, true)),
        };
        let options = DriveOptions {
            logical_block: options.logical_block,
            volatile_cache: model.nature().volatile,
            ..DriveOptions::named(&options.name)
        };
        let model = Model { number, nature: model.nature(), limits: model.limits() };
        SimDrive::with(options, memory, Some(model))
    }

    /// The number of its timing model, if it has one.
    pub(crate) fn model_number(&self) -> Option<usize> {
        self.shared.model.as_ref().map(|model| model.number)
    }

    /// The part that its world keeps.
    pub(crate) fn shared(&self) -> &Arc<DriveShared> {
        &self.shared
    }

    /// The same drive, for a process that starts after another was killed, in a world of its own.
    /// It keeps the volatile writes, and its operations in flight have ended as a kill ends them.
    ///
    /// # Panics
    /// It has a timing model, or keeps no versions.
    #[must_use]
    pub fn after_kill(&self) -> SimDrive {
        let mut state = self.shared.state.lock();
        let name = &self.shared.options.name;
        assert!(self.shared.model.is_none(), "{name}: its model knows of no kill");
        state.queue = Queue::default();
        let versions = state.memory.versions_mut();
        versions.end_in_flight(self.shared.options.logical_block);
        if !self.shared.options.volatile_cache {
            versions.settle_all(u64::MAX);
        }
        drop(state);
        if let Some(shelf) = self.shared.shelf.get() {
            shelf.markers.let_go(name);
        }
        // The failure count is in memory that outlives the process. Flushes that end with the old
        // world raise nothing here.
        let gate = Arc::new(FlushGate::new(Arc::new(self.gate.failures().after_kill())));
        SimDrive::of(self.shared.clone(), gate)
    }

    /// From now on other hosts reach it: its dirty marker is there, and a write before a table of
    /// this process has taken it ends the run.
    pub fn share(&self, markers: &Arc<Markers>) {
        let drive = self.shared.options.name.clone();
        markers.let_go(&drive);
        self.shared.shelf.get_or_init(|| Shelf { markers: markers.clone(), drive });
    }

    /// Its fault injector.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// True if a fault lost completed writes since the last power cut.
    pub fn lost_writes(&self) -> bool {
        match &self.shared.state.lock().memory {
            Memory::Versions(versions) => versions.lost,
            Memory::Light(_) => false,
        }
    }

    /// True if it is the drive of a server.
    pub(crate) fn is_remote(&self) -> bool {
        self.shared.options.remote.is_some()
    }

    /// True if writes may be lost without an error of its own, and are then told.
    pub(crate) fn tells(&self) -> bool {
        self.shared.options.remote.is_some_and(|remote| remote.care == Care::Tell)
    }

    /// What reads see now; of a drive that keeps metadata alone, that, with zeros elsewhere.
    pub fn visible(&self) -> Image {
        match &self.shared.state.lock().memory {
            Memory::Versions(versions) => versions.visible.clone(),
            Memory::Light(light) => light.metadata().clone(),
        }
    }

    /// What certainly survives a power cut now.
    ///
    /// # Panics
    /// As all that looks at versions: it does not keep all contents.
    pub fn durable(&self) -> Image {
        self.shared.state.lock().memory.versions().durable.clone()
    }

    /// Gives it other contents, while nothing uses it; all are metadata.
    ///
    /// # Panics
    /// It keeps all contents, and versions of them.
    pub fn load(&self, image: Image) {
        match &mut self.shared.state.lock().memory {
            Memory::Versions(_) => panic!("a drive that keeps versions is made with its contents"),
            Memory::Light(light) => light.load(image),
        }
    }

    /// Changes the size, as a file that grew or shrank. Nothing may be in flight beyond a smaller
    /// size.
    pub fn resize(&self, sectors: SectorCount) {
        self.shared.state.lock().memory.versions_mut().resize(sectors);
    }

    /// What the drive holds after a power cut now.
    pub fn power_cut(&self, rng: &mut fastrand::Rng) -> Image {
        let state = self.shared.state.lock();
        state.memory.versions().power_cut(rng, self.shared.options.logical_block)
    }
}

impl DriveShared {
    /// The server that has it dies, and starts again: as a power cut, but the world goes on.
    fn die(&self, rng: &mut fastrand::Rng) {
        let memory = &mut self.state.lock().memory;
        memory.versions_mut().die(rng, self.options.logical_block);
    }

    fn check(&self, request: &Request, state: &State) {
        let (range, name) = (request.range, &self.options.name);
        if request.op == Op::Flush {
            return;
        }
        let block = SectorCount::of_bytes(u64::from(self.options.logical_block));
        assert!(!range.is_empty(), "{name}: an empty request: {request:?}");
        assert!(range.is_aligned(block), "{name}: not aligned to {block} sectors: {request:?}");
        assert!(range.fits_in(state.memory.sectors()), "{name}: beyond the end: {request:?}");
        let enough = !request.op.has_data() || request.segs.bytes() as u64 >= range.to_bytes();
        assert!(enough, "{name}: too little data: {request:?}");
    }

    /// The arm of this drive, if an operation needs it.
    fn arm(&self, op: Op) -> Option<&Spindle> {
        self.options.spindle.as_ref().filter(|_| op.has_data())
    }

    /// Starts the next operation of the arm, if the arm is free.
    fn move_arm(self: &Arc<Self>, mechanics: &Mechanics) {
        let Some(spindle) = &self.options.spindle else { return };
        let mut state = self.state.lock();
        let sectors = state.memory.sectors();
        if let Some((op, after)) = state.queue.next(spindle, sectors, mechanics.now()) {
            mechanics.plan(after, mechanics.take_waiting(self, op));
        }
    }

    /// Does an operation whose time has come, and completes its request.
    pub fn finish(self: &Arc<Self>, env: &Env, mechanics: &Mechanics, done: Started) {
        let result = {
            let mut state = self.state.lock();
            if self.arm(done.op).is_some() {
                state.queue.release();
            }
            state.memory.end(&done, &self.options, &mechanics.rng)
        };
        self.move_arm(mechanics);
        mechanics.note(&[2, done.id, u64::from(result.is_ok())]);
        if let Some(write) = done.write {
            mechanics.write_done(write);
        }
        if !mechanics.is_powerless() {
            env.complete(done.request, result);
        }
    }

    /// An operation reaches a drive with a timing model. Faults do not delay it.
    fn arrive(&self, mechanics: &Mechanics, number: usize, mut started: Started) {
        started.write = (started.op != Op::Read).then(|| mechanics.count_write());
        if started.op == Op::Write && started.flags.contains(Flags::META) {
            mechanics.count_metadata(started.range.to_bytes());
        }
        mechanics.models.borrow_mut().arrive(number, mechanics.now(), started);
    }

    /// Ends an operation of a drive with a timing model. Answers how.
    pub fn finish_timed(&self, mechanics: &Mechanics, done: &Started) -> IoResult {
        let result = self.state.lock().memory.end(done, &self.options, &mechanics.rng);
        mechanics.note(&[5, mechanics.now().0, done.range.start.0, done.range.count.0]);
        if let Some(write) = done.write {
            mechanics.write_done(write);
        }
        result
    }

    /// Takes a request. Answers the operation, how long it is delayed by faults and, if no other
    /// model tells it, its time.
    fn start(&self, mechanics: &Mechanics, request: &Request) -> (Started, Duration) {
        let state = &mut *self.state.lock();
        self.check(request, state);
        let mut rng = mechanics.rng.borrow_mut();
        let (op, range) = (request.op, request.range);
        let planted = self.faults.decide(&mut rng, (op, request.is_fua()), range);
        let own = match self.model.is_some() || self.arm(op).is_some() {
            true => Duration::ZERO,
            false => self.options.model.time(op, range, &mut rng),
        };
        let (id, wants_data) = match &mut state.memory {
            Memory::Versions(versions) => {
                let fill = versions::fill_of(request, &mut rng);
                let kind = (op, request.is_fua(), range);
                (versions.begin(kind, fill, &planted, &self.options), op.has_data())
            }
            Memory::Light(light) => (0, light.wants_data(op, request.flags, range)),
        };
        let bytes = if wants_data { range.to_bytes() as usize } else { 0 };
        let started = Started {
            id,
            op,
            flags: request.flags,
            range,
            request: request.id(),
            segs: if bytes > 0 { request.segs.slice(0, bytes) } else { Segs::default() },
            write: None,
            error: planted.error,
        };
        (started, own + planted.delay)
    }

    /// Makes it longer, if it is one that grows: a write, as far as faults and its end are
    /// concerned. None if the power is cut: it never ends.
    fn grow(&self, env: &Env, sectors: SectorCount) -> Option<Result<SectorCount, IoError>> {
        let now = self.state.lock().memory.sectors();
        let mechanics: Option<&Rc<Mechanics>> = env.mechanism();
        let sectors = sectors.min(self.options.grows_to);
        let Some(mechanics) = mechanics.filter(|_| now < sectors) else { return Some(Ok(now)) };
        let range = SectorRange::between(Sector(now.0), Sector(sectors.0));
        let planted =
            self.faults.decide(&mut mechanics.rng.borrow_mut(), (Op::Write, false), range);
        mechanics.note(&[6, range.start.0, range.count.0]);
        let write = mechanics.count_write();
        if mechanics.is_powerless() {
            return None;
        }
        if let Some(error) = planted.error {
            return Some(Err(error));
        }
        let is_remote = self.options.remote.is_some();
        let mut state = self.state.lock();
        match is_remote {
            // The server has flushed what it answers.
            true => state.memory.versions_mut().resize(sectors),
            false => state.memory.versions_mut().grow(sectors),
        }
        drop(state);
        mechanics.write_done(write);
        Some(Ok(sectors))
    }

    /// The read of a copy.
    fn read_at_once(&self, mechanics: &Mechanics, range: SectorRange) -> Result<Vec<u8>, IoError> {
        let rng = &mut *mechanics.rng.borrow_mut();
        if let Some(error) = self.faults.decide(rng, (Op::Read, false), range).error {
            return Err(error);
        }
        Ok(self.state.lock().memory.versions_mut().read_at_once(range, &self.options, rng))
    }

    /// The write of a copy. It is in flight as long as the power may go at its submission.
    fn write_at_once(&self, mechanics: &Mechanics, range: SectorRange, bytes: &[u8]) -> IoResult {
        let planted =
            self.faults.decide(&mut mechanics.rng.borrow_mut(), (Op::Write, false), range);
        let result = planted.error.map_or(Ok(()), Err);
        let op = self.state.lock().memory.versions_mut().begin_at_once(range, bytes, result);
        mechanics.note(&[3, op, range.start.0, range.count.0, stamp::hash(bytes)]);
        let write = mechanics.count_write();
        if !mechanics.is_powerless() {
            let (mut state, rng) = (self.state.lock(), &mut *mechanics.rng.borrow_mut());
            state.memory.versions_mut().end_at_once(op, &self.options, rng);
            drop(state);
            mechanics.write_done(write);
        }
        result
    }
}

impl Disk for Medium {
    fn name(&self) -> String {
        self.0.options.name.clone()
    }

    fn sectors(&self) -> SectorCount {
        self.0.state.lock().memory.sectors()
    }

    fn limits(&self) -> Limits {
        let block = self.0.options.logical_block;
        let own = self.0.model.as_ref().map_or_else(Limits::default, |model| model.limits);
        let io_min = own.io_min.max(block);
        let read_only = self.0.options.read_only;
        Limits { logical_block: block, physical_block: block, io_min, read_only, ..own }
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        let drive = &self.0;
        let mechanics: &Rc<Mechanics> =
            env.mechanism().expect("a simulated drive is used in a simulated world");
        if mechanics.is_powerless() {
            return Flow::Queued;
        }
        let (mut started, after) = drive.start(mechanics, request);
        if let Some(model) = &drive.model {
            drive.arrive(mechanics, model.number, started);
            return Flow::Queued;
        }
        let (op, range) = (started.id, request.range);
        mechanics.note(&[1, op, request.op as u64, range.start.0, range.count.0]);
        if request.op == Op::Write {
            mechanics.note(&[stamp::hash(&request.segs.to_vec())]);
        }
        if request.op != Op::Read {
            started.write = Some(mechanics.count_write());
        }
        let in_flight = InFlight { drive: drive.clone(), started };
        if drive.arm(request.op).is_some() {
            let since = mechanics.now();
            drive.state.lock().queue.push(Pending { op, range, delay: after, since });
            mechanics.wait(in_flight);
            drive.move_arm(mechanics);
        } else {
            mechanics.plan(after, in_flight);
        }
        Flow::Queued
    }
}

impl SimDrive {
    fn start_flush(&self, env: &Env, request: &Request) {
        let (id, gate, own) = (request.id(), self.gate.clone(), env.clone());
        let under = self.under.clone();
        env.spawn(async move {
            let result = gate.flush(|| own.io(&under, Io::flush())).await;
            own.complete(id, result);
        });
    }

    fn start_durable_write(&self, env: &Env, request: &Request) {
        let (id, gate, own) = (request.id(), self.gate.clone(), env.clone());
        let under = self.under.clone();
        let bytes = if request.op.has_data() { request.range.to_bytes() as usize } else { 0 };
        let segs = request.segs.slice(0, bytes);
        let (op, flags, range) = (request.op, request.flags, request.range);
        env.spawn(async move {
            let write = |durable| {
                let flags = if durable { flags } else { flags - Flags::FUA };
                own.io(&under, Io { segs: segs.clone(), ..Io::on(op, range) }.with(flags))
            };
            let result = gate.durable_write(write).await;
            own.complete(id, result);
        });
    }
}

impl Disk for SimDrive {
    fn name(&self) -> String {
        self.shared.options.name.clone()
    }

    fn sectors(&self) -> SectorCount {
        self.shared.state.lock().memory.sectors()
    }

    fn limits(&self) -> Limits {
        Medium(self.shared.clone()).limits()
    }

    fn nature(&self) -> Nature {
        let volatile = self.shared.options.volatile_cache;
        let own = self.shared.model.as_ref().map(|model| model.nature);
        own.unwrap_or(Nature { volatile, ..Nature::UNKNOWN })
    }

    fn grow<'a>(
        &'a self,
        env: &'a Env,
        sectors: SectorCount,
    ) -> LocalFuture<'a, Result<SectorCount, IoError>> {
        match self.shared.grow(env, sectors) {
            Some(grown) => Box::pin(std::future::ready(grown)),
            None => Box::pin(std::future::pending()),
        }
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        if let Some(shelf) = self.shared.shelf.get().filter(|_| request.op.is_write()) {
            let (name, range) = (&shelf.drive, request.range);
            assert!(shelf.markers.is_taken(name), "{name}: {range} is written before it is taken");
        }
        match request.op {
            Op::Flush => self.start_flush(env, request),
            _ if request.is_fua() => self.start_durable_write(env, request),
            _ => return self.under.submit(env, request),
        }
        if let Some(mechanics) = env.mechanism::<Rc<Mechanics>>() {
            mechanics.count_gated();
        }
        Flow::Queued
    }

    fn copy_from(
        &self,
        env: &Env,
        source: &dyn Disk,
        from: SectorRange,
        to: Sector,
    ) -> Option<Result<(), CopyError>> {
        let source: &SimDrive = source.as_any()?.downcast_ref()?;
        let mechanics: &Rc<Mechanics> = env.mechanism()?;
        if !self.shared.options.copies
            || source.is_remote()
            || self.is_remote()
            || mechanics.is_powerless()
        {
            return None;
        }
        let to = SectorRange::new(to, from.count);
        let copied = match source.shared.read_at_once(mechanics, from) {
            Ok(bytes) => {
                let written = self.shared.write_at_once(mechanics, to, &bytes);
                written.map_err(CopyError::Write)
            }
            Err(error) => Err(CopyError::Read(error)),
        };
        // After a power cut the caller gets no answer here. It copies by requests, which never end.
        (!mechanics.is_powerless()).then_some(copied)
    }

    fn marker_place(&self) -> MarkerPlace<'_> {
        match self.shared.shelf.get() {
            Some(shelf) => MarkerPlace::Store(shelf),
            None => MarkerPlace::Needless,
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn failures(&self) -> u64 {
        self.gate.failures().count()
    }

    fn failures_told(&self) -> u64 {
        self.gate.failures().told()
    }

    fn acknowledge_failures(&self, upto: u64) {
        self.gate.failures().acknowledge(upto);
    }
}

#[cfg(test)]
mod tests;
