//! `cairn lab writeback`: all rows, or some, and what is left of them.

use std::path::PathBuf;

use cairn_outcome::failure::{Outcome, wrong};
use cairn_outcome::stdout;

use super::rows::{Quick, ROWS, Row};
use super::table::{self, Measured};
use crate::costs::Charge;
use crate::experiment::form::Experiment;
use crate::experiment::report::Report;
use crate::experiment::verb::{measure, write_files};

/// What a user asks for.
#[derive(clap::Args)]
pub struct Asked {
    /// The rows, like row-1.1; all if none is named
    pub rows: Vec<String>,
    /// Run less: at larger scales, without the rows that have none
    #[arg(long)]
    pub quick: bool,
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

/// A row at a block size: the name of its page, and its text.
struct Version<'a> {
    row: &'a Row,
    stem: String,
    text: String,
}

/// Runs the rows.
///
/// # Errors
/// There is no such row, a target refuses one, or a file cannot be written.
pub fn run(asked: &Asked) -> Outcome<u8> {
    let versions = versions(asked)?;
    if let Some(out) = &asked.out {
        write_files(out, [])?;
    }
    let seeds: Vec<u64> = (1..=asked.seeds).collect();
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
    let page = table::page(&all, facts(asked));
    if let Some(out) = &asked.out {
        write_files(out, page.files("index"))?;
    }
    stdout::print(&if asked.json { page.json() } else { page.summary() })
}

fn facts(asked: &Asked) -> Vec<(String, String)> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    vec![
        fact(
            "seeds",
            format!("1 to {}: which blocks are dirty, in most rows where it begins", asked.seeds),
        ),
        fact("processor", asked.charge.describe()),
        fact(
            "quick",
            if asked.quick { "yes: a part of it, at larger scales" } else { "no" }.into(),
        ),
    ]
}

/// The rows that are asked for, each with blocks of 4 KiB and of 64 KiB.
fn versions(asked: &Asked) -> Outcome<Vec<Version<'static>>> {
    for name in &asked.rows {
        if !ROWS.iter().any(|row| row.name == name) {
            let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            return Err(wrong("ROW", "name", format!("'{name}'"), names.join(", ")));
        }
    }
    let is_wanted =
        |row: &&Row| asked.rows.is_empty() || asked.rows.iter().any(|it| it == row.name);
    let mut all = Vec::new();
    for row in ROWS.iter().filter(is_wanted) {
        let text = match (asked.quick, row.quick) {
            (false, _) => row.text.to_owned(),
            (true, Quick::Left) => continue,
            (true, Quick::Scale(scale)) => scaled(row.text, scale),
        };
        all.push(Version { row, stem: format!("{}-64k", row.name), text: with_64k(&text) });
        all.insert(all.len() - 1, Version { row, stem: row.name.to_owned(), text });
    }
    Ok(all)
}

/// The text with blocks of 64 KiB. The first block of a file is that of its dirty data.
fn with_64k(text: &str) -> String {
    text.replacen("block = \"4K\"", "block = \"64K\"", 1).replacen("4 KiB", "64 KiB", 1)
}

/// The text with another scale.
fn scaled(text: &str, scale: u64) -> String {
    let line = |line: &str| match line.starts_with("scale = ") {
        true => format!("scale = {scale}\n"),
        false => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(rows: &[&str], quick: bool) -> Asked {
        let rows = rows.iter().map(|&name| name.to_owned()).collect();
        Asked { rows, quick, seeds: 1, charge: Charge::WHOLE, out: None, json: false }
    }

    #[test]
    fn versions_differ_in_the_block_of_what_is_dirty_alone() {
        let all = versions(&asked(&[], false)).expect("all rows");
        assert_eq!(all.len(), 2 * ROWS.len());
        for pair in all.chunks(2) {
            let parse = |version: &Version<'_>| {
                let parsed = Experiment::parse(&version.text, "x.toml");
                parsed.expect("a row has a meaning")
            };
            let (mut small, mut large) = (parse(&pair[0]), parse(&pair[1]));
            let block = |it: &mut Experiment| {
                std::mem::take(&mut it.fill.as_mut().expect("dirty data").block_sectors)
            };
            assert_eq!((block(&mut small), block(&mut large)), (8, 128), "{}", pair[0].stem);
            large.about.clone_from(&small.about);
            assert!(small == large, "{}", pair[0].stem);
        }
    }

    #[test]
    fn quick_rows_have_larger_scales() {
        let all = versions(&asked(&["row-1.1", "row-2.1"], true)).expect("both are rows");
        let scales: Vec<(String, u64)> = all
            .iter()
            .map(|it| (it.stem.clone(), Experiment::parse(&it.text, "x").expect("a row").scale))
            .collect();
        let expected = [("row-1.1".to_owned(), 1024), ("row-1.1-64k".to_owned(), 1024)];
        assert_eq!(scales, expected);
    }

    #[test]
    fn a_row_that_is_not_there_is_refused_with_the_names_of_all() {
        let refused = versions(&asked(&["row-1"], false)).err().expect("no such row").to_string();
        assert!(refused.starts_with("ROW: name: found 'row-1', expected row-1.1, "), "{refused}");
    }
}
