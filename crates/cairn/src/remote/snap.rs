//! The progress of a merge as a person sees it.

use std::time::{Duration, Instant};

use cairn_block::ConfigKind;
use cairn_outcome::exit;
use cairn_outcome::failure::{Outcome, refused};
use cairn_tools::progress::{Left, Progress};

use super::tell;
use crate::cli::{Merging, UntilArgs};
use cairn_control::client::Client;
use cairn_control::verbs::snap::SnapList;
use cairn_control::verbs::snap::list::SnapInfo;
use cairn_control::verbs::verb::{Done, Verb};

/// How often a merge is looked at.
const TICK: Duration = Duration::from_millis(100);

/// Begins a merge and shows its progress until it ends. Ctrl-C and `--timeout` stop the display;
/// the merge continues in the server.
///
/// # Errors
/// There is no server, it refuses, or the merge failed.
pub fn follow<V: Verb<Answer = Done>>(
    server: &Client,
    merging: &Merging<V>,
    name: &str,
) -> Outcome<u8> {
    let Merging { verb, until: UntilArgs { no_wait, timeout } } = merging;
    tell(server, verb)?;
    if *no_wait {
        return Ok(exit::OK);
    }
    let seconds = timeout.map(|seconds| seconds.max(0.0));
    let limit =
        seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    let limit = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut progress: Option<Progress> = None;
    loop {
        let info = under_way(server, name)?;
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
fn under_way(server: &Client, name: &str) -> Outcome<Option<SnapInfo>> {
    let volume = name.split('@').next().map(str::to_owned);
    let infos = server.ask(&SnapList { name: volume })?;
    let ours = |info: &SnapInfo| info.name == name && info.state.starts_with("merg");
    Ok(infos.into_iter().find(ours))
}

fn left_of(info: &SnapInfo) -> Left {
    let bytes = info.merge_left_bytes.unwrap_or(0);
    Left { blocks: bytes / (u64::from(info.chunk_sectors) * 512).max(1), bytes }
}
