//! Known ordering bugs, planted on demand: the crash campaign must catch each of them.
//!
//! They are planted in builds with the feature `canary` only, which no released program has.

#[cfg(feature = "canary")]
use std::cell::Cell;

use crate::canary::plants_bugs;

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

#[cfg(feature = "canary")]
thread_local! {
    static SWEPT_BEYOND: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Has every cache on this thread sweep drains of more than so many bytes, or of those of programs.
#[cfg(feature = "canary")]
pub fn sweep_beyond(bytes: Option<u64>) {
    SWEPT_BEYOND.set(bytes);
}

#[cfg(feature = "canary")]
pub(super) fn swept_beyond() -> Option<u64> {
    SWEPT_BEYOND.get()
}

#[cfg(not(feature = "canary"))]
pub(super) const fn swept_beyond() -> Option<u64> {
    None
}

plants_bugs!(pub, feature = "canary");
