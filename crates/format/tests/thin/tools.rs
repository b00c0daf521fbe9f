//! Checking, dumping and building thin metadata of the kernel and of the tools: unchanged, changed
//! and damaged.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use cairn_format::Severity;
use cairn_format::thin::blocks::{Blocks, MemoryBlocks};
use cairn_format::thin::build::{BuildError, Builder, Refusal, Room};
use cairn_format::thin::check::{Finding, Limits, Map, Report, check, check_held};
use cairn_format::thin::repair::Given;
use cairn_format::thin::rmap::rmap;
use cairn_format::thin::stream::{Pool, Run, dump};
use cairn_format::thin::walk::Fault;
use cairn_format::thin::xml::{Broken, Reader, Writer, XmlError};
use cairn_format::thin::{
    BLOCK_BYTES, BitmapMut, Block, DataBlockSize, DeviceDetails, DeviceId, IndexBlock, IndexEntry,
    Kind, MetadataBlock, Node, NodeKind, NodeMut, Superblock, block,
};
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};
use proptest::sample::Index;

use crate::images::{Golden, image, manifest};
use crate::repair::repaired;

pub fn superblock(meta: &[u8]) -> Superblock {
    let bytes = block::of(&meta[..BLOCK_BYTES]).unwrap();
    Superblock::decode(bytes, MetadataBlock::SUPERBLOCK).unwrap()
}

pub fn checked(meta: &[u8]) -> Report {
    let Ok(report) = check(&mut MemoryBlocks::new(meta), Limits::default());
    report
}

pub fn golden(name: &str) -> Golden {
    manifest().into_iter().find(|golden| golden.name == name).unwrap()
}

fn xml(meta: &[u8], superblock: &Superblock, held: bool) -> String {
    let mut text = String::new();
    let mut writer = Writer::new(|piece: &str| {
        text.push_str(piece);
        Ok::<(), Infallible>(())
    });
    dump(&mut MemoryBlocks::new(meta), superblock, held, &mut writer).unwrap();
    drop(writer);
    text
}

pub fn dumped(meta: &[u8]) -> String {
    xml(meta, &superblock(meta), false)
}

/// Builds the metadata in the XML, for the pool at the head of a dump.
fn restored(text: &str, pool: Pool) -> Vec<u8> {
    let mut memory = Vec::<u8>::new();
    let builder = Builder::new(&mut memory, Room::AtLeast(16), pool).unwrap();
    let mut reader = Reader::new(builder);
    for piece in text.as_bytes().chunks(100) {
        reader.feed(piece).unwrap();
    }
    let superblock = reader.finish().unwrap().finish().unwrap();
    finished(memory, &superblock)
}

pub fn finished(mut memory: Vec<u8>, superblock: &Superblock) -> Vec<u8> {
    let blocks = superblock.metadata_space_map.blocks as usize;
    memory.resize(blocks * BLOCK_BYTES, 0);
    memory[..BLOCK_BYTES].copy_from_slice(&superblock.encode(MetadataBlock::SUPERBLOCK));
    memory
}

/// Changes a block and seals it, as a faulty writer would.
pub fn forge(meta: &mut [u8], at: MetadataBlock, kind: Kind, change: impl FnOnce(&mut Block)) {
    let begin = at.0 as usize * BLOCK_BYTES;
    let bytes: &mut Block = (&mut meta[begin..begin + BLOCK_BYTES]).try_into().unwrap();
    change(bytes);
    block::seal(bytes, kind, at);
}

/// The bitmap of the metadata space map that counts the first blocks.
pub fn first_bitmap(meta: &[u8]) -> MetadataBlock {
    let at = superblock(meta).metadata_space_map.bitmap_root;
    let begin = at.0 as usize * BLOCK_BYTES;
    let bytes = block::of(&meta[begin..begin + BLOCK_BYTES]).unwrap();
    IndexBlock::decode(bytes, at).unwrap().entry(0).bitmap
}

