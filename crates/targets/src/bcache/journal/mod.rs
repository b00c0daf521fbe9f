//! The journal's ring: where the next entry goes, and which entries count.
//!
//! An entry is *open* while a key of it may be in no leaf, durably. Entries without keys are never
//! open: what they name (root, priorities, array of uuids) is named by each later one as well.
//!
//! # Invariants
//! J1. Entries are numbered without a gap. An entry is written once the one before it is durable.
//!     So at most one entry is written and not durable: the newest.
//! J2. A bucket of the ring is written to from its beginning only when no entry in it counts. A
//!     session begins in the bucket behind that of the newest entry, as the kernel's does; if
//!     entries there count, it goes on behind the newest entry.
//! J3. An entry counts until a later durable entry has a `last_seq` above its number. The
//!     `last_seq` of each entry is the number of the oldest open one: its own, if none is open.
//! J4. An entry is durable when it was written with FUA, or when a flush that began after its write
//!     had ended has succeeded (R14). It is written after a flush: what it names was written before
//!     that. A writer that needs it durable, since it overwrites what the entry frees or answers
//!     for what it has, waits for that: the holder of a session writes entries with FUA, a group
//!     commit answers behind the flush (`groups`), and [`Journal::says`] counts durable entries.
//!     A session names a root, priorities or an array once it has written them, and its own entry
//!     is the first that names them: it is built before the flush, which makes them durable. An
//!     entry of a group is built behind its flush, so it names what the newest entry names.
//! J5. An entry that is open or leaves others open leaves room for one more, without keys. So the
//!     entry that says that none is open can always be written.
//! J6. An entry that frees none leaves at most [`COUNTING_MAX`] that count. One that frees some
//!     leaves no more than there were, and is never refused for their number (J5).
//!
//! # Why a session makes progress with a full ring
//! Room is what J3 frees and J5 spares. Which entries are open, and until when:
//!
//! - *Nothing is open* in a batch, unless buckets are emptied. Each entry then frees all before it,
//!   so that a ring of two buckets takes any number of fresh roots.
//! - *Holes* of emptied buckets (R5, R6) are open until they are in leaves. They enter before all
//!   else, and nodes of the same size replace those without room (`btree::insert`), so that this
//!   takes no more buckets than it gives back, and at most one entry, of a fresh root, for each
//!   leaf that gets holes. The last of these entries frees all.
//! - *What a session found* is open until it is in leaves (`set::session`). If the ring has room
//!   for one entry for each leaf, it enters as a whole. Otherwise it enters in parts, the oldest
//!   entries first; the entry that names the root of a part that is in leaves frees what that came
//!   from. So a ring with one free bucket, which is what the kernel spares, takes each part that
//!   the free buckets have room for at once.
//!
//! - *Entries of clients* (`groups`) are open until a checkpoint. They leave room for it. A
//!   session that is about to name fresh roots has a checkpoint first, if the names need that room.
//!
//! What is left: a part of the found entries that needs more fresh roots, or holes, than the ring
//! has room for. The session ends with [`NoEntry::Full`]. The superblock and some leaves have
//! changed by then, but each entry whose keys may be in no leaf still counts: the next opening
//! replays it, to the same effect.
//!
//! A power cut leaves the entry, or a part of it, which fails its checksum. Then the one before it
//! is the newest, and all that it names is still there.

mod groups;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;

use std::ops::Range;

use cairn_format::bcache::journal::{
    ENTRIES_MAX, ENTRY_BYTES_MAX, ENTRY_HEADER_BYTES, Header, Located, Ring, encode,
};
use cairn_format::bcache::{Geometry, Key, SECTOR_BYTES, SetMagic};

use super::canary::{Bug, planted};

/// The most entries that count behind one that frees none. A kernel that replays them keeps one of
/// its [`ENTRIES_MAX`] pins for its own next entry, and does not pin the oldest beyond that.
const COUNTING_MAX: u64 = ENTRIES_MAX - 1;
/// Bytes of a key with a pointer.
const KEY_BYTES: usize = 24;

/// For how many entries without keys an entry leaves room that the owner of a session writes (J5).
pub(super) const SPARE: usize = 1;
/// The same of an entry of clients: what a checkpoint needs beside the last of its entries, for
/// fresh roots.
const CLIENTS_SPARE: usize = 8;

/// Why there is no next entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoEntry {
    /// All buckets of the ring have entries that count, or too many entries do.
    #[error("found no room for an entry, expected some")]
    Full,
    /// The last number has been used.
    #[error("found entry {}, expected a number to be left", u64::MAX)]
    Numbers,
}

