//! Coalescing: siblings that have become sparse are repacked into fewer nodes.
//!
//! Nodes in a row beneath one parent are replaced by fewer: as many as fit into two thirds of one
//! node by that one; or three or four, if they fit into two thirds of one less. The order is that
//! of each replacement (`write`): the fresh nodes are durable first, then one bset of the parent
//! has the keys to them and a freeing key for each old node, then the old buckets are free. So a
//! crash leaves the old nodes or the fresh ones, each with all keys that the other has.
//!
//! What leaves on the device lack of the tree in memory enters the fresh ones with the rest; that
//! it is still counted as unwritten only means that it is written once more.

use cairn_format::bcache::Key;
use cairn_format::bcache::node::SET_HEADER_BYTES;

use super::insert::{Planning, Swap};
use super::{LeafPlace, Node, Tree};
use crate::bcache::buckets::Buckets;
use crate::bcache::work;

/// The most nodes that are repacked into one, and into more than one.
const INTO_ONE: usize = 64;
const INTO_MORE: usize = 4;
/// Bytes of a key with a pointer.
const KEY_BYTES: usize = 24;

/// Units of work that it takes to look at a node.
const LOOK: usize = 64;

/// Nodes in a row, and how many take their place.
#[derive(Clone, Copy)]
struct Group {
    count: usize,
    into: usize,
}

/// How far a search for sparse nodes got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Searched {
    /// Up to here; there is more.
    To((u32, u64)),
    /// The plan has no room for more; the search goes on here, with another plan.
    Full((u32, u64)),
    /// The next leaves to be repacked are absent; the search goes on where it was.
    Absent(Vec<LeafPlace>),
    /// All nodes of the level.
    All,
}

impl Tree {
    /// Levels whose nodes have siblings: all but the root's.
    pub fn levels_beneath_root(&self) -> usize {
        self.levels.len() - 1
    }

    /// Adds sparse nodes of the plan's level to the plan, from a position on.
    pub fn coalesce_some(
        &mut self,
        planning: &mut Planning,
        from: (u32, u64),
        buckets: &mut Buckets,
        next_seq: &mut impl FnMut() -> u64,
    ) -> Searched {
        let level = planning.level;
        let first = self.first_behind(level, from);
        for index in first..self.levels[level].len() {
            let looked = (index - first) * LOOK;
            let group = self.sparse_group(level, index);
            if group.is_none() && looked < work::piece() {
                continue;
            }
            work::did(looked);
            // A group is a piece of its own.
            let Some(group) = group.filter(|_| index == first) else {
                return Searched::To(self.after(level, index));
            };
            let absent = match level {
                0 => {
                    (index..index + group.count).filter_map(|at| self.place_if_absent(at)).collect()
                }
                _ => Vec::new(),
            };
            if !absent.is_empty() {
                return Searched::Absent(absent);
            }
            if !planning.has_room() || !self.repack(planning, index, group, buckets, next_seq) {
                return Searched::Full(self.after(level, index));
            }
            // The nodes that have just been made stay as they are.
            return match index + group.into == self.levels[level].len() {
                true => Searched::All,
                false => Searched::To(self.after(level, index + group.into)),
            };
        }
        work::did((self.levels[level].len() - first) * LOOK % work::piece());
        Searched::All
    }

    /// The first node of a level that reaches behind a position.
    fn first_behind(&self, level: usize, at: (u32, u64)) -> usize {
        self.levels[level].partition_point(|node| node.position() <= at)
    }

    /// Bytes of one bset of all that a node has.
    fn live_bytes(&self, level: usize, index: usize) -> usize {
        let keys = match level {
            0 => self.levels[0][index].count(),
            _ => self.count_children(level, index),
        };
        keys * KEY_BYTES
    }

    fn count_children(&self, level: usize, index: usize) -> usize {
        let (after, upto) = (self.after(level, index), self.levels[level][index].position());
        let beneath = &self.levels[level - 1];
        let behind = |at| beneath.partition_point(|node| node.position() <= at);
        behind(upto) - behind(after)
    }

