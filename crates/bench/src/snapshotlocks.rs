//! Part of `bench snapshot` in a build with the feature `lock-stats`: how long the locks of each
//! path are waited for, and the serial fraction: the longest that any single lock is held, over
//! the workers' busy time, which bounds what more workers can bring.
//!
//! Timing the locks has a cost, so no speeds are given here. The metadata lock of a store is not
//! measured: the commit task holds it while it writes the records, and no thread blocks on it.

use cairn_block::Op;
use cairn_block::lock_stats::{self, LockUse};
use cairn_outcome::failure::Outcome;
use cairn_targets::snapshot::Locks;

use super::row::{Report, Row, Samples};
use super::settings::Settings;
use super::snapshotfixture::{MIB, NAME, Phase, Shape, Side, SnapshotFixture, disks};

/// Sectors.
const CHUNK: u64 = 8;
const WORKERS: [u16; 2] = [2, 8];

/// The last phase is measured; the others prepare it.
const PATHS: [&[Phase]; 6] = {
    const COPY_OUT: Phase = Phase::small("copy_out", Side::Origin, Op::Write);
    const FIRST_WRITE: Phase = Phase::small("first_write", Side::Snapshot, Op::Write);
    [
        &[COPY_OUT],
        &[COPY_OUT, Phase::small("write_again", Side::Origin, Op::Write)],
        &[FIRST_WRITE],
        &[FIRST_WRITE, Phase::small("write_again", Side::Snapshot, Op::Write)],
        &[FIRST_WRITE, Phase::small("read_again", Side::Snapshot, Op::Read)],
        &[Phase::small("read_through", Side::Snapshot, Op::Read)],
    ]
};

/// What the locks of a path say, of one round.
struct Looked {
    serial_percent: f64,
    hottest: &'static str,
    held_ns: f64,
    wait_ns: f64,
    waits_per_million: f64,
}

/// Adds the rows.
///
/// # Errors
/// A disk or a snapshot cannot be made or used.
pub fn run(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let span = settings.pick(128 * MIB, 4 * MIB);
    let [origin, cow] = disks("null", span)?;
    for workers in WORKERS {
        for locks in [Locks::Sharded, Locks::Single] {
            let fixture = SnapshotFixture::make(workers, locks, &origin, &cow)?;
            for store in ["P", "N"] {
                for phases in PATHS {
                    let look = |_| look(&fixture, Shape { store, chunk: CHUNK }, span, phases);
                    let looked: Vec<Looked> =
                        (0..settings.runs).map(look).collect::<Outcome<_>>()?;
                    tell(report, (workers, locks, store), phases, &looked);
                }
            }
        }
    }
    Ok(())
}

fn look(fixture: &SnapshotFixture, shape: Shape, span: u64, phases: &[Phase]) -> Outcome<Looked> {
    let mut uses: Vec<LockUse> = Vec::new();
    let figures = fixture.measure_with(shape, span, phases, |begins| match begins {
        true => lock_stats::reset(),
        false => uses = lock_stats::uses(),
    })?;
    let last = figures.last().expect("a path has a phase");
    let requests = (span / 4096) as f64;
    let busy_ns = last.us * 1000.0 * requests;
    let hottest = uses.iter().max_by_key(|lock| lock.hottest_held_ns);
    let held_ns = hottest.map_or(0, |lock| lock.hottest_held_ns) as f64;
    Ok(Looked {
        serial_percent: 100.0 * held_ns / busy_ns,
        held_ns: held_ns / requests,
        hottest: hottest.map_or("none", |lock| lock.name),
        wait_ns: uses.iter().map(|lock| lock.waited_ns).sum::<u64>() as f64 / requests,
        waits_per_million: uses.iter().map(|lock| lock.waits).sum::<u64>() as f64 * 1e6 / requests,
    })
}

fn tell(
    report: &mut Report,
    (workers, locks, store): (u16, Locks, &'static str),
    phases: &[Phase],
    looked: &[Looked],
) {
    let (Some(phase), Some(last)) = (phases.last(), looked.last()) else { return };
    let row = |unit: &'static str, of: fn(&Looked) -> f64| {
        Row::new(NAME, Samples(looked.iter().map(of).collect()), unit)
            .with("store", store)
            .with("on", if phase.on == Side::Origin { "origin" } else { "snapshot" })
            .with("what", phase.what)
            .with("workers", workers)
            .with("locks", if locks == Locks::Single { "single" } else { "sharded" })
    };
    // The last words of the type's path.
    let name = last.hottest.rsplit("::").next().unwrap_or(last.hottest);
    let serial = row("% of busy time", |looked| looked.serial_percent);
    report.push(serial.with("hottest", name.trim_end_matches('>')));
    report.push(row("ns held/request", |looked| looked.held_ns));
    report.push(row("ns waited/request", |looked| looked.wait_ns));
    report.push(row("waits/million", |looked| looked.waits_per_million));
}
