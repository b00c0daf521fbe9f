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
//! - A copy ([`DriveOptions::copies`]) is a read and a write that take no time, with the faults of
//!   both (but no delays) and the volatility of a write.
//! - Flushes and FUA writes go through a [`FlushGate`], as those of a real file do.
//!
//! It panics if a caller breaks these rules: requests are aligned, inside the drive, with data as
//! long as the range, and the data of a write does not change before it completes.

use std::any::Any;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    CopyError, Disk, Env, Flags, Flow, FlushGate, Io, IoError, IoResult, Limits, Nature, Op,
    Request, SECTOR_BYTES, Sector, SectorCount, SectorRange,
};
use parking_lot::Mutex;

use crate::faults::Faults;
use crate::image::Image;
use crate::mechanics::{InFlight, Mechanics};
use crate::spindle::{Pending, Queue, Spindle};
use crate::stamp;

const SECTOR: usize = SECTOR_BYTES as usize;

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
        }
    }
}

/// Names an operation of a drive, in order of submission.
pub type OpId = u64;

/// What an operation writes into its sectors.
#[derive(Clone)]
enum Fill {
    Bytes(Arc<[u8]>),
    Zero,
}

impl Fill {
    /// The sector at `index` of the operation's range.
    fn sector(&self, index: usize) -> [u8; SECTOR] {
        match self {
            Fill::Zero => [0; SECTOR],
            Fill::Bytes(bytes) => {
                let bytes = &bytes[index * SECTOR..(index + 1) * SECTOR];
                bytes.try_into().expect("one sector is one sector long")
            }
        }
    }
}

/// An operation in flight.
struct Running {
    op: Op,
    fua: bool,
    range: SectorRange,
    fill: Option<Fill>,
    result: IoResult,
    /// A flush or FUA write that fails and loses the volatile writes.
    loses: bool,
    /// For a flush: how many writes had completed when it was submitted.
    completed_before: u64,
    /// For a read that may be torn: what its range held when it was submitted.
    before: Vec<u8>,
}

impl Running {
    /// A read or write that succeeds and takes no time.
    fn at_once(op: Op, range: SectorRange) -> Running {
        Running {
            op,
            fua: false,
            range,
            fill: None,
            result: Ok(()),
            loses: false,
            completed_before: 0,
            before: Vec::new(),
        }
    }
}

/// A completed write of one sector that is not durable.
struct Version {
    op: OpId,
    /// Its position in the order of completion.
    completed: u64,
    bytes: [u8; SECTOR],
}

struct State {
    visible: Image,
    durable: Image,
    /// Per sector, in order of completion: the writes that `visible` has and `durable` has not.
    volatile: BTreeMap<u64, Vec<Version>>,
    running: BTreeMap<OpId, Running>,
    next_op: OpId,
    completed: u64,
    /// A fault lost completed writes ([`crate::Effect::Lose`]).
    lost: bool,
    queue: Queue,
}

/// The part of a drive that operations in flight keep alive.
pub(crate) struct DriveShared {
    options: DriveOptions,
    faults: Faults,
    state: Mutex<State>,
}

/// A simulated drive, as one process uses it.
pub struct SimDrive {
    shared: Arc<DriveShared>,
    gate: Arc<FlushGate>,
}

/// The drive beneath its flush gate.
struct Medium(Arc<DriveShared>);

impl SimDrive {
    /// A drive that holds `image`, durably.
    pub fn new(options: DriveOptions, image: Image) -> SimDrive {
        let state = State {
            visible: image.clone(),
            durable: image,
            volatile: BTreeMap::new(),
            running: BTreeMap::new(),
            next_op: 0,
            completed: 0,
            lost: false,
            queue: Queue::default(),
        };
        let state = Mutex::new(state);
        let shared = Arc::new(DriveShared { options, faults: Faults::default(), state });
        SimDrive { shared, gate: Arc::default() }
    }

    /// The same drive, for a process that starts after another was killed, in a world of its own.
    /// It keeps the volatile writes, and its operations in flight have ended as a kill ends them.
    #[must_use]
    pub fn after_kill(&self) -> SimDrive {
        let mut state = self.shared.state.lock();
        state.end_in_flight(self.shared.options.logical_block);
        if !self.shared.options.volatile_cache {
            state.settle_all(u64::MAX);
        }
        drop(state);
        SimDrive { shared: self.shared.clone(), gate: Arc::default() }
    }

