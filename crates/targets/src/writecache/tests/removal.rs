//! Discard and write-zeroes.

use std::time::Duration;

use cairn_block::{Flags, Io, Op};
use cairn_sim::{Effect, Fault, OpSet};

use super::super::WriteCache;
use super::super::index::LEAVING;
use super::fixture::{
    CacheFixture, cache_sectors, committed, initial_byte, range, slow, table, write_io,
};

fn slow_origin(test: &CacheFixture, duration: Duration) {
    test.origin
        .faults()
        .add(Fault { effect: Effect::Delay(duration), ..Fault::error(OpSet::WRITES) });
}

#[test]
fn a_discard_frees_what_is_committed_and_what_is_not() {
    let test = CacheFixture::live(8, "pause_writeback 60000");
    test.write_fua(0, 16, 1).unwrap();
    test.write(16, 8, 2).unwrap();
    test.write(48, 8, 3).unwrap();
    test.on(Op::Discard, 8, 40).unwrap();
    assert_eq!(test.status().dirty(), 2);
    assert_eq!(test.status().named("discards"), 5);
    test.flush().unwrap();
    let blocks: Vec<_> = test.durable_entries().iter().map(|entry| entry.0).collect();
    assert_eq!(blocks, [0, 48]);
    assert_eq!((test.byte(0), test.byte(48)), (1, 3));
    assert!(test.seen("origin").iter().any(|op| op.op == Op::Discard && op.count == 40));
    test.check();
}

