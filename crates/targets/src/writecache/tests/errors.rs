//! Device failures: which requests fail, what the cache keeps, and what it does next.

use std::time::Duration;

use cairn_block::{Flags, Io, Op, Sector, SuspendMode};
use cairn_format::writecache::{Entry, Seq};
use cairn_sim::{Fault, Image, OpSet};

use super::fixture::{
    CacheFixture, cache_sectors, initial, initial_byte, range, slow, table, write_io,
};
use crate::fixture::Answer;

const SECOND: Duration = Duration::from_secs(1);

/// Three dirty blocks that are no neighbours, committed.
fn with_dirty_block(options: &str) -> CacheFixture {
    let test = CacheFixture::live(16, options);
    for block in 0..3 {
        test.write(block * 16, 8, 7 + block as u8).unwrap();
    }
    test.flush().unwrap();
    test
}

#[test]
fn a_flush_message_fails_with_the_origin_and_writeback_retries() {
    for ops in [OpSet::WRITES, OpSet::FLUSHES] {
        let test = with_dirty_block("");
        test.origin.faults().add(Fault::error(ops));
        let refused = test.message("flush").unwrap_err().to_string();
        assert!(refused.starts_with("flush: origin or cache failed: "), "{refused}");
        test.settle();
        assert_eq!((test.status().error(), test.status().dirty()), (1, 3));
        test.check();
        assert_eq!([test.byte(0), test.byte(16), test.byte(32)], [7, 8, 9]);
        test.write(0, 8, 70).unwrap();
        test.origin.faults().clear();
        test.run(SECOND * 5);
        assert_eq!((test.status().error(), test.status().dirty()), (0, 0), "tried again by itself");
        assert_eq!([test.byte(0), test.byte(16), test.byte(32)], [70, 8, 9]);
    }
}

#[test]
fn writeback_tries_again_after_ever_longer_pauses() {
    let test = with_dirty_block("high_watermark 0 low_watermark 0");
    test.message("flush").unwrap();
    for block in 0..6 {
        test.write(block * 16, 8, 1).unwrap();
    }
    test.flush().unwrap();
    test.origin.faults().add(Fault::error(OpSet::WRITES));
    test.forget();
    test.message("cleaner").unwrap();
    let mut tries = Vec::new();
    for second in 0..130 {
        let seen = test.seen("origin");
        if !seen.is_empty() {
            tries.push(second);
        }
        test.run(SECOND);
        assert!(seen.len() <= 6, "each block once per try");
    }
    // At once, after 1 s, 2 s more, 4, 8, 16, 32, and then every 60.
    assert_eq!(tries, [1, 2, 4, 8, 16, 32, 64, 124]);
    test.origin.faults().clear();
}

#[test]
fn an_older_version_whose_writeback_failed_is_freed_after_the_newer_commit() {
    let test = with_dirty_block("");
    test.origin.faults().add(slow(OpSet::WRITES, Duration::from_millis(5)));
    // The origin has something that no flush covers, and can't flush either.
    test.on(Op::Discard, 800, 8).unwrap();
    test.origin.faults().add(Fault::error(OpSet::ALL));
    let answer = test.start_message("flush");
    test.run(Duration::from_millis(2));
    test.look(|_, state| assert_eq!(state.index.in_writeback, 3));
    test.write(0, 8, 70).unwrap();
    test.flush().unwrap_err();
    test.write(0, 8, 71).unwrap();
    let versions = test.durable_entries().iter().filter(|entry| entry.0 == 0).count();
    assert_eq!(versions, 2, "I5: the older is being written back");
    test.run(Duration::from_millis(20));
    assert!(answer.borrow().as_ref().unwrap().is_err());
    test.check();
    let entries = test.durable_entries();
    assert_eq!(entries.iter().map(|entry| entry.0).collect::<Vec<_>>(), [0, 16, 32]);
    assert_eq!(test.status().dirty(), 3);
    // With an origin that fails for good, a suspend still ends.
    test.suspend(SuspendMode::Flush);
    test.origin.faults().clear();
    test.resume();
    test.message("flush").unwrap();
    assert_eq!(test.byte(0), 71);
}

