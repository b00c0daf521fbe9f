//! The program `cairn`: everything is in the library, so that the fuzzers reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    cairn::main()
}
