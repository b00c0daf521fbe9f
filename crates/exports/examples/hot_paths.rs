//! The paths of a request that never waits, for counting instructions:
//! `hot_paths CASE COUNT` sends COUNT requests through CASE and ends.
//!
//! Two runs of different length differ by the cost of the requests between them; everything else
//! cancels out. `hot_paths` alone prints the names of the cases.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use cairn_backends::{MemoryDisk, NullDisk};
use cairn_block::{
    Client, ConfigError, ConfigKind, Disk, Env, Identity, Io, IoResult, Opener, ReactorId,
    Registry, Request, Sector, SectorCount, SectorRange, Segs, Table, TableContext, TableLine,
    TargetTypes, Time,
};
use cairn_reactor::{Core, CoreParts, PostOffice};

/// What the requests of a case meet, and what they are.
struct Case {
    name: &'static str,
    /// The disk at the bottom.
    disk: &'static str,
    /// Targets on it, the lowest first.
    targets: &'static [&'static str],
    sectors: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Reads of what was written before.
    Read,
    /// Writes to where something was written before.
    Write,
    /// Writes to where nothing was written before.
    Insert,
}

const fn case(
    name: &'static str,
    disk: &'static str,
    targets: &'static [&'static str],
    sectors: u64,
    kind: Kind,
) -> Case {
    Case { name, disk, targets, sectors, kind }
}

const CACHE: &[&str] = &["writecache"];
const SNAPSHOT: &[&str] = &["snapshot"];

const CASES: [Case; 13] = [
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
    case("snapshot-overwrite-4k", "mem", SNAPSHOT, 8, Kind::Write),
    case("snapshot-read-hit-4k", "mem", SNAPSHOT, 8, Kind::Read),
];

const DISK_SECTORS: SectorCount = SectorCount(1 << 18);

/// Requests go round in the first sectors, so that a cache soon knows them all.
const USED_SECTORS: u64 = 1024;

/// Opens `mem`, `cache`, `store` and `null`.
struct Shelf;

impl Opener for Shelf {
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError> {
        Ok(Identity::Unique(u64::MAX - argument.len() as u64))
    }

    fn open(&self, argument: &str, _read_only: bool) -> Result<Arc<dyn Disk>, ConfigError> {
        match argument {
            "mem" | "cache" | "store" => Ok(Arc::new(MemoryDisk::new(DISK_SECTORS)?)),
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

/// The arguments of a target over `beneath`.
fn arguments(target: &str, beneath: &str) -> String {
    match target {
        // Nothing is written back: that is no request's cost.
        "writecache" => format!("s {beneath} cache 4096 4 high_watermark 100 low_watermark 100"),
        "snapshot" => format!("{beneath} store P 8"),
        _ => format!("{beneath} 0"),
    }
}

/// One volume of this name and table.
async fn volume(env: Env, registry: Rc<Registry>, name: String, table: String) -> Arc<dyn Disk> {
    let device = registry.create_volume(&name).expect("each name is used once");
    let types = TargetTypes::new(cairn_targets::types());
    let lines = TableLine::parse_all(&table).expect("this is a table");
    let context = TableContext { types: &types, registry: &registry, read_only: false };
    let table = Table::build(&env, &device, &lines, context).await.expect("a sound table");
    device.load(table).await;
    device.resume(&env).await.expect("it starts");
    device
}

/// The disk at the top of a case.
fn build(core: &Core, beneath: &str, targets: &[&str]) -> Arc<dyn Disk> {
    let registry = Rc::new(Registry::new(Box::new(Shelf)));
    let mut argument = beneath.to_owned();
    let mut top = registry.open(beneath, false).expect("it is on the shelf");
    for (layer, target) in targets.iter().enumerate() {
        let made = Rc::new(Cell::new(None));
        let (env, slot) = (core.env().clone(), made.clone());
        let table = format!("0 {DISK_SECTORS} {target} {}", arguments(target, &argument));
        let making = volume(env, registry.clone(), format!("v{layer}"), table);
        core.env().spawn(async move { slot.set(Some(making.await)) });
        while core.turn(Time(0), Vec::new()) {}
        top = made.take().expect("nothing here waits");
        argument = format!("@v{layer}");
    }
    top
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(name), Some(count)) = (args.next(), args.next()) else {
        return CASES.iter().for_each(|case| println!("{}", case.name));
    };
    let case = CASES.iter().find(|case| case.name == name).expect("a case of this name");
    let Case { disk, targets, sectors, kind, .. } = *case;
    let count: u64 = count.parse().expect("a count of requests");
    let post = PostOffice::new(1);
    let (reactor, bell) = (ReactorId(0), post.bell(ReactorId(0)));
    let core = Core::new(CoreParts { reactor, seed: 1, post, bell, mechanism: Rc::new(()) });
    let disk = build(&core, disk, targets);
    let (env, client) = (core.env(), Rc::new(Counter::default()));
    let length = SectorCount(sectors);
    let buf = env.buf(length.to_bytes() as usize);
    let filling = USED_SECTORS / sectors;
    let began = std::time::Instant::now();
    for index in 0..filling + count {
        let all = index * sectors;
        let place = Sector(if kind == Kind::Insert { all } else { all % USED_SECTORS });
        let segs = Segs::of(&buf, 0, length.to_bytes() as usize);
        let range = SectorRange::new(place, length);
        let write = kind != Kind::Read || index < filling;
        let io = if write { Io::write(range, segs) } else { Io::read(range, segs) };
        env.start(&disk, io, client.clone(), index);
        if index + 1 == filling {
            // Writes that must wait, as the first ones to a snapshot do, end here.
            while core.turn(Time(0), Vec::new()) {}
        }
    }
    while core.turn(Time(0), Vec::new()) {}
    assert_eq!(client.0.get(), filling + count, "all of them complete");
    let nanoseconds = began.elapsed().as_nanos() as f64 / (filling + count) as f64;
    println!("{name}: {nanoseconds:.1} ns per request");
}
