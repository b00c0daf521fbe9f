//! [`Layout`]: where an image keeps what a reader of its active state does not need.
//!
//! Promises that all of the L1 table and of the refcount table lies in the image, and that a check
//! has memory for each of the image's clusters.

use super::header::{bad, extension, raw, truncated};
use super::{Error, Header, L1_ENTRIES_MAX};

/// The longest refcount table, as qemu has it.
const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;
/// The most internal snapshots, as qemu has it.
const SNAPSHOTS_MAX: u32 = 65536;
/// Refcounts have at most 2^6 bits.
const REFCOUNT_ORDER_MAX: u32 = 6;
/// That of version 2, where it is not told.
const REFCOUNT_ORDER_V2: u32 = 4;
/// Most clusters of an image that is checked or written. A check has four bytes for each: 2 GiB.
pub const CLUSTERS_MAX: u64 = 1 << 29;

const EXTENSION_BITMAPS: u32 = 0x2385_2875;
const BITMAPS_BYTES: usize = 24;
/// The autoclear feature that says that the bitmaps are those of this content.
const BITMAPS_ARE_VALID: u64 = 1;
/// The longest directory of bitmaps, as qemu has it.
const DIRECTORY_BYTES_MAX: u64 = 64 << 20;

/// Where the bitmaps are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bitmaps {
    /// How many there are.
    pub count: u32,
    /// Where their directory begins.
    pub directory: u64,
    /// Its bytes.
    pub directory_bytes: u64,
}

/// See the module's description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Where the L1 table begins.
    pub l1_table: u64,
    /// Its entries: as many as the content needs, or more.
    pub l1_entries: u64,
    /// Where the refcount table begins.
    pub refcount_table: u64,
    /// Its clusters.
    pub refcount_table_clusters: u64,
    /// Bits of a refcount: 1 to 64, a power of 2.
    pub refcount_bits: u32,
    /// Where the table of internal snapshots begins.
    pub snapshots: u64,
    /// How many there are.
    pub snapshot_count: u32,
    /// The bitmaps, if a feature bit says that they are consistent. Others count for nothing.
    pub bitmaps: Option<Bitmaps>,
    /// Features that a program clears before it writes to the image, if it does not know them.
    pub autoclear: u64,
}

impl Layout {
    /// Reads it from the first cluster of the image with this header.
    ///
    /// # Errors
    /// It makes no sense, or the image is too large for a check.
    pub fn parse(bytes: &[u8], header: &Header) -> Result<Layout, Error> {
        let (raw, extensions) = raw(bytes, header.cluster_bytes())?;
        let order = match header.is_version_3 {
            true => raw.refcount_order.get(),
            false => REFCOUNT_ORDER_V2,
        };
        if order > REFCOUNT_ORDER_MAX {
            return Err(bad("refcount_order", order.into(), "0 to 6"));
        }
        if !extensions.is_multiple_of(8) {
            return Err(bad("header_length", extensions, "a multiple of 8"));
        }
        let clusters = header.clusters();
        if clusters > CLUSTERS_MAX {
            let (what, found, most) = ("clusters", clusters, CLUSTERS_MAX);
            return Err(Error::TooLarge { what, found, most });
        }
        let bitmaps = bitmaps(bytes, extensions..header.extensions_end.max(extensions))?;
        let are_valid = raw.autoclear_features.get() & BITMAPS_ARE_VALID != 0;
        let layout = Layout {
            l1_table: header.l1_table,
            l1_entries: raw.l1_size.get().into(),
            refcount_table: raw.refcount_table_offset.get(),
            refcount_table_clusters: raw.refcount_table_clusters.get().into(),
            refcount_bits: 1 << order,
            snapshots: raw.snapshots_offset.get(),
            snapshot_count: raw.nb_snapshots.get(),
            bitmaps: bitmaps.filter(|_| are_valid),
            autoclear: raw.autoclear_features.get(),
        };
        layout.check(header)?;
        Ok(layout)
    }

    fn check(&self, header: &Header) -> Result<(), Error> {
        let cluster_bytes = header.cluster_bytes();
        if self.l1_entries > L1_ENTRIES_MAX {
            let expected = format!("at most {L1_ENTRIES_MAX}");
            return Err(bad("l1_size", self.l1_entries, expected));
        }
        header.refuse_outside("L1 table", header.l1_table, self.l1_entries * 8)?;
        if self.refcount_table == 0 || !self.refcount_table.is_multiple_of(cluster_bytes) {
            let expected = "a multiple of the cluster size, above 0";
            return Err(bad("refcount_table_offset", self.refcount_table, expected));
        }
        let bytes = self.refcount_table_clusters * cluster_bytes;
        if bytes == 0 || bytes > REFCOUNT_TABLE_BYTES_MAX.max(cluster_bytes) {
            let expected = "1 to those of 8 MiB";
            return Err(bad("refcount_table_clusters", self.refcount_table_clusters, expected));
        }
        header.refuse_outside("refcount table", self.refcount_table, bytes)?;
        if self.snapshot_count > SNAPSHOTS_MAX {
            let expected = format!("at most {SNAPSHOTS_MAX}");
            return Err(bad("nb_snapshots", self.snapshot_count.into(), expected));
        }
        if !self.snapshots.is_multiple_of(cluster_bytes) {
            let expected = "a multiple of the cluster size";
            return Err(bad("snapshots_offset", self.snapshots, expected));
        }
        let Some(bitmaps) = self.bitmaps else { return Ok(()) };
        if bitmaps.count == 0 {
            return Err(bad("number of bitmaps", 0, "at least 1"));
        }
        if !bitmaps.directory.is_multiple_of(cluster_bytes) {
            let expected = "a multiple of the cluster size";
            return Err(bad("bitmaps' directory", bitmaps.directory, expected));
        }
        if bitmaps.directory_bytes > DIRECTORY_BYTES_MAX {
            let expected = format!("at most {DIRECTORY_BYTES_MAX}");
            return Err(bad("bytes of the bitmaps' directory", bitmaps.directory_bytes, expected));
        }
        header.refuse_outside("bitmaps' directory", bitmaps.directory, bitmaps.directory_bytes)
    }
}

impl Header {
    /// Clusters of the image itself; the last one may be cut short.
    #[must_use]
    pub fn clusters(&self) -> u64 {
        self.image_bytes.div_ceil(self.cluster_bytes())
    }

    /// Refuses a structure that is not in the image.
    pub(super) fn refuse_outside(
        &self,
        field: &'static str,
        start: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        match start.checked_add(bytes) {
            Some(end) if end <= self.image_bytes => Ok(()),
            end => Err(truncated(field, self.image_bytes, end.unwrap_or(u64::MAX))),
        }
    }
}

/// A big-endian number of at most 8 bytes.
pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn bitmaps(bytes: &[u8], range: core::ops::Range<u64>) -> Result<Option<Bitmaps>, Error> {
    let Some(data) = extension(bytes, range, EXTENSION_BITMAPS)? else { return Ok(None) };
    // As qemu has it: it opens no image with another length.
    if data.len() != BITMAPS_BYTES {
        let expected = BITMAPS_BYTES.to_string();
        return Err(bad("length of the bitmaps' extension", data.len() as u64, expected));
    }
    // After the count, four bytes are reserved.
    let (directory_bytes, directory) = (number(&data[8..16]), number(&data[16..24]));
    Ok(Some(Bitmaps { count: number(&data[..4]) as u32, directory_bytes, directory }))
}
