//! The journal: a ring of buckets with entries, each whole in one bucket.
//!
//! An entry holds keys of leaves, and names the root, the array of uuids and the priorities. The
//! newest entry says which older ones still count. [`scan`] finds the entries of one bucket,
//! [`Ring::of`] those that count, in the order in which their keys are to be inserted.

use std::mem::{offset_of, size_of};
use std::ops::Range;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::crc::crc64;
use super::node::keys;
use super::{Key, KeyError, SetMagic};
use crate::Field;

/// Bytes of the header of an entry.
pub const ENTRY_HEADER_BYTES: usize = 240;
/// The most bytes of an entry, its padding included.
pub const ENTRY_BYTES_MAX: usize = 32 << 10;
/// The most entries that may count at once. The kernel has a pin for each in a FIFO. It asks for
/// 20 000 of them, and its FIFOs of more than 4 elements hold 2^k - 1.
pub const ENTRIES_MAX: u64 = 20_000_u64.next_power_of_two() - 1;
/// The version that is written.
const VERSION: u32 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    csum: U64,
    magic: U64,
    seq: U64,
    version: U32,
    keys: U32,
    last_seq: U64,
    uuid_bucket: [U64; 8],
    btree_root: [U64; 8],
    btree_level: U16,
    pad: [U16; 3],
    prio_bucket: [U64; 8],
}

macro_rules! field {
    ($name:ident, $size:expr) => {
        Field { name: stringify!($name), offset: offset_of!(RawHeader, $name), size: $size }
    };
}

/// Where each field of the header of an entry lies.
pub const ENTRY_FIELDS: [Field; 11] = [
    field!(csum, 8),
    field!(magic, 8),
    field!(seq, 8),
    field!(version, 4),
    field!(keys, 4),
    field!(last_seq, 8),
    field!(uuid_bucket, 64),
    field!(btree_root, 64),
    field!(btree_level, 2),
    field!(pad, 6),
    field!(prio_bucket, 64),
];

const _: () = assert!(size_of::<RawHeader>() == ENTRY_HEADER_BYTES);

/// What an entry says besides its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Its number, one more than that of the entry before it.
    pub seq: u64,
    /// The oldest entry whose keys may not all be in leaves.
    pub last_seq: u64,
    /// False if the array of uuids has the old layout.
    pub has_long_uuids: bool,
    /// Where the array of uuids is.
    pub uuids: Key,
    /// Where the root of the tree is.
    pub root: Key,
    /// How far the root is above the leaves.
    pub root_level: u16,
    /// The bucket of the first prio_set.
    pub priorities: u64,
}

/// An entry on the device.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// What it says besides its keys.
    pub header: Header,
    /// Its checksum, over all that it says.
    pub csum: u64,
    /// Where it begins in its bucket, in bytes.
    pub at: usize,
    words: &'a [U64],
}

/// Where the entries of a bucket end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanEnd {
    /// In bytes from the beginning of the bucket.
    pub at: usize,
    /// What is wrong there, if it has the magic of an entry and does not decode as one: it was
    /// damaged, or being written when the power failed.
    pub fault: Option<EntryFault>,
    /// The highest number of the sound entries behind that. Entries are written one after the
    /// other, so one that counts says that what lies before it was damaged.
    pub newest_behind: Option<u64>,
}

