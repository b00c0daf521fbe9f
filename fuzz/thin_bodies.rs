//! What a fuzzer does with the metadata of thin pools: check it, dump it, repair it, and read XML.
//!
//! Shared with the ordinary property tests of `crates/format`. A body panics when a promise is
//! broken, and must never depend on anything but its input.

use std::convert::Infallible;

use cairn_format::Severity;
use cairn_format::thin::blocks::MemoryBlocks;
use cairn_format::thin::build::{Builder, Room, WriteBlocks};
use cairn_format::thin::check::{Limits, Report, check};
use cairn_format::thin::repair::{Given, Plan};
use cairn_format::thin::rmap::rmap;
use cairn_format::thin::stream::{Pool, dump};
use cairn_format::thin::xml::{Reader, Writer};
use cairn_format::thin::{
    BLOCK_BYTES, Block, DataBlockSize, Kind, MetadataBlock, Node, Superblock, block,
};

/// Blocks that the images have, whatever part of them is given.
const IMAGE_BLOCKS: usize = 128;

struct Memory(Vec<u8>);

impl WriteBlocks for Memory {
    type Error = Infallible;

    fn write(&mut self, at: MetadataBlock, bytes: &Block) -> Result<(), Infallible> {
        let begin = at.0 as usize * BLOCK_BYTES;
        self.0.resize(self.0.len().max(begin + BLOCK_BYTES), 0);
        self.0[begin..begin + BLOCK_BYTES].copy_from_slice(bytes);
        Ok(())
    }
}

/// A metadata device: zeros follow. Changed blocks get their checksums, or nothing would get past.
pub fn thin_metadata(bytes: &[u8]) {
    let mut image = bytes.to_vec();
    image.resize(IMAGE_BLOCKS * BLOCK_BYTES, 0);
    for (at, bytes) in image.chunks_exact_mut(BLOCK_BYTES).enumerate() {
        let bytes: &mut Block = bytes.try_into().expect("chunks are blocks");
        if block::identify(bytes).is_none() && bytes.iter().any(|byte| *byte != 0) {
            let kind = guess(bytes);
            block::seal(bytes, kind, MetadataBlock(at as u64));
        }
    }
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

/// What a block was before it was changed.
fn guess(bytes: &Block) -> Kind {
    let number =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    match () {
        () if number(32) == 27_022_010 => Kind::Superblock,
        () if Node::cached(bytes).is_ok() || matches!(number(24), 4 | 8 | 16 | 24) => Kind::Node,
        () if bytes[0] & 1 == 0 => Kind::Bitmap,
        () => Kind::Index,
    }
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
    let mut memory = Memory(Vec::new());
    let Ok(repaired) = plan.build(&mut blocks, &mut memory, Room::AtLeast(16)) else { return };
    let report = finished(memory, &repaired.superblock);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(report.totals.mapped_blocks, repaired.mapped_blocks);
}

fn finished(mut memory: Memory, superblock: &Superblock) -> Report {
    memory.0.resize(superblock.metadata_space_map.blocks as usize * BLOCK_BYTES, 0);
    memory.0[..BLOCK_BYTES].copy_from_slice(&superblock.encode(MetadataBlock::SUPERBLOCK));
    checked(&memory.0)
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
    let mut memory = Memory(Vec::new());
    let builder = Builder::new(&mut memory, Room::AtLeast(16), pool).expect("there is room");
    let mut reader = Reader::new(builder);
    let read = reader.feed(bytes).and_then(|()| reader.finish());
    let Ok(builder) = read else { return };
    let superblock = builder.finish().expect("there is room");
    let report = finished(memory, &superblock);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}
