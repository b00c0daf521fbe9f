//! The verbs of a running server, as a client sends them and prints the answers.

mod differences;
pub mod pool;
mod replace;
pub mod snap;
pub mod state;
pub mod thin;

use std::io::Read;
use std::path::Path;

use cairn_block::{ConfigError, ConfigKind, escape_word};
use cairn_outcome::exit;
use cairn_outcome::failure::{Outcome, system, wrong};
use cairn_outcome::stderr::say;
use cairn_outcome::stdout::{print, print_json};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cli::{Command, ExportCommand, NameArgs, ReadArgs, ServerArgs, TableArgs, TargetsArgs};
use crate::control::client::Client;
use crate::control::rpc::{
    AnyName, CreateParams, ExportAddParams, ExportRemoveParams, LoadParams, MessageParams, OneName,
    RemoveParams, SuspendParams, TableParams, WaitParams,
};
use crate::exports::ExportInfo;
use crate::report::{self, VolumeLines};
use crate::verbs::snap::store::is_path;

/// Runs a verb against a server.
///
/// # Errors
/// There is no server, or it refuses.
pub fn run(verb: Command) -> Outcome<u8> {
    match verb {
        Command::Status(read) => show_lines(&read, "volume_status", json!(any_name(&read))),
        Command::Table { read, kernel, inactive } => {
            let params = TableParams { name: read.name.clone(), inactive, kernel };
            show_lines(&read, "volume_table", json!(params))
        }
        Command::Ls(list) => {
            show(&list.server, list.json, "volume_list", json!({}), report::names_text)
        }
        Command::Info(read) => {
            let params = json!(any_name(&read));
            show(&read.server, read.json, "volume_info", params, report::infos_text)
        }
        Command::Targets(TargetsArgs { name: Some(name), list }) => {
            let spec = report::declared(&name)?;
            if list.json { print_json(&report::spec_json(spec)) } else { print(&spec.to_string()) }
        }
        Command::Targets(TargetsArgs { name: None, list }) => {
            show(&list.server, list.json, "target_list", json!({}), report::targets_text)
        }
        Command::Exports(list) => {
            show(&list.server, list.json, "export_list", json!({}), exports_text)
        }
        changing => change(changing),
    }
}

/// Verbs that change something; they print little.
fn change(verb: Command) -> Outcome<u8> {
    match verb {
        Command::Message { volume: NameArgs { server, name }, sector, words } => {
            let params = MessageParams { name, sector, words };
            let answer = client(&server)?.ask("volume_message", params)?;
            match answer["text"].as_str() {
                Some(text) if !text.is_empty() => print(&format!("{text}\n")),
                _ => Ok(exit::OK),
            }
        }
        Command::Suspend { volume: NameArgs { server, name }, noflush, nolockfs: _ } => {
            tell(&server, "volume_suspend", json!(SuspendParams { name, noflush }))
        }
        Command::Load { table: args, same_content } => {
            let table = table_of(&args)?;
            let NameArgs { server, name } = args.volume;
            tell(&server, "volume_load", json!(LoadParams { name, table, same_content }))
        }
        Command::Create { table: args, discard_dirty } => {
            let table = table_of(&args)?;
            let NameArgs { server, name } = args.volume;
            tell(&server, "volume_create", json!(CreateParams { name, table, discard_dirty }))
        }
        Command::Resume { volume, swap } => replace::resume(volume, swap),
        Command::Replace { table, swap } => replace::replace(table, swap),
        Command::Clear(args) => {
            tell(&args.server, "volume_clear", json!(OneName { name: args.name }))
        }
        Command::Remove { volume: NameArgs { server, name }, force } => {
            tell(&server, "volume_remove", json!(RemoveParams { name, force }))
        }
        Command::Export(ExportCommand::Add { volume, export, description, read_only }) => {
            let NameArgs { server, name: volume } = volume;
            let params = ExportAddParams { volume, name: export, description, read_only };
            tell(&server, "export_add", json!(params))
        }
        Command::Export(ExportCommand::Remove { server, name, force }) => {
            tell(&server, "export_remove", json!(ExportRemoveParams { name, force }))
        }
        Command::Wait { volume: NameArgs { server, name }, event_nr } => {
            tell(&server, "volume_wait", json!(WaitParams { name, event_nr }))
        }
        _ => unreachable!("every other verb is served before"),
    }
}

/// The server to ask.
///
/// # Errors
/// There is no folder for a default.
pub fn client(server: &ServerArgs) -> Outcome<Client> {
    Client::new(server.control.as_deref())
}

/// A device as a word of a table, for the server, which may be in another folder.
///
/// # Errors
/// The path is no text.
pub fn absolute(path: &Path) -> Outcome<String> {
    let shown = path.display().to_string();
    if !is_path(&shown) {
        return Ok(shown);
    }
    let path = std::path::absolute(path).map_err(|error| system(&shown, "path", error))?;
    let text = path.to_str().map(escape_word);
    text.ok_or_else(|| wrong(shown, "path", "bytes that are no UTF-8", "UTF-8"))
}

fn any_name(read: &ReadArgs) -> AnyName {
    AnyName { name: read.name.clone() }
}

/// Asks for something that answers no more than what a person should know.
///
/// # Errors
/// There is no server, or it refuses.
pub fn tell(server: &ServerArgs, method: &str, params: Value) -> Outcome<u8> {
    let name = params["name"].as_str().unwrap_or_default().to_owned();
    client(server)?.ask(method, params).map(|answer| pass_on(&name, &answer))
}

/// Tells on stderr what an answer notes about a volume.
pub fn pass_on(name: &str, answer: &Value) -> u8 {
    let notes = answer["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    notes.for_each(|note| say(format_args!("{name}: {note}")));
    exit::OK
}

/// The table that a command line gives, or names.
///
/// # Errors
/// The system refused to read it.
pub fn table_of(args: &TableArgs) -> Outcome<String> {
    match (&args.file, args.table.is_empty()) {
        (_, false) => Ok(args.table.join("\n")),
        (Some(file), true) => std::fs::read_to_string(file)
            .map_err(|error| system(file.display().to_string(), "read", error)),
        (None, true) => {
            let mut text = String::new();
            let read = std::io::stdin().read_to_string(&mut text);
            read.map(|_| text).map_err(|error| system("standard input", "read", error))
        }
    }
}

fn show_lines(read: &ReadArgs, method: &str, params: Value) -> Outcome<u8> {
    let named = read.name.is_none();
    show(&read.server, read.json, method, params, |volumes: &[VolumeLines]| {
        report::lines_text(volumes, named)
    })
}

/// Asks, and prints the answer as JSON or as `text` says.
///
/// # Errors
/// There is no server, or it refuses.
pub fn show<T: DeserializeOwned>(
    server: &ServerArgs,
    as_json: bool,
    method: &str,
    params: Value,
    text: impl Fn(&[T]) -> String,
) -> Outcome<u8> {
    let answer = client(server)?.ask(method, params)?;
    if as_json {
        return print_json(&answer);
    }
    let answer: Vec<T> = serde_json::from_value(answer).map_err(|error| {
        ConfigError::new(ConfigKind::System, method, "answer: not understood").with_source(error)
    })?;
    print(&text(&answer))
}

fn exports_text(exports: &[ExportInfo]) -> String {
    let line = |export: &ExportInfo| {
        let access = if export.read_only { " read-only" } else { "" };
        let uri = export.uri.as_deref().unwrap_or("-");
        format!("{} {} {} bytes{access} {uri}\n", export.name, export.volume, export.bytes)
    };
    exports.iter().map(line).collect()
}
