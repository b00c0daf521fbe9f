//! [`Nodes`]: tree nodes from the device or the cache, and the checks on them.
//!
//! A node is checked in two steps. When it is read: checksum, own number, header, order of keys;
//! only then is it cached. Each time it is decoded, since these depend on the path to it: its
//! values' size, its keys against the parent's, and every block number against its map.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use cairn_block::Env;
use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_format::thin::block;
use cairn_format::thin::{
    Block, DataBlock, DeviceDetails, IndexEntry, Mapping, MetadataBlock, Node, NodeKind, NodeMut,
    RefCount, Value, capacity,
};
use rustc_hash::FxHashSet;

use super::cache::Cache;
use super::disk::MetaDisk;
use super::error::{Error, MetadataPart, Path};

/// No tree is this deep; a loop of pointers is.
pub(super) const DEPTH_MAX: usize = 64;
/// Most nodes of a whole tree that are read at once.
const WALK_NODES: usize = 4096;
/// Every key.
pub(super) const ALL_KEYS: Range<u64> = 0..u64::MAX;

/// The sizes of both maps: every block number lies below one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub metadata_blocks: u64,
    pub data_blocks: u64,
}

impl Bounds {
    /// Refuses a block number beyond the map, and that of the superblock.
    pub fn check(
        &self,
        path: &Path,
        field: impl fmt::Display,
        block: MetadataBlock,
    ) -> Result<(), Error> {
        if block.0 > 0 && block.0 < self.metadata_blocks {
            return Ok(());
        }
        let end = self.metadata_blocks;
        let detail = format!("{field}: found {block}, expected a metadata block from 1 to {end}");
        Err(Error::damaged(path.clone(), detail))
    }
}

/// What a value of a tree refers to, and so holds a count of.
pub(super) enum Referent {
    Nothing,
    Metadata(MetadataBlock),
    Data(DataBlock),
}

/// A value of one of the trees.
pub(super) trait TreeValue: Value + PartialEq + 'static {
    /// What it refers to.
    fn referent(&self) -> Referent {
        Referent::Nothing
    }
}

impl TreeValue for MetadataBlock {
    fn referent(&self) -> Referent {
        Referent::Metadata(*self)
    }
}

impl TreeValue for Mapping {
    fn referent(&self) -> Referent {
        Referent::Data(self.block)
    }
}

impl TreeValue for IndexEntry {}
impl TreeValue for RefCount {}
impl TreeValue for DeviceDetails {}

/// The entries of a node.
pub(super) enum Entries<V> {
    Internal(Vec<(u64, MetadataBlock)>),
    Leaf(Vec<(u64, V)>),
}

/// Decodes a node that was read and checked before.
pub(super) fn decode<V: TreeValue>(
    bytes: &Block,
    path: &Path,
    bounds: &Bounds,
) -> Result<Entries<V>, Error> {
    let damaged =
        |error: cairn_format::thin::Error| Error::damaged(path.clone(), error.to_string());
    let node = Node::cached(bytes).and_then(|node| node.expect::<V>()).map_err(damaged)?;
    check_keys(&node, path)?;
    if node.is_leaf() {
        let entries: Vec<(u64, V)> = node.entries().collect();
        check_referents(&entries, path, bounds)?;
        Ok(Entries::Leaf(entries))
    } else {
        let entries: Vec<(u64, MetadataBlock)> = node.entries().collect();
        check_referents(&entries, path, bounds)?;
        Ok(Entries::Internal(entries))
    }
}

fn check_keys(node: &Node<'_>, path: &Path) -> Result<(), Error> {
    let Some(last) = node.len().checked_sub(1) else {
        // A search for the last key of a tree would fail.
        return if path.keys == ALL_KEYS {
            Ok(())
        } else {
            let detail = "entries: found none, expected some below a root";
            Err(Error::damaged(path.clone(), detail))
        };
    };
    for found in [node.key(0), node.key(last)] {
        if !path.keys.contains(&found) {
            let Range { start, end } = path.keys;
            let detail = format!("key: found {found}, expected one from {start} to below {end}");
            return Err(Error::damaged(path.clone(), detail));
        }
    }
    Ok(())
}

fn check_referents<V: TreeValue>(
    entries: &[(u64, V)],
    path: &Path,
    bounds: &Bounds,
) -> Result<(), Error> {
    for (key, value) in entries {
        match value.referent() {
            Referent::Data(block) if block.0 >= bounds.data_blocks => {
                let end = bounds.data_blocks;
                let detail =
                    format!("data block of key {key}: found {block}, expected below {end}");
                return Err(Error::damaged(path.clone(), detail));
            }
            Referent::Metadata(block) => {
                bounds.check(path, format_args!("child of key {key}"), block)?;
            }
            _ => (),
        }
    }
    Ok(())
}

