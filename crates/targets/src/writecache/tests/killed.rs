//! The process is killed and the drives keep their volatile caches: a new process may read data
//! that is not durable.

use std::time::Duration;

use cairn_sim::{Fault, OpSet};

use super::bed::{Bed, committed, slow, table};

#[test]
fn a_flush_after_a_restart_covers_what_the_killed_process_wrote() {
    let bed = Bed::live(4, "");
    bed.write_fua(0, 8, 1).unwrap();
    bed.write(0, 8, 2).unwrap();
    let bed = bed.killed();
    bed.load(&table(2048, 4096, "pause_writeback 0"));
    assert_eq!(bed.byte(0), 2);
    bed.flush().unwrap();
    assert_eq!(bed.durable_entries()[0].2, 2);
}

#[test]
fn a_slot_whose_free_entry_was_volatile_is_not_reused_too_early() {
    for seed in 0..100 {
        let bed = Bed::live(1, "");
        bed.write_fua(0, 8, 1).unwrap();
        bed.cache.faults().add(slow(OpSet::FLUSHES, Duration::from_millis(1)));
        let _answer = bed.start_message("flush");
        // The free entry is written, its flush is under way.
        while committed(&bed.cache.visible().to_vec()).len() == 1 {
            bed.run(Duration::from_micros(10));
        }
        let bed = bed.killed();
        bed.cache.faults().clear();
        bed.load(&table(2048, 4096, "pause_writeback 0"));
        bed.write(80, 8, 9).unwrap();
        let image = bed.cache.power_cut(&mut fastrand::Rng::with_seed(seed));
        let wrong = |entry: &(u64, u64, u8)| entry.0 == 0 && entry.2 == 9;
        assert!(!committed(&image.to_vec()).iter().any(wrong), "seed {seed}: I3");
    }
}

#[test]
fn a_failed_flush_at_resume_counts_as_a_loss_of_writes_around() {
    for fails in [false, true] {
        let bed = Bed::live(16, "metadata_only");
        bed.write(0, 8, 1).unwrap();
        let bed = bed.killed();
        if fails {
            bed.origin.faults().add(Fault::losing_flushes().shots(1));
        }
        bed.load(&table(2048, 4096, "metadata_only"));
        assert_eq!(bed.byte(0), 1);
        let mut client = bed.connect();
        assert_eq!(bed.flush_of(&mut client).is_err(), fails);
        bed.flush_of(&mut client).unwrap();
        assert_eq!(bed.origin.durable().to_vec()[0] == 1, !fails);
    }
}
