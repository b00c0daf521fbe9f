//! The crash campaign of what is done to an origin while it is written: a snapshot of it is made,
//! and merged later, over drives that lose, reorder, tear and fail, in the order in which the
//! server does it.
//!
//! V1. What is recorded is durable, as a state file is: the next start goes by it.
//! V2. A snapshot that was made holds what it was first read to hold, until a client writes it or
//!     it ends: whatever was volatile when it was made, and whatever is written to the origin.
//! V3. A merge changes nothing of what the clients of the snapshot read.
//!
//! `CAIRN_CUTS=10000 cargo test -p cairn-targets --release --test snapshot_verbs_campaign` is the
//! long run. With `--features canary` known bugs are planted: each must be caught.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use cairn_block::{
    ConfigError, ConfigKind, Disk, Io, IoError, LocalFuture, Op, Sector, SectorCount, SectorRange,
    SuspendMode, TargetType,
};
use cairn_sim::campaign::{Campaign, Generation, Opened, Scenario, Server, plant_failures};
use cairn_sim::{Content, DriveOptions, Image, Workload};

/// Sectors of the origin.
const SECTORS: u64 = 192;
/// Sectors of a COW device that never fills up: every chunk, records, and what crashes leak.
const COW_SECTORS: u64 = 4 * SECTORS;

/// What is recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Plain,
    Taken,
    Merging,
}

/// One life.
struct Record {
    stage: Cell<Stage>,
    /// V2, as long as no client writes to the snapshot.
    seen: RefCell<Option<Vec<Content>>>,
}

struct Verbs {
    /// Drives fail in every way, also while volumes are opened.
    failing: bool,
}

fn linear() -> String {
    format!("0 {SECTORS} linear origin 0")
}

fn origin() -> String {
    format!("0 {SECTORS} snapshot-origin @real")
}

fn snapshot(target: &str) -> String {
    format!("0 {SECTORS} {target} @real cow P 4")
}

/// What the snapshot holds, unless it cannot be read.
async fn read_snapshot(server: &Server) -> Option<Vec<Content>> {
    let disk: Arc<dyn Disk> = server.registry.volume("s").ok()?;
    server.read_whole(&disk).await.ok()
}

/// True unless the snapshot has ended, which its status tells.
fn is_valid(server: &Server) -> bool {
    server.target("s").is_some_and(|target| !target.status().starts_with('I'))
}

/// Makes the store blank again, durably: the former one was discarded.
async fn make_store(server: &Server) -> Result<(), ConfigError> {
    let (env, cow) = (&server.env, server.registry.open("cow", false)?);
    let failed = |error| ConfigError::new(ConfigKind::System, "cow", "store").with_source(error);
    let failures = cow.failures();
    let zeroes = Io::on(Op::WriteZeroes, SectorRange::new(Sector(0), cow.sectors()));
    env.io(&cow, zeroes).await.map_err(failed)?;
    env.io(&cow, Io::flush()).await.map_err(failed)?;
    if cow.failures() == failures { Ok(()) } else { Err(failed(IoError::IO)) }
}

/// `snap create`. The store is formatted when the snapshot starts.
async fn create(server: &Server, record: &Record) -> Result<(), ConfigError> {
    let volume = server.registry.volume("o")?;
    make_store(server).await?;
    record.stage.set(Stage::Taken);
    volume.suspend(&server.env, SuspendMode::Flush).await?;
    volume.flush_disks(&server.env).await?;
    server.create("real", &linear()).await?;
    server.create("s", &snapshot("snapshot")).await?;
    server.load("o", &origin()).await
}

/// A user makes a snapshot; where drives fail that may be refused, and everything is as before.
async fn make_snapshot(server: &Server, record: &Record, failing: bool) {
    if let Err(error) = create(server, record).await {
        assert!(failing, "no drive fails: {error}");
        let goes_on = server.load("o", &linear()).await.is_ok();
        // What was lost in the removed volumes is no matter.
        let _ = server.remove("s").await;
        let _ = server.remove("real").await;
        record.stage.set(Stage::Plain);
        if !goes_on {
            server.resume_or_end(&server.volume("o"), true).await;
        }
        return;
    }
    // What was lost before is on no drive, whatever reads show; its writers are told.
    if !server.lost_writes() {
        *record.seen.borrow_mut() = read_snapshot(server).await;
    }
}

/// A user gives the origin up for its snapshot, whose clients go on.
async fn merge(server: &Server, record: &Record, failing: bool) {
    let volume = server.volume("s");
    let suspended = volume.suspend(&server.env, SuspendMode::Flush).await;
    assert!(failing || suspended.is_ok(), "no drive fails: {suspended:?}");
    if !is_valid(server) {
        // A copy failed.
        return server.resume_or_end(&volume, true).await;
    }
    let ended = server.load("o", &format!("0 {SECTORS} error")).await;
    assert!(failing || ended.is_ok(), "no drive fails: {ended:?}");
    record.stage.set(Stage::Merging);
    if let Err(error) = server.load("s", &snapshot("snapshot-merge")).await {
        assert!(failing, "no drive fails: {error}");
        server.resume_or_end(&volume, true).await;
    }
}

