//! Durability: FUA, flushes, commits by count and by time, and their cost in operations.

use std::time::Duration;

use cairn_block::{Flags, Io, Op};
use cairn_sim::{Effect, Fault, OpSet};

use super::fixture::{CacheFixture, Seen, cache_sectors, range, table, write_io};

fn slot_start(slot: u64) -> u64 {
    8 + slot * 8
}

fn seen(op: Op, start: u64, count: u64) -> Seen {
    Seen { op, fua: false, start, count }
}

const FLUSH: Seen = Seen { op: Op::Flush, fua: false, start: 0, count: 0 };

fn delay(ops: OpSet, micros: u64) -> Fault {
    Fault { effect: Effect::Delay(Duration::from_micros(micros)), ..Fault::error(ops) }
}

#[test]
fn a_fua_write_completes_only_after_its_commit() {
    let test = CacheFixture::live(16, "");
    test.write(80, 8, 9).unwrap();
    assert_eq!(test.durable_entries(), []);
    test.write_fua(0, 8, 1).unwrap();
    // The commit takes along what had completed before.
    assert_eq!(test.durable_entries(), [(0, 0, 1), (80, 0, 9)]);
    let after = test.reopen_durable();
    after.load(&table(2048, 4096, ""));
    assert_eq!((after.byte(0), after.byte(80)), (1, 9));
}

#[test]
fn a_fua_overwrite_of_a_committed_block_is_one_fua_write() {
    let test = CacheFixture::live(16, "");
    test.write_fua(0, 8, 1).unwrap();
    test.forget();
    test.write_fua(0, 8, 2).unwrap();
    assert_eq!(test.seen("cache"), [Seen { fua: true, ..seen(Op::Write, slot_start(0), 8) }]);
    assert_eq!(test.durable_entries(), [(0, 0, 2)]);
}

#[test]
fn a_fua_overwrite_that_raced_with_a_commit_is_durable_when_it_completes() {
    for late_micros in [0, 30, 60, 90, 120, 150, 200] {
        let test = CacheFixture::live(16, "");
        test.write(0, 8, 1).unwrap();
        // The block is uncommitted when the overwrite begins, committed when it ends.
        test.cache.faults().add(delay(OpSet::WRITES, late_micros).on(range(slot_start(0), 8)));
        test.start("flush", |_| Io::flush());
        test.write_fua(0, 8, 2).unwrap();
        assert_eq!(test.durable_entries(), [(0, 0, 2)], "{late_micros} us late");
    }
}

#[test]
fn fua_writes_share_commits() {
    let test = CacheFixture::live(64, "");
    for block in 0..16 {
        test.start("fua", |env| write_io(env, block * 16, 8, 5).with(Flags::FUA));
    }
    test.settle();
    assert_eq!(test.ends.count(), 16);
    let superblocks = test.seen("cache").iter().filter(|op| op.fua && op.start == 0).count();
    assert!(superblocks <= 3, "{superblocks} commits");
    assert_eq!(test.durable_entries().len(), 16);
}

#[test]
fn blocks_are_committed_when_there_are_enough() {
    let test = CacheFixture::live(16, "autocommit_blocks 4");
    for block in 0..3 {
        test.write(block * 8, 8, 1).unwrap();
    }
    test.settle();
    assert_eq!(test.durable_entries().len(), 0);
    test.write(24, 8, 1).unwrap();
    test.settle();
    assert_eq!(test.durable_entries().len(), 4);
}

#[test]
fn blocks_are_committed_when_the_first_is_old_enough() {
    let test = CacheFixture::live(16, "autocommit_time 500");
    test.write(0, 8, 1).unwrap();
    test.run(Duration::from_millis(490));
    test.write(0, 8, 2).unwrap();
    test.write(8, 8, 2).unwrap();
    assert_eq!(test.durable_entries(), []);
    test.run(Duration::from_millis(15));
    assert_eq!(test.durable_entries(), [(0, 0, 2), (8, 0, 2)]);
}

#[test]
fn a_flush_of_nothing_new_costs_nothing() {
    let test = CacheFixture::live(16, "");
    test.write(0, 8, 1).unwrap();
    test.flush().unwrap();
    test.forget();
    test.flush().unwrap();
    test.read(0, 64).unwrap();
    test.flush().unwrap();
    test.run(Duration::from_secs(10));
    let writes = |ops: Vec<Seen>| ops.iter().filter(|seen| seen.op != Op::Read).count();
    assert_eq!((writes(test.seen("cache")), writes(test.seen("origin"))), (0, 0));
}

