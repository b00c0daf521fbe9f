//! Checks whether an image is sound: whether the refcount of each cluster is the number of its
//! references.
//!
//! A refcount that is too high *leaks* the cluster: it is never used again. That loses nothing;
//! qemu leaves such clusters when it is killed. One that is too low has a writer use the cluster
//! for something else: the image is damaged. An entry of the active tables says by its bit 63
//! whether the refcount is 1, and a writer then writes in place.
//!
//! An image that was not closed (`lazy_refcounts`) may have wrong refcounts: qemu makes them again
//! before it writes to it.
//!
//! References are counted for the header, the refcount table and its blocks, the L1 tables of the
//! active state and of internal snapshots, with all L2 tables and clusters that they name, the
//! table of snapshots, and the bitmaps with their directory and tables. A table is read once,
//! however many entries name it. So a hostile image costs no more than a large one.
//!
//! Memory: four bytes for each cluster of the image, and the tables, one at a time.

use core::fmt;
use std::collections::BTreeMap;

pub use crate::severity::Severity;

use super::header::bad;
use super::refcounts::{per_block, refcount};
use super::table::{COMPRESSED, COMPRESSED_SECTOR, OFFSET, ZERO};
use super::{Error, Header, L1_ENTRIES_MAX, Layout, Place};

mod bitmaps;
mod snapshots;
#[cfg(test)]
mod tests;

/// Limit on the findings kept in a report; further ones only count, for the severity too.
pub const FINDINGS_MAX: usize = 1000;

/// The bit of an entry that says that the refcount is 1.
const COPIED: u64 = 1 << 63;
/// Bits that a program leaves clear, in entries that name whole clusters. Readers ignore them.
const RESERVED_LOW: u64 = 0x1ff;
const RESERVED_HIGH: u64 = 0x3f << 56;
/// Counts end here: two that are as high are taken for equal.
const MANY: u16 = u16::MAX;

/// One finding about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// A structure or an entry makes no sense.
    Wrong(Error),
    /// A program found damage, and marked the image.
    MarkedCorrupt,
    /// The image was not closed: its refcounts may be wrong.
    NotClosed,
    /// Clusters with refcounts that are not the numbers of their references.
    Refcount {
        /// The first of them.
        cluster: u64,
        /// How many follow each other.
        count: u64,
        /// The refcount.
        found: u16,
        /// The references.
        references: u16,
        /// [`Finding::NotClosed`].
        is_lazy: bool,
    },
    /// Bit 63 of an entry contradicts the refcount of what it names.
    Copied {
        /// The level: L1 or L2.
        table: &'static str,
        /// The offset in the content that the entry is for.
        guest: u64,
        /// Whether the bit says that the refcount is 1.
        is_set: bool,
        /// The refcount.
        found: u16,
        /// [`Finding::NotClosed`].
        is_lazy: bool,
    },
}

impl Finding {
    /// How bad it is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self {
            Finding::NotClosed
            | Finding::Refcount { is_lazy: true, .. }
            | Finding::Copied { is_lazy: true, .. } => Severity::SoundAfterRecovery,
            Finding::Refcount { found, references, .. } if found > references => {
                Severity::Repairable
            }
            Finding::Wrong(_)
            | Finding::MarkedCorrupt
            | Finding::Refcount { .. }
            | Finding::Copied { .. } => Severity::Damaged,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Wrong(error) => write!(f, "{error}"),
            Finding::MarkedCorrupt => f.write_str("marked as corrupt by another program"),
            Finding::NotClosed => {
                f.write_str("not closed: its refcounts are made again before it is written to")
            }
            Finding::Refcount { cluster, count, found, references, .. } => {
                let last = cluster + count - 1;
                match count {
                    1 => write!(f, "cluster {cluster}")?,
                    _ => write!(f, "clusters {cluster} to {last}")?,
                }
                write!(f, ": refcount: found {found}, expected {references}")?;
                if found > references { f.write_str(" (leaked)") } else { Ok(()) }
            }
            Finding::Copied { table, guest, is_set, found, .. } => {
                let bit = if *is_set { "set" } else { "clear" };
                let expected = if *is_set { "1" } else { "more" };
                write!(
                    f,
                    "{table} entry of byte {guest}: bit 63 is {bit}, refcount: found {found}, \
                     expected {expected}"
                )
            }
        }
    }
}

/// What the clusters of an image are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Clusters of the image.
    pub clusters: u64,
    /// With a reference.
    pub used: u64,
    /// Without one, and with a refcount.
    pub leaked: u64,
    /// Clusters of the content that are data in this image, in the active state.
    pub data: u64,
    /// Of these, compressed.
    pub compressed: u64,
    /// Internal snapshots.
    pub snapshots: u64,
    /// Bitmaps that are those of this content.
    pub bitmaps: u64,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The worst finding.
    pub severity: Severity,
    /// The first [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// How many there were beyond these.
    pub findings_left_out: u64,
    /// What its clusters are.
    pub counts: Counts,
}

/// Reads the image from this byte on. No read reaches beyond its end.
pub type Read<'a, E> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<(), E>;

