//! Known ordering bugs, planted on demand: the crash campaign must catch each of them.
//!
//! They are planted in builds with the feature `canary` only, which no released program has.

use crate::canary::plants_bugs;

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

plants_bugs!(pub, feature = "canary");
