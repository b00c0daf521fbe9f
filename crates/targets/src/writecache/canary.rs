//! Known ordering bugs, planted on demand: the crash campaign must catch each of them.
//!
//! Only in builds with the feature `canary`, which no program uses.

use std::cell::Cell;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The superblock's new seq is written before entries and data are durable (breaks I1, I2).
    SuperblockBeforeFlush,
    /// Entries are freed before the origin's data is durable (breaks I4).
    FreeBeforeOriginFlush,
    /// Slots are reused before their `seq = -1` is durable (breaks I3).
    ReuseBeforeDurable,
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug in every cache on this thread, or none.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

pub(super) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
