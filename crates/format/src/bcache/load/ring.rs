//! Reads the ring of the journal, and distinguishes a torn entry from damage.
//!
//! Entries are written one after the other, each when the one before it is durable, into the place
//! behind the one before it or the beginning of the next bucket. So a power cut leaves at most one
//! entry in part: the one behind the newest, in one of these two places. Its header lies in one
//! sector, which a device writes as a whole, and readers accept an entry only if its checksum
//! matches. Hence:
//!
//! - *Torn* is what lies in such a place, has the magic and the number behind the newest, and a
//!   checksum of other bytes.
//! - Any other bytes whose number is `last_seq` or higher, and not that of a sound entry that
//!   counts, are damage. An entry that is sound but for its magic or number was whole once; so was
//!   what lies in front of a sound entry that counts.
//! - What claims a number before the oldest that counts, or that of an entry that is there, is of
//!   an earlier lap, or was torn in an earlier session. It is of no interest.
//!
//! On a cache that discards buckets the oldest entries may be missing. Each damaged entry may be
//! one of them if any is missing, regardless of its number.

use std::ops::Range;

use super::{Fault, LoadError, Loader, Outcome, Place, Source, Visitor, What, leads_well};
use crate::bcache::journal::{
    ByteRange, ENTRY_BYTES_MAX, Entry, EntryFault, Located, Ring, RingFault, ScanEnd, entry_at,
    scan, without_seq,
};
use crate::bcache::{CacheSuperblock, Key, SECTOR_BYTES};

/// What a fault in the ring is.
enum Verdict {
    /// Nothing that counts is lost.
    Old,
    /// A power cut left it.
    Torn,
    Damaged,
}

/// Judges the end of the entries of the bucket `index`, where `fault` was found.
fn judge(ring: &Ring, index: usize, end: &ScanEnd, fault: &EntryFault, is_tail: bool) -> Verdict {
    let (newest, seq) = (ring.newest(), fault.seq());
    let is_checksum = matches!(fault, EntryFault::Checksum { .. });
    if ring.hidden_by(end).is_some() {
        return Verdict::Damaged;
    }
    if is_tail && is_checksum && seq == newest.header.seq + 1 {
        return Verdict::Torn;
    }
    let is_there = ring.has(seq);
    // Nothing else claims its number right behind the newest entry.
    let is_behind = is_tail && index == newest.index;
    let may_count = seq >= newest.header.last_seq && (!is_there || is_behind);
    let may_be_missing = ring.discarded.is_some() && is_checksum && !is_there && !is_tail;
    if may_count || may_be_missing { Verdict::Damaged } else { Verdict::Old }
}

impl Ring {
    /// The entry that counts, and is not among those that were found, behind the end of a bucket.
    fn hidden_by(&self, end: &ScanEnd) -> Option<u64> {
        let first = self.newest().header.last_seq;
        end.newest_behind.filter(|seq| *seq >= first && !self.has(*seq))
    }
}

