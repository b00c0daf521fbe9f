//! The crash campaign of bcache in service: power cuts at seeded writes, of the cache device and
//! the backing device independently, in group commits, checkpoints, drains and suspends, over
//! drives that lose, reorder and tear, and with drives that fail. Lives end by kills of the
//! process, too. `bcache_drain.rs` is the campaign of sets that are only drained.
//!
//! `CAIRN_CUTS=10000 cargo test -p cairn-targets --release --test bcache_campaign` is the long run.
//! With `--features canary` known ordering bugs are planted: each must be caught.

mod bcache_lab;

use std::rc::Rc;
use std::sync::Arc;

use bcache_lab::judge::Devices;
use bcache_lab::make::backing_of;
use cairn_block::{LocalFuture, Sector, TargetType};
use cairn_format::bcache::build::Builder;
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    CacheMode, CacheSuperblock, NewCache, Replacement, SECTOR_BYTES, SUPERBLOCK_SECTOR, Uuid,
};
use cairn_sim::campaign::{Campaign, Generation, Images, Opened, Scenario, Server, plant_failures};
use cairn_sim::{DriveOptions, Image, Workload};

/// What varies between lives.
#[derive(Clone, Copy, Debug)]
struct Shape {
    block_sectors: u16,
    bucket_sectors: u64,
    buckets: u64,
    /// Sectors of a volume.
    sectors: u64,
    /// Volumes of the set: the first two have backing devices, the third lies in the cache alone.
    volumes: usize,
    mode: CacheMode,
}

/// The volumes of a set, with the names of their backing devices.
const VOLUMES: [(&str, &str); 3] = [("volume", "backing"), ("second", "backing2"), ("flash", "-")];

/// Holds all data several times.
const ROOMY: Shape = Shape {
    block_sectors: 1,
    bucket_sectors: 16,
    buckets: 400,
    sectors: 512,
    volumes: 1,
    mode: CacheMode::Writeback,
};

/// Smaller than the volume: always short of buckets.
const TIGHT: Shape = Shape { buckets: 150, sectors: 3000, ..ROOMY };

const SHAPES: &[Shape] = &[
    ROOMY,
    Shape { block_sectors: 8, bucket_sectors: 32, ..ROOMY },
    Shape { bucket_sectors: 128, ..ROOMY },
    TIGHT,
    Shape { bucket_sectors: 8, ..TIGHT },
    Shape { block_sectors: 8, bucket_sectors: 64, sectors: 8000, ..TIGHT },
    Shape { volumes: 2, ..ROOMY },
    Shape { volumes: 3, ..ROOMY },
    Shape { volumes: 2, sectors: 1500, ..TIGHT },
    Shape { volumes: 3, sectors: 600, ..TIGHT },
];

const MODES: &[CacheMode] = &[
    CacheMode::Writeback,
    CacheMode::Writeback,
    CacheMode::Writethrough,
    CacheMode::Writearound,
    CacheMode::None,
];

/// Bytes from which on a stream bypasses the cache: never, each request, streams of some requests,
/// and the default.
const CUTOFFS: &[&str] = &["0", "512", "32768", "4194304"];

/// Settings of writeback: how much may be dirty, how long data waits, and which writes become dirty
/// data.
const WRITEBACKS: &[[&str; 2]] = &[
    ["cutoff_writeback", "0"],
    ["cutoff_writeback", "70"],
    ["cutoff_writeback_sync", "0"],
    ["cutoff_writeback_sync", "90"],
    ["writeback_percent", "0"],
    ["writeback_percent", "1"],
    ["writeback_percent", "40"],
    ["writeback_delay", "0"],
    ["writeback_delay", "30"],
    ["writeback_rate", "1"],
    ["writeback_rate", "1000000"],
    ["writeback_running", "0"],
    ["writeback_running", "1"],
    ["writeback_policy", "completion"],
    ["writeback_policy", "strict"],
    ["writeback_policy", "sorted"],
    ["writeback_policy", "sweep"],
];

