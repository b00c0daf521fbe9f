//! Discard and write-zeroes.

use std::time::Duration;

use cairn_block::{Flags, Io, Op};
use cairn_sim::{Effect, Fault, OpSet};

use super::super::WriteCache;
use super::super::index::LEAVING;
use super::bed::{Bed, cache_sectors, committed, initial_byte, range, slow, table, write_io};

fn slow_origin(bed: &Bed, duration: Duration) {
    bed.origin
        .faults()
        .add(Fault { effect: Effect::Delay(duration), ..Fault::error(OpSet::WRITES) });
}

#[test]
fn a_discard_frees_what_is_committed_and_what_is_not() {
    let bed = Bed::live(8, "pause_writeback 60000");
    bed.write_fua(0, 16, 1).unwrap();
    bed.write(16, 8, 2).unwrap();
    bed.write(48, 8, 3).unwrap();
    bed.on(Op::Discard, 8, 40).unwrap();
    assert_eq!(bed.status().dirty(), 2);
    assert_eq!(bed.status().named("discards"), 5);
    bed.flush().unwrap();
    let blocks: Vec<_> = bed.durable_entries().iter().map(|entry| entry.0).collect();
    assert_eq!(blocks, [0, 48]);
    assert_eq!((bed.byte(0), bed.byte(48)), (1, 3));
    assert!(bed.origin_ops().iter().any(|op| op.op == Op::Discard && op.count == 40));
    bed.check();
}

#[test]
fn entries_are_freed_durably_before_a_discard_reaches_the_origin() {
    let bed = Bed::live(8, "pause_writeback 60000");
    bed.write_fua(0, 8, 1).unwrap();
    bed.forget();
    bed.start("discard", |_| Io::on(Op::Discard, range(0, 8)));
    while bed.ends.of("discard").is_none() {
        assert!(bed.sim.step());
        let discarded = bed.origin_ops().iter().any(|op| op.op == Op::Discard);
        assert!(!discarded || bed.durable_entries().is_empty());
    }
    assert_eq!(bed.durable_entries(), []);
}

#[test]
fn a_block_in_writeback_survives_a_discard() {
    let bed = Bed::live(8, "pause_writeback 60000");
    bed.write_fua(0, 8, 1).unwrap();
    slow_origin(&bed, Duration::from_millis(5));
    let answer = bed.start_message("flush");
    bed.run(Duration::from_millis(1));
    bed.start("discard", |_| Io::on(Op::Discard, range(0, 16)));
    bed.run(Duration::from_millis(1));
    assert_eq!((bed.status().dirty(), bed.byte(0)), (1, 1));
    bed.settle();
    assert_eq!(bed.ends.of("discard"), Some(Ok(())));
    assert!(answer.take().unwrap().is_ok());
    assert_eq!(bed.status().dirty(), 0);
    bed.check();
}

#[test]
fn short_write_zeroes_go_into_the_cache() {
    let bed = Bed::live(64, "pause_writeback 60000");
    bed.write(0, 8, 1).unwrap();
    bed.forget();
    bed.on(Op::WriteZeroes, 0, 128).unwrap();
    assert_eq!(bed.origin_ops(), []);
    let writes: Vec<_> = bed.cache_ops().iter().map(|op| (op.op, op.count)).collect();
    assert_eq!(writes, [(Op::Write, 8), (Op::Write, 120)], "an overwrite and a fill");
    assert!(bed.read(0, 128).unwrap().iter().all(|&byte| byte == 0));
    assert_eq!(bed.status().dirty(), 16);
    bed.io(|_| Io::on(Op::WriteZeroes, range(160, 8)).with(Flags::FUA)).unwrap();
    assert_eq!(bed.durable_entries().len(), 17, "a commit came first");
}

#[test]
fn long_write_zeroes_zero_the_origin_durably_and_free_the_blocks() {
    let bed = Bed::live(64, "pause_writeback 60000");
    bed.write_fua(0, 8, 1).unwrap();
    bed.write(32, 16, 2).unwrap();
    bed.write_fua(256, 8, 3).unwrap();
    bed.on(Op::WriteZeroes, 0, 256).unwrap();
    assert!(bed.origin.durable().to_vec()[..256 * 512].iter().all(|&byte| byte == 0));
    assert_eq!(bed.durable_entries().iter().map(|entry| entry.0).collect::<Vec<_>>(), [256]);
    assert!(bed.read(0, 256).unwrap().iter().all(|&byte| byte == 0));
    assert_eq!((bed.byte(256), bed.byte(264)), (3, initial_byte(264)));
    assert_eq!(bed.status().named("writes_around"), 32);
    let after = bed.reopen_durable();
    after.load(&table(2048, 4096, ""));
    assert!(after.read(0, 256).unwrap().iter().all(|&byte| byte == 0));
}

