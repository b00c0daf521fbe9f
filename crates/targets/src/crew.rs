//! The tasks of one target or pool: `suspend` returns when the last has ended.

use std::sync::Arc;

use cairn_block::Env;
use cairn_block::sync::atomic::{AtomicUsize, Ordering};
use event_listener::Event;

/// Counts tasks.
#[derive(Default)]
pub(crate) struct Crew {
    tasks: AtomicUsize,
    ended: Event,
}

/// A task that was counted, until it ends or is given up.
struct Counted<'a>(&'a Crew);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Crew {
    /// Starts a task on this reactor.
    pub fn spawn(self: &Arc<Crew>, env: &Env, task: impl Future<Output = ()> + 'static) {
        self.tasks.fetch_add(1, Ordering::AcqRel);
        // Boxed here: what is moved into a future and awaited in it has two places there.
        let (crew, task) = (self.clone(), Box::pin(task));
        env.spawn(async move {
            task.await;
            crew.leave();
        });
    }

    /// Counts a task that its caller runs.
    pub async fn count<T>(&self, task: impl Future<Output = T>) -> T {
        self.tasks.fetch_add(1, Ordering::AcqRel);
        let _counted = Counted(self);
        task.await
    }

    fn leave(&self) {
        if self.tasks.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.ended.notify(usize::MAX);
        }
    }

    /// Waits until no task is left.
    pub async fn rest(&self) {
        loop {
            let listener = self.ended.listen();
            if self.tasks.load(Ordering::Acquire) == 0 {
                return;
            }
            listener.await;
        }
    }
}
