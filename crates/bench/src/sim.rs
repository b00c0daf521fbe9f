//! `bench sim`: what an operation of a simulated drive costs, in processor time.
//!
//! - `model=seeded`: the drive of the campaign ([`DriveModel::FAST`]) in its seeded world, with
//!   memory for what it holds; the client's task and the reactor are in the figure.
//! - `experiment`: keys of 4 KiB that an experiment of the lab writes back, each read from an NVMe
//!   drive and written to one with an arm: target, metadata, both drives and the world of events.
//! - All others: a timing model alone, in a closed loop. Their figure has the loop's own cost,
//!   some 10 ns. `full`: before the timing the volatile cache was filled with runs that do not
//!   touch, as many as the row says, so that each write waits for the arm.

use std::time::Duration;

use cairn_block::{Disk, Op, SectorCount};
use cairn_lab::costs::Charge;
use cairn_lab::experiment::form::Experiment;
use cairn_lab::experiment::run::Run;
use cairn_lab::load::Loop;
use cairn_lab::workload::Operation;
use cairn_outcome::failure::{Outcome, wrong};
use cairn_sim::drives::{Hdd, HddFigures, Raid5, Raid5Figures, Ssd, SsdFigures, Timing};
use cairn_sim::{DriveModel, DriveOptions, Image, SimWorld};

use super::clock::Moment;
use super::load::scattered;
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::simload;

const DEPTH: usize = 32;
const BLOCK_BYTES: u64 = 4096;
/// Sectors of a block.
const BLOCK: u64 = BLOCK_BYTES / 512;
/// Of the drives of the models: 4 TB.
const SECTORS: u64 = 4_000_000_000_000 / 512;
/// Of the seeded world's drive.
const SEEDED_BYTES: u64 = 1 << 30;

/// A timing model with a load.
struct Case {
    model: &'static str,
    op: Op,
    /// Dirty runs in the cache of a drive, if it is filled before.
    full: Option<u64>,
    /// Operations before those that are timed.
    warm_up: u64,
    count: u64,
}

impl Case {
    fn make(&self) -> Box<dyn Timing> {
        let hdd = |_| -> Box<dyn Timing> {
            let cache = self.full.map_or(HddFigures::NEARLINE.cache, |runs| {
                SectorCount::of_bytes(runs * BLOCK_BYTES)
            });
            let figures = HddFigures { cache, ..HddFigures::NEARLINE };
            Box::new(Hdd::new(figures, SectorCount(SECTORS)))
        };
        match self.model {
            "hdd" => hdd(0),
            "nvme" => Box::new(Ssd::new(SsdFigures::NVME, 1)),
            "raid5 of 4 hdd" => Box::new(Raid5::new(Raid5Figures::MD, (0..4).map(hdd).collect())),
            other => unreachable!("no case has the model {other}"),
        }
    }

    fn subject(&self) -> Subject<'_, f64> {
        Box::new(|| Ok(self.ns_each()))
    }

    /// Nanoseconds per operation.
    fn ns_each(&self) -> f64 {
        let mut model = self.make();
        let mut rng = fastrand::Rng::with_seed(1);
        // The array has room for the data of three members.
        let blocks = if self.model.starts_with("raid5") { 3 * SECTORS } else { SECTORS } / BLOCK;
        let mut step = || Operation::new(self.op, rng.u64(..blocks) * BLOCK, BLOCK);
        let mut load = Loop::new(&mut *model);
        load.run(DEPTH, self.warm_up, &mut step);
        let began = Moment::now();
        load.run(DEPTH, self.count, &mut step);
        began.elapsed().ns_each(self.count as usize)
    }
}

