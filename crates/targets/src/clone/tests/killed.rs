//! Kills of the process: what was answered is there again.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Io, Op};

use cairn_sim::{Fault, OpSet};

use super::fixture::{CloneFixture, PAUSED, TABLE, source};
use crate::clone::Clone;
use crate::fixture::{SECTOR, range, write_io};

#[test]
fn answered_writes_survive_a_kill_without_a_flush() {
    let test = CloneFixture::loaded(PAUSED);
    let mut model = source();
    test.write(13, 2, 200).unwrap();
    test.write(14, 1, 201).unwrap();
    test.write(64, 16, 202).unwrap();
    model[13 * SECTOR..14 * SECTOR].fill(200);
    model[14 * SECTOR..15 * SECTOR].fill(201);
    model[64 * SECTOR..80 * SECTOR].fill(202);
    assert_eq!(test.durable_bits().hydrated(), 0);
    let test = test.killed();
    test.load(PAUSED);
    assert_eq!(test.durable_bits().hydrated(), 3, "committed before anything is served");
    assert_eq!((test.hydrated(), test.all()), (3, model.clone()));
    let test = test.killed();
    test.load(PAUSED);
    assert!(test.all() == model);
}

#[test]
fn a_clone_that_a_replay_completes_says_so() {
    let test = CloneFixture::loaded(PAUSED);
    test.write(0, 1003, 7).unwrap();
    let test = test.killed();
    test.load(PAUSED);
    test.run(Duration::from_millis(5));
    assert_eq!((test.durable_bits().hydrated(), test.volume.events().count()), (126, 1));
}

#[test]
fn a_flush_of_a_read_only_clone_commits_nothing_of_what_a_kill_left() {
    let test = CloneFixture::loaded(PAUSED);
    test.write(0, 8, 7).unwrap();
    let before = test.all();
    let test = test.killed();
    test.try_load_read_only(PAUSED).unwrap();
    test.forget();
    assert!(test.all() == before);
    test.on(Op::Flush, 0, 0).unwrap();
    test.run(Duration::from_secs(3));
    assert!(test.seen("meta").is_empty());
}

#[test]
fn a_log_that_is_full_makes_writes_wait_for_a_commit() {
    let test = CloneFixture::loaded(PAUSED);
    for region in 0..120 {
        test.start(1, "write", move |env| write_io(env, region * 8, 8, region as u8 + 1));
    }
    test.run(Duration::from_millis(500));
    assert_eq!((test.ends.count(), test.hydrated()), (120, 120));
    let before = test.all();
    let test = test.killed();
    test.load(PAUSED);
    assert!(test.all() == before);
}

#[test]
fn a_kill_during_hydration_or_a_commit_loses_nothing() {
    for steps in 1..60 {
        let test = CloneFixture::loaded(TABLE);
        let mut model = source();
        test.write(13, 2, 200).unwrap();
        model[13 * SECTOR..15 * SECTOR].fill(200);
        test.start(1, "flush", |_| cairn_block::Io::flush());
        test.run(Duration::from_micros(steps * 50));
        let test = test.killed();
        test.load(TABLE);
        assert_eq!(test.all(), model, "{steps}");
        test.run(Duration::from_secs(3));
        assert_eq!((test.hydrated(), test.all()), (126, model), "{steps}");
    }
}

#[test]
fn records_for_another_state_of_the_metadata_are_refused() {
    let test = CloneFixture::loaded(PAUSED);
    let old = test.drive("meta").durable();
    test.write(0, 8, 1).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    test.write(8, 8, 1).unwrap();
    let test = test.killed();
    let disk: Arc<dyn Disk> = test.drive("meta");
    let overwritten = test.sim.block_on(0, |env| async move {
        let whole = range(0, 24 * 8);
        let segs = env.segs(whole.count);
        segs.copy_in(0, &old.to_vec());
        env.io(&disk, Io::write(whole, segs)).await
    });
    overwritten.unwrap();
    let error = test.swap(PAUSED).expect_err("refused").to_string();
    assert!(error.starts_with("meta: crash log: found acknowledged writes"), "{error}");
}

/// A clone whose metadata was not written until its crash log has lost records.
fn overflowed() -> (CloneFixture, Vec<u8>) {
    let test = CloneFixture::with_log_of(16);
    let mut model = source();
    test.load(PAUSED);
    test.drive("meta").faults().add(Fault::error(OpSet::WRITES).on(range(8, 184)));
    for region in (0..80).step_by(2) {
        test.write(region * 8, 8, 9).unwrap();
        model[region as usize * 8 * SECTOR..][..8 * SECTOR].fill(9);
        if region % 10 == 0 {
            assert!(test.on(Op::Flush, 0, 0).is_err());
        }
    }
    assert!(test.with_target("test", |clone: &Clone| clone.state.lock().acknowledged.is_lost()));
    (test, model)
}

#[test]
fn a_log_that_had_no_room_keeps_writes_again_once_a_commit_is_durable() {
    let (test, mut model) = overflowed();
    assert!(test.flush_of(&test.client()).is_err());
    test.drive("meta").faults().clear();
    test.on(Op::Flush, 0, 0).unwrap();
    test.write(800, 8, 10).unwrap();
    model[800 * SECTOR..808 * SECTOR].fill(10);
    let test = test.killed();
    test.load(PAUSED);
    assert!(test.all() == model);
    test.flush_of(&test.client()).expect("nothing was lost");
}

#[test]
fn a_kill_while_the_log_has_no_room_is_told_although_clients_were_told_of_another_loss() {
    let (test, _) = overflowed();
    let client = test.client();
    test.volume.acknowledge_failures(test.volume.failures());
    assert!(test.flush_of(&client).is_err());
    let test = test.killed();
    test.load(PAUSED);
    assert!(test.flush_of(&test.client()).is_err());
}
