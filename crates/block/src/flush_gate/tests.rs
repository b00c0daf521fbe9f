//! Tests of G1 to G4, one at a time, with futures polled by hand.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use super::*;
use crate::error::IoError;

/// A drive whose flushes end when the test says so.
#[derive(Default)]
struct Drive {
    begun: Cell<usize>,
    answers: RefCell<Vec<IoResult>>,
}

impl Drive {
    async fn flush(&self) -> IoResult {
        self.begun.set(self.begun.get() + 1);
        poll_fn(|_| match self.answers.borrow_mut().pop() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        })
        .await
    }

    fn answer(&self, result: IoResult) {
        self.answers.borrow_mut().push(result);
    }
}

fn poll(future: Pin<&mut impl Future<Output = IoResult>>) -> Poll<IoResult> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn flushes_that_arrive_during_one_share_the_next() {
    let (gate, drive) = (FlushGate::default(), Drive::default());
    let mut first = pin!(gate.flush(|| drive.flush()));
    assert!(poll(first.as_mut()).is_pending());
    let mut later = [0; 2].map(|_| Box::pin(gate.flush(|| drive.flush())));
    assert!(later.iter_mut().all(|flush| poll(flush.as_mut()).is_pending()));
    assert_eq!(drive.begun.get(), 1);
    drive.answer(Ok(()));
    assert_eq!(poll(first.as_mut()), Poll::Ready(Ok(())));
    assert!(later.iter_mut().all(|flush| poll(flush.as_mut()).is_pending()));
    assert_eq!(drive.begun.get(), 2);
    drive.answer(Ok(()));
    let [leader, other] = &mut later;
    assert_eq!(poll(leader.as_mut()), Poll::Ready(Ok(())));
    assert_eq!(poll(other.as_mut()), Poll::Ready(Ok(())));
    assert_eq!(drive.begun.get(), 2);
}

#[test]
fn a_failed_flush_raises_the_count_and_fails_for_all_who_share_it() {
    let (gate, drive) = (FlushGate::default(), Drive::default());
    let mut first = pin!(gate.flush(|| drive.flush()));
    let mut second = pin!(gate.flush(|| drive.flush()));
    assert!(poll(first.as_mut()).is_pending());
    assert!(poll(second.as_mut()).is_pending());
    drive.answer(Err(IoError::IO));
    assert_eq!(poll(first.as_mut()), Poll::Ready(Err(IoError::IO)));
    assert_eq!(gate.failures().count(), 1);
    drive.answer(Ok(()));
    assert_eq!(poll(second.as_mut()), Poll::Ready(Ok(())), "it began after the failure");
    assert_eq!(gate.failures().count(), 1);
}

#[test]
fn a_flush_ends_after_the_durable_writes_that_began_before_its_end() {
    let (gate, drive) = (FlushGate::default(), Drive::default());
    let answer = Cell::new(None);
    let write = |durable: bool| {
        let answer = &answer;
        poll_fn(move |_| match answer.get() {
            Some(result) if durable => Poll::Ready(result),
            None if durable => Poll::Pending,
            _ => Poll::Ready(Ok(())),
        })
    };
    let mut flush = pin!(gate.flush(|| drive.flush()));
    assert!(poll(flush.as_mut()).is_pending());
    let mut durable = Box::pin(gate.durable_write(write));
    assert!(poll(durable.as_mut()).is_pending());
    drive.answer(Ok(()));
    assert!(poll(flush.as_mut()).is_pending(), "the write may fail and have dropped others");
    let mut later = Box::pin(gate.durable_write(write));
    assert!(poll(later.as_mut()).is_pending());
    answer.set(Some(Err(IoError::IO)));
    assert_eq!(poll(durable.as_mut()), Poll::Ready(Err(IoError::IO)));
    assert_eq!(gate.failures().count(), 1);
    drop(durable);
    assert_eq!(poll(flush.as_mut()), Poll::Ready(Ok(())), "the later write does not hold it up");
}

#[test]
fn a_write_that_the_medium_refuses_is_its_own_error_only() {
    let gate = FlushGate::default();
    let tries = RefCell::new(Vec::new());
    let mut write = pin!(gate.durable_write(|durable| {
        tries.borrow_mut().push(durable);
        std::future::ready(Err(IoError::IO))
    }));
    assert_eq!(poll(write.as_mut()), Poll::Ready(Err(IoError::IO)));
    assert_eq!(gate.failures().count(), 0);
    assert_eq!(*tries.borrow(), [true, false]);
}