impl<S: Source, V: Visitor> Loader<'_, S, V> {
    /// How many buckets of the ring are read together.
    fn buckets_at_once(&self) -> usize {
        let bytes = self.geometry.bucket_sectors() * SECTOR_BYTES as u64;
        (super::BATCH_BYTES / bytes).max(1) as usize
    }

    /// The entries that count, and what is left of one behind them.
    pub(super) async fn ring(
        &mut self,
        superblock: &CacheSuperblock,
    ) -> Outcome<(Ring, Option<Fault>), S> {
        let (all, ends) = self.scan_ring(superblock).await?;
        let ring = match Ring::of(all, superblock.discards()) {
            Ok(ring) => ring,
            Err(what) => {
                self.report_missing(&what, &ends)?;
                let fault = Fault { place: Place::Ring, what: what.into() };
                return Err(LoadError::Fault(Box::new(fault)));
            }
        };
        let newest = *ring.newest();
        let behind = self.geometry.padded(newest.bytes.end);
        let mut torn = None;
        for (index, end) in ends {
            let place = Place::Journal { index };
            let Some(fault) = end.fault else {
                if let Some(seq) = ring.hidden_by(&end) {
                    self.report(place, RingFault::Hidden { at: end.at, seq })?;
                }
                continue;
            };
            let next = (newest.index + 1) % superblock.journal_buckets().count();
            let is_tail = (index, end.at) == (newest.index, behind) || (index, end.at) == (next, 0);
            match judge(&ring, index, &end, &fault, is_tail) {
                Verdict::Damaged => self.report(place, fault)?,
                Verdict::Torn => torn = Some(Fault { place, what: fault.into() }),
                Verdict::Old if is_tail => {
                    if let Some(fault) = self.misnumbered(superblock, &ring, index, end.at).await? {
                        self.report(place, fault)?;
                    }
                }
                Verdict::Old => (),
            }
        }
        Ok((ring, torn))
    }

    /// Reports what is wrong with an entry that is missing, if it is there but damaged.
    fn report_missing(&mut self, what: &RingFault, ends: &[(usize, ScanEnd)]) -> Outcome<(), S> {
        let RingFault::Gap { missing, .. } = what else { return Ok(()) };
        for (index, end) in ends {
            if let Some(fault) = end.fault.filter(|fault| fault.seq() == *missing) {
                self.report(Place::Journal { index: *index }, fault)?;
            }
        }
        Ok(())
    }

    /// All sound entries, and where those of each bucket end.
    async fn scan_ring(
        &mut self,
        superblock: &CacheSuperblock,
    ) -> Outcome<(Vec<Located>, Vec<(usize, ScanEnd)>), S> {
        let (mut all, mut ends) = (Vec::new(), Vec::new());
        let buckets: Vec<(usize, u64)> = superblock.journal_buckets().enumerate().collect();
        for some in buckets.chunks(self.buckets_at_once()) {
            let range = |(_, bucket): &(usize, u64)| {
                let sector = self.geometry.sector_of(*bucket);
                sector..sector + self.geometry.bucket_sectors()
            };
            let ranges: Vec<Range<u64>> = some.iter().map(range).collect();
            for ((index, _), bytes) in some.iter().zip(self.read(&ranges).await?) {
                let index = *index;
                let Some(bytes) = self.or_report(Place::Journal { index }, bytes)? else {
                    continue;
                };
                let (entries, end) = scan(&bytes, self.magic, self.geometry.block_bytes());
                for entry in entries {
                    let bytes = ByteRange { start: entry.at, end: entry.at + entry.bytes() };
                    let (header, csum) = (entry.header, entry.csum);
                    all.push(Located { header, csum, index, bytes });
                }
                ends.push((index, end));
            }
        }
        Ok((all, ends))
    }

    /// The entry behind the newest, if it lies at byte `at` and is sound but for its number.
    async fn misnumbered(
        &mut self,
        superblock: &CacheSuperblock,
        ring: &Ring,
        index: usize,
        at: usize,
    ) -> Outcome<Option<EntryFault>, S> {
        let bucket = self.geometry.sector_of(superblock.journal_buckets().start + index as u64);
        let start = bucket + (at / SECTOR_BYTES) as u64;
        let most = start + (ENTRY_BYTES_MAX / SECTOR_BYTES) as u64;
        let range = start..most.min(bucket + self.geometry.bucket_sectors());
        let bytes = self.read_one(Place::Journal { index }, range).await?.unwrap_or_default();
        Ok(without_seq(&bytes, self.magic, ring.newest().header.seq + 1))
    }

    /// The keys of the entries that count.
    pub(super) async fn journal(
        &mut self,
        ring: &Ring,
        superblock: &CacheSuperblock,
    ) -> Outcome<Vec<Key>, S> {
        let mut keys = Vec::new();
        let follows = |a: &Located, b: &Located| a.index == b.index && a.bytes.end <= b.bytes.start;
        let of_buckets: Vec<&[Located]> = ring.entries.chunk_by(follows).collect();
        for some in of_buckets.chunks(self.buckets_at_once()) {
            let range = |entries: &&[Located]| {
                let bucket = superblock.journal_buckets().start + entries[0].index as u64;
                let sector = self.geometry.sector_of(bucket);
                let end = self.geometry.padded(entries[entries.len() - 1].bytes.end);
                let start = sector + (entries[0].bytes.start / SECTOR_BYTES) as u64;
                start..sector + (end / SECTOR_BYTES) as u64
            };
            let ranges: Vec<Range<u64>> = some.iter().map(range).collect();
            for (entries, bytes) in some.iter().zip(self.read(&ranges).await?) {
                let place = Place::Journal { index: entries[0].index };
                let Some(bytes) = self.or_report(place, bytes)? else { continue };
                self.keep_keys(&mut keys, entries, &bytes)?;
            }
        }
        Ok(keys)
    }

    /// The keys of entries, whose bytes these are from the first one on.
    fn keep_keys(
        &mut self,
        keys: &mut Vec<Key>,
        entries: &[Located],
        bytes: &[u8],
    ) -> Outcome<(), S> {
        for located in entries {
            let (seq, at) = (located.header.seq, located.bytes.start);
            let found = entry_at(bytes, at - entries[0].bytes.start, self.magic);
            let is_same = |entry: &Entry<'_>| {
                entry.header == located.header && entry.bytes() == located.bytes.end - at
            };
            let Some(entry) = found.filter(is_same) else {
                let place = Place::Journal { index: located.index };
                self.report(place, RingFault::Changed { at, seq })?;
                continue;
            };
            for key in entry.keys() {
                match key {
                    Ok(key) => self.keep_sound(keys, key, Place::Newest { seq })?,
                    Err(error) => self.report(Place::Newest { seq }, error)?,
                }
            }
        }
        Ok(())
    }

    fn keep_sound(&mut self, keys: &mut Vec<Key>, key: Key, place: Place) -> Outcome<(), S> {
        let leads_well = leads_well(&self.geometry, &key);
        match key {
            // A remnant says nothing, wherever it leads.
            key if key.sectors() == 0 && !leads_well => Ok(()),
            key if key.sectors() > 0 && !key.is_in_range() => self.report(place, What::Range(key)),
            key if !leads_well => self.report(place, What::Pointer(key)),
            key => {
                keys.push(key);
                Ok(())
            }
        }
    }
}
