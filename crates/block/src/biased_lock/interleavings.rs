//! Readers of two reactors and a thread that changes the content, under a scheduler that tries
//! interleavings: `RUSTFLAGS="--cfg shuttle" cargo test -p cairn-block --lib interleavings`.

use std::sync::Arc;

use shuttle::thread;

use super::*;
use crate::sync::atomic::{AtomicU32, Ordering};

const CHANGES: u32 = 4;

/// How many interleavings a test tries: `CAIRN_ROUNDS`, or 3000.
fn rounds() -> usize {
    let rounds = std::env::var("CAIRN_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    rounds.unwrap_or(3000)
}

/// Two numbers that are equal whenever no thread changes them.
#[derive(Default)]
struct Pair([AtomicU32; 2]);

impl Pair {
    fn read(&self) -> [u32; 2] {
        [0, 1].map(|at| self.0[at].load(Ordering::Relaxed))
    }
}

fn read_often(lock: &BiasedLock<Pair>, reactor: ReactorId) {
    let mut last = 0;
    for _ in 0..2 * READS {
        let [first, second] = lock.read(reactor, Pair::read);
        assert_eq!(first, second, "a thread was changing them");
        assert!(first >= last, "a change was seen, and is gone");
        last = first;
    }
}

#[test]
fn readers_see_all_of_a_change_or_nothing_and_no_change_is_lost() {
    shuttle::check_random(
        || {
            let lock = Arc::new(BiasedLock::new(2, Pair::default()));
            let readers = [0, 1].map(|reactor| {
                let lock = lock.clone();
                thread::spawn(move || read_often(&lock, ReactorId(reactor)))
            });
            let writers = [0, 1].map(|_| {
                let lock = lock.clone();
                thread::spawn(move || {
                    for _ in 0..CHANGES {
                        let mut pair = lock.lock();
                        // The only reference, or this panics.
                        let Pair([first, second]) = &mut *pair;
                        first.fetch_add(1, Ordering::Relaxed);
                        second.fetch_add(1, Ordering::Relaxed);
                    }
                })
            });
            let threads = readers.into_iter().chain(writers);
            threads.for_each(|thread| thread.join().expect("no thread panics"));
            assert_eq!(lock.lock().read(), [2 * CHANGES; 2]);
        },
        rounds(),
    );
}
