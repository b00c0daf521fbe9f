//! A lock across awaits that is granted in order of request.
//!
//! The holder hands it to the waiter that has waited longest. A task that locks it again at once
//! queues behind the others. So a task that takes it repeatedly, such as the commit task under
//! load, delays each waiter by at most one turn of every other waiter.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use cairn_block::sync::Mutex;
use event_listener::Event;

struct Inner<T> {
    /// `None` while it is held.
    value: Option<T>,
    /// FIFO of waiters; the head is woken when the value is returned.
    waiting: VecDeque<Arc<Event>>,
}

impl<T> Inner<T> {
    fn tell_first(&self) {
        if let Some(first) = self.waiting.front()
            && self.value.is_some()
        {
            first.notify(usize::MAX);
        }
    }
}

/// The lock, and what it guards.
pub(crate) struct Fair<T>(Mutex<Inner<T>>);

/// The value, held.
pub(crate) struct Held<'a, T> {
    lock: &'a Fair<T>,
    value: Option<T>,
}

/// A position in the queue.
struct QueuedWaiter<'a, T> {
    lock: &'a Fair<T>,
    event: Arc<Event>,
}

impl<T> Fair<T> {
    pub fn new(value: T) -> Fair<T> {
        Fair(Mutex::new(Inner { value: Some(value), waiting: VecDeque::new() }))
    }

    /// Waits for the lock.
    pub async fn lock(&self) -> Held<'_, T> {
        let place = {
            let mut inner = self.0.lock();
            if inner.waiting.is_empty()
                && let Some(value) = inner.value.take()
            {
                return Held { lock: self, value: Some(value) };
            }
            let event = Arc::new(Event::new());
            inner.waiting.push_back(event.clone());
            QueuedWaiter { lock: self, event }
        };
        loop {
            let told = place.event.listen();
            if let Some(value) = place.take() {
                return Held { lock: self, value: Some(value) };
            }
            told.await;
        }
    }
}

impl<T> QueuedWaiter<'_, T> {
    /// The value, if this waiter is at the head.
    fn take(&self) -> Option<T> {
        let mut inner = self.lock.0.lock();
        let first = inner.waiting.front().is_some_and(|first| Arc::ptr_eq(first, &self.event));
        if first { inner.value.take() } else { None }
    }
}

impl<T> Drop for QueuedWaiter<'_, T> {
    fn drop(&mut self) {
        let mut inner = self.lock.0.lock();
        inner.waiting.retain(|event| !Arc::ptr_eq(event, &self.event));
        // It may have been woken and dropped before it took the value.
        inner.tell_first();
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        let mut inner = self.lock.0.lock();
        inner.value = self.value.take();
        inner.tell_first();
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("held until it is dropped")
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("held until it is dropped")
    }
}

#[cfg(test)]
mod tests {
    use super::Fair;
    use futures_util::FutureExt;
    use std::pin::pin;

    #[test]
    fn lock_is_granted_in_order_of_request() {
        let lock = Fair::new(0);
        let held = lock.lock().now_or_never().expect("it is free");
        let (mut first, mut second) = (pin!(lock.lock()), pin!(lock.lock()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        drop(held);
        // The former holder gets it again only after the waiters.
        let mut again = pin!(lock.lock());
        assert!(again.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        let mut held = first.as_mut().now_or_never().expect("its turn");
        *held += 1;
        assert!(second.as_mut().now_or_never().is_none());
        drop(held);
        assert_eq!(*second.as_mut().now_or_never().expect("its turn"), 1);
        assert_eq!(*again.as_mut().now_or_never().expect("its turn"), 1);
    }

    #[test]
    fn a_dropped_waiter_does_not_block_the_queue() {
        let lock = Fair::new(());
        let held = lock.lock().now_or_never().expect("it is free");
        let mut second = {
            let mut first = Box::pin(lock.lock());
            let mut second = Box::pin(lock.lock());
            assert!(first.as_mut().now_or_never().is_none());
            assert!(second.as_mut().now_or_never().is_none());
            drop(held);
            second
        };
        assert!(second.as_mut().now_or_never().is_some());
        assert!(lock.lock().now_or_never().is_some());
    }
}
