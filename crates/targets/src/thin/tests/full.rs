//! A pool that is full never corrupts, and goes on when there is room.

use std::pin::pin;
use std::time::Duration;

use super::fixture::*;
use cairn_block::{ErrorKind, Flags, IoError, SectorCount, SuspendMode};
use cairn_sim::{Effect, Fault, Image, OpSet};
use futures_util::future::{Either, select};

const NO_SPACE: IoError = IoError::new(ErrorKind::NoSpace);

fn small(features: &str) -> PoolFixture {
    let test = PoolFixture::new(256, 4);
    test.serve(features, 16);
    test
}

#[test]
fn writes_that_need_a_block_fail_at_once_if_told_so() {
    let test = small("0 1 error_if_no_space");
    test.write("thin", 0, 4 * BLOCK, 1).unwrap();
    assert_eq!(test.write("thin", 4 * BLOCK, 1, 2), Err(NO_SPACE));
    test.pool_says(" 4/4 - out_of_data_space ");
    test.write("thin", 0, 1, 3).unwrap();
    assert_eq!(test.bytes("thin", 0, 2), [3, 1]);
    assert_eq!(test.bytes("thin", 4 * BLOCK, 1), [0]);
    test.discard("thin", 0, BLOCK).unwrap();
    test.flush("thin").unwrap();
    test.run(Duration::from_millis(1));
    test.pool_says(" 3/4 - rw ");
    test.write("thin", 4 * BLOCK, 1, 2).unwrap();
}

#[test]
fn a_write_takes_what_an_uncommitted_discard_frees() {
    let test = small("0 1 error_if_no_space");
    test.write_through("thin", 0, 4 * BLOCK, 1);
    test.discard("thin", 0, BLOCK).unwrap();
    test.write("thin", 4 * BLOCK, BLOCK, 2).unwrap();
    assert_eq!(test.bytes("thin", 4 * BLOCK, 1), [2]);
}

#[test]
fn writes_wait_for_space_and_then_fail() {
    let test = small("0 2 no_space_timeout 3");
    test.write("thin", 0, 4 * BLOCK, 1).unwrap();
    test.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 1, 2));
    test.run(Duration::from_secs(2));
    assert!(test.labels().is_empty());
    test.pool_says("out_of_data_space discard_passdown queue_if_no_space");
    test.run(Duration::from_secs(2));
    assert_eq!(*test.ends.all(), [("waits", Err(NO_SPACE))]);
    test.pool_says("error_if_no_space");
    assert_eq!(test.write("thin", 4 * BLOCK, 1, 2), Err(NO_SPACE));
    test.discard("thin", 0, BLOCK).unwrap();
    test.flush("thin").unwrap();
    test.run(Duration::from_millis(1));
    test.pool_says(" rw discard_passdown queue_if_no_space");
}

#[test]
fn what_waits_for_space_fails_with_the_pool() {
    for features in ["0 0", "0 2 no_space_timeout 0"] {
        let test = small(features);
        test.write("thin", 0, 4 * BLOCK, 1).unwrap();
        test.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 1, 2));
        test.run(Duration::from_millis(10));
        assert!(test.labels().is_empty());
        test.drive("meta").faults().add(Fault::error(OpSet::FLUSHES).shots(1));
        test.message(&["create_thin", "1"]).unwrap_err();
        test.run(Duration::from_millis(10));
        assert_eq!(*test.ends.all(), [("waits", Err(IoError::IO))], "{features}");
        test.pool_says(" ro ");
    }
}

#[test]
fn all_waits_for_space_fail_when_the_first_times_out() {
    let test = small("0 2 no_space_timeout 3");
    test.write("thin", 0, 4 * BLOCK, 1).unwrap();
    test.start("thin", "early", |env| write_io(env, 4 * BLOCK, 1, 2));
    test.run(Duration::from_secs(2));
    test.start("thin", "late", |env| write_io(env, 5 * BLOCK, 1, 2));
    test.run(Duration::from_secs(2));
    assert_eq!(*test.ends.all(), [("early", Err(NO_SPACE)), ("late", Err(NO_SPACE))]);
}

