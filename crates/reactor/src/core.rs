//! [`Core`]: the part of a reactor that the real and the simulated world share: executor, timers
//! and the environment. Its owner steps it and passes the time in; a core never reads a clock.

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use cairn_block::{Env, Mail, Post, ReactorId, Tasks, Time, World};

use crate::executor::Executor;
use crate::mailbox::ReactorWaker;
use crate::timers::Timers;

struct LocalTasks {
    executor: Executor,
    timers: RefCell<Timers>,
}

impl Tasks for LocalTasks {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        self.executor.spawn(task);
    }

    fn wake_at(&self, at: Time, waker: Waker) -> u64 {
        self.timers.borrow_mut().insert(at, waker)
    }

    fn cancel(&self, at: Time, key: u64) {
        self.timers.borrow_mut().cancel(at, key);
    }
}

/// The parts of a [`Core`].
pub struct CoreParts {
    /// Its id.
    pub reactor: ReactorId,
    /// Seed of its random numbers.
    pub seed: u64,
    /// The mailboxes.
    pub post: Arc<dyn Post>,
    /// Rung when a task becomes runnable.
    pub reactor_waker: Arc<ReactorWaker>,
    /// What disks and exports need of their reactor: its [`Driver`](crate::Driver) in the real
    /// world.
    pub mechanism: Rc<dyn Any>,
}

/// Executor, timers and environment of one reactor.
pub struct Core {
    env: Env,
    tasks: Rc<LocalTasks>,
}

impl Core {
    /// A core at time zero, without tasks.
    pub fn new(parts: CoreParts) -> Core {
        let executor = Executor::new(parts.reactor_waker);
        let tasks = Rc::new(LocalTasks { executor, timers: RefCell::default() });
        let env = Env::new(World {
            reactor: parts.reactor,
            seed: parts.seed,
            tasks: tasks.clone(),
            post: parts.post,
            mechanism: parts.mechanism,
        });
        Core { env, tasks }
    }

    /// The environment.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// One turn at time `now`: messages, due timers, runnable tasks, and the requests that these
    /// moved. True if there was anything to do.
    pub fn turn(&self, now: Time, mut mail: Vec<Mail>) -> bool {
        self.turn_with(now, &mut mail)
    }

    /// As [`Core::turn`]; leaves `mail` empty for the next turn.
    pub fn turn_with(&self, now: Time, mail: &mut Vec<Mail>) -> bool {
        self.env.set_now(now);
        let mut busy = !mail.is_empty();
        for mail in mail.drain(..) {
            self.env.receive(mail);
        }
        busy |= self.env.turn();
        let due = self.tasks.timers.borrow_mut().due(now);
        busy |= !due.is_empty();
        due.into_iter().for_each(Waker::wake);
        busy |= self.tasks.executor.run();
        busy |= self.env.turn();
        busy
    }

    /// When the next timer fires.
    pub fn next_timer(&self) -> Option<Time> {
        self.tasks.timers.borrow().next()
    }

    /// How often a task ran.
    pub fn polled(&self) -> u64 {
        self.tasks.executor.polled()
    }

    /// True if no task is runnable.
    pub fn is_idle(&self) -> bool {
        self.tasks.executor.is_idle()
    }
}

impl Core {
    /// Drops every task that has not ended.
    pub fn end_tasks(&self) {
        // A cycle to break: timers hold wakers, wakers hold tasks, tasks hold the environment.
        *self.tasks.timers.borrow_mut() = Timers::default();
        self.tasks.executor.clear();
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.end_tasks();
    }
}
