//! Group commit: the waiters that share one commit, held requests and tasks.
//!
//! Commits whose waiters have an order have another queue: `docs/decisions/0009`.
//!
//! G1. One commit runs at a time. Waiters that join while it runs share the next one.
//! G2. A commit takes all waiters before it looks at what to write: it covers their changes from
//!     before they joined. Each waiter gets its result once.
//! G3. The caller that joins first starts the commit task. The task ends only if no waiter is left.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{Env, IoError, IoResult, RequestId, mutants, until_some};
use event_listener::Event;

/// A waiter for a commit.
pub(crate) enum Waiter {
    /// A held request, completed with the commit's result.
    Request(RequestId),
    /// A held write, and the low bits of the failure count of its device before it was sent there.
    Write(RequestId, u32),
    /// A task.
    Ticket(Arc<Ticket>),
}

/// The waiters of a target's commits, under the lock of its state.
#[derive(Default)]
pub(crate) struct GroupCommit {
    waiters: Vec<Waiter>,
    running: bool,
}

impl GroupCommit {
    /// Adds a waiter of the next commit. The caller calls [`GroupCommit::starts`] after it.
    pub fn join(&mut self, waiter: Waiter) {
        self.waiters.push(waiter);
    }

    /// True if no commit task runs: the caller starts one (G3).
    pub fn starts(&mut self) -> bool {
        !std::mem::replace(&mut self.running, true)
    }

    /// True if a waiter of the next commit has joined.
    pub fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// True while a commit task runs.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// The waiters of the commit that begins now (G2).
    pub fn take(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.waiters)
    }

    /// After a commit: true if the task is to commit again, for waiters or because of `more`;
    /// otherwise it ends.
    pub fn goes_on(&mut self, more: bool) -> bool {
        self.running = more || !self.waiters.is_empty();
        self.running
    }

    /// Checks what must hold once every waiter that joined had its task started.
    pub fn check_state(&self) {
        assert!(self.running || self.waiters.is_empty(), "G3: a waiter has a commit task");
    }
}

/// Passes the commit's result to its waiters.
pub(crate) fn tell(env: &Env, waiters: Vec<Waiter>, result: IoResult) {
    for waiter in waiters {
        match waiter {
            Waiter::Request(id) | Waiter::Write(id, _) => env.complete(id, result),
            Waiter::Ticket(ticket) => ticket.tell(result),
        }
    }
}

/// Like [`tell`], but fails each write that a failure may have dropped: its device's count was not
/// `failures` when it was sent. The comparison has the name `compared` (`mutants`).
pub(crate) fn tell_of_failures(
    env: &Env,
    waiters: Vec<Waiter>,
    result: IoResult,
    (compared, failures): (&str, u64),
) {
    let failures = u64::from(failures as u32);
    let is_kept = |waiter: &Waiter| match waiter {
        Waiter::Write(_, before) => mutants::same(compared, u64::from(*before), failures),
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

    /// Waits for the commit's result.
    pub async fn wait(&self) -> IoResult {
        until_some(&self.event, || *self.result.lock()).await
    }
}

#[cfg(test)]
mod tests {
    use super::{GroupCommit, Ticket, Waiter};

    #[test]
    #[should_panic = "G3"]
    fn a_waiter_without_a_commit_task_is_noticed() {
        let mut commits = GroupCommit::default();
        commits.check_state();
        commits.join(Waiter::Ticket(Ticket::default().into()));
        commits.check_state();
    }
}
