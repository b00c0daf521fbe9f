//! The part of `bench bcache` with little memory for the extents: a set is opened under a limit
//! (`btree_cache_size`) that a part of its tree fits into, read at random, and drained. It tells
//! the peak of the process's memory while the set is opened, and the most that the extents took
//! then and later (`btree_cache_used`).
//!
//! The cache device is memory, the backing device forgets what is written. The extents have 4 KiB
//! each, with as much between two of them. An attribute of a set is set while a volume serves it:
//! so the volume is made over a set of one extent, gets the limit, is suspended, and finds the
//! large set when it is resumed.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, Io, IoError, MappedDevice, MessageError, SECTOR_BYTES,
    Sector, SectorCount, SectorRange,
};
use cairn_format::bcache::Key;
use cairn_outcome::failure::Outcome;
use futures_util::FutureExt;
use futures_util::future::{Either, join_all, select};

use super::bcachefixture::{
    BACKING_FIRST, Backing, KEY, SET, make_backing, make_cache, number, sectors_for,
};
use super::clock::Moment;
use super::fixture::Fixture;
use super::recovery::Memory;
use super::row::{Report, Row, Samples};
use super::settings::Settings;

/// Bytes of the limit for each extent: a fifth of the tree's memory.
const LIMIT: f64 = 6.7;
/// Beyond the limit: leaves that were read for requests that wait, and those of a task.
const SLACK: u64 = 8 << 20;
/// Reads that are started together.
const TOGETHER: u64 = 32;

/// What was measured.
struct Limited {
    /// Seconds of the processor, and the peak of memory, while the set is opened.
    open: f64,
    open_peak: u64,
    /// Bytes of extents: once it is open, and the most during the reads and the drain.
    opened: u64,
    reading: u64,
    draining: u64,
    /// Seconds of the drain.
    drain: f64,
}

/// Measures once for each size.
///
/// # Errors
/// A set cannot be made, opened, read or drained, or its extents take more than the limit and
/// [`SLACK`].
pub fn run(name: &'static str, settings: &Settings, report: &mut Report) -> Outcome<()> {
    for &extents in settings.pick(&[1_000_000, 10_000_000][..], &[20_000]) {
        let limit = (extents as f64 * LIMIT) as u64;
        let reads = settings.pick(20_000, 2_000);
        let it = measure(extents, limit, reads)?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let row = |value, unit, what: &str| {
            let row = Row::new(name, Samples(vec![value]), unit).with("extents", extents);
            row.with("limit MiB", mib(limit).round() as u64).with("what", what)
        };
        report.push(row(it.open, "s", "open"));
        report.push(row(mib(it.open_peak), "MiB", "open").with("memory", "peak"));
        for (bytes, what) in [(it.opened, "open"), (it.reading, "reads"), (it.draining, "drain")] {
            report.push(row(mib(bytes), "MiB", what).with("memory", "btree_cache_used"));
            if bytes > limit + SLACK {
                let expected = format!("{limit} and {SLACK} at most");
                let detail =
                    format!("{what}: btree_cache_used: found {bytes}, expected {expected}");
                return Err(ConfigError::new(ConfigKind::System, "bench", detail));
            }
        }
        report.push(row(it.drain, "s", "drain"));
    }
    Ok(())
}

fn measure(extents: u64, limit: u64, reads: u64) -> Outcome<Limited> {
    let fixture = Fixture::make()?;
    let disk = fixture.memory("cache", sectors_for(extents) * SECTOR_BYTES)?;
    let key = |n: u64| Key::new(0, BACKING_FIRST + n * 2 * KEY, KEY).with_dirty(true);
    make_cache(&fixture, &disk, SET, &[key(1)])?;
    let sectors = (extents + 1) * 2 * KEY;
    let backing: Arc<dyn Disk> = Arc::new(Backing::make(sectors)?);
    fixture.put("backing", backing.clone());
    make_backing(&fixture, &backing, SET)?;
    fixture.volume("volume", &format!("0 {sectors} bcache backing cache 0"))?;
    fixture.message("volume", &format!("set btree_cache_size {limit}"))?;
    fixture.message("volume", "set writeback_running 0")?;
    fixture.suspend("volume")?;
    let keys: Vec<Key> = (1..=extents).map(key).collect();
    make_cache(&fixture, &disk, SET, &keys)?;
    drop(keys);
    make_backing(&fixture, &backing, SET)?;
    let before = Memory::now()?;
    Memory::forget_peak()?;
    let began = fixture.on(|_| async { Moment::now() });
    fixture.resume("volume")?;
    let open = fixture.on(move |_| async move { began.elapsed() });
    let open_peak = Memory::now()?.peak.saturating_sub(before.held);
    let opened = used_by(&*fixture.mapped("volume")?);
    let reading = read_some(&fixture, "volume", extents, reads)?;
    let (draining, drain) = drain(&fixture, "volume")?;
    fixture.remove("volume")?;
    let open = open.processor.as_secs_f64();
    Ok(Limited { open, open_peak, opened, reading, draining, drain })
}

fn used_by(volume: &MappedDevice) -> u64 {
    number(volume, "btree_cache_used")
}

/// Reads extents at random. Answers the most that the extents in memory took.
fn read_some(fixture: &Fixture, name: &str, extents: u64, reads: u64) -> Outcome<u64> {
    let volume = fixture.mapped(name)?;
    let read = fixture.on(move |env| async move {
        let (rng, disk) = (&mut fastrand::Rng::with_seed(7), volume.clone() as Arc<dyn Disk>);
        let mut most = 0;
        for _ in 0..reads / TOGETHER {
            let places = (0..TOGETHER).map(|_| (2 * rng.u64(1..=extents) - 1) * KEY);
            let places: Vec<u64> = places.collect();
            let all = join_all(places.iter().map(|at| read(&env, &disk, *at))).await;
            all.into_iter().collect::<Result<(), _>>()?;
            most = most.max(used_by(&volume));
        }
        Ok::<_, IoError>(most)
    });
    read.map_err(|error| ConfigError::new(ConfigKind::System, "bench", error.to_string()))
}

async fn read(env: &Env, disk: &Arc<dyn Disk>, at: u64) -> Result<(), IoError> {
    let range = SectorRange::new(Sector(at), SectorCount(KEY));
    env.io(disk, Io::read(range, env.segs(range.count))).await
}

/// Drains. Answers the most that the extents in memory took, and how many seconds it took.
fn drain(fixture: &Fixture, name: &str) -> Outcome<(u64, f64)> {
    let volume = fixture.mapped(name)?;
    fixture.on(move |env| async move {
        let (began, mut most) = (Moment::now(), 0);
        let mut drained = volume.drain_caches(&env).boxed_local();
        loop {
            let pause = env.sleep(Duration::from_millis(1)).boxed_local();
            match select(drained, pause).await {
                Either::Left((end, _)) => {
                    let failed = |error: MessageError| {
                        ConfigError::new(ConfigKind::System, "bench", error.to_string())
                    };
                    end.map_err(failed)?;
                    return Ok((most, began.elapsed().processor.as_secs_f64()));
                }
                Either::Right(((), rest)) => drained = rest,
            }
            most = most.max(used_by(&volume));
        }
    })
}
