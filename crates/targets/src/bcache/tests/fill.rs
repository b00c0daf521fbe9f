//! Tests of the clean data that enters the cache.

use super::*;

/// A volume with a cache that has nothing dirty, and a session.
fn served() -> Fixture {
    let test = stopped();
    test.load("v", LINE);
    drain(&test).expect("the drives are well");
    test.write("v", 0, 8, 1).expect("the drives are well");
    test
}

/// Reads 4 KiB; true if all of it came from the cache.
fn hits(test: &Fixture, start: u64) -> bool {
    test.forget();
    test.read("v", start, 8).expect("the drives are well");
    let has_read = test.ops("b").iter().any(|(op, ..)| *op == Op::Read);
    test.run(Duration::from_millis(20));
    !has_read
}

#[test]
fn a_read_that_missed_is_a_hit_from_then_on_also_after_the_next_start() {
    let test = served();
    let read = || test.read("v", 5000, 8).expect("the drives are well");
    assert_eq!([hits(&test, 5000), hits(&test, 5000)], [false, true]);
    assert_eq!(read(), &test.contents("b")[(16 + 5000) * SECTOR..][..8 * SECTOR]);
    test.remove("v");
    test.load("v", LINE);
    assert!(hits(&test, 5000));
}

#[test]
fn the_first_read_that_misses_begins_a_session() {
    let test = stopped();
    test.load("v", LINE);
    assert_eq!([hits(&test, 5000), hits(&test, 5000), hits(&test, 5000)], [false, false, true]);
}

#[test]
fn a_write_keeps_out_what_a_read_before_it_found() {
    for mode in ["writeback", "writethrough", "writearound"] {
        let test = served();
        test.message("v", &["set", "cache_mode", mode]).expect("a mode");
        let effect = Effect::Delay(Duration::from_millis(5));
        let slow = Fault { effect, ..Fault::error(OpSet::READS) };
        test.drive("b").faults().add(slow);
        test.start("v", "read", |env| Io::read(range(5000, 8), env.segs(SectorCount(8))));
        test.write("v", 5000, 8, 7).expect("the drives are well");
        assert!(test.labels().is_empty(), "the read takes longer");
        test.run(Duration::from_secs(1));
        assert_eq!(test.labels(), ["read"]);
        assert!(test.bytes("v", 5000, 8).iter().all(|byte| *byte == 7), "{mode}");
    }
}

#[test]
fn a_write_through_the_cache_enters_it_once_a_flush_covers_it() {
    let test = served();
    test.message("v", &["set", "cache_mode", "writethrough"]).expect("a mode");
    test.write("v", 5000, 8, 7).expect("the drives are well");
    test.run(Duration::from_secs(1));
    assert!(!hits(&test, 5000), "a power cut may still take it back");
    test.flush("v").expect("the drives are well");
    test.run(Duration::from_millis(10));
    assert!(hits(&test, 5000));
    test.write("v", 6000, 8, 7).expect("the drives are well");
    test.run(Duration::from_secs(6));
    assert!(hits(&test, 6000), "without a client's flush it has one of its own");
}

#[test]
fn long_streams_do_not_enter_the_cache() {
    let test = served();
    test.message("v", &["set", "sequential_cutoff", "4096"]).expect("in its range");
    assert_eq!([hits(&test, 5000), hits(&test, 5000)], [false, false]);
}

#[test]
fn what_the_cache_device_loses_of_a_fill_is_read_from_the_backing_device() {
    let test = stopped();
    test.load("v", LINE);
    drain(&test).expect("the drives are well");
    test.read("v", 4000, 8).expect("it begins a session");
    test.run(Duration::from_millis(20));
    assert_eq!([hits(&test, 5000), hits(&test, 5000)], [false, true]);
    test.lose_by_another("c");
    assert!(!hits(&test, 5000), "the device may show what it has lost");
    let expected = test.contents("b")[(16 + 5000) * SECTOR..][..8 * SECTOR].to_vec();
    assert_eq!(test.read("v", 5000, 8), Ok(expected));
}
