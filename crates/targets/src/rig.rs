//! The test fixture of the larger targets: volumes by name over drives in a simulated world. The
//! drives record their operations, and tables change under load. Drop checks that no contract was
//! broken and no request was lost.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairn_block::{
    CallOff, ConfigError, CopyError, Ctor, Disk, Env, Events, Extent, ExtentKind, Flags, Flow, Io,
    IoError, IoResult, Limits, LocalFuture, MappedDevice, Op, Registry, Request, SECTOR_BYTES,
    Sector, SectorCount, SectorRange, SuspendMode, Table, TableContext, TableLine, Target,
    TargetTypes,
};
use cairn_sim::{DriveModel, DriveOptions, Image, SimDrive, SimOpener, SimWorld};

pub const SECTOR: usize = SECTOR_BYTES as usize;

/// Every operation takes this long on the drives of a rig.
pub const DRIVE_TIME: Duration = Duration::from_micros(50);

/// An operation that a drive got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub op: Op,
    pub fua: bool,
    pub start: u64,
    pub count: u64,
}

/// A drive that notes what it gets.
pub struct Noting {
    pub drive: Arc<SimDrive>,
    /// As it was when it was looked at last.
    sectors: AtomicU64,
    /// And whether it was marked as background.
    seen: Mutex<Vec<(Seen, bool)>>,
    page_cache: AtomicBool,
    copies: AtomicBool,
}

impl Noting {
    /// A drive of `model`, put into `sim`.
    pub fn add(sim: &SimWorld, name: &str, image: Image, model: DriveModel) -> Arc<Noting> {
        let mut options = DriveOptions::named(name);
        (options.model, options.copies) = (model, true);
        let drive = sim.add_drive(options, image);
        let sectors = AtomicU64::new(drive.sectors().0);
        Arc::new(Noting {
            drive,
            sectors,
            seen: Mutex::default(),
            page_cache: AtomicBool::default(),
            copies: AtomicBool::default(),
        })
    }

    /// The same drive for a process that starts after another was killed.
    pub fn after_kill(&self) -> Arc<Noting> {
        let drive = Arc::new(self.drive.after_kill());
        let sectors = AtomicU64::new(drive.sectors().0);
        Arc::new(Noting {
            drive,
            sectors,
            seen: Mutex::default(),
            page_cache: AtomicBool::default(),
            copies: AtomicBool::default(),
        })
    }

    /// From now on FUA is a write and a flush, as of a file in the page cache.
    pub fn set_page_cache(&self) {
        self.page_cache.store(true, Ordering::Release);
    }

    /// What it has seen since the last look.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock()).into_iter().map(|(seen, _)| seen).collect()
    }

    /// True if it has seen nothing but reads since the last look.
    pub fn only_read(&self) -> bool {
        self.seen.lock().iter().all(|(seen, _)| seen.op == Op::Read)
    }
}

impl Disk for Noting {
    fn name(&self) -> String {
        self.drive.name()
    }
    fn sectors(&self) -> SectorCount {
        SectorCount(self.sectors.load(Ordering::Acquire))
    }
    fn refresh(&self) -> Result<(), ConfigError> {
        self.sectors.store(self.drive.sectors().0, Ordering::Release);
        Ok(())
    }
    fn limits(&self) -> Limits {
        self.drive.limits()
    }
    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        let (start, count) = (request.range.start.0, request.range.count.0);
        let (fua, background) = (request.is_fua(), request.flags.contains(Flags::BACKGROUND));
        self.seen.lock().push((Seen { op: request.op, fua, start, count }, background));
        if !(request.is_fua() && self.page_cache.load(Ordering::Acquire)) {
            return self.drive.submit(env, request);
        }
        let (id, own, drive) = (request.id(), env.clone(), self.drive.clone());
        let write = Io::write(request.range, request.segs.clone());
        env.spawn(async move {
            let drive: Arc<dyn Disk> = drive;
            let result = match own.io(&drive, write).await {
                Ok(()) => own.io(&drive, Io::flush()).await,
                failed => failed,
            };
            own.complete(id, result);
        });
        Flow::Queued
    }
    fn copy_from(
        &self,
        env: &Env,
        source: &dyn Disk,
        from: SectorRange,
        to: Sector,
    ) -> Option<Result<(), CopyError>> {
        let source: &Noting = source.as_any()?.downcast_ref()?;
        let copies = self.copies.load(Ordering::Acquire);
        copies.then(|| self.drive.copy_from(env, source.drive.as_ref(), from, to))?
    }
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
    fn failures(&self) -> u64 {
        self.drive.failures()
    }
    fn failures_told(&self) -> u64 {
        self.drive.failures_told()
    }
    fn acknowledge_failures(&self, upto: u64) {
        self.drive.acknowledge_failures(upto);
    }
    /// Zeros are holes. Looks long enough for a write to be copied, committed and done meanwhile.
    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        Box::pin(async move {
            env.sleep(20 * DRIVE_TIME).await;
            let image = self.drive.visible();
            let mut sectors = (range.start.0..range.end().0).map(|at| image.sector(Sector(at)));
            let empty = sectors.all(|sector| sector.iter().all(|&byte| byte == 0));
            let kind = if empty { ExtentKind::Hole } else { ExtentKind::Data };
            Ok(vec![Extent { count: range.count, kind }])
        })
    }
}

