//! Tests of a tree that is not in memory as a whole.

use super::*;

const LARGE_LINE: &str = "0 90000 bcache b c 0";
/// How many extents [`split_tree`] has: they take some leaves.
const EXTENTS: u64 = 9000;

fn number(test: &Fixture, name: &str) -> u64 {
    let all = test.target("v").attributes();
    match all.into_iter().find(|it| it.name == name).expect("an attribute").value {
        Value::Gauge(number) | Value::Counter(number) => number,
        other => panic!("{name} is {other}"),
    }
}

fn limit(test: &Fixture, bytes: &'static str) {
    test.message("v", &["set", "btree_cache_size", bytes]).expect("in its range");
    test.run(Duration::from_secs(1));
}

fn byte_of(index: u64) -> u8 {
    (index % 250) as u8 + 1
}

/// Dirty extents of a sector each, with a hole behind each one, in a set that drains nothing.
fn split_tree() -> Fixture {
    let [cache, backing] = large(&[]);
    let test = Fixture::new([("c", cache), ("b", backing)]);
    test.load("v", LARGE_LINE);
    for words in
        [["writeback_running", "0"], ["sequential_cutoff", "0"], ["cutoff_writeback", "70"]]
    {
        test.message("v", &["set", words[0], words[1]]).expect("in its range");
    }
    for index in 0..EXTENTS {
        test.write("v", index * 2, 1, byte_of(index)).expect("the drives are well");
    }
    test.flush("v").expect("the drives are well");
    // A checkpoint splits its leaf.
    test.run(Duration::from_secs(60));
    assert!(number(&test, "btree_nodes") > 3, "it has some leaves");
    assert!(number(&test, "btree_cache_used") >= EXTENTS * 24);
    test
}

fn assert_contents(test: &Fixture, indices: impl Iterator<Item = u64>) {
    for index in indices {
        assert_eq!(test.bytes("v", index * 2, 1), [byte_of(index)], "{index}");
    }
}

#[test]
fn leaves_leave_memory_beyond_the_limit_and_are_read_again_by_requests() {
    let test = split_tree();
    let before = number(&test, "btree_cache_used");
    limit(&test, "0");
    assert_eq!(number(&test, "btree_cache_used"), 0, "{before} before");
    test.forget();
    assert_contents(&test, [0, EXTENTS / 2, EXTENTS - 1].into_iter());
    let sizes: Vec<u64> = test.ops("c").into_iter().map(|(_, _, count)| count).collect();
    assert!(sizes.iter().any(|count| *count > 8), "leaves were read: {sizes:?}");
    // What has room stays.
    limit(&test, "1000000000");
    assert_contents(&test, 0..EXTENTS);
    let used = number(&test, "btree_cache_used");
    assert_eq!(used, before, "all leaves are in memory again");
}

#[test]
fn writes_and_discards_change_leaves_that_had_left_memory() {
    let test = split_tree();
    limit(&test, "0");
    let dirty = number(&test, "dirty_data");
    test.write("v", 2 * 10, 1, byte_of(10)).expect("the drives are well");
    test.discard("v", 2 * (EXTENTS - 20), 2 * 10).expect("the drives are well");
    assert_eq!(number(&test, "dirty_data"), dirty - 10);
    test.flush("v").expect("the drives are well");
    limit(&test, "0");
    assert_contents(&test, 0..20);
    let gone = test.bytes("v", 2 * (EXTENTS - 20), 20);
    assert!(gone.iter().all(|byte| *byte == 0), "the backing device has zeros there");
    assert_contents(&test, EXTENTS - 10..EXTENTS);
}

#[test]
fn a_drain_and_the_next_start_find_what_is_dirty_in_leaves_that_had_left_memory() {
    let test = split_tree();
    limit(&test, "0");
    drain(&test).expect("the drives are well");
    assert_eq!(number(&test, "dirty_data"), 0);
    assert_eq!(state_of(&test), Value::State("clean"));
    assert_contents(&test, (0..EXTENTS).step_by(100));
    let backing = test.contents("b");
    for index in 0..EXTENTS {
        assert_eq!(backing[(16 + index as usize * 2) * SECTOR], byte_of(index), "{index}");
    }
}

