//! Where a write goes: a pure function of what is known when it is mapped.
//!
//! The order of the rules is the kernel's (section 8.3 of the format's description), but for dirty
//! data (R9): what overlaps dirty data goes into the cache as dirty data, at any pressure, since
//! the backing device may not get newer data while an older copy is to be written there. While the
//! backing device is about to leave its set, the older copy is written there first.

use cairn_format::bcache::CacheMode;

/// Above this much of the cache in use, in percent, reads and writes bypass it.
const CUTOFF_AROUND: u64 = 95;

/// Above so much of the cache in use, in percent, a write in mode writeback goes through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cutoffs {
    /// The attribute `cutoff_writeback`: of a write that is not synchronous.
    pub plain: u64,
    /// The attribute `cutoff_writeback_sync`: of every write.
    pub sync: u64,
}

impl Default for Cutoffs {
    fn default() -> Cutoffs {
        Cutoffs { plain: 40, sync: 70 }
    }
}

/// What the cache has of the sectors of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overlap {
    /// Nothing, durably.
    None,
    /// Clean data that leaves: holes are on their way into the journal.
    Leaving,
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
    pub cutoffs: Cutoffs,
    /// Its client waits for it: it has FUA, or is metadata.
    pub is_sync: bool,
    /// It is part of a long stream, or the cache device is congested.
    pub skips: bool,
    /// A stripe that it touches has dirty data, and parts of stripes are expensive.
    pub joins_stripe: bool,
    /// It is a large write-zeroes.
    pub is_large_zeroes: bool,
    /// The volume is all in the cache.
    pub is_flash: bool,
    /// Nothing may become dirty: the backing device is about to leave its set (R9), or the map of
    /// dirty zones cannot be written (Y5).
    pub never_dirty: bool,
}

impl Inputs {
    /// True if the write bypasses the cache where it may.
    pub fn bypasses(&self) -> bool {
        let is_around = self.mode == CacheMode::Writearound || self.is_large_zeroes;
        is_around || bypasses(self.mode, self.in_use, self.skips || self.never_dirty)
    }

    /// True if the write becomes dirty data where the cache has none.
    pub fn writes_back(&self) -> bool {
        let Cutoffs { plain, sync } = self.cutoffs;
        let never = self.is_large_zeroes || self.never_dirty;
        if self.mode != CacheMode::Writeback || self.in_use > sync || never {
            return false;
        }
        let is_below = self.is_sync || self.in_use <= plain;
        self.joins_stripe || is_below && !self.bypasses()
    }
}

/// True if a read bypasses the cache: it may be answered by it, and enters none of its data.
/// `skips` as for a write.
pub(super) fn bypasses(mode: CacheMode, in_use: u64, skips: bool) -> bool {
    mode == CacheMode::None || in_use > CUTOFF_AROUND || skips
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
    /// Nowhere yet: a task zeroes the backing device, and makes holes over dirty data after that.
    Zero,
    /// Nowhere yet: holes of other writes are on their way.
    Wait,
    /// Nowhere yet: the dirty data is written back first, and is clean, durably.
    Ahead,
}

/// See the module's description.
pub(super) fn route(inputs: &Inputs) -> Route {
    match inputs.overlap {
        _ if inputs.is_flash => Route::Cache,
        Overlap::Dirty if inputs.never_dirty => Route::Ahead,
        Overlap::Dirty if inputs.is_large_zeroes => Route::Zero,
        Overlap::Dirty => Route::Cache,
        _ if inputs.writes_back() => Route::Cache,
        Overlap::Clean => Route::Ordered,
        Overlap::Leaving => Route::Wait,
        Overlap::None => Route::Around,
    }
}

#[cfg(test)]
mod tests {
    use super::{CacheMode, Cutoffs, Inputs, Overlap, Route, bypasses, route};

    /// A write in mode writeback that the cache has nothing of.
    const PLAIN: Inputs = Inputs {
        mode: CacheMode::Writeback,
        overlap: Overlap::None,
        in_use: 0,
        cutoffs: Cutoffs { plain: 40, sync: 70 },
        is_sync: false,
        skips: false,
        joins_stripe: false,
        is_large_zeroes: false,
        is_flash: false,
        never_dirty: false,
    };

    #[test]
    fn writes_go_where_mode_pressure_and_the_cache_say() {
        use CacheMode::{None as Off, Writearound, Writeback, Writethrough};
        for (mode, overlap, in_use, expected) in [
            (Writeback, Overlap::None, 70, Route::Cache),
            (Writeback, Overlap::None, 71, Route::Around),
            (Writeback, Overlap::Clean, 70, Route::Cache),
            (Writeback, Overlap::Clean, 71, Route::Ordered),
            (Writeback, Overlap::Leaving, 70, Route::Cache),
            (Writeback, Overlap::Leaving, 71, Route::Wait),
            (Writethrough, Overlap::Leaving, 0, Route::Wait),
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
            let inputs = Inputs { mode, overlap, in_use, is_sync: true, ..PLAIN };
            assert_eq!(route(&inputs), expected, "{inputs:?}");
        }
    }

