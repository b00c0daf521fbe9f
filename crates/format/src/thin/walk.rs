//! A walk through many trees at once: level by level, each level in the order of its blocks on
//! disk. A level of more than [`EDGES_MAX`] pointers is walked in several parts, each with the
//! levels below it; a node to which several parts point is read once for each of them.
//!
//! Trees of one family (say, the mapping trees of all devices) may share nodes. Promises that each
//! distinct node is passed on exactly once, and that each pointer to it is checked: what it points
//! to, and whether the keys there are within the keys that the pointer covers. The walk ends,
//! whatever the trees look like: a node is entered once, from the pointer that covers the fewest
//! keys of those known at that time, and the levels below are checked by that pointer. Loops are
//! found by [`Graph::entries_below`].
//!
//! Memory: 24 bytes per pointer of a part of each level, at most half a gigabyte for very wide
//! trees; 4 bytes per pointer from a distinct node in all, a few dozen per distinct node, and a
//! byte per metadata block.

use core::fmt;

use rustc_hash::{FxHashMap, FxHashSet};

use super::block::Block;
use super::blocks::{Bad, Blocks};
use super::{DeviceId, MetadataBlock, Node, Value};

/// The use of a metadata block, as the walks found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Family {
    /// The superblock or the held copy.
    Superblock = 1,
    /// The index block of the metadata space map.
    MetadataIndex,
    /// A bitmap of either space map.
    Bitmap,
    /// The index tree of the data space map.
    DataIndex,
    /// The tree of large counts of data blocks.
    DataCounts,
    /// The tree of large counts of metadata blocks.
    MetadataCounts,
    /// The details tree.
    Details,
    /// The top-level tree.
    TopLevel,
    /// A mapping tree.
    Mappings,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Superblock => "superblock",
            Family::MetadataIndex => "index of the metadata space map",
            Family::Bitmap => "bitmap",
            Family::DataIndex => "index of the data space map",
            Family::DataCounts => "count tree of the data space map",
            Family::MetadataCounts => "count tree of the metadata space map",
            Family::Details => "details tree",
            Family::TopLevel => "top-level tree",
            Family::Mappings => "mapping tree",
        })
    }
}

/// A tree, or another structure that the superblock points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tree {
    /// What it is.
    pub family: Family,
    /// For a mapping tree: the device.
    pub device: Option<DeviceId>,
    /// Whether it belongs to the metadata snapshot.
    pub held: bool,
}

impl Tree {
    /// A tree of the pool as it is now, of no device.
    #[must_use]
    pub fn of(family: Family) -> Tree {
        Tree { family, device: None, held: false }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.held {
            f.write_str("metadata snapshot, ")?;
        }
        if let Some(device) = self.device {
            write!(f, "device {device}, ")?;
        }
        self.family.fmt(f)
    }
}

/// A place in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeLocation {
    /// One of the trees that lead there.
    pub tree: Tree,
    /// The block.
    pub block: MetadataBlock,
    /// The smallest key that may lie there.
    pub first: u64,
    /// The largest key that may lie there.
    pub last: u64,
}

impl fmt::Display for NodeLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree.fmt(f)?;
        match (self.first, self.last) {
            (0, u64::MAX) => Ok(()),
            (first, u64::MAX) => write!(f, ", keys from {first}"),
            (first, last) => write!(f, ", keys {first} to {last}"),
        }
    }
}

