//! Clients that wait until each write is durable: their speed by policy, shape and company, what
//! that took, and how it depends on the time of a disk's flush.

use std::time::Duration;

use cairn_outcome::failure::Outcome;
use cairn_outcome::stderr;

use super::runs::{
    BACKING, CLIENTS, SHAPES, Settings, flushes, median, micros, on_cache_alone, read, run,
    with_shape,
};
use super::{Bar, Shown};
use crate::experiment::form::Experiment;
use crate::experiment::record::{Record, Sample};
use crate::experiment::report::{last, seconds};
use crate::page::{Part, Table};
use crate::workload::Durability;

/// Sectors of a durable write, and of an entry of the journal.
const WRITE: u64 = 64;
const ENTRY: u64 = 8;
/// The baseline of policies, and the one that is judged.
const FORWARDED: &str = "forwarded";
const OURS: &str = "ours";
/// Times of a disk's flush in microseconds; one turn is what the model has.
const FLUSHES: [u64; 7] = [100, 300, 1000, 3000, 8333, 15_000, 30_000];
/// Up to which time one is searched that gives the published factor, in microseconds.
const SEARCHED: u64 = 1000;
/// What the patches' author saw of forwarded flushes.
const PUBLISHED: f64 = 5.0;
/// Bars.
const LEAST_OF_FORWARDED: f64 = 5.0;
const LEAST_OF_CACHE: f64 = 0.8;
const LEAST_OF_BOUND: f64 = 0.95;

/// Durable writes a second of the first clients.
fn writes(record: &Record) -> f64 {
    record.clients[0].written_bytes as f64 / (WRITE * 512) as f64 / seconds(record)
}

/// Runs all, and makes tables.
///
/// # Errors
/// A target refuses it.
pub fn show(settings: &Settings) -> Outcome<Shown> {
    let mut all = Cells::new();
    for (clients, has_bursts, file) in CLIENTS {
        let mut experiment = read(file)?;
        if settings.quick {
            experiment.end.at_most = Duration::from_secs(4);
        }
        for (word, shape) in SHAPES {
            let bursts = if has_bursts { ", with bursts" } else { "" };
            let plural = if clients == 1 { "" } else { "s" };
            let name = format!("{word}, {clients} client{plural}{bursts}");
            stderr::say(format_args!("{name}"));
            let experiment = with_shape(experiment.clone(), shape);
            let is_alone = clients == 1 && !has_bursts;
            let cell = Cell { name, shape, clients, has_bursts, bound: None };
            all.add(cell, &experiment, is_alone, settings)?;
        }
    }
    let mut shown =
        Shown { parts: vec![Part::Table(all.speeds), Part::Table(all.work)], bars: all.bars };
    for (_, has_bursts, file) in CLIENTS.into_iter().filter(|(clients, ..)| *clients == 1) {
        let mut experiment = read(file)?;
        experiment.end.at_most = Duration::from_secs(if settings.quick { 3 } else { 10 });
        let (table, bar) = over_flushes(&experiment, has_bursts, settings)?;
        shown.parts.push(table);
        shown.bars.push(bar);
    }
    Ok(shown)
}

/// One kind of clients.
struct Cell {
    name: String,
    shape: Durability,
    clients: u32,
    has_bursts: bool,
    /// What one client can get of the cache device alone.
    bound: Option<f64>,
}

/// The tables under construction.
struct Cells {
    speeds: Table,
    work: Table,
    bars: Vec<Bar>,
}

impl Cells {
    fn new() -> Cells {
        let columns = [
            "clients: policy",
            "MB/s",
            "p50, us",
            "p99, us",
            "p99.9, us",
            "of forwarded",
            "of the cache alone",
            "bound of that",
        ];
        let speeds = Table::new("Durable writes of 32 KiB", &columns);
        let columns = [
            "clients: policy",
            "entries asked/s",
            "entries made/s",
            "entries avoided/s",
            "flushes asked/s",
            "flushes made/s",
            "flushes avoided/s",
        ];
        let caption = "Entries of the journal, and flushes of the backing device";
        Cells { speeds, work: Table::new(caption, &columns), bars: Vec::new() }
    }

    fn add(
        &mut self,
        mut cell: Cell,
        experiment: &Experiment,
        is_alone: bool,
        settings: &Settings,
    ) -> Outcome<()> {
        let alone = run(&on_cache_alone(experiment.clone(), WRITE), "alone", settings)?;
        let of_alone = median(&alone, writes);
        if is_alone {
            cell.bound = Some(1.0 / of_alone / least_time(experiment, settings)?);
        }
        let mut rows = Vec::new();
        for variant in &experiment.variants {
            rows.push((variant.as_str(), run(experiment, variant, settings)?));
        }
        let rate = |word: &str| {
            let found = rows.iter().find(|(variant, _)| *variant == word);
            found.map_or(f64::NAN, |(_, records)| median(records, writes))
        };
        let (forwarded, ours) = (rate(FORWARDED), rate(OURS));
        self.speed(&cell, "cache device alone", &alone, [f64::NAN, f64::NAN]);
        for (variant, records) in &rows {
            let own = median(records, writes);
            self.speed(&cell, variant, records, [own / forwarded, own / of_alone]);
            self.count(&cell, experiment, (variant, records));
        }
        self.judge(&cell, ours / forwarded, ours / of_alone);
        Ok(())
    }

