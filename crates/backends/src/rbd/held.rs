//! What of an image outlives its last user: [`Held`], counted by the image.
//!
//! The lock of an image is given back by its close, which waits for the cluster. An open of the
//! same image waits for that ([`wait_for_lock`]), and for none of another image: a cluster that is
//! silent does not delay an open of one that answers. The end of the process waits for all
//! ([`finish_closing`]).
//!
//! H1. A disk that is dropped is counted as closing before its image may be closed, and until it
//!     is: a call on a thread beside, such as a look of the keeper, may be the last user.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use cairn_block::sync::Mutex;

use super::uri::Target;

/// Connections that have not ended. A thread of librbd may be the last user of one; and the process
/// must not end, and take down the libraries, while their threads run.
static CONNECTED: AtomicUsize = AtomicUsize::new(0);

/// What is held, and of which image ([`Target::place`]).
static HELD: LazyLock<Mutex<Vec<(Kind, String)>>> = LazyLock::new(Mutex::default);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An image that is being closed, or whose disk is gone.
    Closing,
    /// A thread of an open that nothing waits for any more.
    LeftBehind,
}

/// A connection to a cluster.
pub(super) struct Connected;

impl Connected {
    pub fn begin() -> Connected {
        CONNECTED.fetch_add(1, Ordering::AcqRel);
        Connected
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        CONNECTED.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Counts as long as it lives.
pub(super) struct Held(Kind, String);

impl Held {
    fn begin(kind: Kind, place: &str) -> Held {
        HELD.lock().push((kind, place.to_owned()));
        Held(kind, place.to_owned())
    }

    /// The image at this place is being closed.
    pub fn closing(place: &str) -> Held {
        Held::begin(Kind::Closing, place)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = HELD.lock();
        let is_it = |(kind, place): &(Kind, String)| *kind == self.0 && *place == self.1;
        if let Some(at) = held.iter().position(is_it) {
            held.swap_remove(at);
        }
    }
}

/// A thread that may be left behind: the next open waits for it, as it may have the lock.
#[derive(Clone, Default)]
pub(super) struct LeftBehind(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    #[default]
    WaitedFor,
    Left(#[expect(dead_code, reason = "it is for its drop")] Held),
    Ended,
}

impl LeftBehind {
    /// It is left behind, unless it has ended.
    pub fn begin(&self, target: &Target) {
        let mut state = self.0.lock();
        if matches!(*state, State::WaitedFor) {
            *state = State::Left(Held::begin(Kind::LeftBehind, &target.place()));
        }
    }

    /// The thread has ended.
    pub fn end(&self) {
        *self.0.lock() = State::Ended;
    }
}

/// How long an open or the end of the process waits for images that are being closed: a cluster
/// that does not answer must not keep it for ever. Beside a watcher that is silent librbd takes
/// 10 s: two notifications, each with 5 s for the answer.
const CLOSE_PATIENCE: Duration = Duration::from_secs(12);
/// How long the end of the process waits if an open has shown that a cluster is silent.
const CLOSE_PATIENCE_SILENT: Duration = Duration::from_secs(1);

/// Waits until there are none, at most for a while; false if there still are.
fn wait_while(are: impl Fn() -> bool, patience: Duration) -> bool {
    const PAUSE: Duration = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
    while are() {
        if waited >= patience {
            return false;
        }
        std::thread::sleep(PAUSE);
        waited += PAUSE;
    }
    true
}

fn is_closing() -> bool {
    HELD.lock().iter().any(|(kind, _)| *kind == Kind::Closing)
}

/// Waits until this image is not being closed, nor kept open by what no user waits for. Ends when
/// the open that asks is itself not waited for any more.
pub(super) fn wait_for_lock(target: &Target, is_left: impl Fn() -> bool) {
    let place = target.place();
    let is_held = || HELD.lock().iter().any(|(_, held)| *held == place);
    wait_while(|| !is_left() && is_held(), CLOSE_PATIENCE);
}

/// Waits until every image has been closed, and its lock given back. The process calls it before it
/// ends, when it has no disk any more. False if a cluster does not answer: its libraries then have
/// threads that never end.
#[must_use]
pub fn finish_closing() -> bool {
    let is_silent = HELD.lock().iter().any(|(kind, _)| *kind == Kind::LeftBehind);
    // The images of clusters that answer are closed within the longer time.
    let is_closed = wait_while(is_closing, CLOSE_PATIENCE);
    let rest = if is_silent { CLOSE_PATIENCE_SILENT } else { CLOSE_PATIENCE };
    let is_ended = is_closed && wait_while(|| CONNECTED.load(Ordering::Acquire) > 0, rest);
    if !is_ended && !is_silent {
        tracing::warn!("a Ceph cluster does not answer: its lock of an image was not given back");
    }
    is_ended
}

/// The same for a process that leaves with images open: waits for those that are being closed.
pub fn finish_closing_others() {
    wait_while(is_closing, CLOSE_PATIENCE);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn an_open_waits_for_what_is_left_of_its_own_image_alone() {
        let target = |uri| Target::parse(uri).expect("a URI");
        let (dead, other) = (target("rbd:held/dead?timeout=4"), target("rbd:held/other"));
        let left = LeftBehind::default();
        left.begin(&dead);
        let began = Instant::now();
        wait_for_lock(&other, || false);
        wait_for_lock(&target("rbd:held/dead?conf=/other"), || false);
        assert!(began.elapsed() < Duration::from_secs(5), "another image waits");
        let waiter = std::thread::spawn(move || {
            wait_for_lock(&target("rbd:held/dead"), || false);
            began.elapsed()
        });
        std::thread::sleep(Duration::from_millis(100));
        left.end();
        left.begin(&dead);
        let waited = waiter.join().expect("it ends");
        assert!(waited >= Duration::from_millis(100), "it did not wait");
        wait_for_lock(&dead, || false);
        let closing = Held::closing(&dead.place());
        assert!(is_closing());
        wait_for_lock(&dead, || true);
        drop(closing);
        wait_for_lock(&dead, || false);
    }
}
