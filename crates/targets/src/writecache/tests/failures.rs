//! Failure counts: which clients get an error for a failure that another user met, which failures
//! are absorbed, and what the devices still hold.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Flags, Io, Op, Sector, SuspendMode};
use cairn_sim::{Fault, Image, OpSet};

use super::bed::{
    Bed, cache_sectors, committed, initial, initial_byte, range, slow, table, write_io,
};
use crate::fixture::Fixture;

const MILLI: Duration = Duration::from_millis(1);

/// A bed with a committed block in the cache, and a write that went around it.
fn bed_with_a_write_around() -> Bed {
    let bed = Bed::live(16, "metadata_only");
    bed.io(|env| write_io(env, 80, 8, 2).with(Flags::META)).unwrap();
    bed.flush().unwrap();
    bed.write(0, 8, 1).unwrap();
    bed
}

#[test]
fn flush_fails_once_per_client_after_another_user_met_a_failure() {
    let bed = bed_with_a_write_around();
    let mut clients = [bed.connect(), bed.connect()];
    bed.lose_by_another(&bed.origin);
    for client in &mut clients {
        bed.flush_of(client).unwrap_err();
        bed.flush_of(client).unwrap();
    }
    assert_eq!(bed.origin.durable().to_vec()[0], initial_byte(0), "it is lost");
    bed.flush_of(&mut bed.connect()).expect("who connects later need not hear of it");
}

#[test]
fn zeros_made_durable_after_a_failure_do_not_hide_its_losses() {
    let bed = bed_with_a_write_around();
    let mut client = bed.connect();
    bed.lose_by_another(&bed.origin);
    bed.on(Op::WriteZeroes, 256, 256).unwrap();
    bed.flush_of(&mut client).expect_err("the flush for the zeros came after the loss");
    bed.flush_of(&mut client).unwrap();
}

#[test]
fn a_flush_in_flight_fails_for_a_failure_that_writeback_meets() {
    let bed = bed_with_a_write_around();
    bed.origin.faults().add(slow(OpSet::FLUSHES, MILLI).shots(1));
    bed.origin.faults().add(Fault::losing_flushes().shots(1));
    let answer = bed.start_message("flush");
    bed.run(Duration::from_micros(300));
    // The flush after the copy is under way.
    bed.start("client", |_| Io::flush());
    bed.settle();
    assert!(bed.ends.of("client").expect("ended").is_err(), "what it wanted may be lost");
    assert!(answer.take().expect("ended").is_err());
    assert_eq!(bed.origin.durable().to_vec()[80 * 512], initial_byte(80), "it stays dirty");
    assert_eq!(bed.byte(80), 2);
}

#[test]
fn no_flush_fails_for_a_failure_that_writeback_absorbs() {
    let bed = Bed::live(16, "");
    for block in 0..3 {
        bed.write_fua(block * 16, 8, 7).unwrap();
    }
    bed.flush().unwrap();
    let mut clients = [bed.connect(), bed.connect()];
    bed.origin.faults().add(slow(OpSet::FLUSHES, MILLI).shots(1));
    bed.origin.faults().add(Fault::losing_flushes().shots(1));
    let answer = bed.start_message("flush");
    bed.run(Duration::from_micros(300));
    bed.flush().expect("nothing of it went around");
    bed.settle();
    assert!(answer.take().expect("ended").is_err());
    assert_eq!(bed.status().dirty(), 3);
    bed.run(Duration::from_secs(5));
    assert_eq!(bed.status().dirty(), 0, "copied again");
    for client in &mut clients {
        bed.flush_of(client).unwrap();
    }
    let origin = bed.origin.durable().to_vec();
    assert!((0..3).all(|block| origin[block * 16 * 512] == 7));
    bed.load("0 2048 linear origin 0");
    bed.flush_of(&mut clients[0]).expect("it was made good for the next table, too");
}

#[test]
fn copies_stay_dirty_if_another_user_met_a_failure() {
    let bed = Bed::live(16, "");
    bed.write_fua(0, 8, 1).unwrap();
    bed.flush().unwrap();
    // Its own flush of the copy waits for the other's, which loses the copy, and succeeds.
    bed.origin.faults().add(slow(OpSet::FLUSHES, MILLI).shots(1));
    let answer = bed.start_message("flush");
    bed.lose_by_another(&bed.origin);
    bed.settle();
    assert!(answer.take().expect("ended").is_err());
    assert_eq!(bed.durable_entries(), [(0, 0, 1)]);
    bed.message("flush").unwrap();
    assert_eq!(bed.origin.durable().to_vec()[0], 1);
}

#[test]
fn a_write_around_with_fua_is_not_lost_by_a_later_failure() {
    let bed = Bed::live(16, "metadata_only");
    bed.flush().unwrap();
    bed.write_fua(0, 8, 1).unwrap();
    bed.lose_by_another(&bed.origin);
    bed.flush().expect("it was durable");
    assert_eq!(bed.origin.durable().to_vec()[0], 1);
}

