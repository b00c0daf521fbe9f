//! The part of `bench bcache` that drains: how long many scattered dirty keys take to go to the
//! backing device, in how many writes and flushes, and with how much memory.
//!
//! The cache device is memory, the backing device forgets what is written, so that the figures are
//! the program's own: add the time of the drives. Of three places for a key one has a dirty one, at
//! random, so that every third touches the one before it. Times are of the reactor's processor.
//!
//! Last, few keys are written back in the background, as fast as its default policy may: only the
//! flushes of the backing device are counted.

use std::sync::Arc;
use std::time::Duration;

use cairn_backends::MemoryDisk;
use cairn_block::sync::atomic::Ordering;
use cairn_block::{Disk, SECTOR_BYTES, SectorCount};
use cairn_format::bcache::Key;
use cairn_outcome::failure::Outcome;

use super::bcachefixture::{
    BACKING_FIRST, Backing, KEY, Remade, SET, make_backing, make_cache, number, sectors_for,
};
use super::clock::Moment;
use super::fixture::Fixture;
use super::recovery::Memory;
use super::row::{Report, Row, Samples};
use super::settings::Settings;

/// A full batch: at most one flush for each, or for each two seconds, whichever is more.
const BATCH_KEYS: u64 = 20_000;
const BATCH_SECONDS: f64 = 2.0;
/// The longest write.
const WRITE_SECTORS: u64 = 2048;

/// Keys of a small drain in the background, and how often it is looked at.
const FEW: u64 = 3000;
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// One drain.
struct Drain {
    open: f64,
    seconds: f64,
    wall: f64,
    writes: u64,
    flushes: u64,
    /// Bytes of the open set, at the peak of opening, and at the peak of the drain.
    held: u64,
    open_peak: u64,
    peak: u64,
}

/// Drains so many keys as often as the settings say. The larger set is what opening is judged by:
/// the target does more than `bench bcache` measures by its reader alone.
///
/// # Errors
/// A set cannot be made, opened or drained.
pub fn run(name: &'static str, settings: &Settings, report: &mut Report) -> Outcome<()> {
    for &keys in settings.pick(&[1_000_000, 10_000_000][..], &[30_000]) {
        run_with(keys, name, settings, report)?;
    }
    let flushes = || in_background(FEW);
    let flushes = (0..settings.runs).map(|_| flushes()).collect::<Outcome<Vec<f64>>>()?;
    let row = Row::new(name, Samples(flushes), "flushes").with("keys", FEW);
    report.push(row.with("what", "background writeback"));
    Ok(())
}

/// So many keys are written back in the background. Answers the flushes of the backing device.
fn in_background(keys: u64) -> Outcome<f64> {
    let extents = scattered(keys);
    let sectors = extents.last().map_or(KEY, |key| key.end() - BACKING_FIRST);
    let cache: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SectorCount(sectors_for(keys)))?);
    let backing = Arc::new(Backing::make(sectors + KEY)?);
    let set = Remade::make(1, cache, backing.clone())?;
    let volume = set.serve(&extents)?;
    backing.count_again();
    for setting in ["writeback_percent 0", "writeback_delay 0", "writeback_running 1"] {
        set.set(setting)?;
    }
    let dirty = || number(volume.mapped().expect("it is a volume"), "dirty_data");
    while dirty() > 0 {
        set.fixture.on(|env| async move { env.sleep(LOOK_EVERY).await });
    }
    let flushes = backing.flushes.load(Ordering::Relaxed) as f64;
    set.end(volume)?;
    Ok(flushes)
}

