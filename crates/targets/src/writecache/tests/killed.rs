//! The process is killed and the drives keep their volatile caches: a new process may read data
//! that is not durable.

use std::time::Duration;

use cairn_sim::{Fault, OpSet};

use super::fixture::{CacheFixture, committed, slow, table};

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
