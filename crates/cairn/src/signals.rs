//! Signals and other things that end a wait of the main thread.
//!
//! The first SIGINT or SIGTERM is an [`Event`], the second ends the process at once. SIGHUP is
//! ignored: a server outlives its terminal.

use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, Sender, channel};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Outcome, system};

/// Something the main thread waits for.
#[derive(Debug)]
pub enum Event {
    /// Asked to end.
    Stop,
    /// The command of `--run` ended.
    CommandEnded(ExitStatus),
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
        let mut asked = false;
        for signal in signals.forever().filter(|signal| *signal != SIGHUP) {
            if asked {
                eprintln!("cairn: second signal: leaving at once");
                std::process::exit(128 + signal);
            }
            asked = true;
            // Nobody waits any more only when the process is ending anyway.
            drop(stop.send(Event::Stop));
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map_err(failed)?;
    Ok((send, receive))
}
