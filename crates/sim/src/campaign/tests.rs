//! The campaign catches disks and targets with planted bugs, and passes correct ones.

use super::*;
use cairn_block::{
    CellMode, Cells, ConfigKind, Ctor, EndIo, Env, FailureCount, Flow, Io, IoError, IoResult, Op,
    Request, Sector, SectorCount, SectorRange, Target, TargetType, Verdict,
};
use parking_lot::Mutex;

fn two_drives() -> Vec<(DriveOptions, Image)> {
    let sectors = SectorCount(1024);
    ["fast", "slow"].map(|name| (DriveOptions::named(name), Image::new(sectors))).into()
}

/// How a wrapper around a drive misbehaves.
#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    FlushDoesNothing,
    FuaIsDropped,
    SecondSectorIsStale,
    /// Losses are not reported to any client.
    FailuresAreKept,
    /// Losses are reported to the first client that flushes, and to no other.
    OneClientIsTold,
}

struct Wrapper {
    inner: Arc<dyn Disk>,
    bug: Bug,
}

impl Disk for Wrapper {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn sectors(&self) -> SectorCount {
        self.inner.sectors()
    }
    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        match self.bug {
            Bug::FlushDoesNothing if request.op == Op::Flush => return Flow::Done,
            Bug::FuaIsDropped => request.flags = cairn_block::Flags::empty(),
            Bug::SecondSectorIsStale if request.op == Op::Write && request.range.count.0 > 1 => {
                request.range.count = SectorCount(1);
            }
            _ => {}
        }
        self.inner.submit(env, request)
    }
    fn failures(&self) -> u64 {
        match self.bug {
            Bug::FailuresAreKept => 0,
            Bug::OneClientIsTold => self.inner.failures() - self.inner.failures_told(),
            _ => self.inner.failures(),
        }
    }
    fn failures_told(&self) -> u64 {
        match self.bug {
            Bug::FailuresAreKept | Bug::OneClientIsTold => 0,
            _ => self.inner.failures_told(),
        }
    }
    fn acknowledge_failures(&self, upto: u64) {
        self.inner.acknowledge_failures(upto);
    }
}

struct Wrapped(Bug);

impl Scenario for Wrapped {
    type Case = ();

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        Vec::new()
    }
    fn begin(&self, _rng: &mut fastrand::Rng) -> ((), Vec<(DriveOptions, Image)>) {
        ((), two_drives())
    }
    fn open(&self, _case: Rc<()>, server: Server) -> LocalFuture<'static, Opened> {
        let bug = self.0;
        Box::pin(async move {
            let inner = server.registry.open("fast", false)?;
            let disk: Arc<dyn Disk> = Arc::new(Wrapper { inner, bug });
            Ok(vec![disk])
        })
    }
}

/// The same over a drive that loses flushed writes.
struct Lossy(Bug);

impl Scenario for Lossy {
    type Case = ();

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        Vec::new()
    }
    fn begin(&self, rng: &mut fastrand::Rng) -> ((), Vec<(DriveOptions, Image)>) {
        Wrapped(self.0).begin(rng)
    }
    fn open(&self, case: Rc<()>, server: Server) -> LocalFuture<'static, Opened> {
        Wrapped(self.0).open(case, server)
    }
    fn fails_at_start(&self) -> bool {
        true
    }
    fn trouble(&self, _: &Rc<()>, generation: &Generation, rng: &mut fastrand::Rng) -> bool {
        plant_failures(&generation.world.all_drives(), 100, None, rng);
        false
    }
}

/// A toy write-back cache of whole drives. Writes go to `fast`. The blocks written there take
/// precedence over `slow`, by a map that is kept in the last block of `fast`. It reads the failure
/// counts of its drives itself, and reports losses to its clients.
struct ToyCache {
    fast: Arc<dyn Disk>,
    slow: Arc<dyn Disk>,
    cached: Mutex<Vec<bool>>,
    commits: Cells,
    kind: Toys,
    /// Everything is always on `fast`: if `fast` lost a write, the map would show older data.
    full: bool,
    /// The failure counts of the drives, as the toy last read them.
    seen: Mutex<u64>,
    failures: Arc<FailureCount>,
}

#[derive(Clone, Copy, PartialEq)]
enum Toys {
    Honest,
    /// The map is not durable when a flush is acknowledged.
    Hasty,
    /// A suspend does not report a commit that failed.
    Swallowing,
}

