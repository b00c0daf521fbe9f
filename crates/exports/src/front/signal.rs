//! Waiting inside one reactor: a wake-up for a task, and the first of two futures.
//!
//! A [`Signal`] carries no state: a task that waits checks its condition, registers, and checks
//! again when polled. A signal serves one task on one thread, so it needs no lock.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Wakes the one task that registered last.
#[derive(Default)]
pub(crate) struct Signal(RefCell<Option<Waker>>);

impl Signal {
    /// Remembers the task to wake.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        let mut waker = self.0.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }

    /// Wakes the task, if one registered.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.0.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Forgets the task: the signal and the task would keep each other alive.
    pub(crate) fn clear(&self) {
        *self.0.borrow_mut() = None;
    }

    /// Waits until `ready` returns a value; calls it at once and after each wake-up.
    pub(crate) async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        poll_fn(|cx| match ready() {
            Some(value) => Poll::Ready(value),
            None => {
                self.register(cx);
                Poll::Pending
            }
        })
        .await
    }
}

/// Which of two futures ended first.
pub(crate) enum First<A, B> {
    /// The first argument's result; it wins if both are ready.
    Left(A),
    /// The second argument's result.
    Right(B),
}

/// Waits for the first of two futures and drops the other.
pub(crate) async fn first<A, B>(
    left: impl Future<Output = A>,
    right: impl Future<Output = B>,
) -> First<A, B> {
    let (mut left, mut right) = (pin!(left), pin!(right));
    poll_fn(|cx| {
        if let Poll::Ready(value) = left.as_mut().poll(cx) {
            return Poll::Ready(First::Left(value));
        }
        right.as_mut().poll(cx).map(First::Right)
    })
    .await
}
