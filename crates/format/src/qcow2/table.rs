//! The entries of both tables: where they lie, and what they say.
//!
//! Promises that a [`Run`] is not empty, ends within its cluster, and begins in the image. Reserved
//! bits are ignored, as qemu does.

use super::{Error, Header};

pub(super) const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
pub(super) const COMPRESSED: u64 = 1 << 62;
pub(super) const ZERO: u64 = 1;
/// The refcount of what the entry names is 1.
pub(super) const COPIED: u64 = 1 << 63;
/// Bits that a program leaves clear, in entries that name whole clusters. Readers ignore them.
pub(super) const RESERVED_LOW: u64 = 0x1ff;
pub(super) const RESERVED_HIGH: u64 = 0x3f << 56;
pub(super) const COMPRESSED_SECTOR: u64 = 512;
const SUBCLUSTERS: u64 = 32;

/// Where content is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Not in this image: in its backing image, or zeros without one.
    Nowhere,
    /// It is zeros.
    Zeros,
    /// At this byte of the image.
    Data(u64),
    /// In a compressed cluster.
    Compressed {
        /// Where that begins in the image.
        start: u64,
        /// How long it is at most.
        bytes: u64,
        /// Which byte of the cluster it is.
        skip: u64,
    },
}

/// Content from a guest offset on, within one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Where it is.
    pub place: Place,
    /// How much of it.
    pub bytes: u64,
}

impl Header {
    /// Bytes of content that one entry of the L1 table stands for.
    #[must_use]
    pub fn l1_span(&self) -> u64 {
        self.cluster_bytes() * (self.cluster_bytes() / self.l2_entry_bytes())
    }

    /// Bytes of an entry of an L2 table: 8 or 16.
    #[must_use]
    pub fn l2_entry_bytes(&self) -> u64 {
        if self.is_extended { 16 } else { 8 }
    }

    /// Where the entry of the L1 table for `guest` lies, which is below the size. It is 8 bytes.
    #[must_use]
    pub fn l1_entry_at(&self, guest: u64) -> u64 {
        self.l1_table + guest / self.l1_span() * 8
    }

    /// The L2 table that an entry of the L1 table names, if it names one.
    ///
    /// # Errors
    /// No table can be there.
    pub fn l2_table(&self, guest: u64, entry: u64) -> Result<Option<u64>, Error> {
        let bad = |expected| Error::BadEntry { table: "L1", guest, found: entry, expected };
        let table = entry & OFFSET;
        if !table.is_multiple_of(self.cluster_bytes()) {
            return Err(bad("expected a multiple of the cluster size"));
        }
        // It is below 2^56.
        if table + self.cluster_bytes() > self.image_bytes && table != 0 {
            return Err(bad("beyond the image's end: the image is truncated"));
        }
        Ok(Some(table).filter(|table| *table != 0))
    }

    /// Where the entry for `guest` of the L2 table at `table` lies.
    #[must_use]
    pub fn l2_entry_at(&self, table: u64, guest: u64) -> u64 {
        table + guest % self.l1_span() / self.cluster_bytes() * self.l2_entry_bytes()
    }

    /// What is at `guest` where the L1 table names no L2 table.
    #[must_use]
    pub fn without_table(&self, guest: u64) -> Run {
        Run { place: Place::Nowhere, bytes: self.l1_span() - guest % self.l1_span() }
    }

    /// What is at `guest`, by the entry of its L2 table. `bitmap` is the entry's second word, or 0.
    ///
    /// # Errors
    /// The entry makes no sense, or names a place beyond the image's end.
    pub fn run(&self, guest: u64, entry: u64, bitmap: u64) -> Result<Run, Error> {
        let bad = |expected| Error::BadEntry { table: "L2", guest, found: entry, expected };
        let in_cluster = guest % self.cluster_bytes();
        let left = self.cluster_bytes() - in_cluster;
        if entry & COMPRESSED != 0 {
            let place = self.compressed(entry, in_cluster);
            return match place {
                Place::Compressed { start, .. } if start >= self.image_bytes => {
                    Err(bad("beyond the image's end: the image is truncated"))
                }
                _ => Ok(Run { place, bytes: left }),
            };
        }
        let cluster = entry & OFFSET;
        if !cluster.is_multiple_of(self.cluster_bytes()) {
            return Err(bad("expected a multiple of the cluster size"));
        }
        let data = match cluster {
            0 => Place::Nowhere,
            _ => Place::Data(cluster + in_cluster),
        };
        let run = match (self.is_extended, entry & ZERO != 0) {
            (true, _) => match self.subclusters(in_cluster, data, bitmap) {
                Some(run) => run,
                None => return Err(bad("with a bitmap that contradicts itself or the entry")),
            },
            (false, true) if !self.is_version_3 => {
                return Err(bad("expected no zero flag in version 2"));
            }
            (false, true) => Run { place: Place::Zeros, bytes: left },
            (false, false) => Run { place: data, bytes: left },
        };
        // Only a last cluster may be cut short.
        match run.place {
            Place::Data(_) if cluster >= self.image_bytes => {
                Err(bad("beyond the image's end: the image is truncated"))
            }
            _ => Ok(run),
        }
    }

    pub(super) fn compressed(&self, entry: u64, skip: u64) -> Place {
        let offset_bits = 62 - (self.cluster_bits - 8);
        let start = entry & ((1 << offset_bits) - 1);
        // The sector in which it begins is not counted.
        let sectors = ((entry & (COMPRESSED - 1)) >> offset_bits) + 1;
        let bytes = sectors * COMPRESSED_SECTOR - start % COMPRESSED_SECTOR;
        Place::Compressed { start, bytes, skip }
    }

    /// The run of subclusters of one kind. The low half of the bitmap has those with data in this
    /// image, the high half those that are zeros.
    fn subclusters(&self, in_cluster: u64, data: Place, bitmap: u64) -> Option<Run> {
        let size = self.cluster_bytes() / SUBCLUSTERS;
        let kind =
            |index: u64| (bitmap >> index & 1 != 0, bitmap >> (index + SUBCLUSTERS) & 1 != 0);
        let first = in_cluster / size;
        let place = match kind(first) {
            (true, true) => return None,
            (true, false) if data == Place::Nowhere => return None,
            (true, false) => data,
            (false, true) => Place::Zeros,
            (false, false) => Place::Nowhere,
        };
        let same = (first..SUBCLUSTERS).take_while(|index| kind(*index) == kind(first)).count();
        Some(Run { place, bytes: (first + same as u64) * size - in_cluster })
    }
}
