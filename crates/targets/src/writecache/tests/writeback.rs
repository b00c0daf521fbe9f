//! Which blocks are written back, when, and in what requests; and how writes to them are handled.

use std::time::Duration;

use cairn_block::{Flags, Op};
use cairn_sim::{Effect, Fault, OpSet};

use super::bed::{Bed, Seen, cache_sectors, initial_byte, slow, table, write_io};

const SECOND: Duration = Duration::from_secs(1);

fn slow_origin(bed: &Bed, duration: Duration) {
    bed.origin
        .faults()
        .add(Fault { effect: Effect::Delay(duration), ..Fault::error(OpSet::WRITES) });
}

/// First sector and length of the writes that the origin saw.
fn written(bed: &Bed) -> Vec<(u64, u64)> {
    let writes = bed.origin_ops().into_iter().filter(|seen| seen.op == Op::Write);
    writes.map(|seen| (seen.start, seen.count)).collect()
}

#[test]
fn writeback_starts_at_the_high_watermark_and_stops_at_the_low() {
    let bed = Bed::live(20, "high_watermark 50 low_watermark 25");
    for block in 0..9 {
        bed.write(block * 16, 8, 1).unwrap();
    }
    bed.run(SECOND * 2);
    assert_eq!(bed.status().dirty(), 9, "below the high watermark");
    bed.write(9 * 16, 8, 1).unwrap();
    bed.settle();
    assert_eq!(bed.status().dirty(), 4, "below the low watermark");
    bed.flush().unwrap();
    let left: Vec<_> = bed.durable_entries().iter().map(|entry| entry.0 / 16).collect();
    assert_eq!(left, [6, 7, 8, 9], "the oldest went first");
}

#[test]
fn the_least_recently_inserted_goes_first_and_overwrites_do_not_refresh() {
    let bed = Bed::live(20, "writeback_jobs 1");
    for block in [5, 1, 3] {
        bed.write(block * 16, 8, 1).unwrap();
    }
    bed.flush().unwrap();
    bed.write(5 * 16, 8, 2).unwrap();
    bed.message("flush").unwrap();
    assert_eq!(written(&bed), [(80, 8), (16, 8), (48, 8)]);
}

#[test]
fn fragmented_free_slots_are_joined_when_no_client_writes() {
    let options = "high_watermark 100 low_watermark 100 pause_writeback 30000";
    let bed = Bed::new(4096, cache_sectors(3000, 512));
    bed.load(&table(4096, 512, options));
    let slots = bed.status().free();
    bed.write(0, 2800, 1).unwrap();
    bed.flush().unwrap();
    for block in (0..2800).step_by(2) {
        bed.on(Op::Discard, block, 1).unwrap();
    }
    bed.forget();
    bed.run(SECOND * 10);
    assert_eq!(written(&bed).len(), 0, "the device has not been idle for long");
    bed.run(SECOND * 30);
    let gone = written(&bed).len() as u64;
    assert!(gone > 100 && gone < slots / 3 + 256, "{gone} of {slots}");
    assert_eq!(bed.status().dirty(), 1400 - gone);
    bed.look(|_, state| assert!(!state.index.is_cut_up(true)));
    bed.check();
    // What is left is read as before, and a large write is not cut.
    assert!((0..1400).all(|block| bed.read(block * 2 + 1, 1).unwrap() == [1; 512]));
    bed.forget();
    bed.write(3000, 512, 2).unwrap();
    let lengths: Vec<u64> = bed.cache_ops().iter().map(|seen| seen.count).collect();
    assert_eq!(lengths, [512]);
}

#[test]
fn slots_are_freed_in_ring_order() {
    let bed = Bed::live(64, "high_watermark 50 low_watermark 25");
    for block in (0..32).rev() {
        bed.write(block * 16, 8, 1).unwrap();
    }
    bed.run(SECOND * 2);
    bed.look(|_, state| {
        let held: Vec<u32> = state.index.runs().map(|run| run.slot).collect();
        assert_eq!(held, (17..32).collect::<Vec<u32>>());
    });
}

#[test]
fn neighbours_on_the_origin_are_written_back_in_one_request_and_one_flush() {
    let bed = Bed::live(16, "");
    for block in [5, 3, 4, 6, 100] {
        bed.write(block * 8, 8, block as u8).unwrap();
    }
    bed.flush().unwrap();
    bed.forget();
    bed.message("flush").unwrap();
    let ops = bed.origin_ops();
    assert_eq!(ops.iter().filter(|seen| seen.op == Op::Write).count(), 2, "{ops:?}");
    assert!(ops.contains(&Seen { op: Op::Write, fua: false, start: 24, count: 32 }));
    assert!(ops.iter().filter(|seen| seen.op == Op::Flush).count() <= 2);
    let origin = bed.origin.durable().to_vec();
    for block in [3, 4, 5, 6, 100] {
        assert_eq!(origin[block * 4096], block as u8);
    }
    assert_eq!(bed.status().dirty(), 0);
}

