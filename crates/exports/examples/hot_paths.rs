//! The paths of a request that never waits, for counting instructions: `hot_paths CASE COUNT` sends
//! COUNT requests through CASE and ends.
//!
//! Two runs of different length differ by the cost of the additional requests; everything else
//! cancels out. `hot_paths` alone prints the names of the cases, each with the number of requests
//! by which the runs should differ.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use cairn_backends::{MemoryDisk, NullDisk};
use cairn_block::{
    Client, ConfigError, ConfigKind, Disk, Env, FailureCount, Identity, Io, IoResult, MappedDevice,
    Op, Opener, ReactorId, Registry, Request, Sector, SectorCount, SectorRange, Segs, Table,
    TableContext, TableLine, TargetTypes, Time,
};
use cairn_format::bcache::build::{Builder, WriteSectors};
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, NewBacking, NewCache, Replacement,
    SUPERBLOCK_SECTOR, Uuid,
};
use cairn_reactor::{Core, CoreParts, PostOffice};

type Targets = &'static [&'static str];

/// The stack and the requests of a case.
struct Case {
    name: &'static str,
    /// The disk at the bottom.
    disk: &'static str,
    /// The targets on it, the lowest first.
    targets: Targets,
    sectors: u64,
    /// The distance from one request to the next.
    stride: u64,
    /// The reactor takes a turn after this many requests; none: after all of them.
    depth: Option<u64>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Reads of written blocks.
    Read,
    /// Writes to written blocks.
    Write,
    /// Writes to blocks that were never written.
    Insert,
    /// Writes of zeros to blocks that were never written.
    Zeros,
    /// Discards of written blocks.
    Discard,
    /// Snapshots of the first volume of a pool, made by messages, after this many earlier ones.
    Snapshot { before: u64 },
}

impl Kind {
    /// How many requests to count: so many that the case takes as many instructions as the others.
    fn counted(self) -> u64 {
        match self {
            Kind::Snapshot { .. } => 100,
            _ => 10_000,
        }
    }

    /// Requests before those that are counted: writes, or snapshots.
    fn filling(self, stride: u64) -> u64 {
        match self {
            Kind::Read | Kind::Write | Kind::Insert => USED_SECTORS / stride,
            Kind::Zeros => 0,
            Kind::Snapshot { before } => before,
            Kind::Discard => POOL_SECTORS.0 / stride / 4 * 3,
        }
    }

    /// What a request does.
    fn op(self, filling: bool) -> Op {
        match self {
            Kind::Read if !filling => Op::Read,
            Kind::Discard if !filling => Op::Discard,
            _ => Op::Write,
        }
    }
}

const fn case(
    name: &'static str,
    disk: &'static str,
    targets: Targets,
    sectors: u64,
    kind: Kind,
) -> Case {
    Case { name, disk, targets, sectors, stride: sectors, depth: None, kind }
}

/// Requests to a thin volume, each to a block of its own if `stride` is set.
const fn thin(name: &'static str, targets: Targets, stride: u64, kind: Kind) -> Case {
    let sectors = if matches!(kind, Kind::Discard | Kind::Insert) { POOL_BLOCK } else { 8 };
    Case { name, disk: "data", targets, sectors, stride, depth: Some(DEPTH), kind }
}

/// Requests to a volume of bcache.
const fn bcache(name: &'static str, kind: Kind) -> Case {
    Case { depth: Some(DEPTH), ..case(name, "mem", BCACHE, 8, kind) }
}

const CACHE: &[&str] = &["writecache"];
const BCACHE: &[&str] = &["bcache"];
const SNAPSHOT: &[&str] = &["snapshot"];
const THIN: &[&str] = &["thin-pool", "thin"];
const THIN_DETECTING: &[&str] = &["thin-pool detecting", "thin"];

