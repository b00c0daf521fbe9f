//! The metadata of clones that a real kernel made: superblock, bitset, space map.

use cairn_format::clone::{ArrayBlock, Bitset, Fault, Opening, Superblock, encode_array, read};
use cairn_format::thin::block::{self, BLOCK_BYTES, Block};
use cairn_format::thin::blocks::MemoryBlocks;
use cairn_format::thin::{MetadataBlock, Node};
use cairn_testkit::{image, manifest};

fn read_all(bytes: &[u8]) -> Result<Bitset, Fault> {
    let Ok(read) = read(&mut MemoryBlocks::new(bytes));
    read
}

fn superblock(meta: &[u8]) -> Superblock {
    match Opening::decide(block::of(&meta[..BLOCK_BYTES]).expect("a block")) {
        Ok(Opening::Existing(superblock)) => superblock,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_kernel_hydrated_is_hydrated() {
    for record in manifest("clone") {
        let name = record["meta"].as_str().unwrap();
        let bitset = read_all(&image("clone", name)).unwrap();
        let number = |key: &str| record[key].as_u64().unwrap();
        assert_eq!(bitset.superblock.target_sectors, number("sectors"), "{name}");
        assert_eq!(bitset.superblock.region_size.sectors(), number("region_sectors"), "{name}");
        let runs = record["hydrated"].as_array().unwrap();
        let runs: Vec<(u64, u64)> =
            runs.iter().map(|run| (run[0].as_u64().unwrap(), run[1].as_u64().unwrap())).collect();
        for region in 0..bitset.superblock.regions() {
            let expected = runs.iter().any(|(start, end)| (*start..*end).contains(&region));
            assert_eq!(bitset.is_hydrated(region), expected, "{name}, region {region}");
        }
        let (map, regions) = (bitset.superblock.metadata_space_map, bitset.superblock.regions());
        let hydrated = bitset.hydrated();
        let status = format!("8 {}/{} 8 {hydrated}/{regions} 0", bitset.used, map.blocks);
        assert_eq!(record["status"], status, "{name}");
    }
}

#[test]
fn blocks_are_encoded_as_the_kernel_has_them() {
    for record in manifest("clone") {
        let meta = image("clone", record["meta"].as_str().unwrap());
        let superblock = superblock(&meta);
        assert_eq!(superblock.encode()[..], meta[..BLOCK_BYTES]);
        let bytes = |at: MetadataBlock| -> &Block {
            let start = at.0 as usize * BLOCK_BYTES;
            block::of(&meta[start..start + BLOCK_BYTES]).unwrap()
        };
        let root = Node::decode(bytes(superblock.bitset_root), superblock.bitset_root).unwrap();
        for (number, at) in root.entries::<MetadataBlock>() {
            let words = superblock.words_of_array(number);
            let words: Vec<u64> =
                ArrayBlock::decode(bytes(at), at, words).unwrap().words().collect();
            let mut encoded = [0; BLOCK_BYTES];
            encode_array(&mut encoded, at, &words);
            assert_eq!(encoded, *bytes(at));
        }
    }
}

#[test]
fn each_flipped_bit_of_what_counts_is_noticed() {
    let meta = image("clone", "partly.meta");
    let whole = read_all(&meta).unwrap();
    let (mut noticed, mut stale) = (0, 0);
    for byte in (0..meta.len()).step_by(7) {
        let mut flipped = meta.clone();
        flipped[byte] ^= 1 << (byte % 8);
        match read_all(&flipped) {
            Ok(bitset) => {
                assert_eq!(bitset, whole, "byte {byte}");
                stale += 1;
            }
            Err(_) => noticed += 1,
        }
    }
    // Six blocks count; the others were in use before.
    assert!(noticed >= 6 * BLOCK_BYTES / 7 - 6 && stale > noticed, "{noticed} and {stale}");
}

#[test]
fn a_count_that_is_wrong_is_named() {
    let meta = image("clone", "fresh.meta");
    let mut wrong = superblock(&meta);
    wrong.metadata_space_map.allocated += 1;
    let mut bytes = meta.clone();
    bytes[..BLOCK_BYTES].copy_from_slice(&wrong.encode());
    let said = read_all(&bytes).unwrap_err().to_string();
    assert_eq!(said, "metadata_space_map_root nr_allocated: found 7, expected 6");

    let mut wrong = superblock(&meta);
    wrong.bitset_root = MetadataBlock(9);
    bytes[..BLOCK_BYTES].copy_from_slice(&wrong.encode());
    let said = read_all(&bytes).unwrap_err().to_string();
    assert!(said.starts_with("block 9, node checksum: found"), "{said}");

    let mut wrong = superblock(&meta);
    wrong.target_sectors = 1 << 40;
    bytes[..BLOCK_BYTES].copy_from_slice(&wrong.encode());
    let said = read_all(&bytes).unwrap_err().to_string();
    let expected = "superblock target_size: array blocks that it needs: found 4219025, expected 16";
    assert_eq!(said, expected);
}
