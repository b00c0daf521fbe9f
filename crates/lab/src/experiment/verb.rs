//! `cairn lab run`: all variants and seeds of a file, and what is left of them.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, system};
use cairn_outcome::{stderr, stdout};
use cairn_sim::Prices;
use indicatif::{ProgressBar, ProgressStyle};

use super::form::Experiment;
use super::record::Record;
use super::report::Report;
use super::run::Run;
use super::variant::Variant;
use crate::costs::costs;

/// How often a run is looked at, in virtual time, and in times as reported. A run whose times are
/// scaled is shorter, so it is looked at more often.
const EVERY: Duration = Duration::from_secs(1);
const EVERY_REPORTED: Duration = Duration::from_secs(16);
const EVERY_MIN: Duration = Duration::from_millis(10);

/// What a user asks for.
pub struct Asked {
    /// The experiment.
    pub file: PathBuf,
    /// How many seeds, from 1.
    pub seeds: u64,
    /// Of the processor's prices, in percent.
    pub cpu_percent: u64,
    /// Where the page and its data go; else only a summary is printed.
    pub out: Option<PathBuf>,
    /// Objects in place of the summary.
    pub json: bool,
}

/// Runs an experiment.
///
/// # Errors
/// The file says something that has no meaning, a target refuses it, or a file cannot be written.
pub fn run(asked: &Asked) -> Outcome<u8> {
    let experiment = Experiment::read(&asked.file)?;
    if let Some(out) = &asked.out {
        make_folder(out)?;
    }
    let seeds: Vec<u64> = (1..=asked.seeds).collect();
    let variants = measure(&experiment, &seeds, asked.cpu_percent)?;
    let (seeds, variants, experiment) = (&seeds[..], &variants[..], &experiment);
    let processor = processor(asked.cpu_percent);
    let page = Report { experiment, seeds, variants, processor }.page();
    if let Some(out) = &asked.out {
        let stem = asked.file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        write_files(out, page.files(&stem.unwrap_or_default()))?;
    }
    stdout::print(&if asked.json { page.json() } else { page.summary() })
}

/// All variants of an experiment, with these seeds. `cpu_percent` is that of [`Asked`].
///
/// # Errors
/// A target refuses something, a trace cannot be read, or an operation fails.
pub fn measure(experiment: &Experiment, seeds: &[u64], cpu_percent: u64) -> Outcome<Vec<Variant>> {
    let prices = costs().prices(cpu_percent);
    let every = experiment.unscaled(EVERY_REPORTED).clamp(EVERY_MIN, EVERY);
    let all = experiment.variants.iter().map(|name| {
        let records = seeds.iter().map(|&seed| run_one(experiment, name, seed, prices, every));
        Ok(Variant { name: name.clone(), records: records.collect::<Outcome<_>>()? })
    });
    all.collect()
}

/// What is charged for the processor, in words.
pub fn processor(cpu_percent: u64) -> String {
    let costs = costs();
    format!("{cpu_percent} % of what {} took on {}", costs.date, costs.machine)
}

fn make_folder(folder: &Path) -> Outcome<()> {
    std::fs::create_dir_all(folder).map_err(|error| system(shown(folder), "create", error))
}

/// Writes files into a folder, which is made if it is not there.
///
/// # Errors
/// The system refused.
pub fn write_files(
    folder: &Path,
    files: impl IntoIterator<Item = (String, String)>,
) -> Outcome<()> {
    make_folder(folder)?;
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| system(shown(&path), "write", error))?;
    }
    Ok(())
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// One run, with its progress on stderr. It is looked at every so often in virtual time.
///
/// # Errors
/// A target refuses something, a trace cannot be read, or an operation fails.
pub fn run_one(
    experiment: &Experiment,
    variant: &str,
    seed: u64,
    prices: Prices,
    every: Duration,
) -> Outcome<Record> {
    let whole = experiment.end.at_most.as_secs();
    let bar = std::io::stderr().is_terminal().then(|| {
        let style = "{prefix} {bar:30} {msg}  {elapsed}, at most {eta} left";
        let style = ProgressStyle::with_template(style).expect("the template is well formed");
        let bar = ProgressBar::new(whole).with_style(style);
        bar.with_prefix(format!("{variant}, seed {seed}:"))
    });
    let run = Run::start(experiment, variant, seed, prices)?;
    let record = run.finish(every, |sample| {
        let Some(bar) = &bar else { return };
        let at = sample.at.0 / 1_000_000_000 * experiment.scale;
        let dirty = (sample.dirty.iter().sum::<u64>() * experiment.scale) >> 21;
        bar.set_position(at);
        bar.set_message(format!("{:.1} h, {dirty} GiB dirty", at as f64 / 3600.0));
    })?;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let hours = record.took().as_secs_f64() * experiment.scale as f64 / 3600.0;
    stderr::say(format_args!("{variant}, seed {seed}: ended after {hours:.2} h, as reported"));
    let failed: u64 = record.clients.iter().map(|done| done.failed).sum();
    if failed > 0 {
        let expected = "none, as no drive fails";
        return Err(refused(
            ConfigKind::System,
            &experiment.file,
            "failed operations",
            failed,
            expected,
        ));
    }
    Ok(record)
}
