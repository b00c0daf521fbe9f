//! The test fixture of the simple targets: a simulated world with a volume. Tests load a table,
//! send requests and inspect the drives. Drop checks that no contract was broken and no request was
//! lost.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    CallOff, ConfigError, Disk, Env, Extent, Io, IoError, IoResult, MappedDevice, MessageError, Op,
    Registry, SECTOR_BYTES, Sector, SectorCount, SectorRange, SuspendMode, Table, TableContext,
    TableLine, Target, TargetTypes,
};
use cairn_sim::{DriveModel, DriveOptions, Image, SimDrive, SimWorld};

pub const SECTOR: usize = SECTOR_BYTES as usize;

/// Every operation takes exactly this long on the drives of a testbed.
pub const DRIVE_TIME: Duration = Duration::from_micros(50);

pub fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector(start), SectorCount(count))
}

/// What a drive holds at first: each sector is filled with a byte that is never zero and
/// differs between drives and neighbouring sectors.
pub fn initial(drive: &str, sectors: u64) -> Vec<u8> {
    let salt: u64 = drive.bytes().map(u64::from).sum();
    (0..sectors).flat_map(|sector| [((sector * 7 + salt) % 255) as u8 + 1; SECTOR]).collect()
}

/// Results of requests that were started, in the order of their ends.
pub type Ended = Rc<RefCell<Vec<(&'static str, IoResult)>>>;

pub struct Testbed {
    pub sim: SimWorld,
    pub volume: Arc<MappedDevice>,
    registry: Arc<Registry>,
}

impl Testbed {
    /// A world with drives of these names and sizes in sectors.
    pub fn new(drives: &[(&str, u64)]) -> Testbed {
        let drives: Vec<_> =
            drives.iter().map(|(name, sectors)| (DriveOptions::named(name), *sectors)).collect();
        Testbed::with_options(drives)
    }

    pub fn with_options(drives: Vec<(DriveOptions, u64)>) -> Testbed {
        let sim = SimWorld::new(1, SimWorld::REACTORS);
        for (mut options, sectors) in drives {
            let model = DriveModel { fixed: DRIVE_TIME, flush: DRIVE_TIME, ..DriveModel::FAST };
            options.model = DriveModel { per_kib: Duration::ZERO, jitter: Duration::ZERO, ..model };
            let image = Image::of_bytes(&initial(&options.name, sectors));
            sim.add_drive(options, image);
        }
        let registry = Arc::new(Registry::new(Box::new(sim.opener())));
        let volume = registry.create_volume("test").unwrap();
        Testbed { sim, volume, registry }
    }

    pub fn drive(&self, name: &str) -> Arc<SimDrive> {
        self.sim.drive(name)
    }

    /// Builds a table and makes it live.
    pub fn load(&self, text: &str) {
        self.try_load(text, false).unwrap();
    }

    pub fn try_load(&self, text: &str, read_only: bool) -> Result<(), ConfigError> {
        self.load_volume(self.volume.clone(), text, read_only)
    }

    /// The line that refuses a table.
    pub fn refusal(&self, text: &str) -> String {
        self.try_load(text, false).expect_err(text).to_string()
    }

    /// Adds another volume.
    pub fn add_volume(&self, name: &str, text: &str) {
        let volume = self.registry.create_volume(name).unwrap();
        self.load_volume(volume, text, false).unwrap();
    }

    fn load_volume(
        &self,
        volume: Arc<MappedDevice>,
        text: &str,
        read_only: bool,
    ) -> Result<(), ConfigError> {
        let (registry, lines) = (self.registry.clone(), TableLine::parse_all(text)?);
        self.sim.block_on(0, |env| async move {
            let types = TargetTypes::new(crate::types());
            let context = TableContext { types: &types, registry: &registry, read_only };
            let table = Table::build(&env, &volume, &lines, context).await?;
            volume.load(table).await;
            volume.resume(&env).await?.whole()
        })
    }

    /// The target of the live table's first line.
    pub fn target(&self) -> Arc<dyn Target> {
        self.volume.live_table().expect("a table is live").lines()[0].target.clone()
    }

    pub fn message(&self, words: &'static [&'static str]) -> Result<String, MessageError> {
        let target = self.target();
        self.sim.block_on(0, |env| async move { target.message(&env, words).await })
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
        let volume = self.volume.clone();
        self.sim.block_on(0, |env| async move { volume.suspend(&env, mode).await }).unwrap();
    }

    pub fn resume(&self) {
        let volume = self.volume.clone();
        self.sim
            .block_on(0, |env| async move { volume.resume(&env).await })
            .unwrap()
            .whole()
            .unwrap();
    }

    pub fn extents(&self, range: SectorRange) -> Result<Vec<Extent>, IoError> {
        let volume = self.volume.clone();
        self.sim.block_on(0, |env| async move { volume.extents(&env, range).await })
    }

    /// Does a request on the volume, on reactor 1 (targets' tasks live on 0).
    pub fn io(&self, make: impl FnOnce(&Env) -> Io) -> IoResult {
        let disk: Arc<dyn Disk> = self.volume.clone();
        self.sim.block_on(1, |env| {
            let io = make(&env);
            async move { env.io(&disk, io).await }
        })
    }

    pub fn write(&self, start: u64, bytes: &[u8]) -> IoResult {
        self.io(|env| write_io(env, start, bytes))
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

    pub fn on(&self, op: Op, range: SectorRange) -> IoResult {
        self.io(|_| Io::on(op, range))
    }

    /// Starts a request on a reactor; `ended` notes its name when it ends.
    pub fn start(
        &self,
        reactor: u16,
        ended: &Ended,
        name: &'static str,
        make: impl FnOnce(&Env) -> Io,
    ) {
        let (disk, ended): (Arc<dyn Disk>, _) = (self.volume.clone(), ended.clone());
        self.sim.block_on(reactor, |env| {
            let io = make(&env);
            env.clone().spawn(async move {
                let result = env.io(&disk, io).await;
                ended.borrow_mut().push((name, result));
            });
            std::future::ready(())
        });
    }

    /// What a drive would read as.
    pub fn contents(&self, name: &str) -> Vec<u8> {
        self.drive(name).visible().to_vec()
    }
}

pub fn write_io(env: &Env, start: u64, bytes: &[u8]) -> Io {
    let count = SectorCount::of_bytes(bytes.len() as u64);
    let segs = env.segs(count);
    segs.copy_in(0, bytes);
    Io::write(SectorRange::new(Sector(start), count), segs)
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // A removal flushes.
        self.sim.all_drives().iter().for_each(|drive| drive.faults().clear());
        let volume = self.volume.clone();
        self.sim.block_on(0, |env| async move { volume.remove(&env).await }).unwrap();
        assert_eq!(self.sim.contract_violations(), 0);
        assert_eq!(self.sim.requests_in_use(), 0);
    }
}
