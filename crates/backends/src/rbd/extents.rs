//! Which parts of an image are data, for block status: those that its objects have, or its
//! parent's.
//!
//! E1. A part that is told as a hole reads as zeros: neither the image nor its parent has it.
//!     librbd asks the OSDs for each object, after the writes before have ended. The object map
//!     would be faster, and may be stale for a client that does not have the lock.
//! E2. What is not known is data: an image that is being migrated, or a call that has failed.
//!
//! An answer is for [`SPAN`] at most: the call asks for each object, of 4 MiB if its maker has not
//! chosen otherwise.

use std::ffi::{c_int, c_void};
use std::ptr::null;
use std::sync::Arc;

use cairn_block::{
    Env, Extent, ExtentKind, IoError, Op, SECTOR_BYTES, Sector, SectorCount, SectorRange,
};

use super::image::{Image, value};
use super::within::beside;
use super::{Shared, clock};

/// 256 objects.
const SPAN: SectorCount = SectorCount::of_bytes(1 << 30);

/// The feature bit of an image that is being migrated.
const MIGRATING: u64 = 1 << 10;

/// A run of bytes that is there, as librbd tells it.
type Run = (u64, u64);

impl Shared {
    pub(super) async fn extents(
        self: &Arc<Self>,
        env: &Env,
        range: SectorRange,
    ) -> Result<Vec<Extent>, IoError> {
        self.ready(env).await?;
        let range = SectorRange::new(range.start, range.count.min(SPAN));
        let (started, shared) = (clock::now(), self.clone());
        self.flight.begin(started);
        let found = beside(move || shared.image().data_in(range)).wait().await;
        self.flight.end(1);
        let all = vec![Extent { count: range.count, kind: ExtentKind::Data }];
        match found.unwrap_or(Err(-libc::EAGAIN)) {
            Ok(runs) => Ok(runs.map_or(all, |runs| extents_of(range, &runs))),
            Err(errno) => {
                let result = self.judge(env, (Op::Read, range.start), started, Err(-errno));
                // E2. A fence is told.
                if self.is_fenced() { result.map(|()| all) } else { Ok(all) }
            }
        }
    }
}

impl Image {
    /// The runs of bytes in a range that are data, in order; none if that is not known.
    fn data_in(&self, range: SectorRange) -> Result<Option<Vec<Run>>, i32> {
        if self.has_feature(MIGRATING)? {
            return Ok(None);
        }
        let mut runs = Vec::<Run>::new();
        // Since the beginning, with the parent, by the OSDs.
        let (since, with_parent, by_map) = (null(), 1, 0);
        // SAFETY: the image is live, and the call has ended with `runs` before it returns.
        let result = unsafe {
            let (start, bytes) = (range.start.to_bytes(), range.to_bytes());
            let (image, told) = (self.handle(), (&raw mut runs).cast());
            (self.library().diff)(image, since, start, bytes, with_parent, by_map, note, told)
        };
        value(result).map(|_| Some(runs))
    }
}

/// Called for each run, in order. `told` is the list.
unsafe extern "C" fn note(start: u64, bytes: usize, exists: c_int, told: *mut c_void) -> c_int {
    if exists != 0 {
        // SAFETY: `data_in` gave this list, which nothing else uses until the call returns.
        unsafe { (*told.cast::<Vec<Run>>()).push((start, bytes as u64)) };
    }
    0
}

/// A range as extents: the sectors that the runs touch are data, all others are holes.
fn extents_of(range: SectorRange, runs: &[Run]) -> Vec<Extent> {
    let (mut extents, mut at) = (Vec::<Extent>::new(), range.start);
    let mut add_until = |end: Sector, kind: ExtentKind| {
        let count = end.min(range.end()).0.saturating_sub(at.0);
        at += SectorCount(count);
        match extents.last_mut() {
            _ if count == 0 => {}
            Some(last) if last.kind == kind => last.count += SectorCount(count),
            _ => extents.push(Extent { count: SectorCount(count), kind }),
        }
    };
    for (start, bytes) in runs {
        add_until(Sector(start / SECTOR_BYTES), ExtentKind::Hole);
        add_until(Sector((start + bytes).div_ceil(SECTOR_BYTES)), ExtentKind::Data);
    }
    add_until(range.end(), ExtentKind::Hole);
    extents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_run_touches_is_a_hole() {
        let range = SectorRange::new(Sector(10), SectorCount(20));
        let found = |runs: &[Run]| {
            let one = |extent: Extent| (extent.count.0, extent.kind == ExtentKind::Data);
            extents_of(range, runs).into_iter().map(one).collect::<Vec<_>>()
        };
        assert_eq!(found(&[]), [(20, false)]);
        assert_eq!(found(&[(0, 1 << 20)]), [(20, true)]);
        assert_eq!(found(&[(12 * 512 + 1, 510)]), [(2, false), (1, true), (17, false)]);
        assert_eq!(found(&[(12 * 512 + 511, 2)]), [(2, false), (2, true), (16, false)]);
        let two = [(10 * 512, 512), (11 * 512, 100), (29 * 512, 4096)];
        assert_eq!(found(&two), [(2, true), (17, false), (1, true)]);
    }
}