#[test]
fn a_commit_fails_if_another_user_met_a_failure_after_the_data_was_written() {
    for overwrite in [false, true] {
        let bed = Bed::live(16, "");
        if overwrite {
            bed.write_fua(0, 8, 9).unwrap();
        }
        let mut clients = [bed.connect(), bed.connect()];
        bed.write(0, 8, 1).unwrap();
        bed.lose_by_another(&bed.cache);
        bed.flush_of(&mut clients[0]).unwrap_err();
        let committed: Vec<_> = bed.durable_entries().iter().map(|entry| entry.2).collect();
        assert_eq!(committed, if overwrite { vec![9] } else { vec![] }, "not as if it were good");
        assert_eq!(bed.status().error(), 1);
        let lost = bed.swap(&table(2048, 4096, "")).unwrap().lost.expect("told").to_string();
        assert!(lost.starts_with("cache: "), "{lost}");
        for client in &mut clients {
            bed.flush_of(client).unwrap_err();
            bed.flush_of(client).unwrap();
        }
    }
}

#[test]
fn a_broken_cache_serves_reads_of_committed_slots_only() {
    let bed = Bed::live(16, "");
    bed.write_fua(0, 8, 1).unwrap();
    bed.write(8, 16, 2).unwrap();
    bed.lose_by_another(&bed.cache);
    bed.flush().unwrap_err();
    assert_eq!(bed.read(0, 8).unwrap(), [1; 4096]);
    for lost in [(8, 8), (16, 8), (0, 16), (8, 32)] {
        bed.read(lost.0, lost.1).unwrap_err();
    }
    assert_eq!(bed.byte(80), initial_byte(80), "what is not cached comes from the origin");
}

#[test]
fn a_failure_of_the_cache_device_that_lost_nothing_breaks_nothing() {
    let bed = Bed::live(16, "");
    bed.write_fua(0, 8, 1).unwrap();
    bed.lose_by_another(&bed.cache);
    bed.flush().unwrap();
    bed.write(0, 8, 2).unwrap();
    bed.flush().unwrap();
    assert_eq!((bed.status().error(), bed.durable_entries()), (0, vec![(0, 0, 2)]));
}

#[test]
fn free_entries_are_written_again_if_another_user_met_a_failure() {
    let bed = Bed::live(16, "");
    bed.write_fua(0, 8, 1).unwrap();
    bed.flush().unwrap();
    // The flush after the entry is written waits for the other's.
    bed.cache.faults().add(slow(OpSet::FLUSHES, MILLI).shots(1));
    let answer = bed.start_message("flush");
    bed.lose_by_another(&bed.cache);
    bed.settle();
    answer.take().expect("ended").expect("it is home");
    assert_eq!((bed.durable_entries(), bed.status().error()), (vec![], 0));
}

#[test]
fn a_resume_after_a_failure_writes_again_what_it_read() {
    let bed = Bed::live(1, "");
    bed.write_fua(0, 8, 1).unwrap();
    bed.flush().unwrap();
    // The free entry is there to be read, and not durable.
    bed.cache.faults().add(Fault::losing_flushes().shots(1));
    bed.message("flush").unwrap_err();
    assert_eq!((bed.durable_entries(), bed.status().error()), (vec![(0, 0, 1)], 1));
    bed.load(&table(2048, 4096, ""));
    assert_eq!(bed.durable_entries(), [], "I3: the slot is handed out on the strength of that");
    bed.write(80, 8, 9).unwrap();
    let image = bed.cache.power_cut(&mut fastrand::Rng::with_seed(1)).to_vec();
    assert!(!committed(&image).iter().any(|entry| entry.0 == 0));
}

#[test]
fn a_suspend_whose_commit_fails_says_so_and_so_do_the_flushes_after_it() {
    let bed = Bed::live(16, "");
    let mut clients = [bed.connect(), bed.connect()];
    bed.write(0, 8, 1).unwrap();
    bed.cache.faults().add(Fault::error(OpSet::FLUSHES).shots(1));
    let lost = bed.try_suspend(SuspendMode::Flush).unwrap_err().to_string();
    assert!(lost.starts_with("cache: "), "{lost}");
    assert!(bed.volume.is_suspended());
    bed.load(&table(2048, 4096, ""));
    assert_eq!(bed.byte(0), initial_byte(0), "it is gone");
    for client in &mut clients {
        bed.flush_of(client).unwrap_err();
        bed.flush_of(client).unwrap();
    }
}

