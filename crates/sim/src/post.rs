//! The mailboxes of a simulated world: every message has a seeded delay, or none in a world of
//! events.
//!
//! P1. Messages from one sender to one receiver arrive in their order; messages of different
//!     senders may overtake each other.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_block::{LogLimit, Mail, Post, ReactorId, Throttle, Time};
use parking_lot::Mutex;

/// What the simulated clock shows when the simulation starts, since 1970.
const START_OF_TIME: Duration = Duration::from_secs(1_767_225_600);
/// Longest delay of a usual message, in nanoseconds.
const DELAY_NS: u64 = 20_000;
/// One message in this many is slow: its delay is up to 20 times as long.
const SLOW_EVERY: u64 = 16;

struct Inner {
    now: Time,
    sender: u16,
    /// Messages arrive at once.
    is_prompt: bool,
    rng: fastrand::Rng,
    count: u64,
    /// Per receiver: mail by time of arrival.
    boxes: Vec<BTreeMap<(Time, u64), Mail>>,
    /// Per sender and receiver: when the last message arrives.
    last: BTreeMap<(u16, u16), Time>,
}

impl Inner {
    fn delay(&mut self) -> u64 {
        if self.is_prompt {
            return 0;
        }
        let slow = self.rng.u64(..SLOW_EVERY) == 0;
        self.rng.u64(..if slow { 20 * DELAY_NS } else { DELAY_NS })
    }
}

/// The mailboxes.
pub(crate) struct SimPost {
    reactors: u16,
    inner: Mutex<Inner>,
    log: LogLimit,
    background: Throttle,
}

impl SimPost {
    pub fn new(reactors: u16, seed: u64, is_prompt: bool) -> SimPost {
        let inner = Inner {
            now: Time::default(),
            sender: reactors,
            is_prompt,
            rng: fastrand::Rng::with_seed(seed),
            count: 0,
            boxes: (0..reactors).map(|_| BTreeMap::new()).collect(),
            last: BTreeMap::new(),
        };
        let (log, background) = Default::default();
        SimPost { reactors, inner: Mutex::new(inner), log, background }
    }

    /// Sets the time and the reactor whose turn it is; none: code outside the reactors.
    pub fn set_turn(&self, now: Time, reactor: Option<u16>) {
        let mut inner = self.inner.lock();
        inner.now = now;
        inner.sender = reactor.unwrap_or(self.reactors);
    }

    /// When the next message for `reactor` arrives.
    pub fn next_arrival(&self, reactor: u16) -> Option<Time> {
        let inner = self.inner.lock();
        inner.boxes[usize::from(reactor)].first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the messages that have arrived.
    pub fn collect(&self, reactor: u16, now: Time) -> Vec<Mail> {
        let mut inner = self.inner.lock();
        let mailbox = &mut inner.boxes[usize::from(reactor)];
        if mailbox.is_empty() {
            return Vec::new();
        }
        let later = mailbox.split_off(&(now, u64::MAX));
        std::mem::replace(mailbox, later).into_values().collect()
    }

    /// Drops all messages.
    pub fn clear(&self) {
        let boxes: Vec<_> = self.inner.lock().boxes.iter_mut().map(std::mem::take).collect();
        // Dropped after the lock was released: a job's drop may post again.
        drop(boxes);
    }
}

impl Post for SimPost {
    fn post(&self, to: ReactorId, mail: Mail) {
        let mut inner = self.inner.lock();
        let delay = inner.delay();
        let pair = (inner.sender, to.0);
        let last = inner.last.get(&pair).copied().unwrap_or_default();
        // P1: not before the one sent before; equal times are ordered by the count.
        let at = Time(inner.now.0 + delay).max(last);
        inner.last.insert(pair, at);
        inner.count += 1;
        let key = (at, inner.count);
        inner.boxes[usize::from(to.0)].insert(key, mail);
    }

    fn reactors(&self) -> u16 {
        self.reactors
    }

    fn log(&self) -> &LogLimit {
        &self.log
    }

    fn background(&self) -> &Throttle {
        &self.background
    }

    fn unix_time(&self) -> Duration {
        START_OF_TIME + Duration::from_nanos(self.inner.lock().now.0)
    }
}
