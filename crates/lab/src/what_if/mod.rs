//! `cairn lab what-if`: what a cache would do for a user's own trace.
//!
//! ```text
//!  trace --survey--> Survey
//!    |     drives, sizes, kinds --setup--> experiments --run--> records --compare--> Figures
//!    |                                                                                 |
//!    '---------------------------------------------------- advice --> sentences, page <'
//! ```
//!
//! - [`survey`]: the trace, read whole first. [`drive`]: drives as a user names them. [`setup`]:
//!   ways to serve the trace, each an experiment as `cairn lab run` takes it. [`compare`]: figures
//!   of their runs. [`advice`]: what follows from them. [`page`]: all of it for readers.
//!
//! Promises:
//! - Q1. What is saved is what was run: a setup is the text of an experiment.
//! - Q2. All that is refused is refused before the first run, in one line.
//! - Q3. The same trace and options give the same bytes on every machine.

pub mod advice;
pub mod compare;
pub mod drive;
pub mod page;
pub mod setup;
pub mod survey;

use std::path::PathBuf;
use std::time::Duration;

use cairn_backends::parse_size;
use cairn_outcome::failure::{Outcome, system, wrong};
use cairn_outcome::stdout;
use cairn_sim::Prices;

use crate::costs::Charge;
use crate::experiment::clients::{Pace, open_trace};
use crate::experiment::form::Experiment;
use crate::experiment::record::Record;
use crate::experiment::run::Run;
use crate::experiment::runs::{Wanted, run_each};
use crate::experiment::verb::write_files;
use crate::jobs::threads;
use compare::Compared;
use drive::{DriveSpec, endurance_bytes, parse_endurance};
use setup::{Common, Kind, Setup};
use survey::{BLOCK, Survey};

/// A drive of the backing device, where only its kind is given.
const BACKING_BYTES: u64 = 4 << 40;
/// The smallest cache: a quarter of it is tried, too.
const CACHE_LEAST: u64 = 256 << 20;
/// Policies that can be compared on one plot, beside no cache and the two other kinds.
const POLICIES_MOST: usize = 4;
/// Bytes of memory that a block of data in a cache takes: the target's index and its metadata on
/// the simulated drive.
const MEMORY_PER_BLOCK: u64 = 160;
/// Bytes of memory that a block of a cache takes, whether it has data or not.
const MEMORY_PER_SLOT: u64 = 24;
/// How many samples a run has, about.
const SAMPLES: u32 = 1000;
/// All runs have one seed: it decides the spread of service times of drives without an arm.
const SEED: u64 = 1;

/// What a user asks for.
#[derive(clap::Args)]
pub struct Asked {
    /// The trace: an iolog of fio (version 2 or 3), or the text of blkparse
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// The device or file of the trace, if it has several
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// What the volume lies on: hdd, raid5-4, sata-ssd, nvme, ... (4T without a size)
    #[arg(long, value_name = "MODEL[:SIZE]")]
    pub backing: String,
    /// A cache drive; also tried in a half and a quarter of its size. Repeatable
    #[arg(long = "cache", value_name = "MODEL:SIZE", required = true)]
    pub caches: Vec<String>,
    /// The order in which bcache writes dirty data back. Repeatable
    #[arg(long = "policy", value_name = "NAME", default_value = "sweep")]
    pub policies: Vec<String>,
    /// How much may be written to the cache drive, as rated, like 600TBW. Without it, what is usual
    #[arg(long, value_name = "AMOUNT")]
    pub endurance: Option<String>,
    /// Operations in flight at most
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: u32,
    /// Start each operation as soon as there is room, not at its time in the trace
    #[arg(long)]
    pub full_pace: bool,
    /// Refuse caches whose run would take more memory
    #[arg(long, value_name = "SIZE", default_value = "3G")]
    pub memory: String,
    /// What is charged for the processor.
    #[command(flatten)]
    pub charge: Charge,
    /// Write FOLDER/what-if.html with its plots and data beside it
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Write each experiment into FOLDER, for `cairn lab run`
    #[arg(long, value_name = "FOLDER")]
    pub save: Option<PathBuf>,
    /// Print JSON: an object per fact, text, row and point
    #[arg(long)]
    pub json: bool,
}

/// Compares.
///
/// # Errors
/// What is asked for has no meaning, a line of the trace cannot be read, or a file cannot be
/// written.
pub fn run(asked: &Asked) -> Outcome<u8> {
    let backing = DriveSpec::parse("--backing", &asked.backing, Some(BACKING_BYTES))?;
    let caches = caches(asked)?;
    let endurance = asked.endurance.as_deref().map(parse_endurance).transpose()?;
    if asked.policies.len() > POLICIES_MOST {
        let expected = format!("{POLICIES_MOST} at most");
        return Err(wrong("--policy", "number", asked.policies.len(), expected));
    }
    let (common, survey) = read_trace(asked, backing)?;
    let beside = runs_beside(asked, &caches, &survey)?;
    let setups = setups(&caches, &asked.policies);
    let prices = asked.charge.prices();
    let experiments = experiments(&setups, &common, prices)?;
    if let Some(save) = &asked.save {
        let texts = setups.iter().map(|it| (format!("{}.toml", it.word()), it.toml(&common)));
        write_files(save, texts)?;
    }
    let every = sampling(&survey);
    let words: Vec<String> = setups.iter().map(Setup::word).collect();
    let wanted: Vec<Wanted<'_>> = words
        .iter()
        .zip(&experiments)
        .map(|(variant, experiment)| Wanted { experiment, variant, seed: SEED, every })
        .collect();
    let records = run_each(beside.min(threads()), &wanted, prices)?;
    let compare = |(setup, record): (Setup, Record)| {
        let cache = setup.cache.as_ref();
        let limit = cache.and_then(|it| endurance_bytes(endurance, it.model, it.bytes));
        Compared::of(setup, record, limit, survey.span)
    };
    let runs: Vec<Compared> = setups.into_iter().zip(records).map(compare).collect();
    let shown = page::Comparison { common: &common, survey: &survey, runs: &runs, endurance };
    let page = shown.page(asked.charge.describe());
    if let Some(out) = &asked.out {
        write_files(out, page.files("what-if"))?;
    }
    stdout::print(&if asked.json { page.json() } else { page.summary() })
}

