//! What a fuzzer does with the metadata of thin pools: decode a block of it; check it, dump it,
//! repair it; and read XML.
//!
//! Shared with the ordinary property tests of `crates/format`. A body panics when a promise is
//! broken, and must never depend on anything but its input.

use std::convert::Infallible;

use cairn_format::Severity;
use cairn_format::thin::blocks::MemoryBlocks;
use cairn_format::thin::build::{Builder, Room};
use cairn_format::thin::check::{Limits, Report, check};
use cairn_format::thin::repair::{Given, Plan};
use cairn_format::thin::rmap::rmap;
use cairn_format::thin::stream::{Pool, dump};
use cairn_format::thin::xml::{Reader, Writer};
use cairn_format::thin::{
    BITMAP_ENTRIES, BITMAPS_MAX, BLOCK_BYTES, Bitmap, Block, DataBlockSize, DeviceDetails,
    IndexBlock, IndexEntry, Kind, Mapping, MetadataBlock, Node, Opening, RefCount, Superblock,
    Value, block,
};

#[path = "thin_image.rs"]
mod thin_image;

/// A metadata device: zeros follow. Changed blocks get their checksums, or nothing would get past.
pub fn thin_metadata(bytes: &[u8]) {
    let image = thin_image::sealed(bytes);
    let report = checked(&image);
    for finding in &report.findings {
        let text = finding.to_string();
        assert!(!text.is_empty() && !text.chars().any(char::is_control));
    }
    if let Some(superblock) = &report.superblock {
        read_all(&image, superblock, report.severity);
    }
    repair(&image);
}

fn checked(image: &[u8]) -> Report {
    let Ok(report) = check(&mut MemoryBlocks::new(image), Limits::default());
    report
}

/// What a check calls sound can be read to the end.
fn read_all(image: &[u8], superblock: &Superblock, severity: Severity) {
    let (mut blocks, mut len) = (MemoryBlocks::new(image), 0);
    let mut writer = Writer::new(|text: &str| {
        len += text.len();
        Ok::<(), Infallible>(())
    });
    let dumped = dump(&mut blocks, superblock, false, &mut writer).is_ok();
    let mapped = rmap(&mut blocks, superblock, false, 0..u64::MAX, &mut |_| Ok(())).is_ok();
    assert!(severity == Severity::Damaged || dumped && mapped);
}

/// What is repaired is sound.
fn repair(image: &[u8]) {
    let given = Given {
        data_block_size: DataBlockSize::new(128).ok(),
        data_blocks: Some(100),
        transaction_id: None,
    };
    let mut blocks = MemoryBlocks::new(image);
    let Ok(plan) = Plan::new(&mut blocks, given) else { return };
    let mut memory = Vec::new();
    let Ok(repaired) = plan.build(&mut blocks, &mut memory, Room::AtLeast(16)) else { return };
    let report = finished(memory, &repaired.superblock);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(report.totals.mapped_blocks, repaired.mapped_blocks);
}

fn finished(mut memory: Vec<u8>, superblock: &Superblock) -> Report {
    memory.resize(superblock.metadata_space_map.blocks as usize * BLOCK_BYTES, 0);
    memory[..BLOCK_BYTES].copy_from_slice(&superblock.encode(MetadataBlock::SUPERBLOCK));
    checked(&memory)
}

/// The XML of a pool with few data blocks: what is read builds sound metadata.
pub fn thin_xml(bytes: &[u8]) {
    let pool = Pool {
        time: 100,
        transaction_id: 0,
        flags: 0,
        version: 2,
        data_block_size: DataBlockSize::new(128).expect("a legal size"),
        data_blocks: 10_000,
    };
    let mut memory = Vec::new();
    let builder = Builder::new(&mut memory, Room::AtLeast(16), pool).expect("there is room");
    let mut reader = Reader::new(builder);
    let read = reader.feed(bytes).and_then(|()| reader.finish());
    let Ok(builder) = read else { return };
    let superblock = builder.finish().expect("there is room");
    let report = finished(memory, &superblock);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// One metadata block, after its number as a 64-bit word, as every kind of block.
pub fn thin_block(bytes: &[u8]) {
    let mut word = [0; 8];
    let (number, rest) = bytes.split_at(bytes.len().min(8));
    word[..number.len()].copy_from_slice(number);
    let at = MetadataBlock(u64::from_le_bytes(word));
    let sealed = |kind| {
        let mut own: Block = [0; BLOCK_BYTES];
        let len = rest.len().min(BLOCK_BYTES);
        own[..len].copy_from_slice(&rest[..len]);
        block::seal(&mut own, kind, at);
        own
    };
    superblock(&sealed(Kind::Superblock), at);
    let own = sealed(Kind::Node);
    if let Ok(node) = Node::decode(&own, at) {
        entries::<Mapping>(node);
        entries::<MetadataBlock>(node);
        entries::<RefCount>(node);
        entries::<DeviceDetails>(node);
        entries::<IndexEntry>(node);
    }
    bitmap(&sealed(Kind::Bitmap), at);
    if let Ok(index) = IndexBlock::decode(&sealed(Kind::Index), at) {
        for entry in 0..BITMAPS_MAX {
            let _ = index.entry(entry);
        }
    }
}

/// What is decoded is encoded the same.
fn superblock(own: &Block, at: MetadataBlock) {
    if let Ok(decoded) = Superblock::decode(own, at) {
        let again = Superblock::decode(&decoded.encode(at), at);
        assert_eq!(again.as_ref(), Ok(&decoded));
        assert_eq!(
            Superblock::decode(&decoded.held_copy().encode(at), at),
            Ok(decoded.held_copy())
        );
    }
    if let Ok(Opening::Existing(superblock)) = Opening::decide(own) {
        assert_eq!(at, MetadataBlock::SUPERBLOCK);
        drop(superblock.refuse_writing());
    }
}

/// Keys increase, and each is found where it is.
fn entries<V: Value>(node: Node<'_>) {
    let Ok(node) = node.expect::<V>() else { return };
    assert!(node.keys().is_sorted_by(|a, b| a < b));
    for (index, key) in node.keys().enumerate() {
        assert_eq!((node.find(key), node.lower_bound(key)), (Some(index), index));
        assert_eq!(node.descend(key), Some(index));
        if !node.is_leaf() {
            let _ = node.child(index);
        }
    }
    assert_eq!(node.descend(u64::MAX).is_none(), node.is_empty());
    if node.is_leaf() {
        assert_eq!(node.entries::<V>().count(), node.len());
    }
}

/// Counts of a bitmap.
const ENTRIES: usize = BITMAP_ENTRIES as usize;

/// What is counted as free is free, and is found.
fn bitmap(own: &Block, at: MetadataBlock) {
    let Ok(bitmap) = Bitmap::decode(own, at) else { return };
    let free = (0..ENTRIES).filter(|index| bitmap.get(*index) == 0);
    assert_eq!(bitmap.count_free(0..ENTRIES) as usize, free.clone().count());
    for from in [0, 1, 31, 32, 63, ENTRIES / 2, ENTRIES - 1] {
        let first = free.clone().find(|index| *index >= from);
        assert_eq!(bitmap.find_free(from..ENTRIES), first);
    }
}
