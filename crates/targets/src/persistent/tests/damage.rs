//! Damaged bytes: an error with the path to them, or nothing noticed; never a panic, never a write
//! that makes it worse.

use std::collections::BTreeSet;

use cairn_block::Env;
use cairn_format::thin::{
    BLOCK_BYTES, BitmapMut, Block, DeviceId, Kind, MetadataBlock, NODE_HEADER_BYTES, block,
};
use cairn_sim::Image;
use cairn_testkit::image;

use super::fixture::{StoreFixture, holes, id, mapping, world};
use crate::persistent::{Error, Working};

#[path = "../../../../../fuzz/src/thin_mappings.rs"]
mod thin_mappings;

/// Opens and reads everything, changes and deletes every second device; the first error ends it.
/// Whatever comes of it, what could be read of the others still can be.
fn exercise(bytes: &[u8]) -> Result<(), Error> {
    let readable = thin_mappings::readable(bytes);
    let sim = world(5, Image::of_bytes(bytes));
    let drive = sim.drive("meta");
    let mut changed = BTreeSet::new();
    let done = StoreFixture::open(sim).and_then(|mut test| {
        let devices: Vec<_> = test.store.devices().into_iter().map(|(id, _)| id).collect();
        for device in &devices {
            test.read_all(*device, 2)?;
        }
        let all: Vec<_> = devices.into_iter().step_by(2).collect();
        changed.extend(all.iter().map(|device| u64::from(device.get())));
        test.run(async move |env, working| change(env, working, &all).await)
    });
    thin_mappings::assert_kept(&readable, &drive.visible().to_vec(), |device| {
        changed.contains(&device)
    });
    done
}

async fn change(env: &Env, working: &mut Working, devices: &[DeviceId]) -> Result<(), Error> {
    for device in devices {
        let taken = working.store().data().take(40);
        let blocks = taken.iter().flat_map(|run| run.blocks());
        let time = working.time();
        let changes: Vec<_> =
            (0..).zip(blocks).map(|(n, block)| (n * 11, Some(mapping(block.0, time)))).collect();
        working.apply(env, *device, &changes).await?;
        working.apply(env, *device, &holes(100..300)).await?;
    }
    working.create_device(env, id(4_000_000))?;
    working.commit(env).await?;
    if working.held_root().is_some() {
        working.release_metadata_snap(env).await?;
    }
    for device in devices {
        working.delete_device(env, *device).await?;
    }
    working.commit(env).await.map(drop)
}

fn with_block(bytes: &mut [u8], number: usize, change: impl FnOnce(&mut Block)) {
    let bytes = &mut bytes[number * BLOCK_BYTES..][..BLOCK_BYTES];
    change(bytes.try_into().unwrap());
}

const IMAGES: [&str; 5] = ["big.meta", "snaps.meta", "restored.meta", "basic.meta", "snap0.meta"];

#[test]
fn a_flipped_byte_is_found_or_does_not_matter() {
    let mut rng = fastrand::Rng::with_seed(11);
    for name in IMAGES {
        let clean = image("thin", name);
        exercise(&clean).unwrap();
        for _ in 0..60 {
            let mut bytes = clean.clone();
            let used = (0..clean.len() / BLOCK_BYTES)
                .filter(|n| clean[n * BLOCK_BYTES..][..BLOCK_BYTES].iter().any(|&byte| byte != 0));
            let used: Vec<usize> = used.collect();
            let number = used[rng.usize(..used.len())];
            with_block(&mut bytes, number, |own| own[rng.usize(..BLOCK_BYTES)] ^= rng.u8(1..));
            if let Err(error) = exercise(&bytes) {
                let text = error.to_string();
                assert!(text.contains(&format!("block {number}")), "{name} {number}: {text}");
            }
        }
    }
}

#[test]
fn forged_blocks_lead_to_errors_and_not_to_panics() {
    let mut rng = fastrand::Rng::with_seed(12);
    let mut refused = 0;
    for name in IMAGES {
        let clean = image("thin", name);
        let blocks = clean.chunks(BLOCK_BYTES).map(|own| block::identify(block::of(own).unwrap()));
        let known: Vec<usize> = (0..).zip(blocks).filter_map(|(n, kind)| kind.map(|_| n)).collect();
        for _ in 0..120 {
            let mut bytes = clean.clone();
            let number = known[rng.usize(..known.len())];
            with_block(&mut bytes, number, |own| {
                let kind = block::identify(own).expect("it is one of the known");
                for _ in 0..rng.u32(1..4) {
                    let place = if rng.bool() { rng.usize(16..600) } else { rng.usize(16..4096) };
                    own[place] = if rng.bool() { rng.u8(..) } else { own[place].wrapping_add(1) };
                }
                block::seal(own, kind, cairn_format::thin::MetadataBlock(number as u64));
            });
            refused += u32::from(exercise(&bytes).is_err());
        }
    }
    assert!(refused > 50, "{refused} refused");
}

