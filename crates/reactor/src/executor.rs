//! The executor: a queue of runnable tasks that belongs to one reactor.
//!
//! Tasks never leave their reactor; their wakers may be used from any thread. A task woken from
//! another thread goes to the same queue, and the reactor's sleep ends. Only slow paths run as
//! tasks; the ready path of a request never does.
//!
//! A waiting task is kept alive only by its own wakers, often in a cycle: the task holds a lock
//! whose list of waiters holds the task. The executor therefore keeps a waker of every unfinished
//! task, and drops all of them when the reactor ends.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use async_task::Runnable;
use cairn_block::sync::Padded;
use parking_lot::Mutex;

use crate::mailbox::ReactorWaker;

/// The tasks that are runnable next.
type Queue = Padded<Mutex<VecDeque<Runnable>>>;

/// A waker of every unfinished task.
#[derive(Default)]
struct Unfinished {
    wakers: RefCell<BTreeMap<u64, Waker>>,
}

/// Held by a task's future: removes the task from the list when the future is dropped.
struct Listed {
    unfinished: Rc<Unfinished>,
    key: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.unfinished.wakers.borrow_mut().remove(&self.key);
    }
}

/// The runnable tasks of one reactor.
pub(crate) struct Executor {
    queue: Arc<Queue>,
    reactor_waker: Arc<ReactorWaker>,
    unfinished: Rc<Unfinished>,
    next_key: Cell<u64>,
    /// The tasks that run in this pass; those woken by it go to `queue`.
    batch: RefCell<VecDeque<Runnable>>,
    /// How often a task ran.
    polled: Cell<u64>,
}

thread_local! {
    /// Its address identifies the thread.
    static HERE: u8 = const { 0 };
}

fn this_thread() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl Executor {
    pub fn new(reactor_waker: Arc<ReactorWaker>) -> Executor {
        Executor {
            queue: Arc::default(),
            reactor_waker,
            unfinished: Rc::default(),
            next_key: Cell::default(),
            batch: RefCell::default(),
            polled: Cell::default(),
        }
    }

    pub fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        let (queue, reactor_waker, owner) =
            (self.queue.clone(), self.reactor_waker.clone(), this_thread());
        let schedule = move |runnable| {
            queue.0.lock().push_back(runnable);
            // The reactor's own thread checks the queue before it sleeps.
            if this_thread() != owner {
                reactor_waker.wake();
            }
        };
        let key = self.next_key.get();
        self.next_key.set(key + 1);
        let listed = Listed { unfinished: self.unfinished.clone(), key };
        let task = async move {
            let _listed = listed;
            task.await;
        };
        let (runnable, task) = async_task::spawn_local(task, schedule);
        self.unfinished.wakers.borrow_mut().insert(key, runnable.waker());
        runnable.schedule();
        task.detach();
    }

    /// Runs each task that is runnable now, once. True if there were any.
    pub fn run(&self) -> bool {
        let mut batch = self.batch.take();
        std::mem::swap(&mut batch, &mut *self.queue.0.lock());
        let any = !batch.is_empty();
        self.polled.set(self.polled.get() + batch.len() as u64);
        for runnable in batch.drain(..) {
            runnable.run();
        }
        self.batch.replace(batch);
        any
    }

    /// How often a task ran.
    pub fn polled(&self) -> u64 {
        self.polled.get()
    }

    pub fn is_idle(&self) -> bool {
        self.queue.0.lock().is_empty()
    }

    /// Drops every task that is not running. Called when the reactor ends.
    pub fn clear(&self) {
        // Waking a task puts it into the queue; dropping it there drops its future.
        let wakers = std::mem::take(&mut *self.unfinished.wakers.borrow_mut());
        wakers.into_values().for_each(Waker::wake);
        while let Some(runnable) = self.pop() {
            drop(runnable);
        }
    }

    fn pop(&self) -> Option<Runnable> {
        self.queue.0.lock().pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Poll;

    #[test]
    fn a_waiting_task_is_dropped_at_the_end_even_if_only_it_holds_its_waker() {
        let executor = Executor::new(Arc::default());
        let held = Rc::new(RefCell::new(None));
        let inside = held.clone();
        executor.spawn(Box::pin(poll_fn(move |cx| {
            *inside.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })));
        assert!(executor.run());
        assert!(!executor.run(), "it waits");
        assert_eq!(Rc::strong_count(&held), 2);
        executor.clear();
        assert_eq!(Rc::strong_count(&held), 1, "its future is gone");
    }

    #[test]
    fn a_finished_task_is_forgotten() {
        let executor = Executor::new(Arc::default());
        executor.spawn(Box::pin(async {}));
        assert!(executor.run());
        assert!(executor.unfinished.wakers.borrow().is_empty());
    }
}
