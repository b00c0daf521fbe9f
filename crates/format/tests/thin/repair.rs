//! Repairing thin metadata: what is kept, what is reported, and what a search for roots finds.

use std::convert::Infallible;

use cairn_format::Severity;
use cairn_format::thin::blocks::{Blocks, MemoryBlocks};
use cairn_format::thin::build::{Builder, Room};
use cairn_format::thin::check::{Finding, Report};
use cairn_format::thin::leaves::each_leaf;
use cairn_format::thin::repair::{Differs, Given, Plan, RepairError, Repaired};
use cairn_format::thin::stream::{Pool, Run, devices, each_run};
use cairn_format::thin::walk::Family;
use cairn_format::thin::{
    BLOCK_BYTES, BitmapMut, Block, DataBlock, DataBlockSize, DeviceDetails, DeviceId, Error,
    Feature, IndexEntry, Kind, Mapping, MetadataBlock, Node, NodeKind, NodeMut, Superblock,
    TIME_MAX, block,
};

use crate::images::{image, manifest};
use crate::tools::{checked, details, dumped, finished, forge, golden, pool, superblock};

/// A dump without the snapshot times of its devices.
fn without_snapshots(text: &str) -> String {
    let device = |line: &str| line.split(" snap_time=").next().unwrap().to_owned();
    text.lines().map(device).collect::<Vec<_>>().join("\n")
}

/// Mappings older than `before` that a write would change in place.
fn unshared(meta: &[u8], before: u32) -> Vec<(u32, Run)> {
    let (mut blocks, superblock) = (MemoryBlocks::new(meta), superblock(meta));
    let mut unshared = Vec::new();
    for (id, details, root) in devices(&mut blocks, &superblock, false).unwrap() {
        each_run(&mut blocks, id, false, root, &mut |run| {
            if run.time < before && run.time >= details.snapshotted_time {
                unshared.push((id.get(), run));
            }
            Ok(())
        })
        .unwrap();
    }
    unshared
}

pub fn repaired(meta: &[u8], given: Given) -> Result<(Vec<u8>, Repaired), RepairError<Infallible>> {
    let (mut blocks, mut memory) = (MemoryBlocks::new(meta), Vec::<u8>::new());
    let mut plan = Plan::new(&mut blocks, given)?;
    plan.heed(&checked(meta));
    let repaired = plan.build(&mut blocks, &mut memory, Room::AtLeast(16))?;
    Ok((finished(memory, &repaired.superblock), repaired))
}

#[test]
fn a_repair_keeps_every_mapping_of_sound_metadata_and_the_sharing_of_leaves() {
    for golden in manifest() {
        let (meta, repaired) = repaired(&golden.meta, Given::default()).unwrap();
        assert_eq!((repaired.findings, repaired.roots_searched), (vec![], false));
        let report = checked(&meta);
        assert!(report.findings.is_empty(), "{}: {:?}", golden.name, report.findings);
        assert!(dumped(&meta) == dumped(&golden.meta).replace("flags=\"1\"", "flags=\"0\""));
        assert_eq!(report.totals.data_used, golden.used_data);
        let (before, after) = (checked(&golden.meta).totals, report.totals);
        assert!(after.metadata_used <= before.metadata_used + 1, "{}", golden.name);
    }
}

/// Every mapping with its device, its virtual block, and its leaf.
fn mappings(meta: &[u8]) -> Vec<(u32, (u64, Mapping), MetadataBlock)> {
    let (mut blocks, superblock) = (MemoryBlocks::new(meta), superblock(meta));
    let mut all = Vec::new();
    for (id, _, root) in devices(&mut blocks, &superblock, false).unwrap() {
        let Ok(()) = each_leaf::<Mapping, _, Infallible>(&mut blocks, root, &mut |at, leaf| {
            let entries = leaf.unwrap().entries::<Mapping>();
            all.extend(entries.map(|entry| (id.get(), entry, at.block)));
            Ok(())
        });
    }
    all
}

