//! Units of length and position: sectors, ranges of sectors, time.
//!
//! Owns every conversion between sectors and bytes. A position ([`Sector`]) and a length
//! ([`SectorCount`]) are different types, so that arithmetic between them that has no meaning
//! does not compile. A range is half-open: `start..start + count`.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

/// Bytes in a sector: always 512, independent of a device's own block size.
pub const SECTOR_BYTES: u64 = 512;
const SECTOR_SHIFT: u32 = 9;

/// A position on a disk, in sectors of 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

/// A length in sectors of 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectorCount(pub u64);

impl Sector {
    /// The byte at which this sector begins.
    pub const fn to_bytes(self) -> u64 {
        self.0 << SECTOR_SHIFT
    }

    /// The sector that holds byte `offset`.
    pub const fn of_byte(offset: u64) -> Sector {
        Sector(offset >> SECTOR_SHIFT)
    }
}

impl SectorCount {
    /// No sectors.
    pub const ZERO: SectorCount = SectorCount(0);

    /// The length in bytes.
    pub const fn to_bytes(self) -> u64 {
        self.0 << SECTOR_SHIFT
    }

    /// The number of whole sectors in `bytes`.
    pub const fn of_bytes(bytes: u64) -> SectorCount {
        SectorCount(bytes >> SECTOR_SHIFT)
    }
}

impl Add<SectorCount> for Sector {
    type Output = Sector;
    #[inline]
    fn add(self, count: SectorCount) -> Sector {
        Sector(self.0 + count.0)
    }
}

impl AddAssign<SectorCount> for Sector {
    #[inline]
    fn add_assign(&mut self, count: SectorCount) {
        self.0 += count.0;
    }
}

impl Sub<Sector> for Sector {
    type Output = SectorCount;
    #[inline]
    fn sub(self, earlier: Sector) -> SectorCount {
        SectorCount(self.0 - earlier.0)
    }
}

impl Add for SectorCount {
    type Output = SectorCount;
    #[inline]
    fn add(self, other: SectorCount) -> SectorCount {
        SectorCount(self.0 + other.0)
    }
}

impl AddAssign for SectorCount {
    #[inline]
    fn add_assign(&mut self, other: SectorCount) {
        self.0 += other.0;
    }
}

impl Sub for SectorCount {
    type Output = SectorCount;
    #[inline]
    fn sub(self, other: SectorCount) -> SectorCount {
        SectorCount(self.0 - other.0)
    }
}

impl SubAssign for SectorCount {
    #[inline]
    fn sub_assign(&mut self, other: SectorCount) {
        self.0 -= other.0;
    }
}

impl fmt::Display for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SectorCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A contiguous run of sectors, half-open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SectorRange {
    /// The first sector.
    pub start: Sector,
    /// How many sectors.
    pub count: SectorCount,
}

impl SectorRange {
    /// The range of `count` sectors from `start`.
    pub const fn new(start: Sector, count: SectorCount) -> SectorRange {
        SectorRange { start, count }
    }

    /// The range `start..end`; `end` must not lie before `start`.
    pub fn between(start: Sector, end: Sector) -> SectorRange {
        SectorRange { start, count: end - start }
    }

    /// The first sector after the range.
    pub fn end(self) -> Sector {
        self.start + self.count
    }

    /// The length in bytes.
    pub const fn to_bytes(self) -> u64 {
        self.count.to_bytes()
    }

    /// True if no sector lies in the range.
    pub const fn is_empty(self) -> bool {
        self.count.0 == 0
    }

    /// True if some sector lies in both ranges.
    pub fn overlaps(self, other: SectorRange) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// True if `sector` lies in the range.
    pub fn contains(self, sector: Sector) -> bool {
        self.start <= sector && sector < self.end()
    }

    /// The sectors in both ranges, if any.
    pub fn intersect(self, other: SectorRange) -> Option<SectorRange> {
        let (start, end) = (self.start.max(other.start), self.end().min(other.end()));
        (start < end).then(|| SectorRange::between(start, end))
    }

    /// True if the range ends at or before `size`, without wrapping.
    pub fn fits_in(self, size: SectorCount) -> bool {
        self.start.0.checked_add(self.count.0).is_some_and(|end| end <= size.0)
    }

    /// True if both ends are multiples of `block` sectors.
    pub fn is_aligned(self, block: SectorCount) -> bool {
        self.start.0.is_multiple_of(block.0) && self.count.0.is_multiple_of(block.0)
    }

    /// The smallest range of whole `block`s that covers this one.
    pub fn widen(self, block: SectorCount) -> SectorRange {
        let start = Sector(self.start.0 - self.start.0 % block.0);
        let end = Sector(self.end().0.next_multiple_of(block.0));
        SectorRange::between(start, end)
    }
}

impl fmt::Display for SectorRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.start, self.count)
    }
}

/// A moment, in nanoseconds since the world (real or simulated) began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The time that has passed since `earlier`; zero if `earlier` lies ahead.
    #[inline]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    #[inline]
    fn add(self, duration: Duration) -> Time {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Time(self.0.saturating_add(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, count: u64) -> SectorRange {
        SectorRange::new(Sector(start), SectorCount(count))
    }

    #[test]
    fn ranges_that_only_touch_do_not_overlap() {
        assert!(!range(0, 8).overlaps(range(8, 8)));
        assert!(range(0, 9).overlaps(range(8, 8)));
        assert_eq!(range(0, 9).intersect(range(8, 8)), Some(range(8, 1)));
        assert_eq!(range(0, 8).intersect(range(8, 8)), None);
    }

    #[test]
    fn a_range_that_wraps_fits_nowhere() {
        assert!(!range(u64::MAX, 2).fits_in(SectorCount(u64::MAX)));
        assert!(range(6, 2).fits_in(SectorCount(8)));
        assert!(!range(7, 2).fits_in(SectorCount(8)));
    }

    #[test]
    fn widening_covers_whole_blocks() {
        assert_eq!(range(3, 2).widen(SectorCount(8)), range(0, 8));
        assert_eq!(range(7, 2).widen(SectorCount(8)), range(0, 16));
        assert_eq!(range(8, 8).widen(SectorCount(8)), range(8, 8));
    }
}
