//! Known ordering bugs, planted on demand: the crash campaign must catch each of them.
//!
//! They are planted in builds with the feature `canary` only, which no released program has.

use crate::canary::plants_bugs;

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

plants_bugs!(pub, feature = "canary");
