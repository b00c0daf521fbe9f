//! When the numbered invariants of a shared state are checked: in builds with debug assertions, and
//! in builds with the feature `canary`, which are those of the crash campaigns and mutants.
//!
//! A shared state has a `check_state()` that asserts its invariants and cites their numbers. It is
//! called through this file: at entries of the state one time in [`EVERY`], at suspends always, and
//! in a crash campaign at every entry. The released program checks nothing here.

use std::cell::Cell;

/// One entry in so many is checked.
const EVERY: u32 = 64;

/// This build checks.
const CHECKS: bool = cfg!(any(debug_assertions, feature = "canary"));

thread_local! {
    /// Entries of this thread since the last check.
    static ENTRIES: Cell<u32> = const { Cell::new(0) };
    static EVERY_ENTRY: Cell<bool> = const { Cell::new(false) };
}

/// At an entry of a shared state: runs `check` one time in [`EVERY`].
#[inline(always)]
pub fn sample(check: impl FnOnce()) {
    if CHECKS && is_due() {
        check();
    }
}

/// At a suspend, or where a check costs no more than the step before it: runs `check`.
#[inline(always)]
pub fn always(check: impl FnOnce()) {
    if CHECKS {
        check();
    }
}

/// From now on this thread checks at every entry: a campaign runs.
pub fn check_every_entry() {
    EVERY_ENTRY.set(true);
}

fn is_due() -> bool {
    let entries = ENTRIES.get() + 1;
    let due = entries >= EVERY || EVERY_ENTRY.get();
    ENTRIES.set(if due { 0 } else { entries });
    due
}

#[cfg(test)]
mod tests {
    use super::{EVERY, check_every_entry, sample};

    #[test]
    fn one_entry_in_sixty_four_is_checked_and_every_one_in_a_campaign() {
        let checks = |entries: u32| {
            let mut checks = 0;
            (0..entries).for_each(|_| sample(|| checks += 1));
            checks
        };
        assert_eq!((checks(EVERY - 1), checks(1), checks(3 * EVERY)), (0, 1, 3));
        check_every_entry();
        assert_eq!(checks(5), 5);
    }
}
