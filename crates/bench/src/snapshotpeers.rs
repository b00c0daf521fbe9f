//! Part of `bench snapshot`: the loads that other programs' snapshots were measured with, beside
//! plain copying; how plain copying itself scales; and the memory of eight snapshots.

use std::sync::Arc;

use cairn_backends::NullDisk;
use cairn_block::{Disk, Op, SectorCount};
use cairn_outcome::failure::Outcome;
use cairn_targets::snapshot::Locks;

use super::arena::{self, Arena};
use super::fixture::Fixture;
use super::load::run as run_job;
use super::recovery::Memory;
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::snapshotfixture::{
    Figures, MIB, NAME, Phase, Shape, Side, SnapshotFixture, cow_bytes, disks,
};

const CHUNK_BYTES: usize = 64 << 10;
/// Sectors.
const CHUNK: u64 = 128;
const SNAPSHOTS: usize = 8;

/// A load, and the snapshot that it is put on.
struct Load {
    what: &'static str,
    store: &'static str,
    phase: Phase,
    workers: u16,
}

/// A write of 4 KiB to each chunk of the origin, which copies the chunk.
const fn copies(depth: usize) -> Phase {
    let small = Phase::small("copy_out", Side::Origin, Op::Write);
    Phase { depth, stride: CHUNK_BYTES, ..small }
}

/// The same through the snapshot: the chunk is copied, then written.
const fn breaks(depth: usize) -> Phase {
    Phase { on: Side::Snapshot, ..copies(depth) }
}

const fn covers() -> Phase {
    let large = Phase::large("covers", Side::Snapshot, Op::Write);
    Phase { bytes: 512 << 10, stride: 512 << 10, in_order: false, ..large }
}

const LOADS: [Load; 13] = {
    const fn load(what: &'static str, store: &'static str, phase: Phase, workers: u16) -> Load {
        Load { what, store, phase, workers }
    }
    const READ: Phase = Phase::small("read_through", Side::Snapshot, Op::Read);
    [
        load("copy_out", "N", copies(1), 1),
        load("copy_out", "N", copies(32), 1),
        load("copy_out", "P", copies(32), 1),
        load("copy_out", "N", copies(32), 2),
        load("copy_out", "P", copies(32), 2),
        load("copy_on_write", "N", breaks(1), 1),
        load("copy_on_write", "N", breaks(32), 1),
        load("copy_on_write", "P", breaks(32), 1),
        load("copy_on_write", "N", breaks(32), 2),
        load("copy_on_write", "P", breaks(32), 2),
        load("covers", "P", covers(), 1),
        load("covers", "N", covers(), 1),
        load("read_through", "P", READ, 1),
    ]
};

/// Adds the rows.
///
/// # Errors
/// A disk or a snapshot cannot be made or used.
pub fn run(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let span = settings.pick(256 * MIB, 4 * MIB);
    let [origin, cow] = disks("memory", span)?;
    let fixture = |workers| SnapshotFixture::make(workers, Locks::Sharded, &origin, &cow);
    let fixtures = [fixture(1)?, fixture(2)?];
    let arenas: Vec<Arena> = (0..2).map(|_| Arena::new(span / 2)).collect();
    let copying = |bytes: usize, op: Op, workers: u16| -> Subject<'_, Figures> {
        let (fixture, arenas) = (fixtures[usize::from(workers) - 1].fixture(), &arenas);
        let phase = Phase { bytes, stride: bytes, op, ..covers() };
        // Each worker has an arena of its own, counted from zero.
        let jobs = vec![phase.jobs(span / 2, 1).remove(0); usize::from(workers)];
        Box::new(move || {
            let took = arena::copy_each(fixture, arenas, &jobs);
            Ok(Figures::of(jobs.iter().map(|job| job.requests()).sum(), &took))
        })
    };
    let mut subjects: Vec<Subject<'_, Figures>> = Vec::new();
    for workers in [1, 2] {
        for bytes in COPIED {
            subjects.push(copying(bytes, Op::Write, workers));
        }
    }
    subjects.push(copying(4 << 10, Op::Read, 1));
    let chunks = Phase { bytes: CHUNK_BYTES, stride: CHUNK_BYTES, ..covers() };
    let chunks = chunks.jobs(span / 2, 1).remove(0);
    let (fixture, from, to) = (fixtures[0].fixture(), &arenas[0], &arenas[1]);
    subjects.push(Box::new(move || {
        Ok(Figures::of(chunks.requests(), &[from.copy_across(fixture, to, &chunks)]))
    }));
    for load in &LOADS {
        let fixture = &fixtures[usize::from(load.workers) - 1];
        let shape = Shape { store: load.store, chunk: CHUNK };
        subjects.push(Box::new(move || {
            Ok(fixture.measure(shape, span, std::slice::from_ref(&load.phase))?.remove(0))
        }));
    }
    tell(report, &interleave(settings.runs, subjects)?);
    Ok(())
}