#[test]
fn a_failed_commit_fails_every_waiter_and_breaks_the_cache() {
    for ops in [OpSet::FLUSHES, OpSet::WRITES] {
        let test = with_dirty_block("");
        test.write(64, 8, 5).unwrap();
        // Metadata only: slots begin at sector 8.
        let fault = Fault::error(ops);
        test.cache.faults().add(if ops == OpSet::WRITES { fault.on(range(0, 8)) } else { fault });
        test.start("flush", |_| Io::flush());
        test.start("fua", |env| write_io(env, 80, 8, 6).with(Flags::FUA));
        test.start("another flush", |_| Io::flush());
        test.settle();
        assert_eq!(test.ends.count(), 3);
        for name in test.ends.labels() {
            assert!(test.ends.of(name).unwrap().is_err(), "{name}");
        }
        test.cache.faults().clear();
        assert_eq!(test.status().error(), 1);
        test.write(0, 8, 1).unwrap_err();
        test.write(160, 8, 1).unwrap_err();
        test.flush().unwrap_err();
        test.on(Op::Discard, 0, 8).unwrap_err();
        test.on(Op::WriteZeroes, 0, 256).unwrap_err();
        test.message("flush").unwrap_err();
        assert_eq!([test.byte(0), test.byte(240)], [7, initial_byte(240)]);
        // A flush that failed may have lost it, a write of metadata did not.
        assert_eq!(test.read(64, 8).ok(), (ops == OpSet::WRITES).then(|| vec![5; 4096]));
        test.check();
        // Suspending and resuming the same table does not make it well; a new table does.
        test.try_suspend(SuspendMode::Flush).unwrap_err();
        test.resume();
        assert_eq!(test.status().error(), 1);
        assert_eq!([test.byte(0), test.byte(16), test.byte(32)], [7, 8, 9], "nothing is lost");
        test.load(&table(2048, 4096, ""));
        assert_eq!(test.status().error(), 0);
        test.write(0, 8, 1).unwrap();
        test.flush().expect_err("it was told that the commit failed, not that that was given up");
        test.flush().unwrap();
    }
}

#[test]
fn a_removal_fails_if_the_commit_it_waited_for_failed() {
    for (op, count) in [(Op::Discard, 8), (Op::WriteZeroes, 256)] {
        for origin_micros in [0, 60, 200] {
            let test = with_dirty_block("");
            test.write(64, 8, 5).unwrap();
            test.cache.faults().add(Fault::error(OpSet::FLUSHES));
            test.origin.faults().add(slow(OpSet::ALL, Duration::from_micros(origin_micros)));
            test.start("flush", |_| Io::flush());
            test.start("removal", |_| Io::on(op, range(64, count)));
            test.settle();
            assert!(test.ends.of("removal").unwrap().is_err(), "{op:?}");
            assert!(test.ends.of("flush").unwrap().is_err());
            test.check();
        }
    }
}

#[test]
fn a_write_that_waits_for_a_slot_fails_when_the_cache_device_fails() {
    // The only slot is being written back when its reading, or the freeing of it, fails.
    for ops in [OpSet::READS, OpSet::FLUSHES] {
        let test = CacheFixture::live(1, "pause_writeback 60000");
        test.write_fua(0, 8, 1).unwrap();
        test.origin.faults().add(slow(OpSet::WRITES, Duration::from_millis(1)));
        test.cache.faults().add(slow(OpSet::READS, Duration::from_millis(1)));
        test.cache.faults().add(Fault::error(ops));
        let answer = test.start_message("flush");
        test.run(Duration::from_micros(300));
        test.start("write", |env| write_io(env, 0, 8, 2));
        test.run(Duration::from_micros(100));
        assert_eq!(test.status().named("writes_blocked_on_freelist"), 1);
        test.settle();
        let told = test.ends.of("write");
        assert!(told.is_some_and(|result| result.is_err()), "{ops:?}: {told:?}");
        assert!(answer.borrow().as_ref().is_some_and(|answer| answer.is_err()));
        assert_eq!(test.status().error(), 1);
        test.cache.faults().clear();
        assert_eq!(test.byte(0), 1);
        test.check();
    }
}

#[test]
fn a_failed_write_of_data_fails_that_write_alone() {
    let test = with_dirty_block("");
    let fault = test.cache.faults().add(Fault::error(OpSet::WRITES));
    test.write(160, 8, 1).unwrap_err();
    test.write(0, 8, 1).unwrap_err();
    test.cache.faults().remove(fault);
    assert_eq!((test.status().error(), test.status().dirty()), (0, 3));
    assert_eq!(test.byte(160), initial_byte(160));
    test.write(0, 8, 4).unwrap();
    test.write(160, 8, 5).unwrap();
    test.flush().unwrap();
    assert_eq!((test.byte(0), test.byte(160)), (4, 5));
    test.check();
}

