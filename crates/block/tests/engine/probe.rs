//! A target that does what its table line says and writes down what it saw, and a bench to
//! build volumes of it.
//!
//! Line: `probe DEVICE OFFSET [KEY=VALUE]...`: `piece=N` accepts at most N sectors at a time;
//! `copies=N` wants N flushes; `queue=1` keeps every request for a while and has it mapped again
//! from another reactor; `hold=1` keeps completions for a while; `requeue=N` has a request mapped
//! N more times; `hoard=1` keeps everything until a suspend; `straight=1` says that it has
//! nothing to decide (no other rule may stand with it), and notes only what the engine asks;
//! `refuse=1` never resumes.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, ConfigKind, Ctor, Disk, EndIo, Env, Flags, Io, IoError, IoResult, LocalFuture,
    Mail, MappedDevice, Op, ReactorId, Registry, Request, RequestId, SECTOR_BYTES, Sector,
    SectorCount, SectorRange, StreamId, SuspendMode, Table, TableContext, TableLine, Target,
    TargetType, TargetTypes, Time, Verdict,
};
use cairn_sim::{DriveOptions, Image, SimDrive, SimWorld};

pub const SECTOR: usize = SECTOR_BYTES as usize;

pub fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector(start), SectorCount(count))
}

/// One call of `map`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The offset of the line that saw it, to tell lines apart.
    pub offset: u64,
    pub reactor: ReactorId,
    pub op: Op,
    /// What was accepted.
    pub range: SectorRange,
    pub copy: u16,
    pub flags: Flags,
    pub stream: StreamId,
    pub started: Time,
}

#[derive(Default)]
pub struct Log {
    pub seen: Mutex<Vec<Seen>>,
    /// Requests that were announced: the offset of the line, and where on it they begin.
    pub prefetched: Mutex<Vec<(u64, Sector)>>,
    /// While true, a probe refuses to resume.
    pub refuse: Mutex<bool>,
    /// While true, a suspend fails to commit.
    pub lose: Mutex<bool>,
}

#[derive(Clone, Default)]
struct Rules {
    piece: Option<u64>,
    copies: Option<u16>,
    queue: bool,
    hold: bool,
    requeue: u64,
    hoard: bool,
    straight: bool,
    refuse: bool,
}

struct Probe {
    lower: Arc<dyn Disk>,
    offset: u64,
    rules: Rules,
    log: Arc<Log>,
    /// Requests that were kept once and may pass now.
    released: Arc<Mutex<Vec<RequestId>>>,
    hoard: Mutex<Vec<RequestId>>,
    tries: Mutex<Vec<(RequestId, u64)>>,
}

impl Probe {
    /// Has `job` run for the request after a while, on another reactor if there is one.
    fn later(&self, env: &Env, id: RequestId, job: impl FnOnce(&Env, RequestId) + Send + 'static) {
        let wait = Duration::from_micros(env.random_below(200));
        let other = ReactorId((env.reactor().0 + 1) % env.post().reactors());
        let task = env.clone();
        env.spawn(async move {
            task.sleep(wait).await;
            task.post().post(other, Mail::Call(Box::new(move |env| job(env, id))));
        });
    }

    fn must_wait(&self, env: &Env, id: RequestId) -> bool {
        let mut released = self.released.lock();
        if let Some(at) = released.iter().position(|other| *other == id) {
            released.swap_remove(at);
            return false;
        }
        if self.rules.hoard {
            self.hoard.lock().push(id);
            return true;
        }
        if self.rules.queue {
            let released = self.released.clone();
            self.later(env, id, move |env, id| {
                released.lock().push(id);
                env.remap(id);
            });
        }
        self.rules.queue
    }

    fn tries_of(&self, id: RequestId) -> u64 {
        let mut tries = self.tries.lock();
        match tries.iter().position(|(other, _)| *other == id) {
            Some(at) => tries.swap_remove(at).1,
            None => 0,
        }
    }
}

