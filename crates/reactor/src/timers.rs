//! Timers: wakers in order of time.

use std::collections::BTreeMap;
use std::task::Waker;

use cairn_block::Time;

/// The timers of one reactor. Timers of the same time fire in order of creation.
#[derive(Default)]
pub(crate) struct Timers {
    wakers: BTreeMap<(Time, u64), Waker>,
    next_key: u64,
}

impl Timers {
    pub fn insert(&mut self, at: Time, waker: Waker) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        self.wakers.insert((at, key), waker);
        key
    }

    pub fn cancel(&mut self, at: Time, key: u64) {
        self.wakers.remove(&(at, key));
    }

    pub fn next(&self) -> Option<Time> {
        self.wakers.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the wakers of the timers that are due.
    pub fn due(&mut self, now: Time) -> Vec<Waker> {
        if self.next().is_none_or(|next| next > now) {
            return Vec::new();
        }
        let later = self.wakers.split_off(&(now, u64::MAX));
        std::mem::replace(&mut self.wakers, later).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_come_due_in_order_and_once() {
        let mut timers = Timers::default();
        for at in [5, 3, 5, 9] {
            timers.insert(Time(at), Waker::noop().clone());
        }
        let key = timers.insert(Time(4), Waker::noop().clone());
        timers.cancel(Time(4), key);
        assert_eq!(timers.next(), Some(Time(3)));
        assert_eq!(timers.due(Time(2)).len(), 0);
        assert_eq!(timers.due(Time(5)).len(), 3);
        assert_eq!(timers.next(), Some(Time(9)));
    }
}
