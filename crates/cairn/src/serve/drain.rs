//! The writeback before the end of a server (`--drain-on-stop`).
//!
//! No client and no verb is served any more, so what is dirty only becomes less. The volumes are
//! drained one after the other, those first that stand on others: what they write back makes the
//! lower ones dirty. A volume that cannot be drained keeps its dirty data on its cache, as at a
//! stop without a drain, and the others are drained all the same.
//!
//! **Crash argument.** A drain changes nothing that a client was told: data is on the origin,
//! durably, before its cache counts it as clean. So a kill, a signal or a manager that loses
//! patience leaves what a kill at any other time leaves, and the suspend that follows commits what
//! is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use cairn_block::MappedDevice;
use cairn_control::world::World;
use cairn_outcome::signals::{self, Event};
use cairn_outcome::stderr::say;
use cairn_tools::progress::{Left, Progress};

use super::notify;

/// How often the progress is read, and a signal is noticed.
const TICK: Duration = Duration::from_millis(50);
/// How many ticks pass between two messages to a service manager.
const TOLD_EVERY: u32 = 40;

/// Writes back what the caches of all volumes have, until a signal.
pub fn drain(world: &Arc<World>, happened: &Receiver<Event>) {
    let mut left = left_of(world);
    if left.bytes == 0 {
        return;
    }
    signals::expect_another_stop();
    notify::draining(left.bytes);
    let (send, done) = channel::<()>();
    let is_stopped = Arc::new(AtomicBool::new(false));
    let (drained, stops) = (world.clone(), is_stopped.clone());
    // A drain waits until all is written back, so it has a thread. After a signal the suspend of
    // its volume ends it.
    let drains = thread::Builder::new().name("drain".to_owned()).spawn(move || {
        let _send = send;
        drain_each(&drained, &stops);
    });
    if let Err(error) = drains {
        return say(format_args!("cannot write back: {error}"));
    }
    let mut progress = Progress::begin_drain(left);
    for tick in 1.. {
        if done.recv_timeout(TICK) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        if happened.try_iter().any(|event| matches!(event, Event::Stop)) {
            is_stopped.store(true, Ordering::Relaxed);
            say("second signal: the rest is not written back");
            break;
        }
        let now = left_of(world);
        progress.show(now);
        if tick % TOLD_EVERY == 0 && now.bytes != left.bytes {
            notify::draining(now.bytes);
            left = now;
        }
    }
    progress.finish(left_of(world), ());
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
            say(error);
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
