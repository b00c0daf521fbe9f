//! Planning how the leaves on the device follow the tree in memory: which nodes get a bset, which
//! are replaced by fresh nodes, and what changes in the nodes above.
//!
//! A plan is made in memory, without I/O, and is written by `write`. It covers as many unwritten
//! sectors, from the first on, as there are buckets for, up to [`PLAN_BYTES`]: a leaf without room
//! for another bset is replaced by one or more fresh nodes, which may replace nodes above it. The
//! buckets for the worst case are counted before a leaf is replaced, and held until the plan is
//! made, so that a plan never runs out of them.
//!
//! A plan is made in pieces ([`Tree::plan_some`]), between which clients change extents. A leaf and
//! those that replace it change places in one piece, so no change is lost; the nodes above follow
//! in the last piece ([`Tree::end_plan`]).
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
use crate::bcache::coverage::{self, Path};
use crate::bcache::work;

/// Bytes of a key to a child.
const CHILD_BYTES: usize = 24;
/// A plan takes no further leaf once its writes have so many bytes: they are in memory.
const PLAN_BYTES: usize = 8 << 20;

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
    /// It replaces sparse nodes by fewer.
    pub is_coalescing: bool,
    /// Nodes that were replaced. Their buckets are free once all is durable.
    pub replaced: Vec<Pointer>,
}

/// A plan that is being made.
pub(in super::super) struct Planning {
    fill: Fill,
    /// The level of the nodes that are written first: the leaves are 0.
    pub(super) level: usize,
    /// Of that level.
    pub(super) writes: LevelWrites,
    swaps: Vec<Swap>,
    /// How many nodes and bytes these make.
    fresh: usize,
    bytes: usize,
    /// Bytes of the largest node of each level above it.
    widest: Vec<usize>,
}

impl Planning {
    /// True if nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.swaps.is_empty() && self.writes.appended.is_empty()
    }

    /// True if it takes further nodes.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < PLAN_BYTES
    }

    /// Nodes are replaced, by others of so many bytes.
    pub(super) fn add(&mut self, swap: Swap, bytes: usize) {
        self.fresh += swap.fresh.len();
        self.bytes += bytes;
        self.swaps.push(swap);
    }
}

/// Nodes that follow each other beneath one parent, and what takes their place.
pub(super) struct Swap {
    pub old: Vec<Key>,
    pub fresh: Vec<Key>,
}

impl Swap {
    /// The position of the last node that is replaced.
    fn position(&self) -> (u32, u64) {
        self.old.last().expect("nodes are replaced").position()
    }
}

impl Tree {
    /// Begins a plan that writes nodes of a level, and above it.
    pub fn begin_plan(&self, level: usize, fill: Fill) -> Planning {
        let widest = self.widest(level);
        let (writes, swaps) = (LevelWrites::default(), Vec::new());
        Planning { fill, level, writes, swaps, fresh: 0, bytes: 0, widest }
    }

    /// Adds writes of the next unwritten sectors to a plan. `next_seq` answers random numbers for
    /// fresh nodes, none of them 0. True if there is more that the plan has room for.
    ///
    /// # Errors
    /// Not even one leaf can be replaced. Nothing was changed.
    pub fn plan_some(
        &mut self,
        planning: &mut Planning,
        unwritten: &mut Unwritten,
        buckets: &mut Buckets,
        next_seq: &mut impl FnMut() -> u64,
    ) -> Result<bool, NoBucket> {
        let (mut units, block_bytes) = (0, self.geometry.block_bytes());
        while let Some(first) = unwritten.first() {
            if !planning.has_room() {
                return Ok(false);
            }
            if units >= work::piece() {
                return Ok(true);
            }
            let index = self.leaf_of(first);
            let part = unwritten.take_part(&self.levels[0][index]);
            let keys = self.levels[0][index].keys_in(&part);
            let looked = 1 + part.len() + keys.len();
            // More than a piece only if a journal was replayed into the leaf.
            work::did(looked.min(work::piece()));
            units += looked;
            let leaf = &mut self.levels[0][index];
            if let Some(set) = leaf.append(&keys, self.magic, block_bytes) {
                planning.bytes += set.bytes.len();
                planning.writes.appended.push(set);
                continue;
            }
            // A whole leaf is much: another piece goes on.
            units += work::piece();
            if let Err(short) = self.replace_leaf(index, planning, buckets, next_seq) {
                unwritten.put_back(part);
                return if planning.is_empty() { Err(short) } else { Ok(false) };
            }
        }
        Ok(false)
    }

    /// Replaces a leaf by fresh ones with its extents.
    ///
    /// # Errors
    /// There are too few buckets, or the plan has no room for another one. Nothing was changed.
    fn replace_leaf(
        &mut self,
        index: usize,
        planning: &mut Planning,
        buckets: &mut Buckets,
        next_seq: &mut impl FnMut() -> u64,
    ) -> Result<(), NoBucket> {
        let leaf = &self.levels[0][index];
        let (old, changed_in) = (leaf.key(), leaf.changed_in);
        let extents: Vec<Key> = leaf.extents().iter().copied().collect();
        work::did(extents.len().min(work::piece()));
        let parts = split(&extents, self.node_bytes(), planning.fill);
        let needed = match planning.fill {
            Fill::Roomy => self.needed(planning, parts.len()),
            Fill::Tight => self.tight_case(index, parts.len()),
        };
        let is_next = planning.fill == Fill::Tight && !planning.swaps.is_empty();
        if needed > buckets.free() || is_next {
            return Err(NoBucket { needed });
        }
        let writes = &mut planning.writes;
        let mut nodes = self.fresh_nodes(&parts, old, buckets, next_seq, writes, true);
        nodes.iter_mut().for_each(|leaf| leaf.changed_in = changed_in);
        if parts.len() > 1 {
            coverage::take(Path::Split);
        }
        buckets.hold(needed - parts.len());
        let fresh = nodes.iter().map(Node::key).collect();
        planning.add(Swap { old: vec![old], fresh }, parts.len() * self.node_bytes());
        self.levels[0].splice(index..=index, nodes);
        Ok(())
    }

