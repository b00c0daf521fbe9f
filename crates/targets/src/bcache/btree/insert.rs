//! Planning how the leaves on the device follow the tree in memory: which nodes get a bset, which
//! are replaced by fresh nodes, and what changes in the nodes above.
//!
//! A plan is made in memory, without I/O, and is written by `write`. It covers as many unwritten
//! sectors, from the first on, as there are buckets for: a leaf without room for another bset is
//! replaced by one or more fresh nodes, which may replace nodes above it. The buckets for the worst
//! case are counted before a leaf is replaced, so that a plan never runs out of them.
//!
//! Where buckets are short ([`Fill::Tight`]), a plan replaces one leaf, by nodes as full as
//! possible. As long as extents only change from dirty to clean or become holes, that is one node
//! for the leaf and at most one for each node above it: all keys fit into a node, as the replaced
//! node had them. So the plan takes one bucket per level at most, and frees as many.
//!
//! A parent gets one bset with a key for each fresh child, and a freeing key (at position 0, with
//! the generation after that of the bucket) for each child that is replaced. A parent without room
//! is itself replaced by fresh nodes that list all children; these need no freeing keys, because
//! the keys to the old children are in the old parent. The journal names a fresh root.

use cairn_format::bcache::node::SET_HEADER_BYTES;
use cairn_format::bcache::{INODE_MAX, Key, OFFSET_MAX, Pointer, SECTOR_BYTES};

use super::extents::Extents;
use super::node::BsetWrite;
use super::split::{Fill, parts_of, split};
use super::{Node, Tree, Unwritten};
use crate::bcache::buckets::Buckets;

/// Bytes of a key to a child.
const CHILD_BYTES: usize = 24;

/// There are not enough free buckets to replace even one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct NoBucket {
    /// How many are needed.
    pub needed: usize,
}

/// The writes of one level.
#[derive(Default)]
pub(super) struct LevelWrites {
    /// Nodes that nothing leads to yet.
    pub fresh: Vec<BsetWrite>,
    /// Bsets behind others.
    pub appended: Vec<BsetWrite>,
}

/// What is to be written for some sectors.
#[derive(Default)]
pub(in super::super) struct Plan {
    /// From the leaves up.
    pub(super) levels: Vec<LevelWrites>,
    /// The root is another one.
    pub has_new_root: bool,
    /// Nodes that were replaced. Their buckets are free once all is durable.
    pub replaced: Vec<Pointer>,
}

/// A node and what takes its place.
struct Swap {
    old: Key,
    fresh: Vec<Key>,
}

impl Tree {
    /// Plans writes of as many unwritten sectors as there are buckets for. `next_seq` answers
    /// random numbers for fresh nodes, none of them 0.
    ///
    /// # Errors
    /// Not even one leaf can be replaced. Nothing was changed.
    pub fn plan(
        &mut self,
        unwritten: &mut Unwritten,
        buckets: &mut Buckets,
        fill: Fill,
        mut next_seq: impl FnMut() -> u64,
    ) -> Result<Plan, NoBucket> {
        let mut plan = Plan::default();
        let mut writes = LevelWrites::default();
        let mut changes: Vec<(usize, Swap, Vec<Node>)> = Vec::new();
        let (mut fresh_leaves, block_bytes) = (0, self.geometry.block_bytes());
        let widest = self.widest();
        while let Some(first) = unwritten.first() {
            let index = self.leaf_of(first);
            let part = unwritten.take_part(&self.levels[0][index]);
            let keys = self.levels[0][index].keys_in(&part);
            let leaf = &mut self.levels[0][index];
            if let Some(set) = leaf.append(&keys, self.magic, block_bytes) {
                writes.appended.push(set);
                continue;
            }
            let leaf = &self.levels[0][index];
            let extents: Vec<Key> = leaf.extents().iter().copied().collect();
            let parts = split(&extents, self.node_bytes(), fill);
            let needed = match fill {
                Fill::Roomy => {
                    let fresh = fresh_leaves + parts.len();
                    self.worst_case(&widest, changes.len() + 1, fresh) - fresh_leaves
                }
                Fill::Tight => self.tight_case(index, parts.len()),
            };
            let is_next = fill == Fill::Tight && !changes.is_empty();
            if needed > buckets.free() || is_next {
                unwritten.put_back(part);
                if changes.is_empty() && writes.appended.is_empty() {
                    return Err(NoBucket { needed });
                }
                break;
            }
            fresh_leaves += parts.len();
            let old = leaf.key();
            let nodes = self.fresh_nodes(&parts, old, buckets, &mut next_seq, &mut writes, true);
            let fresh = nodes.iter().map(Node::key).collect();
            changes.push((index, Swap { old, fresh }, nodes));
        }
        plan.levels.push(writes);
        self.update_parents(&mut plan, changes, buckets, fill, next_seq);
        Ok(plan)
    }

