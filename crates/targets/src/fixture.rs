//! The test fixture of every target: volumes by name over drives in a simulated world.
//!
//! The drives record their operations ([`RecordingDrive`]) and fail on demand; tables change under
//! load. [`OneVolume`] is for tests of a single volume; a target's own fixture adds its devices and
//! a view into its state. Drop checks that no contract was broken, that no request was lost, and
//! that a volume loses nothing unless a drive failed.

mod one_volume;
mod recording;

use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    CallOff, ConfigError, Ctor, Disk, Env, Events, Extent, FailureCursor, Io, IoError, IoResult,
    KeptLogs, MappedDevice, MessageError, Op, Passage, Rate, Rates, Registry, Resumed,
    SECTOR_BYTES, Sector, SectorCount, SectorRange, SuspendMode, TURN_BYTES, Table, TableContext,
    TableLine, Target, TargetType, TargetTypes, ThrottleLimits,
};
use cairn_sim::campaign::users_first;
use cairn_sim::{DriveModel, DriveOptions, Fault, Image, Markers, SimDrive, SimOpener, SimWorld};

pub use one_volume::{OneVolume, initial};
pub use recording::{RecordingDrive, Seen};

pub const SECTOR: usize = SECTOR_BYTES as usize;

/// Every operation takes exactly this long on the usual drives of a fixture.
pub const DRIVE_TIME: Duration = Duration::from_micros(50);

/// Results of the requests that a test started, in the order of completion.
#[derive(Clone, Debug, Default)]
pub struct Ends(Rc<RefCell<Vec<(&'static str, IoResult)>>>);

impl Ends {
    pub fn of(&self, label: &str) -> Option<IoResult> {
        self.0.borrow().iter().find(|(own, _)| *own == label).map(|(_, result)| *result)
    }

    pub fn count(&self) -> usize {
        self.0.borrow().len()
    }

    pub fn labels(&self) -> Vec<&'static str> {
        self.0.borrow().iter().map(|(label, _)| *label).collect()
    }

    pub fn note(&self, label: &'static str, result: IoResult) {
        self.0.borrow_mut().push((label, result));
    }

    pub fn all(&self) -> Ref<'_, Vec<(&'static str, IoResult)>> {
        self.0.borrow()
    }
}

/// Records that half a crash log has room for.
const LOG_RECORDS: usize = 64;

/// The answer to a message that a test started, once there is one.
pub type Answer = Rc<RefCell<Option<Result<String, MessageError>>>>;

/// A client of a volume, which learns of losses as a client of a server does.
pub struct Client {
    volume: Arc<dyn Disk>,
    cursor: RefCell<FailureCursor>,
}

impl Client {
    /// A client that connects now.
    pub fn new(volume: Arc<dyn Disk>) -> Client {
        let cursor = RefCell::new(FailureCursor::new(&volume));
        Client { volume, cursor }
    }
}

pub struct Fixture {
    pub sim: SimWorld,
    pub ends: Ends,
    pub registry: Arc<Registry>,
    drives: Vec<Arc<RecordingDrive>>,
    logs: Arc<KeptLogs>,
    /// Dirty markers of the drives that other hosts reach.
    pub markers: Arc<Markers>,
    types: fn() -> Vec<Arc<dyn TargetType>>,
}

impl Fixture {
    /// A world with these drives, on which every operation takes [`DRIVE_TIME`].
    pub fn new<N: AsRef<str>>(drives: impl IntoIterator<Item = (N, Image)>) -> Fixture {
        let options = |(name, image): (N, Image)| (drive_options(name.as_ref()), image);
        Fixture::with_options(1, drives.into_iter().map(options))
    }

    /// A world with this seed and these drives.
    pub fn with_options(
        seed: u64,
        drives: impl IntoIterator<Item = (DriveOptions, Image)>,
    ) -> Fixture {
        let sim = SimWorld::new(seed, SimWorld::REACTORS);
        let add = |(options, image)| RecordingDrive::new(sim.add_drive(options, image));
        let drives = drives.into_iter().map(add).collect();
        Fixture::over(sim, drives, Arc::new(KeptLogs::new(LOG_RECORDS)), Arc::default())
    }

