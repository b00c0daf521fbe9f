//! Restraint: what bypasses the cache while clients flush often (R16).
//!
//! A write around the cache is volatile on the backing device when it is answered, so the next
//! flush of any client has to flush that device. Beside a database on the same volume that would
//! put a flush of a slow device into each of its commits. So while flushes come often, a write in
//! mode writeback that would go around the cache
//!
//! 1. is *held* if the queue is deep: it goes around, and is answered when it is durable. A flush
//!    that the volume makes by itself covers all writes that have ended; it begins when none is in
//!    flight any more, after [`SHARED`] at the latest. No flush of a client waits for it.
//! 2. Otherwise it becomes dirty data, if the cache is below `cutoff_writeback` and has taken less
//!    than [`PART`] of its size in this way in this minute: a short burst is quick, and a stream
//!    does not displace what the cache has.
//! 3. Otherwise it is held as well.
//!
//! A write with FUA is durable by itself, and in other modes each write owes a flush anyway.

use std::time::Duration;

use cairn_block::Time;
use cairn_block::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Flushes come often if there were so many in this second or the one before.
const OFTEN: u64 = 10;
/// So many writes around the cache, in flight or held, are a deep queue.
pub(in super::super) const DEEP: usize = 4;
/// After this time a shared flush begins although writes are in flight.
pub(in super::super) const SHARED: Duration = Duration::from_millis(100);
/// The part of the cache that takes restrained writes, in each minute.
const PART: u64 = 100;

const SECOND: u64 = 1_000_000_000;

/// See the module's description. Reactors that count at the same moment may lose some counts.
#[derive(Default)]
pub(in super::super) struct Restraint {
    /// The second of the last flush, and how many flushes there were in it and in the one before.
    second: AtomicU64,
    flushes: AtomicU64,
    before: AtomicU64,
    /// The minute of the last write that was cached, and how many sectors were in it.
    minute: AtomicU64,
    cached: AtomicU64,
}

impl Restraint {
    /// A client asked for a flush, or for a write that is durable.
    #[inline]
    pub fn flushed(&self, now: Time) {
        let (second, last) = (now.0 / SECOND, self.second.load(Relaxed));
        if second != last {
            let flushes = if second == last + 1 { self.flushes.load(Relaxed) } else { 0 };
            self.before.store(flushes, Relaxed);
            self.flushes.store(0, Relaxed);
            self.second.store(second, Relaxed);
        }
        self.flushes.store(self.flushes.load(Relaxed) + 1, Relaxed);
    }

    /// True if flushes come often.
    pub fn is_on(&self, now: Time) -> bool {
        let flushes = self.flushes.load(Relaxed);
        match (now.0 / SECOND).saturating_sub(self.second.load(Relaxed)) {
            0 => flushes.max(self.before.load(Relaxed)) >= OFTEN,
            1 => flushes >= OFTEN,
            _ => false,
        }
    }

    /// True if a cache of this size takes so many sectors more in this minute; it has taken them
    /// then.
    pub fn takes(&self, now: Time, sectors: u64, cache_sectors: u64) -> bool {
        let minute = now.0 / (60 * SECOND);
        if self.minute.swap(minute, Relaxed) != minute {
            self.cached.store(0, Relaxed);
        }
        let cached = self.cached.load(Relaxed) + sectors;
        let takes = cached <= cache_sectors / PART;
        if takes {
            self.cached.store(cached, Relaxed);
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_come_often_in_the_second_of_many_and_the_next() {
        let restraint = Restraint::default();
        let at = |tenths: u64| Time(tenths * SECOND / 10);
        (0..9).for_each(|tenth| restraint.flushed(at(50 + tenth)));
        assert!(!restraint.is_on(at(59)), "nine");
        restraint.flushed(at(59));
        assert!(restraint.is_on(at(59)) && restraint.is_on(at(69)) && !restraint.is_on(at(70)));
        restraint.flushed(at(61));
        assert!(restraint.is_on(at(62)) && !restraint.is_on(at(71)));
    }

    #[test]
    fn a_hundredth_of_the_cache_is_taken_in_a_minute() {
        let restraint = Restraint::default();
        let at = |seconds: u64| Time(seconds * SECOND);
        assert!(restraint.takes(at(61), 60, 10_000) && restraint.takes(at(70), 40, 10_000));
        assert!(!restraint.takes(at(119), 1, 10_000) && restraint.takes(at(120), 100, 10_000));
    }
}
