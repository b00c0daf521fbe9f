//! A B-tree node being changed in memory: the operations, without the policy.
//!
//! Promises to keep header, keys and values consistent, and never to write outside the node's
//! block. The caller decides when to split, merge, copy or seal, and keeps the keys in order. An
//! index or a length out of range is an error of the caller and panics.

use core::ops::Range;

use zerocopy::FromBytes;

use super::block::{BLOCK_BYTES, Block};
use super::node::{RawHeader, Shape};
use super::{Error, Node, NodeKind, Value, capacity};

/// A node in a block of memory.
#[derive(Debug)]
pub struct NodeMut<'a> {
    bytes: &'a mut Block,
    shape: Shape,
}

impl<'a> NodeMut<'a> {
    /// Makes a block an empty node, whatever it held.
    ///
    /// # Panics
    /// If no value of this size fits, or an internal node's value size is not that of a child.
    pub fn init(bytes: &'a mut Block, kind: NodeKind, value_bytes: usize) -> NodeMut<'a> {
        let max = capacity(value_bytes.min(BLOCK_BYTES));
        assert!(max > 0, "a value of {value_bytes} bytes does not fit");
        assert!(kind == NodeKind::Leaf || value_bytes == 8, "a child has 8 bytes");
        bytes.fill(0);
        let mut node = NodeMut { bytes, shape: Shape { kind, len: 0, max, value_bytes } };
        let header = node.header();
        header.flags.set(kind.flags());
        header.max_entries.set(max as u32);
        header.value_size.set(value_bytes as u32);
        node
    }

    /// Changes a node that was decoded before.
    ///
    /// # Errors
    /// The header is not that of a node.
    pub fn cached(bytes: &'a mut Block) -> Result<NodeMut<'a>, Error> {
        let shape = Node::cached(bytes)?.shape();
        Ok(NodeMut { bytes, shape })
    }

    /// The node as it is now.
    #[must_use]
    pub fn view(&self) -> Node<'_> {
        Node::with_shape(self.bytes, self.shape)
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

    /// The number of entries that can still be added.
    #[must_use]
    pub fn room(&self) -> usize {
        self.shape.max - self.shape.len
    }

    /// Changes between internal and leaf: for a root that gets children, or that takes over the
    /// entries of its last child. Values must have 8 bytes.
    pub fn set_kind(&mut self, kind: NodeKind) {
        assert_eq!(self.shape.value_bytes, 8, "a child has 8 bytes");
        self.shape.kind = kind;
        self.header().flags.set(kind.flags());
    }

    /// Replaces a key.
    pub fn set_key(&mut self, index: usize, key: u64) {
        assert!(index < self.shape.len, "entry {index} of {}", self.shape.len);
        let place = self.shape.keys(index..index + 1);
        self.bytes[place].copy_from_slice(&key.to_le_bytes());
    }

    /// Replaces a value.
    pub fn set_value<V: Value>(&mut self, index: usize, value: V) {
        assert!(index < self.shape.len, "entry {index} of {}", self.shape.len);
        let place = self.shape.values(index..index + 1);
        value.encode(&mut self.bytes[place]);
    }

    /// Inserts an entry before entry `index`; at [`NodeMut::len`] it is appended.
    pub fn insert_at<V: Value>(&mut self, index: usize, key: u64, value: V) {
        self.open(index, 1);
        self.set_key(index, key);
        self.set_value(index, value);
    }

    /// Adds entries at the end.
    pub fn append<V: Value>(&mut self, entries: &[(u64, V)]) {
        let first = self.shape.len;
        self.open(first, entries.len());
        let all = first..self.shape.len;
        let (keys, _) = self.bytes[self.shape.keys(all.clone())].as_chunks_mut::<8>();
        for (place, (key, _)) in keys.iter_mut().zip(entries) {
            *place = key.to_le_bytes();
        }
        let values = self.bytes[self.shape.values(all)].chunks_exact_mut(V::BYTES);
        for (place, (_, value)) in values.zip(entries) {
            value.encode(place);
        }
    }

    /// Removes some entries.
    pub fn remove(&mut self, entries: Range<usize>) {
        assert!(entries.start <= entries.end && entries.end <= self.shape.len, "{entries:?}");
        self.shift(entries.end, entries.start);
        self.set_len(self.shape.len - (entries.end - entries.start));
    }

    /// Inserts some entries of another node before entry `index`.
    pub fn insert_from(&mut self, index: usize, other: Node<'_>, entries: Range<usize>) {
        assert_eq!(other.shape().value_bytes, self.shape.value_bytes, "values of another size");
        assert!(entries.start <= entries.end && entries.end <= other.len(), "{entries:?}");
        let count = entries.end - entries.start;
        self.open(index, count);
        let to = index..index + count;
        let (shape, from) = (other.shape(), other.bytes());
        self.bytes[self.shape.keys(to.clone())].copy_from_slice(&from[shape.keys(entries.clone())]);
        self.bytes[self.shape.values(to)].copy_from_slice(&from[shape.values(entries)]);
    }

    /// Moves the entries from `index` on to the front of `right`, its neighbour or a new node.
    pub fn split_to(&mut self, index: usize, right: &mut NodeMut<'_>) {
        let len = self.shape.len;
        right.insert_from(0, self.view(), index..len);
        self.remove(index..len);
    }

    /// Moves the first `count` entries of `right`, its neighbour, to the end of this node.
    pub fn take_from(&mut self, right: &mut NodeMut<'_>, count: usize) {
        self.insert_from(self.shape.len, right.view(), 0..count);
        right.remove(0..count);
    }

    /// Makes room for `count` entries before entry `index`.
    fn open(&mut self, index: usize, count: usize) {
        assert!(index <= self.shape.len, "entry {index} of {}", self.shape.len);
        assert!(count <= self.room(), "{count} entries where {} fit", self.room());
        self.shift(index, index + count);
        self.set_len(self.shape.len + count);
    }

    /// Moves the entries from index `from` on to index `to`.
    fn shift(&mut self, from: usize, to: usize) {
        let entries = from..self.shape.len;
        self.bytes.copy_within(self.shape.keys(entries.clone()), self.shape.keys(to..to).start);
        self.bytes.copy_within(self.shape.values(entries), self.shape.values(to..to).start);
    }

    fn set_len(&mut self, len: usize) {
        self.shape.len = len;
        self.header().nr_entries.set(len as u32);
    }

    fn header(&mut self) -> &mut RawHeader {
        let (raw, _rest) = RawHeader::mut_from_prefix(self.bytes.as_mut_slice())
            .expect("a block is longer than the header, which needs no alignment");
        raw
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, any, prop_assert_eq, prop_oneof, proptest};
    use proptest::sample::Index;

    use super::NodeMut;
    use crate::thin::block::BLOCK_BYTES;
    use crate::thin::{Mapping, MetadataBlock, Node, NodeKind, RefCount};

    /// An operation of a writer.
    #[derive(Debug, Clone)]
    enum Move {
        Insert(Index, u64, u32),
        Append(Vec<(u64, u32)>),
        Remove(Index, Index),
        Set(Index, u32),
        Split(Index),
        Take(Index),
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            8 => (any::<Index>(), any::<u64>(), any::<u32>())
                .prop_map(|(place, key, value)| Move::Insert(place, key, value)),
            1 => proptest::collection::vec(any::<(u64, u32)>(), 0..40).prop_map(Move::Append),
            1 => (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Move::Remove(a, b)),
            1 => (any::<Index>(), any::<u32>()).prop_map(|(place, value)| Move::Set(place, value)),
            1 => any::<Index>().prop_map(Move::Split),
            1 => any::<Index>().prop_map(Move::Take),
        ];
        proptest::collection::vec(one, 0..600)
    }

    fn content(node: &NodeMut<'_>) -> Vec<(u64, u32)> {
        node.view().entries::<RefCount>().map(|(key, count)| (key, count.0)).collect()
    }

    proptest! {
        #[test]
        fn a_node_and_its_neighbour_behave_as_two_lists(moves in moves()) {
            let (mut one, mut two) = ([0xEE; BLOCK_BYTES], [0xEE; BLOCK_BYTES]);
            let mut left = NodeMut::init(&mut one, NodeKind::Leaf, 4);
            let mut right = NodeMut::init(&mut two, NodeKind::Leaf, 4);
            let (mut first, mut second) = (Vec::new(), Vec::new());
            for step in moves {
                match step {
                    Move::Insert(place, key, value) if left.room() > 0 => {
                        let place = place.index(first.len() + 1);
                        left.insert_at(place, key, RefCount(value));
                        first.insert(place, (key, value));
                    }
                    Move::Append(more) if left.room() >= more.len() => {
                        let more: Vec<_> =
                            more.into_iter().map(|(key, count)| (key, RefCount(count))).collect();
                        left.append(&more);
                        first.extend(more.into_iter().map(|(key, count)| (key, count.0)));
                    }
                    Move::Remove(a, b) => {
                        let (a, b) = (a.index(first.len() + 1), b.index(first.len() + 1));
                        left.remove(a.min(b)..a.max(b));
                        first.drain(a.min(b)..a.max(b));
                    }
                    Move::Set(place, value) if !first.is_empty() => {
                        let place = place.index(first.len());
                        left.set_value(place, RefCount(value));
                        first[place].1 = value;
                    }
                    Move::Split(place) => {
                        let place = place.index(first.len() + 1);
                        let place = place.max(first.len().saturating_sub(right.room()));
                        left.split_to(place, &mut right);
                        second.splice(0..0, first.drain(place..));
                    }
                    Move::Take(count) => {
                        let count = count.index(second.len() + 1).min(left.room());
                        left.take_from(&mut right, count);
                        first.extend(second.drain(..count));
                    }
                    _ => {}
                }
                prop_assert_eq!(content(&left), first.clone());
                prop_assert_eq!(content(&right), second.clone());
            }
            let len = left.len();
            prop_assert_eq!(Node::cached(&one).unwrap().len(), len);
        }
    }

    #[test]
    fn a_root_changes_its_kind_and_keeps_its_entries() {
        let mut bytes = [0; BLOCK_BYTES];
        let mut node = NodeMut::init(&mut bytes, NodeKind::Leaf, 8);
        node.insert_at(0, 7, Mapping::unpack(99));
        node.set_kind(NodeKind::Internal);
        node.set_key(0, 3);
        let node = NodeMut::cached(&mut bytes).unwrap();
        assert_eq!((node.view().kind(), node.view().key(0)), (NodeKind::Internal, 3));
        assert_eq!(node.view().child(0), MetadataBlock(99));
    }

    #[test]
    #[should_panic(expected = "1 entries where 0 fit")]
    fn a_full_node_takes_no_more() {
        let mut bytes = [0; BLOCK_BYTES];
        let mut node = NodeMut::init(&mut bytes, NodeKind::Leaf, 8);
        for key in 0..=252 {
            node.insert_at(key as usize, key, MetadataBlock(key));
        }
    }
}