const CASES: [Case; 25] = [
    case("null-write-512", "null", &[], 1, Kind::Write),
    case("linear1-write-512", "null", &["linear"; 1], 1, Kind::Write),
    case("linear3-write-512", "null", &["linear"; 3], 1, Kind::Write),
    case("linear6-write-512", "null", &["linear"; 6], 1, Kind::Write),
    case("passthrough3-write-512", "null", &["passthrough"; 3], 1, Kind::Write),
    case("memory-write-512", "mem", &[], 1, Kind::Write),
    case("memory-read-512", "mem", &[], 1, Kind::Read),
    case("memory-linear3-read-512", "mem", &["linear"; 3], 1, Kind::Read),
    case("writecache-overwrite-4k", "mem", CACHE, 8, Kind::Write),
    case("writecache-read-hit-4k", "mem", CACHE, 8, Kind::Read),
    case("writecache-insert-4k", "mem", CACHE, 8, Kind::Insert),
    bcache("bcache-overwrite-4k", Kind::Write),
    bcache("bcache-read-hit-4k", Kind::Read),
    bcache("bcache-insert-4k", Kind::Insert),
    case("snapshot-overwrite-4k", "mem", SNAPSHOT, 8, Kind::Write),
    case("snapshot-read-hit-4k", "mem", SNAPSHOT, 8, Kind::Read),
    thin("thin-read-4k", THIN, 8, Kind::Read),
    thin("thin-overwrite-4k", THIN, 8, Kind::Write),
    thin("thin-overwrite-detecting-4k", THIN_DETECTING, 8, Kind::Write),
    thin("thin-provision-64k", THIN, POOL_BLOCK, Kind::Insert),
    thin("thin-provision-detecting-64k", THIN_DETECTING, POOL_BLOCK, Kind::Insert),
    thin("thin-zeros-4k", THIN_DETECTING, 8, Kind::Zeros),
    thin("thin-discard-64k", THIN, POOL_BLOCK, Kind::Discard),
    thin("thin-create-snap", THIN, POOL_BLOCK, Kind::Snapshot { before: 0 }),
    thin("thin-create-snap-1000", THIN, POOL_BLOCK, Kind::Snapshot { before: 1000 }),
];

const DISK_SECTORS: SectorCount = SectorCount(1 << 18);

/// Requests repeat in the first sectors, so a cache soon holds all of them.
const USED_SECTORS: u64 = 1024;

/// The data device of a pool, and a volume of it.
const POOL_SECTORS: SectorCount = SectorCount(1 << 21);
const POOL_BLOCK: u64 = 128;

/// Requests to a pool or a volume of bcache per turn.
const DEPTH: u64 = 32;

/// Opens `mem`, `cache`, `store` and `null`, and the devices of a pool, `metadata` and `data`.
struct Shelf;

impl Opener for Shelf {
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError> {
        Ok(Identity::Unique(u64::MAX - argument.len() as u64))
    }

    fn open(
        &self,
        argument: &str,
        _read_only: bool,
        _failures: Arc<FailureCount>,
    ) -> Result<Arc<dyn Disk>, ConfigError> {
        match argument {
            "mem" | "cache" | "bcache" | "store" | "metadata" => {
                Ok(Arc::new(MemoryDisk::new(DISK_SECTORS)?))
            }
            "data" => Ok(Arc::new(NullDisk::new(POOL_SECTORS))),
            "null" => Ok(Arc::new(NullDisk::new(DISK_SECTORS))),
            _ => Err(ConfigError::new(ConfigKind::Argument, argument, "not on this shelf")),
        }
    }
}

#[derive(Default)]
struct Counter(Cell<u64>);

impl Client for Counter {
    fn complete(&self, _env: &Env, _cookie: u64, _request: &mut Request, result: IoResult) {
        result.expect("a disk in memory does not fail");
        self.0.set(self.0.get() + 1);
    }
}

/// A target over the disk `beneath`, with its arguments.
fn target(name: &str, beneath: &str) -> String {
    match name {
        // Without writeback, whose cost is not part of a request's.
        "writecache" => {
            format!("writecache s {beneath} cache 4096 4 high_watermark 100 low_watermark 100")
        }
        // The cache is made for it, and settings come by messages.
        "bcache" => format!("bcache {beneath} bcache 0"),
        "snapshot" => format!("snapshot {beneath} store P 8"),
        "thin-pool" => format!("thin-pool metadata {beneath} {POOL_BLOCK} 0 1 {POOL_OPTIONS}"),
        "thin-pool detecting" => {
            let options = format!("3 {POOL_OPTIONS} detect_zeroes unmap");
            format!("thin-pool metadata {beneath} {POOL_BLOCK} 0 {options}")
        }
        _ => format!("{name} {beneath} 0"),
    }
}