/// V2.
fn judge(found: &[Content], seen: &[Content]) -> Result<(), String> {
    let mut pairs = found.iter().zip(seen).enumerate();
    match pairs.find(|(_, (found, seen))| found != seen) {
        Some((sector, (found, seen))) => {
            Err(format!("the snapshot changed: sector {sector}: {found:?}, before {seen:?}"))
        }
        None => Ok(()),
    }
}

/// Brings up what is recorded; the volumes that clients use.
async fn assemble(server: Server, record: Rc<Record>) -> Opened {
    if record.stage.get() == Stage::Plain {
        return Ok(vec![server.create("o", &linear()).await?]);
    }
    server.create("real", &linear()).await?;
    if record.stage.get() == Stage::Merging {
        let merged = server.create("s", &snapshot("snapshot-merge")).await?;
        return Ok(if is_valid(&server) { vec![merged] } else { Vec::new() });
    }
    let snapshot = server.create("s", &snapshot("snapshot")).await?;
    let origin = server.create("o", &origin()).await?;
    if !is_valid(&server) {
        return Ok(vec![origin]);
    }
    let seen = record.seen.borrow().clone();
    if let Some(seen) = seen {
        let unread = || ConfigError::new(ConfigKind::System, "s", "it cannot be read");
        let found = read_snapshot(&server).await.ok_or_else(unread)?;
        if let Err(text) = judge(&found, &seen) {
            assert!(!is_valid(&server), "{text}");
        }
    }
    Ok(vec![snapshot, origin])
}

impl Scenario for Verbs {
    type Case = Record;

    fn types(&self) -> Vec<Arc<dyn TargetType>> {
        cairn_targets::types()
    }

    fn begin(&self, rng: &mut fastrand::Rng) -> (Record, Vec<(DriveOptions, Image)>) {
        let logical_block = [512, 2048][rng.usize(..2)];
        let drive = |name: &str, image| {
            (DriveOptions { logical_block, ..DriveOptions::named(name) }, image)
        };
        let bytes: Vec<u8> = (0..SECTORS).flat_map(|sector| [sector as u8 + 1; 512]).collect();
        let drives = vec![
            drive("origin", Image::of_bytes(&bytes)),
            drive("cow", Image::new(SectorCount(COW_SECTORS))),
        ];
        (Record { stage: Cell::new(Stage::Plain), seen: RefCell::default() }, drives)
    }

    fn open(&self, record: Rc<Record>, server: Server) -> LocalFuture<'static, Opened> {
        Box::pin(assemble(server, record))
    }

    fn workload(&self, _record: &Record, rng: &mut fastrand::Rng) -> Workload {
        let (seed, ops) = (rng.u64(..), rng.u64(..300));
        let mut workload = Workload::mixed(seed, ops);
        // Snapshots take no discards without being told to.
        workload.mix.discard = 0;
        workload
    }

    fn fails_at_start(&self) -> bool {
        self.failing
    }

    fn trouble(
        &self,
        record: &Rc<Record>,
        generation: &Generation,
        rng: &mut fastrand::Rng,
    ) -> bool {
        let (record, failing) = (record.clone(), self.failing);
        if generation.disks.iter().any(|disk| disk.name() == "@s") {
            // Its clients write to it from now on.
            record.seen.borrow_mut().take();
        }
        if failing {
            plant_failures(&generation.world.all_drives(), [5, 30][rng.usize(..2)], None, rng);
        }
        let taken = record.stage.get() == Stage::Taken;
        let merges = taken && rng.u8(..3) == 0 && is_valid(generation.server);
        let creates = record.stage.get() == Stage::Plain && rng.u8(..4) != 0;
        if merges || creates {
            generation.start(2, async move |server| {
                server.pause(8000).await;
                match merges {
                    true => merge(&server, &record, failing).await,
                    false => make_snapshot(&server, &record, failing).await,
                }
            });
        }
        failing || merges
    }
}

#[test]
fn a_snapshot_made_and_merged_under_load_survives() {
    Campaign::new(Verbs { failing: false }).run();
}

#[test]
fn a_snapshot_made_and_merged_while_drives_fail_holds_or_ends() {
    Campaign::new(Verbs { failing: true }).run();
}

#[cfg(feature = "canary")]
mod canaries {
    use super::{Campaign, Verbs};
    use cairn_block::mutants::skip;

    #[test]
    fn a_snapshot_of_what_a_killed_process_left_volatile_is_caught() {
        let name = "snapshot: flush of the origin at a format";
        skip(Some(name));
        Campaign::new(Verbs { failing: false }).cuts(10_000).expect_caught(name);
        skip(None);
    }
}
