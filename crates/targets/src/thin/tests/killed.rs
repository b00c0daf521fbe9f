//! The process is killed: what it had acknowledged is there, or its loss is told.

use std::time::Duration;

use super::fixture::*;
use crate::fixture::DRIVE_TIME;
use cairn_block::{Env, Io, Op, SectorCount, SuspendMode};
use cairn_format::thin::{DataBlock, DeviceId, Mapping};
use cairn_sim::Fault;

/// The volumes of a pool after a kill.
fn serve_again(test: &PoolFixture, volumes: &[(&str, u32)]) {
    test.load_pool("0 0");
    volumes.iter().for_each(|(name, id)| test.load_thin(name, *id, 8));
}

/// The first byte of each of the first blocks.
fn first_bytes(test: &PoolFixture, name: &str, blocks: u64) -> Vec<u8> {
    (0..blocks).map(|block| test.bytes(name, block * BLOCK, 1)[0]).collect()
}

/// A power cut now leaves the same.
fn is_durable(test: &PoolFixture, volumes: &[(&str, u32)], blocks: u64) {
    test.check_metadata();
    let again = test.reopen_durable();
    serve_again(&again, volumes);
    for (name, _) in volumes {
        assert_eq!(first_bytes(&again, name, blocks), first_bytes(test, name, blocks), "{name}");
    }
}

fn fail_commit(test: &PoolFixture) {
    test.drive("meta").faults().add(Fault::losing_flushes().shots(1));
}

#[test]
fn a_kill_loses_nothing_that_was_acknowledged() {
    let test = PoolFixture::with_volume(256, 64, 8);
    for block in 0..3 {
        test.write_through("thin", block * BLOCK, BLOCK, 1);
    }
    // An overwrite, a discard, zeros in place of a block; a whole block, a part of one, one that
    // was removed and written again.
    test.write("thin", 0, BLOCK, 2).unwrap();
    test.discard("thin", BLOCK, BLOCK).unwrap();
    test.zero("thin", 2 * BLOCK, BLOCK).unwrap();
    test.write("thin", 3 * BLOCK, BLOCK, 3).unwrap();
    test.write("thin", 4 * BLOCK, 3, 4).unwrap();
    test.write("thin", 5 * BLOCK, 2 * BLOCK, 5).unwrap();
    test.discard("thin", 5 * BLOCK, 2 * BLOCK).unwrap();
    test.write("thin", 5 * BLOCK, BLOCK, 6).unwrap();
    let test = test.killed();
    serve_again(&test, &[("thin", 0)]);
    assert_eq!(first_bytes(&test, "thin", 7), [2, 0, 0, 3, 4, 6, 0]);
    assert_eq!(test.bytes("thin", 4 * BLOCK, 5), [4, 4, 4, 0, 0], "no former content shows");
    test.pool_says(" 4/64 ");
    assert_eq!(test.flush_of(&test.client("thin")), Ok(()));
    is_durable(&test, &[("thin", 0)], 7);
}

#[test]
fn a_kill_loses_no_copy_of_a_shared_block_and_no_snapshot_changes() {
    let volumes = [("thin", 0), ("snap", 1)];
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, 2 * BLOCK, 1).unwrap();
    test.message(&["create_snap", "1", "0"]).unwrap();
    test.load_thin("snap", 1, 8);
    test.write("thin", 0, 1, 2).unwrap();
    test.write("snap", BLOCK, BLOCK, 3).unwrap();
    test.write("snap", 2 * BLOCK, BLOCK, 4).unwrap();
    let test = test.killed();
    serve_again(&test, &volumes);
    assert_eq!(test.bytes("thin", 0, 2), [2, 1]);
    assert_eq!(first_bytes(&test, "thin", 3), [2, 1, 0]);
    assert_eq!(first_bytes(&test, "snap", 3), [1, 3, 4]);
    is_durable(&test, &volumes, 3);
    // A copy is not copied again: it is not shared.
    test.pool_says(" 5/64 ");
    test.write("thin", 0, BLOCK, 5).unwrap();
    test.write("snap", BLOCK, BLOCK, 5).unwrap();
    test.pool_says(" 5/64 ");
}

