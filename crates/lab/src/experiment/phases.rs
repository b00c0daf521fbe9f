//! The phases of a run: the times between which the same clients are active, each as a row with
//! what clients wrote, what the drives did for it, and by how much recorded numbers rose.

use std::time::Duration;

use cairn_sim::drives::Used;

use super::form::Experiment;
use super::record::{Record, Sample};
use super::variant::{Variant, median};
use crate::page::Table;

/// When each phase begins, as reported: when clients begin and stop.
pub fn starts(experiment: &Experiment) -> Vec<Duration> {
    let moments = experiment.clients.iter().flat_map(|clients| [clients.from, clients.until]);
    let within = moments.flatten().filter(|moment| *moment < experiment.end.at_most);
    let mut starts: Vec<Duration> = within.chain([Duration::ZERO]).collect();
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// A phase of a run.
struct Phase<'a> {
    first: &'a Sample,
    last: &'a Sample,
}

impl<'a> Phase<'a> {
    /// From one moment of virtual time to another, or to the end; empty if the run ended before.
    fn of(record: &'a Record, from: Duration, until: Option<Duration>) -> Phase<'a> {
        let at = |moment: Duration| {
            let nanos = u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX);
            let after = record.samples.partition_point(|sample| sample.at.0 <= nanos);
            &record.samples[after.saturating_sub(1)]
        };
        let last = record.samples.last().expect("a run has an end");
        Phase { first: at(from), last: until.map_or(last, at) }
    }

    fn used(&self, drive: usize) -> Used {
        self.last.drives[drive] - self.first.drives[drive]
    }

    /// What clients did: operations without flushes, and bytes written.
    fn clients(&self) -> (u64, u64) {
        let sums = |sample: &Sample| {
            let operations = sample.clients.iter().map(|done| done.operations - done.flushes);
            let bytes = sample.clients.iter().map(|done| done.written_bytes);
            (operations.sum::<u64>(), bytes.sum::<u64>())
        };
        let (first, last) = (sums(self.first), sums(self.last));
        (last.0 - first.0, last.1 - first.1)
    }
}

/// A row for each phase of each variant.
pub fn table(experiment: &Experiment, variants: &[Variant]) -> Table {
    let mut columns: Vec<String> =
        ["variant and phase", "hours", "operations", "written, GiB"].map(str::to_owned).to_vec();
    for (name, _) in &experiment.drives {
        columns
            .extend([format!("{name}: writes per operation"), format!("{name}: written per byte")]);
    }
    columns.extend(experiment.counts.iter().cloned());
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new("Phases", &columns);
    let starts = starts(experiment);
    for variant in variants {
        for (index, start) in starts.iter().enumerate() {
            let row = row(experiment, variant, *start, starts.get(index + 1).copied());
            table.row(&row.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
    table
}

fn row(
    experiment: &Experiment,
    variant: &Variant,
    start: Duration,
    end: Option<Duration>,
) -> Vec<String> {
    let scale = experiment.scale as f64;
    let (from, until) = (experiment.unscaled(start), end.map(|end| experiment.unscaled(end)));
    let value = |of: &dyn Fn(&Phase<'_>) -> f64, digits: usize| {
        median(variant, |record| of(&Phase::of(record, from, until)), digits)
    };
    let hours = |phase: &Phase<'_>| phase.last.at.since(phase.first.at).as_secs_f64() / 3600.0;
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let mut row = vec![
        format!("{}: from {:.1} h", variant.name, start.as_secs_f64() / 3600.0),
        value(&|phase| hours(phase) * scale, 2),
        value(&|phase| phase.clients().0 as f64 * scale, 0),
        value(&|phase| gib(phase.clients().1) * scale, 2),
    ];
    let quotient = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
    for drive in 0..experiment.drives.len() {
        row.push(value(&|it| quotient(it.used(drive).writes, it.clients().0), 3));
        row.push(value(&|it| quotient(it.used(drive).written_sectors * 512, it.clients().1), 3));
    }
    for count in 0..experiment.counts.len() {
        row.push(value(&|it| it.last.counts[count] as f64 - it.first.counts[count] as f64, 0));
    }
    row
}