/// Without passing discards down, whose cost is not part of a request's.
const POOL_OPTIONS: &str = "no_discard_passdown";

/// A volume with this name and table; for a pool, also its first volume.
async fn volume(env: Env, registry: Rc<Registry>, name: String, table: String) -> Arc<dyn Disk> {
    let device = registry.create_volume(&name).expect("each name is used once");
    let types = TargetTypes::new(cairn_targets::types());
    let lines = TableLine::parse_all(&table).expect("this is a table");
    let context = TableContext { types: &types, registry: &registry, read_only: false };
    let table = Table::build(&env, &device, &lines, context).await.expect("a sound table");
    device.load(table).await;
    device.resume(&env).await.expect("it starts").whole().expect("it starts");
    match lines[0].target.as_str() {
        "thin-pool" => message(&env, &device, "create_thin 0").await,
        "bcache" => {
            for setting in BCACHE_SETTINGS {
                message(&env, &device, setting).await;
            }
        }
        _ => {}
    }
    device
}

/// Everything enters the cache; without writeback, whose cost is not part of a request's.
const BCACHE_SETTINGS: [&str; 2] = ["set sequential_cutoff 0", "set writeback_running 0"];

/// Sectors of a backing device before its data.
const BACKING_FIRST: u64 = 16;

/// Writes the superblocks of a new set, `bcache`, and of a backing device of it. Answers the cache:
/// the registry drops its memory when the last user closes it.
async fn make_set(env: Env, registry: Rc<Registry>, beneath: String) -> Arc<dyn Disk> {
    let (set_uuid, uuid) = (Uuid([2; 16]), Uuid([3; 16]));
    let cache = NewCache {
        uuid: Uuid([1; 16]),
        set_uuid,
        block_sectors: 8,
        bucket_sectors: 1024,
        device_sectors: DISK_SECTORS.0,
        replacement: Replacement::Lru,
        discard: false,
    };
    let backing = NewBacking {
        uuid,
        set_uuid,
        block_sectors: 8,
        data_offset: BACKING_FIRST,
        mode: CacheMode::Writeback,
        state: BackingState::Dirty,
        label: [0; 32],
    };
    let fresh = CacheSuperblock::fresh(&cache).expect("its sizes are legal");
    let mut writes = Writes::default();
    let volume = UuidEntry { uuid, ..UuidEntry::default() };
    let Ok(superblock) = Builder::new(&fresh, 1, &mut writes).finish(&[volume]) else {
        unreachable!("memory takes what is written")
    };
    writes.0.push((SUPERBLOCK_SECTOR, superblock.encode().to_vec()));
    let disk = write_all(&env, &registry, "bcache", writes).await;
    let superblock = BackingSuperblock::fresh(&backing).expect("its sizes are legal");
    let writes = Writes(vec![(SUPERBLOCK_SECTOR, superblock.encode().to_vec())]);
    write_all(&env, &registry, &beneath, writes).await;
    disk
}

/// What a builder writes, by sector.
#[derive(Default)]
struct Writes(Vec<(u64, Vec<u8>)>);

impl WriteSectors for Writes {
    type Error = Infallible;

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), Infallible> {
        self.0.push((sector, bytes.to_vec()));
        Ok(())
    }
}

async fn write_all(
    env: &Env,
    registry: &Registry,
    name: &str,
    Writes(writes): Writes,
) -> Arc<dyn Disk> {
    let disk = registry.open(name, false).expect("it is on the shelf");
    for (sector, bytes) in writes {
        let range = SectorRange::new(Sector(sector), SectorCount::of_bytes(bytes.len() as u64));
        let segs = env.segs(range.count);
        segs.copy_in(0, &bytes);
        env.io(&disk, Io::write(range, segs)).await.expect("memory does not fail");
    }
    disk
}

/// Sends a message to the target of a volume.
async fn message(env: &Env, device: &MappedDevice, words: &str) {
    let table = device.live_table().expect("it is up");
    let words: Vec<&str> = words.split(' ').collect();
    table.lines()[0].target.message(env, &words).await.expect("there is room");
}

/// The objects that a case uses.
struct Stack {
    core: Core,
    registry: Rc<Registry>,
    top: Arc<dyn Disk>,
}