#[test]
fn metadata_too_small_for_so_much_data_is_refused_and_stays_sound() {
    let data_blocks = 600_000;
    let data = Image::new(SectorCount(data_blocks * BLOCK));
    let test = PoolFixture::of_images(Image::new(SectorCount(24 * 8)), data.clone(), data_blocks);
    test.refuses("pool", &test.pool_table("0 0"), "no free block is left");
    let bytes = test.drive("meta").visible().to_vec();
    let mut longer = bytes;
    longer.resize(256 * 4096, 0);
    let test = PoolFixture::of_images(Image::of_bytes(&longer), data, data_blocks);
    test.serve("0 0", 8);
    test.pool_says("0/600000 - rw ");
    test.write("thin", 0, 1, 1).unwrap();
}

#[test]
fn a_longer_pool_lets_what_waits_go_on() {
    let mut test = PoolFixture::new(256, 8);
    test.data_blocks = 4;
    test.serve("0 0", 16);
    test.write("thin", 0, 4 * BLOCK, 1).unwrap();
    test.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 3 * BLOCK, 2));
    test.run(Duration::from_secs(1));
    assert!(test.labels().is_empty());
    test.data_blocks = 8;
    test.load_pool("0 0");
    test.run(Duration::from_millis(10));
    assert_eq!(*test.ends.all(), [("waits", Ok(()))]);
    assert_eq!(test.bytes("thin", 6 * BLOCK, 1), [2]);
    test.pool_says(" 7/8 - rw ");
    test.data_blocks = 4;
    test.refuses(
        "pool",
        &test.pool_table("0 0"),
        "length: found 4 data blocks, expected at least 8",
    );
    test.data_blocks = 8;
    test.load_pool("0 0");
}

#[test]
fn space_that_another_volume_gives_back_lets_what_waits_go_on() {
    for deleted in [true, false] {
        let test = small("0 2 no_space_timeout 0");
        test.message(&["create_thin", "1"]).unwrap();
        test.load_thin("other", 1, 16);
        test.write_through("other", 0, 2 * BLOCK, 7);
        test.write_through("thin", 0, 2 * BLOCK, 1);
        test.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 2 * BLOCK, 2));
        test.run(Duration::from_secs(1));
        assert!(test.labels().is_empty());
        test.pool_says(" 4/4 - out_of_data_space ");
        if deleted {
            test.remove("other");
            test.message(&["delete", "1"]).unwrap();
        } else {
            test.discard("other", 0, 2 * BLOCK).unwrap();
            test.flush("other").unwrap();
        }
        test.run(Duration::from_millis(10));
        assert_eq!(*test.ends.all(), [("waits", Ok(()))], "deleted {deleted}");
        test.pool_says(" 4/4 - rw ");
        test.flush("thin").unwrap();
        let again = test.reopen_durable();
        again.load_pool("0 0");
        again.load_thin("thin", 0, 16);
        assert_eq!(again.bytes("thin", 4 * BLOCK, 2 * BLOCK), vec![2; 2 * BLOCK as usize]);
        again.check_metadata();
    }
}

#[test]
fn what_waits_is_handed_back_to_the_next_table() {
    let test = small("0 0");
    test.write("thin", 0, 4 * BLOCK, 1).unwrap();
    test.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 1, 2));
    test.run(Duration::from_millis(10));
    test.suspend("thin", SuspendMode::NoFlush);
    test.load("thin", "0 2048 zero");
    test.run(Duration::from_millis(10));
    assert_eq!(*test.ends.all(), [("waits", Ok(()))]);
}

/// Sectors of the volumes whose metadata runs full.
const FAR: u64 = (1 << 21) * BLOCK;

/// A pool with little metadata, and the volume `thin` with id 0.
fn little_metadata(metadata_blocks: u64) -> PoolFixture {
    let test = PoolFixture::new(metadata_blocks, 4096);
    test.serve("0 1 error_if_no_space", FAR / BLOCK);
    test
}

/// Where the write number `at` goes, and its byte: in no order, so that leaves are half empty.
fn far(at: u64) -> (u64, u8) {
    (at * 1031 % 4096 * 300 * BLOCK, (at % 200) as u8 + 1)
}

