//! Volumes over one origin and a few COW devices in a simulated world, whose drives tell which
//! operations they got. Dropping it checks that no contract was broken and no request was lost.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, Disk, Env, Flow, Io, IoError, IoResult, Limits, MappedDevice, Op, Registry,
    Request, Sector, SectorCount, SectorRange, SuspendMode, Table, TableContext, TableLine,
    TargetTypes,
};
use cairn_sim::{DriveModel, DriveOptions, Image, SimDrive, SimOpener, SimWorld};

use super::super::core::Core;
use super::super::map::Snapshot;

pub const SECTOR: usize = 512;

/// An operation that a drive got: what, start, count.
pub type Seen = (Op, u64, u64);

/// A drive that notes what it gets.
struct Noting {
    drive: Arc<SimDrive>,
    seen: Mutex<Vec<Seen>>,
}

impl Disk for Noting {
    fn name(&self) -> String {
        self.drive.name()
    }
    fn sectors(&self) -> SectorCount {
        self.drive.sectors()
    }
    fn limits(&self) -> Limits {
        self.drive.limits()
    }
    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        self.seen.lock().push((request.op, request.range.start.0, request.range.count.0));
        self.drive.submit(env, request)
    }
}

/// Results of requests that were started, in the order of their ends.
pub type Ends = Rc<RefCell<Vec<(&'static str, IoResult)>>>;

pub struct Bed {
    pub sim: SimWorld,
    pub ends: Ends,
    noting: Vec<Arc<Noting>>,
    registry: Arc<Registry>,
    volumes: RefCell<Vec<Arc<MappedDevice>>>,
}

/// What a sector of the origin holds at first.
pub fn initial_byte(sector: u64) -> u8 {
    (sector % 127) as u8 + 1
}

pub fn initial(sectors: u64) -> Image {
    let bytes: Vec<u8> = (0..sectors).flat_map(|sector| [initial_byte(sector); SECTOR]).collect();
    Image::of_bytes(&bytes)
}

pub fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector(start), SectorCount(count))
}

impl Bed {
    /// An origin of so many sectors, and blank COW devices `cow0`, `cow1`, ...
    pub fn new(origin: u64, cows: &[u64]) -> Bed {
        let cows = cows.iter().map(|&sectors| Image::new(SectorCount(sectors))).collect();
        Bed::of_images(initial(origin), cows)
    }

    pub fn of_images(origin: Image, cows: Vec<Image>) -> Bed {
        let sim = SimWorld::new(1, SimWorld::REACTORS);
        sim.set_patience(Duration::from_secs(600));
        let mut opener = SimOpener::new();
        let mut noting = Vec::new();
        let names = (0..cows.len()).map(|at| format!("cow{at}"));
        let images = std::iter::once(("origin".to_owned(), origin)).chain(names.zip(cows));
        for (name, image) in images {
            let mut options = DriveOptions::named(&name);
            let time = Duration::from_micros(50);
            let (per_kib, jitter) = (Duration::ZERO, Duration::ZERO);
            options.model = DriveModel { fixed: time, flush: time, per_kib, jitter };
            let drive = sim.add_drive(options, image);
            let drive = Arc::new(Noting { drive, seen: Mutex::new(Vec::new()) });
            opener = opener.with(&name, drive.clone());
            noting.push(drive);
        }
        let registry = Arc::new(Registry::new(Box::new(opener)));
        Bed { sim, ends: Ends::default(), noting, registry, volumes: RefCell::default() }
    }

    pub fn drive(&self, name: &str) -> Arc<SimDrive> {
        self.sim.drive(name)
    }

    /// A bed on what a power cut now certainly leaves.
    pub fn reopen_durable(&self) -> Bed {
        let mut images = self.noting.iter().map(|drive| drive.drive.durable());
        let origin = images.next().expect("an origin");
        Bed::of_images(origin, images.collect())
    }

    /// What a drive has seen since the last look.
    pub fn ops(&self, name: &str) -> Vec<Seen> {
        let drive = self.noting.iter().find(|drive| drive.drive.name() == name).expect(name);
        std::mem::take(&mut *drive.seen.lock())
    }

    pub fn forget(&self) {
        self.noting.iter().for_each(|drive| drive.seen.lock().clear());
    }

    pub fn volume(&self, name: &str) -> Arc<MappedDevice> {
        self.registry.volume(name).unwrap_or_else(|_| {
            let volume = self.registry.create_volume(name).unwrap();
            self.volumes.borrow_mut().push(volume.clone());
            volume
        })
    }

    /// Makes a table live; the volume is made if there is none.
    pub fn load(&self, name: &str, text: &str) {
        self.try_load(name, text).unwrap();
    }

    pub fn try_load(&self, name: &str, text: &str) -> Result<(), ConfigError> {
        self.build(name, text)?;
        let volume = self.volume(name);
        self.sim.block_on(0, |env| async move { volume.resume(&env).await })
    }

