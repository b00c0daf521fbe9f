//! [`now`]: the clock of the guard (F2 in the module above).
//!
//! The time of an `Env` is the start of the reactor's turn, on a clock that a suspended host stops:
//! a process that is stopped in the middle of a turn, or a host that slept, would see itself in
//! time. This one is read at each look, which takes about 25 ns, and counts the sleep.

use cairn_block::Time;
use rustix::time::{ClockId, clock_gettime};

/// The time since the host has started, with all of its sleep.
pub(super) fn now() -> Time {
    let time = clock_gettime(ClockId::Boottime);
    Time(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_clock_goes_on_within_a_turn() {
        let begin = now();
        std::thread::sleep(Duration::from_millis(20));
        assert!(now().since(begin) >= Duration::from_millis(20));
    }
}
