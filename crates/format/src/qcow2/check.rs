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
//! table of snapshots, and the bitmaps with their directory and tables. A cluster of one of these
//! structures has no other reference: what was written there as data would overwrite it.
//!
//! A table is read once, however many entries name it, and the tables of snapshots and bitmaps
//! together are no longer than the image. So a hostile image costs no more than a large one.
//!
//! If a structure cannot be followed, what it names has references that were not counted. Then
//! refcounts that are too high are not told.
//!
//! Memory: four bytes for each cluster of the image, some 60 for each L2 table and structure, one
//! table.

use core::fmt;
use std::collections::BTreeMap;

pub use crate::severity::Severity;

use super::header::bad;
use super::layout::number;
use super::refcounts::{per_block, refcount};
use super::table::{
    COMPRESSED, COMPRESSED_SECTOR, COPIED, OFFSET, RESERVED_HIGH, RESERVED_LOW, ZERO,
};
use super::{Error, Header, L1_ENTRIES_MAX, Layout, Place};

mod bitmaps;
mod snapshots;
#[cfg(test)]
mod tests;

/// Limit on the findings kept in a report; further ones only count, for the severity too.
pub const FINDINGS_MAX: usize = 1000;

/// The most L2 tables: a GiB of memory for these.
const TABLES_MAX: usize = 1 << 24;
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
    /// Something else refers to a cluster of a structure.
    Shared {
        /// The structure.
        what: &'static str,
        /// The cluster.
        cluster: u64,
        /// Its references.
        references: u16,
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
            | Finding::Shared { .. }
            | Finding::Copied { .. } => Severity::Damaged,
        }
    }
}

/// A count as it is told.
struct Told(u16);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            MANY => write!(f, "{MANY} or more"),
            count => write!(f, "{count}"),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Wrong(error) => write!(f, "{error}"),
            Finding::MarkedCorrupt => f.write_str("marked as corrupt by another program"),
            Finding::NotClosed => {
                f.write_str("not closed: qemu makes the refcounts again before it writes")
            }
            Finding::Refcount { cluster, count, found, references, .. } => {
                match count {
                    1 => write!(f, "cluster {cluster}")?,
                    _ => write!(f, "clusters {cluster} to {}", cluster + count - 1)?,
                }
                let note = match (found > references, references) {
                    (false, _) => "",
                    (true, 0) => " (leaked)",
                    (true, _) => " (too high)",
                };
                let (found, references) = (Told(*found), Told(*references));
                write!(f, ": refcount: found {found}, expected {references}{note}")
            }
            Finding::Shared { what, cluster, references } => {
                let references = Told(*references);
                write!(f, "cluster {cluster}, of the {what}: found {references} references, ")?;
                f.write_str("expected none from elsewhere")
            }
            Finding::Copied { table, guest, is_set, found, .. } => {
                let (bit, expected) = if *is_set { ("set", "clear") } else { ("clear", "set") };
                let found = Told(*found);
                write!(
                    f,
                    "{table} entry for byte {guest}: bit 63: found {bit}, expected {expected}: the \
                     refcount is {found}"
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
    /// Bitmaps.
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
        parts: Vec::new(),
        read_bytes: 0,
        is_partial: false,
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
#[derive(Clone, Copy)]
struct Named {
    times: u16,
    /// The offset of the content that the first entry which names it is for.
    guest: u64,
    /// An entry of the active L1 table names it.
    is_active: bool,
}

/// A structure that has its clusters for itself.
struct Part {
    what: &'static str,
    start: u64,
    bytes: u64,
    /// How often it is named.
    times: u16,
}

struct Checker<'a, E> {
    header: &'a Header,
    layout: &'a Layout,
    read: Read<'a, E>,
    /// The refcount of each cluster, and how many references were counted.
    found: Vec<u16>,
    references: Vec<u16>,
    tables: BTreeMap<u64, Named>,
    parts: Vec<Part>,
    /// Of tables of snapshots and bitmaps.
    read_bytes: u64,
    /// A structure could not be followed.
    is_partial: bool,
    report: Report,
}

/// The names of the levels, of the active state and of snapshots.
fn level(number: usize, is_active: bool) -> &'static str {
    match (number, is_active) {
        (1, true) => "L1",
        (1, false) => "a snapshot's L1",
        (_, true) => "L2",
        (_, false) => "a snapshot's L2",
    }
}

