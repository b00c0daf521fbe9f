//! Results on stdout.

use std::io::{ErrorKind, Write};

use serde_json::Value;

use crate::exit;
use crate::failure::{Outcome, system};

/// Prints JSON, readable.
///
/// # Errors
/// stdout refuses.
pub fn print_json(value: &Value) -> Outcome<u8> {
    print(&format!("{value:#}\n"))
}

/// Prints text. A reader that went away is no failure.
///
/// # Errors
/// stdout refuses.
pub fn print(text: &str) -> Outcome<u8> {
    print_more(text).map(|_| exit::OK)
}

/// Prints a part of a text that has no end. False if its reader went away.
///
/// # Errors
/// stdout refuses.
pub fn print_more(text: &str) -> Outcome<bool> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(system("stdout", "write", error)),
    }
}
