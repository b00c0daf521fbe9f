//! Which paths requests and tasks have taken: a long crash campaign fails if it never took one of
//! them, as a path that no campaign takes is not proved by it.
//!
//! Paths are counted in builds with the feature `canary` only, which no released program has.

#[cfg(feature = "canary")]
use std::cell::RefCell;

use cairn_format::bcache::CacheMode;

use super::route::{Inputs, Overlap, Route};

macro_rules! paths {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A path.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(not(feature = "canary"), allow(dead_code, reason = "nothing is counted"))]
        pub enum Path { $($(#[$doc])* $name,)* }

        #[cfg(feature = "canary")]
        impl Path {
            /// All of them.
            pub const ALL: &[Path] = &[$(Path::$name,)*];
        }
    };
}

paths! {
    /// A read finds its data in the cache.
    Hit,
    /// A read goes to the backing device.
    Miss,
    /// A write goes into the cache.
    Insert,
    /// A write does so only since the cache has dirty data there.
    InsertOverDirty,
    /// A write goes to the backing device.
    Around,
    /// A write does so once a hole is durable.
    Ordered,
    /// A write does so once the hole of another write is durable.
    AfterHole,
    /// A write does so as the cache is in use beyond `cutoff_writeback`.
    BeyondCutoff,
    /// The same with `cutoff_writeback_sync`.
    BeyondCutoffSync,
    /// A request bypasses the cache as a part of a long stream.
    Sequential,
    /// A request bypasses the cache as that is congested.
    Congested,
    /// A task zeroes the backing device in place of a large write-zeroes over dirty data.
    ZeroDirty,
    /// A write waits until what is dirty beneath it is written back.
    Ahead,
    /// A write waits until the map of dirty zones names its zones.
    MarkZone,
    /// A write that would go around the cache goes into it, as clients flush often.
    Restrained,
    /// A write around the cache is held until a flush has made it durable.
    HeldWrite,
    /// A write goes in place over dirty data.
    InPlace,
    /// A write waits for a bucket.
    NoBucket,
    /// A write waits for room in the crash log.
    FullLog,
    /// A suspend hands back a write that waits, or would wait, for a bucket.
    HandBack,
    /// What a read missed enters the cache.
    FillOfRead,
    /// What a write sent through enters the cache.
    FillOfWrite,
    /// It does not, as a write came between.
    FillDropped,
    /// A discard drops dirty data.
    DiscardDirty,
    /// Buckets with clean data become free.
    Evict,
    /// They do so in a plan that lacks buckets.
    EmptyBuckets,
    /// A commit waits for room in the ring.
    FullRing,
    /// A checkpoint runs again to make room in the ring.
    CheckpointAgain,
    /// A leaf is replaced by several.
    Split,
    /// The tree gets a root above others.
    Grow,
    /// Buckets with dirty data are packed into others.
    Move,
    /// An extent of them changes while it is copied.
    MoveLost,
    /// A leaf leaves memory.
    LeafLeaves,
    /// A request waits until a leaf is read.
    WaitForLeaf,
    /// A task lacks leaves after its first read: the trim marks none until it has all of them.
    GatherLeaves,
    /// A task looks at the extents of an absent leaf.
    ScanAbsent,
    /// Nodes of the tree become fewer.
    Coalesce,
    /// A group enters the journal without FUA: the flush of the next one makes it durable.
    SharedFlush,
    /// A batch leaves extents out that share sectors.
    LeaveOut,
    /// A batch of the background writeback at its pace.
    PacedBatch,
    /// A batch as buckets are short.
    UrgentBatch,
    /// A batch of the policy `completion`.
    Completion,
    /// A batch of the policy `strict`.
    Strict,
    /// A batch of the policy `sorted`.
    Sorted,
    /// A batch of the policy `sweep`.
    Sweep,
    /// The state of a backing device becomes dirty.
    CallDirty,
    /// It becomes clean.
    CallClean,
    /// A volume is suspended while others serve the set.
    LeaveShared,
    /// The flush of a batch fails.
    BatchFailed,
    /// Acknowledged writes to the backing device are lost.
    LoseTraffic,
    /// The set cannot be written any more.
    Broken,
}

#[cfg(feature = "canary")]
#[derive(Default)]
struct Taken {
    paths: Vec<Path>,
    switches: Vec<(CacheMode, CacheMode)>,
}

#[cfg(feature = "canary")]
thread_local! {
    static TAKEN: RefCell<Taken> = RefCell::default();
}

/// The paths that no cache on this thread has taken.
#[cfg(feature = "canary")]
pub fn never_taken() -> Vec<Path> {
    TAKEN.with_borrow(|taken| {
        Path::ALL.iter().filter(|path| !taken.paths.contains(path)).copied().collect()
    })
}

/// How many different switches of the mode there were on this thread, of all pairs.
#[cfg(feature = "canary")]
pub fn switches() -> usize {
    TAKEN.with_borrow(|taken| taken.switches.len())
}

/// A path is taken.
#[inline(always)]
pub(super) fn take(path: Path) {
    #[cfg(feature = "canary")]
    TAKEN.with_borrow_mut(|taken| {
        if !taken.paths.contains(&path) {
            taken.paths.push(path);
        }
    });
    let _ = path;
}

/// The mode of a volume changes.
pub(super) fn take_switch(from: CacheMode, to: CacheMode) {
    #[cfg(feature = "canary")]
    TAKEN.with_borrow_mut(|taken| {
        if from != to && !taken.switches.contains(&(from, to)) {
            taken.switches.push((from, to));
        }
    });
    let _ = (from, to);
}

/// A write is routed.
#[inline(always)]
pub(super) fn take_route(inputs: &Inputs, route: Route) {
    if !cfg!(feature = "canary") {
        return;
    }
    let is_bare = inputs.mode == CacheMode::Writeback && inputs.overlap != Overlap::Dirty;
    let cutoffs = inputs.cutoffs;
    match route {
        Route::Cache if inputs.is_flash => {}
        Route::Cache => take(match inputs.overlap == Overlap::Dirty && !inputs.writes_back() {
            true => Path::InsertOverDirty,
            false => Path::Insert,
        }),
        _ if is_bare && !inputs.bypasses() && inputs.in_use > cutoffs.sync => {
            take(Path::BeyondCutoffSync);
        }
        _ if is_bare && !inputs.bypasses() && inputs.in_use > cutoffs.plain => {
            take(Path::BeyondCutoff);
        }
        Route::Around => take(Path::Around),
        Route::Ordered => take(Path::Ordered),
        Route::Wait => take(Path::AfterHole),
        Route::Zero => take(Path::ZeroDirty),
        Route::Ahead => take(Path::Ahead),
    }
}