/// Runs a verb or a flush, and kills the process at many moments.
fn kills_under(start: impl Fn(&PoolFixture), volumes: &[(&str, u32)], blocks: &[u8]) {
    for moment in 0..60 {
        let test = PoolFixture::with_volume(256, 64, 8);
        test.write_through("thin", 0, BLOCK, 1);
        test.write("thin", BLOCK, BLOCK, 2).unwrap();
        test.discard("thin", 0, BLOCK).unwrap();
        start(&test);
        test.run(moment * DRIVE_TIME / 10);
        // Some of these are taken by a commit under way, others come after it.
        test.write("thin", 2 * BLOCK, BLOCK, 3).unwrap();
        let test = test.killed();
        serve_again(&test, volumes);
        assert_eq!(first_bytes(&test, "thin", 3), blocks, "{moment}");
        is_durable(&test, volumes, 3);
    }
}

#[test]
fn a_kill_at_any_moment_of_a_commit_loses_nothing() {
    kills_under(|test| test.start("thin", "flush", |_| Io::flush()), &[("thin", 0)], &[0, 2, 3]);
}

#[test]
fn a_kill_at_any_moment_of_a_verb_loses_no_write() {
    for words in [&["create_thin", "5"][..], &["reserve_metadata_snap"], &["create_snap", "5", "0"]]
    {
        kills_under(|test| test.start_message(words), &[("thin", 0)], &[0, 2, 3]);
    }
}

#[test]
fn what_a_deleted_volume_had_does_not_come_back_in_a_new_one_of_its_id() {
    for recreates in [false, true] {
        let test = PoolFixture::with_volume(256, 64, 8);
        test.message(&["create_thin", "1"]).unwrap();
        test.load_thin("second", 1, 8);
        test.write("second", 0, 2 * BLOCK, 1).unwrap();
        test.write("thin", 0, BLOCK, 2).unwrap();
        test.remove("second");
        test.message(&["delete", "1"]).unwrap();
        test.write("thin", BLOCK, BLOCK, 3).unwrap();
        if recreates {
            test.message(&["create_thin", "1"]).unwrap();
            test.load_thin("second", 1, 8);
            test.write("second", BLOCK, BLOCK, 4).unwrap();
        }
        let test = test.killed();
        serve_again(&test, &[("thin", 0)]);
        assert_eq!(first_bytes(&test, "thin", 3), [2, 3, 0]);
        if recreates {
            test.load_thin("second", 1, 8);
            assert_eq!(first_bytes(&test, "second", 3), [0, 4, 0]);
        }
        test.check_metadata();
    }
}

#[test]
fn a_kill_after_a_failed_commit_is_told_as_a_loss_unless_a_client_was_told() {
    for was_told in [false, true] {
        let test = PoolFixture::with_volume(256, 64, 8);
        test.write_through("thin", 0, BLOCK, 1);
        let client = test.client("thin");
        test.write("thin", BLOCK, BLOCK, 2).unwrap();
        fail_commit(&test);
        if was_told {
            test.flush_of(&client).expect_err("the commit failed");
        } else {
            test.run(Duration::from_secs(2));
            test.pool_says(" ro ");
        }
        let mut test = test;
        for is_told in [!was_told, false] {
            test = test.killed();
            let clients = [test.client("thin"), test.client("thin")];
            serve_again(&test, &[("thin", 0)]);
            test.pool_says(" ro ");
            assert_eq!(first_bytes(&test, "thin", 2), [1, 0]);
            match is_told {
                true => test.are_told_once(&clients),
                false => assert_eq!(test.flush_of(&clients[0]), Ok(())),
            }
        }
    }
}

#[test]
fn a_loss_is_told_after_a_kill_until_a_client_of_each_volume_was_told() {
    let volumes = [("thin", 0), ("second", 1)];
    let test = PoolFixture::with_volume(256, 64, 8);
    for id in ["1", "2"] {
        test.message(&["create_thin", id]).unwrap();
    }
    test.load_thin("second", 1, 8);
    let clients = volumes.map(|(name, _)| test.client(name));
    volumes.iter().for_each(|(name, _)| test.write(name, 0, BLOCK, 1).unwrap());
    fail_commit(&test);
    test.flush_of(&clients[0]).expect_err("the commit failed");
    // One client was told, then the other one, then both; nobody serves the third volume.
    let mut test = test;
    for told in [0..1, 1..2, 0..2, 0..0] {
        test = test.killed();
        let clients = volumes.map(|(name, _)| test.client(name));
        serve_again(&test, &volumes);
        if told.is_empty() {
            clients.iter().for_each(|client| assert_eq!(test.flush_of(client), Ok(())));
        }
        test.are_told_once(&clients[told]);
    }
    // It is told under a later table of the process, too.
    test.load_thin("third", 2, 8);
    assert_eq!(test.flush_of(&test.client("third")), Ok(()));
}

