//! `wait`: for an event of a volume.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use cairn_outcome::failure::Outcome;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::control::server::Caller;
use crate::verbs::verb::Verb;
use crate::verbs::{Verbs, interrupted};

/// `wait`
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeWait {
    /// The volume
    pub name: String,
    /// Return once there were more events than this (default: the number now)
    pub event_nr: Option<u64>,
}

/// The end of a wait.
#[derive(Debug, Serialize, Deserialize)]
pub struct Events {
    /// How many events there were.
    pub event_nr: u64,
}

impl Verb for VolumeWait {
    const METHOD: &'static str = "volume_wait";
    const WAITS: bool = true;
    type Answer = Events;

    /// Waits in short steps: for no longer than the server runs and the caller listens.
    fn run(self, verbs: &Verbs, caller: &dyn Caller) -> Outcome<Events> {
        const STEP: Duration = Duration::from_millis(200);
        let volume = verbs.world.volume(&self.name)?;
        let seen = self.event_nr.unwrap_or_else(|| volume.event_nr());
        let (send, receive) = std::sync::mpsc::channel();
        verbs.world.reactors().spawn(verbs.world.home(&self.name), move |env| async move {
            let mut event = pin!(volume.wait_event(seen));
            loop {
                let mut step = pin!(env.sleep(STEP));
                let event_nr = poll_fn(|context| match event.as_mut().poll(context) {
                    Poll::Ready(event_nr) => Poll::Ready(Some(event_nr)),
                    Poll::Pending => step.as_mut().poll(context).map(|()| None),
                });
                let event_nr = event_nr.await;
                if send.send(event_nr).is_err() || event_nr.is_some() {
                    return;
                }
            }
        });
        for event_nr in &receive {
            if let Some(event_nr) = event_nr {
                return Ok(Events { event_nr });
            }
            if caller.is_gone() {
                break;
            }
            verbs.refuse_closed()?;
        }
        Err(interrupted(&self.name, "wait"))
    }
}