    fn node_bytes(&self) -> usize {
        self.geometry.node_sectors() as usize * SECTOR_BYTES
    }

    /// Bytes of the largest node of each level above the leaves. A set may have nodes of other
    /// sizes than this version makes.
    fn widest(&self) -> Vec<usize> {
        let widest = |level: &Vec<Node>| level.iter().map(Node::capacity).max().unwrap_or(0);
        self.levels[1..].iter().map(widest).collect()
    }

    /// The buckets that it takes at most to replace so many leaves by so many nodes: each node
    /// above them is replaced by those that what it holds takes and what the keys to the fresh ones
    /// take, and roots are added. `widest` is what a node of each level holds at most.
    fn worst_case(&self, widest: &[usize], replaced: usize, fresh: usize) -> usize {
        let per_part = self.node_bytes() * 2 / 5;
        let parents = |nodes: usize| (nodes * CHILD_BYTES).div_ceil(per_part);
        let (mut nodes, mut sum) = (fresh, fresh);
        for (level, widest) in self.levels[1..].iter().zip(widest) {
            let each = widest.div_ceil(self.node_bytes() * 5 / 9).max(2);
            nodes = each * replaced.min(level.len()) + parents(nodes);
            sum += nodes;
        }
        while nodes > 1 {
            nodes = parents(nodes);
            sum += nodes;
        }
        sum
    }

    /// The buckets that it takes to replace one leaf by so many nodes, in a plan with
    /// [`Fill::Tight`].
    fn tight_case(&self, index: usize, fresh: usize) -> usize {
        let (at, block_bytes) = (self.levels[0][index].position(), self.geometry.block_bytes());
        let parts = |keys| parts_of(keys, CHILD_BYTES, self.node_bytes(), Fill::Tight);
        let (mut fresh, mut sum) = (fresh, fresh);
        for level in 1..self.levels.len() {
            let index = self.levels[level].partition_point(|node| node.position() < at);
            let update = SET_HEADER_BYTES + (1 + fresh) * CHILD_BYTES;
            if self.levels[level][index].has_room(update, block_bytes) {
                return sum;
            }
            fresh = parts(self.children(level, index).len() - 1 + fresh);
            sum += fresh;
        }
        while fresh > 1 {
            fresh = parts(fresh);
            sum += fresh;
        }
        sum
    }