const TOY_SECTORS: u64 = 256;
const TOY_MAP: SectorRange = SectorRange::new(Sector(TOY_SECTORS), SectorCount(1));

impl ToyCache {
    /// Fails if writes may be lost since the last commit that reported losses.
    async fn commit(self: Arc<Self>, env: Env) -> IoResult {
        let written = self.clone().write_map(env).await;
        let failures = self.fast.failures() + self.slow.failures();
        let before = std::mem::replace(&mut *self.seen.lock(), failures);
        let lost = IoError::injected(cairn_block::ErrorKind::Io);
        written.and(if before == failures { Ok(()) } else { Err(lost) })
    }

    async fn write_map(self: Arc<Self>, env: Env) -> IoResult {
        let _alone = self.commits.hold(TOY_MAP, CellMode::Exclusive).await;
        let map: Vec<u8> = self.cached.lock().iter().map(|&cached| u8::from(cached)).collect();
        // 1. The data of the blocks in the map is made durable. 2. Then the map is.
        env.io(&self.fast, Io::flush()).await?;
        let segs = env.segs(SectorCount(1));
        segs.zero(0, 512);
        segs.copy_in(0, &map);
        env.io(&self.fast, Io::write(TOY_MAP, segs)).await?;
        if self.kind == Toys::Hasty { Ok(()) } else { env.io(&self.fast, Io::flush()).await }
    }
}

struct Toy(Arc<ToyCache>);

impl Target for Toy {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let toy = &self.0;
        if request.op == Op::Flush {
            let (id, toy, env) = (request.id(), toy.clone(), env.clone());
            env.clone().spawn(async move {
                let result = toy.clone().commit(env.clone()).await;
                if result.is_err() {
                    toy.failures.raise();
                }
                env.complete(id, result);
            });
            return Verdict::Queued;
        }
        request.accept(SectorCount(1));
        let sector = request.range.start;
        if request.op.is_write() {
            request.watch(sector.0);
        }
        let cached = toy.cached.lock()[sector.0 as usize] || request.op.is_write();
        let disk = if cached { &toy.fast } else { &toy.slow };
        Verdict::Remapped { disk: disk.as_ref(), sector }
    }
    fn end_io(&self, _env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        // Only after the write completed: a commit must not put data into the map that no flush
        // covers.
        self.0.cached.lock()[request.word() as usize] = true;
        EndIo::Done(result)
    }
    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        vec![self.0.fast.clone(), self.0.slow.clone()]
    }
    fn resume<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            let segs = env.segs(SectorCount(1));
            let read = env.io(&self.0.fast, Io::read(TOY_MAP, segs.clone())).await;
            let failed = |error| ConfigError::new(ConfigKind::System, "toy", format!("{error}"));
            read.map_err(failed)?;
            let map = segs.to_vec();
            let full = self.0.full;
            let cached = map.iter().take(TOY_SECTORS as usize).map(|&byte| byte != 0 || full);
            *self.0.cached.lock() = cached.collect();
            Ok(())
        })
    }
    fn suspend<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            let committed = self.0.clone().commit(env.clone()).await;
            match committed {
                Err(error) if self.0.kind != Toys::Swallowing => {
                    let lost = ConfigError::new(ConfigKind::System, "fast", "commit");
                    Err(lost.with_source(error))
                }
                _ => Ok(()),
            }
        })
    }
    fn failures(&self) -> u64 {
        0
    }
    fn failures_told(&self) -> u64 {
        0
    }
    fn acknowledge_failures(&self) {}
    fn table(&self) -> String {
        String::new()
    }
}

struct ToyType {
    kind: Toys,
    full: bool,
}

impl TargetType for ToyType {
    fn name(&self) -> &'static str {
        "toy"
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
            let fast = ctor.registry.open(ctor.args[0], false)?;
            let slow = ctor.registry.open(ctor.args[1], false)?;
            let seen = Mutex::new(fast.failures() + slow.failures());
            let toy: Arc<dyn Target> = Arc::new(Toy(Arc::new(ToyCache {
                fast,
                slow,
                cached: Mutex::default(),
                commits: Cells::default(),
                kind: self.kind,
                full: self.full,
                seen,
                failures: ctor.failures.clone(),
            })));
            Ok(toy)
        })
    }
}

