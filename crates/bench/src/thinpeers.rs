//! Part of `bench thin`: the loads that other programs' thin volumes were measured with, beside the
//! memory disk and plain copying and filling of memory; and first writes beside writing again.
//!
//! `first_write`: nothing is mapped before; with `zeroing`, what the write leaves of a block is
//! zeroed. `write_again`, `read_again`: all of it is mapped. `copy`: the volume was just
//! snapshotted, so that the write copies the rest of its block. `covers`: it was, and the writes
//! cover their blocks. `read_through`: reads of that snapshot.

use cairn_block::Op;
use cairn_outcome::failure::Outcome;

use super::arena::{self, Arena};
use super::clock::Took;
use super::load::Job;
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::snapshotfixture::{Figures, Phase, Side};
use super::thinfixture::{BLOCK_BYTES, How, MIB, NAME, Step, ThinFixture, disks};

const SKIP: &str = "1 skip_block_zeroing";
const ZERO: &str = "0";

/// A load: what was done before, and what is measured.
struct Load {
    what: &'static str,
    options: &'static str,
    workers: u16,
    before: &'static [Step],
    phase: Phase,
}

/// Everything is written once.
const FILL: Step = {
    let fill = Phase::large("fill", Side::Origin, Op::Write);
    Step::Run(fill, How::RANDOM)
};
const MAPPED: &[Step] = &[FILL];
const SHARED: &[Step] = &[FILL, Step::Snapshot];

const WRITE: Phase = Phase::small("write", Side::Origin, Op::Write);
const READ: Phase = Phase::small("read", Side::Origin, Op::Read);
const READ_THROUGH: Phase = Phase { on: Side::Snapshot, ..READ };
/// One write of 4 KiB to each block.
const SPARSE: Phase = Phase { stride: BLOCK_BYTES, ..WRITE };
const COVERS: Phase = Phase { bytes: 512 << 10, stride: 512 << 10, ..WRITE };

const LOADS: [Load; 18] = {
    const fn load(
        what: &'static str,
        options: &'static str,
        before: &'static [Step],
        phase: Phase,
    ) -> Load {
        Load { what, options, workers: 1, before, phase }
    }
    const fn two(load: Load) -> Load {
        Load { workers: 2, ..load }
    }
    [
        load("first_write", SKIP, &[], SPARSE.one_by_one()),
        load("first_write", SKIP, &[], SPARSE),
        two(load("first_write", SKIP, &[], SPARSE)),
        load("first_write", ZERO, &[], SPARSE.one_by_one()),
        load("first_write", ZERO, &[], SPARSE),
        two(load("first_write", ZERO, &[], SPARSE)),
        load("write_again", ZERO, MAPPED, WRITE),
        two(load("write_again", ZERO, MAPPED, WRITE)),
        load("read_again", ZERO, MAPPED, READ),
        two(load("read_again", ZERO, MAPPED, READ)),
        load("copy", ZERO, SHARED, SPARSE.one_by_one()),
        load("copy", ZERO, SHARED, SPARSE),
        two(load("copy", ZERO, SHARED, SPARSE)),
        load("covers", ZERO, SHARED, COVERS),
        two(load("covers", ZERO, SHARED, COVERS)),
        load("read_through", ZERO, SHARED, READ_THROUGH),
        two(load("read_through", ZERO, SHARED, READ_THROUGH)),
        load("read_hole", ZERO, &[], READ),
    ]
};

/// What plain memory does beside the loads, by as many threads.
const MEMORY: [&str; 3] = ["copy of a block", "filling a block", "memcpy"];

/// What each load took, and the same requests on the memory disk after it.
type Pair = [Figures; 2];

/// Adds the rows.
///
/// # Errors
/// A disk or a pool cannot be made or used.
pub fn run(settings: &Settings, report: &mut Report) -> Outcome<()> {
    loads(settings, report)?;
    first_and_again(settings, report)
}

