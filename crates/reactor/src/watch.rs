//! [`Watch`]: memory that a reactor looks at as long as it is awake, so that a writer of that
//! memory need not notify it.
//!
//! A task waits for its watch as for a notification. The reactor wakes it also before it sleeps.
//! Then the task asks the other side for a notification, and looks once more.
//!
//! - W1. The reactor looks at each watch that is waited for once per turn, and all the time while
//!   it polls. A look takes no lock and makes no system call.
//! - W2. It does not sleep while a task waits for its watch: it tells these tasks first, and gives
//!   them a turn.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// What is looked at.
struct Look {
    is_ready: Box<dyn Fn() -> bool>,
    /// The task that waits.
    waiter: RefCell<Option<Waker>>,
}

impl Look {
    fn is_ready(&self) -> bool {
        self.waiter.borrow().is_some() && (self.is_ready)()
    }

    /// True if a task waited.
    fn wake(&self) -> bool {
        self.waiter.take().map(Waker::wake).is_some()
    }
}

/// The watches of one reactor.
#[derive(Default)]
pub(crate) struct Watches {
    looks: RefCell<Vec<Rc<Look>>>,
    /// The reactor polls before it sleeps.
    polls: Cell<bool>,
}

impl Watches {
    pub fn is_empty(&self) -> bool {
        self.looks.borrow().is_empty()
    }

    pub fn set_polls(&self, polls: bool) {
        self.polls.set(polls);
    }

    /// True if something came that a task waits for.
    pub fn is_ready(&self) -> bool {
        self.looks.borrow().iter().any(|look| look.is_ready())
    }

    /// Wakes the tasks for which something came.
    pub fn wake_ready(&self) {
        for look in self.looks.borrow().iter().filter(|look| look.is_ready()) {
            look.wake();
        }
    }

    /// The reactor is about to sleep. True if tasks have to be given a turn before. (W2)
    pub fn end(&self) -> bool {
        self.polls.set(false);
        self.looks.borrow().iter().fold(false, |any, look| look.wake() | any)
    }
}

/// See the module's description.
pub struct Watch {
    watches: Rc<Watches>,
    look: Rc<Look>,
}

impl Watch {
    pub(crate) fn new(watches: Rc<Watches>, is_ready: impl Fn() -> bool + 'static) -> Watch {
        let look = Rc::new(Look { is_ready: Box::new(is_ready), waiter: RefCell::default() });
        watches.looks.borrow_mut().push(look.clone());
        Watch { watches, look }
    }

    /// Waits until something came: true; or until the reactor is about to sleep: false.
    pub async fn ready(&self) -> bool {
        poll_fn(|cx| {
            if (self.look.is_ready)() {
                return Poll::Ready(true);
            }
            if !self.watches.polls.get() {
                return Poll::Ready(false);
            }
            self.look.waiter.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watches.looks.borrow_mut().retain(|look| !Rc::ptr_eq(look, &self.look));
    }
}
