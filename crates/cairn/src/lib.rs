//! `cairn`: the program, as a library of its own `main`.
//!
//! Each of these imports only those above it; a test keeps it so.
//! - [`names`], [`kept`], [`under_way`], [`world`]: reactors, volumes and their names.
//! - [`thin_line`], [`live_pool`], [`contexts`]: what is asked of snapshots and pools that are served.
//! - [`state`], [`exports`]: what the state file records, and what clients find.
//! - [`caches`]: what tables may do about caches that were left dirty.
//! - [`control`], [`report`], [`verbs`]: the control socket and the verbs behind it.
//! - [`serve`]: volumes from tables, served until told to stop.
//! - [`cli`]: the command line. [`remote`]: verbs as a client sends them.
//! - [`flush`]: drains a cache without a server. [`mod@bench`]: runs `cairn-bench`.
//! - [`untrusted`]: decoders of what comes from outside, for the fuzzers.
//!
//! Deliberately absent: policy (targets) and mechanism (backends, exports). This crate puts
//! them together.

mod arguments;
mod bench;
mod caches;
mod cli;
mod client;
mod contexts;
mod control;
mod exports;
mod flush;
mod keeper;
mod kept;
mod live_pool;
mod measure;
mod names;
mod remote;
mod report;
mod serve;
mod sockets;
mod state;
mod thin_line;
mod under_way;
pub mod untrusted;
mod verbs;
mod world;

use std::process::ExitCode;

use cairn_outcome::failure::Outcome;
use cairn_outcome::{program, stderr};
use cli::{Cli, Command};

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
        verb => remote::run(verb),
    }
}
