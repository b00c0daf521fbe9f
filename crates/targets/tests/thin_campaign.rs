//! The crash campaign of thin pools: power cuts at seeded writes under two volumes of one pool, in
//! normal service, during commits, while sharing is broken and blocks are discarded, freed and
//! taken again; with snapshots, deletions, metadata snapshots, longer pools and other options under
//! the workload, with pools that are full, over drives that lose, reorder, tear and fail. Snapshots
//! are read whenever there are some: what one of them held once it holds until it is deleted (T5).
//!
//! `CAIRN_CUTS=10000 cargo test -p cairn-targets --release --test thin_campaign` is the long run.
//! With `--features canary` known ordering bugs are planted: each must be caught.
//! `thin_check` looks at every 50th survivor too, or every n-th with `CAIRN_THIN_CHECK_EVERY=n`.

mod foreign;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    ConfigError, ConfigKind, Io, IoError, LocalFuture, MessageError, Sector, SectorCount,
    SectorRange, TargetType, take_unmarked,
};
use cairn_format::thin::blocks::MemoryBlocks;
use cairn_format::thin::check::{Finding, Limits, Severity, check};
use cairn_format::thin::{MetadataBlock, Opening};
use cairn_sim::campaign::{
    Campaign, Generation, Images, Links, Opened, Scenario, Server, plant_failures,
};
use cairn_sim::{Content, DriveOptions, Image, Workload};
use cairn_targets::thin::ThinPool;

/// Sectors of a data block.
const BLOCK: u64 = 128;

/// What varies between cuts.
#[derive(Clone, Copy)]
struct Shape {
    metadata_blocks: u64,
    data_blocks: u64,
    /// The devices may be made this long under the workload: metadata and data.
    grown_blocks: (u64, u64),
    /// Blocks of each of both volumes.
    blocks: u64,
    /// The second one has an external origin.
    has_origin: bool,
    features: &'static str,
    /// Bytes of a logical block of the drives.
    logical: u32,
}

const PLAIN: Shape = Shape {
    metadata_blocks: 256,
    data_blocks: 64,
    grown_blocks: (256, 64),
    blocks: 6,
    has_origin: false,
    features: "0",
    logical: 512,
};

const SHAPES: &[Shape] = &[
    Shape { grown_blocks: (256, 80), ..PLAIN },
    // Few blocks, so that those which were freed are taken again at once.
    Shape { metadata_blocks: 128, data_blocks: 12, grown_blocks: (128, 12), blocks: 5, ..PLAIN },
    Shape { features: "2 detect_zeroes unmap", ..PLAIN },
    Shape { grown_blocks: (256, 80), has_origin: true, logical: 4096, ..PLAIN },
    // So little metadata that it commits all the time.
    Shape {
        metadata_blocks: 116,
        data_blocks: 48,
        grown_blocks: (180, 48),
        blocks: 8,
        features: "1 no_discard_passdown",
        ..PLAIN
    },
    Shape { grown_blocks: (300, 70), has_origin: true, features: "2 detect_zeroes unmap", ..PLAIN },
];

/// Full most of the time.
const FULL: &[Shape] = &[
    Shape {
        data_blocks: 9,
        grown_blocks: (256, 11),
        features: "1 error_if_no_space",
        has_origin: true,
        ..PLAIN
    },
    Shape {
        metadata_blocks: 112,
        data_blocks: 8,
        grown_blocks: (130, 8),
        blocks: 5,
        features: "3 error_if_no_space detect_zeroes unmap",
        ..PLAIN
    },
    // Writes wait for space, and some of them get it.
    Shape { data_blocks: 9, grown_blocks: (256, 12), features: "2 no_space_timeout 1", ..PLAIN },
];

/// Sectors of the external origin: it ends inside a block.
const ORIGIN_SECTORS: u64 = 5 * BLOCK / 2;

