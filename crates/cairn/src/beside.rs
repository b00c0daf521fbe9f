//! `cairn bench` and `cairn lab`: become `cairn-bench` and `cairn-lab`, programs of their own,
//! since `cairn` contains no simulator.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, system};
use cairn_outcome::program::sibling;

/// A program in the folder of `cairn`, or in PATH.
#[derive(Clone, Copy)]
pub enum Program {
    Bench,
    Lab,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Bench => "cairn-bench",
            Program::Lab => "cairn-lab",
        }
    }
}

/// Replaces this process, so that the exit code and Ctrl-C are those of the program.
///
/// # Errors
/// There is no such program, or the system refuses to run it.
pub fn run(program: Program, words: &[OsString], verbose: u8) -> Outcome<u8> {
    let name = program.name();
    let mut command = Command::new(sibling(name));
    command.args((0..verbose).map(|_| "--verbose")).args(words);
    let error = command.exec();
    Err(match error.kind() {
        io::ErrorKind::NotFound => refused(
            ConfigKind::System,
            name,
            "program",
            "none in the folder of cairn and in PATH",
            format!("one made by 'cargo build --release -p {name}'"),
        ),
        _ => system(name, "run", error),
    })
}