impl<E> Checker<'_, E> {
    fn run(&mut self) -> Result<(), E> {
        if self.header.is_corrupt {
            self.find(Finding::MarkedCorrupt);
        }
        if self.header.is_dirty {
            self.find(Finding::NotClosed);
        }
        self.own("header", 0, 1, 1);
        self.read_refcounts()?;
        let active = (self.header.l1_table, self.layout.l1_entries);
        self.own("L1 table", active.0, active.1 * 8, 1);
        self.read_l1(active, 1, true)?;
        self.read_snapshots()?;
        self.read_l2_tables()?;
        self.read_bitmaps()?;
        self.compare_parts();
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

    /// What cannot be followed.
    fn wrong(&mut self, error: Error) {
        self.is_partial = true;
        self.odd(error);
    }

    /// What can be followed all the same.
    fn odd(&mut self, error: Error) {
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
        Ok(bytes.chunks_exact(8).map(number).collect())
    }

    /// Counts references to the clusters of these bytes. False if they end beyond the image's last
    /// cluster.
    #[must_use]
    fn refer(&mut self, start: u64, bytes: u64, times: u16) -> bool {
        let cluster_bytes = self.header.cluster_bytes();
        let Some(last) = bytes.checked_sub(1).map(|bytes| start.saturating_add(bytes)) else {
            return true;
        };
        for cluster in start / cluster_bytes..=last / cluster_bytes {
            let Some(references) = self.references.get_mut(cluster as usize) else { return false };
            *references = references.saturating_add(times);
        }
        true
    }

    /// The same for a structure that is in the image.
    fn own(&mut self, what: &'static str, start: u64, bytes: u64, times: u16) {
        if self.refer(start, bytes, times) && bytes > 0 {
            self.parts.push(Part { what, start, bytes, times });
        }
    }

    /// Refuses the table of a snapshot or bitmap that together with those before is longer than the
    /// image: they overlap.
    fn refuse_many(&mut self, what: &'static str, bytes: u64) -> Result<(), Error> {
        self.read_bytes = self.read_bytes.saturating_add(bytes);
        match self.read_bytes > self.header.image_bytes {
            true => Err(bad(what, self.read_bytes, "bytes of all of them within the image")),
            false => Ok(()),
        }
    }

    fn found_at(&self, byte: u64) -> u16 {
        let cluster = byte / self.header.cluster_bytes();
        self.found.get(cluster as usize).copied().unwrap_or(0)
    }

    fn read_refcounts(&mut self) -> Result<(), E> {
        let (cluster_bytes, bits) = (self.header.cluster_bytes(), self.layout.refcount_bits);
        let bytes = self.layout.refcount_table_clusters * cluster_bytes;
        self.own("refcount table", self.layout.refcount_table, bytes, 1);
        let per_block = per_block(cluster_bytes, bits);
        let blocks = self.words_at(self.layout.refcount_table, bytes / 8)?;
        for (at, entry) in blocks.into_iter().enumerate() {
            let block = entry & !RESERVED_LOW;
            if entry & RESERVED_LOW != 0 {
                self.odd(bad("refcount table entry", entry, "no reserved bits"));
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
            self.own("refcount block", block, 1, 1);
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

    /// Notes the L2 tables that an L1 table names, which has its own references already.
    fn read_l1(
        &mut self,
        (start, entries): (u64, u64),
        times: u16,
        is_active: bool,
    ) -> Result<(), E> {
        let level = level(1, is_active);
        for (at, entry) in self.words_at(start, entries)?.into_iter().enumerate() {
            let guest = (at as u64).saturating_mul(self.header.l1_span());
            self.refuse_bits(level, (guest, entry), RESERVED_LOW | RESERVED_HIGH | COMPRESSED);
            match self.header.l2_table(guest, entry) {
                Ok(None) => {}
                Err(error) => self.wrong(error),
                Ok(Some(_)) if self.tables.len() > TABLES_MAX => {
                    self.wrong(bad("L2 tables", TABLES_MAX as u64 + 1, "less"));
                    break;
                }
                Ok(Some(table)) => {
                    let first = Named { times: 0, guest, is_active };
                    let named = self.tables.entry(table).or_insert(first);
                    named.times = named.times.saturating_add(times);
                    if is_active {
                        self.compare_copied(level, (guest, entry), self.found_at(table));
                    }
                }
            }
        }
        Ok(())
    }

    /// Bits that no program sets in an entry that names a whole cluster, or none.
    fn refuse_bits(&mut self, table: &'static str, (guest, found): (u64, u64), bits: u64) {
        let bad = |expected| Error::BadEntry { table, guest, found, expected };
        if found & bits != 0 {
            self.odd(bad("expected no reserved bits"));
        }
        if found & OFFSET == 0 && found & COPIED != 0 {
            self.wrong(bad("with bit 63: expected a place"));
        }
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
            self.own("L2 table", table, 1, named.times);
            let entries = self.words_at(table, self.header.cluster_bytes() / 8)?;
            for (at, entry) in entries.chunks_exact(words).enumerate() {
                let bitmap = entry.get(1).copied().unwrap_or(0);
                let guest = at as u64 * self.header.cluster_bytes();
                let guest = named.guest.saturating_add(guest);
                self.read_entry((guest, entry[0], bitmap), named);
            }
        }
        Ok(())
    }

    /// Counts what an entry of an L2 table names.
    fn read_entry(&mut self, (guest, found, bitmap): (u64, u64, u64), named: Named) {
        let table = level(2, named.is_active);
        let bad = |expected| Error::BadEntry { table, guest, found, expected };
        let (cluster, mut within) = (self.header.cluster_bytes(), 0);
        let mut has_data = false;
        while within < cluster {
            match self.header.run(guest.saturating_add(within), found, bitmap) {
                Ok(run) => {
                    has_data |= matches!(run.place, Place::Data(_) | Place::Compressed { .. });
                    within += run.bytes;
                }
                Err(error) => return self.wrong(error),
            }
        }
        let is_compressed = found & COMPRESSED != 0;
        let zero = if self.header.is_extended { 0 } else { ZERO };
        let (start, bytes) = match self.header.compressed(found, 0) {
            Place::Compressed { start, bytes, .. } if is_compressed => {
                // It is counted by whole sectors.
                let skipped = start % COMPRESSED_SECTOR;
                (start - skipped, bytes + skipped)
            }
            _ => (found & OFFSET, u64::from(found & OFFSET != 0)),
        };
        if !self.refer(start, bytes, named.times) {
            self.wrong(bad("beyond the image's end: the image is truncated"));
        }
        match is_compressed {
            false => {
                self.refuse_bits(table, (guest, found), (RESERVED_LOW & !zero) | RESERVED_HIGH);
            }
            true if bitmap != 0 => self.odd(bad("compressed: expected no bitmap")),
            // It is never written in place.
            true if found & COPIED != 0 => self.odd(bad("compressed: expected no bit 63")),
            true => {}
        }
        if named.is_active && bytes > 0 {
            self.report.counts.data += u64::from(has_data);
            self.report.counts.compressed += u64::from(is_compressed);
            if !is_compressed {
                self.compare_copied(table, (guest, found), self.found_at(start));
            }
        }
    }

    /// Finds the clusters of structures to which something else refers.
    fn compare_parts(&mut self) {
        let cluster_bytes = self.header.cluster_bytes();
        for Part { what, start, bytes, times } in std::mem::take(&mut self.parts) {
            for cluster in start / cluster_bytes..=(start + bytes - 1) / cluster_bytes {
                let references = self.references[cluster as usize];
                if references > times {
                    self.find(Finding::Shared { what, cluster, references });
                }
            }
        }
    }

    fn compare(&mut self) {
        let is_lazy = self.header.is_dirty;
        let mut run: Option<Finding> = None;
        let pairs = std::mem::take(&mut self.found).into_iter();
        let pairs = pairs.zip(std::mem::take(&mut self.references)).enumerate();
        for (at, (now, wanted)) in pairs {
            let counts = &mut self.report.counts;
            counts.used += u64::from(wanted > 0);
            counts.leaked += u64::from(wanted == 0 && now > 0 && !self.is_partial);
            if let Some(Finding::Refcount { cluster, count, found, references, .. }) = &mut run
                && (*found, *references, *cluster + *count) == (now, wanted, at as u64)
            {
                *count += 1;
            } else if now != wanted && !(self.is_partial && now > wanted) {
                let (cluster, count, found, references) = (at as u64, 1, now, wanted);
                let next = Finding::Refcount { cluster, count, found, references, is_lazy };
                run.replace(next).into_iter().for_each(|before| self.find(before));
            }
        }
        run.into_iter().for_each(|last| self.find(last));
    }
}
