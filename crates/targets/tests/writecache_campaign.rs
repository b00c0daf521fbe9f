//! The crash campaign of writecache: power cuts at seeded writes, in normal service, during
//! commits, writeback, discards and recovery, over drives that lose, reorder and tear; with
//! messages, suspends and other tables under the workload, and with drives that fail, and lose
//! what a failed flush was to make durable. Lives end by kills of the process, too. The drives may
//! be at servers that are lost and die.
//!
//! `CAIRN_CUTS=10000 cargo test -p cairn-targets --release --test writecache_campaign` is the
//! long run. With `--features canary` known ordering bugs are planted: each must be caught.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{LocalFuture, Sector, SectorCount, TargetType};
use cairn_format::writecache::check::{Limits, Severity, check};
use cairn_format::writecache::{Entry, Geometry, SUPERBLOCK_BYTES, Superblock};
use cairn_sim::campaign::{
    Campaign, Elsewhere, Generation, Images, Links, Opened, Scenario, Server, plant_failures,
};
use cairn_sim::{DriveOptions, Fault, Image, OpSet, SimWorld, Workload};

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

/// Small enough to fill up, to write around and to write back all the time.
const SMALL: Shape = Shape {
    block: 512,
    start_sector: 0,
    options: "2 pause_writeback 0",
    cache_kib: 24,
    origin_kib: 64,
    logical: 512,
};

const SHAPES: &[Shape] = &[
    SMALL,
    Shape { block: 1024, start_sector: 3, cache_kib: 40, ..SMALL },
    Shape { block: 4096, cache_kib: 96, origin_kib: 192, ..SMALL },
    Shape { block: 4096, start_sector: 8, cache_kib: 100, origin_kib: 192, logical: 4096, ..SMALL },
    // Large enough to hold everything: commits only.
    Shape { options: "0", cache_kib: 128, ..SMALL },
    // Frequent commits by count and by time; ages.
    Shape {
        options: "8 autocommit_blocks 5 autocommit_time 2 max_age 20 pause_writeback 0",
        cache_kib: 64,
        ..SMALL
    },
    Shape { options: "3 cleaner pause_writeback 0", cache_kib: 32, ..SMALL },
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
    failing: Failing,
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
    type Case = Shape;

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        cairn_targets::types()
    }

    fn begin(&self, rng: &mut fastrand::Rng) -> (Shape, Vec<(DriveOptions, Image)>) {
        // Of a copy: with another draw, seeds would change.
        #[cfg(feature = "canary")]
        cairn_targets::writecache::canary::sweep_beyond(rng.clone().bool().then_some(0));
        let shape = SHAPES[rng.usize(..SHAPES.len())];
        let drives = vec![
            drive("origin", shape.origin_kib, shape.logical),
            drive("cache", shape.cache_kib, shape.logical),
            // Not used. A life draws for each drive: without this one, seeds would change.
            drive("idle", 1, 512),
        ];
        (shape, drives)
    }

    fn open(&self, shape: Rc<Shape>, server: Server) -> LocalFuture<'static, Opened> {
        Box::pin(
            async move { Ok(vec![server.create("volume", &shape.table(shape.options)).await?]) },
        )
    }

    fn check_metadata(&self, shape: &Shape, images: &Images) -> Result<(), String> {
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

    fn workload(&self, _shape: &Shape, rng: &mut fastrand::Rng) -> Workload {
        let (seed, ops) = (rng.u64(..), rng.u64(..400));
        Workload::mixed(seed, ops)
    }

    fn suspends(&self) -> bool {
        true
    }

    fn outlives_kills(&self) -> bool {
        true
    }

    /// A cache whose commit failed goes on, when a table is loaded, with what is durable.
    fn rolls_back(&self) -> bool {
        self.failing != Failing::Nothing
    }

    fn fails_at_start(&self) -> bool {
        self.failing == Failing::Everything
    }

    fn trouble(&self, shape: &Rc<Shape>, generation: &Generation, rng: &mut fastrand::Rng) -> bool {
        let (world, may_fail) = (generation.world, self.failing != Failing::Nothing);
        let delay = Duration::from_micros(rng.u64(..20_000));
        let word = match rng.u8(..4) {
            0 => Some("flush"),
            1 => Some("flush_on_suspend"),
            _ => None,
        };
        if let Some(word) = word {
            generation.start(0, async move |server| {
                server.env.sleep(delay).await;
                server.message("volume", &[word]).await;
            });
        }
        let drives = [world.drive("origin"), world.drive("cache")];
        match self.failing {
            Failing::Nothing => (),
            Failing::Origin => plant_errors(world, rng),
            Failing::Everything => plant_failures(&drives, [5, 50][rng.usize(..2)], None, rng),
        }
        if rng.u8(..4) == 0 {
            // Tables with other options, while requests come.
            let shape = shape.clone();
            generation.start(2, async move |server| {
                for _ in 0..3 {
                    server.pause(8000).await;
                    let other = server.env.random_below(SHAPES.len() as u64) as usize;
                    let table = shape.table(SHAPES[other].options);
                    server.swap_or_end("volume", &table, may_fail).await;
                }
            });
        }
        may_fail
    }
}