/// Why bytes with the magic of an entry, or those of an entry without the magic, are not an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntryFault {
    /// It is sound but for its magic: it was whole once.
    #[error("journal entry {seq}: magic: found {found:#018x}, expected {expected:#018x}")]
    Magic {
        /// Its number.
        seq: u64,
        /// Magic on the device.
        found: u64,
        /// Magic of the cache set.
        expected: u64,
    },
    /// It is sound but for its number: it was whole once.
    #[error("journal entry {seq}: seq: found {found}, expected {seq}")]
    Seq {
        /// The number with which its checksum is right.
        seq: u64,
        /// Number on the device.
        found: u64,
    },
    /// Its checksum is that of other bytes.
    #[error("journal entry {seq}: checksum: found {found:#018x}, expected {expected:#018x}")]
    Checksum {
        /// The number that it claims.
        seq: u64,
        /// Checksum on the device.
        found: u64,
        /// Checksum of the bytes.
        expected: u64,
    },
    /// It goes beyond what an entry may have, or its bucket.
    #[error("journal entry {seq}: keys: found {found} words, expected at most {expected}")]
    Length {
        /// The number that it claims.
        seq: u64,
        /// Words that it counts.
        found: u32,
        /// Words that there is room for.
        expected: usize,
    },
    /// A version that this format does not have.
    #[error("journal entry {seq}: version: found {found}, expected 0 or 1")]
    Version {
        /// The number that it claims.
        seq: u64,
        /// Version on the device.
        found: u32,
    },
    /// The root or the array of uuids is not a key.
    #[error("journal entry {seq}: {field}: {error}")]
    Key {
        /// Its number.
        seq: u64,
        /// Which.
        field: &'static str,
        /// Why.
        error: KeyError,
    },
}

impl EntryFault {
    /// The number that the entry claims.
    #[must_use]
    pub fn seq(&self) -> u64 {
        match self {
            EntryFault::Magic { seq, .. }
            | EntryFault::Seq { seq, .. }
            | EntryFault::Checksum { seq, .. }
            | EntryFault::Length { seq, .. }
            | EntryFault::Version { seq, .. }
            | EntryFault::Key { seq, .. } => *seq,
        }
    }
}

impl Entry<'_> {
    /// The keys, in the order in which they were inserted, up to the first that does not decode.
    pub fn keys(&self) -> impl Iterator<Item = Result<Key, KeyError>> {
        keys(self.words)
    }

    /// How many bytes it takes, without padding.
    #[must_use]
    pub fn bytes(&self) -> usize {
        ENTRY_HEADER_BYTES + self.words.len() * 8
    }
}

/// Finds the entries of a bucket: those from its beginning on. What lies behind them is of an
/// earlier lap of the ring, or nothing.
pub fn scan(bytes: &[u8], magic: SetMagic, block_bytes: usize) -> (Vec<Entry<'_>>, ScanEnd) {
    let mut entries = Vec::new();
    let mut at = 0;
    loop {
        let fault = match read_entry(bytes.get(at..).unwrap_or_default(), magic) {
            Ok(Some((header, words))) => {
                let entry = Entry { header, csum: csum_at(bytes, at), at, words };
                at += entry.bytes().next_multiple_of(block_bytes);
                entries.push(entry);
                continue;
            }
            Ok(None) => without_magic(&bytes[at.min(bytes.len())..], magic),
            Err(fault) => Some(fault),
        };
        let newest_behind = newest_from(bytes, at + block_bytes, magic, block_bytes);
        return (entries, ScanEnd { at, fault, newest_behind });
    }
}

/// The highest number of the sound entries from byte `at` on.
fn newest_from(bytes: &[u8], at: usize, magic: SetMagic, block_bytes: usize) -> Option<u64> {
    let starts = (at..bytes.len()).step_by(block_bytes);
    let found = starts.filter_map(|at| read_entry(&bytes[at..], magic).ok().flatten());
    found.map(|(header, _)| header.seq).max()
}

/// What would be an entry at the beginning of these bytes if it had the magic.
fn without_magic(bytes: &[u8], magic: SetMagic) -> Option<EntryFault> {
    let (raw, _) = RawHeader::ref_from_prefix(bytes).ok()?;
    let (found, expected) = (raw.magic.get(), magic.journal());
    let mended = with_word(bytes, offset_of!(RawHeader, magic), expected);
    let (header, _) = read_entry(&mended, magic).ok()??;
    Some(EntryFault::Magic { seq: header.seq, found, expected })
}

/// What would be the entry `seq` at the beginning of these bytes if it had that number.
pub(super) fn without_seq(bytes: &[u8], magic: SetMagic, seq: u64) -> Option<EntryFault> {
    let (raw, _) = RawHeader::ref_from_prefix(bytes).ok()?;
    let mended = with_word(bytes, offset_of!(RawHeader, seq), seq);
    read_entry(&mended, magic).ok()??;
    Some(EntryFault::Seq { seq, found: raw.seq.get() })
}

