//! `snap diff` and `thin diff` as a client asks for them.

use cairn_outcome::exit;
use cairn_outcome::failure::Outcome;
use cairn_outcome::stdout::{print, print_json};
use serde_json::json;

use super::text;
use crate::cli::Query;
use cairn_control::client::Client;
use cairn_control::verbs::snap::diff::{Differences, Extent};
use cairn_control::verbs::verb::Verb;

/// Asks a server for the differences until there are no more, and prints them as they come. Each
/// question begins where `begin_at` says.
///
/// # Errors
/// There is no server, it refuses, or stdout does.
pub fn print_all<V: Verb<Answer = Differences>>(
    server: &Client,
    mut diff: Query<V>,
    begin_at: impl Fn(&mut V, Option<u64>),
) -> Outcome<u8> {
    let mut all = Vec::<Extent>::new();
    loop {
        let Differences { extents, next } = server.ask(&diff.verb)?;
        match diff.json {
            true => all.extend(extents),
            false => drop(print(&text::differences(&extents))?),
        }
        if next.is_none() {
            break;
        }
        begin_at(&mut diff.verb, next);
    }
    if diff.json { print_json(&json!(all)) } else { Ok(exit::OK) }
}
