//! Known ordering bugs, planted on demand: the crash campaign must catch each of them.
//!
//! They are planted in builds with the feature `canary` only, which no program uses.

#[cfg(feature = "canary")]
use std::cell::Cell;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Bits are committed before the destination is durable (breaks I3).
    BitsBeforeData,
    /// A flush does not commit the bits (breaks I5).
    FlushWithoutCommit,
    /// A bit is set when a copy begins (breaks I1).
    BitBeforeCopy,
    /// A write that covers a part of a region counts as all of it (breaks I1).
    PartForWhole,
    /// Regions stay hydrated after a failure of the destination (breaks I6).
    TrustAfterFailure,
    /// Regions of answered writes are not recorded (breaks I4).
    NoRecord,
}

#[cfg(feature = "canary")]
thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug in every clone on this thread, or none.
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