    /// The plan, with what follows in the nodes above.
    pub fn end_plan(
        &mut self,
        planning: Planning,
        buckets: &mut Buckets,
        next_seq: &mut impl FnMut() -> u64,
    ) -> Plan {
        let Planning { fill, level, writes, swaps, .. } = planning;
        let mut plan = Plan { levels: vec![writes], ..Plan::default() };
        buckets.hold(0);
        self.update_parents(&mut plan, level, swaps, buckets, fill, next_seq);
        plan
    }

    pub(super) fn node_bytes(&self) -> usize {
        self.geometry.node_sectors() as usize * SECTOR_BYTES
    }

    /// Bytes of the largest node of each level above this one. A set may have nodes of other sizes
    /// than this version makes.
    fn widest(&self, level: usize) -> Vec<usize> {
        let widest = |level: &Vec<Node>| level.iter().map(Node::capacity).max().unwrap_or(0);
        self.levels[level + 1..].iter().map(widest).collect()
    }

    /// The buckets that a plan needs at most with so many more nodes of its level, beside those
    /// that it has taken.
    pub(super) fn needed(&self, planning: &Planning, fresh: usize) -> usize {
        let (replaced, fresh) = (planning.swaps.len() + 1, planning.fresh + fresh);
        let above = &self.levels[planning.level + 1..];
        self.worst_case(above, &planning.widest, replaced, fresh) - planning.fresh
    }

    /// The buckets that it takes at most to replace so many nodes by so many: each node of the
    /// levels above them is replaced by those that what it holds takes and what the keys to the
    /// fresh ones take, and roots are added. `widest` is what a node of each level holds at most.
    fn worst_case(
        &self,
        above: &[Vec<Node>],
        widest: &[usize],
        replaced: usize,
        fresh: usize,
    ) -> usize {
        let per_part = self.node_bytes() * 2 / 5;
        let parents = |nodes: usize| (nodes * CHILD_BYTES).div_ceil(per_part);
        let (mut nodes, mut sum) = (fresh, fresh);
        for (level, widest) in above.iter().zip(widest) {
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
    pub(super) fn fresh_nodes(
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

    /// Tells the nodes above what was replaced at `level`, and goes up, as long as parents are
    /// replaced.
    fn update_parents(
        &mut self,
        plan: &mut Plan,
        level: usize,
        mut swaps: Vec<Swap>,
        buckets: &mut Buckets,
        fill: Fill,
        next_seq: &mut impl FnMut() -> u64,
    ) {
        for level in level + 1.. {
            let replaced = swaps.iter().flat_map(|swap| &swap.old);
            plan.replaced.extend(replaced.filter_map(Key::cached_at));
            if swaps.is_empty() {
                return;
            }
            if level == self.levels.len() {
                plan.has_new_root = true;
                return self.grow(plan, buckets, fill, next_seq);
            }
            let mut writes = LevelWrites::default();
            swaps = self.update_level(level, swaps, buckets, fill, next_seq, &mut writes);
            plan.levels.push(writes);
        }
    }

    /// Adds levels until the topmost has one node.
    fn grow(
        &mut self,
        plan: &mut Plan,
        buckets: &mut Buckets,
        fill: Fill,
        next_seq: &mut impl FnMut() -> u64,
    ) {
        let above_all = Key::new(INODE_MAX, OFFSET_MAX, 0);
        while let Some(top) = self.levels.last().filter(|top| top.len() > 1) {
            coverage::take(Path::Grow);
            let children: Vec<Key> = top.iter().map(Node::key).collect();
            let parts = split(&children, self.node_bytes(), fill);
            let mut writes = LevelWrites::default();
            let nodes = self.fresh_nodes(&parts, above_all, buckets, next_seq, &mut writes, false);
            self.levels.push(nodes);
            plan.levels.push(writes);
        }
    }

    /// Updates the nodes of a level whose children fresh nodes replace. Answers which of them are
    /// replaced.
    fn update_level(
        &mut self,
        level: usize,
        below: Vec<Swap>,
        buckets: &mut Buckets,
        fill: Fill,
        next_seq: &mut impl FnMut() -> u64,
        writes: &mut LevelWrites,
    ) -> Vec<Swap> {
        let mut replaced = Vec::new();
        let mut below = below.into_iter().peekable();
        while let Some(first) = below.next() {
            let at = first.position();
            let index = self.levels[level].partition_point(|node| node.position() < at);
            let upto = self.levels[level][index].position();
            let mut swaps = vec![first];
            while let Some(next) = below.next_if(|swap| swap.position() <= upto) {
                swaps.push(next);
            }
            let mut keys: Vec<Key> = swaps.iter().flat_map(|swap| &swap.old).map(freeing).collect();
            keys.extend(swaps.iter().flat_map(|swap| &swap.fresh));
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
            replaced.push(Swap { old: vec![old], fresh });
            self.levels[level].splice(index..=index, nodes);
        }
        replaced
    }

    /// The keys to the children of a node (B2).
    pub(super) fn children(&self, level: usize, index: usize) -> Vec<Key> {
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