#[test]
fn a_leaf_that_is_damaged_while_it_is_not_in_memory_breaks_the_set() {
    let test = split_tree();
    limit(&test, "0");
    let node = test.with_target("v", |it: &Bcache| {
        let leaf = |set: &super::super::set::Set| set.tree.absent_between((0, 0), (0, 1))[0];
        it.look(leaf).expect("it is open")
    });
    let sector = node.pointer.sector();
    let disk: Arc<dyn cairn_block::Disk> = test.drive("c");
    let written = test.sim.block_on(1, |env| async move {
        env.io(&disk, crate::fixture::write_io(&env, sector, 1, 0x55)).await
    });
    written.expect("the drive is well");
    test.read("v", 0, 1).expect_err("what lies there is not known");
    assert_eq!(number(&test, "io_disable"), 1);
}

/// Where the leaves of the first two extents and of the last two are on the cache device.
fn two_leaves(test: &Fixture) -> [cairn_block::SectorRange; 2] {
    test.with_target("v", |it: &Bcache| {
        let place = |set: &super::super::set::Set| {
            let last = (0, 16 + 2 * EXTENTS);
            let of = |from| set.tree.absent_between(from, (from.0, from.1 + 1))[0];
            [of((0, 16)), of((last.0, last.1 - 2))].map(|leaf| {
                let count = leaf.end.div_ceil(SECTOR) as u64;
                range(leaf.pointer.sector(), count)
            })
        };
        it.look(place).expect("it is open")
    })
}

#[test]
fn a_leaf_that_cannot_be_read_beside_one_that_can_hides_nothing() {
    let test = split_tree();
    limit(&test, "0");
    let [first, last] = two_leaves(&test);
    assert_ne!(first, last);
    test.drive("c").faults().add(Fault::error(OpSet::READS).on(first));
    // One task reads both leaves at once.
    let segs = [0, 1].map(|_| test.sim.env(0).segs(SectorCount(1)));
    let ranges = [0, 2 * (EXTENTS - 1)].map(|start| range(start, 1));
    for (label, range, segs) in [("bad", ranges[0], &segs[0]), ("good", ranges[1], &segs[1])] {
        let segs = segs.clone();
        test.start("v", label, move |_| Io::read(range, segs));
    }
    test.run(Duration::from_secs(1));
    assert_eq!(test.ends.of("bad"), Some(Err(IoError::IO)), "what lies there is not known");
    assert_eq!(number(&test, "io_disable"), 1);
    test.drive("c").faults().clear();
    let _ = test.try_suspend("v", SuspendMode::Flush);
    test.resume("v").expect("the drives are well");
    assert_contents(&test, (0..EXTENTS).step_by(50));
}

#[test]
fn a_read_of_a_leaf_that_fails_once_the_leaf_was_read_by_another_task_changes_nothing() {
    let test = split_tree();
    limit(&test, "0");
    let [first, _] = two_leaves(&test);
    limit(&test, "1000000000");
    let effect = Effect::Delay(Duration::from_millis(5));
    let late = Fault { effect, ..Fault::error(OpSet::READS).on(first).shots(1) };
    test.drive("c").faults().add(late);
    test.drive("c").faults().add(Fault::error(OpSet::READS).on(first).shots(1));
    let segs = test.sim.env(0).segs(SectorCount(1));
    let read = segs.clone();
    test.start("v", "read", move |_| Io::read(range(0, 1), read));
    test.run(Duration::from_micros(100));
    // A discard reads the same leaf, and does not wait for the other task.
    test.discard("v", 2, 1).expect("the drives are well");
    assert!(test.labels().is_empty(), "the first task still waits");
    test.run(Duration::from_secs(1));
    assert_eq!(test.ends.of("read"), Some(Ok(())));
    assert_eq!((number(&test, "io_disable"), segs.to_vec()[0]), (0, byte_of(0)));
    assert_contents(&test, (0..EXTENTS).step_by(50));
}
