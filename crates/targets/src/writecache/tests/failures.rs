//! Failure counts: which clients get an error for a failure that another user met, which failures
//! are absorbed, and what the devices still hold.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Flags, Io, IoError, Op, Sector, SectorCount, SuspendMode};
use cairn_sim::{Fault, Image, OpSet};

use super::fixture::{
    CacheFixture, cache_sectors, committed, initial, initial_byte, range, slow, table, write_io,
};
use crate::fixture::{Client, Fixture};

const MILLI: Duration = Duration::from_millis(1);

/// A cache with a committed block, and a write that went around it.
fn with_a_write_around() -> CacheFixture {
    let test = CacheFixture::live(16, "metadata_only");
    test.io(|env| write_io(env, 80, 8, 2).with(Flags::META)).unwrap();
    test.flush().unwrap();
    test.write(0, 8, 1).unwrap();
    test
}

#[test]
fn flush_fails_once_per_client_after_another_user_met_a_failure() {
    let test = with_a_write_around();
    let clients = [test.client(), test.client()];
    test.lose_by_another("origin");
    test.are_told_once(&clients);
    assert_eq!(test.origin.durable().to_vec()[0], initial_byte(0), "it is lost");
    test.flush_of(&test.client()).expect("who connects later need not hear of it");
}

#[test]
fn a_suspend_fails_for_a_loss_that_writeback_met_unless_a_client_was_told() {
    for is_told in [false, true] {
        let test = with_a_write_around();
        let client = test.client();
        test.lose_by_another("origin");
        test.message("flush").unwrap();
        assert_eq!(test.status().dirty(), 0, "the copy was made again");
        if is_told {
            test.flush_of(&client).expect_err("the write around the cache is lost");
        }
        let suspended = test.try_suspend(SuspendMode::Flush);
        assert_eq!(suspended.is_ok(), is_told, "{suspended:?}");
        test.resume();
        test.suspend(SuspendMode::Flush);
    }
}

#[test]
fn a_failure_that_another_line_passes_on_does_not_hide_a_loss_from_a_suspend() {
    let blank = |sectors| Image::new(SectorCount(sectors));
    let test = Fixture::new([
        ("other", blank(64)),
        ("origin", blank(2048)),
        ("cache", blank(cache_sectors(16, 4096))),
    ]);
    let cached = table(2048, 4096, "metadata_only").replacen("0 2048", "64 2048", 1);
    test.load("v", &format!("0 64 linear other 0\n{cached}"));
    let client = Client::new(test.volume("v"));
    test.lose_by_another("other");
    test.flush_of(&client).expect_err("a flush reports the loss of the drive under the other line");
    test.write("v", 128, 8, 1).unwrap();
    test.drive("origin").faults().add(Fault::losing_flushes().shots(1));
    test.try_suspend("v", SuspendMode::Flush).expect_err("the write around the cache is lost");
    test.resume("v").unwrap();
    test.flush_of(&client).expect_err("a flush reports the lost write around the cache");
    test.suspend("v", SuspendMode::Flush);
}

#[test]
fn zeros_made_durable_after_a_failure_do_not_hide_its_losses() {
    let test = with_a_write_around();
    let client = test.client();
    test.lose_by_another("origin");
    test.on(Op::WriteZeroes, 256, 256).unwrap();
    test.flush_of(&client).expect_err("the flush for the zeros came after the loss");
    test.flush_of(&client).unwrap();
}

#[test]
fn a_flush_in_flight_fails_for_a_failure_that_writeback_meets() {
    let test = with_a_write_around();
    test.origin.faults().add(slow(OpSet::FLUSHES, MILLI).shots(1));
    test.origin.faults().add(Fault::losing_flushes().shots(1));
    let answer = test.start_message("flush");
    test.run(Duration::from_micros(300));
    // The flush after the copy is under way.
    test.start("client", |_| Io::flush());
    test.settle();
    assert!(test.ends.of("client").expect("ended").is_err(), "what it wanted may be lost");
    assert!(answer.take().expect("ended").is_err());
    assert_eq!(test.origin.durable().to_vec()[80 * 512], initial_byte(80), "it stays dirty");
    assert_eq!(test.byte(80), 2);
}

