//! Known ordering bugs, planted on demand: the crash campaign must catch each of them.
//!
//! They are planted in builds with the feature `canary` only, which no program uses.

#[cfg(feature = "canary")]
use std::cell::Cell;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A record is written before its data is durable (breaks I1).
    RecordBeforeData,
    /// The origin is overwritten before the record is durable (breaks I1).
    OriginBeforeRecord,
    /// An area becomes full before the next one is zeroed (breaks I2).
    FullBeforeZeroed,
    /// Merged records are cleared before the origin is durable (breaks I5).
    ClearBeforeOriginFlush,
}

#[cfg(feature = "canary")]
thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug in every snapshot on this thread, or none.
#[cfg(feature = "canary")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

#[cfg(feature = "canary")]
pub(super) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(feature = "canary"))]
pub(super) const fn planted(_: Bug) -> bool {
    false
}