#[test]
fn a_run_of_writeback_is_cut_at_256_blocks() {
    let bed = Bed::new(2048, cache_sectors(600, 512));
    bed.load(&table(2048, 512, "pause_writeback 60000"));
    bed.write(0, 600, 3).unwrap();
    bed.flush().unwrap();
    bed.forget();
    bed.message("flush").unwrap();
    let mut writes = written(&bed);
    writes.sort_unstable();
    assert_eq!(writes, [(0, 256), (256, 256), (512, 88)]);
}

#[test]
fn blocks_older_than_max_age_are_written_back() {
    let bed = Bed::live(16, "max_age 16000");
    bed.write(0, 8, 1).unwrap();
    bed.run(SECOND * 10);
    bed.write(80, 8, 1).unwrap();
    bed.run(Duration::from_millis(4900));
    assert_eq!(bed.status().dirty(), 2);
    bed.run(Duration::from_millis(200));
    assert_eq!(bed.status().dirty(), 1, "15 s: 16 less a sixteenth");
    bed.run(SECOND * 10);
    assert_eq!(bed.status().dirty(), 0);
}

#[test]
fn a_cleaner_drains_and_caches_nothing_new() {
    for by_message in [true, false] {
        let bed = Bed::live(16, "");
        for block in 0..3 {
            bed.write(block * 16, 8, 1).unwrap();
        }
        bed.flush().unwrap();
        if by_message {
            bed.message("cleaner").unwrap();
        } else {
            bed.load(&table(2048, 4096, "cleaner"));
        }
        slow_origin(&bed, Duration::from_millis(5));
        bed.write(160, 8, 4).unwrap();
        assert_eq!(bed.status().named("writes_around"), 1);
        bed.settle();
        assert_eq!(bed.status().dirty(), 0);
        assert_eq!((bed.byte(0), bed.byte(16), bed.byte(32), bed.byte(160)), (1, 1, 1, 4));
        bed.check();
    }
}

#[test]
fn a_pause_delays_writeback_but_not_the_flush_message() {
    let bed = Bed::live(4, "pause_writeback 2000");
    bed.write(0, 32, 1).unwrap();
    bed.run(Duration::from_millis(1900));
    assert_eq!(bed.status().dirty(), 4, "the clock also starts with the table");
    bed.write(160, 8, 2).unwrap();
    assert_eq!(bed.status().named("writes_around"), 1);
    bed.run(Duration::from_millis(1950));
    assert_eq!(bed.status().dirty(), 4, "a write went around");
    bed.run(Duration::from_millis(100));
    assert!(bed.status().dirty() < 4);
    bed.write(240, 32, 3).unwrap();
    bed.message("flush").unwrap();
    assert_eq!(bed.status().dirty(), 0);
}

#[test]
fn a_full_cache_is_written_around() {
    let bed = Bed::live(4, "pause_writeback 60000");
    bed.write(0, 48, 5).unwrap();
    let status = bed.status();
    assert_eq!((status.named("writes_allocated"), status.named("writes_around")), (4, 2));
    assert!(bed.read(0, 48).unwrap().iter().all(|&byte| byte == 5));
    bed.write(0, 8, 6).unwrap();
    assert_eq!(bed.byte(0), 6, "what is cached is never passed by");
    bed.write_fua(80, 8, 7).unwrap();
    assert_eq!(bed.origin.durable().to_vec()[80 * 512], 7);
}

#[test]
fn a_write_to_a_block_in_writeback_takes_a_new_slot() {
    let bed = Bed::live(4, "pause_writeback 60000");
    bed.write_fua(0, 8, 1).unwrap();
    slow_origin(&bed, Duration::from_millis(5));
    let answer = bed.start_message("flush");
    bed.run(Duration::from_millis(1));
    assert_eq!(bed.status().0[3], 1, "in writeback");
    bed.write(0, 8, 2).unwrap();
    assert!(answer.borrow().is_none(), "it did not wait");
    assert_eq!((bed.status().named("writes_allocated"), bed.byte(0)), (2, 2));
    bed.flush().unwrap();
    bed.check();
    bed.settle();
    assert!(answer.take().unwrap().is_ok());
    assert_eq!(bed.origin.durable().to_vec()[0], 1, "what it held then went home");
    assert_eq!((bed.status().dirty(), bed.byte(0)), (1, 2));
    bed.message("flush").unwrap();
    assert_eq!(bed.origin.durable().to_vec()[0], 2);
}

