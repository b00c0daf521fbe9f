//! What a writer of an image needs: which images it takes, the words that it writes, and the first
//! clusters of an empty image.
//!
//! Promises that in an image that is taken every cluster has at most one reference, and that a
//! refcount of 1 or 0 says which; so a writer keeps one bit for each cluster.

use core::mem::offset_of;

use super::header::{EXTENSION_BACKING_FORMAT, NAME_BYTES_MAX, RawHeader, bad};
use super::refcounts::{per_block, set_refcount};
use super::table::{COMPRESSED, COPIED, OFFSET, RESERVED_HIGH, RESERVED_LOW, ZERO};
use super::{CLUSTER_BITS_MAX, CLUSTER_BITS_MIN, Error, HEADER_BYTES, Header, Layout, MAGIC};

/// The autoclear feature by which cairn knows an image that no other program has written since.
/// The format reserves it, and those of [`MARK_BITS`].
const MARKED: u64 = 1 << 63;
/// The autoclear features that tell such an image from itself in another server's hands.
const MARK_BITS: u64 = 0x7fff_ffff << 32;

/// An entry of an L2 table of version 3 whose cluster is zeros, and nowhere.
pub const ZEROS: u64 = ZERO;

/// An entry that names what begins at this byte, alone.
#[must_use]
pub const fn entry_of(byte: u64) -> u64 {
    byte | COPIED
}

/// The byte where that begins which an entry names, if it names something; not of a compressed
/// cluster.
#[must_use]
pub const fn named_by(entry: u64) -> Option<u64> {
    match entry & OFFSET {
        0 => None,
        byte => Some(byte),
    }
}

/// True if an entry of an L2 table says that its cluster is zeros.
#[must_use]
pub const fn is_zeros(entry: u64) -> bool {
    entry & ZERO != 0
}

impl Header {
    /// Refuses an image that a writer does not take. It reads correctly, however.
    ///
    /// # Errors
    /// It is damaged, or has something that a writer would have to keep in step.
    pub fn refuse_for_writing(&self, layout: &Layout) -> Result<(), Error> {
        let unwritten = |what: &str| Err(Error::NotWritten { what: what.to_owned() });
        if self.is_corrupt {
            return Err(Error::ToRepair { what: "the image is marked as corrupt".to_owned() });
        }
        if self.is_dirty {
            let what = "the image was not closed, its refcounts may be wrong".to_owned();
            return Err(Error::ToRepair { what });
        }
        if !self.is_version_3 {
            return unwritten("version 2");
        }
        if self.is_extended {
            return unwritten("subclusters");
        }
        if layout.snapshot_count > 0 {
            return unwritten("internal snapshots");
        }
        if layout.bitmaps.is_some() {
            return unwritten("bitmaps");
        }
        Ok(())
    }

    /// Refuses an entry of an L1 table, of which a writer would not know what it names. Answers
    /// where the table that it names begins.
    ///
    /// # Errors
    /// Its fault.
    pub fn written_table(&self, guest: u64, entry: u64) -> Result<Option<u64>, Error> {
        let table = self.l2_table(guest, entry)?;
        self.refuse_bits("L1", (guest, entry), RESERVED_LOW | RESERVED_HIGH | COMPRESSED)?;
        Ok(table)
    }

    /// The same of an entry of an L2 table.
    ///
    /// # Errors
    /// Its fault.
    pub fn written_cluster(&self, guest: u64, entry: u64) -> Result<Option<u64>, Error> {
        if entry & COMPRESSED != 0 {
            return Err(Error::NotWritten { what: "compressed clusters".to_owned() });
        }
        self.run(guest, entry, 0)?;
        self.refuse_bits("L2", (guest, entry), (RESERVED_LOW & !ZERO) | RESERVED_HIGH)?;
        let cluster = named_by(entry);
        match cluster {
            // It may be behind the end under a zero flag.
            Some(cluster) if cluster >= self.image_bytes => {
                let expected = "beyond the image's end: the image is truncated";
                Err(Error::BadEntry { table: "L2", guest, found: entry, expected })
            }
            _ => Ok(cluster),
        }
    }

    fn refuse_bits(
        &self,
        table: &'static str,
        (guest, found): (u64, u64),
        bits: u64,
    ) -> Result<(), Error> {
        let bad = |expected| Err(Error::BadEntry { table, guest, found, expected });
        match (named_by(found).is_some(), found & COPIED != 0) {
            _ if found & bits != 0 => bad("expected no reserved bits"),
            (true, false) => bad("expected bit 63: nothing shares what it names"),
            (false, true) => bad("with bit 63: expected a place"),
            _ => Ok(()),
        }
    }
}

