//! A pool that is full never corrupts, and goes on when there is room.

use std::pin::pin;
use std::time::Duration;

use super::bed::*;
use cairn_block::{ErrorKind, Flags, IoError, SectorCount, SuspendMode};
use cairn_sim::{Effect, Fault, Image, OpSet};
use futures_util::future::{Either, select};

const NO_SPACE: IoError = IoError::new(ErrorKind::NoSpace);

fn small(features: &str) -> Bed {
    let bed = Bed::new(256, 4);
    bed.serve(features, 16);
    bed
}

#[test]
fn writes_that_need_a_block_fail_at_once_if_told_so() {
    let bed = small("0 1 error_if_no_space");
    bed.write("thin", 0, 4 * BLOCK, 1).unwrap();
    assert_eq!(bed.write("thin", 4 * BLOCK, 1, 2), Err(NO_SPACE));
    bed.pool_says(" 4/4 - out_of_data_space ");
    bed.write("thin", 0, 1, 3).unwrap();
    assert_eq!(bed.bytes("thin", 0, 2), [3, 1]);
    assert_eq!(bed.bytes("thin", 4 * BLOCK, 1), [0]);
    bed.discard("thin", 0, BLOCK).unwrap();
    bed.flush("thin").unwrap();
    bed.wait(Duration::from_millis(1));
    bed.pool_says(" 3/4 - rw ");
    bed.write("thin", 4 * BLOCK, 1, 2).unwrap();
}

#[test]
fn a_write_takes_what_an_uncommitted_discard_frees() {
    let bed = small("0 1 error_if_no_space");
    bed.write_through("thin", 0, 4 * BLOCK, 1);
    bed.discard("thin", 0, BLOCK).unwrap();
    bed.write("thin", 4 * BLOCK, BLOCK, 2).unwrap();
    assert_eq!(bed.bytes("thin", 4 * BLOCK, 1), [2]);
}

#[test]
fn writes_wait_for_space_and_then_fail() {
    let bed = small("0 2 no_space_timeout 3");
    bed.write("thin", 0, 4 * BLOCK, 1).unwrap();
    bed.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 1, 2));
    bed.wait(Duration::from_secs(2));
    assert!(bed.labels().is_empty());
    bed.pool_says("out_of_data_space discard_passdown queue_if_no_space");
    bed.wait(Duration::from_secs(2));
    assert_eq!(*bed.ends.borrow(), [("waits", Err(NO_SPACE))]);
    bed.pool_says("error_if_no_space");
    assert_eq!(bed.write("thin", 4 * BLOCK, 1, 2), Err(NO_SPACE));
    bed.discard("thin", 0, BLOCK).unwrap();
    bed.flush("thin").unwrap();
    bed.wait(Duration::from_millis(1));
    bed.pool_says(" rw discard_passdown queue_if_no_space");
}

#[test]
fn what_waits_for_space_fails_with_the_pool() {
    for features in ["0 0", "0 2 no_space_timeout 0"] {
        let bed = small(features);
        bed.write("thin", 0, 4 * BLOCK, 1).unwrap();
        bed.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 1, 2));
        bed.wait(Duration::from_millis(10));
        assert!(bed.labels().is_empty());
        bed.drive("meta").faults().add(Fault::error(OpSet::FLUSHES).shots(1));
        bed.message(&["create_thin", "1"]).unwrap_err();
        bed.wait(Duration::from_millis(10));
        assert_eq!(*bed.ends.borrow(), [("waits", Err(IoError::IO))], "{features}");
        bed.pool_says(" ro ");
    }
}

#[test]
fn all_waits_for_space_fail_when_the_first_times_out() {
    let bed = small("0 2 no_space_timeout 3");
    bed.write("thin", 0, 4 * BLOCK, 1).unwrap();
    bed.start("thin", "early", |env| write_io(env, 4 * BLOCK, 1, 2));
    bed.wait(Duration::from_secs(2));
    bed.start("thin", "late", |env| write_io(env, 5 * BLOCK, 1, 2));
    bed.wait(Duration::from_secs(2));
    assert_eq!(*bed.ends.borrow(), [("early", Err(NO_SPACE)), ("late", Err(NO_SPACE))]);
}

