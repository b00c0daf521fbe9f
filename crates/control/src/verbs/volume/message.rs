//! `message`: a word to the target at a sector.

use serde::{Deserialize, Serialize};

use crate::names::real_of;
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
    |verb, verbs, _| {
        // The target with something to say is the one beneath the snapshots.
        let real = real_of(&verb.name);
        let name = if verbs.world.volume(&real).is_ok() { &real } else { &verb.name };
        let text = verbs.world.message(name, verb.sector, &verb.words)?;
        Ok(Reply { text })
    }
}

/// What a target answers.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reply {
    /// One or several lines, or nothing.
    pub text: String,
}
