//! Changing a tree in bulk: a sorted batch of insertions, overwrites and removals, in one descent
//! that touches each node once.
//!
//! ```text
//! node(block) -> the nodes that take its place:   none    nothing is left of it
//!                                                 one     itself, or its shadow
//!                                                 more    it was split
//! ```
//! A parent replaces its children by what they became, joins those with too few entries with a
//! neighbour, and is split itself if it has too many. The nodes left at the top get a root.
//!
//! E1. A block that is not fresh is never changed; a shadow of it is. If it was shared, the count
//!     of everything it points to is raised before any of it is changed.
//! E2. Only nodes that were changed are joined or split. Every changed node except a root has at
//!     least a third of its entries afterwards.
//! E3. Nodes that the batch can't change are not read.
//!
//! An error leaves the transaction incomplete: it must be aborted.

use std::marker::PhantomData;
use std::ops::Range;

use cairn_block::{Env, LocalFuture};
use cairn_format::thin::{BLOCK_BYTES, MetadataBlock, NodeKind, Value, capacity};

use super::canary::{Bug, planted};
use super::error::{Error, MetadataPart, Path};
use super::nodes::{
    self, ALL_KEYS, DEPTH_MAX, Entries, Nodes, Referent, TreeValue, children, too_deep,
};
use super::transaction::Transaction;

/// Changes to a tree: values to set, or (`None`) to remove; keys strictly increase.
type Changes<'e, V> = &'e [(u64, Option<V>)];

/// The changes to these keys.
fn within<'e, V>(changes: Changes<'e, V>, keys: &Range<u64>) -> Changes<'e, V> {
    let from = changes.partition_point(|(key, _)| *key < keys.start);
    let len = changes[from..].partition_point(|(key, _)| *key < keys.end);
    &changes[from..from + len]
}

/// True if these entries of a leaf would change.
fn touches<V: TreeValue>(changes: Changes<'_, V>, entries: &[(u64, V)]) -> bool {
    let at = |key: u64| entries.binary_search_by_key(&key, |(key, _)| *key);
    changes.iter().any(|(key, value)| match (at(*key), value) {
        (Ok(index), Some(value)) => entries[index].1 != *value,
        (found, value) => found.is_ok() || value.is_some(),
    })
}

/// A child as its parent refers to it.
#[derive(Clone, Debug)]
struct Child {
    key: u64,
    block: MetadataBlock,
    /// It was changed, and has fewer entries than a node should have.
    meagre: bool,
}

/// How many entries changes brought and took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub inserted: u64,
    pub removed: u64,
}

/// Changes trees of one kind.
pub(super) struct Editor<'a, V> {
    env: &'a Env,
    nodes: &'a Nodes,
    txn: &'a mut Transaction,
    place: MetadataPart,
    /// Leaves are rewritten even if their values stay the same: to have them fresh.
    pub rewrite: bool,
    pub tally: Tally,
    /// Roots that leaves of a deleted top-level tree pointed to.
    pub orphans: Vec<MetadataBlock>,
    values: PhantomData<V>,
}

impl<'a, V: TreeValue> Editor<'a, V> {
    /// An editor of the trees at `place`.
    pub fn new(
        env: &'a Env,
        nodes: &'a Nodes,
        txn: &'a mut Transaction,
        place: MetadataPart,
    ) -> Self {
        let (tally, orphans) = (Tally::default(), Vec::new());
        Editor { env, nodes, txn, place, rewrite: false, tally, orphans, values: PhantomData }
    }

    fn path(&self, block: MetadataBlock, keys: Range<u64>) -> Path {
        Path { place: self.place, block, keys }
    }

    /// Makes an empty tree.
    pub fn create(&mut self) -> Result<MetadataBlock, Error> {
        let block = self.txn.allocate()?;
        self.write::<V>(block, NodeKind::Leaf, &[]);
        Ok(block)
    }

    /// Changes a tree; returns its new root.
    pub async fn edit(
        &mut self,
        root: MetadataBlock,
        changes: Changes<'_, V>,
    ) -> Result<MetadataBlock, Error> {
        let mut list = self.node(self.path(root, ALL_KEYS), 0, changes).await?;
        if list.is_empty() {
            return self.create();
        }
        while list.len() > 1 {
            let entries: Vec<_> = list.iter().map(|child| (child.key, child.block)).collect();
            list = self.store(None, NodeKind::Internal, &entries, true)?;
        }
        self.collapse(list[0].block).await
    }

    /// A changed root with one child gives way to it.
    async fn collapse(&mut self, mut root: MetadataBlock) -> Result<MetadataBlock, Error> {
        while self.txn.is_fresh(root) {
            let path = self.path(root, ALL_KEYS);
            match self.load(&path).await? {
                Entries::Internal(entries) if entries.len() == 1 => {
                    self.txn.lower(&path, root)?;
                    root = entries[0].1;
                }
                _ => break,
            }
        }
        Ok(root)
    }

