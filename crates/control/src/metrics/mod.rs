//! What a server tells about itself for monitoring, as families of metrics.
//!
//! Names follow Prometheus: base units, `_total` for what only rises. A device is a volume; `op` is
//! an operation of `cairn_block`. What targets report ([`cairn_block::Report`]) has names of its
//! own: `cairn_TARGET_FIELD`, in the unit of the report, for each line of a table.

mod remotes;
mod text;

use std::time::Duration;

use cairn_block::{Disk, MappedDevice, OPS, Time, Traffic, Value as Told};

pub use self::text::{Format, write};
use crate::exports::Exports;
use crate::live_pool::{LivePool, METADATA_BLOCK_BYTES};
use crate::world::World;

/// What a family has for each set of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises while the server runs; its name has `_total` after it.
    Counter,
    /// It rises and falls.
    Gauge,
    /// Times of requests.
    Histogram,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// Of a counter or a gauge.
    Number(u64),
    /// Of a counter of seconds.
    Seconds(f64),
    /// Of a histogram: the sum of all times in seconds, how many there are, and how many lie below
    /// each bound in seconds and not below the one before it.
    Times {
        /// In seconds.
        sum: f64,
        /// How many.
        count: u64,
        /// Bounds with their counts.
        buckets: Vec<(f64, u64)>,
    },
}

/// A label: its name and its value.
pub type Label = (&'static str, String);

/// Metrics of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Without the ending of counters.
    pub name: String,
    /// What it is.
    pub help: String,
    /// What it has.
    pub kind: Kind,
    /// Its values, by their labels.
    pub samples: Vec<(Vec<Label>, Sample)>,
}

/// The families while they are gathered, each once, in the order of their first values.
#[derive(Default)]
struct Families(Vec<Family>);

