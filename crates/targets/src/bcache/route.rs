//! Where a write goes: a pure function of what is known when it is mapped.
//!
//! The order of the rules is the kernel's (section 8.3 of the format's description), but for dirty
//! data (R9): what overlaps dirty data goes into the cache as dirty data, at any pressure, since the
//! backing device may not get newer data while an older copy is to be written there.

use cairn_format::bcache::CacheMode;

/// Above this much of the cache in use, in percent, writes go around it.
const CUTOFF_AROUND: u64 = 95;
/// Above this much, writes go through it: the kernel's `cutoff_writeback_sync`.
const CUTOFF_SYNC: u64 = 70;

/// What the cache has of the sectors of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlap {
    /// Nothing, durably.
    None,
    /// Clean data, or keys to it on the device alone.
    Clean,
    /// Some dirty data.
    Dirty,
}

/// What is known of a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs {
    pub mode: CacheMode,
    pub overlap: Overlap,
    /// How much of the cache is dirty data or metadata, in percent.
    pub in_use: u64,
}

/// Where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Into the cache, as dirty data.
    Cache,
    /// To the backing device.
    Around,
    /// To the backing device, once holes are durable where the cache has clean data.
    Ordered,
}

/// See the module's description.
pub(super) fn route(inputs: &Inputs) -> Route {
    let is_full = inputs.in_use > CUTOFF_AROUND;
    let writes_back = inputs.mode == CacheMode::Writeback && inputs.in_use <= CUTOFF_SYNC;
    match inputs.overlap {
        Overlap::Dirty => Route::Cache,
        _ if writes_back && !is_full => Route::Cache,
        Overlap::Clean => Route::Ordered,
        Overlap::None => Route::Around,
    }
}

#[cfg(test)]
mod tests {
    use super::{CacheMode, Inputs, Overlap, Route, route};

    #[test]
    fn writes_go_where_mode_pressure_and_the_cache_say() {
        use CacheMode::{None as Off, Writearound, Writeback, Writethrough};
        for (mode, overlap, in_use, expected) in [
            (Writeback, Overlap::None, 70, Route::Cache),
            (Writeback, Overlap::None, 71, Route::Around),
            (Writeback, Overlap::Clean, 70, Route::Cache),
            (Writeback, Overlap::Clean, 71, Route::Ordered),
            (Writeback, Overlap::Dirty, 100, Route::Cache),
            (Writethrough, Overlap::None, 0, Route::Around),
            (Writethrough, Overlap::Clean, 0, Route::Ordered),
            (Writethrough, Overlap::Dirty, 0, Route::Cache),
            (Writearound, Overlap::None, 0, Route::Around),
            (Writearound, Overlap::Clean, 0, Route::Ordered),
            (Writearound, Overlap::Dirty, 96, Route::Cache),
            (Off, Overlap::None, 0, Route::Around),
            (Off, Overlap::Clean, 0, Route::Ordered),
            (Off, Overlap::Dirty, 0, Route::Cache),
        ] {
            let found = route(&Inputs { mode, overlap, in_use });
            assert_eq!(found, expected, "{mode:?} {overlap:?} {in_use}");
        }
    }
}