/// What is wrong with the block that a pointer points to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The block is not a node, or does not exist.
    #[error(transparent)]
    Bad(#[from] Bad),
    /// The block has another use already.
    #[error("block {at}: found a block of a {found}, expected one of its own")]
    UsedTwice {
        /// The block.
        at: MetadataBlock,
        /// Its other use.
        found: Family,
    },
    /// Keys that a lookup from the root cannot find.
    #[error("block {at}, node keys: found {first} to {last}, expected keys within the pointer's")]
    KeysOutside {
        /// The node.
        at: MetadataBlock,
        /// Its first key.
        first: u64,
        /// Its last key.
        last: u64,
    },
    /// Fewer entries than a node below a root should have. Harmless, but thin_check reports an
    /// error.
    #[error("block {at}, node nr_entries: found {found}, expected at least {least} below a root")]
    Underfull {
        /// The node.
        at: MetadataBlock,
        /// Entries in it.
        found: usize,
        /// A third of what it has room for.
        least: usize,
    },
    /// A device that is in only one of the two trees.
    #[error(
        "block {at}: found {} {id}, expected the devices of the details tree",
        if *missing { "no device" } else { "device" }
    )]
    OtherDevices {
        /// Root of the top-level tree.
        at: MetadataBlock,
        /// The first such device.
        id: u64,
        /// Whether the top-level tree lacks it.
        missing: bool,
    },
    /// The node is its own descendant.
    #[error("block {at}: found a node that is its own descendant, expected a tree")]
    Loop {
        /// The node.
        at: MetadataBlock,
    },
}

/// Which blocks were entered, and with which use.
#[derive(Debug)]
pub struct Seen(Vec<u8>);

impl Seen {
    /// No block of this many was entered.
    #[must_use]
    pub fn none(blocks: u64) -> Seen {
        Seen(vec![0; usize::try_from(blocks).unwrap_or(usize::MAX)])
    }

    /// Enters a block. `Ok(false)`: it was entered before, with the same use.
    ///
    /// # Errors
    /// It does not exist, or has another use.
    pub fn enter(&mut self, at: MetadataBlock, family: Family) -> Result<bool, Fault> {
        let count = self.0.len() as u64;
        let place = usize::try_from(at.0).ok().and_then(|at| self.0.get_mut(at));
        let Some(place) = place else { return Err(Bad::Outside { at, count }.into()) };
        match *place {
            0 => {
                *place = family as u8;
                Ok(true)
            }
            known if known == family as u8 => Ok(false),
            other => Err(Fault::UsedTwice { at, found: family_of(other) }),
        }
    }
}

fn family_of(byte: u8) -> Family {
    let all = [
        Family::Superblock,
        Family::MetadataIndex,
        Family::Bitmap,
        Family::DataIndex,
        Family::DataCounts,
        Family::MetadataCounts,
        Family::Details,
        Family::TopLevel,
    ];
    all.into_iter().find(|family| *family as u8 == byte).unwrap_or(Family::Mappings)
}

