//! `bench layers`: what the request model costs. Stacked targets over a null and a memory disk,
//! the memory disk beside plain copying, and blocks that a write cache holds.
//!
//! Figures are processor time per request of one reactor that has nothing else to do. "added" is
//! the difference to the bare disk within each round.

use std::sync::Arc;

use cairn_backends::{MemoryDisk, NullDisk};
use cairn_block::{Disk, Op, SectorCount};
use cairn_format::writecache::Geometry;
use cairn_outcome::failure::Outcome;

use super::arena::Arena;
use super::cachefixture::{CacheFixture, NO_WRITEBACK, touch};
use super::fixture::Fixture;
use super::image;
use super::load::{Job, run as run_job, scattered, shuffled};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::styles;

const NAME: &str = "layers";
/// One that is asked nothing after it was built, and one that decides about each request and
/// sees each completion.
const TARGETS: [&str; 2] = ["linear", "passthrough"];
const DEPTHS: [usize; 4] = [0, 1, 3, 6];
/// Requests between two turns of the reactor: its own cost is another bench's matter.
const TURN: usize = 1024;
const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;
/// Fits into the processor's own cache together with its buffers.
const HOT_BYTES: u64 = 512 << 10;

/// Runs the benchmark.
///
/// # Errors
/// A disk cannot be made or used.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    let cold_bytes = settings.pick(256 * MIB, 8 * MIB);
    styles::run(settings, &mut report)?;
    for (disk, span) in [("null", HOT_BYTES), ("memory", HOT_BYTES), ("memory", cold_bytes)] {
        for target in TARGETS {
            for op in [Op::Read, Op::Write] {
                stack(settings, &mut report, Stack { target, disk, span, op })?;
            }
        }
    }
    for bytes in [4 * KIB, 64 * KIB, 512 * KIB] {
        for op in [Op::Read, Op::Write] {
            copying(settings, &mut report, cold_bytes, op, bytes)?;
        }
    }
    cached(settings, &mut report, cold_bytes)?;
    Ok(report)
}

fn word(op: Op) -> &'static str {
    if op == Op::Read { "read" } else { "write" }
}

/// Volumes over a disk, one on the other, and what is done to them.
#[derive(Clone, Copy)]
struct Stack {
    target: &'static str,
    disk: &'static str,
    span: u64,
    op: Op,
}

fn stack(settings: &Settings, report: &mut Report, stack: Stack) -> Outcome<()> {
    let Stack { target, disk: kind, span, op } = stack;
    let fixture = Fixture::make()?;
    let sectors = SectorCount::of_bytes(span);
    let disk: Arc<dyn Disk> = match kind {
        "null" => Arc::new(NullDisk::new(sectors)),
        _ => Arc::new(MemoryDisk::new(sectors)?),
    };
    fixture.put("disk", disk.clone());
    touch(&fixture, &disk)?;
    let mut disks = vec![disk];
    for depth in 1..=DEPTHS[DEPTHS.len() - 1] {
        let below = if depth == 1 { "disk".to_owned() } else { format!("@l{}", depth - 1) };
        disks.push(
            fixture.volume(&format!("l{depth}"), &format!("0 {sectors} {target} {below} 0"))?,
        );
    }
    let requests = settings.pick(400_000, 2_000);
    let job = Job::new(op, 4 * KIB, scattered(0, span, 4 * KIB, requests, 2)).per_turn(TURN);
    let subject = |depth: usize| -> Subject<'_, f64> {
        let (fixture, disk, job) = (&fixture, &disks[depth], &job);
        Box::new(move || Ok(run_job(fixture, disk, job)?.ns_each(job.requests())))
    };
    let taken = interleave(settings.runs, DEPTHS.map(subject).into())?;
    let taken: Vec<Samples> = taken.into_iter().map(Samples).collect();
    for (depth, samples) in DEPTHS.into_iter().zip(&taken) {
        let row = |samples: Samples| {
            Row::new(NAME, samples, "ns/request")
                .with("target", target)
                .with("disk", kind)
                .with("span_kib", span / 1024)
                .with("op", word(op))
                .with("layers", depth)
        };
        if depth == 0 {
            report.push(row(samples.clone()));
        } else {
            report.push(row(samples.clone()).against(&taken[0]));
            report.push(row(samples.zip(&taken[0], |all, bare| all - bare)).with("what", "added"));
        }
    }
    Ok(())
}