/// Runs the benchmark.
///
/// # Errors
/// A request failed.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    let seeded_count = settings.pick(20_000, 200);
    let ops = [Op::Write, Op::Read];
    let subjects = ops.map(|op| -> Subject<'_, f64> { Box::new(move || seeded(op, seeded_count)) });
    let taken = interleave(settings.runs, subjects.into())?;
    for (op, taken) in ops.into_iter().zip(taken) {
        report.push(row("seeded", op, seeded_count, taken));
    }
    let keys_mib = settings.pick(4096, 32);
    let taken = interleave(settings.runs, vec![Box::new(move || written_back(keys_mib))])?;
    for taken in taken {
        let row = Row::new("sim", Samples(taken), "ns/key").with("model", "experiment");
        report.push(row.with("what", "written back").with("count", keys_mib * 256));
    }
    let cases = cases(settings);
    let taken = interleave(settings.runs, cases.iter().map(Case::subject).collect())?;
    for (case, taken) in cases.iter().zip(taken) {
        let row = row(case.model, case.op, case.count as usize, taken);
        report.push(case.full.into_iter().fold(row, |row, runs| row.with("full", runs)));
    }
    Ok(report)
}

/// Nanoseconds for a key, of so many MiB that are dirty in a cache, half of which they fill.
fn written_back(mib: u64) -> Outcome<f64> {
    let text = format!(
        r#"
        title = "Keys are written back"
        drive.cache = {{ model = "nvme", size = "{}M" }}
        drive.disk = {{ model = "hdd", size = "{}M" }}
        fill = {{ cache = "cache", backing = "disk", dirty = 50, pattern = "uniform",
            block = "4K" }}
        volume = [{{ name = "v", table = "0 N bcache disk cache 0", messages = [
            "set writeback_percent 0", "set writeback_delay 0", "set writeback_rate 2000000"] }}]
        end = {{ clean = "v", at_most = "2d" }}
        "#,
        2 * mib,
        16 * mib
    );
    let experiment = Experiment::parse(&text, "bench")?;
    let run = Run::start(&experiment, "plain", 1, Charge::WHOLE.prices())?;
    let began = Moment::now();
    let record = run.finish(Duration::from_secs(1), |_| ())?;
    let took = began.elapsed();
    let dirty = record.samples.first().map_or(0, |sample| sample.dirty[0]);
    if !record.is_done || dirty == 0 {
        return Err(wrong("bench", "dirty data", "some", "all written back"));
    }
    Ok(took.ns_each((dirty / BLOCK) as usize))
}

fn row(model: &'static str, op: Op, count: usize, taken: Vec<f64>) -> Row {
    let op = if op == Op::Read { "read" } else { "write" };
    let row = Row::new("sim", Samples(taken), "ns").with("model", model).with("op", op);
    row.with("depth", DEPTH).with("count", count)
}

fn cases(settings: &Settings) -> Vec<Case> {
    let count = settings.pick(200_000, 1_000);
    let case = |model, op| Case { model, op, full: None, warm_up: count / 10, count };
    // Many at a time fill a cache, since it empties all the while.
    let full = |model, runs, warm_up| Case {
        full: Some(runs),
        warm_up: warm_up + count / 10,
        ..case(model, Op::Write)
    };
    let [usual, large, small] = settings.pick([1 << 16, 1 << 20, 1 << 12], [1 << 9, 1 << 10, 64]);
    vec![
        full("hdd", usual, usual),
        full("hdd", large, large),
        case("hdd", Op::Read),
        case("nvme", Op::Write),
        // Each write of the array writes to two of the four.
        full("raid5 of 4 hdd", small, 3 * small),
    ]
}

/// Nanoseconds per operation of a drive of the seeded world.
fn seeded(op: Op, count: usize) -> Outcome<f64> {
    let world = SimWorld::new(1, 1);
    let options = DriveOptions { model: DriveModel::FAST, ..DriveOptions::named("drive") };
    let image = Image::new(SectorCount::of_bytes(SEEDED_BYTES));
    let drive: std::sync::Arc<dyn Disk> = world.add_drive(options, image);
    let places = scattered(0, SEEDED_BYTES, BLOCK_BYTES as usize, count, 1);
    let began = Moment::now();
    simload::run(&world, &drive, (op, BLOCK), places, DEPTH)
        .map_err(|error| wrong("sim", "a request", error, "success"))?;
    Ok(began.elapsed().ns_each(count))
}
