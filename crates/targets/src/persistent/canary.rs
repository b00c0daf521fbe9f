//! Known ordering bugs, planted by the tests: the power-cut tests must detect each of them.

#[cfg(test)]
use std::cell::Cell;

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

#[cfg(test)]
thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug in every store on this thread, or none.
#[cfg(test)]
pub(super) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

#[cfg(test)]
pub(super) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(test))]
pub(super) const fn planted(_: Bug) -> bool {
    false
}
