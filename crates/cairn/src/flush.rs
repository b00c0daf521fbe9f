//! `cairn flush`: drains a cache to its origin without serving clients.
//!
//! The table is built and resumed (which recovers), then drained, while its targets report how much
//! is left. Ctrl-C or `--timeout` suspends, which commits: the blocks written back so far are free
//! on the cache, and the next run continues with the rest.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cairn_block::{ConfigKind, MappedDevice, SuspendMode};
use cairn_outcome::failure::{Outcome, refused, wrong};
use cairn_outcome::signals::{self, Event};
use cairn_outcome::{exit, stdout};
use cairn_tools::progress::{Left, Progress};

use crate::cli::FlushArgs;
use cairn_control::world::{World, WorldOptions};

const VOLUME: &str = "flush";
/// How often the progress is read.
const TICK: Duration = Duration::from_millis(200);

/// How the drain ended.
enum End {
    /// Every cache is drained.
    Drained,
    /// A cache could not be drained.
    Failed(cairn_block::ConfigError),
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
        reactors: Some(1),
        ring: args.ring.kind(),
        base: None,
        read_only: false,
    })?;
    let world = Arc::new(world);
    world.create(VOLUME)?;
    world.load(VOLUME, &args.table.join("\n"))?;
    let volume = world.volume(VOLUME)?;
    let table = volume.inactive_table();
    if !table.iter().any(|table| table.lines().iter().any(|line| line.target.drains())) {
        return Err(wrong(VOLUME, "table target", "no cache", "a line of a cache"));
    }
    let lines = table.iter().flat_map(|table| table.lines());
    if let Some(blank) = lines.into_iter().find_map(|line| line.target.formats()) {
        let expected = "a cache with something to write back (is it the right device?)";
        return Err(refused(ConfigKind::Damaged, blank, "superblock", "a blank device", expected));
    }
    world.resume(VOLUME)?;
    let limit = args.timeout.and_then(|seconds| Instant::now().checked_add(seconds_of(seconds)));
    let end = drain(&world, &volume, &happened, limit);
    world.suspend(VOLUME, SuspendMode::Flush)?;
    conclude(end, left(&volume))
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
        match done.recv_timeout(TICK) {
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

fn conclude(end: End, left: Left) -> Outcome<u8> {
    let state = match left.blocks {
        0 => "clean: every block is on the origin\n".to_owned(),
        blocks => format!("{blocks} blocks ({} KiB) left\n", left.bytes.div_ceil(1024)),
    };
    stdout::print(&state)?;
    match end {
        End::Failed(error) => Err(error),
        _ if left.blocks == 0 => Ok(exit::OK),
        End::Drained | End::Stopped => Ok(exit::FAILURE),
        End::TimedOut => Ok(exit::TIMEOUT),
    }
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
