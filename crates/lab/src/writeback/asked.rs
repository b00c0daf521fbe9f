//! [`Asked`]: the options of `cairn lab writeback`.

use std::path::PathBuf;

use crate::costs::Charge;

/// What a user asks for.
#[derive(clap::Args)]
pub struct Asked {
    /// The rows, like row-1.1; all if none is named
    pub rows: Vec<String>,
    /// Run less: at larger scales, without the rows that have none
    #[arg(long)]
    pub quick: bool,
    /// What is run in place of the table.
    #[command(flatten)]
    pub checks: Checks,
    /// Run each variant with so many seeds, from 1
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Write the pages of all rows into FOLDER, and index.html with the tables
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// What is charged for the processor.
    #[command(flatten)]
    pub charge: Charge,
    /// Print JSON: an object per fact and row
    #[arg(long)]
    pub json: bool,
}

/// What is run in place of the table of policies.
#[derive(clap::Args, Clone, Copy, Default)]
#[group(multiple = false)]
pub struct Checks {
    /// Show verdicts over ranges of the disks: seeks, queues and write caches 0.7 and 1.3 times the
    /// models'
    #[arg(long)]
    pub ranges: bool,
    /// Run each scaled row at a quarter of its scale too, and show whether both agree
    #[arg(long)]
    pub check_scales: bool,
}

impl Asked {
    /// All of them.
    pub fn seeds(&self) -> Vec<u64> {
        (1..=self.seeds).collect()
    }
}
