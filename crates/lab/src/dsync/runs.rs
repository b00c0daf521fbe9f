//! The experiments of `docs/evidence/dsync`, and figures of their runs.

use std::time::Duration;

use cairn_outcome::failure::Outcome;
use cairn_sim::Prices;

use crate::experiment::clients::What;
use crate::experiment::form::Experiment;
use crate::experiment::record::Record;
use crate::experiment::report::used_of;
use crate::experiment::runs::{Wanted, run_each};
use crate::experiment::variant::Median;
use crate::jobs::threads;
use crate::workload::Durability;

/// How often a run is looked at, in virtual time.
const EVERY: Duration = Duration::from_secs(1);
/// The drive behind the cache.
pub const BACKING: &str = "backing";

/// How much is run.
pub struct Settings {
    /// Less.
    pub quick: bool,
    /// Seeds, from 1.
    pub seeds: u64,
    /// Of the processor.
    pub prices: Prices,
}

macro_rules! file {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../docs/evidence/dsync/", $name)))
    };
}

/// Clients alone and beside bursts: how many, if there are bursts, and their file.
pub const CLIENTS: [(u32, bool, (&str, &str)); 4] = [
    (1, false, file!("one-client.toml")),
    (1, true, file!("one-client-bursts.toml")),
    (4, false, file!("four-clients.toml")),
    (4, true, file!("four-clients-bursts.toml")),
];
/// A drain.
pub const DRAIN: (&str, &str) = file!("drain.toml");
/// Clients that wait for writeback.
pub const TWO_DAYS: (&str, &str) = file!("two-days.toml");

/// How clients make writes durable.
pub const SHAPES: [(&str, Durability); 3] = [
    ("fua+flush", Durability::FuaAndFlush),
    ("write+flush", Durability::WriteAndFlush),
    ("fua", Durability::Fua),
];

/// Reads a file of the evidence.
///
/// # Errors
/// It has no meaning.
pub fn read((name, text): (&str, &str)) -> Outcome<Experiment> {
    Experiment::parse(text, name)
}

/// The same experiment with another shape of its first clients.
#[must_use]
pub fn with_shape(mut experiment: Experiment, shape: Durability) -> Experiment {
    if let Some(What::Made(made)) = experiment.clients.first_mut().map(|it| &mut it.what) {
        made.durability = shape;
    }
    experiment
}

/// The first clients on the cache device alone, in writes of so many sectors.
#[must_use]
pub fn on_cache_alone(mut experiment: Experiment, sectors: u64) -> Experiment {
    experiment.fill = None;
    experiment.counts.clear();
    experiment.clients.truncate(1);
    for volume in &mut experiment.volumes {
        "0 N linear cache 0".clone_into(&mut volume.table);
        volume.messages.clear();
    }
    if let Some(What::Made(made)) = experiment.clients.first_mut().map(|it| &mut it.what) {
        made.blocks = vec![sectors];
    }
    experiment
}

/// One run for each seed.
///
/// # Errors
/// As [`run_each`].
pub fn run(experiment: &Experiment, variant: &str, settings: &Settings) -> Outcome<Vec<Record>> {
    let wanted =
        (1..=settings.seeds).map(|seed| Wanted { experiment, variant, seed, every: EVERY });
    run_each(threads(), &wanted.collect::<Vec<_>>(), settings.prices)
}

/// The median of a figure over records.
///
/// # Panics
/// There is no record.
pub fn median(records: &[Record], figure: impl Fn(&Record) -> f64) -> f64 {
    Median::of(records.iter().map(figure)).expect("a run for each seed").middle
}

/// Flushes of the drive behind the cache in a run.
///
/// # Panics
/// There is no such drive.
pub fn flushes(experiment: &Experiment, record: &Record) -> f64 {
    let index = experiment.drives.iter().position(|(name, _)| name == BACKING);
    let index = index.expect("the experiment has it");
    used_of(record, index).flushes as f64
}

/// A latency in microseconds; not a number if there was no operation.
pub fn micros(nanos: Option<u64>) -> f64 {
    nanos.map_or(f64::NAN, |nanos| nanos as f64 / 1000.0)
}
