//! A B-tree node as it lies in a block, for reading.
//!
//! ```text
//! 0         header, 32 bytes
//! 32        keys[max_entries], 8 bytes each; the first nr_entries count, strictly increasing
//! 32+8*max  values[max_entries]
//! ```
//!
//! Promises that no index below `len` reaches outside the block, that keys increase, and that
//! nothing is copied. In an internal node, key `i` is at most the smallest key below child `i`, and
//! above every key below child `i - 1`. Never checks whether children exist, or the structure of a
//! tree.

use core::mem::{offset_of, size_of};
use core::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{self, BLOCK_BYTES, Block, Kind};
use super::{Error, Field, MetadataBlock, Value};

/// Bytes before the keys.
pub const NODE_HEADER_BYTES: usize = 32;
const KEY_BYTES: usize = 8;
const FLAG_INTERNAL: u32 = 1;
const FLAG_LEAF: u32 = 2;

/// A node's header as it lies on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawHeader {
    csum: U32,
    pub(super) flags: U32,
    blocknr: U64,
    pub(super) nr_entries: U32,
    pub(super) max_entries: U32,
    pub(super) value_size: U32,
    padding: U32,
}

macro_rules! field {
    ($name:ident, $type:ty) => {
        Field {
            name: stringify!($name),
            offset: offset_of!(RawHeader, $name),
            size: size_of::<$type>(),
        }
    };
}

/// Where each field of a node's header lies.
pub const NODE_FIELDS: [Field; 7] = [
    field!(csum, U32),
    field!(flags, U32),
    field!(blocknr, U64),
    field!(nr_entries, U32),
    field!(max_entries, U32),
    field!(value_size, U32),
    field!(padding, U32),
];

const _: () = {
    assert!(size_of::<RawHeader>() == NODE_HEADER_BYTES);
    assert!(offset_of!(RawHeader, nr_entries) == 16);
    assert!(capacity(4) == 336 && capacity(8) == 252 && capacity(16) == 168 && capacity(24) == 126);
};

/// Entries of a node with values of this size: as many as fit, rounded down to a multiple of three.
#[must_use]
pub const fn capacity(value_bytes: usize) -> usize {
    (BLOCK_BYTES - NODE_HEADER_BYTES) / (KEY_BYTES + value_bytes) / 3 * 3
}

/// What a node's values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeKind {
    /// Children.
    Internal,
    /// The tree's own values.
    Leaf,
}

impl NodeKind {
    pub(super) fn flags(self) -> u32 {
        match self {
            NodeKind::Internal => FLAG_INTERNAL,
            NodeKind::Leaf => FLAG_LEAF,
        }
    }
}

/// How a node's block is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) kind: NodeKind,
    pub(super) len: usize,
    pub(super) max: usize,
    pub(super) value_bytes: usize,
}

impl Shape {
    /// Checks the header, and nothing else.
    fn of(bytes: &Block) -> Result<Shape, Error> {
        let at = block::number(bytes);
        let raw = header(bytes);
        let kind = match raw.flags.get() {
            FLAG_INTERNAL => NodeKind::Internal,
            FLAG_LEAF => NodeKind::Leaf,
            found => return Err(Error::BadNodeFlags { at, found }),
        };
        let (value_size, child) = (raw.value_size.get(), MetadataBlock::BYTES as u32);
        if kind == NodeKind::Internal && value_size != child {
            return Err(Error::BadValueSize { at, found: value_size, expected: child });
        }
        // A value size beyond the block size has capacity zero, as the block size itself has.
        let value_bytes = value_size.min(BLOCK_BYTES as u32) as usize;
        let (found, max) = (raw.max_entries.get(), capacity(value_bytes));
        if max == 0 || found as usize != max {
            return Err(Error::BadMaxEntries { at, found, expected: max as u32 });
        }
        let (found, most) = (raw.nr_entries.get(), max as u32);
        if found > most {
            return Err(Error::BadEntryCount { at, found, least: 0, most });
        }
        Ok(Shape { kind, len: found as usize, max, value_bytes })
    }

    /// Bytes of some entries' keys.
    pub(super) fn keys(&self, entries: Range<usize>) -> Range<usize> {
        let at = |entry| NODE_HEADER_BYTES + entry * KEY_BYTES;
        at(entries.start)..at(entries.end)
    }

    /// Bytes of some entries' values.
    pub(super) fn values(&self, entries: Range<usize>) -> Range<usize> {
        let begin = NODE_HEADER_BYTES + self.max * KEY_BYTES;
        let at = |entry| begin + entry * self.value_bytes;
        at(entries.start)..at(entries.end)
    }
}