#[test]
fn a_flush_fails_if_the_origin_does_and_the_next_one_tries_again() {
    let test = CacheFixture::live(16, "metadata_only");
    test.write(0, 8, 1).unwrap();
    test.origin.faults().add(Fault::error(OpSet::FLUSHES).shots(1));
    test.flush().unwrap_err();
    test.flush().unwrap();
    assert_eq!(test.origin.durable().to_vec()[0], 1);
}

#[test]
fn a_flush_message_fails_when_a_suspend_begins() {
    let test = with_dirty_block("writeback_jobs 1");
    test.origin.faults().add(slow(OpSet::WRITES, Duration::from_millis(5)));
    let answer = test.start_message("flush");
    test.run(Duration::from_millis(1));
    test.suspend(SuspendMode::Flush);
    test.settle();
    let told = answer.take().expect("it was answered").unwrap_err().to_string();
    let expected = "flush: a suspend came meanwhile, 3 blocks are still dirty; send it again after \
                    the resume";
    assert_eq!(told, expected);
    assert!(test.status().dirty() > 0, "the suspend did not wait for all of them");
    let refused = test.message("flush").unwrap_err().to_string();
    assert_eq!(refused, "flush: the device is suspended");
    test.resume();
    test.check();
    test.message("flush").unwrap();
    assert_eq!(test.status().dirty(), 0);
}

#[test]
fn a_flush_message_at_any_moment_of_a_suspend_is_answered() {
    for delay in (0..40_000).step_by(501).map(Duration::from_nanos) {
        let test = CacheFixture::live(16, "");
        test.write(0, 8, 7).unwrap();
        test.cache.faults().add(slow(OpSet::FLUSHES, Duration::from_millis(1)));
        let answer = Answer::default();
        let (env, volume, place) =
            (test.sim.env(2).clone(), test.one.volume.clone(), answer.clone());
        test.sim.env(2).spawn(async move {
            env.sleep(delay).await;
            *place.borrow_mut() = Some(volume.message(&env, Sector(0), &["flush"]).await);
        });
        test.suspend(SuspendMode::Flush);
        test.settle();
        let answer = answer.take().unwrap_or_else(|| panic!("no answer after {delay:?}"));
        let told = answer.unwrap_err().to_string();
        assert!(told.contains("suspend"), "{told}");
    }
}

#[test]
fn a_suspend_that_writes_back_ends_when_the_origin_fails_and_says_so() {
    let test = with_dirty_block("");
    test.origin.faults().add(Fault::error(OpSet::WRITES));
    test.message("flush_on_suspend").unwrap();
    test.suspend(SuspendMode::Flush);
    assert_eq!((test.status().error(), test.status().dirty()), (1, 3));
    test.origin.faults().clear();
    test.resume();
    test.message("flush_on_suspend").unwrap();
    test.suspend(SuspendMode::Flush);
    assert_eq!((test.status().error(), test.status().dirty()), (0, 0));
    test.resume();
    // It was for one suspend.
    test.write(0, 8, 1).unwrap();
    test.suspend(SuspendMode::Flush);
    assert_eq!(test.status().dirty(), 1);
    test.resume();
}

#[test]
fn identical_sequence_numbers_are_read_but_never_written() {
    let test = with_dirty_block("");
    test.suspend(SuspendMode::Flush);
    let mut bytes = test.cache.durable().to_vec();
    let entry = Entry::read_at(&bytes, 1).unwrap();
    Entry { original_sector: 0, ..entry }.write_at(&mut bytes, 1);
    let uncommitted = Entry { original_sector: 800, seq: Seq(1) };
    uncommitted.write_at(&mut bytes, 7);
    let corrupt = CacheFixture::of_images(initial(2048), Image::of_bytes(&bytes), 1);
    // Seq of both is 0: they were one commit.
    corrupt.load(&table(2048, 4096, ""));
    assert_eq!(corrupt.status().error(), 1);
    assert_eq!([corrupt.byte(0), corrupt.byte(32), corrupt.byte(16)], [8, 9, initial_byte(16)]);
    corrupt.write(0, 8, 1).unwrap_err();
    corrupt.flush().unwrap_err();
    corrupt.message("flush").unwrap_err();
    corrupt.run(SECOND * 10);
    corrupt.suspend(SuspendMode::Flush);
    assert!(corrupt.cache.visible().to_vec() == bytes);
    assert_eq!(corrupt.origin.visible(), initial(2048));
    assert_eq!(cache_sectors(16, 4096) * 512, bytes.len() as u64);
}