/// Writes until there is no room in the metadata; how many writes that took.
fn fill_metadata(test: &PoolFixture, name: &str) -> u64 {
    let refused = (0..4000).find_map(|at| {
        let (start, byte) = far(at);
        test.write(name, start, 1, byte).err().map(|error| (at, error))
    });
    let (count, error) = refused.expect("so little metadata");
    assert_eq!(error, NO_SPACE);
    let status = test.status("pool");
    assert!(status.contains(" ro ") && !status.contains("needs_check"), "{status}");
    count
}

fn is_writable(test: &PoolFixture) -> bool {
    test.status("pool").contains(" rw ")
}

/// After a power cut, the first `count` writes of [`fill_metadata`] are there.
fn survives(test: &PoolFixture, count: u64) {
    test.check_metadata();
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, FAR / BLOCK);
    for (start, byte) in (0..count).map(far) {
        assert_eq!(again.bytes("thin", start, 2), [byte, 0], "sector {start}");
    }
}

#[test]
fn full_metadata_loses_nothing_and_serves_what_is_there() {
    let test = little_metadata(48);
    let count = fill_metadata(&test, "thin");
    test.flush("thin").unwrap();
    assert_eq!(test.write("thin", FAR - BLOCK, 1, 7), Err(NO_SPACE));
    test.io("thin", |env| write_io(env, 0, 1, 1).with(Flags::FUA)).unwrap();
    assert_eq!(test.bytes("thin", FAR - BLOCK, 1), [0]);
    let refused = test.message(&["create_thin", "1"]).unwrap_err().to_string();
    assert!(refused.contains("ENOSPC"), "{refused}");
    survives(&test, count);
}

#[test]
fn a_message_takes_the_room_that_writes_under_way_were_promised() {
    // Of some of these sizes the promises leave less than a message takes.
    for metadata_blocks in 64..128 {
        let test = little_metadata(metadata_blocks);
        let slow = Effect::Delay(Duration::from_millis(10));
        test.drive("data").faults().add(Fault { effect: slow, ..Fault::error(OpSet::WRITES) });
        test.start("thin", "write", |env| write_io(env, 0, 1, 1));
        let made = test.message(&["create_thin", "1"]);
        assert!(made.is_ok(), "{metadata_blocks} metadata blocks: {made:?}");
        test.settle();
        assert_eq!(*test.ends.all(), [("write", Ok(()))]);
        test.write("thin", BLOCK, 1, 2).unwrap();
        test.check_metadata();
    }
}

#[test]
fn full_metadata_comes_back_to_life_with_discards() {
    let test = little_metadata(48);
    let count = fill_metadata(&test, "thin");
    // The last ones: enough that leaves go.
    for at in count / 2..count {
        test.discard("thin", far(at).0, BLOCK).unwrap();
        assert_eq!(test.bytes("thin", far(at).0, 1), [0]);
    }
    test.flush("thin").unwrap();
    assert!(is_writable(&test), "{}", test.status("pool"));
    test.write_through("thin", FAR - BLOCK, 1, 7);
    survives(&test, count / 2);
}

#[test]
fn full_metadata_comes_back_to_life_with_a_deletion() {
    let test = little_metadata(48);
    test.message(&["create_thin", "1"]).unwrap();
    test.load_thin("other", 1, FAR / BLOCK);
    test.write("thin", 0, 1, 1).unwrap();
    fill_metadata(&test, "other");
    assert_eq!(test.write("thin", far(1).0, 1, 1), Err(NO_SPACE));
    test.remove("other");
    test.message(&["delete", "1"]).unwrap();
    assert!(is_writable(&test), "{}", test.status("pool"));
    let (start, byte) = far(1);
    test.write_through("thin", start, 1, byte);
    survives(&test, 2);
}

#[test]
fn metadata_filled_by_breaking_sharing_comes_back_to_life() {
    let test = little_metadata(160);
    for at in 0..700 {
        test.write("thin", at * BLOCK, BLOCK, 3).unwrap();
    }
    let mut ids = 1..;
    let full = loop {
        // Each snapshot is left behind with leaves of its own.
        let id: &'static str = ids.next().unwrap().to_string().leak();
        if let Err(error) = test.message(&["create_snap", id, "0"]) {
            break error.to_string();
        }
        for at in (0..700).step_by(100) {
            let _ = test.write("thin", at * BLOCK, BLOCK, 4);
        }
    };
    assert!(full.contains("ENOSPC"), "{full}");
    assert!(!test.status("pool").contains("needs_check"), "{}", test.status("pool"));
    test.discard("thin", 0, 700 * BLOCK).unwrap();
    test.flush("thin").unwrap();
    test.check_metadata();
    for id in 1..ids.next().unwrap() - 1 {
        test.message(&["delete", id.to_string().leak()]).unwrap();
    }
    assert!(is_writable(&test), "{}", test.status("pool"));
    test.write_through("thin", 0, BLOCK, 5);
    test.check_metadata();
}