    /// Loads a table without making it live.
    pub fn build(&self, name: &str, text: &str) -> Result<(), ConfigError> {
        let (registry, volume) = (self.registry.clone(), self.volume(name));
        let lines = TableLine::parse_all(text)?;
        self.sim.block_on(0, |env| async move {
            let types = TargetTypes::new(crate::types());
            let context = TableContext { types: &types, registry: &registry, read_only: false };
            let table = Table::build(&env, &volume, &lines, context).await?;
            volume.load(table).await;
            Ok(())
        })
    }

    /// The line that refuses a table; no drive sees a write.
    pub fn refusal(&self, text: &str) -> String {
        self.forget();
        let line = self.try_load("refused", text).expect_err(text).to_string();
        for drive in &self.noting {
            assert!(drive.seen.lock().iter().all(|seen| seen.0 == Op::Read), "{text}");
        }
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    }

    pub fn suspend(&self, name: &str, mode: SuspendMode) {
        let volume = self.volume(name);
        self.sim.block_on(0, |env| async move { volume.suspend(&env, mode).await });
    }

    pub fn resume(&self, name: &str) -> Result<(), ConfigError> {
        let volume = self.volume(name);
        self.sim.block_on(0, |env| async move { volume.resume(&env).await })
    }

    pub fn remove(&self, name: &str) {
        let volume = self.registry.remove_volume(name).expect("it is there");
        self.volumes.borrow_mut().retain(|other| other.volume() != name);
        self.sim.block_on(0, |env| async move { volume.remove(&env).await });
    }

    pub fn status(&self, name: &str) -> String {
        self.volume(name).live_table().expect("live").lines()[0].target.status()
    }

    /// The core of a live snapshot.
    pub fn core(&self, name: &str) -> Arc<Core> {
        let target = self.volume(name).live_table().expect("live").lines()[0].target.clone();
        let snapshot: &Snapshot = target.as_any().and_then(|any| any.downcast_ref()).unwrap();
        snapshot.seat.core().clone()
    }

    /// Where a live snapshot and its origin may differ.
    pub fn changed(&self, name: &str, range: SectorRange) -> Result<Vec<SectorRange>, IoError> {
        let target = self.volume(name).live_table().expect("live").lines()[0].target.clone();
        let snapshot: &Snapshot = target.as_any().and_then(|any| any.downcast_ref()).unwrap();
        snapshot.changed(range)
    }

    pub fn io(&self, name: &str, io: impl FnOnce(&Env) -> Io) -> IoResult {
        let disk: Arc<dyn Disk> = self.volume(name);
        self.sim.block_on(1, |env| {
            let io = io(&env);
            async move { env.io(&disk, io).await }
        })
    }

    /// Starts a request; `ends` notes its end under `label`.
    pub fn start(&self, name: &str, label: &'static str, io: impl FnOnce(&Env) -> Io) {
        let (disk, ends): (Arc<dyn Disk>, _) = (self.volume(name), self.ends.clone());
        self.sim.block_on(2, |env| {
            let io = io(&env);
            env.clone().spawn(async move {
                let result = env.io(&disk, io).await;
                ends.borrow_mut().push((label, result));
            });
            std::future::ready(())
        });
    }

    pub fn labels(&self) -> Vec<&'static str> {
        self.ends.borrow().iter().map(|(label, _)| *label).collect()
    }

    pub fn write(&self, name: &str, start: u64, count: u64, byte: u8) -> IoResult {
        self.io(name, |env| write_io(env, start, count, byte))
    }

    pub fn read(&self, name: &str, start: u64, count: u64) -> Result<Vec<u8>, IoError> {
        let mut segs = None;
        let result = self.io(name, |env| {
            let own = env.segs(SectorCount(count));
            segs = Some(own.clone());
            Io::read(range(start, count), own)
        });
        result.map(|()| segs.expect("the request was made").to_vec())
    }

    /// One byte per sector of a range.
    pub fn bytes(&self, name: &str, start: u64, count: u64) -> Vec<u8> {
        let bytes = self.read(name, start, count).unwrap();
        let sector = |sector: &[u8]| {
            assert!(sector.iter().all(|&byte| byte == sector[0]), "{name}: a mixed sector");
            sector[0]
        };
        bytes.chunks(SECTOR).map(sector).collect()
    }

    /// Lets everything that waits for a drive happen.
    pub fn settle(&self) {
        self.sim.run_for(Duration::from_millis(20));
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for volume in self.volumes.borrow().iter().rev() {
            let volume = volume.clone();
            self.sim.block_on(0, |env| async move { volume.remove(&env).await });
        }
        assert_eq!(self.sim.contract_violations(), 0);
        assert_eq!(self.sim.requests_in_use(), 0);
    }
}

pub fn write_io(env: &Env, start: u64, count: u64, byte: u8) -> Io {
    let segs = env.segs(SectorCount(count));
    segs.copy_in(0, &vec![byte; count as usize * SECTOR]);
    Io::write(range(start, count), segs)
}
