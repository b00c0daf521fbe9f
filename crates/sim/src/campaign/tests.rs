//! The alarm rings: disks and targets with planted bugs are caught, correct ones pass.

use super::*;
use cairn_block::{
    CellMode, Cells, ConfigKind, Ctor, EndIo, Flow, IoResult, Op, Request, Target, TargetType,
    Verdict,
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
}

struct Wrapped(Bug);

impl Scenario for Wrapped {
    fn drives(&self, _rng: &mut fastrand::Rng) -> Vec<(DriveOptions, Image)> {
        two_drives()
    }
    fn open(
        &self,
        _env: Env,
        registry: Arc<Registry>,
    ) -> LocalFuture<'static, Result<Arc<dyn Disk>, ConfigError>> {
        let bug = self.0;
        Box::pin(async move {
            let disk: Arc<dyn Disk> =
                Arc::new(Wrapper { inner: registry.open("fast", false)?, bug });
            Ok(disk)
        })
    }
}

/// A toy write-back cache of whole drives: writes go to `fast`, and whatever is written there
/// wins over `slow` by a map that is kept in the last block of `fast`. Its `order` decides
/// whether the map is durable before or after a flush is acknowledged.
struct ToyCache {
    fast: Arc<dyn Disk>,
    slow: Arc<dyn Disk>,
    cached: Mutex<Vec<bool>>,
    commits: Cells,
    honest: bool,
}

const TOY_SECTORS: u64 = 256;
const TOY_MAP: SectorRange = SectorRange::new(Sector(TOY_SECTORS), SectorCount(1));

impl ToyCache {
    async fn commit(self: Arc<Self>, env: Env) -> IoResult {
        let _alone = self.commits.hold(TOY_MAP, CellMode::Exclusive).await;
        let map: Vec<u8> = self.cached.lock().iter().map(|&cached| u8::from(cached)).collect();
        // 1. The data that the map speaks of is durable. 2. So is the map.
        env.io(&self.fast, Io::flush()).await?;
        let segs = env.segs(SectorCount(1));
        segs.zero(0, 512);
        segs.copy_in(0, &map);
        env.io(&self.fast, Io::write(TOY_MAP, segs)).await?;
        if self.honest { env.io(&self.fast, Io::flush()).await } else { Ok(()) }
    }
}

struct Toy(Arc<ToyCache>);

impl Target for Toy {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let toy = &self.0;
        if request.op == Op::Flush {
            let (id, toy, env) = (request.id(), toy.clone(), env.clone());
            env.clone().spawn(async move {
                let result = toy.commit(env.clone()).await;
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
        // Not before it completed: a commit must not speak of data that no flush covers.
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
            let cached = map.iter().take(TOY_SECTORS as usize).map(|&byte| byte != 0);
            *self.0.cached.lock() = cached.collect();
            Ok(())
        })
    }
    fn suspend<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            let committed = self.0.clone().commit(env.clone()).await;
            committed.expect("nobody planted an error");
            Ok(())
        })
    }
    fn table(&self) -> String {
        String::new()
    }
}

struct ToyType {
    honest: bool,
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
            let toy: Arc<dyn Target> = Arc::new(Toy(Arc::new(ToyCache {
                fast: ctor.registry.open(ctor.args[0], false)?,
                slow: ctor.registry.open(ctor.args[1], false)?,
                cached: Mutex::default(),
                commits: Cells::default(),
                honest: self.honest,
            })));
            Ok(toy)
        })
    }
}

struct ToyScenario {
    honest: bool,
}

impl Scenario for ToyScenario {
    fn drives(&self, _rng: &mut fastrand::Rng) -> Vec<(DriveOptions, Image)> {
        two_drives()
    }
    fn open(
        &self,
        env: Env,
        registry: Arc<Registry>,
    ) -> LocalFuture<'static, Result<Arc<dyn Disk>, ConfigError>> {
        let types = TargetTypes::new(vec![Arc::new(ToyType { honest: self.honest })]);
        let table = format!("0 {TOY_SECTORS} toy fast slow");
        Box::pin(async move { open_table(&env, &registry, &types, "toy", &table).await })
    }
    fn suspends(&self) -> bool {
        true
    }
    fn workload(&self, rng: &mut fastrand::Rng) -> Workload {
        // The toy keeps no promise about FUA, nor about a reused cache sector: no such requests.
        let mut workload = Workload::mixed(rng.u64(..), rng.u64(..100));
        (workload.mix.fua, workload.mix.zeroes, workload.mix.discard) = (0, 0, 0);
        workload.max = SectorCount(16);
        workload
    }
}

#[test]
fn a_plain_drive_passes() {
    Campaign::new(&Wrapped(Bug::None), "-p cairn-sim a_plain_drive_passes").run();
}

#[test]
fn a_flush_that_does_nothing_is_caught() {
    let (cut, text) = Campaign::new(&Wrapped(Bug::FlushDoesNothing), "").expect_caught();
    assert!(text.contains("after a crash"), "cut {cut}: {text}");
}

#[test]
fn a_dropped_fua_is_caught() {
    let (cut, text) = Campaign::new(&Wrapped(Bug::FuaIsDropped), "").expect_caught();
    assert!(text.contains("after a crash"), "cut {cut}: {text}");
}

#[test]
fn a_lost_part_of_a_write_is_caught_while_it_lives() {
    let (cut, text) = Campaign::new(&Wrapped(Bug::SecondSectorIsStale), "").expect_caught();
    assert!(text.contains("after a read"), "cut {cut}: {text}");
}

#[test]
fn a_cache_that_commits_before_it_answers_passes() {
    let replay = "-p cairn-sim a_cache_that_commits_before_it_answers_passes";
    Campaign::new(&ToyScenario { honest: true }, replay).run();
}

#[test]
fn a_cache_that_answers_before_its_map_is_durable_is_caught() {
    let (cut, text) = Campaign::new(&ToyScenario { honest: false }, "").expect_caught();
    assert!(text.contains("after a crash"), "cut {cut}: {text}");
}

#[test]
fn the_same_cut_ends_the_same_way_twice() {
    let toy = ToyScenario { honest: false };
    let first = Campaign::new(&toy, "").expect_caught();
    assert_eq!(first, Campaign::new(&toy, "").expect_caught());
}
