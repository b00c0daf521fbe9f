//! A metadata device that fails: the commit fails, the abort finds the old or the new state, and
//! readers go on meanwhile.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Io};
use cairn_sim::{Fault, OpSet, SimWorld};

use super::fixture::{StoreFixture, id, mapping, open};
use crate::persistent::model::audit;
use crate::persistent::{Error, Options};

fn fill(test: &mut StoreFixture, device: u64, blocks: u64) -> Result<(), Error> {
    let runs = test.store.data().take(blocks);
    let blocks = runs.into_iter().flat_map(|run| run.blocks());
    let changes: Vec<_> = (0..).zip(blocks).map(|(n, own)| (n, Some(mapping(own.0, 0)))).collect();
    test.run(async move |env, working| working.apply(env, id(device), &changes).await)
}

#[test]
fn a_failed_commit_leaves_the_old_or_the_new_state_and_the_pool_goes_on() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..60 {
        let mut test = StoreFixture::seeded(seed, 128, 4000);
        test.run(async |env, working| working.create_device(env, id(0))).unwrap();
        // So many commits that every block was a node, which the cache still has, and is free now.
        for _ in 0..30 {
            fill(&mut test, 0, 1).unwrap();
            test.commit();
        }
        fill(&mut test, 0, 500).unwrap();
        test.commit();
        let before = test.audit();
        fill(&mut test, 0, 700).unwrap();
        let ops = if seed % 2 == 0 { OpSet::WRITES } else { OpSet::FLUSHES };
        test.drive().faults().add(Fault::error(ops).per_mille(500).shots(1));
        let failed = test.run(async |env, working| working.commit(env).await);
        test.drive().faults().clear();
        let Err(error) = failed else { continue };
        assert!(matches!(error, Error::Io { .. }), "{error}");
        assert!(test.working().is_broken());
        assert_eq!(test.read_all(id(0), 2).unwrap().len(), 500, "readers have the last good state");
        let refused = fill(&mut test, 0, 1);
        assert!(matches!(refused, Err(Error::Broken)));
        test.run(async |env, working| working.abort(env).await).unwrap();
        let found = test.audit();
        match found.devices[&0].1.len() {
            500 => old += 1,
            700 => new += 1,
            other => panic!("{other} mappings, {before:?}"),
        }
        assert_eq!(test.read_all(id(0), 2).unwrap().len(), found.devices[&0].1.len());
        test.run(async |env, working| working.create_device(env, id(1))).unwrap();
        fill(&mut test, 1, 100).unwrap();
        test.commit();
        assert_eq!(test.audit().devices[&1].1.len(), 100);
    }
    assert!(old > 5 && new > 2, "{old} old, {new} new");
}

#[test]
fn an_abort_that_cannot_read_fails_and_may_be_tried_again() {
    let mut test = StoreFixture::fresh(128, 4000);
    test.run(async |env, working| working.create_device(env, id(0))).unwrap();
    test.commit();
    fill(&mut test, 0, 700).unwrap();
    test.drive().faults().add(Fault::error(OpSet::READS));
    let failed = test.run(async |env, working| working.abort(env).await);
    assert!(matches!(failed, Err(Error::Io { .. })));
    assert!(matches!(fill(&mut test, 0, 1), Err(Error::Broken)));
    test.drive().faults().clear();
    test.run(async |env, working| working.abort(env).await).unwrap();
    assert!(!test.working().is_changed());
    assert_eq!(test.read_all(id(0), 0).unwrap(), []);
}

#[test]
fn a_device_that_cannot_flush_serves_readers_and_refuses_changes_after_the_abort() {
    let mut test = StoreFixture::fresh(128, 4000);
    test.run(async |env, working| working.create_device(env, id(0))).unwrap();
    test.drive().faults().add(Fault::error(OpSet::FLUSHES));
    let failed = test.run(async |env, working| working.commit(env).await);
    assert!(matches!(failed, Err(Error::Io { .. })));
    test.run(async |env, working| working.abort(env).await).unwrap();
    let refused = test.run(async |env, working| working.create_device(env, id(1)));
    assert!(matches!(refused, Err(Error::Broken)));
    let marked = test.run(async |env, working| working.set_needs_check(env).await);
    assert!(matches!(marked, Err(Error::Io { .. })), "the mark is in memory only");
    test.drive().faults().clear();
    test.run(async |env, working| working.set_needs_check(env).await).unwrap();
    assert!(test.audit().superblock.needs_check());
}

#[test]
fn opening_read_only_writes_and_flushes_nothing() {
    let test = StoreFixture::fresh(128, 4000);
    let writes = test.sim.writes();
    let (store, _) = open(&test.sim, Options { read_only: true, ..Options::default() }).unwrap();
    assert_eq!((store.data().free(), test.sim.writes()), (4000, writes));
}

#[test]
fn data_blocks_of_a_growth_that_failed_can_be_taken_if_it_is_on_the_device() {
    let mut found = [0, 0];
    for seed in 0..40 {
        let mut test = StoreFixture::seeded(seed, 128, 4000);
        test.drive().faults().add(Fault::error(OpSet::FLUSHES).per_mille(500).shots(1));
        test.run(async |_, working| working.grow_data(9000)).unwrap();
        let failed = test.run(async |env, working| working.commit(env).await);
        test.drive().faults().clear();
        if failed.is_ok() {
            continue;
        }
        test.run(async |env, working| working.abort(env).await).unwrap();
        let blocks = test.working().data_blocks();
        assert_eq!((test.store.data().free(), test.store.data_use()), (blocks, (0, blocks)));
        found[usize::from(blocks == 9000)] += 1;
    }
    assert!(found.iter().all(|&count| count > 2), "{found:?}");
}