#[test]
fn a_repair_loses_no_more_than_the_broken_leaf() {
    let golden = golden("big.meta");
    let whole = mappings(&golden.meta);
    let mut lossy = 0;
    for at in 1..golden.meta.len() / BLOCK_BYTES {
        let bytes = golden.block(MetadataBlock(at as u64));
        let Ok(node) = Node::cached(bytes) else { continue };
        let mut meta = golden.meta.clone();
        meta[at * BLOCK_BYTES + 40] ^= 0xFF;
        if !node.is_leaf() || node.value_bytes() != 8 || checked(&meta).findings.is_empty() {
            continue;
        }
        let (new, repaired) = repaired(&meta, Given::default()).unwrap();
        let report = checked(&new);
        assert!(report.findings.is_empty(), "block {at}: {:?}", report.findings);
        if !repaired.roots_searched && !repaired.findings.is_empty() {
            lossy += 1;
            let broken = MetadataBlock(at as u64);
            let left = whole.iter().filter(|(_, _, leaf)| *leaf != broken);
            let left: Vec<_> = left.map(|(device, mapping, _)| (*device, *mapping)).collect();
            assert!(left.len() < whole.len(), "block {at}");
            let kept = mappings(&new).into_iter().map(|(device, mapping, _)| (device, mapping));
            assert!(kept.eq(left), "block {at}");
        }
    }
    assert!(lossy >= 4, "{lossy}");
}

#[test]
fn a_lost_details_tree_costs_no_mapping() {
    let mappings = |text: &str| {
        let lines = text.lines().filter(|line| line.contains("_mapping ") || line.contains("</"));
        lines.collect::<Vec<_>>().join("\n")
    };
    for golden in manifest() {
        let mut meta = golden.meta.clone();
        let (now, before) = (superblock(&meta), checked(&meta).totals);
        meta[now.details_root.0 as usize * BLOCK_BYTES + 40] ^= 0xFF;
        let (new, repaired) = repaired(&meta, Given::default()).unwrap();
        let name = &golden.name;
        assert!(!repaired.roots_searched, "{name}");
        assert_eq!(repaired.mapped_blocks, before.mapped_blocks, "{name}");
        // The tree, and each device missing from it.
        assert_eq!(repaired.findings.len() as u64, 1 + before.devices, "{name}");
        assert!(mappings(&dumped(&new)) == mappings(&dumped(&golden.meta)), "{name}");
        assert!(checked(&new).findings.is_empty(), "{name}");
        assert_eq!(superblock(&new).time, now.time, "{name}");
        assert_eq!(unshared(&new, now.time), [], "{name}");
    }
}

#[test]
fn roots_are_found_without_a_superblock_if_the_user_knows_the_sizes() {
    for name in ["basic.meta", "snaps.meta", "big.meta"] {
        let mut meta = image(name);
        let expected = dumped(&meta);
        let known = superblock(&meta);
        meta[..BLOCK_BYTES].fill(0xA5);
        assert!(matches!(
            repaired(&meta, Given { data_blocks: None, ..Given::default() }),
            Err(RepairError::NoSuperblock(_))
        ));
        let given = Given {
            data_block_size: Some(known.data_block_size),
            data_blocks: Some(known.data_space_map.blocks),
            transaction_id: Some(known.transaction_id),
        };
        let (new, repaired) = repaired(&meta, given).unwrap();
        assert!(repaired.roots_searched && repaired.findings.is_empty(), "{:?}", repaired.findings);
        assert!(checked(&new).findings.is_empty(), "{name}");
        // Everything looks shared, and the time is one after the newest one in the metadata.
        let devices = |text: &str| without_snapshots(text.split_once('\n').unwrap().1);
        // In `big` the nodes of the volumes deleted last are all still there, and look newer.
        let as_before = devices(&dumped(&new)) == devices(&expected);
        assert_eq!(as_before, name != "big.meta", "{name}");
    }
    let nothing = vec![0xA5; 20 * BLOCK_BYTES];
    let given = Given { data_blocks: Some(32), ..Given::default() };
    assert_eq!(repaired(&nothing, given).map(drop), Err(RepairError::NoRoots));
}

