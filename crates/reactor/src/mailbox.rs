//! Mailboxes: how reactors and other threads reach a reactor. One wake per batch, none if the
//! reactor is awake.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cairn_block::sync::Padded;
use cairn_block::{LogLimit, Mail, Post, ReactorId, Throttle};
use parking_lot::Mutex;

use crate::ring::Wake;

/// Ends a reactor's sleep. Not connected in the simulated world, where no thread sleeps.
#[derive(Default)]
pub struct ReactorWaker(OnceLock<Arc<dyn Wake>>);

impl ReactorWaker {
    /// Wakes the reactor, if one is connected.
    pub fn wake(&self) {
        if let Some(waker) = self.0.get() {
            waker.wake();
        }
    }

    /// Sets what to wake; only the first call has an effect.
    pub fn connect(&self, waker: Arc<dyn Wake>) {
        let _ = self.0.set(waker);
    }
}

#[derive(Default)]
struct Mailbox {
    mail: Mutex<Vec<Mail>>,
    reactor_waker: Arc<ReactorWaker>,
}

/// The mailboxes of all reactors of a real world.
pub struct PostOffice {
    mailboxes: Vec<Padded<Mailbox>>,
    log: LogLimit,
    background: Throttle,
}

impl PostOffice {
    /// Empty mailboxes for `count` reactors.
    pub fn new(count: u16) -> Arc<PostOffice> {
        let mailboxes = (0..count).map(|_| Padded::default()).collect();
        let (log, background) = Default::default();
        Arc::new(PostOffice { mailboxes, log, background })
    }

    fn mailbox(&self, of: ReactorId) -> &Mailbox {
        &self.mailboxes[usize::from(of.0)].0
    }

    /// The waker of one reactor.
    pub fn reactor_waker(&self, of: ReactorId) -> Arc<ReactorWaker> {
        self.mailbox(of).reactor_waker.clone()
    }

    /// Takes all messages out of a mailbox into `mail`, which must be empty.
    pub fn collect(&self, of: ReactorId, mail: &mut Vec<Mail>) {
        debug_assert!(mail.is_empty());
        std::mem::swap(mail, &mut *self.mailbox(of).mail.lock());
    }

    /// True if a mailbox is empty.
    pub fn is_empty(&self, of: ReactorId) -> bool {
        self.mailbox(of).mail.lock().is_empty()
    }
}

impl Post for PostOffice {
    fn post(&self, to: ReactorId, mail: Mail) {
        let mailbox = self.mailbox(to);
        let first = {
            let mut queue = mailbox.mail.lock();
            queue.push(mail);
            queue.len() == 1
        };
        if first {
            mailbox.reactor_waker.wake();
        }
    }

    fn reactors(&self) -> u16 {
        u16::try_from(self.mailboxes.len()).expect("made from a u16")
    }

    fn log(&self) -> &LogLimit {
        &self.log
    }

    fn background(&self) -> &Throttle {
        &self.background
    }

    fn unix_time(&self) -> Duration {
        // A system clock before 1970 was never set; count it as 1970.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}