/// The paths of the children of an internal node.
pub(super) fn children(entries: &[(u64, MetadataBlock)], path: &Path) -> Vec<Path> {
    let ends = entries.iter().skip(1).map(|(key, _)| *key).chain([path.keys.end]);
    let child = |(&(key, block), end)| Path { place: path.place, block, keys: key..end };
    entries.iter().zip(ends).map(child).collect()
}

/// Makes a node of entries; there is room for them, and keys increase.
pub(super) fn encode<V: Value>(bytes: &mut Block, kind: NodeKind, entries: &[(u64, V)]) {
    assert!(entries.len() <= capacity(V::BYTES), "the caller splits");
    let mut node = NodeMut::init(bytes, kind, V::BYTES);
    node.append(entries);
}

/// The nodes of a metadata device.
pub(super) struct Nodes {
    pub disk: MetaDisk,
    pub cache: Cache,
    /// Counts the durable states; raised when a commit is published.
    pub generation: AtomicU64,
}

impl Nodes {
    /// The number of the last durable state.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The blocks of nodes that belong to durable state `generation`, in the order asked for.
    ///
    /// # Errors
    /// The device failed, or a block is no node.
    pub async fn fetch(
        &self,
        env: &Env,
        generation: u64,
        paths: &[Path],
    ) -> Result<Vec<Arc<Block>>, Error> {
        let mut found: Vec<Option<Arc<Block>>> =
            paths.iter().map(|path| self.cache.get(path.block)).collect();
        let mut missing: Vec<usize> =
            (0..paths.len()).filter(|&index| found[index].is_none()).collect();
        missing.sort_unstable_by_key(|&index| paths[index].block);
        let blocks: Vec<MetadataBlock> = missing.iter().map(|&index| paths[index].block).collect();
        let mut next = missing.iter();
        let take = |block: MetadataBlock, bytes: &[u8]| {
            let index = *next.next().expect("blocks come in the order they were asked for");
            let bytes = verified(block, bytes, &paths[index])?;
            let still = || self.generation() == generation;
            self.cache.put_if(block, bytes.clone(), still);
            found[index] = Some(bytes);
            Ok(())
        };
        self.disk.read(env, &blocks, take).await?;
        Ok(found.into_iter().map(|bytes| bytes.expect("cached or read")).collect())
    }

    /// One node of durable state `generation`.
    pub async fn fetch_one<V: TreeValue>(
        &self,
        env: &Env,
        generation: u64,
        path: &Path,
        bounds: &Bounds,
    ) -> Result<Entries<V>, Error> {
        let bytes = match self.cache.get(path.block) {
            Some(bytes) => bytes,
            None => {
                let mut all = self.fetch(env, generation, std::slice::from_ref(path)).await?;
                all.pop().expect("one was asked for")
            }
        };
        decode(&bytes, path, bounds)
    }

    /// All entries of a tree of which no node is shared.
    ///
    /// # Errors
    /// The device failed, or the tree is none.
    pub async fn all<V: TreeValue>(
        &self,
        env: &Env,
        place: MetadataPart,
        root: MetadataBlock,
        bounds: &Bounds,
    ) -> Result<Vec<(u64, V)>, Error> {
        let generation = self.generation();
        let root = Path { place, block: root, keys: ALL_KEYS };
        bounds.check(&root, "root", root.block)?;
        let (mut level, mut seen, mut all) = (vec![root], FxHashSet::default(), Vec::new());
        for _ in 0..DEPTH_MAX {
            let mut below = Vec::new();
            for paths in level.chunks(WALK_NODES) {
                if let Some(path) = paths.iter().find(|path| !seen.insert(path.block)) {
                    let detail = "node: found for the second time, expected a tree";
                    return Err(Error::damaged(path.clone(), detail));
                }
                for (bytes, path) in self.fetch(env, generation, paths).await?.iter().zip(paths) {
                    match decode(bytes, path, bounds)? {
                        Entries::Internal(entries) => below.append(&mut children(&entries, path)),
                        Entries::Leaf(mut entries) => all.append(&mut entries),
                    }
                }
            }
            if below.is_empty() {
                all.sort_unstable_by_key(|(key, _)| *key);
                return Ok(all);
            }
            level = below;
        }
        Err(too_deep(&level[0]))
    }
}

/// The error for a tree that is too deep.
pub(super) fn too_deep(path: &Path) -> Error {
    let detail = format!("depth: found more than {DEPTH_MAX}, expected a tree");
    Error::damaged(path.clone(), detail)
}

fn verified(block: MetadataBlock, bytes: &[u8], path: &Path) -> Result<Arc<Block>, Error> {
    let damaged =
        |error: cairn_format::thin::Error| Error::damaged(path.clone(), error.to_string());
    let bytes = block::of(bytes).map_err(damaged)?;
    Node::decode(bytes, block).map_err(damaged)?;
    Ok(Arc::new(*bytes))
}
