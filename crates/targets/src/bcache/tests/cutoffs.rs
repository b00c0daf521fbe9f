//! Tests of the cutoffs of mode writeback.

use cairn_block::Flags;

use super::*;
use crate::fixture::write_io;

fn set(test: &Fixture, name: &'static str, value: &'static str) {
    test.message("v", &["set", name, value]).expect("in its range");
}

/// Writes 4 KiB; true if the cache got them.
fn is_cached(test: &Fixture, start: u64, flags: Flags) -> bool {
    test.forget();
    test.io("v", |env| write_io(env, start, 8, 7).with(flags)).expect("the drives are well");
    written_around(test).is_empty()
}

#[test]
fn writes_go_through_a_cache_that_is_in_use_beyond_their_cutoff() {
    let test = stopped();
    test.load("v", LINE);
    drain(&test).expect("the drives are well");
    test.write("v", 0, 8, 7).expect("the drives are well");
    let in_use = test.with_target("v", |volume: &Bcache| {
        volume.look(|set| set.buckets.in_use_percent()).expect("it is open")
    });
    assert!((1..40).contains(&in_use), "{in_use}");
    let cached = |start| {
        [Flags::empty(), Flags::FUA, Flags::META].map(|flags| is_cached(&test, start, flags))
    };
    assert_eq!(cached(5000), [true; 3]);
    set(&test, "cutoff_writeback", "0");
    assert_eq!(cached(6000), [false, true, true]);
    set(&test, "cutoff_writeback", "70");
    set(&test, "cutoff_writeback_sync", "0");
    assert_eq!(cached(7000), [false; 3]);
    // The cache has these sectors, dirty.
    assert_eq!(cached(5000), [true; 3]);
}