/// Results of requests that were started, in the order of their ends.
pub type Ends = Rc<RefCell<Vec<(&'static str, IoResult)>>>;

pub struct Rig {
    pub sim: SimWorld,
    pub ends: Ends,
    noting: Vec<Arc<Noting>>,
    registry: Arc<Registry>,
    volumes: RefCell<Vec<Arc<MappedDevice>>>,
}

impl Rig {
    /// A world with these drives, where every operation takes [`DRIVE_TIME`].
    pub fn new(drives: impl IntoIterator<Item = (String, Image)>) -> Rig {
        let sim = SimWorld::new(1, SimWorld::REACTORS);
        sim.set_patience(Duration::from_secs(600));
        let (mut opener, mut noting) = (SimOpener::new(), Vec::new());
        let (per_kib, jitter) = (Duration::ZERO, Duration::ZERO);
        let model = DriveModel { fixed: DRIVE_TIME, flush: DRIVE_TIME, per_kib, jitter };
        for (name, image) in drives {
            let drive = Noting::add(&sim, &name, image, model);
            opener = opener.with(&name, drive.clone());
            noting.push(drive);
        }
        let registry = Arc::new(Registry::new(Box::new(opener)));
        Rig { sim, ends: Ends::default(), noting, registry, volumes: RefCell::default() }
    }

    // Drives.

    pub fn drive(&self, name: &str) -> Arc<SimDrive> {
        self.sim.drive(name)
    }

    /// From now on FUA is a write and a flush on this drive, as of a file in the page cache.
    pub fn set_page_cache(&self, name: &str) {
        let drive = self.noting.iter().find(|drive| drive.drive.name() == name).expect(name);
        drive.set_page_cache();
    }

    /// From now on all drives copy by themselves.
    pub fn set_copies(&self) {
        self.noting.iter().for_each(|drive| drive.copies.store(true, Ordering::Release));
    }

    /// What a power cut now certainly leaves on each drive, in the order they were given.
    pub fn durable(&self) -> impl Iterator<Item = Image> {
        self.noting.iter().map(|drive| drive.drive.durable())
    }

    /// What a drive has seen since the last look: what, start, count.
    pub fn ops(&self, name: &str) -> Vec<(Op, u64, u64)> {
        let drive = self.noting.iter().find(|drive| drive.drive.name() == name).expect(name);
        drive.take().into_iter().map(|seen| (seen.op, seen.start, seen.count)).collect()
    }

    /// What a drive has seen since the last look, and which of it was marked as background.
    pub fn hints(&self, name: &str) -> Vec<(Op, bool)> {
        let drive = self.noting.iter().find(|drive| drive.drive.name() == name).expect(name);
        let seen = std::mem::take(&mut *drive.seen.lock());
        seen.into_iter().map(|(seen, background)| (seen.op, background)).collect()
    }

    pub fn forget(&self) {
        self.noting.iter().for_each(|drive| drop(drive.take()));
    }

    // Volumes and their tables.

    pub fn volume(&self, name: &str) -> Arc<MappedDevice> {
        self.registry.volume(name).unwrap_or_else(|_| {
            let volume = self.registry.create_volume(name).expect("there is none of this name");
            self.volumes.borrow_mut().push(volume.clone());
            volume
        })
    }

    /// Makes a table live; the volume is made if there is none.
    pub fn load(&self, name: &str, text: &str) {
        self.try_load(name, text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }

    pub fn try_load(&self, name: &str, text: &str) -> Result<(), ConfigError> {
        self.build(name, text)?;
        self.resume(name)
    }

    /// Loads a table without making it live.
    pub fn build(&self, name: &str, text: &str) -> Result<(), ConfigError> {
        let (registry, volume) = (self.registry.clone(), self.volume(name));
        let lines = TableLine::parse_all(text)?;
        let known = self.noting.iter().try_for_each(|drive| drive.refresh());
        known.expect("a simulated drive knows its size");
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
        assert!(self.noting.iter().all(|drive| drive.only_read()), "{text}");
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    }

    /// Begins to suspend the volume, which is called off.
    pub fn call_off(&self, name: &str, mode: SuspendMode) {
        let (volume, call_off) = (self.volume(name), CallOff::default());
        call_off.call();
        let suspended = self
            .sim
            .block_on(0, |env| async move { volume.suspend_unless(&env, mode, &call_off).await });
        assert_eq!(suspended.ok(), Some(false));
    }

    pub fn suspend(&self, name: &str, mode: SuspendMode) {
        self.try_suspend(name, mode).unwrap();
    }

    /// Suspends a volume that may have lost writes.
    pub fn try_suspend(&self, name: &str, mode: SuspendMode) -> Result<(), ConfigError> {
        let volume = self.volume(name);
        self.sim.block_on(0, |env| async move { volume.suspend(&env, mode).await })
    }

    pub fn resume(&self, name: &str) -> Result<(), ConfigError> {
        let volume = self.volume(name);
        self.sim.block_on(0, |env| async move { volume.resume(&env).await?.whole() })
    }

    pub fn remove(&self, name: &str) {
        let volume = self.registry.remove_volume(name).expect("it is there");
        self.volumes.borrow_mut().retain(|other| other.volume() != name);
        self.sim.block_on(0, |env| async move { volume.remove(&env).await }).unwrap();
    }

    /// The target of a live table's first line.
    pub fn target(&self, name: &str) -> Arc<dyn Target> {
        self.volume(name).live_table().expect("live").lines()[0].target.clone()
    }

    pub fn status(&self, name: &str) -> String {
        self.target(name).status()
    }

    // Requests.

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

    /// What a range holds.
    pub fn extents(&self, name: &str, range: SectorRange) -> Result<Vec<Extent>, IoError> {
        let volume = self.volume(name);
        self.sim.block_on(0, |env| async move { volume.extents(&env, range).await })
    }

    pub fn write(&self, name: &str, start: u64, count: u64, byte: u8) -> IoResult {
        self.io(name, |env| write_io(env, start, count, byte))
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

    /// One byte per sector of a range.
    pub fn bytes(&self, name: &str, start: u64, count: u64) -> Vec<u8> {
        let bytes = self.read(name, start, count).unwrap_or_else(|error| panic!("{name}: {error}"));
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

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Those that stand on others were made later.
        for volume in self.volumes.take().into_iter().rev() {
            // A test of losses may leave one untold.
            let _ = self.sim.block_on(0, |env| async move { volume.remove(&env).await });
        }
        assert_eq!(self.sim.contract_violations(), 0);
        assert_eq!(self.sim.requests_in_use(), 0);
    }
}

pub fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector(start), SectorCount(count))
}

pub fn write_io(env: &Env, start: u64, count: u64, byte: u8) -> Io {
    let segs = env.segs(SectorCount(count));
    segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(byte));
    Io::write(range(start, count), segs)
}

/// Contents that tell their sector, each byte of which is what `byte` says.
pub fn image(sectors: u64, byte: impl Fn(u64) -> u8) -> Image {
    let bytes: Vec<u8> = (0..sectors).flat_map(|sector| [byte(sector); SECTOR]).collect();
    Image::of_bytes(&bytes)
}

/// Shows `look` a line of 4096 sectors with these words, over drives `/o` and `/c` as large.
pub fn with_ctor<R>(line: &str, look: impl FnOnce(&Ctor) -> R) -> R {
    let len = SectorCount(4096);
    let drive = |name| Arc::new(SimDrive::new(DriveOptions::named(name), Image::new(len)));
    let opener = SimOpener::new().with("/o", drive("/o")).with("/c", drive("/c"));
    let registry = &Registry::new(Box::new(opener));
    let words: Vec<&str> = line.split_whitespace().collect();
    let (start, events, failures) = (Sector(0), &Events::default(), &Arc::default());
    look(&Ctor { start, len, args: &words, registry, events, failures, read_only: false })
}
