//! Users that begin and end to serve at the same time, under shuttle: see `interleaved`.

use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

use super::{Served, SharedCore};
use crate::interleaved::{block_on, rounds};

/// How often a core was opened, and how many users serve it.
#[derive(Default)]
struct Counts {
    opened: AtomicU64,
    serving: AtomicU64,
}

/// Users in threads, each serves and pauses twice; `most` may serve at once. A user that finds so
/// many is refused.
fn serve_in_turns(most: u64) {
    let (shared, counts) = (Arc::<SharedCore<u64>>::default(), Arc::<Counts>::default());
    let users: Vec<_> = (0..3).map(|_| shared.join()).collect();
    let threads = users.into_iter().map(|user| {
        let counts = counts.clone();
        thread::spawn(move || {
            for _ in 0..2 {
                let served = block_on(user.serve_or(
                    |_, served| match served {
                        Served::Live if most == 1 => Err(()),
                        // Alone, so that it may replace the core.
                        Served::Paused if most == 1 => Ok(false),
                        _ => Ok(true),
                    },
                    async |_| {
                        assert_eq!(counts.serving.load(Ordering::SeqCst), 0, "H1");
                        Ok(Arc::new(counts.opened.fetch_add(1, Ordering::SeqCst)))
                    },
                    async |_| Ok(()),
                ));
                let Ok((core, handover)) = served else { continue };
                assert!(counts.serving.fetch_add(1, Ordering::SeqCst) < most, "H1");
                drop(handover);
                thread::yield_now();
                assert!(Arc::ptr_eq(&core, &user.core().expect("H3: it is served")), "H1");
                counts.serving.fetch_sub(1, Ordering::SeqCst);
                user.pause();
            }
            drop(user.leave());
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let opened = counts.opened.load(Ordering::SeqCst);
    assert!(opened >= 1 && (most == 1 || opened == 1), "one core for all: {opened}");
    assert!(shared.state.lock().core.is_none(), "H4");
}

#[test]
fn one_user_serves_at_a_time() {
    shuttle::check_random(|| serve_in_turns(1), rounds());
}

#[test]
fn several_users_serve_the_same_core() {
    shuttle::check_random(|| serve_in_turns(3), rounds());
}
