//! `cairn snap` as a client sends it, and the progress of a merge as a person sees it.

use std::time::{Duration, Instant};

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::exit;
use cairn_outcome::failure::{Outcome, refused};
use cairn_tools::args::bytes;
use cairn_tools::progress::{Left, Progress};
use serde_json::json;

use super::differences::print_differences;
use super::{absolute, client, show, tell};
use crate::cli::{MergeArgs, SnapCommand, SnapCreateArgs};
use crate::control::rpc::{
    AnyName, RemoveParams, SnapCreateParams, SnapDiffParams, SnapGrowParams, SnapRollbackParams,
};
use crate::verbs::snap::list::{SnapInfo, list_text};

/// How often a merge is looked at.
const TICK: Duration = Duration::from_millis(100);

/// Runs the verb.
///
/// # Errors
/// There is no server, it refuses, or a merge failed.
pub fn run(verb: SnapCommand) -> Outcome<u8> {
    match verb {
        SnapCommand::Create(args) => create(args),
        SnapCommand::List(read) => {
            let params = json!(AnyName { name: read.name });
            show(&read.server, read.json, "snap_list", params, list_text)
        }
        SnapCommand::Diff { snap, other, json } => {
            print_differences(&snap.server, "snap_diff", json, |from| {
                json!(SnapDiffParams { name: snap.name.clone(), other: other.clone(), from })
            })
        }
        SnapCommand::Rollback { merge, store } => {
            let store = store.as_deref().map(absolute).transpose()?;
            let name = merge.snap.name.clone();
            follow(&merge, "snap_rollback", json!(SnapRollbackParams { name, store }))
        }
        SnapCommand::Merge { merge, force } => {
            let name = merge.snap.name.clone();
            follow(&merge, "snap_merge", json!(RemoveParams { name, force }))
        }
        SnapCommand::Remove { snap, force } => {
            tell(&snap.server, "snap_remove", json!(RemoveParams { name: snap.name, force }))
        }
        SnapCommand::Grow { snap, size } => {
            let size_bytes = bytes("--size", &size)?;
            tell(&snap.server, "snap_grow", json!(SnapGrowParams { name: snap.name, size_bytes }))
        }
    }
}

fn create(args: SnapCreateArgs) -> Outcome<u8> {
    let sized = |field: &str, size: &Option<String>| {
        size.as_deref().map(|size| bytes(field, size)).transpose()
    };
    let params = SnapCreateParams {
        name: args.snap.name,
        store: args.store.as_deref().map(absolute).transpose()?,
        chunk_sectors: args.chunk,
        size_bytes: sized("--size", &args.size)?,
        fill_percent: args.fill,
        grow_bytes: sized("--grow", &args.grow)?,
    };
    tell(&args.snap.server, "snap_create", json!(params))
}

/// Has a merge begin, and shows how far it is until it ends. Whoever stops watching does not stop
/// the merge.
fn follow(merge: &MergeArgs, method: &str, params: serde_json::Value) -> Outcome<u8> {
    tell(&merge.snap.server, method, params)?;
    if merge.no_wait {
        return Ok(exit::OK);
    }
    let seconds = merge.timeout.map(|seconds| seconds.max(0.0));
    let limit =
        seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    let limit = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut progress: Option<Progress> = None;
    loop {
        let info = merging(merge)?;
        let left = info.as_ref().map_or(Left::default(), left_of);
        let progress = progress.get_or_insert_with(|| Progress::begin_merge(left));
        let Some(info) = info else { return Ok(progress.finish(left, exit::OK)) };
        if info.state == "merge failed" {
            let found = "a device that failed (the server's log tells which)";
            let expected = "success; the merge goes on with the next rollback or restart";
            let error = refused(ConfigKind::System, &info.name, "merge", found, expected);
            return progress.finish(left, Err(error));
        }
        if limit.is_some_and(|limit| Instant::now() >= limit) {
            return Ok(progress.finish(left, exit::TIMEOUT));
        }
        progress.show(left);
        std::thread::sleep(TICK);
    }
}

/// The merge of this snapshot, if it is under way.
fn merging(merge: &MergeArgs) -> Outcome<Option<SnapInfo>> {
    let volume = merge.snap.name.split('@').next().map(str::to_owned);
    let answer = client(&merge.snap.server)?.ask("snap_list", AnyName { name: volume })?;
    let infos: Vec<SnapInfo> = serde_json::from_value(answer).map_err(|error| {
        let detail = "answer: not understood";
        ConfigError::new(ConfigKind::System, "snap_list", detail).with_source(error)
    })?;
    let ours = |info: &SnapInfo| info.name == merge.snap.name && info.state.starts_with("merg");
    Ok(infos.into_iter().find(ours))
}

fn left_of(info: &SnapInfo) -> Left {
    let bytes = info.merge_left_bytes.unwrap_or(0);
    Left { blocks: bytes / (u64::from(info.chunk_sectors) * 512).max(1), bytes }
}