    /// Makes a node of each part; the last has the position of the node that they replace.
    fn fresh_nodes(
        &self,
        parts: &[&[Key]],
        old: Key,
        buckets: &mut Buckets,
        next_seq: &mut impl FnMut() -> u64,
        writes: &mut LevelWrites,
        is_leaf: bool,
    ) -> Vec<Node> {
        let mut nodes = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            let (inode, end) = match part.last() {
                Some(last) if index + 1 < parts.len() => last.position(),
                _ => old.position(),
            };
            let pointer = buckets.take_for_metadata().expect("they were counted before");
            let key = Key::new(inode, end, self.geometry.node_sectors()).at(pointer);
            let mut node = Node::new(key, next_seq(), 0);
            let set = node.append(part, self.magic, self.geometry.block_bytes());
            writes.fresh.push(set.expect("a part fits into a node"));
            if is_leaf {
                *node.extents_mut() = Extents::of(part);
            }
            nodes.push(node);
        }
        nodes
    }

    /// Puts fresh nodes into their places and goes up, as long as parents are replaced.
    fn update_parents(
        &mut self,
        plan: &mut Plan,
        mut changes: Vec<(usize, Swap, Vec<Node>)>,
        buckets: &mut Buckets,
        fill: Fill,
        mut next_seq: impl FnMut() -> u64,
    ) {
        for level in 1.. {
            plan.replaced
                .extend(changes.iter().filter_map(|(_, change, _)| change.old.cached_at()));
            let mut below = Vec::with_capacity(changes.len());
            // From the back, so that the indices before it stay.
            for (index, change, nodes) in changes.into_iter().rev() {
                self.levels[level - 1].splice(index..=index, nodes);
                below.push(change);
            }
            below.reverse();
            if below.is_empty() {
                return;
            }
            if level == self.levels.len() {
                plan.has_new_root = true;
                return self.grow(plan, buckets, fill, next_seq);
            }
            let mut writes = LevelWrites::default();
            changes = self.update_level(level, below, buckets, fill, &mut next_seq, &mut writes);
            plan.levels.push(writes);
        }
    }

    /// Adds levels until the topmost has one node.
    fn grow(
        &mut self,
        plan: &mut Plan,
        buckets: &mut Buckets,
        fill: Fill,
        mut next_seq: impl FnMut() -> u64,
    ) {
        let above_all = Key::new(INODE_MAX, OFFSET_MAX, 0);
        while let Some(top) = self.levels.last().filter(|top| top.len() > 1) {
            let children: Vec<Key> = top.iter().map(Node::key).collect();
            let parts = split(&children, self.node_bytes(), fill);
            let mut writes = LevelWrites::default();
            let nodes =
                self.fresh_nodes(&parts, above_all, buckets, &mut next_seq, &mut writes, false);
            self.levels.push(nodes);
            plan.levels.push(writes);
        }
    }

    /// Updates the nodes of a level whose children fresh nodes replace.
    fn update_level(
        &mut self,
        level: usize,
        below: Vec<Swap>,
        buckets: &mut Buckets,
        fill: Fill,
        next_seq: &mut impl FnMut() -> u64,
        writes: &mut LevelWrites,
    ) -> Vec<(usize, Swap, Vec<Node>)> {
        let mut replaced = Vec::new();
        let mut below = below.into_iter().peekable();
        while let Some(first) = below.next() {
            let parents = &self.levels[level];
            let at = first.old.position();
            let index = parents.partition_point(|node| node.position() < at);
            let upto = parents[index].position();
            let mut changes = vec![first];
            while let Some(next) = below.next_if(|change| change.old.position() <= upto) {
                changes.push(next);
            }
            let mut keys: Vec<Key> = changes.iter().map(|change| freeing(&change.old)).collect();
            keys.extend(changes.iter().flat_map(|change| &change.fresh));
            let block_bytes = self.geometry.block_bytes();
            let parent = &mut self.levels[level][index];
            if let Some(set) = parent.append(&keys, self.magic, block_bytes) {
                writes.appended.push(set);
                continue;
            }
            let old = parent.key();
            let children = self.children(level, index);
            let parts = split(&children, self.node_bytes(), fill);
            let nodes = self.fresh_nodes(&parts, old, buckets, next_seq, writes, false);
            let fresh = nodes.iter().map(Node::key).collect();
            replaced.push((index, Swap { old, fresh }, nodes));
        }
        replaced
    }

    /// The keys to the children of a node (B2).
    fn children(&self, level: usize, index: usize) -> Vec<Key> {
        let (after, upto) = (self.after(level, index), self.levels[level][index].position());
        let beneath = &self.levels[level - 1];
        let first = beneath.partition_point(|node| node.position() <= after);
        let children = beneath[first..].iter().take_while(|node| node.position() <= upto);
        children.map(Node::key).collect()
    }
}

/// The key that makes the key to a replaced child stale in its parent.
fn freeing(old: &Key) -> Key {
    let pointer = old.cached_at().expect("a node lies on the device");
    let next = Pointer::new(pointer.sector(), pointer.generation().next());
    Key::new(0, 0, old.sectors()).at(next)
}
