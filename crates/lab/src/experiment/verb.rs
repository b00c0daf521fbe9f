//! `cairn lab run`: all variants and seeds of a file, and what is left of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_outcome::failure::{Outcome, system};
use cairn_outcome::stdout;

use super::form::Experiment;
use super::report::Report;
use super::runs::{Wanted, run_each};
use super::variant::Variant;
use crate::costs::costs;
use crate::jobs::threads;
use crate::page::Page;

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
    let page = page(&experiment, &seeds, asked.cpu_percent)?;
    if let Some(out) = &asked.out {
        let stem = asked.file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        write_files(out, page.files(&stem.unwrap_or_default()))?;
    }
    stdout::print(&if asked.json { page.json() } else { page.summary() })
}

/// Runs an experiment with these seeds, for its page. `cpu_percent` is that of [`Asked`].
///
/// # Errors
/// As [`measure`].
pub fn page(experiment: &Experiment, seeds: &[u64], cpu_percent: u64) -> Outcome<Page> {
    let variants = &measure(experiment, seeds, cpu_percent)?[..];
    let processor = processor(cpu_percent);
    Ok(Report { experiment, seeds, variants, processor }.page())
}

/// All variants of an experiment, with these seeds. `cpu_percent` is that of [`Asked`].
///
/// # Errors
/// A target refuses something, a trace cannot be read, or an operation fails.
pub fn measure(experiment: &Experiment, seeds: &[u64], cpu_percent: u64) -> Outcome<Vec<Variant>> {
    let prices = costs().prices(cpu_percent);
    let every = experiment.unscaled(EVERY_REPORTED).clamp(EVERY_MIN, EVERY);
    let runs = experiment
        .variants
        .iter()
        .flat_map(|variant| seeds.iter().map(move |&seed| Wanted { experiment, variant, seed }));
    let mut records = run_each(threads(), &runs.collect::<Vec<_>>(), prices, every)?.into_iter();
    let all = experiment.variants.iter().map(|name| {
        let records = records.by_ref().take(seeds.len()).collect();
        Variant { name: name.clone(), records }
    });
    Ok(all.collect())
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
