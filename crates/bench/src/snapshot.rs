//! `bench snapshot`: one snapshot of an origin under 1, 2, 4 and 8 workers, each a reactor with a
//! slice of its own; beside the raw device, beside one worker, and beside the same program with
//! one lock for all exceptions. Then what the peers were measured with, memory, and the kernel's
//! dm-snapshot if asked for.
//!
//! The store has room for every chunk. `copy_out`: the first write of each chunk of the origin.
//! `first_write`: the first of each chunk of the snapshot, which covers it. `write_again`,
//! `read_again`: once the exceptions are there. `read_through`: there are none.
//!
//! A build with `--features lock-stats` also tells of the locks; the other figures of such a build
//! are not to be trusted.
//!
//! Requests per second are in wall time; microseconds per request in processor time of all
//! workers together, which other programs on the machine hardly lengthen.

use std::sync::Arc;

use cairn_block::{Disk, Op};
use cairn_outcome::failure::Outcome;
use cairn_targets::snapshot::Locks;

use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::snapshotfixture::{Figures, MIB, NAME, Phase, Shape, Side, SnapshotFixture, disks};
use super::{snapshotkernel, snapshotpeers};

const WORKERS: &[u16] = &[1, 2, 4, 8];
/// Sectors.
const CHUNK: u64 = 8;

/// What happens to one snapshot, phase after phase.
const SCENARIOS: [&[Phase]; 8] = [
    &[
        Phase::small("raw", Side::Raw, Op::Write),
        Phase::small("raw", Side::Raw, Op::Read),
        Phase::small("raw", Side::Raw, Op::Write).one_by_one(),
        Phase::large("raw", Side::Raw, Op::Write),
        Phase::large("raw", Side::Raw, Op::Read),
    ],
    &[
        Phase::small("copy_out", Side::Origin, Op::Write),
        Phase::small("write_again", Side::Origin, Op::Write),
    ],
    &[
        Phase::small("first_write", Side::Snapshot, Op::Write),
        Phase::small("write_again", Side::Snapshot, Op::Write),
        Phase::small("read_again", Side::Snapshot, Op::Read),
    ],
    &[
        Phase::small("read_through", Side::Snapshot, Op::Read),
        Phase::large("read_through", Side::Snapshot, Op::Read),
    ],
    &[Phase::small("copy_out", Side::Origin, Op::Write).one_by_one()],
    &[Phase::small("first_write", Side::Snapshot, Op::Write).one_by_one()],
    &[Phase::large("copy_out", Side::Origin, Op::Write)],
    &[
        Phase::large("first_write", Side::Snapshot, Op::Write),
        Phase::large("write_again", Side::Snapshot, Op::Write),
        Phase::large("read_again", Side::Snapshot, Op::Read),
    ],
];
const RAW: usize = 0;

/// Runs the benchmark.
///
/// # Errors
/// A disk or a snapshot cannot be made or used.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    // First: memory that was used and given back would hide what is used now.
    snapshotpeers::memory(settings, &mut report)?;
    #[cfg(feature = "lock-stats")]
    super::snapshotlocks::run(settings, &mut report)?;
    let span = settings.pick(128 * MIB, 4 * MIB);
    for kind in ["null", "memory"] {
        let disks = disks(kind, span)?;
        for store in ["P", "N"] {
            Table { settings, kind, store, span, disks: &disks }.run(&mut report)?;
        }
    }
    snapshotpeers::run(settings, &mut report)?;
    if let Some(uml) = &settings.uml {
        snapshotkernel::run(settings, uml, &mut report)?;
    }
    Ok(report)
}

/// The rows of one kind of disk and store.
struct Table<'a> {
    settings: &'a Settings,
    kind: &'static str,
    store: &'static str,
    span: u64,
    disks: &'a [Arc<dyn Disk>; 2],
}

/// One subject: what it was, and for each round the figures of each phase.
struct Taken {
    scenario: usize,
    workers: u16,
    locks: Locks,
    rounds: Vec<Vec<Figures>>,
}

impl Taken {
    fn samples(&self, phase: usize, of: impl Fn(&Figures) -> f64) -> Samples {
        Samples(self.rounds.iter().map(|figures| of(&figures[phase])).collect())
    }
}

