//! Reading a cache that was built gives the extents and volumes that it was built of.

use std::ops::ControlFlow;

use proptest::prelude::*;

use super::*;
use crate::bcache::load::{Fault, Loaded, Visitor, load_now};
use crate::bcache::{NewCache, Replacement, SECTOR_BYTES, Uuid};

#[derive(Default)]
struct Strict(Vec<Key>);

impl Visitor for Strict {
    fn fault(&mut self, _: &Fault) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn extent(&mut self, key: Key) {
        self.0.push(key);
    }
}

fn superblock(buckets: u64, bucket_sectors: u64) -> CacheSuperblock {
    let new = NewCache {
        uuid: Uuid([1; 16]),
        set_uuid: Uuid([2; 16]),
        block_sectors: 1,
        bucket_sectors,
        device_sectors: buckets * bucket_sectors,
        replacement: Replacement::Lru,
        discard: false,
    };
    CacheSuperblock::fresh(&new).expect("legal")
}

fn read(image: &[u8], superblock: &CacheSuperblock) -> (Loaded, Vec<Key>) {
    let mut strict = Strict::default();
    let mut image = image.to_vec();
    // What was never written reads as zeros.
    image.resize(superblock.geometry().sectors() as usize * SECTOR_BYTES, 0);
    let loaded = load_now(&image[..], superblock, &mut strict).expect("it is sound");
    let extents = loaded.extents(superblock.geometry(), strict.0);
    (loaded, extents)
}

/// `count` extents of a sector, every other one dirty, with a sector between them.
fn build(superblock: &CacheSuperblock, count: u64) -> (Vec<u8>, CacheSuperblock, Vec<Key>) {
    let mut image = Vec::new();
    let mut given = Vec::new();
    let mut builder = Builder::new(superblock, 1000, &mut image);
    for index in 0..count {
        let extent = Key::new(3, index * 2 + 1, 1).with_dirty(index % 2 == 0);
        given.extend_from_slice(builder.add(extent).expect("there is room"));
    }
    let volumes = [UuidEntry { uuid: Uuid([9; 16]), ..UuidEntry::default() }];
    let superblock = builder.finish(&volumes).expect("there is room");
    (image, superblock, given)
}

#[test]
fn an_empty_cache_has_an_empty_root() {
    let (image, superblock, _) = build(&superblock(1024, 128), 0);
    assert!(superblock.is_in_use());
    let (loaded, extents) = read(&image, &superblock);
    assert_eq!((loaded.newest.root_level, extents), (0, vec![]));
    assert_eq!(loaded.volumes[0].uuid, Uuid([9; 16]));
    assert_eq!(loaded.ring.entries[0].index, 1);
}

#[test]
fn a_tree_of_three_levels_has_all_extents() {
    let (image, superblock, given) = build(&superblock(8192, 8), 20_000);
    let (loaded, extents) = read(&image, &superblock);
    assert_eq!(loaded.newest.root_level, 2);
    assert!(extents == given);
    assert_eq!(extents.len(), 20_000);
    assert!(loaded.priorities.len() > 2);
}

#[test]
fn an_extent_longer_than_a_bucket_is_cut() {
    let superblock = superblock(1024, 16);
    let mut image = Vec::new();
    let mut builder = Builder::new(&superblock, 1, &mut image);
    builder.add(Key::new(0, 10, 10)).expect("there is room");
    let pieces = builder.add(Key::new(0, 60, 40)).expect("there is room").to_vec();
    assert_eq!(pieces.iter().map(Key::sectors).collect::<Vec<_>>(), [6, 16, 16, 2]);
    assert_eq!((pieces[0].start(), pieces[3].end()), (20, 60));
}

#[test]
fn extents_out_of_order_and_too_many_are_refused() {
    let superblock = superblock(600, 16);
    let mut image = Vec::new();
    let mut builder = Builder::new(&superblock, 1, &mut image);
    builder.add(Key::new(1, 24, 8)).expect("there is room");
    let order = builder.add(Key::new(1, 30, 8));
    assert!(matches!(order, Err(BuildError::Order { .. })), "{order:?}");
    let full = (1..).find_map(|n| builder.add(Key::new(1, 24 + n * 16, 16)).err());
    assert_eq!(full, Some(BuildError::Full(600)));
}

proptest! {
    #[test]
    fn any_extents_read_as_they_were_placed(
        lengths in proptest::collection::vec(
            (0..3_u32, 0..40_u64, 1..200_u64, any::<bool>()),
            0..300,
        ),
    ) {
        let superblock = superblock(4096, 16);
        let mut image = Vec::new();
        let mut builder = Builder::new(&superblock, 1, &mut image);
        let (mut inode, mut at, mut given) = (0, 0, Vec::new());
        for (step, gap, sectors, dirty) in lengths {
            if step == 0 {
                (inode, at) = (inode + 1, 0);
            }
            at += gap + sectors;
            let extent = Key::new(inode, at, sectors).with_dirty(dirty);
            given.extend_from_slice(builder.add(extent).expect("there is room"));
        }
        let superblock = builder.finish(&[]).expect("there is room");
        let (_, extents) = read(&image, &superblock);
        prop_assert_eq!(extents, given);
    }
}
