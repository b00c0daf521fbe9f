//! `cairn lab publish`: all pages of the evidence, from their seeds. The experiments are those of
//! `docs/evidence`, which the program has with it.

use std::path::PathBuf;

use cairn_outcome::failure::Outcome;
use cairn_outcome::stderr;

use crate::costs::Charge;
use crate::experiment::form::Experiment;
use crate::experiment::verb as experiment;
use crate::writeback::verb as writeback;
use crate::{dsync, workers};

const AGED: [(&str, &str); 2] = [
    ("aged-bcache", include_str!("../../../docs/evidence/aged/bcache.toml")),
    ("aged-writecache", include_str!("../../../docs/evidence/aged/writecache.toml")),
];

/// What a user asks for.
#[derive(clap::Args)]
pub struct Asked {
    /// Where the pages go
    pub folder: PathBuf,
    /// Run less, with one seed: a look in a few minutes
    #[arg(long)]
    pub quick: bool,
    /// Run each variant with so many seeds, from 1
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Cut the power so many times for each policy of flushes
    #[arg(
        long,
        default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    pub cuts: u64,
}

/// Makes the pages, and prints what each has in short.
///
/// # Errors
/// A target refuses an experiment, or a file cannot be written.
pub fn run(asked: &Asked) -> Outcome<u8> {
    let &Asked { ref folder, quick, .. } = asked;
    let (seeds, cuts) = if quick { (1, asked.cuts.min(100)) } else { (asked.seeds, asked.cuts) };
    let (out, charge) = (Some(folder.clone()), Charge::WHOLE);
    workers::run(Some(folder), false)?;
    stderr::say("durable writes");
    // A missed bar is on the page.
    dsync::run(&dsync::Asked { quick, seeds, cuts, out, json: false })?;
    if !quick {
        stderr::say("aged caches");
        for (stem, text) in AGED {
            let aged = Experiment::parse(text, &format!("{stem}.toml"))?;
            let page = experiment::page(&aged, &(1..=seeds).collect::<Vec<_>>(), charge)?;
            experiment::write_files(folder, page.files(stem))?;
        }
    }
    stderr::say("the order of writeback");
    let out = Some(folder.join("writeback"));
    let (rows, checks) = (Vec::new(), writeback::Checks::default());
    writeback::run(&writeback::Asked { rows, quick, checks, seeds, charge, out, json: false })
}
