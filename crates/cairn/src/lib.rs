//! `cairn`: the program, as a library of its own `main`.
//!
//! - [`cli`]: the command line.
//! - [`serve`]: volumes from tables, served until told to stop. [`world`]: reactors and names.
//! - [`verbs`], [`control`], [`report`], [`state`]: the verbs of a running server.
//! - [`snap`]: the verbs of snapshots. [`pool`], [`thin`]: those of thin pools and their volumes.
//! - [`remote`], [`replace`]: all of these as a client sends them.
//! - [`untrusted`]: decoders of what comes from outside, for the fuzzers.
//! - [`flush`]: drains a cache without a server. [`mod@bench`]: runs `cairn-bench`.
//!
//! Deliberately absent: policy (targets) and mechanism (backends, exports). This crate puts
//! them together.

mod bench;
mod cli;
mod control;
mod flush;
mod kept;
mod pool;
mod remote;
mod replace;
mod report;
mod serve;
mod snap;
mod sockets;
mod state;
mod thin;
mod under_way;
pub mod untrusted;
mod verbs;
mod world;

use std::process::ExitCode;

use cairn_outcome::{exit, failure, program, signals, stderr};
use cli::{Cli, Command};
use failure::Outcome;

/// The program: reads the command line, runs the verb, and says what was wrong on one line.
#[must_use]
pub fn main() -> ExitCode {
    program::run(cli::parse(std::env::args_os()), |cli| {
        let log = match &cli.command {
            Command::Serve(args) => stderr::Log::Server { quiet: args.run.is_some() },
            _ => stderr::Log::Verb,
        };
        // Writes the rest of the log when it is dropped.
        let _log = stderr::start_log(log, cli.verbose);
        run(cli)
    })
}

fn run(cli: Cli) -> Outcome<u8> {
    match cli.command {
        Command::Serve(args) => serve::run(*args),
        Command::Probe(args) => cairn_tools::probe::run(&args),
        Command::Check(args) => cairn_tools::check::run(&args),
        Command::Dump(args) => cairn_tools::dump::run(&args),
        Command::Repair(args) => cairn_tools::repair::run(&args),
        Command::Restore(args) => cairn_tools::thin::restore::run(&args),
        Command::Rmap(args) => cairn_tools::thin::rmap::run(&args),
        Command::Format(command) => cairn_tools::format::run(&command),
        Command::Flush(args) => flush::run(&args),
        Command::Bench { words } => bench::run(&words, cli.verbose),
        Command::Snap(verb) => snap::run(verb),
        Command::Pool(verb) => pool::run(verb),
        Command::Thin(verb) => thin::run(verb),
        Command::State(verb) => state::run(verb),
        verb => remote::run(verb),
    }
}
