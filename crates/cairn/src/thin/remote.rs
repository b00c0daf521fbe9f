//! `cairn thin` as a client sends it.

use cairn_block::{ConfigError, ConfigKind};
use serde_json::{Value, json};

use super::diff::Differences;
use super::list::list_text;
use crate::cli::{ServerArgs, ThinCommand};
use crate::control::rpc::{
    AnyName, OneName, ThinCreateParams, ThinDiffParams, ThinRenameParams, ThinRollbackParams,
    ThinSnapshotParams,
};
use crate::exit;
use crate::failure::Outcome;
use crate::remote::{absolute, bytes, client, print, show, tell};
use crate::snap::diff::{Extent, diff_text};

/// Runs the verb.
///
/// # Errors
/// There is no server, or it refuses.
pub fn run(verb: ThinCommand) -> Outcome<u8> {
    match verb {
        ThinCommand::Create { thin, size, id, origin } => {
            let origin = origin.as_deref().map(absolute).transpose()?;
            let size_bytes = bytes("SIZE", &size)?;
            let params = ThinCreateParams { name: thin.name, size_bytes, id, origin };
            tell(&thin.server, "thin_create", json!(params))
        }
        ThinCommand::Snapshot { thin, of, id } => {
            let params = ThinSnapshotParams { name: thin.name, of, id };
            tell(&thin.server, "thin_snapshot", json!(params))
        }
        ThinCommand::List(read) => {
            let params = json!(AnyName { name: read.name });
            show(&read.server, read.json, "thin_list", params, list_text)
        }
        ThinCommand::Diff { server, name, other, json } => diff(&server, &name, &other, json),
        ThinCommand::Rollback { thin, keep } => {
            let params = ThinRollbackParams { name: thin.name, keep };
            tell(&thin.server, "thin_rollback", json!(params))
        }
        ThinCommand::Remove(thin) => {
            tell(&thin.server, "thin_remove", json!(OneName { name: thin.name }))
        }
        ThinCommand::Rename { thin, to, size, origin } => {
            let size_bytes = size.map(|size| bytes("--size", &size)).transpose()?;
            let origin = origin.as_deref().map(absolute).transpose()?;
            let params = ThinRenameParams { name: thin.name, to, size_bytes, origin };
            tell(&thin.server, "thin_rename", json!(params))
        }
    }
}

/// Asks until there is no more, and prints as it comes.
fn diff(server: &ServerArgs, name: &str, other: &Option<String>, as_json: bool) -> Outcome<u8> {
    let client = client(server)?;
    let (mut from, mut all) = (None, Vec::<Extent>::new());
    loop {
        let (name, other) = (name.to_owned(), other.clone());
        let answer = client.ask("thin_diff", ThinDiffParams { name, other, from })?;
        let Differences { extents, next } = decode(answer)?;
        match as_json {
            true => all.extend(extents),
            false => drop(print(&diff_text(&extents))?),
        }
        from = next;
        if from.is_none() {
            break;
        }
    }
    if as_json { crate::remote::print_json(&json!(all)) } else { Ok(exit::OK) }
}

fn decode(answer: Value) -> Outcome<Differences> {
    serde_json::from_value(answer).map_err(|error| {
        let detail = "answer: not understood";
        ConfigError::new(ConfigKind::System, "thin_diff", detail).with_source(error)
    })
}