/// One life.
struct Case {
    shape: Shape,
    /// What each snapshot was first seen to hold, by id and creation time. A snapshot that is seen
    /// is durable, and so is the time of the pool: no other one has the same pair.
    seen: RefCell<BTreeMap<(u32, u32), Vec<Content>>>,
}

struct Pools {
    shapes: &'static [Shape],
    /// Drives fail now and then.
    failing: bool,
}

impl Shape {
    /// The metadata device, of which the drive may be longer.
    fn metadata(&self, is_grown: bool) -> String {
        let blocks = if is_grown { self.grown_blocks.0 } else { self.metadata_blocks };
        format!("0 {} linear meta 0", blocks * 8)
    }

    fn pool(&self, is_grown: bool) -> String {
        let blocks = if is_grown { self.grown_blocks.1 } else { self.data_blocks };
        format!("0 {} thin-pool @m data {BLOCK} 0 {}", blocks * BLOCK, self.features)
    }

    fn thin(&self, id: u32) -> String {
        let origin = if self.has_origin && id == 1 { " origin" } else { "" };
        format!("0 {} thin @pool {id}{origin}", self.blocks * BLOCK)
    }

    /// Writes fail, or wait for a while and then fail, because there is no space.
    fn may_be_full(&self) -> bool {
        self.features.contains("no_space")
    }

    fn has_room_for_snapshots(&self) -> bool {
        self.data_blocks >= 6 * self.blocks || self.may_be_full()
    }
}

/// The first id of a snapshot: those below are volumes.
const SNAPSHOTS: u32 = 7;

/// What is wrong with the snapshots.
enum Unsound {
    Unread(String),
    Changed(String),
}

impl Unsound {
    fn text(self) -> String {
        match self {
            Unsound::Unread(text) | Unsound::Changed(text) => text,
        }
    }
}

/// What a snapshot holds.
async fn read_snapshot(server: &Server, shape: Shape, id: u32) -> Result<Vec<Content>, String> {
    let name = format!("s{id}");
    let found = match server.create(&name, &shape.thin(id)).await {
        Ok(disk) => server.read_whole(&disk).await.map_err(|error| error.to_string()),
        Err(refused) => Err(refused.to_string()),
    };
    let removed = server.remove(&name).await.map_err(|error| error.to_string());
    found
        .and_then(|found| removed.map(|()| found))
        .map_err(|error| format!("snapshot {id}: {error}"))
}

/// True if a failed flush may have dropped what a volume wrote in place before it was shared with
/// a snapshot, whatever reads show: its writers are told.
fn may_have_lost(server: &Server) -> bool {
    let data = server.registry.open("data", false).expect("the pool has opened it");
    data.failures() > 0
}

/// Judges what every snapshot holds, as far as it can be read.
///
/// # Errors
/// One cannot be read, or does not hold what it held before.
async fn judge_snapshots(server: &Server, case: &Case) -> Result<(), Unsound> {
    let target = server.target("pool").expect("it has a table");
    let pool = target.as_any().and_then(|any| any.downcast_ref::<ThinPool>()).expect("a pool");
    let devices = pool.devices().map_err(|error| Unsound::Unread(error.to_string()))?;
    for device in devices.into_iter().filter(|device| device.id >= SNAPSHOTS) {
        let read = read_snapshot(server, case.shape, device.id).await;
        let contents = read.map_err(Unsound::Unread)?;
        let pair = (device.id, device.creation_time);
        let mut seen = case.seen.borrow_mut();
        if !seen.contains_key(&pair) && may_have_lost(server) {
            continue;
        }
        let first = seen.entry(pair).or_insert_with(|| contents.clone());
        for (sector, (found, expected)) in contents.iter().zip(first).enumerate() {
            if found != expected {
                let text =
                    format!("snapshot {pair:?}: sector {sector}: {found:?}, before {expected:?}");
                return Err(Unsound::Changed(text));
            }
        }
    }
    Ok(())
}

