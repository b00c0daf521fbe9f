//! Commits: how many there are.

use std::sync::Arc;

use super::fixture::*;
use crate::fixture::DRIVE_TIME;
use cairn_block::{Disk, Io, Op};
use cairn_sim::SimWorld;

const FLUSHES: usize = 32;

/// Two volumes, each with a change.
fn two_changed() -> PoolFixture {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.message(&["create_thin", "1"]).unwrap();
    test.load_thin("second", 1, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.write("second", 0, BLOCK, 2).unwrap();
    test.forget();
    test
}

/// Starts flushes of both volumes on every reactor, without letting any of them begin.
fn start_flushes(test: &PoolFixture) {
    for at in 0..FLUSHES {
        let disk: Arc<dyn Disk> = test.volume(["thin", "second"][at / 2 % 2]);
        let env = test.sim.env(at as u16 % SimWorld::REACTORS).clone();
        let ends = test.ends.clone();
        test.sim.env(env.reactor().0).spawn(async move {
            let flushed = env.io(&disk, Io::flush()).await;
            ends.note("flush", flushed);
        });
    }
}

/// How many superblocks were written since the last look.
fn superblocks(test: &PoolFixture) -> usize {
    test.ops("meta").iter().filter(|(op, start, _)| *op == Op::Write && *start == 0).count()
}

/// How often the data device was flushed since the last look: once in every commit, even if that
/// finds nothing to write.
fn data_flushes(test: &PoolFixture) -> usize {
    test.ops("data").iter().filter(|(op, ..)| *op == Op::Flush).count()
}

/// After a power cut both volumes have these bytes in a block.
fn survives(test: &PoolFixture, block: u64, bytes: [u8; 2]) {
    let again = test.reopen_durable();
    again.load_pool("0 0");
    for (id, byte) in (0..).zip(bytes) {
        let name = if id == 0 { "thin" } else { "second" };
        again.load_thin(name, id, 8);
        assert_eq!(again.bytes(name, block * BLOCK, 2), [byte; 2], "{name}");
    }
}

#[test]
fn many_flushes_are_one_commit() {
    let test = two_changed();
    start_flushes(&test);
    test.settle();
    assert_eq!(test.labels().len(), FLUSHES);
    assert!(test.ends.all().iter().all(|(_, flushed)| flushed.is_ok()));
    for commits in [superblocks(&test), data_flushes(&test)] {
        assert!((1..=2).contains(&commits), "{commits} commits");
    }
    survives(&test, 0, [1, 2]);
}

#[test]
fn flushes_that_come_during_a_commit_share_the_next() {
    let test = two_changed();
    test.start("thin", "first", |_| Io::flush());
    test.run(DRIVE_TIME / 2);
    // The commit flushes the data device; these are not in it.
    test.write("thin", BLOCK, BLOCK, 3).unwrap();
    test.write("second", BLOCK, BLOCK, 4).unwrap();
    assert_eq!((superblocks(&test), test.labels().len()), (0, 0), "the commit is under way");
    start_flushes(&test);
    test.settle();
    assert_eq!(test.labels().len(), 1 + FLUSHES);
    assert_eq!(test.labels()[0], "first", "it waits for nobody else");
    assert!(test.ends.all().iter().all(|(_, flushed)| flushed.is_ok()));
    assert_eq!((superblocks(&test), data_flushes(&test)), (2, 2));
    survives(&test, 0, [1, 2]);
    survives(&test, 1, [3, 4]);
}
