//! Known ordering bugs, planted on demand: the crash campaign must detect each of them.
//!
//! They are planted in builds with the feature `canary` only, which no released program has.

use crate::canary::plants_bugs;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A commit does not flush the data device first (breaks T1).
    NoDataFlush,
    /// Data blocks are taken again while requests that found them are under way (breaks T3).
    NoQuarantine,
    /// A partly written block is mapped before the rest of it is filled (breaks T4).
    MapBeforeFill,
    /// A shared block is written where it lies (breaks T5).
    WriteShared,
    /// A FUA write of zeros that needs nothing completes at once, although what made the block a
    /// hole is not durable (breaks T6).
    ElideWithoutCommit,
    /// A commit seals the crash log after it froze: records of changes that it does not make
    /// durable go with it (breaks A2 of `acknowledged`).
    SealLate,
}

plants_bugs!(pub, feature = "canary");
