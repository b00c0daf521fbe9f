//! What the checker, the dump and the repair report for each fault that thin metadata can have.

use std::convert::Infallible;

use cairn_format::Severity;
use cairn_format::thin::blocks::{Bad, Blocks, MemoryBlocks};
use cairn_format::thin::build::{Builder, Room};
use cairn_format::thin::check::{Finding, Limits, Map, check};
use cairn_format::thin::repair::{Given, Plan};
use cairn_format::thin::stream::{Run, Stop, dump};
use cairn_format::thin::walk::{Family, Fault};
use cairn_format::thin::xml::{Broken, Reader, Writer, XmlError};
use cairn_format::thin::{
    BLOCK_BYTES, BitmapMut, Block, DataBlock, DeviceDetails, DeviceId, Error, IndexEntry, Kind,
    Mapping, MetadataBlock, Node, NodeMut, RefCount, Superblock, Value,
};

use crate::images::image;
use crate::repair::repaired;
use crate::tools::{checked, details, finished, first_bitmap, forge, pool, superblock};

fn node_at(meta: &[u8], at: MetadataBlock) -> Block {
    meta[at.0 as usize * BLOCK_BYTES..][..BLOCK_BYTES].try_into().unwrap()
}

/// An entry of a node.
fn entry<V: Value>(meta: &[u8], at: MetadataBlock, index: usize) -> (u64, V) {
    let bytes = node_at(meta, at);
    let node = Node::cached(&bytes).unwrap();
    (node.key(index), node.value(index))
}

fn len(meta: &[u8], at: MetadataBlock) -> usize {
    Node::cached(&node_at(meta, at)).unwrap().len()
}