fn run_with(
    keys: u64,
    name: &'static str,
    settings: &Settings,
    report: &mut Report,
) -> Outcome<()> {
    let extents = scattered(keys);
    let drains: Vec<Drain> = (0..settings.runs).map(|_| drain(&extents)).collect::<Outcome<_>>()?;
    let samples = |of: &dyn Fn(&Drain) -> f64| Samples(drains.iter().map(of).collect());
    let row =
        |value, unit, what: &str| Row::new(name, value, unit).with("keys", keys).with("what", what);
    let open = |value, unit| row(value, unit, "open to drain");
    report.push(open(samples(&|drain| drain.open), "s"));
    // Memory that a round gave back may serve the next unseen.
    let each = |bytes: u64| Samples(vec![bytes as f64 / keys as f64]);
    let held = each(drains[0].held);
    report.push(open(held, "bytes/key").with("memory", "held"));
    let peak = each(drains[0].open_peak);
    report.push(open(peak, "bytes/key").with("memory", "peak"));
    report.push(row(samples(&|drain| drain.seconds), "s", "drain"));
    report.push(row(samples(&|drain| keys as f64 / drain.seconds), "keys/s", "drain"));
    let peak = Samples(vec![drains[0].peak as f64 / (1 << 20) as f64]);
    report.push(row(peak, "MiB", "drain").with("memory", "peak"));
    let runs = runs_of(&extents) as f64;
    let row = |value, unit, beside: &str| row(value, unit, "drain").with("beside", beside);
    let writes = row(samples(&|drain| drain.writes as f64), "writes", "runs of touching keys");
    report.push(writes.against(&samples(&|_| runs)));
    let batches = keys.div_ceil(BATCH_KEYS) as f64;
    let most = |drain: &Drain| batches.max((drain.wall / BATCH_SECONDS).ceil());
    let flushes = row(samples(&|drain| drain.flushes as f64), "flushes", "full batches");
    report.push(flushes.against(&samples(&most)));
    Ok(())
}

/// The keys, in order.
fn scattered(keys: u64) -> Vec<Key> {
    let rng = &mut fastrand::Rng::with_seed(13);
    let places = (0..).filter(|_| rng.u8(..3) == 0).take(keys as usize);
    places
        .map(|place: u64| Key::new(0, BACKING_FIRST + (place + 1) * KEY, KEY).with_dirty(true))
        .collect()
}

/// How many writes they need at least.
fn runs_of(extents: &[Key]) -> u64 {
    let (mut runs, mut start, mut end) = (0, 0, 0);
    for key in extents {
        if key.start() != end || key.end() - start > WRITE_SECTORS {
            (runs, start) = (runs + 1, key.start());
        }
        end = key.end();
    }
    runs
}

fn drain(extents: &[Key]) -> Outcome<Drain> {
    let fixture = Fixture::make()?;
    let disk = fixture.memory("cache", sectors_for(extents.len() as u64) * SECTOR_BYTES)?;
    make_cache(&fixture, &disk, SET, extents)?;
    let sectors = extents.last().map_or(KEY, |key| key.end() - BACKING_FIRST);
    let backing = Arc::new(Backing::make(sectors)?);
    fixture.put("backing", backing.clone());
    make_backing(&fixture, &(backing.clone() as Arc<dyn Disk>), SET)?;
    let before = Memory::now()?;
    Memory::forget_peak()?;
    let table = format!("0 {sectors} bcache backing cache 0");
    let began = fixture.on(|_| async { Moment::now() });
    fixture.volume("volume", &table)?;
    let open = fixture.on(move |_| async move { began.elapsed() });
    let opened = Memory::now()?;
    Memory::forget_peak()?;
    backing.count_again();
    let took = fixture.drain("volume")?;
    let after = Memory::now()?;
    let grown = |bytes: u64| bytes.saturating_sub(before.held);
    let drain = Drain {
        open: open.processor.as_secs_f64(),
        seconds: took.processor.as_secs_f64(),
        wall: took.wall.as_secs_f64(),
        writes: backing.writes.load(Ordering::Relaxed),
        flushes: backing.flushes.load(Ordering::Relaxed),
        held: grown(opened.held),
        open_peak: grown(opened.peak),
        peak: grown(after.peak),
    };
    fixture.remove("volume")?;
    Ok(drain)
}