    /// Its fault injector.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// True if a fault lost completed writes since the last power cut.
    pub fn lost_writes(&self) -> bool {
        self.shared.state.lock().lost
    }

    /// What reads see now.
    pub fn visible(&self) -> Image {
        self.shared.state.lock().visible.clone()
    }

    /// What certainly survives a power cut now.
    pub fn durable(&self) -> Image {
        self.shared.state.lock().durable.clone()
    }

    /// Changes the size, as a file that grew or shrank. Nothing may be in flight beyond a smaller
    /// size.
    pub fn resize(&self, sectors: SectorCount) {
        let mut state = self.shared.state.lock();
        state.visible.resize(sectors);
        state.durable.resize(sectors);
        state.volatile.retain(|&sector, _| sector < sectors.0);
    }

    /// What the drive holds after a power cut now.
    pub fn power_cut(&self, rng: &mut fastrand::Rng) -> Image {
        self.shared.state.lock().power_cut(rng, self.shared.options.logical_block)
    }
}

/// What a power cut does to one volatile write.
#[derive(Clone, Copy)]
enum Fate {
    Kept,
    Lost,
    /// Each logical block is kept with this chance of 256.
    Torn(u8),
}

/// How likely one power cut keeps or tears a volatile write; extremes matter as much as mixtures.
#[derive(Clone, Copy)]
struct Odds {
    kept_of_16: u8,
    torn_of_16: u8,
}

impl Odds {
    fn draw(rng: &mut fastrand::Rng) -> Odds {
        let kept_of_16 = match rng.u8(..8) {
            0 => 0,
            1 => 16,
            2 => 15,
            3 => 1,
            _ => rng.u8(2..15),
        };
        Odds { kept_of_16, torn_of_16: if rng.bool() { rng.u8(..8) } else { 0 } }
    }

    fn fate(self, rng: &mut fastrand::Rng) -> Fate {
        if rng.u8(..16) < self.torn_of_16 {
            Fate::Torn(rng.u8(..))
        } else if rng.u8(..16) < self.kept_of_16 {
            Fate::Kept
        } else {
            Fate::Lost
        }
    }
}

impl State {
    fn power_cut(&self, rng: &mut fastrand::Rng, block: u32) -> Image {
        let odds = Odds::draw(rng);
        let mut fates: BTreeMap<OpId, Fate> = BTreeMap::new();
        for op in self.volatile.values().flatten().map(|version| version.op) {
            fates.entry(op).or_insert(Fate::Lost);
        }
        for fate in fates.values_mut() {
            *fate = odds.fate(rng);
        }
        let mut image = self.durable.clone();
        let mut survivors: BTreeMap<OpId, Survivors> = BTreeMap::new();
        for (sector, versions) in &self.volatile {
            for version in versions {
                let fate = || Survivors::new(fates[&version.op], block);
                if survivors.entry(version.op).or_insert_with(fate).has(*sector, rng) {
                    image.write(Sector(*sector), &version.bytes);
                }
            }
        }
        for running in self.running.values() {
            let Some(fill) = &running.fill else { continue };
            let mut survivors = Survivors::new(odds.fate(rng), block);
            for index in 0..running.range.count.0 {
                let sector = running.range.start.0 + index;
                if survivors.has(sector, rng) {
                    image.write(Sector(sector), &fill.sector(index as usize));
                }
            }
        }
        image
    }

    /// Ends the operations in flight, because the process that used the drive was killed.
    fn end_in_flight(&mut self, block: u32) {
        let mut rng = fastrand::Rng::with_seed(self.next_op ^ self.completed.rotate_left(32));
        self.queue = Queue::default();
        for (op, running) in std::mem::take(&mut self.running) {
            let done = running.result.is_ok() && rng.bool();
            let fate = if done { Fate::Kept } else { Fate::Torn(rng.u8(..)) };
            if running.fill.is_some() {
                self.apply_all(op, &running, Survivors::new(fate, block), &mut rng);
            }
            if done && running.op == Op::Flush {
                self.settle_all(running.completed_before);
            }
        }
    }

