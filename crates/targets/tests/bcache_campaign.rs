//! The crash campaign of bcache in service: power cuts at seeded writes, of the cache device and
//! the backing device independently, in group commits, checkpoints, drains and suspends, over
//! drives that lose, reorder and tear, and with drives that fail. Lives end by kills of the
//! process, too, which lose nothing that was acknowledged. Before a start a kernel may have used
//! the set, so that clean data of the cache differs from the backing device. Backing devices leave
//! their set, serve alone and join it again. The server may keep maps of dirty zones; then the
//! cache is thrown away after each end, and a forced run must name all that is lost.
//! `bcache_drain.rs` is the campaign of sets that are only drained, `bcache_life.rs` that of
//! attaches.
//!
//! `CAIRN_CUTS=10000 cargo test -p cairn-targets --release --test bcache_campaign` is the long run.
//! With `--features canary` known ordering bugs are planted: each must be caught.

mod bcache_lab;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bcache_lab::Cache;
use bcache_lab::forced::{Look, judge};
use bcache_lab::judge::{Devices, superblock_of_backing};
use bcache_lab::several::{DURABLE, MANY_KEYS, MODES, PLAIN, SETTINGS, SHAPES, Shape, VOLUMES};
use bcache_lab::zone_maps::SlowMaps;
use cairn_block::{
    ConfigError, Flags, Io, IoError, LocalFuture, Sector, SectorCount, SectorRange, SuspendMode,
    TargetType,
};
use cairn_format::bcache::{
    CacheMode, Key, SECTOR_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_SECTOR, crc64,
};
use cairn_sim::campaign::{
    Campaign, Generation, Images, Links, Opened, Scenario, Server, plant_failures,
};
use cairn_sim::{DriveOptions, Effect, Fault, Image, OpSet, SimDrive, Workload};
use cairn_targets::args::Device;
use cairn_targets::bcache::Attached;

/// What a refusal says of a backing device that went on without its failed cache.
const LEFT: &str = "set_uuid: found none";

/// Which drives fail now and then, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failing {
    Nothing,
    Everything,
    /// The cache device, from some time on, with operations of a kind.
    Cache,
    /// The first backing device, in the same way.
    Backing,
}

/// How many forced runs said how much.
type Looks = [AtomicU64; 4];

struct Bcache {
    failing: Failing,
    shapes: &'static [Shape],
    modes: &'static [CacheMode],
    /// Of how many starts one comes after a session of a kernel; 0: none.
    foreign: u64,
    /// Backing devices leave their set, are used alone, and join it again.
    moves: bool,
    /// The server keeps maps of dirty zones. When a life ends, devices are forced to run without
    /// their cache.
    zones: Option<&'static Looks>,
}

/// What belongs to one life.
struct Case {
    shape: Shape,
    maps: Option<Arc<SlowMaps>>,
}

impl std::ops::Deref for Case {
    type Target = Shape;

    fn deref(&self) -> &Shape {
        &self.shape
    }
}

/// What a session of a kernel may leave that a power cut ended: the superblock of the cache has
/// another sequence, and clean data of the volumes differs from what the backing device has.
async fn foreign_session(server: &Server, shape: &Shape) -> Result<(), IoError> {
    let env = &server.env;
    let disk = server.registry.open("cache", false).map_err(|_| IoError::IO)?;
    env.io(&disk, Io::flush()).await?;
    let all = env.segs(disk.sectors());
    env.io(&disk, Io::read(SectorRange::new(Sector(0), disk.sectors()), all.clone())).await?;
    let bytes = all.to_vec();
    let Ok(cache) = Cache::try_read(&bytes) else { return Err(IoError::IO) };
    let at = SUPERBLOCK_SECTOR as usize * SECTOR_BYTES;
    let mut superblock = bytes[at..at + SUPERBLOCK_BYTES].to_vec();
    superblock[112..120].copy_from_slice(&(cache.superblock.seq() + 1).to_le_bytes());
    let buckets = cache.superblock.journal_buckets();
    let csum = crc64(&superblock[8..208 + 8 * (buckets.end - buckets.start) as usize]);
    superblock[..8].copy_from_slice(&csum.to_le_bytes());
    let write = |sector: u64, bytes: &[u8]| {
        let count = SectorCount::of_bytes(bytes.len() as u64);
        let segs = env.segs(count);
        segs.copy_in(0, bytes);
        let range = SectorRange::new(Sector(sector), count);
        env.io(&disk, Io::write(range, segs).with(Flags::FUA))
    };
    write(SUPERBLOCK_SECTOR, &superblock).await?;
    let is_cached =
        |key: &&Key| !key.is_dirty() && shape.cached().any(|it| it as u32 == key.inode());
    for key in cache.extents.iter().filter(is_cached) {
        let pointer = key.cached_at().expect("an extent leads somewhere");
        write(pointer.sector(), &vec![0xee; key.sectors() as usize * SECTOR_BYTES]).await?;
    }
    Ok(())
}

