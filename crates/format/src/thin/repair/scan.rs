//! Finds the blocks that may be roots of a details or a top-level tree: reads all blocks once, in
//! order.
//!
//! A leaf's tree is known by its values, that of an internal node by the first leaf below it. The
//! nodes below an internal node are not roots if all of them read as one tree of its kind. Old
//! nodes, of that or another kind, may point to blocks that were reused since, even to a root that
//! is searched for. In that case what is below them does not lie within their keys, or is of other
//! kinds, and they hide nothing. A root is hidden only if it was written to such a block and its
//! keys fit: then an old tree is whole with it. That old tree leads to the same devices, and
//! perhaps also to deleted ones.
//!
//! Memory: two bytes per metadata block, and 16 per internal node.

use core::ops::Range;

use super::whole::read_whole;
use crate::thin::block::{self, Block, Kind};
use crate::thin::blocks::Blocks;
use crate::thin::leaves::LEVELS_MAX;
use crate::thin::{
    DeviceDetails, DeviceId, METADATA_BLOCKS_MAX, MetadataBlock, Node, NodeKind, Superblock, Value,
};

/// Blocks read at once.
const SCAN_BLOCKS: u64 = 4096;

/// What a block may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Damaged, or never written.
    Lost,
    /// Sound, but not a node whose keys are device ids.
    Other,
    /// A node of a details tree.
    Details,
    /// A node of a top-level tree.
    Top,
    /// An internal node of an unknown tree.
    Internal,
}

/// What was found.
pub(super) struct Scan {
    classes: Vec<Class>,
    /// Blocks to which a whole tree of their own class points.
    below: Vec<bool>,
    /// Internal nodes, ascending, each with its first child.
    internal: Vec<(u32, u32)>,
    /// The newest superblock among those of metadata snapshots, held or dropped.
    pub(super) superblock: Option<Superblock>,
}

impl Scan {
    /// Reads every block.
    pub(super) fn run<B: Blocks>(blocks: &mut B) -> Result<Scan, B::Error> {
        let count = blocks.count().min(METADATA_BLOCKS_MAX);
        let mut scan = Scan {
            classes: vec![Class::Lost; count as usize],
            below: vec![false; count as usize],
            internal: Vec::new(),
            superblock: None,
        };
        for begin in (0..count).step_by(SCAN_BLOCKS as usize) {
            let end = count.min(begin + SCAN_BLOCKS);
            let wanted: Vec<_> = (begin..end).map(MetadataBlock).collect();
            blocks.read(&wanted, &mut |at, bytes| {
                if let Some(bytes) = bytes {
                    scan.look(at, bytes);
                }
            })?;
        }
        let mut trees = Vec::new();
        for at in scan.resolve() {
            if scan.is_tree(blocks, at)? {
                trees.push(at);
            }
        }
        blocks.read(&trees, &mut |at, bytes| {
            if let Some(bytes) = bytes {
                scan.mark_children(at, bytes);
            }
        })?;
        Ok(scan)
    }

    /// The blocks that may be roots of such a tree, ascending.
    pub(super) fn roots(&self, class: Class) -> impl Iterator<Item = MetadataBlock> + '_ {
        let of_class = self.classes.iter().zip(&self.below).zip(0..);
        let roots = of_class.filter(move |((found, below), _)| **found == class && !**below);
        roots.map(|(_, at)| MetadataBlock(at))
    }

    /// Whether a block of the device was damaged, was never written, or cannot be read.
    pub(super) fn is_lost(&self, at: MetadataBlock) -> bool {
        self.classes.get(at.0 as usize) == Some(&Class::Lost)
    }

    fn look(&mut self, at: MetadataBlock, bytes: &Block) {
        let mut class = Class::Other;
        match block::identify(bytes) {
            Some(Kind::Superblock) => self.take_newer(Superblock::decode(bytes, at).ok()),
            Some(Kind::Node) => {
                if let Ok(node) = Node::decode(bytes, at) {
                    class = self.class(&node);
                    if class == Class::Internal {
                        self.internal.push((at.0 as u32, node.child(0).0 as u32));
                    }
                }
            }
            Some(Kind::Bitmap | Kind::Index) => {}
            None | Some(block::Kind::CloneSuperblock | block::Kind::Array) => class = Class::Lost,
        }
        self.classes[at.0 as usize] = class;
    }

    fn take_newer(&mut self, superblock: Option<Superblock>) {
        let age = |one: &Option<Superblock>| one.as_ref().map(|one| (one.time, one.transaction_id));
        if age(&superblock) > age(&self.superblock) {
            self.superblock = superblock;
        }
    }

    /// The blocks that can be nodes. Block 0 is the superblock.
    fn there(&self) -> Range<u64> {
        1..self.classes.len() as u64
    }

    fn class(&self, node: &Node<'_>) -> Class {
        let is_device = node.keys().next_back().is_none_or(|last| DeviceId::new(last).is_ok());
        let there = self.there();
        let leads_there = || node.entries::<MetadataBlock>().all(|(_, to)| there.contains(&to.0));
        match (node.kind(), node.value_bytes()) {
            _ if !is_device => Class::Other,
            (NodeKind::Leaf, DeviceDetails::BYTES) => Class::Details,
            (NodeKind::Leaf, MetadataBlock::BYTES) if leads_there() => Class::Top,
            (NodeKind::Internal, _) if leads_there() => Class::Internal,
            _ => Class::Other,
        }
    }

    /// Determines the classes of internal nodes; returns those of details and top-level trees.
    fn resolve(&mut self) -> Vec<MetadataBlock> {
        let mut inner = Vec::new();
        for (at, _) in &self.internal {
            let class = self.class_below(*at);
            self.classes[*at as usize] = class;
            if matches!(class, Class::Details | Class::Top) {
                inner.push(MetadataBlock(u64::from(*at)));
            }
        }
        inner
    }

    fn class_below(&self, at: u32) -> Class {
        let mut at = at;
        for _ in 0..LEVELS_MAX {
            let class = self.classes[at as usize];
            let place = self.internal.binary_search_by_key(&at, |(at, _)| *at);
            match (class, place) {
                (Class::Internal, Ok(place)) => at = self.internal[place].1,
                _ => return class,
            }
        }
        Class::Other
    }

    /// Whether a node and everything below it is one tree of its class.
    fn is_tree<B: Blocks>(&self, blocks: &mut B, at: MetadataBlock) -> Result<bool, B::Error> {
        let is_device = |key| DeviceId::new(key).is_ok();
        let there = self.there();
        match self.classes[at.0 as usize] {
            Class::Details => {
                read_whole::<DeviceDetails, B>(blocks, at, &mut |key, _| is_device(key))
            }
            Class::Top => read_whole::<MetadataBlock, B>(blocks, at, &mut |key, to| {
                is_device(key) && there.contains(&to.0)
            }),
            _ => Ok(false),
        }
    }

    fn mark_children(&mut self, at: MetadataBlock, bytes: &Block) {
        let Ok(node) = Node::decode(bytes, at) else { return };
        let class = self.classes[at.0 as usize];
        for (_, child) in node.entries::<MetadataBlock>() {
            let child = child.0 as usize;
            if self.classes.get(child) == Some(&class) {
                self.below[child] = true;
            }
        }
    }
}