#[test]
fn metadata_too_small_for_so_much_data_is_refused_and_stays_sound() {
    let data_blocks = 600_000;
    let data = Image::new(SectorCount(data_blocks * BLOCK));
    let bed = Bed::of_images(Image::new(SectorCount(24 * 8)), data.clone(), data_blocks);
    bed.refuses("pool", &bed.pool_table("0 0"), "no free block is left");
    let bytes = bed.drive("meta").visible().to_vec();
    let mut longer = bytes;
    longer.resize(256 * 4096, 0);
    let bed = Bed::of_images(Image::of_bytes(&longer), data, data_blocks);
    bed.serve("0 0", 8);
    bed.pool_says("0/600000 - rw ");
    bed.write("thin", 0, 1, 1).unwrap();
}

#[test]
fn a_longer_pool_lets_what_waits_go_on() {
    let mut bed = Bed::new(256, 8);
    bed.data_blocks = 4;
    bed.serve("0 0", 16);
    bed.write("thin", 0, 4 * BLOCK, 1).unwrap();
    bed.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 3 * BLOCK, 2));
    bed.wait(Duration::from_secs(1));
    assert!(bed.labels().is_empty());
    bed.data_blocks = 8;
    bed.load_pool("0 0");
    bed.wait(Duration::from_millis(10));
    assert_eq!(*bed.ends.borrow(), [("waits", Ok(()))]);
    assert_eq!(bed.bytes("thin", 6 * BLOCK, 1), [2]);
    bed.pool_says(" 7/8 - rw ");
    bed.data_blocks = 4;
    bed.refuses("pool", &bed.pool_table("0 0"), "length: found 4 data blocks, expected at least 8");
    bed.data_blocks = 8;
    bed.load_pool("0 0");
}

#[test]
fn space_that_another_volume_gives_back_lets_what_waits_go_on() {
    for deleted in [true, false] {
        let bed = small("0 2 no_space_timeout 0");
        bed.message(&["create_thin", "1"]).unwrap();
        bed.load_thin("other", 1, 16);
        bed.write_through("other", 0, 2 * BLOCK, 7);
        bed.write_through("thin", 0, 2 * BLOCK, 1);
        bed.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 2 * BLOCK, 2));
        bed.wait(Duration::from_secs(1));
        assert!(bed.labels().is_empty());
        bed.pool_says(" 4/4 - out_of_data_space ");
        if deleted {
            bed.remove("other");
            bed.message(&["delete", "1"]).unwrap();
        } else {
            bed.discard("other", 0, 2 * BLOCK).unwrap();
            bed.flush("other").unwrap();
        }
        bed.wait(Duration::from_millis(10));
        assert_eq!(*bed.ends.borrow(), [("waits", Ok(()))], "deleted {deleted}");
        bed.pool_says(" 4/4 - rw ");
        bed.flush("thin").unwrap();
        let again = bed.reopen_durable();
        again.load_pool("0 0");
        again.load_thin("thin", 0, 16);
        assert_eq!(again.bytes("thin", 4 * BLOCK, 2 * BLOCK), vec![2; 2 * BLOCK as usize]);
        again.check_metadata();
    }
}

#[test]
fn what_waits_is_handed_back_to_the_next_table() {
    let bed = small("0 0");
    bed.write("thin", 0, 4 * BLOCK, 1).unwrap();
    bed.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 1, 2));
    bed.wait(Duration::from_millis(10));
    bed.suspend("thin", SuspendMode::NoFlush);
    bed.load("thin", "0 2048 zero");
    bed.wait(Duration::from_millis(10));
    assert_eq!(*bed.ends.borrow(), [("waits", Ok(()))]);
}

/// Sectors of the volumes whose metadata runs full.
const FAR: u64 = (1 << 21) * BLOCK;

/// A pool with little metadata, and the volume `thin` with id 0.
fn little_metadata(metadata_blocks: u64) -> Bed {
    let bed = Bed::new(metadata_blocks, 4096);
    bed.serve("0 1 error_if_no_space", FAR / BLOCK);
    bed
}