struct ToyScenario {
    kind: Toys,
    failing: bool,
}

impl ToyScenario {
    fn of(kind: Toys) -> ToyScenario {
        ToyScenario { kind, failing: false }
    }
}

impl Scenario for ToyScenario {
    type Case = ();

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        vec![Arc::new(ToyType { kind: self.kind, full: self.failing })]
    }
    fn begin(&self, _rng: &mut fastrand::Rng) -> ((), Vec<(DriveOptions, Image)>) {
        ((), two_drives())
    }
    fn open(&self, _case: Rc<()>, server: Server) -> LocalFuture<'static, Opened> {
        let table = format!("0 {TOY_SECTORS} toy fast slow");
        Box::pin(async move { Ok(vec![server.create("toy", &table).await?]) })
    }
    fn suspends(&self) -> bool {
        true
    }
    fn trouble(&self, _: &Rc<()>, generation: &Generation, rng: &mut fastrand::Rng) -> bool {
        // The toy does not handle failed writes.
        if self.failing {
            let fast = generation.world.drive("fast");
            fast.faults().add(Fault::losing_flushes().per_mille(rng.u16(..300)));
        }
        false
    }
    fn workload(&self, _case: &(), rng: &mut fastrand::Rng) -> Workload {
        // The toy does not support FUA, nor a reused cache sector: no such requests.
        let mut workload = Workload::mixed(rng.u64(..), rng.u64(..100));
        (workload.mix.fua, workload.mix.zeroes, workload.mix.discard) = (0, 0, 0);
        workload.max = SectorCount(16);
        workload
    }
}

#[test]
fn a_plain_drive_passes() {
    Campaign::new(Wrapped(Bug::None)).run();
}

#[test]
fn a_plain_drive_passes_although_it_loses_writes() {
    Campaign::new(Lossy(Bug::None)).run();
}

#[test]
fn unreported_losses_are_caught() {
    let (cut, text) = Campaign::new(Lossy(Bug::FailuresAreKept)).expect_caught("the planted bug");
    assert!(text.contains("after a crash"), "cut {cut}: {text}");
}

#[test]
fn losses_reported_to_one_of_two_clients_are_caught() {
    let (cut, text) = Campaign::new(Lossy(Bug::OneClientIsTold)).expect_caught("the planted bug");
    assert!(text.contains("after a crash"), "cut {cut}: {text}");
}

#[test]
fn a_flush_that_does_nothing_is_caught() {
    let (cut, text) =
        Campaign::new(Wrapped(Bug::FlushDoesNothing)).expect_caught("the planted bug");
    assert!(text.contains("after a crash"), "cut {cut}: {text}");
}

#[test]
fn a_dropped_fua_is_caught() {
    let (cut, text) = Campaign::new(Wrapped(Bug::FuaIsDropped)).expect_caught("the planted bug");
    assert!(text.contains("after a crash"), "cut {cut}: {text}");
}

#[test]
fn lost_part_of_a_write_is_caught_without_a_crash() {
    let (cut, text) =
        Campaign::new(Wrapped(Bug::SecondSectorIsStale)).expect_caught("the planted bug");
    assert!(text.contains("after a read"), "cut {cut}: {text}");
}

#[test]
fn cache_that_commits_before_it_answers_passes() {
    Campaign::new(ToyScenario::of(Toys::Honest)).run();
}

#[test]
fn cache_that_reports_losses_passes() {
    Campaign::new(ToyScenario { kind: Toys::Honest, failing: true }).run();
}

#[test]
fn a_suspend_that_swallows_its_error_is_caught() {
    let toy = ToyScenario { kind: Toys::Swallowing, failing: true };
    let (cut, text) = Campaign::new(toy).cuts(3000).expect_caught("the planted bug");
    assert!(text.contains("after a crash"), "cut {cut}: {text}");
}

#[test]
fn a_cache_that_answers_before_its_map_is_durable_is_caught() {
    let (cut, text) = Campaign::new(ToyScenario::of(Toys::Hasty)).expect_caught("the planted bug");
    assert!(text.contains("after a crash"), "cut {cut}: {text}");
}

#[test]
fn the_same_cut_ends_the_same_way_twice() {
    let campaign = Campaign::new(ToyScenario::of(Toys::Hasty));
    let first = campaign.expect_caught("the planted bug");
    assert_eq!(first, campaign.expect_caught("the planted bug"));
}