#[test]
fn a_block_of_zeros_and_a_foreign_block_are_told_with_their_path() {
    let clean = image("thin", "big.meta");
    let test = StoreFixture::open(world(5, Image::of_bytes(&clean))).unwrap();
    let root = test.store.device(id(1)).unwrap().root;
    let mut bytes = clean.clone();
    with_block(&mut bytes, root.0 as usize, |own| own.fill(0));
    let test = StoreFixture::open(world(5, Image::of_bytes(&bytes))).unwrap();
    let text = test.read_all(id(1), 0).unwrap_err().to_string();
    let expected = format!("device 1, mapping tree, block {root}: ");
    assert!(text.starts_with(&expected) && text.contains("all zeros"), "{text}");
    let other = test.store.device(id(5)).unwrap().root;
    let mut bytes = clean;
    let foreign: Block =
        *block::of(&bytes[other.0 as usize * BLOCK_BYTES..][..BLOCK_BYTES]).unwrap();
    with_block(&mut bytes, root.0 as usize, |own| *own = foreign);
    let test = StoreFixture::open(world(5, Image::of_bytes(&bytes))).unwrap();
    let text = test.read_all(id(1), 0).unwrap_err().to_string();
    assert!(text.contains(&format!("blocknr: found {other}, expected {root}")), "{text}");
}

#[test]
fn a_tree_that_loops_or_points_outside_is_told_with_its_path() {
    let clean = image("thin", "big.meta");
    let test = StoreFixture::open(world(5, Image::of_bytes(&clean))).unwrap();
    let root = test.store.device(id(1)).unwrap().root;
    for child in [root.0, 0, 1 << 30, u64::MAX] {
        let mut bytes = clean.clone();
        with_block(&mut bytes, root.0 as usize, |own| {
            let (kind, first_value) = (Kind::Node, NODE_HEADER_BYTES + 252 * 8);
            own[first_value..first_value + 8].copy_from_slice(&child.to_le_bytes());
            block::seal(own, kind, root);
        });
        let test = StoreFixture::open(world(5, Image::of_bytes(&bytes))).unwrap();
        let text = test.read_all(id(1), 0).unwrap_err().to_string();
        let expected = format!("device 1, mapping tree, block {root}");
        let of_child = format!("device 1, mapping tree, block {child}");
        assert!(text.starts_with(&expected) || text.starts_with(&of_child), "{child}: {text}");
        let error = exercise(&bytes).unwrap_err().to_string();
        assert!(error.contains("mapping tree, block"), "{child}: {error}");
    }
}

/// A device whose tree has several leaves under its root, and the block of a child.
fn leaf_of(bytes: &[u8], nth: usize) -> usize {
    let test = StoreFixture::open(world(5, Image::of_bytes(bytes))).unwrap();
    let root = test.store.device(id(1)).unwrap().root.0 as usize;
    let at = root * BLOCK_BYTES + NODE_HEADER_BYTES + 252 * 8 + nth * 8;
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize
}

#[test]
fn a_leaf_without_entries_below_a_root_is_damage() {
    let mut bytes = image("thin", "big.meta");
    let number = leaf_of(&bytes, 1);
    with_block(&mut bytes, number, |own| {
        own[16..20].fill(0);
        block::seal(own, Kind::Node, cairn_format::thin::MetadataBlock(number as u64));
    });
    let test = StoreFixture::open(world(5, Image::of_bytes(&bytes))).unwrap();
    let text = test.read_all(id(1), 0).unwrap_err().to_string();
    assert!(text.contains(&format!("block {number}")), "{text}");
    assert!(text.contains("entries: found none, expected some"), "{text}");
}

#[test]
fn a_leaf_that_cannot_be_read_ahead_is_no_matter_to_the_one_before_it() {
    let mut bytes = image("thin", "big.meta");
    let number = leaf_of(&bytes, 1);
    with_block(&mut bytes, number, |own| own[2000] ^= 1);
    let test = StoreFixture::open(world(5, Image::of_bytes(&bytes))).unwrap();
    let read = |key| {
        let store = test.store.clone();
        test.sim.block_on(0, move |env| async move { store.read_leaves(&env, id(1), key, 3).await })
    };
    let leaves = read(0).unwrap();
    assert_eq!(leaves.len(), 1);
    let refused = read(leaves[0].keys.end).unwrap_err().to_string();
    assert!(refused.contains(&format!("block {number}")), "{refused}");
}

