//! A task group: counts the tasks and other users of an object, and waits until there are none.

use std::sync::Arc;

use event_listener::Event;

use crate::env::Env;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::wait::until;

/// Counts tasks.
#[derive(Default)]
pub struct TaskGroup {
    tasks: AtomicUsize,
    ended: Event,
}

/// A member of a task group, until it is dropped.
struct Member<'a>(&'a TaskGroup);

impl Drop for Member<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl TaskGroup {
    /// Starts a task on this reactor.
    pub fn spawn(self: &Arc<TaskGroup>, env: &Env, task: impl AsyncFnOnce(&Env) + 'static) {
        self.tasks.fetch_add(1, Ordering::AcqRel);
        let (group, env_of_task) = (self.clone(), env.clone());
        env.spawn(async move {
            // Boxed: what is moved into a future and awaited in it has two places there.
            Box::pin(task(&env_of_task)).await;
            group.leave();
        });
    }

    /// Counts a task that its caller runs.
    pub async fn count<T>(&self, task: impl Future<Output = T>) -> T {
        self.tasks.fetch_add(1, Ordering::AcqRel);
        let _member = Member(self);
        task.await
    }

    fn leave(&self) {
        if self.tasks.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.ended.notify(usize::MAX);
        }
    }

    /// Waits until no task is left.
    pub async fn idle(&self) {
        until(&self.ended, || self.tasks.load(Ordering::Acquire) == 0).await;
    }
}