/// An entry to write.
pub(super) struct EntryWrite {
    /// Its first sector.
    pub sector: u64,
    /// Whole blocks.
    pub bytes: Vec<u8>,
    /// Its number and checksum.
    pub seq: u64,
    pub csum: u64,
}

/// See the module's description.
pub(super) struct Journal {
    geometry: Geometry,
    magic: SetMagic,
    buckets: Range<u64>,
    /// What the newest entry says.
    newest: Header,
    /// What the next entry of a session names.
    next: Header,
    /// The number of the newest entry that is durable.
    durable: u64,
    /// Of each bucket of the ring the highest number of an entry that may count; 0 if none does.
    highest: Vec<u64>,
    /// The newest entry has keys.
    has_keys: bool,
    /// Behind the newest entry.
    place: Place,
}

/// Where an entry ends.
#[derive(Clone, Copy)]
struct Place {
    /// Its bucket, and the byte behind it.
    index: usize,
    at: usize,
    /// The next entry goes into another bucket, if one is free.
    is_new_session: bool,
}

impl Journal {
    /// The ring as it was read.
    pub fn new(ring: &Ring, buckets: Range<u64>, geometry: Geometry, magic: SetMagic) -> Journal {
        let mut highest = vec![0; (buckets.end - buckets.start) as usize];
        for entry in &ring.entries {
            highest[entry.index] = entry.header.seq.max(highest[entry.index]);
        }
        let newest = ring.newest();
        let Located { header, index, bytes, .. } = *newest;
        let has_keys = bytes.end - bytes.start > ENTRY_HEADER_BYTES;
        let place = Place { index, at: geometry.padded(bytes.end), is_new_session: true };
        let durable = header.seq;
        let (newest, next) = (header, header);
        Journal { geometry, magic, buckets, newest, next, durable, highest, has_keys, place }
    }

    /// True if an entry that frees none may go into the bucket so far ahead.
    fn is_free(&self, ahead: usize) -> bool {
        let index = (self.place.index + ahead) % self.highest.len();
        ahead < self.highest.len() && self.highest[index] < self.newest.last_seq
    }

    /// How many keys without a pointer the next entry has room for, beside what J5 spares.
    pub fn holes_max(&self) -> usize {
        let bucket = self.geometry.bucket_sectors() as usize * SECTOR_BYTES;
        let spare = self.geometry.padded(ENTRY_HEADER_BYTES);
        let room = match (self.is_free(1), self.is_free(2)) {
            (true, true) => bucket,
            (true, false) => bucket - spare,
            (false, _) => (bucket - self.place.at).saturating_sub(spare),
        };
        room.min(ENTRY_BYTES_MAX).saturating_sub(ENTRY_HEADER_BYTES) / 16
    }

    /// Where an entry of this padded length ends that follows on `place`, if buckets are free in
    /// which no entry counts from `last_seq` on.
    fn behind(&self, place: Place, length: usize, last_seq: u64) -> Result<Place, NoEntry> {
        let room = self.geometry.bucket_sectors() as usize * SECTOR_BYTES;
        let next = (place.index + 1) % self.highest.len();
        let next_is_free = next != place.index && self.highest[next] < last_seq;
        let goes_on = place.at + length <= room && !(place.is_new_session && next_is_free);
        match (goes_on, next_is_free) {
            (true, _) => Ok(Place { at: place.at + length, is_new_session: false, ..place }),
            (false, true) => Ok(Place { index: next, at: length, is_new_session: false }),
            (false, false) => Err(NoEntry::Full),
        }
    }

    /// How many entries without keys there is room for, if none before the last frees any.
    pub fn room(&self) -> usize {
        let (length, last_seq) = (self.geometry.padded(ENTRY_HEADER_BYTES), self.newest.last_seq);
        let follow = |place: &Place| self.behind(*place, length, last_seq).ok();
        let room = std::iter::successors(Some(self.place), follow).count() - 1;
        let counting = self.newest.seq - last_seq + 1;
        room.min(COUNTING_MAX.saturating_sub(counting) as usize + 1)
    }

    /// True if there is room for so many entries without keys, as [`Journal::room`] counts.
    pub fn has_room(&self, entries: usize) -> bool {
        let (length, last_seq) = (self.geometry.padded(ENTRY_HEADER_BYTES), self.newest.last_seq);
        let follow = |place, _| self.behind(place, length, last_seq);
        let counting = self.newest.seq - last_seq + entries as u64;
        counting <= COUNTING_MAX && (0..entries).try_fold(self.place, follow).is_ok()
    }

    /// How many entries count.
    pub fn counting(&self) -> u64 {
        self.newest.seq - self.newest.last_seq + 1
    }

    /// The number of the newest entry.
    pub fn newest(&self) -> u64 {
        self.newest.seq
    }