    /// The process dies and another one starts; the drives keep what they hold.
    pub fn killed(self) -> Fixture {
        let dead = std::mem::ManuallyDrop::new(self);
        let after_kill =
            |dead: &Arc<RecordingDrive>| RecordingDrive::new(Arc::new(dead.drive.after_kill()));
        let drives = dead.drives.iter().map(after_kill).collect();
        let logs = Arc::new(dead.logs.after_kill());
        let markers = dead.markers.clone();
        Fixture::over(SimWorld::new(7, SimWorld::REACTORS), drives, logs, markers)
    }

    fn over(
        sim: SimWorld,
        drives: Vec<Arc<RecordingDrive>>,
        logs: Arc<KeptLogs>,
        markers: Arc<Markers>,
    ) -> Fixture {
        sim.set_patience(Duration::from_secs(600));
        let add = |opener: SimOpener, drive: &Arc<RecordingDrive>| {
            opener.with(&drive.name(), drive.clone())
        };
        let opener = drives.iter().fold(SimOpener::new(), add);
        let registry = Arc::new(Registry::new(Box::new(opener)));
        registry.set_crash_logs(logs.clone());
        registry.set_markers(markers.clone());
        let (ends, types) = (Ends::default(), crate::types as fn() -> _);
        Fixture { sim, ends, registry, drives, logs, markers, types }
    }

    /// Crash logs have room for so many records in each half.
    pub fn with_logs_of(mut self, records: usize) -> Fixture {
        self.logs = Arc::new(KeptLogs::new(records));
        self.registry.set_crash_logs(self.logs.clone());
        self
    }

    /// Tables have the words of experiments.
    pub fn with_words_of_the_lab(mut self) -> Fixture {
        self.types = crate::lab_types;
        self
    }

    // Drives.

    pub fn recording(&self, name: &str) -> &Arc<RecordingDrive> {
        self.drives.iter().find(|drive| drive.name() == name).expect(name)
    }

    pub fn drive(&self, name: &str) -> Arc<SimDrive> {
        self.recording(name).drive.clone()
    }

    /// From now on other hosts reach a drive.
    pub fn share(&self, name: &str) {
        self.drive(name).share(&self.markers);
    }

    /// From now on all drives copy without a buffer.
    pub fn set_copies(&self) {
        self.drives.iter().for_each(|drive| drive.set_copies());
    }

    /// What a power cut now certainly leaves on each drive, in the order of the drives.
    pub fn durable(&self) -> impl Iterator<Item = Image> {
        self.drives.iter().map(|drive| drive.drive.durable())
    }

    /// The operations of a drive since the last call: op, start, count.
    pub fn ops(&self, name: &str) -> Vec<(Op, u64, u64)> {
        self.seen(name).into_iter().map(|seen| (seen.op, seen.start, seen.count)).collect()
    }

    /// The operations of a drive since the last call.
    pub fn seen(&self, name: &str) -> Vec<Seen> {
        self.recording(name).take()
    }

    /// Drops the records of all drives.
    pub fn forget(&self) {
        self.drives.iter().for_each(|drive| drop(drive.take()));
    }

    /// What a drive reads as.
    pub fn contents(&self, name: &str) -> Vec<u8> {
        self.drive(name).visible().to_vec()
    }

    /// Another user's flush of a drive fails and loses what is volatile.
    pub fn lose_by_another(&self, name: &str) {
        let disk: Arc<dyn Disk> = self.recording(name).clone();
        self.drive(name).faults().add(Fault::losing_flushes().shots(1));
        let flushed = self.sim.block_on(2, |env| async move { env.io(&disk, Io::flush()).await });
        flushed.expect_err("the fault is planted");
    }

    // Volumes and their tables.

    /// The volume of this name, which is created if there is none.
    pub fn volume(&self, name: &str) -> Arc<MappedDevice> {
        self.registry.volume(name).unwrap_or_else(|_| {
            self.registry.create_volume(name).expect("there is none of this name")
        })
    }

