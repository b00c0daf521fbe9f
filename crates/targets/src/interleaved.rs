//! Shared code of the tests under shuttle, which tries interleavings of threads: `RUSTFLAGS="--cfg
//! shuttle" cargo test -p cairn-targets --lib interleavings`.

mod plate;
mod reactors;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use shuttle::thread;

pub use plate::Plate;
pub use reactors::{Job, run_reactors};

/// How many interleavings a test tries: `CAIRN_ROUNDS`, or 3000.
pub fn rounds() -> usize {
    let rounds = std::env::var("CAIRN_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    rounds.unwrap_or(3000)
}

/// Polls until it is done; others run in between.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
        thread::yield_now();
    }
}
