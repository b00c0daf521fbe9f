//! `cairn-lab VERB`, which `cairn lab VERB` runs: see [`cairn_lab`].

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use cairn_lab::drives::{self, Row};
use cairn_lab::dsync;
use cairn_lab::experiment::verb as experiment;
use cairn_lab::publish;
use cairn_lab::what_if;
use cairn_lab::writeback::verb as writeback;
use cairn_outcome::failure::Outcome;
use cairn_outcome::{exit, program, stderr, stdout};
use clap::{Parser, Subcommand};

/// Experiments in virtual time.
#[derive(Parser)]
#[command(name = "cairn-lab", bin_name = "cairn lab", version, after_help = exit::help())]
struct Cli {
    /// Say more on stderr (twice: everything)
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run an experiment in virtual time: all its variants, with one or more seeds
    Run(experiment::Asked),
    /// Compare policies of writeback where their reviewers did, and with what these saw
    Writeback(writeback::Asked),
    /// Replay a trace without a cache and with several, in virtual time, and say what to buy
    WhatIf(what_if::Asked),
    /// Measure durable writes through a cache by policy of flushes, and what each policy loses in
    /// power cuts. Exit code 2: a bar is missed
    Dsync(dsync::Asked),
    /// Show a model of workers that write to an origin with a snapshot, if only locks limit them
    Workers {
        /// Write FOLDER/workers.html with its plot and data beside it
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// Print JSON: an object per fact, row and point
        #[arg(long)]
        json: bool,
    },
    /// Make all pages of the evidence again, from their seeds
    Publish(publish::Asked),
    /// Show each drive model beside the published rows. Exit code 2: a row is off by more than 15 %
    Drives {
        /// Print JSON: an object per row
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    program::run(Cli::try_parse(), |args| {
        let _log = stderr::start_log(stderr::Log::Verb, args.verbose);
        match args.verb {
            Verb::Drives { json } => show_drives(json),
            Verb::Writeback(asked) => writeback::run(&asked),
            Verb::Workers { out, json } => cairn_lab::workers::run(out.as_deref(), json),
            Verb::WhatIf(asked) => what_if::run(&asked),
            Verb::Dsync(asked) => dsync::run(&asked),
            Verb::Publish(asked) => publish::run(&asked),
            Verb::Run(asked) => experiment::run(&asked),
        }
    })
}

fn show_drives(json: bool) -> Outcome<u8> {
    let rows = drives::rows();
    let text = if json {
        rows.iter().map(|row| format!("{}\n", row.to_json())).collect()
    } else {
        table(&rows)
    };
    let printed = stdout::print(&text)?;
    Ok(if rows.iter().all(Row::is_inside) { printed } else { exit::DAMAGED })
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.what.len()).max().unwrap_or(0);
    let mut out = format!(
        "{:<10}{:<width$}  {:>15}  {:>10}  unit\n",
        "model", "row", "published", "this model"
    );
    for row in rows {
        let (low, high) = row.published;
        let published = if low == high { figure(low) } else { figure(low) + "-" + &figure(high) };
        let verdict = if row.is_inside() { "" } else { "  off by more than 15 %" };
        let line = format!(
            "{:<10}{:<width$}  {published:>15}  {:>10}  {}{verdict}",
            row.model,
            row.what,
            figure(row.value),
            row.unit
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// Three or four digits.
fn figure(value: f64) -> String {
    let digits = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}
