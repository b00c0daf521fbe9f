//! Suspend, resume and table changes while clients use the volume.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, SuspendMode};
use cairn_sim::{Effect, Fault, History, Image, OpSet, Workload};

use super::fixture::{CacheFixture, cache_sectors, table, write_io};

#[test]
fn a_suspend_that_does_not_flush_hands_back_the_writes_that_wait_for_a_slot() {
    let test = CacheFixture::live(1, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    test.origin.faults().add(Fault {
        effect: Effect::Delay(Duration::from_millis(50)),
        ..Fault::error(OpSet::WRITES)
    });
    let answer = test.start_message("flush");
    test.run(Duration::from_millis(1));
    test.start("one", |env| write_io(env, 0, 8, 2));
    // Two parts: the first waits for a slot, the second goes around the cache.
    test.start("two", |env| write_io(env, 0, 16, 3));
    test.run(Duration::from_millis(1));
    assert_eq!(test.status().named("writes_blocked_on_freelist"), 2);
    test.suspend(SuspendMode::NoFlush);
    assert_eq!(test.ends.count(), 0);
    test.origin.faults().clear();
    test.load("0 2048 linear origin 0");
    test.settle();
    assert_eq!(test.ends.count(), 2, "the next table served them");
    assert!([2, 3].contains(&test.byte(0)));
    assert_eq!(test.byte(8), 3);
    assert!(answer.take().is_some());
}

#[test]
fn after_a_suspend_that_was_called_off_writes_wait_for_slots_again() {
    for mode in [SuspendMode::NoFlush, SuspendMode::Flush] {
        let test = CacheFixture::live(1, "pause_writeback 60000");
        test.write_fua(0, 8, 1).unwrap();
        test.origin.faults().add(Fault {
            effect: Effect::Delay(Duration::from_millis(50)),
            ..Fault::error(OpSet::WRITES)
        });
        test.start_message("flush");
        test.run(Duration::from_millis(1));
        test.start("one", |env| write_io(env, 0, 8, 2));
        test.run(Duration::from_millis(1));
        test.call_off(mode);
        test.start("two", |env| write_io(env, 0, 8, 3));
        test.run(Duration::from_millis(1));
        assert_eq!(test.ends.count(), 0, "handed back, and it waits again");
        test.run(Duration::from_secs(1));
        assert_eq!(test.ends.count(), 2);
        assert!([2, 3].contains(&test.byte(0)));
        test.start_message("flush");
        test.run(Duration::from_secs(1));
        assert!(test.volume.dirty().is_empty());
    }
}

#[test]
fn dirty_blocks_stay_in_the_cache_over_a_suspend() {
    let test = CacheFixture::live(8, "");
    test.write(0, 8, 1).unwrap();
    test.suspend(SuspendMode::Flush);
    assert_eq!(test.durable_entries(), [(0, 0, 1)]);
    assert_eq!(test.origin.durable().to_vec()[0], 128);
    test.resume();
    assert_eq!((test.byte(0), test.status().dirty()), (1, 1));
    assert_eq!(test.status().named("writes"), 1, "counters go on");
}

#[test]
fn removing_a_cache_the_recommended_way_loses_nothing() {
    let test = CacheFixture::live(16, "");
    for block in 0..12 {
        test.write(block * 8, 8, block as u8 + 1).unwrap();
    }
    test.message("flush_on_suspend").unwrap();
    test.suspend(SuspendMode::Flush);
    assert_eq!((test.status().error(), test.status().dirty()), (0, 0));
    test.load("0 2048 linear origin 0");
    for block in 0..12 {
        assert_eq!(test.byte(block * 8), block as u8 + 1);
    }
    let origin = test.origin.durable().to_vec();
    assert!((0..12).all(|block| origin[block * 4096] == block as u8 + 1));
}

#[test]
fn a_drain_of_a_suspend_that_does_not_take_place_is_taken_back() {
    let test = CacheFixture::live(8, "");
    test.write(0, 8, 1).unwrap();
    let target = test.target();
    // As by a swap of tables whose suspend is called off.
    assert!(!target.drain_in_suspend(true));
    test.call_off(SuspendMode::Flush);
    assert!(target.drain_in_suspend(false));
    test.suspend(SuspendMode::Flush);
    assert_eq!((test.status().dirty(), test.origin.durable().to_vec()[0]), (1, 128));
    test.resume();
    // What a user asked for is known to the swap, which leaves it.
    test.message("flush_on_suspend").unwrap();
    assert!(target.drain_in_suspend(true));
    test.call_off(SuspendMode::Flush);
    test.suspend(SuspendMode::Flush);
    assert_eq!((test.status().dirty(), test.origin.durable().to_vec()[0]), (0, 1));
    // Once.
    assert!(!target.drain_in_suspend(false));
}

/// A workload runs while the volume changes from the origin alone to one with a cache, to other
/// options, and back; the history judges every read.
fn reload_under_load(seed: u64, block: u64, slots: u64) {
    let cache = cache_sectors(slots, block) + 9;
    let zeros = |sectors| Image::new(cairn_block::SectorCount(sectors));
    let test = CacheFixture::of_images(zeros(512), zeros(cache), seed);
    let mut rng = fastrand::Rng::with_seed(seed);
    // The volume's block size is the cache's from the start.
    test.load(&table(512, block, "start_sector 9"));
    let disk: Arc<dyn Disk> = test.volume.clone();
    let history = History::blank(seed, disk.sectors());
    let mut workload = Workload::mixed(seed, 1500);
    workload.max = cairn_block::SectorCount(64);
    let running = workload.start(&test.sim, &disk, &history);
    let mut cached = true;
    while !running.is_done() {
        test.run(Duration::from_micros(rng.u64(1..5000)));
        match rng.u8(..8) {
            0 | 1 => {
                let mode = if rng.bool() { SuspendMode::Flush } else { SuspendMode::NoFlush };
                test.suspend(mode);
                test.run(Duration::from_micros(rng.u64(1..500)));
                test.resume();
            }
            2 if cached => {
                test.message("flush_on_suspend").unwrap();
                test.suspend(SuspendMode::Flush);
                assert_eq!((test.status().error(), test.status().dirty()), (0, 0));
                test.load("0 512 linear origin 0");
                cached = false;
            }
            2 | 3 => {
                let high = rng.u64(0..=100);
                let low = rng.u64(0..=high);
                let options = format!(
                    "start_sector 9 high_watermark {high} low_watermark {low} autocommit_blocks \
                     {} autocommit_time {} pause_writeback {}",
                    rng.u64(1..40),
                    rng.u64(0..20),
                    rng.u64(0..4)
                );
                test.load(&table(512, block, &options));
                cached = true;
            }
            4 if cached => _ = test.message("flush").unwrap(),
            _ if cached => test.look(|_, state| state.check_whole()),
            _ => (),
        }
        history.verdict().unwrap();
    }
}

#[test]
fn tables_change_under_load_and_no_request_notices() {
    for seed in 0..12 {
        for (block, slots) in [(512, 40), (512, 300), (1024, 20)] {
            reload_under_load(seed, block, slots);
        }
    }
}

#[test]
fn a_write_that_waited_and_is_smaller_than_a_block_fails() {
    for (start, count) in [(12, 8), (3, 1)] {
        let test = CacheFixture::new(2048, cache_sectors(16, 4096));
        test.load("0 2048 linear origin 0");
        test.suspend(SuspendMode::Flush);
        test.start("small", |env| write_io(env, start, count, 0x55));
        test.settle();
        test.load(&table(2048, 4096, ""));
        test.settle();
        assert!(test.ends.of("small").expect("ended").is_err());
        assert!(!test.read(0, 32).unwrap().contains(&0x55));
    }
}
