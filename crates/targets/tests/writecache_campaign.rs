//! The crash campaign of writecache: power cuts at seeded writes, in normal service, during
//! commits, writeback, discards and recovery, over drives that lose, reorder and tear; with
//! messages, suspends and other tables under the workload, and with drives that fail, and lose
//! what a failed flush was to make durable. Lives end by kills of the process, too.
//!
//! `CAIRN_CUTS=10000 cargo test -p cairn-targets --release --test writecache_campaign` is the
//! long run. With `--features canary` known ordering bugs are planted: each must be caught.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    Disk, Env, LocalFuture, MessageError, Registry, Sector, SectorCount, Table, TableContext,
    TableLine, TargetTypes,
};
use cairn_format::writecache::check::{Limits, Severity, check};
use cairn_format::writecache::{Entry, Geometry, SUPERBLOCK_BYTES, Superblock};
use cairn_sim::campaign::{
    Campaign, Images, Opened, Scenario, open_table, plant_failures, resume_or_end,
};
use cairn_sim::{DriveOptions, Fault, Image, OpSet, SimDrive, SimWorld, Workload};

/// What varies between cuts: block sizes, options, the size of the cache.
#[derive(Clone, Copy)]
struct Shape {
    block: u32,
    start_sector: u64,
    options: &'static str,
    cache_kib: u64,
    origin_kib: u64,
    /// Bytes of a logical block of both drives.
    logical: u32,
}

const SHAPES: &[Shape] = &[
    // Small enough to fill up, to write around and to write back all the time.
    Shape {
        block: 512,
        start_sector: 0,
        options: "2 pause_writeback 0",
        cache_kib: 24,
        origin_kib: 64,
        logical: 512,
    },
    Shape {
        block: 1024,
        start_sector: 3,
        options: "2 pause_writeback 0",
        cache_kib: 40,
        origin_kib: 64,
        logical: 512,
    },
    Shape {
        block: 4096,
        start_sector: 0,
        options: "2 pause_writeback 0",
        cache_kib: 96,
        origin_kib: 192,
        logical: 512,
    },
    Shape {
        block: 4096,
        start_sector: 8,
        options: "2 pause_writeback 0",
        cache_kib: 100,
        origin_kib: 192,
        logical: 4096,
    },
    // Large enough to hold everything: commits only.
    Shape {
        block: 512,
        start_sector: 0,
        options: "0",
        cache_kib: 128,
        origin_kib: 64,
        logical: 512,
    },
    // Frequent commits by count and by time; ages.
    Shape {
        block: 512,
        start_sector: 0,
        options: "8 autocommit_blocks 5 autocommit_time 2 max_age 20 pause_writeback 0",
        cache_kib: 64,
        origin_kib: 64,
        logical: 512,
    },
    Shape {
        block: 512,
        start_sector: 0,
        options: "3 cleaner pause_writeback 0",
        cache_kib: 32,
        origin_kib: 64,
        logical: 512,
    },
];

/// Which drives fail now and then, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failing {
    Nothing,
    /// The origin, which a cache survives; sometimes the cache device too.
    Origin,
    /// Both in every way, also while the volume is opened.
    Everything,
}

struct WriteCache {
    shapes: &'static [Shape],
    failing: Failing,
    /// What the volume's devices were opened by.
    registry: RefCell<Option<Arc<Registry>>>,
}

impl WriteCache {
    fn new(failing: Failing) -> WriteCache {
        WriteCache { shapes: SHAPES, failing, registry: RefCell::default() }
    }

    /// Loads tables with other options while requests come.
    fn start_reloading(&self, world: &SimWorld, disk: &Arc<dyn Disk>) {
        let shape = SHAPES[(world.drive("shape").sectors().0 / 2 - 1) as usize];
        let registry = self.registry.borrow().clone().expect("the volume was opened");
        let (env, drives) = (world.env(2).clone(), world.all_drives());
        let may_fail = self.failing != Failing::Nothing;
        world.env(2).spawn(reload(env, registry, disk.clone(), shape, drives, may_fail));
    }

    /// The shape of a cut is told by the sizes of its drives.
    fn shape(&self, rng: &mut fastrand::Rng) -> Shape {
        self.shapes[rng.usize(..self.shapes.len())]
    }
}

impl Shape {
    /// A table line for this shape's devices with some shape's options.
    fn table(&self, options: &str) -> String {
        let words: Vec<&str> = options.splitn(2, ' ').collect();
        let count: u64 = words[0].parse().expect("a count");
        let options = words.get(1).copied().unwrap_or("");
        let (sectors, block) = (self.origin_kib * 2, self.block);
        format!(
            "0 {sectors} writecache s origin cache {block} {} start_sector {} {options}",
            count + 2,
            self.start_sector
        )
    }
}