    /// Makes an operation visible in those sectors of its range that `survivors` has.
    fn apply_all(
        &mut self,
        op: OpId,
        running: &Running,
        mut survivors: Survivors,
        rng: &mut fastrand::Rng,
    ) {
        if let Some(fill) = &running.fill {
            for index in 0..running.range.count.0 {
                if survivors.has(running.range.start.0 + index, rng) {
                    self.apply(op, running.range, index, fill.sector(index as usize));
                }
            }
        }
        self.completed += 1;
    }

    /// The data of a read.
    fn read(&self, running: &Running, rng: &mut fastrand::Rng) -> Vec<u8> {
        let mut bytes = vec![0; running.range.to_bytes() as usize];
        self.visible.read(running.range.start, &mut bytes);
        if running.before.is_empty() {
            return bytes;
        }
        for (now, before) in bytes.chunks_mut(SECTOR).zip(running.before.chunks(SECTOR)) {
            if now != before && rng.bool() {
                now.copy_from_slice(before);
            }
        }
        for other in self.running.values() {
            let Some(fill) = &other.fill else { continue };
            for sector in other.range.start.0..other.range.end().0 {
                let inside = sector >= running.range.start.0 && sector < running.range.end().0;
                if inside && rng.bool() {
                    let at = (sector - running.range.start.0) as usize * SECTOR;
                    let index = (sector - other.range.start.0) as usize;
                    bytes[at..at + SECTOR].copy_from_slice(&fill.sector(index));
                }
            }
        }
        bytes
    }

    /// Makes a write visible in one sector.
    fn apply(&mut self, op: OpId, range: SectorRange, index: u64, bytes: [u8; SECTOR]) {
        let sector = Sector(range.start.0 + index);
        self.visible.write(sector, &bytes);
        let completed = self.completed;
        self.volatile.entry(sector.0).or_default().push(Version { op, completed, bytes });
    }

    /// Loses the volatile writes: they never become durable.
    fn lose(&mut self) {
        self.lost |= !self.volatile.is_empty();
        self.volatile.clear();
    }

    /// Makes this sector's writes that completed before `completed_before` durable.
    fn settle(&mut self, sector: u64, completed_before: u64) {
        let Some(versions) = self.volatile.get_mut(&sector) else { return };
        let count = versions.partition_point(|version| version.completed < completed_before);
        if let Some(last) = versions.drain(..count).next_back() {
            self.durable.write(Sector(sector), &last.bytes);
        }
        if versions.is_empty() {
            self.volatile.remove(&sector);
        }
    }

    fn settle_all(&mut self, completed_before: u64) {
        let sectors: Vec<u64> = self.volatile.keys().copied().collect();
        for sector in sectors {
            self.settle(sector, completed_before);
        }
    }
}

/// Which sectors of one operation are done. Must be asked in rising order.
struct Survivors {
    fate: Fate,
    /// Sectors of a logical block; a block is done wholly or not at all.
    block: u64,
    last: Option<(u64, bool)>,
}

impl Survivors {
    fn new(fate: Fate, block_bytes: u32) -> Survivors {
        Survivors { fate, block: u64::from(block_bytes) / SECTOR_BYTES, last: None }
    }

    fn has(&mut self, sector: u64, rng: &mut fastrand::Rng) -> bool {
        let chance = match self.fate {
            Fate::Kept => return true,
            Fate::Lost => return false,
            Fate::Torn(chance) => chance,
        };
        let block = sector / self.block;
        match self.last {
            Some((last, has)) if last == block => has,
            _ => {
                let has = rng.u8(..) < chance;
                self.last = Some((block, has));
                has
            }
        }
    }
}

impl DriveShared {
    fn check(&self, request: &Request, state: &State) {
        let (range, name) = (request.range, &self.options.name);
        if request.op == Op::Flush {
            return;
        }
        let block = SectorCount::of_bytes(u64::from(self.options.logical_block));
        assert!(!range.is_empty(), "{name}: an empty request: {request:?}");
        assert!(range.is_aligned(block), "{name}: not aligned to {block} sectors: {request:?}");
        assert!(range.fits_in(state.visible.sectors()), "{name}: beyond the end: {request:?}");
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
        let sectors = state.visible.sectors();
        if let Some((op, after)) = state.queue.next(spindle, sectors, mechanics.now()) {
            mechanics.plan(after, mechanics.take_waiting(self, op));
        }
    }