#[test]
fn no_flush_fails_for_a_failure_that_writeback_absorbs() {
    let test = CacheFixture::live(16, "");
    for block in 0..3 {
        test.write_fua(block * 16, 8, 7).unwrap();
    }
    test.flush().unwrap();
    let clients = [test.client(), test.client()];
    test.origin.faults().add(slow(OpSet::FLUSHES, MILLI).shots(1));
    test.origin.faults().add(Fault::losing_flushes().shots(1));
    let answer = test.start_message("flush");
    test.run(Duration::from_micros(300));
    test.flush().expect("nothing of it went around");
    test.settle();
    assert!(answer.take().expect("ended").is_err());
    assert_eq!(test.status().dirty(), 3);
    test.run(Duration::from_secs(5));
    assert_eq!(test.status().dirty(), 0, "copied again");
    for client in &clients {
        test.flush_of(client).unwrap();
    }
    let origin = test.origin.durable().to_vec();
    assert!((0..3).all(|block| origin[block * 16 * 512] == 7));
    test.load("0 2048 linear origin 0");
    test.flush_of(&clients[0]).expect("writeback has repaired the loss before the next table");
}

#[test]
fn copies_stay_dirty_if_another_user_met_a_failure() {
    let test = CacheFixture::live(16, "");
    test.write_fua(0, 8, 1).unwrap();
    test.flush().unwrap();
    // Its own flush of the copy waits for the other's, which loses the copy, and succeeds.
    test.origin.faults().add(slow(OpSet::FLUSHES, MILLI).shots(1));
    let answer = test.start_message("flush");
    test.lose_by_another("origin");
    test.settle();
    assert!(answer.take().expect("ended").is_err());
    assert_eq!(test.durable_entries(), [(0, 0, 1)]);
    test.message("flush").unwrap();
    assert_eq!(test.origin.durable().to_vec()[0], 1);
}

#[test]
fn a_write_around_with_fua_is_not_lost_by_a_later_failure() {
    let test = CacheFixture::live(16, "metadata_only");
    test.flush().unwrap();
    test.write_fua(0, 8, 1).unwrap();
    test.lose_by_another("origin");
    test.flush().expect("it was durable");
    assert_eq!(test.origin.durable().to_vec()[0], 1);
}

#[test]
fn a_commit_fails_if_another_user_met_a_failure_after_the_data_was_written() {
    for overwrite in [false, true] {
        let test = CacheFixture::live(16, "");
        if overwrite {
            test.write_fua(0, 8, 9).unwrap();
        }
        let clients = [test.client(), test.client()];
        test.write(0, 8, 1).unwrap();
        test.lose_by_another("cache");
        test.flush_of(&clients[0]).unwrap_err();
        let committed: Vec<_> = test.durable_entries().iter().map(|entry| entry.2).collect();
        assert_eq!(committed, if overwrite { vec![9] } else { vec![] }, "not as if it were good");
        assert_eq!(test.status().error(), 1);
        let lost = test.swap(&table(2048, 4096, "")).unwrap().lost.expect("told").to_string();
        assert!(lost.starts_with("cache: "), "{lost}");
        test.are_told_once(&clients);
    }
}

#[test]
fn a_broken_cache_serves_reads_of_committed_slots_only() {
    let test = CacheFixture::live(16, "");
    test.write_fua(0, 8, 1).unwrap();
    test.write(8, 16, 2).unwrap();
    test.lose_by_another("cache");
    test.flush().unwrap_err();
    assert_eq!(test.read(0, 8).unwrap(), [1; 4096]);
    for lost in [(8, 8), (16, 8), (0, 16), (8, 32)] {
        test.read(lost.0, lost.1).unwrap_err();
    }
    assert_eq!(test.byte(80), initial_byte(80), "what is not cached comes from the origin");
}

#[test]
fn a_failure_of_the_cache_device_that_lost_nothing_breaks_nothing() {
    let test = CacheFixture::live(16, "");
    test.write_fua(0, 8, 1).unwrap();
    test.lose_by_another("cache");
    test.flush().unwrap();
    test.write(0, 8, 2).unwrap();
    test.flush().unwrap();
    assert_eq!((test.status().error(), test.durable_entries()), (0, vec![(0, 0, 2)]));
}