#[test]
fn mappings_below_searched_roots_look_shared() {
    for golden in manifest() {
        let name = &golden.name;
        let now = superblock(&golden.meta);
        // First the top-level tree is lost, then the superblock as well.
        let mut meta = golden.meta.clone();
        meta[now.mapping_root.0 as usize * BLOCK_BYTES + 40] ^= 0xFF;
        let mut without = golden.meta.clone();
        without[..BLOCK_BYTES].fill(0xA5);
        let given = Given {
            data_block_size: Some(now.data_block_size),
            data_blocks: Some(now.data_space_map.blocks),
            transaction_id: None,
        };
        for (meta, given, is_there) in [(meta, Given::default(), false), (without, given, true)] {
            let found = repaired(&meta, given);
            // Some have no older top-level tree.
            if !is_there && found == Err(RepairError::NoRoots) {
                continue;
            }
            let (new, repaired) = found.unwrap();
            assert!(repaired.roots_searched, "{name}");
            assert_eq!(unshared(&new, u32::MAX), [], "{name}");
            assert!(checked(&new).findings.is_empty(), "{name}");
        }
    }
}

#[test]
fn a_time_beyond_its_bits_is_damage_and_repaired_to_the_last_one() {
    let mut meta = image("snaps.meta");
    forge(&mut meta, MetadataBlock::SUPERBLOCK, Kind::Superblock, |bytes| {
        bytes[44..48].copy_from_slice(&u32::MAX.to_le_bytes());
    });
    let report = checked(&meta);
    assert_eq!(report.severity, Severity::Damaged);
    assert_eq!(report.findings[0], Finding::Time { found: u32::MAX });
    let text = report.findings[0].to_string();
    assert_eq!(text, "superblock time: found 4294967295, expected at most 16777215");
    let (new, _) = repaired(&meta, Given::default()).unwrap();
    assert_eq!(superblock(&new).time, TIME_MAX);
    assert!(checked(&new).findings.is_empty());
}

/// Counts the blocks that are read.
struct Counting<'a> {
    blocks: MemoryBlocks<'a>,
    asked: u64,
}

impl Blocks for Counting<'_> {
    type Error = Infallible;

    fn count(&self) -> u64 {
        self.blocks.count()
    }

    fn read(
        &mut self,
        wanted: &[MetadataBlock],
        each: &mut dyn FnMut(MetadataBlock, Option<&Block>),
    ) -> Result<(), Infallible> {
        self.asked += wanted.len() as u64;
        self.blocks.read(wanted, each)
    }
}

/// Appends a block, sealed for its place there.
fn append(meta: &mut Vec<u8>, bytes: &[u8], change: impl FnOnce(&mut Block)) {
    let at = MetadataBlock((meta.len() / BLOCK_BYTES) as u64);
    meta.extend_from_slice(bytes);
    forge(meta, at, Kind::Node, change);
}

fn bytes_of(meta: &[u8], at: MetadataBlock) -> Vec<u8> {
    meta[at.0 as usize * BLOCK_BYTES..][..BLOCK_BYTES].to_vec()
}

/// The values that the user knows of a pool.
fn sizes(superblock: &Superblock) -> Given {
    Given {
        data_block_size: Some(superblock.data_block_size),
        data_blocks: Some(superblock.data_space_map.blocks),
        transaction_id: Some(superblock.transaction_id),
    }
}

/// A pool with one device of many mappings.
fn large_pool() -> Vec<u8> {
    let mut memory = Vec::<u8>::new();
    let mut builder = Builder::new(&mut memory, Room::AtLeast(16), pool(100_000)).unwrap();
    builder.begin_device(DeviceId::new(1).unwrap(), details()).unwrap();
    builder.add(Run { origin: 0, data: 0, len: 100_000, time: 4 }).unwrap();
    builder.end_device().unwrap();
    let superblock = builder.finish().unwrap();
    finished(memory, &superblock)
}

#[test]
fn old_roots_of_mapping_trees_are_not_walked_by_a_search_for_roots() {
    let mut meta = large_pool();
    let known = superblock(&meta);
    let top = bytes_of(&meta, known.mapping_root);
    let root = Node::cached(block::of(&top).unwrap()).unwrap().entries::<MetadataBlock>().next();
    let root = bytes_of(&meta, root.unwrap().1);
    for _ in 0..40 {
        append(&mut meta, &root, |_| ());
    }
    meta[..BLOCK_BYTES].fill(0xA5);
    let mut blocks = Counting { blocks: MemoryBlocks::new(&meta), asked: 0 };
    let _plan = Plan::new(&mut blocks, sizes(&known)).unwrap();
    // One scan, one walk to choose and one for the time.
    assert!(blocks.asked < 4 * blocks.count(), "{} of {}", blocks.asked, blocks.count());
}

