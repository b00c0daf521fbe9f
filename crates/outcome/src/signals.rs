//! Signals and other things that end a wait of the main thread.
//!
//! The first SIGINT or SIGTERM is an [`Event`], the second ends the process at once, unless it is
//! the same one sent twice. SIGHUP is ignored: a server outlives its terminal; and so is SIGXFSZ,
//! from the program's beginning. What is [`Unfinished`] is taken away whichever way the process
//! ends, short of being killed.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use signal_hook::consts::signal::SIGXFSZ;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Outcome, system};
use crate::stderr::say;

/// Something the main thread waits for.
#[derive(Debug)]
pub enum Event {
    /// Asked to end.
    Stop,
    /// The command of `--run` ended.
    CommandEnded(ExitStatus),
}

/// Has writes beyond the limit of a file's size fail, where they ended the process: one client may
/// write there, and others have something to lose. A process that is started has the default again.
///
/// # Errors
/// The system refused.
pub fn survive_size_limit() -> Outcome<()> {
    let registered = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    registered.map(drop).map_err(|error| system("signals", "watch", error))
}

/// Starts to listen for signals. The sender is for other events.
///
/// # Errors
/// The system refused.
pub fn watch() -> Outcome<(Sender<Event>, Receiver<Event>)> {
    let failed = |error| system("signals", "watch", error);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let (send, receive) = channel();
    let stop = send.clone();
    let watch = move || {
        let mut first = None;
        for signal in signals.forever().filter(|signal| *signal != SIGHUP) {
            let now = Instant::now();
            if let Some(first) = first {
                if is_repeat(first, (signal, now)) {
                    continue;
                }
                say("second signal: leaving at once");
                // Held to the end: nothing is finished any more.
                let unfinished = UNFINISHED.lock();
                unfinished.iter().for_each(|path| remove(path));
                std::process::exit(128 + signal);
            }
            first = Some((signal, now));
            // Nobody waits any more only when the process is ending anyway.
            drop(stop.send(Event::Stop));
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map_err(failed)?;
    Ok((send, receive))
}

/// True if a signal, with the time when it came, was sent twice at once: `timeout` signals its
/// child and then their group.
fn is_repeat(first: (i32, Instant), next: (i32, Instant)) -> bool {
    const AT_ONCE: Duration = Duration::from_millis(50);
    next.0 == first.0 && next.1.duration_since(first.1) < AT_ONCE
}

/// The paths of all that is unfinished.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file made here that is of no use before it is finished.
pub struct Unfinished {
    path: PathBuf,
    finished: bool,
}

impl Unfinished {
    /// Notes a file that was made.
    pub fn file(path: &Path) -> Unfinished {
        UNFINISHED.lock().push(path.to_owned());
        Unfinished { path: path.to_owned(), finished: false }
    }

    /// Keeps it.
    pub fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut all = UNFINISHED.lock();
        all.retain(|path| *path != self.path);
        if !self.finished {
            remove(&self.path);
        }
    }
}

/// That it can't go is not what to tell at an end.
fn remove(path: &Path) {
    drop(std::fs::remove_file(path));
}

#[cfg(test)]
mod tests {
    use super::is_repeat;
    use signal_hook::consts::{SIGINT, SIGTERM};
    use std::time::{Duration, Instant};

    #[test]
    fn a_signal_that_comes_twice_at_once_counts_once() {
        let first = (SIGINT, Instant::now());
        let later = |millis| first.1 + Duration::from_millis(millis);
        assert!(is_repeat(first, (SIGINT, later(0))) && is_repeat(first, (SIGINT, later(10))));
        assert!(!is_repeat(first, (SIGINT, later(100))) && !is_repeat(first, (SIGTERM, later(0))));
    }
}