impl Table<'_> {
    fn run(&self, report: &mut Report) -> Outcome<()> {
        let taken = self.measure()?;
        for scenario in &taken {
            if scenario.locks == Locks::Sharded {
                self.tell(report, &taken, scenario);
            }
        }
        Ok(())
    }

    fn measure(&self) -> Outcome<Vec<Taken>> {
        let mut fixtures = Vec::new();
        for &workers in self.settings.pick(WORKERS, &WORKERS[..2]) {
            for locks in [Locks::Sharded, Locks::Single] {
                let [origin, cow] = self.disks;
                fixtures.push((locks, SnapshotFixture::make(workers, locks, origin, cow)?));
            }
        }
        let (mut whats, mut subjects) = (Vec::new(), Vec::<Subject<'_, Vec<Figures>>>::new());
        let shape = Shape { store: self.store, chunk: CHUNK };
        // The workers side by side, so that what is compared is close in time.
        for (scenario, phases) in SCENARIOS.iter().enumerate() {
            for (locks, fixture) in &fixtures {
                if scenario == RAW && *locks == Locks::Single {
                    continue;
                }
                whats.push((scenario, fixture.workers, *locks));
                subjects.push(Box::new(move || fixture.measure(shape, self.span, phases)));
            }
        }
        let rounds = interleave(self.settings.runs, subjects)?;
        let taken = whats.into_iter().zip(rounds);
        let taken = taken.map(|((scenario, workers, locks), rounds)| Taken {
            scenario,
            workers,
            locks,
            rounds,
        });
        Ok(taken.collect())
    }

    fn tell(&self, report: &mut Report, taken: &[Taken], of: &Taken) {
        let find = |scenario: usize, workers: u16, locks: Locks| {
            let is = |other: &&Taken| {
                (other.scenario, other.workers, other.locks) == (scenario, workers, locks)
            };
            taken.iter().find(is)
        };
        let per_s = |figures: &Figures| figures.per_s;
        let us = |figures: &Figures| figures.us;
        for (index, phase) in SCENARIOS[of.scenario].iter().enumerate() {
            let row = |unit: &'static str, value: Samples| self.row(phase, of.workers, unit, value);
            let (speeds, costs) = (of.samples(index, per_s), of.samples(index, us));
            let raw = SCENARIOS[RAW].iter().position(|raw| {
                (raw.op, raw.bytes, raw.depth) == (phase.op, phase.bytes, phase.depth)
            });
            match (find(RAW, of.workers, Locks::Sharded), raw) {
                (Some(bare), Some(raw)) if of.scenario != RAW => {
                    let speed = row("requests/s", speeds.clone()).with("beside", "raw");
                    report.push(speed.against(&bare.samples(raw, per_s)));
                    let cost = row("us/request", costs.clone()).with("beside", "raw");
                    report.push(cost.against(&bare.samples(raw, us)));
                }
                _ => {
                    report.push(row("requests/s", speeds.clone()));
                    report.push(row("us/request", costs.clone()));
                }
            }
            let others = [
                ("one_worker", find(of.scenario, 1, Locks::Sharded).filter(|_| of.workers > 1)),
                ("single_lock", find(of.scenario, of.workers, Locks::Single)),
            ];
            for (beside, other) in others {
                let Some(other) = other else { continue };
                let speed = row("requests/s", speeds.clone()).with("beside", beside);
                report.push(speed.against(&other.samples(index, per_s)));
                let cost = row("us/request", costs.clone()).with("beside", beside);
                report.push(cost.against(&other.samples(index, us)));
            }
        }
    }

    fn row(&self, phase: &Phase, workers: u16, unit: &'static str, value: Samples) -> Row {
        let on = match phase.on {
            Side::Raw => "raw",
            Side::Origin => "origin",
            Side::Snapshot => "snapshot",
        };
        Row::new(NAME, value, unit)
            .with("disk", self.kind)
            .with("store", self.store)
            .with("on", on)
            .with("op", if phase.op == Op::Read { "read" } else { "write" })
            .with("what", phase.what)
            .with("bytes", phase.bytes)
            .with("depth", phase.depth)
            .with("workers", workers)
    }
}
