//! The client's side of `cairn cache`, with the progress of a flush or detach.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use cairn_outcome::exit;
use cairn_outcome::failure::Outcome;
use cairn_outcome::stderr::say;
use cairn_outcome::stdout::{print, print_json};
use cairn_tools::progress::Left;
use serde_json::json;

use super::replace::{begin, no_answer, watched};
use super::{list_sizes, pass_on, show, tell, text};
use crate::cli::{CacheCommand, Query};
use cairn_control::client::Client;
use cairn_control::verbs::cache::detach::Detached;
use cairn_control::verbs::cache::list::{CacheInfo, DETACHING};
use cairn_control::verbs::cache::{CacheDetach, CacheGet, CacheList};

/// How often the client looks whether a detach has begun.
const TICK: Duration = Duration::from_millis(20);

/// Runs a verb.
///
/// # Errors
/// There is no server, or it refuses.
pub fn run(server: &Client, verb: CacheCommand) -> Outcome<u8> {
    match verb {
        CacheCommand::List(list) => {
            list_sizes(server, &list, |all, sizes| text::caches(all, sizes))
        }
        CacheCommand::Get(get) => attributes(server, &get),
        CacheCommand::Set(verb) => tell(server, &verb),
        CacheCommand::Attach(verb) => tell(server, &verb),
        CacheCommand::Volume(verb) => tell(server, &verb),
        CacheCommand::Flush(verb) => {
            let name = verb.name.clone();
            let answer = watched(server, verb, &name, || left(server, &name))?;
            pass_on(&name, &answer)
        }
        CacheCommand::Detach { mut verb, no_wait, timeout } => {
            verb.timeout_ms = timeout.map(|seconds| (seconds.max(0.0) * 1000.0) as u64);
            let name = verb.name.clone();
            let answer = match no_wait {
                true => match begun(server, verb)? {
                    Some(answer) => answer,
                    None => {
                        say(format_args!("{name}: the detach goes on in the server"));
                        return Ok(exit::OK);
                    }
                },
                false => watched(server, verb, &name, || left(server, &name))?,
            };
            Ok(conclude(&name, &answer))
        }
    }
}

/// One attribute alone is its value.
fn attributes(server: &Client, get: &Query<CacheGet>) -> Outcome<u8> {
    let Query { verb, json: is_json } = get;
    match (&verb.attribute, is_json) {
        (Some(_), false) => {
            let fields = server.ask(verb)?;
            print(&fields.values().map(|value| text::attribute(value) + "\n").collect::<String>())
        }
        (_, true) => print_json(&json!(server.ask(verb)?)),
        (None, false) => show(server, get, text::attributes),
    }
}

/// Begins a detach, and waits until it has its turn. Its answer, if it has ended by then.
fn begun(server: &Client, verb: CacheDetach) -> Outcome<Option<Detached>> {
    let name = verb.name.clone();
    let is_detaching = || -> Outcome<bool> {
        Ok(caches(server, &name)?.iter().any(|info| info.state == DETACHING))
    };
    if is_detaching()? {
        // It is another one, for which this one is refused.
        return server.ask(&verb).map(Some);
    }
    let answered = begin(server, verb);
    loop {
        match answered.recv_timeout(TICK) {
            Ok(answer) => return answer.map(Some),
            Err(RecvTimeoutError::Disconnected) => return Err(no_answer::<CacheDetach>(&name)),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if is_detaching()? {
            return Ok(None);
        }
    }
}

fn conclude(name: &str, answer: &Detached) -> u8 {
    answer.notes.iter().for_each(|note| say(format_args!("{name}: {note}")));
    if answer.detached {
        return exit::OK;
    }
    say(format_args!("{name}: not detached: the time passed; the cache stays in its place"));
    exit::TIMEOUT
}

fn caches(server: &Client, name: &str) -> Outcome<Vec<CacheInfo>> {
    server.ask(&CacheList { name: Some(name.to_owned()) })
}

/// The bytes that only the caches of a volume have.
fn left(server: &Client, name: &str) -> Outcome<Left> {
    let bytes = caches(server, name)?.iter().map(|info| info.dirty_bytes).sum();
    Ok(Left { blocks: bytes / 512, bytes })
}
