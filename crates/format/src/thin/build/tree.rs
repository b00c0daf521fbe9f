//! A B-tree built from the leaves up: entries come in order, full nodes are written.
//!
//! Each level keeps two nodes in memory, the last full one and the one being filled, so that the
//! last two can be balanced when the tree ends. A node that is written is added to the level above.

use core::marker::PhantomData;

use rustc_hash::FxHashMap;

use super::{Allocator, BuildError, WriteBlocks};
use crate::thin::block::{BLOCK_BYTES, Block, Kind};
use crate::thin::{MetadataBlock, Node, NodeKind, NodeMut, Value};

/// The leaves of other metadata that were copied, and the blocks of their copies.
#[derive(Default)]
pub(super) struct Copies(FxHashMap<MetadataBlock, MetadataBlock>);

/// A node that was not written yet.
struct Kept {
    bytes: Box<Block>,
    /// The leaf of other metadata of which it is a copy.
    source: Option<MetadataBlock>,
}

/// One level.
struct Level {
    kind: NodeKind,
    value_bytes: usize,
    full: Option<Kept>,
    filling: Box<Block>,
}

impl Level {
    fn new(kind: NodeKind, value_bytes: usize) -> Level {
        let mut level =
            Level { kind, value_bytes, full: None, filling: Box::new([0; BLOCK_BYTES]) };
        level.clear();
        level
    }

    fn clear(&mut self) {
        NodeMut::init(&mut self.filling, self.kind, self.value_bytes);
    }

    fn filling(&mut self) -> NodeMut<'_> {
        NodeMut::cached(&mut self.filling).expect("it was made here")
    }

    /// Makes the node being filled the full one; returns the full one before it.
    fn turn(&mut self) -> Option<Kept> {
        let bytes = self.filling.clone();
        self.clear();
        self.full.replace(Kept { bytes, source: None })
    }

    /// Balances the two nodes, so that neither is less than a third full; merges them if they fit
    /// into one.
    fn even_out(&mut self) {
        let least = self.filling().view().max() / 3;
        let (len, Some(full)) = (self.filling().len(), &mut self.full) else { return };
        if len == 0 || len >= least {
            return;
        }
        full.source = None;
        let mut left = NodeMut::cached(&mut full.bytes).expect("it was made here");
        let mut right = NodeMut::cached(&mut self.filling).expect("it was made here");
        if len <= left.room() {
            left.take_from(&mut right, len);
        } else {
            left.split_to((left.len() + len).div_ceil(2), &mut right);
        }
    }
}

/// A tree being built.
pub(super) struct TreeBuilder<V> {
    /// Starting with the leaves.
    levels: Vec<Level>,
    value: PhantomData<V>,
}

/// Leaves that were written for the first time.
pub(super) type Written = Vec<Block>;

type Built<T, W> = Result<T, BuildError<<W as WriteBlocks>::Error>>;

impl<V: Value> TreeBuilder<V> {
    pub(super) fn new() -> TreeBuilder<V> {
        TreeBuilder { levels: vec![Level::new(NodeKind::Leaf, V::BYTES)], value: PhantomData }
    }

    /// Adds an entry; its key must be above all before.
    pub(super) fn push<W: WriteBlocks>(
        &mut self,
        key: u64,
        value: V,
        copies: &mut Copies,
        allocator: &mut Allocator<W>,
    ) -> Built<Written, W> {
        let leaves = &mut self.levels[0];
        let mut filling = leaves.filling();
        let (len, room) = (filling.len(), filling.room());
        if room > 0 {
            filling.insert_at(len, key, value);
            return Ok(Written::new());
        }
        let kept = leaves.turn();
        leaves.filling().insert_at(0, key, value);
        let mut written = Written::new();
        if let Some(kept) = kept {
            self.put_leaf(kept, copies, allocator, &mut written)?;
        }
        Ok(written)
    }