#[test]
fn entries_are_freed_durably_before_a_discard_reaches_the_origin() {
    let test = CacheFixture::live(8, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    test.forget();
    test.start("discard", |_| Io::on(Op::Discard, range(0, 8)));
    while test.ends.of("discard").is_none() {
        assert!(test.sim.step());
        let discarded = test.seen("origin").iter().any(|op| op.op == Op::Discard);
        assert!(!discarded || test.durable_entries().is_empty());
    }
    assert_eq!(test.durable_entries(), []);
}

#[test]
fn a_block_in_writeback_survives_a_discard() {
    let test = CacheFixture::live(8, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    slow_origin(&test, Duration::from_millis(5));
    let answer = test.start_message("flush");
    test.run(Duration::from_millis(1));
    test.start("discard", |_| Io::on(Op::Discard, range(0, 16)));
    test.run(Duration::from_millis(1));
    assert_eq!((test.status().dirty(), test.byte(0)), (1, 1));
    test.settle();
    assert_eq!(test.ends.of("discard"), Some(Ok(())));
    assert!(answer.take().unwrap().is_ok());
    assert_eq!(test.status().dirty(), 0);
    test.check();
}

#[test]
fn short_write_zeroes_go_into_the_cache() {
    let test = CacheFixture::live(64, "pause_writeback 60000");
    test.write(0, 8, 1).unwrap();
    test.forget();
    test.on(Op::WriteZeroes, 0, 128).unwrap();
    assert_eq!(test.seen("origin"), []);
    let writes: Vec<_> = test.seen("cache").iter().map(|op| (op.op, op.count)).collect();
    assert_eq!(writes, [(Op::Write, 8), (Op::Write, 120)], "an overwrite and a fill");
    assert!(test.read(0, 128).unwrap().iter().all(|&byte| byte == 0));
    assert_eq!(test.status().dirty(), 16);
    test.io(|_| Io::on(Op::WriteZeroes, range(160, 8)).with(Flags::FUA)).unwrap();
    assert_eq!(test.durable_entries().len(), 17, "a commit came first");
}

#[test]
fn long_write_zeroes_zero_the_origin_durably_and_free_the_blocks() {
    let test = CacheFixture::live(64, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    test.write(32, 16, 2).unwrap();
    test.write_fua(256, 8, 3).unwrap();
    test.on(Op::WriteZeroes, 0, 256).unwrap();
    assert!(test.origin.durable().to_vec()[..256 * 512].iter().all(|&byte| byte == 0));
    assert_eq!(test.durable_entries().iter().map(|entry| entry.0).collect::<Vec<_>>(), [256]);
    assert!(test.read(0, 256).unwrap().iter().all(|&byte| byte == 0));
    assert_eq!((test.byte(256), test.byte(264)), (3, initial_byte(264)));
    assert_eq!(test.status().named("writes_around"), 32);
    let after = test.reopen_durable();
    after.load(&table(2048, 4096, ""));
    assert!(after.read(0, 256).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn until_long_write_zeroes_end_a_crash_leaves_old_or_zero() {
    let test = CacheFixture::live(64, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    test.start("zero", |_| Io::on(Op::WriteZeroes, range(0, 256)));
    while test.ends.of("zero").is_none() {
        assert!(test.sim.step());
        let cached = test.durable_entries().contains(&(0, 0, 1));
        assert!(cached || test.origin.durable().to_vec()[0] == 0);
        test.check();
    }
}

#[test]
fn writes_and_removals_wait_for_an_overlapping_removal() {
    let test = CacheFixture::live(64, "pause_writeback 60000");
    test.write_fua(0, 64, 1).unwrap();
    slow_origin(&test, Duration::from_millis(2));
    test.start("zero", |_| Io::on(Op::WriteZeroes, range(0, 256)));
    test.run(Duration::from_micros(100));
    test.start("write", |env| write_io(env, 248, 16, 2));
    test.start("apart", |env| write_io(env, 512, 8, 3));
    test.start("again", |_| Io::on(Op::WriteZeroes, range(128, 256)));
    assert_eq!(test.byte(8), 1, "reads do not wait");
    test.settle();
    let order = test.ends.labels();
    assert_eq!((order[0], order[1]), ("apart", "zero"), "{order:?}");
    assert_eq!(test.ends.count(), 4);
    assert!(test.read(0, 248).unwrap().iter().all(|&byte| byte == 0));
    // The write and the second removal overlap: either may be the last.
    assert!([0, 2].contains(&test.byte(248)));
    assert_eq!(test.byte(512), 3);
    test.check();
}

#[test]
fn write_zeroes_that_must_be_fast_go_to_the_origin_whatever_their_length() {
    let test = CacheFixture::live(8, "");
    test.forget();
    test.io(|_| Io::on(Op::WriteZeroes, range(0, 8)).with(Flags::FAST_ZERO)).unwrap();
    assert!(test.seen("origin").iter().any(|op| op.op == Op::WriteZeroes));
    assert_eq!((test.byte(0), test.status().dirty()), (0, 0));
}

#[test]
fn write_zeroes_that_fail_leave_the_blocks_usable() {
    let test = CacheFixture::live(64, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    test.origin.faults().add(Fault::error(OpSet::WRITES).shots(1));
    test.on(Op::WriteZeroes, 0, 256).unwrap_err();
    assert_eq!(test.byte(0), 1);
    test.write(0, 8, 2).unwrap();
    test.message("flush").unwrap();
    assert_eq!((test.byte(0), test.status().error()), (2, 0));
    test.check();
}

#[test]
fn no_read_returns_an_older_version_during_write_zeroes() {
    let test = CacheFixture::live(8, "pause_writeback 60000");
    test.cache.faults().add(slow(OpSet::WRITES, Duration::from_millis(3)).shots(1));
    test.start("late", |env| write_io(env, 0, 8, 2));
    test.start("early", |env| write_io(env, 0, 8, 1));
    test.run(Duration::from_millis(1));
    test.flush().unwrap();
    test.run(Duration::from_millis(10));
    assert_eq!(test.byte(0), 2, "uncommitted, on top of a committed version");
    test.cache.faults().add(slow(OpSet::FLUSHES, Duration::from_millis(5)));
    test.start("zero", |_| Io::on(Op::WriteZeroes, range(0, 256)));
    while test.ends.of("zero").is_none() {
        assert_ne!(test.byte(0), 1);
        test.run(Duration::from_micros(100));
    }
    assert_eq!(test.byte(0), 0);
}

#[test]
fn a_slot_reused_while_its_entry_was_freed_keeps_its_new_block() {
    let test = CacheFixture::live(4, "pause_writeback 60000");
    // Three fills of one block: the first ends and is committed, the second lies over it
    // uncommitted, the third ends while a discard frees their entries.
    for (name, millis) in [("third", 20), ("second", 3)] {
        let fault = slow(OpSet::WRITES, Duration::from_millis(millis)).shots(1);
        test.cache.faults().add(fault);
        test.start(name, |env| write_io(env, 0, 8, 2));
        test.run(Duration::from_micros(10));
    }
    test.start("first", |env| write_io(env, 0, 8, 1));
    test.run(Duration::from_millis(1));
    test.flush().unwrap();
    test.run(Duration::from_millis(9));
    let freed = test.look(|_, state| state.index.newest(0));
    test.cache.faults().add(slow(OpSet::FLUSHES, Duration::from_millis(30)).shots(1));
    test.start("discard", |_| Io::on(Op::Discard, range(0, 8)));
    test.run(Duration::from_millis(15));
    assert!(test.ends.of("third").is_some() && test.ends.of("discard").is_none());
    test.write(80, 8, 7).unwrap();
    test.write(160, 8, 8).unwrap();
    let block =
        test.look(|_, state| state.index.at(freed.expect("the second")).map(|run| run.block));
    let (sector, byte) = if block == Some(10) { (80, 7) } else { (160, 8) };
    assert!([Some(10), Some(20)].contains(&block), "the slot is somebody else's: {block:?}");
    // Zeros come to the new owner, too, and take their time.
    slow_origin(&test, Duration::from_millis(50));
    let zero = Io::on(Op::WriteZeroes, range(sector, 8)).with(Flags::FAST_ZERO);
    test.start("zero", |_| zero);
    test.run(Duration::from_millis(20));
    assert_eq!((test.durable_entries(), test.ends.of("zero")), (vec![], None));
    assert_eq!(test.byte(sector), byte, "it was not dropped with the one before");
    test.check();
    test.run(Duration::from_millis(100));
    assert_eq!(test.byte(sector), 0);
}

#[test]
fn slots_that_emptied_before_their_entries_were_freed_are_passed_over() {
    let test = CacheFixture::live(4, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    let target = test.target();
    let freed = test.sim.block_on(0, |env| async move {
        let cache: &WriteCache = target.as_any().and_then(|any| any.downcast_ref()).unwrap();
        let mut metadata = cache.metadata.lock().await;
        cache.free_entries(&env, &mut metadata, vec![(0, 1), (3, 1)]).await
    });
    freed.unwrap();
    assert_eq!((test.status().dirty(), test.durable_entries()), (0, vec![]));
    test.check();
}

#[test]
fn an_older_version_never_outlives_a_newer_one_that_zeros_replace() {
    let test = CacheFixture::new(2048, cache_sectors(600, 512));
    test.load(&table(2048, 512, "pause_writeback 60000"));
    for start in [0, 2, 4] {
        test.write_fua(start, 1, 1).unwrap();
    }
    let far = slow(OpSet::WRITES, Duration::from_millis(200)).on(range(2, 1));
    test.origin.faults().add(far);
    // While reads miss, one goes home after the other.
    test.read(1900, 1).unwrap();
    let _answer = test.start_message("flush");
    // The first is on the origin and waits for the others; its newer version is committed, and in
    // another granule.
    test.run(Duration::from_millis(5));
    test.write(1000, 512, 2).unwrap();
    test.write(0, 1, 3).unwrap();
    test.io(|env| write_io(env, 0, 1, 3).with(Flags::FUA)).unwrap();
    test.origin.faults().add(Fault::error(OpSet::FLUSHES).shots(1));
    test.flush().unwrap_err();
    let versions = |blocks: &[(u64, u64, u8)]| -> Vec<u8> {
        blocks.iter().filter(|entry| entry.0 == 0).map(|entry| entry.2).collect()
    };
    assert_eq!(versions(&test.durable_entries()), [1, 3]);
    let fast = Io::on(Op::WriteZeroes, range(0, 1)).with(Flags::FAST_ZERO);
    test.start("zero", |_| fast);
    let mut rng = fastrand::Rng::with_seed(1);
    while test.ends.of("zero").is_none() {
        assert!(test.sim.step());
        for _ in 0..8 {
            let left = committed(&test.cache.power_cut(&mut rng).to_vec());
            assert_ne!(versions(&left), [1], "neither what was flushed nor zero");
        }
        test.check();
    }
    assert!(versions(&test.durable_entries()).is_empty());
}

#[test]
fn the_reactor_serves_other_requests_during_a_long_removal() {
    let sectors = 12_288;
    for op in [Op::Discard, Op::WriteZeroes] {
        let test = CacheFixture::new(sectors, cache_sectors(sectors + 64, 512));
        test.load(&table(sectors, 512, "pause_writeback 60000"));
        for start in (0..sectors).step_by(256) {
            test.write(start, 256, 1).unwrap();
        }
        test.flush().unwrap();
        assert_eq!(test.status().dirty(), sectors);
        test.start("removal", |_| Io::on(op, range(0, sectors)));
        let mut in_part = false;
        while test.ends.of("removal").is_none() {
            assert!(test.sim.step());
            test.look(|_, state| {
                let leaving = state.index.runs().filter(|run| run.has(LEAVING));
                let leaving: u32 = leaving.map(|run| run.len).sum();
                in_part |= (1..sectors).contains(&u64::from(leaving));
            });
        }
        assert!(in_part, "{op:?} went through all of it under one lock");
        assert_eq!((test.ends.of("removal"), test.status().dirty()), (Some(Ok(())), 0));
        test.check();
        if op == Op::WriteZeroes {
            assert!(test.read(0, sectors).unwrap().iter().all(|&byte| byte == 0));
        }
    }
}