#[test]
fn a_metadata_snapshot_in_full_metadata_can_be_released() {
    let test = little_metadata(132);
    for at in 0..40 {
        test.write("thin", far(at).0, 1, far(at).1).unwrap();
    }
    test.message(&["reserve_metadata_snap"]).unwrap();
    for at in 40..4000 {
        if test.write("thin", far(at).0, 1, far(at).1).is_err() {
            break;
        }
    }
    assert!(!is_writable(&test), "{}", test.status("pool"));
    test.message(&["release_metadata_snap"]).unwrap();
    assert!(is_writable(&test), "{}", test.status("pool"));
    survives(&test, 40);
}

#[test]
fn full_metadata_comes_back_to_life_when_its_device_grows() {
    let test = PoolFixture::new(512, 4096);
    let pool = format!("0 {} thin-pool @m data {BLOCK} 0 0", 4096 * BLOCK);
    let metadata = |blocks: u64| format!("0 {} linear meta 0", blocks * 8);
    test.load("m", &metadata(48));
    test.load("pool", &pool);
    test.message(&["create_thin", "0"]).unwrap();
    test.load_thin("thin", 0, FAR / BLOCK);
    let count = fill_metadata(&test, "thin");
    test.load("m", &metadata(512));
    // Seen at the next resume, as with the kernel.
    assert!(!is_writable(&test));
    test.load("pool", &pool);
    assert!(is_writable(&test) && test.status("pool").contains("/512 "), "{}", test.status("pool"));
    for (start, byte) in (count..2 * count).map(far) {
        test.write("thin", start, 1, byte).unwrap();
    }
    test.flush("thin").unwrap();
    survives(&test, 2 * count);
}

#[test]
fn a_growth_that_fails_leaves_a_pool_that_reads() {
    let mut test = PoolFixture::new(256, 8);
    test.data_blocks = 4;
    test.serve("0 0", 16);
    test.write_through("thin", 0, 4 * BLOCK, 1);
    test.data_blocks = 8;
    test.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
    let refused = test.try_load("pool", &test.pool_table("0 0")).unwrap_err().to_string();
    assert!(refused.starts_with("meta: metadata "), "{refused}");
    test.load_pool("0 0");
    test.pool_says(" 4/4 - ro ");
    test.pool_says("needs_check");
    assert_eq!(test.bytes("thin", 3 * BLOCK, 1), [1]);
    test.check_metadata();
}

#[test]
fn warnings_are_events() {
    let test = PoolFixture::new(256, 16);
    test.serve("4 2 data_mark 50", 16);
    let events = || test.volume("pool").event_nr();
    let start = events();
    test.write_through("thin", 0, 7 * BLOCK, 1);
    assert_eq!(events(), start);
    test.write_through("thin", 7 * BLOCK, BLOCK, 1);
    assert_eq!(events(), start + 1, "half full");
    test.write_through("thin", 8 * BLOCK, 4 * BLOCK, 1);
    assert_eq!(events(), start + 2, "the low water mark");
    test.write_through("thin", 12 * BLOCK, BLOCK, 1);
    assert_eq!(events(), start + 2, "once");
}

#[test]
fn the_last_block_goes_to_a_waiting_write_if_its_first_write_fails() {
    let test = small("0 2 no_space_timeout 3");
    test.write("thin", 0, 3 * BLOCK, 1).unwrap();
    test.drive("data").faults().add(Fault::error(OpSet::WRITES).shots(1));
    test.start("thin", "fails", |env| write_io(env, 3 * BLOCK, BLOCK, 2));
    test.start("thin", "waits", |env| write_io(env, 4 * BLOCK, BLOCK, 3));
    test.run(Duration::from_secs(1));
    assert_eq!(test.labels(), ["fails", "waits"]);
    assert!(test.ends.all()[0].1.is_err() && test.ends.all()[1].1.is_ok());
    test.pool_says(" 4/4 - rw ");
    assert_eq!(test.bytes("thin", 4 * BLOCK, 1), [3]);
}