#[test]
fn until_long_write_zeroes_end_a_crash_leaves_old_or_zero() {
    let bed = Bed::live(64, "pause_writeback 60000");
    bed.write_fua(0, 8, 1).unwrap();
    bed.start("zero", |_| Io::on(Op::WriteZeroes, range(0, 256)));
    while bed.ends.of("zero").is_none() {
        assert!(bed.sim.step());
        let cached = bed.durable_entries().contains(&(0, 0, 1));
        assert!(cached || bed.origin.durable().to_vec()[0] == 0);
        bed.check();
    }
}

#[test]
fn writes_and_removals_wait_for_an_overlapping_removal() {
    let bed = Bed::live(64, "pause_writeback 60000");
    bed.write_fua(0, 64, 1).unwrap();
    slow_origin(&bed, Duration::from_millis(2));
    bed.start("zero", |_| Io::on(Op::WriteZeroes, range(0, 256)));
    bed.run(Duration::from_micros(100));
    bed.start("write", |env| write_io(env, 248, 16, 2));
    bed.start("apart", |env| write_io(env, 512, 8, 3));
    bed.start("again", |_| Io::on(Op::WriteZeroes, range(128, 256)));
    assert_eq!(bed.byte(8), 1, "reads do not wait");
    bed.settle();
    let order = bed.ends.names();
    assert_eq!((order[0], order[1]), ("apart", "zero"), "{order:?}");
    assert_eq!(bed.ends.count(), 4);
    assert!(bed.read(0, 248).unwrap().iter().all(|&byte| byte == 0));
    // The write and the second removal overlap: either may be the last.
    assert!([0, 2].contains(&bed.byte(248)));
    assert_eq!(bed.byte(512), 3);
    bed.check();
}

#[test]
fn write_zeroes_that_must_be_fast_go_to_the_origin_whatever_their_length() {
    let bed = Bed::live(8, "");
    bed.forget();
    bed.io(|_| Io::on(Op::WriteZeroes, range(0, 8)).with(Flags::FAST_ZERO)).unwrap();
    assert!(bed.origin_ops().iter().any(|op| op.op == Op::WriteZeroes));
    assert_eq!((bed.byte(0), bed.status().dirty()), (0, 0));
}

#[test]
fn write_zeroes_that_fail_leave_the_blocks_usable() {
    let bed = Bed::live(64, "pause_writeback 60000");
    bed.write_fua(0, 8, 1).unwrap();
    bed.origin.faults().add(Fault::error(OpSet::WRITES).shots(1));
    bed.on(Op::WriteZeroes, 0, 256).unwrap_err();
    assert_eq!(bed.byte(0), 1);
    bed.write(0, 8, 2).unwrap();
    bed.message("flush").unwrap();
    assert_eq!((bed.byte(0), bed.status().error()), (2, 0));
    bed.check();
}

#[test]
fn no_read_returns_an_older_version_during_write_zeroes() {
    let bed = Bed::live(8, "pause_writeback 60000");
    bed.cache.faults().add(slow(OpSet::WRITES, Duration::from_millis(3)).shots(1));
    bed.start("late", |env| write_io(env, 0, 8, 2));
    bed.start("early", |env| write_io(env, 0, 8, 1));
    bed.run(Duration::from_millis(1));
    bed.flush().unwrap();
    bed.run(Duration::from_millis(10));
    assert_eq!(bed.byte(0), 2, "uncommitted, on top of a committed version");
    bed.cache.faults().add(slow(OpSet::FLUSHES, Duration::from_millis(5)));
    bed.start("zero", |_| Io::on(Op::WriteZeroes, range(0, 256)));
    while bed.ends.of("zero").is_none() {
        assert_ne!(bed.byte(0), 1);
        bed.run(Duration::from_micros(100));
    }
    assert_eq!(bed.byte(0), 0);
}

#[test]
fn a_slot_reused_while_its_entry_was_freed_keeps_its_new_block() {
    let bed = Bed::live(4, "pause_writeback 60000");
    // Three fills of one block: the first ends and is committed, the second lies over it
    // uncommitted, the third ends while a discard frees their entries.
    for (name, millis) in [("third", 20), ("second", 3)] {
        let fault = slow(OpSet::WRITES, Duration::from_millis(millis)).shots(1);
        bed.cache.faults().add(fault);
        bed.start(name, |env| write_io(env, 0, 8, 2));
        bed.run(Duration::from_micros(10));
    }
    bed.start("first", |env| write_io(env, 0, 8, 1));
    bed.run(Duration::from_millis(1));
    bed.flush().unwrap();
    bed.run(Duration::from_millis(9));
    let freed = bed.look(|_, state| state.index.newest(0));
    bed.cache.faults().add(slow(OpSet::FLUSHES, Duration::from_millis(30)).shots(1));
    bed.start("discard", |_| Io::on(Op::Discard, range(0, 8)));
    bed.run(Duration::from_millis(15));
    assert!(bed.ends.of("third").is_some() && bed.ends.of("discard").is_none());
    bed.write(80, 8, 7).unwrap();
    bed.write(160, 8, 8).unwrap();
    let block =
        bed.look(|_, state| state.index.at(freed.expect("the second")).map(|run| run.block));
    let (sector, byte) = if block == Some(10) { (80, 7) } else { (160, 8) };
    assert!([Some(10), Some(20)].contains(&block), "the slot is somebody else's: {block:?}");
    // Zeros come to the new owner, too, and take their time.
    slow_origin(&bed, Duration::from_millis(50));
    let zero = Io::on(Op::WriteZeroes, range(sector, 8)).with(Flags::FAST_ZERO);
    bed.start("zero", |_| zero);
    bed.run(Duration::from_millis(20));
    assert_eq!((bed.durable_entries(), bed.ends.of("zero")), (vec![], None));
    assert_eq!(bed.byte(sector), byte, "it was not dropped with the one before");
    bed.check();
    bed.run(Duration::from_millis(100));
    assert_eq!(bed.byte(sector), 0);
}