    /// The newest entry is durable. The caller has the turn of the journal.
    pub fn newest_is_durable(&mut self) {
        self.durable = self.newest.seq;
    }

    /// True if the newest entry says, durably, that the entries before `open` do not count, or none
    /// with keys if none is open.
    pub fn says(&self, open: Option<u64>) -> bool {
        let Header { seq, last_seq, .. } = self.newest;
        if self.durable < seq || (Header { seq, last_seq, ..self.next }) != self.newest {
            return false;
        }
        match open {
            Some(open) => self.newest.last_seq >= open,
            None => self.newest.last_seq == self.newest.seq && !self.has_keys,
        }
    }

    /// How many keys with a pointer an entry has room for.
    pub fn keys_max(&self) -> usize {
        let bucket = self.geometry.bucket_sectors() as usize * SECTOR_BYTES;
        (bucket.min(ENTRY_BYTES_MAX) - ENTRY_HEADER_BYTES) / KEY_BYTES
    }

    /// For how many entries an entry of clients leaves room.
    pub fn clients_spare(&self) -> usize {
        let block = self.geometry.padded(ENTRY_HEADER_BYTES) as u64;
        let ring = self.highest.len() as u64 * self.geometry.bucket_sectors();
        ((ring * SECTOR_BYTES as u64 / block / 4) as usize).clamp(SPARE + 2, CLIENTS_SPARE)
    }

    /// The next entry of the session names this root (J4).
    pub fn name_root(&mut self, (root, level): (Key, u16)) {
        (self.next.root, self.next.root_level) = (root, level);
    }

    /// The next entry of the session names these priorities (J4).
    pub fn name_priorities(&mut self, first_bucket: u64) {
        self.next.priorities = first_bucket;
    }

    /// True if the array of uuids has the 128-byte layout.
    pub fn has_long_uuids(&self) -> bool {
        self.next.has_long_uuids
    }

    /// The next entry of the session names this array of uuids, in the 128-byte layout (J4).
    /// Answers the old one.
    pub fn name_uuids(&mut self, uuids: Key) -> Key {
        self.next.has_long_uuids = true;
        std::mem::replace(&mut self.next.uuids, uuids)
    }

    /// The next entry, of a session, with these keys. `open` is the oldest open entry, if one is.
    /// If this one is open, or leaves others open, it leaves room for `spare` entries without keys.
    ///
    /// # Errors
    /// There is no room, or none is left (J5), or too many entries count (J6).
    pub fn entry(
        &mut self,
        keys: &[Key],
        open: Option<u64>,
        spare: usize,
    ) -> Result<EntryWrite, NoEntry> {
        self.entry_naming(self.next, keys, open, spare)
    }

    /// The same of a group: it names what the newest entry names (J4).
    ///
    /// # Errors
    /// As above.
    pub fn entry_of_group(
        &mut self,
        keys: &[Key],
        open: Option<u64>,
        spare: usize,
    ) -> Result<EntryWrite, NoEntry> {
        let names = if planted(Bug::GroupNamesEarly) { self.next } else { self.newest };
        self.entry_naming(names, keys, open, spare)
    }

    fn entry_naming(
        &mut self,
        names: Header,
        keys: &[Key],
        open: Option<u64>,
        spare: usize,
    ) -> Result<EntryWrite, NoEntry> {
        let block = self.geometry.block_bytes();
        let seq = self.newest.seq.checked_add(1).ok_or(NoEntry::Numbers)?;
        let last_seq = open.unwrap_or(seq);
        let frees = last_seq > self.newest.last_seq;
        if !frees && seq - last_seq >= COUNTING_MAX {
            return Err(NoEntry::Full);
        }
        let header = Header { seq, last_seq, ..names };
        debug_assert!(ENTRY_HEADER_BYTES + keys.len() * 16 <= ENTRY_BYTES_MAX, "an entry has room");
        let bytes = encode(&header, keys, self.magic, block);
        let place = self.behind(self.place, bytes.len(), self.newest.last_seq)?;
        if open.is_some() || !keys.is_empty() {
            let length = self.geometry.padded(ENTRY_HEADER_BYTES);
            (0..spare).try_fold(place, |place, _| self.behind(place, length, last_seq))?;
        }
        (self.place, self.newest, self.has_keys) = (place, header, !keys.is_empty());
        self.highest[place.index] = seq;
        let begin = (place.at - bytes.len()) / SECTOR_BYTES;
        let bucket = self.buckets.start + place.index as u64;
        let csum = bytes.first_chunk().map_or(0, |csum| u64::from_le_bytes(*csum));
        Ok(EntryWrite { sector: self.geometry.sector_of(bucket) + begin as u64, bytes, seq, csum })
    }
}
