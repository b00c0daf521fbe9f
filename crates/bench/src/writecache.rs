//! `bench writecache`: large writes into a write cache, fresh and aged, beside the raw memory
//! disk; then working sets larger than the cache, and the kernel's dm-writecache if asked for.
//!
//! The job: 512 KiB random writes, 32 at a time, once over the span, then a flush inside the
//! timing. `insert`: nothing of the span is cached before. `overwrite`: all of it is.
//!
//! States of the cache before the job (what lies in it belongs to other parts of the origin):
//! - fresh: just formatted.
//! - churned: filled once with random 4 KiB writes that were all written back.
//! - turned: turned over ten times by random 4 KiB writes, writeback keeping up; half full.
//! - checkerboard: every other block in use, and the job begins at once: the worst there is.
//! - mended: a checkerboard that was left alone until writeback had mended it.
//!
//! Every round begins from the same state, restored by its metadata. Figures are processor time
//! of the one reactor, commits included.

use std::sync::Arc;

use cairn_backends::MemoryDisk;
use cairn_block::{Disk, Op, SECTOR_BYTES, SectorCount};
use cairn_format::writecache::Geometry;
use cairn_outcome::failure::Outcome;

use super::arena::Arena;
use super::cachefixture::{CacheFixture, Measured, NO_WRITEBACK, touch};
use super::cachesizes::{Sizes, WRITE_BYTES};
use super::clock::{Took, mib_per_s};
use super::load::{Job, run as run_job, scattered};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::{image, kernel, larger};

const NAME: &str = "writecache";
/// Bytes of each write that ages the cache.
const AGING_BYTES: usize = 4 << 10;
/// Writeback keeps the cache about half full.
const AGING_OPTIONS: &str = "6 high_watermark 50 low_watermark 45 pause_writeback 0";
const STATES: [&str; 5] = ["fresh", "churned", "turned", "checkerboard", "mended"];
/// Nothing makes room for writes, so that only what is cut up moves writeback.
const MENDING_OPTIONS: &str = "6 high_watermark 100 low_watermark 100 pause_writeback 0";
const LARGER_BLOCKS: &str = "writecache: blocks of 8 KiB and more left out: the format ends at the \
    page size of the kernel (4 KiB here), which refuses them, as does this program";
const PHASES: [&str; 2] = ["insert", "overwrite"];

/// One way to do the job, once.
struct Pass {
    took: Took,
    writes: Vec<u64>,
}

/// Runs the benchmark.
///
/// # Errors
/// A disk or a cache cannot be made or used.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    let sizes = Sizes::of(settings);
    report.note(LARGER_BLOCKS);
    aged(settings, &sizes, &mut report)?;
    larger::run(settings, &mut report)?;
    if let Some(uml) = &settings.uml {
        kernel::run(settings, &sizes, uml, &mut report)?;
    }
    Ok(report)
}

fn aged(settings: &Settings, sizes: &Sizes, report: &mut Report) -> Outcome<()> {
    let origin = MemoryDisk::new(SectorCount::of_bytes(sizes.span + sizes.elsewhere()))?;
    let origin: Arc<dyn Disk> = Arc::new(origin);
    let cache = CacheFixture::make(sizes.cache, origin)?;
    let (raw, arena) = (cache.fixture.memory("raw", sizes.span)?, Arena::new(sizes.span));
    touch(&cache.fixture, &raw)?;
    for &block in sizes.blocks {
        let geometry = cache.geometry(block)?;
        let states: Vec<Arc<Vec<u8>>> = STATES
            .into_iter()
            .map(|state| metadata(&cache, sizes, &geometry, state))
            .collect::<Outcome<_>>()?;
        let jobs = [sizes.job(5), sizes.job(6)];
        let mut subjects: Vec<Subject<'_, Vec<Pass>>> = vec![
            Box::new(|| Ok(vec![alone(arena.copy(&cache.fixture, &jobs[0]))])),
            Box::new(|| Ok(vec![alone(run_job(&cache.fixture, &raw, &jobs[0])?)])),
        ];
        for metadata in &states {
            let (cache, geometry, jobs) = (&cache, &geometry, &jobs);
            subjects.push(Box::new(move || {
                Ok(passes(cache.measure(geometry, metadata, NO_WRITEBACK, jobs)?))
            }));
        }
        let taken = interleave(settings.runs, subjects)?;
        tell(report, sizes, block, &taken);
    }
    Ok(())
}

fn alone(took: Took) -> Pass {
    Pass { took, writes: Vec::new() }
}

fn passes(measured: Measured) -> Vec<Pass> {
    let both = measured.took.into_iter().zip(measured.writes);
    both.map(|(took, writes)| Pass { took, writes }).collect()
}

