//! A pool and its volumes in a simulated world, whose drives tell which operations they got.
//! Dropping it checks that no contract was broken and no request was lost.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, Disk, Env, Extent, Flow, Io, IoError, IoResult, Limits, MappedDevice,
    MessageError, Op, Registry, Request, Sector, SectorCount, SectorRange, SuspendMode, Table,
    TableContext, TableLine, TargetTypes,
};
use cairn_sim::{DriveModel, DriveOptions, Image, SimDrive, SimOpener, SimWorld};

pub const SECTOR: usize = 512;

/// Sectors of a data block in the beds.
pub const BLOCK: u64 = 128;

/// An operation that a drive got: what, start, count.
pub type Seen = (Op, u64, u64);

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

/// What the data device and the external origin hold at first: never zero.
pub fn initial_byte(sector: u64) -> u8 {
    (sector % 127) as u8 + 128
}

fn initial(sectors: u64) -> Image {
    let bytes: Vec<u8> = (0..sectors).flat_map(|sector| [initial_byte(sector); SECTOR]).collect();
    Image::of_bytes(&bytes)
}

pub fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector(start), SectorCount(count))
}

pub struct Bed {
    pub sim: SimWorld,
    pub ends: Ends,
    pub data_blocks: u64,
    noting: Vec<Arc<Noting>>,
    registry: Arc<Registry>,
    volumes: RefCell<Vec<Arc<MappedDevice>>>,
}

impl Bed {
    /// A blank metadata device of so many blocks, a data device of so many data blocks, and an
    /// external origin of two and a half.
    pub fn new(metadata_blocks: u64, data_blocks: u64) -> Bed {
        let metadata = Image::new(SectorCount(metadata_blocks * 8));
        Bed::of_images(metadata, initial(data_blocks * BLOCK), data_blocks)
    }

    pub fn of_images(metadata: Image, data: Image, data_blocks: u64) -> Bed {
        let sim = SimWorld::new(1, SimWorld::REACTORS);
        sim.set_patience(Duration::from_secs(600));
        let (mut opener, mut noting) = (SimOpener::new(), Vec::new());
        let origin = initial(BLOCK * 5 / 2);
        for (name, image) in [("meta", metadata), ("data", data), ("origin", origin)] {
            let mut options = DriveOptions::named(name);
            let time = Duration::from_micros(50);
            let (per_kib, jitter) = (Duration::ZERO, Duration::ZERO);
            options.model = DriveModel { fixed: time, flush: time, per_kib, jitter };
            let drive = sim.add_drive(options, image);
            let drive = Arc::new(Noting { drive, seen: Mutex::new(Vec::new()) });
            opener = opener.with(name, drive.clone());
            noting.push(drive);
        }
        let registry = Arc::new(Registry::new(Box::new(opener)));
        let (ends, volumes) = (Ends::default(), RefCell::default());
        Bed { sim, ends, data_blocks, noting, registry, volumes }
    }

    /// A pool with default options and a volume `thin` with id 0 of so many blocks.
    pub fn with_volume(metadata_blocks: u64, data_blocks: u64, blocks: u64) -> Bed {
        let bed = Bed::new(metadata_blocks, data_blocks);
        bed.load_pool("0 0");
        bed.message(&["create_thin", "0"]).unwrap();
        bed.load_thin("thin", 0, blocks);
        bed
    }

    pub fn pool_table(&self, rest: &str) -> String {
        format!("0 {} thin-pool meta data {BLOCK} {rest}", self.data_blocks * BLOCK)
    }

    /// Loads the pool: low water mark and features.
    pub fn load_pool(&self, rest: &str) {
        self.load("pool", &self.pool_table(rest));
    }

    pub fn load_thin(&self, name: &str, id: u32, blocks: u64) {
        self.load(name, &format!("0 {} thin @pool {id}", blocks * BLOCK));
    }

    pub fn drive(&self, name: &str) -> Arc<SimDrive> {
        self.sim.drive(name)
    }

