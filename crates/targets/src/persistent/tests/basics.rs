//! One thing at a time.

use cairn_format::thin::TIME_MAX;

use super::fixture::{StoreFixture, holes, id, mapping};
use crate::persistent::{DataRun, Error};

#[test]
fn a_fresh_pool_is_empty_and_sound() {
    let test = StoreFixture::fresh(64, 1000);
    let found = test.audit();
    assert_eq!(found.superblock.data_space_map.blocks, 1000);
    assert!(found.devices.is_empty());
    assert_eq!(test.store.data().free(), 1000);
    assert_eq!(test.store.data_use(), (0, 1000));
    let used = test.store.metadata_use();
    assert_eq!((used.total, used.used), (64, found.superblock.metadata_space_map.allocated));
    assert_eq!(used.free, used.total - used.used);
}

#[test]
fn mappings_survive_a_commit_and_show_to_readers_after_it() {
    let mut test = StoreFixture::fresh(64, 1000);
    let runs = test.store.data().take(600);
    assert_eq!(runs, [DataRun::new(0, 600)]);
    let changes: Vec<_> = (0..600).map(|n| (n * 3, Some(mapping(n, 0)))).collect();
    let expected: Vec<_> = (0..600).map(|n| (n * 3, mapping(n, 0))).collect();
    test.run(async move |env, working| {
        working.create_device(env, id(7))?;
        working.apply(env, id(7), &changes).await
    })
    .unwrap();
    assert!(matches!(test.read_all(id(7), 0), Err(Error::NoDevice(_))));
    test.commit();
    for ahead in [0, 1, 100] {
        assert_eq!(test.read_all(id(7), ahead).unwrap(), expected);
    }
    let found = test.audit();
    assert_eq!(found.devices[&7].1.len(), 600);
    assert_eq!((found.data.len(), test.store.data_use().0), (600, 600));
}

#[test]
fn what_is_let_go_comes_back_with_the_commit_and_not_before() {
    let mut test = StoreFixture::fresh(64, 100);
    test.store.data().take(10);
    let changes: Vec<_> = (0..10).map(|n| (n, Some(mapping(n, 0)))).collect();
    test.run(async move |env, working| {
        working.create_device(env, id(1))?;
        working.apply(env, id(1), &changes).await
    })
    .unwrap();
    test.commit();
    test.run(async |env, working| working.apply(env, id(1), &holes(2..5)).await).unwrap();
    assert_eq!(test.store.data().free(), 90);
    assert_eq!(test.store.data_use().0, 7, "frees show at once");
    let freed = test.run(async |env, working| working.commit(env).await).unwrap();
    assert_eq!(freed, [DataRun::new(2, 3)]);
    assert_eq!(test.store.data().free(), 90, "the caller releases them");
}

#[test]
fn a_tree_of_three_levels_grows_shrinks_and_ends() {
    const COUNT: u64 = 90_000;
    let mut test = StoreFixture::fresh(4096, COUNT);
    test.run(async |env, working| working.create_device(env, id(0))).unwrap();
    // Batches that are scattered over the whole tree, so that it splits on every level.
    for part in 0..9 {
        let runs = test.store.data().take(COUNT / 9);
        let blocks = runs.into_iter().flat_map(|run| run.blocks());
        let changes: Vec<_> =
            (0..).zip(blocks).map(|(n, own)| (n * 9 + part, Some(mapping(own.0, 0)))).collect();
        test.run(async move |env, working| working.apply(env, id(0), &changes).await).unwrap();
        test.commit();
    }
    assert_eq!(test.audit().devices[&0].1.len() as u64, COUNT);
    assert_eq!(test.read_all(id(0), 9).unwrap().len() as u64, COUNT);
    test.run(async |_, working| working.create_snapshot(id(0), id(1))).unwrap();
    for keep in [7, 41, 1009] {
        let changes: Vec<_> =
            (0..COUNT).filter(|key| key % keep != 0).map(|key| (key, None)).collect();
        test.run(async move |env, working| working.apply(env, id(0), &changes).await).unwrap();
        test.commit();
        let found = test.audit();
        let left = |key: &u64| {
            [7, 41, 1009].iter().take_while(|k| **k <= keep).all(|k| key.is_multiple_of(*k))
        };
        assert_eq!(found.devices[&0].1.len(), (0..COUNT).filter(left).count());
        assert_eq!(found.devices[&1].1.len() as u64, COUNT);
    }
    test.run(async |env, working| {
        working.apply(env, id(1), &holes(100..COUNT - 100)).await?;
        working.apply(env, id(0), &holes(0..COUNT)).await
    })
    .unwrap();
    test.commit();
    let found = test.audit();
    assert_eq!((found.devices[&0].1.len(), found.devices[&1].1.len()), (0, 200));
    assert_eq!(test.store.data().free(), COUNT - 200);
}