    /// Loads a table and makes it live.
    pub fn load(&self, name: &str, text: &str) {
        self.try_load(name, text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }

    /// An error, too, if acknowledged writes may be lost.
    pub fn try_load(&self, name: &str, text: &str) -> Result<(), ConfigError> {
        self.swap(name, text).and_then(Resumed::whole)
    }

    /// Loads a table and makes it live; returns what was lost by that.
    pub fn swap(&self, name: &str, text: &str) -> Result<Resumed, ConfigError> {
        self.build(name, text)?;
        self.try_resume(name)
    }

    /// Loads a table without making it live.
    pub fn build(&self, name: &str, text: &str) -> Result<(), ConfigError> {
        self.sim.block_on(0, |env| self.building(env, name, text, false))
    }

    /// The same in a server that writes to no device.
    pub fn build_read_only(&self, name: &str, text: &str) -> Result<(), ConfigError> {
        self.sim.block_on(0, |env| self.building(env, name, text, true))
    }

    /// Builds a table and loads it, without making it live.
    pub fn building(
        &self,
        env: Env,
        name: &str,
        text: &str,
        read_only: bool,
    ) -> impl Future<Output = Result<(), ConfigError>> + 'static + use<> {
        let (registry, volume) = (self.registry.clone(), self.volume(name));
        let types = TargetTypes::new((self.types)());
        let lines = TableLine::parse_all(text);
        let known = self.drives.iter().try_for_each(|drive| drive.refresh());
        known.expect("a simulated drive knows its size");
        async move {
            let context = TableContext { types: &types, registry: &registry, read_only };
            let table = Table::build(&env, &volume, &lines?, context).await?;
            volume.load(table).await;
            Ok(())
        }
    }

    /// The error of a table that is refused; no drive sees a write.
    pub fn refusal(&self, name: &str, text: &str) -> String {
        self.forget();
        let line = self.try_load(name, text).expect_err(text).to_string();
        assert!(self.drives.iter().all(|drive| drive.only_read()), "{text}");
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    }

    /// Begins a suspend and calls it off.
    pub fn call_off(&self, name: &str, mode: SuspendMode) {
        let (volume, call_off) = (self.volume(name), CallOff::default());
        call_off.call();
        let suspended = self
            .sim
            .block_on(0, |env| async move { volume.suspend_unless(&env, mode, &call_off).await });
        assert_eq!(suspended.ok(), Some(false));
    }

    pub fn suspend(&self, name: &str, mode: SuspendMode) {
        self.try_suspend(name, mode).expect("nothing acknowledged is lost");
    }

    /// An error if acknowledged writes may be lost.
    pub fn try_suspend(&self, name: &str, mode: SuspendMode) -> Result<(), ConfigError> {
        let volume = self.volume(name);
        self.sim.block_on(0, |env| async move { volume.suspend(&env, mode).await })
    }

    pub fn resume(&self, name: &str) -> Result<(), ConfigError> {
        self.try_resume(name)?.whole()
    }

    /// Resumes a volume; returns what was lost by that.
    pub fn try_resume(&self, name: &str) -> Result<Resumed, ConfigError> {
        let volume = self.volume(name);
        self.sim.block_on(0, |env| async move { volume.resume(&env).await })
    }

    pub fn remove(&self, name: &str) {
        let volume = self.registry.remove_volume(name).expect("it is there");
        self.sim
            .block_on(0, |env| async move { volume.remove(&env).await })
            .expect("nothing acknowledged is lost");
    }

    /// The target of the live table's first line.
    pub fn target(&self, name: &str) -> Arc<dyn Target> {
        self.volume(name).live_table().expect("a table is live").lines()[0].target.clone()
    }