#[test]
fn old_copies_of_the_same_roots_are_one_and_each_mapping_tree_is_walked_once() {
    let mut meta = large_pool();
    let known = superblock(&meta);
    for root in [known.mapping_root, known.details_root] {
        let bytes = bytes_of(&meta, root);
        for index in 0..40 {
            // The difference is not in a mapping root.
            append(&mut meta, &bytes, |bytes| bytes[3000] = index);
        }
    }
    meta[..BLOCK_BYTES].fill(0xA5);
    let mut blocks = Counting { blocks: MemoryBlocks::new(&meta), asked: 0 };
    let _plan = Plan::new(&mut blocks, sizes(&known)).unwrap();
    assert!(blocks.asked < 4 * blocks.count(), "{} of {}", blocks.asked, blocks.count());
}

#[test]
fn of_many_old_roots_the_newest_is_considered_wherever_it_lies() {
    let mut meta = image("basic.meta");
    let known = superblock(&meta);
    let live = bytes_of(&meta, known.details_root);
    meta[known.details_root.0 as usize * BLOCK_BYTES..][..BLOCK_BYTES].fill(0);
    let with_transaction = |bytes: &mut Block, transaction_id| {
        let mut node = NodeMut::cached(bytes).unwrap();
        for index in 0..node.len() {
            let details: DeviceDetails = node.view().value(index);
            node.set_value(index, DeviceDetails { transaction_id, ..details });
        }
    };
    for transaction_id in 0..5000 {
        append(&mut meta, &live, |bytes| with_transaction(bytes, transaction_id));
    }
    meta[..BLOCK_BYTES].fill(0xA5);
    let (new, _) = repaired(&meta, sizes(&known)).unwrap();
    let mut blocks = MemoryBlocks::new(&new);
    let found = devices(&mut blocks, &superblock(&new), false).unwrap();
    assert!(!found.is_empty());
    assert!(found.iter().all(|(_, details, _)| details.transaction_id == 4999));
}

#[test]
fn a_top_level_tree_is_found_without_any_details() {
    for name in ["basic.meta", "restored.meta"] {
        let mut meta = image(name);
        let (known, before) = (superblock(&meta), checked(&meta).totals);
        for at in 1..meta.len() / BLOCK_BYTES {
            let bytes = block::of(&meta[at * BLOCK_BYTES..][..BLOCK_BYTES]).unwrap();
            let is_details = Node::cached(bytes).is_ok_and(|node| node.value_bytes() == 24);
            if is_details && block::identify(bytes) == Some(Kind::Node) {
                meta[at * BLOCK_BYTES + 40] ^= 0xFF;
            }
        }
        meta[..BLOCK_BYTES].fill(0xA5);
        let (new, repaired) = repaired(&meta, sizes(&known)).unwrap();
        assert_eq!(repaired.mapped_blocks, before.mapped_blocks, "{name}");
        assert_eq!(unshared(&new, u32::MAX), [], "{name}");
        assert!(checked(&new).findings.is_empty(), "{name}");
    }
}

#[test]
fn given_values_replace_a_lost_superblock_and_must_match_a_sound_one() {
    let mut meta = image("snaps.meta");
    let known = superblock(&meta);
    assert!(repaired(&meta, sizes(&known)).is_ok());
    let wrong = [
        (Given { data_block_size: DataBlockSize::new(256).ok(), ..sizes(&known) }, 256, 128),
        (Given { data_blocks: Some(31), ..Given::default() }, 31, 32),
        (Given { transaction_id: Some(3), ..Given::default() }, 3, 42),
    ];
    let fields = ["data_block_size", "data_blocks", "transaction_id"];
    for ((given, found, expected), field) in wrong.into_iter().zip(fields) {
        let refused = repaired(&meta, given).map(drop);
        assert_eq!(refused, Err(RepairError::Differs(Differs { field, found, expected })));
    }
    meta[..BLOCK_BYTES].fill(0xA5);
    let lower = Given { transaction_id: Some(3), ..sizes(&known) };
    let (new, _) = repaired(&meta, lower).unwrap();
    assert_eq!(superblock(&new).transaction_id, 3);
}

