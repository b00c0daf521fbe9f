//! The page of all rows: one table, what reviewers saw, and what was promised.

use super::bound;
use super::buckets;
use super::judge::{Runs, verdict};
use super::parity;
use super::rows::{Row, When};
use crate::experiment::client::Done;
use crate::experiment::form::Experiment;
use crate::experiment::record::Record;
use crate::experiment::report::used_of;
use crate::experiment::variant::{Median, Variant};
use crate::page::{Page, Part, Section, Table};

/// The policy that is judged.
pub const OURS: &str = "sweep";
/// The policy that it is compared with.
pub const FIRST: &str = "completion";
/// How many times as fast as that it is at least, as promised.
pub const LEAST_OF_FIRST: f64 = 0.98;
/// The target, in percent of the cache: `writeback_percent` of all rows.
const TARGET_PERCENT: u64 = 10;

/// A row at a block size, with its runs.
pub struct Measured<'a> {
    /// The row.
    pub row: &'a Row,
    /// What was run.
    pub experiment: Experiment,
    /// Its runs.
    pub variants: Vec<Variant>,
}

impl Measured<'_> {
    /// Its runs, to be judged.
    pub fn runs(&self) -> Runs<'_> {
        Runs { variants: &self.variants, scale: self.experiment.scale }
    }

    /// The size of its blocks, in KiB.
    pub fn kib(&self) -> String {
        let sectors = self.experiment.fill.as_ref().map_or(0, |fill| fill.block_sectors);
        (sectors / 2).to_string()
    }

    fn target(&self) -> u64 {
        let cache = self.experiment.fill.as_ref().map(|fill| &self.experiment.drives[fill.cache].1);
        cache.map_or(0, |cache| cache.bytes / 512 * TARGET_PERCENT / 100)
    }

    /// True if it ends when nothing is dirty.
    pub fn is_whole(&self) -> bool {
        !self.experiment.end.clean.is_empty()
    }

    /// A count of all drives but the cache.
    fn counted(
        &self,
        variant: &Variant,
        of: fn(&cairn_sim::drives::Used) -> u64,
    ) -> Option<Median> {
        let cache = self.experiment.fill.as_ref().map(|fill| fill.cache);
        let others = |record: &Record| {
            let all = (0..self.experiment.drives.len()).filter(|index| Some(*index) != cache);
            let sum: u64 = all.map(|index| of(&used_of(record, index))).sum();
            sum as f64 * self.experiment.scale as f64
        };
        Median::of(variant.records.iter().map(others))
    }

    /// A figure of the first clients, of what they did in so many seconds; none without clients.
    fn of_clients(&self, variant: &Variant, figure: fn(&Done, f64) -> f64) -> Option<Median> {
        let figures = variant.records.iter().filter_map(|record| {
            Some(figure(record.clients.first()?, record.took().as_secs_f64()))
        });
        Median::of(figures)
    }

    /// How many times as fast as the best of the others.
    fn of_best(&self) -> Option<Median> {
        let others = self.variants.iter().filter(|variant| variant.name != OURS);
        let times = others.filter_map(|it| self.runs().times(OURS, &it.name, When::Whole));
        times.min_by(|a, b| a.middle.total_cmp(&b.middle))
    }
}

/// Buckets in use at the end.
fn in_use(variant: &Variant) -> Option<Median> {
    let records = variant.records.iter();
    let percent = |record: &Record| {
        let last = record.samples.last()?;
        Some(*last.in_use.iter().flatten().max()? as f64)
    };
    Median::of(records.filter_map(percent))
}

fn millis(nanos: Option<u64>) -> f64 {
    nanos.map_or(f64::NAN, |nanos| nanos as f64 / 1e6)
}

/// Printed, or that there is none.
pub fn shown(median: Option<Median>, digits: usize) -> String {
    median.map_or_else(|| "-".to_owned(), |median| median.print(digits))
}

