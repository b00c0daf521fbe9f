//! How soon dirty data of bcache goes home, in virtual time, on a simulated spindle: by the
//! policies of the background writeback, and by drains.

mod bcache_lab;

use std::sync::Arc;
use std::time::Duration;

use bcache_lab::several::{ROOMY, Shape};
use cairn_block::{
    Disk, Io, MappedDevice, Registry, Sector, SectorCount, SectorRange, Table, TableContext,
    TableLine, TargetTypes,
};
use cairn_sim::{DriveModel, DriveOptions, SimWorld, Spindle};

/// Of the backing device: 64 GiB.
const SECTORS: u64 = 1 << 27;
/// A zone of the planner.
const ZONE: u64 = 1 << 16;
/// Dirty data: zones with runs of 4 MiB, and extents of 4 KiB anywhere.
const DENSE: u64 = 12;
const DENSE_SECTORS: u64 = 8192;
const SPARSE: usize = 6000;

/// What the backing device is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drive {
    Arm,
    Chip,
}

/// A volume behind a cache, in a world of its own.
struct Lab {
    world: SimWorld,
    volume: Arc<MappedDevice>,
}

impl Lab {
    /// Over this drive. Nothing is written back yet.
    fn new(drive: Drive) -> Lab {
        let world = SimWorld::new(11, 1);
        let shape = Shape { bucket_sectors: 1024, buckets: 320, block_sectors: 8, ..ROOMY };
        for (options, mut image) in shape.drives() {
            let is_backing = options.name == "backing";
            if is_backing {
                image.resize(SectorCount(SECTORS));
            }
            let has_arm = is_backing && drive == Drive::Arm;
            let spindle = has_arm.then_some(Spindle::NEARLINE);
            // Of a drive with an arm, the time of a flush.
            let model = if has_arm { DriveModel::SLOW } else { DriveModel::FAST };
            world.add_drive(DriveOptions { spindle, model, ..options }, image);
        }
        let registry = Arc::new(Registry::new(Box::new(world.opener())));
        let volume = registry.create_volume("volume").expect("a name");
        let lab = Lab { world, volume };
        let volume = lab.volume.clone();
        lab.world.block_on(0, |env| async move {
            let table = format!("0 {} bcache backing cache 0", SECTORS - 16);
            let lines = TableLine::parse_all(&table).expect("a table");
            let types = TargetTypes::new(cairn_targets::types());
            let context = TableContext { types: &types, registry: &registry, read_only: false };
            let table = Table::build(&env, &volume, &lines, context).await.expect("it fits");
            volume.load(table).await;
            volume.resume(&env).await.expect("the drives are well").whole().expect("no loss");
        });
        for setting in [
            "writeback_running 0",
            "sequential_cutoff 0",
            "cutoff_writeback 70",
            "idle_max_writeback_rate 0",
            "writeback_rate_update_seconds 60",
            "writeback_rate 2147483647",
        ] {
            lab.set(setting);
        }
        lab
    }

    fn set(&self, setting: &str) {
        let words = format!("set {setting}");
        let target = self.volume.live_table().expect("a table").lines()[0].target.clone();
        self.world.block_on(0, |env| async move {
            let words: Vec<&str> = words.split(' ').collect();
            target.message(&env, &words).await.expect("an attribute");
        });
    }

    /// How long a drain takes.
    #[cfg(feature = "canary")]
    fn drain(&self) -> Duration {
        let (volume, began) = (self.volume.clone(), self.world.now());
        self.world.block_on(0, |env| async move { volume.drain_caches(&env).await.expect("all") });
        self.world.now().since(began)
    }

    /// Writes ranges of sectors.
    fn write(&self, ranges: Vec<(u64, u64)>) {
        let disk: Arc<dyn Disk> = self.volume.clone();
        self.world.block_on(0, |env| async move {
            for (start, count) in ranges {
                let range = SectorRange::new(Sector(start), SectorCount(count));
                let segs = env.segs(range.count);
                segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(7));
                env.io(&disk, Io::write(range, segs)).await.expect("the drives are well");
            }
        });
    }

    fn dirty(&self) -> u64 {
        let target = self.volume.live_table().expect("a table").lines()[0].target.clone();
        let status = target.status();
        status.split(' ').nth(1).expect("dirty_data").parse().expect("a number")
    }

    /// How long it takes until so many sectors are dirty.
    fn until_dirty(&self, sectors: u64) -> Duration {
        let began = self.world.now();
        self.world.run_until(|| self.dirty() <= sectors);
        self.world.now().since(began)
    }

    fn end(self) {
        let volume = self.volume.clone();
        self.world.block_on(0, |env| async move { volume.remove(&env).await.expect("idle") });
    }
}

fn sparse(count: usize) -> Vec<(u64, u64)> {
    let mut rng = fastrand::Rng::with_seed(1);
    (0..count).map(|_| (rng.u64(..SECTORS / 8 - 8) * 8, 8)).collect()
}

fn zoned() -> Vec<(u64, u64)> {
    let distance = SECTORS / ZONE / DENSE;
    let dense = (0..DENSE).map(|number| number * distance * ZONE + ZONE / 2);
    let pieces = |start: u64| (0..DENSE_SECTORS / 128).map(move |at| (start + at * 128, 128));
    dense.flat_map(pieces).chain(sparse(SPARSE)).collect()
}

/// Extents of 4 KiB: one in each of 1024 zones, two in each of 512, and so on up to 256 in 4.
fn graded() -> Vec<(u64, u64)> {
    let mut rng = fastrand::Rng::with_seed(5);
    let mut zones: Vec<u64> = (0..SECTORS / ZONE - 1).collect();
    rng.shuffle(&mut zones);
    let counts = (0..=8).flat_map(|grade| std::iter::repeat_n(1_u64 << grade, 1024 >> grade));
    let mut extents = Vec::new();
    for (count, zone) in counts.zip(zones) {
        extents.extend((0..count).map(|_| (zone * ZONE + rng.u64(..ZONE / 8) * 8, 8)));
    }
    extents
}