    /// A bed on what a power cut now certainly leaves.
    pub fn reopen_durable(&self) -> Bed {
        let image = |at: usize| self.noting[at].drive.durable();
        Bed::of_images(image(0), image(1), self.data_blocks)
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

    pub fn load(&self, name: &str, text: &str) {
        self.try_load(name, text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }

    pub fn try_load(&self, name: &str, text: &str) -> Result<(), ConfigError> {
        let (registry, volume) = (self.registry.clone(), self.volume(name));
        let lines = TableLine::parse_all(text)?;
        self.sim.block_on(0, |env| async move {
            let types = TargetTypes::new(crate::types());
            let context = TableContext { types: &types, registry: &registry, read_only: false };
            let table = Table::build(&env, &volume, &lines, context).await?;
            volume.load(table).await;
            volume.resume(&env).await
        })
    }

    pub fn suspend(&self, name: &str, mode: SuspendMode) {
        let volume = self.volume(name);
        self.sim.block_on(0, |env| async move { volume.suspend(&env, mode).await });
    }

    pub fn resume(&self, name: &str) {
        let volume = self.volume(name);
        self.sim.block_on(0, |env| async move { volume.resume(&env).await }).unwrap();
    }

    pub fn remove(&self, name: &str) {
        let volume = self.registry.remove_volume(name).expect("it is there");
        self.volumes.borrow_mut().retain(|other| other.volume() != name);
        self.sim.block_on(0, |env| async move { volume.remove(&env).await });
    }

    pub fn status(&self, name: &str) -> String {
        self.volume(name).live_table().expect("live").lines()[0].target.status()
    }

    /// Sends a message to the pool.
    pub fn message(&self, words: &[&'static str]) -> Result<String, MessageError> {
        let target = self.volume("pool").live_table().expect("live").lines()[0].target.clone();
        let words = words.to_vec();
        self.sim.block_on(0, |env| async move { target.message(&env, &words).await })
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

    /// Lets time pass.
    pub fn wait(&self, time: Duration) {
        self.sim.block_on(0, |env| async move { env.sleep(time).await });
    }

    pub fn write(&self, name: &str, start: u64, count: u64, byte: u8) -> IoResult {
        self.io(name, |env| write_io(env, start, count, byte))
    }

    pub fn zero(&self, name: &str, start: u64, count: u64) -> IoResult {
        self.io(name, |_| Io::on(Op::WriteZeroes, range(start, count)))
    }

    pub fn discard(&self, name: &str, start: u64, count: u64) -> IoResult {
        self.io(name, |_| Io::on(Op::Discard, range(start, count)))
    }

    pub fn flush(&self, name: &str) -> IoResult {
        self.io(name, |_| Io::flush())
    }

    pub fn extents(&self, name: &str, range: SectorRange) -> Result<Vec<Extent>, IoError> {
        let volume = self.volume(name);
        self.sim.block_on(0, |env| async move { volume.extents(&env, range).await })
    }

    pub fn read(&self, name: &str, start: u64, count: u64) -> Result<Vec<u8>, IoError> {
        let mut segs = None;
        let result = self.io(name, |env| {
            let own = env.segs(SectorCount(count));
            own.for_each_mut(0, own.bytes(), |bytes| bytes.fill(0xa5));
            segs = Some(own.clone());
            Io::read(range(start, count), own)
        });
        result.map(|()| segs.expect("the request was made").to_vec())
    }

    /// The first byte of each sector; each sector is all one byte.
    pub fn bytes(&self, name: &str, start: u64, count: u64) -> Vec<u8> {
        let all = self.read(name, start, count).unwrap();
        let sectors = all.chunks(SECTOR);
        let one = |sector: &[u8]| {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is mixed");
            sector[0]
        };
        sectors.map(one).collect()
    }
}

pub fn write_io(env: &Env, start: u64, count: u64, byte: u8) -> Io {
    let segs = env.segs(SectorCount(count));
    segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(byte));
    Io::write(range(start, count), segs)
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Volumes before the pool they stand on.
        for volume in self.volumes.take().into_iter().rev() {
            self.sim.block_on(0, |env| async move { volume.remove(&env).await });
        }
        assert_eq!(self.sim.contract_violations(), 0);
        assert_eq!(self.sim.requests_in_use(), 0);
    }
}