/// The page. `facts` say what it rests on.
pub fn page(all: &[Measured<'_>], facts: Vec<(String, String)>) -> Page {
    let section = |title: &str, tables: Vec<Table>| Section {
        title: title.to_owned(),
        parts: tables.into_iter().map(Part::Table).collect(),
    };
    let promised = [bars(all), parity::table(all), buckets::table(all)];
    Page {
        title: "The order of writeback".to_owned(),
        introduction: "Dirty data of a cache goes to backing devices by four policies. Each row \
                       is an experiment with a page of its own. A figure is the median of all \
                       seeds, with the least and the greatest where they differ; ratios are of \
                       runs with the same seed."
            .to_owned(),
        facts,
        sections: vec![
            section("Rows", vec![rows(all)]),
            section("What reviewers saw", vec![observations(all)]),
            section("What was promised", promised.into_iter().flatten().collect()),
        ],
    }
}

fn rows(all: &[Measured<'_>]) -> Table {
    let columns = [
        "row",
        "block, KiB",
        "policy",
        "to the target, h",
        "to clean, h",
        "dirty data less, GiB",
        "x completion",
        "requests",
        "merges",
        "bound, h",
        "x bound",
        "clients, 1/s",
        "p99, ms",
        "in use, %",
    ];
    let mut table = Table::new("Policies side by side", &columns);
    for one in all {
        let runs = one.runs();
        let hours = bound::of_experiment(&one.experiment).filter(|_| one.is_whole());
        let hours = hours.map(|it| it.as_secs_f64() * one.experiment.scale as f64 / 3600.0);
        for variant in &one.variants {
            let clean = runs.hours_to(variant, 0);
            let of_bound = clean.zip(hours).map(|(clean, hours)| clean.middle / hours);
            let number = |value: Option<f64>| {
                value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
            };
            let fields = [
                one.row.name.to_owned(),
                one.kib(),
                variant.name.clone(),
                shown(runs.hours_to(variant, one.target()), 2),
                shown(clean, 2),
                shown(runs.gib_written(variant), 1),
                shown(runs.times(&variant.name, FIRST, When::Whole), 3),
                shown(one.counted(variant, |used| used.requests), 0),
                shown(one.counted(variant, |used| used.merges), 0),
                number(hours),
                number(of_bound),
                shown(one.of_clients(variant, |done, seconds| done.operations as f64 / seconds), 1),
                shown(one.of_clients(variant, |done, _| millis(done.p99_ns)), 1),
                shown(in_use(variant), 0),
            ];
            table.row(&fields.each_ref().map(String::as_str));
        }
    }
    table
}

fn observations(all: &[Measured<'_>]) -> Table {
    let columns = ["row", "block, KiB", "seen by reviewers", "the model shows", "verdict"];
    let mut table = Table::new("What reviewers saw", &columns);
    for one in all {
        for observation in one.row.observations {
            let [shown, verdict] = verdict(observation, &one.runs())
                .unwrap_or_else(|| ["nothing".to_owned(), "does not tell".to_owned()]);
            let fields = [one.row.name, &one.kib(), observation.seen, &shown, &verdict];
            table.row(&fields);
        }
    }
    table
}

/// None if all are judged in another way.
fn bars(all: &[Measured<'_>]) -> Option<Table> {
    let columns = ["row", "block, KiB", "x completion", "x best of the others", "verdict"];
    let mut table = Table::new("What was promised of sweep: >= 0.98, and >= 0.99", &columns);
    for one in all.iter().filter(|one| !buckets::are_judged(one)) {
        let completion = one.runs().times(OURS, FIRST, When::Whole);
        let best = one.of_best();
        let is_met =
            |found: Option<Median>, least: f64| found.is_none_or(|found| found.middle >= least);
        let verdict = match (is_met(completion, LEAST_OF_FIRST), is_met(best, 0.99)) {
            _ if best.is_none() => "no less was dirty",
            (true, true) => "met",
            _ if !one.experiment.clients.is_empty() => "missed, beside clients",
            (false, _) => "missed: slower than completion",
            (true, false) => "missed: not the best within 1 %",
        };
        let fields = [one.row.name, &one.kib(), &shown(completion, 3), &shown(best, 3), verdict];
        table.row(&fields);
    }
    (!table.rows.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::record::{Sample, testing};
    use crate::writeback::rows::ROWS;
    use cairn_sim::drives::Used;

    /// 40 GiB become clean in so many seconds.
    fn record(experiment: &Experiment, seconds: u64) -> Record {
        let sample = |second: u64| Sample {
            dirty: vec![0, (80 << 20) * (seconds - second) / seconds],
            rate: vec![None, None],
            in_use: vec![None, None],
            drives: experiment.drives.iter().map(|_| used(800 * second / seconds)).collect(),
            ..testing::nothing_at(second)
        };
        let samples = (0..=seconds).map(sample).collect();
        testing::record(samples)
    }

    fn used(requests: u64) -> Used {
        Used { requests, merges: requests / 10, ..Used::default() }
    }

    #[test]
    fn page_has_a_line_for_each_policy_and_says_what_is_not_as_promised() {
        let row = &ROWS[0];
        let experiment = Experiment::parse(row.text, "x.toml").expect("a row has a meaning");
        let variants = [("completion", 100), ("strict", 80), ("sorted", 90), ("sweep", 81)];
        let variants = variants.map(|(name, seconds)| Variant {
            name: name.to_owned(),
            records: vec![record(&experiment, seconds)],
        });
        let one = Measured { row, experiment, variants: variants.into() };
        let text = page(&[one], Vec::new()).summary();
        let line = |words: &[&str]| {
            text.lines().any(|line| {
                let found: Vec<&str> = line.split_whitespace().collect();
                found.windows(words.len()).any(|part| part == words)
            })
        };
        // 128 x 80 s, 40 GiB and 800 requests.
        assert!(line(&["strict", "2.79", "2.84", "5120.0", "1.250", "102400", "10240"]), "{text}");
        assert!(line(&["strict", "is", "1.25x", "completion", "does", "not", "agree:"]), "{text}");
        assert!(line(&["1.235", "0.988", "missed:", "not", "the", "best"]), "{text}");
    }
}