    /// Does an operation whose time has come, and completes its request.
    pub fn finish(self: &Arc<Self>, env: &Env, mechanics: &Mechanics, done: InFlight) {
        let result = {
            let mut rng = mechanics.rng.borrow_mut();
            let mut state = self.state.lock();
            let running = state.running.remove(&done.op).expect("an operation ends once");
            if self.arm(running.op).is_some() {
                state.queue.release();
            }
            self.act(&mut state, &mut rng, &done, &running);
            running.result
        };
        self.move_arm(mechanics);
        mechanics.note(&[2, done.op, u64::from(result.is_ok())]);
        if let Some(write) = done.write {
            mechanics.write_done(write);
        }
        if !mechanics.is_powerless() {
            env.complete(done.request, result);
        }
    }

    fn act(&self, state: &mut State, rng: &mut fastrand::Rng, done: &InFlight, running: &Running) {
        let ok = running.result.is_ok();
        match running.op {
            Op::Read if ok => done.segs.copy_in(0, &state.read(running, rng)),
            Op::Read => {}
            Op::Flush if ok => state.settle_all(running.completed_before),
            Op::Flush if running.loses => state.lose(),
            Op::Flush => {}
            Op::Write | Op::WriteZeroes | Op::Discard => {
                self.act_write(state, rng, done, running);
            }
        }
    }

    fn act_write(
        &self,
        state: &mut State,
        rng: &mut fastrand::Rng,
        done: &InFlight,
        running: &Running,
    ) {
        if running.op == Op::Write {
            let Some(Fill::Bytes(bytes)) = &running.fill else { unreachable!("a write has data") };
            let untouched = done.segs.to_vec()[..] == bytes[..];
            assert!(untouched, "{}: the data of a write changed in flight", self.options.name);
        }
        self.apply_write(state, rng, done.op, running);
    }

    /// Makes a write visible; with FUA, or on a drive without a volatile cache, also durable.
    fn apply_write(&self, state: &mut State, rng: &mut fastrand::Rng, op: OpId, running: &Running) {
        let fate = if running.result.is_ok() { Fate::Kept } else { Fate::Torn(rng.u8(..)) };
        let survivors = Survivors::new(fate, self.options.logical_block);
        state.apply_all(op, running, survivors, rng);
        if running.loses && running.fua {
            state.lose();
        }
        if !self.options.volatile_cache || (running.fua && running.result.is_ok()) {
            // Earlier writes of these sectors lie beneath this one; they cannot reappear either.
            let completed = state.completed;
            for sector in running.range.start.0..running.range.end().0 {
                state.settle(sector, completed);
            }
        }
    }

    /// The read of a copy.
    fn read_at_once(&self, mechanics: &Mechanics, range: SectorRange) -> Result<Vec<u8>, IoError> {
        let rng = &mut *mechanics.rng.borrow_mut();
        if let Some(error) = self.faults.decide(rng, (Op::Read, false), range).error {
            return Err(error);
        }
        let state = self.state.lock();
        let before = self.before((Op::Read, range), &state);
        Ok(state.read(&Running { before, ..Running::at_once(Op::Read, range) }, rng))
    }

    /// The write of a copy. It is in flight as long as the power may go at its submission.
    fn write_at_once(&self, mechanics: &Mechanics, range: SectorRange, bytes: &[u8]) -> IoResult {
        let planted =
            self.faults.decide(&mut mechanics.rng.borrow_mut(), (Op::Write, false), range);
        let result = planted.error.map_or(Ok(()), Err);
        let fill = Some(Fill::Bytes(bytes.into()));
        let op = {
            let mut state = self.state.lock();
            let op = state.next_op;
            state.next_op += 1;
            let running = Running { fill, result, ..Running::at_once(Op::Write, range) };
            state.running.insert(op, running);
            op
        };
        mechanics.note(&[3, op, range.start.0, range.count.0, stamp::hash(bytes)]);
        let write = mechanics.count_write();
        if !mechanics.is_powerless() {
            let mut state = self.state.lock();
            let running = state.running.remove(&op).expect("an operation ends once");
            self.apply_write(&mut state, &mut mechanics.rng.borrow_mut(), op, &running);
            mechanics.write_done(write);
        }
        result
    }

    fn before(&self, (op, range): (Op, SectorRange), state: &State) -> Vec<u8> {
        if op != Op::Read || !self.options.torn_reads {
            return Vec::new();
        }
        let mut bytes = vec![0; range.to_bytes() as usize];
        state.visible.read(range.start, &mut bytes);
        bytes
    }

