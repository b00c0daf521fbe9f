//! [`Tables`]: the mapping of an image in memory: every L2 table that it has.
//!
//! T1. Words change under the lock of [`super::state::State`]; requests read them without it. One
//!     that finds no data looks again under the lock.
//! T2. A table comes under the same lock, and stays. A new one that no change and no job needs goes
//!     before the next commit.

use std::ops::Range;
use std::sync::OnceLock;

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_format::qcow2::write::{is_zeros, named_by};

/// One L2 table.
struct Table {
    /// The byte of the image where it begins; 0 if the image has no such table.
    at: AtomicU64,
    words: Box<[AtomicU64]>,
}

/// Where the content of consecutive clusters is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the backing image.
    Nowhere,
    /// It is zeros.
    Zeros,
    /// From this byte of the image on.
    Data(u64),
}

impl Place {
    fn of(word: u64) -> Place {
        match named_by(word) {
            _ if is_zeros(word) => Place::Zeros,
            Some(byte) => Place::Data(byte),
            None => Place::Nowhere,
        }
    }

    /// Where the next cluster is if it belongs to the same run.
    fn next(self, cluster_bytes: u64) -> Place {
        match self {
            Place::Data(byte) => Place::Data(byte + cluster_bytes),
            place => place,
        }
    }
}

/// See the module's description.
pub(super) struct Tables {
    cluster_bytes: u64,
    /// Entries of a table.
    per_table: u64,
    tables: Box<[OnceLock<Table>]>,
}

impl Tables {
    /// No table, for an L1 table of so many entries.
    pub fn new(cluster_bytes: u64, entries: usize) -> Tables {
        let tables = (0..entries).map(|_| OnceLock::new()).collect();
        Tables { cluster_bytes, per_table: cluster_bytes / 8, tables }
    }

    pub fn cluster_bytes(&self) -> u64 {
        self.cluster_bytes
    }

    /// The table that has the entry of a cluster, and the number of that entry in it.
    pub fn place_of(&self, cluster: u64) -> (usize, usize) {
        ((cluster / self.per_table) as usize, (cluster % self.per_table) as usize)
    }

    /// The first cluster behind those of the table that has this one.
    pub fn table_end(&self, cluster: u64) -> u64 {
        (cluster / self.per_table + 1) * self.per_table
    }

    fn table(&self, index: usize) -> Option<&Table> {
        let table = self.tables[index].get();
        table.filter(|table| table.at.load(Ordering::Acquire) != 0)
    }

    /// The byte of the image where a table begins, if there is one.
    pub fn at(&self, index: usize) -> Option<u64> {
        self.table(index).map(|table| table.at.load(Ordering::Relaxed))
    }

    /// There is this table now (T2).
    pub fn put(&self, index: usize, at: u64, words: impl Iterator<Item = u64>) {
        assert!(self.table(index).is_none(), "T2: a table comes once");
        let zero = |_| AtomicU64::new(0);
        let fresh = || Table { at: zero(0), words: (0..self.per_table).map(zero).collect() };
        let table = self.tables[index].get_or_init(fresh);
        table.words.iter().zip(words).for_each(|(own, word)| own.store(word, Ordering::Relaxed));
        table.at.store(at, Ordering::Release);
    }

    /// There is an empty table now.
    pub fn put_empty(&self, index: usize, at: u64) {
        self.put(index, at, (0..self.per_table).map(|_| 0));
    }

    /// The clusters of the content that a table has entries for.
    pub fn clusters_of(&self, index: usize) -> Range<u64> {
        index as u64 * self.per_table..(index as u64 + 1) * self.per_table
    }

    /// There is not this table any more, which is empty (T2). Answers where it was.
    pub fn remove(&self, index: usize) -> u64 {
        let table = self.table(index).expect("T2: a table is removed once");
        table.at.swap(0, Ordering::AcqRel)
    }

    /// There is no table: the image is read again.
    pub fn clear(&self) {
        let tables = self.tables.iter().filter_map(OnceLock::get);
        tables.for_each(|table| table.at.store(0, Ordering::Release));
    }

    /// The words of a table, from one entry to another.
    pub fn words(&self, index: usize, entries: Range<usize>) -> impl Iterator<Item = u64> + '_ {
        let words = self.table(index).map_or(&[][..], |table| &table.words[entries]);
        words.iter().map(|word| word.load(Ordering::Acquire))
    }

    /// The entry of a cluster.
    pub fn word(&self, cluster: u64) -> u64 {
        let (table, entry) = self.place_of(cluster);
        self.table(table).map_or(0, |table| table.words[entry].load(Ordering::Acquire))
    }

    /// Replaces the entry of a cluster whose table is there (T1).
    pub fn replace(&self, cluster: u64, word: u64) -> u64 {
        let (table, entry) = self.place_of(cluster);
        let table = self.table(table).expect("T2: the table comes before its entries");
        table.words[entry].swap(word, Ordering::AcqRel)
    }

    /// Where the first clusters of a range are that lie next to each other, and how many they are.
    pub fn run(&self, clusters: &Range<u64>) -> (Place, u64) {
        let first = Place::of(self.word(clusters.start));
        let (mut at, mut place) = (clusters.start + 1, first.next(self.cluster_bytes));
        while at < clusters.end {
            // A table that is not there is passed over in one step.
            let (table, _) = self.place_of(at);
            if self.table(table).is_none() {
                if place != Place::Nowhere {
                    break;
                }
                at = self.table_end(at);
                continue;
            }
            if Place::of(self.word(at)) != place {
                break;
            }
            (at, place) = (at + 1, place.next(self.cluster_bytes));
        }
        (first, at.min(clusters.end) - clusters.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_format::qcow2::write::{ZEROS, entry_of};
    use proptest::prelude::*;

    /// Tables of 64 entries.
    fn tables(words: &[u64]) -> Tables {
        let tables = Tables::new(512, 3);
        for (index, words) in words.chunks(64).enumerate() {
            // The middle one is not there.
            if index != 1 {
                tables.put(index, 512, words.iter().copied());
            }
        }
        tables
    }

    proptest! {
        #[test]
        fn a_run_is_what_lies_next_to_each_other(
            kinds in prop::collection::vec(0..8_u64, 192),
            start in 0..192_u64,
            count in 1..192_u64,
        ) {
            // Most of the data lies in order.
            let word = |(at, kind): (usize, &u64)| match kind {
                0 => 0,
                1 => ZEROS,
                2 => entry_of(512),
                3 => ZEROS | entry_of(1024),
                _ => entry_of((at as u64 + 10) * 512),
            };
            let words: Vec<u64> = kinds.iter().enumerate().map(word).collect();
            let tables = tables(&words);
            let place = |at: u64| match tables.word(at) {
                word if is_zeros(word) => Place::Zeros,
                word => named_by(word).map_or(Place::Nowhere, Place::Data),
            };
            let range = start..(start + count).min(192);
            let (first, found) = tables.run(&range);
            prop_assert_eq!(first, place(start));
            let follows = |at: &u64| match first {
                Place::Data(byte) => place(*at) == Place::Data(byte + (at - start) * 512),
                first => place(*at) == first,
            };
            prop_assert_eq!(found, range.clone().take_while(follows).count() as u64);
        }
    }
}
