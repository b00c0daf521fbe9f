//! The keeper of an image's lock: a thread that asks for it four times in each patience (F2 in the
//! module above), by one small call.
//!
//! An image that is idle has a recent sign of its lock so, and one that has lost it is fenced, also
//! if no request comes, or if librbd has taken the lock again and lets requests pass.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use super::{LOST, REFUSED, Shared, clock};

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
    while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let Some(shared) = image.upgrade().filter(|shared| !shared.is_fenced()) else { return };
        let started = clock::now();
        match shared.has_its_lock() {
            Ok(true) => drop(shared.good.fetch_max(started.0, Ordering::AcqRel)),
            Ok(false) => drop(shared.fence(LOST)),
            Err(error) if -error == libc::ESHUTDOWN => drop(shared.fence(REFUSED)),
            // A request that finds no sign of the lock looks for itself.
            Err(_) => {}
        }
    }
}
