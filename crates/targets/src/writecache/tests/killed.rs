//! The process is killed and the drives keep their volatile caches: a new process may read data
//! that is not durable.

use std::time::Duration;

use cairn_block::{Io, IoError, Op, SectorCount};
use cairn_sim::{Fault, OpSet};

use super::fixture::{
    CacheFixture, cache_sectors, committed, initial_byte, range, slow, table, write_io,
};

#[test]
fn a_flush_after_a_restart_covers_what_the_killed_process_wrote() {
    let test = CacheFixture::live(4, "");
    test.write_fua(0, 8, 1).unwrap();
    test.write(0, 8, 2).unwrap();
    let test = test.killed();
    test.load(&table(2048, 4096, "pause_writeback 0"));
    assert_eq!(test.byte(0), 2);
    test.flush().unwrap();
    assert_eq!(test.durable_entries()[0].2, 2);
}

#[test]
fn a_slot_whose_free_entry_was_volatile_is_not_reused_too_early() {
    for seed in 0..100 {
        let test = CacheFixture::live(1, "");
        test.write_fua(0, 8, 1).unwrap();
        test.cache.faults().add(slow(OpSet::FLUSHES, Duration::from_millis(1)));
        let _answer = test.start_message("flush");
        // The free entry is written, its flush is under way.
        while committed(&test.cache.visible().to_vec()).len() == 1 {
            test.run(Duration::from_micros(10));
        }
        let test = test.killed();
        test.cache.faults().clear();
        test.load(&table(2048, 4096, "pause_writeback 0"));
        test.write(80, 8, 9).unwrap();
        let image = test.cache.power_cut(&mut fastrand::Rng::with_seed(seed));
        let wrong = |entry: &(u64, u64, u8)| entry.0 == 0 && entry.2 == 9;
        assert!(!committed(&image.to_vec()).iter().any(wrong), "seed {seed}: I3");
    }
}

#[test]
fn a_kill_loses_nothing_that_was_acknowledged() {
    let test = CacheFixture::live(8, "autocommit_blocks 1000");
    for block in 0..4 {
        test.write(block * 16, 8, 1).unwrap();
    }
    test.write_fua(64, 8, 2).unwrap();
    test.write(0, 8, 3).unwrap();
    test.write(16, 8, 4).unwrap();
    test.write(16, 8, 5).unwrap();
    test.on(Op::Discard, 32, 8).unwrap();
    let test = test.killed();
    test.load(&table(2048, 4096, "pause_writeback 0"));
    let bytes = [0, 16, 48, 64].map(|sector| test.byte(sector));
    assert_eq!(bytes, [3, 5, 1, 2]);
    assert_eq!(test.byte(32), 0, "it was discarded");
    let again = test.reopen_durable();
    again.load(&table(2048, 4096, "pause_writeback 0"));
    assert_eq!([0, 16, 48, 64].map(|sector| again.byte(sector)), bytes, "it is durable");
}

#[test]
fn a_kill_after_a_failure_of_the_cache_is_told_as_a_loss_unless_a_client_was_told() {
    for (waits, is_told) in [(false, false), (true, false), (true, true)] {
        let test = CacheFixture::live(8, "autocommit_blocks 1000 autocommit_time 1000");
        test.write(0, 8, 1).unwrap();
        test.cache.faults().add(Fault::losing_flushes().shots(1));
        if waits {
            test.run(Duration::from_secs(2));
        } else {
            // The kill comes before the cache knows of the failure.
            let cache = test.registry.open("cache", false).unwrap();
            test.sim
                .block_on(0, |env| async move { env.io(&cache, Io::flush()).await.unwrap_err() });
        }
        if is_told {
            test.flush().expect_err("the commit failed");
        }
        let test = test.killed();
        let client = test.client();
        test.load(&table(2048, 4096, "pause_writeback 0"));
        assert_eq!(test.byte(0), initial_byte(0));
        assert_eq!(test.flush_of(&client).is_err(), !is_told, "{waits}");
        test.flush_of(&client).unwrap();
    }
}

const OVER_A_VOLUME: &str =
    "0 2048 writecache s origin @low 4096 4 pause_writeback 0 autocommit_blocks 1000";

fn load_over_a_volume(test: &CacheFixture) {
    let sectors = cache_sectors(8, 4096);
    test.fixture.load("low", &format!("0 {sectors} linear cache 0"));
    test.load(OVER_A_VOLUME);
}

#[test]
fn a_failure_of_a_drive_beneath_a_volume_is_told_after_a_kill_if_it_lost_something() {
    for fails_again in [false, true] {
        let test = CacheFixture::new(2048, cache_sectors(8, 4096));
        load_over_a_volume(&test);
        // Nothing is volatile.
        test.lose_by_another("cache");
        for block in 0..2 {
            test.flush().unwrap();
            test.write(block * 8, 8, 1).unwrap();
        }
        if fails_again {
            test.lose_by_another("cache");
        }
        let test = test.killed();
        let client = test.client();
        load_over_a_volume(&test);
        let lost = if fails_again { initial_byte(8) } else { 1 };
        assert_eq!([0, 8].map(|sector| test.byte(sector)), [1, lost]);
        assert_eq!(test.flush_of(&client).is_err(), fails_again);
        test.flush_of(&client).unwrap();
    }
}