    #[test]
    fn writes_that_are_not_synchronous_have_a_lower_cutoff() {
        let of = |plain, sync| Cutoffs { plain, sync };
        for (cutoffs, in_use, is_sync, expected) in [
            (Cutoffs::default(), 40, false, Route::Cache),
            (Cutoffs::default(), 41, false, Route::Around),
            (Cutoffs::default(), 41, true, Route::Cache),
            (Cutoffs::default(), 70, true, Route::Cache),
            (Cutoffs::default(), 71, true, Route::Around),
            (of(0, 90), 0, false, Route::Cache),
            (of(0, 90), 1, false, Route::Around),
            (of(0, 90), 90, true, Route::Cache),
            (of(70, 90), 70, false, Route::Cache),
            // The cutoff of synchronous writes counts for all.
            (of(70, 30), 31, false, Route::Around),
            (of(70, 30), 31, true, Route::Around),
        ] {
            let inputs = Inputs { cutoffs, in_use, is_sync, ..PLAIN };
            assert_eq!(route(&inputs), expected, "{inputs:?}");
        }
    }

    #[test]
    fn writes_that_bypass_the_cache_go_around_it_but_for_dirty_data() {
        use CacheMode::{Writeback, Writethrough};
        for (mode, overlap, expected) in [
            (Writeback, Overlap::None, Route::Around),
            (Writeback, Overlap::Clean, Route::Ordered),
            (Writeback, Overlap::Dirty, Route::Cache),
            (Writethrough, Overlap::None, Route::Around),
            (Writethrough, Overlap::Dirty, Route::Cache),
        ] {
            let inputs = Inputs { mode, overlap, skips: true, ..PLAIN };
            assert_eq!(route(&inputs), expected, "{inputs:?}");
        }
    }

    #[test]
    fn writes_to_a_stripe_with_dirty_data_join_it_below_the_cutoff_of_all_writes() {
        use CacheMode::{Writeback, Writethrough};
        for (mode, in_use, expected) in [
            (Writeback, 70, Route::Cache),
            (Writeback, 71, Route::Around),
            (Writethrough, 0, Route::Around),
        ] {
            let inputs = Inputs { mode, in_use, skips: true, joins_stripe: true, ..PLAIN };
            assert_eq!(route(&inputs), expected, "{inputs:?}");
        }
    }

    #[test]
    fn large_write_zeroes_enter_the_cache_in_no_mode() {
        use CacheMode::{Writeback, Writethrough};
        for (overlap, expected) in [
            (Overlap::None, Route::Around),
            (Overlap::Clean, Route::Ordered),
            (Overlap::Leaving, Route::Wait),
            (Overlap::Dirty, Route::Zero),
        ] {
            for mode in [Writeback, Writethrough] {
                let (is_large_zeroes, joins_stripe, is_sync) = (true, true, true);
                let inputs =
                    Inputs { mode, overlap, is_large_zeroes, joins_stripe, is_sync, ..PLAIN };
                assert_eq!(route(&inputs), expected, "{inputs:?}");
            }
        }
    }

    #[test]
    fn requests_bypass_the_cache_by_mode_pressure_and_stream() {
        use CacheMode::{None as Off, Writearound, Writeback, Writethrough};
        // The mode, in use, skips -> reads, writes.
        for (mode, in_use, skips, expected) in [
            (Writeback, 95, false, (false, false)),
            (Writeback, 96, false, (true, true)),
            (Writeback, 0, true, (true, true)),
            (Writethrough, 0, false, (false, false)),
            (Writethrough, 96, false, (true, true)),
            (Writearound, 0, false, (false, true)),
            (Writearound, 0, true, (true, true)),
            (Off, 0, false, (true, true)),
        ] {
            let inputs = Inputs { mode, in_use, skips, ..PLAIN };
            let found = (bypasses(mode, in_use, skips), inputs.bypasses());
            assert_eq!(found, expected, "{inputs:?}");
        }
    }

    #[test]
    fn volume_that_is_all_in_the_cache_has_no_way_around() {
        for (overlap, in_use) in [(Overlap::None, 71), (Overlap::Clean, 96), (Overlap::Dirty, 0)] {
            let inputs = Inputs { overlap, in_use, skips: true, is_flash: true, ..PLAIN };
            assert_eq!(route(&inputs), Route::Cache, "{inputs:?}");
        }
    }

    #[test]
    fn nothing_becomes_dirty_while_the_backing_device_is_about_to_leave() {
        use CacheMode::{Writeback, Writethrough};
        for mode in [Writeback, Writethrough] {
            for (overlap, expected) in [
                (Overlap::None, Route::Around),
                (Overlap::Leaving, Route::Wait),
                (Overlap::Clean, Route::Ordered),
                (Overlap::Dirty, Route::Ahead),
            ] {
                let inputs = Inputs {
                    mode,
                    overlap,
                    is_sync: true,
                    never_dirty: true,
                    joins_stripe: true,
                    ..PLAIN
                };
                assert_eq!((route(&inputs), inputs.bypasses()), (expected, true), "{inputs:?}");
            }
        }
    }
}
