//! One tree in the order of its keys: first where its leaves are, then the leaves, some hundred at
//! a time.
//!
//! Promises that blocks are read in ascending order although keys are not in that order. Promises
//! that the leaves passed on lie within the keys of their pointers, and that every other part of
//! the tree is reported as a gap. A node with keys lies within one pointer only, so a hostile tree
//! costs no more than its nodes. A path longer than [`LEVELS_MAX`] is a loop.
//!
//! Memory: 24 bytes per leaf, and the blocks of one window.

use rustc_hash::FxHashMap;

use super::block::{BLOCK_BYTES, Block};
use super::blocks::{Bad, Blocks};
use super::walk::{Fault, NodeLocation, Tree};
use super::{MetadataBlock, Node, Value};

/// More levels than any tree has.
pub const LEVELS_MAX: usize = 64;
/// Limit on the leaves in memory.
const WINDOW: usize = 512;

/// A leaf, and the keys that may lie in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafAt {
    /// Its block.
    pub block: MetadataBlock,
    /// The smallest key that may lie there.
    pub first: u64,
    /// The largest key that may lie there.
    pub last: u64,
}

impl LeafAt {
    fn root(block: MetadataBlock) -> LeafAt {
        LeafAt { block, first: 0, last: u64::MAX }
    }

    /// The place, for a finding.
    #[must_use]
    pub fn place(&self, tree: Tree) -> NodeLocation {
        NodeLocation { tree, block: self.block, first: self.first, last: self.last }
    }
}

/// Called for the leaves and the gaps, in the order of keys; may end the reading.
pub type Each<'a, E> = dyn FnMut(&LeafAt, Result<&Node<'_>, Fault>) -> Result<(), E> + 'a;

/// Calls `each` for the leaves of a tree. A gap, that is an internal node that cannot be used, is
/// passed as its fault; some gaps come before the leaves.
///
/// # Errors
/// Reading has to end, or `each` ends it.
pub fn each_leaf<V: Value, B: Blocks, E: From<B::Error>>(
    blocks: &mut B,
    root: MetadataBlock,
    each: &mut Each<'_, E>,
) -> Result<(), E> {
    let leaves = leaves::<V, B, E>(blocks, LeafAt::root(root), 0, each)?;
    windows::<V, B, E>(blocks, &leaves, LEVELS_MAX, each)
}

/// All entries of a small tree; calls `gap` for the gaps in it.
///
/// # Errors
/// Reading has to end.
pub fn entries<V: Value, B: Blocks>(
    blocks: &mut B,
    root: MetadataBlock,
    gap: &mut dyn FnMut(&LeafAt, Fault),
) -> Result<Vec<(u64, V)>, B::Error> {
    let mut all = Vec::new();
    each_leaf::<V, B, B::Error>(blocks, root, &mut |at, leaf| {
        match leaf {
            Ok(leaf) => all.extend(leaf.entries::<V>()),
            Err(fault) => gap(at, fault),
        }
        Ok(())
    })?;
    Ok(all)
}

/// The leaves below a node, found by reading the levels above the leaves.
fn leaves<V: Value, B: Blocks, E: From<B::Error>>(
    blocks: &mut B,
    top: LeafAt,
    depth: usize,
    each: &mut Each<'_, E>,
) -> Result<Vec<LeafAt>, E> {
    let mut level = vec![top];
    for _ in depth..LEVELS_MAX {
        if reaches_leaves::<V, B>(blocks, &level)? {
            return Ok(level);
        }
        level = below::<V, B, E>(blocks, &level, each)?;
    }
    for at in &level {
        each(at, Err(Fault::Loop { at: at.block }))?;
    }
    Ok(Vec::new())
}

/// Whether a level is that of the leaves, according to its first sound node. All leaves of a sound
/// tree are on one level; in another tree, `windows` descends further.
fn reaches_leaves<V: Value, B: Blocks>(blocks: &mut B, level: &[LeafAt]) -> Result<bool, B::Error> {
    for at in level {
        let mut is_leaf = None;
        read_sorted(blocks, core::slice::from_ref(at), &mut |block, bytes| {
            is_leaf = judge::<V>(block, bytes, at).ok().map(|node| node.is_leaf());
        })?;
        if let Some(is_leaf) = is_leaf {
            return Ok(is_leaf);
        }
    }
    // No node is sound: there is nothing to descend into, and each is reported as a leaf.
    Ok(true)
}

