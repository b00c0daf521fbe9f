//! What `top`, `events` and the page ask for.

use std::thread::sleep;
use std::time::Duration;

use cairn_outcome::failure::Outcome;
use clap::Args;
use serde::{Deserialize, Serialize};

use super::verb::{Verb, declare};
use super::{Verbs, interrupted};
use crate::control::server::Caller;
use crate::watch::events::{EventsSince, Marks, marks};
use crate::watch::figures::{Figures, figures};

declare! {
    /// `top`
    ServerFigures = "server_figures" -> Figures {}
    |_, verbs, _| Ok(figures(&verbs.world, &verbs.exports))
}

/// `events`
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerEvents {
    /// What the caller has seen: those of the answer before (default: all there is now)
    #[arg(skip)]
    pub marks: Option<Marks>,
    /// Answer at once, also if nothing happened
    #[arg(skip)]
    #[serde(default)]
    pub now: bool,
}

impl Verb for ServerEvents {
    const METHOD: &'static str = "server_events";
    const WAITS: bool = true;
    type Answer = EventsSince;

    /// Looks in short steps: for no longer than the server runs and the caller listens.
    fn run(self, verbs: &Verbs, caller: &dyn Caller) -> Outcome<EventsSince> {
        const STEP: Duration = Duration::from_millis(200);
        let seen = self.marks.unwrap_or_else(|| marks(&verbs.world));
        loop {
            let found = EventsSince::look(&verbs.world, &seen);
            // At its end a server suspends all volumes, which is no event of theirs.
            verbs.refuse_closed()?;
            if self.now || !found.events.is_empty() {
                return Ok(found);
            }
            if caller.is_gone() {
                return Err(interrupted("", "events"));
            }
            sleep(STEP);
        }
    }
}