/// Receives what a walk finds.
pub trait Visit {
    /// A sound leaf; called once for each.
    fn leaf(&mut self, tree: Tree, leaf: &Node<'_>);
    /// A sound internal node; called once for each.
    fn internal(&mut self, node: &Node<'_>);
    /// A fault.
    fn fault(&mut self, place: NodeLocation, fault: Fault);
}

/// Limit on the pointers of a level that are walked together; the last nodes read may exceed it.
const EDGES_MAX: usize = 16 << 20;
/// Pointers whose nodes are read at once.
const WINDOW: usize = 16 << 10;
/// The bit of [`Edge::tree`] that marks a root.
const ROOT: u32 = 1 << 31;

/// A pointer to follow.
#[derive(Debug, Clone, Copy)]
struct Edge {
    first: u64,
    last: u64,
    child: u32,
    /// Index of the tree, and whether the child is its root.
    tree: u32,
}

const _: () = assert!(size_of::<Edge>() == 24);

impl Edge {
    fn child(&self) -> MetadataBlock {
        MetadataBlock(u64::from(self.child))
    }

    fn tree(&self) -> usize {
        (self.tree & !ROOT) as usize
    }
}

/// Pointers, sorted, and how many of them are done.
struct Level {
    edges: Vec<Edge>,
    done: usize,
}

impl Level {
    fn new(mut edges: Vec<Edge>) -> Level {
        // Of pointers to the same node the one of the first tree comes first, so that the order is
        // fixed.
        edges.sort_unstable_by_key(|edge| (edge.child, edge.tree & !ROOT, edge.first));
        Level { edges, done: 0 }
    }

    /// The next pointers, including all that point to the last of their nodes; empty if all are
    /// done.
    fn window(&mut self, most: usize) -> &[Edge] {
        let begin = self.done;
        let end = self.edges.len().min(begin.saturating_add(most));
        let last = self.edges[begin..end].last().map(|edge| edge.child);
        let more = self.edges[end..].iter().take_while(|edge| Some(edge.child) == last).count();
        self.done = end + more;
        &self.edges[begin..self.done]
    }
}

/// The nodes that the walks found, without their keys.
#[derive(Debug, Default)]
pub struct Graph {
    children: Vec<u32>,
    /// For an internal node: where its children are in `children`.
    internal: FxHashMap<u32, (u32, u16)>,
    /// For a leaf: its number of entries.
    leaves: FxHashMap<u32, u16>,
}

impl Graph {
    fn note(&mut self, node: &Node<'_>) {
        let at = short(node.at());
        if node.is_leaf() {
            self.leaves.insert(at, node.len() as u16);
        } else {
            self.internal.insert(at, (self.children.len() as u32, node.len() as u16));
            self.children.extend(node.entries().map(|(_, child)| short(child)));
        }
    }

    fn children(&self, at: u32) -> Option<&[u32]> {
        let (begin, len) = self.internal.get(&at)?;
        Some(&self.children[*begin as usize..][..usize::from(*len)])
    }

    /// Entries in the leaves below each of these roots; `None` where a node is missing. An error is
    /// a node that is its own descendant.
    pub fn entries_below(
        &self,
        roots: impl Iterator<Item = MetadataBlock>,
    ) -> Vec<Result<Option<u64>, Fault>> {
        let mut sums = FxHashMap::default();
        roots.map(|root| self.sum(short(root), &mut sums)).collect()
    }

    /// Depth first, without recursion: a hostile tree may be as deep as it has nodes.
    fn sum(&self, root: u32, sums: &mut FxHashMap<u32, Option<u64>>) -> Result<Option<u64>, Fault> {
        if let Some(sum) = self.known(root, sums) {
            return Ok(sum);
        }
        // From the root down: the node, its next child, the sum so far.
        let mut path = vec![(root, 0, Some(0))];
        let mut open = FxHashSet::from_iter([root]);
        while let Some((at, next, total)) = path.pop() {
            let Some(child) = self.children(at).and_then(|children| children.get(next)) else {
                open.remove(&at);
                sums.insert(at, total);
                continue;
            };
            match self.known(*child, sums) {
                Some(sum) => path.push((at, next + 1, add(total, sum))),
                None if open.insert(*child) => {
                    path.push((at, next, total));
                    path.push((*child, 0, Some(0)));
                }
                None => return Err(Fault::Loop { at: MetadataBlock(u64::from(*child)) }),
            }
        }
        Ok(sums.get(&root).copied().flatten())
    }

    /// The sum of a node that needs no descent: a leaf, a missing node, a node done before.
    fn known(&self, at: u32, sums: &FxHashMap<u32, Option<u64>>) -> Option<Option<u64>> {
        if let Some(len) = self.leaves.get(&at) {
            return Some(Some(u64::from(*len)));
        }
        match self.internal.contains_key(&at) {
            false => Some(None),
            true => sums.get(&at).copied(),
        }
    }
}

fn add(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.zip(b).map(|(a, b)| a.saturating_add(b))
}

/// A number too large for 32 bits is no block of any pool, and is never found.
fn short(at: MetadataBlock) -> u32 {
    u32::try_from(at.0).unwrap_or(u32::MAX)
}

/// A walk through the trees of one family.
pub struct Walk<'a, V> {
    trees: Vec<Tree>,
    roots: Vec<MetadataBlock>,
    /// Blocks on the device.
    count: u64,
    /// Pointers found and not followed yet.
    found: Vec<Edge>,
    seen: &'a mut Seen,
    graph: &'a mut Graph,
    /// [`EDGES_MAX`] and [`WINDOW`]; smaller in tests.
    most: (usize, usize),
    value: core::marker::PhantomData<V>,
}

impl<'a, V: Value> Walk<'a, V> {
    /// A walk without trees. All walks of one check share `seen` and `graph`.
    #[must_use]
    pub fn new(seen: &'a mut Seen, graph: &'a mut Graph) -> Walk<'a, V> {
        let (most, value) = ((EDGES_MAX, WINDOW), core::marker::PhantomData);
        let (trees, roots, found) = (Vec::new(), Vec::new(), Vec::new());
        Walk { trees, roots, count: 0, found, seen, graph, most, value }
    }