    fn fill(&self, request: &Request, rng: &mut fastrand::Rng) -> Option<Fill> {
        let bytes = request.range.to_bytes() as usize;
        match request.op {
            Op::Read | Op::Flush => None,
            Op::Write => Some(Fill::Bytes(request.segs.slice(0, bytes).to_vec().into())),
            Op::WriteZeroes => Some(Fill::Zero),
            Op::Discard => match rng.u8(..3) {
                0 => None,
                1 => Some(Fill::Zero),
                _ => Some(Fill::Bytes(stamp::garbage(rng, request.range).into())),
            },
        }
    }
}

impl Disk for Medium {
    fn name(&self) -> String {
        self.0.options.name.clone()
    }

    fn sectors(&self) -> SectorCount {
        self.0.state.lock().visible.sectors()
    }

    fn limits(&self) -> Limits {
        let block = self.0.options.logical_block;
        Limits { logical_block: block, physical_block: block, io_min: block, ..Limits::default() }
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        let drive = &self.0;
        let mechanics: &Rc<Mechanics> =
            env.mechanism().expect("a simulated drive is used in a simulated world");
        if mechanics.is_powerless() {
            return Flow::Queued;
        }
        let is_write = request.op != Op::Read;
        let (op, after) = {
            let mut state = drive.state.lock();
            drive.check(request, &state);
            let mut rng = mechanics.rng.borrow_mut();
            let op = (request.op, request.is_fua());
            let planted = drive.faults.decide(&mut rng, op, request.range);
            let after = match drive.arm(request.op) {
                Some(_) => Duration::ZERO,
                None => drive.options.model.time(request.op, request.range, &mut rng),
            };
            let op = state.next_op;
            state.next_op += 1;
            let running = Running {
                op: request.op,
                fua: request.is_fua(),
                range: request.range,
                fill: drive.fill(request, &mut rng),
                result: planted.error.map_or(Ok(()), Err),
                loses: planted.loses,
                completed_before: state.completed,
                before: drive.before((request.op, request.range), &state),
            };
            state.running.insert(op, running);
            (op, after + planted.delay)
        };
        mechanics.note(&[1, op, request.op as u64, request.range.start.0, request.range.count.0]);
        if request.op == Op::Write {
            mechanics.note(&[stamp::hash(&request.segs.to_vec())]);
        }
        let bytes = if request.op.has_data() { request.range.to_bytes() as usize } else { 0 };
        let write = is_write.then(|| mechanics.count_write());
        let segs = request.segs.slice(0, bytes);
        let in_flight = InFlight { drive: drive.clone(), op, request: request.id(), segs, write };
        if drive.arm(request.op).is_some() {
            let (range, since) = (request.range, mechanics.now());
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
        let medium: Arc<dyn Disk> = Arc::new(Medium(self.shared.clone()));
        env.spawn(async move {
            let result = gate.flush(|| own.io(&medium, Io::flush())).await;
            own.complete(id, result);
        });
    }

    fn start_durable_write(&self, env: &Env, request: &Request) {
        let (id, gate, own) = (request.id(), self.gate.clone(), env.clone());
        let medium: Arc<dyn Disk> = Arc::new(Medium(self.shared.clone()));
        let bytes = if request.op.has_data() { request.range.to_bytes() as usize } else { 0 };
        let segs = request.segs.slice(0, bytes);
        let (op, flags, range) = (request.op, request.flags, request.range);
        env.spawn(async move {
            let write = |durable| {
                let flags = if durable { flags } else { flags - Flags::FUA };
                own.io(&medium, Io { segs: segs.clone(), ..Io::on(op, range) }.with(flags))
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
        self.shared.state.lock().visible.sectors()
    }

    fn limits(&self) -> Limits {
        Medium(self.shared.clone()).limits()
    }

    fn nature(&self) -> Nature {
        Nature { volatile: self.shared.options.volatile_cache, ..Nature::UNKNOWN }
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        match request.op {
            Op::Flush => self.start_flush(env, request),
            _ if request.is_fua() => self.start_durable_write(env, request),
            _ => return Medium(self.shared.clone()).submit(env, request),
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
        if !self.shared.options.copies || mechanics.is_powerless() {
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
