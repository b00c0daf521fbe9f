//! One exception record, and the list of them in an area.
//!
//! Promises to read records in place, without copying or allocating. Never decides whether a record
//! makes sense: any sixteen bytes are a record.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CowChunk, Field, OriginChunk};

/// Size of one record.
pub const RECORD_BYTES: usize = 16;

/// A record as it lies on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRecord {
    old_chunk: U64,
    new_chunk: U64,
}

/// Where each field of a record lies.
pub const RECORD_FIELDS: [Field; 2] = [
    Field { name: "old_chunk", offset: offset_of!(RawRecord, old_chunk), size: size_of::<U64>() },
    Field { name: "new_chunk", offset: offset_of!(RawRecord, new_chunk), size: size_of::<U64>() },
];

const _: () = {
    assert!(size_of::<RawRecord>() == RECORD_BYTES);
    assert!(align_of::<RawRecord>() == 1);
    assert!(offset_of!(RawRecord, old_chunk) == 0);
    assert!(offset_of!(RawRecord, new_chunk) == 8);
};

/// One exception: a chunk of the origin, and where on the COW device it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Record {
    /// Chunk of the origin (and of the snapshot).
    pub old: OriginChunk,
    /// Chunk of the COW device; 0 ends the list.
    pub new: CowChunk,
}

impl Record {
    /// An empty slot: it ends the list, and overwrites a merged record.
    pub const END: Record = Record { old: OriginChunk(0), new: CowChunk(0) };

    /// Whether the list ends here. The old chunk does not matter.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.new == CowChunk(0)
    }

    /// Decodes one record.
    #[must_use]
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Record {
        Record::from_raw(zerocopy::transmute_ref!(bytes))
    }

    /// Encodes one record.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        zerocopy::transmute!(RawRecord {
            old_chunk: U64::new(self.old.0),
            new_chunk: U64::new(self.new.0),
        })
    }

    /// Writes the record into a slot of an area.
    ///
    /// # Panics
    /// If the area ends before the slot: the slot came from the caller, not from disk.
    pub fn write_at(&self, area: &mut [u8], slot: usize) {
        area[slot * RECORD_BYTES..][..RECORD_BYTES].copy_from_slice(&self.encode());
    }

    /// Iterates over all slots of an area or a piece of one, including the end of the list and what
    /// follows it. Bytes after the last whole slot are ignored.
    pub fn slots(area: &[u8]) -> impl ExactSizeIterator<Item = Record> + Clone + '_ {
        let whole = area.len() / RECORD_BYTES * RECORD_BYTES;
        let raw = <[RawRecord]>::ref_from_bytes(&area[..whole])
            .expect("records need no alignment and the length is a multiple of their size");
        raw.iter().map(Record::from_raw)
    }

    fn from_raw(raw: &RawRecord) -> Record {
        Record { old: OriginChunk(raw.old_chunk.get()), new: CowChunk(raw.new_chunk.get()) }
    }
}

/// The records of an area, up to the first that ends the list. If there are as many as the area has
/// slots, the list continues in the next area.
pub fn records(area: &[u8]) -> impl Iterator<Item = Record> + Clone + '_ {
    Record::slots(area).take_while(|record| !record.is_end())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{RECORD_BYTES, Record, records};
    use crate::snapshot::{CowChunk, OriginChunk};

    fn record(old: u64, new: u64) -> Record {
        Record { old: OriginChunk(old), new: CowChunk(new) }
    }

    #[test]
    fn the_first_zero_new_chunk_ends_the_list() {
        let mut area = [0; 512];
        for (slot, each) in
            [record(0, 2), record(9, 3), record(7, 0), record(5, 4)].into_iter().enumerate()
        {
            each.write_at(&mut area, slot);
        }
        assert_eq!(records(&area).collect::<Vec<_>>(), [record(0, 2), record(9, 3)]);
        assert_eq!(Record::slots(&area).len(), 32);
    }

    #[test]
    fn a_cleared_record_is_all_zero() {
        assert_eq!(Record::END.encode(), [0; RECORD_BYTES]);
        assert!(Record::END.is_end());
    }

    proptest! {
        #[test]
        fn a_record_survives_encoding_and_decoding(old in any::<u64>(), new in any::<u64>()) {
            let record = record(old, new);
            prop_assert_eq!(Record::decode(&record.encode()), record);
            prop_assert_eq!(&record.encode()[..8], &old.to_le_bytes());
            prop_assert_eq!(&record.encode()[8..], &new.to_le_bytes());
        }
    }
}
