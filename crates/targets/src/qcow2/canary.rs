//! Known ordering bugs, planted on demand: the crash campaign must catch each of them.
//!
//! They are planted in builds with the feature `canary` only, which no released program has.

use crate::canary::plants_bugs;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Entries are written before what they name is durable (breaks I3).
    EntriesBeforeData,
    /// A flush does not commit (breaks I6).
    FlushWithoutCommit,
    /// A cluster is released when its entry changes in memory (breaks I4).
    ReleaseAtOnce,
    /// A write that covers a part of a cluster counts as all of it (breaks I2).
    PartForWhole,
    /// Entries stay after a failure that may have lost what they name (breaks I7).
    TrustAfterFailure,
    /// Entries of answered writes are not recorded (breaks I8).
    NoRecord,
}

plants_bugs!(pub, feature = "canary");
