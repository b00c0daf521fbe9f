//! The writeback before the end of a server (`--drain-on-stop`).
//!
//! No client and no verb is served any more, so what is dirty only becomes less. The volumes are
//! drained one after the other, those first that stand on others: what they write back makes the
//! lower ones dirty. A volume that cannot be drained keeps its dirty data on its cache, as at a
//! stop without a drain, and the others are drained all the same.
//!
//! Nothing here waits for what may not come. A drain that copies nothing for [`STALL`] is called
//! off, as by a signal: its volume may stand on a suspended one, or on a device that does not
//! answer, and until the suspend that follows no volume commits. What is printed has a thread of
//! its own, as its reader may be slow.
//!
//! **Crash argument.** A drain changes nothing that a client was told: data is on the origin,
//! durably, before its cache counts it as clean. So a kill, or a signal, leaves what a kill at any
//! other time leaves, and the suspend that follows commits what is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use cairn_block::MappedDevice;
use cairn_control::world::World;
use cairn_outcome::signals::{self, Event};
use cairn_tools::progress::{Left, Progress};

use super::notify;

/// How often the progress is read, and a signal is noticed.
const TICK: Duration = Duration::from_millis(50);
/// How often a service manager learns of the progress.
const TELL: Duration = Duration::from_secs(2);
/// How long a drain may copy nothing. Below what a service manager gives a stop.
const STALL: Duration = Duration::from_secs(30);
/// How long the end of the drain waits for its last line to be printed.
const LAST_LINE: Duration = Duration::from_secs(1);

/// Writes back what the caches of all volumes have, until a signal.
pub fn drain(world: &Arc<World>, happened: &Receiver<Event>) {
    let left = left_of(world);
    if left.bytes == 0 {
        return;
    }
    let _signal = signals::expect_another_stop();
    notify::draining(left.bytes);
    let (send, done) = channel::<()>();
    let is_stopped = Arc::new(AtomicBool::new(false));
    let is_ended = Arc::new(AtomicBool::new(false));
    let (drained, stops) = (world.clone(), is_stopped.clone());
    // A drain waits until all is written back, so it has a thread. After a signal the suspend of
    // its volume ends it.
    let drains = thread::Builder::new().name("drain".to_owned()).spawn(move || {
        let _send = send;
        drain_each(&drained, &stops);
    });
    if let Err(error) = drains {
        return tracing::error!("cannot write back: {error}");
    }
    let shown = show(world, left, is_ended.clone());
    let mut progress = (copied(world), Instant::now());
    let mut told = progress;
    while done.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        let now = (copied(world), Instant::now());
        if now.0 != progress.0 {
            progress = now;
        }
        let is_asked = happened.try_iter().any(|event| matches!(event, Event::Stop));
        if is_asked || now.1 - progress.1 > STALL {
            let why = if is_asked { "a signal" } else { "nothing could be copied for 30 s" };
            is_stopped.store(true, Ordering::Relaxed);
            tracing::warn!("{why}: the rest is not written back");
            break;
        }
        if now.0 != told.0 && now.1 - told.1 > TELL {
            notify::draining(left_of(world).bytes);
            told = now;
        }
    }
    is_ended.store(true, Ordering::Relaxed);
    // Its thread sends nothing, and ends unless a reader of stderr holds it up.
    let _ = shown.recv_timeout(LAST_LINE);
}

/// Shows the progress until the drain has ended. The answer is disconnected when the last line is
/// printed.
fn show(world: &Arc<World>, begin: Left, is_ended: Arc<AtomicBool>) -> Receiver<()> {
    let (printing, shown) = channel();
    let world = world.clone();
    let shows = thread::Builder::new().name("progress".to_owned()).spawn(move || {
        let _printing: Sender<()> = printing;
        let mut progress = Progress::begin_drain(begin);
        while !is_ended.load(Ordering::Relaxed) {
            thread::sleep(TICK);
            progress.show(left_of(&world));
        }
        progress.finish(left_of(&world), ());
    });
    if let Err(error) = shows {
        tracing::debug!("the progress is not shown: {error}");
    }
    shown
}

/// How much writeback has copied, of all volumes. It rises while a drain goes on.
fn copied(world: &World) -> u64 {
    let of = |volume: &Arc<MappedDevice>| {
        let table = volume.live_table();
        let lines = table.iter().flat_map(|table| table.lines());
        lines.map(|line| line.target.written_back().to_bytes()).fold(0, u64::wrapping_add)
    };
    world.volumes().iter().map(of).fold(0, u64::wrapping_add)
}

fn drain_each(world: &World, is_stopped: &AtomicBool) {
    for name in world.users_first() {
        if is_stopped.load(Ordering::Relaxed) {
            break;
        }
        let Ok(volume) = world.volume(&name) else { continue };
        if to_write_back(&volume) > 0
            && let Err(error) = world.drain(&name)
            && !is_stopped.load(Ordering::Relaxed)
        {
            tracing::error!("{error}");
        }
    }
}

/// How many bytes a drain of this volume writes back. A merge is none.
fn to_write_back(volume: &MappedDevice) -> u64 {
    let table = volume.live_table();
    let lines = table.iter().flat_map(|table| table.lines());
    let dirty = lines.filter(|line| line.target.drains()).filter_map(|line| line.target.dirty());
    dirty.map(|dirty| dirty.sectors.to_bytes()).fold(0, u64::saturating_add)
}

fn left_of(world: &World) -> Left {
    let bytes = world.volumes().iter().map(|volume| to_write_back(volume)).sum::<u64>();
    Left { blocks: bytes / 512, bytes }
}
