//! Commits: how many there are.

use std::sync::Arc;

use super::bed::*;
use crate::rig::DRIVE_TIME;
use cairn_block::{Disk, Io, Op};
use cairn_sim::SimWorld;

const FLUSHES: usize = 32;

/// Two volumes, each with a change.
fn two_changed() -> Bed {
    let bed = Bed::with_volume(256, 64, 8);
    bed.message(&["create_thin", "1"]).unwrap();
    bed.load_thin("second", 1, 8);
    bed.write("thin", 0, BLOCK, 1).unwrap();
    bed.write("second", 0, BLOCK, 2).unwrap();
    bed.forget();
    bed
}

/// Starts flushes of both volumes on every reactor, without letting any of them begin.
fn start_flushes(bed: &Bed) {
    for at in 0..FLUSHES {
        let disk: Arc<dyn Disk> = bed.volume(["thin", "second"][at / 2 % 2]);
        let env = bed.sim.env(at as u16 % SimWorld::REACTORS).clone();
        let ends = bed.ends.clone();
        bed.sim.env(env.reactor().0).spawn(async move {
            let flushed = env.io(&disk, Io::flush()).await;
            ends.borrow_mut().push(("flush", flushed));
        });
    }
}

/// How many superblocks were written since the last look.
fn superblocks(bed: &Bed) -> usize {
    bed.ops("meta").iter().filter(|(op, start, _)| *op == Op::Write && *start == 0).count()
}

/// How often the data device was flushed since the last look: once in every commit, even if that
/// finds nothing to write.
fn data_flushes(bed: &Bed) -> usize {
    bed.ops("data").iter().filter(|(op, ..)| *op == Op::Flush).count()
}

/// After a power cut both volumes have these bytes in a block.
fn survives(bed: &Bed, block: u64, bytes: [u8; 2]) {
    let again = bed.reopen_durable();
    again.load_pool("0 0");
    for (id, byte) in (0..).zip(bytes) {
        let name = if id == 0 { "thin" } else { "second" };
        again.load_thin(name, id, 8);
        assert_eq!(again.bytes(name, block * BLOCK, 2), [byte; 2], "{name}");
    }
}

#[test]
fn many_flushes_are_one_commit() {
    let bed = two_changed();
    start_flushes(&bed);
    bed.settle();
    assert_eq!(bed.labels().len(), FLUSHES);
    assert!(bed.ends.borrow().iter().all(|(_, flushed)| flushed.is_ok()));
    for commits in [superblocks(&bed), data_flushes(&bed)] {
        assert!((1..=2).contains(&commits), "{commits} commits");
    }
    survives(&bed, 0, [1, 2]);
}

#[test]
fn flushes_that_come_during_a_commit_share_the_next() {
    let bed = two_changed();
    bed.start("thin", "first", |_| Io::flush());
    bed.sim.run_for(DRIVE_TIME / 2);
    // The commit flushes the data device; these are not in it.
    bed.write("thin", BLOCK, BLOCK, 3).unwrap();
    bed.write("second", BLOCK, BLOCK, 4).unwrap();
    assert_eq!((superblocks(&bed), bed.labels().len()), (0, 0), "the commit is under way");
    start_flushes(&bed);
    bed.settle();
    assert_eq!(bed.labels().len(), 1 + FLUSHES);
    assert_eq!(bed.labels()[0], "first", "it waits for nobody else");
    assert!(bed.ends.borrow().iter().all(|(_, flushed)| flushed.is_ok()));
    assert_eq!((superblocks(&bed), data_flushes(&bed)), (2, 2));
    survives(&bed, 0, [1, 2]);
    survives(&bed, 1, [3, 4]);
}