    /// Deletes a tree: what is shared loses a pointer, the rest is freed.
    pub async fn delete(&mut self, root: MetadataBlock) -> Result<(), Error> {
        self.drop_tree(self.path(root, ALL_KEYS), 0).await
    }

    async fn load(&self, path: &Path) -> Result<Entries<V>, Error> {
        let bounds = self.txn.bounds();
        bounds.check(path, "block", path.block)?;
        match self.txn.fresh.get(&path.block) {
            Some(Some(bytes)) => nodes::decode(bytes, path, &bounds),
            Some(None) => {
                // Only if it was free by the space map and in use by a tree.
                let detail = "count: found 0 in the durable state, expected 1 or more";
                Err(Error::damaged(path.clone(), detail))
            }
            None => self.nodes.fetch_one(self.env, self.nodes.generation(), path, &bounds).await,
        }
    }

    /// Reads nodes that are about to be asked for, in large requests.
    async fn read_ahead(&self, paths: impl Iterator<Item = Path>) -> Result<(), Error> {
        let paths: Vec<Path> = paths.filter(|path| !self.txn.is_fresh(path.block)).collect();
        if paths.len() > 1 {
            self.nodes.fetch(self.env, self.nodes.generation(), &paths).await?;
        }
        Ok(())
    }

    fn write<W: Value>(&mut self, block: MetadataBlock, kind: NodeKind, entries: &[(u64, W)]) {
        let place = self.txn.fresh.get_mut(&block).expect("E1: only fresh blocks are written");
        let bytes = place.get_or_insert_with(|| Box::new([0; BLOCK_BYTES]));
        nodes::encode(bytes, kind, entries);
    }