/// Sends a message to the pool's target, even if the pool is suspended. It may be refused.
async fn send(server: &Server, words: &[&str]) {
    let target = server.target("pool").expect("it has a table");
    match target.message(&server.env, words).await {
        Ok(_) | Err(MessageError::Busy(_) | MessageError::Failed(_)) => (),
        Err(refused) => panic!("{words:?}: {refused}"),
    }
}

/// Everything a user may do to a pool while its volumes are written.
async fn meddle(server: &Server, case: &Case, failing: bool) {
    let shape = case.shape;
    for _ in 0..6 {
        server.pause(6000).await;
        // Where there is no room for what snapshots keep, also those of the metadata, there are
        // none.
        let all = if shape.has_room_for_snapshots() { 0 } else { 6 };
        match all + server.env.random_below(9 - all) {
            kind @ 0..3 => {
                let words = if kind < 2 { ["7", "0"] } else { ["8", "1"] };
                send(server, &["create_snap", words[0], words[1]]).await;
                let judged = judge_snapshots(server, case).await;
                // The server may have begun to stop.
                let stops = server.registry.volume("pool").is_ok_and(|pool| pool.is_suspended());
                match judged {
                    Ok(()) => (),
                    Err(Unsound::Unread(_)) if failing || stops => (),
                    Err(unsound) => panic!("{}", unsound.text()),
                }
            }
            3 => send(server, &["delete", "7"]).await,
            4 => send(server, &["delete", "8"]).await,
            5 => send(server, &["reserve_metadata_snap"]).await,
            6 => send(server, &["release_metadata_snap"]).await,
            7 => send(server, &["detect_zeroes", "unmap"]).await,
            _ => grow(server, shape, failing).await,
        }
    }
}

async fn grow(server: &Server, shape: Shape, failing: bool) {
    if let Err(lost) = server.load("m", &shape.metadata(true)).await {
        assert!(failing, "no drive fails: {lost}");
    }
    let table = shape.pool(true);
    while let Err(error) = server.load("pool", &table).await {
        assert!(failing, "no drive fails: {error}");
        // As a user would who finds his volumes suspended.
        server.env.sleep(Duration::from_millis(1)).await;
    }
}

/// Clears the mark that a failed commit left, as a repair does that finds nothing wrong.
async fn clear_mark(server: &Server) -> Result<(), ConfigError> {
    let (env, disk) = (&server.env, server.registry.open("meta", false)?);
    take_unmarked(env, disk.as_ref()).await?;
    let range = SectorRange::new(Sector(0), SectorCount(8));
    let segs = env.segs(range.count);
    let failed = |error| ConfigError::new(ConfigKind::System, "meta", "mark").with_source(error);
    env.io(&disk, Io::read(range, segs.clone())).await.map_err(failed)?;
    let bytes: Vec<u8> = segs.to_vec();
    let Ok(Opening::Existing(mut superblock)) =
        Opening::decide(bytes.as_slice().try_into().expect("it is a block"))
    else {
        return Ok(());
    };
    if superblock.needs_check() {
        superblock.set_needs_check(false);
        segs.copy_in(0, &superblock.encode(MetadataBlock::SUPERBLOCK));
        let failures = disk.failures();
        env.io(&disk, Io::write(range, segs)).await.map_err(failed)?;
        env.io(&disk, Io::flush()).await.map_err(failed)?;
        if disk.failures() != failures {
            return Err(failed(IoError::IO));
        }
    }
    Ok(())
}

