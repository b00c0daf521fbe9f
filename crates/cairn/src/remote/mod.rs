//! The verbs of a running server, as a client sends them and prints the answers.

pub mod attach;
mod cache;
mod columns;
mod differences;
mod follow;
mod kernel;
mod replace;
mod snap;
pub mod state;
pub mod text;
mod top;
pub mod tree;

use std::io::{IsTerminal, Read};
use std::path::Path;

use cairn_outcome::exit;
use cairn_outcome::failure::{Outcome, system, wrong};
use cairn_outcome::stderr::say;
use cairn_outcome::stdout::{print, print_json};
use serde_json::json;

use self::columns::Sizes;
use crate::cli::{
    Command, ExportCommand, FeatureArgs, Listing, PoolCommand, Query, SnapCommand, TableArgs,
    ThinCommand, WithTable,
};
use cairn_control::client::Client;
use cairn_control::devices::with_absolute_paths;
use cairn_control::report;
use cairn_control::verbs::pool::{BLOCK_SECTORS, PoolCreate};
use cairn_control::verbs::server::ServerInfo;
use cairn_control::verbs::verb::{Done, Verb};
use cairn_control::verbs::volume::VolumeTable;

/// Runs a verb against the server of a control socket.
///
/// # Errors
/// There is no server, or it refuses.
pub fn run(verb: Command, control: Option<&Path>) -> Outcome<u8> {
    match verb {
        Command::State(verb) => state::run(verb, control),
        Command::Targets { name: Some(name), list } => {
            let spec = report::declared(&name)?;
            if list.json { print_json(&report::spec_json(spec)) } else { print(&spec.to_string()) }
        }
        // Those of this program: a server of another version tells its own on the control socket.
        Command::Targets { name: None, list } => {
            let all = report::targets();
            if list.json { print_json(&json!(all)) } else { print(&text::targets(&all)) }
        }
        verb => ask(verb, &Client::new(control)?),
    }
}

fn ask(verb: Command, server: &Client) -> Outcome<u8> {
    match verb {
        Command::Status(read) => follow::status(server, &read),
        Command::Events(events) => follow::events(server, &events),
        Command::Top(args) => top::run(server, &args),
        Command::Table(read) if read.verb.kernel && !read.verb.inactive && !read.json => {
            print(&kernel::script(server, read.verb.name.as_deref())?)
        }
        Command::Table(read) => {
            let named = read.verb.name.is_none();
            show(server, &read, |volumes| text::lines(volumes, named))
        }
        Command::Ls { tree: true, .. } => print(&tree::tree(&server.ask(&VolumeTable::default())?)),
        Command::Ls { list, long, .. } => {
            let long = long || list.bytes || std::io::stdout().is_terminal();
            list_sizes(server, &list, |infos, sizes| match long {
                true => text::volumes(infos, sizes),
                false => text::names(infos),
            })
        }
        Command::Info(read) => show(server, &read, |infos| text::infos(infos)),
        Command::Exports(list) => list_sizes(server, &list, |all, sizes| text::exports(all, sizes)),
        Command::Export(ExportCommand::Add(verb)) => tell(server, &verb),
        Command::Export(ExportCommand::Remove(verb)) => tell(server, &verb),
        Command::Export(ExportCommand::Throttle(verb)) => tell(server, &verb),
        Command::Message(verb) => match server.ask(&verb)?.text {
            text if text.is_empty() => Ok(exit::OK),
            text => print(&format!("{text}\n")),
        },
        Command::Suspend { verb, nolockfs: _ } => tell(server, &verb),
        Command::Load(load) => {
            tell(server, &with_table(server, load, |verb, table| verb.table = table)?)
        }
        Command::Create(create) if create.verb.notable => tell(server, &create.verb),
        Command::Create(create) => {
            tell(server, &with_table(server, create, |verb, table| verb.table = table)?)
        }
        Command::Resize(verb) => tell(server, &verb),
        Command::Resume(verb) => {
            let (name, flush) = (verb.name.clone(), verb.flush);
            replace::ask(server, verb, &name, flush)
        }
        Command::Replace(replace) => {
            let verb = with_table(server, replace, |verb, table| verb.table = table)?;
            let (name, flush) = (verb.name.clone(), verb.flush);
            replace::ask(server, verb, &name, flush)
        }
        Command::Clear(verb) => tell(server, &verb),
        Command::Remove(verb) => tell(server, &verb),
        Command::Rename(verb) => tell(server, &verb),
        Command::Wait(verb) => server.ask(&verb).map(|_| exit::OK),
        Command::Metrics(verb) => print(&server.ask(&verb)?.text),
        Command::Attach(args) => attach::attach(server, &args),
        Command::Detach(args) => attach::detach(server, &args),
        Command::Upgrade(mut verb) => {
            // The server may be in another folder.
            let absolute = verb.program.take().map(std::path::absolute).transpose();
            verb.program = absolute.map_err(|error| system("--program", "path", error))?;
            let pid = server.ask(&verb)?.pid;
            print(&format!("process {pid} serves now\n"))
        }
        Command::Cache(verb) => cache::run(server, *verb),
        Command::Snap(verb) => snap(server, *verb),
        Command::Pool(verb) => pool(server, *verb),
        Command::Thin(verb) => thin(server, *verb),
        _ => unreachable!("every other verb is served before"),
    }
}

