//! `cairn thin` as a client sends it.

use cairn_outcome::failure::Outcome;
use cairn_tools::args::bytes;
use serde_json::json;

use super::differences::print_differences;
use super::{absolute, show, tell};
use crate::cli::ThinCommand;
use crate::control::rpc::{
    AnyName, RemoveParams, ThinCreateParams, ThinDiffParams, ThinRenameParams, ThinRollbackParams,
    ThinSnapshotParams,
};
use crate::verbs::thin::list::list_text;

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
        ThinCommand::Diff { server, name, other, json } => {
            print_differences(&server, "thin_diff", json, |from| {
                json!(ThinDiffParams { name: name.clone(), other: other.clone(), from })
            })
        }
        ThinCommand::Rollback { thin, keep } => {
            let params = ThinRollbackParams { name: thin.name, keep };
            tell(&thin.server, "thin_rollback", json!(params))
        }
        ThinCommand::Remove { thin, force } => {
            tell(&thin.server, "thin_remove", json!(RemoveParams { name: thin.name, force }))
        }
        ThinCommand::Rename { thin, to, size, origin } => {
            let size_bytes = size.map(|size| bytes("--size", &size)).transpose()?;
            let origin = origin.as_deref().map(absolute).transpose()?;
            let params = ThinRenameParams { name: thin.name, to, size_bytes, origin };
            tell(&thin.server, "thin_rename", json!(params))
        }
    }
}