#[test]
fn kernel_pools_are_sound_and_counts_match_the_manifest() {
    for golden in manifest() {
        let report = checked(&golden.meta);
        let expected = match golden.needs_check {
            true => (Severity::Repairable, vec![Finding::NeedsCheck]),
            false => (Severity::Sound, Vec::new()),
        };
        assert_eq!((report.severity, report.findings), expected, "{}", golden.name);
        assert_eq!(report.totals.data_used, golden.used_data, "{}", golden.name);
        if golden.name != "restored.meta" {
            let allocated = superblock(&golden.meta).metadata_space_map.allocated;
            assert_eq!(report.totals.metadata_used, allocated, "{}", golden.name);
        }
    }
}

#[test]
fn a_dump_is_what_thin_dump_wrote() {
    let expected = String::from_utf8(image("big.thin_dump.xml")).unwrap();
    assert!(dumped(&image("big.meta")) == expected);
    // restored.meta was made from that text.
    assert!(dumped(&image("restored.meta")) == expected);
}

#[test]
fn restored_metadata_is_sound_and_dumps_the_same() {
    for golden in manifest() {
        let text = dumped(&golden.meta);
        let meta = restored(&text, Pool::of(&superblock(&golden.meta)));
        assert!(dumped(&meta) == text, "{}", golden.name);
        let report = checked(&meta);
        assert_eq!(report.findings.is_empty(), !golden.needs_check, "{:?}", report.findings);
        assert_eq!(report.totals.data_used, golden.used_data, "{}", golden.name);
        let map = superblock(&meta).metadata_space_map;
        assert_eq!(report.totals.metadata_used, map.allocated, "{}", golden.name);
    }
}

/// Records which blocks are read.
struct Recording<'a>(MemoryBlocks<'a>, BTreeSet<MetadataBlock>);

impl Blocks for Recording<'_> {
    type Error = Infallible;

    fn count(&self) -> u64 {
        self.0.count()
    }

    fn read(
        &mut self,
        wanted: &[MetadataBlock],
        each: &mut dyn FnMut(MetadataBlock, Option<&Block>),
    ) -> Result<(), Infallible> {
        self.1.extend(wanted);
        self.0.read(wanted, each)
    }
}

#[test]
fn metadata_snapshot_is_checked_alone_while_the_pool_changes() {
    let mut meta = image("snaps.meta");
    let now = superblock(&meta);
    let held = |meta: &[u8], limits| {
        let Ok(report) = check_held(&mut MemoryBlocks::new(meta), &now, limits);
        report
    };
    let mut reading = Recording(MemoryBlocks::new(&meta), BTreeSet::new());
    let Ok(report) = check_held(&mut reading, &now, Limits::default());
    let its_blocks = reading.1;
    assert_eq!((report.severity, report.findings), (Severity::Sound, Vec::new()));
    assert_eq!((report.totals.devices, report.totals.mapped_blocks), (4, 19));
    assert_eq!(report.totals.metadata_used, its_blocks.len() as u64);
    assert_eq!(report.totals.data_used, 10);
    let small = held(&meta, Limits { data_sectors: Some(31 * 128) });
    assert!(matches!(small.findings[..], [Finding::MapSize { map: Map::Data, most: 31, .. }]));

    // The pool changes: blocks that the snapshot does not refer to may be in any state.
    for (at, block) in (0..).map(MetadataBlock).zip(meta.chunks_exact_mut(BLOCK_BYTES)) {
        if !its_blocks.contains(&at) {
            block.fill(0xEE);
        }
    }
    assert_eq!(held(&meta, Limits::default()).severity, Severity::Sound);
    // Blocks that it does refer to are verified.
    for at in its_blocks {
        let mut hurt = meta.clone();
        hurt[at.0 as usize * BLOCK_BYTES + 100] ^= 1;
        assert_eq!(held(&hurt, Limits::default()).severity, Severity::Damaged, "{at}");
    }
    let root = report.superblock.unwrap().details_root;
    forge(&mut meta, root, Kind::Node, |bytes| {
        let mut node = NodeMut::cached(bytes).unwrap();
        let (_, details) = node.view().entries::<DeviceDetails>().next().unwrap();
        let mapped_blocks = details.mapped_blocks + 1;
        node.set_value(0, DeviceDetails { mapped_blocks, ..details });
    });
    let counted = held(&meta, Limits::default());
    assert!(matches!(counted.findings[..], [Finding::MappedBlocks { held: true, .. }]));
}