impl Families {
    fn family(&mut self, kind: Kind, name: &str, help: &str) -> &mut Family {
        let at = self.0.iter().position(|family| family.name == name).unwrap_or_else(|| {
            let (name, help, samples) = (name.to_owned(), help.to_owned(), Vec::new());
            self.0.push(Family { name, help, kind, samples });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    fn gauge(&mut self, name: &str, help: &str, labels: impl Into<Vec<Label>>, value: u64) {
        let family = self.family(Kind::Gauge, name, help);
        family.samples.push((labels.into(), Sample::Number(value)));
    }

    fn counter(&mut self, name: &str, help: &str, labels: impl Into<Vec<Label>>, value: u64) {
        let family = self.family(Kind::Counter, name, help);
        family.samples.push((labels.into(), Sample::Number(value)));
    }
}

/// All families, with the values of now.
pub fn gather(world: &World, exports: &Exports) -> Vec<Family> {
    let mut all = Families::default();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    all.gauge("cairn_build_info", "The program's version", [("version", version)], 1);
    let now = world.now();
    for (volume, traffic) in world.traffic() {
        add_device(&mut all, &volume, now);
        let device = || ("device", volume.volume().to_owned());
        add_traffic(&mut all, &DEVICE, &[device()], &traffic.whole);
        for line in &traffic.lines {
            let (start, target) = (line.start.0.to_string(), line.target.clone());
            let labels = [device(), ("start", start), ("target", target)];
            add_traffic(&mut all, &TARGET, &labels, &line.traffic);
        }
        add_reports(&mut all, &volume);
    }
    for name in world.not_served() {
        let help = "Volumes that could not be brought up at the start";
        all.gauge("cairn_device_not_started", help, [("device", name)], 1);
    }
    add_pools(&mut all, world);
    for figures in world.remotes() {
        remotes::add_remote(&mut all, &figures);
    }
    for export in exports.list(world) {
        let waited = exports.waited(&export.name);
        let labels = [("export", export.name.clone())];
        add_traffic(&mut all, &EXPORT, &labels, &exports.traffic(&export.name));
        let labels = [("export", export.name), ("device", export.volume)];
        let help = "Connections of clients";
        all.gauge("cairn_export_connections", help, labels.clone(), export.clients);
        let help = "Requests that have waited for a limit of their export";
        all.counter("cairn_export_throttled_requests", help, labels.clone(), waited.count);
        let help = "How long requests have waited for limits of their export, together";
        let family = all.family(Kind::Counter, "cairn_export_throttled_seconds", help);
        family.samples.push((labels.into(), Sample::Seconds(waited.time.as_secs_f64())));
    }
    all.0
}

fn add_device(all: &mut Families, volume: &MappedDevice, now: Time) {
    let device = || ("device", volume.volume().to_owned());
    let table = volume.live_table();
    let state = match (&table, volume.is_suspended()) {
        (None, _) => "no_table",
        (Some(_), true) => "suspended",
        (Some(_), false) => "active",
    };
    let state = ("state", state.to_owned());
    all.gauge("cairn_device_state_info", "The state of a volume", [device(), state], 1);
    let bytes = table.as_ref().map_or(0, |table| table.sectors().to_bytes());
    all.gauge("cairn_device_size_bytes", "The size of a volume", [device()], bytes);
    let help = "Failures that may have lost acknowledged writes";
    all.counter("cairn_device_losses", help, [device()], volume.failures());
    let help = "Events of a volume, as cairn wait counts them";
    all.counter("cairn_device_events", help, [device()], volume.event_nr());
    for line in table.iter().flat_map(|table| table.lines()).filter(|it| it.target.drains()) {
        let labels = || [device(), ("start", line.start.0.to_string())];
        let dirty = line.target.dirty();
        let bytes = dirty.as_ref().map_or(0, |dirty| dirty.sectors.to_bytes());
        all.gauge("cairn_cache_dirty_bytes", "Bytes that only a cache has", labels(), bytes);
        let help = "Bytes that writeback has copied to the origin";
        all.counter("cairn_writeback_bytes", help, labels(), line.target.written_back().to_bytes());
        if let Some(since) = dirty.and_then(|dirty| dirty.since) {
            let help = "How long the oldest dirty data has been dirty";
            let seconds = now.since(since).as_secs();
            all.gauge("cairn_writeback_oldest_dirty_seconds", help, labels(), seconds);
        }
    }
}

/// How the counts of requests are called.
///
/// Operations, bytes, failures and times, each with what it is.
type Counted = [(&'static str, &'static str); 4];

const DEVICE: Counted = [
    ("cairn_io_operations", "Requests that ended"),
    ("cairn_io_bytes", "Bytes that the requests which ended asked for"),
    ("cairn_io_errors", "Requests that failed"),
    ("cairn_io_duration_seconds", "How long requests took, in turns of the server's loop"),
];

const TARGET: Counted = [
    ("cairn_target_operations", "Parts of requests that ended at a line of a table"),
    ("cairn_target_bytes", "Bytes that the parts of requests which ended asked for"),
    ("cairn_target_errors", "Parts of requests that failed"),
    ("cairn_target_duration_seconds", "How long parts of requests took, from the request's start"),
];

const EXPORT: Counted = [
    ("cairn_export_operations", "Requests of clients that ended"),
    ("cairn_export_bytes", "Bytes that the requests of clients which ended asked for"),
    ("cairn_export_errors", "Requests of clients that failed"),
    ("cairn_export_duration_seconds", "How long requests of clients took, in turns of the loop"),
];

fn add_traffic(all: &mut Families, counted: &Counted, of: &[Label], traffic: &Traffic) {
    let [operations, bytes, errors, seconds] = *counted;
    for op in OPS {
        let labels = || [of, &[("op", op.name().to_owned())]].concat();
        let of = traffic.of(op);
        all.counter(operations.0, operations.1, labels(), of.count());
        all.counter(bytes.0, bytes.1, labels(), of.sectors.to_bytes());
        all.counter(errors.0, errors.1, labels(), of.failed);
        let bound = |bound: Option<Duration>| bound.map_or(f64::INFINITY, |it| it.as_secs_f64());
        let times = Sample::Times {
            sum: of.nanos as f64 / 1e9,
            count: of.count(),
            buckets: of.buckets().map(|(time, count)| (bound(time), count)).collect(),
        };
        let family = all.family(Kind::Histogram, seconds.0, seconds.1);
        family.samples.push((labels(), times));
    }
}

/// The figures that targets report. Words and names are for the status line.
fn add_reports(all: &mut Families, volume: &MappedDevice) {
    let table = volume.live_table();
    for line in table.iter().flat_map(|table| table.lines()) {
        for (field, value) in line.target.report().fields() {
            let field_name = field.name.replace(['/', '-'], "_");
            let name = format!("cairn_{}_{field_name}", line.name.replace('-', "_"));
            let unit = field.unit.word().map_or(String::new(), |unit| format!(", in {unit}"));
            let help = format!("{} of the status of {}{unit}", field.name, line.name);
            let labels =
                [("device", volume.volume().to_owned()), ("start", line.start.0.to_string())];
            match value {
                Told::Counter(number) => all.counter(&name, &help, labels, *number),
                Told::Gauge(number) => all.gauge(&name, &help, labels, *number),
                Told::Share(used, total) => {
                    all.gauge(&format!("{name}_used"), &help, labels.clone(), *used);
                    all.gauge(&format!("{name}_size"), &help, labels, *total);
                }
                Told::State(_) | Told::Names(_) | Told::Absent => {}
            }
        }
    }
}

fn add_pools(all: &mut Families, world: &World) {
    for pool in LivePool::all(&world.names()) {
        // A pool that is just starting knows none.
        let Ok(figures) = pool.figures() else { continue };
        let device = || ("device", pool.name.clone());
        let data = |blocks: u64| blocks.saturating_mul(figures.block.to_bytes());
        let metadata = |blocks: u64| blocks * METADATA_BLOCK_BYTES;
        let (data_blocks, metadata_blocks) = (figures.data_blocks, figures.metadata_blocks);
        for (name, help, bytes) in [
            ("data_used_bytes", "Data blocks in use", data(data_blocks.0)),
            ("data_size_bytes", "All data blocks", data(data_blocks.1)),
            ("metadata_used_bytes", "Metadata in use", metadata(metadata_blocks.0)),
            ("metadata_size_bytes", "Metadata that can be used", metadata(metadata_blocks.1)),
        ] {
            all.gauge(&format!("cairn_thin_{name}"), help, [device()], bytes);
        }
        let mode = ("mode", figures.mode.to_owned());
        all.gauge("cairn_thin_pool_mode_info", "The mode of a pool", [device(), mode], 1);
        let help = "The metadata has to be checked before it may be changed";
        all.gauge("cairn_thin_pool_needs_check", help, [device()], figures.needs_check.into());
    }
}