fn header(bytes: &Block) -> &RawHeader {
    let (raw, _rest) = RawHeader::ref_from_prefix(bytes)
        .expect("a block is longer than the header, which needs no alignment");
    raw
}

/// A node in a block.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    bytes: &'a Block,
    shape: Shape,
}

impl<'a> Node<'a> {
    /// Reads the node that lies at `at` and checks it fully: checksum, place, header, order of
    /// keys. An internal node must have entries; only one that is being changed in memory may have
    /// none.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &'a Block, at: MetadataBlock) -> Result<Node<'a>, Error> {
        block::verify(bytes, Kind::Node, at)?;
        let node = Node::cached(bytes)?;
        if node.kind() == NodeKind::Internal && node.is_empty() {
            let most = node.max() as u32;
            return Err(Error::BadEntryCount { at, found: 0, least: 1, most });
        }
        node.keys_increase().map(|()| node)
    }

    /// Reads a node that was decoded before, or is being changed in memory: checks only its header,
    /// which is cheap.
    ///
    /// # Errors
    /// The header is not that of a node.
    pub fn cached(bytes: &'a Block) -> Result<Node<'a>, Error> {
        Shape::of(bytes).map(|shape| Node { bytes, shape })
    }

    pub(super) fn with_shape(bytes: &'a Block, shape: Shape) -> Node<'a> {
        Node { bytes, shape }
    }

    /// Refuses a leaf whose values are not of this type's size. Internal nodes pass.
    ///
    /// # Errors
    /// [`Error::BadValueSize`].
    pub fn expect<V: Value>(self) -> Result<Node<'a>, Error> {
        if self.kind() == NodeKind::Internal || self.shape.value_bytes == V::BYTES {
            return Ok(self);
        }
        let (found, expected) = (self.shape.value_bytes as u32, V::BYTES as u32);
        Err(Error::BadValueSize { at: self.at(), found, expected })
    }

    fn keys_increase(&self) -> Result<(), Error> {
        let keys = self.raw_keys();
        let wrong = keys.windows(2).position(|pair| pair[0].get() >= pair[1].get());
        wrong.map_or(Ok(()), |index| {
            let (before, found) = (keys[index].get(), keys[index + 1].get());
            Err(Error::KeysOutOfOrder { at: self.at(), index: index + 1, found, before })
        })
    }

    /// The number that the block contains.
    #[must_use]
    pub fn at(&self) -> MetadataBlock {
        block::number(self.bytes)
    }

    /// Internal or leaf.
    #[must_use]
    pub fn kind(&self) -> NodeKind {
        self.shape.kind
    }

    /// Whether it is a leaf.
    #[must_use]
    pub fn is_leaf(&self) -> bool {
        self.shape.kind == NodeKind::Leaf
    }

    /// Entries in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.len
    }

    /// Whether it has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shape.len == 0
    }

    /// The number of entries that fit.
    #[must_use]
    pub fn max(&self) -> usize {
        self.shape.max
    }

    /// Size of a value.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.shape.value_bytes
    }

    /// The key of entry `index`, below [`Node::len`].
    #[must_use]
    pub fn key(&self, index: usize) -> u64 {
        self.raw_keys()[index].get()
    }

    /// All keys in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = u64> + DoubleEndedIterator + Clone + 'a {
        self.raw_keys().iter().map(|key| key.get())
    }

    /// The value of entry `index`, below [`Node::len`].
    ///
    /// # Panics
    /// If the node's values have another size; see [`Node::expect`].
    #[must_use]
    pub fn value<V: Value>(&self, index: usize) -> V {
        V::decode(self.raw_value(index))
    }

    /// The child of entry `index` of an internal node, or the root in a leaf of the top-level tree.
    #[must_use]
    pub fn child(&self, index: usize) -> MetadataBlock {
        self.value(index)
    }

    /// The bytes of the value of entry `index`, below [`Node::len`].
    #[must_use]
    pub fn raw_value(&self, index: usize) -> &'a [u8] {
        assert!(index < self.shape.len, "entry {index} of {}", self.shape.len);
        &self.bytes[self.shape.values(index..index + 1)]
    }

    /// All entries in order.
    ///
    /// # Panics
    /// If the node's values have another size; see [`Node::expect`].
    pub fn entries<V: Value>(&self) -> impl ExactSizeIterator<Item = (u64, V)> + 'a {
        let values = &self.bytes[self.shape.values(0..self.shape.len)];
        assert_eq!(self.shape.value_bytes, V::BYTES, "values of another type");
        self.keys().zip(values.chunks_exact(V::BYTES).map(V::decode))
    }

    /// The first entry whose key is not below `key`; [`Node::len`] if there is none.
    #[must_use]
    pub fn lower_bound(&self, key: u64) -> usize {
        self.raw_keys().partition_point(|entry| entry.get() < key)
    }

    /// The entry with exactly this key.
    #[must_use]
    pub fn find(&self, key: u64) -> Option<usize> {
        let index = self.lower_bound(key);
        (index < self.len() && self.key(index) == key).then_some(index)
    }

    /// The last entry whose key is not above `key`: the child to descend into. `None` if every key
    /// is above; then the key is not in the tree.
    #[must_use]
    pub fn descend(&self, key: u64) -> Option<usize> {
        self.raw_keys().partition_point(|entry| entry.get() <= key).checked_sub(1)
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn bytes(&self) -> &'a Block {
        self.bytes
    }

    fn raw_keys(&self) -> &'a [U64] {
        <[U64]>::ref_from_bytes(&self.bytes[self.shape.keys(0..self.shape.len)])
            .expect("keys need no alignment and the length is a multiple of their size")
    }
}

