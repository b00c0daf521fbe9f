//! Client I/O against writeback: bypass, writeback while clients write, blocks that are overwritten
//! without end, and the bounds on memory; in virtual time.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Io, Op, SuspendMode, TURN_BYTES};
use cairn_sim::OpSet;

use super::super::writeback::copy_budget_bytes;
use super::fixture::{CacheFixture, DRIVE_TIME, cache_sectors, range, slow, table, write_io};

const MS: Duration = Duration::from_millis(1);

/// Writes blocks that lie apart, one after the other, from `first` on; answers the first that
/// went around the cache.
fn first_around(test: &CacheFixture, first: u64, count: u64) -> Option<u64> {
    let around = test.status().named("writes_around");
    (first..first + count).find(|block| {
        test.write(block * 16, 8, *block as u8).unwrap();
        test.status().named("writes_around") > around
    })
}

/// A cache of 100 slots before an origin of 1 MiB that writes slowly.
fn before_a_slow_origin(options: &str) -> CacheFixture {
    let test = CacheFixture::live(100, options);
    test.origin.faults().add(slow(OpSet::WRITES, 10 * MS));
    test
}

#[test]
fn with_a_quick_origin_uncached_writes_go_around_although_slots_are_free() {
    let test = CacheFixture::live(100, "high_watermark 40 low_watermark 10");
    let first = first_around(&test, 0, 100).expect("the origin answers as fast as the cache");
    assert!(first >= 40, "below the high watermark everything is taken in: {first}");
    let status = test.status();
    assert!(status.free() > 20, "there is room: {status:?}");
    // What is cached is never passed by, and what went around is read from there.
    let cached = test.look(|_, state| state.index.runs().next().expect("something").block);
    let around = test.status().named("writes_around");
    test.write(cached * 8, 8, 99).unwrap();
    assert_eq!((test.status().named("writes_around"), test.byte(cached * 8)), (around, 99));
    assert_eq!(test.byte(first * 16), first as u8);
    test.check();
    // Then the load ends, and everything above the low watermark goes home.
    test.run(100 * MS);
    assert!(test.status().dirty() <= 10);
    assert_eq!(first_around(&test, 60, 20), None, "there is room again");
}

#[test]
fn with_a_slow_origin_the_cache_takes_every_write_while_slots_are_free() {
    let test = before_a_slow_origin("high_watermark 40 low_watermark 10");
    let first = first_around(&test, 0, 128).expect("the cache is full at last");
    assert!(first >= 100, "{first}");
    assert!(test.status().0[3] > 0, "writeback goes on meanwhile");
    test.check();
}

#[test]
fn below_the_high_watermark_nothing_goes_around() {
    let test = CacheFixture::live(100, "high_watermark 90 low_watermark 80");
    assert_eq!(first_around(&test, 0, 80), None);
    assert_eq!(test.status().dirty(), 80);
}

/// Overwrites cached blocks one after the other for a while; answers the bytes.
fn overwrite_for(test: &CacheFixture, duration: Duration) -> u64 {
    let end = test.sim.now() + duration;
    let block = test.look(|_, state| state.index.runs().last().expect("something").block);
    let mut bytes = 0;
    while test.sim.now() < end {
        test.write(block * 8, 8, 5).unwrap();
        bytes += 4096;
    }
    bytes
}

#[test]
fn writeback_to_a_quick_origin_is_throttled_while_clients_write() {
    let test = CacheFixture::live(100, "high_watermark 40 low_watermark 10");
    first_around(&test, 0, 100).expect("the origin is known");
    test.forget();
    let bytes = overwrite_for(&test, 200 * MS);
    let copied = test.seen("origin").iter().filter(|seen| seen.op == Op::Write).count() as u64;
    assert!(bytes > 8 << 20, "many writes came: {bytes}");
    assert!(copied * 4096 <= 256 * 4096 + bytes / 256, "{copied} copies beside {bytes} bytes");
    assert!(test.status().dirty() > 10, "it is not done yet");
    test.run(50 * MS);
    assert!(test.status().dirty() <= 10, "then it is");
}

#[test]
fn a_slow_origin_is_written_back_to_all_the_time_the_cache_takes_the_writes() {
    let test = before_a_slow_origin("high_watermark 40 low_watermark 10");
    assert_eq!(first_around(&test, 0, 60), None);
    overwrite_for(&test, 200 * MS);
    // What is on its way counts as free: it stops there.
    assert!(test.status().dirty() <= 30, "{:?}", test.status());
}

