//! [`within`]: an open that may not end, on a thread of its own. [`beside`]: a call that a task
//! waits for.
//!
//! librados and librbd wait until the cluster answers, and cannot be called off. So an open has a
//! thread that the caller leaves behind when the time of the URI has passed. If the cluster answers
//! later, what was opened is closed, and a lock that was taken is given back.
//!
//! W1. Once it is left behind, a thread begins no step that changes the cluster ([`Care::check`]).
//!     The step in which it waits may still be done.
//!
//! Neither uses the helper threads of a reactor: the end of a reactor waits for those.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;

use cairn_block::{ConfigError, ConfigKind, IoError};

use super::held::LeftBehind;
use super::uri::Target;
use crate::answer::Answer;

/// Whether the caller still waits.
#[derive(Clone, Default)]
pub(super) struct Care(Arc<AtomicBool>);

impl Care {
    /// Refuses the next step if the caller waits no more (W1).
    pub fn check(&self, target: &Target) -> Result<(), ConfigError> {
        if self.is_left() { Err(silent(target)) } else { Ok(()) }
    }

    /// True if the caller waits no more.
    pub fn is_left(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

fn silent(target: &Target) -> ConfigError {
    let seconds = target.timeout.as_secs();
    target.refused(ConfigKind::System, format!("the cluster did not answer within {seconds} s"))
}

/// Runs `work`, and waits for it as long as the URI says. Blocks the thread.
///
/// # Errors
/// Those of `work`, or it did not end in time.
pub(super) fn within<T: Send + 'static>(
    target: &Target,
    work: impl FnOnce(&Care) -> Result<T, ConfigError> + Send + 'static,
) -> Result<T, ConfigError> {
    let (care, (send, receive)) = (Care::default(), sync_channel(1));
    let (waiter, left) = (care.clone(), LeftBehind::default());
    let kept = left.clone();
    let run = move || {
        let result = work(&care);
        // Dropped if the caller has left; that closes what was opened.
        drop(send.send(result));
        kept.end();
    };
    let started = thread::Builder::new().name("rbd-open".to_owned()).spawn(run);
    started.map_err(|error| target.refused(ConfigKind::System, format!("thread: {error}")))?;
    match receive.recv_timeout(target.timeout) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => {
            waiter.0.store(true, Ordering::Release);
            left.begin(target);
            // The answer may have come at this moment.
            receive.try_recv().unwrap_or_else(|_| Err(silent(target)))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Err(target.refused(ConfigKind::System, "open: its thread has ended"))
        }
    }
}

/// Runs `work`, and gives its result to the task that waits for the answer.
pub(super) fn beside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Arc<Answer<T>> {
    let answer = Arc::<Answer<T>>::default();
    let told = answer.clone();
    let run = move || told.tell(Ok(work()));
    if let Err(error) = thread::Builder::new().name("rbd-call".to_owned()).spawn(run) {
        tracing::error!("rbd: cannot start a thread: {error}");
        answer.tell(Err(IoError::IO));
    }
    answer
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn an_open_that_does_not_end_is_left_behind_and_changes_nothing_any_more() {
        let target = Target::parse("rbd:vms/a?timeout=1").expect("a URI");
        let ((go, wait), (tell, told)) = (channel::<()>(), channel());
        let open = target.clone();
        let result = within(&target, move |care| {
            wait.recv().expect("the test says so");
            tell.send(care.check(&open).is_err()).expect("the test waits");
            Ok(())
        });
        let line = result.expect_err("it does not end").to_string();
        assert!(line.contains("the cluster did not answer within 1 s"), "{line}");
        go.send(()).expect("the thread waits");
        assert_eq!(told.recv(), Ok(true));
        assert_eq!(within(&target, |_| Ok(5)).expect("it ends"), 5);
    }
}