#[test]
fn a_volume_that_is_served_later_is_told_of_what_a_killed_process_lost() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.message(&["create_thin", "1"]).unwrap();
    test.write("thin", 0, BLOCK, 1).unwrap();
    fail_commit(&test);
    test.run(Duration::from_secs(2));
    let test = test.killed();
    serve_again(&test, &[("thin", 0)]);
    test.are_told_once(&[test.client("thin")]);
    // The table of the pool is another one by now.
    test.load_pool("0 1 no_discard_passdown");
    test.load_thin("second", 1, 8);
    test.are_told_once(&[test.client("second")]);
}

/// Another user of the data device meets a failure.
fn fail_data(test: &PoolFixture) {
    test.drive("data").faults().add(Fault::losing_flushes().shots(1));
    let data = test.registry.open("data", false).unwrap();
    test.sim.block_on(0, |env| async move { env.io(&data, Io::flush()).await.unwrap_err() });
}

#[test]
fn a_kill_after_the_data_device_lost_new_blocks_is_told_as_a_loss() {
    for waits in [false, true] {
        let test = PoolFixture::with_volume(256, 64, 8);
        test.write_through("thin", 0, BLOCK, 1);
        test.write("thin", BLOCK, BLOCK, 2).unwrap();
        fail_data(&test);
        if waits {
            test.run(Duration::from_secs(2));
        }
        let test = test.killed();
        let clients = [test.client("thin")];
        serve_again(&test, &[("thin", 0)]);
        assert_eq!(first_bytes(&test, "thin", 2), [1, 0], "and no former content");
        test.are_told_once(&clients);
        let test = test.killed();
        serve_again(&test, &[("thin", 0)]);
        assert_eq!(test.flush_of(&test.client("thin")), Ok(()));
    }
}

#[test]
fn records_count_after_a_failure_of_the_data_device_that_nothing_depended_on() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write_through("thin", 0, BLOCK, 1);
    let client = test.client("thin");
    fail_data(&test);
    test.flush_of(&client).expect_err("writes in place may be lost");
    test.run(Duration::from_secs(2));
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    let test = test.killed();
    let client = test.client("thin");
    serve_again(&test, &[("thin", 0)]);
    assert_eq!(first_bytes(&test, "thin", 2), [1, 2]);
    assert_eq!(test.flush_of(&client), Ok(()));
}

#[test]
fn a_failure_beneath_a_volume_with_the_data_is_told_after_a_kill_if_it_lost_something() {
    for fails_again in [false, true] {
        let load = |test: &PoolFixture| {
            let sectors = 64 * BLOCK;
            test.load("d", &format!("0 {sectors} linear data 0"));
            test.load("pool", &format!("0 {sectors} thin-pool meta @d {BLOCK} 0 0"));
        };
        let test = PoolFixture::new(256, 64);
        load(&test);
        test.message(&["create_thin", "0"]).unwrap();
        test.load_thin("thin", 0, 8);
        test.write_through("thin", 0, BLOCK, 1);
        let client = test.client("thin");
        fail_data(&test);
        test.flush_of(&client).expect_err("writes in place may be lost");
        test.run(Duration::from_secs(2));
        test.write("thin", BLOCK, BLOCK, 2).unwrap();
        if fails_again {
            fail_data(&test);
        }
        let test = test.killed();
        let client = test.client("thin");
        load(&test);
        test.load_thin("thin", 0, 8);
        let second = if fails_again { 0 } else { 2 };
        assert_eq!(first_bytes(&test, "thin", 2), [1, second]);
        assert_eq!(test.flush_of(&client).is_err(), fails_again);
    }
}

#[test]
fn a_blank_metadata_device_is_not_formatted_over_a_crash_log() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    let test = test.killed();
    let metadata = test.registry.open("meta", false).unwrap();
    let zeroes = Io::on(Op::WriteZeroes, range(0, metadata.sectors().0));
    test.sim.block_on(0, |env| async move { env.io(&metadata, zeroes).await }).unwrap();
    test.refuses("pool", &test.pool_table("0 0"), "expected none as on the device");
}