/// The level below: every pointer in order; a leaf on this level stays in the list.
fn below<V: Value, B: Blocks, E: From<B::Error>>(
    blocks: &mut B,
    level: &[LeafAt],
    each: &mut Each<'_, E>,
) -> Result<Vec<LeafAt>, E> {
    let mut found: FxHashMap<usize, Result<Vec<LeafAt>, Fault>> = FxHashMap::default();
    let mut order: Vec<usize> = (0..level.len()).collect();
    order.sort_by_key(|index| level[*index].block);
    let mut left = order.as_slice();
    read_sorted(blocks, level, &mut |block, bytes| {
        let here = left.partition_point(|index| level[*index].block <= block);
        for index in &left[..here] {
            let at = &level[*index];
            found.insert(*index, judge::<V>(block, bytes, at).map(|node| pointers(at, &node)));
        }
        left = &left[here..];
    })?;
    let mut next = Vec::new();
    for (index, at) in level.iter().enumerate() {
        match found.remove(&index) {
            Some(Ok(pointers)) => next.extend(pointers),
            Some(Err(fault)) => each(at, Err(fault))?,
            None => each(at, Err(Bad::Outside { at: at.block, count: blocks.count() }.into()))?,
        }
    }
    Ok(next)
}

fn pointers(at: &LeafAt, node: &Node<'_>) -> Vec<LeafAt> {
    if node.is_leaf() {
        return vec![*at];
    }
    let ends = node.keys().skip(1).map(|key| key - 1).chain([at.last]);
    let entries = node.entries::<MetadataBlock>().zip(ends);
    entries.map(|((first, block), last)| LeafAt { block, first, last }).collect()
}

/// Reads the leaves, one window at a time, and passes them on in order.
fn windows<V: Value, B: Blocks, E: From<B::Error>>(
    blocks: &mut B,
    leaves: &[LeafAt],
    depth_left: usize,
    each: &mut Each<'_, E>,
) -> Result<(), E> {
    let mut room: Vec<Block> = Vec::new();
    for window in leaves.chunks(WINDOW) {
        let mut places: FxHashMap<MetadataBlock, Option<usize>> = FxHashMap::default();
        room.clear();
        read_sorted(blocks, window, &mut |block, bytes| {
            places.insert(block, bytes.map(|_| room.len()));
            room.extend(bytes);
        })?;
        for at in window {
            let bytes = match places.get(&at.block) {
                Some(place) => place.map(|place| &room[place]),
                None => {
                    let count = blocks.count();
                    each(at, Err(Bad::Outside { at: at.block, count }.into()))?;
                    continue;
                }
            };
            match judge::<V>(at.block, bytes, at) {
                Ok(node) if node.is_leaf() => each(at, Ok(&node))?,
                Ok(_) if depth_left == 0 => each(at, Err(Fault::Loop { at: at.block }))?,
                Ok(_) => {
                    let below = leaves_below::<V, B, E>(blocks, *at, depth_left, each)?;
                    windows::<V, B, E>(blocks, &below, depth_left - 1, each)?;
                }
                Err(fault) => each(at, Err(fault))?,
            }
        }
    }
    Ok(())
}

/// The leaves below an internal node among the leaves: the tree is deeper there.
fn leaves_below<V: Value, B: Blocks, E: From<B::Error>>(
    blocks: &mut B,
    at: LeafAt,
    depth_left: usize,
    each: &mut Each<'_, E>,
) -> Result<Vec<LeafAt>, E> {
    leaves::<V, B, E>(blocks, at, LEVELS_MAX - depth_left, each)
}

/// Reads the blocks of these leaves that exist, each once, in ascending order.
fn read_sorted<B: Blocks>(
    blocks: &mut B,
    leaves: &[LeafAt],
    each: &mut dyn FnMut(MetadataBlock, Option<&Block>),
) -> Result<(), B::Error> {
    let count = blocks.count();
    let mut wanted: Vec<_> = leaves.iter().map(|at| at.block).collect();
    wanted.retain(|at| at.0 < count);
    wanted.sort_unstable();
    wanted.dedup();
    blocks.read(&wanted, each)
}

fn judge<'b, V: Value>(
    block: MetadataBlock,
    bytes: Option<&'b Block>,
    at: &LeafAt,
) -> Result<Node<'b>, Fault> {
    let bytes = bytes.ok_or(Bad::Unreadable { at: block })?;
    let node = Node::decode(bytes, block).and_then(Node::expect::<V>).map_err(Bad::Wrong)?;
    match (node.keys().next(), node.keys().next_back()) {
        (Some(first), Some(last)) if first < at.first || last > at.last => {
            Err(Fault::KeysOutside { at: block, first, last })
        }
        _ => Ok(node),
    }
}

const _: () = assert!(WINDOW * BLOCK_BYTES == 2 << 20);
