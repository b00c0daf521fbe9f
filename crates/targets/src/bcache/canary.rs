//! Known ordering bugs, planted on demand: the crash campaign must catch each of them.
//!
//! They are planted in builds with the feature `canary` only, which no released program has.

#[cfg(feature = "canary")]
use std::cell::Cell;

use crate::canary::plants_bugs;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Keys become clean before the backing device was flushed (the kernel's order).
    CleanBeforeFlush,
    /// Data is copied to the backing device whose key may not be durable.
    CopyBeforeCommit,
    /// A flush of a client does not reach the backing device (the deferred-flush patches, v0).
    FlushSwallowed,
    /// One bit says that the backing device is to be flushed; it is cleared as a flush begins (v1,
    /// v2).
    OneBitFlag,
    /// After a failed flush the backing device is flushed again, and nothing is written again (R2).
    FlushedAgain,
    /// Data is copied to the backing device while a client writes there (R7).
    CopyOverWrite,
    /// Dirty data comes before the backing device is called dirty (R11).
    DataBeforeState,
    /// Opening does not flush what a killed server left volatile (R12).
    NoFlushAtOpening,
    /// A write goes around the cache over dirty data, behind a hole (R9).
    HoleOverDirty,
    /// A write goes around the cache where the device may have a clean key.
    GhostsForgotten,
    /// Keys whose data completed after a flush began count as covered by it (O1).
    GroupClosedLate,
    /// An entry of a group names what a session has written since the group's flush began (J4).
    GroupNamesEarly,
    /// A waiter is answered when its entry is written, before the flush that covers it (O3).
    AnsweredBeforeFlush,
    /// An entry is written although the one before it is not durable (O2): what that frees in the
    /// ring is overwritten.
    EntryBehindVolatile,
    /// A write with FUA goes in place where the key may not be durable (V1).
    OverwriteVolatile,
    /// A batch copies an extent while a write in place is in flight, and makes it clean (V3).
    CopyDuringOverwrite,
    /// A write in place is not counted, so no flush of a client covers it (V4).
    OverwriteUncounted,
    /// A held write is answered although no flush has covered it (A5).
    HeldBeforeFlush,
    /// Data enters the cache as clean that the backing device may lose (L2).
    FillBeforeFlush,
    /// Clean data counts that a kernel has cached since (T1).
    ForeignTrusted,
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
    /// Dirty data leaves the cache before the zeros that take its place are durable (R9).
    HoleBeforeZeros,
    /// A volume goes on without its failed cache before its superblock says so (R11).
    UncachedBeforeDetach,
    /// What the cache device could not read is read from the backing device, also if it is dirty.
    RetryOfDirty,
    /// An attach has the superblock name the set before the array has the device (M2).
    SuperblockBeforeArray,
    /// A forced run serves requests before its state is on the device (Q2).
    ForcedBeforeStale,
    /// Moving publishes a key before its copy has ended (R3).
    MoveBeforeCopy,
    /// The source of a move is reused before a checkpoint has ended (R6).
    SourceBeforeCheckpoint,
    /// A leaf leaves memory although the device lacks some of its changes (M1).
    DropUnwritten,
    /// A parent leads to a coalesced node that may not be durable.
    CoalescedBeforeDurable,
    /// Data becomes dirty before the map with its zone is durable (Y1).
    DirtyBeforeMark,
    /// A detach takes the volume out of the array before the superblock names no set.
    ArrayBeforeSuperblock,
    /// A volume joins or leaves its set while another one does (U4).
    NoHandover,
    /// A batch copies two extents that share sectors: the older one may end last.
    CopiesOverlap,
    /// A write has a record in the crash log before its data has ended (F1).
    RecordBeforeData,
    /// The records of a group are forgotten before its entry is written (F2).
    RecordsForgottenEarly,
}

#[cfg(feature = "canary")]
thread_local! {
    static PIECE: Cell<Option<usize>> = const { Cell::new(None) };
    static MEMORY: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Has every cache on this thread work in pieces of so many units, or in those of programs.
#[cfg(feature = "canary")]
pub fn work_in_pieces(units: Option<usize>) {
    PIECE.set(units);
}

#[cfg(feature = "canary")]
pub(super) fn piece() -> Option<usize> {
    PIECE.get()
}

#[cfg(not(feature = "canary"))]
pub(super) const fn piece() -> Option<usize> {
    None
}

/// Has every cache on this thread keep so many bytes of extents in memory, or as many as
/// `btree_cache_size` says.
#[cfg(feature = "canary")]
pub fn keep_in_memory(bytes: Option<u64>) {
    MEMORY.set(bytes);
}

#[cfg(feature = "canary")]
pub(super) fn memory() -> Option<u64> {
    MEMORY.get()
}

#[cfg(not(feature = "canary"))]
pub(super) const fn memory() -> Option<u64> {
    None
}

plants_bugs!(pub, feature = "canary");