/// Sends a message to the live target after a while. One that meets a suspended device, or a
/// device that fails, is refused.
fn send_message(world: &SimWorld, disk: &Arc<dyn Disk>, word: &'static str, delay: Duration) {
    let (env, disk) = (world.env(0).clone(), disk.clone());
    world.env(0).spawn(async move {
        env.sleep(delay).await;
        let device = disk.mapped().expect("a volume");
        match device.message(&env, Sector(0), &[word]).await {
            Ok(_) | Err(MessageError::Busy(_) | MessageError::Failed(_)) => (),
            Err(refused) => panic!("{word}: {refused}"),
        }
    });
}

async fn reload(
    env: Env,
    registry: Arc<Registry>,
    disk: Arc<dyn Disk>,
    shape: Shape,
    drives: Vec<Arc<SimDrive>>,
    may_fail: bool,
) {
    let device = disk.mapped().expect("a volume");
    let types = TargetTypes::new(cairn_targets::types());
    for _ in 0..3 {
        env.sleep(Duration::from_micros(env.random_below(8000))).await;
        let options = SHAPES[env.random_below(SHAPES.len() as u64) as usize].options;
        let lines = TableLine::parse_all(&shape.table(options)).expect("a table");
        let context = TableContext { types: &types, registry: &registry, read_only: false };
        match Table::build(&env, device, &lines, context).await {
            Ok(table) => _ = device.load(table).await,
            Err(refused) => assert!(may_fail, "no drive fails: {refused}"),
        }
        resume_or_end(&env, device, &drives, may_fail).await;
    }
}

/// Makes drives fail now and then; the target then answers with errors of its own.
fn plant_errors(world: &SimWorld, rng: &mut fastrand::Rng) {
    let origin = world.drive("origin");
    let often = [5, 50, 300][rng.usize(..3)];
    origin.faults().add(Fault::error(OpSet::WRITES).per_mille(often));
    let flushes = [Fault::error(OpSet::FLUSHES), Fault::losing_flushes()][rng.usize(..2)];
    origin.faults().add(flushes.per_mille(often));
    if rng.u8(..4) == 0 {
        origin.faults().add(Fault::error(OpSet::READS).per_mille(often));
    }
    if rng.bool() {
        let ops = [OpSet::WRITES, OpSet::FLUSHES, OpSet::READS][rng.usize(..3)];
        world.drive("cache").faults().add(Fault::error(ops).per_mille(10));
    }
}

fn drive(name: &str, kib: u64, logical_block: u32) -> (DriveOptions, Image) {
    let options = DriveOptions { logical_block, ..DriveOptions::named(name) };
    (options, Image::new(SectorCount(kib * 2)))
}

impl Scenario for WriteCache {
    fn drives(&self, rng: &mut fastrand::Rng) -> Vec<(DriveOptions, Image)> {
        let shape = self.shape(rng);
        let index = SHAPES.iter().position(|other| {
            other.options == shape.options
                && other.block == shape.block
                && other.cache_kib == shape.cache_kib
        });
        let index = index.expect("a shape of the list") as u64;
        // The length of a third drive carries the shape to `open`.
        vec![
            drive("origin", shape.origin_kib, shape.logical),
            drive("cache", shape.cache_kib, shape.logical),
            drive("shape", index + 1, 512),
        ]
    }