#[test]
fn free_entries_are_written_again_if_another_user_met_a_failure() {
    let test = CacheFixture::live(16, "");
    test.write_fua(0, 8, 1).unwrap();
    test.flush().unwrap();
    // The flush after the entry is written waits for the other's.
    test.cache.faults().add(slow(OpSet::FLUSHES, MILLI).shots(1));
    let answer = test.start_message("flush");
    test.lose_by_another("cache");
    test.settle();
    answer.take().expect("ended").expect("it is home");
    assert_eq!((test.durable_entries(), test.status().error()), (vec![], 0));
}

#[test]
fn a_resume_after_a_failure_writes_again_what_it_read() {
    let test = CacheFixture::live(1, "");
    test.write_fua(0, 8, 1).unwrap();
    test.flush().unwrap();
    // The free entry is there to be read, and not durable.
    test.cache.faults().add(Fault::losing_flushes().shots(1));
    test.message("flush").unwrap_err();
    assert_eq!((test.durable_entries(), test.status().error()), (vec![(0, 0, 1)], 1));
    test.load(&table(2048, 4096, ""));
    assert_eq!(test.durable_entries(), [], "I3: the slot is handed out on the strength of that");
    test.write(80, 8, 9).unwrap();
    let image = test.cache.power_cut(&mut fastrand::Rng::with_seed(1)).to_vec();
    assert!(!committed(&image).iter().any(|entry| entry.0 == 0));
}

#[test]
fn a_suspend_whose_commit_fails_says_so_and_so_do_the_flushes_after_it() {
    let test = CacheFixture::live(16, "");
    let clients = [test.client(), test.client()];
    test.write(0, 8, 1).unwrap();
    test.cache.faults().add(Fault::error(OpSet::FLUSHES).shots(1));
    let lost = test.try_suspend(SuspendMode::Flush).unwrap_err().to_string();
    assert!(lost.starts_with("cache: "), "{lost}");
    assert!(test.volume.is_suspended());
    test.load(&table(2048, 4096, ""));
    assert_eq!(test.byte(0), initial_byte(0), "it is gone");
    test.are_told_once(&clients);
}

/// A cache with two committed blocks that breaks while a write to these sectors is under way.
fn broken_during_a_write(start: u64) -> CacheFixture {
    let test = CacheFixture::live(16, "");
    test.write_fua(0, 8, 1).unwrap();
    test.write_fua(400, 8, 1).unwrap();
    test.cache.faults().add(slow(OpSet::WRITES, MILLI).shots(1));
    test.start("late", move |env| write_io(env, start, 8, 2));
    test.cache.faults().add(Fault::error(OpSet::READS).shots(1));
    test.message("flush").unwrap_err();
    assert_eq!(test.volume.failure_count().count(), 0, "nothing was lost yet");
    test.settle();
    test
}

#[test]
fn an_overwrite_that_ends_on_a_broken_cache_counts_as_lost_at_the_suspend() {
    let test = broken_during_a_write(400);
    assert_eq!(test.ends.of("late"), Some(Ok(())));
    test.try_suspend(SuspendMode::Flush).unwrap_err();
    assert_eq!(test.volume.failure_count().count(), 1);
}

#[test]
fn a_fill_that_ends_on_a_broken_cache_fails_and_the_cache_can_be_resumed() {
    let test = broken_during_a_write(80);
    assert_eq!(test.ends.of("late"), Some(Err(IoError::IO)));
    test.suspend(SuspendMode::NoFlush);
    test.resume();
    assert_eq!((test.byte(0), test.byte(80)), (1, initial_byte(80)));
    test.write(80, 8, 3).expect_err("it is broken until a table is loaded");
    test.load(&table(2048, 4096, ""));
    test.write(80, 8, 3).unwrap();
    test.flush().unwrap();
}

#[test]
fn a_broken_cache_whose_records_cancel_each_other_can_be_resumed_and_stays_broken() {
    let test = CacheFixture::live(16, "autocommit_blocks 1000 autocommit_time 3600000");
    test.write_fua(0, 8, 1).unwrap();
    test.write(80, 8, 2).unwrap();
    test.on(Op::Discard, 80, 8).unwrap();
    test.cache.faults().add(Fault::error(OpSet::WRITES).shots(1));
    test.on(Op::Discard, 0, 8).expect_err("its entry cannot be freed");
    test.suspend(SuspendMode::NoFlush);
    test.resume();
    test.write(80, 8, 3).expect_err("it is broken until a table is loaded");
    test.load(&table(2048, 4096, ""));
    test.write(80, 8, 3).unwrap();
    test.flush().unwrap();
    assert_eq!(test.byte(80), 3);
}