#[test]
fn a_flush_after_an_overwrite_in_place_only_flushes() {
    let test = CacheFixture::live(16, "");
    test.write(0, 8, 1).unwrap();
    test.flush().unwrap();
    test.forget();
    test.write(0, 8, 2).unwrap();
    assert_eq!(test.durable_entries(), [(0, 0, 1)]);
    test.flush().unwrap();
    assert_eq!(test.seen("cache"), [seen(Op::Write, slot_start(0), 8), FLUSH]);
    assert_eq!(test.durable_entries(), [(0, 0, 2)]);
    test.look(|_, state| assert_eq!(state.index.durable_seq.0, 1, "the seq stays"));
}

#[test]
fn a_commit_is_entries_flush_superblock() {
    let test = CacheFixture::live(16, "");
    test.write(0, 8, 1).unwrap();
    test.flush().unwrap();
    test.forget();
    test.write(8, 8, 1).unwrap();
    test.flush().unwrap();
    let superblock = Seen { fua: true, ..seen(Op::Write, 0, 8) };
    let data = seen(Op::Write, slot_start(1), 8);
    assert_eq!(test.seen("cache"), [data, seen(Op::Write, 0, 8), FLUSH, superblock]);
}

#[test]
fn a_flush_goes_to_the_origin_only_when_it_must() {
    let test = CacheFixture::live(16, "metadata_only");
    // What went there before this table was live is not known to be durable.
    test.flush().unwrap();
    assert_eq!(test.seen("origin"), [FLUSH]);
    test.io(|env| write_io(env, 0, 8, 1).with(Flags::META)).unwrap();
    test.flush().unwrap();
    assert_eq!(test.seen("origin"), []);
    test.write(80, 8, 2).unwrap();
    test.flush().unwrap();
    assert_eq!(test.seen("origin"), [seen(Op::Write, 80, 8), FLUSH]);
    test.flush().unwrap();
    assert_eq!(test.seen("origin"), []);
    test.on(Op::Discard, 160, 8).unwrap();
    test.flush().unwrap();
    assert_eq!(test.seen("origin"), [seen(Op::Discard, 160, 8), FLUSH]);
}

#[test]
fn a_flush_during_a_commit_covers_what_completed_before_it() {
    for micros in [10, 40, 60, 90, 110, 140, 160, 200] {
        let test = CacheFixture::live(16, "");
        test.write(0, 8, 1).unwrap();
        test.start("first", |_| Io::flush());
        test.start("write", |env| write_io(env, 8, 8, 2));
        test.run(Duration::from_micros(micros));
        if test.ends.of("write").is_none() {
            continue;
        }
        test.flush().unwrap();
        let blocks: Vec<_> = test.durable_entries().iter().map(|entry| entry.0).collect();
        assert_eq!(blocks, [0, 8], "a flush {micros} us later");
        test.check();
    }
}

#[test]
fn a_long_write_and_its_overwrite_are_one_request_each() {
    let test = CacheFixture::new(2048, cache_sectors(256, 4096));
    test.load(&table(2048, 4096, ""));
    test.forget();
    for byte in [1, 2] {
        test.write(0, 1024, byte).unwrap();
        let ops = test.seen("cache");
        assert_eq!(ops.len(), 1, "{ops:?}");
        assert_eq!((ops[0].op, ops[0].count), (Op::Write, 1024));
        test.flush().unwrap();
        test.forget();
    }
    test.read(0, 1024).unwrap();
    assert_eq!(test.seen("cache").len(), 1);
    assert_eq!(test.seen("origin"), []);
}

#[test]
fn the_status_counts_what_happened() {
    let test = CacheFixture::live(4, "pause_writeback 60000");
    test.write(0, 24, 1).unwrap(); // 3 allocated
    test.write(0, 16, 1).unwrap(); // 2 uncommitted hits
    test.flush().unwrap();
    test.write(8, 16, 1).unwrap(); // 2 committed hits
    test.write(32, 8, 1).unwrap(); // 1 allocated
    test.write(80, 24, 1).unwrap(); // 3 around
    test.read(16, 24).unwrap(); // 2 hits (16, 32) and a miss (24)
    test.on(Op::Discard, 800, 16).unwrap();
    assert_eq!(test.status().0, [0, 4, 0, 0, 3, 2, 11, 2, 2, 3, 4, 0, 1, 2]);
    test.message("CLEAR_STATS").unwrap();
    assert_eq!(test.status().counters(), [0; 10]);
    assert_eq!(test.status().dirty(), 4);
    assert_eq!(test.status().error(), 0);
}

#[test]
fn unknown_messages_are_refused() {
    let test = CacheFixture::live(4, "");
    let refused = test.message("polish").unwrap_err().to_string();
    let expected = "message: found 'polish', expected one of flush, flush_on_suspend, cleaner, \
                    clear_stats";
    assert_eq!(refused, expected);
    let target = test.target();
    let words = &["flush", "now"];
    let answer = test.sim.block_on(0, |env| async move { target.message(&env, words).await });
    assert_eq!(answer.unwrap_err().to_string(), "message: found 2 words, expected one");
}