/// The metadata of a cache in a state.
fn metadata(
    cache: &CacheFixture,
    sizes: &Sizes,
    geometry: &Geometry,
    state: &str,
) -> Outcome<Arc<Vec<u8>>> {
    let block_bytes = u64::from(geometry.block_size().bytes());
    let beyond = sizes.span / block_bytes;
    let fresh = Arc::new(image::make(geometry, |_| None));
    let aging = |writes: u64| {
        let places = scattered(sizes.span, sizes.elsewhere(), AGING_BYTES, writes as usize, 7);
        Job::new(Op::Write, AGING_BYTES, places).flushed()
    };
    let cache_writes = sizes.cache / AGING_BYTES as u64;
    match state {
        "fresh" => Ok(fresh),
        "checkerboard" | "mended" => {
            let every_other = |slot: u64| slot.is_multiple_of(2).then(|| beyond + slot);
            let checkerboard = Arc::new(image::make(geometry, every_other));
            if state == "checkerboard" {
                return Ok(checkerboard);
            }
            cache.leave_alone(geometry, &checkerboard, MENDING_OPTIONS)?;
            cache.metadata(geometry)
        }
        "churned" => {
            // What is left at the end goes home with the cleaner.
            let fill = [aging(cache_writes * 9 / 10)];
            cache.measure(geometry, &fresh, NO_WRITEBACK, &fill)?;
            let filled = cache.metadata(geometry)?;
            cache.measure(geometry, &filled, "1 cleaner", &[])?;
            cache.metadata(geometry)
        }
        _ => {
            let turned = [aging(cache_writes * sizes.turnovers)];
            cache.measure(geometry, &fresh, AGING_OPTIONS, &turned)?;
            cache.metadata(geometry)
        }
    }
}

/// The value of each round that `of` takes from a pass.
fn samples(taken: &[Vec<Pass>], phase: usize, of: impl Fn(&Pass) -> f64) -> Samples {
    Samples(taken.iter().map(|passes| of(&passes[phase])).collect())
}

fn tell(report: &mut Report, sizes: &Sizes, block: u32, taken: &[Vec<Vec<Pass>>]) {
    let speed = |pass: &Pass| mib_per_s(sizes.span, pass.took.processor);
    let requests = (sizes.span / WRITE_BYTES as u64) as usize;
    let us = |pass: &Pass| pass.took.us_each(requests);
    let (copy, raw) = (samples(&taken[0], 0, speed), samples(&taken[1], 0, speed));
    let raw_us = samples(&taken[1], 0, us);
    let row = |value: Samples, unit| Row::new(NAME, value, unit).with("block", block);
    report.push(row(raw.clone(), "MiB/s").with("state", "raw_disk").against(&copy));
    for (phase, what) in PHASES.into_iter().enumerate() {
        let fresh = samples(&taken[2], phase, speed);
        for (state, passes) in STATES.into_iter().zip(&taken[2..]) {
            let row = |value: Samples, unit| row(value, unit).with("state", state).with("op", what);
            let speeds = samples(passes, phase, speed);
            report.push(row(speeds.clone(), "MiB/s").against(&raw));
            if state != "fresh" {
                report.push(row(speeds, "MiB/s").with("beside", "fresh").against(&fresh));
            }
            let blocks = (WRITE_BYTES as u64 / u64::from(block)) as f64;
            let fixed = samples(passes, phase, us).zip(&raw_us, |all, raw| (all - raw) / blocks);
            report.push(row(fixed, "us/block").with("what", "added_per_block"));
            let split = |pass: &Pass| pass.writes.iter().sum::<u64>() as f64 / requests as f64;
            let per_write = samples(passes, phase, split);
            report.push(row(per_write, "requests").with("what", "requests_per_write"));
            histogram(report, passes, phase, &row);
        }
    }
}

/// How long the runs of slots were that the writes went to: which share of the requests, by
/// powers of two.
fn histogram(
    report: &mut Report,
    passes: &[Vec<Pass>],
    phase: usize,
    row: &impl Fn(Samples, &'static str) -> Row,
) {
    let classes = passes.iter().map(|passes| passes[phase].writes.len()).max().unwrap_or(0);
    for class in 0..classes {
        let share = |pass: &Pass| {
            let all: u64 = pass.writes.iter().sum();
            100.0 * pass.writes[class] as f64 / all.max(1) as f64
        };
        let shares = samples(passes, phase, share);
        if shares.max() > 0.0 {
            let kib = (SECTOR_BYTES << class) as f64 / 1024.0;
            report.push(row(shares, "% of requests").with("what", "run").with("from_kib", kib));
        }
    }
}
