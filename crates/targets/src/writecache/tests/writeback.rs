//! Which blocks are written back, when, and in what requests; and how writes to them are handled.

use std::time::Duration;

use cairn_block::{Flags, Op};
use cairn_sim::{Effect, Fault, OpSet};

use super::fixture::{CacheFixture, Seen, cache_sectors, initial_byte, slow, table, write_io};

const SECOND: Duration = Duration::from_secs(1);

fn slow_origin(test: &CacheFixture, duration: Duration) {
    test.origin
        .faults()
        .add(Fault { effect: Effect::Delay(duration), ..Fault::error(OpSet::WRITES) });
}

/// First sector and length of the writes that the origin saw.
fn written(test: &CacheFixture) -> Vec<(u64, u64)> {
    let writes = test.seen("origin").into_iter().filter(|seen| seen.op == Op::Write);
    writes.map(|seen| (seen.start, seen.count)).collect()
}

#[test]
fn writeback_starts_at_the_high_watermark_and_stops_at_the_low() {
    let test = CacheFixture::live(20, "high_watermark 50 low_watermark 25");
    for block in 0..9 {
        test.write(block * 16, 8, 1).unwrap();
    }
    test.run(SECOND * 2);
    assert_eq!(test.status().dirty(), 9, "below the high watermark");
    test.write(9 * 16, 8, 1).unwrap();
    test.settle();
    assert_eq!(test.status().dirty(), 4, "below the low watermark");
    test.flush().unwrap();
    let left: Vec<_> = test.durable_entries().iter().map(|entry| entry.0 / 16).collect();
    assert_eq!(left, [6, 7, 8, 9], "the oldest went first");
}

#[test]
fn the_least_recently_inserted_goes_first_and_overwrites_do_not_refresh() {
    let test = CacheFixture::live(20, "writeback_jobs 1");
    for block in [5, 1, 3] {
        test.write(block * 16, 8, 1).unwrap();
    }
    test.flush().unwrap();
    test.write(5 * 16, 8, 2).unwrap();
    test.message("flush").unwrap();
    assert_eq!(written(&test), [(80, 8), (16, 8), (48, 8)]);
}

#[test]
fn fragmented_free_slots_are_joined_when_no_client_writes() {
    let options = "high_watermark 100 low_watermark 100 pause_writeback 30000";
    let test = CacheFixture::new(4096, cache_sectors(3000, 512));
    test.load(&table(4096, 512, options));
    let slots = test.status().free();
    test.write(0, 2800, 1).unwrap();
    test.flush().unwrap();
    for block in (0..2800).step_by(2) {
        test.on(Op::Discard, block, 1).unwrap();
    }
    test.forget();
    test.run(SECOND * 10);
    assert_eq!(written(&test).len(), 0, "the device has not been idle for long");
    test.run(SECOND * 30);
    let gone = written(&test).len() as u64;
    assert!(gone > 100 && gone < slots / 3 + 256, "{gone} of {slots}");
    assert_eq!(test.status().dirty(), 1400 - gone);
    test.look(|_, state| assert!(!state.index.is_cut_up(true)));
    test.check();
    // What is left is read as before, and a large write is not cut.
    assert!((0..1400).all(|block| test.read(block * 2 + 1, 1).unwrap() == [1; 512]));
    test.forget();
    test.write(3000, 512, 2).unwrap();
    let lengths: Vec<u64> = test.seen("cache").iter().map(|seen| seen.count).collect();
    assert_eq!(lengths, [512]);
}

#[test]
fn slots_are_freed_in_ring_order() {
    let test = CacheFixture::live(64, "high_watermark 50 low_watermark 25");
    for block in (0..32).rev() {
        test.write(block * 16, 8, 1).unwrap();
    }
    test.run(SECOND * 2);
    test.look(|_, state| {
        let held: Vec<u32> = state.index.runs().map(|run| run.slot).collect();
        assert_eq!(held, (17..32).collect::<Vec<u32>>());
    });
}

#[test]
fn neighbours_on_the_origin_are_written_back_in_one_request_and_one_flush() {
    let test = CacheFixture::live(16, "");
    for block in [5, 3, 4, 6, 100] {
        test.write(block * 8, 8, block as u8).unwrap();
    }
    test.flush().unwrap();
    test.forget();
    test.message("flush").unwrap();
    let ops = test.seen("origin");
    assert_eq!(ops.iter().filter(|seen| seen.op == Op::Write).count(), 2, "{ops:?}");
    assert!(ops.contains(&Seen { op: Op::Write, fua: false, start: 24, count: 32 }));
    assert!(ops.iter().filter(|seen| seen.op == Op::Flush).count() <= 2);
    let origin = test.origin.durable().to_vec();
    for block in [3, 4, 5, 6, 100] {
        assert_eq!(origin[block * 4096], block as u8);
    }
    assert_eq!(test.status().dirty(), 0);
}