    /// Adds a tree.
    pub fn add(&mut self, tree: Tree, root: MetadataBlock) {
        self.trees.push(tree);
        self.roots.push(root);
    }

    /// Walks all trees.
    ///
    /// # Errors
    /// Reading has to end.
    pub fn run<B: Blocks>(
        mut self,
        blocks: &mut B,
        visit: &mut impl Visit,
    ) -> Result<(), B::Error> {
        self.count = blocks.count();
        for (index, root) in core::mem::take(&mut self.roots).into_iter().enumerate() {
            self.find(root, (0, u64::MAX), index as u32 | ROOT, visit);
        }
        let (edges_max, window) = self.most;
        // The lowest level that is not done is the last of the list.
        let mut levels = vec![Level::new(core::mem::take(&mut self.found))];
        while let Some(level) = levels.last_mut() {
            let mut edges = level.window(window);
            let done = edges.is_empty();
            if done {
                levels.pop();
            } else {
                let mut wanted: Vec<_> = edges.iter().map(Edge::child).collect();
                wanted.dedup();
                blocks.read(&wanted, &mut |at, bytes| {
                    let count = edges.partition_point(|edge| edge.child() <= at);
                    let (here, rest) = edges.split_at(count);
                    edges = rest;
                    self.arrive(at, bytes, here, visit);
                })?;
            }
            if done && !self.found.is_empty() || self.found.len() >= edges_max {
                levels.push(Level::new(core::mem::take(&mut self.found)));
            }
        }
        Ok(())
    }

    /// Adds a pointer to follow, if its block exists.
    fn find(
        &mut self,
        at: MetadataBlock,
        (first, last): (u64, u64),
        tree: u32,
        visit: &mut impl Visit,
    ) {
        let count = self.count;
        match u32::try_from(at.0) {
            Ok(child) if at.0 < count => self.found.push(Edge { first, last, child, tree }),
            _ => {
                let tree = self.trees[(tree & !ROOT) as usize];
                let place = NodeLocation { tree, block: at, first, last };
                visit.fault(place, Bad::Outside { at, count }.into());
            }
        }
    }

    fn place(&self, edge: &Edge) -> NodeLocation {
        let tree = self.trees[edge.tree()];
        NodeLocation { tree, block: edge.child(), first: edge.first, last: edge.last }
    }

    /// Handles a block that was read, given the pointers to it.
    fn arrive(
        &mut self,
        at: MetadataBlock,
        bytes: Option<&Block>,
        edges: &[Edge],
        visit: &mut impl Visit,
    ) {
        // `min_by_key` takes the first of equal pointers.
        let Some(edge) = edges.iter().min_by_key(|edge| edge.last) else { return };
        let tree = self.trees[edge.tree()];
        let node = bytes.ok_or(Bad::Unreadable { at }.into()).and_then(|bytes| {
            let node = Node::decode(bytes, at).and_then(Node::expect::<V>);
            node.map_err(|error| Fault::from(Bad::Wrong(error)))
        });
        let entered = node.and_then(|node| Ok((node, self.seen.enter(at, tree.family)?)));
        match entered {
            Err(fault) => visit.fault(self.place(edge), fault),
            Ok((node, fresh)) => {
                for edge in edges {
                    self.judge(edge, &node, visit);
                }
                if fresh {
                    self.enter(edge, &node, visit);
                }
            }
        }
    }

