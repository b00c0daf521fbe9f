//! The tree in memory: every node of every level, and the extents of each leaf.
//!
//! `node` is one node; `extents` are those of a leaf; `presence` says which leaves are in memory,
//! and scans them; `lookup` finds extents; `change` changes them in memory; `insert` plans how the
//! leaves on the device follow; `unwritten` is where these are behind; `coalesce` plans fewer nodes
//! where they are sparse; `split` cuts what a node no longer holds; `write` writes what was
//! planned, and has the crash argument; `reference` is the reference model of the tests.
//!
//! # Invariants
//! B1. The nodes of a level are in order; each has another position. The last has the highest one.
//!     The topmost level has one node: the root.
//! B2. The children of a node are the nodes of the level beneath between the position of the node
//!     before it and its own. So no node stores its children.
//! B3. The extents of a leaf are in order, do not overlap, and lie between the position of the leaf
//!     before it and its own. Each leads to a bucket. Holes are where no extent is.
//! B4. A leaf on the device has the extents of the leaf in memory, except in sectors that are
//!     unwritten (`unwritten`): those of open entries of the journal, of extents that became clean,
//!     and of buckets that are being emptied. What it has there is older. So the leaves on the
//!     device with the open entries over them are the tree in memory, but for extents that became
//!     clean.
//!
//! Memory: 25 bytes for an extent of a leaf that was read and is present, 96 for a node.

mod change;
mod coalesce;
mod extents;
mod insert;
mod lookup;
mod node;
mod presence;
#[cfg(test)]
pub(super) mod reference;
mod split;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;
mod unwritten;
mod write;

use cairn_format::bcache::{Geometry, Key, SetMagic};

use super::buckets::Buckets;
use presence::Present;

pub(super) use change::{Change, holes_of};
pub(super) use coalesce::Searched;
pub(super) use extents::{FIRST, LAST, Position};
pub(super) use insert::{NoBucket, Plan};
pub(super) use lookup::Found;
pub(super) use node::Node;
pub(super) use presence::{EXTENT_BYTES, LeafPlace, READ_AT_ONCE, Scanned, Which};
pub(super) use split::Fill;
pub(super) use unwritten::{Span, Unwritten};
pub(super) use write::write_plan;

/// See the module's description.
pub(super) struct Tree {
    geometry: Geometry,
    magic: SetMagic,
    /// From the leaves up.
    levels: Vec<Vec<Node>>,
    /// A leaf has got so many extents that it is to be written soon: it is replaced at once.
    has_large_leaf: bool,
    present: Present,
}

impl Tree {
    /// The nodes as they were read: of each level in order, from the leaves up.
    pub fn new(geometry: Geometry, magic: SetMagic, levels: Vec<Vec<Node>>) -> Tree {
        let present = Present::of(levels.first().into_iter().flatten());
        Tree { geometry, magic, levels, has_large_leaf: false, present }
    }

    /// True if a leaf has got so many extents that leaves are to be written soon.
    pub fn has_large_leaf(&self) -> bool {
        self.has_large_leaf
    }

    /// Leaves are about to be written.
    pub fn forget_large_leaf(&mut self) {
        self.has_large_leaf = false;
    }

    /// The key to the root, and how far it is above the leaves.
    pub fn root(&self) -> (Key, u16) {
        let top = self.levels.last().expect("a tree has leaves");
        (top[0].key(), (self.levels.len() - 1) as u16)
    }

    /// The keys to all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = Key> {
        self.levels.iter().flatten().map(Node::key)
    }

    /// The extents in memory, in order: all of them, if all leaves are present.
    pub fn extents(&self) -> impl Iterator<Item = &Key> {
        let present = self.levels[0].iter().filter(|leaf| !leaf.is_absent());
        present.flat_map(|leaf| leaf.extents().iter())
    }

    /// Drops the extents in memory that lead nowhere: of the leaves as they were read. `buckets`
    /// counts the rest. Answers the dirty ones among those whose bucket was reused.
    ///
    /// # Errors
    /// The nodes are no tree (B1, B3).
    pub fn keep_live(&mut self, buckets: &mut Buckets) -> Result<Vec<Key>, String> {
        let mut gone = Vec::new();
        for leaf in self.levels[0].iter_mut().filter(|leaf| !leaf.is_absent()) {
            let before = leaf.count();
            leaf.extents_mut().retain(|key| buckets.count_if_live(key, &mut gone));
            self.present.extents -= before - leaf.count();
        }
        self.check_state().map(|()| gone)
    }

    /// How many nodes there are.
    pub fn count_nodes(&self) -> usize {
        self.levels.iter().map(Vec::len).sum()
    }

    /// How many extents a leaf has.
    pub fn count_of(&self, leaf: usize) -> usize {
        self.levels[0][leaf].count()
    }

    /// The positions between which the extents of a leaf lie.
    pub fn bounds_of(&self, leaf: usize) -> (Position, Position) {
        (self.after(0, leaf), self.levels[0][leaf].position())
    }

    /// How many leaves there are.
    pub fn leaves(&self) -> usize {
        self.levels[0].len()
    }

    /// The position of the node before this one of a level.
    fn after(&self, level: usize, index: usize) -> (u32, u64) {
        let before = index.checked_sub(1).map(|before| &self.levels[level][before]);
        before.map_or((0, 0), Node::position)
    }

    /// B1 and B3.
    ///
    /// # Errors
    /// They do not hold: what is wrong.
    pub fn check_state(&self) -> Result<(), String> {
        for (level, nodes) in self.levels.iter().enumerate() {
            if let Some(pair) = nodes.windows(2).find(|at| at[0].position() >= at[1].position()) {
                let (node, before) = (pair[1].key(), pair[0].key());
                let expected = "expected it behind that";
                return Err(format!("node {node:?}: found it after {before:?}, {expected}"));
            }
            let last = nodes.last().map(Node::position);
            if last != Some(Key::MAX.position()) {
                let expected = "expected the highest position";
                return Err(format!("level {level}: found its end at {last:?}, {expected}"));
            }
        }
        let tops = self.levels.last().map_or(0, Vec::len);
        if tops != 1 {
            return Err(format!("root: found {tops} nodes, expected one"));
        }
        let present = |leaf: &&Node| !leaf.is_absent();
        for leaf in self.levels[0].iter().filter(present) {
            let index = self.levels[0].partition_point(|it| it.position() < leaf.position());
            let mut after = self.after(0, index);
            for key in leaf.extents().iter() {
                let is_sound = key.begin() >= after && key.sectors() > 0;
                if !is_sound || key.cached_at().is_none() || key.position() > leaf.position() {
                    let upto = leaf.position();
                    let expected = format!("expected it behind {after:?} up to {upto:?}");
                    return Err(format!("extent {key:?}: {expected}"));
                }
                after = key.position();
            }
        }
        Ok(())
    }
}
