//! The metadata device that a fuzzer's bytes stand for.

use cairn_format::thin::{BLOCK_BYTES, Block, Kind, MetadataBlock, Node, block};

/// Blocks that an image has, whatever part of it is given; zeros follow.
pub const IMAGE_BLOCKS: usize = 128;

/// The image. Changed blocks get their checksums, or nothing would get past.
pub fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut image = bytes.to_vec();
    image.resize(IMAGE_BLOCKS * BLOCK_BYTES, 0);
    for (at, bytes) in image.chunks_exact_mut(BLOCK_BYTES).enumerate() {
        let bytes: &mut Block = bytes.try_into().expect("chunks are blocks");
        if block::identify(bytes).is_none() && bytes.iter().any(|byte| *byte != 0) {
            let kind = guess(bytes);
            block::seal(bytes, kind, MetadataBlock(at as u64));
        }
    }
    image
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
