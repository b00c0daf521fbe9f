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
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(system("stdout", "write", error))
        }
        _ => Ok(exit::OK),
    }
}