/// Changes a node, and seals it.
fn forge_node(meta: &mut [u8], at: MetadataBlock, change: impl FnOnce(&mut NodeMut<'_>)) {
    forge(meta, at, Kind::Node, |bytes| change(&mut NodeMut::cached(bytes).unwrap()));
}

/// The root of the mappings of the device at this index in the top-level tree, which is one leaf.
fn mappings(meta: &[u8], index: usize) -> MetadataBlock {
    entry(meta, superblock(meta).mapping_root, index).1
}

/// The findings of a check that are at least this bad.
fn found(meta: &[u8], least: Severity) -> Vec<Finding> {
    let findings = checked(meta).findings.into_iter();
    findings.filter(|finding| finding.severity() >= least).collect()
}

fn faults(meta: &[u8]) -> Vec<(Family, Fault)> {
    let fault = |finding| match finding {
        Finding::Tree { place, fault } => Some((place.tree.family, fault)),
        _ => None,
    };
    checked(meta).findings.into_iter().filter_map(fault).collect()
}

/// A pool with two devices that share no node. The first has several leaves. Data block 7 is mapped
/// four more times.
fn counted_pool() -> Vec<u8> {
    let mut memory = Vec::<u8>::new();
    let mut builder = Builder::new(&mut memory, Room::AtLeast(64), pool(4000)).unwrap();
    for (id, data, len) in [(0, 100, 800), (1, 1000, 5), (2, 7, 1), (3, 7, 1), (4, 7, 1), (5, 7, 1)]
    {
        builder.begin_device(DeviceId::new(id).unwrap(), details()).unwrap();
        builder.add(Run { origin: 0, data, len, time: 4 }).unwrap();
        builder.end_device().unwrap();
    }
    let superblock = builder.finish().unwrap();
    let meta = finished(memory, &superblock);
    assert_eq!(checked(&meta).findings, []);
    meta
}

#[test]
fn pointer_beyond_the_device_is_reported() {
    let mut meta = image("basic.meta");
    let (top, count) = (superblock(&meta).mapping_root, (meta.len() / BLOCK_BYTES) as u64);
    for at in [MetadataBlock(count), MetadataBlock(u64::MAX)] {
        forge_node(&mut meta, top, |node| node.set_value(0, at));
        let expected = (Family::Mappings, Bad::Outside { at, count }.into());
        assert_eq!(faults(&meta), [expected]);
        assert_eq!(checked(&meta).severity, Severity::Damaged);
    }
}

#[test]
fn counts_of_data_blocks_are_compared_in_bitmap_and_tree() {
    let sound = counted_pool();
    let map = superblock(&sound).data_space_map;
    let bitmap = entry::<IndexEntry>(&sound, map.bitmap_root, 0).1.bitmap;
    let with = |block: usize, count: u32| {
        let mut meta = sound.clone();
        forge(&mut meta, bitmap, Kind::Bitmap, |bytes| BitmapMut::cached(bytes).set(block, count));
        checked(&meta)
    };
    let count = |block, found, expected| {
        let (map, first, last) = (Map::Data, block, block);
        Finding::Count { map, first, last, found, expected }
    };
    let report = with(100, 0);
    assert_eq!((report.severity, report.findings), (Severity::Damaged, vec![count(100, 0, 1)]));
    let report = with(100, 2);
    assert_eq!((report.severity, report.findings), (Severity::Repairable, vec![count(100, 2, 1)]));
    // The tree contains the count of block 7.
    assert_eq!(entry::<RefCount>(&sound, map.ref_count_root, 0), (7, RefCount(4)));
    for (found, severity) in [(3, Severity::Damaged), (5, Severity::Repairable)] {
        let mut meta = sound.clone();
        forge_node(&mut meta, map.ref_count_root, |node| node.set_value(0, RefCount(found)));
        let report = checked(&meta);
        assert_eq!((report.severity, report.findings), (severity, vec![count(7, found, 4)]));
    }
    let mut meta = sound;
    forge_node(&mut meta, map.ref_count_root, |node| node.remove(0..1));
    let report = checked(&meta);
    let expected = Finding::NoLargeCount { map: Map::Data, block: 7, expected: 4 };
    assert_eq!((report.severity, report.findings), (Severity::Repairable, vec![expected]));
}

#[test]
fn bitmaps_that_are_missing_broken_or_used_twice_are_reported() {
    let sound = counted_pool();
    let root = superblock(&sound).data_space_map.bitmap_root;
    let (_, index_entry) = entry::<IndexEntry>(&sound, root, 0);
    let mut meta = sound.clone();
    forge_node(&mut meta, root, |node| node.remove(0..1));
    let expected = Finding::NoBitmap { map: Map::Data, index: 0, expected: 1 };
    assert!(checked(&meta).findings.contains(&expected));
    assert_eq!(checked(&meta).severity, Severity::Repairable);
    for (map, at) in [(Map::Data, index_entry.bitmap), (Map::Metadata, first_bitmap(&sound))] {
        let mut meta = sound.clone();
        meta[at.0 as usize * BLOCK_BYTES + 40] ^= 1;
        let report = checked(&meta);
        assert_eq!(report.severity, Severity::Repairable);
        let [Finding::Bitmap { map: found, index: 0, fault: Fault::Bad(Bad::Wrong(error)) }] =
            &report.findings[..]
        else {
            panic!("{:?}", report.findings);
        };
        assert_eq!(*found, map);
        assert!(matches!(error, Error::WrongChecksum { kind: Kind::Bitmap, .. }), "{error}");
    }
    // Both maps refer to the same bitmap.
    let mut meta = sound;
    let at = first_bitmap(&meta);
    forge_node(&mut meta, root, |node| node.set_value(0, IndexEntry { bitmap: at, ..index_entry }));
    let fault = Fault::UsedTwice { at, found: Family::Bitmap };
    let expected = Finding::Bitmap { map: Map::Data, index: 0, fault };
    assert!(checked(&meta).findings.contains(&expected));
}

#[test]
fn node_of_two_trees_is_reported() {
    let mut meta = counted_pool();
    let top = superblock(&meta).mapping_root;
    forge_node(&mut meta, top, |node| node.set_value(0, top));
    let fault = Fault::UsedTwice { at: top, found: Family::TopLevel };
    assert_eq!(faults(&meta), [(Family::Mappings, fault)]);
    assert_eq!(checked(&meta).severity, Severity::Damaged);
}

#[test]
fn nodes_with_keys_outside_or_too_few_of_them_are_reported() {
    let sound = counted_pool();
    let root = mappings(&sound, 0);
    let (first, leaf) = entry::<MetadataBlock>(&sound, root, 1);
    let last = first + len(&sound, leaf) as u64 - 1;
    let mut meta = sound.clone();
    forge_node(&mut meta, root, |node| node.set_key(1, first + 1));
    let fault = Fault::KeysOutside { at: leaf, first, last };
    assert_eq!(faults(&meta), [(Family::Mappings, fault)]);
    assert_eq!(checked(&meta).severity, Severity::Damaged);
    let mut meta = sound;
    forge_node(&mut meta, leaf, |node| node.remove(10..node.len()));
    let fault = Fault::Underfull { at: leaf, found: 10, least: 84 };
    assert_eq!(faults(&meta), [(Family::Mappings, fault)]);
    // Only that, counts that are too high now, and the number of mappings.
    assert_eq!(checked(&meta).severity, Severity::Repairable);
}

fn dump_of(meta: &[u8]) -> Result<(), Stop<Infallible>> {
    let mut silent = Writer::new(|_: &str| Ok::<(), Infallible>(()));
    dump(&mut MemoryBlocks::new(meta), &superblock(meta), false, &mut silent)
}

#[test]
fn device_that_one_tree_lacks_is_reported() {
    let sound = counted_pool();
    let Superblock { mapping_root, details_root, .. } = superblock(&sound);
    let device = DeviceId::new(1).unwrap();
    let trees = [(mapping_root, Family::TopLevel, 5), (details_root, Family::Details, 6)];
    for (root, missing, kept) in trees {
        let mut meta = sound.clone();
        forge_node(&mut meta, root, |node| node.remove(1..2));
        let finding = Finding::HalfADevice { device, held: false, missing };
        assert_eq!(finding.severity(), Severity::Damaged);
        assert_eq!(found(&meta, Severity::Damaged), std::slice::from_ref(&finding));
        let missing = missing == Family::TopLevel;
        let fault = Fault::OtherDevices { at: mapping_root, id: 1, missing };
        match dump_of(&meta) {
            Err(Stop::Damaged(_, said)) => assert_eq!(said, fault),
            other => panic!("{other:?}"),
        }
        let (_, repaired) = repaired(&meta, Given::default()).unwrap();
        assert_eq!((repaired.devices, repaired.findings), (kept, vec![finding]));
    }
}

#[test]
fn mappings_outside_the_pool_or_newer_than_its_time_are_reported() {
    let sound = counted_pool();
    let at = mappings(&sound, 1);
    for (block, time, kept) in [(4000, 4, 4), (1001, 6, 5)] {
        let (mut meta, block) = (sound.clone(), DataBlock(block));
        forge_node(&mut meta, at, |node| node.set_value(1, Mapping { block, time }));
        let findings = found(&meta, Severity::Damaged);
        let [Finding::Mapping { place, key: 1, mapping, blocks: 4000, time: 5 }] = &findings[..]
        else {
            panic!("{findings:?}");
        };
        assert_eq!((place.block, mapping), (at, &Mapping { block, time }));
        assert_eq!(place.tree.device, DeviceId::new(1).ok());
        let (new, repaired) = repaired(&meta, Given::default()).unwrap();
        assert_eq!(repaired.findings, findings);
        assert_eq!(repaired.mapped_blocks, 800 + kept + 4);
        assert_eq!(checked(&new).findings, []);
    }
}

#[test]
fn details_with_a_wrong_mapping_count_are_reported() {
    let mut meta = counted_pool();
    let root = superblock(&meta).details_root;
    let (_, known) = entry::<DeviceDetails>(&meta, root, 1);
    forge_node(&mut meta, root, |node| {
        node.set_value(1, DeviceDetails { mapped_blocks: 9, ..known });
    });
    let (device, held) = (DeviceId::new(1).unwrap(), false);
    let expected = Finding::MappedBlocks { device, held, found: 9, expected: 5 };
    let report = checked(&meta);
    assert_eq!((report.severity, report.findings), (Severity::Repairable, vec![expected]));
}

#[test]
fn broken_metadata_snapshot_is_reported_and_dropped() {
    let mut meta = image("snaps.meta");
    let at = superblock(&meta).held_root.unwrap();
    meta[at.0 as usize * BLOCK_BYTES + 400] ^= 1;
    let findings = found(&meta, Severity::Damaged);
    let [Finding::Held(Bad::Wrong(Error::WrongChecksum { at: found, .. }))] = &findings[..] else {
        panic!("{findings:?}");
    };
    assert_eq!(*found, at);
    let (new, _) = repaired(&meta, Given::default()).unwrap();
    assert_eq!((superblock(&new).held_root, checked(&new).findings), (None, vec![]));
}

#[test]
fn an_id_beyond_24_bits_is_refused_everywhere() {
    let mut meta = counted_pool();
    let Superblock { mapping_root, details_root, .. } = superblock(&meta);
    let key = DeviceId::MAX.key() + 1;
    for root in [mapping_root, details_root] {
        forge_node(&mut meta, root, |node| node.set_key(5, key));
    }
    let expected =
        [Family::Details, Family::TopLevel].map(|family| Finding::BadDeviceId { family, key });
    assert_eq!(found(&meta, Severity::Damaged), expected);
    match dump_of(&meta) {
        Err(Stop::Damaged(place, fault)) => {
            assert_eq!((place.first, place.last), (key, key));
            assert_eq!(fault, Bad::from(Error::BadDeviceId { found: key }).into());
        }
        other => panic!("{other:?}"),
    }
    let (new, repaired) = repaired(&meta, Given::default()).unwrap();
    assert_eq!((repaired.devices, &repaired.findings[..]), (5, &expected[..]));
    assert_eq!(checked(&new).findings, []);
    let text = format!(
        "<superblock time=\"5\" transaction=\"7\" data_block_size=\"128\" nr_data_blocks=\"32\">\n\
         <device dev_id=\"{key}\" mapped_blocks=\"0\" transaction=\"0\" creation_time=\"0\" \
         snap_time=\"0\"/>\n</superblock>\n"
    );
    let mut memory = Vec::<u8>::new();
    let builder = Builder::new(&mut memory, Room::AtLeast(16), pool(32)).unwrap();
    match Reader::new(builder).feed(text.as_bytes()) {
        Err(XmlError::Broken { line: 2, what }) => {
            assert!(what.to_string().contains("16777216"), "{what}");
            assert!(!matches!(what, Broken::LongTag), "{what}");
        }
        other => panic!("{other:?}"),
    }
}

/// A device with one block that cannot be read.
struct Flawed<'a> {
    blocks: MemoryBlocks<'a>,
    bad: MetadataBlock,
}