    fn judge(&self, edge: &Edge, node: &Node<'_>, visit: &mut impl Visit) {
        let at = node.at();
        let ends = node.keys().next().zip(node.keys().next_back());
        if let Some((first, last)) = ends.filter(|ends| ends.0 < edge.first || ends.1 > edge.last) {
            visit.fault(self.place(edge), Fault::KeysOutside { at, first, last });
        }
        let least = node.max() / 3;
        if edge.tree & ROOT == 0 && node.len() < least {
            visit.fault(self.place(edge), Fault::Underfull { at, found: node.len(), least });
        }
    }

    fn enter(&mut self, edge: &Edge, node: &Node<'_>, visit: &mut impl Visit) {
        self.graph.note(node);
        if node.is_leaf() {
            return visit.leaf(self.trees[edge.tree()], node);
        }
        visit.internal(node);
        for index in 0..node.len() {
            let last = match index + 1 < node.len() {
                true => node.key(index + 1) - 1,
                false => edge.last,
            };
            let first = node.key(index);
            self.find(node.child(index), (first, last.max(first)), edge.tree & !ROOT, visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Family, Fault, Graph, NodeLocation, Seen, Tree, Visit, Walk};
    use crate::thin::blocks::{Blocks, MemoryBlocks};
    use crate::thin::{BLOCK_BYTES, DeviceId, Mapping, MetadataBlock, Node, Superblock, block};

    /// What a walk found.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Told {
        leaves: Vec<MetadataBlock>,
        internal: Vec<MetadataBlock>,
        faults: Vec<(MetadataBlock, Fault)>,
    }

    impl Visit for Told {
        fn leaf(&mut self, _: Tree, leaf: &Node<'_>) {
            self.leaves.push(leaf.at());
        }

        fn internal(&mut self, node: &Node<'_>) {
            self.internal.push(node.at());
        }

        fn fault(&mut self, place: NodeLocation, fault: Fault) {
            self.faults.push((place.block, fault));
        }
    }

    fn walked(meta: &[u8], most: (usize, usize)) -> Told {
        let mut blocks = MemoryBlocks::new(meta);
        let (mut seen, mut graph) = (Seen::none(blocks.count()), Graph::default());
        let mut walk = Walk::<Mapping>::new(&mut seen, &mut graph);
        walk.most = most;
        let node = |at: MetadataBlock| {
            let bytes = &meta[at.0 as usize * BLOCK_BYTES..][..BLOCK_BYTES];
            Node::decode(block::of(bytes).unwrap(), at).unwrap()
        };
        let at = MetadataBlock::SUPERBLOCK;
        let superblock = Superblock::decode(block::of(&meta[..BLOCK_BYTES]).unwrap(), at).unwrap();
        for (id, root) in node(superblock.mapping_root).entries::<MetadataBlock>() {
            let device = DeviceId::new(id).ok();
            walk.add(Tree { device, ..Tree::of(Family::Mappings) }, root);
        }
        let mut told = Told::default();
        let Ok(()) = walk.run(&mut blocks, &mut told);
        told.leaves.sort_unstable();
        told.internal.sort_unstable();
        told.faults.sort_by_key(|(at, _)| *at);
        told
    }

    #[test]
    fn level_in_many_parts_is_walked_like_one_part() {
        for name in ["big.meta", "snaps.meta"] {
            let mut meta = cairn_testkit::image("thin", name);
            let whole = walked(&meta, (usize::MAX, usize::MAX));
            assert_eq!(whole.faults, [], "{name}");
            for most in [(1, 1), (1, 3), (7, 2)] {
                assert_eq!(walked(&meta, most), whole, "{name}");
            }
            let broken = whole.leaves[1].0 as usize * BLOCK_BYTES;
            meta[broken + 40] ^= 0xFF;
            let faults = walked(&meta, (1, 1)).faults;
            assert!(!faults.is_empty() && walked(&meta, (100, 100)).faults.len() <= faults.len());
        }
    }
}