    /// The nodes from this one on that fit into fewer, if some do.
    fn sparse_group(&self, level: usize, index: usize) -> Option<Group> {
        let nodes = &self.levels[level];
        let above = &self.levels[level + 1];
        let parent = above.partition_point(|node| node.position() < nodes[index].position());
        let upto = above[parent].position();
        let room = self.node_bytes() * 2 / 3 - SET_HEADER_BYTES;
        let mut bytes = self.live_bytes(level, index);
        let mut found = None;
        for count in 2..=INTO_ONE {
            let last = index + count - 1;
            if nodes.get(last).is_none_or(|node| node.position() > upto) {
                break;
            }
            bytes += self.live_bytes(level, last);
            let is_into_one = bytes <= room;
            let is_into_more = count <= INTO_MORE && bytes <= (count - 1) * room;
            if is_into_one || is_into_more && found.is_none() {
                found = Some(Group { count, into: if is_into_one { 1 } else { count - 1 } });
            }
            if !is_into_one && (found.is_some() || count >= INTO_MORE) {
                break;
            }
        }
        found
    }

    /// Replaces nodes in a row by fewer. False if there are too few buckets.
    fn repack(
        &mut self,
        planning: &mut Planning,
        index: usize,
        Group { count, into }: Group,
        buckets: &mut Buckets,
        next_seq: &mut impl FnMut() -> u64,
    ) -> bool {
        let level = planning.level;
        let needed = self.needed(planning, into);
        if needed > buckets.free() {
            return false;
        }
        let keys: Vec<Key> =
            (index..index + count).flat_map(|at| self.keys_of(level, at)).collect();
        work::did(keys.len());
        let parts: Vec<&[Key]> = match keys.len() {
            0 => vec![&[]],
            many => keys.chunks(many.div_ceil(into)).collect(),
        };
        let old: Vec<Key> =
            self.levels[level][index..index + count].iter().map(Node::key).collect();
        let last = *old.last().expect("two at least");
        let (writes, is_leaf) = (&mut planning.writes, level == 0);
        let changed_in = self.levels[level][index..index + count].iter().map(|it| it.changed_in);
        let changed_in = changed_in.max().unwrap_or_default();
        let mut nodes = self.fresh_nodes(&parts, last, buckets, next_seq, writes, is_leaf);
        nodes.iter_mut().for_each(|node| node.changed_in = changed_in);
        let fresh = nodes.iter().map(Node::key).collect();
        planning.add(Swap { old, fresh }, nodes.len() * self.node_bytes());
        buckets.hold(needed - nodes.len());
        self.levels[level].splice(index..index + count, nodes);
        true
    }

    /// All that a node has.
    fn keys_of(&self, level: usize, index: usize) -> Vec<Key> {
        match level {
            0 => self.levels[0][index].extents().iter().copied().collect(),
            _ => self.children(level, index),
        }
    }
}

#[cfg(test)]
mod tests {
    use cairn_format::bcache::Key;
    use proptest::prelude::*;

    use super::{Searched, work};
    use crate::bcache::btree::Fill;
    use crate::bcache::btree::reference::{DATA, Model, Sectors, extent, hole, lay_over};

    fn insert(model: &mut Model, sectors: &mut Sectors, keys: Vec<Key>) {
        lay_over(sectors, &keys);
        model.insert(keys).expect("there are buckets");
    }

    /// Coalesces all levels, plan by plan, and writes each plan.
    fn coalesce(model: &mut Model) {
        let mut level = 0;
        while level < model.tree.levels_beneath_root() {
            let mut from = Some((0, 0));
            while let Some(mut at) = from {
                while model.buckets.refill() {}
                let mut planning = model.tree.begin_plan(level, Fill::Roomy);
                let Model { tree, buckets, seq, .. } = &mut *model;
                let mut next_seq = || {
                    *seq += 1;
                    *seq
                };
                from = loop {
                    work::begin();
                    match tree.coalesce_some(&mut planning, at, buckets, &mut next_seq) {
                        Searched::To(to) => at = to,
                        Searched::Full(to) => break Some(to).filter(|to| *to > at),
                        Searched::Absent(_) => panic!("all leaves are present"),
                        Searched::All => break None,
                    }
                };
                let is_empty = planning.is_empty();
                let plan = tree.end_plan(planning, buckets, &mut next_seq);
                if !is_empty {
                    model.write(&plan);
                }
            }
            level += 1;
        }
    }