/// The mark of an image with these autoclear features; 0 if it has none.
#[must_use]
pub const fn mark_of(autoclear: u64) -> u64 {
    match autoclear & MARKED {
        0 => 0,
        _ => autoclear & (MARKED | MARK_BITS),
    }
}

/// A mark with these random bits.
#[must_use]
pub const fn mark_with(random: u64) -> u64 {
    MARKED | random & MARK_BITS
}

/// Sets the autoclear features in the first bytes of an image: none but those of a mark. What
/// others say of its content is not true once it is written by a program that does not know them.
pub fn set_mark(first: &mut [u8], mark: u64) {
    let at = offset_of!(RawHeader, autoclear_features);
    first[at..at + 8].copy_from_slice(&mark.to_be_bytes());
}

/// Writes to the first bytes of an image where its refcount table is.
pub fn set_refcount_table(first: &mut [u8], table: u64, clusters: u32) {
    let at = offset_of!(RawHeader, refcount_table_offset);
    first[at..at + 8].copy_from_slice(&table.to_be_bytes());
    let at = offset_of!(RawHeader, refcount_table_clusters);
    first[at..at + 4].copy_from_slice(&clusters.to_be_bytes());
}

/// An image of version 3 without content.
#[derive(Debug, Clone, Copy)]
pub struct Blank<'a> {
    /// Bytes of the content.
    pub size: u64,
    /// A cluster is 2 to the power of this, in bytes.
    pub cluster_bits: u32,
    /// A refcount has 2 to the power of this, in bits.
    pub refcount_order: u32,
    /// The name and format of the backing image.
    pub backing: Option<(&'a str, &'a str)>,
}