fn snap(server: &Client, verb: SnapCommand) -> Outcome<u8> {
    match verb {
        SnapCommand::Create(verb) => tell(server, &verb),
        SnapCommand::List(list) => list_sizes(server, &list, |all, sizes| text::snaps(all, sizes)),
        SnapCommand::Diff(diff) => {
            differences::print_all(server, diff, |verb, from| verb.from = from)
        }
        SnapCommand::Rollback(merging) => snap::follow(server, &merging, &merging.verb.name),
        SnapCommand::Merge(merging) => snap::follow(server, &merging, &merging.verb.name),
        SnapCommand::Remove(verb) => tell(server, &verb),
        SnapCommand::Grow(verb) => tell(server, &verb),
    }
}

fn pool(server: &Client, verb: PoolCommand) -> Outcome<u8> {
    match verb {
        PoolCommand::Create { mut verb, features } => {
            let PoolCreate { data, metadata, .. } = &verb;
            if data == metadata {
                let found = "the data device itself";
                return Err(wrong(metadata, "--metadata", found, "another device"));
            }
            verb.features = Some(words_of(&features));
            if let (Some(grow), None) = (features.grow, verb.low_water_blocks) {
                let block = verb.block_sectors.unwrap_or(BLOCK_SECTORS);
                verb.low_water_blocks = Some((grow / block.max(1) / 4).max(1));
            }
            tell(server, &verb)
        }
        PoolCommand::Status(list) => {
            list_sizes(server, &list, |pools, sizes| text::pools(pools, sizes))
        }
        PoolCommand::Grow(verb) => tell(server, &verb),
        PoolCommand::Trim(trim) => {
            show(server, &trim, |trimmed| format!("{} bytes trimmed\n", trimmed.trimmed_bytes))
        }
    }
}

fn thin(server: &Client, verb: ThinCommand) -> Outcome<u8> {
    match verb {
        ThinCommand::Create(verb) => tell(server, &verb),
        ThinCommand::Snapshot(verb) => tell(server, &verb),
        ThinCommand::List(list) => list_sizes(server, &list, |all, sizes| text::thins(all, sizes)),
        ThinCommand::Diff(diff) => {
            differences::print_all(server, diff, |verb, from| verb.from = from)
        }
        ThinCommand::Rollback(verb) => tell(server, &verb),
        ThinCommand::Remove(verb) => tell(server, &verb),
        ThinCommand::Rename(verb) => tell(server, &verb),
    }
}

/// Asks for a change, and prints the notes of the answer.
fn tell<V: Verb<Answer = Done>>(server: &Client, verb: &V) -> Outcome<u8> {
    let answer = server.ask(verb)?;
    pass_on(verb.params()["name"].as_str().unwrap_or_default(), &answer)
}

/// Prints the notes of an answer about a volume on stderr.
fn pass_on(name: &str, answer: &Done) -> Outcome<u8> {
    answer.notes.iter().flatten().for_each(|note| say(format_args!("{name}: {note}")));
    Ok(exit::OK)
}

/// Asks, and prints the answer as JSON or as `text` says.
fn show<V: Verb>(
    server: &Client,
    query: &Query<V>,
    text: impl Fn(&V::Answer) -> String,
) -> Outcome<u8> {
    let answer = server.ask(&query.verb)?;
    if query.json { print_json(&json!(answer)) } else { print(&text(&answer)) }
}

/// The same of a list with sizes.
fn list_sizes<V: Verb>(
    server: &Client,
    list: &Listing<V>,
    text: impl Fn(&V::Answer, Sizes) -> String,
) -> Outcome<u8> {
    let sizes = if list.bytes { Sizes::Bytes } else { Sizes::Human };
    show(server, &list.query, |answer| text(answer, sizes))
}

/// The verb with the table of the command line or of the file that it names. Paths are relative to
/// the caller's folder; if the server has another folder, they are made absolute.
fn with_table<V: Verb>(
    server: &Client,
    WithTable { mut verb, table }: WithTable<V>,
    set: impl Fn(&mut V, String),
) -> Outcome<V> {
    let TableArgs { table, file } = table;
    let text = table_text(&table, file.as_deref())?;
    let is_there = std::env::current_dir().ok() == Some(server.ask(&ServerInfo {})?.folder);
    set(&mut verb, if is_there { text } else { with_absolute_paths(&text)? });
    Ok(verb)
}

/// The table of the command line: its lines, or else what is in a file, or else standard input.
///
/// # Errors
/// It cannot be read.
pub fn table_text(lines: &[String], file: Option<&Path>) -> Outcome<String> {
    match (file, lines.is_empty()) {
        (_, false) => Ok(lines.join("\n")),
        (Some(file), true) => std::fs::read_to_string(file)
            .map_err(|error| system(file.display().to_string(), "read", error)),
        (None, true) => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map(|_| text).map_err(|error| system("standard input", "read", error))
        }
    }
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
        ("grow", args.grow),
        ("grow_max", args.grow_max),
    ];
    for (word, value) in numbers {
        words.extend(value.into_iter().flat_map(|value| [word.to_owned(), value.to_string()]));
    }
    let detect = args.detect_zeroes.as_deref().unwrap_or("unmap");
    words.extend(["detect_zeroes", detect].map(str::to_owned));
    words
}