/// Which drives fail now and then, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failing {
    Nothing,
    Everything,
}

struct Bcache {
    failing: Failing,
    shapes: &'static [Shape],
    modes: &'static [CacheMode],
}

impl Shape {
    /// The table of a volume.
    fn table(&self, index: usize) -> String {
        let (sectors, backing) = (self.sectors, VOLUMES[index].1);
        match backing {
            "-" => format!("0 {sectors} bcache - cache 2 flash {}", uuid_of(index)),
            _ => format!("0 {sectors} bcache {backing} cache 0"),
        }
    }

    /// The volumes that have a backing device.
    fn cached(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.volumes).filter(|index| VOLUMES[*index].1 != "-")
    }

    /// A set that nothing was written to: the cache device, and the backing devices.
    fn drives(&self) -> Vec<(DriveOptions, Image)> {
        let superblock = CacheSuperblock::fresh(&NewCache {
            uuid: Uuid([1; 16]),
            set_uuid: Uuid([2; 16]),
            block_sectors: self.block_sectors,
            bucket_sectors: self.bucket_sectors,
            device_sectors: self.buckets * self.bucket_sectors,
            replacement: Replacement::Lru,
            discard: false,
        });
        let superblock = superblock.expect("legal");
        let sectors = self.buckets * self.bucket_sectors;
        let mut bytes = vec![0; sectors as usize * SECTOR_BYTES];
        let builder = Builder::new(&superblock, 11, &mut bytes);
        let entry = |index: usize| {
            let is_flash = VOLUMES[index].1 == "-";
            let sectors = if is_flash { self.sectors } else { 0 };
            let flags = u32::from(is_flash);
            UuidEntry { uuid: uuid_of(index), flags, sectors, ..UuidEntry::default() }
        };
        let entries: Vec<UuidEntry> = (0..self.volumes).map(entry).collect();
        let superblock = builder.finish(&entries).expect("there is room");
        let mut cache = Image::of_bytes(&bytes);
        cache.write(Sector(SUPERBLOCK_SECTOR), &superblock.encode());
        let data = vec![0; self.sectors as usize * SECTOR_BYTES];
        let backing = |index: usize| {
            let bytes = backing_of(uuid_of(index), self.block_sectors, &data, self.mode);
            (DriveOptions::named(VOLUMES[index].1), Image::of_bytes(&bytes))
        };
        let cache = (DriveOptions::named("cache"), cache);
        [cache].into_iter().chain(self.cached().map(backing)).collect()
    }
}

fn uuid_of(index: usize) -> Uuid {
    Uuid([3 + index as u8; 16])
}