impl Scenario for Bcache {
    type Case = Case;

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        cairn_targets::types()
    }

    fn begin(&self, rng: &mut fastrand::Rng) -> (Case, Vec<(DriveOptions, Image)>) {
        let mode = self.modes[rng.usize(..self.modes.len())];
        let shape = Shape { mode, ..self.shapes[rng.usize(..self.shapes.len())] };
        #[cfg(feature = "canary")]
        {
            use cairn_targets::bcache::canary;
            let is_plain = shape.shortest > 1;
            canary::work_in_pieces((rng.bool() && !is_plain).then_some(8));
            // All leaves stay in memory, none for long, or about half of them.
            let bytes = [None, Some(0), Some(4096)][rng.usize(..3)];
            canary::keep_in_memory(bytes.filter(|_| !is_plain));
        }
        let maps = self.zones.map(|_| Arc::default());
        (Case { shape, maps }, shape.drives())
    }

    fn open(&self, shape: Rc<Case>, server: Server) -> LocalFuture<'static, Opened> {
        let (foreign, moves) = (self.foreign, self.moves);
        Box::pin(async move {
            if let Some(maps) = &shape.maps {
                maps.start(&server.env);
                server.registry.set_zone_maps(maps.clone());
            }
            if foreign > 0 && server.env.random_below(foreign) == 0 {
                foreign_session(&server, &shape).await.expect("no drive fails, and it is sound");
            }
            let mut opened = Vec::new();
            for (index, (name, _)) in VOLUMES.iter().enumerate().take(shape.volumes) {
                let volume = match server.create(name, &table_of(&shape, index, moves)).await {
                    Err(refused) if refused.to_string().contains(LEFT) => {
                        use_without_cache(&server, shape.sectors, index).await?;
                        server.volume(name)
                    }
                    opened => opened?,
                };
                opened.push(volume);
            }
            Ok(opened)
        })
    }

    fn check_metadata(&self, shape: &Case, images: &Images) -> Result<(), String> {
        let cache = images["cache"].to_vec();
        if let (Some(maps), Some(looks)) = (&shape.maps, self.zones) {
            check_zones(maps, looks, shape, images)?;
        }
        if self.foreign > 0 {
            // Clean data may differ until the next start.
            return Cache::try_read(&cache).map(drop);
        }
        let backings: Vec<Vec<u8>> =
            shape.cached().map(|index| images[VOLUMES[index].1].to_vec()).collect();
        // The cache does not count for those that went on without it.
        let backings: Vec<_> = backings.into_iter().filter(|it| is_attached(it)).collect();
        Devices { cache: &cache, backings: &backings }.judge().map(drop)
    }

    fn workload(&self, shape: &Case, rng: &mut fastrand::Rng) -> Workload {
        let (seed, ops) = (rng.u64(..), rng.u64(..shape.ops));
        let (min, max) = (SectorCount(shape.shortest), SectorCount(shape.longest));
        Workload { min, max, ..Workload::mixed(seed, ops) }
    }

    /// A swap of tables is one user's; another one's resume would make its table live.
    fn suspends(&self) -> bool {
        !self.moves
    }

    fn rolls_back(&self) -> bool {
        self.failing != Failing::Nothing
    }

    fn outlives_kills(&self) -> bool {
        true
    }

    fn fails_at_start(&self) -> bool {
        self.failing == Failing::Everything
    }

    fn trouble(&self, shape: &Rc<Case>, generation: &Generation, rng: &mut fastrand::Rng) -> bool {
        let world = generation.world;
        if rng.bool() {
            world.let_work_take_time();
        }
        let backing = shape.cached().map(|index| VOLUMES[index].1);
        let drives: Vec<_> =
            ["cache"].into_iter().chain(backing).map(|it| world.drive(it)).collect();
        if self.failing == Failing::Everything {
            plant_failures(&drives, [5, 50][rng.usize(..2)], None, rng);
            if rng.u8(..3) == 0 {
                let lost = Fault::losing_flushes().per_mille(300);
                drives[1..].iter().for_each(|drive| _ = drive.faults().add(lost));
            }
        }
        if rng.u8(..3) == 0 {
            plant_delays(&drives, rng);
        }
        let broken = match self.failing {
            Failing::Nothing | Failing::Everything => None,
            Failing::Cache => Some(world.drive("cache")),
            Failing::Backing => Some(world.drive(VOLUMES[0].1)),
        };
        if let Some(drive) = broken {
            let kinds = [OpSet::READS, OpSet::WRITES, OpSet::ALL];
            let fault = Fault::error(kinds[rng.usize(..kinds.len())]);
            let fault = fault.per_mille([300, 1000][rng.usize(..2)]);
            generation.start(1, async move |server| {
                server.pause(30_000).await;
                drive.faults().add(fault);
            });
        }
        for index in shape.cached().filter(|_| self.moves) {
            let (shape, drive) = (shape.clone(), world.drive(VOLUMES[index].1));
            generation.start(1, async move |server| {
                for _ in 0..4 {
                    server.pause(8000).await;
                    move_out_and_in(&server, &shape, index, drive.clone()).await;
                }
            });
        }
        let (modes, volume) = (self.modes, VOLUMES[rng.usize(..shape.cached().count())].0);
        if rng.bool() {
            generation.start(2, async move |server| {
                for _ in 0..4 {
                    server.pause(6000).await;
                    if !server.target(volume).is_some_and(|it| it.drains()) {
                        continue;
                    }
                    let mode = modes[server.env.random_below(modes.len() as u64) as usize];
                    server.message(volume, &["set", "cache_mode", mode.word()]).await;
                    for _ in 0..2 {
                        let setting = server.env.random_below(SETTINGS.len() as u64) as usize;
                        let [name, value] = SETTINGS[setting];
                        server.message(volume, &["set", name, value]).await;
                    }
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

/// The table of a volume. Where devices move, it attaches one that belongs to no set.
fn table_of(shape: &Shape, index: usize, moves: bool) -> String {
    let table = shape.table(index);
    match table.strip_suffix(" cache 0").filter(|_| moves) {
        Some(backing) => format!("{backing} cache 1 attach"),
        None => table,
    }
}

/// If the cache is lost now: a forced run of each device names all that is lost, whichever map the
/// next server finds.
fn check_zones(
    maps: &SlowMaps,
    looks: &Looks,
    shape: &Shape,
    images: &Images,
) -> Result<(), String> {
    let cache = images["cache"].to_vec();
    for index in shape.cached() {
        let (name, device) = VOLUMES[index];
        let backing = images[device].to_vec();
        if !is_attached(&backing) {
            continue;
        }
        let found = maps.may_find(name);
        let judged = found.iter().map(|map| judge(name, shape.sectors, map, [&cache, &backing]));
        let seen: Vec<Look> = judged.collect::<Result<_, _>>()?;
        if let Some(seen) = seen.iter().max() {
            looks[*seen as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// True if a set counts for the backing device with these bytes.
fn is_attached(backing: &[u8]) -> bool {
    !superblock_of_backing(backing).set_uuid().is_zero()
}

/// Uses a backing device that belongs to no set. A host that lost it then may have left its marker,
/// which goes when the device is opened as one of bcache.
async fn use_without_cache(server: &Server, sectors: u64, index: usize) -> Result<(), ConfigError> {
    let (name, backing) = VOLUMES[index];
    match server.load(name, &format!("0 {sectors} linear {backing} 16")).await {
        Err(refused) if refused.to_string().contains("dirty marker") => {
            server.load(name, &format!("0 {sectors} bcache {backing} - 0")).await
        }
        loaded => loaded,
    }
}

/// Has a backing device leave its set, as a `cache detach` does; it is used alone for a time, and
/// joins the set again. Sometimes the detach is called off after its drain.
async fn move_out_and_in(server: &Server, shape: &Shape, index: usize, drive: Arc<SimDrive>) {
    let (name, backing) = VOLUMES[index];
    let (volume, env) = (server.volume(name), &server.env);
    let Some(target) = server.target(name) else { return };
    target.set_leaving(true);
    let drained = volume.drain_caches(env).await;
    if drained.is_err() || env.random_below(3) == 0 {
        return target.set_leaving(false);
    }
    target.drain_in_suspend(true);
    volume.suspend(env, SuspendMode::Flush).await.expect("no drive fails");
    let device = Device { argument: backing.to_owned(), disk: drive };
    let attached = Attached::of(env, device).await.expect("no drive fails");
    let attached = attached.expect("it belongs to the set");
    assert!(!attached.is_dirty(), "nothing became dirty since the drain");
    attached.leave(env).await.expect("no drive fails");
    let alone = format!("0 {} bcache {backing} - 0", shape.sectors);
    server.load(name, &alone).await.expect("no drive fails");
    server.pause(4000).await;
    server.load(name, &table_of(shape, index, true)).await.expect("no drive fails");
}

/// Now and then writes or reads take long: others overtake them, and the cache is congested.
fn plant_delays(drives: &[Arc<SimDrive>], rng: &mut fastrand::Rng) {
    for drive in drives {
        let effect = Effect::Delay(Duration::from_millis(rng.u64(1..60)));
        for ops in [OpSet::WRITES, OpSet::READS] {
            let slow = Fault { effect, ..Fault::error(ops) };
            drive.faults().add(slow.per_mille([20, 200][rng.usize(..2)]));
        }
    }
}

/// Of campaigns with special events each has this part of the lives.
const PART: u64 = 3;

fn campaign(failing: Failing) -> Campaign<Bcache> {
    Campaign::new(Bcache {
        failing,
        shapes: SHAPES,
        modes: MODES,
        foreign: 0,
        moves: false,
        zones: None,
    })
}

#[test]
fn nothing_acknowledged_is_lost_by_a_power_cut() {
    campaign(Failing::Nothing).run();
    paths_are_taken("BatchFailed LoseTraffic Broken");
}

#[test]
fn deaths_of_the_server_of_a_backing_device_lose_nothing() {
    campaign(Failing::Nothing).elsewhere(&["backing"], Links::ServersDie).cuts(60).run();
}

#[test]
fn deaths_of_the_server_of_a_cache_device_lose_nothing() {
    campaign(Failing::Nothing).elsewhere(&["cache"], Links::ServersDie).cuts(60).run();
}

#[test]
fn deaths_of_the_server_of_a_backing_device_are_told_where_nothing_is_kept() {
    campaign(Failing::Everything).elsewhere(&["backing"], Links::Told).cuts(60).run();
}

#[test]
fn a_host_that_is_fenced_writes_nothing_to_a_set_and_what_it_flushed_is_there() {
    let drives = &["backing", "cache"];
    campaign(Failing::Everything).elsewhere(drives, Links::Taken).cuts(60).run();
}

/// Tasks work in the pieces of programs here, and all leaves are in memory.
#[test]
fn nothing_acknowledged_is_lost_of_few_large_extents() {
    let failing = Failing::Nothing;
    let scenario =
        Bcache { failing, shapes: PLAIN, modes: MODES, foreign: 0, moves: false, zones: None };
    Campaign::new(scenario).one_in(PART).run();
}

#[test]
fn nothing_acknowledged_is_lost_on_a_cache_device_that_is_not_volatile() {
    let failing = Failing::Nothing;
    let scenario =
        Bcache { failing, shapes: DURABLE, modes: MODES, foreign: 0, moves: false, zones: None };
    Campaign::new(scenario).one_in(PART).run();
}

#[test]
fn what_a_kernel_cached_in_between_is_never_read() {
    let failing = Failing::Nothing;
    let scenario =
        Bcache { failing, shapes: SHAPES, modes: MODES, foreign: 2, moves: false, zones: None };
    Campaign::new(scenario).one_in(PART).run();
}

#[test]
fn nothing_acknowledged_is_lost_while_devices_leave_and_join_their_set() {
    let failing = Failing::Nothing;
    let scenario =
        Bcache { failing, shapes: SHAPES, modes: MODES, foreign: 0, moves: true, zones: None };
    Campaign::new(scenario).one_in(PART).run();
    is_taken("Ahead");
}

/// Many writes over parts of others while a batch is gathered.
const CROWDED: Shape = Shape { sectors: 600, longest: 32, ..MANY_KEYS };

fn crowded() -> Bcache {
    let (failing, shapes) = (Failing::Nothing, &[CROWDED]);
    Bcache { failing, shapes, modes: MODES, foreign: 0, moves: true, zones: None }
}

#[test]
fn nothing_acknowledged_is_lost_of_crowded_extents_while_devices_leave_their_set() {
    Campaign::new(crowded()).one_in(PART).run();
}

#[test]
fn what_is_lost_with_the_cache_is_in_the_map_of_dirty_zones() {
    static LOOKS: Looks = [const { AtomicU64::new(0) }; 4];
    let (failing, zones) = (Failing::Nothing, Some(&LOOKS));
    let scenario =
        Bcache { failing, shapes: SHAPES, modes: MODES, foreign: 0, moves: false, zones };
    Campaign::new(scenario).run();
    let looks = LOOKS.each_ref().map(|looks| looks.load(Ordering::Relaxed));
    let [_, anywhere, listed, exact] = looks;
    eprintln!("{looks:?}");
    assert!(listed + exact > anywhere && exact > 0, "{looks:?}");
    is_taken("MarkZone");
}

#[test]
fn losses_of_any_drive_are_told_to_each_client() {
    campaign(Failing::Everything).run();
    paths_are_taken("");
}

#[test]
fn a_cache_that_fails_and_comes_back_hides_nothing_that_was_written_since() {
    campaign(Failing::Cache).one_in(PART).run();
}

#[test]
fn a_backing_device_that_fails_loses_nothing_that_was_acknowledged() {
    campaign(Failing::Backing).one_in(PART).run();
}

/// Paths that a short campaign may miss (`bcache_drain` empties buckets), and those of campaigns
/// with special events.
#[cfg(feature = "canary")]
const RARE: [&str; 5] = ["EmptyBuckets", "CheckpointAgain", "Ahead", "MarkZone", "GatherLeaves"];

/// The campaign has taken each path but these, and each switch between two modes, if it was long
/// enough.
#[cfg(feature = "canary")]
fn paths_are_taken(but: &str) {
    use cairn_targets::bcache::coverage;
    let is_expected = |path: &String| but.split(' ').chain(RARE).all(|it| it != path);
    let never: Vec<String> = never_taken().into_iter().filter(is_expected).collect();
    assert!(never.is_empty(), "paths that were never taken: {never:?}");
    assert!(!is_long() || coverage::switches() == 12, "each switch between two of four modes");
}

/// The campaign has taken this path, if it was long enough.
#[cfg(feature = "canary")]
fn is_taken(path: &str) {
    assert!(never_taken().iter().all(|never| never != path), "{path} was never taken");
}

/// The paths that were never taken; none if the campaign was short.
#[cfg(feature = "canary")]
fn never_taken() -> Vec<String> {
    let never = cairn_targets::bcache::coverage::never_taken().into_iter().filter(|_| is_long());
    never.map(|path| format!("{path:?}")).collect()
}

/// Lives after which each path must have been taken.
#[cfg(feature = "canary")]
const ENOUGH: u64 = 1000;

#[cfg(feature = "canary")]
fn is_long() -> bool {
    let lives = std::env::var("CAIRN_CUTS").ok().and_then(|lives| lives.parse::<u64>().ok());
    std::env::var("CAIRN_CUT").is_err() && lives.is_some_and(|lives| lives >= ENOUGH)
}

#[cfg(not(feature = "canary"))]
fn paths_are_taken(_but: &str) {}

#[cfg(not(feature = "canary"))]
fn is_taken(_path: &str) {}

#[cfg(feature = "canary")]
mod canaries {
    use cairn_targets::bcache::canary::{Bug, plant};

    use super::bcache_lab::several::{MANY_KEYS, ROOMY, TIGHT};
    use super::{
        AtomicU64, Bcache, CROWDED, CacheMode, Campaign, Failing, Looks, MODES, PLAIN, SHAPES,
        Shape,
    };

    /// Lives in which a planted bug must be found.
    const CUTS: u64 = 20_000;

    fn is_caught(bug: Bug) {
        is_caught_in(bug, SHAPES, MODES);
    }

    fn is_caught_in(bug: Bug, shapes: &'static [Shape], modes: &'static [CacheMode]) {
        is_caught_with(bug, Failing::Nothing, shapes, modes, 0);
    }

    fn is_caught_with(
        bug: Bug,
        failing: Failing,
        shapes: &'static [Shape],
        modes: &'static [CacheMode],
        foreign: u64,
    ) {
        static LOOKS: Looks = [const { AtomicU64::new(0) }; 4];
        plant(Some(bug));
        let zones = (bug == Bug::DirtyBeforeMark).then_some(&LOOKS);
        let scenario = Bcache { failing, shapes, modes, foreign, moves: false, zones };
        Campaign::new(scenario).cuts(CUTS).expect_caught(&format!("{bug:?}"));
        plant(None);
    }

    #[test]
    fn keys_that_are_clean_before_a_flush_are_caught() {
        is_caught(Bug::CleanBeforeFlush);
    }

    #[test]
    fn keys_of_large_extents_that_are_clean_before_a_flush_are_caught() {
        is_caught_in(Bug::CleanBeforeFlush, PLAIN, MODES);
    }

    #[test]
    fn copies_of_extents_that_share_sectors_are_caught() {
        is_caught_in(Bug::CopiesOverlap, &[CROWDED], WRITEBACK);
    }

    #[test]
    fn flush_that_does_not_reach_the_backing_device_is_caught() {
        is_caught(Bug::FlushSwallowed);
    }

    #[test]
    fn one_bit_in_place_of_counters_is_caught() {
        is_caught(Bug::OneBitFlag);
    }

    #[test]
    fn batch_that_is_only_flushed_again_is_caught() {
        is_caught_with(Bug::FlushedAgain, Failing::Everything, SHAPES, MODES, 0);
    }

    #[test]
    #[cfg_attr(debug_assertions, ignore = "takes minutes in a debug build")]
    fn copies_over_a_write_in_flight_are_caught() {
        let modes = &[CacheMode::Writeback, CacheMode::Writearound];
        is_caught_in(Bug::CopyOverWrite, &[ROOMY], modes);
    }

    #[test]
    fn dirty_data_before_the_state_is_caught() {
        is_caught(Bug::DataBeforeState);
    }

    #[test]
    fn opening_without_a_flush_is_caught() {
        is_caught(Bug::NoFlushAtOpening);
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
    fn clean_data_of_a_kernel_that_is_trusted_is_caught() {
        is_caught_with(Bug::ForeignTrusted, Failing::Nothing, SHAPES, MODES, 2);
    }

    #[test]
    fn clean_data_older_than_a_write_is_caught() {
        is_caught(Bug::FillOverWrite);
    }

    const WRITEBACK: &[CacheMode] = &[CacheMode::Writeback];

    #[test]
    fn keys_whose_data_came_after_the_flush_of_their_group_are_caught() {
        is_caught_in(Bug::GroupClosedLate, &[ROOMY], WRITEBACK);
    }

    #[test]
    #[cfg_attr(debug_assertions, ignore = "takes minutes in a debug build")]
    fn groups_that_name_what_is_not_durable_are_caught() {
        is_caught_in(Bug::GroupNamesEarly, &[ROOMY, TIGHT], WRITEBACK);
    }

    #[test]
    fn answers_before_the_flush_of_an_entry_are_caught() {
        is_caught_in(Bug::AnsweredBeforeFlush, &[ROOMY], WRITEBACK);
    }

    #[test]
    fn entries_behind_one_that_is_not_durable_are_caught() {
        is_caught_in(Bug::EntryBehindVolatile, &[ROOMY], WRITEBACK);
    }

    #[test]
    fn durable_writes_in_place_over_a_key_that_is_not_durable_are_caught() {
        is_caught_in(Bug::OverwriteVolatile, &[ROOMY], WRITEBACK);
    }

    #[test]
    fn extents_that_become_clean_while_they_are_written_in_place_are_caught() {
        is_caught_in(Bug::CopyDuringOverwrite, &[TIGHT], WRITEBACK);
    }

    #[test]
    fn flushes_that_forget_writes_in_place_are_caught() {
        is_caught_in(Bug::OverwriteUncounted, &[ROOMY], WRITEBACK);
    }

    #[test]
    fn held_writes_that_are_answered_before_a_flush_are_caught() {
        is_caught_in(Bug::HeldBeforeFlush, &[ROOMY], WRITEBACK);
    }

    #[test]
    fn dirty_data_that_leaves_before_the_zeros_in_its_place_are_durable_is_caught() {
        is_caught_in(Bug::HoleBeforeZeros, &[ROOMY], &[CacheMode::Writeback]);
    }

    #[test]
    fn volumes_that_go_on_before_their_superblock_says_so_are_caught() {
        let (bug, modes) = (Bug::UncachedBeforeDetach, &[CacheMode::Writethrough]);
        is_caught_with(bug, Failing::Cache, &[ROOMY], modes, 0);
    }

    #[test]
    fn dirty_data_that_is_read_from_the_backing_device_is_caught() {
        let modes = &[CacheMode::Writeback];
        is_caught_with(Bug::RetryOfDirty, Failing::Cache, &[ROOMY], modes, 0);
    }

    #[test]
    fn moves_whose_key_comes_before_their_copy_are_caught() {
        is_caught_in(Bug::MoveBeforeCopy, &[ROOMY], &[CacheMode::Writeback]);
    }

    #[test]
    fn sources_of_moves_that_are_reused_before_a_checkpoint_are_caught() {
        is_caught_in(Bug::SourceBeforeCheckpoint, &[TIGHT], &[CacheMode::Writeback]);
    }

    #[test]
    #[cfg_attr(debug_assertions, ignore = "takes minutes in a debug build")]
    fn coalesced_nodes_that_may_not_be_durable_are_caught() {
        is_caught_in(Bug::CoalescedBeforeDurable, &[MANY_KEYS], &[CacheMode::Writeback]);
    }

    #[test]
    fn leaves_that_leave_memory_before_they_are_written_are_caught() {
        is_caught(Bug::DropUnwritten);
    }

    #[test]
    fn dirty_data_in_a_zone_that_no_durable_map_names_is_caught() {
        is_caught_in(Bug::DirtyBeforeMark, &[ROOMY], WRITEBACK);
    }

    #[test]
    fn records_of_data_that_has_not_arrived_are_caught() {
        is_caught_in(Bug::RecordBeforeData, &[ROOMY], WRITEBACK);
    }

    #[test]
    fn records_that_are_forgotten_before_their_entry_is_written_are_caught() {
        is_caught_in(Bug::RecordsForgottenEarly, &[ROOMY], WRITEBACK);
    }

    #[test]
    fn buckets_that_are_reused_before_a_checkpoint_are_caught() {
        is_caught(Bug::ReuseBeforeCheckpoint);
    }
}
