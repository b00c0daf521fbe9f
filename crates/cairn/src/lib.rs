//! `cairn`: the program, as a library of its own `main`.
//!
//! - [`cli`]: the command line. [`exit`]: exit codes. [`failure`]: one-line errors.
//! - [`serve`]: volumes from tables, served until told to stop. [`world`]: reactors and names.
//! - [`verbs`], [`control`], [`report`], [`state`]: the verbs of a running server.
//! - [`snap`]: the verbs of snapshots. [`pool`], [`thin`]: those of thin pools and their volumes.
//! - [`remote`], [`replace`]: all of these as a client sends them.
//! - [`untrusted`]: decoders of what comes from outside, for the fuzzers.
//! - [`offline`]: tools on devices that nobody serves. [`mod@bench`]: the yardstick.
//!
//! Deliberately absent: policy (targets) and mechanism (backends, exports). This crate puts
//! them together.

mod bench;
mod cli;
mod control;
mod exit;
mod failure;
mod kept;
mod offline;
mod pool;
mod remote;
mod replace;
mod report;
mod serve;
mod signals;
mod snap;
mod sockets;
mod state;
mod stderr;
mod thin;
mod under_way;
pub mod untrusted;
mod verbs;
mod world;

use std::process::ExitCode;

use cli::{Cli, Command, Parsed};
use failure::Outcome;

/// The program: reads the command line, runs the verb, and says what was wrong on one line.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match cli::parse(std::env::args_os()) {
        Parsed::Run(cli) => cli,
        Parsed::Print(text) => return finish(remote::print(&text)),
        Parsed::Wrong(line) => {
            stderr::say(line);
            return ExitCode::from(exit::FAILURE);
        }
    };
    let log = stderr::start_log(&cli);
    let outcome = run(*cli);
    drop(log);
    finish(outcome)
}

fn finish(outcome: Outcome<u8>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            stderr::say(failure::one_line(&error));
            ExitCode::from(exit::of_error(&error))
        }
    }
}

fn run(cli: Cli) -> Outcome<u8> {
    match cli.command {
        Command::Serve(args) => serve::run(*args),
        Command::Probe(args) => offline::probe::run(&args),
        Command::Check(args) => offline::check::run(&args),
        Command::Dump(args) => offline::dump::run(&args),
        Command::Repair(args) => offline::repair::run(&args),
        Command::Restore(args) => offline::thin::restore::run(&args),
        Command::Rmap(args) => offline::thin::rmap::run(&args),
        Command::Format(command) => offline::format::run(&command),
        Command::Flush(args) => offline::flush::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Snap(verb) => snap::run(verb),
        Command::Pool(verb) => pool::run(verb),
        Command::Thin(verb) => thin::run(verb),
        Command::State(verb) => state::run(verb),
        verb => remote::run(verb),
    }
}