/// Where the write number `at` goes, and its byte: in no order, so that leaves are half empty.
fn far(at: u64) -> (u64, u8) {
    (at * 1031 % 4096 * 300 * BLOCK, (at % 200) as u8 + 1)
}

/// Writes until there is no room in the metadata; how many writes that took.
fn fill_metadata(bed: &Bed, name: &str) -> u64 {
    let refused = (0..4000).find_map(|at| {
        let (start, byte) = far(at);
        bed.write(name, start, 1, byte).err().map(|error| (at, error))
    });
    let (count, error) = refused.expect("so little metadata");
    assert_eq!(error, NO_SPACE);
    let status = bed.status("pool");
    assert!(status.contains(" ro ") && !status.contains("needs_check"), "{status}");
    count
}

fn is_writable(bed: &Bed) -> bool {
    bed.status("pool").contains(" rw ")
}

/// After a power cut, the first `count` writes of [`fill_metadata`] are there.
fn survives(bed: &Bed, count: u64) {
    bed.check_metadata();
    let again = bed.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, FAR / BLOCK);
    for (start, byte) in (0..count).map(far) {
        assert_eq!(again.bytes("thin", start, 2), [byte, 0], "sector {start}");
    }
}

#[test]
fn full_metadata_loses_nothing_and_serves_what_is_there() {
    let bed = little_metadata(48);
    let count = fill_metadata(&bed, "thin");
    bed.flush("thin").unwrap();
    assert_eq!(bed.write("thin", FAR - BLOCK, 1, 7), Err(NO_SPACE));
    bed.io("thin", |env| write_io(env, 0, 1, 1).with(Flags::FUA)).unwrap();
    assert_eq!(bed.bytes("thin", FAR - BLOCK, 1), [0]);
    let refused = bed.message(&["create_thin", "1"]).unwrap_err().to_string();
    assert!(refused.contains("ENOSPC"), "{refused}");
    survives(&bed, count);
}

#[test]
fn a_message_takes_the_room_that_writes_under_way_were_promised() {
    // Of some of these sizes the promises leave less than a message takes.
    for metadata_blocks in 64..128 {
        let bed = little_metadata(metadata_blocks);
        let slow = Effect::Delay(Duration::from_millis(10));
        bed.drive("data").faults().add(Fault { effect: slow, ..Fault::error(OpSet::WRITES) });
        bed.start("thin", "write", |env| write_io(env, 0, 1, 1));
        let made = bed.message(&["create_thin", "1"]);
        assert!(made.is_ok(), "{metadata_blocks} metadata blocks: {made:?}");
        bed.settle();
        assert_eq!(*bed.ends.borrow(), [("write", Ok(()))]);
        bed.write("thin", BLOCK, 1, 2).unwrap();
        bed.check_metadata();
    }
}

#[test]
fn full_metadata_comes_back_to_life_with_discards() {
    let bed = little_metadata(48);
    let count = fill_metadata(&bed, "thin");
    // The last ones: enough that leaves go.
    for at in count / 2..count {
        bed.discard("thin", far(at).0, BLOCK).unwrap();
        assert_eq!(bed.bytes("thin", far(at).0, 1), [0]);
    }
    bed.flush("thin").unwrap();
    assert!(is_writable(&bed), "{}", bed.status("pool"));
    bed.write_through("thin", FAR - BLOCK, 1, 7);
    survives(&bed, count / 2);
}

#[test]
fn full_metadata_comes_back_to_life_with_a_deletion() {
    let bed = little_metadata(48);
    bed.message(&["create_thin", "1"]).unwrap();
    bed.load_thin("other", 1, FAR / BLOCK);
    bed.write("thin", 0, 1, 1).unwrap();
    fill_metadata(&bed, "other");
    assert_eq!(bed.write("thin", far(1).0, 1, 1), Err(NO_SPACE));
    bed.remove("other");
    bed.message(&["delete", "1"]).unwrap();
    assert!(is_writable(&bed), "{}", bed.status("pool"));
    let (start, byte) = far(1);
    bed.write_through("thin", start, 1, byte);
    survives(&bed, 2);
}

