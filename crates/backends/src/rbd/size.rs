//! How large an image is now.
//!
//! librbd answers from memory unless it was told that the header of the image has changed: then it
//! asks the cluster first, and waits. A reactor asks for the size at each load of a table, also
//! for images that the table does not name. So the call has a thread of its own, and the reactor
//! waits for [`BOUND`] at most; while a call has not ended, it does not wait at all. Without an
//! answer the former size stays. A call that ends later still stores the size, for the next load.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind, SECTOR_BYTES};

use super::image::{Image, text_of};
use super::uri::Target;
use super::{Shared, clock};

/// How long a reactor waits for the size.
const BOUND: Duration = Duration::from_millis(100);

/// The sectors of an image. Blocks the thread.
pub(super) fn of(target: &Target, image: &Image) -> Result<u64, ConfigError> {
    let bytes = image
        .bytes()
        .map_err(|errno| target.refused(ConfigKind::System, format!("size: {}", text_of(errno))))?;
    Ok(bytes / SECTOR_BYTES)
}

impl Shared {
    /// Looks at the size, unless the cluster does not answer soon.
    pub(super) fn refresh(self: &Arc<Self>) {
        // The cluster refuses a client that is fenced.
        if self.is_fenced() || self.is_measuring.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = self.clone();
        self.flight.begin(clock::now());
        let measured = call(move || {
            let found = of(&shared.target, shared.image());
            shared.flight.end(1);
            match found {
                Ok(sectors) => shared.sectors.store(sectors, Ordering::Relaxed),
                Err(error) => tracing::warn!("{error}; its former size stays"),
            }
            shared.is_measuring.store(false, Ordering::Release);
        });
        match measured {
            // It also ends without a message, if the call has panicked.
            Ok(ended) => drop(ended.recv_timeout(BOUND)),
            Err(error) => {
                self.flight.end(1);
                self.is_measuring.store(false, Ordering::Release);
                tracing::warn!("{}: size: thread: {error}", self.target.uri);
            }
        }
    }
}

/// Runs `work` on a thread; the receiver gets a message at its end.
fn call(work: impl FnOnce() + Send + 'static) -> std::io::Result<Receiver<()>> {
    let (send, receive) = sync_channel(1);
    let run = move || {
        work();
        // The reactor may wait no more.
        let _ = send.send(());
    };
    thread::Builder::new().name("rbd-size".to_owned()).spawn(run).map(|_| receive)
}