#[test]
fn writes_and_discards_wait_for_a_commit_when_the_crash_log_is_full() {
    let test = PoolFixture::with_volume(256, 256, 200);
    // Nothing commits but a log that fills: a flush of the data device takes long.
    for block in 0..200 {
        test.write("thin", block * BLOCK, BLOCK, 1).unwrap();
    }
    for block in (0..200).step_by(2) {
        test.discard("thin", block * BLOCK, BLOCK).unwrap();
    }
    let test = test.killed();
    test.load_pool("0 0");
    test.load_thin("thin", 0, 200);
    for block in 0..200 {
        assert_eq!(test.bytes("thin", block * BLOCK, 1), [(block % 2) as u8], "{block}");
    }
    test.check_metadata();
}

#[test]
fn a_table_that_takes_a_pool_over_keeps_its_crash_log() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.load_pool("0 1 no_discard_passdown");
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    test.suspend("pool", SuspendMode::Flush);
    test.resume("pool").unwrap();
    test.write("thin", 2 * BLOCK, BLOCK, 3).unwrap();
    let test = test.killed();
    serve_again(&test, &[("thin", 0)]);
    assert_eq!(first_bytes(&test, "thin", 3), [1, 2, 3]);
}

#[test]
fn a_read_only_pool_leaves_the_records_for_one_that_is_writable() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write_through("thin", 0, BLOCK, 1);
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    let test = test.killed();
    test.load_pool("0 1 read_only");
    test.load_thin("thin", 0, 8);
    assert_eq!(first_bytes(&test, "thin", 2), [1, 0]);
    test.refuses("pool", &test.pool_table("0 0"), "expected no volume in use when it becomes");
    assert_eq!(first_bytes(&test, "thin", 2), [1, 0]);
    test.remove("thin");
    serve_again(&test, &[("thin", 0)]);
    assert_eq!(first_bytes(&test, "thin", 2), [1, 2]);
    is_durable(&test, &[("thin", 0)], 2);
}

