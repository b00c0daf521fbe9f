//! Part of `bench thin`: what the test for zeros costs another running program.
//!
//! The other program, a thread, walks from place to place in memory that fits in the processor's
//! outer cache and not in the inner ones, each step known only when the one before is done. It is
//! told in its own processor time, while a volume whose blocks are mapped is written again and
//! again. A zero test that reads more than necessary evicts the memory of the other program.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_block::Op;
use cairn_outcome::failure::Outcome;

use super::clock::Moment;
use super::load::{Data, Job, run as run_job};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::snapshotfixture::{Phase, Side};
use super::thinfixture::{BLOCK_BYTES, MIB, NAME, ThinFixture, disks};

/// Memory of the other program: places of a cache line each.
const PLACES: usize = 4 << 20 >> 6;

/// A place on its own cache line: where the next one is.
#[derive(Clone)]
#[repr(align(64))]
struct Place(usize);

/// Adds the rows.
///
/// # Errors
/// A disk or a pool cannot be made or used.
pub fn run(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let span = settings.pick(64 * MIB, 4 * MIB);
    let steps = settings.pick(10_000_000, 50_000);
    let fixture = ThinFixture::make(1, &disks(span)?)?;
    fixture.fresh_pool("0")?;
    fixture.fixture().message("pool", "create_thin 0")?;
    let volume = fixture.volume(0, span)?;
    let phase = Phase { bytes: BLOCK_BYTES, stride: BLOCK_BYTES, ..SMALL };
    let job = phase.jobs(span, 1).remove(0);
    let walk = places();
    let beside = |data: Data, mode: &str| -> Outcome<f64> {
        fixture.fixture().message("pool", &format!("detect_zeroes {mode}"))?;
        let (job, ended) = (Job { data, ..job.clone() }, AtomicBool::new(false));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let took = step_through(&walk, steps);
                ended.store(true, Ordering::Relaxed);
                took
            });
            while !ended.load(Ordering::Relaxed) {
                run_job(fixture.fixture(), &volume, &job)?;
            }
            Ok(other.join().expect("a walk does not fail"))
        })
    };
    for (data, name) in [(Data::Random, "random"), (Data::LastByte, "last_byte")] {
        let beside = &beside;
        let subject =
            |mode: &'static str| -> Subject<'_, f64> { Box::new(move || beside(data, mode)) };
        let taken = interleave(settings.runs, vec![subject("off"), subject("unmap")])?;
        let [off, unmap]: [Samples; 2] = std::array::from_fn(|at| Samples(taken[at].clone()));
        let row = Row::new(NAME, unmap, "ns/step").with("what", "beside").with("data", name);
        report.push(row.with("test", "ours").with("beside", "off").against(&off));
    }
    drop(volume);
    fixture.fixture().remove("v0")?;
    fixture.fixture().remove("pool")
}

const SMALL: Phase = Phase::small("beside", Side::Origin, Op::Write);

/// One way through all places, in no order.
fn places() -> Vec<Place> {
    let mut order: Vec<usize> = (0..PLACES).collect();
    fastrand::Rng::with_seed(9).shuffle(&mut order);
    let mut places = vec![Place(0); PLACES];
    for (at, next) in order.iter().zip(order.iter().cycle().skip(1)) {
        places[*at] = Place(*next);
    }
    places
}

/// Nanoseconds of processor time for each step.
fn step_through(places: &[Place], steps: usize) -> f64 {
    let began = Moment::now();
    let end = (0..steps).fold(0, |at: usize, _| places[at].0);
    let took = began.elapsed();
    black_box(end);
    took.ns_each(steps)
}