#[test]
fn metadata_filled_by_breaking_sharing_comes_back_to_life() {
    let bed = little_metadata(160);
    for at in 0..700 {
        bed.write("thin", at * BLOCK, BLOCK, 3).unwrap();
    }
    let mut ids = 1..;
    let full = loop {
        // Each snapshot is left behind with leaves of its own.
        let id: &'static str = ids.next().unwrap().to_string().leak();
        if let Err(error) = bed.message(&["create_snap", id, "0"]) {
            break error.to_string();
        }
        for at in (0..700).step_by(100) {
            let _ = bed.write("thin", at * BLOCK, BLOCK, 4);
        }
    };
    assert!(full.contains("ENOSPC"), "{full}");
    assert!(!bed.status("pool").contains("needs_check"), "{}", bed.status("pool"));
    bed.discard("thin", 0, 700 * BLOCK).unwrap();
    bed.flush("thin").unwrap();
    bed.check_metadata();
    for id in 1..ids.next().unwrap() - 1 {
        bed.message(&["delete", id.to_string().leak()]).unwrap();
    }
    assert!(is_writable(&bed), "{}", bed.status("pool"));
    bed.write_through("thin", 0, BLOCK, 5);
    bed.check_metadata();
}

#[test]
fn a_metadata_snapshot_in_full_metadata_can_be_released() {
    let bed = little_metadata(132);
    for at in 0..40 {
        bed.write("thin", far(at).0, 1, far(at).1).unwrap();
    }
    bed.message(&["reserve_metadata_snap"]).unwrap();
    for at in 40..4000 {
        if bed.write("thin", far(at).0, 1, far(at).1).is_err() {
            break;
        }
    }
    assert!(!is_writable(&bed), "{}", bed.status("pool"));
    bed.message(&["release_metadata_snap"]).unwrap();
    assert!(is_writable(&bed), "{}", bed.status("pool"));
    survives(&bed, 40);
}

#[test]
fn full_metadata_comes_back_to_life_when_its_device_grows() {
    let bed = Bed::new(512, 4096);
    let pool = format!("0 {} thin-pool @m data {BLOCK} 0 0", 4096 * BLOCK);
    let metadata = |blocks: u64| format!("0 {} linear meta 0", blocks * 8);
    bed.load("m", &metadata(48));
    bed.load("pool", &pool);
    bed.message(&["create_thin", "0"]).unwrap();
    bed.load_thin("thin", 0, FAR / BLOCK);
    let count = fill_metadata(&bed, "thin");
    bed.load("m", &metadata(512));
    // Seen at the next resume, as with the kernel.
    assert!(!is_writable(&bed));
    bed.load("pool", &pool);
    assert!(is_writable(&bed) && bed.status("pool").contains("/512 "), "{}", bed.status("pool"));
    for (start, byte) in (count..2 * count).map(far) {
        bed.write("thin", start, 1, byte).unwrap();
    }
    bed.flush("thin").unwrap();
    survives(&bed, 2 * count);
}

#[test]
fn a_growth_that_fails_leaves_a_pool_that_reads() {
    let mut bed = Bed::new(256, 8);
    bed.data_blocks = 4;
    bed.serve("0 0", 16);
    bed.write_through("thin", 0, 4 * BLOCK, 1);
    bed.data_blocks = 8;
    bed.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
    let refused = bed.try_load("pool", &bed.pool_table("0 0")).unwrap_err().to_string();
    assert!(refused.starts_with("meta: metadata "), "{refused}");
    bed.load_pool("0 0");
    bed.pool_says(" 4/4 - ro ");
    bed.pool_says("needs_check");
    assert_eq!(bed.bytes("thin", 3 * BLOCK, 1), [1]);
    bed.check_metadata();
}