/// The memory disk beside copying between the same buffers and as much plain memory.
fn copying(
    settings: &Settings,
    report: &mut Report,
    span: u64,
    op: Op,
    bytes: usize,
) -> Outcome<()> {
    let fixture = Fixture::make()?;
    let (disk, arena) = (fixture.memory("disk", span)?, Arena::new(span));
    touch(&fixture, &disk)?;
    let job = Job::new(op, bytes, shuffled(span, bytes, 3));
    let subjects: Vec<Subject<'_, f64>> = vec![
        Box::new(|| Ok(arena.copy(&fixture, &job).us_each(job.requests()))),
        Box::new(|| Ok(run_job(&fixture, &disk, &job)?.us_each(job.requests()))),
    ];
    let taken = interleave(settings.runs, subjects)?;
    let [copy, disk]: [Samples; 2] = std::array::from_fn(|index| Samples(taken[index].clone()));
    let row = |samples: Samples| {
        Row::new(NAME, samples, "us/request")
            .with("disk", "memory")
            .with("op", word(op))
            .with("bytes", bytes)
    };
    report.push(row(disk.clone()).with("beside", "memcpy").against(&copy));
    report.push(row(disk.zip(&copy, |disk, copy| disk - copy)).with("what", "added"));
    Ok(())
}

/// What is done to a cache, and the state it is done in.
struct Case {
    what: &'static str,
    op: Op,
    bytes: usize,
    block_bytes: u32,
    span: u64,
    /// The blocks of the span are cached already, in order.
    holds: bool,
}

impl Case {
    fn metadata(&self, geometry: &Geometry) -> Vec<u8> {
        let held = if self.holds { self.span / u64::from(self.block_bytes) } else { 0 };
        image::make(geometry, |slot| (slot < held).then_some(slot))
    }
}

fn cases(span: u64) -> Vec<Case> {
    let case = |what, op, bytes, span, holds| {
        let block_bytes = if bytes < 4 * KIB { 512 } else { 4096 };
        Case { what, op, bytes, block_bytes, span, holds }
    };
    let mut cases = vec![
        case("read_hit", Op::Read, 4 * KIB, HOT_BYTES, true),
        case("read_hit", Op::Read, 4 * KIB, span, true),
    ];
    for (what, holds) in [("write_hit", true), ("insert", false)] {
        for bytes in [512, 4 * KIB, 64 * KIB, 512 * KIB] {
            cases.push(case(what, Op::Write, bytes, span, holds));
        }
    }
    cases
}

/// Cached blocks beside the bare memory disk with the same job.
fn cached(settings: &Settings, report: &mut Report, span: u64) -> Outcome<()> {
    let origin: Arc<dyn Disk> = Arc::new(NullDisk::new(SectorCount::of_bytes(span)));
    let cache = CacheFixture::make(span + span / 8, origin)?;
    let bare = cache.fixture.memory("bare", span)?;
    touch(&cache.fixture, &bare)?;
    let most = settings.pick(100_000, 1_000);
    for case in cases(span) {
        let geometry = cache.geometry(case.block_bytes)?;
        let metadata = Arc::new(case.metadata(&geometry));
        let places = if case.span == HOT_BYTES {
            scattered(0, case.span, case.bytes, most, 4)
        } else {
            let all = shuffled(case.span, case.bytes, 4);
            all[..all.len().min(most)].into()
        };
        let job = Job::new(case.op, case.bytes, places);
        let jobs = std::slice::from_ref(&job);
        let subjects: Vec<Subject<'_, f64>> = vec![
            Box::new(|| Ok(run_job(&cache.fixture, &bare, &job)?.us_each(job.requests()))),
            Box::new(|| {
                let measured = cache.measure(&geometry, &metadata, NO_WRITEBACK, jobs)?;
                Ok(measured.took[0].us_each(job.requests()))
            }),
        ];
        let taken = interleave(settings.runs, subjects)?;
        let [bare, cached]: [Samples; 2] =
            std::array::from_fn(|index| Samples(taken[index].clone()));
        let row = |samples: Samples| {
            Row::new(NAME, samples, "us/request")
                .with("cache", case.what)
                .with("bytes", case.bytes)
                .with("block", case.block_bytes)
                .with("span_kib", case.span / 1024)
        };
        report.push(row(cached.clone()).against(&bare));
        report.push(row(cached.zip(&bare, |cached, bare| cached - bare)).with("what", "added"));
    }
    Ok(())
}