impl Target for Probe {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        if self.must_wait(env, request.id()) {
            return Verdict::Queued;
        }
        if let Some(piece) = self.rules.piece
            && request.op != Op::Flush
        {
            request.accept(SectorCount(piece.min(request.range.count.0)));
        }
        if self.rules.hold || self.rules.requeue > 0 {
            request.watch(self.tries_of(request.id()));
        }
        self.log.seen.lock().push(Seen {
            offset: self.offset,
            reactor: env.reactor(),
            op: request.op,
            range: request.range,
            copy: request.flush_copy(),
            flags: request.flags,
            stream: request.stream(),
            started: request.started(),
        });
        let sector = Sector(request.range.start.0 + self.offset);
        Verdict::Remapped { disk: self.lower.as_ref(), sector }
    }

    fn prefetch(&self, _env: &Env, at: Sector) {
        self.log.prefetched.lock().push((self.offset, at));
    }

    fn end_io(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        let (id, tries) = (request.id(), request.word());
        if tries < self.rules.requeue {
            self.tries.lock().push((id, tries + 1));
            self.released.lock().push(id);
            return EndIo::Requeue;
        }
        if self.rules.hold {
            self.later(env, id, move |env, id| env.complete(id, result));
            return EndIo::Held;
        }
        EndIo::Done(result)
    }

    fn straight(&self) -> Option<(Arc<dyn Disk>, Sector)> {
        self.rules.straight.then(|| (self.lower.clone(), Sector(self.offset)))
    }

    fn flush_copies(&self) -> u16 {
        self.rules.copies.unwrap_or(1)
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        vec![self.lower.clone()]
    }

    fn remaps(&self, range: SectorRange) -> Option<Vec<(Arc<dyn Disk>, SectorRange)>> {
        let place = SectorRange::new(Sector(self.offset + range.start.0), range.count);
        self.rules.straight.then(|| vec![(self.lower.clone(), place)])
    }

    fn resume<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        let refuse = self.rules.refuse || *self.log.refuse.lock();
        let refused = ConfigError::argument("probe", "mood", "bad", "good");
        Box::pin(async move { if refuse { Err(refused) } else { Ok(()) } })
    }

    fn presuspend(&self, env: &Env, mode: SuspendMode) {
        for id in std::mem::take(&mut *self.hoard.lock()) {
            match mode {
                SuspendMode::NoFlush => env.hand_back(id),
                SuspendMode::Flush => {
                    self.released.lock().push(id);
                    env.remap(id);
                }
            }
        }
    }

    fn suspend<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        let lose = *self.log.lose.lock();
        let lost = ConfigError::new(ConfigKind::System, self.lower.name(), "commit");
        Box::pin(async move { if lose { Err(lost) } else { Ok(()) } })
    }

    fn table(&self) -> String {
        format!("{} {}", self.lower.name(), self.offset)
    }
}

struct ProbeType(Arc<Log>);

fn rules(words: &[&str]) -> Rules {
    let mut rules = Rules::default();
    for word in words {
        let (key, value) = word.split_once('=').unwrap();
        let value: u64 = value.parse().unwrap();
        match key {
            "piece" => rules.piece = Some(value),
            "copies" => rules.copies = Some(value as u16),
            "queue" => rules.queue = true,
            "hold" => rules.hold = true,
            "requeue" => rules.requeue = value,
            "hoard" => rules.hoard = true,
            "straight" => rules.straight = true,
            "refuse" => rules.refuse = true,
            _ => panic!("{key}"),
        }
    }
    rules
}

impl TargetType for ProbeType {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn version(&self) -> [u32; 3] {
        [1, 0, 0]
    }

    fn construct<'a>(
        &'a self,
        _env: &'a Env,
        ctor: Ctor<'a>,
    ) -> LocalFuture<'a, Result<Arc<dyn Target>, ConfigError>> {
        Box::pin(async move {
            let probe: Arc<dyn Target> = Arc::new(Probe {
                lower: ctor.registry.open(ctor.args[0], false)?,
                offset: ctor.args[1].parse().unwrap(),
                rules: rules(&ctor.args[2..]),
                log: self.0.clone(),
                released: Arc::default(),
                hoard: Mutex::default(),
                tries: Mutex::default(),
            });
            Ok(probe)
        })
    }
}

