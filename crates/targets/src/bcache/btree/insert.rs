//! Planning how keys enter the tree: which nodes get a set, which are replaced by fresh ones, and
//! what their parents, up to the root, are told.
//!
//! A plan is made in memory, without I/O, and is written by `write`. It holds as many keys, from
//! the first on, as there are buckets for: a leaf without room for another set is replaced by one
//! or more fresh nodes, which may replace nodes above it. The buckets for the worst case are
//! counted before a leaf is replaced, so that a plan once begun never lacks one.
//!
//! Where buckets are short ([`Fill::Tight`]), a plan replaces one leaf, by nodes as full as they
//! get. As long as keys only change from dirty to clean or become holes, that is one node for the
//! leaf and at most one for each node above it: all fit into a node, since the node that they
//! replace had them. So the plan takes one bucket per level at most, and gives as many back.
//!
//! A parent gets one set with a key for each fresh child, and a freeing key (at position 0, with
//! the generation after that of the bucket) for each node that a child replaces. A parent without
//! room is itself replaced by fresh nodes that list all children; these need no freeing keys, as
//! the old parent goes with the keys to the old children. A fresh root is named by the journal.

use cairn_format::bcache::extents::overlay;
use cairn_format::bcache::node::SET_HEADER_BYTES;
use cairn_format::bcache::{INODE_MAX, Key, OFFSET_MAX, Pointer, SECTOR_BYTES};

use super::lookup::upper;
use super::node::SetWrite;
use super::split::{Fill, parts_of, split};
use super::{Node, Tree};
use crate::bcache::buckets::Buckets;

/// Bytes of a key to a child.
const CHILD_BYTES: usize = 24;

/// A plan with a leaf that takes no key would loop without progress.
const TAKES: &str = "the last leaf reaches the highest position, and no key lies behind it";

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
    pub fresh: Vec<SetWrite>,
    /// Sets behind others.
    pub appended: Vec<SetWrite>,
}

/// What is to be written for some keys.
#[derive(Default)]
pub(in super::super) struct Plan {
    /// From the leaves up.
    pub(super) levels: Vec<LevelWrites>,
    /// The root is another one.
    pub has_new_root: bool,
    /// Nodes that were replaced. Their buckets are free once all is durable.
    pub replaced: Vec<Pointer>,
}

/// Keys that enter the tree, in order and without overlaps; those of a plan leave.
pub(in super::super) struct Insertion {
    keys: std::collections::VecDeque<Key>,
}

/// A node and what takes its place.
struct Change {
    old: Key,
    fresh: Vec<Key>,
}

impl Insertion {
    /// These keys, in order and without overlaps. Keys without a pointer make holes.
    pub fn new(keys: Vec<Key>) -> Insertion {
        Insertion { keys: keys.into() }
    }

    /// True if all keys were planned.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Lays other keys over those that are left.
    pub fn lay_over(&mut self, newer: &[Key]) {
        let older: Vec<Key> = std::mem::take(&mut self.keys).into();
        let mut both = Vec::with_capacity(older.len() + newer.len());
        overlay(&older, newer, &mut both);
        self.keys = both.into();
    }

    /// The keys that are left.
    pub fn left(&self) -> impl Iterator<Item = &Key> {
        self.keys.iter()
    }

    /// Takes the keys that lie in a leaf, of which there is one; one that goes beyond it is cut.
    fn take_part(&mut self, leaf: &Node) -> Vec<Key> {
        let first = self.keys.front().map(Key::begin);
        assert!(first < Some(leaf.position()), "{TAKES}: {first:?}");
        let mut part = Vec::new();
        while let Some(key) = self.keys.front().copied() {
            if key.begin() >= leaf.position() {
                break;
            }
            self.keys.pop_front();
            let end = upper(leaf, key.inode());
            part.extend(key.part(0, end));
            if let Some(behind) = key.part(end, OFFSET_MAX) {
                self.keys.push_front(behind);
                break;
            }
        }
        part
    }

    /// Puts back what was taken from the front.
    fn put_back(&mut self, part: Vec<Key>) {
        part.into_iter().rev().for_each(|key| self.keys.push_front(key));
    }
}

impl Tree {
    /// Lays keys over the extents in memory alone. `buckets` counts what changes.
    pub fn apply(&mut self, keys: &[Key], buckets: &mut Buckets) {
        let mut insertion = Insertion::new(keys.to_vec());
        while let Some(key) = insertion.keys.front() {
            let index = self.leaf_of(key.begin());
            let part = insertion.take_part(&self.levels[0][index]);
            let merged = self.merged(index, &part);
            buckets.replace(self.levels[0][index].extents(), &merged);
            self.levels[0][index].set_extents(merged);
        }
    }