    fn open(&self, env: Env, registry: Arc<Registry>) -> LocalFuture<'static, Opened> {
        *self.registry.borrow_mut() = Some(registry.clone());
        Box::pin(async move {
            let shape = SHAPES[(registry.open("shape", false)?.sectors().0 / 2 - 1) as usize];
            let table = shape.table(shape.options);
            let types = TargetTypes::new(cairn_targets::types());
            Ok(vec![open_table(&env, &registry, &types, "volume", &table).await?])
        })
    }

    fn check_metadata(&self, images: &Images) -> Result<(), String> {
        let shape = SHAPES[(images["shape"].sectors().0 / 2 - 1) as usize];
        let cache = &images["cache"];
        let mut area = vec![0; (cache.sectors().0 - shape.start_sector) as usize * 512];
        cache.read(Sector(shape.start_sector), &mut area);
        // A crash while formatting leaves a blank device.
        if area[..8] == [0; 8] {
            return Ok(());
        }
        let superblock = Superblock::parse(&area).map_err(|error| error.to_string())?;
        let geometry = Geometry::of_superblock(&superblock, area.len() as u64)
            .map_err(|error| error.to_string())?;
        let entries = &area[SUPERBLOCK_BYTES..geometry.metadata_bytes() as usize];
        let entries = Entry::iter(entries).take(geometry.n_blocks() as usize);
        let limits = Limits {
            area_bytes: Some(area.len() as u64),
            origin_sectors: Some(shape.origin_kib * 2),
            target_sectors: Some(shape.origin_kib * 2),
        };
        let report = check(&area, entries, limits);
        match report.severity {
            Severity::Damaged | Severity::Repairable => Err(format!("{:?}", report.findings)),
            _ => Ok(()),
        }
    }

    fn workload(&self, rng: &mut fastrand::Rng) -> Workload {
        let (seed, ops) = (rng.u64(..), rng.u64(..400));
        Workload::mixed(seed, ops)
    }

    fn suspends(&self) -> bool {
        true
    }

    /// A cache whose commit failed goes on, when a table is loaded, with what is durable.
    fn rolls_back(&self) -> bool {
        self.failing != Failing::Nothing
    }

    fn fails_at_start(&self) -> bool {
        self.failing == Failing::Everything
    }

    fn trouble(&self, world: &SimWorld, disks: &[Arc<dyn Disk>], rng: &mut fastrand::Rng) -> bool {
        let disk = &disks[0];
        let delay = Duration::from_micros(rng.u64(..20_000));
        match rng.u8(..4) {
            0 => send_message(world, disk, "flush", delay),
            1 => send_message(world, disk, "flush_on_suspend", delay),
            _ => (),
        }
        let drives = [world.drive("origin"), world.drive("cache")];
        match self.failing {
            Failing::Nothing => (),
            Failing::Origin => plant_errors(world, rng),
            Failing::Everything => plant_failures(&drives, [5, 50][rng.usize(..2)], None, rng),
        }
        if rng.u8(..4) == 0 {
            self.start_reloading(world, disk);
        }
        self.failing != Failing::Nothing
    }
}

/// The arguments of `cargo test` that run one of the tests.
fn replay(test: &str) -> String {
    format!("-p cairn-targets --test writecache_campaign -- {test}")
}

#[test]
fn nothing_acknowledged_is_lost_by_a_power_cut() {
    let replay = replay("nothing_acknowledged_is_lost_by_a_power_cut");
    Campaign::new(&WriteCache::new(Failing::Nothing), &replay).run();
}

#[test]
fn nothing_acknowledged_is_lost_when_drives_fail_too() {
    let replay = replay("nothing_acknowledged_is_lost_when_drives_fail_too");
    Campaign::new(&WriteCache::new(Failing::Origin), &replay).run();
}

#[test]
fn losses_of_any_drive_are_told_to_each_client() {
    let replay = replay("losses_of_any_drive_are_told_to_each_client");
    Campaign::new(&WriteCache::new(Failing::Everything), &replay).run();
}

#[cfg(feature = "canary")]
mod canaries {
    use super::{Campaign, Failing, WriteCache};
    use cairn_block::mutants::skip;
    use cairn_targets::writecache::canary::{Bug, plant};

    fn caught(bug: Bug) {
        plant(Some(bug));
        let scenario = WriteCache::new(Failing::Nothing);
        let (cut, text) = Campaign::new(&scenario, "the canary").cuts(2000).expect_caught();
        plant(None);
        eprintln!("{bug:?}: caught by cut {cut}: {text}");
    }

    fn taken_out(name: &'static str, failing: Failing) {
        skip(Some(name));
        let scenario = WriteCache::new(failing);
        let (cut, text) = Campaign::new(&scenario, "the canary").cuts(10_000).expect_caught();
        skip(None);
        eprintln!("without {name:?}: caught by life {cut}: {text}");
    }

    #[test]
    fn relying_on_what_a_killed_process_left_in_a_drive_is_caught() {
        taken_out("writecache: flush at opening", Failing::Nothing);
    }

    #[test]
    fn ignoring_the_failure_count_is_caught() {
        taken_out("writecache: failure count of a commit", Failing::Everything);
    }

    #[test]
    fn a_client_who_is_not_told_of_a_loss_is_caught() {
        taken_out("client: failure count at the end of a flush", Failing::Everything);
    }

    #[test]
    fn a_superblock_before_its_flush_is_caught() {
        caught(Bug::SuperblockBeforeFlush);
    }

    #[test]
    fn freeing_before_the_origin_is_durable_is_caught() {
        caught(Bug::FreeBeforeOriginFlush);
    }

    #[test]
    fn reuse_before_the_free_entry_is_durable_is_caught() {
        caught(Bug::ReuseBeforeDurable);
    }
}
