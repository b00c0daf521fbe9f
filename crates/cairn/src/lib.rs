//! `cairn`: the program, as a library of its own `main`.
//!
//! The modules of a line import only those of the lines above it and of their own line, and no two
//! import each other in a circle. A test keeps it so (`cairn/tests/imports.rs`).
//! - [`serve`]: brings up volumes from tables and serves them until a signal.
//! - [`cli`]: the command line. [`remote`]: verbs as a client sends them, and prints the answers.
//! - [`flush`]: drains a cache without a server. [`beside`]: runs `cairn-bench` and `cairn-lab`.
//! - [`dmsetup`]: the verbs of dmsetup, under the name `cairn-dmsetup`, over those of `remote`.
//! - [`pages`]: the manual pages and the completions of shells.
//! - [`untrusted`]: decoders of untrusted input, for the fuzzers.
//!
//! Deliberately absent: policy (targets), mechanism (backends, exports), and what a server does
//! with its volumes (control).

mod beside;
mod cli;
mod dmsetup;
mod flush;
mod pages;
mod remote;
mod serve;
pub mod untrusted;

use std::process::ExitCode;

use beside::Program;
use cairn_outcome::failure::Outcome;
use cairn_outcome::{program, stderr};
use cli::{Cli, Command};

/// The program: reads the command line, runs the verb, and prints an error on one line.
#[must_use]
pub fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if words.next().is_some_and(|name| dmsetup::is_name(&name)) {
        return dmsetup::main(std::env::args_os());
    }
    program::run(cli::parse(std::env::args_os()), |cli| {
        let log = match &cli.command {
            Command::Serve(args) => stderr::Log::Server { quiet: args.run.is_some() },
            _ => stderr::Log::Verb,
        };
        // Writes the rest of the log when it is dropped.
        let _log = stderr::start_log(log, cli.verbose);
        let outcome = run(cli);
        if !cairn_backends::rbd::finish_closing() {
            tracing::debug!("threads of librbd are left behind");
        }
        outcome
    })
}

fn run(cli: Cli) -> Outcome<u8> {
    let control = cli.control;
    match cli.command {
        Command::Serve(args) => serve::run(*args),
        Command::Probe(args) => cairn_tools::probe::run(&args),
        Command::Check(args) => cairn_tools::check::run(&args),
        Command::Dump(args) => cairn_tools::dump::run(&args),
        Command::Repair(args) => cairn_tools::repair::run(&args),
        Command::Restore(args) => cairn_tools::thin::restore::run(&args),
        Command::Rmap(args) => cairn_tools::thin::rmap::run(&args),
        Command::Format(command) => cairn_tools::format::run(&command),
        Command::Unfence { device, address } => {
            cairn_backends::rbd::unfence(&device, &address)?;
            Ok(cairn_outcome::exit::OK)
        }
        Command::Unmark { device, generation } => {
            let marker = cairn_backends::unmark(&device, &generation)?;
            let (kind, cache, host) = (marker.kind, marker.cache, marker.host);
            let line = format!("{device}: what {kind} {cache} of host {host} has is given up\n");
            cairn_outcome::stdout::print(&line)?;
            Ok(cairn_outcome::exit::OK)
        }
        Command::Flush(args) => flush::run(&args),
        Command::Bench { words } => beside::run(Program::Bench, &words, cli.verbose),
        Command::Lab { words } => beside::run(Program::Lab, &words, cli.verbose),
        Command::Completions { shell } => pages::completions(shell),
        Command::Man { folder, date } => pages::write(&folder, date.as_deref()),
        verb => remote::run(verb, control.as_deref()),
    }
}
