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

/// The extents of a volume in order, at these places in the cache.
fn build_at(
    superblock: &CacheSuperblock,
    kept: Range<u64>,
    extents: &[Key],
) -> Result<(Vec<u8>, CacheSuperblock), BuildError<std::convert::Infallible>> {
    let mut image = Vec::new();
    let mut builder = Builder::new(superblock, 7, &mut image).keep_for_data(kept)?;
    for extent in extents {
        builder.add_at(*extent)?;
    }
    let volume = UuidEntry { uuid: Uuid([9; 16]), ..UuidEntry::default() };
    let superblock = builder.finish(&[volume])?;
    Ok((image, superblock))
}

#[test]
fn extents_lie_where_the_caller_places_them_and_metadata_in_other_buckets() {
    let superblock = superblock(2048, 16);
    let first = buckets_behind_journal(superblock.geometry()).start;
    let (kept, count) = (first + 2..700, 3000);
    // Backwards, two to a bucket: 16 sectors of 0, 2, and so on.
    let place = |index: u64| kept.end * 16 - (index + 1) * 2;
    let extents: Vec<Key> = (0..count)
        .map(|index| {
            let key = Key::new(0, index * 5 + 2, 2).with_dirty(index % 3 == 0);
            key.at(Pointer::new(place(index), Generation::default()))
        })
        .collect();
    let (image, superblock) = build_at(&superblock, kept.clone(), &extents).expect("there is room");
    let (loaded, found) = read(&image, &superblock);
    assert!(found == extents);
    let with = |priority| {
        let buckets = loaded.buckets.iter().enumerate();
        buckets.filter(move |(_, it)| it.priority == priority).map(|(at, _)| at as u64)
    };
    let geometry = superblock.geometry();
    assert!(with(JUST_USED).eq(700 - 375..700), "buckets with data");
    // What a priority says of the buckets that the priorities lie in was not known before them.
    let metadata: Vec<u64> = with(METADATA).collect();
    assert_eq!(metadata.len() as u64, metadata_buckets(geometry, count));
    let others = (first..first + 2).chain(700..2048);
    assert!(others.take(metadata.len()).eq(metadata), "buckets with metadata");
}

#[test]
fn metadata_takes_as_many_buckets_as_the_builder_says() {
    for (buckets, bucket_sectors, count) in
        [(1024, 128, 0), (1024, 128, 1), (8192, 8, 132), (8192, 8, 20_000), (8192, 16, 17_689)]
    {
        let fresh = superblock(buckets, bucket_sectors);
        let geometry = *fresh.geometry();
        let extents: Vec<Key> = (0..count)
            .map(|index| {
                let place = buckets * bucket_sectors - 1 - index;
                Key::new(0, index + 1, 1).at(Pointer::new(place, Generation::default()))
            })
            .collect();
        let first = buckets_behind_journal(&geometry).start;
        let needed = metadata_buckets(&geometry, count);
        assert!(build_at(&fresh, first + needed..buckets, &extents).is_ok(), "{count}");
        let full = build_at(&fresh, first + needed - 1..buckets, &extents);
        assert_eq!(full.map(drop), Err(BuildError::Full(buckets)), "{count}");
    }
}

#[test]
fn places_outside_of_the_kept_buckets_are_refused() {
    let superblock = superblock(1024, 16);
    let first = buckets_behind_journal(superblock.geometry()).start;
    for found in [0..20, first - 1..900, 900..1025] {
        let kept = build_at(&superblock, found.clone(), &[]);
        assert_eq!(kept.map(drop), Err(BuildError::Kept { found, expected: first..1024 }));
    }
    let extent = |sectors| Key::new(0, 100, sectors);
    let at = |sector, generation| Pointer::new(sector, Generation(generation));
    let wrong = [
        extent(8),
        extent(8).at(at(600 * 16 - 8, 0)),
        extent(8).at(at(800 * 16, 0)),
        extent(8).at(at(700 * 16 - 4, 0)),
        extent(8).at(at(650 * 16, 1)),
        extent(0).at(at(650 * 16, 0)),
    ];
    for found in wrong {
        let built = build_at(&superblock, 600..800, &[found]);
        assert_eq!(built.map(drop), Err(BuildError::Place { found, expected: 600..800 }));
    }
    let right = [extent(8).at(at(600 * 16, 0)), Key::new(0, 200, 16).at(at(799 * 16, 0))];
    assert!(build_at(&superblock, 600..800, &right).is_ok());
    let before = Key::new(0, 108, 16).at(at(700 * 16, 0));
    let order = build_at(&superblock, 600..800, &[right[0], before]);
    let expected = BuildError::Order { before: right[0], found: before };
    assert_eq!(order.map(drop), Err(expected));
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