    /// Plans as many of the keys as there are buckets for. `next_seq` answers random numbers for
    /// fresh nodes, none of them 0.
    ///
    /// # Errors
    /// Not even one leaf can be replaced. Nothing was changed.
    pub fn plan(
        &mut self,
        insertion: &mut Insertion,
        buckets: &mut Buckets,
        fill: Fill,
        mut next_seq: impl FnMut() -> u64,
    ) -> Result<Plan, NoBucket> {
        let mut plan = Plan::default();
        let mut writes = LevelWrites::default();
        let mut changes: Vec<(usize, Change, Vec<Node>)> = Vec::new();
        let (mut fresh_leaves, block_bytes) = (0, self.geometry.block_bytes());
        let widest = self.widest();
        while let Some(key) = insertion.keys.front() {
            let index = self.leaf_of(key.begin());
            let part = insertion.take_part(&self.levels[0][index]);
            let merged = self.merged(index, &part);
            let leaf = &mut self.levels[0][index];
            if let Some(set) = leaf.append(&part, self.magic, block_bytes) {
                buckets.replace(leaf.extents(), &merged);
                leaf.set_extents(merged);
                writes.appended.push(set);
                continue;
            }
            let parts = split(&merged, self.node_bytes(), fill);
            let needed = match fill {
                Fill::Roomy => {
                    let fresh = fresh_leaves + parts.len();
                    self.worst_case(&widest, changes.len() + 1, fresh) - fresh_leaves
                }
                Fill::Tight => self.tight_case(index, parts.len()),
            };
            let is_next = fill == Fill::Tight && !changes.is_empty();
            if needed > buckets.free() || is_next {
                drop(parts);
                insertion.put_back(part);
                if changes.is_empty() && writes.appended.is_empty() {
                    return Err(NoBucket { needed });
                }
                break;
            }
            fresh_leaves += parts.len();
            let old = self.levels[0][index].key();
            let nodes = self.fresh_nodes(&parts, old, buckets, &mut next_seq, &mut writes, true);
            buckets.replace(self.levels[0][index].extents(), &merged);
            let fresh = nodes.iter().map(Node::key).collect();
            changes.push((index, Change { old, fresh }, nodes));
        }
        plan.levels.push(writes);
        self.tell_parents(&mut plan, changes, buckets, fill, next_seq);
        Ok(plan)
    }

    /// The extents of a leaf with others over them.
    fn merged(&self, index: usize, part: &[Key]) -> Vec<Key> {
        let extents = self.levels[0][index].extents();
        let mut merged = Vec::with_capacity(extents.len() + part.len());
        overlay(extents, part, &mut merged);
        merged.retain(|key| key.cached_at().is_some());
        merged
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
            let told = SET_HEADER_BYTES + (1 + fresh) * CHILD_BYTES;
            if self.levels[level][index].has_room(told, block_bytes) {
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
                node.set_extents(part.to_vec());
            }
            nodes.push(node);
        }
        nodes
    }

    /// Puts fresh nodes into their places and goes up, as long as parents are replaced.
    fn tell_parents(
        &mut self,
        plan: &mut Plan,
        mut changes: Vec<(usize, Change, Vec<Node>)>,
        buckets: &mut Buckets,
        fill: Fill,
        mut next_seq: impl FnMut() -> u64,
    ) {
        for level in 1.. {
            plan.replaced
                .extend(changes.iter().filter_map(|(_, change, _)| change.old.cached_at()));
            let mut told = Vec::with_capacity(changes.len());
            // From the back, so that the indices before it stay.
            for (index, change, nodes) in changes.into_iter().rev() {
                self.levels[level - 1].splice(index..=index, nodes);
                told.push(change);
            }
            told.reverse();
            if told.is_empty() {
                return;
            }
            if level == self.levels.len() {
                plan.has_new_root = true;
                return self.grow(plan, buckets, fill, next_seq);
            }
            let mut writes = LevelWrites::default();
            changes = self.tell_level(level, told, buckets, fill, &mut next_seq, &mut writes);
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

    /// Tells the nodes of a level which fresh nodes replace their children.
    fn tell_level(
        &mut self,
        level: usize,
        told: Vec<Change>,
        buckets: &mut Buckets,
        fill: Fill,
        next_seq: &mut impl FnMut() -> u64,
        writes: &mut LevelWrites,
    ) -> Vec<(usize, Change, Vec<Node>)> {
        let mut replaced = Vec::new();
        let mut told = told.into_iter().peekable();
        while let Some(first) = told.next() {
            let parents = &self.levels[level];
            let at = first.old.position();
            let index = parents.partition_point(|node| node.position() < at);
            let upto = parents[index].position();
            let mut changes = vec![first];
            while let Some(next) = told.next_if(|change| change.old.position() <= upto) {
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
            replaced.push((index, Change { old, fresh }, nodes));
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

/// The key that says to a parent that a child is replaced: it makes the key to the child stale.
fn freeing(old: &Key) -> Key {
    let pointer = old.cached_at().expect("a node lies on the device");
    let next = Pointer::new(pointer.sector(), pointer.generation().next());
    Key::new(0, 0, old.sectors()).at(next)
}