#[test]
fn a_write_to_a_block_in_writeback_waits_without_a_free_slot() {
    let bed = Bed::live(1, "pause_writeback 60000");
    bed.write_fua(0, 8, 1).unwrap();
    slow_origin(&bed, Duration::from_millis(5));
    let answer = bed.start_message("flush");
    bed.run(Duration::from_millis(1));
    bed.start("write", |env| write_io(env, 0, 8, 2));
    bed.run(Duration::from_millis(1));
    assert_eq!(bed.ends.of("write"), None);
    assert_eq!(bed.status().named("writes_blocked_on_freelist"), 1);
    assert_eq!(bed.byte(0), 1);
    bed.settle();
    assert_eq!(bed.ends.of("write"), Some(Ok(())));
    assert!(answer.take().is_some_and(|answer| answer.is_ok()));
    assert_eq!((bed.byte(0), bed.origin.durable().to_vec()[0]), (2, 1));
}

#[test]
fn entries_are_freed_only_after_the_origin_has_them_durably() {
    let bed = Bed::live(8, "");
    bed.write_fua(0, 8, 1).unwrap();
    let answer = bed.start_message("flush");
    while answer.borrow().is_none() {
        assert!(bed.sim.step());
        let home = bed.origin.durable().to_vec()[0] == 1;
        assert!(home || !bed.durable_entries().is_empty(), "I4");
        bed.check();
    }
    assert_eq!(bed.durable_entries(), []);
    assert!(bed.origin.durable().to_vec()[0] == 1);
}

#[test]
fn metadata_only_caches_only_metadata() {
    let bed = Bed::live(8, "metadata_only");
    bed.write(0, 8, 1).unwrap();
    bed.io(|env| write_io(env, 80, 8, 2).with(Flags::META)).unwrap();
    let status = bed.status();
    assert_eq!((status.named("writes_around"), status.named("writes_allocated")), (1, 1));
    bed.write(80, 8, 3).unwrap();
    assert_eq!((bed.status().dirty(), bed.byte(80), bed.byte(0)), (1, 3, 1));
    assert_eq!(bed.byte(160), initial_byte(160));
}

#[test]
fn a_table_for_persistent_memory_writes_back_with_fua_and_needs_no_flush() {
    for (option, fua) in [("0", true), ("1 fua", true), ("1 nofua", false)] {
        let bed = Bed::new(2048, cache_sectors(16, 4096));
        bed.load(&format!("0 2048 writecache p origin cache 4096 {option}"));
        bed.write(0, 8, 1).unwrap();
        bed.flush().unwrap();
        bed.forget();
        bed.message("flush").unwrap();
        let write = Seen { op: Op::Write, fua, start: 0, count: 8 };
        let flush = Seen { op: Op::Flush, fua: false, start: 0, count: 0 };
        let expected = if fua { vec![write] } else { vec![write, flush] };
        assert_eq!(bed.origin_ops(), expected, "{option}");
        assert_eq!(bed.origin.durable().to_vec()[0], 1);
    }
}

#[test]
fn no_more_blocks_than_writeback_jobs_are_in_writeback() {
    let bed = Bed::live(16, "writeback_jobs 3 pause_writeback 60000");
    for block in 0..12 {
        bed.write(block * 8, 8, 1).unwrap();
    }
    bed.flush().unwrap();
    let answer = bed.start_message("flush");
    let mut most = 0;
    while answer.borrow().is_none() {
        assert!(bed.sim.step());
        most = most.max(bed.status().0[3]);
    }
    assert_eq!(most, 3);
}

#[test]
fn a_flush_message_takes_a_block_whose_overwrite_was_under_way() {
    let bed = Bed::live(4, "pause_writeback 60000");
    bed.write_fua(0, 8, 1).unwrap();
    bed.cache.faults().add(slow(OpSet::WRITES, Duration::from_millis(5)).shots(1));
    bed.start("overwrite", |env| write_io(env, 0, 8, 2));
    let answer = bed.start_message("flush");
    bed.run(Duration::from_secs(1));
    assert!(answer.borrow().is_some(), "nothing else wakes the keeper");
    assert_eq!(bed.status().dirty(), 0);
}

#[test]
fn an_old_block_is_written_back_when_the_overwrite_in_flight_has_ended() {
    let bed = Bed::live(4, "pause_writeback 0 max_age 1000");
    bed.write_fua(0, 8, 1).unwrap();
    bed.cache.faults().add(slow(OpSet::WRITES, Duration::from_millis(1500)).shots(1));
    bed.start("overwrite", |env| write_io(env, 0, 8, 2));
    bed.run(Duration::from_secs(2));
    assert_eq!(bed.status().dirty(), 0);
}