fn loads(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let span = settings.pick(256 * MIB, 4 * MIB);
    let disks = disks(span * 2)?;
    let fixtures = [ThinFixture::make(1, &disks)?, ThinFixture::make(2, &disks)?];
    let pair_of_arenas = || [Arena::new(span / 2), Arena::new(span / 2)];
    let arenas = [pair_of_arenas(), pair_of_arenas()];
    let targets = arenas.each_ref().map(|[_, to]| to.clone());
    // Each worker has arenas of its own, counted from zero.
    let blocks = Phase { bytes: BLOCK_BYTES, ..SPARSE }.jobs(span / 2, 1).remove(0);
    let large = COVERS.jobs(span / 2, 1).remove(0);
    let mut subjects: Vec<Subject<'_, Pair>> = Vec::new();
    for load in &LOADS {
        let fixture = &fixtures[usize::from(load.workers) - 1];
        subjects.push(Box::new(move || pair(fixture, span, load)));
    }
    let figures =
        |job: &Job, took: &[Took]| Ok([Figures::of(job.requests() * took.len(), took); 2]);
    for (fixture, workers) in fixtures.iter().zip([1, 2]) {
        let (fixture, from_to, to) = (fixture.fixture(), &arenas[..workers], &targets[..workers]);
        let (blocks, large) = (&blocks, vec![large.clone(); workers]);
        let figures = &figures;
        subjects.push(Box::new(move || {
            figures(blocks, &arena::copy_across_each(fixture, from_to, blocks))
        }));
        subjects.push(Box::new(move || figures(blocks, &arena::fill_each(fixture, to, blocks))));
        subjects.push(Box::new(move || figures(&large[0], &arena::copy_each(fixture, to, &large))));
    }
    let taken = interleave(settings.runs, subjects)?;
    let memory = |what: usize, workers: u16| {
        let index = LOADS.len() + usize::from(workers - 1) * MEMORY.len() + what;
        &taken[index]
    };
    for (what, name) in MEMORY.into_iter().enumerate() {
        let per_s =
            |workers| Samples(memory(what, workers).iter().map(|pair| pair[0].per_s).collect());
        let row = Row::new(NAME, per_s(2), "requests/s").with("what", name).with("workers", 2);
        report.push(row.with("beside", "one_worker").against(&per_s(1)));
    }
    for (index, load) in LOADS.iter().enumerate() {
        let one = |one: &Load| {
            let key = |load: &Load| (load.what, load.options, load.phase.depth);
            one.workers == 1 && key(one) == key(load)
        };
        let one = LOADS.iter().position(one).filter(|_| load.workers > 1);
        let beside = match (load.what, load.options) {
            ("copy", _) => Some(0),
            ("first_write", ZERO) => Some(1),
            ("covers", _) => Some(2),
            _ => None,
        };
        let beside = beside.map(|what| (MEMORY[what], &memory(what, load.workers)[..]));
        tell(report, load, &taken[index], one.map(|one| &taken[one][..]), beside);
    }
    Ok(())
}

fn pair(fixture: &ThinFixture, span: u64, load: &Load) -> Outcome<Pair> {
    let raw = Phase { on: Side::Raw, ..load.phase };
    let mut steps = load.before.to_vec();
    steps.extend([load.phase, raw].map(|phase| Step::Run(phase, How::RANDOM)));
    let figures = fixture.measure(load.options, span, &steps)?;
    let last = figures.len() - 2;
    Ok([figures[last], figures[last + 1]])
}

fn tell(
    report: &mut Report,
    load: &Load,
    taken: &[Pair],
    one: Option<&[Pair]>,
    memory: Option<(&'static str, &[Pair])>,
) {
    let samples = |taken: &[Pair], at: usize, of: fn(&Figures) -> f64| {
        Samples(taken.iter().map(|pair| of(&pair[at])).collect())
    };
    let row = |value: Samples, unit| {
        Row::new(NAME, value, unit)
            .with("what", load.what)
            .with("zeroing", load.options != SKIP)
            .with("bytes", load.phase.bytes)
            .with("stride", load.phase.stride)
            .with("depth", load.phase.depth)
            .with("workers", load.workers)
    };
    let us = samples(taken, 0, |figures| figures.us);
    let raw = samples(taken, 1, |figures| figures.us);
    report.push(row(us.clone(), "us/request").with("beside", "raw").against(&raw));
    if let Some((name, memory)) = memory {
        let alone = samples(memory, 0, |figures| figures.us);
        report.push(row(us.clone(), "us/request").with("beside", name).against(&alone));
        let added = us.zip(&alone, |us, memory| us - memory);
        report.push(row(added, "us/request").with("beside", format!("{name}, added")));
        if load.workers > 1 {
            let per_s = |taken| samples(taken, 0, |figures: &Figures| figures.per_s);
            let row = row(per_s(taken), "requests/s").with("beside", name);
            report.push(row.against(&per_s(memory)));
        }
    }
    if let Some(one) = one {
        let per_s = |taken| samples(taken, 0, |figures: &Figures| figures.per_s);
        let row = row(per_s(taken), "requests/s").with("beside", "one_worker");
        report.push(row.against(&per_s(one)));
    }
}

/// First writes all over a volume, beside writing it again.
fn first_and_again(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let span = settings.pick(256 * MIB, 4 * MIB);
    let fixture = ThinFixture::make(1, &disks(span)?)?;
    let mut phases = Vec::new();
    for in_order in [true, false] {
        for bytes in [4 << 10, 64 << 10, 512 << 10] {
            phases.push(Phase { bytes, stride: bytes, in_order, ..WRITE });
        }
    }
    let fixture = &fixture;
    let subject = |phase: &Phase| -> Subject<'_, Vec<Figures>> {
        let step = Step::Run(*phase, How { flush: true, ..How::RANDOM });
        Box::new(move || fixture.measure(ZERO, span, &[step, step]))
    };
    let taken = interleave(settings.runs, phases.iter().map(subject).collect())?;
    for (phase, taken) in phases.iter().zip(&taken) {
        let us = |at: usize| Samples(taken.iter().map(|figures| figures[at].us).collect());
        let row = Row::new(NAME, us(0), "us/request").with("what", "first_write");
        let row = row.with("bytes", phase.bytes).with("in_order", phase.in_order);
        report.push(row.with("beside", "write_again").against(&us(1)));
    }
    Ok(())
}
