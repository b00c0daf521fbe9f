//! The sizes of a cache: blocks, buckets, nodes, and the structures that fill a bucket.
//!
//! Promises that all sizes are legal, and that every bucket lies within [`Geometry::sectors`].
//! Readers take the size of nodes and of the array of uuids from their keys; the size of a
//! prio_set can only be computed.

use std::ops::Range;

use super::Error;

/// Bytes of a sector, the unit of all positions.
pub const SECTOR_BYTES: usize = 512;
/// The most sectors that a device can have: its bytes are a signed number of 64 bits.
pub const SECTORS_MAX: u64 = 1 << 54;
/// Sectors of a page of the machines that the format knows.
const PAGE_SECTORS: u64 = 8;
/// The most pages of a prio_set or the array of uuids: what x86-64 allocates at once.
const META_PAGES_MAX: u64 = 1024;
/// Pages of a node, beyond which it takes only a quarter of its bucket.
const NODE_PAGES: u64 = 64;

/// The sizes of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    block_sectors: u32,
    bucket_sectors: u64,
    buckets: u64,
    first_bucket: u64,
}

impl Geometry {
    /// Sizes as a superblock has them.
    ///
    /// # Errors
    /// They are not legal.
    pub fn new(
        block_sectors: u32,
        bucket_sectors: u64,
        buckets: u64,
        first_bucket: u64,
    ) -> Result<Geometry, Error> {
        let wrong = |field, found, expected| Err(Error::Field { field, found, expected });
        if !bucket_sectors.is_power_of_two() || bucket_sectors < PAGE_SECTORS {
            return wrong("bucket_size", bucket_sectors, "a power of two from 8 sectors on");
        }
        if bucket_sectors > 1 << 31 {
            return wrong("bucket_size", bucket_sectors, "at most 2^31 sectors");
        }
        if first_bucket.saturating_mul(bucket_sectors) < 16 || first_bucket >= buckets {
            return wrong("first_bucket", first_bucket, "a bucket behind the superblock");
        }
        // A pointer has 43 bits for its sector.
        if buckets.checked_mul(bucket_sectors).is_none_or(|sectors| sectors > 1 << 43) {
            return wrong("nbuckets", buckets, "at most 2^43 sectors in all");
        }
        Ok(Geometry { block_sectors, bucket_sectors, buckets, first_bucket })
    }

    /// Sectors of a block: what nodes and the journal are padded to.
    #[must_use]
    pub fn block_sectors(&self) -> u32 {
        self.block_sectors
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.block_sectors as usize * SECTOR_BYTES
    }

    /// Sectors of a bucket: what is allocated at once.
    #[must_use]
    pub fn bucket_sectors(&self) -> u64 {
        self.bucket_sectors
    }

    /// How many buckets there are, those before the first usable one included.
    #[must_use]
    pub fn buckets(&self) -> u64 {
        self.buckets
    }

    /// The buckets that may be used.
    #[must_use]
    pub fn usable(&self) -> Range<u64> {
        self.first_bucket..self.buckets
    }

    /// Sectors of the device that the buckets take.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.buckets * self.bucket_sectors
    }

    /// # Errors
    /// The device is too small.
    pub fn fits(&self, device_sectors: u64) -> Result<(), Error> {
        let expected = self.sectors();
        let error = Error::DeviceSize { found: device_sectors, expected };
        (expected <= device_sectors).then_some(()).ok_or(error)
    }

    /// The bucket that a sector is in.
    #[must_use]
    pub fn bucket_of(&self, sector: u64) -> u64 {
        sector / self.bucket_sectors
    }

    /// The first sector of a bucket.
    #[must_use]
    pub fn sector_of(&self, bucket: u64) -> u64 {
        bucket * self.bucket_sectors
    }

    /// True if `sectors` from `sector` on lie in one bucket that may be used.
    #[must_use]
    pub fn holds(&self, sector: u64, sectors: u64) -> bool {
        self.usable().contains(&self.bucket_of(sector))
            && sector % self.bucket_sectors + sectors <= self.bucket_sectors
    }

    /// Bytes of a prio_set, and of the array of uuids.
    #[must_use]
    pub fn meta_bytes(&self) -> usize {
        self.meta_sectors() as usize * SECTOR_BYTES
    }

    /// The same in sectors.
    #[must_use]
    pub fn meta_sectors(&self) -> u64 {
        (self.bucket_sectors / PAGE_SECTORS).min(META_PAGES_MAX) * PAGE_SECTORS
    }

    /// Sectors of a new node.
    #[must_use]
    pub fn node_sectors(&self) -> u64 {
        let pages = self.meta_sectors() / PAGE_SECTORS;
        let pages = if pages > NODE_PAGES { (pages / 4).max(NODE_PAGES) } else { pages };
        pages * PAGE_SECTORS
    }

    /// How many buckets a prio_set covers.
    #[must_use]
    pub fn priorities_per_set(&self) -> usize {
        (self.meta_bytes() - super::priorities::HEADER_BYTES) / super::priorities::RECORD_BYTES
    }

    /// How many prio_sets there are.
    #[must_use]
    pub fn priority_sets(&self) -> u64 {
        self.buckets.div_ceil(self.priorities_per_set() as u64)
    }

    /// How many volumes there may be.
    #[must_use]
    pub fn uuids(&self) -> usize {
        self.meta_bytes() / super::uuids::ENTRY_BYTES
    }

    /// How many journal buckets a fresh cache gets.
    #[must_use]
    pub fn journal_buckets(&self) -> u16 {
        (self.buckets >> 7).clamp(2, super::JOURNAL_BUCKETS_MAX as u64) as u16
    }

    /// `bytes` rounded up to whole blocks.
    #[must_use]
    pub fn padded(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.block_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::Geometry;

    #[test]
    fn sizes_are_those_that_a_kernel_was_seen_to_use() {
        let kib = |bucket: u64| Geometry::new(1, bucket * 2, 1024, 16).expect("legal");
        for (bucket, node) in [(16, 16), (64, 64), (256, 256), (512, 256), (1024, 256), (2048, 512)]
        {
            assert_eq!(kib(bucket).node_sectors(), node * 2, "{bucket} KiB");
        }
        assert_eq!(kib(16).meta_bytes(), 16 << 10);
        assert_eq!(kib(64).meta_bytes(), 64 << 10);
        assert_eq!(kib(8192).meta_bytes(), 4 << 20);
        assert_eq!(kib(16).priorities_per_set(), (16 * 1024 - 40) / 3);
    }

    #[test]
    fn sizes_that_are_not_legal_are_refused() {
        assert!(Geometry::new(1, 48, 1024, 16).is_err());
        assert!(Geometry::new(1, 4, 1024, 16).is_err());
        assert!(Geometry::new(1, 8, 1024, 1).is_err(), "the superblock lies there");
        assert!(Geometry::new(1, 128, 1024, 1024).is_err());
        assert!(Geometry::new(8, 1 << 31, 1 << 20, 1).is_err());
        let legal = Geometry::new(1, 128, 1024, 1).expect("legal");
        assert!(legal.fits(128 * 1024).is_ok() && legal.fits(128 * 1024 - 1).is_err());
    }
}
