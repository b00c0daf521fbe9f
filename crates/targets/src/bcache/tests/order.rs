//! Tests of the order of what is written to the cache device.

use std::collections::BTreeSet;

use super::*;

/// A set with some hundred dirty extents in one leaf is drained, written and left: what its cache
/// gets.
fn drained() -> Vec<crate::fixture::Seen> {
    let extents: Vec<Key> = (0..300).map(|at| Key::new(0, 16 + at * 16 + 8, 8)).collect();
    let [cache, backing] = large(&extents);
    let test = Fixture::new([("c", cache), ("b", backing)]).with_logs_of(MANY_RECORDS);
    test.load("v", &format!("0 {LARGE} bcache b c 0"));
    test.forget();
    drain(&test).expect("the drives are well");
    for start in (40_000..60_000).step_by(40) {
        test.write("v", start, 8, 1).expect("the drives are well");
    }
    test.suspend("v", SuspendMode::Flush);
    test.seen("c")
}

#[test]
fn an_entry_is_written_once_all_before_it_is_flushed() {
    let (mut entries, mut is_volatile) = (0, false);
    for seen in drained() {
        match seen.op {
            Op::Write if seen.fua => {
                assert!(!is_volatile, "entry {entries}: {seen:?}");
                entries += 1;
            }
            Op::Write => is_volatile = true,
            Op::Flush => is_volatile = false,
            _ => {}
        }
    }
    assert!(entries > 1, "an entry names what was written");
}

#[test]
fn the_header_of_a_bset_is_written_between_the_flush_of_its_other_blocks_and_one_of_its_own() {
    let (mut heads, mut flushed, mut volatile) = (0, BTreeSet::new(), BTreeSet::new());
    let mut is_head_volatile = false;
    for seen in drained() {
        let end = seen.start + seen.count;
        match seen.op {
            Op::Write => {
                let is_block = seen.count == 1;
                assert!(!is_block || !volatile.contains(&end), "a tail is not flushed: {seen:?}");
                let is_head = is_block && flushed.contains(&end);
                // An entry of a group commit, which has flushed the device before, may come now.
                assert!(is_head || !is_head_volatile, "a head is not flushed: {seen:?}");
                heads += usize::from(is_head);
                is_head_volatile |= is_head;
                volatile.insert(seen.start);
            }
            Op::Flush => {
                flushed.append(&mut volatile);
                is_head_volatile = false;
            }
            _ => {}
        }
    }
    assert!(heads > 0, "a bset takes more than a block");
}
