//! How fast dirty data of random writes is written back, with and without protection.

use cairn_outcome::failure::Outcome;
use cairn_outcome::stderr;

use super::runs::{DRAIN, Settings, flushes, median, read, run};
use super::{Bar, Shown};
use crate::experiment::form::Experiment;
use crate::experiment::record::{Record, Sample};
use crate::experiment::report::seconds;
use crate::page::{Part, Table};

/// Orders of writeback, and the policies of flushes that each is run with.
const RUNS: [(&str, &[&str]); 2] = [
    ("completion", &["stock", "fua", "ours"]),
    ("sweep", &["stock", "fua", "batch-500", "batch-20000", "ours"]),
];
/// Bars: what is judged is cairn's order with cairn's flushes.
const LEAST: [(&str, f64); 2] = [("completion", 1.0), ("sweep", 0.97)];

/// Runs all, and makes a table.
///
/// # Errors
/// A target refuses it.
pub fn show(settings: &Settings) -> Outcome<Shown> {
    let mut experiment = read(DRAIN)?;
    if settings.quick {
        experiment = rescaled(experiment, 8);
    }
    let mut rows: Vec<(&str, &str, Vec<Record>)> = Vec::new();
    for (order, policies) in RUNS {
        let mut experiment = experiment.clone();
        let message = format!("set writeback_policy {order}");
        experiment.volumes[0].messages[0] = message;
        for policy in policies {
            stderr::say(format_args!("{order}, {policy}"));
            rows.push((order, policy, run(&experiment, policy, settings)?));
        }
    }
    let columns = [
        "order and policy",
        "hours",
        "keys/s",
        "of completion, stock",
        "of sweep, stock",
        "flushes",
    ];
    let mut table = Table::new("A drain of dirty data of random writes of 4 KiB", &columns);
    let speed_of = |order: &str, policy: &str| {
        let row = rows.iter().find(|row| (row.0, row.1) == (order, policy));
        row.map_or(f64::NAN, |row| median(&row.2, speed))
    };
    let base = LEAST.map(|(order, _)| speed_of(order, "stock"));
    for (order, policy, records) in &rows {
        let own = median(records, speed);
        let hours = |it: &Record| seconds(it) * experiment.scale as f64 / 3600.0;
        let flushes = |it: &Record| flushes(&experiment, it) * experiment.scale as f64;
        let ended = if records.iter().all(|it| it.is_done) { "" } else { ", not ended" };
        let row = [
            format!("{order}, {policy}{ended}"),
            format!("{:.2}", median(records, hours)),
            format!("{own:.0}"),
            format!("{:.3}", own / base[0]),
            format!("{:.3}", own / base[1]),
            format!("{:.0}", median(records, flushes)),
        ];
        table.row(&row.each_ref().map(String::as_str));
    }
    let ours = speed_of("sweep", "ours");
    let bar = |((order, least), base): ((&str, f64), f64)| Bar {
        what: format!("drain: sweep, ours, of {order} without protection"),
        found: ours / base,
        least,
    };
    let bars = LEAST.into_iter().zip(base).map(bar).collect();
    let scale = format!("Sizes are divided by {}, hours are times it.", experiment.scale);
    Ok(Shown { parts: vec![Part::Text(scale), Part::Table(table)], bars })
}

/// Keys of 4 KiB that were written back a second, while nine to one tenths of the data were dirty:
/// at the beginning a disk's cache takes writes without a seek, and at the end it still has them if
/// nothing flushes it.
fn speed(record: &Record) -> f64 {
    let (dirty, samples) = (|sample: &Sample| sample.dirty[0], &record.samples);
    let at = |tenths: u64| {
        let index = samples.partition_point(|it| dirty(it) > dirty(&samples[0]) / 10 * tenths);
        &samples[index.min(samples.len() - 1)]
    };
    let (first, last) = (at(9), at(1));
    let took = last.at.since(first.at).as_nanos() as f64 / 1e9;
    (dirty(first) - dirty(last)) as f64 / 8.0 / took
}

/// The same at a scale so many times larger.
pub(super) fn rescaled(mut experiment: Experiment, times: u64) -> Experiment {
    experiment.scale *= times;
    for (_, drive) in &mut experiment.drives {
        drive.bytes = drive.bytes / times / (4 << 20) * (4 << 20);
    }
    experiment
}