#[test]
fn metadata_with_unknown_features_is_not_repaired() {
    for (offset, feature) in [(356, Feature::CompatRo), (360, Feature::Incompat)] {
        let mut meta = image("basic.meta");
        forge(&mut meta, MetadataBlock::SUPERBLOCK, Kind::Superblock, |bytes| bytes[offset] = 4);
        let refused = repaired(&meta, Given::default()).map(drop);
        let error = Error::UnknownFeature { feature, found: 4 };
        assert_eq!(refused, Err(RepairError::Unsupported(error)));
    }
}

/// Two volumes that map one data block, both as if unshared, and the first device's count of it,
/// which is 1.
fn pool_with_a_block_given_twice() -> Vec<u8> {
    let mut memory = Vec::<u8>::new();
    let mut builder = Builder::new(&mut memory, Room::AtLeast(16), pool(64)).unwrap();
    for id in [1, 2] {
        builder.begin_device(DeviceId::new(id).unwrap(), details()).unwrap();
        builder.add(Run { origin: 0, data: 7, len: 1, time: 4 }).unwrap();
        builder.end_device().unwrap();
    }
    let superblock = builder.finish().unwrap();
    let mut meta = finished(memory, &superblock);
    let index = bytes_of(&meta, superblock.data_space_map.bitmap_root);
    let index = Node::cached(block::of(&index).unwrap()).unwrap();
    let bitmap = index.value::<IndexEntry>(0).bitmap;
    forge(&mut meta, bitmap, Kind::Bitmap, |bytes| BitmapMut::cached(bytes).set(7, 1));
    meta
}

#[test]
fn block_allocated_to_two_volumes_looks_shared_to_both() {
    let meta = pool_with_a_block_given_twice();
    assert_eq!(unshared(&meta, u32::MAX).len(), 2);
    let (new, repaired) = repaired(&meta, Given::default()).unwrap();
    assert_eq!((repaired.mapped_blocks, repaired.roots_searched), (2, false));
    assert_eq!(unshared(&new, u32::MAX), []);
    assert!(checked(&new).findings.is_empty());
    // Findings that a report left out may be of this kind.
    let meta = large_pool();
    let left_out = Report { findings_left_out: 1, ..checked(&meta) };
    let mut plan = Plan::new(&mut MemoryBlocks::new(&meta), Given::default()).unwrap();
    let time = plan.pool().time;
    plan.heed(&checked(&meta));
    assert_eq!(plan.pool().time, time);
    plan.heed(&left_out);
    assert_eq!(plan.pool().time, time + 1);
}

#[test]
fn mappings_of_the_last_time_look_shared_as_well() {
    let mut memory = Vec::<u8>::new();
    let pool = Pool { time: TIME_MAX, ..pool(64) };
    let mut builder = Builder::new(&mut memory, Room::AtLeast(16), pool).unwrap();
    builder.begin_device(DeviceId::new(1).unwrap(), details()).unwrap();
    for (origin, time) in [(0, TIME_MAX), (5, 4), (6, TIME_MAX - 1)] {
        builder.add(Run { origin, data: origin, len: 1, time }).unwrap();
    }
    builder.end_device().unwrap();
    let superblock = builder.finish().unwrap();
    let mut meta = finished(memory, &superblock);
    meta[..BLOCK_BYTES].fill(0xA5);
    let (new, repaired) = repaired(&meta, sizes(&superblock)).unwrap();
    assert_eq!((repaired.mapped_blocks, repaired.findings), (3, vec![]));
    assert_eq!(unshared(&new, u32::MAX), []);
    assert!(checked(&new).findings.is_empty());
}

/// Makes the first entry of a node point to another block.
fn point_to(bytes: &mut Block, child: MetadataBlock) {
    NodeMut::cached(bytes).unwrap().set_value(0, child);
}

fn child_of(meta: &[u8], at: MetadataBlock, index: usize) -> MetadataBlock {
    Node::cached(block::of(&bytes_of(meta, at)).unwrap()).unwrap().value(index)
}

fn break_block(meta: &mut [u8], at: MetadataBlock) {
    meta[at.0 as usize * BLOCK_BYTES + 40] ^= 0xFF;
}

fn end_of(meta: &[u8]) -> MetadataBlock {
    MetadataBlock((meta.len() / BLOCK_BYTES) as u64)
}