#[test]
fn three_quarters_of_the_data_and_85_percent_of_the_metadata_are_events() {
    let test = PoolFixture::new(1024, 100);
    test.serve("0 0", 1 << 20);
    let events = || test.volume("pool").event_nr();
    let start = events();
    test.write_through("thin", 0, 74 * BLOCK, 1);
    assert_eq!(events(), start);
    test.write_through("thin", 74 * BLOCK, BLOCK, 1);
    assert_eq!(events(), start + 1, "the data");
    test.discard("thin", 0, BLOCK).unwrap();
    test.flush("thin").unwrap();
    test.run(Duration::from_millis(10));
    test.write_through("thin", 0, BLOCK, 1);
    assert_eq!(events(), start + 2, "again, after it was better");

    let test = little_metadata(56);
    let warns = |at| {
        let before = test.volume("pool").event_nr();
        let written = test.write("thin", far(at).0, 1, 1).and_then(|()| test.flush("thin"));
        written.ok().map(|()| test.volume("pool").event_nr() > before)
    };
    let warnings = (0..4000).map_while(warns).filter(|warned| *warned).count();
    assert_eq!(warnings, 4, "a quarter of the metadata is free, 15, 5 percent are; and the data");
}

#[test]
fn data_has_a_critical_mark_above_the_first_one() {
    let test = PoolFixture::new(1024, 100);
    test.serve("0 4 data_mark 50 data_critical 60", 1 << 20);
    let events = || test.volume("pool").event_nr();
    let start = events();
    test.write_through("thin", 0, 59 * BLOCK, 1);
    assert_eq!(events(), start + 1, "the first mark");
    test.write_through("thin", 59 * BLOCK, BLOCK, 1);
    assert_eq!(events(), start + 2, "the critical mark");
    test.write_through("thin", 60 * BLOCK, BLOCK, 1);
    assert_eq!(events(), start + 2, "once");
    test.discard("thin", 0, 2 * BLOCK).unwrap();
    test.flush("thin").unwrap();
    test.run(Duration::from_millis(10));
    test.write_through("thin", 0, BLOCK, 1);
    assert_eq!(events(), start + 3, "again, after it was better");
}

#[test]
fn stop_of_the_server_ends_what_waits_for_room_and_commits_the_other_volumes() {
    for above in [false, true] {
        let test = PoolFixture::with_volume(256, 4, 8);
        test.message(&["create_thin", "1"]).unwrap();
        test.load_thin("second", 1, 8);
        test.load("top", &format!("0 {} linear @thin 0", 8 * BLOCK));
        test.write_through("thin", 0, 3 * BLOCK, 1);
        test.write("second", 0, BLOCK, 2).unwrap();
        let name = if above { "top" } else { "thin" };
        test.start(name, "waits", |env| write_io(env, 5 * BLOCK, 1, 2));
        test.settle();
        assert!(test.labels().is_empty());
        // In the order of `suspend_all`: users first.
        let volumes = ["top", "second", "thin", "pool"].map(|name| test.volume(name));
        let stop = volumes.clone();
        let ended = test.sim.block_on(0, |env| async move {
            for volume in &stop {
                volume.give_up(&env).await;
            }
            let mut ended = Vec::new();
            for volume in &stop {
                let end = pin!(volume.suspend(&env, SuspendMode::NoFlush));
                let end = match select(end, Box::pin(env.sleep(Duration::from_secs(5)))).await {
                    Either::Left((result, _)) => result,
                    Either::Right(((), end)) => {
                        for beneath in stop.iter().filter(|other| volume.stands_on(other.id())) {
                            beneath.let_go(&env).await;
                        }
                        end.await
                    }
                };
                ended.push(end.is_ok());
            }
            ended
        });
        assert_eq!(ended, [true; 4]);
        assert!(matches!(test.ends.all()[..], [("waits", Err(_))]), "above: {above}");
        test.check_metadata();
        let again = test.reopen_durable();
        again.load_pool("0 0");
        again.load_thin("second", 1, 8);
        assert_eq!(again.bytes("second", 0, 1), [2]);
        again.pool_says(" rw ");
    }
}