/// The caches that are asked for, each in its whole size.
fn caches(asked: &Asked) -> Outcome<Vec<DriveSpec>> {
    let caches = asked.caches.iter().map(|text| {
        let cache = DriveSpec::parse("--cache", text, None)?;
        if cache.bytes < CACHE_LEAST {
            let expected = "256M at least, as a quarter of it is tried, too";
            return Err(wrong("--cache", "size", format!("'{text}'"), expected));
        }
        Ok(cache)
    });
    let caches = caches.collect::<Outcome<Vec<_>>>()?;
    for (index, cache) in caches.iter().enumerate() {
        if caches[..index].contains(cache) {
            return Err(wrong("--cache", "drive", format!("{} twice", cache.name()), "it once"));
        }
    }
    Ok(caches)
}

/// Reads the trace to its end.
fn read_trace(asked: &Asked, backing: DriveSpec) -> Outcome<(Common, Survey)> {
    let shown = asked.trace.display().to_string();
    let path = asked.trace.canonicalize().map_err(|error| system(&shown, "read", error))?;
    let Some(trace) = path.to_str().map(str::to_owned) else {
        return Err(wrong(shown, "path", "bytes that are no text", "UTF-8"));
    };
    let sectors = cairn_block::SectorCount(backing.bytes / 512 / BLOCK.0 * BLOCK.0);
    let survey = Survey::of(open_trace(&asked.trace, sectors, asked.device.as_deref())?)?;
    if survey.operations() == 0 {
        return Err(wrong(shown, "operations", "none", "one at least"));
    }
    let longest = Duration::from_secs(50 * 86_400);
    let at_most = (survey.span * 10).clamp(Duration::from_secs(86_400), longest);
    let common = Common {
        trace,
        device: asked.device.clone(),
        depth: asked.depth,
        pace: if survey.span.is_zero() || asked.full_pace { Pace::Full } else { Pace::Trace },
        backing,
        at_most,
    };
    Ok((common, survey))
}

/// How many runs may go beside each other. Refuses caches whose runs would not fit into memory. A
/// cache never has more data than the trace touches.
fn runs_beside(asked: &Asked, caches: &[DriveSpec], survey: &Survey) -> Outcome<usize> {
    let Ok(memory) = parse_size(&asked.memory) else {
        let found = format!("'{}'", asked.memory);
        return Err(wrong("--memory", "size", found, "a size like \"3G\""));
    };
    let mut beside = u64::MAX;
    for cache in caches {
        let data = cache.bytes.min(survey.touched_bytes) / BLOCK.to_bytes();
        let slots = cache.bytes / BLOCK.to_bytes();
        let needed = data * MEMORY_PER_BLOCK + slots * MEMORY_PER_SLOT;
        if needed > memory {
            let found = format!("{}, whose run takes {} MiB of memory", cache.name(), needed >> 20);
            let expected = format!("one that fits --memory, {} MiB", memory >> 20);
            return Err(wrong("--cache", "size", found, expected));
        }
        beside = beside.min(memory / needed.max(1));
    }
    Ok(usize::try_from(beside).unwrap_or(usize::MAX))
}

/// No cache, and each kind with each cache in its whole size, a half and a quarter.
fn setups(caches: &[DriveSpec], policies: &[String]) -> Vec<Setup> {
    let mut setups = vec![Setup::bare()];
    for cache in caches {
        for part in [1, 2, 4] {
            let cache = DriveSpec { bytes: cache.bytes / part, ..cache.clone() }.whole();
            let kinds = Kind::with_cache(policies).into_iter();
            for setup in kinds.map(|kind| Setup { kind, cache: Some(cache.clone()) }) {
                // A part of one cache may be another, and a policy be named twice.
                if setups.iter().all(|other: &Setup| other.word() != setup.word()) {
                    setups.push(setup);
                }
            }
        }
    }
    setups
}

/// What is run. Each is begun once, so that a table or a message that is refused is refused before
/// the first run.
fn experiments(setups: &[Setup], common: &Common, prices: Prices) -> Outcome<Vec<Experiment>> {
    let parse = |setup: &Setup| Experiment::parse(&setup.toml(common), &setup.word());
    let experiments = setups.iter().map(parse).collect::<Outcome<Vec<_>>>()?;
    for (experiment, setup) in experiments.iter().zip(setups) {
        Run::start(experiment, &setup.word(), SEED, prices)?;
    }
    Ok(experiments)
}

/// How often a run is looked at. A run without times takes a few milliseconds for an operation, at
/// most.
fn sampling(survey: &Survey) -> Duration {
    let about = survey.span + Duration::from_micros(survey.operations().saturating_mul(1000));
    (about / SAMPLES).clamp(Duration::from_millis(10), Duration::from_secs(60))
}
