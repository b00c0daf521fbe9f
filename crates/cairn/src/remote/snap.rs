//! The progress of a merge as a person sees it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cairn_block::ConfigKind;
use cairn_outcome::exit;
use cairn_outcome::failure::{Outcome, refused};
use cairn_tools::progress::{Left, Progress};

use super::tell;
use crate::cli::{Merging, UntilArgs};
use cairn_control::client::Client;
use cairn_control::names::parent_of;
use cairn_control::verbs::snap::SnapList;
use cairn_control::verbs::snap::list::{SnapInfo, SnapState};
use cairn_control::verbs::verb::{Done, Verb};
use cairn_control::verbs::volume::{VolumeInfo, VolumeWait};

/// How often the progress display asks the server. The end and a failure are events of the volume.
const TICK: Duration = Duration::from_secs(1);

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
    if *no_wait {
        tell(server, verb)?;
        return Ok(exit::OK);
    }
    let volume = parent_of(name).unwrap_or(name).to_owned();
    // Counted before the merge begins: no event of it is missed.
    let seen = event_nr(server, &volume);
    tell(server, verb)?;
    let events = events_after(server.clone(), &volume, seen);
    let seconds = timeout.map(|seconds| seconds.max(0.0));
    let limit =
        seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    let limit = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut progress: Option<Progress> = None;
    loop {
        let info = under_way(server, &volume, name)?;
        let left = info.as_ref().map_or(Left::default(), left_of);
        let progress = progress.get_or_insert_with(|| Progress::begin_merge(left));
        let Some(info) = info else { return Ok(progress.finish(left, exit::OK)) };
        if info.state == SnapState::MergeFailed {
            let found = "a device that failed (the server's log tells which)";
            let expected = "success; the merge goes on with the next rollback or restart";
            let error = refused(ConfigKind::System, &info.name, "merge", found, expected);
            return progress.finish(left, Err(error));
        }
        let now = Instant::now();
        let rest = limit.map_or(TICK, |limit| limit.saturating_duration_since(now));
        if rest.is_zero() {
            return Ok(progress.finish(left, exit::TIMEOUT));
        }
        progress.show(left);
        pause(&events, rest.min(TICK));
    }
}

/// How many events the volume had; none if the server does not say.
fn event_nr(server: &Client, volume: &str) -> Option<u64> {
    let infos = server.ask(&VolumeInfo { name: Some(volume.to_owned()) }).ok()?;
    infos.first().map(|info| info.event_nr)
}

/// Receives something at each event of the volume after the first `seen`. The connection that waits
/// and its thread end with the process.
fn events_after(server: Client, volume: &str, mut seen: Option<u64>) -> Receiver<()> {
    let (send, receive) = channel();
    let name = volume.to_owned();
    std::thread::spawn(move || {
        while let Ok(events) = server.ask(&VolumeWait { name: name.clone(), event_nr: seen }) {
            seen = Some(events.event_nr);
            if send.send(()).is_err() {
                return;
            }
        }
    });
    receive
}

/// Waits for an event, and for no longer than `rest`.
fn pause(events: &Receiver<()>, rest: Duration) {
    if events.recv_timeout(rest) == Err(RecvTimeoutError::Disconnected) {
        std::thread::sleep(rest);
    }
}

/// The merge of this snapshot, if it is under way.
fn under_way(server: &Client, volume: &str, name: &str) -> Outcome<Option<SnapInfo>> {
    let infos = server.ask(&SnapList { name: Some(volume.to_owned()) })?;
    let ours = |info: &SnapInfo| info.name == name && info.state.is_merge();
    Ok(infos.into_iter().find(ours))
}

fn left_of(info: &SnapInfo) -> Left {
    let bytes = info.merge_left_bytes.unwrap_or(0);
    Left { blocks: bytes / (u64::from(info.chunk_sectors) * 512).max(1), bytes }
}