    fn node<'b>(
        &'b mut self,
        path: Path,
        depth: usize,
        changes: Changes<'b, V>,
    ) -> LocalFuture<'b, Result<Vec<Child>, Error>> {
        Box::pin(async move {
            if depth >= DEPTH_MAX {
                return Err(too_deep(&path));
            }
            match self.load(&path).await? {
                Entries::Leaf(entries) => self.leaf(&path, &entries, changes),
                Entries::Internal(entries) => self.internal(&path, depth, &entries, changes).await,
            }
        })
    }

    fn leaf(
        &mut self,
        path: &Path,
        old: &[(u64, V)],
        changes: Changes<'_, V>,
    ) -> Result<Vec<Child>, Error> {
        if !self.rewrite && !touches(changes, old) {
            return Ok(vec![self.untouched(path)]);
        }
        if self.txn.count(path)? > 1 {
            return self.shared_leaf(path, old, changes);
        }
        let new = self.changed_entries(path, old, changes)?;
        if new.is_empty() {
            self.txn.lower(path, path.block)?;
            return Ok(Vec::new());
        }
        let own = self.shadow(path)?;
        let grows = grows_at_end(old, &new);
        self.store(Some(own), NodeKind::Leaf, &new, grows)
    }

    /// E1: a copy of the leaf refers to everything once more.
    fn shared_leaf(
        &mut self,
        path: &Path,
        old: &[(u64, V)],
        changes: Changes<'_, V>,
    ) -> Result<Vec<Child>, Error> {
        self.refer_once_more(path, old)?;
        let new = self.changed_entries(path, old, changes)?;
        self.txn.lower(path, path.block)?;
        let grows = grows_at_end(old, &new);
        self.store(None, NodeKind::Leaf, &new, grows)
    }

    fn refer_once_more<W: TreeValue>(
        &mut self,
        path: &Path,
        entries: &[(u64, W)],
    ) -> Result<(), Error> {
        for (_, value) in entries {
            match value.referent() {
                Referent::Nothing => (),
                Referent::Metadata(block) => self.txn.raise(path, block)?,
                Referent::Data(block) => self.txn.share_data(path, block)?,
            }
        }
        Ok(())
    }

    /// A leaf's entries after the change, with the counts of what values refer to.
    fn changed_entries(
        &mut self,
        path: &Path,
        old: &[(u64, V)],
        changes: Changes<'_, V>,
    ) -> Result<Vec<(u64, V)>, Error> {
        let mut new = Vec::with_capacity(old.len() + changes.len());
        let mut rest = old;
        for &(key, value) in changes {
            let before = rest.partition_point(|(own, _)| *own < key);
            new.extend_from_slice(&rest[..before]);
            rest = &rest[before..];
            let mut was = None;
            if let Some((&(own, old), after)) = rest.split_first()
                && own == key
            {
                (was, rest) = (Some(old), after);
            }
            self.replaced(path, was, value)?;
            new.extend(value.map(|value| (key, value)));
        }
        new.extend_from_slice(rest);
        Ok(new)
    }

    fn replaced(&mut self, path: &Path, old: Option<V>, new: Option<V>) -> Result<(), Error> {
        self.tally.inserted += u64::from(old.is_none() && new.is_some());
        self.tally.removed += u64::from(old.is_some() && new.is_none());
        // The first count goes up before the other goes down: they may be of the same block.
        // Roots in the top-level tree are counted by whoever creates, shadows and deletes them.
        if let Some(Referent::Data(block)) = new.map(|new| new.referent()) {
            self.txn.raise_data(path, block)?;
        }
        if let Some(Referent::Data(block)) = old.map(|old| old.referent()) {
            self.txn.lower_data(path, block)?;
        }
        Ok(())
    }

    async fn internal(
        &mut self,
        path: &Path,
        depth: usize,
        old: &[(u64, MetadataBlock)],
        changes: Changes<'_, V>,
    ) -> Result<Vec<Child>, Error> {
        let paths = children(old, path);
        let part = |index: usize| {
            // What lies below the first key goes to the first child.
            let start = if index == 0 { path.keys.start } else { paths[index].keys.start };
            within(changes, &(start..paths[index].keys.end))
        };
        let touched: Vec<bool> = (0..paths.len()).map(|index| !part(index).is_empty()).collect();
        if !touched.contains(&true) {
            return Ok(vec![self.untouched(path)]);
        }
        let ahead = paths.iter().zip(&touched).filter(|(_, touched)| **touched);
        self.read_ahead(ahead.map(|(path, _)| path.clone())).await?;
        let shared = self.txn.count(path)? > 1;
        let own = match shared {
            true => {
                self.refer_once_more(path, old)?;
                Some(self.shadow(path)?)
            }
            false => None,
        };
        let (mut list, mut changed) = (Vec::with_capacity(old.len() + 8), shared);
        for (index, child) in paths.iter().enumerate() {
            let same = Child { key: child.keys.start, block: child.block, meagre: false };
            if !touched[index] {
                list.push(same);
                continue;
            }
            let mut got = self.node(child.clone(), depth + 1, part(index)).await?;
            changed |= !matches!(&got[..], [one] if *one == same);
            list.append(&mut got);
        }
        if !changed {
            return Ok(vec![self.untouched(path)]);
        }
        self.join_meagre(path, &mut list).await?;
        self.store_internal(path, own, old, &list)
    }

    fn store_internal(
        &mut self,
        path: &Path,
        own: Option<MetadataBlock>,
        old: &[(u64, MetadataBlock)],
        list: &[Child],
    ) -> Result<Vec<Child>, Error> {
        if list.is_empty() {
            let own = own.unwrap_or(path.block);
            self.txn.lower(path, own)?;
            return Ok(Vec::new());
        }
        let own = match own {
            Some(own) => own,
            None => self.shadow(path)?,
        };
        let entries: Vec<_> = list.iter().map(|child| (child.key, child.block)).collect();
        let grows = grows_at_end(old, &entries);
        self.store(Some(own), NodeKind::Internal, &entries, grows)
    }

    /// A node that stays as it is, under the key that its parent has for it.
    fn untouched(&self, path: &Path) -> Child {
        Child { key: path.keys.start, block: path.block, meagre: false }
    }

    /// The block that an unshared node is rewritten in, or a shared one copied to: itself if it is
    /// fresh and unshared.
    fn shadow(&mut self, path: &Path) -> Result<MetadataBlock, Error> {
        if self.txn.is_fresh(path.block) && self.txn.count(path)? == 1 {
            return Ok(path.block);
        }
        if planted(Bug::ChangeInPlace) && self.txn.count(path)? == 1 {
            self.txn.fresh.insert(path.block, None);
            return Ok(path.block);
        }
        let shadow = self.txn.allocate()?;
        self.txn.lower(path, path.block)?;
        Ok(shadow)
    }

    /// Writes entries into as many nodes as they need, the first of them in `own`.
    fn store<W: Value>(
        &mut self,
        own: Option<MetadataBlock>,
        kind: NodeKind,
        entries: &[(u64, W)],
        grows_at_end: bool,
    ) -> Result<Vec<Child>, Error> {
        let max = capacity(W::BYTES);
        let (mut own, mut rest, mut list) = (own, entries, Vec::new());
        for size in sizes(entries.len(), max, grows_at_end) {
            let (part, after) = rest.split_at(size);
            let block = match own.take() {
                Some(own) => own,
                None => self.txn.allocate()?,
            };
            self.write(block, kind, part);
            list.push(Child { key: part[0].0, block, meagre: part.len() < max / 3 });
            rest = after;
        }
        Ok(list)
    }

    /// Joins nodes that a change left with too few entries with a neighbour (E2).
    async fn join_meagre(&mut self, path: &Path, list: &mut Vec<Child>) -> Result<(), Error> {
        let mut from = 0;
        while list.len() > 1 {
            let Some(meagre) = list[from..].iter().position(|child| child.meagre) else { break };
            let left = (from + meagre).min(list.len() - 2);
            let end = list.get(left + 2).map_or(path.keys.end, |next| next.key);
            let pair = [
                self.path(list[left].block, list[left].key..list[left + 1].key),
                self.path(list[left + 1].block, list[left + 1].key..end),
            ];
            let joined = self.join(&pair).await?;
            list.splice(left..left + 2, joined);
            from = left;
        }
        Ok(())
    }

    async fn join(&mut self, pair: &[Path; 2]) -> Result<Vec<Child>, Error> {
        match (self.load(&pair[0]).await?, self.load(&pair[1]).await?) {
            (Entries::Leaf(left), Entries::Leaf(right)) => {
                self.join_entries(pair, NodeKind::Leaf, left, right)
            }
            (Entries::Internal(left), Entries::Internal(right)) => {
                self.join_entries(pair, NodeKind::Internal, left, right)
            }
            _ => {
                let detail = "kind: found a leaf beside an internal node, expected equal depths";
                Err(Error::damaged(pair[1].clone(), detail))
            }
        }
    }

    fn join_entries<W: TreeValue>(
        &mut self,
        pair: &[Path; 2],
        kind: NodeKind,
        mut left: Vec<(u64, W)>,
        mut right: Vec<(u64, W)>,
    ) -> Result<Vec<Child>, Error> {
        for (path, entries) in pair.iter().zip([&left, &right]) {
            if self.txn.count(path)? > 1 {
                self.refer_once_more(path, entries)?;
            }
            self.txn.lower(path, path.block)?;
        }
        left.append(&mut right);
        self.store(None, kind, &left, false)
    }

    /// Takes a pointer to a node away.
    fn drop_tree(&mut self, path: Path, depth: usize) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            if depth >= DEPTH_MAX {
                return Err(too_deep(&path));
            }
            if self.txn.count(&path)? > 1 {
                return self.txn.lower(&path, path.block);
            }
            match self.load(&path).await? {
                Entries::Leaf(entries) => self.drop_values(&path, &entries)?,
                Entries::Internal(entries) => {
                    let paths = children(&entries, &path);
                    let needed = |path: &&Path| self.txn.count(path).is_ok_and(|n| n == 1);
                    self.read_ahead(paths.iter().filter(needed).cloned()).await?;
                    for child in paths {
                        self.drop_tree(child, depth + 1).await?;
                    }
                }
            }
            self.txn.lower(&path, path.block)
        })
    }

    fn drop_values(&mut self, path: &Path, entries: &[(u64, V)]) -> Result<(), Error> {
        for (_, value) in entries {
            match value.referent() {
                Referent::Nothing => (),
                Referent::Metadata(block) => self.orphans.push(block),
                Referent::Data(block) => self.txn.lower_data(path, block)?,
            }
        }
        Ok(())
    }
}

