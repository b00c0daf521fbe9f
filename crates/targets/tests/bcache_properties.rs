//! A property test of bcache as a whole: random requests to all volumes of a set against a model of
//! sectors, while modes, policies and settings change, volumes are suspended and drained, and time
//! passes. No drive fails. After each session the set is sound (`bcache_lab::judge`), and what its
//! bytes mean is what the model holds.
//!
//! `CAIRN_CASES` is the number of cases, `CAIRN_CASE` the only one to run.

mod bcache_lab;

use std::cell::{Cell, RefCell};
use std::ops::AddAssign;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bcache_lab::Cache;
use bcache_lab::judge::Devices;
use bcache_lab::model::{Ask, Model};
use bcache_lab::several::{MODES, SETTINGS, SHAPES, Shape, VOLUMES};
use cairn_block::{
    Disk, Env, Flags, Io, MappedDevice, MessageError, Op, Registry, Resumed, Sector, SectorCount,
    SectorRange, SuspendMode, Table, TableContext, TableLine, TargetTypes,
};
use cairn_sim::{DriveOptions, SimWorld};

const CASES: u64 = 40;
/// The longest request, in sectors.
const LONGEST: u64 = 128;

/// What the cases of a run have come to.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    hits: u64,
    misses: u64,
    bypassed: u64,
    collisions: u64,
    /// Extents of sets at their ends.
    clean: u64,
    dirty: u64,
    /// Of these, in buckets that were used before.
    reused: u64,
    /// Trees with nodes above the leaves.
    deep: u64,
}

impl AddAssign for Seen {
    fn add_assign(&mut self, other: Seen) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.bypassed += other.bypassed;
        self.collisions += other.collisions;
        self.clean += other.clean;
        self.dirty += other.dirty;
        self.reused += other.reused;
        self.deep += other.deep;
    }
}

/// A set on simulated drives.
struct Set {
    shape: Shape,
    world: SimWorld,
    registry: Arc<Registry>,
    models: Vec<Model>,
}

/// A request that was sent, and what it read once it has ended.
type Sent = (Ask, Rc<RefCell<Option<Vec<u8>>>>);

impl Set {
    fn new(rng: &mut fastrand::Rng) -> Set {
        let shape = SHAPES[rng.usize(..SHAPES.len())];
        let shape = Shape { mode: MODES[rng.usize(..MODES.len())], ..shape };
        let world = SimWorld::new(rng.u64(..), SimWorld::REACTORS);
        world.set_patience(Duration::from_secs(600));
        for (options, image) in shape.drives() {
            let options = DriveOptions { torn_reads: rng.bool(), copies: rng.bool(), ..options };
            world.add_drive(options, image);
        }
        let registry = Arc::new(Registry::new(Box::new(world.opener())));
        let models = (0..shape.volumes).map(|_| Model::new(shape.sectors)).collect();
        Set { shape, world, registry, models }
    }

    fn volume(&self, index: usize) -> Arc<MappedDevice> {
        self.registry.volume(VOLUMES[index].0).expect("it is open")
    }

    fn open(&self) {
        for (index, (name, _)) in VOLUMES.iter().enumerate().take(self.shape.volumes) {
            let device = self.registry.create_volume(name).expect("a new name");
            let lines = TableLine::parse_all(&self.shape.table(index)).expect("a table");
            let registry = self.registry.clone();
            self.world.block_on(0, |env| async move {
                let types = TargetTypes::new(cairn_targets::types());
                let context = TableContext { types: &types, registry: &registry, read_only: false };
                let table =
                    Table::build(&env, &device, &lines, context).await.expect("it is sound");
                device.load(table).await;
                device.resume(&env).await.and_then(Resumed::whole).expect("no drive fails");
            });
        }
    }

    fn close(&self) {
        for (name, _) in &VOLUMES[..self.shape.volumes] {
            let volume = self.registry.volume(name).expect("it is open");
            self.world.block_on(0, |env| async move {
                volume.suspend(&env, SuspendMode::Flush).await.expect("nothing is lost");
                volume.remove(&env).await.expect("no drive fails");
            });
            drop(self.registry.remove_volume(name));
        }
        assert_eq!(self.world.contract_violations(), 0);
        assert_eq!(self.world.requests_in_use(), 0);
    }

