//! The verbs of a running server, as a client sends them and prints the answers.

mod differences;
mod replace;
mod snap;
pub mod state;
mod text;

use std::io::Read;

use cairn_outcome::exit;
use cairn_outcome::failure::{Outcome, system, wrong};
use cairn_outcome::stderr::say;
use cairn_outcome::stdout::{print, print_json};
use serde_json::json;

use crate::cli::{
    Ask, Command, ExportCommand, FeatureArgs, PoolCommand, Query, ServerArgs, SnapCommand,
    TableArgs, ThinCommand, WithTable,
};
use cairn_control::client::Client;
use cairn_control::report;
use cairn_control::verbs::pool::PoolCreate;
use cairn_control::verbs::verb::{Done, Verb};

/// Runs a verb against a server.
///
/// # Errors
/// There is no server, or it refuses.
pub fn run(verb: Command) -> Outcome<u8> {
    match verb {
        Command::Status(read) => {
            let named = read.ask.verb.name.is_none();
            show(read, |volumes| text::lines(volumes, named))
        }
        Command::Table(read) => {
            let named = read.ask.verb.name.is_none();
            show(read, |volumes| text::lines(volumes, named))
        }
        Command::Ls(list) => show(list, |infos| text::names(infos)),
        Command::Info(read) => show(read, |infos| text::infos(infos)),
        Command::Targets { name: Some(name), list } => {
            let spec = report::declared(&name)?;
            if list.json { print_json(&report::spec_json(spec)) } else { print(&spec.to_string()) }
        }
        Command::Targets { name: None, list } => show(list, |targets| text::targets(targets)),
        Command::Exports(list) => show(list, |exports| text::exports(exports)),
        Command::Export(ExportCommand::Add(ask)) => tell(&ask),
        Command::Export(ExportCommand::Remove(ask)) => tell(&ask),
        Command::Message(ask) => match client(&ask.server)?.ask(&ask.verb)?.text {
            text if text.is_empty() => Ok(exit::OK),
            text => print(&format!("{text}\n")),
        },
        Command::Suspend { ask, nolockfs: _ } => tell(&ask),
        Command::Load(load) => tell(&with_table(load, |verb, table| verb.table = table)?),
        Command::Create(create) => tell(&with_table(create, |verb, table| verb.table = table)?),
        Command::Resume(ask) => {
            let (name, flush) = (ask.verb.name.clone(), ask.verb.flush);
            replace::ask(ask, &name, flush)
        }
        Command::Replace(replace) => {
            let ask = with_table(replace, |verb, table| verb.table = table)?;
            let (name, flush) = (ask.verb.name.clone(), ask.verb.flush);
            replace::ask(ask, &name, flush)
        }
        Command::Clear(ask) => tell(&ask),
        Command::Remove(ask) => tell(&ask),
        Command::Wait(ask) => client(&ask.server)?.ask(&ask.verb).map(|_| exit::OK),
        Command::State(verb) => state::run(verb),
        Command::Snap(verb) => snap(*verb),
        Command::Pool(verb) => pool(*verb),
        Command::Thin(verb) => thin(*verb),
        _ => unreachable!("every other verb is served before"),
    }
}

fn snap(verb: SnapCommand) -> Outcome<u8> {
    match verb {
        SnapCommand::Create(ask) => tell(&ask),
        SnapCommand::List(list) => show(list, |infos| text::snaps(infos)),
        SnapCommand::Diff(diff) => differences::print_all(diff, |verb, from| verb.from = from),
        SnapCommand::Rollback(merging) => {
            let name = merging.ask.verb.name.clone();
            snap::follow(&merging, &name)
        }
        SnapCommand::Merge(merging) => {
            let name = merging.ask.verb.name.clone();
            snap::follow(&merging, &name)
        }
        SnapCommand::Remove(ask) => tell(&ask),
        SnapCommand::Grow(ask) => tell(&ask),
    }
}