/// A large pool without a superblock, in which one leaf of mappings is broken, and an old root of a
/// top-level tree with one old mapping of the same device. Returns the superblock before, the
/// metadata, the old root, and the number of mappings in the leaf.
fn torn_pool() -> (Superblock, Vec<u8>, MetadataBlock, u64) {
    let mut meta = large_pool();
    let known = superblock(&meta);
    let inner = child_of(&meta, known.mapping_root, 0);
    let mut leaf = child_of(&meta, inner, 1);
    while let Ok(node) = Node::cached(block::of(&bytes_of(&meta, leaf)).unwrap()) {
        if node.is_leaf() {
            break;
        }
        leaf = node.value(1);
    }
    let bytes = bytes_of(&meta, leaf);
    let lost = Node::cached(block::of(&bytes).unwrap()).unwrap().len() as u64;
    let old_leaf = end_of(&meta);
    append(&mut meta, &bytes, |bytes| {
        bytes[16..20].copy_from_slice(&1_u32.to_le_bytes());
        let mapping = Mapping { block: DataBlock(0), time: 1 };
        NodeMut::cached(bytes).unwrap().set_value(0, mapping);
    });
    let (old_top, top) = (end_of(&meta), bytes_of(&meta, known.mapping_root));
    append(&mut meta, &top, |bytes| point_to(bytes, old_leaf));
    break_block(&mut meta, leaf);
    meta[..BLOCK_BYTES].fill(0xA5);
    (known, meta, old_top, lost)
}

#[test]
fn the_newest_roots_are_found_although_a_leaf_is_broken_and_older_ones_are_whole() {
    let (known, mut meta, _, lost) = torn_pool();
    let details = bytes_of(&meta, known.details_root);
    append(&mut meta, &details, |bytes| {
        let mut node = NodeMut::cached(bytes).unwrap();
        let live: DeviceDetails = node.view().value(0);
        node.set_value(0, DeviceDetails { mapped_blocks: 1, transaction_id: 0, ..live });
    });
    let (new, repaired) = repaired(&meta, sizes(&known)).unwrap();
    assert_eq!((repaired.mapped_blocks, repaired.findings.len()), (100_000 - lost, 1));
    assert!(checked(&new).findings.is_empty());
}

#[test]
fn without_details_the_newest_top_level_tree_is_found_although_a_leaf_is_broken() {
    let (known, mut meta, _, lost) = torn_pool();
    break_block(&mut meta, known.details_root);
    let (_, repaired) = repaired(&meta, sizes(&known)).unwrap();
    assert_eq!(repaired.mapped_blocks, 100_000 - lost);
}

#[test]
fn if_no_pair_fits_the_pair_that_reaches_most_is_taken() {
    let (known, mut meta, old_top, lost) = torn_pool();
    // The details match neither root's number of mappings, and the old root comes first.
    forge(&mut meta, known.details_root, Kind::Node, |bytes| {
        let mut node = NodeMut::cached(bytes).unwrap();
        let live: DeviceDetails = node.view().value(0);
        node.set_value(0, DeviceDetails { mapped_blocks: 7, ..live });
    });
    let (live, old) = (bytes_of(&meta, known.mapping_root), bytes_of(&meta, old_top));
    for (at, bytes) in [(known.mapping_root, old), (old_top, live)] {
        forge(&mut meta, at, Kind::Node, |block| block.copy_from_slice(&bytes));
    }
    let (_, repaired) = repaired(&meta, sizes(&known)).unwrap();
    assert_eq!(repaired.mapped_blocks, 100_000 - lost);
}

#[test]
fn roots_that_lead_to_blocks_of_another_kind_are_not_taken() {
    // As the torn pool, but the leaf's block was reused by another tree.
    let (known, mut meta, _, _) = torn_pool();
    let (inner, details) = (child_of(&meta, known.mapping_root, 0), known.details_root);
    let details = bytes_of(&meta, details);
    append(&mut meta, &details, |bytes| {
        let mut node = NodeMut::cached(bytes).unwrap();
        let live: DeviceDetails = node.view().value(0);
        node.set_value(0, DeviceDetails { mapped_blocks: 1, transaction_id: 0, ..live });
    });
    let leaf = child_of(&meta, inner, 1);
    forge(&mut meta, leaf, Kind::Bitmap, |bytes| bytes.fill(0));
    let (_, repaired) = repaired(&meta, sizes(&known)).unwrap();
    assert_eq!((repaired.mapped_blocks, repaired.findings), (1, vec![]));
}

