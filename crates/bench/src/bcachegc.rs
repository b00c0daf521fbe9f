//! The part of `bench bcache` that collects: how much processor time a pass takes that finds little
//! to do, by the number of extents. It looks at all nodes for sparse ones, at all buckets for
//! sparse ones, and at all extents for those in the buckets that it packs.
//!
//! The cache device forgets what is written once the set is open, so that the figure is the
//! program's own. Of every fiftieth bucket half is discarded: the pass packs some of these.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{
    ConfigError, ConfigKind, Disk, Io, IoResult, MessageError, Op, SECTOR_BYTES, Sector,
    SectorCount, SectorRange,
};
use cairn_format::bcache::Key;
use cairn_outcome::failure::Outcome;

use super::bcachefixture::{
    BACKING_FIRST, Cache, KEY, SET, make_backing, make_cache, number, sectors_for,
};
use super::clock::Moment;
use super::fixture::Fixture;
use super::row::{Report, Row, Samples};
use super::settings::Settings;

/// How many buckets are made sparse, and sectors of a bucket's extents and what lies between them.
const SPARSE: u64 = 64;
const BUCKET_SPAN: u64 = 2048;

/// A pass.
struct Pass {
    seconds: f64,
    moved: u64,
}

/// Collects as often as the settings say.
///
/// # Errors
/// A set cannot be made or opened, or a request failed.
pub fn run(name: &'static str, settings: &Settings, report: &mut Report) -> Outcome<()> {
    for &extents in settings.pick(&[1_000_000, 10_000_000][..], &[20_000]) {
        let passes: Vec<Pass> =
            (0..settings.runs).map(|_| pass(extents)).collect::<Outcome<_>>()?;
        let samples = |of: fn(&Pass) -> f64| Samples(passes.iter().map(of).collect());
        let row = |value, unit| {
            let row = Row::new(name, value, unit).with("extents", extents);
            row.with("what", "collect").with("moved buckets", passes[0].moved)
        };
        report.push(row(samples(|pass| pass.seconds), "s"));
    }
    Ok(())
}

fn pass(extents: u64) -> Outcome<Pass> {
    let fixture = Fixture::make()?;
    let key = |n: u64| Key::new(0, BACKING_FIRST + n * 2 * KEY, KEY).with_dirty(true);
    let keys: Vec<Key> = (1..=extents).map(key).collect();
    let cache = Arc::new(Cache::make(sectors_for(extents))?);
    fixture.put("cache", cache.clone());
    make_cache(&fixture, &(cache.clone() as Arc<dyn Disk>), SET, &keys)?;
    drop(keys);
    let sectors = (extents + 1) * 2 * KEY;
    let backing: Arc<dyn Disk> =
        fixture.memory("backing", (BACKING_FIRST + sectors) * SECTOR_BYTES)?;
    make_backing(&fixture, &backing, SET)?;
    let volume = fixture.volume("volume", &format!("0 {sectors} bcache backing cache 0"))?;
    cache.forgets.store(true, Ordering::Relaxed);
    fixture.message("volume", "set writeback_running 0")?;
    let device = volume.clone();
    let discarded: IoResult = fixture.on(move |env| async move {
        let buckets = device.sectors().0 / BUCKET_SPAN;
        for index in (0..buckets).step_by((buckets / SPARSE).max(1) as usize) {
            let range = SectorRange::new(Sector(index * BUCKET_SPAN), SectorCount(BUCKET_SPAN / 2));
            env.io(&device, Io::on(Op::Discard, range)).await?;
        }
        env.make_durable(&device).await
    });
    discarded.map_err(|error| ConfigError::new(ConfigKind::System, "bench", error.to_string()))?;
    let collected = fixture.on(move |env| async move {
        let mapped = volume.mapped().expect("it is a volume");
        let before = number(mapped, "gc_passes");
        let began = Moment::now();
        mapped.message(&env, Sector(0), &["set", "trigger_gc", "1"]).await?;
        while number(mapped, "gc_passes") == before {
            env.sleep(Duration::from_millis(1)).await;
        }
        let seconds = began.elapsed().processor.as_secs_f64();
        Ok::<_, MessageError>(Pass { seconds, moved: number(mapped, "moved_buckets") })
    });
    fixture.remove("volume")?;
    collected.map_err(|error| {
        ConfigError::new(ConfigKind::System, "bench", format!("trigger_gc: {error}"))
    })
}
