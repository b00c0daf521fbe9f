//! [`LogLimit`]: keeps repeated events from filling the log.
//!
//! Each event has a key, a text that names the object and what happened ("slow.img: write failed").
//! The first event of a key is logged at once. Later ones are counted, and reported in one line a
//! minute while they continue. A key is dropped after a minute without events.
//!
//! Counts that no further event reports are logged by [`LogLimit::flush`], which the owner of a
//! world calls from time to time. The caller passes the time. May be called from any thread, but
//! never on the ready path.

use std::collections::HashMap;
use std::time::Duration;

use crate::sync::Mutex;
use crate::units::Time;

/// How long events are counted before the next line.
pub const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Keys are forgotten beyond this number, so that what clients choose cannot fill the memory.
const KEYS_MAX: usize = 1024;

/// Since when events of a key are counted, and how many there were.
struct Counted {
    since: Time,
    events: u64,
}

/// See the module's description.
#[derive(Default)]
pub struct LogLimit {
    keys: Mutex<HashMap<String, Counted>>,
}

impl LogLimit {
    /// Logs a warning about an event, `line` with its details, unless it is only counted.
    pub fn warn(&self, now: Time, key: &str, line: impl FnOnce() -> String) {
        match self.admit(now, key) {
            None => {}
            Some(0) => tracing::warn!("{}", line()),
            Some(events) => tracing::warn!("{} (and {events} times before)", line()),
        }
    }

    /// Counts an event. Answers how many were counted before it, if it is to be logged.
    fn admit(&self, now: Time, key: &str) -> Option<u64> {
        let mut keys = self.keys.lock();
        if let Some(counted) = keys.get_mut(key) {
            if now.since(counted.since) < LOG_INTERVAL {
                counted.events += 1;
                return None;
            }
            let events = std::mem::take(&mut counted.events);
            counted.since = now;
            return Some(events);
        }
        if keys.len() == KEYS_MAX {
            keys.clear();
        }
        keys.insert(key.to_owned(), Counted { since: now, events: 0 });
        Some(0)
    }

    /// How many events of a key were counted since its last line; none if it is not known.
    pub fn counted(&self, key: &str) -> Option<u64> {
        self.keys.lock().get(key).map(|counted| counted.events)
    }

    /// Logs what was counted for a minute.
    pub fn flush(&self, now: Time) {
        for (key, events) in self.due(now) {
            tracing::warn!("{key}: {events} more times");
        }
    }

    fn due(&self, now: Time) -> Vec<(String, u64)> {
        let mut due = Vec::new();
        self.keys.lock().retain(|key, counted| {
            if now.since(counted.since) < LOG_INTERVAL {
                return true;
            }
            counted.since = now;
            let events = std::mem::take(&mut counted.events);
            if events > 0 {
                due.push((key.clone(), events));
            }
            events > 0
        });
        due.sort();
        due
    }
}

#[cfg(test)]
mod tests {
    use super::{KEYS_MAX, LogLimit, Time};

    fn second(second: u64) -> Time {
        Time(second * 1_000_000_000)
    }

    #[test]
    fn the_first_event_is_logged_and_then_one_a_minute_with_the_count() {
        let limit = LogLimit::default();
        assert_eq!(limit.admit(second(0), "a"), Some(0));
        for at in 1..60 {
            assert_eq!(limit.admit(second(at), "a"), None);
        }
        assert_eq!(limit.admit(second(60), "a"), Some(59));
        assert_eq!(limit.admit(second(61), "a"), None);
    }

    #[test]
    fn keys_are_limited_one_by_one() {
        let limit = LogLimit::default();
        assert_eq!(limit.admit(second(0), "a"), Some(0));
        assert_eq!(limit.admit(second(1), "b"), Some(0));
        assert_eq!(limit.admit(second(2), "a"), None);
    }

    #[test]
    fn counts_of_events_that_stopped_are_logged_once_and_the_key_is_forgotten() {
        let limit = LogLimit::default();
        for at in 0..4 {
            limit.admit(second(at), "a");
        }
        assert_eq!(limit.due(second(59)), []);
        assert_eq!(limit.due(second(60)), [("a".to_owned(), 3)]);
        assert_eq!(limit.admit(second(70), "a"), None, "still in the minute of that line");
        assert_eq!(limit.due(second(120)), [("a".to_owned(), 1)]);
        assert_eq!(limit.due(second(180)), []);
        assert_eq!(limit.admit(second(181), "a"), Some(0), "it was forgotten");
    }

    #[test]
    fn arbitrary_keys_take_bounded_memory() {
        let limit = LogLimit::default();
        for number in 0..3 * KEYS_MAX {
            limit.admit(second(0), &number.to_string());
        }
        assert!(limit.keys.lock().len() <= KEYS_MAX);
    }
}