    fn speed(&mut self, cell: &Cell, variant: &str, records: &[Record], ratios: [f64; 2]) {
        let megabytes = |it: &Record| writes(it) * (WRITE * 512) as f64 / 1e6;
        let ratio = |ratio: f64| if ratio.is_nan() { String::new() } else { format!("{ratio:.3}") };
        let row = [
            format!("{}: {variant}", cell.name),
            format!("{:.1}", median(records, megabytes)),
            format!("{:.1}", median(records, |it| micros(it.clients[0].p50_ns))),
            format!("{:.1}", median(records, |it| micros(it.clients[0].p99_ns))),
            format!("{:.1}", median(records, |it| micros(it.clients[0].p999_ns))),
            ratio(ratios[0]),
            ratio(ratios[1]),
            cell.bound.map_or_else(String::new, |bound| format!("{bound:.3}")),
        ];
        self.speeds.row(&row.each_ref().map(String::as_str));
    }

    /// Asked is what a pass-through of each flush and each FUA write would make. The experiments
    /// record the sectors of all metadata, and of those the sectors of nodes.
    fn count(&mut self, cell: &Cell, experiment: &Experiment, row: (&str, &[Record])) {
        let (variant, records) = row;
        let has_fua = cell.shape != Durability::WriteAndFlush;
        let flushed = |it: &Record| it.clients[0].flushes as f64 / seconds(it);
        let asked = |it: &Record| flushed(it) + if has_fua { writes(it) } else { 0.0 };
        let entries = |it: &Record| {
            let done = |sample: &Sample| sample.counts[0] - sample.counts[1];
            (done(last(it)) - done(&it.samples[0])) as f64 / ENTRY as f64 / seconds(it)
        };
        let backing = |it: &Record| flushes(experiment, it) / seconds(it);
        let figures = [
            median(records, asked),
            median(records, entries),
            median(records, |it| asked(it) - entries(it)),
            median(records, flushed),
            median(records, backing),
            median(records, |it| flushed(it) - backing(it)),
        ];
        let mut row = vec![format!("{}: {variant}", cell.name)];
        row.extend(figures.map(|figure| format!("{figure:.1}")));
        self.work.row(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn judge(&mut self, cell: &Cell, of_forwarded: f64, of_alone: f64) {
        let mut bar = |what: &str, found: f64, least: f64| {
            self.bars.push(Bar { what: format!("{}: {what}", cell.name), found, least });
        };
        // A FUA write alone asks for no flush of the backing device with any policy.
        if cell.shape != Durability::Fua {
            bar("ours, of forwarded", of_forwarded, LEAST_OF_FORWARDED);
        }
        if cell.clients > 1 && !cell.has_bursts {
            bar("ours, of the cache device alone", of_alone, LEAST_OF_CACHE);
        }
        if let Some(bound) = cell.bound {
            bar("ours, of the bound", of_alone / bound, LEAST_OF_BOUND);
        }
    }
}

/// The seconds that one client's durable write takes at least, t_data + t_entry: a key is written
/// after its data.
fn least_time(experiment: &Experiment, settings: &Settings) -> Outcome<f64> {
    let time = |sectors: u64| {
        let alone = with_shape(on_cache_alone(experiment.clone(), sectors), Durability::Fua);
        let records = run(&alone, "alone", settings)?;
        let bytes = (sectors * 512) as f64;
        let each = |it: &Record| seconds(it) * bytes / it.clients[0].written_bytes as f64;
        Ok(median(&records, each))
    };
    Ok(time(WRITE)? + time(ENTRY)?)
}

/// The same over times of the disk's flush, with the one that gives the published ratio, and with
/// the ratio of a write that takes no longer than [`least_time`].
fn over_flushes(
    experiment: &Experiment,
    has_bursts: bool,
    settings: &Settings,
) -> Outcome<(Part, Bar)> {
    let backing = experiment.drives.iter().position(|(name, _)| name == BACKING);
    let backing = backing.expect("the file has it");
    let (mut least, least_time) = (f64::INFINITY, least_time(experiment, settings)?);
    let speeds = |micros: u64| {
        let mut experiment = experiment.clone();
        experiment.drives[backing].1.changes.flush = Some(Duration::from_micros(micros));
        let of = |word| Ok(median(&run(&experiment, word, settings)?, writes));
        Ok([of(FORWARDED)?, of(OURS)?])
    };
    let what = if has_bursts { ", with bursts" } else { "" };
    let caption = format!("One client with FUA and flush{what}: the time of the disk's flush");
    let columns = ["flush", "forwarded, writes/s", "ours, writes/s", "ratio", "bound of that", ""];
    let mut table = Table::new(&caption, &columns);
    let mut row = |micros: u64, [forwarded, ours]: [f64; 2], note: &str| {
        let ratio = format!("{:.2}", ours / forwarded);
        let bound = format!("{:.2}", 1.0 / least_time / forwarded);
        let fields = [format!("{forwarded:.0}"), format!("{ours:.0}"), ratio, bound];
        let [forwarded, ours, ratio, bound] = fields.each_ref().map(String::as_str);
        let flush = format!("{:.3} ms", micros as f64 / 1000.0);
        table.row(&[&flush, forwarded, ours, ratio, bound, note]);
    };
    for micros in FLUSHES {
        let found = speeds(micros)?;
        least = least.min(found[1] / found[0]);
        row(micros, found, if micros == 8333 { "the model's, one turn" } else { "" });
    }
    if !has_bursts {
        let (mut low, mut high) = (1, SEARCHED);
        while high - low > 1 {
            let middle = u64::midpoint(low, high);
            let [forwarded, ours] = speeds(middle)?;
            *if ours / forwarded < PUBLISHED { &mut low } else { &mut high } = middle;
        }
        if high < SEARCHED {
            row(high, speeds(high)?, "a fit to the published factor of 5, no evidence");
        }
    }
    let what = format!("fua+flush, 1 client{what}: ours, of forwarded, for each time of a flush");
    Ok((Part::Table(table), Bar { what, found: least, least: LEAST_OF_FORWARDED }))
}
