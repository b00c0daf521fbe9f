//! The work meter: how much a task looks at before its reactor goes on.
//!
//! No task holds a reactor, or the lock of the set, for more than a millisecond of work. What takes
//! longer is done in pieces: under the lock for each piece, with [`cairn_block::yield_once`]
//! between two of them. A *unit* is a bucket or extent that is looked at, or a key that is encoded;
//! [`PIECE`] units are to take 0.3 ms at most. Campaigns have smaller pieces (`canary`), so that
//! the requests of clients come between them.
//!
//! Unit tests, and builds with debug assertions, count the units since the lock was taken last.
//! More than [`LIMIT`] are a panic: clocks are not reliable there, counts are. Other builds count
//! nothing. Not counted are the opening of a set, before it serves anything, and what is in
//! one leaf beyond a piece: a journal may have put it there that was found at the opening.

#[cfg(any(test, debug_assertions))]
use std::cell::Cell;

/// About how many units of work are done at once.
const PIECE: usize = 8192;

/// About how many units of work are done at once, 8 at least.
#[inline]
pub(super) fn piece() -> usize {
    super::canary::piece().unwrap_or(PIECE)
}

/// About how many extents change at once, which takes longer than looking at them.
#[inline]
pub(super) fn changes() -> usize {
    (piece() / 16).max(1)
}

/// More than this is a bug: a piece, and its last step, which may be a whole leaf.
#[cfg(any(test, debug_assertions))]
const LIMIT: usize = 3 * PIECE;

#[cfg(any(test, debug_assertions))]
thread_local! {
    static DONE: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

/// A piece of work begins.
#[inline]
pub(super) fn begin() {
    #[cfg(any(test, debug_assertions))]
    DONE.set(0);
}

/// So many units were done.
#[inline]
#[cfg_attr(
    not(any(test, debug_assertions)),
    expect(unused_variables, reason = "nothing is counted")
)]
pub(super) fn did(units: usize) {
    #[cfg(any(test, debug_assertions))]
    {
        let done = DONE.get() + units;
        DONE.set(done);
        MOST.set(MOST.get().max(done));
        assert!(done <= LIMIT, "{done} units of work at once, {LIMIT} are the most");
    }
}

/// The most units that a piece of this thread had since this was asked last.
#[cfg(test)]
pub(super) fn most() -> usize {
    MOST.replace(0)
}