    /// Looks into the target of the live table's first line.
    pub fn with_target<T: 'static, R>(&self, name: &str, look: impl FnOnce(&T) -> R) -> R {
        let target = self.target(name);
        look(target.as_any().and_then(|any| any.downcast_ref()).expect("a target of this type"))
    }

    pub fn status(&self, name: &str) -> String {
        self.target(name).status()
    }

    pub fn message(&self, name: &str, words: &[&'static str]) -> Result<String, MessageError> {
        let (volume, words) = (self.volume(name), words.to_vec());
        self.sim.block_on(0, |env| async move { volume.message(&env, Sector(0), &words).await })
    }

    /// Sends a message without waiting for its answer.
    pub fn start_message(&self, name: &str, words: &[&'static str]) -> Answer {
        let (volume, words, answer) = (self.volume(name), words.to_vec(), Answer::default());
        let (env, place) = (self.sim.env(2).clone(), answer.clone());
        self.sim.env(2).spawn(async move {
            let result = volume.message(&env, Sector(0), &words).await;
            *place.borrow_mut() = Some(result);
        });
        answer
    }

    // Requests. Targets' tasks run on reactor 0.

    /// Sends a request on reactor 1 and waits for its completion.
    pub fn io(&self, name: &str, io: impl FnOnce(&Env) -> Io) -> IoResult {
        let disk: Arc<dyn Disk> = self.volume(name);
        self.sim.block_on(1, |env| {
            let io = io(&env);
            async move { env.io(&disk, io).await }
        })
    }

    /// Starts a request on reactor 2; `ends` records its result under `label`.
    pub fn start(&self, name: &str, label: &'static str, io: impl FnOnce(&Env) -> Io) {
        self.start_on(2, name, label, io);
    }

    pub fn start_on(
        &self,
        reactor: u16,
        name: &str,
        label: &'static str,
        io: impl FnOnce(&Env) -> Io,
    ) {
        let (disk, ends): (Arc<dyn Disk>, _) = (self.volume(name), self.ends.clone());
        self.sim.block_on(reactor, |env| {
            let io = io(&env);
            env.clone().spawn(async move {
                let result = env.io(&disk, io).await;
                ends.note(label, result);
            });
            std::future::ready(())
        });
    }

    /// The labels of the requests that have completed.
    pub fn labels(&self) -> Vec<&'static str> {
        self.ends.labels()
    }

    pub fn extents(&self, name: &str, range: SectorRange) -> Result<Vec<Extent>, IoError> {
        let volume = self.volume(name);
        self.sim.block_on(0, |env| async move { volume.extents(&env, range).await })
    }

    pub fn write(&self, name: &str, start: u64, count: u64, byte: u8) -> IoResult {
        self.io(name, |env| write_io(env, start, count, byte))
    }

    /// Sends a request without data.
    pub fn on(&self, name: &str, op: Op, start: u64, count: u64) -> IoResult {
        self.io(name, |_| Io::on(op, range(start, count)))
    }

    pub fn zero(&self, name: &str, start: u64, count: u64) -> IoResult {
        self.on(name, Op::WriteZeroes, start, count)
    }

    pub fn discard(&self, name: &str, start: u64, count: u64) -> IoResult {
        self.on(name, Op::Discard, start, count)
    }

    pub fn flush(&self, name: &str) -> IoResult {
        self.io(name, |_| Io::flush())
    }

    pub fn read(&self, name: &str, start: u64, count: u64) -> Result<Vec<u8>, IoError> {
        let mut segs = None;
        let result = self.io(name, |env| {
            let own = env.segs(SectorCount(count));
            // What is not read must not look like zeros.
            own.for_each_mut(0, own.bytes(), |bytes| bytes.fill(0xa5));
            segs = Some(own.clone());
            Io::read(range(start, count), own)
        });
        result.map(|()| segs.expect("the request was made").to_vec())
    }

    /// One byte per sector of a range, each of which holds one byte all over.
    pub fn bytes(&self, name: &str, start: u64, count: u64) -> Vec<u8> {
        let bytes = self.read(name, start, count).unwrap_or_else(|error| panic!("{name}: {error}"));
        let sector = |sector: &[u8]| {
            assert!(sector.iter().all(|&byte| byte == sector[0]), "{name}: a mixed sector");
            sector[0]
        };
        bytes.chunks(SECTOR).map(sector).collect()
    }

    // Losses.

    /// Connects a client to a volume.
    pub fn client(&self, name: &str) -> Client {
        Client::new(self.volume(name))
    }

    /// A client's flush: fails, too, if the client has not been told of a loss yet.
    pub fn flush_of(&self, client: &Client) -> IoResult {
        let volume = client.volume.clone();
        let result = self.sim.block_on(1, |env| async move { env.io(&volume, Io::flush()).await });
        let mut cursor = client.cursor.borrow_mut();
        let told = cursor.end_of_flush(&client.volume, result);
        cursor.was_told(&client.volume);
        told
    }

    /// Each client's next flush fails, and the one after it succeeds.
    pub fn are_told_once(&self, clients: &[Client]) {
        for client in clients {
            let name = client.volume.name();
            assert!(self.flush_of(client).is_err(), "{name} is told");
            assert_eq!(self.flush_of(client), Ok(()), "{name} is told once");
        }
    }

    // Time.

    /// Lets background copies move so many bytes per second.
    pub fn limit_background(&self, bytes: u64) {
        let rate = Rate { per_second: bytes.try_into().expect("more than none"), burst: None };
        let bytes = Rates { total: Some(rate), ..Rates::default() };
        let limits = ThrottleLimits { bytes, ..ThrottleLimits::default() };
        self.sim.env(0).post().background().set(&limits);
    }

    /// The same, and so that a turn has passed already.
    pub fn limit_background_after_a_turn(&self, bytes: u64) {
        self.limit_background(bytes);
        let env = self.sim.env(0);
        env.background().charge(env.now(), Passage::of_copy(TURN_BYTES));
    }

    /// Fails if what `during` does takes as long as a limit would make it.
    pub fn in_no_time<T>(&self, during: impl FnOnce() -> T) -> T {
        let began = self.sim.now();
        let done = during();
        let taken = self.sim.now().since(began);
        assert!(taken < Duration::from_secs(1), "{taken:?}");
        done
    }

    pub fn run(&self, duration: Duration) {
        self.sim.run_for(duration);
    }

    /// Completes everything that waits for a drive; runs no timer of a second or more.
    pub fn settle(&self) {
        self.run(Duration::from_millis(20));
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for volume in users_first(&self.registry) {
            let removed = self.sim.block_on(0, |env| async move { volume.remove(&env).await });
            assert!(removed.is_ok() || self.sim.injected() > 0, "no drive failed: {removed:?}");
        }
        assert_eq!(self.sim.contract_violations(), 0);
        assert_eq!(self.sim.requests_in_use(), 0);
    }
}