/// Devices 1 and 2, of transactions 31 and 32.
fn pool_with_two_devices() -> Vec<u8> {
    let mut memory = Vec::<u8>::new();
    let mut builder = Builder::new(&mut memory, Room::AtLeast(16), pool(64)).unwrap();
    for id in [1, 2] {
        let details = DeviceDetails { transaction_id: 30 + id, ..details() };
        builder.begin_device(DeviceId::new(id).unwrap(), details).unwrap();
        builder.add(Run { origin: 100, data: id, len: 1, time: 4 }).unwrap();
        builder.end_device().unwrap();
    }
    let superblock = builder.finish().unwrap();
    finished(memory, &superblock)
}

/// The devices, and the transactions in their details.
fn transactions(meta: &[u8]) -> Vec<(u32, u64)> {
    let found = devices(&mut MemoryBlocks::new(meta), &superblock(meta), false).unwrap();
    found.iter().map(|(id, details, _)| (id.get(), details.transaction_id)).collect()
}

#[test]
fn named_details_are_kept_with_an_older_top_level_tree_and_its_missing_devices_reported() {
    let mut meta = pool_with_two_devices();
    let superblock = superblock(&meta);
    // An older commit had only the first device; the live top-level tree is lost.
    let one = |bytes: &mut Block| bytes[16..20].copy_from_slice(&1_u32.to_le_bytes());
    let (top, known) = (superblock.mapping_root, superblock.details_root);
    for root in [top, known] {
        let bytes = bytes_of(&meta, root);
        append(&mut meta, &bytes, one);
    }
    let older = MetadataBlock(end_of(&meta).0 - 1);
    forge(&mut meta, older, Kind::Node, |bytes| {
        let mut node = NodeMut::cached(bytes).unwrap();
        let live: DeviceDetails = node.view().value(0);
        node.set_value(0, DeviceDetails { transaction_id: 3, ..live });
    });
    break_block(&mut meta, top);
    let (new, repaired) = repaired(&meta, Given::default()).unwrap();
    assert!(repaired.roots_searched);
    let (device, missing) = (DeviceId::new(2).unwrap(), Family::TopLevel);
    assert_eq!(repaired.findings, [Finding::HalfADevice { device, held: false, missing }]);
    assert_eq!(transactions(&new), [(1, 31)]);
    assert!(checked(&new).findings.is_empty());
}

/// Appends an internal node.
fn append_internal(meta: &mut Vec<u8>, children: [(u64, MetadataBlock); 2]) {
    append(meta, &[0; BLOCK_BYTES], |bytes| {
        NodeMut::init(bytes, NodeKind::Internal, 8).append(&children);
    });
}

#[test]
fn an_old_node_above_a_block_that_became_a_root_does_not_hide_it() {
    let meta = pool_with_two_devices();
    let known = superblock(&meta);
    let mappings = child_of(&meta, known.mapping_root, 0);
    for root in [known.details_root, known.mapping_root] {
        // A node of a mapping tree, and one of the same tree when it had more devices.
        let (mut other, mut same) = (meta.clone(), meta.clone());
        append_internal(&mut other, [(0, root), (100, mappings)]);
        let later = end_of(&same);
        append(&mut same, &bytes_of(&meta, root), |bytes| {
            let mut node = NodeMut::cached(bytes).unwrap();
            node.set_key(0, 5);
            node.set_key(1, 6);
        });
        append_internal(&mut same, [(0, root), (2, later)]);
        for mut meta in [other, same] {
            meta[..BLOCK_BYTES].fill(0xA5);
            let (new, repaired) = repaired(&meta, sizes(&known)).unwrap();
            assert_eq!((transactions(&new), repaired.findings), (vec![(1, 31), (2, 32)], vec![]));
            assert_eq!(repaired.mapped_blocks, 2);
        }
    }
}

#[test]
fn missing_number_of_data_blocks_is_refused_before_the_search() {
    let mut meta = large_pool();
    meta[..BLOCK_BYTES].fill(0xA5);
    let mut blocks = Counting { blocks: MemoryBlocks::new(&meta), asked: 0 };
    let refused = Plan::new(&mut blocks, Given::default());
    assert!(matches!(refused, Err(RepairError::NoSuperblock(_))), "{refused:?}");
    assert_eq!(blocks.asked, 1);
}