impl Scenario for Bcache {
    type Case = Shape;

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        cairn_targets::types()
    }

    fn begin(&self, rng: &mut fastrand::Rng) -> (Shape, Vec<(DriveOptions, Image)>) {
        let mode = self.modes[rng.usize(..self.modes.len())];
        let shape = Shape { mode, ..self.shapes[rng.usize(..self.shapes.len())] };
        (shape, shape.drives())
    }

    fn open(&self, shape: Rc<Shape>, server: Server) -> LocalFuture<'static, Opened> {
        Box::pin(async move {
            let mut opened = Vec::new();
            for (index, (name, _)) in VOLUMES.iter().enumerate().take(shape.volumes) {
                opened.push(server.create(name, &shape.table(index)).await?);
            }
            Ok(opened)
        })
    }

    fn check_metadata(&self, shape: &Shape, images: &Images) -> Result<(), String> {
        let cache = images["cache"].to_vec();
        let backings: Vec<Vec<u8>> =
            shape.cached().map(|index| images[VOLUMES[index].1].to_vec()).collect();
        Devices { cache: &cache, backings: &backings }.judge().map(drop)
    }

    fn workload(&self, _shape: &Shape, rng: &mut fastrand::Rng) -> Workload {
        let (seed, ops) = (rng.u64(..), rng.u64(..400));
        Workload::mixed(seed, ops)
    }

    fn suspends(&self) -> bool {
        true
    }

    fn rolls_back(&self) -> bool {
        self.failing != Failing::Nothing
    }

    fn fails_at_start(&self) -> bool {
        self.failing == Failing::Everything
    }

    fn trouble(&self, shape: &Rc<Shape>, generation: &Generation, rng: &mut fastrand::Rng) -> bool {
        let world = generation.world;
        let backing = shape.cached().map(|index| VOLUMES[index].1);
        let drives: Vec<_> =
            ["cache"].into_iter().chain(backing).map(|it| world.drive(it)).collect();
        if self.failing == Failing::Everything {
            plant_failures(&drives, [5, 50][rng.usize(..2)], None, rng);
        }
        let (modes, volume) = (self.modes, VOLUMES[rng.usize(..shape.cached().count())].0);
        if rng.bool() {
            generation.start(2, async move |server| {
                for _ in 0..4 {
                    server.pause(6000).await;
                    let mode = modes[server.env.random_below(modes.len() as u64) as usize];
                    server.message(volume, &["set", "cache_mode", mode.word()]).await;
                    let cutoff = CUTOFFS[server.env.random_below(CUTOFFS.len() as u64) as usize];
                    server.message(volume, &["set", "sequential_cutoff", cutoff]).await;
                    let setting = server.env.random_below(WRITEBACKS.len() as u64) as usize;
                    let [name, value] = WRITEBACKS[setting];
                    server.message(volume, &["set", name, value]).await;
                }
            });
        }
        if rng.bool() {
            generation.start(0, async move |server| {
                for _ in 0..3 {
                    server.pause(8000).await;
                    // Drives fail, or a suspend ends it.
                    let _ = server.volume(volume).drain_caches(&server.env).await;
                }
            });
        }
        self.failing != Failing::Nothing
    }
}

fn campaign(failing: Failing) -> Campaign<Bcache> {
    Campaign::new(Bcache { failing, shapes: SHAPES, modes: MODES })
}

#[test]
fn nothing_acknowledged_is_lost_by_a_power_cut() {
    campaign(Failing::Nothing).run();
}

#[test]
fn losses_of_any_drive_are_told_to_each_client() {
    campaign(Failing::Everything).run();
}

#[cfg(feature = "canary")]
mod canaries {
    use cairn_targets::bcache::canary::{Bug, plant};

    use super::{Bcache, CacheMode, Campaign, Failing, MODES, ROOMY, SHAPES, Shape, TIGHT};

    /// Lives in which a planted bug must be found.
    const CUTS: u64 = 20_000;

    fn is_caught(bug: Bug) {
        is_caught_in(bug, SHAPES, MODES);
    }

    fn is_caught_in(bug: Bug, shapes: &'static [Shape], modes: &'static [CacheMode]) {
        plant(Some(bug));
        let scenario = Bcache { failing: Failing::Nothing, shapes, modes };
        Campaign::new(scenario).cuts(CUTS).expect_caught(&format!("{bug:?}"));
        plant(None);
    }

    #[test]
    fn copies_of_data_whose_key_is_not_durable_are_caught() {
        is_caught_in(Bug::CopyBeforeCommit, &[TIGHT], &[CacheMode::Writeback]);
    }

    #[test]
    fn writes_around_the_cache_over_dirty_data_are_caught() {
        is_caught(Bug::HoleOverDirty);
    }

    #[test]
    fn writes_around_the_cache_where_a_clean_key_may_come_back_are_caught() {
        is_caught_in(Bug::GhostsForgotten, &[TIGHT], &[CacheMode::Writethrough]);
    }

    #[test]
    fn clean_data_that_a_power_cut_takes_back_is_caught() {
        is_caught_in(Bug::FillBeforeFlush, &[ROOMY], &[CacheMode::Writethrough]);
    }

    #[test]
    fn clean_data_older_than_a_write_is_caught() {
        is_caught(Bug::FillOverWrite);
    }

    #[test]
    fn buckets_that_are_reused_before_a_checkpoint_are_caught() {
        is_caught(Bug::ReuseBeforeCheckpoint);
    }
}