/// A lab with this dirty data, and how much that is.
fn dirty_lab(drive: Drive, ranges: Vec<(u64, u64)>, policy: &str, percent: u64) -> (Lab, u64) {
    let lab = Lab::new(drive);
    lab.write(ranges);
    lab.set(&format!("writeback_percent {percent}"));
    lab.set(&format!("writeback_policy {policy}"));
    let dirty = lab.dirty();
    (lab, dirty)
}

/// The time in which a policy brings home half of this data, or all.
fn time_of(drive: Drive, ranges: Vec<(u64, u64)>, policy: &str, is_half: bool) -> Duration {
    let percent = if is_half { 1 } else { 0 };
    let (lab, dirty) = dirty_lab(drive, ranges, policy, percent);
    lab.set("writeback_running 1");
    let took = lab.until_dirty(if is_half { dirty / 2 } else { 0 });
    lab.end();
    took
}

#[test]
fn sweep_meets_a_target_long_before_sorted_where_some_zones_have_more_dirty_data_for_their_time() {
    // The parts of the times of others that the sweep may take.
    for (name, ranges, share) in [("zoned", zoned(), 0.25), ("graded", graded(), 1.0)] {
        let [sweep, sorted, completion] = ["sweep", "sorted", "completion"]
            .map(|it| time_of(Drive::Arm, ranges.clone(), it, true));
        println!("{name}: half is home after {sweep:?} by sweep, {sorted:?} sorted");
        for (policy, other) in [("sorted", sorted), ("completion", completion)] {
            assert!(sweep <= other.mul_f64(share), "{name}: {sweep:?}, {other:?} by {policy}");
        }
    }
}

#[test]
fn all_goes_home_by_sweep_no_later_than_sorted() {
    for (name, ranges) in [("zoned", zoned()), ("scattered", sparse(SPARSE))] {
        let [sweep, sorted] =
            ["sweep", "sorted"].map(|it| time_of(Drive::Arm, ranges.clone(), it, false));
        println!("{name}: all is home after {sweep:?} by sweep, {sorted:?} sorted");
        assert!(sweep <= sorted.mul_f64(1.01), "{name}: {sweep:?} by sweep, {sorted:?} sorted");
    }
}

/// The time of all once the prices of the drive are known.
fn second_time_of(drive: Drive, ranges: Vec<(u64, u64)>, policy: &str) -> Duration {
    let (lab, _) = dirty_lab(drive, ranges.clone(), policy, 0);
    lab.set("writeback_running 1");
    lab.until_dirty(0);
    lab.set("writeback_running 0");
    lab.write(ranges);
    lab.set("writeback_running 1");
    let took = lab.until_dirty(0);
    lab.end();
    took
}

/// C2.5.
#[test]
fn drive_without_an_arm_loses_nothing_to_the_order() {
    for (name, ranges) in [("zoned", zoned()), ("scattered", sparse(SPARSE))] {
        let [sweep, completion] = ["sweep", "completion"]
            .map(|policy| second_time_of(Drive::Chip, ranges.clone(), policy));
        println!("{name}, without an arm: {sweep:?} by sweep, {completion:?} by completion");
        assert!(sweep <= completion.mul_f64(1.01), "{name}: {sweep:?}, {completion:?}");
    }
}

#[test]
fn zone_written_during_a_long_pass_goes_home_before_zones_that_bring_less() {
    let lab = Lab::new(Drive::Arm);
    // 12 800 sectors in the first half, at 100 sectors in a second.
    lab.write((0..1600).map(|at| (at * (SECTORS / 3200) / 8 * 8, 8)).collect());
    for setting in [
        "writeback_percent 1",
        "writeback_rate 100",
        "writeback_rate_minimum 100",
        "writeback_rate_p_term_inverse 1000000",
        "writeback_running 1",
    ] {
        lab.set(setting);
    }
    lab.world.run_for(Duration::from_secs(5));
    let late = SECTORS - 10 * ZONE;
    lab.write(vec![(late, 256), (late + 256, 256)]);
    let is_home = || lab.world.drive("backing").visible().sector(Sector(16 + late))[0] == 7;
    lab.world.run_for(Duration::from_secs(20));
    assert!(!is_home() && lab.dirty() > 9000, "{} are dirty", lab.dirty());
    // The planner is filled again after a minute, and a batch takes ten seconds.
    lab.world.run_for(Duration::from_secs(65));
    assert!(is_home() && lab.dirty() > 2000, "{} are dirty", lab.dirty());
    lab.end();
}

/// The bar of issue 14: the order of kernels before 2018, without the flushes that make it safe.
#[cfg(feature = "canary")]
#[test]
fn drain_is_not_slower_than_the_kernels_order_without_a_flush() {
    use cairn_targets::bcache::canary::{Bug, plant};
    for (name, ranges) in [("zoned", zoned()), ("scattered", sparse(SPARSE))] {
        let (lab, _) = dirty_lab(Drive::Arm, ranges.clone(), "sweep", 10);
        let drain = lab.drain();
        assert_eq!(lab.dirty(), 0);
        lab.end();
        plant(Some(Bug::CleanBeforeFlush));
        let unprotected = time_of(Drive::Arm, ranges, "completion", false);
        plant(None);
        println!("{name}: a drain takes {drain:?}, {unprotected:?} unprotected by completion");
        assert!(drain <= unprotected, "{name}: {drain:?}, {unprotected:?} unprotected");
    }
}