    /// Some requests at the same time, and perhaps something else.
    fn batch(&mut self, rng: &mut fastrand::Rng) -> Result<(), String> {
        let index = rng.usize(..self.shape.volumes);
        let count = if rng.bool() { 1 } else { rng.usize(2..12) };
        let mut sent: Vec<Sent> = (0..count / 2).map(|_| self.send(index, rng)).collect();
        let event = self.start_event(rng);
        sent.extend((count / 2..count).map(|_| self.send(index, rng)));
        let is_done = || event.get() && sent.iter().all(|(_, read)| read.borrow().is_some());
        let ended = self.world.try_run_until(is_done);
        ended.map_err(|why| format!("a batch: {why:?}"))?;
        let ended: Vec<(Ask, Vec<u8>)> =
            sent.into_iter().map(|(ask, read)| (ask, read.take().expect("it has ended"))).collect();
        let ended = self.models[index].end_batch(&ended);
        ended.map_err(|text| format!("{}: {text}", VOLUMES[index].0))?;
        if rng.u8(..8) == 0 {
            let times = [1, 150, 6_000, 40_000];
            self.world.run_for(Duration::from_millis(times[rng.usize(..times.len())]));
        }
        Ok(())
    }

    fn send(&self, index: usize, rng: &mut fastrand::Rng) -> Sent {
        let ask = self.draw(rng);
        let disk: Arc<dyn Disk> = self.volume(index);
        let (read, env) = (Rc::new(RefCell::new(None)), self.world.env(rng.u16(..3)).clone());
        let place = read.clone();
        env.clone().spawn(async move {
            let range = SectorRange::new(Sector(ask.start), SectorCount(ask.count));
            let range = if ask.op == Op::Flush { SectorRange::default() } else { range };
            let segs = if ask.op.has_data() { env.segs(range.count) } else { Default::default() };
            let byte = if ask.op == Op::Write { ask.byte } else { 0xa5 };
            segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(byte));
            let io = Io { segs: segs.clone(), ..Io::on(ask.op, range) }.with(ask.flags);
            env.io(&disk, io).await.unwrap_or_else(|error| panic!("{ask:?}: {error}"));
            *place.borrow_mut() = Some(segs.to_vec());
        });
        (ask, read)
    }

    fn draw(&self, rng: &mut fastrand::Rng) -> Ask {
        let (block, none) = (u64::from(self.shape.block_sectors), Flags::empty());
        let (op, flags) = match rng.u8(..100) {
            0..30 => (Op::Read, none),
            30..60 => (Op::Write, none),
            60..72 => (Op::Write, Flags::FUA),
            72..76 => (Op::Write, Flags::META),
            76..82 => (Op::WriteZeroes, none),
            82..84 => (Op::WriteZeroes, Flags::FUA),
            84..92 => (Op::Flush, none),
            _ => (Op::Discard, none),
        };
        if op == Op::Flush {
            return Ask { op, flags, start: 0, count: 0, byte: 0 };
        }
        let blocks = self.shape.sectors / block;
        let start = match rng.u8(..3) {
            0 => rng.u64(..blocks),
            // Where others were lately.
            _ => rng.u64(..blocks.min(48)),
        };
        let most = (blocks - start).min((LONGEST / block).max(1));
        let count = if rng.bool() { most.min(rng.u64(1..9)) } else { rng.u64(1..=most) };
        Ask { op, flags, start: start * block, count: count * block, byte: rng.u8(1..) }
    }

    /// Starts what happens beside a batch. Answers whether it has ended.
    fn start_event(&self, rng: &mut fastrand::Rng) -> Rc<Cell<bool>> {
        let done = Rc::new(Cell::new(true));
        let cached: Vec<usize> = self.shape.cached().collect();
        let (any, own) = (rng.usize(..self.shape.volumes), cached[rng.usize(..cached.len())]);
        let (env, place) = (self.world.env(rng.u16(..3)).clone(), done.clone());
        let (any, own) = (self.volume(any), self.volume(own));
        let (mode, setting) = (MODES[rng.usize(..MODES.len())], rng.usize(..SETTINGS.len()));
        let pause = Duration::from_micros(rng.u64(..400));
        let what = rng.u8(..8);
        if what < 5 {
            done.set(false);
            env.clone().spawn(async move {
                env.sleep(pause).await;
                match what {
                    0 => tell(&env, &own, &["set", "cache_mode", mode.word()]).await,
                    1 | 2 => {
                        let [name, value] = SETTINGS[setting];
                        tell(&env, &own, &["set", name, value]).await;
                    }
                    3 => drain(&env, &own).await,
                    _ => suspend_and_resume(&env, &any).await,
                }
                place.set(true);
            });
        }
        done
    }

    /// What the set means at the end of a session is what the models hold.
    fn judge(&mut self) -> Result<Seen, String> {
        let image = |name: &str| self.world.drive(name).durable().to_vec();
        let (cache, cached) = (image("cache"), self.shape.cached());
        let backings: Vec<Vec<u8>> = cached.map(|index| image(VOLUMES[index].1)).collect();
        let devices = Devices { cache: &cache, backings: &backings };
        devices.judge()?;
        for (index, model) in self.models.iter_mut().enumerate() {
            let backing = backings.get(index).map(Vec::as_slice);
            let content = devices.content_of(index as u32, backing, model.sectors());
            let judged = model.judge_all(&content);
            judged.map_err(|text| format!("{}, by its bytes: {text}", VOLUMES[index].0))?;
        }
        let read = Cache::read(&cache);
        let count = |is_it: &dyn Fn(&cairn_format::bcache::Key) -> bool| {
            read.extents.iter().filter(|key| is_it(key)).count() as u64
        };
        Ok(Seen {
            clean: count(&|key| !key.is_dirty()),
            dirty: count(&|key| key.is_dirty()),
            reused: count(&|key| key.cached_at().is_some_and(|at| at.generation().0 > 1)),
            deep: u64::from(read.nodes.len() > 1),
            ..Seen::default()
        })
    }

    /// What the targets have counted.
    fn counted(&self) -> Seen {
        let mut seen = Seen::default();
        for index in 0..self.shape.volumes {
            let table = self.volume(index).live_table().expect("it is served");
            let report = table.lines()[0].target.report();
            let attributes = table.lines()[0].target.attributes();
            let gauge = |name: &str| {
                let found = attributes.iter().find(|it| it.name == name);
                found.and_then(|it| it.value.to_string().parse().ok()).unwrap_or(0)
            };
            seen += Seen {
                hits: report.number("cache_hits").unwrap_or(0),
                misses: report.number("cache_misses").unwrap_or(0),
                bypassed: gauge("stats_total/bypassed"),
                collisions: gauge("stats_total/cache_miss_collisions"),
                ..Seen::default()
            };
        }
        seen
    }
}