/// The header at the beginning of these bytes and the words that it counts, as far as there are
/// any, with another word at `at`.
fn with_word(bytes: &[u8], at: usize, word: u64) -> Vec<u8> {
    let count = RawHeader::ref_from_prefix(bytes).map_or(0, |(raw, _)| raw.keys.get() as usize);
    let length = (ENTRY_HEADER_BYTES + count * 8).min(ENTRY_BYTES_MAX).min(bytes.len());
    let mut bytes = bytes[..length].to_vec();
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// The entry at byte `at`, if a sound one begins there.
pub(super) fn entry_at(bytes: &[u8], at: usize, magic: SetMagic) -> Option<Entry<'_>> {
    let (header, words) = read_entry(bytes.get(at..)?, magic).ok()??;
    Some(Entry { header, csum: csum_at(bytes, at), at, words })
}

/// The checksum of the sound entry at byte `at`.
fn csum_at(bytes: &[u8], at: usize) -> u64 {
    RawHeader::ref_from_prefix(&bytes[at..]).map_or(0, |(raw, _)| raw.csum.get())
}

fn read_entry(bytes: &[u8], magic: SetMagic) -> Result<Option<(Header, &[U64])>, EntryFault> {
    let Ok((raw, rest)) = RawHeader::ref_from_prefix(bytes) else { return Ok(None) };
    if raw.magic.get() != magic.journal() {
        return Ok(None);
    }
    let (seq, count) = (raw.seq.get(), raw.keys.get() as usize);
    let room = rest.len().min(ENTRY_BYTES_MAX - ENTRY_HEADER_BYTES) / 8;
    if count > room {
        return Err(EntryFault::Length { seq, found: raw.keys.get(), expected: room });
    }
    let expected = crc64(&bytes[8..ENTRY_HEADER_BYTES + count * 8]);
    if raw.csum.get() != expected {
        return Err(EntryFault::Checksum { seq, found: raw.csum.get(), expected });
    }
    if raw.version.get() > VERSION {
        return Err(EntryFault::Version { seq, found: raw.version.get() });
    }
    let key = |field, words: &[U64]| match Key::decode(words) {
        Ok((key, _)) => Ok(key),
        Err(error) => Err(EntryFault::Key { seq, field, error }),
    };
    let header = Header {
        seq,
        last_seq: raw.last_seq.get(),
        has_long_uuids: raw.version.get() == VERSION,
        uuids: key("uuid_bucket", &raw.uuid_bucket)?,
        root: key("btree_root", &raw.btree_root)?,
        root_level: raw.btree_level.get(),
        priorities: raw.prio_bucket[0].get(),
    };
    let words = <[U64]>::ref_from_bytes(&rest[..count * 8]).expect("it is whole words");
    Ok(Some((header, words)))
}

/// The bytes of an entry, padded with zeros to whole blocks.
#[must_use]
pub fn encode(header: &Header, keys: &[Key], magic: SetMagic, block_bytes: usize) -> Vec<u8> {
    let mut raw = RawHeader::new_zeroed();
    raw.magic = U64::new(magic.journal());
    raw.seq = U64::new(header.seq);
    raw.version = U32::new(if header.has_long_uuids { VERSION } else { 0 });
    raw.keys = U32::new(keys.iter().map(Key::word_count).sum::<usize>() as u32);
    raw.last_seq = U64::new(header.last_seq);
    put_key(&mut raw.uuid_bucket, &header.uuids);
    put_key(&mut raw.btree_root, &header.root);
    raw.btree_level = U16::new(header.root_level);
    raw.prio_bucket[0] = U64::new(header.priorities);
    let mut bytes = raw.as_bytes().to_vec();
    bytes.extend(keys.iter().flat_map(Key::words).flat_map(u64::to_le_bytes));
    let csum = crc64(&bytes[8..]);
    bytes[..8].copy_from_slice(&csum.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(block_bytes), 0);
    bytes
}

fn put_key(slot: &mut [U64; 8], key: &Key) {
    for (word, value) in slot.iter_mut().zip(key.words()) {
        *word = U64::new(value);
    }
}

