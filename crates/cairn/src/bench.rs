//! `cairn bench`: becomes the program `cairn-bench`, which alone links the simulator.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, system};
use cairn_outcome::program::sibling;

const PROGRAM: &str = "cairn-bench";

/// Replaces this process, so that the exit code and Ctrl-C are those of `cairn-bench`.
///
/// # Errors
/// There is no such program, or the system refuses to run it.
pub fn run(words: &[OsString], verbose: u8) -> Outcome<u8> {
    let mut command = Command::new(sibling(PROGRAM));
    command.args((0..verbose).map(|_| "--verbose")).args(words);
    let error = command.exec();
    Err(match error.kind() {
        io::ErrorKind::NotFound => refused(
            ConfigKind::System,
            PROGRAM,
            "program",
            "none in the folder of cairn and in PATH",
            "one made by 'cargo build --release -p cairn-bench'",
        ),
        _ => system(PROGRAM, "run", error),
    })
}
