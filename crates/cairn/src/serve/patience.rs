//! The end of a start that a signal asks for while a device does not answer.
//!
//! The volumes are brought up in a thread of their own, and the main thread waits for that or for a
//! signal. After a signal the start has [`PATIENCE`] to reach its end, where the server stops as
//! from any other time. A start that takes longer waits for a device, or recovers much; a request
//! that is in flight cannot be called off, so the process leaves.
//!
//! No client is served before the volumes are up. So what the devices have then is what a kill of
//! the start leaves, and no acknowledged write is lost.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use cairn_outcome::exit;
use cairn_outcome::failure::{Outcome, system};
use cairn_outcome::signals::{self, Event};

/// How long a start may go on after a signal.
const PATIENCE: Duration = Duration::from_secs(5);
/// The stack of a main thread. Other threads have a quarter of it by default.
const STACK_BYTES: usize = 8 << 20;

/// Says that the volumes are up, or that they will not be, also if their thread panics.
struct Tells(Sender<Event>);

impl Drop for Tells {
    fn drop(&mut self) {
        // The receiver is gone only when the process is ending.
        drop(self.0.send(Event::VolumesUp));
    }
}

/// Brings up the volumes. A signal that comes before the end is there for the next wait.
///
/// # Errors
/// Those of `bring_up`, or the system refused a thread.
pub fn with_patience<T: Send>(
    (events, happened): (&Sender<Event>, &Receiver<Event>),
    bring_up: impl FnOnce() -> Outcome<T> + Send,
) -> Outcome<T> {
    thread::scope(|scope| {
        let tells = Tells(events.clone());
        let task = move || {
            let _tells = tells;
            bring_up()
        };
        let named = thread::Builder::new().name("start".to_owned()).stack_size(STACK_BYTES);
        let started = named.spawn_scoped(scope, task);
        let started = started.map_err(|error| system("start", "thread", error))?;
        let mut is_asked = false;
        loop {
            let patience = if is_asked { PATIENCE } else { Duration::MAX };
            match happened.recv_timeout(patience) {
                Ok(Event::VolumesUp) => break,
                Ok(_) => is_asked = true,
                Err(RecvTimeoutError::Timeout) => {
                    let what = "stopped: the start waits for a device: leaving without its volumes";
                    signals::leave(what, exit::FAILURE);
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("`events` is a sender"),
            }
        }
        if is_asked {
            drop(events.send(Event::Stop));
        }
        started.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
