//! Thin metadata that a real kernel wrote, decoded block by block and encoded again.

use cairn_format::thin::{
    BITMAP_ENTRIES, BLOCK_BYTES, Bitmap, DeviceDetails, DeviceId, IndexBlock, IndexEntry, Kind,
    Mapping, MetadataBlock, Node, Opening, RefCount, Superblock, Value, block,
};

use crate::images::{Golden, manifest};

/// A minimal tree walk, for comparison with the real one.
trait Plain {
    fn superblock(&self) -> Superblock;
    fn tree<V: Value>(&self, root: MetadataBlock) -> Vec<(u64, V)>;
    fn counts(&self, entries: &[IndexEntry], blocks: u64, root: MetadataBlock) -> Vec<u32>;
    fn data_counts(&self) -> Vec<u32>;
    fn metadata_counts(&self) -> Vec<u32>;
}

impl Plain for Golden {
    fn superblock(&self) -> Superblock {
        match Opening::decide(self.block(MetadataBlock::SUPERBLOCK)) {
            Ok(Opening::Existing(superblock)) => *superblock,
            other => panic!("{}: {other:?}", self.name),
        }
    }

    /// All entries of a tree, in order.
    fn tree<V: Value>(&self, root: MetadataBlock) -> Vec<(u64, V)> {
        let node = Node::decode(self.block(root), root).expect("a sound node");
        let node = node.expect::<V>().expect("values of this tree");
        if node.is_leaf() {
            return node.entries().collect();
        }
        let children = node.entries::<MetadataBlock>();
        children.flat_map(|(_, child)| self.tree::<V>(child)).collect()
    }

    fn counts(&self, entries: &[IndexEntry], blocks: u64, root: MetadataBlock) -> Vec<u32> {
        let mut large = self.tree::<RefCount>(root).into_iter();
        let mut counts = Vec::new();
        for index in 0..blocks {
            let entry = entries[(index / BITMAP_ENTRIES) as usize];
            let bitmap = Bitmap::decode(self.block(entry.bitmap), entry.bitmap).expect("a bitmap");
            counts.push(match bitmap.get((index % BITMAP_ENTRIES) as usize) {
                3 => {
                    let (key, count) = large.next().expect("a large count is in the tree");
                    assert_eq!(key, index);
                    count.0
                }
                count => count,
            });
        }
        assert_eq!(large.next(), None);
        counts
    }

    fn data_counts(&self) -> Vec<u32> {
        let map = self.superblock().data_space_map;
        let index: Vec<_> = self.tree::<IndexEntry>(map.bitmap_root);
        let entries: Vec<_> = index.into_iter().map(|(_, entry)| entry).collect();
        self.counts(&entries, map.blocks, map.ref_count_root)
    }

    fn metadata_counts(&self) -> Vec<u32> {
        let map = self.superblock().metadata_space_map;
        let index = IndexBlock::decode(self.block(map.bitmap_root), map.bitmap_root);
        let index = index.expect("an index block");
        let entries: Vec<_> = (0..map.bitmaps() as usize).map(|at| index.entry(at)).collect();
        self.counts(&entries, map.blocks, map.ref_count_root)
    }
}

#[test]
fn every_superblock_says_what_the_kernel_said() {
    for golden in manifest() {
        let superblock = golden.superblock();
        assert_eq!(superblock.data_block_size.sectors(), 128, "{}", golden.name);
        assert_eq!(superblock.data_space_map.blocks, golden.data_blocks, "{}", golden.name);
        assert_eq!(superblock.needs_check(), golden.needs_check, "{}", golden.name);
        let blocks = golden.meta.len() / BLOCK_BYTES;
        assert_eq!(superblock.metadata_space_map.blocks, blocks as u64, "{}", golden.name);
        assert_eq!(superblock.refuse_writing(), Ok(()));
    }
}

#[test]
fn a_superblock_is_encoded_as_the_kernel_wrote_it_but_for_the_slack() {
    for golden in manifest() {
        let at = MetadataBlock::SUPERBLOCK;
        let encoded = golden.superblock().encode(at);
        for used in [4..96, 192..224, 320..BLOCK_BYTES] {
            assert!(encoded[used.clone()] == golden.block(at)[used], "{}", golden.name);
        }
        assert_eq!(Superblock::decode(&encoded, at), Ok(golden.superblock()));
    }
}

#[test]
fn the_held_superblock_is_a_copy_of_an_older_one() {
    let golden = manifest().into_iter().find(|golden| golden.name == "snaps.meta").unwrap();
    let now = golden.superblock();
    let at = now.held_root.unwrap();
    let held = Superblock::decode(golden.block(at), at).unwrap();
    assert_eq!((held.held_root, held.transaction_id), (None, 42));
    assert!(held.time <= now.time && held == held.held_copy());
    assert!(!golden.tree::<MetadataBlock>(held.mapping_root).is_empty());
}

#[test]
fn every_device_has_the_mappings_that_the_manifest_counts() {
    for golden in manifest() {
        let superblock = golden.superblock();
        let roots = golden.tree::<MetadataBlock>(superblock.mapping_root);
        let details = golden.tree::<DeviceDetails>(superblock.details_root);
        assert_eq!(roots.len(), details.len(), "{}", golden.name);
        let mut mapped = Vec::new();
        for ((id, root), (same, details)) in roots.into_iter().zip(details) {
            assert_eq!(id, same);
            assert!(DeviceId::new(id).is_ok());
            let mappings = golden.tree::<Mapping>(root);
            assert_eq!(mappings.len() as u64, details.mapped_blocks, "{} {id}", golden.name);
            let fits = |mapping: &Mapping| {
                mapping.block.0 < golden.data_blocks && mapping.time <= superblock.time
            };
            assert!(mappings.iter().all(|(_, mapping)| fits(mapping)), "{} {id}", golden.name);
            mapped.push((id, details.mapped_blocks));
        }
        // The manifest may leave devices out, but names no others.
        assert!(golden.devices.iter().all(|device| mapped.contains(device)), "{}", golden.name);
    }
}

#[test]
fn both_space_maps_count_what_the_kernel_counted() {
    for golden in manifest() {
        let used = golden.data_counts().iter().filter(|count| **count > 0).count();
        assert_eq!(used as u64, golden.used_data, "{}", golden.name);
        let counts = golden.metadata_counts();
        assert_eq!(counts[0], 1, "{}", golden.name);
        let superblock = golden.superblock();
        for root in [superblock.mapping_root, superblock.details_root] {
            assert!(counts[root.0 as usize] > 0, "{}", golden.name);
        }
        let used = counts.iter().filter(|count| **count > 0).count() as u64;
        // The tools' restoring counts its own blocks inexactly; the kernel does not.
        if golden.name != "restored.meta" {
            assert_eq!(used, superblock.metadata_space_map.allocated, "{}", golden.name);
        }
    }
}

#[test]
fn blocks_are_recognised_by_their_checksum_alone() {
    for golden in manifest() {
        let map = golden.superblock().metadata_space_map;
        assert_eq!(block::identify(golden.block(map.bitmap_root)), Some(Kind::Index));
        assert_eq!(block::identify(golden.block(map.ref_count_root)), Some(Kind::Node));
        assert_eq!(block::identify(golden.block(MetadataBlock(0))), Some(Kind::Superblock));
    }
}