#[test]
fn requested_writeback_is_not_throttled() {
    let test = CacheFixture::live(100, "high_watermark 40 low_watermark 10");
    first_around(&test, 0, 100).expect("the origin is known");
    let cached = test.look(|_, state| state.index.runs().last().expect("something").block);
    let answer = test.start_message("flush");
    let began = test.sim.now();
    while answer.borrow().is_none() {
        test.write(cached * 8, 8, 5).unwrap();
        assert!(test.sim.now().since(began) < 100 * MS, "it does not wait for the writes to end");
    }
    assert!(answer.take().unwrap().is_ok());
}

/// Writers of one block, so that a write to it is in flight at every moment.
fn overwrite_without_end(test: &CacheFixture, start: u64) -> Rc<Cell<bool>> {
    let stop = Rc::new(Cell::new(false));
    for writer in 0..3 {
        let (env, stop) = (test.sim.env(writer).clone(), stop.clone());
        let disk: Arc<dyn Disk> = test.volume.clone();
        test.sim.env(writer).spawn(async move {
            env.sleep(DRIVE_TIME / 3 * u32::from(writer)).await;
            while !stop.get() {
                env.io(&disk, write_io(&env, start, 8, writer as u8)).await.unwrap();
            }
        });
    }
    test.run(10 * MS);
    stop
}

#[test]
fn a_flush_message_ends_although_a_block_is_overwritten_without_end() {
    for options in ["pause_writeback 60000", "pause_writeback 60000 writeback_jobs 1"] {
        let test = CacheFixture::live(8, options);
        test.write_fua(0, 8, 1).unwrap();
        let stop = overwrite_without_end(&test, 0);
        test.look(|_, state| assert!(state.index.is_written(0, 1)));
        let answer = test.start_message("flush");
        test.run(100 * MS);
        assert!(answer.take().is_some_and(|answer| answer.is_ok()), "it went home: {options}");
        stop.set(true);
        test.settle();
        assert!(test.byte(0) < 3);
        assert_eq!(test.status().named("writes_blocked_on_freelist"), 0);
    }
}

#[test]
fn an_old_block_is_written_back_although_it_is_overwritten_without_end() {
    let test = CacheFixture::live(8, "max_age 1000 pause_writeback 0");
    test.write_fua(0, 8, 1).unwrap();
    test.forget();
    let stop = overwrite_without_end(&test, 0);
    for _ in 0..4 {
        test.run(1100 * MS);
        let writes = test.seen("origin").iter().filter(|seen| seen.op == Op::Write).count();
        assert!(writes > 0, "once per max_age");
        test.check();
    }
    stop.set(true);
    test.settle();
}