/// Brings up the pool, which may have grown before the power was cut, and both volumes.
async fn assemble(server: Server, case: Rc<Case>, failing: bool) -> Opened {
    let shape = case.shape;
    if failing {
        clear_mark(&server).await?;
    }
    server.create("m", &shape.metadata(false)).await?;
    if let Err(error) = server.create("pool", &shape.pool(false)).await {
        if shape.grown_blocks == (shape.metadata_blocks, shape.data_blocks) {
            return Err(error);
        }
        server.load("m", &shape.metadata(true)).await?;
        server.load("pool", &shape.pool(true)).await?;
    }
    for id in ["0", "1"] {
        send(&server, &["create_thin", id]).await;
    }
    let mut disks = Vec::new();
    for (name, id) in [("v0", 0), ("v1", 1)] {
        disks.push(server.create(name, &shape.thin(id)).await?);
    }
    match judge_snapshots(&server, &case).await {
        Ok(()) => Ok(disks),
        Err(Unsound::Unread(text)) => Err(ConfigError::new(ConfigKind::Damaged, "pool", text)),
        Err(changed) => panic!("{}", changed.text()),
    }
}

impl Scenario for Pools {
    type Case = Case;

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        cairn_targets::types()
    }

    fn begin(&self, rng: &mut fastrand::Rng) -> (Case, Vec<(DriveOptions, Image)>) {
        let shape = self.shapes[rng.usize(..self.shapes.len())];
        let options = |name: &str| {
            let logical_block = shape.logical;
            DriveOptions { logical_block, ..DriveOptions::named(name) }
        };
        let drive = |name: &str, sectors: u64| (options(name), Image::new(SectorCount(sectors)));
        let mut drives = vec![
            drive("meta", shape.grown_blocks.0 * 8),
            // Stale data must never show.
            (
                options("data"),
                Image::of_bytes(&vec![0x5a; (shape.grown_blocks.1 * BLOCK * 512) as usize]),
            ),
            (options("origin"), Image::of_bytes(&[0x6b; ORIGIN_SECTORS as usize * 512])),
        ];
        if rng.u8(..3) == 0 {
            // Writes that are under way for longer than a commit takes.
            drives[1].0.model.jitter = Duration::from_millis(20);
        }
        (Case { shape, seen: RefCell::default() }, drives)
    }

    fn open(&self, case: Rc<Case>, server: Server) -> LocalFuture<'static, Opened> {
        Box::pin(assemble(server, case, self.failing))
    }

    fn check_metadata(&self, _case: &Case, images: &Images) -> Result<(), String> {
        check_metadata(&images["meta"])
    }

    fn workload(&self, case: &Case, rng: &mut fastrand::Rng) -> Workload {
        let (seed, ops) = (rng.u64(..), rng.u64(..250));
        let mut workload = Workload::mixed(seed, ops);
        if rng.bool() {
            // Long enough to cover whole blocks, which are freed and taken again.
            workload.max = SectorCount(4 * BLOCK);
            (workload.mix.discard, workload.mix.flush) = (20, 20);
        }
        if case.shape.features.contains("detect_zeroes") {
            workload.mix.zero_data = 15;
        }
        workload
    }

    fn suspends(&self) -> bool {
        true
    }

    fn outlives_kills(&self) -> bool {
        true
    }

    fn rolls_back(&self) -> bool {
        self.failing
    }

    fn fails_at_start(&self) -> bool {
        self.failing
    }

    fn trouble(&self, case: &Rc<Case>, generation: &Generation, rng: &mut fastrand::Rng) -> bool {
        let failing = self.failing;
        if rng.bool() {
            let case = case.clone();
            generation.start(2, async move |server| meddle(&server, &case, failing).await);
        }
        if failing {
            let often = [2, 20, 60][rng.usize(..3)];
            plant_failures(&generation.world.all_drives(), often, None, rng);
            return true;
        }
        case.shape.may_be_full()
    }
}

/// Every reference count derived again, every tree walked.
fn check_metadata(image: &Image) -> Result<(), String> {
    let bytes = image.to_vec();
    // A crash while formatting leaves a blank device.
    if bytes[..4096].iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    let checked = check(&mut MemoryBlocks::new(&bytes), Limits::default());
    let report = checked.expect("memory can be read");
    match report.severity {
        _ if report.findings == [Finding::NeedsCheck] => Ok(()),
        Severity::Damaged | Severity::Repairable => Err(format!("{:?}", report.findings)),
        _ => sound_to_others(&bytes),
    }
}