#[cfg(test)]
mod tests {
    use super::{Node, NodeKind, capacity};
    use crate::thin::block::{self, BLOCK_BYTES, Block, Kind};
    use crate::thin::{DeviceDetails, Error, Mapping, MetadataBlock, NodeMut, RefCount};

    const AT: MetadataBlock = MetadataBlock(5);

    fn node(keys: &[u64]) -> Block {
        let mut bytes = [0; BLOCK_BYTES];
        let mut node = NodeMut::init(&mut bytes, NodeKind::Internal, 8);
        for (index, key) in keys.iter().enumerate() {
            node.insert_at(index, *key, MetadataBlock(100 + key));
        }
        block::seal(&mut bytes, Kind::Node, AT);
        bytes
    }

    fn patched(offset: usize, value: u32) -> Result<(), Error> {
        let mut bytes = node(&[1, 2]);
        bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        block::seal(&mut bytes, Kind::Node, AT);
        Node::decode(&bytes, AT).map(|_| ())
    }

    #[test]
    fn searching_tells_bound_match_and_child() {
        let bytes = node(&[3, 5, 9]);
        let node = Node::decode(&bytes, AT).unwrap();
        assert_eq!([0, 3, 4, 9, 10].map(|key| node.lower_bound(key)), [0, 0, 1, 2, 3]);
        assert_eq!([3, 4, 9].map(|key| node.find(key)), [Some(0), None, Some(2)]);
        assert_eq!([2, 3, 8, 99].map(|key| node.descend(key)), [None, Some(0), Some(1), Some(2)]);
        assert_eq!(node.child(1), MetadataBlock(105));
        assert_eq!(node.keys().collect::<Vec<_>>(), [3, 5, 9]);
    }

    #[test]
    fn each_wrong_header_is_refused_for_its_own_reason() {
        let at = AT;
        for found in [0, 3, 4] {
            assert_eq!(patched(4, found), Err(Error::BadNodeFlags { at, found }));
        }
        for (found, least) in [(0, 1), (253, 0), (u32::MAX, 0)] {
            let expected = Error::BadEntryCount { at, found, least, most: 252 };
            assert_eq!(patched(16, found), Err(expected));
        }
        for found in [0, 251, u32::MAX] {
            assert_eq!(patched(20, found), Err(Error::BadMaxEntries { at, found, expected: 252 }));
        }
        for found in [0, 16, u32::MAX] {
            assert_eq!(patched(24, found), Err(Error::BadValueSize { at, found, expected: 8 }));
        }
        let expected = Error::KeysOutOfOrder { at, index: 1, found: 2, before: 2 };
        assert_eq!(patched(32, 2), Err(expected));
    }

    #[test]
    fn a_leaf_of_values_larger_than_a_block_is_refused() {
        for found in [0, 1360, 4096, u32::MAX] {
            let mut bytes = [0; BLOCK_BYTES];
            NodeMut::init(&mut bytes, NodeKind::Leaf, 4);
            bytes[24..28].copy_from_slice(&found.to_le_bytes());
            assert!(Node::cached(&bytes).is_err(), "{found}");
        }
    }

    #[test]
    fn a_leaf_must_have_the_values_of_its_tree() {
        let mut bytes = [0; BLOCK_BYTES];
        NodeMut::init(&mut bytes, NodeKind::Leaf, 24);
        let node = Node::cached(&bytes).unwrap();
        assert_eq!((node.max(), node.is_empty()), (capacity(24), true));
        assert!(node.expect::<DeviceDetails>().is_ok());
        assert!(node.expect::<Mapping>().is_err() && node.expect::<RefCount>().is_err());
    }
}
