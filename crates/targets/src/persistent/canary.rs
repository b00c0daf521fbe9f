//! Known ordering bugs, planted by the tests: the power cuts must catch each of them.

#[cfg(test)]
use std::cell::Cell;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// The superblock is written before what it leads to is durable.
    SuperblockBeforeFlush,
    /// What a transaction lets go is allocated again before its commit (breaks T2).
    ReuseBeforeCommit,
    /// An unshared node is changed where it lies (breaks T1).
    ChangeInPlace,
    /// A reader trusts what it walked through, although the state has moved on (breaks R1).
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