impl Blocks for Flawed<'_> {
    type Error = Infallible;

    fn count(&self) -> u64 {
        self.blocks.count()
    }

    fn read(
        &mut self,
        wanted: &[MetadataBlock],
        each: &mut dyn FnMut(MetadataBlock, Option<&Block>),
    ) -> Result<(), Infallible> {
        let bad = self.bad;
        self.blocks.read(wanted, &mut |at, bytes| each(at, bytes.filter(|_| at != bad)))
    }
}

#[test]
fn unreadable_block_loses_only_its_own_contents() {
    let meta = counted_pool();
    let (_, leaf) = entry::<MetadataBlock>(&meta, mappings(&meta, 0), 1);
    let lost = len(&meta, leaf) as u64;
    let mut flawed = Flawed { blocks: MemoryBlocks::new(&meta), bad: leaf };
    let Ok(report) = check(&mut flawed, Limits::default());
    let unreadable = |finding: &Finding| match finding {
        Finding::Tree { place, fault } => {
            place.block == leaf && *fault == Bad::Unreadable { at: leaf }.into()
        }
        _ => false,
    };
    assert!(report.findings.iter().any(unreadable), "{:?}", report.findings);
    assert_eq!(report.severity, Severity::Damaged);
    let plan = Plan::new(&mut flawed, Given::default()).unwrap();
    let mut memory = Vec::<u8>::new();
    let repaired = plan.build(&mut flawed, &mut memory, Room::AtLeast(16)).unwrap();
    assert_eq!(repaired.mapped_blocks, 809 - lost);
    assert!(repaired.findings.len() == 1 && unreadable(&repaired.findings[0]));
}