#[test]
fn a_run_of_writeback_is_cut_at_256_blocks() {
    let test = CacheFixture::new(2048, cache_sectors(600, 512));
    test.load(&table(2048, 512, "pause_writeback 60000"));
    test.write(0, 600, 3).unwrap();
    test.flush().unwrap();
    test.forget();
    test.message("flush").unwrap();
    let mut writes = written(&test);
    writes.sort_unstable();
    assert_eq!(writes, [(0, 256), (256, 256), (512, 88)]);
}

#[test]
fn blocks_older_than_max_age_are_written_back() {
    let test = CacheFixture::live(16, "max_age 16000");
    test.write(0, 8, 1).unwrap();
    test.run(SECOND * 10);
    test.write(80, 8, 1).unwrap();
    test.run(Duration::from_millis(4900));
    assert_eq!(test.status().dirty(), 2);
    test.run(Duration::from_millis(200));
    assert_eq!(test.status().dirty(), 1, "15 s: 16 less a sixteenth");
    test.run(SECOND * 10);
    assert_eq!(test.status().dirty(), 0);
}

#[test]
fn the_age_of_dirty_data_is_that_of_the_oldest_left_and_what_is_copied_is_counted() {
    let test = CacheFixture::live(16, "");
    let age = || {
        let dirty = test.target().dirty()?;
        Some(test.sim.now().since(dirty.since?).as_secs())
    };
    assert_eq!(age(), None);
    test.write(0, 8, 1).unwrap();
    test.flush().unwrap();
    test.run(SECOND * 3600);
    assert_eq!(age(), Some(3600));
    test.write(80, 8, 1).unwrap();
    test.run(SECOND * 100);
    assert_eq!(age(), Some(3700));
    // A block that is written again has been dirty since its first write; one that was copied
    // counts no more.
    test.write(0, 8, 2).unwrap();
    assert_eq!((age(), test.target().written_back().0), (Some(3700), 0));
    test.message("flush").unwrap();
    assert_eq!((age(), test.target().written_back().0), (None, 16));
    test.write(160, 8, 3).unwrap();
    test.run(SECOND * 100);
    assert_eq!(age(), Some(100));
}

#[test]
fn a_cleaner_drains_and_caches_nothing_new() {
    for by_message in [true, false] {
        let test = CacheFixture::live(16, "");
        for block in 0..3 {
            test.write(block * 16, 8, 1).unwrap();
        }
        test.flush().unwrap();
        if by_message {
            test.message("cleaner").unwrap();
        } else {
            test.load(&table(2048, 4096, "cleaner"));
        }
        slow_origin(&test, Duration::from_millis(5));
        test.write(160, 8, 4).unwrap();
        assert_eq!(test.status().named("writes_around"), 1);
        test.settle();
        assert_eq!(test.status().dirty(), 0);
        assert_eq!((test.byte(0), test.byte(16), test.byte(32), test.byte(160)), (1, 1, 1, 4));
        test.check();
    }
}

#[test]
fn a_pause_delays_writeback_but_not_the_flush_message() {
    let test = CacheFixture::live(4, "pause_writeback 2000");
    test.write(0, 32, 1).unwrap();
    test.run(Duration::from_millis(1900));
    assert_eq!(test.status().dirty(), 4, "the clock also starts with the table");
    test.write(160, 8, 2).unwrap();
    assert_eq!(test.status().named("writes_around"), 1);
    test.run(Duration::from_millis(1950));
    assert_eq!(test.status().dirty(), 4, "a write went around");
    test.run(Duration::from_millis(100));
    assert!(test.status().dirty() < 4);
    test.write(240, 32, 3).unwrap();
    test.message("flush").unwrap();
    assert_eq!(test.status().dirty(), 0);
}

#[test]
fn a_full_cache_is_written_around() {
    let test = CacheFixture::live(4, "pause_writeback 60000");
    test.write(0, 48, 5).unwrap();
    let status = test.status();
    assert_eq!((status.named("writes_allocated"), status.named("writes_around")), (4, 2));
    assert!(test.read(0, 48).unwrap().iter().all(|&byte| byte == 5));
    test.write(0, 8, 6).unwrap();
    assert_eq!(test.byte(0), 6, "what is cached is never passed by");
    test.write_fua(80, 8, 7).unwrap();
    assert_eq!(test.origin.durable().to_vec()[80 * 512], 7);
}