async fn tell(env: &Env, volume: &MappedDevice, words: &[&str]) {
    match volume.message(env, Sector(0), words).await {
        Ok(_) | Err(MessageError::Busy(_)) => {}
        Err(error) => panic!("{words:?}: {error}"),
    }
}

async fn drain(env: &Env, volume: &MappedDevice) {
    match volume.drain_caches(env).await {
        Ok(()) | Err(MessageError::Busy(_)) => {}
        Err(error) => panic!("a drain: {error}"),
    }
}

async fn suspend_and_resume(env: &Env, volume: &MappedDevice) {
    let modes = [SuspendMode::Flush, SuspendMode::NoFlush];
    let mode = modes[env.random_below(2) as usize];
    volume.suspend(env, mode).await.expect("nothing is lost");
    env.sleep(Duration::from_micros(env.random_below(500))).await;
    volume.resume(env).await.and_then(Resumed::whole).expect("no drive fails");
}

fn run_case(case: u64) -> Result<Seen, String> {
    let rng = &mut fastrand::Rng::with_seed(case);
    let mut set = Set::new(rng);
    let mut seen = Seen::default();
    for session in 0..rng.u64(1..4) {
        set.open();
        for batch in 0..rng.u64(20..200) {
            let judged = set.batch(rng);
            judged.map_err(|text| format!("session {session}, batch {batch}: {text}"))?;
        }
        seen += set.counted();
        set.close();
        seen += set.judge().map_err(|text| format!("after session {session}: {text}"))?;
    }
    Ok(seen)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect(name))
}

/// Prints which case panicked.
struct Case(u64);

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let test = "-p cairn-targets --test bcache_properties";
            eprintln!("replay: CAIRN_CASE={} cargo test {test}", self.0);
        }
    }
}

#[test]
fn volumes_hold_what_was_written_whatever_the_set_does_beside() {
    cairn_block::invariants::check_every_entry();
    let cases = match number("CAIRN_CASE") {
        Some(case) => case..case + 1,
        None => 0..number("CAIRN_CASES").unwrap_or(CASES),
    };
    let mut all = Seen::default();
    for case in cases.clone() {
        let _case = Case(case);
        all += run_case(case).unwrap_or_else(|text| panic!("{text}"));
    }
    eprintln!("{cases:?}: {all:?}");
    if cases.end - cases.start >= CASES {
        let Seen { hits, misses, bypassed, collisions, clean, dirty, reused, deep } = all;
        let counts = [hits, misses, bypassed, collisions, clean, dirty, reused, deep];
        assert!(counts.iter().all(|count| *count > 0), "a path was never taken: {all:?}");
    }
}