    /// Adds a whole leaf of other metadata: as one node, if no node gets too empty by that.
    pub(super) fn push_leaf<W: WriteBlocks>(
        &mut self,
        source: MetadataBlock,
        leaf: &Node<'_>,
        copies: &mut Copies,
        allocator: &mut Allocator<W>,
    ) -> Built<Written, W> {
        let (mut written, least) = (Written::new(), leaf.max() / 3);
        let len = self.levels[0].filling().len();
        if leaf.len() < least || len > 0 && len < least {
            for (key, value) in leaf.entries::<V>() {
                written.extend(self.push(key, value, copies, allocator)?);
            }
            return Ok(written);
        }
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        let mut copy = NodeMut::init(&mut bytes, NodeKind::Leaf, V::BYTES);
        copy.insert_from(0, *leaf, 0..leaf.len());
        let leaves = &mut self.levels[0];
        let mut before = Vec::new();
        if len > 0 {
            before.extend(leaves.turn());
        }
        before.extend(leaves.full.replace(Kept { bytes, source: Some(source) }));
        for kept in before {
            self.put_leaf(kept, copies, allocator, &mut written)?;
        }
        Ok(written)
    }

    /// Writes a leaf, or adds a pointer to the copy of the same source that was written before.
    fn put_leaf<W: WriteBlocks>(
        &mut self,
        mut kept: Kept,
        copies: &mut Copies,
        allocator: &mut Allocator<W>,
        written: &mut Written,
    ) -> Built<MetadataBlock, W> {
        let known = kept.source.and_then(|source| copies.0.get(&source).copied());
        let at = match known {
            Some(at) => {
                allocator.share(at);
                at
            }
            None => {
                let at = allocator.allocate()?;
                allocator.place(at, Kind::Node, &mut kept.bytes)?;
                if let Some(source) = kept.source {
                    copies.0.insert(source, at);
                }
                written.push(*kept.bytes);
                at
            }
        };
        self.point(1, first_key(&kept.bytes), at, allocator)?;
        Ok(at)
    }

    /// Adds a pointer to a level, and writes the node that becomes full.
    fn point<W: WriteBlocks>(
        &mut self,
        level: usize,
        key: u64,
        child: MetadataBlock,
        allocator: &mut Allocator<W>,
    ) -> Built<(), W> {
        if level == self.levels.len() {
            self.levels.push(Level::new(NodeKind::Internal, MetadataBlock::BYTES));
        }
        let here = &mut self.levels[level];
        let kept = if here.filling().room() == 0 { here.turn() } else { None };
        let mut filling = here.filling();
        let len = filling.len();
        filling.insert_at(len, key, child);
        match kept {
            Some(kept) => self.put_internal(level, kept, allocator).map(drop),
            None => Ok(()),
        }
    }

    fn put_internal<W: WriteBlocks>(
        &mut self,
        level: usize,
        mut kept: Kept,
        allocator: &mut Allocator<W>,
    ) -> Built<MetadataBlock, W> {
        let at = allocator.allocate()?;
        allocator.place(at, Kind::Node, &mut kept.bytes)?;
        self.point(level + 1, first_key(&kept.bytes), at, allocator)?;
        Ok(at)
    }

    /// Writes the remaining nodes, and returns the root.
    pub(super) fn finish<W: WriteBlocks>(
        mut self,
        copies: &mut Copies,
        allocator: &mut Allocator<W>,
    ) -> Built<(MetadataBlock, Written), W> {
        let mut written = Written::new();
        let mut level = 0;
        loop {
            let here = &mut self.levels[level];
            here.even_out();
            let mut left = Vec::from_iter(here.full.take());
            if !here.filling().is_empty() || left.is_empty() {
                let bytes = here.filling.clone();
                left.push(Kept { bytes, source: None });
            }
            // The only node of the highest level is the root: no node points to it.
            let is_root = left.len() == 1 && level + 1 == self.levels.len();
            let mut last = MetadataBlock::SUPERBLOCK;
            for kept in left {
                last = match level {
                    0 => self.put_leaf(kept, copies, allocator, &mut written)?,
                    _ => self.put_internal(level, kept, allocator)?,
                };
            }
            if is_root {
                return Ok((last, written));
            }
            level += 1;
        }
    }
}

/// Builds a tree from entries with ascending keys.
pub(super) fn build<V: Value, W: WriteBlocks>(
    entries: impl Iterator<Item = (u64, V)>,
    allocator: &mut Allocator<W>,
) -> Built<MetadataBlock, W> {
    let (mut tree, mut none) = (TreeBuilder::new(), Copies::default());
    for (key, value) in entries {
        tree.push(key, value, &mut none, allocator)?;
    }
    tree.finish(&mut none, allocator).map(|(root, _)| root)
}

fn first_key(bytes: &Block) -> u64 {
    let node = Node::cached(bytes).expect("it was built here");
    // An empty node is a root, to which nothing points by key.
    node.keys().next().unwrap_or(0)
}
