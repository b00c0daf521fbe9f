//! Signals and other things that end a wait of the main thread.
//!
//! The first SIGINT or SIGTERM is an [`Event`]. The second one ends the process at once, unless it
//! is the same signal sent twice, or what is under way may be cut short ([`expect_another_stop`]):
//! then it is an event, too, and the third one ends the process. SIGHUP is ignored, because a
//! server outlives its terminal.
//! SIGXFSZ is ignored from the beginning of the program. An [`Unfinished`] file or folder is
//! removed at every end of the process, except a SIGKILL.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use signal_hook::consts::signal::SIGXFSZ;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Outcome, system};
use crate::stderr::say;

/// An event that the main thread waits for.
#[derive(Debug)]
pub enum Event {
    /// Asked to end.
    Stop,
    /// The volumes of a start are up, or will not be.
    VolumesUp,
    /// The command of `--run` ended.
    CommandEnded(ExitStatus),
    /// Asked to be upgraded.
    Upgrade {
        /// The program to go on with; none means the file that this process was started from.
        program: Option<PathBuf>,
        /// Takes the process that goes on, or why there is none.
        answer: Sender<Outcome<u32>>,
    },
}

/// Makes writes beyond the limit of a file's size fail instead of ending the process, because one
/// client's write must not end the server of others. Child processes have the default again.
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
                if EXPECTS_ANOTHER_STOP.swap(false, Ordering::Relaxed) {
                    drop(stop.send(Event::Stop));
                    continue;
                }
                leave("second signal: leaving at once", 128 + signal);
            }
            first = Some((signal, now));
            // The receiver is gone only when the process is ending.
            drop(stop.send(Event::Stop));
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map_err(failed)?;
    Ok((send, receive))
}

/// The next stop signal is an event, also if it is the second one.
static EXPECTS_ANOTHER_STOP: AtomicBool = AtomicBool::new(false);

/// Until the value is dropped, the main thread does what another stop signal may cut short: that
/// signal is an [`Event::Stop`].
pub fn expect_another_stop() -> ExpectsAnotherStop {
    EXPECTS_ANOTHER_STOP.store(true, Ordering::Relaxed);
    ExpectsAnotherStop
}

/// See [`expect_another_stop`].
pub struct ExpectsAnotherStop;

impl Drop for ExpectsAnotherStop {
    fn drop(&mut self) {
        EXPECTS_ANOTHER_STOP.store(false, Ordering::Relaxed);
    }
}

/// Says why, removes what is unfinished and ends the process. It waits for no thread.
pub fn leave(why: &str, code: impl Into<i32>) -> ! {
    say(why);
    // Held until the process ends, so that no file becomes finished any more.
    let unfinished = UNFINISHED.lock();
    unfinished.iter().for_each(|(path, kind)| remove(path, *kind));
    std::process::exit(code.into());
}

/// True if a signal, with the time when it came, was sent twice at once: `timeout` signals its
/// child and then their group.
fn is_repeat(first: (i32, Instant), next: (i32, Instant)) -> bool {
    const AT_ONCE: Duration = Duration::from_millis(50);
    next.0 == first.0 && next.1.duration_since(first.1) < AT_ONCE
}

/// The paths of all unfinished files and folders.
static UNFINISHED: Mutex<Vec<(PathBuf, Kind)>> = Mutex::new(Vec::new());

/// A new file that is useless until it is finished, or a folder for the time of this process.
pub struct Unfinished {
    path: PathBuf,
    kind: Kind,
    finished: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    File,
    Folder,
}

impl Unfinished {
    /// Notes a file that was made.
    pub fn file(path: &Path) -> Unfinished {
        Unfinished::note(path, Kind::File)
    }

    /// Notes a folder that was made. It is removed with all that is in it.
    pub fn folder(path: &Path) -> Unfinished {
        Unfinished::note(path, Kind::Folder)
    }

    fn note(path: &Path, kind: Kind) -> Unfinished {
        UNFINISHED.lock().push((path.to_owned(), kind));
        Unfinished { path: path.to_owned(), kind, finished: false }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps it.
    pub fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut all = UNFINISHED.lock();
        all.retain(|(path, _)| *path != self.path);
        if !self.finished {
            remove(&self.path, self.kind);
        }
    }
}

/// An error does not change the result of the program.
fn remove(path: &Path, kind: Kind) {
    let removed = match kind {
        Kind::File => std::fs::remove_file(path),
        Kind::Folder => std::fs::remove_dir_all(path),
    };
    if let Err(error) = removed {
        tracing::warn!("{}: cannot remove: {error}", path.display());
    }
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