#[test]
fn a_snapshot_costs_no_more_for_a_large_origin() {
    let mut written = Vec::new();
    for count in [300, 30_000] {
        let mut test = StoreFixture::fresh(2048, 40_000);
        test.store.data().take(count);
        let changes: Vec<_> = (0..count).map(|n| (n, Some(mapping(n, 0)))).collect();
        test.run(async move |env, working| {
            working.create_device(env, id(0))?;
            working.apply(env, id(0), &changes).await
        })
        .unwrap();
        test.commit();
        test.run(async |_, working| working.create_snapshot(id(0), id(1))).unwrap();
        test.commit();
        written.push(test.working().blocks_written());
        let found = test.audit();
        assert_eq!(found.devices[&0].1, found.devices[&1].1);
        assert_eq!(found.devices[&1].0.creation_time, 1);
        assert_eq!(found.devices[&0].0.snapshotted_time, 1);
    }
    assert_eq!(written[0], written[1]);
}

#[test]
fn breaking_sharing_copies_the_path_and_leaves_the_other_device_alone() {
    let mut test = StoreFixture::fresh(256, 5000);
    test.store.data().take(1001);
    let changes: Vec<_> = (0..1000).map(|n| (n, Some(mapping(n, 0)))).collect();
    test.run(async move |env, working| {
        working.create_device(env, id(0))?;
        working.apply(env, id(0), &changes).await?;
        working.create_snapshot(id(0), id(1))?;
        working.apply(env, id(0), &[(500, Some(mapping(1000, 1)))]).await
    })
    .unwrap();
    test.commit();
    let found = test.audit();
    assert_eq!(found.devices[&0].1[&500], mapping(1000, 1));
    assert_eq!(found.devices[&1].1[&500], mapping(500, 0));
    assert_eq!((found.data[&500], found.data[&501], found.data[&10]), (1, 2, 1));
    test.run(async |env, working| working.delete_device(env, id(1)).await).unwrap();
    let freed = test.run(async |env, working| working.commit(env).await).unwrap();
    assert_eq!(freed, [DataRun::new(500, 1)]);
    assert_eq!(test.audit().devices.len(), 1);
}

#[test]
fn a_metadata_snapshot_keeps_the_old_state_while_the_pool_goes_on() {
    let mut test = StoreFixture::fresh(256, 5000);
    test.store.data().take(2000);
    let changes: Vec<_> = (0..1000).map(|n| (n, Some(mapping(n, 0)))).collect();
    test.run(async move |env, working| {
        working.create_device(env, id(0))?;
        working.apply(env, id(0), &changes).await?;
        working.create_device(env, id(5))
    })
    .unwrap();
    assert!(matches!(test.working().reserve_metadata_snap(), Err(Error::Uncommitted)));
    test.commit();
    let before = test.audit();
    test.working().reserve_metadata_snap().unwrap();
    assert!(matches!(test.working().reserve_metadata_snap(), Err(Error::Held(_))));
    test.commit();
    let again: Vec<_> = (0..1000).map(|n| (n, Some(mapping(1000 + n, 0)))).collect();
    test.run(async move |env, working| {
        working.create_snapshot(id(0), id(9))?;
        working.apply(env, id(0), &again).await?;
        working.delete_device(env, id(5)).await
    })
    .unwrap();
    test.commit();
    let found = test.audit();
    assert_eq!(found.held, Some(before.devices));
    assert_eq!(found.devices.keys().copied().collect::<Vec<_>>(), [0, 9]);
    test.run(async |env, working| working.release_metadata_snap(env).await).unwrap();
    test.commit();
    let found = test.audit();
    assert_eq!((found.held, found.data.len()), (None, 2000));
    let refused = test.run(async |env, working| working.release_metadata_snap(env).await);
    assert!(matches!(refused, Err(Error::NotHeld)));
}

