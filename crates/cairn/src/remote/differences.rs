//! `snap diff` and `thin diff` as a client asks for them.

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::exit;
use cairn_outcome::failure::Outcome;
use cairn_outcome::stdout::{print, print_json};
use serde_json::{Value, json};

use super::client;
use crate::cli::ServerArgs;
use crate::verbs::snap::diff::{Differences, Extent};

/// Asks a server for the differences until there are no more, and prints them as they come.
///
/// # Errors
/// There is no server, it refuses, or stdout does.
pub fn print_differences(
    server: &ServerArgs,
    method: &str,
    as_json: bool,
    params: impl Fn(Option<u64>) -> Value,
) -> Outcome<u8> {
    let client = client(server)?;
    let (mut from, mut all) = (None, Vec::<Extent>::new());
    loop {
        let answer = client.ask(method, params(from))?;
        let Differences { extents, next } = serde_json::from_value(answer).map_err(|error| {
            let detail = "answer: not understood";
            ConfigError::new(ConfigKind::System, method, detail).with_source(error)
        })?;
        match as_json {
            true => all.extend(extents),
            false => drop(print(&diff_text(&extents))?),
        }
        from = next;
        if from.is_none() {
            break;
        }
    }
    if as_json { print_json(&json!(all)) } else { Ok(exit::OK) }
}

fn diff_text(extents: &[Extent]) -> String {
    let lines = extents.iter().map(|extent| format!("{} {}\n", extent.offset, extent.length));
    lines.collect()
}