/// Where an entry of the ring is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// What it says besides its keys.
    pub header: Header,
    /// Its checksum, over all that it says.
    pub csum: u64,
    /// The index of its bucket in the ring.
    pub index: usize,
    /// Where it is in the bucket, in bytes.
    pub bytes: ByteRange,
}

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// Its first byte.
    pub start: usize,
    /// The first behind it.
    pub end: usize,
}

/// The entries of a ring that count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring {
    /// In the order in which their keys are to be inserted; the last is the newest.
    pub entries: Vec<Located>,
    /// Numbers missing at the beginning, on a cache that discards buckets.
    pub discarded: Option<Range<u64>>,
}

/// The highest number that an entry may have: there are numbers left for entries behind it.
pub const SEQ_MAX: u64 = 1 << 63;

/// Why the entries of a ring are no journal. The text follows the place, `load::Place`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// Not one entry in a cache that is in use.
    #[error("found no entry, expected one at least")]
    Empty,
    /// An entry that should count is missing.
    #[error("found no entry {missing}, expected all from {first} to {last}")]
    Gap {
        /// The first that is missing.
        missing: u64,
        /// The oldest that counts.
        first: u64,
        /// The newest.
        last: u64,
    },
    /// Entries that count lie behind bytes that are not an entry.
    #[error("byte {at}: found no journal entry, expected one in front of entry {seq}")]
    Hidden {
        /// Where the bytes begin in their bucket.
        at: usize,
        /// The newest of those entries.
        seq: u64,
    },
    /// An entry was sound when it was read first, and is not any more.
    #[error("byte {at}: found no journal entry, expected entry {seq}, which was there before")]
    Changed {
        /// Where it was in its bucket.
        at: usize,
        /// Its number.
        seq: u64,
    },
    /// There are no numbers left for the entries behind the newest.
    #[error("entry {seq}: seq: found {seq}, expected at most {SEQ_MAX}")]
    Seq {
        /// The newest.
        seq: u64,
    },
    /// Two entries have one number.
    #[error("found two entries {seq}, expected one")]
    Twice {
        /// Their number.
        seq: u64,
    },
    /// The newest entry counts more than there can be, or itself not.
    #[error("entry {seq}: last_seq: found {found}, expected one of the {ENTRIES_MAX} up to it")]
    LastSeq {
        /// The newest.
        seq: u64,
        /// What it says.
        found: u64,
    },
}

impl Ring {
    /// Finds which of all entries of a ring count. `discards`: freed buckets are discarded, so that
    /// the oldest entries may be missing.
    ///
    /// # Errors
    /// They are no journal.
    pub fn of(mut all: Vec<Located>, discards: bool) -> Result<Ring, RingFault> {
        all.sort_by_key(|entry| entry.header.seq);
        let newest = all.last().ok_or(RingFault::Empty)?.header;
        let (first, last) = (newest.last_seq, newest.seq);
        if last > SEQ_MAX {
            return Err(RingFault::Seq { seq: last });
        }
        if first > last || last - first >= ENTRIES_MAX {
            return Err(RingFault::LastSeq { seq: last, found: first });
        }
        all.retain(|entry| entry.header.seq >= first);
        let mut discarded = None;
        let oldest = all.first().map_or(first, |entry| entry.header.seq);
        if oldest > first && discards {
            discarded = Some(first..oldest);
        }
        let expected = discarded.as_ref().map_or(first, |missing| missing.end);
        for (entry, expected) in all.iter().zip(expected..) {
            let seq = entry.header.seq;
            if seq < expected {
                return Err(RingFault::Twice { seq });
            }
            if seq > expected {
                return Err(RingFault::Gap { missing: expected, first, last });
            }
        }
        Ok(Ring { entries: all, discarded })
    }

    /// True if it has the entry of this number.
    #[must_use]
    pub fn has(&self, seq: u64) -> bool {
        let of = |entry: &Located| entry.header.seq;
        self.entries.binary_search_by_key(&seq, of).is_ok()
    }

    /// The newest entry.
    #[must_use]
    pub fn newest(&self) -> &Located {
        self.entries.last().expect("a ring has one entry at least")
    }
}

#[cfg(test)]
mod tests;