#[test]
fn a_broken_cache_without_volatile_writes_suspends_without_error() {
    let test = CacheFixture::live(16, "");
    test.write_fua(0, 8, 1).unwrap();
    test.cache.faults().add(Fault::error(OpSet::READS).shots(1));
    test.message("flush").unwrap_err();
    assert_eq!(test.status().error(), 1);
    test.suspend(SuspendMode::Flush);
    test.load(&table(2048, 4096, ""));
    assert_eq!(test.byte(0), 1);
    test.flush().unwrap();
}

#[test]
fn dirty_blocks_are_reported_after_a_suspend() {
    let test = CacheFixture::live(16, "");
    assert!(test.target().dirty().is_none());
    test.write(0, 16, 1).unwrap();
    test.write(80, 8, 1).unwrap();
    let dirty = test.target().dirty().expect("it is dirty");
    assert_eq!(
        (dirty.sectors.0, dirty.device.as_str(), dirty.origin.name()),
        (24, "cache", "origin".into())
    );
    test.suspend(SuspendMode::Flush);
    assert_eq!(test.target().dirty().expect("still").sectors.0, 24);
    test.resume();
    test.message("flush_on_suspend").unwrap();
    test.suspend(SuspendMode::Flush);
    assert!(test.target().dirty().is_none(), "all is home");
}

/// What a server does when it ends, to a cache over a suspended volume: writes wait for a slot and
/// for the origin, and so do a flush, a write-zeroes, a discard, and the message `flush`.
#[test]
fn a_stop_ends_waits_for_a_slot_and_for_a_suspended_origin() {
    let cache = Image::new(cairn_block::SectorCount(cache_sectors(2, 4096)));
    let test = Fixture::new([("origin", initial(2048)), ("cache", cache)]);
    test.load("slow", "0 2048 linear origin 0");
    test.load("volume", "0 2048 writecache s @slow cache 4096 2 pause_writeback 60000");
    test.io("volume", |env| write_io(env, 0, 8, 1).with(Flags::FUA)).unwrap();
    test.flush("volume").unwrap();
    // A flush goes to the origin after that.
    test.discard("volume", 1600, 8).unwrap();
    test.suspend("slow", SuspendMode::Flush);
    let volume = test.volume("volume");
    let (sender, env) = (volume.clone(), test.sim.env(0).clone());
    test.sim.env(0).clone().spawn(async move {
        let refused = sender.message(&env, Sector(0), &["flush"]).await.unwrap_err();
        assert!(refused.to_string().starts_with("flush: "), "{refused}");
    });
    test.settle();
    test.start("volume", "flush", |_| Io::flush());
    test.settle();
    // Takes the last slot; the block that is on its way home has none for its new content.
    test.write("volume", 8, 8, 5).unwrap();
    let zero = Io::on(Op::WriteZeroes, range(0, 256));
    test.start("volume", "slot", |env| write_io(env, 0, 8, 2));
    test.start("volume", "around", |env| write_io(env, 800, 8, 3));
    test.start("volume", "zero", |_| zero);
    test.start("volume", "discard", |_| Io::on(Op::Discard, range(1024, 256)));
    test.start("volume", "behind it", |env| write_io(env, 1024, 8, 3));
    test.settle();
    assert_eq!(test.labels(), Vec::<&str>::new(), "all wait");
    for ending in ["volume", "slow"].map(|name| test.volume(name)) {
        test.sim.block_on(0, |env| async move { ending.give_up(&env).await });
    }
    let ending: Arc<_> = volume.clone();
    test.sim
        .block_on(0, |env| async move { ending.suspend(&env, SuspendMode::NoFlush).await })
        .unwrap();
    test.settle();
    let line = "volume: @slow: suspended while the server ends, what was written around the cache \
                may not be durable";
    let log = test.sim.env(0).post().clone();
    assert_eq!(log.log().counted(line), Some(0), "no device failed");
    assert_eq!(test.labels().len(), 6, "each was answered: {:?}", test.labels());
    let cache = test.drive("cache").durable().to_vec();
    let blocks: Vec<_> = committed(&cache).iter().map(|entry| (entry.0, entry.2)).collect();
    assert!(blocks.contains(&(8, 5)), "the volume is committed: {blocks:?}");
}
