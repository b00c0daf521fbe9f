//! Known ordering bugs, planted on demand: the crash campaign must catch each of them.
//!
//! They are planted in builds with the feature `canary` only, which no program uses.

#[cfg(feature = "canary")]
use std::cell::Cell;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Keys become clean before the backing device was flushed (the kernel's order).
    CleanBeforeFlush,
    /// Data is copied to the backing device whose key may not be durable.
    CopyBeforeCommit,
    /// A write goes around the cache over dirty data, behind a hole (H2).
    HoleOverDirty,
    /// A write goes around the cache where the device may have a clean key.
    GhostsForgotten,
    /// Data enters the cache as clean that the backing device may lose (H3).
    FillBeforeFlush,
    /// Data enters the cache that a write from above has replaced since.
    FillOverWrite,
    /// A bucket that clients emptied is reused before a checkpoint has ended (R6).
    ReuseBeforeCheckpoint,
    /// The head of a bset is written without waiting for its tail.
    HeadBeforeTail,
    /// A parent leads to a node that may not be durable, and the journal to such a root.
    ParentBeforeChild,
    /// The journal forgets entries whose keys may not be in leaves durably.
    JournalBeforeLeaves,
    /// A bucket with clean data is reused before the holes in its place are durable.
    ReuseBeforeDurable,
    /// The journal names priorities before they are durable.
    EntryBeforePriorities,
    /// The backing device is called clean before its last keys are.
    CleanStateFirst,
    /// The ring is freed of a part of what a session found before the part is in leaves.
    PartBeforeLeaves,
    /// An attach has the superblock name the set before the array has the device (E2).
    SuperblockBeforeArray,
    /// A forced run serves requests before its state is on the device (P2).
    ForcedBeforeStale,
    /// A detach takes the volume out of the array before the superblock names no set.
    ArrayBeforeSuperblock,
}

#[cfg(feature = "canary")]
thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants a bug in every cache on this thread, or none.
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