/// Devices that a power cut now leaves.
fn durable_devices(test: &StoreFixture) -> usize {
    audit(&test.drive().durable().to_vec()).devices.len()
}

/// The process was killed while a commit created device 0: its superblock is written, and not
/// flushed. What the next process opens, to be read.
fn opened_after_a_kill_before_the_last_flush() -> StoreFixture {
    let cut = |seed| {
        let mut test = StoreFixture::seeded(seed, 128, 4000);
        test.run(async |env, working| working.create_device(env, id(0))).unwrap();
        test.drive().faults().add(Fault::error(OpSet::FLUSHES).per_mille(500).shots(1));
        let ended = test.run(async |env, working| working.commit(env).await);
        test.drive().faults().clear();
        let seen = test.audit().devices.len();
        (ended.is_err() && (seen, durable_devices(&test)) == (1, 0)).then_some(test)
    };
    let killed = (1..100).find_map(cut).expect("some commit fails in its last flush");
    let sim = SimWorld::new(1, 1);
    sim.add_survivor(killed.drive().after_kill());
    let (store, working) = open(&sim, Options { read_only: true, ..Options::default() }).unwrap();
    StoreFixture { sim, store, working: Some(working) }
}

#[test]
fn what_was_opened_to_be_read_is_durable_before_it_changes() {
    let mut test = opened_after_a_kill_before_the_last_flush();
    let refused = test.run(async |env, working| working.create_device(env, id(1)));
    assert!(matches!(refused, Err(Error::ReadOnly)));
    assert_eq!(durable_devices(&test), 0);
    test.run(async |env, working| working.allow_changes(env).await).unwrap();
    assert_eq!(durable_devices(&test), 1);
    test.run(async |env, working| working.create_device(env, id(1))).unwrap();
    test.commit();
    assert_eq!(durable_devices(&test), 2);
}

#[test]
fn what_was_opened_to_be_read_does_not_change_if_it_cannot_be_flushed() {
    let mut test = opened_after_a_kill_before_the_last_flush();
    test.drive().faults().add(Fault::error(OpSet::FLUSHES).shots(1));
    let failed = test.run(async |env, working| working.allow_changes(env).await);
    assert!(matches!(failed, Err(Error::Io { .. })));
    let _ = test.run(async |env, working| working.allow_changes(env).await);
    let refused = test.run(async |env, working| working.create_device(env, id(1)));
    assert!(matches!(refused, Err(Error::Broken)));
}

/// A commit created device 0, and its last flush lost the superblock, which is shown all the same.
fn lost_in_the_last_flush() -> StoreFixture {
    let cut = |seed| {
        let mut test = StoreFixture::seeded(seed, 128, 4000);
        test.run(async |env, working| working.create_device(env, id(0))).unwrap();
        test.drive().faults().add(Fault::losing_flushes().per_mille(500).shots(1));
        let ended = test.run(async |env, working| working.commit(env).await);
        test.drive().faults().clear();
        let seen = test.audit().devices.len();
        (ended.is_err() && (seen, durable_devices(&test)) == (1, 0)).then_some(test)
    };
    (1..100).find_map(cut).expect("some commit fails in its last flush")
}

#[test]
fn abort_makes_durable_what_it_found_after_a_superblock_was_lost() {
    let mut test = lost_in_the_last_flush();
    test.run(async |env, working| working.abort(env).await).unwrap();
    assert!(!test.working().is_doubtful());
    assert_eq!((test.audit().devices.len(), durable_devices(&test)), (1, 1));
    let mut test = lost_in_the_last_flush();
    test.drive().faults().add(Fault::losing_flushes());
    test.run(async |env, working| working.abort(env).await).unwrap();
    assert!(test.working().is_doubtful());
    test.drive().faults().clear();
    assert!(test.run(async |env, working| working.create_device(env, id(1))).is_err());
    test.run(async |env, working| working.set_needs_check(env).await).unwrap();
    assert!(!test.working().is_doubtful());
    assert_eq!(durable_devices(&test), 1);
}

#[test]
fn opening_makes_durable_what_it_found_after_a_superblock_was_lost() {
    for read_only in [false, true] {
        let mut test = lost_in_the_last_flush();
        let (store, working) =
            open(&test.sim, Options { read_only, ..Options::default() }).unwrap();
        test.replace(store, working);
        assert_eq!(durable_devices(&test), usize::from(!read_only));
        test.run(async |env, working| working.allow_changes(env).await).unwrap();
        assert_eq!(durable_devices(&test), 1);
    }
}

#[test]
fn commit_is_not_made_of_blocks_that_a_flush_of_another_user_lost() {
    let (mut kept, mut lost) = (0, 0);
    for delay in 0..40 {
        let mut test = StoreFixture::seeded(delay, 128, 4000);
        test.run(async |env, working| working.create_device(env, id(0))).unwrap();
        fill(&mut test, 0, 700).unwrap();
        test.drive().faults().add(Fault::losing_flushes().shots(1));
        let disk: Arc<dyn Disk> = test.drive();
        let ended = test.run(async move |env, working| {
            let other = env.clone();
            env.spawn(async move {
                other.sleep(Duration::from_nanos(delay * 250)).await;
                let _ = other.io(&disk, Io::flush()).await;
            });
            working.commit(env).await
        });
        test.sim.run_for(Duration::from_millis(1));
        test.drive().faults().clear();
        if ended.is_ok() {
            assert_eq!(durable_devices(&test), 1, "delay {delay}");
            kept += 1;
            continue;
        }
        test.run(async |env, working| working.abort(env).await).unwrap();
        assert_eq!(durable_devices(&test), test.audit().devices.len(), "delay {delay}");
        lost += 1;
    }
    assert!(kept > 2 && lost > 2, "{kept} kept, {lost} lost");
}
