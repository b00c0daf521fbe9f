//! `cairn lab writeback`: all rows, or some, and what is left of them.

use cairn_outcome::failure::Outcome;
use cairn_outcome::stdout;

pub use super::asked::{Asked, Checks};
use super::table::{self, Measured};
use super::versions::{Version, left_out, versions};
use super::{ranges, scales};
use crate::experiment::form::Experiment;
use crate::experiment::report::Report;
use crate::experiment::verb::{measure, write_files};
use crate::page::Page;

/// Runs the rows.
///
/// # Errors
/// There is no such row, a target refuses one, or a file cannot be written.
pub fn run(asked: &Asked) -> Outcome<u8> {
    let versions = versions(&asked.rows, asked.quick)?;
    if let Some(out) = &asked.out {
        write_files(out, [])?;
    }
    let (stem, page) = match asked.checks {
        Checks { ranges: true, .. } => ("ranges", ranges::page(asked, versions, facts(asked))?),
        Checks { check_scales: true, .. } => {
            ("scales", scales::page(asked, versions, facts(asked))?)
        }
        Checks { .. } => ("index", policies(asked, versions)?),
    };
    if let Some(out) = &asked.out {
        write_files(out, page.files(stem))?;
    }
    stdout::print(&if asked.json { page.json() } else { page.summary() })
}

/// Policies side by side, with a page for each row if there is a folder for them.
fn policies(asked: &Asked, versions: Vec<Version>) -> Outcome<Page> {
    let seeds = asked.seeds();
    let mut all = Vec::new();
    for Version { row, stem, text } in versions {
        let experiment = Experiment::parse(&text, &format!("{stem}.toml"))?;
        let variants = measure(&experiment, &seeds, asked.charge)?;
        if let Some(out) = &asked.out {
            let report = Report {
                experiment: &experiment,
                seeds: &seeds,
                variants: &variants,
                processor: asked.charge.describe(),
            };
            write_files(out, report.page().files(&stem))?;
            write_files(out, [(format!("{stem}.toml"), text)])?;
        }
        all.push(Measured { row, experiment, variants });
    }
    Ok(table::page(&all, facts(asked)))
}

fn facts(asked: &Asked) -> Vec<(String, String)> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let mut facts = vec![
        fact(
            "seeds",
            format!("1 to {}: which blocks are dirty, in most rows where it begins", asked.seeds),
        ),
        fact("processor", asked.charge.describe()),
        fact(
            "quick",
            if asked.quick { "yes: a part of it, at larger scales" } else { "no" }.into(),
        ),
    ];
    let left = left_out(&asked.rows);
    if asked.quick && !left.is_empty() {
        facts.push(fact("left out", format!("{}, as they have no quick scale", left.join(", "))));
    }
    facts
}
