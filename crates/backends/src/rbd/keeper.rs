//! The keeper of an image's lock: a thread that asks for it while nothing else does.
//!
//! What the guard (F2 in the module above) finds of a cookie that has changed is certain only for
//! a while after the last sign of the lock. So an image that is idle has a sign, too: it is never
//! older than half of the patience, by one small look in each quarter of it. If the keeper itself
//! was late, or its call took long, librbd may have lost its watch of the image, and changes the
//! cookie soon: the next looks are those of the guard, which note the new one.
//!
//! The keeper fences an image whose session is another one (N2 of `session`): nothing but a new
//! open ends that. For all else it fences nothing: a request that finds no sign of the lock looks
//! for itself.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use cairn_block::Time;

use super::{Shared, clock};

/// A wake that is so late, or a call that takes so long, casts doubt on the watch.
const LATE: Duration = Duration::from_secs(2);
/// How many looks follow a doubt.
const DOUBTS: u32 = 4;

/// Ends the keeper when it is dropped.
pub(super) struct Keeper(#[expect(dead_code, reason = "it is for its drop")] Sender<()>);

impl Keeper {
    /// Starts the thread of an image with a lock; none without a thread, which the guard survives.
    pub fn start(shared: &Arc<Shared>) -> Option<Keeper> {
        let (end, ended) = channel();
        let (image, pause) = (Arc::downgrade(shared), shared.target.patience / 4);
        let started = thread::Builder::new()
            .name("rbd-keeper".to_owned())
            .spawn(move || keep(&image, pause, &ended));
        started.ok().map(|_| Keeper(end))
    }
}

fn keep(image: &Weak<Shared>, pause: Duration, ended: &Receiver<()>) {
    let mut doubts = 0;
    loop {
        let slept = clock::now();
        if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let Some(shared) = image.upgrade().filter(|shared| !shared.is_fenced()) else { return };
        let woke = clock::now();
        if woke.since(slept) > pause + LATE {
            doubts = DOUBTS;
        }
        let good = Time(shared.good.load(Ordering::Acquire));
        if doubts == 0 && woke.since(good) < pause {
            continue;
        }
        let is_held = match doubts {
            0 => shared.still_has_lock(good),
            _ => shared.has_its_lock(),
        };
        doubts = doubts.saturating_sub(1);
        if is_held == Ok(true) {
            shared.good.fetch_max(woke.0, Ordering::AcqRel);
        }
        if is_held == Ok(false) && shared.has_its_session() == Ok(false) {
            shared.fence("another server has opened the image since");
            return;
        }
        if is_held != Ok(true) || clock::now().since(woke) > LATE {
            doubts = DOUBTS;
        }
    }
}
