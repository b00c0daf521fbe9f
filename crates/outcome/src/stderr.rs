//! Lines on stderr: errors, notes and the log.
//!
//! E1. No volume and no process ends because stderr cannot be written: a full disk, a pipe without
//!     a reader or a lost terminal only drops lines.
//! E2. The threads of a server never wait for the reader of the log: they queue lines for a thread
//!     that writes them, which drops lines when too many wait. The program writes the queued lines
//!     before it ends, for a second at most.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};

/// Whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// A program that runs one verb.
    Verb,
    /// A server.
    Server {
        /// True if it serves one command.
        quiet: bool,
    },
}

/// A line to the user of the program.
pub fn say(line: impl Display) {
    // In one write, which no line of another process breaks into two.
    let _ = io::stderr().write_all(format!("cairn: {line}\n").as_bytes());
}

/// Drops what cannot be written (E1).
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the log: warnings, and more with `-v`. A server's lines have the time; they include verbs
/// and recoveries unless it serves one command. Dropping the guard writes the queued lines.
#[must_use]
pub fn start_log(of: Log, verbose: u8) -> Option<WorkerGuard> {
    let level = match verbose {
        0 if of != (Log::Server { quiet: false }) => tracing::Level::WARN,
        0 | 1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(io::stderr().is_terminal())
        .with_target(verbose > 1)
        .log_internal_errors(false);
    if of != Log::Verb {
        let (writer, guard) = NonBlocking::new(Stderr);
        log.with_writer(writer).init();
        return Some(guard);
    }
    log.with_writer(|| Stderr).without_time().init();
    None
}