/// A world with drives `a`, `b` and `c` of 1024 sectors. The first two copy by themselves.
pub struct Bench {
    pub world: SimWorld,
    pub log: Arc<Log>,
    pub registry: Arc<Registry>,
    types: TargetTypes,
}

impl Bench {
    pub fn new(seed: u64) -> Bench {
        Bench::with_drive(seed, None)
    }

    /// The same with one more drive.
    pub fn with_drive(seed: u64, more: Option<DriveOptions>) -> Bench {
        let world = SimWorld::new(seed, SimWorld::REACTORS);
        let options = |name| DriveOptions { copies: name != "c", ..DriveOptions::named(name) };
        for options in ["a", "b", "c"].map(options).into_iter().chain(more) {
            world.add_drive(options, Image::new(SectorCount(1024)));
        }
        let log = Arc::new(Log::default());
        let registry = Arc::new(Registry::new(Box::new(world.opener())));
        let types = TargetTypes::new(vec![Arc::new(ProbeType(log.clone()))]);
        Bench { world, log, registry, types }
    }

    pub fn drive(&self, name: &str) -> Arc<SimDrive> {
        self.world.drive(name)
    }

    /// A volume with this table, resumed.
    pub fn volume(&self, name: &str, table: &str) -> Arc<MappedDevice> {
        let device = self.registry.create_volume(name).unwrap();
        self.load(&device, table).unwrap();
        self.resume(&device).unwrap();
        device
    }

    pub fn load(&self, device: &Arc<MappedDevice>, table: &str) -> Result<(), ConfigError> {
        let lines = TableLine::parse_all(table)?;
        let (device, registry, types) = (device.clone(), self.registry.clone(), self.types.clone());
        self.world.block_on(0, |env| async move {
            let context = TableContext { types: &types, registry: &registry, read_only: false };
            let table = Table::build(&env, &device, &lines, context).await?;
            device.load(table).await;
            Ok(())
        })
    }

    pub fn resume(&self, device: &Arc<MappedDevice>) -> Result<(), ConfigError> {
        let device = device.clone();
        self.world.block_on(1, |env| async move { device.resume(&env).await?.whole() })
    }

    pub fn suspend(&self, device: &Arc<MappedDevice>, mode: SuspendMode) {
        let device = device.clone();
        self.world.block_on(2, |env| async move { device.suspend(&env, mode).await }).unwrap();
    }

    pub fn remove(&self, device: &Arc<MappedDevice>) {
        self.registry.remove_volume(device.volume());
        let device = device.clone();
        self.world.block_on(1, |env| async move { device.remove(&env).await }).unwrap();
    }

    pub fn io(&self, disk: &Arc<MappedDevice>, make: impl FnOnce(&Env) -> Io) -> IoResult {
        let disk: Arc<dyn Disk> = disk.clone();
        self.world.block_on(0, |env| {
            let io = make(&env);
            async move { env.io(&disk, io).await }
        })
    }

    /// Writes sectors that hold their position plus `salt`.
    pub fn write(&self, disk: &Arc<MappedDevice>, at: SectorRange, salt: u8) -> IoResult {
        self.io(disk, |env| {
            let segs = env.segs(at.count);
            segs.copy_in(0, &pattern(at, salt));
            Io::write(at, segs)
        })
    }

    pub fn read(&self, disk: &Arc<MappedDevice>, at: SectorRange) -> Result<Vec<u8>, IoError> {
        let mut out = None;
        let result = self.io(disk, |env| {
            let segs = env.segs(at.count);
            out = Some(segs.clone());
            Io::read(at, segs)
        });
        result.map(|()| out.unwrap().to_vec())
    }

    pub fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.log.seen.lock())
    }

    /// Nothing is left over and nobody broke the contract.
    pub fn assert_clean(&self) {
        assert_eq!(self.world.requests_in_use(), 0);
        assert_eq!(self.world.contract_violations(), 0);
    }
}

/// What [`Bench::write`] writes.
pub fn pattern(at: SectorRange, salt: u8) -> Vec<u8> {
    (at.start.0..at.end().0).flat_map(|sector| [sector as u8 ^ salt; SECTOR]).collect()
}