#[test]
fn warnings_are_events() {
    let bed = Bed::new(256, 16);
    bed.serve("4 2 data_mark 50", 16);
    let events = || bed.volume("pool").event_nr();
    let start = events();
    bed.write_through("thin", 0, 7 * BLOCK, 1);
    assert_eq!(events(), start);
    bed.write_through("thin", 7 * BLOCK, BLOCK, 1);
    assert_eq!(events(), start + 1, "half full");
    bed.write_through("thin", 8 * BLOCK, 4 * BLOCK, 1);
    assert_eq!(events(), start + 2, "the low water mark");
    bed.write_through("thin", 12 * BLOCK, BLOCK, 1);
    assert_eq!(events(), start + 2, "once");
}

#[test]
fn the_last_block_goes_to_a_waiting_write_if_its_first_write_fails() {
    let bed = small("0 2 no_space_timeout 3");
    bed.write("thin", 0, 3 * BLOCK, 1).unwrap();
    bed.drive("data").faults().add(Fault::error(OpSet::WRITES).shots(1));
    bed.start("thin", "fails", |env| write_io(env, 3 * BLOCK, BLOCK, 2));
    bed.start("thin", "waits", |env| write_io(env, 4 * BLOCK, BLOCK, 3));
    bed.wait(Duration::from_secs(1));
    assert_eq!(bed.labels(), ["fails", "waits"]);
    assert!(bed.ends.borrow()[0].1.is_err() && bed.ends.borrow()[1].1.is_ok());
    bed.pool_says(" 4/4 - rw ");
    assert_eq!(bed.bytes("thin", 4 * BLOCK, 1), [3]);
}

#[test]
fn three_quarters_of_the_data_and_85_percent_of_the_metadata_are_events() {
    let bed = Bed::new(1024, 100);
    bed.serve("0 0", 1 << 20);
    let events = || bed.volume("pool").event_nr();
    let start = events();
    bed.write_through("thin", 0, 74 * BLOCK, 1);
    assert_eq!(events(), start);
    bed.write_through("thin", 74 * BLOCK, BLOCK, 1);
    assert_eq!(events(), start + 1, "the data");
    bed.discard("thin", 0, BLOCK).unwrap();
    bed.flush("thin").unwrap();
    bed.wait(Duration::from_millis(10));
    bed.write_through("thin", 0, BLOCK, 1);
    assert_eq!(events(), start + 2, "again, after it was better");

    let bed = little_metadata(56);
    let warns = |at| {
        let before = bed.volume("pool").event_nr();
        let written = bed.write("thin", far(at).0, 1, 1).and_then(|()| bed.flush("thin"));
        written.ok().map(|()| bed.volume("pool").event_nr() > before)
    };
    let warnings = (0..4000).map_while(warns).filter(|warned| *warned).count();
    assert_eq!(warnings, 3, "of the metadata a quarter is free, 15 percent are; and the data");
}

#[test]
fn stop_of_the_server_ends_what_waits_for_room_and_commits_the_other_volumes() {
    for above in [false, true] {
        let bed = Bed::with_volume(256, 4, 8);
        bed.message(&["create_thin", "1"]).unwrap();
        bed.load_thin("second", 1, 8);
        bed.load("top", &format!("0 {} linear @thin 0", 8 * BLOCK));
        bed.write_through("thin", 0, 3 * BLOCK, 1);
        bed.write("second", 0, BLOCK, 2).unwrap();
        let name = if above { "top" } else { "thin" };
        bed.start(name, "waits", |env| write_io(env, 5 * BLOCK, 1, 2));
        bed.settle();
        assert!(bed.labels().is_empty());
        // In the order of `suspend_all`: users first.
        let volumes = ["top", "second", "thin", "pool"].map(|name| bed.volume(name));
        let stop = volumes.clone();
        let ended = bed.sim.block_on(0, |env| async move {
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
        assert!(matches!(bed.ends.borrow()[..], [("waits", Err(_))]), "above: {above}");
        bed.check_metadata();
        let again = bed.reopen_durable();
        again.load_pool("0 0");
        again.load_thin("second", 1, 8);
        assert_eq!(again.bytes("second", 0, 1), [2]);
        again.pool_says(" rw ");
    }
}