fn pool(verb: PoolCommand) -> Outcome<u8> {
    match verb {
        PoolCommand::Create { mut ask, features } => {
            let PoolCreate { data, metadata, .. } = &ask.verb;
            if data == metadata {
                let found = "the data device itself";
                return Err(wrong(metadata, "--metadata", found, "another device"));
            }
            ask.verb.features = Some(words_of(&features));
            tell(&ask)
        }
        PoolCommand::Status(read) => show(read, |pools| text::pools(pools)),
        PoolCommand::Grow(ask) => tell(&ask),
        PoolCommand::Trim(trim) => {
            show(trim, |trimmed| format!("{} bytes trimmed\n", trimmed.trimmed_bytes))
        }
    }
}

fn thin(verb: ThinCommand) -> Outcome<u8> {
    match verb {
        ThinCommand::Create(ask) => tell(&ask),
        ThinCommand::Snapshot(ask) => tell(&ask),
        ThinCommand::List(list) => show(list, |infos| text::thins(infos)),
        ThinCommand::Diff(diff) => differences::print_all(diff, |verb, from| verb.from = from),
        ThinCommand::Rollback(ask) => tell(&ask),
        ThinCommand::Remove(ask) => tell(&ask),
        ThinCommand::Rename(ask) => tell(&ask),
    }
}

/// The server to ask.
fn client(server: &ServerArgs) -> Outcome<Client> {
    Client::new(server.control.as_deref())
}

/// Asks for a change, and tells what a person should know.
fn tell<V: Verb<Answer = Done>>(ask: &Ask<V>) -> Outcome<u8> {
    let answer = client(&ask.server)?.ask(&ask.verb)?;
    pass_on(ask.verb.params()["name"].as_str().unwrap_or_default(), &answer)
}

/// Tells on stderr what an answer notes about a volume.
fn pass_on(name: &str, answer: &Done) -> Outcome<u8> {
    answer.notes.iter().flatten().for_each(|note| say(format_args!("{name}: {note}")));
    Ok(exit::OK)
}

/// Asks, and prints the answer as JSON or as `text` says.
fn show<V: Verb>(query: Query<V>, text: impl Fn(&V::Answer) -> String) -> Outcome<u8> {
    let answer = client(&query.ask.server)?.ask(&query.ask.verb)?;
    if query.json { print_json(&json!(answer)) } else { print(&text(&answer)) }
}

/// The verb with the table that a command line gives, or names.
fn with_table<V: Verb>(
    WithTable { mut ask, table }: WithTable<V>,
    set: impl Fn(&mut V, String),
) -> Outcome<Ask<V>> {
    let TableArgs { table, file } = table;
    let text = match (file, table.is_empty()) {
        (_, false) => table.join("\n"),
        (Some(file), true) => std::fs::read_to_string(&file)
            .map_err(|error| system(file.display().to_string(), "read", error))?,
        (None, true) => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map(|_| text).map_err(|error| system("standard input", "read", error))?
        }
    };
    set(&mut ask.verb, text);
    Ok(ask)
}

/// The words of the table's features.
fn words_of(args: &FeatureArgs) -> Vec<String> {
    let mut words = Vec::new();
    let flags = [
        ("skip_block_zeroing", args.skip_block_zeroing),
        ("ignore_discard", args.ignore_discard),
        ("no_discard_passdown", args.no_discard_passdown),
        ("error_if_no_space", args.error_if_no_space),
    ];
    words.extend(flags.into_iter().filter(|(_, set)| *set).map(|(word, _)| word.to_owned()));
    let numbers = [
        ("no_space_timeout", args.no_space_timeout),
        ("data_mark", args.data_mark),
        ("metadata_mark", args.metadata_mark),
    ];
    for (word, value) in numbers {
        words.extend(value.into_iter().flat_map(|value| [word.to_owned(), value.to_string()]));
    }
    let detect = args.detect_zeroes.as_deref().unwrap_or("unmap");
    words.extend(["detect_zeroes", detect].map(str::to_owned));
    words
}