#[test]
fn slots_that_emptied_before_their_entries_were_freed_are_passed_over() {
    let bed = Bed::live(4, "pause_writeback 60000");
    bed.write_fua(0, 8, 1).unwrap();
    let target = bed.target();
    let freed = bed.sim.block_on(0, |env| async move {
        let cache: &WriteCache = target.as_any().and_then(|any| any.downcast_ref()).unwrap();
        let mut metadata = cache.metadata.lock().await;
        cache.free_entries(&env, &mut metadata, vec![(0, 1), (3, 1)]).await
    });
    freed.unwrap();
    assert_eq!((bed.status().dirty(), bed.durable_entries()), (0, vec![]));
    bed.check();
}

#[test]
fn an_older_version_never_outlives_a_newer_one_that_zeros_replace() {
    let bed = Bed::new(2048, cache_sectors(600, 512));
    bed.load(&table(2048, 512, "pause_writeback 60000"));
    for start in [0, 2, 4] {
        bed.write_fua(start, 1, 1).unwrap();
    }
    let far = slow(OpSet::WRITES, Duration::from_millis(200)).on(range(2, 1));
    bed.origin.faults().add(far);
    // While reads miss, one goes home after the other.
    bed.read(1900, 1).unwrap();
    let _answer = bed.start_message("flush");
    // The first is on the origin and waits for the others; its newer version is committed, and in
    // another granule.
    bed.run(Duration::from_millis(5));
    bed.write(1000, 512, 2).unwrap();
    bed.write(0, 1, 3).unwrap();
    bed.io(|env| write_io(env, 0, 1, 3).with(Flags::FUA)).unwrap();
    bed.origin.faults().add(Fault::error(OpSet::FLUSHES).shots(1));
    bed.flush().unwrap_err();
    let versions = |blocks: &[(u64, u64, u8)]| -> Vec<u8> {
        blocks.iter().filter(|entry| entry.0 == 0).map(|entry| entry.2).collect()
    };
    assert_eq!(versions(&bed.durable_entries()), [1, 3]);
    let fast = Io::on(Op::WriteZeroes, range(0, 1)).with(Flags::FAST_ZERO);
    bed.start("zero", |_| fast);
    let mut rng = fastrand::Rng::with_seed(1);
    while bed.ends.of("zero").is_none() {
        assert!(bed.sim.step());
        for _ in 0..8 {
            let left = committed(&bed.cache.power_cut(&mut rng).to_vec());
            assert_ne!(versions(&left), [1], "neither what was flushed nor zero");
        }
        bed.check();
    }
    assert!(versions(&bed.durable_entries()).is_empty());
}

#[test]
fn the_reactor_serves_other_requests_during_a_long_removal() {
    let sectors = 12_288;
    for op in [Op::Discard, Op::WriteZeroes] {
        let bed = Bed::new(sectors, cache_sectors(sectors + 64, 512));
        bed.load(&table(sectors, 512, "pause_writeback 60000"));
        for start in (0..sectors).step_by(256) {
            bed.write(start, 256, 1).unwrap();
        }
        bed.flush().unwrap();
        assert_eq!(bed.status().dirty(), sectors);
        bed.start("removal", |_| Io::on(op, range(0, sectors)));
        let mut in_part = false;
        while bed.ends.of("removal").is_none() {
            assert!(bed.sim.step());
            bed.look(|_, state| {
                let leaving = state.index.runs().filter(|run| run.has(LEAVING));
                let leaving: u32 = leaving.map(|run| run.len).sum();
                in_part |= (1..sectors).contains(&u64::from(leaving));
            });
        }
        assert!(in_part, "{op:?} went through all of it under one lock");
        assert_eq!((bed.ends.of("removal"), bed.status().dirty()), (Some(Ok(())), 0));
        bed.check();
        if op == Op::WriteZeroes {
            assert!(bed.read(0, sectors).unwrap().iter().all(|&byte| byte == 0));
        }
    }
}
