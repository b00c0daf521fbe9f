//! Power cuts at any write, by policy of flushes: what clients had been promised, and what is left.
//!
//! Each life is a world of the campaign's scheduler with drives that lose, reorder and tear what is
//! volatile. Two clients write, with FUA or with flushes after some writes; long runs go around the
//! cache; writeback is on from the beginning. The power is cut at a seeded write. Then cairn's own
//! policy opens the set. The volume is read; all dirty data is written back; the backing device is
//! read, as after a detach. A sector of either reading must be what a client wrote last, durably,
//! or later ([`History`]).

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    ConfigError, ConfigKind, Disk, Io, MappedDevice, Registry, Sector, SectorCount, SectorRange,
};
use cairn_format::bcache::DATA_OFFSET;
use cairn_outcome::failure::Outcome;
use cairn_outcome::stderr;
use cairn_sim::{
    Connection, Content, Cut, CutWhen, DriveModel, DriveOptions, History, Image, Mix, SimWorld,
    Workload,
};

use super::{Bar, Shown};
use crate::experiment::run::open;
use crate::fill::bcache::{BackingSpec, CacheSpec, Plan};
use crate::fill::{ImageSink, Pattern};
use crate::jobs;
use crate::page::{Part, Table};

/// Sectors of the drives and of a bucket.
const CACHE: u64 = (8 << 20) / 512;
const BACKING: u64 = (1 << 20) / 512 + DATA_OFFSET;
const BUCKET: u64 = 64;
/// Operations of a life.
const OPERATIONS: u64 = 400;

/// The policies, and what those that lose something had promised before which step.
const POLICIES: [(&str, &str); 10] = [
    ("ours", ""),
    ("forwarded", ""),
    ("fua", ""),
    ("batch-500", ""),
    ("batch-20000", ""),
    (
        "stock",
        "A flush promised the data, in the cache. Its key became clean before the backing device \
         was flushed after the copy, so only the clean copy had the data.",
    ),
    (
        "patch-v0",
        "A flush promised a write around the cache, and did not reach the backing device.",
    ),
    (
        "patch-v1",
        "A flush promised a write around the cache while the flush that had taken the bit was \
         still under way, or after that flush had overtaken the write.",
    ),
    ("patch-v2", "As patch-v1."),
    ("one-bit", "As patch-v1."),
];

/// Runs so many lives of each policy, and makes a table.
///
/// # Errors
/// A target refuses its devices.
pub fn show(cuts: u64) -> Outcome<Shown> {
    let columns = [
        "policy",
        "cuts",
        "lives that lost acknowledged writes",
        "of these, seen without the cache only",
        "first life",
        "window",
    ];
    let mut table = Table::new("Power cuts", &columns);
    let mut bars = Vec::new();
    for (policy, window) in POLICIES {
        let lives: Vec<u64> = (0..cuts).collect();
        let ends = jobs::each(jobs::threads(), &lives, |&life| live(policy, life))?;
        let first = ends.iter().position(Option::is_some).map(|life| life.to_string());
        let found: Vec<Lost> = ends.into_iter().flatten().collect();
        let (lost, detached) = (found.len(), found.iter().filter(|it| it.is_detached).count());
        stderr::say(format_args!("{policy}: {lost} of {cuts} lives lost acknowledged writes"));
        let row = [
            policy.to_owned(),
            cuts.to_string(),
            lost.to_string(),
            detached.to_string(),
            first.unwrap_or_default(),
            window.to_owned(),
        ];
        table.row(&row.each_ref().map(String::as_str));
        let (what, found, least) = match window {
            "" => {
                ("lives that lost nothing, of all", (cuts - lost as u64) as f64 / cuts as f64, 1.0)
            }
            _ => ("lives that lost acknowledged writes", lost as f64, 1.0),
        };
        bars.push(Bar { what: format!("power cuts, {policy}: {what}"), found, least });
    }
    Ok(Shown { parts: vec![Part::Table(table)], bars })
}

/// An acknowledged write that is lost.
#[derive(Debug)]
pub struct Lost {
    /// The cache still has it, as clean data; the backing device does not.
    pub is_detached: bool,
    /// The first sector, and what it should have.
    pub what: String,
}

