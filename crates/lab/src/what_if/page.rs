//! The page of a comparison.

use super::advice::{Asked, Figures, judge, sentences, time};
use super::compare::Compared;
use super::drive::{DriveSpec, size_word};
use super::setup::Common;
use super::survey::Survey;
use crate::experiment::clients::Pace;
use crate::experiment::record::Sample;
use crate::page::{Axis, Chart, Line, Page, Part, Section, Table, with_unit};

/// See the module's description.
pub struct Comparison<'a> {
    /// What all runs have in common.
    pub common: &'a Common,
    /// What the trace asks for.
    pub survey: &'a Survey,
    /// The first is that without a cache.
    pub runs: &'a [Compared],
    /// What the user says may be written to the cache drive.
    pub endurance: Option<u64>,
}

impl Comparison<'_> {
    /// The page. `processor` says what was charged for its time.
    pub fn page(&self, processor: String) -> Page {
        let text = |sentences: Vec<String>| sentences.into_iter().map(Part::Text).collect();
        let mut sections = vec![
            section("Result", vec![Part::Table(self.clients()), Part::Table(self.drives())]),
            section("Recommendation", text(self.advice())),
            section("What is modelled", text(self.modelled())),
        ];
        for cache in self.caches() {
            sections.push(section(&format!("With {}", cache.name()), self.charts(cache)));
        }
        let introduction = format!(
            "{} replayed in virtual time on simulated drives, by the targets that cairn serves \
             volumes with.",
            self.common.trace
        );
        let title = "What a cache would do for this trace".to_owned();
        Page { title, introduction, facts: self.facts(processor), sections }
    }

    /// The caches that were asked for: of each kind of drive the largest.
    fn caches(&self) -> Vec<&DriveSpec> {
        let mut caches: Vec<&DriveSpec> = Vec::new();
        for cache in self.runs.iter().filter_map(|run| run.setup.cache.as_ref()) {
            let is_part = |whole: &&DriveSpec| {
                whole.word == cache.word && [1, 2, 4].contains(&(whole.bytes / cache.bytes))
            };
            if !caches.iter().any(is_part) {
                caches.push(cache);
            }
        }
        caches
    }

    fn advice(&self) -> Vec<String> {
        let figures: Vec<_> = self.runs.iter().map(|run| run.figures.clone()).collect();
        let (bare, runs) = figures.split_first().expect("one run is without a cache");
        let asked = Asked {
            has_times: self.common.pace == Pace::Trace,
            depth: self.common.depth,
            touched_bytes: self.survey.touched_bytes,
        };
        sentences(judge(bare, runs), bare, runs, asked)
    }

    fn modelled(&self) -> Vec<String> {
        let replay = match self.common.pace {
            Pace::Trace => format!(
                "Each operation starts at its time in the trace, or later while {} are in flight; \
                 its latency counts from its start.",
                self.common.depth
            ),
            Pace::Full => format!(
                "Each operation starts as soon as fewer than {} are in flight: the trace has no \
                 times, or they are left out.",
                self.common.depth
            ),
        };
        vec![
            format!(
                "{replay} Latencies are of reads, writes, discards and flushes together. The cache \
                 is empty at the beginning."
            ),
            "Drives are the models that `cairn lab drives` shows beside published figures; all \
             attributes of the caches are the defaults. Writes within a flash drive, for its own \
             sake, are not counted. Years are of the trace over and over, without a pause between."
                .to_owned(),
            "Hits are counted as the target does: those of a bcache by extents, those of a \
             writecache, which caches writes only, by blocks. Dirty data is what the backing \
             device lacked when all was sent; the drain is then asked for, as by `cairn cache \
             flush`, and what it writes counts."
                .to_owned(),
        ]
    }

    fn facts(&self, processor: String) -> Vec<(String, String)> {
        let Survey { reads, writes, flushes, discards, changed, span, .. } = self.survey;
        let bytes = |bytes: u64| with_unit(bytes as f64, "B");
        let asks = format!(
            "{reads} reads of {}, {writes} writes of {}, {flushes} flushes, {discards} discards",
            bytes(self.survey.read_bytes),
            bytes(self.survey.written_bytes)
        );
        let endurance = match self.endurance {
            Some(given) => format!("{}, as given", bytes(given)),
            None => {
                "what is usual for a drive of its kind: 600 TB of 1 TB for the consumer class, \
                     1825 TB of 1 TB with power-loss protection, 5110 TB of 280 GB for an Optane; \
                     a larger cache is on several"
                    .to_owned()
            }
        };
        let pairs = [
            ("the trace asks for", asks),
            ("it touches", bytes(self.survey.touched_bytes)),
            ("its length", time(*span)),
            ("operations widened to whole blocks of 4 KiB", changed.to_string()),
            ("backing device", self.common.backing.name()),
            ("endurance of the cache drive", endurance),
            ("processor", processor),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    /// What clients got.
    fn clients(&self) -> Table {
        let columns = [
            "setup",
            "took, s",
            "operations/s",
            "MB/s",
            "mean, us",
            "p50, us",
            "p99, us",
            "p99.9, us",
            "hits, %",
        ];
        self.table("What the trace got", &columns, |it| {
            let seconds = it.took.as_secs_f64();
            let rate = |amount: f64| (seconds > 0.0).then(|| amount / seconds);
            let micros = |ns: Option<u64>| printed(ns.map(|ns| ns as f64 / 1e3), 1);
            let [p50, p99, p999] = it.percentiles_ns.map(micros);
            vec![
                format!("{seconds:.3}"),
                printed(rate(it.operations as f64), 1),
                printed(rate(mega(it.bytes)), 2),
                format!("{:.1}", it.mean_ns / 1e3),
                p50,
                p99,
                p999,
                printed(it.hit_percent, 1),
            ]
        })
    }

    /// What drives and caches did for it.
    fn drives(&self) -> Table {
        let columns = [
            "setup",
            "backing busy, %",
            "to backing, MB",
            "to cache, MB",
            "years",
            "dirty, MB",
            "drain, s",
        ];
        self.table("What it took", &columns, |it| {
            vec![
                format!("{:.1}", it.backing_busy_percent),
                format!("{:.1}", mega(it.backing_written)),
                printed(it.cache_written.map(mega), 1),
                printed(it.years, 1),
                format!("{:.1}", mega(it.dirty_bytes)),
                printed(it.drained.map(|it| it.as_secs_f64()), 2),
            ]
        })
    }

    /// A row per run, which begins with its setup.
    fn table(
        &self,
        caption: &str,
        columns: &[&str],
        fields: impl Fn(&Figures) -> Vec<String>,
    ) -> Table {
        let mut table = Table::new(caption, columns);
        for Compared { figures, .. } in self.runs {
            let ended = if figures.is_whole { "" } else { " (not all was sent)" };
            let mut row = vec![format!("{}{ended}", figures.label)];
            row.extend(fields(figures));
            table.row(&row.iter().map(String::as_str).collect::<Vec<_>>());
        }
        table
    }

    fn charts(&self, cache: &DriveSpec) -> Vec<Part> {
        let own = |run: &&Compared| run.setup.cache.as_ref().is_none_or(|it| it == cache);
        let over_time = |title: &str, y: Axis, look: &dyn Fn(&Sample) -> f64| {
            let lines = self.runs.iter().filter(own).map(|run| {
                let samples = run.samples.iter().skip(1);
                let values = samples.map(|sample| (sample.at.0 as f64 / 1e9, look(sample)));
                Line::new(&run.setup.kind.name(), values)
            });
            let lines = lines.collect();
            let title = title.to_owned();
            Part::Chart(Chart { title, x: Axis::time(), y, lines, ..Chart::default() })
        };
        let p99 = |sample: &Sample| sample.clients[0].p99_ns.map_or(f64::NAN, |ns| ns as f64 / 1e9);
        let dirty = |sample: &Sample| sample.dirty[0] as f64 * 512.0;
        vec![
            over_time("Latency of 99 % over time", Axis::logarithmic("latency", "s"), &p99),
            over_time("Dirty data over time", Axis::linear("dirty", "B"), &dirty),
            self.by_size(cache),
        ]
    }

    /// The mean latency over the size of the cache.
    fn by_size(&self, cache: &DriveSpec) -> Part {
        let of_drive = |run: &&Compared| {
            let own = run.setup.cache.as_ref();
            own.is_some_and(|it| it.word == cache.word && it.bytes <= cache.bytes)
        };
        let runs: Vec<&Compared> = self.runs.iter().filter(of_drive).collect();
        let kinds = runs.iter().filter(|run| run.setup.cache.as_ref() == Some(cache));
        let lines = kinds.map(|kind| {
            let same = runs.iter().filter(|run| run.setup.kind == kind.setup.kind);
            let point = |run: &&Compared| {
                (run.figures.cache_bytes.unwrap_or(0) as f64, run.figures.mean_ns / 1e9)
            };
            let mut points: Vec<(f64, f64)> = same.map(point).collect();
            points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            Line::new(&kind.setup.kind.name(), points)
        });
        Part::Chart(Chart {
            title: "Mean latency by the size of the cache".to_owned(),
            description: format!("Up to {}.", size_word(cache.bytes)),
            x: Axis::linear("cache", "B"),
            y: Axis::logarithmic("latency", "s"),
            lines: lines.collect(),
            ..Chart::default()
        })
    }
}

/// A number, or `-` if there is none.
fn printed(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

/// In megabytes.
fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn section(title: &str, parts: Vec<Part>) -> Section {
    Section { title: title.to_owned(), parts }
}