#[test]
fn a_shared_data_block_that_counts_as_free_is_damage() {
    let mut test =
        StoreFixture::open(world(5, Image::of_bytes(&image("thin", "snaps.meta")))).unwrap();
    let shared = test.run(async |env, working| {
        let store = working.store().clone();
        let devices: Vec<_> = store.devices().into_iter().map(|(id, _)| id).collect();
        let leaves = store.read_leaves(env, devices[0], 0, 0).await.unwrap();
        let (key, mapping) = leaves[0].mappings[0];
        let path = crate::persistent::error::Path {
            place: crate::persistent::error::MetadataPart::Mappings(devices[0]),
            block: cairn_format::thin::MetadataBlock(1),
            keys: 0..1,
        };
        working.create_snapshot(devices[0], id(4_000_000)).unwrap();
        while working.txn.data.get(mapping.block.0) != Some(0) {
            working.txn.lower_data(&path, mapping.block).unwrap();
        }
        working.apply(env, devices[0], &[(key + 1, None)]).await
    });
    let text = shared.unwrap_err().to_string();
    assert!(text.contains("found 0, expected 1 or more"), "{text}");
}

/// Makes the count of a block zero, in a map that has one bitmap.
fn count_as_free(bytes: &mut [u8], bitmap: MetadataBlock, block: u64) {
    with_block(bytes, bitmap.0 as usize, |own| {
        BitmapMut::cached(own).set(block as usize, 0);
        block::seal(own, Kind::Bitmap, bitmap);
    });
}

#[test]
fn a_mapped_block_that_counts_as_free_is_refused_and_not_handed_out() {
    let mut bytes = image("thin", "snaps.meta");
    let test = StoreFixture::open(world(5, Image::of_bytes(&bytes))).unwrap();
    let device = test.store.devices()[0].0;
    let leaf = |test: &StoreFixture| {
        let store = test.store.clone();
        test.sim.block_on(0, move |env| async move { store.read_leaves(&env, device, 0, 0).await })
    };
    let (key, mapping) = leaf(&test).unwrap()[0].mappings[0];
    let bitmap = test.working.as_ref().unwrap().txn.data.pages()[0].at.unwrap();
    count_as_free(&mut bytes, bitmap, mapping.block.0);
    let test = StoreFixture::open(world(5, Image::of_bytes(&bytes))).unwrap();
    for _ in 0..2 {
        let refused = leaf(&test).unwrap_err().to_string();
        let told = format!("count of data block {}: found 0, expected 1 or more", mapping.block);
        assert!(refused.contains(&told), "{refused}");
        assert!(refused.contains(&format!("mapping of block {key}")), "{refused}");
    }
    let data = test.store.data();
    let all = data.take(u64::MAX);
    assert_eq!(data.free(), 0);
    assert!(all.iter().flat_map(|run| run.blocks()).all(|block| block != mapping.block));
}

#[test]
fn fewer_blocks_in_use_than_mapped_are_refused_when_it_is_opened() {
    let mut bytes = image("thin", "basic.meta");
    let test = StoreFixture::open(world(5, Image::of_bytes(&bytes))).unwrap();
    let data = &test.working.as_ref().unwrap().txn.data;
    let used = (0..data.blocks()).find(|block| data.get(*block) == Some(1)).unwrap();
    count_as_free(&mut bytes, data.pages()[0].at.unwrap(), used);
    let refused = StoreFixture::open(world(5, Image::of_bytes(&bytes))).err().unwrap().to_string();
    assert!(refused.contains("mapped_blocks: found "), "{refused}");
}

#[test]
fn metadata_that_opening_comes_by_and_that_counts_as_free_is_refused() {
    let clean = image("thin", "big.meta");
    let test = StoreFixture::open(world(5, Image::of_bytes(&clean))).unwrap();
    let working = test.working.as_ref().unwrap();
    let (txn, superblock) = (&working.txn, &working.durable);
    let bitmap = txn.metadata.pages()[0].at.unwrap();
    for block in [
        MetadataBlock::SUPERBLOCK,
        superblock.mapping_root,
        superblock.details_root,
        superblock.data_space_map.bitmap_root,
        superblock.data_space_map.ref_count_root,
        superblock.metadata_space_map.bitmap_root,
        superblock.metadata_space_map.ref_count_root,
        txn.data.pages()[0].at.unwrap(),
        bitmap,
        test.store.device(id(1)).unwrap().root,
    ] {
        let mut bytes = clean.clone();
        count_as_free(&mut bytes, bitmap, block.0);
        let refused =
            StoreFixture::open(world(5, Image::of_bytes(&bytes))).err().unwrap().to_string();
        let told = format!("block {block}: count of this block: found 0, expected 1 or more");
        assert!(refused.contains(&told), "{refused}");
    }
}
