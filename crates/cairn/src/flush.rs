//! `cairn flush`: drains a cache to its origin without serving clients.
//!
//! The table is built and resumed (which recovers), then drained, while its targets report how much
//! is left. Ctrl-C or `--timeout` suspends, which commits: the blocks written back so far are free
//! on the cache, and the next run continues with the rest.
//!
//! With `--detach` the origins name no cache any more after the drain, so that they may be written
//! alone.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cairn_block::{ConfigError, ConfigKind, MappedDevice, SuspendMode, Target};
use cairn_outcome::failure::{Outcome, refused, wrong};
use cairn_outcome::signals::{self, Event};
use cairn_outcome::{exit, stdout};
use cairn_tools::progress::{Left, Progress};

use crate::cli::FlushArgs;
use crate::serve::limits::CRASH_LOG_BYTES;
use cairn_control::state::keep_markers;
use cairn_control::world::{World, WorldOptions};

const VOLUME: &str = "flush";
/// How often the progress is read, and a signal is noticed.
const TICK: Duration = Duration::from_millis(20);

/// How the drain ended.
enum End {
    /// Every cache is drained.
    Drained,
    /// A cache could not be drained.
    Failed(ConfigError),
    /// Every cache is drained, and its origin detached: what became of each.
    Detached(Vec<String>),
    /// Asked to stop.
    Stopped,
    /// The time is over.
    TimedOut,
}

/// Runs the verb.
///
/// # Errors
/// The table is refused, has no cache, or the drain failed.
pub fn run(args: &FlushArgs) -> Outcome<u8> {
    let (_, happened) = signals::watch()?;
    let world = World::start(WorldOptions {
        handles: Default::default(),
        reactors: Some(1),
        ring: args.ring.kind(),
        base: None,
        read_only: false,
        guest_sets: false,
        take_overs: Vec::new(),
    })?;
    let world = Arc::new(world);
    keep_markers(world.registry(), None, &args.adopt_marker)?;
    world.begin_start(CRASH_LOG_BYTES, args.discard_crash_log);
    world.create(VOLUME)?;
    world.load(VOLUME, &args.table.join("\n"))?;
    let volume = world.volume(VOLUME)?;
    let table = volume.inactive_table();
    let is_any = |of: fn(&dyn Target) -> bool| {
        let mut lines = table.iter().flat_map(|table| table.lines());
        lines.any(|line| of(&*line.target))
    };
    let (drains, detaches) = (is_any(|target| target.drains()), is_any(|target| target.detaches()));
    if args.detach && !detaches {
        let expected = "a line of bcache (a drained writecache keeps nothing to detach)";
        return Err(wrong(VOLUME, "--detach", "no backing device of bcache", expected));
    }
    if !drains && !args.detach {
        return Err(wrong(VOLUME, "table target", "no cache", "a line of a cache"));
    }
    let lines = table.iter().flat_map(|table| table.lines());
    if let Some(blank) = lines.into_iter().find_map(|line| line.target.formats()) {
        let expected = "a cache with something to write back (is it the right device?)";
        return Err(refused(ConfigKind::Damaged, blank, "superblock", "a blank device", expected));
    }
    world.resume(VOLUME)?;
    let limit = args.timeout.and_then(|seconds| Instant::now().checked_add(seconds_of(seconds)));
    let mut end = match drains {
        true => drain(&world, &volume, &happened, limit),
        false => End::Drained,
    };
    if args.detach && matches!(end, End::Drained) && left(&volume).blocks == 0 {
        let given_up = args.discard_dirty.as_deref();
        end = world.detach(VOLUME, given_up).map_or_else(End::Failed, End::Detached);
    }
    world.suspend(VOLUME, SuspendMode::Flush)?;
    world.end_crash_logs();
    conclude(end, drains.then(|| left(&volume)), args.detach)
}

fn seconds_of(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// Drains every cache, one after the other, and watches.
fn drain(
    world: &Arc<World>,
    volume: &MappedDevice,
    happened: &Receiver<Event>,
    limit: Option<Instant>,
) -> End {
    let (send, done) = channel();
    let drained = world.clone();
    // The call waits until all is written back, so it has a thread. After a stop no one receives
    // its result.
    std::thread::spawn(move || drop(send.send(drained.drain(VOLUME))));
    let mut progress = Progress::begin(left(volume));
    loop {
        let wait = limit.map_or(TICK, |at| TICK.min(at.saturating_duration_since(Instant::now())));
        match done.recv_timeout(wait) {
            Ok(Ok(())) => break progress.finish(left(volume), End::Drained),
            Ok(Err(error)) => break progress.finish(left(volume), End::Failed(error)),
            Err(RecvTimeoutError::Disconnected) => break End::Stopped,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if happened.try_recv().is_ok() {
            break progress.finish(left(volume), End::Stopped);
        }
        if limit.is_some_and(|limit| Instant::now() >= limit) {
            break progress.finish(left(volume), End::TimedOut);
        }
        progress.show(left(volume));
    }
}

/// Prints what is left in the caches, if there are any, and returns the exit code. A detach that
/// was asked for and did not happen is no success, even if nothing is left.
fn conclude(end: End, left: Option<Left>, detach: bool) -> Outcome<u8> {
    let mut state = match left {
        None => String::new(),
        Some(Left { blocks: 0, .. }) => "clean: every block is on the origin\n".to_owned(),
        Some(Left { blocks, bytes }) => {
            format!("{blocks} blocks ({} KiB) left\n", bytes.div_ceil(1024))
        }
    };
    if let End::Detached(origins) = &end {
        origins.iter().for_each(|origin| state.extend([origin, "\n"]));
    }
    let is_attached = detach && matches!(end, End::Drained | End::Stopped | End::TimedOut);
    if is_attached {
        state.push_str("not detached: the drain was ended early, the set still counts\n");
    }
    stdout::print(&state)?;
    match end {
        End::Failed(error) => Err(without_verb(error)),
        End::Detached(_) => Ok(exit::OK),
        _ if !is_attached && left.is_none_or(|left| left.blocks == 0) => Ok(exit::OK),
        End::Drained | End::Stopped => Ok(exit::FAILURE),
        End::TimedOut => Ok(exit::TIMEOUT),
    }
}

/// A target names the verb first, as the volume does here.
fn without_verb(mut error: ConfigError) -> ConfigError {
    if let Some(rest) = error.detail.strip_prefix("flush: ").filter(|_| error.device == VOLUME) {
        error.detail = rest.to_owned();
    }
    error
}

/// The bytes that the origin does not have yet.
fn left(volume: &MappedDevice) -> Left {
    let mut left = Left::default();
    for dirty in volume.dirty() {
        left.blocks += dirty.sectors.0 / dirty.block.0;
        left.bytes += dirty.sectors.to_bytes();
    }
    left
}
