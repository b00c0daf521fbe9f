//! The values of B-trees, each with its encoding.
//!
//! Promises that encoding a decoded value returns its bytes. Never checks whether a block number
//! exists.

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DataBlock, Field, MetadataBlock};

/// Bits of a mapping that hold its time; the data block's number is above them.
pub const MAPPING_TIME_BITS: u32 = 24;
const TIME_MASK: u64 = (1 << MAPPING_TIME_BITS) - 1;

/// The value type of a node.
pub trait Value: Copy + 'static {
    /// Its size in bytes, a node's value_size.
    const BYTES: usize;

    /// Reads it.
    ///
    /// # Panics
    /// If the slice has not exactly [`Value::BYTES`]: nodes hand out no other.
    fn decode(bytes: &[u8]) -> Self;

    /// Writes it.
    ///
    /// # Panics
    /// If the slice has not exactly [`Value::BYTES`].
    fn encode(&self, bytes: &mut [u8]);
}

fn u64_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("the caller gives eight bytes"))
}

/// A child of an internal node, or the root of a device's mapping tree.
impl Value for MetadataBlock {
    const BYTES: usize = 8;

    fn decode(bytes: &[u8]) -> MetadataBlock {
        MetadataBlock(u64_of(bytes))
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.to_le_bytes());
    }
}

/// Where a virtual block's data lies, and when it was mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// The data block, below 2^40.
    pub block: DataBlock,
    /// The pool's time when the mapping was made, below 2^24. A mapping older than its device's
    /// last snapshot is shared, or was.
    pub time: u32,
}

impl Mapping {
    /// Decodes the packed number of a tree.
    #[must_use]
    pub fn unpack(packed: u64) -> Mapping {
        let block = DataBlock(packed >> MAPPING_TIME_BITS);
        Mapping { block, time: (packed & TIME_MASK) as u32 }
    }

    /// The packed number for a tree.
    ///
    /// # Panics
    /// If block or time exceed their bits: the allocator and the time's limit prevent it.
    #[must_use]
    pub fn pack(self) -> u64 {
        assert!(self.block < DataBlock::END, "data block {} beyond 40 bits", self.block);
        assert!(u64::from(self.time) <= TIME_MASK, "time {} beyond 24 bits", self.time);
        self.block.0 << MAPPING_TIME_BITS | u64::from(self.time)
    }
}

impl Value for Mapping {
    const BYTES: usize = 8;

    fn decode(bytes: &[u8]) -> Mapping {
        Mapping::unpack(u64_of(bytes))
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.pack().to_le_bytes());
    }
}

/// A reference count of 3 or more, which a bitmap cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefCount(pub u32);

impl Value for RefCount {
    const BYTES: usize = 4;

    fn decode(bytes: &[u8]) -> RefCount {
        RefCount(u32::from_le_bytes(bytes.try_into().expect("the caller gives four bytes")))
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.to_le_bytes());
    }
}

/// Details as they lie in a leaf.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawDetails {
    mapped_blocks: U64,
    transaction_id: U64,
    creation_time: U32,
    snapshotted_time: U32,
}

macro_rules! field {
    ($name:ident, $type:ty) => {
        Field {
            name: stringify!($name),
            offset: offset_of!(RawDetails, $name),
            size: size_of::<$type>(),
        }
    };
}

/// Where each field of a device's details lies.
pub const DEVICE_DETAILS_FIELDS: [Field; 4] = [
    field!(mapped_blocks, U64),
    field!(transaction_id, U64),
    field!(creation_time, U32),
    field!(snapshotted_time, U32),
];

const _: () = {
    assert!(size_of::<RawDetails>() == 24);
    assert!(offset_of!(RawDetails, transaction_id) == 8);
    assert!(offset_of!(RawDetails, creation_time) == 16);
    assert!(offset_of!(RawDetails, snapshotted_time) == 20);
};

/// What a pool stores about one thin volume, apart from its mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceDetails {
    /// Entries in the leaves of its mapping tree.
    pub mapped_blocks: u64,
    /// The user's transaction id when it was created.
    pub transaction_id: u64,
    /// The pool's time when it was created.
    pub creation_time: u32,
    /// The pool's time when it was last snapshotted, or was made by a snapshot.
    pub snapshotted_time: u32,
}

impl Value for DeviceDetails {
    const BYTES: usize = size_of::<RawDetails>();

    fn decode(bytes: &[u8]) -> DeviceDetails {
        let raw = RawDetails::ref_from_bytes(bytes).expect("the caller gives 24 bytes");
        DeviceDetails {
            mapped_blocks: raw.mapped_blocks.get(),
            transaction_id: raw.transaction_id.get(),
            creation_time: raw.creation_time.get(),
            snapshotted_time: raw.snapshotted_time.get(),
        }
    }

    fn encode(&self, bytes: &mut [u8]) {
        let raw = RawDetails {
            mapped_blocks: U64::new(self.mapped_blocks),
            transaction_id: U64::new(self.transaction_id),
            creation_time: U32::new(self.creation_time),
            snapshotted_time: U32::new(self.snapshotted_time),
        };
        bytes.copy_from_slice(raw.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{DeviceDetails, Mapping, Value};
    use crate::thin::DataBlock;

    #[test]
    fn a_mapping_keeps_its_time_below_its_block() {
        let mapping = Mapping { block: DataBlock(5), time: 3 };
        assert_eq!(mapping.pack(), 5 << 24 | 3);
    }

    #[test]
    #[should_panic(expected = "time 16777216 beyond 24 bits")]
    fn a_time_beyond_24_bits_is_not_written() {
        let _packed = Mapping { block: DataBlock(0), time: 1 << 24 }.pack();
    }

    proptest! {
        #[test]
        fn values_survive_decoding_and_encoding(packed in any::<u64>(), raw in any::<[u8; 24]>()) {
            prop_assert_eq!(Mapping::unpack(packed).pack(), packed);
            let mut encoded = [0; 24];
            DeviceDetails::decode(&raw).encode(&mut encoded);
            prop_assert_eq!(encoded, raw);
        }
    }
}