/// Has thin_check look at some of the survivors, for it takes longer than a cut: at the same ones
/// in a replay.
fn sound_to_others(bytes: &[u8]) -> Result<(), String> {
    let every: u32 = std::env::var("CAIRN_THIN_CHECK_EVERY").map_or(50, |every| {
        let every = every.parse().ok().filter(|every| *every > 0);
        every.expect("CAIRN_THIN_CHECK_EVERY is a number above 0")
    });
    let checksum = bytes.first_chunk().map_or(0, |sum| u32::from_le_bytes(*sum));
    if !checksum.is_multiple_of(every) {
        return Ok(());
    }
    let path = foreign::file(bytes);
    let judged = foreign::run("thin_check", &path);
    std::fs::remove_file(path).expect("it was written");
    match judged {
        Some((false, said)) => Err(format!("thin_check: {said}")),
        _ => Ok(()),
    }
}

fn campaign(shapes: &'static [Shape]) -> Campaign<Pools> {
    Campaign::new(Pools { shapes, failing: false })
}

fn failing_campaign(shapes: &'static [Shape]) -> Campaign<Pools> {
    Campaign::new(Pools { shapes, failing: true })
}

#[test]
fn volumes_of_a_pool_survive_power_cuts() {
    campaign(SHAPES).run();
}

#[test]
fn full_pools_survive_power_cuts() {
    campaign(FULL).run();
}

#[test]
fn volumes_of_a_pool_survive_power_cuts_when_drives_fail_too() {
    failing_campaign(SHAPES).run();
}

#[test]
fn full_pools_survive_power_cuts_when_drives_fail_too() {
    failing_campaign(FULL).run();
}

#[test]
fn deaths_of_servers_lose_nothing_of_a_pool() {
    let drives = &["meta", "data"];
    campaign(SHAPES).elsewhere(drives, Links::ServersDie).cuts(60).run();
}

#[test]
fn a_host_that_is_fenced_writes_nothing_to_a_pool_and_what_it_flushed_is_there() {
    let drives = &["meta", "data"];
    failing_campaign(SHAPES).elsewhere(drives, Links::Taken).cuts(60).run();
}

#[test]
fn deaths_of_the_server_of_the_data_lose_nothing_of_a_pool() {
    campaign(SHAPES).elsewhere(&["data"], Links::ServersDie).cuts(60).run();
}

#[cfg(feature = "canary")]
mod canaries {
    use super::{FULL, SHAPES, Shape, campaign};
    use cairn_targets::thin::canary::{Bug, plant};

    /// More than enough: each is caught within the first thousand.
    const CUTS: u64 = 20_000;

    fn caught(bug: Bug, shapes: &'static [Shape]) {
        plant(Some(bug));
        campaign(shapes).cuts(CUTS).expect_caught(&format!("{bug:?}"));
        plant(None);
    }

    #[test]
    fn a_commit_without_a_flush_of_the_data_is_caught() {
        caught(Bug::NoDataFlush, SHAPES);
    }

    // In pools that are nearly full: only there a freed block is soon taken again.
    #[test]
    fn taking_blocks_that_are_still_written_is_caught() {
        caught(Bug::NoQuarantine, FULL);
    }

    #[test]
    fn writing_a_shared_block_in_place_is_caught() {
        caught(Bug::WriteShared, SHAPES);
    }

    #[test]
    fn a_write_of_zeros_that_waits_for_no_commit_is_caught() {
        caught(Bug::ElideWithoutCommit, SHAPES);
    }

    #[test]
    fn sealing_the_crash_log_after_the_freeze_is_caught() {
        caught(Bug::SealLate, SHAPES);
    }

    #[test]
    fn mapping_a_block_before_it_is_filled_is_caught() {
        caught(Bug::MapBeforeFill, SHAPES);
    }
}
