//! The test fixture: a volume with a writecache in a simulated world, whose drives record their
//! operations. Drop checks that no contract was broken and no request was lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    CallOff, ConfigError, Disk, Env, FailureCursor, Flags, Io, IoError, IoResult, MappedDevice,
    MessageError, Op, Registry, Resumed, Sector, SectorCount, SuspendMode, Table, TableContext,
    TableLine, Target, TargetTypes,
};
use cairn_format::writecache::{Entry, EntryState, Geometry, Superblock};
use cairn_sim::{DriveModel, Effect, Fault, Image, OpSet, SimDrive, SimOpener, SimWorld};

use super::super::index::{IN_WRITEBACK, Life};
use super::super::{State, WriteCache};
use crate::fixture::{RecordingDrive, drive_options};

pub use crate::fixture::{DRIVE_TIME, Seen, range, write_io};

/// Results of requests that were started, in the order of their ends.
#[derive(Clone, Default)]
pub struct Ends(Rc<RefCell<Vec<(&'static str, IoResult)>>>);

impl Ends {
    pub fn of(&self, name: &str) -> Option<IoResult> {
        self.0.borrow().iter().find(|(own, _)| *own == name).map(|(_, result)| *result)
    }

    pub fn count(&self) -> usize {
        self.0.borrow().len()
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.0.borrow().iter().map(|(name, _)| *name).collect()
    }
}

/// The result of a message that was started.
pub type Answer = Rc<RefCell<Option<Result<String, MessageError>>>>;

pub struct Bed {
    pub sim: SimWorld,
    pub volume: Arc<MappedDevice>,
    pub origin: Arc<SimDrive>,
    pub cache: Arc<SimDrive>,
    pub ends: Ends,
    noting: [Arc<RecordingDrive>; 2],
    pub registry: Arc<Registry>,
    /// What the bed's own client was told.
    cursor: RefCell<FailureCursor>,
}

/// Counters and gauges of the status line.
#[derive(Debug, PartialEq, Eq)]
pub struct Status(pub Vec<u64>);

impl Status {
    pub fn error(&self) -> u64 {
        self.0[0]
    }
    pub fn free(&self) -> u64 {
        self.0[2]
    }
    pub fn dirty(&self) -> u64 {
        self.0[1] - self.0[2]
    }
    pub fn counters(&self) -> &[u64] {
        &self.0[4..]
    }
    pub fn named(&self, name: &str) -> u64 {
        let at =
            crate::writecache::KIND.spec.status_fields.iter().position(|field| field.name == name);
        self.0[at.expect(name)]
    }
}

/// How large a cache device must be for `slots` slots.
pub fn cache_sectors(slots: u64, block: u64) -> u64 {
    ((64 + 16 * slots).next_multiple_of(block) + slots * block).div_ceil(512)
}

impl Bed {
    /// The process dies and a new one starts; the drives live on with what they hold.
    pub fn killed(self) -> Bed {
        let dead = std::mem::ManuallyDrop::new(self);
        let sim = SimWorld::new(7, SimWorld::REACTORS);
        Bed::of_drives(
            sim,
            [0, 1].map(|at| RecordingDrive::new(Arc::new(dead.noting[at].drive.after_kill()))),
        )
    }

    fn of_drives(sim: SimWorld, noting: [Arc<RecordingDrive>; 2]) -> Bed {
        sim.set_patience(Duration::from_secs(600));
        let opener =
            SimOpener::new().with("origin", noting[0].clone()).with("cache", noting[1].clone());
        let registry = Arc::new(Registry::new(Box::new(opener)));
        let volume = registry.create_volume("test").unwrap();
        let disk: Arc<dyn Disk> = volume.clone();
        let cursor = RefCell::new(FailureCursor::new(&disk));
        let (origin, cache) = (noting[0].drive.clone(), noting[1].drive.clone());
        Bed { sim, volume, origin, cache, ends: Ends::default(), noting, registry, cursor }
    }

    /// An origin of `origin` sectors with contents that tell their sector, and a blank cache.
    pub fn new(origin: u64, cache: u64) -> Bed {
        Bed::of_images(initial(origin), Image::new(SectorCount(cache)), 1)
    }

    pub fn of_images(origin: Image, cache: Image, seed: u64) -> Bed {
        let (per_kib, jitter) = (Duration::ZERO, Duration::ZERO);
        let model = DriveModel { fixed: DRIVE_TIME, flush: DRIVE_TIME, per_kib, jitter };
        Bed::with_model(origin, cache, seed, model)
    }

    pub fn with_model(origin: Image, cache: Image, seed: u64, model: DriveModel) -> Bed {
        let sim = SimWorld::new(seed, SimWorld::REACTORS);
        let add = |name, image| {
            let options = cairn_sim::DriveOptions { model, ..drive_options(name) };
            RecordingDrive::new(sim.add_drive(options, image))
        };
        let noting = [add("origin", origin), add("cache", cache)];
        Bed::of_drives(sim, noting)
    }

    /// A bed with a live cache of `slots` slots of 4 KiB before an origin of 1 MiB; writeback
    /// does not pause unless `options` say so.
    pub fn live(slots: u64, options: &str) -> Bed {
        let bed = Bed::new(2048, cache_sectors(slots, 4096));
        let pause = if options.contains("pause_writeback") { "" } else { "pause_writeback 0" };
        bed.load(&table(2048, 4096, &format!("{options} {pause}")));
        assert_eq!(bed.status().free(), slots);
        bed.forget();
        bed
    }

    pub fn load(&self, text: &str) {
        self.try_load(text, false).unwrap();
    }

    /// An error, too, if acknowledged writes may be lost.
    pub fn try_load(&self, text: &str, read_only: bool) -> Result<(), ConfigError> {
        let resumed = self.sim.block_on(0, |env| self.loading(env, text, read_only));
        resumed.and_then(Resumed::whole)
    }

    /// Makes a table live; tells what was lost by that.
    pub fn swap(&self, text: &str) -> Result<Resumed, ConfigError> {
        self.sim.block_on(0, |env| self.loading(env, text, false))
    }

    /// Begins to load a table and make it live; tells when that is done.
    pub fn start_load(&self, text: &str) -> Rc<Cell<bool>> {
        let (done, env) = (Rc::new(Cell::new(false)), self.sim.env(0).clone());
        let (place, loading) = (done.clone(), self.loading(env.clone(), text, false));
        env.spawn(async move {
            loading.await.expect("it loads").whole().expect("nothing is lost");
            place.set(true);
        });
        // The reactor notices at its next turn.
        self.sim.run_until(|| true);
        done
    }

    fn loading(
        &self,
        env: Env,
        text: &str,
        read_only: bool,
    ) -> impl Future<Output = Result<Resumed, ConfigError>> + 'static {
        let lines = TableLine::parse_all(text);
        let (registry, volume) = (self.registry.clone(), self.volume.clone());
        async move {
            let types = TargetTypes::new(crate::types());
            let context = TableContext { types: &types, registry: &registry, read_only };
            let table = Table::build(&env, &volume, &lines?, context).await?;
            volume.load(table).await;
            volume.resume(&env).await
        }
    }

    /// The line that refuses a table; both drives stay as they are, and see no write.
    pub fn refusal(&self, text: &str) -> String {
        let before = [self.origin.visible(), self.cache.visible()];
        self.forget();
        let line = self.try_load(text, false).expect_err(text).to_string();
        assert_eq!([self.origin.visible(), self.cache.visible()], before, "{text}");
        assert!(self.noting.iter().all(|drive| drive.only_read()), "{text}");
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    }

    pub fn target(&self) -> Arc<dyn Target> {
        self.volume.live_table().expect("a table is live").lines()[0].target.clone()
    }

    /// Looks into the live cache.
    pub fn look<R>(&self, look: impl FnOnce(&WriteCache, &State) -> R) -> R {
        let target = self.target();
        let cache: &WriteCache = target.as_any().and_then(|any| any.downcast_ref()).unwrap();
        let state = cache.state.lock();
        look(cache, &state)
    }

    /// Checks what must hold of the live cache between any two steps.
    pub fn check(&self) {
        self.look(|_, state| check_state(state));
    }

    pub fn status(&self) -> Status {
        let status = self.target().status();
        Status(status.split(' ').map(|field| field.parse().unwrap()).collect())
    }

    pub fn message(&self, word: &'static str) -> Result<String, MessageError> {
        let volume = self.volume.clone();
        self.sim.block_on(0, |env| async move { volume.message(&env, Sector(0), &[word]).await })
    }

    /// Sends a message without waiting for its answer.
    pub fn start_message(&self, word: &'static str) -> Answer {
        let (volume, answer) = (self.volume.clone(), Answer::default());
        let place = answer.clone();
        self.sim.env(2).clone().spawn({
            let env = self.sim.env(2).clone();
            async move {
                let result = volume.message(&env, Sector(0), &[word]).await;
                *place.borrow_mut() = Some(result);
            }
        });
        answer
    }

    /// Begins to suspend the volume, which is called off.
    pub fn call_off(&self, mode: SuspendMode) {
        let (volume, call_off) = (self.volume.clone(), CallOff::default());
        call_off.call();
        let suspended = self
            .sim
            .block_on(0, |env| async move { volume.suspend_unless(&env, mode, &call_off).await });
        assert_eq!(suspended.ok(), Some(false));
    }

    pub fn suspend(&self, mode: SuspendMode) {
        self.try_suspend(mode).unwrap();
    }

    /// An error if acknowledged writes may be lost.
    pub fn try_suspend(&self, mode: SuspendMode) -> Result<(), ConfigError> {
        let volume = self.volume.clone();
        self.sim.block_on(0, |env| async move { volume.suspend(&env, mode).await })
    }

    pub fn resume(&self) {
        self.try_resume().unwrap().whole().unwrap();
    }

    pub fn try_resume(&self) -> Result<Resumed, ConfigError> {
        let volume = self.volume.clone();
        self.sim.block_on(0, |env| async move { volume.resume(&env).await })
    }

    pub fn run(&self, duration: Duration) {
        self.sim.run_for(duration);
    }

    /// Lets everything that waits for a drive happen; no timer of a second or more.
    pub fn settle(&self) {
        self.run(Duration::from_millis(20));
    }

    pub fn io(&self, io: impl FnOnce(&Env) -> Io) -> IoResult {
        let disk: Arc<dyn Disk> = self.volume.clone();
        self.sim.block_on(1, |env| {
            let io = io(&env);
            async move { env.io(&disk, io).await }
        })
    }

    /// Starts a request; `ends` notes its end under `name`.
    pub fn start(&self, name: &'static str, io: impl FnOnce(&Env) -> Io) {
        let (disk, ends): (Arc<dyn Disk>, _) = (self.volume.clone(), self.ends.clone());
        self.sim.block_on(1, |env| {
            let io = io(&env);
            env.clone().spawn(async move {
                let result = env.io(&disk, io).await;
                ends.0.borrow_mut().push((name, result));
            });
            std::future::ready(())
        });
    }

    /// Writes `count` sectors of `byte`.
    pub fn write(&self, start: u64, count: u64, byte: u8) -> IoResult {
        self.io(|env| write_io(env, start, count, byte))
    }

    pub fn write_fua(&self, start: u64, count: u64, byte: u8) -> IoResult {
        self.io(|env| write_io(env, start, count, byte).with(Flags::FUA))
    }

    /// A flush of the bed's own client.
    pub fn flush(&self) -> IoResult {
        self.flush_of(&mut self.cursor.borrow_mut())
    }

    /// Another client.
    pub fn connect(&self) -> FailureCursor {
        let disk: Arc<dyn Disk> = self.volume.clone();
        FailureCursor::new(&disk)
    }

    pub fn flush_of(&self, client: &mut FailureCursor) -> IoResult {
        let disk: Arc<dyn Disk> = self.volume.clone();
        let told = client.end_of_flush(&disk, self.io(|_| Io::flush()));
        client.was_told(&disk);
        told
    }

    /// Somebody else's flush of a drive, which fails and loses what is volatile.
    pub fn lose_by_another(&self, drive: &SimDrive) {
        let noting = self.noting.iter().find(|noting| std::ptr::eq(&*noting.drive, drive));
        let disk: Arc<dyn Disk> = noting.expect("a drive of the bed").clone();
        drive.faults().add(Fault::losing_flushes().shots(1));
        let flushed = self.sim.block_on(2, |env| async move { env.io(&disk, Io::flush()).await });
        flushed.expect_err("the fault is planted");
    }

    pub fn on(&self, op: Op, start: u64, count: u64) -> IoResult {
        self.io(|_| Io::on(op, range(start, count)))
    }

    pub fn read(&self, start: u64, count: u64) -> Result<Vec<u8>, IoError> {
        let mut segs = None;
        let result = self.io(|env| {
            let own = env.segs(SectorCount(count));
            segs = Some(own.clone());
            Io::read(range(start, count), own)
        });
        result.map(|()| segs.expect("the request was made").to_vec())
    }

    /// Reads one 4 KiB block that is one byte all over.
    pub fn byte(&self, start: u64) -> u8 {
        let bytes = self.read(start, 8).unwrap();
        assert!(bytes.iter().all(|&byte| byte == bytes[0]), "sectors from {start} differ");
        bytes[0]
    }

    /// What the origin has seen since the last look.
    pub fn origin_ops(&self) -> Vec<Seen> {
        self.noting[0].take()
    }

    /// What the cache device has seen since the last look.
    pub fn cache_ops(&self) -> Vec<Seen> {
        self.noting[1].take()
    }

    pub fn forget(&self) {
        self.origin_ops();
        self.cache_ops();
    }

    /// The committed blocks that a crash would certainly leave: sector, seq and first byte.
    pub fn durable_entries(&self) -> Vec<(u64, u64, u8)> {
        committed(&self.cache.durable().to_vec())
    }

    /// A new bed on what a power cut now certainly leaves.
    pub fn reopen_durable(&self) -> Bed {
        Bed::of_images(self.origin.durable(), self.cache.durable(), 2)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let volume = self.volume.clone();
        let removed = self.sim.block_on(0, |env| async move { volume.remove(&env).await });
        let sound = [&self.origin, &self.cache].iter().all(|drive| drive.faults().injected() == 0);
        assert!(removed.is_ok() || !sound, "no device failed: {removed:?}");
        assert_eq!(self.sim.contract_violations(), 0);
        assert_eq!(self.sim.requests_in_use(), 0);
    }
}

/// A table line for a volume of `sectors`.
pub fn table(sectors: u64, block: u64, options: &str) -> String {
    let count = options.split_whitespace().count();
    format!("0 {sectors} writecache s origin cache {block} {count} {options}")
}

/// An origin on which each 4 KiB are one byte, from 128 up.
pub fn initial(sectors: u64) -> Image {
    crate::fixture::image(sectors, initial_byte)
}

pub fn initial_byte(sector: u64) -> u8 {
    128 + (sector / 8 % 128) as u8
}

/// Operations of these kinds take `duration` longer.
pub fn slow(ops: OpSet, duration: Duration) -> Fault {
    Fault { effect: Effect::Delay(duration), ..Fault::error(ops) }
}

/// Sector, seq and first byte of each committed entry of a cache without start_sector.
pub fn committed(area: &[u8]) -> Vec<(u64, u64, u8)> {
    let superblock = Superblock::parse(area).unwrap();
    let geometry = Geometry::of_superblock(&superblock, area.len() as u64).unwrap();
    let mut blocks: Vec<_> = (0..geometry.n_blocks())
        .map(|slot| (slot, Entry::read_at(area, slot).unwrap()))
        .filter(|(_, entry)| entry.state(superblock.seq()) == EntryState::Committed)
        .map(|(slot, entry)| {
            (entry.original_sector, entry.seq.0, area[geometry.slot_offset(slot) as usize])
        })
        .collect();
    blocks.sort_unstable();
    blocks
}

/// What must hold of a cache between any two steps.
pub fn check_state(state: &State) {
    state.index.check();
    let index = &state.index;
    state.origin_flushes.check();
    assert!(index.durable_seq <= index.stamp_seq, "a commit is stamped before it is durable");
    assert!(index.stamp_seq.0 <= index.durable_seq.0 + 1 || state.broken, "I12: one at a time");
    if !state.commits.is_running() && !state.broken {
        let frozen = index.runs().find(|run| index.life(run) == Life::Frozen);
        assert_eq!(frozen, None, "only a commit freezes");
        assert!(!state.commits.has_waiters(), "who waits for a commit makes one begin");
    }
    for run in index.runs() {
        match index.life(&run) {
            Life::Uncommitted => assert_eq!(run.seq, index.stamp_seq, "I2"),
            Life::Committed => assert!(run.seq < index.durable_seq),
            Life::Frozen => (),
        }
        assert!(!run.has(IN_WRITEBACK) || !index.is_written(run.slot, run.len), "I10");
    }
}
