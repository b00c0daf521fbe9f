//! The journal's ring: where the next entry goes.
//!
//! # Invariants
//! J1. Entries are numbered without a gap. An entry is written once the one before it is durable.
//! J2. A bucket of the ring is written to from its beginning only when no entry in it counts. A
//!     session begins in the bucket behind that of the newest entry, as the kernel's does; if
//!     entries there count, it goes on behind the newest entry.
//! J3. An entry counts up to the last one that is durable and says that it does not. `last_seq` is
//!     raised only when all keys of the entries before it are in leaves, durably.
//! J4. An entry is durable when its write and the flushes around it have ended (R14). It is written
//!     after a flush, with FUA: what it names was written before.
//! J5. There is room for [`RESERVE`] entries without keys, whatever else is written: an entry that
//!     frees the ring, and the roots that its keys need on their way to the leaves.
//!
//! A power cut leaves the entry, or a part of it, which its checksum tells. Then the one before it
//! is the newest, and all that it names is still there.

#[cfg(test)]
mod tests;

use std::ops::Range;

use cairn_format::bcache::journal::{ENTRY_BYTES_MAX, ENTRY_HEADER_BYTES, Header, Ring, encode};
use cairn_format::bcache::{Geometry, Key, SECTOR_BYTES, SetMagic};

/// How many entries without keys there is room for, beyond entries with keys.
pub(super) const RESERVE: usize = 4;

/// There is no room for an entry: all buckets of the ring have entries that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RingFull;

/// An entry to write.
pub(super) struct EntryWrite {
    /// Its first sector.
    pub sector: u64,
    /// Whole blocks.
    pub bytes: Vec<u8>,
}

/// See the module's description.
pub(super) struct Journal {
    geometry: Geometry,
    magic: SetMagic,
    buckets: Range<u64>,
    /// What the newest durable entry says.
    newest: Header,
    /// Of each bucket of the ring the highest number of an entry that may count; 0 if none does.
    highest: Vec<u64>,
    /// The bucket of the newest entry, and the byte behind it.
    index: usize,
    at: usize,
    /// The next entry goes into another bucket, if one is free.
    is_new_session: bool,
}

/// Where an entry goes.
#[derive(Clone, Copy)]
struct Place {
    index: usize,
    at: usize,
}

impl Journal {
    /// The ring as it was read.
    pub fn new(ring: &Ring, buckets: Range<u64>, geometry: Geometry, magic: SetMagic) -> Journal {
        let mut highest = vec![0; (buckets.end - buckets.start) as usize];
        for entry in &ring.entries {
            highest[entry.index] = entry.header.seq.max(highest[entry.index]);
        }
        let newest = ring.newest();
        Journal {
            geometry,
            magic,
            buckets,
            newest: newest.header,
            highest,
            index: newest.index,
            at: geometry.padded(newest.bytes.end),
            is_new_session: true,
        }
    }

    /// The most bytes of an entry.
    fn entry_max(&self) -> usize {
        ENTRY_BYTES_MAX.min(self.geometry.bucket_sectors() as usize * SECTOR_BYTES)
    }

    /// How many keys without a pointer an entry has room for.
    pub fn holes_max(&self) -> usize {
        (self.entry_max() - ENTRY_HEADER_BYTES) / 16
    }

    /// Where entries of these padded lengths would go, one after the other; where the last does.
    fn place(&self, lengths: impl Iterator<Item = usize>) -> Result<Place, RingFull> {
        let room = self.geometry.bucket_sectors() as usize * SECTOR_BYTES;
        let mut place = Place { index: self.index, at: self.at };
        let (mut written, mut begins) = (vec![self.index], self.is_new_session);
        for length in lengths {
            let next = (place.index + 1) % self.highest.len();
            let next_is_free = self.highest[next] == 0 && !written.contains(&next);
            if place.at + length > room || (begins && next_is_free) {
                if !next_is_free {
                    return Err(RingFull);
                }
                place = Place { index: next, at: 0 };
                written.push(next);
            }
            begins = false;
            place.at += length;
        }
        Ok(place)
    }

    /// The entries from now on name these priorities.
    pub fn name_priorities(&mut self, first_bucket: u64) {
        self.newest.priorities = first_bucket;
    }

    /// The next entry, with these keys. `frees`: the keys of all entries before it are in leaves,
    /// durably.
    ///
    /// # Errors
    /// There is no room, or none beyond the reserve for an entry with keys (J5).
    pub fn entry(
        &mut self,
        keys: &[Key],
        root: (Key, u16),
        frees: bool,
    ) -> Result<EntryWrite, RingFull> {
        let block = self.geometry.block_bytes();
        let seq = self.newest.seq + 1;
        let last_seq = if frees { seq } else { self.newest.last_seq };
        let header = Header { seq, last_seq, root: root.0, root_level: root.1, ..self.newest };
        let bytes = encode(&header, keys, self.magic, block);
        if !keys.is_empty() {
            let reserve = std::iter::repeat_n(self.geometry.padded(ENTRY_HEADER_BYTES), RESERVE);
            self.place(std::iter::once(bytes.len()).chain(reserve))?;
        }
        let Place { index, at } = self.place(std::iter::once(bytes.len()))?;
        (self.index, self.at, self.is_new_session) = (index, at, false);
        self.highest[index] = seq;
        self.newest = header;
        let begin = (at - bytes.len()) / SECTOR_BYTES;
        let sector = self.geometry.sector_of(self.buckets.start + index as u64) + begin as u64;
        Ok(EntryWrite { sector, bytes })
    }

    /// The entry that was made last is durable.
    pub fn written(&mut self) {
        for highest in self.highest.iter_mut().filter(|seq| **seq < self.newest.last_seq) {
            *highest = 0;
        }
    }
}