#[test]
fn writers_wait_for_a_closed_block_no_longer_than_the_write_under_way() {
    let test = CacheFixture::live(8, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    test.cache.faults().add(slow(OpSet::WRITES, 20 * MS).shots(1));
    test.start("under way", |env| write_io(env, 0, 8, 2));
    let answer = test.start_message("flush");
    test.run(MS);
    test.look(|_, state| assert!(state.closed.is_some()));
    test.start("waits", |env| write_io(env, 0, 8, 3));
    test.run(MS);
    assert_eq!(test.ends.of("waits"), None);
    test.run(100 * MS);
    assert_eq!(test.ends.of("waits"), Some(Ok(())));
    assert!(answer.take().is_some_and(|answer| answer.is_ok()));
    assert_eq!(test.byte(0), 3);
}

/// Clients that write a block and flush, again and again, so that a commit follows the other.
fn commit_without_end(test: &CacheFixture) -> Rc<Cell<bool>> {
    let stop = Rc::new(Cell::new(false));
    for client in 0..3 {
        let (env, stop) = (test.sim.env(client).clone(), stop.clone());
        let disk: Arc<dyn Disk> = test.volume.clone();
        test.sim.env(client).spawn(async move {
            env.sleep(DRIVE_TIME / 3 * u32::from(client)).await;
            while !stop.get() {
                env.io(&disk, write_io(&env, u64::from(client) * 16, 8, 1)).await.unwrap();
                env.io(&disk, Io::flush()).await.unwrap();
            }
        });
    }
    test.run(10 * MS);
    stop
}

#[test]
fn commits_without_end_let_discards_and_writeback_free_entries() {
    let test = CacheFixture::live(16, "pause_writeback 60000");
    test.write_fua(800, 16, 1).unwrap();
    let stop = commit_without_end(&test);
    test.start("discard", |_| Io::on(Op::Discard, range(800, 8)));
    test.run(20 * MS);
    assert_eq!(test.ends.of("discard"), Some(Ok(())));
    let answer = test.start_message("flush");
    test.run(20 * MS);
    assert!(answer.take().is_some_and(|answer| answer.is_ok()));
    test.look(|_, state| assert_eq!(state.index.newest(101), None, "home, and free"));
    stop.set(true);
    test.settle();
}

#[test]
fn the_last_of_several_writes_under_way_opens_a_closed_block() {
    let test = CacheFixture::live(8, "pause_writeback 60000 writeback_jobs 1");
    test.write_fua(0, 8, 1).unwrap();
    for (name, duration) in [("first", 5), ("second", 10)] {
        test.cache.faults().add(slow(OpSet::WRITES, duration * MS).shots(1));
        test.start(name, |env| write_io(env, 0, 8, 2));
        test.run(MS / 100);
    }
    let answer = test.start_message("flush");
    test.run(MS);
    test.look(|_, state| assert!(state.closed.is_some()));
    test.start("waits", |env| write_io(env, 0, 8, 3));
    test.run(100 * MS);
    assert_eq!(test.ends.of("waits"), Some(Ok(())));
    assert!(answer.take().is_some_and(|answer| answer.is_ok()));
    assert_eq!(test.byte(0), 3);
}

#[test]
fn a_drain_keeps_within_its_memory() {
    let test = before_a_slow_origin("pause_writeback 60000");
    for block in 0..100 {
        test.write(block * 16, 8, 1).unwrap();
    }
    let answer = test.start_message("flush");
    let (mut most, mut lanes) = (0, 0);
    while answer.borrow().is_none() {
        assert!(test.sim.step());
        test.look(|cache, state| {
            assert!(cache.copier.used_bytes() <= copy_budget_bytes(&cache.config));
            most = most.max(cache.copier.used_bytes());
            lanes = lanes.max(state.lanes);
        });
    }
    assert!(lanes > 1 && lanes <= 32, "{lanes}");
    assert!(most >= 4096 * u64::from(lanes) / 2, "many copies at once: {most}");
}

#[test]
fn one_copy_at_a_time_while_reads_miss() {
    let test = before_a_slow_origin("pause_writeback 60000");
    for block in 0..60 {
        test.write(block * 16, 8, 1).unwrap();
    }
    let answer = test.start_message("flush");
    let mut most = 0;
    test.byte(62 * 16);
    test.run(20 * MS);
    while answer.borrow().is_none() {
        test.byte(62 * 16);
        test.run(5 * MS);
        test.look(|_, state| most = most.max(state.lanes));
    }
    assert!(most <= 1, "{most}");
}

/// A cache of 4000 slots before an origin of 32 MiB.
fn large(options: &str) -> CacheFixture {
    let test = CacheFixture::new(1 << 16, cache_sectors(4000, 4096));
    test.load(&table(1 << 16, 4096, &format!("{options} pause_writeback 0")));
    test
}

#[test]
fn limit_of_background_copies_slows_what_frees_blocks_and_nothing_that_was_asked_for() {
    let test = large("high_watermark 50 low_watermark 25");
    test.limit_background_after_a_turn(TURN_BYTES / 4);
    (0..3000).for_each(|block| test.write(block * 16, 8, 1).unwrap());
    let began = test.sim.now();
    test.run(1000 * MS);
    assert_eq!(test.status().dirty(), 3000);
    test.forget();
    test.run(8500 * MS);
    let blocks = 3000 - test.status().dirty();
    assert!((1024..=2 * 1024).contains(&blocks), "{blocks} since {began:?}");
    let flushes = test.seen("origin").iter().filter(|it| it.op == Op::Flush).count();
    assert!(flushes <= 8, "{flushes} of {blocks} blocks");
    test.in_no_time(|| test.message("flush")).unwrap();
    assert_eq!(test.status().dirty(), 0);
    test.check();
}

#[test]
fn suspend_waits_for_no_limit_and_writeback_goes_on_after_it() {
    for options in ["", "cleaner"] {
        let test = CacheFixture::live(20, &format!("high_watermark 50 low_watermark 25 {options}"));
        test.limit_background_after_a_turn(1);
        (0..10).for_each(|block| test.write(block * 16, 8, 1).unwrap());
        test.run(2000 * MS);
        test.in_no_time(|| test.suspend(SuspendMode::Flush));
        test.resume();
        assert_eq!(test.status().dirty(), if options.is_empty() { 10 } else { 0 });
        test.sim.env(0).post().background().set(&Default::default());
        test.write(10 * 16, 8, 1).unwrap();
        test.run(10 * MS);
        assert_eq!(test.status().dirty(), if options.is_empty() { 4 } else { 0 });
    }
}
