//! Tests of a tree that is not in memory as a whole.

use cairn_block::SectorRange;

use super::super::set::{Core, Set};
use super::super::work;
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
    let test = Fixture::new([("c", cache), ("b", backing)]).with_logs_of(MANY_RECORDS);
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
        let leaf = |set: &Set| set.tree.absent_between((0, 0), (0, 1))[0];
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
fn two_leaves(test: &Fixture) -> [SectorRange; 2] {
    test.with_target("v", |it: &Bcache| {
        let place = |set: &Set| {
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

/// A sector of the volume, behind which the second leaf begins.
fn end_of_first_leaf(test: &Fixture) -> u64 {
    let place = |set: &Set| set.tree.absent_between((0, 16), (0, 17))[0].position;
    let (inode, end) = test.with_target("v", |it: &Bcache| it.look(place)).expect("it is open");
    assert_eq!(inode, 0);
    end - 16
}

/// Writes to both sides of the place where a leaf ends. `read_second` has the second leaf read
/// before; no leaf stays in memory. Reads of the cache device take so long.
fn write_to_two_leaves(time: Duration, read_second: impl FnOnce(&Fixture, SectorRange)) {
    let test = split_tree();
    limit(&test, "0");
    let end = end_of_first_leaf(&test);
    let effect = Effect::Delay(time);
    test.drive("c").faults().add(Fault { effect, ..Fault::error(OpSet::READS) });
    read_second(&test, range(end + 1, 1));
    test.start("v", "write", |env| crate::fixture::write_io(env, end - 1, 2, 9));
    test.run(Duration::from_secs(3));
    assert_eq!(test.ends.of("write"), Some(Ok(())));
    assert_eq!(test.bytes("v", end - 1, 2), [9; 2]);
    limit(&test, "0");
    assert_eq!(number(&test, "btree_cache_used"), 0, "all leaves may leave again");
}

#[test]
fn a_write_to_two_leaves_gets_both_of_them_if_memory_has_room_for_none() {
    write_to_two_leaves(Duration::ZERO, |test, range| {
        test.read("v", range.start.0, 1).expect("the drives are well");
    });
}

#[test]
fn a_write_to_two_leaves_gets_both_if_one_leaves_while_the_other_is_read() {
    // The task that reads for requests does not wait for the limit then.
    write_to_two_leaves(Duration::from_millis(35), |test, range| {
        test.extents("v", range).expect("the drives are well");
    });
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

/// Clean extents in many leaves, and their set.
fn clean_tree() -> (Fixture, Arc<Core>) {
    let uuid = Uuid([3; 16]);
    let cache = clean_cache_of(&scattered(), &[UuidEntry { uuid, ..UuidEntry::default() }]);
    let [_, backing] = large(&[]);
    let test = Fixture::new([("c", cache), ("b", backing)]);
    test.load("v", "0 90000 bcache b c 1 keep_clean");
    let core = test.with_target("v", |it: &Bcache| it.core.clone()).expect("it has a cache");
    assert!(core.with(|set| set.tree.leaves()) > 16);
    (test, core)
}

/// Empties some buckets. Answers how many checkpoints that took, and how many nodes were read.
fn evict(test: &Fixture, core: &Arc<Core>) -> (u64, usize) {
    let (cached, before) = (cached(core), core.with(|set| set.changes.freed));
    test.forget();
    let own = core.clone();
    let evicted = test.sim.block_on(0, |env| async move {
        own.change(&env, async |session| session.evict().await).await
    });
    assert!(evicted.expect("the drives are well"), "there are buckets with clean data");
    assert!(cached > self::cached(core) + 1000, "some thousand extents leave");
    (core.with(|set| set.changes.freed) - before, node_reads(test))
}

/// How many extents the set has.
fn cached(core: &Core) -> usize {
    core.with(|set| (0..set.tree.leaves()).map(|leaf| set.tree.count_of(leaf)).sum())
}

/// How many nodes were read: each begins a bucket, and has more than an extent.
fn node_reads(test: &Fixture) -> usize {
    let is_node = |(op, at, count): &(Op, u64, u64)| *op == Op::Read && at % 128 == 0 && *count > 8;
    test.ops("c").iter().filter(|op| is_node(op)).count()
}

#[test]
fn an_eviction_reads_each_absent_leaf_once_and_has_few_checkpoints() {
    let (test, core) = clean_tree();
    // Its victims: those with the least data, everywhere in the tree.
    for some in scattered().chunks(128).step_by(8) {
        let (first, last) = (some[0].start(), some[some.len() / 2].end());
        test.discard("v", first - 16, last - first).expect("the drives are well");
    }
    test.flush("v").expect("the drives are well");
    test.run(Duration::from_secs(60));
    limit(&test, "0");
    assert_eq!(number(&test, "btree_cache_used"), 0);
    let leaves = core.with(|set| set.tree.leaves());
    let (checkpoints, reads) = evict(&test, &core);
    assert_eq!(reads, leaves);
    // Once for each sixteen leaves, and the last.
    assert_eq!(checkpoints, leaves.div_ceil(16) as u64 + 1);
}

#[test]
fn leaves_that_the_device_has_leave_without_a_checkpoint() {
    let (test, core) = clean_tree();
    test.write("v", 0, 1, 7).expect("the drives are well");
    test.flush("v").expect("the drives are well");
    let freed = |core: &Core| core.with(|set| (set.changes.freed, set.changes.behind()));
    let before = freed(&core);
    assert!(before.1 > 0, "a leaf is behind");
    limit(&test, "400000");
    assert!(number(&test, "btree_cache_used") <= 400_000);
    assert_eq!(freed(&core), before);
    limit(&test, "0");
    assert_eq!(number(&test, "btree_cache_used"), 0);
    assert!(freed(&core).0 > before.0, "its leaf takes one");
}

/// A part of the tree fits; requests and a drain need all of it.
#[test]
fn the_extents_in_memory_keep_the_limit_while_requests_and_a_drain_need_all_of_them() {
    let extents = scattered();
    let [cache, backing] = large(&extents);
    let test = Fixture::new([("c", cache), ("b", backing)]);
    test.load("v", LARGE_LINE);
    test.message("v", &["set", "writeback_running", "0"]).expect("in its range");
    let leaf = number(&test, "btree_cache_used") / number(&test, "btree_nodes");
    limit(&test, "400000");
    // Beyond it: what was read for one request, or for sixteen leaves of a batch.
    let check = |leaves: u64| {
        let used = number(&test, "btree_cache_used");
        assert!(used <= 400_000 + leaves * 2 * leaf, "{used} with {leaf} for each leaf");
    };
    let rng = &mut fastrand::Rng::with_seed(5);
    for _ in 0..500 {
        let key = extents[rng.usize(..extents.len())];
        test.read("v", key.start() - 16, 1).expect("the drives are well");
        test.run(Duration::from_millis(20));
        check(1);
    }
    let volume = test.volume("v");
    let ended = Rc::new(RefCell::new(None));
    let own = ended.clone();
    test.sim.block_on(0, |env| {
        env.clone().spawn(async move {
            let drained = volume.drain_caches(&env).await.map_err(|error| error.to_string());
            *own.borrow_mut() = Some(drained);
        });
        std::future::ready(())
    });
    while ended.borrow().is_none() {
        test.run(Duration::from_millis(1));
        check(16);
    }
    ended.borrow_mut().take().expect("it has ended").expect("the drives are well");
    assert_eq!(number(&test, "dirty_data"), 0);
}

#[test]
fn requests_for_many_leaves_wait_for_others_to_leave_beyond_the_limit() {
    let extents = scattered();
    let [cache, backing] = large(&extents);
    let test = Fixture::new([("c", cache), ("b", backing)]);
    test.load("v", LARGE_LINE);
    test.message("v", &["set", "writeback_running", "0"]).expect("in its range");
    let whole = number(&test, "btree_cache_used");
    let leaves = test.with_target("v", |it: &Bcache| it.look(|set| set.tree.leaves() as u64));
    let leaves = leaves.expect("it is open");
    assert!(leaves > 20, "more than are read together");
    limit(&test, "0");
    let count = extents.iter().step_by(100).map(|key| {
        let at = key.start() - 16;
        test.start("v", "read", |env| Io::read(range(at, 1), env.segs(SectorCount(1))));
    });
    let count = count.count();
    while test.labels().len() < count {
        test.run(Duration::from_micros(100));
        let used = number(&test, "btree_cache_used");
        assert!(used <= whole * 18 / leaves, "{used} of {whole} in {leaves} leaves");
    }
}

#[test]
fn a_start_keeps_the_limit_and_finds_what_one_with_all_leaves_in_memory_finds() {
    let [cache, backing] = large(&scattered());
    let test = Fixture::new([("c", cache), ("b", backing)]);
    test.load("v", LARGE_LINE);
    let whole = number(&test, "btree_cache_used");
    let [dirty, buckets] = ["dirty_data", "cache_available_percent"].map(|it| number(&test, it));
    for bytes in ["0", "300000"] {
        limit(&test, bytes);
        test.suspend("v", SuspendMode::Flush);
        test.resume("v").expect("it is sound");
        let used = number(&test, "btree_cache_used");
        assert!(used <= bytes.parse().expect("a number"), "{used} of {whole}");
        assert_eq!(number(&test, "dirty_data"), dirty);
        assert_eq!(number(&test, "cache_available_percent"), buckets);
    }
    drain(&test).expect("the drives are well");
    assert_eq!(number(&test, "dirty_data"), 0);
    assert_eq!(state_of(&test), Value::State("clean"));
}

/// A drain looks for the extents of a batch some at a time. A client replaces those around the
/// place where one look ends, so they are left out of the batch.
#[test]
fn extents_behind_those_that_a_client_replaces_in_a_batch_are_copied_once() {
    // A dirty extent counts as four units of work.
    let looked_at = work::piece() as u64 / 4;
    let [first, last] = [2 * (looked_at - 20), 2 * (EXTENTS - 1)];
    let mut left_out = 0;
    for steps in 0..4 {
        let test = split_tree();
        test.forget();
        test.sim.let_work_take_time();
        test.start("v", "over", |env| crate::fixture::write_io(env, first, 80, 251));
        (0..steps).for_each(|_| _ = test.sim.step());
        drain(&test).expect("the drives are well");
        test.run(Duration::from_secs(1));
        drain(&test).expect("the drives are well");
        let ops = test.ops("b");
        let copies = |sector: u64| {
            let copies = ops.iter().enumerate();
            let covers = move |start: u64, count: u64| (start..start + count).contains(&sector);
            let copies = copies
                .filter(move |(_, (op, start, count))| *op == Op::Write && covers(*start, *count));
            copies.map(|(at, _)| at).collect::<Vec<usize>>()
        };
        let [first, last] = [first, last].map(|sector| copies(16 + sector));
        assert_eq!(last.len(), 1, "{steps} steps: {last:?}");
        left_out += usize::from(first[0] > last[0]);
        assert_eq!(test.bytes("v", 2 * (looked_at - 20), 80), [251; 80]);
    }
    assert!(left_out > 0, "the extents were never replaced while the batch was looked for");
}