/// A drive on which every operation takes [`DRIVE_TIME`].
pub fn drive_options(name: &str) -> DriveOptions {
    let (per_kib, jitter) = (Duration::ZERO, Duration::ZERO);
    let model = DriveModel { fixed: DRIVE_TIME, flush: DRIVE_TIME, per_kib, jitter };
    DriveOptions { model, copies: true, ..DriveOptions::named(name) }
}

pub fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector(start), SectorCount(count))
}

pub fn write_io(env: &Env, start: u64, count: u64, byte: u8) -> Io {
    let segs = env.segs(SectorCount(count));
    segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(byte));
    Io::write(range(start, count), segs)
}

/// An image in which each sector is filled with what `byte` returns for it.
pub fn image(sectors: u64, byte: impl Fn(u64) -> u8) -> Image {
    let bytes: Vec<u8> = (0..sectors).flat_map(|sector| [byte(sector); SECTOR]).collect();
    Image::of_bytes(&bytes)
}

/// Shows `look` a line of 4096 sectors with these words, over drives `/o`, `/c` and `/m` as
/// large.
pub fn with_ctor<R>(line: &str, look: impl FnOnce(&Ctor) -> R) -> R {
    let len = SectorCount(4096);
    let drive = |name| Arc::new(SimDrive::new(DriveOptions::named(name), Image::new(len)));
    let opener = SimOpener::new().with("/o", drive("/o")).with("/c", drive("/c"));
    let opener = opener.with("/m", drive("/m"));
    let registry = &Registry::new(Box::new(opener));
    let words: Vec<&str> = line.split_whitespace().collect();
    let (start, events, failures) = (Sector(0), &Events::default(), &Arc::default());
    look(&Ctor { start, len, args: &words, registry, events, failures, read_only: false })
}