#[test]
fn both_maps_grow_across_bitmaps() {
    let mut test = StoreFixture::fresh(64, 100);
    test.drive().resize(cairn_block::SectorCount(20_000 * 8));
    test.working().grow_metadata(20_000).unwrap();
    test.working().grow_data(50_000).unwrap();
    assert_eq!(test.store.data().free(), 100);
    test.commit();
    assert_eq!(test.store.data().free(), 50_000);
    let found = test.audit();
    assert_eq!(found.superblock.metadata_space_map.blocks, 20_000);
    assert_eq!(found.superblock.metadata_blocks_at_format, 64, "as the kernel leaves it");
    assert!(matches!(test.working().grow_data(49_999), Err(Error::Geometry(_))));
    assert!(matches!(test.working().grow_metadata(20_001), Err(Error::Geometry(_))));
}

#[test]
fn no_snapshot_is_taken_when_the_time_is_used_up() {
    let mut test = StoreFixture::fresh(64, 100);
    test.run(async |env, working| working.create_device(env, id(0))).unwrap();
    test.working().next.time = TIME_MAX - 1;
    test.working().create_snapshot(id(0), id(1)).unwrap();
    assert!(matches!(
        test.working().create_snapshot(id(0), id(2)),
        Err(Error::TimeExhausted(TIME_MAX))
    ));
    test.commit();
    assert_eq!(test.audit().superblock.time, TIME_MAX);
}

#[test]
fn a_mark_forbids_changes_and_survives() {
    let mut test = StoreFixture::fresh(64, 100);
    test.run(async |env, working| working.set_needs_check(env).await).unwrap();
    let refused = test.run(async |env, working| working.create_device(env, id(0)));
    assert!(matches!(refused, Err(Error::NeedsCheck)));
    let mut test = StoreFixture::open(test.sim).unwrap();
    assert!(test.working().needs_check());
    assert!(matches!(test.working().grow_data(200), Err(Error::NeedsCheck)));
    test.audit();
}

#[test]
fn running_out_of_metadata_is_an_error_and_the_abort_brings_the_old_state_back() {
    let mut test = StoreFixture::fresh(40, 16_000);
    test.run(async |env, working| working.create_device(env, id(0))).unwrap();
    test.commit();
    let before = test.audit();
    let changes: Vec<_> = (0..8000).map(|n| (n, Some(mapping(n, 0)))).collect();
    let failed = test.run(async move |env, working| {
        let result = working.apply(env, id(0), &changes).await;
        assert!(matches!(working.commit(env).await, Err(Error::Broken)));
        working.abort(env).await.unwrap();
        result
    });
    assert!(matches!(failed, Err(Error::NoMetadataSpace)));
    assert_eq!(test.audit(), before);
    test.run(async |env, working| working.create_device(env, id(1))).unwrap();
    test.commit();
    assert_eq!(test.audit().devices.len(), 2);
}

#[test]
fn a_commit_names_the_state_that_it_leaves_before_the_device_can_have_it() {
    let mut test = StoreFixture::fresh(64, 100);
    let before = test.working().state();
    let drive = test.drive();
    let (state, shown) = test
        .run(async move |env, working| {
            working.create_device(env, id(1))?;
            let (mut named, start) = (None, drive.visible().to_vec()[..4096].to_vec());
            let look = |state| {
                let is_old = drive.visible().to_vec()[..4096] == start[..];
                named = Some((state, is_old));
            };
            working.commit_naming(env, Some(look)).await?;
            Ok::<_, Error>(named.expect("every commit names its state"))
        })
        .unwrap();
    assert!(shown && state != before);
    assert_eq!(test.working().state(), state);
    test.run(async |env, working| working.set_needs_check(env).await).unwrap();
    assert_eq!(test.working().state(), state, "a mark changes no mapping");
}

#[test]
fn a_commit_without_changes_names_the_state_that_there_is() {
    let mut test = StoreFixture::fresh(64, 100);
    let before = test.working().state();
    let named = test.run(async |env, working| {
        let mut named = None;
        working.commit_naming(env, Some(|state| named = Some(state))).await.map(|_| named)
    });
    assert_eq!(named.unwrap(), Some(before));
}