#[test]
fn writes_wait_for_a_commit_when_the_crash_log_is_full() {
    let test = CacheFixture::live(1000, "autocommit_blocks 100000 autocommit_time 3600000");
    for block in 0..300 {
        test.write(block * 8 % 2048, 8, 1).unwrap();
    }
    let test = test.killed();
    test.load(&table(2048, 4096, "pause_writeback 0"));
    assert!((0..256).all(|block| test.byte(block * 8) == 1));
}

#[test]
fn a_resume_whose_replay_failed_can_be_tried_again() {
    let test = CacheFixture::live(8, "autocommit_blocks 1000");
    test.write(0, 8, 1).unwrap();
    let test = test.killed();
    let client = test.client();
    test.cache.faults().add(Fault::error(OpSet::WRITES).shots(1));
    let refused = test.try_load("test", &table(2048, 4096, "")).unwrap_err();
    assert!(refused.to_string().starts_with("cache: crash log: "), "{refused}");
    test.resume();
    assert_eq!(test.byte(0), 1);
    test.write(8, 8, 2).unwrap();
    let told = [test.flush_of(&client), test.flush_of(&client)];
    assert_eq!(told, [Err(IoError::IO), Ok(())], "a device failed");
    assert_eq!(test.durable_entries().iter().map(|it| it.2).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_cache_that_was_used_in_between_is_refused() {
    let test = CacheFixture::live(8, "autocommit_blocks 1000");
    test.write(0, 8, 1).unwrap();
    let before = test.cache.visible().to_vec();
    test.flush().unwrap();
    test.write(16, 8, 1).unwrap();
    let test = test.killed();
    // A copy from before.
    let cache = test.registry.open("cache", false).unwrap();
    let restored = test.sim.block_on(0, |env| {
        let segs = env.segs(SectorCount::of_bytes(before.len() as u64));
        segs.copy_in(0, &before);
        let io = Io::write(range(0, before.len() as u64 / 512), segs);
        async move { env.io(&cache, io).await }
    });
    restored.unwrap();
    let refused = test.try_load("test", &table(2048, 4096, "")).unwrap_err();
    assert!(refused.to_string().contains("on top of seq_count 1, expected 0"), "{refused}");
}

#[test]
fn a_start_fails_if_another_user_loses_what_it_has_read() {
    for is_lost in [false, true] {
        let test = CacheFixture::live(4, "");
        test.write_fua(0, 8, 1).unwrap();
        let test = test.killed();
        // Its flush waits for the other user's, which loses what is volatile, and succeeds.
        test.cache.faults().add(slow(OpSet::FLUSHES, Duration::from_millis(1)).shots(1));
        let end = test.start_load(&table(2048, 4096, ""));
        if is_lost {
            test.lose_by_another("cache");
        }
        test.settle();
        let result = end.take().expect("ended");
        assert_eq!(result.is_err(), is_lost, "{result:?}");
    }
}

#[test]
fn a_failed_flush_at_resume_counts_as_a_loss_of_writes_around() {
    for fails in [false, true] {
        let test = CacheFixture::live(16, "metadata_only");
        test.write(0, 8, 1).unwrap();
        let test = test.killed();
        if fails {
            test.origin.faults().add(Fault::losing_flushes().shots(1));
        }
        test.load(&table(2048, 4096, "metadata_only"));
        assert_eq!(test.byte(0), 1);
        let client = test.client();
        assert_eq!(test.flush_of(&client).is_err(), fails);
        test.flush_of(&client).unwrap();
        assert_eq!(test.origin.durable().to_vec()[0] == 1, !fails);
    }
}

#[test]
fn writes_that_find_the_log_full_during_a_commit_have_another_one() {
    let test = CacheFixture::live(200, "autocommit_blocks 1000000 autocommit_time 3600000");
    test.cache.faults().add(slow(OpSet::FLUSHES, Duration::from_millis(5)));
    // Blocks without a neighbour need a record each.
    for block in 0..128 {
        test.start("write", move |env| write_io(env, block * 16, 8, 1));
        test.run(Duration::from_micros(50));
    }
    test.run(Duration::from_secs(1));
    assert_eq!(test.labels().len(), 128);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Unseen,
    Seen,
    Told,
}

#[test]
fn a_failure_of_the_origin_is_told_after_a_kill_unless_a_client_was_told() {
    for known in [Known::Unseen, Known::Seen, Known::Told] {
        let test = CacheFixture::live(16, "metadata_only");
        test.write(0, 8, 1).unwrap();
        test.lose_by_another("origin");
        match known {
            Known::Unseen => {}
            // Nobody is told by this.
            Known::Seen => _ = test.io(|_| Io::flush()).unwrap_err(),
            Known::Told => _ = test.flush().unwrap_err(),
        }
        let mut test = test.killed();
        for is_told in [known != Known::Told, false] {
            let clients = [test.client(), test.client()];
            test.load(&table(2048, 4096, "metadata_only"));
            for client in &clients {
                assert_eq!(test.flush_of(client).is_err(), is_told, "{known:?}");
                test.flush_of(client).unwrap();
            }
            test = test.killed();
        }
        test.load(&table(2048, 4096, "metadata_only"));
    }
}