#[test]
fn a_write_that_ends_on_a_broken_cache_counts_as_lost_at_the_suspend() {
    let bed = Bed::live(16, "");
    bed.write_fua(0, 8, 1).unwrap();
    bed.cache.faults().add(slow(OpSet::WRITES, MILLI).on(range(16, 8)).shots(1));
    bed.start("late", |env| write_io(env, 80, 8, 2));
    bed.cache.faults().add(Fault::error(OpSet::READS).shots(1));
    bed.message("flush").unwrap_err();
    assert_eq!(bed.volume.failure_count().count(), 0, "nothing was lost yet");
    bed.settle();
    assert_eq!(bed.ends.of("late"), Some(Ok(())));
    bed.try_suspend(SuspendMode::Flush).unwrap_err();
    assert_eq!(bed.volume.failure_count().count(), 1);
}

#[test]
fn a_broken_cache_without_volatile_writes_suspends_without_error() {
    let bed = Bed::live(16, "");
    bed.write_fua(0, 8, 1).unwrap();
    bed.cache.faults().add(Fault::error(OpSet::READS).shots(1));
    bed.message("flush").unwrap_err();
    assert_eq!(bed.status().error(), 1);
    bed.suspend(SuspendMode::Flush);
    bed.load(&table(2048, 4096, ""));
    assert_eq!(bed.byte(0), 1);
    bed.flush().unwrap();
}

#[test]
fn dirty_blocks_are_reported_after_a_suspend() {
    let bed = Bed::live(16, "");
    assert!(bed.target().dirty().is_none());
    bed.write(0, 16, 1).unwrap();
    bed.write(80, 8, 1).unwrap();
    let dirty = bed.target().dirty().expect("it is dirty");
    assert_eq!(
        (dirty.sectors.0, dirty.device.as_str(), dirty.origin.name()),
        (24, "cache", "origin".into())
    );
    bed.suspend(SuspendMode::Flush);
    assert_eq!(bed.target().dirty().expect("still").sectors.0, 24);
    bed.resume();
    bed.message("flush_on_suspend").unwrap();
    bed.suspend(SuspendMode::Flush);
    assert!(bed.target().dirty().is_none(), "all is home");
}

/// What a server does when it ends, to a cache over a suspended volume: writes wait for a slot and
/// for the origin, and so do a flush, a write-zeroes, a discard, and the message `flush`.
#[test]
fn a_stop_ends_waits_for_a_slot_and_for_a_suspended_origin() {
    let cache = Image::new(cairn_block::SectorCount(cache_sectors(2, 4096)));
    let rig = Fixture::new([("origin", initial(2048)), ("cache", cache)]);
    rig.load("slow", "0 2048 linear origin 0");
    rig.load("volume", "0 2048 writecache s @slow cache 4096 2 pause_writeback 60000");
    rig.io("volume", |env| write_io(env, 0, 8, 1).with(Flags::FUA)).unwrap();
    rig.io("volume", |_| Io::flush()).unwrap();
    // A flush goes to the origin after that.
    rig.io("volume", |_| Io::on(Op::Discard, range(1600, 8))).unwrap();
    rig.suspend("slow", SuspendMode::Flush);
    let volume = rig.volume("volume");
    let (sender, env) = (volume.clone(), rig.sim.env(0).clone());
    rig.sim.env(0).clone().spawn(async move {
        let refused = sender.message(&env, Sector(0), &["flush"]).await.unwrap_err();
        assert!(refused.to_string().starts_with("flush: "), "{refused}");
    });
    rig.settle();
    rig.start("volume", "flush", |_| Io::flush());
    rig.settle();
    // Takes the last slot; the block that is on its way home has none for its new content.
    rig.write("volume", 8, 8, 5).unwrap();
    let zero = Io::on(Op::WriteZeroes, range(0, 256));
    rig.start("volume", "slot", |env| write_io(env, 0, 8, 2));
    rig.start("volume", "around", |env| write_io(env, 800, 8, 3));
    rig.start("volume", "zero", |_| zero);
    rig.start("volume", "discard", |_| Io::on(Op::Discard, range(1024, 256)));
    rig.start("volume", "behind it", |env| write_io(env, 1024, 8, 3));
    rig.settle();
    assert_eq!(rig.labels(), Vec::<&str>::new(), "all wait");
    for ending in ["volume", "slow"].map(|name| rig.volume(name)) {
        rig.sim.block_on(0, |env| async move { ending.give_up(&env).await });
    }
    let ending: Arc<_> = volume.clone();
    rig.sim
        .block_on(0, |env| async move { ending.suspend(&env, SuspendMode::NoFlush).await })
        .unwrap();
    rig.settle();
    let line = "volume: @slow: suspended while the server ends, what was written around the cache \
                may not be durable";
    let log = rig.sim.env(0).post().clone();
    assert_eq!(log.log().counted(line), Some(0), "no device failed");
    assert_eq!(rig.labels().len(), 6, "each was answered: {:?}", rig.labels());
    let cache = rig.drive("cache").durable().to_vec();
    let blocks: Vec<_> = committed(&cache).iter().map(|entry| (entry.0, entry.2)).collect();
    assert!(blocks.contains(&(8, 5)), "the volume is committed: {blocks:?}");
}