/// Sizes of the copies that the loads are compared with.
const COPIED: [usize; 4] = [4 << 10, CHUNK_BYTES, 256 << 10, 512 << 10];

fn tell(report: &mut Report, taken: &[Vec<Figures>]) {
    let us = |index: usize| Samples(taken[index].iter().map(|figures| figures.us).collect());
    let per_s = |index: usize| Samples(taken[index].iter().map(|figures| figures.per_s).collect());
    let count = COPIED.len();
    for (index, bytes) in COPIED.into_iter().enumerate() {
        let row =
            |unit, value| Row::new(NAME, value, unit).with("what", "memcpy").with("bytes", bytes);
        report.push(row("us/request", us(index)).with("workers", 1));
        let two = row("requests/s", per_s(count + index)).with("workers", 2);
        report.push(two.with("beside", "one_worker").against(&per_s(index)));
    }
    let first = 2 * count + 2;
    let (read_small, copy_chunk) = (us(2 * count), us(2 * count + 1));
    for (index, load) in (first..).zip(&LOADS) {
        let row = |unit, value| {
            Row::new(NAME, value, unit)
                .with("disk", "memory")
                .with("chunk", CHUNK_BYTES)
                .with("store", load.store)
                .with("what", load.what)
                .with("bytes", load.phase.bytes)
                .with("depth", load.phase.depth)
                .with("workers", load.workers)
        };
        let cost = row("us/request", us(index));
        match load.what {
            "covers" => report.push(cost.with("beside", "memcpy").against(&us(count - 1))),
            "read_through" => report.push(cost.with("beside", "memcpy").against(&read_small)),
            _ => {
                report.push(cost.with("beside", "memcpy").against(&copy_chunk));
                let added = us(index).zip(&copy_chunk, |all, copy| all - copy);
                report.push(row("us/request", added).with("beside", "memcpy, added"));
            }
        }
        if load.workers == 2 {
            let same = |one: &Load| {
                (one.what, one.store, one.phase.depth, one.workers)
                    == (load.what, load.store, load.phase.depth, 1)
            };
            if let Some(one) = LOADS.iter().position(same) {
                let speed = row("requests/s", per_s(index)).with("beside", "one_worker");
                report.push(speed.against(&per_s(first + one)));
            }
        }
    }
}

/// Eight snapshots of one origin while every chunk of it is copied: what they and their copies hold
/// in memory. The disks are null, so that all memory is the program's.
///
/// # Errors
/// A snapshot cannot be made or used.
pub fn memory(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let span = settings.pick(1024 * MIB, 16 * MIB);
    let fixture = Fixture::make()?;
    let null =
        |bytes: u64| -> Arc<dyn Disk> { Arc::new(NullDisk::new(SectorCount::of_bytes(bytes))) };
    let origin = null(span);
    fixture.put("origin", origin.clone());
    let len = origin.sectors();
    let before = Memory::now()?;
    for index in 0..SNAPSHOTS {
        fixture.put(&format!("cow{index}"), null(cow_bytes(span)));
        fixture.volume(&format!("s{index}"), &format!("0 {len} snapshot origin cow{index} P 8"))?;
    }
    let volume = fixture.volume("origin", &format!("0 {len} snapshot-origin origin"))?;
    let job = Phase::small("copy_out", Side::Origin, Op::Write).jobs(span, 1).remove(0);
    Memory::forget_peak()?;
    run_job(&fixture, &volume, &job)?;
    let after = Memory::now()?;
    for (what, bytes) in [("peak", after.peak), ("held", after.held)] {
        let mib = bytes.saturating_sub(before.held) as f64 / MIB as f64;
        let row = Row::new(NAME, Samples(vec![mib]), "MiB").with("snapshots", SNAPSHOTS);
        let row = row.with("chunks_each", span / 4096);
        report.push(row.with("memory", what));
    }
    Ok(())
}
