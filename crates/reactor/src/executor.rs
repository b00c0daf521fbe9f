//! The executor: a queue of runnable tasks that belongs to one reactor.
//!
//! Tasks never leave their reactor; their wakers may be used from any thread. A task that is
//! woken elsewhere goes to the same queue and the reactor's sleep is ended. Slow paths live
//! here; the ready path of a request never does.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use async_task::Runnable;
use parking_lot::Mutex;

use crate::mailbox::Bell;

#[derive(Default)]
struct Queue {
    runnable: Mutex<VecDeque<Runnable>>,
}

/// The runnable tasks of one reactor.
pub(crate) struct Executor {
    queue: Arc<Queue>,
    bell: Arc<Bell>,
}

impl Executor {
    pub fn new(bell: Arc<Bell>) -> Executor {
        Executor { queue: Arc::default(), bell }
    }

    pub fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        let (queue, bell) = (self.queue.clone(), self.bell.clone());
        let schedule = move |runnable| {
            queue.runnable.lock().push_back(runnable);
            bell.ring();
        };
        let (runnable, task) = async_task::spawn_local(task, schedule);
        runnable.schedule();
        task.detach();
    }

    /// Runs the tasks that are runnable now, each once. True if there were any.
    pub fn run(&self) -> bool {
        let batch = std::mem::take(&mut *self.queue.runnable.lock());
        let any = !batch.is_empty();
        for runnable in batch {
            runnable.run();
        }
        any
    }

    pub fn is_idle(&self) -> bool {
        self.queue.runnable.lock().is_empty()
    }

    /// Drops every task that is not running; for the end of a reactor.
    pub fn clear(&self) {
        while let Some(runnable) = self.queue.runnable.lock().pop_front() {
            drop(runnable);
        }
    }
}
