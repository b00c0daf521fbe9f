//! `cairn state`: asks a running server, or works on a file that no server holds.

use std::path::Path;

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, system};
use cairn_outcome::stderr::say;
use cairn_outcome::stdout::{print, print_json};
use serde_json::json;

use crate::cli::StateCommand;
use cairn_control::client::Client;
use cairn_control::state::{Shown, StateFile, forget, forget_cache, shown};

/// Runs the verb.
///
/// # Errors
/// There is no server or file, or it refuses.
pub fn run(verb: StateCommand, control: Option<&Path>) -> Outcome<u8> {
    match verb {
        StateCommand::Show { place, query } => {
            let name = query.verb.name.as_deref();
            match &place.state {
                Some(path) => print_shown(&show_file(path, name)?, query.json),
                None => print_shown(&Client::new(control)?.ask(&query.verb)?, query.json),
            }
        }
        StateCommand::Forget { place, verb } => {
            let told = match &place.state {
                Some(path) => forget_in_file(path, &verb.name, verb.yes)?,
                None => Client::new(control)?.ask(&verb)?,
            };
            print(&told.iter().map(|line| format!("{line}\n")).collect::<String>())
        }
    }
}

fn print_shown(shown: &Shown, as_json: bool) -> Outcome<u8> {
    if as_json { print_json(&json!(shown)) } else { print(&shown.text()) }
}

/// A server may start without the file; a user who names it needs it.
fn look_at(path: &Path) -> Outcome<()> {
    let found = std::fs::metadata(path);
    found.map(drop).map_err(|error| system(path.display().to_string(), "state", error))
}

fn show_file(path: &Path, name: Option<&str>) -> Outcome<Shown> {
    look_at(path)?;
    if StateFile::is_held(path) {
        say(format_args!("{}: a server holds it and may change it", path.display()));
    }
    shown(&StateFile::open(path)?, name)
}

fn forget_in_file(path: &Path, name: &str, yes: bool) -> Outcome<Vec<String>> {
    look_at(path)?;
    let state = StateFile::open_alone(path).map_err(|error| match error.kind {
        ConfigKind::Busy => {
            let found = "a server that holds it";
            let expected = "none (stop it, or leave --state out to ask the server)";
            refused(ConfigKind::Busy, path.display().to_string(), "lock", found, expected)
        }
        _ => error,
    })?;
    if state.records().iter().all(|record| record.name != name)
        && let Some((after, told)) = forget_cache(&state.caches(), name, yes)?
    {
        state.record_caches(|all| *all = after)?;
        return Ok(vec![told]);
    }
    let forgotten = forget(&state.records(), name, yes)?;
    state.record(forgotten.after)?;
    Ok(forgotten.told)
}
