//! `cairn lab dsync`: what durable writes cost through a cache, by policy of flushes, and what each
//! policy loses when the power is cut.
//!
//! - [`speed`]: clients whose writes are durable, alone and beside bursts. [`drain`]: dirty data
//!   that is written back. [`long`]: clients that wait for writeback for two days. [`cuts`]: power
//!   cuts at any write. Each makes tables, and judges its [`Bar`]s.
//! - [`runs`]: the experiments of `docs/evidence/dsync`, which the program has with it.
//!
//! Promises:
//! - D1. Policies are words of a target of `cairn_targets` ([`cairn_targets::lab_types`]); none is
//!   implemented here.
//! - D2. A bar that is missed is printed with its figure, as one that is met. The exit code is 2.
//! - D3. The same seeds print the same bytes on every machine.

pub mod cuts;
pub mod drain;
pub mod long;
pub mod runs;
pub mod speed;

use std::path::PathBuf;

use cairn_outcome::failure::Outcome;
use cairn_outcome::{exit, stderr, stdout};

use crate::costs::Charge;
use crate::experiment::verb::write_files;
use crate::page::{Page, Part, Section, Table};
use runs::Settings;

/// What a user asks for.
#[derive(clap::Args)]
pub struct Asked {
    /// Run less, with one seed: a look in two minutes
    #[arg(long)]
    pub quick: bool,
    /// Run each experiment with so many seeds, from 1
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Cut the power so many times for each policy
    #[arg(
        long,
        default_value_t = 200,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    pub cuts: u64,
    /// Write FOLDER/dsync.html with its data beside it
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Print JSON: an object per fact and row
    #[arg(long)]
    pub json: bool,
}

/// A figure that must be reached.
pub struct Bar {
    /// Of what.
    pub what: String,
    /// The figure.
    pub found: f64,
    /// The least that it may be.
    pub least: f64,
}

impl Bar {
    fn is_met(&self) -> bool {
        self.found >= self.least
    }
}

/// What a part of the evidence is.
#[derive(Default)]
pub struct Shown {
    /// Its tables and texts.
    pub parts: Vec<Part>,
    /// Its bars.
    pub bars: Vec<Bar>,
}

/// Runs everything.
///
/// # Errors
/// A target refuses an experiment, or a file cannot be written.
pub fn run(asked: &Asked) -> Outcome<u8> {
    if let Some(out) = &asked.out {
        // The folder, before it takes long.
        write_files(out, [])?;
    }
    let settings = Settings {
        quick: asked.quick,
        seeds: if asked.quick { 1 } else { asked.seeds },
        prices: Charge::WHOLE.prices(),
    };
    let (mut sections, mut bars) = (Vec::new(), Vec::new());
    let cuts = |_: &Settings| cuts::show(asked.cuts);
    type Show<'a> = &'a dyn Fn(&Settings) -> Outcome<Shown>;
    let all: [(&str, Show<'_>); 4] = [
        ("Durable writes", &speed::show),
        ("Drains", &drain::show),
        ("Two days of random writes", &long::show),
        ("Power cuts", &cuts),
    ];
    for (title, show) in all {
        stderr::say(format_args!("{title}"));
        let shown = show(&settings)?;
        sections.push(Section { title: title.to_owned(), parts: shown.parts });
        bars.extend(shown.bars);
    }
    sections.insert(0, Section { title: "Bars".to_owned(), parts: vec![table_of(&bars)] });
    let page = page(asked, sections);
    if let Some(out) = &asked.out {
        write_files(out, page.files("dsync"))?;
    }
    let printed = stdout::print(&if asked.json { page.json() } else { page.summary() })?;
    Ok(if bars.iter().all(Bar::is_met) { printed } else { exit::DAMAGED })
}

fn table_of(bars: &[Bar]) -> Part {
    let mut table = Table::new("Bars", &["bar", "expected", "found", "verdict"]);
    for bar in bars {
        let expected = format!("{:.3}", bar.least);
        let found = format!("{:.3}", bar.found);
        let verdict = if bar.is_met() { "met" } else { "missed" };
        table.row(&[&bar.what, &expected, &found, verdict]);
    }
    Part::Table(table)
}

fn page(asked: &Asked, sections: Vec<Section>) -> Page {
    let mut facts = vec![
        ("processor".to_owned(), Charge::WHOLE.describe()),
        ("cuts of each policy".to_owned(), asked.cuts.to_string()),
    ];
    if asked.quick {
        let text = "one seed, shorter runs, larger scales: no evidence, a look".to_owned();
        facts.push(("quick".to_owned(), text));
    } else {
        facts.push(("seeds".to_owned(), format!("1 to {}", asked.seeds)));
    }
    let policies = cairn_targets::bcache::flush_policies();
    facts.extend(policies.map(|(word, about)| (format!("policy {word}"), about.to_owned())));
    Page {
        title: "Durable writes through bcache, by policy of flushes".to_owned(),
        introduction: "Ratios are of medians over the seeds. The drives are models, fixed from \
                       published rows before the first of these runs; a disk's flush is not \
                       published, so results are also shown over its range."
            .to_owned(),
        facts,
        sections,
    }
}
