//! Who waits for a group commit: held requests, and tasks. A commit takes all that wait before it
//! looks at what to write, so that what they did before is in it, and tells each its result once.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{Env, IoError, IoResult, RequestId, mutants, until_some};
use event_listener::Event;

/// Who waits for a commit.
pub(crate) enum Waiter {
    /// A held request, completed with the commit's result.
    Request(RequestId),
    /// A held write, and the low bits of the failure count of its device before it was sent there.
    Write(RequestId, u32),
    /// A task.
    Ticket(Arc<Ticket>),
}

/// Tells those who waited the commit's result.
pub(crate) fn tell(env: &Env, waiters: Vec<Waiter>, result: IoResult) {
    for waiter in waiters {
        match waiter {
            Waiter::Request(id) | Waiter::Write(id, _) => env.complete(id, result),
            Waiter::Ticket(ticket) => ticket.tell(result),
        }
    }
}

/// The same; but writes fail that a failure may have dropped, as the count of their device is
/// `failures` now.
pub(crate) fn tell_of_failures(env: &Env, waiters: Vec<Waiter>, result: IoResult, failures: u64) {
    let is_kept = |waiter: &Waiter| match waiter {
        Waiter::Write(_, before) => mutants::same(
            "thin: failure count of a FUA write",
            (*before).into(),
            failures as u32 as u64,
        ),
        Waiter::Request(_) | Waiter::Ticket(_) => true,
    };
    let (kept, lost): (Vec<_>, Vec<_>) = waiters.into_iter().partition(is_kept);
    tell(env, kept, result);
    tell(env, lost, result.and(Err(IoError::IO)));
}

/// The result of a commit for a task that waits for it.
#[derive(Default)]
pub(crate) struct Ticket {
    result: Mutex<Option<IoResult>>,
    event: Event,
}

impl Ticket {
    fn tell(&self, result: IoResult) {
        *self.result.lock() = Some(result);
        self.event.notify(usize::MAX);
    }

    /// Waits until a commit has told its result.
    pub async fn wait(&self) -> IoResult {
        until_some(&self.event, || *self.result.lock()).await
    }
}