/// A cache with a dirty block, and an origin that has something to flush: its next flush takes
/// long, and fails.
fn about_to_lose_a_flush() -> CacheFixture {
    let test = CacheFixture::live(4, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    test.flush().unwrap();
    test.on(Op::Discard, 800, 8).unwrap();
    test.origin.faults().add(slow(OpSet::FLUSHES, Duration::from_millis(1)).shots(1));
    test.origin.faults().add(Fault::losing_flushes().shots(1));
    test
}

#[test]
fn blocks_copied_before_a_flush_of_the_origin_failed_stay_dirty() {
    let test = about_to_lose_a_flush();
    test.start("client", |_| Io::flush());
    // The copy ends while the client's flush is under way.
    let answer = test.start_message("flush");
    test.settle();
    assert!(test.ends.of("client").expect("ended").is_err());
    assert!(answer.take().expect("ended").is_err());
    assert_eq!(test.durable_entries(), [(0, 0, 1)]);
    test.message("flush").unwrap();
    assert_eq!(test.origin.durable().to_vec()[0], 1);
}

/// A cache with a write around the cache and a cached block, whose writeback fails: the drive drops
/// both and tells nobody else.
fn after_a_lost_write() -> CacheFixture {
    let test = CacheFixture::live(16, "metadata_only");
    test.io(|env| write_io(env, 80, 8, 2).with(Flags::META)).unwrap();
    test.flush().unwrap();
    test.write(0, 8, 1).unwrap();
    test.origin.faults().add(Fault::losing_flushes().shots(1));
    test.message("flush").unwrap_err();
    test.run(SECOND * 5);
    assert_eq!(test.status().dirty(), 0, "the cached one was copied again");
    assert_eq!(test.origin.durable().to_vec()[0], initial_byte(0), "the other is lost");
    test
}

#[test]
fn the_next_flush_fails_if_writeback_met_one_that_lost_writes_from_above() {
    let test = after_a_lost_write();
    test.flush().unwrap_err();
    test.flush().unwrap();
    test.write(0, 8, 3).unwrap();
    test.flush().unwrap();
    assert_eq!(test.origin.durable().to_vec()[0], 3);
}

#[test]
fn a_loss_is_reported_after_suspends_and_table_changes() {
    let test = after_a_lost_write();
    test.try_suspend(SuspendMode::Flush).expect_err("no client was told yet");
    test.resume();
    test.load(&table(2048, 4096, "metadata_only"));
    test.flush().unwrap_err();
    test.flush().unwrap();
    // What the flush of a suspend met, it reports, too.
    test.write(0, 8, 1).unwrap();
    test.origin.faults().add(Fault::losing_flushes().shots(1));
    let lost = test.try_suspend(SuspendMode::Flush).unwrap_err().to_string();
    assert!(lost.starts_with("origin: "), "{lost}");
    test.resume();
    test.flush().unwrap_err();
    test.flush().unwrap();
}

#[test]
fn the_next_flush_fails_if_a_write_in_flight_may_be_lost() {
    let test = CacheFixture::live(16, "metadata_only");
    test.on(Op::Discard, 800, 8).unwrap();
    let fault = Fault::error(OpSet::FLUSHES).shots(1);
    test.origin.faults().add(fault);
    test.origin.faults().add(slow(OpSet::WRITES, Duration::from_millis(1)).shots(1));
    test.start("write", |env| write_io(env, 0, 8, 1));
    test.start("flush", |_| Io::flush());
    test.settle();
    assert!(test.ends.of("flush").is_some_and(|result| result.is_err()));
    assert_eq!(test.ends.of("write"), Some(Ok(())));
    test.flush().unwrap_err();
    test.flush().unwrap();
    assert_eq!(test.origin.durable().to_vec()[0], 1);
}

#[test]
fn write_zeroes_fail_if_a_flush_may_have_lost_them() {
    let test = CacheFixture::live(64, "pause_writeback 60000");
    test.write_fua(0, 8, 1).unwrap();
    test.on(Op::Discard, 800, 8).unwrap();
    test.origin.faults().add(Fault::losing_flushes().shots(1));
    test.origin.faults().add(slow(OpSet::WRITES, Duration::from_millis(1)).shots(1));
    test.start("zero", |_| Io::on(Op::WriteZeroes, range(0, 256)));
    test.start("flush", |_| Io::flush());
    test.settle();
    assert!(test.ends.of("flush").is_some_and(|result| result.is_err()));
    assert!(test.ends.of("zero").is_some_and(|result| result.is_err()), "one failed meanwhile");
    assert_eq!((test.byte(0), test.durable_entries()), (1, vec![(0, 0, 1)]));
}