impl PartialEq for Child {
    fn eq(&self, other: &Child) -> bool {
        (self.key, self.block, self.meagre) == (other.key, other.block, other.meagre)
    }
}

/// True if what was added lies behind what was there: then full nodes are left behind.
fn grows_at_end<W>(old: &[(u64, W)], new: &[(u64, W)]) -> bool {
    match old.last() {
        None => true,
        Some((last, _)) => new.get(old.len() - 1).is_some_and(|(key, _)| key == last),
    }
}

/// How `count` entries are spread over nodes of at most `max`: evenly, or (for what grows at its
/// end) full nodes first. No node but an only one gets less than a third.
fn sizes(count: usize, max: usize, full_first: bool) -> Vec<usize> {
    let (nodes, mut left, mut sizes) = (count.div_ceil(max), count, Vec::new());
    while left > 0 {
        let even = left.div_ceil(nodes - sizes.len());
        let full = if left > max { max.min(left - max / 3) } else { left };
        let size = if full_first { full } else { even };
        sizes.push(size);
        left -= size;
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_are_spread_so_that_no_node_is_meagre(
            count in 0usize..5000,
            third in 1usize..90,
            full_first: bool,
        ) {
            let max = third * 3;
            let sizes = sizes(count, max, full_first);
            prop_assert_eq!(sizes.iter().sum::<usize>(), count);
            prop_assert_eq!(sizes.len(), count.div_ceil(max));
            prop_assert!(sizes.iter().all(|&size| size <= max));
            prop_assert!(sizes.len() < 2 || sizes.iter().all(|&size| size >= third));
        }
    }
}