impl Blank<'_> {
    /// Its first clusters: header, refcount table, a refcount block, and the L1 table. What follows
    /// may be anything.
    ///
    /// # Errors
    /// No image has such clusters, or these first ones do not fit into one refcount block.
    pub fn bytes(&self) -> Result<Vec<u8>, Error> {
        let Blank { size, cluster_bits, refcount_order, backing } = *self;
        if !(CLUSTER_BITS_MIN..=CLUSTER_BITS_MAX).contains(&cluster_bits) {
            return Err(bad("cluster_bits", cluster_bits.into(), "9 to 21"));
        }
        if refcount_order > 6 {
            return Err(bad("refcount_order", refcount_order.into(), "0 to 6"));
        }
        let cluster = 1_u64 << cluster_bits;
        let l1_entries = size.div_ceil(cluster * (cluster / 8));
        let clusters = 3 + (l1_entries * 8).div_ceil(cluster);
        if clusters > per_block(cluster, 1 << refcount_order) {
            return Err(bad("size", size, "less, with this cluster size"));
        }
        let mut bytes = vec![0; (clusters * cluster) as usize];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        for (at, word) in [
            (offset_of!(RawHeader, magic), MAGIC),
            (offset_of!(RawHeader, version), 3),
            (offset_of!(RawHeader, cluster_bits), cluster_bits),
            (offset_of!(RawHeader, l1_size), l1_entries as u32),
            (offset_of!(RawHeader, refcount_table_clusters), 1),
            (offset_of!(RawHeader, refcount_order), refcount_order),
            (offset_of!(RawHeader, header_length), HEADER_BYTES as u32),
        ] {
            put(at, &word.to_be_bytes());
        }
        for (at, word) in [
            (offset_of!(RawHeader, size), size),
            (offset_of!(RawHeader, l1_table_offset), 3 * cluster),
            (offset_of!(RawHeader, refcount_table_offset), cluster),
            (cluster as usize, 2 * cluster),
        ] {
            put(at, &word.to_be_bytes());
        }
        if let Some((name, format)) = backing {
            let needed = HEADER_BYTES + 16 + format.len().next_multiple_of(8) + name.len();
            if name.is_empty() || name.len() > NAME_BYTES_MAX as usize || needed as u64 > cluster {
                let (field, found) = ("backing_file_size", name.len() as u64);
                let most = (NAME_BYTES_MAX as usize).min((cluster as usize).saturating_sub(160));
                return Err(bad(field, found, format!("1 to {most}")));
            }
            // The extension of the format, the end of the extensions, the name.
            put(HEADER_BYTES, &EXTENSION_BACKING_FORMAT.to_be_bytes());
            put(HEADER_BYTES + 4, &(format.len() as u32).to_be_bytes());
            put(HEADER_BYTES + 8, format.as_bytes());
            let at = HEADER_BYTES + 16 + format.len().next_multiple_of(8);
            put(at, name.as_bytes());
            put(offset_of!(RawHeader, backing_file_offset), &(at as u64).to_be_bytes());
            put(offset_of!(RawHeader, backing_file_size), &(name.len() as u32).to_be_bytes());
        }
        let block = &mut bytes[2 * cluster as usize..3 * cluster as usize];
        (0..clusters as usize).for_each(|index| set_refcount(block, 1 << refcount_order, index, 1));
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Severity, check};
    use super::*;

    fn blank(size: u64, cluster_bits: u32) -> Result<Vec<u8>, Error> {
        Blank { size, cluster_bits, refcount_order: 4, backing: None }.bytes()
    }

    fn parsed(bytes: &[u8]) -> (Header, Layout) {
        let header = Header::parse(bytes, bytes.len() as u64).expect("a header");
        let layout = Layout::parse(bytes, &header).expect("a layout");
        (header, layout)
    }

    #[test]
    fn a_blank_image_is_sound_and_has_the_backing_image_that_was_said() {
        for (cluster_bits, refcount_order) in [(9, 4), (12, 0), (16, 6)] {
            let backing = Some(("base.img", "raw"));
            let size = 3 << 20;
            let blank = Blank { size, cluster_bits, refcount_order, backing };
            let bytes = blank.bytes().unwrap();
            let (header, layout) = parsed(&bytes);
            let backing = header.backing.as_ref().expect("a backing image");
            assert_eq!(
                (backing.name.as_str(), backing.format.as_deref()),
                ("base.img", Some("raw"))
            );
            header.refuse_for_writing(&layout).unwrap();
            let read = &mut |at: u64, out: &mut [u8]| {
                out.copy_from_slice(&bytes[at as usize..at as usize + out.len()]);
                Ok::<(), ()>(())
            };
            let report = check(&header, &layout, read).unwrap();
            assert_eq!((report.severity, report.findings), (Severity::Sound, vec![]));
        }
        assert!(blank(1 << 40, 9).is_err());
        for (name, is_legal) in [("x".repeat(352), true), ("x".repeat(377), false)] {
            let backing = Some((name.as_str(), "raw"));
            let blank = Blank { size: 1024, cluster_bits: 9, refcount_order: 4, backing };
            assert_eq!(blank.bytes().is_ok(), is_legal, "{name}");
        }
    }

    #[test]
    fn entries_that_a_writer_would_not_understand_are_refused() {
        let bytes = blank(1 << 20, 9).unwrap();
        let (header, _) = parsed(&bytes);
        assert_eq!(header.written_cluster(0, 0), Ok(None));
        assert_eq!(header.written_cluster(0, ZEROS), Ok(None));
        assert_eq!(header.written_cluster(0, entry_of(512)), Ok(Some(512)));
        assert_eq!(header.written_cluster(0, entry_of(512) | ZEROS), Ok(Some(512)));
        let end = bytes.len() as u64;
        for entry in [
            512,
            COPIED,
            entry_of(512) | 2,
            entry_of(512) | 1 << 56,
            entry_of(end),
            entry_of(end) | ZEROS,
            1 << 62,
        ] {
            assert!(header.written_cluster(0, entry).is_err(), "{entry:#x}");
            assert!(header.written_table(0, entry).is_err(), "{entry:#x}");
        }
    }

    #[test]
    fn the_header_is_edited_and_nothing_else() {
        let mut bytes = blank(1 << 20, 12).unwrap();
        let before = bytes.clone();
        assert_eq!(parsed(&bytes).1.autoclear, 0);
        bytes[95] = 2;
        assert_eq!(mark_of(parsed(&bytes).1.autoclear), 0);
        set_mark(&mut bytes[..512], mark_with(u64::MAX));
        assert_eq!(parsed(&bytes).1.autoclear, 0xffff_ffff << 32);
        assert_eq!(mark_of(0xffff_ffff << 32 | 2), mark_with(u64::MAX));
        set_mark(&mut bytes[..512], 0);
        assert!(bytes == before);
        set_refcount_table(&mut bytes[..512], 5 << 12, 2);
        let raw = super::super::header::raw(&bytes, 4096).unwrap().0;
        assert_eq!(
            (raw.refcount_table_offset.get(), raw.refcount_table_clusters.get()),
            (5 << 12, 2)
        );
    }
}