fn campaign(failing: Failing) -> Campaign<WriteCache> {
    Campaign::new(WriteCache { failing })
}

#[test]
fn nothing_acknowledged_is_lost_by_a_power_cut() {
    campaign(Failing::Nothing).run();
}

#[test]
fn nothing_acknowledged_is_lost_when_drives_fail_too() {
    campaign(Failing::Origin).run();
}

#[test]
fn losses_of_any_drive_are_told_to_each_client() {
    campaign(Failing::Everything).run();
}

fn elsewhere(drives: &'static [&'static str], links: Links) -> Campaign<Elsewhere<WriteCache>> {
    campaign(Failing::Nothing).elsewhere(drives, links).cuts(100)
}

#[test]
fn lost_connections_to_an_origin_lose_nothing() {
    elsewhere(&["origin"], Links::Cut).run();
}

#[test]
fn deaths_of_servers_lose_nothing() {
    elsewhere(&["origin", "cache"], Links::ServersDie).run();
}

#[test]
fn deaths_of_the_server_of_a_cache_device_lose_nothing() {
    elsewhere(&["cache"], Links::ServersDie).run();
}

/// Not of that of the cache device: what is read from it after it forgot is not what was written
/// there, until the loss is told.
#[test]
fn deaths_of_the_server_of_an_origin_are_told_where_nothing_is_kept() {
    elsewhere(&["origin"], Links::Told).run();
}

#[test]
fn servers_that_come_back_too_late_lose_nothing_that_was_flushed() {
    elsewhere(&["origin"], Links::TooLate).run();
}

#[test]
fn a_host_that_is_fenced_writes_nothing_and_what_it_flushed_is_there() {
    let drives = &["origin", "cache"];
    campaign(Failing::Everything).elsewhere(drives, Links::Taken).cuts(100).run();
}

#[cfg(feature = "canary")]
mod canaries {
    use super::{Failing, Links, campaign, elsewhere};
    use cairn_block::mutants::skip;
    use cairn_targets::writecache::canary::{Bug, plant};

    fn caught(bug: Bug) {
        plant(Some(bug));
        campaign(Failing::Nothing).cuts(2000).expect_caught(&format!("{bug:?}"));
        plant(None);
    }

    fn taken_out(name: &'static str, failing: Failing) {
        skip(Some(name));
        campaign(failing).cuts(10_000).expect_caught(name);
        skip(None);
    }

    #[test]
    fn a_host_that_is_fenced_and_goes_on_is_caught() {
        skip(Some("nbd: look at the session"));
        let campaign = campaign(Failing::Everything);
        let drives = &["origin", "cache"];
        campaign.elsewhere(drives, Links::Taken).cuts(5000).expect_caught("no look");
        skip(None);
    }

    fn taken_out_of_a_session(name: &'static str, links: Links) {
        skip(Some(name));
        elsewhere(&["origin"], links).cuts(5000).expect_caught(name);
        skip(None);
    }

    #[test]
    fn a_connection_again_without_what_was_kept_is_caught() {
        taken_out_of_a_session("session: another write of what is kept", Links::ServersDie);
    }

    #[test]
    fn sending_what_was_kept_after_new_requests_is_caught() {
        taken_out_of_a_session("session: wait for what is sent again", Links::ServersDie);
    }

    #[test]
    fn a_flush_that_covers_what_came_after_it_is_caught() {
        taken_out_of_a_session("session: count of what a flush covers", Links::ServersDie);
    }

    #[test]
    fn a_lost_connection_of_which_no_client_is_told_is_caught() {
        taken_out_of_a_session("session: count of a lost connection", Links::Told);
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