/// One life: what is lost, if anything is.
///
/// # Errors
/// A target refuses its devices.
pub fn live(policy: &str, life: u64) -> Outcome<Option<Lost>> {
    let mut rng = fastrand::Rng::with_seed(life.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
    let images = set(rng.u64(..))?;
    let is_volatile = rng.bool();
    let world = world(rng.u64(..), images, is_volatile);
    let settings = ["sequential_cutoff 16384", "writeback_delay 0", "writeback_percent 0"];
    let volume = serve(&world, policy, &settings)?;
    let disk: Arc<dyn Disk> = volume.clone();
    let history = History::new(rng.u64(..), contents(&world, &disk, 0)?);
    let clients: Vec<_> = (0..2).map(|_| Connection::new(&world, &disk, &history)).collect();
    let cut = Cut {
        index: world.writes() + rng.u64(..3 * OPERATIONS),
        when: if rng.bool() { CutWhen::Submitted } else { CutWhen::Completed },
    };
    world.cut_at(cut);
    let running = workload(&mut rng).start_for(&world, clients);
    // Whether the cut comes before the end or not.
    let _ = world.try_run_until(|| running.is_done());
    world.power_off();
    let mut images = world.images_after_power_cut(&mut rng).into_iter();
    let images = std::array::from_fn(|_| images.next().expect("two drives").1);
    drop((running, volume, disk));
    judge(rng.u64(..), images, is_volatile, &history)
}

/// What is left, read as a volume and from the backing device alone.
fn judge(
    seed: u64,
    images: [Image; 2],
    is_volatile: bool,
    history: &History,
) -> Outcome<Option<Lost>> {
    let world = world(seed, images, is_volatile);
    let volume = serve(&world, "ours", &[])?;
    let disk: Arc<dyn Disk> = volume.clone();
    if let Err(lost) = history.check_after_crash(&contents(&world, &disk, 0)?) {
        return Ok(Some(Lost { is_detached: false, what: lost.to_string() }));
    }
    let drained = world.block_on(0, |env| async move { volume.drain_caches(&env).await });
    drained.map_err(|error| ConfigError::new(ConfigKind::System, "drain", error.to_string()))?;
    let backing: Arc<dyn Disk> = world.drive("backing");
    let alone = history.check_after_crash(&contents(&world, &backing, DATA_OFFSET)?);
    Ok(alone.err().map(|lost| Lost { is_detached: true, what: lost.to_string() }))
}

/// Short and long operations, with hot places and runs. In one half of the lives clients make most
/// writes durable by flushes, in the other by FUA, with few flushes: each flush that reaches the
/// backing device also covers keys that became clean without one.
fn workload(rng: &mut fastrand::Rng) -> Workload {
    let (fua, flush) = if rng.bool() { (5, 40) } else { (40, 1) };
    Workload {
        in_flight: 2,
        mix: Mix { read: 5, write: 50, fua, flush, zeroes: 0, discard: 0, zero_data: 0 },
        min: SectorCount(8),
        pause: Duration::from_micros(500),
        ..Workload::mixed(rng.u64(..), OPERATIONS)
    }
}

/// A set without data: the cache, and the backing device.
fn set(seed: u64) -> Outcome<[Image; 2]> {
    let plan = Plan {
        cache: CacheSpec { device_sectors: CACHE, bucket_sectors: BUCKET },
        backings: vec![BackingSpec { device_sectors: BACKING, weight: 1 }],
        dirty_percent: 0.0,
        clean_percent: 0.0,
        block_sectors: 8,
        pattern: Pattern::Uniform,
        seed,
    };
    let refused = |error: String| ConfigError::new(ConfigKind::Argument, "set", error);
    let layout = plan.lay_out().map_err(|error| refused(error.to_string()))?;
    let mut images = [CACHE, BACKING].map(|sectors| Image::new(SectorCount(sectors)));
    let [cache, backing] = &mut images;
    let written = layout.write(ImageSink(cache), &mut [ImageSink(backing)]);
    written.map_err(|error| refused(error.to_string()))?;
    Ok(images)
}

fn world(seed: u64, [cache, backing]: [Image; 2], is_volatile: bool) -> SimWorld {
    let world = SimWorld::new(seed, SimWorld::REACTORS);
    let options = DriveOptions { volatile_cache: is_volatile, ..DriveOptions::named("cache") };
    world.add_drive(options, cache);
    let options = DriveOptions { model: DriveModel::SLOW, ..DriveOptions::named("backing") };
    world.add_drive(options, backing);
    world
}

fn serve(world: &SimWorld, policy: &str, settings: &[&str]) -> Outcome<Arc<MappedDevice>> {
    let registry = Arc::new(Registry::new(Box::new(world.opener())));
    let table = format!("0 N bcache backing cache 2 flushes {policy}");
    let messages: Vec<String> = settings.iter().map(|it| format!("set {it}")).collect();
    world.block_on(
        0,
        move |env| async move { open(&env, &registry, "volume", &table, &messages).await },
    )
}

/// All of a disk from a sector on, by its stamps.
fn contents(world: &SimWorld, disk: &Arc<dyn Disk>, first: u64) -> Outcome<Vec<Content>> {
    let range = SectorRange::between(Sector(first), Sector(disk.sectors().0));
    let disk = disk.clone();
    let bytes = world.block_on(0, move |env| async move {
        let segs = env.segs(range.count);
        env.io(&disk, Io::read(range, segs.clone())).await.map(|()| segs.to_vec())
    });
    let bytes =
        bytes.map_err(|error| ConfigError::new(ConfigKind::System, "read", error.to_string()))?;
    Ok(History::contents(Sector(0), &bytes))
}

#[cfg(test)]
mod tests {
    use super::{Lost, POLICIES, live};

    /// The losses of so many lives.
    fn lost(policy: &str, lives: u64) -> impl Iterator<Item = Lost> {
        (0..lives).filter_map(move |life| live(policy, life).expect("it opens"))
    }

    #[test]
    fn power_is_cut_with_each_policy_of_the_target() {
        let own = POLICIES.map(|(policy, _)| policy);
        let all = cairn_targets::bcache::flush_policies().map(|(policy, _)| policy);
        let (mut own, mut all) = (own.to_vec(), all.collect::<Vec<_>>());
        own.sort_unstable();
        all.sort_unstable();
        assert_eq!(own, all);
    }

    #[test]
    fn safe_policies_lose_nothing() {
        for (policy, _) in POLICIES.into_iter().filter(|(_, window)| window.is_empty()) {
            let lost = lost(policy, 30).next();
            assert!(lost.is_none(), "{policy}: {lost:?}");
        }
    }

    #[test]
    fn each_of_the_other_policies_loses_acknowledged_writes_in_its_window() {
        for (policy, _) in POLICIES.into_iter().filter(|(_, window)| !window.is_empty()) {
            // The clean copy of stock is gone after a detach, or when its bucket is used again.
            let mut lost = lost(policy, 200);
            let found = lost.find(|lost| lost.is_detached == (policy == "stock"));
            assert!(found.is_some(), "{policy}: nothing of its window is lost");
        }
    }
}
