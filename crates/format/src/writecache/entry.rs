//! One entry of the slot table, and the commit number that gives it its meaning.
//!
//! Promises to read entries in place, without copying or allocating. Never decides whether an entry
//! makes sense: any sixteen bytes are an entry, and [`check`](super::check) or the target decides.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Field, Geometry, SUPERBLOCK_BYTES};

/// Size of one entry of the slot table.
pub const ENTRY_BYTES: usize = 16;
/// The `original_sector` of an entry that was never used.
pub const NO_SECTOR: u64 = u64::MAX;

/// An entry as it lies on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry {
    original_sector: U64,
    seq_count: U64,
}

/// Where each field of an entry lies.
pub const ENTRY_FIELDS: [Field; 2] = [
    Field {
        name: "original_sector",
        offset: offset_of!(RawEntry, original_sector),
        size: size_of::<U64>(),
    },
    Field { name: "seq_count", offset: offset_of!(RawEntry, seq_count), size: size_of::<U64>() },
];

const _: () = {
    assert!(size_of::<RawEntry>() == ENTRY_BYTES);
    assert!(align_of::<RawEntry>() == 1);
    assert!(offset_of!(RawEntry, original_sector) == 0);
    assert!(offset_of!(RawEntry, seq_count) == 8);
};

/// A commit number. In the superblock: how many commits completed. In an entry: the superblock's
/// number when the entry was written; the entry is committed once the superblock's number is
/// larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The superblock's number on a fresh cache.
    pub const ZERO: Seq = Seq(0);
    /// In an entry: the slot is free. Never below any superblock's number, hence never committed.
    pub const FREE: Seq = Seq(u64::MAX);

    /// No cache reaches this number, so a number below it can always be incremented.
    pub const END: Seq = Seq(1 << 63);

    /// Whether this marks a free slot.
    #[must_use]
    pub fn is_free(self) -> bool {
        self == Seq::FREE
    }

    /// The number after this one, or `None` when that would be the mark of a free slot.
    #[must_use]
    pub fn next(self) -> Option<Seq> {
        match self.0.checked_add(1).map(Seq) {
            Some(Seq::FREE) | None => None,
            next => next,
        }
    }
}

impl core::fmt::Display for Seq {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Seq::FREE => f.write_str("-1"),
            Seq(number) => number.fmt(f),
        }
    }
}

/// What an entry means, given the superblock's commit number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryState {
    /// The slot holds nothing.
    Free,
    /// The slot was written, but its commit never completed: recovery frees it.
    Uncommitted,
    /// The slot holds the data of a sector (unless a newer entry for that sector is committed).
    Committed,
}

/// One entry of the slot table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// First sector of the block, relative to the start of the target. Stale in a free entry.
    pub original_sector: u64,
    /// Commit number, or [`Seq::FREE`].
    pub seq: Seq,
}

impl Entry {
    /// The entry of a slot that was never used.
    pub const NEVER_USED: Entry = Entry { original_sector: NO_SECTOR, seq: Seq::FREE };

    /// What this entry means under the commit number of the superblock.
    #[must_use]
    pub fn state(&self, superblock_seq: Seq) -> EntryState {
        if self.seq.is_free() {
            EntryState::Free
        } else if self.seq < superblock_seq {
            EntryState::Committed
        } else {
            EntryState::Uncommitted
        }
    }

    /// Decodes one entry.
    #[must_use]
    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> Entry {
        Entry::from_raw(zerocopy::transmute_ref!(bytes))
    }

    /// Encodes one entry.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        zerocopy::transmute!(RawEntry {
            original_sector: U64::new(self.original_sector),
            seq_count: U64::new(self.seq.0),
        })
    }

    /// Reads the entry of a slot from the metadata, given from byte 0 of the area on. `None` if the
    /// bytes end before it.
    #[must_use]
    pub fn read_at(metadata: &[u8], slot: u64) -> Option<Entry> {
        let bytes = metadata.get(byte_range(slot)?)?;
        bytes.first_chunk().map(Entry::decode)
    }

    /// Writes the entry of a slot into the metadata, given from byte 0 of the area on.
    ///
    /// # Panics
    /// If the metadata ends before the slot's entry: the slot came from the caller, not from disk.
    pub fn write_at(&self, metadata: &mut [u8], slot: u64) {
        let range = byte_range(slot).expect("a slot of the cache has an entry offset");
        metadata[range].copy_from_slice(&self.encode());
    }

    /// Iterates over the entries in a piece of the slot table that starts with an entry. Bytes
    /// after the last whole entry are left out.
    pub fn iter(table: &[u8]) -> impl ExactSizeIterator<Item = Entry> + Clone + '_ {
        let whole = table.len() / ENTRY_BYTES * ENTRY_BYTES;
        let raw = <[RawEntry]>::ref_from_bytes(&table[..whole])
            .expect("entries need no alignment and the length is a multiple of their size");
        raw.iter().map(Entry::from_raw)
    }

    fn from_raw(raw: &RawEntry) -> Entry {
        Entry { original_sector: raw.original_sector.get(), seq: Seq(raw.seq_count.get()) }
    }
}

