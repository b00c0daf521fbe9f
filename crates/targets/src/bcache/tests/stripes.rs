//! Tests of stripes, read-ahead and large write-zeroes.

use cairn_block::{Disk, Flags};

use super::*;

/// A volume with nothing dirty, and a session.
fn clean() -> Fixture {
    let test = stopped();
    test.load("v", LINE);
    drain(&test).expect("the drives are well");
    test.read("v", 6000, 8).expect("it begins a session");
    test.run(Duration::from_millis(20));
    test
}

fn is_zero(test: &Fixture, start: u64, count: u64) -> bool {
    test.bytes("v", start, count).iter().all(|byte| *byte == 0)
}

fn data_written(test: &Fixture, drive: &str) -> u64 {
    let own = |it: &&(Op, u64, u64)| it.0 == Op::Write && it.1 >= 16;
    test.ops(drive).iter().filter(own).map(|it| it.2).sum()
}

#[test]
fn large_write_zeroes_go_around_the_cache_in_mode_writeback() {
    let test = clean();
    test.forget();
    test.zero("v", 8192, 2048).expect("the drives are well");
    let zeroes = test.ops("b").into_iter().filter(|it| it.0 == Op::WriteZeroes);
    assert_eq!(zeroes.collect::<Vec<_>>(), [(Op::WriteZeroes, 16 + 8192, 2048)]);
    assert!(is_zero(&test, 8192, 2048));
    test.forget();
    test.zero("v", 12_000, 2040).expect("the drives are well");
    assert!(!test.ops("b").iter().any(|it| it.0 == Op::WriteZeroes), "a small one is dirty data");
    assert!(is_zero(&test, 12_000, 2040));
}

#[test]
fn large_write_zeroes_over_dirty_data_are_durable_on_the_backing_device_before_it_leaves() {
    let test = clean();
    test.write("v", 8192, 64, 7).expect("the drives are well");
    test.write("v", 9000, 64, 7).expect("the drives are well");
    test.flush("v").expect("the drives are well");
    test.forget();
    test.zero("v", 8100, 4096).expect("the drives are well");
    assert!(data_written(&test, "b") == 0 && is_zero(&test, 8100, 4096));
    let durable = test.drive("b").durable().to_vec();
    assert!(durable[(16 + 8100) * SECTOR..][..4096 * SECTOR].iter().all(|byte| *byte == 0));
    assert_eq!(test.target("v").report().number("dirty_data"), Some(0));
    test.write("v", 8192, 8, 8).expect("the drives are well");
    test.remove("v");
    test.load("v", LINE);
    assert!(is_zero(&test, 8100, 92) && is_zero(&test, 8200, 3996));
    assert!(test.bytes("v", 8192, 8).iter().all(|byte| *byte == 8));
}

#[test]
fn large_write_zeroes_that_fail_leave_the_dirty_data() {
    let test = clean();
    test.write("v", 8192, 64, 7).expect("the drives are well");
    test.drive("b").faults().add(Fault::error(OpSet::WRITES));
    assert!(test.zero("v", 8100, 4096).is_err());
    test.drive("b").faults().clear();
    assert!(test.bytes("v", 8192, 64).iter().all(|byte| *byte == 7));
}

#[test]
fn write_joins_nothing_on_a_device_without_stripes() {
    let test = clean();
    let io_opt = test.drive("b").limits().io_opt;
    test.message("v", &["set", "sequential_cutoff", "512"]).expect("all bypass");
    test.message("v", &["set", "partial_stripes_expensive", "1"]).expect("a switch");
    // The simulated drive says nothing of stripes: then there are none to join.
    assert_eq!(io_opt, 0);
    test.forget();
    test.write("v", 8192, 8, 7).expect("the drives are well");
    assert_eq!(data_written(&test, "b"), 8);
}

#[test]
fn background_reads_enter_the_cache_unless_it_is_for_metadata_alone() {
    for (policy, flags, enters) in [
        ("all", Flags::BACKGROUND, true),
        ("meta-only", Flags::BACKGROUND, false),
        ("meta-only", Flags::BACKGROUND.union(Flags::META), true),
        ("meta-only", Flags::empty(), true),
    ] {
        let test = clean();
        test.message("v", &["set", "readahead_cache_policy", policy]).expect("a word");
        let read = || {
            test.forget();
            test.io("v", |env| Io::read(range(9000, 8), env.segs(SectorCount(8))).with(flags))
                .expect("the drives are well");
            test.run(Duration::from_millis(20));
            test.ops("b").len()
        };
        assert_eq!((read(), read() == 0), (1, enters), "{policy} {flags:?}");
    }
    let test = clean();
    let wrong = test.message("v", &["set", "readahead_cache_policy", "some"]);
    let text = wrong.expect_err("no word").to_string();
    assert!(text.contains("found 'some', expected all or meta-only"), "{text}");
}