#[test]
fn a_pool_whose_metadata_lies_in_a_linear_volume_has_a_crash_log() {
    let table = format!("0 {} thin-pool @m data {BLOCK} 0 0", 64 * BLOCK);
    let test = PoolFixture::new(256, 64);
    let load = |test: &PoolFixture| {
        test.load("m", "0 1600 linear meta 8");
        test.load("pool", &table);
    };
    load(&test);
    test.message(&["create_thin", "0"]).unwrap();
    test.load_thin("thin", 0, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    let test = test.killed();
    load(&test);
    test.load_thin("thin", 0, 8);
    assert_eq!(first_bytes(&test, "thin", 1), [1]);
}

#[test]
fn a_pool_whose_metadata_volume_was_moved_has_its_crash_log_there() {
    let table = format!("0 {} thin-pool @m data {BLOCK} 0 0", 64 * BLOCK);
    let test = PoolFixture::new(1024, 64);
    test.load("m", "0 1600 linear meta 8");
    test.load("pool", &table);
    test.message(&["create_thin", "0"]).unwrap();
    test.load_thin("thin", 0, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.suspend("pool", SuspendMode::Flush);
    let copied = test.read("m", 0, 1600).unwrap();
    let segs = |env: &Env, count| env.segs(SectorCount(count));
    // Where no place has a lasting name, there is no log.
    for places in ["0 800 linear meta 8\n800 800 linear meta 808", "0 1600 linear meta 3200"] {
        if !places.contains('\n') {
            test.load("other", places);
            let content = copied.clone();
            let copy = test.io("other", move |env| {
                let segs = segs(env, 1600);
                segs.copy_in(0, &content);
                Io::write(range(0, 1600), segs)
            });
            copy.unwrap();
            test.remove("other");
        }
        test.load("m", places);
        test.load("pool", &table);
    }
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    let test = test.killed();
    test.load("m", "0 1600 linear meta 3200");
    test.load("pool", &table);
    test.load_thin("thin", 0, 8);
    assert_eq!(first_bytes(&test, "thin", 2), [1, 2]);
}

#[test]
fn a_pool_that_was_used_in_between_is_refused() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write_through("thin", 0, BLOCK, 1);
    let before = test.drive("meta").visible().to_vec();
    test.write_through("thin", BLOCK, BLOCK, 2);
    test.write("thin", 2 * BLOCK, BLOCK, 3).unwrap();
    let test = test.killed();
    // A copy from before.
    let metadata = test.registry.open("meta", false).unwrap();
    let restored = test.sim.block_on(0, |env| {
        let segs = env.segs(SectorCount::of_bytes(before.len() as u64));
        segs.copy_in(0, &before);
        let io = Io::write(range(0, before.len() as u64 / 512), segs);
        async move { env.io(&metadata, io).await }
    });
    restored.unwrap();
    test.refuses("pool", &test.pool_table("0 0"), "writes of a killed server on top of state");
    test.refuses("pool", &test.pool_table("0 1 read_only"), "crash log: found acknowledged");
}

#[test]
fn a_pool_with_another_data_device_is_refused() {
    let table = |data: &str| format!("0 {} thin-pool meta {data} {BLOCK} 0 0", 2 * BLOCK);
    let test = PoolFixture::new(256, 2);
    test.serve("0 0", 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    let test = test.killed();
    test.refuses("pool", &table("origin"), "or with another data device; `cairn");
    test.load("pool", &table("data"));
    test.load_thin("thin", 0, 8);
    assert_eq!(first_bytes(&test, "thin", 1), [1]);
}

#[test]
fn records_are_told_as_lost_if_the_data_device_fails_before_they_are_replayed() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    let test = test.killed();
    let clients = [test.client("thin")];
    test.drive("data").faults().add(Fault::losing_flushes().shots(1));
    serve_again(&test, &[("thin", 0)]);
    assert_eq!(first_bytes(&test, "thin", 1), [0], "and no former content");
    test.are_told_once(&clients);
    test.write("thin", 0, BLOCK, 2).unwrap();
    let test = test.killed();
    serve_again(&test, &[("thin", 0)]);
    assert_eq!(first_bytes(&test, "thin", 1), [2]);
    assert_eq!(test.flush_of(&test.client("thin")), Ok(()), "it is told once");
}

#[test]
fn a_kill_at_any_moment_of_a_replay_loses_nothing() {
    let mut landed = 0;
    for moment in 0..120 {
        let test = PoolFixture::with_volume(256, 64, 8);
        test.write_through("thin", 0, BLOCK, 1);
        test.write("thin", BLOCK, BLOCK, 2).unwrap();
        test.discard("thin", 0, BLOCK).unwrap();
        let test = test.killed();
        let (pool, env) = (test.volume("pool"), test.sim.env(0).clone());
        test.build("pool", &test.pool_table("0 0")).unwrap();
        let before = test.drive("meta").visible().to_vec();
        env.clone().spawn(async move { drop(pool.resume(&env).await) });
        test.run(moment * DRIVE_TIME / 4);
        landed += usize::from(test.drive("meta").visible().to_vec()[..512] != before[..512]);
        let test = test.killed();
        serve_again(&test, &[("thin", 0)]);
        assert_eq!(first_bytes(&test, "thin", 3), [0, 2, 0], "{moment}");
        is_durable(&test, &[("thin", 0)], 3);
    }
    assert!((1..120).contains(&landed), "{landed}: some moments are after its commit, some before");
}

#[test]
fn a_commit_begins_when_the_crash_log_is_half_full() {
    // Metadata that does not run out.
    let test = PoolFixture::with_volume(4096, 64, 64);
    test.flush("thin").unwrap();
    test.forget();
    for (block, commits) in [(20, false), (40, true)] {
        for block in block - 20..block {
            test.write("thin", block * BLOCK, BLOCK, 1).unwrap();
        }
        test.run(10 * DRIVE_TIME);
        assert_eq!(!test.ops("meta").is_empty(), commits, "{block}");
    }
}

#[test]
fn a_replay_leaves_out_what_the_metadata_has() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write_through("thin", 0, 2 * BLOCK, 1);
    test.ask(async |env, table| {
        let (pool, id) = (table.pool().expect("it is live"), DeviceId::new(0).expect("small"));
        let found = pool.metadata.missing(env, id, vec![(0, None), (1, None)]).await.unwrap();
        assert_eq!(found.len(), 2, "both are mapped");
        let of = |block| Some(Mapping { block: DataBlock(block), time: 0 });
        let changes = vec![(0, of(0)), (1, of(7)), (2, None), (1 << 40, None), (1 << 41, of(8))];
        let found = pool.metadata.missing(env, id, changes).await.unwrap();
        assert_eq!(found, [(1, of(7)), (1 << 41, of(8))]);
    });
}
