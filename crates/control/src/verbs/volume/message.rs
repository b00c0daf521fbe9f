//! `message`: a command to the target at a sector.

use cairn_outcome::failure::Outcome;
use serde::{Deserialize, Serialize};

use crate::control::server::TheServer;
use crate::names::real_of;
use crate::reach::Named;
use crate::state::Record;
use crate::verbs::Verbs;
use crate::verbs::verb::declare;

declare! {
    /// `message`
    VolumeMessage = "volume_message" -> Reply {
        /// The volume
        name: String,
        /// A sector of the target's line
        sector: u64,
        /// The message
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    }
    |verb, verbs, caller| {
        if verb.words.first().is_some_and(|word| word.starts_with('@')) {
            verbs.message_to_volume(&verb.name, &verb.words, caller)?;
            return Ok(Reply { text: String::new() });
        }
        // The target with something to say is the one beneath the snapshots.
        let real = real_of(&verb.name);
        let name = if verbs.world.volume(&real).is_ok() { &real } else { &verb.name };
        let before = verbs.world.printed(name)?;
        let text = verbs.world.message(name, verb.sector, &verb.words)?;
        if verbs.world.printed(name)? != before {
            verbs.record_printed(name)?;
        }
        Ok(Reply { text })
    }
}

impl Verbs {
    /// Records the live table of `name` as a message changed it, so that the next start has it too;
    /// also without its caller, as the message has acted.
    ///
    /// # Errors
    /// The system refused to write; it is written with the next change.
    fn record_printed(&self, name: &str) -> Outcome<()> {
        let changes = self.change(&Named::volume(name), "message", &TheServer)?;
        // Only now: another verb may have made another table live.
        let table = self.world.printed(name)?;
        if table.is_none() || self.world.read_only() {
            return Ok(());
        }
        let record = Record { table, ..changes.record_of(name) };
        changes.record_fact(record)
    }
}

/// What a target answers.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reply {
    /// One or several lines, or nothing.
    pub text: String,
}
