//! Tests of collecting: fragmented buckets are packed, and a tree that shrank gives buckets back.

use super::super::set::Set;
use super::*;

const LARGE_LINE: &str = "0 90000 bcache b c 0";
/// How many buckets of dirty data [`sparse`] writes.
const BUCKETS: u64 = 700;

fn number(test: &Fixture, name: &str) -> u64 {
    let all = test.target("v").attributes();
    let found = all.into_iter().find(|it| it.name == name).expect("an attribute");
    match found.value {
        Value::Gauge(number) | Value::Counter(number) => number,
        other => panic!("{name} is {other}"),
    }
}

fn set(test: &Fixture, words: [&'static str; 2]) {
    test.message("v", &["set", words[0], words[1]]).expect("in its range");
}

/// What the sectors of a bucket have.
fn byte_of(index: u64) -> u8 {
    (index % 250) as u8 + 1
}

/// A cache with half of its buckets in use, each by few dirty sectors. Nothing is written back.
fn sparse(words: &[[&'static str; 2]]) -> Fixture {
    let [cache, backing] = large(&[]);
    let test = Fixture::new([("c", cache), ("b", backing)]).with_logs_of(MANY_RECORDS);
    test.load("v", LARGE_LINE);
    let still =
        [["writeback_running", "0"], ["sequential_cutoff", "0"], ["cutoff_writeback", "70"]];
    still.iter().chain(words).for_each(|words| set(&test, *words));
    for index in 0..BUCKETS {
        test.write("v", index * 128, 128, byte_of(index)).expect("the drives are well");
    }
    // Some more buckets: more than half of all are in use.
    for index in 0..300 {
        test.write("v", index * 128 + 119, 9, byte_of(index)).expect("the drives are well");
    }
    for index in 0..BUCKETS {
        test.discard("v", index * 128, 110).expect("the drives are well");
    }
    test.flush("v").expect("the drives are well");
    test
}

fn assert_contents(test: &Fixture) {
    for index in 0..BUCKETS {
        let kept = test.bytes("v", index * 128 + 110, 18);
        assert!(kept.iter().all(|byte| *byte == byte_of(index)), "{index}");
    }
}

#[test]
fn fragmented_buckets_are_packed_without_a_write_to_the_backing_device() {
    let test = sparse(&[]);
    test.forget();
    test.run(Duration::from_secs(120));
    let moved = number(&test, "moved_buckets");
    assert!(moved > 100, "{moved} buckets");
    let is_write = |(op, ..): &(Op, u64, u64)| *op == Op::Write;
    assert!(!test.ops("b").iter().any(is_write), "the backing device gets nothing");
    assert_eq!(number(&test, "dirty_data"), BUCKETS * 18);
    assert!(number(&test, "cache_available_percent") > 55);
    assert_contents(&test);
    // The same after the next start, from the device.
    test.remove("v");
    test.load("v", LARGE_LINE);
    assert_eq!(number(&test, "dirty_data"), BUCKETS * 18);
    assert_contents(&test);
    drain(&test).expect("the drives are well");
    test.remove("v");
    test.load("v", "0 90000 linear b 16");
    assert_contents(&test);
}

#[test]
fn a_cache_packs_nothing_if_that_is_turned_off_until_it_is_asked_to() {
    let test = sparse(&[["copy_gc_enabled", "0"]]);
    test.run(Duration::from_secs(60));
    assert_eq!(number(&test, "moved_buckets"), 0);
    set(&test, ["trigger_gc", "1"]);
    test.run(Duration::from_secs(60));
    assert_eq!(number(&test, "trigger_gc"), 0, "the pass has begun");
    assert!(number(&test, "moved_buckets") > 100);
    assert_contents(&test);
}

#[test]
fn a_pass_reads_absent_leaves_once_for_the_sources_of_many_rounds() {
    let extents = scattered();
    let [cache, backing] = large(&extents);
    let test = Fixture::new([("c", cache), ("b", backing)]);
    test.load("v", LARGE_LINE);
    for words in [["writeback_running", "0"], ["copy_gc_enabled", "0"], ["btree_cache_size", "0"]] {
        set(&test, words);
    }
    // The extents of forty buckets, each with every second one gone.
    for key in extents[..40 * 128].iter().step_by(2) {
        test.discard("v", key.start() - 16, 1).expect("the drives are well");
    }
    test.flush("v").expect("the drives are well");
    test.run(Duration::from_secs(60));
    let leaves = test.with_target("v", |it: &Bcache| it.look(|set| set.tree.leaves()));
    let leaves = leaves.expect("it is open");
    assert_eq!(number(&test, "btree_cache_used"), 0);
    test.forget();
    set(&test, ["trigger_gc", "1"]);
    test.run(Duration::from_secs(60));
    let rounds = number(&test, "moved_buckets") / 4;
    assert!(rounds >= 9, "{rounds} rounds");
    let is_node = |(op, at, count): &(Op, u64, u64)| *op == Op::Read && at % 128 == 0 && *count > 8;
    let reads = test.ops("c").iter().filter(|op| is_node(op)).count();
    // For coalescing, for the look, and for the one that finds no more; and the leaves that a round
    // changes.
    let most = 3 * leaves + 3 * rounds as usize;
    assert!(reads <= most, "{reads} reads of nodes for {leaves} leaves in {rounds} rounds");
    set(&test, ["btree_cache_size", "1000000000"]);
    for key in extents[..40 * 128].iter().skip(1).step_by(200) {
        test.read("v", key.start() - 16, 1).expect("it is there");
    }
}

#[test]
fn clean_data_beside_dirty_data_that_is_packed_stays_where_it_is() {
    let [cache, backing] = large(&[]);
    let test = Fixture::new([("c", cache), ("b", backing)]);
    test.load("v", LARGE_LINE);
    for words in [["writeback_running", "0"], ["sequential_cutoff", "0"]] {
        set(&test, words);
    }
    // Eight to a bucket. The first of eight cannot be written back.
    for index in 0..40 * 8 {
        test.write("v", index * 32, 16, byte_of(index)).expect("the drives are well");
        if index % 8 == 0 {
            let place = range(16 + index * 32, 16);
            test.drive("b").faults().add(Fault::error(OpSet::WRITES).on(place));
        }
    }
    drain(&test).expect_err("some are left");
    test.drive("b").faults().clear();
    let extents = |is_dirty: bool| {
        let of = |set: &Set| {
            let all = set.tree.extents().filter(|key| key.is_dirty() == is_dirty);
            all.copied().collect::<Vec<_>>()
        };
        test.with_target("v", |it: &Bcache| it.look(of)).expect("it is open")
    };
    let (clean, dirty) = (extents(false), extents(true));
    assert_eq!((clean.len(), dirty.len()), (40 * 7, 40));
    test.forget();
    set(&test, ["trigger_gc", "1"]);
    test.run(Duration::from_secs(60));
    assert!(extents(false) == clean, "clean data has moved");
    let moved = extents(true).iter().filter(|key| !dirty.contains(key)).count() as u64;
    assert_eq!(moved, number(&test, "moved_buckets"));
    assert!(moved > 30, "{moved} extents");
    for index in 0..40 * 8 {
        assert_eq!(test.bytes("v", index * 32, 16), [byte_of(index); 16]);
    }
}

#[test]
fn an_extent_that_cannot_be_read_stays_where_it_is() {
    let test = sparse(&[["copy_gc_enabled", "0"]]);
    let fails = Fault { shots: Some(1), ..Fault::error(OpSet::READS) };
    test.drive("c").faults().add(fails);
    set(&test, ["trigger_gc", "1"]);
    test.run(Duration::from_secs(60));
    assert_eq!(number(&test, "io_disable"), 0);
    assert!(number(&test, "moved_buckets") > 100);
    assert_contents(&test);
}

#[test]
fn a_tree_that_discards_emptied_gives_its_nodes_back() {
    let extents = scattered();
    let [cache, backing] = large(&extents);
    let test = Fixture::new([("c", cache), ("b", backing)]);
    test.load("v", LARGE_LINE);
    set(&test, ["writeback_running", "0"]);
    let before = number(&test, "btree_nodes");
    for index in 0..88 {
        test.discard("v", index * 1000, 1000).expect("the drives are well");
    }
    let kept = test.read("v", 88_000, 2000).expect("the drives are well");
    test.run(Duration::from_secs(60));
    let after = number(&test, "btree_nodes");
    assert!(before > 15 && after <= 4, "{before} nodes became {after}");
    assert!(number(&test, "coalesced_nodes") >= before - after);
    assert_eq!(test.read("v", 88_000, 2000), Ok(kept.clone()));
    test.remove("v");
    test.load("v", LARGE_LINE);
    assert_eq!(number(&test, "btree_nodes"), after, "as on the device");
    assert_eq!(test.read("v", 88_000, 2000), Ok(kept));
}

#[test]
fn a_pass_that_a_suspend_ends_begins_again_with_the_next_session() {
    let test = sparse(&[["copy_gc_enabled", "0"]]);
    let passes = number(&test, "gc_passes");
    set(&test, ["trigger_gc", "1"]);
    test.run(Duration::from_millis(2));
    assert_eq!((number(&test, "trigger_gc"), number(&test, "gc_passes")), (0, passes), "it runs");
    test.suspend("v", SuspendMode::Flush);
    assert_eq!((number(&test, "trigger_gc"), number(&test, "gc_passes")), (1, passes));
    let before = number(&test, "moved_buckets");
    test.resume("v").expect("the drives are well");
    test.write("v", 0, 1, 1).expect("it begins a session");
    test.run(Duration::from_secs(60));
    assert_eq!((number(&test, "trigger_gc"), number(&test, "gc_passes")), (0, passes + 1));
    assert!(number(&test, "moved_buckets") > before + 100);
    assert_contents(&test);
}

#[test]
fn a_pass_that_is_asked_for_while_no_volume_is_served_begins_with_the_next_session() {
    let test = sparse(&[["copy_gc_enabled", "0"]]);
    test.suspend("v", SuspendMode::Flush);
    let passes = number(&test, "gc_passes");
    set(&test, ["trigger_gc", "1"]);
    test.run(Duration::from_secs(60));
    assert_eq!((number(&test, "trigger_gc"), number(&test, "gc_passes")), (1, passes));
    test.resume("v").expect("the drives are well");
    test.write("v", 0, 1, 1).expect("it begins a session");
    test.run(Duration::from_secs(60));
    assert_eq!((number(&test, "trigger_gc"), number(&test, "gc_passes")), (0, passes + 1));
    assert!(number(&test, "moved_buckets") > 100);
    assert_contents(&test);
}