impl Stack {
    fn build(beneath: &str, targets: &[&str]) -> Stack {
        let post = PostOffice::new(1);
        let (reactor, reactor_waker) = (ReactorId(0), post.reactor_waker(ReactorId(0)));
        let core =
            Core::new(CoreParts { reactor, seed: 1, post, reactor_waker, mechanism: Rc::new(()) });
        let registry = Rc::new(Registry::new(Box::new(Shelf)));
        let top = registry.open(beneath, false).expect("it is on the shelf");
        let mut stack = Stack { core, registry, top };
        let mut argument = beneath.to_owned();
        for (layer, name) in targets.iter().enumerate() {
            let (env, registry) = (stack.core.env().clone(), stack.registry.clone());
            let (mut sectors, mut made) = (stack.top.sectors(), None);
            if *name == "bcache" {
                sectors -= SectorCount(BACKING_FIRST);
                let set = make_set(env.clone(), registry.clone(), argument.clone());
                made = Some(stack.wait(set));
            }
            let table = format!("0 {sectors} {}", target(name, &argument));
            stack.top = stack.wait(volume(env, registry, format!("v{layer}"), table));
            drop(made);
            argument = format!("@v{layer}");
        }
        stack
    }

    /// Takes turns until there is nothing to do.
    fn rest(&self) {
        while self.core.turn(Time(0), Vec::new()) {}
    }

    fn wait<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let made = Rc::new(Cell::new(None));
        let slot = made.clone();
        self.core.env().spawn(async move { slot.set(Some(future.await)) });
        self.rest();
        made.take().expect("nothing here waits")
    }

    /// Sends the requests of a case.
    fn requests(&self, case: &Case, count: u64) {
        let Case { sectors, stride, depth, kind, .. } = *case;
        let (env, client) = (self.core.env(), Rc::new(Counter::default()));
        let length = SectorCount(sectors);
        let buf = env.buf(length.to_bytes() as usize);
        let byte = if kind == Kind::Zeros { 0 } else { 0xa5 };
        buf.write(0, length.to_bytes() as usize, |bytes| bytes.fill(byte));
        let filling = kind.filling(stride);
        for index in 0..filling + count {
            let all = index * stride;
            let place = Sector(match kind {
                Kind::Insert | Kind::Zeros => all,
                Kind::Discard => all % (filling * stride),
                _ => all % USED_SECTORS,
            });
            let range = SectorRange::new(place, length);
            let segs = || Segs::of(&buf, 0, length.to_bytes() as usize);
            let io = match kind.op(index < filling) {
                Op::Read => Io::read(range, segs()),
                Op::Write => Io::write(range, segs()),
                op => Io::on(op, range),
            };
            env.start(&self.top, io, client.clone(), index);
            let is_turn = depth.is_some_and(|depth| (index + 1).is_multiple_of(depth));
            if index + 1 == filling || is_turn {
                // Writes that must wait, such as the first ones to a snapshot, end here.
                self.rest();
            }
        }
        self.rest();
        assert_eq!(client.0.get(), filling + count, "all of them complete");
    }

    /// Makes snapshots.
    fn snapshots(&self, count: u64) {
        let pool = self.registry.volume("v0").expect("the pool has the first name");
        for id in 1..=count {
            let (env, pool) = (self.core.env().clone(), pool.clone());
            let words = format!("create_snap {id} 0");
            self.wait(async move { message(&env, &pool, &words).await });
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(name), Some(count)) = (args.next(), args.next()) else {
        let list = |case: &Case| println!("{} {}", case.name, case.kind.counted());
        return CASES.iter().for_each(list);
    };
    let case = CASES.iter().find(|case| case.name == name).expect("a case of this name");
    let count: u64 = count.parse().expect("a count of requests");
    let stack = Stack::build(case.disk, case.targets);
    let began = std::time::Instant::now();
    match case.kind {
        Kind::Snapshot { before } => stack.snapshots(before + count),
        _ => stack.requests(case, count),
    }
    let all = case.kind.filling(case.stride) + count;
    let nanoseconds = began.elapsed().as_nanos() as f64 / all as f64;
    println!("{name}: {nanoseconds:.1} ns per request");
}
