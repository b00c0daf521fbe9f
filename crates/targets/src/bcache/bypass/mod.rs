//! Bypass: which requests do not enter the cache, since they are part of a long sequential stream,
//! or since the cache device is congested.
//!
//! `restraint` decides how such writes are answered while clients flush often.
//!
//! The other reasons to bypass the cache (its mode, how full it is) are in `route`.

mod congestion;
mod restraint;
mod sequential;

use std::time::Duration;

use cairn_block::sync::atomic::{AtomicU64, Ordering::Relaxed};
use cairn_block::{Env, Flags, Request, SECTOR_BYTES, Sector, SectorRange};

use super::coverage::{self, Path};
use super::route::Cutoffs;
use sequential::Sequential;

pub(super) use congestion::{Congestion, Direction};
pub(super) use restraint::{DEEP, Restraint, SHARED};

/// The default of the attribute `sequential_cutoff`, in bytes.
const SEQUENTIAL_CUTOFF: u64 = 4 << 20;

/// The default of `write_zeroes_cutoff`, in bytes: as long as the longest fill, and as the longest
/// write of a batch.
pub(super) const WRITE_ZEROES_CUTOFF: u64 = 1 << 20;
/// The words of `readahead_cache_policy`.
const READAHEAD: [&str; 2] = ["all", "meta-only"];

/// See the module's description.
pub(super) struct Bypass {
    /// The attribute, in bytes: 0 turns it off.
    pub sequential_cutoff: AtomicU64,
    /// The attributes of these names, in percent.
    pub cutoff_writeback: AtomicU64,
    pub cutoff_writeback_sync: AtomicU64,
    /// The attribute `write_zeroes_cutoff`, in bytes: 0 turns it off.
    pub write_zeroes_cutoff: AtomicU64,
    /// The attribute `readahead_cache_policy` is `meta-only`.
    pub caches_meta_only: AtomicU64,
    /// Of the cache device.
    pub congestion: Congestion,
    pub restraint: Restraint,
    sequential: Sequential,
}

impl Bypass {
    /// For a volume that this many reactors serve.
    pub fn new(reactors: u16) -> Bypass {
        let Cutoffs { plain, sync } = Cutoffs::default();
        Bypass {
            sequential_cutoff: AtomicU64::new(SEQUENTIAL_CUTOFF),
            cutoff_writeback: AtomicU64::new(plain),
            cutoff_writeback_sync: AtomicU64::new(sync),
            write_zeroes_cutoff: AtomicU64::new(WRITE_ZEROES_CUTOFF),
            caches_meta_only: AtomicU64::new(0),
            congestion: Congestion::default(),
            restraint: Restraint::default(),
            sequential: Sequential::new(reactors),
        }
    }

    /// Counts a read or write, which begins at this sector of the backing device. Answers
    /// whether it bypasses the cache. It is called whenever a request or a part of it is mapped,
    /// also if the cache has what it reads.
    #[inline]
    pub fn skips(&self, env: &Env, request: &Request, from: Sector) -> bool {
        if request.flags.contains(Flags::BACKGROUND) && self.is_unwanted(request.flags) {
            return true;
        }
        let cutoff = self.sequential_cutoff.load(Relaxed);
        let limit = self.congestion.limit(env.now(), || env.random_below(1 << 32) as u32);
        if cutoff == 0 && limit.is_none() {
            return false;
        }
        let range = SectorRange::new(from, request.range.count);
        let (started, stream) = (request.started(), request.stream());
        let bytes = self.sequential.count(env.reactor(), started, stream, range);
        is_long(bytes / SECTOR_BYTES, cutoff, limit)
    }

    /// True if a request with the flag `BACKGROUND` does not enter the cache.
    fn is_unwanted(&self, flags: Flags) -> bool {
        self.caches_meta_only.load(Relaxed) != 0 && !flags.contains(Flags::META)
    }

    /// The word of `readahead_cache_policy`.
    pub fn readahead_word(&self) -> &'static str {
        READAHEAD[self.caches_meta_only.load(Relaxed) as usize]
    }

    /// Sets `readahead_cache_policy`. False if it has no such word.
    pub fn set_readahead(&self, word: &str) -> bool {
        let at = READAHEAD.iter().position(|own| *own == word);
        at.inspect(|at| self.caches_meta_only.store(*at as u64, Relaxed)).is_some()
    }

    /// How much of the cache may be in use for a write to become dirty data.
    pub fn cutoffs(&self) -> Cutoffs {
        Cutoffs {
            plain: self.cutoff_writeback.load(Relaxed),
            sync: self.cutoff_writeback_sync.load(Relaxed),
        }
    }

    /// A request of the cache device has ended; it took this long.
    #[inline]
    pub fn ended(&self, env: &Env, direction: Direction, took: Duration) {
        self.congestion.ended(env.now(), direction, took);
    }
}

/// True if so many sectors in a row bypass the cache. `cutoff` is in bytes, 0 for none; `limit` is
/// that of a congested device, in sectors.
fn is_long(sectors: u64, cutoff: u64, limit: Option<u64>) -> bool {
    let is_stream = cutoff > 0 && sectors >= cutoff / SECTOR_BYTES;
    let is_congested = limit.is_some_and(|limit| sectors >= limit);
    if is_stream {
        coverage::take(Path::Sequential);
    } else if is_congested {
        coverage::take(Path::Congested);
    }
    is_stream || is_congested
}

#[cfg(test)]
mod tests {
    use super::is_long;

    #[test]
    fn cutoff_and_limit_of_a_congested_device_are_included() {
        for (sectors, cutoff, limit, expected) in [
            (8191, 4 << 20, None, false),
            (8192, 4 << 20, None, true),
            (u64::MAX, 0, None, false),
            (7, 4 << 20, Some(8), false),
            (8, 4 << 20, Some(8), true),
            (8, 4096, Some(9), true),
            (8, 0, Some(8), true),
            (8, 4607, None, true),
            (8, 4608, None, false),
        ] {
            assert_eq!(is_long(sectors, cutoff, limit), expected, "{sectors} {cutoff} {limit:?}");
        }
    }
}