fn byte_range(slot: u64) -> Option<core::ops::Range<usize>> {
    let begin = usize::try_from(slot).ok()?.checked_mul(ENTRY_BYTES)?;
    let begin = begin.checked_add(SUPERBLOCK_BYTES)?;
    Some(begin..begin.checked_add(ENTRY_BYTES)?)
}

impl Geometry {
    /// Iterates over the (slot, entry) pairs that lie wholly in a piece of the area, which may have
    /// any alignment and starts at byte `offset` of the area. The superblock and the bytes behind
    /// the slot table are skipped, so the caller can pass the metadata in chunks, as it reads them.
    /// Chunks whose bounds are multiples of [`ENTRY_BYTES`] together miss no entry.
    pub fn entries_in<'a>(
        &self,
        offset: u64,
        bytes: &'a [u8],
    ) -> impl Iterator<Item = (u64, Entry)> + use<'a> {
        let table_begin = SUPERBLOCK_BYTES as u64;
        let first_slot = offset.saturating_sub(table_begin).div_ceil(ENTRY_BYTES as u64);
        let count = usize::try_from(self.n_blocks().saturating_sub(first_slot));
        let first_offset = table_begin.saturating_add(first_slot * ENTRY_BYTES as u64);
        let skipped = first_offset.saturating_sub(offset);
        let table = usize::try_from(skipped).ok().and_then(|skipped| bytes.get(skipped..));
        let entries = Entry::iter(table.unwrap_or_default()).take(count.unwrap_or(usize::MAX));
        (first_slot..).zip(entries)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{ENTRY_BYTES, Entry, EntryState, Seq};
    use crate::writecache::{BlockSize, Geometry};

    #[test]
    fn free_slot_is_known_by_its_seq_alone() {
        let stale = Entry { original_sector: 80, seq: Seq::FREE };
        assert_eq!(stale.state(Seq(7)), EntryState::Free);
        assert_eq!(stale.state(Seq::FREE), EntryState::Free);
        assert_eq!(Entry::NEVER_USED.encode(), [0xFF; ENTRY_BYTES]);
    }

    #[test]
    fn entry_is_committed_once_the_superblock_seq_is_larger() {
        let entry = Entry { original_sector: 80, seq: Seq(3) };
        assert_eq!(entry.state(Seq(3)), EntryState::Uncommitted);
        assert_eq!(entry.state(Seq(4)), EntryState::Committed);
    }

    #[test]
    fn the_commit_number_never_becomes_the_mark_of_a_free_slot() {
        assert_eq!(Seq(4).next(), Some(Seq(5)));
        assert_eq!(Seq(u64::MAX - 1).next(), None);
        assert_eq!(Seq::FREE.next(), None);
    }

    #[test]
    fn an_entry_beyond_the_bytes_is_absent() {
        let metadata = [0; 64 + 16 + 15];
        assert!(Entry::read_at(&metadata, 0).is_some());
        assert_eq!(Entry::read_at(&metadata, 1), None);
        assert_eq!(Entry::read_at(&metadata, u64::MAX), None);
    }

    proptest! {
        #[test]
        fn an_entry_survives_encoding_and_decoding(sector in any::<u64>(), seq in any::<u64>()) {
            let entry = Entry { original_sector: sector, seq: Seq(seq) };
            prop_assert_eq!(Entry::decode(&entry.encode()), entry);
            prop_assert_eq!(&entry.encode()[..8], &sector.to_le_bytes());
            prop_assert_eq!(&entry.encode()[8..], &seq.to_le_bytes());
        }

        #[test]
        fn chunks_of_any_size_yield_the_same_entries_as_the_whole(
            n_blocks in 1u64..300,
            chunk_entries in 1usize..40,
            seed in any::<u64>(),
        ) {
            let area = n_blocks * 528 + 1024;
            let geometry = Geometry::for_format(area, BlockSize::new(512).unwrap()).unwrap();
            let metadata_bytes = usize::try_from(geometry.metadata_bytes()).unwrap();
            let mut metadata = vec![0; metadata_bytes];
            for slot in 0..geometry.n_blocks() {
                let entry = Entry { original_sector: slot ^ seed, seq: Seq(slot) };
                entry.write_at(&mut metadata, slot);
            }
            let mut found = Vec::new();
            let chunk_bytes = chunk_entries * ENTRY_BYTES;
            for (i, chunk) in metadata.chunks(chunk_bytes).enumerate() {
                found.extend(geometry.entries_in((i * chunk_bytes) as u64, chunk));
            }
            let expected: Vec<(u64, Entry)> = (0..geometry.n_blocks())
                .map(|slot| (slot, Entry::read_at(&metadata, slot).unwrap()))
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
