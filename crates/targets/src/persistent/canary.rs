//! Known ordering bugs, planted by the tests: the power-cut tests must detect each of them.

use crate::canary::plants_bugs;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// The superblock is written before the blocks that it leads to are durable.
    SuperblockBeforeFlush,
    /// Blocks freed by a transaction are allocated again before its commit (breaks T2).
    ReuseBeforeCommit,
    /// An unshared node is changed where it lies (breaks T1).
    ChangeInPlace,
    /// A reader trusts the nodes of its walk although the state has changed (breaks R1).
    ReadOnce,
}

plants_bugs!(pub(super), test);
