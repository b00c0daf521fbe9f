//! `cairn lab run`: all variants and seeds of a file, and what is left of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_outcome::failure::{Outcome, system};
use cairn_outcome::stdout;

use super::form::Experiment;
use super::report::Report;
use super::runs::{Wanted, run_each};
use super::variant::Variant;
use crate::costs::Charge;
use crate::jobs::threads;
use crate::page::Page;

/// How often a run is looked at, in virtual time, and in times as reported. A run whose times are
/// scaled is shorter, so it is looked at more often.
const EVERY: Duration = Duration::from_secs(1);
const EVERY_REPORTED: Duration = Duration::from_secs(16);
const EVERY_MIN: Duration = Duration::from_millis(10);

/// What a user asks for.
#[derive(clap::Args)]
pub struct Asked {
    /// The experiment, a TOML file
    pub file: PathBuf,
    /// Run each variant with so many seeds, from 1
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Write FOLDER/NAME.html with its plots and data beside it; NAME is that of the file
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// What is charged for the processor.
    #[command(flatten)]
    pub charge: Charge,
    /// Print JSON: an object per fact, row and point
    #[arg(long)]
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
    let page = page(&experiment, &seeds, asked.charge)?;
    if let Some(out) = &asked.out {
        let stem = asked.file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        write_files(out, page.files(&stem.unwrap_or_default()))?;
    }
    stdout::print(&if asked.json { page.json() } else { page.summary() })
}

/// Runs an experiment with these seeds, for its page.
///
/// # Errors
/// As [`measure`].
pub fn page(experiment: &Experiment, seeds: &[u64], charge: Charge) -> Outcome<Page> {
    let variants = &measure(experiment, seeds, charge)?[..];
    let processor = charge.describe();
    Ok(Report { experiment, seeds, variants, processor }.page())
}

/// All variants of an experiment, with these seeds.
///
/// # Errors
/// A target refuses something, a trace cannot be read, or an operation fails.
pub fn measure(experiment: &Experiment, seeds: &[u64], charge: Charge) -> Outcome<Vec<Variant>> {
    let all = measure_each(std::slice::from_ref(experiment), seeds, charge, EVERY_REPORTED)?;
    Ok(all.into_iter().flatten().collect())
}

/// All variants of each experiment, with these seeds; runs of different ones go beside each other.
/// A run is looked at every so often, in times as reported, but in steps of 10 ms to 1 s of virtual
/// time.
///
/// # Errors
/// As [`measure`].
pub fn measure_each(
    experiments: &[Experiment],
    seeds: &[u64],
    charge: Charge,
    every: Duration,
) -> Outcome<Vec<Vec<Variant>>> {
    let mut wanted = Vec::new();
    for experiment in experiments {
        let every = experiment.unscaled(every).clamp(EVERY_MIN, EVERY);
        for variant in &experiment.variants {
            wanted.extend(seeds.iter().map(|&seed| Wanted { experiment, variant, seed, every }));
        }
    }
    let mut records = run_each(threads(), &wanted, charge.prices())?.into_iter();
    let mut variant = |name: &String| {
        let records = records.by_ref().take(seeds.len()).collect();
        Variant { name: name.clone(), records }
    };
    let all = experiments.iter().map(|it| it.variants.iter().map(&mut variant).collect());
    Ok(all.collect())
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
