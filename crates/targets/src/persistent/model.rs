//! The reference model: what a metadata device holds, found by walking everything from its bytes
//! and counting every reference again. Panics where anything disagrees.

use std::collections::{BTreeMap, BTreeSet};

use cairn_format::thin::{
    BITMAP_ENTRIES, BLOCK_BYTES, Bitmap, Block, DeviceDetails, IndexBlock, IndexEntry, Mapping,
    MetadataBlock, Node, RefCount, SpaceMapRoot, Superblock, Value, block,
};

/// The mappings of a device by virtual block.
pub type Mappings = BTreeMap<u64, Mapping>;

/// What a device holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub superblock: Superblock,
    pub devices: BTreeMap<u64, (DeviceDetails, Mappings)>,
    /// The devices of the metadata snapshot.
    pub held: Option<BTreeMap<u64, (DeviceDetails, Mappings)>>,
    /// Data blocks with a count above zero.
    pub data: BTreeMap<u64, u32>,
}

struct Walk<'a> {
    bytes: &'a [u8],
    /// Pointers to each metadata block.
    metadata: BTreeMap<u64, u32>,
    data: BTreeMap<u64, u32>,
    /// Nodes whose pointers were counted.
    seen: BTreeSet<u64>,
}

/// Walks the bytes of a device.
pub fn audit(bytes: &[u8]) -> Found {
    let (metadata, data) = (BTreeMap::new(), BTreeMap::new());
    let mut walk = Walk { bytes, metadata, data, seen: BTreeSet::new() };
    walk.count(MetadataBlock(0));
    let superblock =
        Superblock::decode(walk.block(MetadataBlock(0)), MetadataBlock(0)).expect("sound");
    let devices = walk.devices(&superblock);
    let held = superblock.held_root.map(|at| {
        walk.count(at);
        let copy = Superblock::decode(walk.block(at), at).expect("sound");
        assert_eq!(copy.data_space_map, SpaceMapRoot::EMPTY);
        walk.devices(&copy)
    });
    let map = &superblock.data_space_map;
    let index: Vec<IndexEntry> = walk.tree(map.bitmap_root).into_values().collect();
    let data = walk.counts(map, &index);
    assert_eq!(data, walk.data, "counts of data blocks");
    let map = &superblock.metadata_space_map;
    walk.count(map.bitmap_root);
    let block = walk.block(map.bitmap_root);
    let own = IndexBlock::decode(block, map.bitmap_root).expect("sound");
    let index: Vec<IndexEntry> = (0..map.bitmaps() as usize).map(|n| own.entry(n)).collect();
    let metadata = walk.counts(map, &index);
    assert_eq!(metadata, walk.metadata, "counts of metadata blocks");
    Found { superblock, devices, held, data }
}

impl<'a> Walk<'a> {
    fn block(&self, at: MetadataBlock) -> &'a Block {
        block::of(&self.bytes[at.0 as usize * BLOCK_BYTES..][..BLOCK_BYTES])
            .expect("it is a block long")
    }

    fn count(&mut self, at: MetadataBlock) {
        *self.metadata.entry(at.0).or_default() += 1;
    }

    fn devices(&mut self, superblock: &Superblock) -> BTreeMap<u64, (DeviceDetails, Mappings)> {
        let roots: BTreeMap<u64, MetadataBlock> = self.tree(superblock.mapping_root);
        let details: BTreeMap<u64, DeviceDetails> = self.tree(superblock.details_root);
        assert!(roots.keys().eq(details.keys()), "both trees have the same devices");
        let mut devices = BTreeMap::new();
        for (id, root) in roots {
            let mappings: Mappings = self.mappings(root);
            let details = details[&id];
            assert_eq!(details.mapped_blocks, mappings.len() as u64, "mapped_blocks of {id}");
            devices.insert(id, (details, mappings));
        }
        devices
    }

    /// The mappings of a device; the pointer to its root is counted in the leaf that has it.
    fn mappings(&mut self, root: MetadataBlock) -> Mappings {
        let mut all = BTreeMap::new();
        self.node::<Mapping>(root, 0, true, &mut all, &mut |walk, mapping| {
            *walk.data.entry(mapping.block.0).or_default() += 1;
        });
        all
    }

    /// A tree that is pointed to from outside.
    fn tree<V: Value + Rooted>(&mut self, root: MetadataBlock) -> BTreeMap<u64, V> {
        self.count(root);
        let mut all = BTreeMap::new();
        self.node::<V>(root, 0, true, &mut all, &mut |walk, value| {
            value.root().into_iter().for_each(|root| walk.count(root));
        });
        all
    }

    fn node<V: Value>(
        &mut self,
        at: MetadataBlock,
        low: u64,
        is_root: bool,
        all: &mut BTreeMap<u64, V>,
        count: &mut impl FnMut(&mut Walk<'a>, V),
    ) {
        let first_visit = self.seen.insert(at.0);
        let node = Node::decode(self.block(at), at).and_then(Node::expect::<V>).expect("sound");
        assert!(is_root || node.len() >= node.max() / 3, "node {at} has {} entries", node.len());
        assert!(node.is_empty() || node.key(0) >= low, "node {at}");
        if node.is_leaf() {
            for (key, value) in node.entries::<V>() {
                assert!(all.insert(key, value).is_none(), "key {key} twice");
                if first_visit {
                    count(self, value);
                }
            }
            return;
        }
        for (key, child) in node.entries::<MetadataBlock>() {
            if first_visit {
                self.count(child);
            }
            assert!(all.last_key_value().is_none_or(|(last, _)| *last < key), "node {at}");
            self.node(child, key, false, all, count);
        }
    }

    /// The counts above zero of a space map.
    fn counts(&mut self, map: &SpaceMapRoot, index: &[IndexEntry]) -> BTreeMap<u64, u32> {
        assert_eq!(index.len() as u64, map.bitmaps());
        let large: BTreeMap<u64, RefCount> = self.tree(map.ref_count_root);
        let mut counts = BTreeMap::new();
        for (number, entry) in (0..).zip(index) {
            self.count(entry.bitmap);
            let bitmap = Bitmap::decode(self.block(entry.bitmap), entry.bitmap).expect("sound");
            for index in 0..BITMAP_ENTRIES {
                let block = number * BITMAP_ENTRIES + index;
                match bitmap.get(index as usize) {
                    0 => (),
                    3 => _ = counts.insert(block, large[&block].0),
                    small => _ = counts.insert(block, small),
                }
            }
        }
        assert!(large.keys().all(|block| counts[block] >= 3));
        assert!(counts.last_key_value().is_none_or(|(last, _)| *last < map.blocks));
        counts
    }
}

/// Values of the top-level tree point to roots.
pub trait Rooted {
    fn root(&self) -> Option<MetadataBlock> {
        None
    }
}

impl Rooted for MetadataBlock {
    fn root(&self) -> Option<MetadataBlock> {
        Some(*self)
    }
}
impl Rooted for DeviceDetails {}
impl Rooted for IndexEntry {}
impl Rooted for RefCount {}
