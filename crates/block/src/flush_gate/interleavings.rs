//! The race of two reactors' flushes, under a scheduler that tries interleavings:
//! `RUSTFLAGS="--cfg shuttle" cargo test -p cairn-block --lib interleavings`.
//!
//! A model drive keeps completed writes until a flush. One flush, or the flush inside a FUA write,
//! fails and drops them all, and its answer arrives later than its effect. Each thread writes, then
//! flushes. If a thread's flush succeeds while the failure count did not change, its write must be
//! durable.

use std::collections::BTreeSet;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use shuttle::thread;

use super::*;
use crate::error::IoError;

/// How many interleavings a test tries: `CAIRN_ROUNDS`, or 3000.
fn rounds() -> usize {
    let rounds = std::env::var("CAIRN_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    rounds.unwrap_or(3000)
}

#[derive(Default)]
struct Contents {
    volatile: BTreeSet<u32>,
    durable: BTreeSet<u32>,
    failures_left: u32,
}

#[derive(Default)]
struct Drive(Mutex<Contents>);

impl Drive {
    fn write(&self, id: u32) {
        self.0.lock().volatile.insert(id);
    }

    /// The effect at once, the answer after others had their turn.
    async fn flush(&self) -> IoResult {
        let result = self.settle();
        thread::yield_now();
        result
    }

    async fn durable_write(&self, id: u32, durable: bool) -> IoResult {
        self.write(id);
        if durable { self.flush().await } else { Ok(()) }
    }

    fn settle(&self) -> IoResult {
        let mut contents = self.0.lock();
        let volatile = std::mem::take(&mut contents.volatile);
        if contents.failures_left > 0 {
            contents.failures_left -= 1;
            return Err(IoError::IO);
        }
        contents.durable.extend(volatile);
        Ok(())
    }

    fn holds(&self, id: u32) -> bool {
        self.0.lock().durable.contains(&id)
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        thread::yield_now();
    }
}

fn write_and_flush(gate: &FlushGate, drive: &Drive, id: u32) {
    let before = gate.failures().count();
    drive.write(id);
    let flushed = block_on(gate.flush(|| drive.flush()));
    if flushed.is_ok() && gate.failures().count() == before {
        assert!(drive.holds(id), "the flush of {id} said OK, and its write is lost");
    }
}

fn race(others: impl Fn(&FlushGate, &Drive) + Send + Sync + Clone + 'static) {
    shuttle::check_random(
        move || {
            let contents = Contents { failures_left: 1, ..Contents::default() };
            let drive = Arc::new(Drive(Mutex::new(contents)));
            let gate = Arc::new(FlushGate::default());
            let threads: Vec<_> = (0..2)
                .map(|id| {
                    let (gate, drive) = (gate.clone(), drive.clone());
                    thread::spawn(move || write_and_flush(&gate, &drive, id))
                })
                .collect();
            others(&gate, &drive);
            threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
        },
        rounds(),
    );
}

#[test]
fn no_flush_overtakes_one_that_fails() {
    race(|gate, drive| write_and_flush(gate, drive, 7));
}

#[test]
fn no_flush_overtakes_a_durable_write_that_fails() {
    race(|gate, drive| {
        let _ = block_on(gate.durable_write(|durable| drive.durable_write(7, durable)));
    });
}