    #[test]
    fn a_tree_that_shrank_gives_its_buckets_back() {
        let (mut model, mut sectors) = (Model::new(2000, 8), Sectors::new());
        model.take([DATA]);
        let all = (0..40_000).map(|at| extent(0, at * 2, at % 3 > 0)).collect();
        insert(&mut model, &mut sectors, all);
        let before = model.tree.count_nodes();
        assert!(before > 400 && model.tree.levels_beneath_root() == 2);
        // One extent of fifty stays.
        let holes = (0..800).map(|at| hole(0, at * 100 + 1, 99)).collect();
        insert(&mut model, &mut sectors, holes);
        coalesce(&mut model);
        model.check(&sectors);
        model.check_counts();
        let after = model.tree.count_nodes();
        assert!(after <= 20, "{before} nodes became {after}");
        while model.buckets.refill() {}
        model.buckets.check_state();
        insert(&mut model, &mut sectors, (0..900).map(|at| extent(0, at * 3, true)).collect());
        model.check(&sectors);
    }

    #[test]
    fn an_empty_tree_becomes_a_leaf_beneath_each_node() {
        let (mut model, mut sectors) = (Model::new(900, 8), Sectors::new());
        model.take([DATA]);
        let all = (0..9000).map(|at| extent(3, at * 2, true)).collect();
        insert(&mut model, &mut sectors, all);
        insert(&mut model, &mut sectors, vec![hole(3, 0, 18_000)]);
        coalesce(&mut model);
        model.check(&sectors);
        assert!(sectors.is_empty() && model.tree.count_nodes() <= 3);
    }

    #[test]
    fn full_leaves_stay_as_they_are() {
        let (mut model, mut sectors) = (Model::new(900, 8), Sectors::new());
        model.take([DATA]);
        insert(&mut model, &mut sectors, (0..9000).map(|at| extent(0, at * 2, true)).collect());
        let before: Vec<Key> = model.tree.nodes().collect();
        coalesce(&mut model);
        let kept = model.tree.nodes().filter(|key| before.contains(key)).count();
        assert!(kept * 10 >= before.len() * 9, "{kept} of {}", before.len());
        model.check(&sectors);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Each sector lies where it lay, in memory and on the device, whichever parts were emptied
        /// between two passes, and however few buckets are free.
        #[test]
        fn coalescing_changes_no_sector(
            rounds in proptest::collection::vec(
                proptest::collection::vec((0..3_u32, 0..4000_u64, 1..900_u64, 0..4_u8), 1..12),
                1..5,
            ),
            free in 0..40_usize,
        ) {
            let (mut model, mut sectors) = (Model::new(1500, 8), Sectors::new());
            model.take([DATA]);
            for inode in 0..3 {
                let all = (0..1500).map(|at| extent(inode, at * 3, at % 2 > 0)).collect();
                insert(&mut model, &mut sectors, all);
            }
            for changes in rounds {
                for (inode, start, count, kind) in changes {
                    let keys = match kind {
                        0 => (start..start + count).map(|at| extent(inode, at, true)).collect(),
                        _ => vec![hole(inode, start, count)],
                    };
                    insert(&mut model, &mut sectors, keys);
                }
                coalesce(&mut model);
                model.check(&sectors);
                model.check_counts();
            }
            while model.buckets.refill() {}
            let mut taken = Vec::new();
            while model.buckets.free() > free {
                taken.extend(model.buckets.take_for_metadata());
            }
            let behind = model.apply(&[hole(1, 0, 4500)]);
            lay_over(&mut sectors, &[hole(1, 0, 4500)]);
            coalesce(&mut model);
            let taken: Vec<u64> = taken.iter().map(|pointer| pointer.sector() / 8).collect();
            model.buckets.structure_replaced(&taken);
            let mut behind = behind;
            model.write_all(&mut behind).expect("there are buckets");
            model.check(&sectors);
        }
    }
}
