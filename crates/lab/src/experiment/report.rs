//! The page of an experiment: its variants side by side, over all seeds.
//!
//! Times and amounts of data are reported times the scale; rates and latencies are as they are.

use cairn_sim::drives::Used;

use super::devices::Model;
use super::form::{Drive, Experiment};
use super::phases;
use super::record::{Record, Sample};
use super::variant::{Variant, median};
use crate::page::{Axis, Chart, Line, Page, Part, Section, Table};

/// A value at the end of an interval of a run.
type Look<'a> = &'a dyn Fn(&Sample, &Sample) -> f64;

/// See the module's description.
pub struct Report<'a> {
    /// What was run.
    pub experiment: &'a Experiment,
    /// One for each record of a variant.
    pub seeds: &'a [u64],
    /// In order.
    pub variants: &'a [Variant],
    /// What was charged for the processor's time, in words.
    pub processor: String,
}

impl Report<'_> {
    /// The page.
    pub fn page(&self) -> Page {
        let mut sections = vec![section("Result", vec![Part::Table(self.results())])];
        if !self.experiment.clients.is_empty() {
            sections[0].parts.push(Part::Table(self.clients()));
        }
        if !self.experiment.counts.is_empty() || phases::starts(self.experiment).len() > 1 {
            let table = phases::table(self.experiment, self.variants);
            sections[0].parts.push(Part::Table(table));
        }
        if phases::starts(self.experiment).len() > 1 {
            for table in [phases::dirty_runs, phases::writes] {
                let table = table(self.experiment, self.variants);
                sections[0].parts.push(Part::Table(table));
            }
        }
        sections.push(section("Dirty data", self.dirty_charts()));
        let mut drives = vec![Part::Table(self.times())];
        drives.extend(self.rows_of_arrays().map(Part::Table));
        drives.extend(self.drive_charts());
        sections.push(section("Drives", drives));
        if !self.experiment.clients.is_empty() {
            sections.push(section("Clients", self.client_charts()));
        }
        Page {
            title: self.experiment.title.clone(),
            introduction: self.experiment.about.clone(),
            facts: self.facts(),
            sections,
        }
    }

    fn facts(&self) -> Vec<(String, String)> {
        let experiment = self.experiment;
        let scale = match experiment.scale {
            1 => "1: sizes and times are as they are".to_owned(),
            scale => format!(
                "sizes are divided by {scale}, times are reported times {scale}; as they are: \
                 tracks, caches, queues and read-ahead of drives, rates, latencies, numbers in \
                 tables, the times of the controller of writeback"
            ),
        };
        let seeds: Vec<String> = self.seeds.iter().map(u64::to_string).collect();
        let mut facts = vec![
            ("scale".to_owned(), scale),
            ("seeds".to_owned(), seeds.join(", ")),
            ("processor".to_owned(), self.processor.clone()),
        ];
        for (name, drive) in &experiment.drives {
            let size = gib(drive.bytes * experiment.scale);
            let text = format!("{}, {size}{}", drive.model.name(), drive.changes.describe());
            facts.push((format!("drive {name}"), text));
        }
        if let Some(fill) = &experiment.fill {
            let cache = &experiment.drives[fill.cache].0;
            let text = format!(
                "{} % dirty, {} % clean, {}, blocks of {} KiB",
                fill.dirty_percent,
                fill.clean_percent,
                fill.pattern,
                fill.block_sectors / 2
            );
            facts.push((format!("{cache} at the beginning"), text));
        }
        for (name, words) in &experiment.words {
            let words = words.iter().map(|(variant, text)| format!("{variant}: {text}"));
            facts.push((format!("{{{name}}}"), words.collect::<Vec<_>>().join("; ")));
        }
        for clients in &experiment.clients {
            facts.push((clients.name.clone(), clients.describe()));
        }
        let mut end = format!("after {:?}", experiment.end.at_most);
        if !experiment.end.clean.is_empty() {
            let clean = experiment.end.clean.join(", ");
            end += &format!(", or when nothing is dirty in {clean}");
        }
        if experiment.end.when_sent {
            end += ", or when all is sent";
        }
        if let Some(drain) = &experiment.end.drain {
            end += &format!(" and the dirty data of {drain} is written back, as by a flush");
        }
        facts.push(("end".to_owned(), end));
        for volume in &experiment.volumes {
            let messages = volume.messages.join("; ");
            facts.push((format!("volume {}", volume.name), volume.table.clone()));
            facts.push((format!("messages to {}", volume.name), messages));
        }
        facts
    }

    fn results(&self) -> Table {
        let mut columns =
            vec!["variant", "ended", "hours", "dirty at the end, GiB", "processor busy, %"];
        let names: Vec<String> = self
            .experiment
            .drives
            .iter()
            .flat_map(|(name, _)| {
                [
                    format!("{name}: operations"),
                    format!("{name}: MiB/s"),
                    format!("{name}: busy, %"),
                ]
            })
            .collect();
        columns.extend(names.iter().map(String::as_str));
        let mut table = Table::new("What each variant did", &columns);
        let scale = self.experiment.scale as f64;
        for variant in self.variants {
            let ended = variant.records.iter().filter(|record| record.is_done).count();
            let dirty = |record: &Record| {
                last(record).dirty.iter().sum::<u64>() as f64 * scale / f64::from(1 << 21)
            };
            let processor = |record: &Record| {
                let first = record.samples.first().expect("a run has a beginning");
                let busy = last(record).busy.saturating_sub(first.busy);
                100.0 * busy.as_nanos() as f64 / 1e9 / seconds(record)
            };
            let mut row = vec![
                variant.name.clone(),
                format!("{ended} of {}", variant.records.len()),
                median(variant, |record| seconds(record) * scale / 3600.0, 3),
                median(variant, dirty, 1),
                median(variant, processor, 2),
            ];
            for index in 0..self.experiment.drives.len() {
                let used = |record: &Record| used_of(record, index);
                row.push(median(variant, |it| used(it).operations as f64 * scale, 0));
                let moved = |record: &Record| moved_mib(&used(record)) / seconds(record);
                row.push(median(variant, moved, 2));
                let busy = |record: &Record| {
                    let arms = last(record).drives[index].arms.max(1) as f64;
                    used(record).busy_ns() as f64 / 1e7 / seconds(record) / arms
                };
                row.push(median(variant, busy, 1));
            }
            table.row(&row.iter().map(String::as_str).collect::<Vec<_>>());
        }
        table
    }

    /// What the drives did with their time, and how requests came to them.
    fn times(&self) -> Table {
        let columns = [
            "variant and drive",
            "seek, %",
            "rotation, %",
            "transfer, %",
            "other, %",
            "cylinders per operation",
            "requests",
            "merges",
            "flushes",
            "mean depth",
        ];
        let mut table = Table::new("The time of the drives", &columns);
        let scale = self.experiment.scale as f64;
        for variant in self.variants {
            for (index, (name, _)) in self.experiment.drives.iter().enumerate() {
                let used = |record: &Record| used_of(record, index);
                let share = |of: fn(&Used) -> u64| {
                    move |record: &Record| {
                        let arms = last(record).drives[index].arms.max(1) as f64;
                        of(&used_of(record, index)) as f64 / 1e7 / seconds(record) / arms
                    }
                };
                let far = |record: &Record| {
                    let used = used(record);
                    used.seek_cylinders as f64 / used.operations.max(1) as f64
                };
                let depth = |it: &Record| used(it).depth_ns as f64 / 1e9 / seconds(it);
                let row = [
                    format!("{}: {name}", variant.name),
                    median(variant, share(|used| used.seek_ns), 1),
                    median(variant, share(|used| used.rotation_ns), 1),
                    median(variant, share(|used| used.transfer_ns), 1),
                    median(variant, share(|used| used.other_ns), 1),
                    median(variant, far, 1),
                    median(variant, |it| used(it).requests as f64 * scale, 0),
                    median(variant, |it| used(it).merges as f64 * scale, 0),
                    median(variant, |it| used(it).flushes as f64 * scale, 0),
                    median(variant, depth, 2),
                ];
                table.row(&row.iter().map(String::as_str).collect::<Vec<_>>());
            }
        }
        table
    }

    /// Rows that arrays with parity wrote whole, for which they read nothing, and in part; none
    /// without such an array.
    fn rows_of_arrays(&self) -> Option<Table> {
        let columns = ["variant and array", "rows written whole", "in part", "whole, %"];
        let mut table = Table::new("Rows of arrays with parity", &columns);
        let scale = self.experiment.scale as f64;
        let is_array = |drive: &Drive| matches!(drive.model, Model::Raid5 { .. });
        let drives = self.experiment.drives.iter().enumerate();
        let arrays: Vec<_> = drives.filter(|(_, (_, drive))| is_array(drive)).collect();
        for variant in self.variants {
            for (index, (name, _)) in &arrays {
                let used = |record: &Record| used_of(record, *index);
                let row = [
                    format!("{}: {name}", variant.name),
                    median(variant, |it| used(it).whole_rows as f64 * scale, 0),
                    median(variant, |it| used(it).part_rows as f64 * scale, 0),
                    median(variant, |it| whole_percent(&used(it)), 1),
                ];
                table.row(&row.each_ref().map(String::as_str));
            }
        }
        (!arrays.is_empty()).then_some(table)
    }

    fn clients(&self) -> Table {
        let columns = [
            "variant and clients",
            "operations/s",
            "MiB/s",
            "p50, us",
            "p99, us",
            "p99.9, us",
            "flushes/s",
        ];
        let mut table = Table::new("What clients got", &columns);
        for variant in self.variants {
            for (index, clients) in self.experiment.clients.iter().enumerate() {
                let done = |record: &Record| record.clients[index];
                let micros = |ns: Option<u64>| ns.map_or(f64::NAN, |ns| ns as f64 / 1000.0);
                let bytes = |record: &Record| {
                    let done = done(record);
                    (done.read_bytes + done.written_bytes) as f64 / f64::from(1 << 20)
                };
                let seconds = |it: &Record| it.clients_end().at.0 as f64 / 1e9;
                let each = |record: &Record| done(record).operations as f64 / seconds(record);
                let row = [
                    format!("{}: {}", variant.name, clients.name),
                    median(variant, each, 0),
                    median(variant, |record| bytes(record) / seconds(record), 2),
                    median(variant, |record| micros(done(record).p50_ns), 0),
                    median(variant, |record| micros(done(record).p99_ns), 0),
                    median(variant, |record| micros(done(record).p999_ns), 0),
                    median(variant, |it| done(it).flushes as f64 / seconds(it), 0),
                ];
                table.row(&row.iter().map(String::as_str).collect::<Vec<_>>());
            }
        }
        table
    }

    /// A chart of a value of each variant over time.
    fn chart(&self, title: &str, description: &str, y: Axis, look: Look<'_>) -> Part {
        let scale = self.experiment.scale as f64;
        let lines = self.variants.iter().map(|variant| {
            let run = |record: &Record| {
                let pairs = record.samples.windows(2);
                pairs
                    .map(|pair| (pair[1].at.0 as f64 / 1e9 * scale, look(&pair[0], &pair[1])))
                    .collect::<Vec<_>>()
            };
            let runs: Vec<Vec<(f64, f64)>> = variant.records.iter().map(run).collect();
            Line::of_runs(&variant.name, &runs)
        });
        let spread = match self.seeds.len() {
            1 => String::new(),
            count => format!("least to greatest of {count} seeds"),
        };
        Part::Chart(Chart {
            title: title.to_owned(),
            description: description.to_owned(),
            x: Axis::time(),
            y,
            spread,
            lines: lines.collect(),
        })
    }

    fn dirty_charts(&self) -> Vec<Part> {
        let scale = self.experiment.scale as f64;
        let dirty =
            |_: &Sample, after: &Sample| after.dirty.iter().sum::<u64>() as f64 * 512.0 * scale;
        let rate = |_: &Sample, after: &Sample| {
            let rates = after.rate.iter().flatten();
            rates.sum::<u64>() as f64 * 512.0
        };
        let in_use = |_: &Sample, after: &Sample| {
            after.in_use.iter().flatten().max().map_or(f64::NAN, |percent| *percent as f64)
        };
        vec![
            self.chart(
                "Dirty data",
                "What only the caches have.",
                Axis::linear("dirty", "B"),
                &dirty,
            ),
            self.chart(
                "What the controller allows",
                "The rate of writeback that the controllers of all volumes set.",
                Axis::logarithmic("rate", "B/s"),
                &rate,
            ),
            self.chart(
                "Buckets in use",
                "Those with dirty data or metadata.",
                Axis::linear("in use", "%"),
                &in_use,
            ),
        ]
    }

    fn drive_charts(&self) -> Vec<Part> {
        let per_second = |of: fn(&Used) -> u64, index: usize| {
            move |before: &Sample, after: &Sample| {
                let done = of(&after.drives[index]) - of(&before.drives[index]);
                done as f64 / (after.at.0 - before.at.0) as f64 * 1e9
            }
        };
        let mut parts = Vec::new();
        for (index, (name, _)) in self.experiment.drives.iter().enumerate() {
            let bytes = per_second(|used| (used.read_sectors + used.written_sectors) * 512, index);
            let operations = per_second(|used| used.operations, index);
            parts.push(self.chart(
                &format!("Data to and from {name}"),
                "",
                Axis::linear("data", "B/s"),
                &bytes,
            ));
            parts.push(self.chart(
                &format!("Operations of {name}"),
                "",
                Axis::linear("operations", "1/s"),
                &operations,
            ));
        }
        parts
    }

    fn client_charts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        for (index, clients) in self.experiment.clients.iter().enumerate() {
            let rate = |before: &Sample, after: &Sample| {
                let done = after.clients[index].operations - before.clients[index].operations;
                done as f64 / (after.at.0 - before.at.0) as f64 * 1e9
            };
            let p99 = |_: &Sample, after: &Sample| {
                after.clients[index].p99_ns.map_or(f64::NAN, |ns| ns as f64 / 1e9)
            };
            let name = &clients.name;
            let title = format!("Operations of {name}");
            parts.push(self.chart(&title, "", Axis::linear("operations", "1/s"), &rate));
            let title = format!("Latency of {name}, 99 %");
            parts.push(self.chart(&title, "", Axis::logarithmic("latency", "s"), &p99));
        }
        parts
    }
}

fn section(title: &str, parts: Vec<Part>) -> Section {
    Section { title: title.to_owned(), parts }
}

/// What a drive did from the first sample to the last.
///
/// # Panics
/// The record has no sample.
pub fn used_of(record: &Record, index: usize) -> Used {
    let first = record.samples.first().expect("a run has a beginning");
    last(record).drives[index] - first.drives[index]
}

/// How many of the rows that an array wrote it wrote whole, in percent; not a number if it wrote
/// none.
pub fn whole_percent(used: &Used) -> f64 {
    100.0 * used.whole_rows as f64 / (used.whole_rows + used.part_rows) as f64
}

/// The last sample.
///
/// # Panics
/// There is none.
pub fn last(record: &Record) -> &Sample {
    record.samples.last().expect("a run has an end")
}

/// How long a run took, in virtual time.
pub fn seconds(record: &Record) -> f64 {
    record.took().as_nanos() as f64 / 1e9
}

fn moved_mib(used: &Used) -> f64 {
    (used.read_sectors + used.written_sectors) as f64 / 2048.0
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}