#[test]
fn the_metadata_snapshot_is_dumped_from_its_own_superblock() {
    let meta = image("snaps.meta");
    let at = superblock(&meta).held_root.unwrap();
    let begin = at.0 as usize * BLOCK_BYTES;
    let bytes = block::of(&meta[begin..begin + BLOCK_BYTES]).unwrap();
    let held = Superblock::decode(bytes, at).unwrap();
    let text = xml(&meta, &held, true);
    assert!(text.contains("nr_data_blocks=\"0\""), "{text}");
    assert!(text.contains("origin_block=\"9\" data_block=\"4\""), "{text}");
    assert!(text != dumped(&meta));
}

#[test]
fn a_reverse_map_names_every_mapping_once() {
    let meta = image("snaps.meta");
    let mut lines = Vec::new();
    let mut blocks = MemoryBlocks::new(&meta);
    rmap(&mut blocks, &superblock(&meta), false, 0..4, &mut |run| {
        lines.push((run.data, run.device.get(), run.origin, run.len));
        Ok::<(), Infallible>(())
    })
    .unwrap();
    let expected = [
        (0, 1, 0, 2),
        (0, 7, 0, 1),
        (2, 0, 2, 1),
        (2, 7, 2, 1),
        (3, 0, 5, 1),
        (3, 1, 5, 1),
        (3, 7, 5, 1),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn counts_beyond_the_end_of_a_map_are_reported_and_not_damage() {
    let mut meta = image("basic.meta");
    let (bitmap, now) = (first_bitmap(&meta), superblock(&meta));
    let end = now.metadata_space_map.blocks;
    forge(&mut meta, bitmap, Kind::Bitmap, |bytes| {
        let mut bitmap = BitmapMut::cached(bytes);
        for (index, count) in [(end as usize, 1), (16319, 3)] {
            bitmap.set(index, count);
        }
    });
    let index = now.data_space_map.bitmap_root.0 as usize * BLOCK_BYTES;
    let index = Node::cached(block::of(&meta[index..index + BLOCK_BYTES]).unwrap()).unwrap();
    let data_bitmap = index.value::<IndexEntry>(0).bitmap;
    let set = |bytes: &mut Block| BitmapMut::cached(bytes).set(32, 2);
    forge(&mut meta, data_bitmap, Kind::Bitmap, set);
    let report = checked(&meta);
    let expected = [
        Finding::Beyond { map: Map::Data, end: 32, found: 1 },
        Finding::Beyond { map: Map::Metadata, end, found: 2 },
    ];
    assert_eq!((report.severity, &report.findings[..]), (Severity::Sound, &expected[..]));
    assert_eq!(
        report.findings[0].to_string(),
        "data space map, reference counts from block 32 on, its end: found 1, expected none \
         (repair drops them)"
    );
}

#[test]
fn a_count_too_high_is_repairable_and_one_too_low_is_damage() {
    let mut meta = image("basic.meta");
    let bitmap = first_bitmap(&meta);
    let set = |index: usize, count: u32| {
        move |bytes: &mut Block| BitmapMut::cached(bytes).set(index, count)
    };
    forge(&mut meta, bitmap, Kind::Bitmap, set(100, 1));
    forge(&mut meta, bitmap, Kind::Bitmap, set(101, 1));
    let report = checked(&meta);
    assert_eq!(report.severity, Severity::Repairable);
    let (map, first, last) = (Map::Metadata, 100, 101);
    assert_eq!(report.findings, [Finding::Count { map, first, last, found: 1, expected: 0 }]);
    let text = report.findings[0].to_string();
    assert_eq!(text, "metadata blocks 100 to 101, reference count: found 1, expected 0");
    let root = superblock(&meta).mapping_root.0;
    forge(&mut meta, bitmap, Kind::Bitmap, set(root as usize, 0));
    let report = checked(&meta);
    assert_eq!(report.severity, Severity::Damaged);
    let (first, last) = (root, root);
    let expected = Finding::Count { map, first, last, found: 0, expected: 1 };
    assert!(report.findings.contains(&expected));
}

#[test]
fn broken_leaf_is_reported_with_device_keys_and_block() {
    let golden = golden("big.meta");
    let mut meta = golden.meta;
    // The last leaf of device 5: always the rightmost child.
    let top = superblock(&meta).mapping_root;
    let node = |at: MetadataBlock| {
        let begin = at.0 as usize * BLOCK_BYTES;
        Node::decode(block::of(&meta[begin..begin + BLOCK_BYTES]).unwrap(), at).unwrap()
    };
    let root = node(top).child(node(top).len() - 1);
    let (leaf, key) =
        (node(root).child(node(root).len() - 1), node(root).key(node(root).len() - 1));
    meta[leaf.0 as usize * BLOCK_BYTES + 100] ^= 1;
    let report = checked(&meta);
    assert_eq!(report.severity, Severity::Damaged);
    let text = report.findings[0].to_string();
    let expected = format!("mapping tree, keys from {key}: block {leaf}, node checksum: found ");
    assert!(text.starts_with("device ") && text.contains(&expected), "{text}");
    assert!(report.findings.contains(&Finding::CountsLeftOut));
}

#[test]
fn keys_below_a_shared_node_are_checked_by_every_pointer_to_it() {
    let mut memory = Vec::<u8>::new();
    let mut builder = Builder::new(&mut memory, Room::AtLeast(64), pool(4000)).unwrap();
    for (id, begin) in [(1, 0), (2, 1000)] {
        builder.begin_device(DeviceId::new(id).unwrap(), details()).unwrap();
        builder.add(Run { origin: 0, data: begin, len: 500, time: 4 }).unwrap();
        builder.end_device().unwrap();
    }
    let superblock = builder.finish().unwrap();
    let mut meta = finished(memory, &superblock);
    let top = superblock.mapping_root;
    let node = |meta: &[u8], at: MetadataBlock| -> Block {
        meta[at.0 as usize * BLOCK_BYTES..][..BLOCK_BYTES].try_into().unwrap()
    };
    let roots = node(&meta, top);
    let roots = Node::cached(&roots).unwrap();
    let (shared, other) = (roots.child(0), roots.child(1));
    // Above the root of device 1, one node for each device. The node of device 2 has mappings of
    // its own from 499 on: within the last leaf below the shared node, but beyond that node's own
    // keys.
    for (index, children) in [vec![(0, shared)], vec![(0, shared), (499, other)]].iter().enumerate()
    {
        let at = MetadataBlock((meta.len() / BLOCK_BYTES - 1 - index) as u64);
        forge(&mut meta, at, Kind::Node, |bytes| {
            let mut node = NodeMut::init(bytes, NodeKind::Internal, 8);
            for (index, (key, child)) in children.iter().enumerate() {
                node.insert_at(index, *key, *child);
            }
        });
        forge(&mut meta, top, Kind::Node, |bytes| {
            NodeMut::cached(bytes).unwrap().set_value(index, at);
        });
    }
    let report = checked(&meta);
    let outside = |finding: &&Finding| {
        let Finding::Tree { place, fault: Fault::KeysOutside { last: 499, .. } } = finding else {
            return false;
        };
        place.last == 498 && place.first > 0
    };
    assert_eq!(report.findings.iter().filter(outside).count(), 1, "{:#?}", report.findings);
}

#[test]
fn tree_with_a_loop_is_reported_and_ends_every_walk() {
    let mut meta = image("big.meta");
    let top = superblock(&meta).mapping_root;
    // A root whose only child is itself: every key and every pointer is in order.
    let begin = top.0 as usize * BLOCK_BYTES;
    let root = Node::decode(block::of(&meta[begin..begin + BLOCK_BYTES]).unwrap(), top).unwrap();
    let at = root.child(0);
    forge(&mut meta, at, Kind::Node, |bytes| {
        let mut node = NodeMut::cached(bytes).unwrap();
        node.remove(1..node.len());
        node.set_value(0, at);
    });
    let report = checked(&meta);
    let text = report.findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(text.contains("found a node that is its own descendant"), "{text}");
    let mut silent = Writer::new(|_: &str| Ok::<(), Infallible>(()));
    assert!(dump(&mut MemoryBlocks::new(&meta), &superblock(&meta), false, &mut silent).is_err());
}

#[test]
fn sizes_that_do_not_fit_are_reported() {
    let meta = image("basic.meta");
    let report = checked(&meta[..20 * BLOCK_BYTES]);
    let text = report.findings[0].to_string();
    assert_eq!(text, "metadata space map nr_blocks: found 128, expected at most 20");
    let limits = Limits { data_sectors: Some(31 * 128 + 127) };
    let Ok(report) = check(&mut MemoryBlocks::new(&meta), limits);
    let text = report.findings[0].to_string();
    assert_eq!(text, "data space map nr_blocks: found 32, expected at most 31");
    assert_eq!(checked(&[0; BLOCK_BYTES]).findings, [Finding::Unformatted]);
    assert_eq!(checked(&[]).severity, Severity::Damaged);
}

pub fn pool(data_blocks: u64) -> Pool {
    Pool {
        time: 5,
        transaction_id: 7,
        flags: 0,
        version: 2,
        data_block_size: DataBlockSize::new(128).unwrap(),
        data_blocks,
    }
}

pub fn details() -> DeviceDetails {
    DeviceDetails { mapped_blocks: 0, transaction_id: 1, creation_time: 2, snapshotted_time: 3 }
}

#[test]
fn inconsistent_metadata_is_not_built() {
    let mut memory = Vec::<u8>::new();
    let mut builder = Builder::new(&mut memory, Room::AtLeast(16), pool(10)).unwrap();
    let device = DeviceId::new(1).unwrap();
    builder.begin_device(device, details()).unwrap();
    let run = |origin, data, len, time| Run { origin, data, len, time };
    builder.add(run(5, 0, 2, 0)).unwrap();
    let refused = [
        (run(6, 3, 1, 0), Refusal::OutOfOrder { device, found: 6, before: 6 }),
        (run(9, 9, 2, 0), Refusal::Outside { device, run: run(9, 9, 2, 0), blocks: 10 }),
        (
            run(u64::MAX, 0, 2, 0),
            Refusal::Outside { device, run: run(u64::MAX, 0, 2, 0), blocks: 10 },
        ),
        (run(0, 0, 0, 0), Refusal::EmptyRun { device, origin: 0 }),
        (run(7, 3, 1, 6), Refusal::FromTheFuture { device, found: 6, time: 5 }),
    ];
    for (run, expected) in refused {
        assert_eq!(builder.add(run), Err(BuildError::Refused(expected)));
    }
    builder.end_device().unwrap();
    assert_eq!(builder.begin_device(device, details()), Err(Refusal::DeviceTwice { device }));
    let begin = |room, blocks| Builder::new(Vec::<u8>::new(), room, pool(blocks)).err().unwrap();
    let most = 255 * 16320 * 16320;
    assert_eq!(
        begin(Room::Fixed(16), most + 1),
        Refusal::TooManyDataBlocks { found: most + 1, most }
    );
    assert_eq!(begin(Room::Fixed(1), 16321), Refusal::NoRoom { blocks: 1 });
    assert_eq!(begin(Room::Fixed(0), 10), Refusal::NoRoom { blocks: 0 });
    let mut full = Builder::new(Vec::<u8>::new(), Room::Fixed(3), pool(48_000)).unwrap();
    full.begin_device(device, details()).unwrap();
    let filled = full.add(run(0, 0, 48_000, 0));
    assert_eq!(filled, Err(BuildError::Refused(Refusal::NoRoom { blocks: 3 })));
}

#[test]
fn wrong_xml_is_refused_with_its_line() {
    let read = |text: &str| {
        let mut memory = Vec::<u8>::new();
        let mut reader =
            Reader::new(Builder::new(&mut memory, Room::AtLeast(16), pool(32)).unwrap());
        reader.feed(text.as_bytes()).and_then(|()| reader.finish().map(drop))
    };
    let head = "<?xml version=\"1.0\"?>\n<!-- a > b -->\n<superblock time='5' transaction=\"7\" \
                data_block_size=\"128\" nr_data_blocks=\"32\">\n";
    let device = "<device dev_id=\"1\" mapped_blocks=\"0\" transaction=\"0\" creation_time=\"0\" \
                  snap_time=\"0\"";
    assert!(read(&format!("{head}{device}/></superblock>")).is_ok());
    let cases = [
        (format!("{head}text"), 4, "found text, expected a tag"),
        (format!("{head}<device>"), 4, "<device>: found no dev_id"),
        (format!("{head}\n<thing/>"), 5, "found <thing>, expected <device> or </superblock>"),
        (head.to_owned(), 4, "found the end of the text, expected <device> or </superblock>"),
        (format!("{head}<device a=\"1>"), 4, "found the end of the text"),
        (format!("{head}{device}>\n<single_mapping origin_block=\"-1\""), 5, "found the end"),
        (
            format!("{head}{device}>\n<single_mapping origin_block=\"-1\" data_block=\"0\"/>"),
            5,
            "<single_mapping> origin_block: found \"-1\", expected a number up to",
        ),
        (head.replace("128", "100"), 3, "data block size: found 100 sectors"),
        (head.replace("'5'", "'16777216'"), 3, "<superblock> time: found \"16777216\""),
        ("<a =b>".to_owned(), 1, "found <a =b>, expected an element with attributes"),
    ];
    for (text, expected_line, expected) in cases {
        match read(&text) {
            Err(XmlError::Broken { line, what }) => {
                assert!(what.to_string().starts_with(expected), "{what}");
                assert_eq!(line, expected_line, "{what}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let long = format!("{head}<{}", "x".repeat(1 << 17));
    assert!(matches!(read(&long), Err(XmlError::Broken { what: Broken::LongTag, .. })));
}

/// Mappings of some devices; devices with the same number have the same mappings.
fn shared_pool(shapes: &[(u8, u16)]) -> BTreeMap<u64, BTreeMap<u64, u64>> {
    let device = |(index, (share, len)): (usize, &(u8, u16))| {
        let begin = u64::from(*share) * 20_000;
        let mapping = |at| (3 * at, begin + at);
        (index as u64, (0..u64::from(*len)).map(mapping).collect())
    };
    shapes.iter().enumerate().map(device).collect()
}

/// Whether every fault is in something that follows from the trees, or lies outside them: a time
/// that no pool can have becomes the latest one.
fn dumped_counts(report: &Report) -> bool {
    let harmless = |finding: &Finding| {
        finding.severity() < Severity::Damaged
            || matches!(
                finding,
                Finding::Count { .. }
                    | Finding::Held(_)
                    | Finding::MapSize { .. }
                    | Finding::ReadOnly(_)
                    | Finding::MappedBlocks { .. }
                    | Finding::Time { .. }
            )
            || finding.to_string().contains("metadata snapshot")
    };
    report.findings.iter().all(harmless)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn pools_of_every_shape_are_built_sound_and_read_back(
        shapes in proptest::collection::vec((0u8..4, 0u16..2000), 0..6),
    ) {
        let mut memory = Vec::<u8>::new();
        let pool = pool(100_000);
        let mut builder = Builder::new(&mut memory, Room::AtLeast(16), pool).unwrap();
        let devices = shared_pool(&shapes);
        for (id, mappings) in &devices {
            builder.begin_device(DeviceId::new(*id).unwrap(), details()).unwrap();
            for (origin, data) in mappings {
                builder.add(Run { origin: *origin, data: *data, len: 1, time: 4 }).unwrap();
            }
            builder.end_device().unwrap();
        }
        let superblock = builder.finish().unwrap();
        let meta = finished(memory, &superblock);
        let report = checked(&meta);
        prop_assert!(report.findings.is_empty(), "{:?}", report.findings);
        let mapped: usize = devices.values().map(BTreeMap::len).sum();
        prop_assert_eq!(report.totals.mapped_blocks, mapped as u64);
        prop_assert!(restored(&dumped(&meta), pool) == meta);
    }

    #[test]
    fn damage_anywhere_is_found_or_harmless_and_never_panics(
        which in 0usize..13,
        places in proptest::collection::vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        let golden = &manifest()[which];
        let mut meta = golden.meta.clone();
        for (place, byte) in places {
            meta[place.index(golden.meta.len())] = byte;
        }
        let report = checked(&meta);
        if report.severity == Severity::Sound && !golden.needs_check {
            // Only unused bytes were changed.
            prop_assert_eq!(report.totals.data_used, golden.used_data);
            prop_assert!(dumped(&meta) == dumped(&golden.meta));
        }
    }

    #[test]
    fn forged_blocks_are_found_or_harmless_and_never_a_panic(
        which in 0usize..13,
        changes in proptest::collection::vec((any::<Index>(), 0usize..64, any::<u64>()), 1..4),
    ) {
        let golden = &manifest()[which];
        let mut meta = golden.meta.clone();
        for (place, word, number) in changes {
            let used: Vec<_> = (0..meta.len() / BLOCK_BYTES)
                .filter_map(|at| {
                    let bytes = block::of(&meta[at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES]).unwrap();
                    block::identify(bytes).map(|kind| (MetadataBlock(at as u64), kind))
                })
                .collect();
            let (at, kind) = used[place.index(used.len())];
            // Small numbers reach more code.
            let number = if number % 3 == 0 { number } else { number % 70 };
            forge(&mut meta, at, kind, |bytes| {
                bytes[word * 8..word * 8 + 8].copy_from_slice(&number.to_le_bytes());
            });
        }
        let report = checked(&meta);
        if let Some(superblock) = &report.superblock {
            let mut silent = Writer::new(|_: &str| Ok::<(), Infallible>(()));
            let dumped = dump(&mut MemoryBlocks::new(&meta), superblock, false, &mut silent);
            prop_assert!(dumped.is_ok() || report.severity == Severity::Damaged);
        }
        if let Ok((new, repaired)) = repaired(&meta, Given::default()) {
            let after = checked(&new);
            prop_assert!(after.findings.is_empty(), "{:?}", after.findings);
            prop_assert_eq!(after.totals.mapped_blocks, repaired.mapped_blocks);
            let lost = !repaired.findings.is_empty() || repaired.roots_searched;
            let is_whole = report.severity < Severity::Damaged || dumped_counts(&report);
            prop_assert!(lost || is_whole, "{:?}", report.findings);
        }
    }
}
