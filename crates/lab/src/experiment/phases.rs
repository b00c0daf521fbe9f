//! The phases of a run: the times between which the same clients are active, each as a row with
//! what clients wrote, what the drives did for it, and by how much recorded numbers rose.

use std::time::Duration;

use cairn_sim::drives::{Lengths, Used};

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

/// A table of lengths: a column for each class.
fn table_of_lengths(title: &str, names: &str) -> Table {
    let mut columns = vec![names.to_owned()];
    let last = Lengths::CLASSES - 1;
    columns.extend((0..last).map(|class| format!("{} KiB", 4_u64 << class)));
    columns.push("more".to_owned());
    Table::new(title, &columns.iter().map(String::as_str).collect::<Vec<_>>())
}

fn add_lengths(
    table: &mut Table,
    name: String,
    variant: &Variant,
    scale: u64,
    of: impl Fn(&Record) -> Lengths,
) {
    let count =
        |class: usize| median(variant, |record| of(record).0[class] as f64 * scale as f64, 0);
    let row: Vec<String> = std::iter::once(name).chain((0..Lengths::CLASSES).map(count)).collect();
    table.row(&row.iter().map(String::as_str).collect::<Vec<_>>());
}

/// How long the writes were that each drive got, for each phase of each variant: into what runs of
/// free space new data goes, and in what runs dirty data goes home.
pub fn writes(experiment: &Experiment, variants: &[Variant]) -> Table {
    let title = "Writes of the drives, by their lengths up to";
    let mut table = table_of_lengths(title, "variant, phase and drive");
    for (variant, span) in spans(experiment, variants) {
        for (drive, (name, _)) in experiment.drives.iter().enumerate() {
            let name = format!("{}: {name}", span.title(variant));
            let of = |record: &Record| span.of(experiment, record).used(drive).lengths;
            add_lengths(&mut table, name, variant, experiment.scale, of);
        }
    }
    table
}

/// How long the runs of dirty data were when each phase of each variant began, and at its end.
pub fn dirty_runs(experiment: &Experiment, variants: &[Variant]) -> Table {
    let title = "Runs of dirty data in the caches, by their lengths up to";
    let mut table = table_of_lengths(title, "variant and moment");
    let starts = starts(experiment);
    for variant in variants {
        let names = starts.iter().map(|start| format!("{:.1} h", start.as_secs_f64() / 3600.0));
        for (index, name) in names.chain(["the end".to_owned()]).enumerate() {
            let name = format!("{}: at {name}", variant.name);
            let of = |it: &Record| it.dirty_runs.get(index).copied().unwrap_or_default();
            add_lengths(&mut table, name, variant, experiment.scale, of);
        }
    }
    table
}

/// When a phase begins and ends, as reported.
#[derive(Clone, Copy)]
struct Span {
    start: Duration,
    end: Option<Duration>,
}

impl Span {
    fn title(self, variant: &Variant) -> String {
        format!("{}: from {:.1} h", variant.name, self.start.as_secs_f64() / 3600.0)
    }

    fn of<'a>(self, experiment: &Experiment, record: &'a Record) -> Phase<'a> {
        let unscaled = |time| experiment.unscaled(time);
        Phase::of(record, unscaled(self.start), self.end.map(unscaled))
    }
}

/// The phases of each variant.
fn spans<'a>(
    experiment: &Experiment,
    variants: &'a [Variant],
) -> impl Iterator<Item = (&'a Variant, Span)> {
    let starts = starts(experiment);
    let ends = starts.iter().skip(1).copied().map(Some).chain([None]);
    let spans: Vec<Span> =
        starts.iter().zip(ends).map(|(start, end)| Span { start: *start, end }).collect();
    variants
        .iter()
        .flat_map(move |variant| spans.clone().into_iter().map(move |span| (variant, span)))
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
    for (variant, span) in spans(experiment, variants) {
        let row = row(experiment, variant, span);
        table.row(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    table
}

fn row(experiment: &Experiment, variant: &Variant, span: Span) -> Vec<String> {
    let scale = experiment.scale as f64;
    let value = |of: &dyn Fn(&Phase<'_>) -> f64, digits: usize| {
        median(variant, |record| of(&span.of(experiment, record)), digits)
    };
    let hours = |phase: &Phase<'_>| phase.last.at.since(phase.first.at).as_secs_f64() / 3600.0;
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let mut row = vec![
        span.title(variant),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::record::testing;

    #[test]
    fn lengths_of_writes_are_those_of_each_phase_times_the_scale() {
        let text = "title = \"t\"\nscale = 4\n[drive.disk]\nmodel = \"hdd\"\nsize = \"1G\"\n\
                    [[volume]]\nname = \"v\"\ntable = \"0 N linear disk 0\"\n[[client]]\n\
                    volume = \"v\"\norder = \"random\"\nblock = \"4K\"\nuntil = \"40s\"\n\
                    [end]\nat_most = \"80s\"\n";
        let experiment = Experiment::parse(text, "x.toml").expect("it has a meaning");
        // Of each virtual second: as many writes of 4 KiB, and in the second phase one of 1 MiB.
        let sample = |second: u64| {
            let mut lengths = Lengths::default();
            (lengths.0[0], lengths.0[8]) = (second, second.saturating_sub(10));
            Sample {
                drives: vec![Used { lengths, ..Used::default() }],
                ..testing::nothing_at(second)
            }
        };
        let samples = (0..=20).map(sample).collect();
        let long = |count| Lengths([0, 0, 0, 0, 0, 0, 0, 0, count]);
        let record =
            Record { dirty_runs: vec![long(1), long(3), long(5)], ..testing::record(samples) };
        let variant = Variant { name: "plain".to_owned(), records: vec![record] };
        let variants = [variant];
        let rows = writes(&experiment, &variants).rows;
        let zeros = ["0"; 7];
        let row = |title, first, last| [&[title, first][..], &zeros, &[last]].concat();
        assert_eq!(rows[0], row("plain: from 0.0 h: disk", "40", "0"));
        assert_eq!(rows[1], row("plain: from 0.0 h: disk", "40", "40"));
        let rows = dirty_runs(&experiment, &variants).rows;
        assert_eq!(rows[1], row("plain: at 0.0 h", "0", "12"), "of the second moment");
        assert_eq!(rows[2], row("plain: at the end", "0", "20"));
    }
}