/// Checks the image.
///
/// # Errors
/// It cannot be read.
pub fn check<E>(header: &Header, layout: &Layout, read: Read<'_, E>) -> Result<Report, E> {
    let clusters = usize::try_from(header.clusters()).unwrap_or(usize::MAX);
    let mut checker = Checker {
        header,
        layout,
        read,
        found: vec![0; clusters],
        references: vec![0; clusters],
        tables: BTreeMap::new(),
        report: Report {
            severity: Severity::Sound,
            findings: Vec::new(),
            findings_left_out: 0,
            counts: Counts { clusters: clusters as u64, ..Counts::default() },
        },
    };
    checker.run()?;
    Ok(checker.report)
}

/// How an L2 table is named.
#[derive(Default)]
struct Named {
    times: u16,
    /// The offsets of the content that entries of the active L1 table name it for. All of them are
    /// the same but in a damaged image.
    guest: Option<u64>,
}

struct Checker<'a, E> {
    header: &'a Header,
    layout: &'a Layout,
    read: Read<'a, E>,
    /// The refcount of each cluster, and how many references were counted.
    found: Vec<u16>,
    references: Vec<u16>,
    tables: BTreeMap<u64, Named>,
    report: Report,
}

impl<E> Checker<'_, E> {
    fn run(&mut self) -> Result<(), E> {
        if self.header.is_corrupt {
            self.find(Finding::MarkedCorrupt);
        }
        if self.header.is_dirty {
            self.find(Finding::NotClosed);
        }
        self.refer(0, 1, 1);
        self.read_refcounts()?;
        let active = (self.header.l1_table, self.layout.l1_entries);
        self.read_l1(active, true)?;
        self.read_snapshots()?;
        self.read_l2_tables()?;
        self.read_bitmaps()?;
        self.compare();
        Ok(())
    }

    fn find(&mut self, finding: Finding) {
        self.report.severity = self.report.severity.max(finding.severity());
        match self.report.findings.len() < FINDINGS_MAX {
            true => self.report.findings.push(finding),
            false => self.report.findings_left_out += 1,
        }
    }

    fn wrong(&mut self, error: Error) {
        self.find(Finding::Wrong(error));
    }

    fn bytes_at(&mut self, start: u64, len: u64) -> Result<Vec<u8>, E> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        (self.read)(start, &mut bytes)?;
        Ok(bytes)
    }

    /// Words of 8 bytes.
    fn words_at(&mut self, start: u64, count: u64) -> Result<Vec<u64>, E> {
        let bytes = self.bytes_at(start, count * 8)?;
        let word = |word: &[u8]| word.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Ok(bytes.chunks_exact(8).map(word).collect())
    }

    /// Counts references to the clusters of these bytes. Those beyond the image's end have none.
    fn refer(&mut self, start: u64, bytes: u64, times: u16) {
        if bytes == 0 {
            return;
        }
        let cluster_bytes = self.header.cluster_bytes();
        let end = start.saturating_add(bytes - 1) / cluster_bytes;
        for cluster in start / cluster_bytes..=end.min(self.report.counts.clusters) {
            let Some(references) = self.references.get_mut(cluster as usize) else { return };
            *references = references.saturating_add(times);
        }
    }

    fn found_at(&self, byte: u64) -> u16 {
        let cluster = byte / self.header.cluster_bytes();
        self.found.get(cluster as usize).copied().unwrap_or(0)
    }

    fn read_refcounts(&mut self) -> Result<(), E> {
        let (cluster_bytes, bits) = (self.header.cluster_bytes(), self.layout.refcount_bits);
        let bytes = self.layout.refcount_table_clusters * cluster_bytes;
        self.refer(self.layout.refcount_table, bytes, 1);
        let per_block = per_block(cluster_bytes, bits);
        let blocks = self.words_at(self.layout.refcount_table, bytes / 8)?;
        for (at, entry) in blocks.into_iter().enumerate() {
            let block = entry & !RESERVED_LOW;
            if entry & RESERVED_LOW != 0 {
                self.wrong(bad("refcount table entry", entry, "no reserved bits"));
            }
            if block == 0 {
                continue;
            }
            if !block.is_multiple_of(cluster_bytes) {
                self.wrong(bad("refcount table entry", entry, "a multiple of the cluster size"));
                continue;
            }
            if let Err(error) = self.header.refuse_outside("refcount block", block, cluster_bytes) {
                self.wrong(error);
                continue;
            }
            self.refer(block, 1, 1);
            let first = at as u64 * per_block;
            let count = per_block.min(self.report.counts.clusters.saturating_sub(first));
            if count == 0 {
                continue;
            }
            let block = self.bytes_at(block, cluster_bytes)?;
            for index in 0..count as usize {
                let found = refcount(&block, bits, index);
                self.found[first as usize + index] = u16::try_from(found).unwrap_or(MANY);
            }
        }
        Ok(())
    }

    /// Notes the L2 tables that an L1 table names.
    fn read_l1(&mut self, (start, entries): (u64, u64), is_active: bool) -> Result<(), E> {
        self.refer(start, entries * 8, 1);
        for (at, entry) in self.words_at(start, entries)?.into_iter().enumerate() {
            let guest = (at as u64).saturating_mul(self.header.l1_span());
            self.refuse_bits("L1", (guest, entry), RESERVED_LOW | RESERVED_HIGH | COMPRESSED);
            match self.header.l2_table(guest, entry) {
                Ok(None) => {}
                Err(error) => self.wrong(error),
                Ok(Some(table)) => {
                    let named = self.tables.entry(table).or_default();
                    named.times = named.times.saturating_add(1);
                    if is_active {
                        named.guest = named.guest.or(Some(guest));
                        self.compare_copied("L1", (guest, entry), self.found_at(table));
                    }
                }
            }
        }
        Ok(())
    }

    /// Bits that no program sets in an entry that names a whole cluster, or none.
    fn refuse_bits(&mut self, table: &'static str, (guest, found): (u64, u64), bits: u64) {
        let expected = match found & OFFSET {
            _ if found & bits != 0 => "expected no reserved bits",
            0 if found & COPIED != 0 => "with bit 63: expected a place",
            _ => return,
        };
        self.wrong(Error::BadEntry { table, guest, found, expected });
    }

    /// Compares bit 63 of an entry of the active state with a refcount.
    fn compare_copied(&mut self, table: &'static str, (guest, entry): (u64, u64), found: u16) {
        let is_set = entry & COPIED != 0;
        if is_set != (found == 1) {
            let is_lazy = self.header.is_dirty;
            self.find(Finding::Copied { table, guest, is_set, found, is_lazy });
        }
    }

    fn read_l2_tables(&mut self) -> Result<(), E> {
        let words = self.header.l2_entry_bytes() as usize / 8;
        for (table, named) in std::mem::take(&mut self.tables) {
            self.refer(table, 1, named.times);
            let entries = self.words_at(table, self.header.cluster_bytes() / 8)?;
            for (at, entry) in entries.chunks_exact(words).enumerate() {
                let bitmap = entry.get(1).copied().unwrap_or(0);
                let guest = at as u64 * self.header.cluster_bytes();
                let guest = named.guest.unwrap_or(0).saturating_add(guest);
                self.read_entry((guest, entry[0], bitmap), &named);
            }
        }
        Ok(())
    }

    /// Counts what an entry of an L2 table names.
    fn read_entry(&mut self, (guest, entry, bitmap): (u64, u64, u64), named: &Named) {
        let (cluster, mut within) = (self.header.cluster_bytes(), 0);
        let mut has_data = false;
        while within < cluster {
            match self.header.run(guest.saturating_add(within), entry, bitmap) {
                Ok(run) => {
                    has_data |= matches!(run.place, Place::Data(_) | Place::Compressed { .. });
                    within += run.bytes;
                }
                Err(error) => return self.wrong(error),
            }
        }
        let is_compressed = entry & COMPRESSED != 0;
        if !is_compressed {
            let zero = if self.header.is_extended { 0 } else { ZERO };
            self.refuse_bits("L2", (guest, entry), (RESERVED_LOW & !zero) | RESERVED_HIGH);
        } else if bitmap != 0 {
            let (table, found, expected) = ("L2", entry, "compressed: expected no bitmap");
            self.wrong(Error::BadEntry { table, guest, found, expected });
        }
        let (start, bytes) = match self.header.compressed(entry, 0) {
            Place::Compressed { start, bytes, .. } if is_compressed => {
                // It is counted by whole sectors.
                let skipped = start % COMPRESSED_SECTOR;
                (start - skipped, bytes + skipped)
            }
            _ => (entry & OFFSET, u64::from(entry & OFFSET != 0)),
        };
        self.refer(start, bytes, named.times);
        if named.guest.is_none() || bytes == 0 {
            return;
        }
        self.report.counts.data += u64::from(has_data);
        self.report.counts.compressed += u64::from(is_compressed);
        // A compressed cluster is never written in place.
        let found = if is_compressed { 0 } else { self.found_at(start) };
        self.compare_copied("L2", (guest, entry), found);
    }

    fn compare(&mut self) {
        let is_lazy = self.header.is_dirty;
        let mut run: Option<Finding> = None;
        let pairs = std::mem::take(&mut self.found).into_iter();
        let pairs = pairs.zip(std::mem::take(&mut self.references)).enumerate();
        for (at, (now, wanted)) in pairs {
            let counts = &mut self.report.counts;
            counts.used += u64::from(wanted > 0);
            counts.leaked += u64::from(wanted == 0 && now > 0);
            if let Some(Finding::Refcount { cluster, count, found, references, .. }) = &mut run
                && (*found, *references, *cluster + *count) == (now, wanted, at as u64)
            {
                *count += 1;
            } else if now != wanted {
                let (cluster, count, found, references) = (at as u64, 1, now, wanted);
                let next = Finding::Refcount { cluster, count, found, references, is_lazy };
                run.replace(next).into_iter().for_each(|before| self.find(before));
            }
        }
        run.into_iter().for_each(|last| self.find(last));
    }
}
