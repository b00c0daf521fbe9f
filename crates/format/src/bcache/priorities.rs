//! Priorities: for each bucket how recently it was used, and its generation.
//!
//! They take one or more prio_sets, each in a bucket of its own. A prio_set names the bucket of the
//! next one. The last one names any bucket, so that a reader counts them.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::crc::crc64;
use super::{Generation, Geometry, SetMagic};
use crate::Field;

/// Bytes of the header of a prio_set.
pub const HEADER_BYTES: usize = 40;
/// Bytes for each bucket.
pub const RECORD_BYTES: usize = 3;
/// The priority of a bucket with metadata.
pub const METADATA: u16 = 0xffff;
/// The priority of a bucket that was just used.
pub const JUST_USED: u16 = 0x8000;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    csum: U64,
    magic: U64,
    seq: U64,
    version: U32,
    pad: U32,
    next_bucket: U64,
}

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRecord {
    prio: U16,
    gen_: u8,
}

macro_rules! field {
    ($name:ident, $size:expr) => {
        Field { name: stringify!($name), offset: offset_of!(RawHeader, $name), size: $size }
    };
}

/// Where each field of the header lies.
pub const PRIORITIES_FIELDS: [Field; 6] = [
    field!(csum, 8),
    field!(magic, 8),
    field!(seq, 8),
    field!(version, 4),
    field!(pad, 4),
    field!(next_bucket, 8),
];

const _: () = {
    assert!(size_of::<RawHeader>() == HEADER_BYTES);
    assert!(size_of::<RawRecord>() == RECORD_BYTES);
};

/// What is known of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    /// How recently it was used.
    pub priority: u16,
    /// Its generation.
    pub generation: Generation,
}

/// A prio_set: the priorities and generations of some buckets.
#[derive(Debug)]
pub struct PrioritySet<'a> {
    /// Its number.
    pub seq: u64,
    /// The bucket of the next prio_set, unless this is the last.
    pub next_bucket: u64,
    records: &'a [RawRecord],
}

/// What is wrong with a prio_set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PrioritiesFault {
    /// Fewer bytes than the header has.
    #[error("priorities: found {0} bytes, expected {HEADER_BYTES} at least")]
    Short(usize),
    /// Something else lies there.
    #[error("priorities: magic: found {found:#018x}, expected {expected:#018x}")]
    Magic {
        /// Magic on the device.
        found: u64,
        /// Magic of the cache set.
        expected: u64,
    },
    /// The bytes changed since they were written.
    #[error("priorities: checksum: found {found:#018x}, expected {expected:#018x}")]
    Checksum {
        /// Checksum on the device.
        found: u64,
        /// Checksum of the bytes.
        expected: u64,
    },
}

impl<'a> PrioritySet<'a> {
    /// Reads a prio_set from all its bytes.
    ///
    /// # Errors
    /// The bytes are not a prio_set, or are damaged.
    pub fn read(bytes: &'a [u8], magic: SetMagic) -> Result<PrioritySet<'a>, PrioritiesFault> {
        let short = |_| PrioritiesFault::Short(bytes.len());
        let (raw, rest) = RawHeader::ref_from_prefix(bytes).map_err(|e| short(e.to_string()))?;
        if raw.magic.get() != magic.priorities() {
            let (found, expected) = (raw.magic.get(), magic.priorities());
            return Err(PrioritiesFault::Magic { found, expected });
        }
        let (found, expected) = (raw.csum.get(), crc64(&bytes[8..]));
        if found != expected {
            return Err(PrioritiesFault::Checksum { found, expected });
        }
        let count = rest.len() / RECORD_BYTES;
        let records = <[RawRecord]>::ref_from_prefix_with_elems(rest, count);
        let (records, _) = records.expect("they were counted");
        Ok(PrioritySet { seq: raw.seq.get(), next_bucket: raw.next_bucket.get(), records })
    }

    /// What is known of each bucket.
    pub fn records(&self) -> impl Iterator<Item = Record> + use<'a> {
        let record =
            |raw: &RawRecord| Record { priority: raw.prio.get(), generation: Generation(raw.gen_) };
        self.records.iter().map(record)
    }
}

/// The `bytes` of a prio_set; `records` may be fewer than it has room for.
#[must_use]
pub fn encode(
    seq: u64,
    next_bucket: u64,
    records: &[Record],
    magic: SetMagic,
    bytes: usize,
) -> Vec<u8> {
    let mut raw = RawHeader::new_zeroed();
    raw.magic = U64::new(magic.priorities());
    raw.seq = U64::new(seq);
    raw.next_bucket = U64::new(next_bucket);
    let mut out = raw.as_bytes().to_vec();
    for record in records {
        let prio = U16::new(record.priority);
        out.extend_from_slice(RawRecord { prio, gen_: record.generation.0 }.as_bytes());
    }
    debug_assert!(out.len() <= bytes, "more records than there is room for");
    out.resize(bytes, 0);
    let csum = crc64(&out[8..]);
    out[..8].copy_from_slice(&csum.to_le_bytes());
    out
}

/// The prio_sets of all buckets, which go to the buckets of `chain`: the first sector of each, and
/// its bytes.
pub fn encode_chain<'a>(
    records: &'a [Record],
    chain: &'a [u64],
    geometry: &'a Geometry,
    magic: SetMagic,
) -> impl Iterator<Item = (u64, Vec<u8>)> + 'a {
    let parts = records.chunks(geometry.priorities_per_set());
    debug_assert_eq!(parts.len(), chain.len(), "a prio_set for each part");
    parts.zip(chain).enumerate().map(move |(index, (part, bucket))| {
        let next = chain.get(index + 1).copied().unwrap_or(0);
        let bytes = encode(1, next, part, magic, geometry.meta_bytes());
        (geometry.sector_of(*bucket), bytes)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{PrioritiesFault, PrioritySet, Record, encode};
    use crate::bcache::{Generation, Uuid};

    proptest! {
        #[test]
        fn decoding_an_encoded_prio_set_gives_its_fields(
            seq: u64,
            next: u64,
            records in proptest::collection::vec(any::<(u16, u8)>(), 0..1351),
            damage in 0..4096_usize * 8,
        ) {
            let record = |(priority, generation)| {
                Record { priority, generation: Generation(generation) }
            };
            let records: Vec<Record> = records.into_iter().map(record).collect();
            let magic = Uuid([7; 16]).set_magic();
            let mut bytes = encode(seq, next, &records, magic, 4096);
            let set = PrioritySet::read(&bytes, magic).expect("sound");
            prop_assert_eq!((set.seq, set.next_bucket), (seq, next));
            prop_assert_eq!(set.records().take(records.len()).collect::<Vec<_>>(), records);
            prop_assert!(set.records().count() == 1352);

            bytes[damage / 8] ^= 1 << (damage % 8);
            prop_assert!(PrioritySet::read(&bytes, magic).is_err());
        }
    }

    #[test]
    fn a_prio_set_of_another_cache_set_is_refused_by_its_magic() {
        let bytes = encode(1, 0, &[], Uuid([7; 16]).set_magic(), 4096);
        let read = PrioritySet::read(&bytes, Uuid([8; 16]).set_magic());
        assert!(matches!(read, Err(PrioritiesFault::Magic { .. })));
    }
}