#[test]
fn a_write_to_a_block_in_writeback_takes_a_new_slot() {
    let test = CacheFixture::live(4, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    slow_origin(&test, Duration::from_millis(5));
    let answer = test.start_message("flush");
    test.run(Duration::from_millis(1));
    assert_eq!(test.status().0[3], 1, "in writeback");
    test.write(0, 8, 2).unwrap();
    assert!(answer.borrow().is_none(), "it did not wait");
    assert_eq!((test.status().named("writes_allocated"), test.byte(0)), (2, 2));
    test.flush().unwrap();
    test.check();
    test.settle();
    assert!(answer.take().unwrap().is_ok());
    assert_eq!(test.origin.durable().to_vec()[0], 1, "what it held then went home");
    assert_eq!((test.status().dirty(), test.byte(0)), (1, 2));
    test.message("flush").unwrap();
    assert_eq!(test.origin.durable().to_vec()[0], 2);
}

#[test]
fn a_write_to_a_block_in_writeback_waits_without_a_free_slot() {
    let test = CacheFixture::live(1, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    slow_origin(&test, Duration::from_millis(5));
    let answer = test.start_message("flush");
    test.run(Duration::from_millis(1));
    test.start("write", |env| write_io(env, 0, 8, 2));
    test.run(Duration::from_millis(1));
    assert_eq!(test.ends.of("write"), None);
    assert_eq!(test.status().named("writes_blocked_on_freelist"), 1);
    assert_eq!(test.byte(0), 1);
    test.settle();
    assert_eq!(test.ends.of("write"), Some(Ok(())));
    assert!(answer.take().is_some_and(|answer| answer.is_ok()));
    assert_eq!((test.byte(0), test.origin.durable().to_vec()[0]), (2, 1));
}

#[test]
fn entries_are_freed_only_after_the_origin_has_them_durably() {
    let test = CacheFixture::live(8, "");
    test.write_fua(0, 8, 1).unwrap();
    let answer = test.start_message("flush");
    while answer.borrow().is_none() {
        assert!(test.sim.step());
        let home = test.origin.durable().to_vec()[0] == 1;
        assert!(home || !test.durable_entries().is_empty(), "I4");
        test.check();
    }
    assert_eq!(test.durable_entries(), []);
    assert!(test.origin.durable().to_vec()[0] == 1);
}

#[test]
fn metadata_only_caches_only_metadata() {
    let test = CacheFixture::live(8, "metadata_only");
    test.write(0, 8, 1).unwrap();
    test.io(|env| write_io(env, 80, 8, 2).with(Flags::META)).unwrap();
    let status = test.status();
    assert_eq!((status.named("writes_around"), status.named("writes_allocated")), (1, 1));
    test.write(80, 8, 3).unwrap();
    assert_eq!((test.status().dirty(), test.byte(80), test.byte(0)), (1, 3, 1));
    assert_eq!(test.byte(160), initial_byte(160));
}

#[test]
fn a_table_for_persistent_memory_writes_back_with_fua_and_needs_no_flush() {
    for (option, fua) in [("0", true), ("1 fua", true), ("1 nofua", false)] {
        let test = CacheFixture::new(2048, cache_sectors(16, 4096));
        test.load(&format!("0 2048 writecache p origin cache 4096 {option}"));
        test.write(0, 8, 1).unwrap();
        test.flush().unwrap();
        test.forget();
        test.message("flush").unwrap();
        let write = Seen { op: Op::Write, fua, start: 0, count: 8 };
        let flush = Seen { op: Op::Flush, fua: false, start: 0, count: 0 };
        let expected = if fua { vec![write] } else { vec![write, flush] };
        assert_eq!(test.seen("origin"), expected, "{option}");
        assert_eq!(test.origin.durable().to_vec()[0], 1);
    }
}

#[test]
fn no_more_blocks_than_writeback_jobs_are_in_writeback() {
    let test = CacheFixture::live(16, "writeback_jobs 3 pause_writeback 60000");
    for block in 0..12 {
        test.write(block * 8, 8, 1).unwrap();
    }
    test.flush().unwrap();
    let answer = test.start_message("flush");
    let mut most = 0;
    while answer.borrow().is_none() {
        assert!(test.sim.step());
        most = most.max(test.status().0[3]);
    }
    assert_eq!(most, 3);
}

#[test]
fn a_flush_message_takes_a_block_whose_overwrite_was_under_way() {
    let test = CacheFixture::live(4, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    test.cache.faults().add(slow(OpSet::WRITES, Duration::from_millis(5)).shots(1));
    test.start("overwrite", |env| write_io(env, 0, 8, 2));
    let answer = test.start_message("flush");
    test.run(Duration::from_secs(1));
    assert!(answer.borrow().is_some(), "nothing else wakes the keeper");
    assert_eq!(test.status().dirty(), 0);
}

#[test]
fn an_old_block_is_written_back_when_the_overwrite_in_flight_has_ended() {
    let test = CacheFixture::live(4, "pause_writeback 0 max_age 1000");
    test.write_fua(0, 8, 1).unwrap();
    test.cache.faults().add(slow(OpSet::WRITES, Duration::from_millis(1500)).shots(1));
    test.start("overwrite", |env| write_io(env, 0, 8, 2));
    test.run(Duration::from_secs(2));
    assert_eq!(test.status().dirty(), 0);
}
