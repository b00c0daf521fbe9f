//! A B-tree built from below: entries come in order, nodes go out full.
//!
//! Each level keeps two nodes back, the last full one and the one being filled, so that the last
//! two can be evened out when the tree ends. What is written is given to the level above.

use core::marker::PhantomData;

use rustc_hash::FxHashMap;

use super::{BuildError, Ground, WriteBlocks};
use crate::thin::block::{BLOCK_BYTES, Block, Kind};
use crate::thin::{MetadataBlock, Node, NodeKind, NodeMut, Value};

/// Leaves of other metadata that were written, and where.
#[derive(Default)]
pub(super) struct Forest(FxHashMap<MetadataBlock, MetadataBlock>);

/// A node kept back.
struct Kept {
    bytes: Box<Block>,
    /// The leaf of other metadata that it is a copy of.
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

    /// Keeps what is being filled back as full; gives what was kept before.
    fn turn(&mut self) -> Option<Kept> {
        let bytes = self.filling.clone();
        self.clear();
        self.full.replace(Kept { bytes, source: None })
    }

    /// Evens the two nodes out, so that neither is less than a third full: one if one is enough.
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
    /// From the leaves up.
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

    /// Adds an entry, of a key above all before.
    pub(super) fn push<W: WriteBlocks>(
        &mut self,
        key: u64,
        value: V,
        forest: &mut Forest,
        ground: &mut Ground<W>,
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
            self.put_leaf(kept, forest, ground, &mut written)?;
        }
        Ok(written)
    }

    /// Adds a whole leaf of other metadata: as one, if that leaves no node too empty.
    pub(super) fn push_leaf<W: WriteBlocks>(
        &mut self,
        source: MetadataBlock,
        leaf: &Node<'_>,
        forest: &mut Forest,
        ground: &mut Ground<W>,
    ) -> Built<Written, W> {
        let (mut written, least) = (Written::new(), leaf.max() / 3);
        let len = self.levels[0].filling().len();
        if leaf.len() < least || len > 0 && len < least {
            for (key, value) in leaf.entries::<V>() {
                written.extend(self.push(key, value, forest, ground)?);
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
            self.put_leaf(kept, forest, ground, &mut written)?;
        }
        Ok(written)
    }

    /// Writes a leaf, or points to the one that was written of the same source.
    fn put_leaf<W: WriteBlocks>(
        &mut self,
        mut kept: Kept,
        forest: &mut Forest,
        ground: &mut Ground<W>,
        written: &mut Written,
    ) -> Built<MetadataBlock, W> {
        let known = kept.source.and_then(|source| forest.0.get(&source).copied());
        let at = match known {
            Some(at) => {
                ground.share(at);
                at
            }
            None => {
                let at = ground.allocate()?;
                ground.place(at, Kind::Node, &mut kept.bytes)?;
                if let Some(source) = kept.source {
                    forest.0.insert(source, at);
                }
                written.push(*kept.bytes);
                at
            }
        };
        self.point(1, first_key(&kept.bytes), at, ground)?;
        Ok(at)
    }

    /// Adds a pointer to the level, and writes what becomes full.
    fn point<W: WriteBlocks>(
        &mut self,
        level: usize,
        key: u64,
        child: MetadataBlock,
        ground: &mut Ground<W>,
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
            Some(kept) => self.put_internal(level, kept, ground).map(drop),
            None => Ok(()),
        }
    }

    fn put_internal<W: WriteBlocks>(
        &mut self,
        level: usize,
        mut kept: Kept,
        ground: &mut Ground<W>,
    ) -> Built<MetadataBlock, W> {
        let at = ground.allocate()?;
        ground.place(at, Kind::Node, &mut kept.bytes)?;
        self.point(level + 1, first_key(&kept.bytes), at, ground)?;
        Ok(at)
    }

    /// Writes what is left, and gives the root.
    pub(super) fn finish<W: WriteBlocks>(
        mut self,
        forest: &mut Forest,
        ground: &mut Ground<W>,
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
            // The one node of the highest level is the root: nothing points to it but the caller.
            let is_root = left.len() == 1 && level + 1 == self.levels.len();
            let mut last = MetadataBlock::SUPERBLOCK;
            for kept in left {
                last = match level {
                    0 => self.put_leaf(kept, forest, ground, &mut written)?,
                    _ => self.put_internal(level, kept, ground)?,
                };
            }
            if is_root {
                return Ok((last, written));
            }
            level += 1;
        }
    }
}

/// A whole tree of entries that ascend.
pub(super) fn build<V: Value, W: WriteBlocks>(
    entries: impl Iterator<Item = (u64, V)>,
    ground: &mut Ground<W>,
) -> Built<MetadataBlock, W> {
    let (mut tree, mut none) = (TreeBuilder::new(), Forest::default());
    for (key, value) in entries {
        tree.push(key, value, &mut none, ground)?;
    }
    tree.finish(&mut none, ground).map(|(root, _)| root)
}

fn first_key(bytes: &Block) -> u64 {
    let node = Node::cached(bytes).expect("it was built here");
    // An empty node is a root, to which nothing points by key.
    node.keys().next().unwrap_or(0)
}
