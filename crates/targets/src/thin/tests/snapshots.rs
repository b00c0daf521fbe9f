//! Snapshots and the breaking of sharing; the messages about volumes.

use std::cell::RefCell;
use std::rc::Rc;

use super::fixture::*;
use cairn_block::{Disk, MessageError, Op, SuspendMode};
use cairn_format::thin::{BLOCK_BYTES, MetadataBlock, Opening, TIME_MAX, block};
use cairn_sim::{Fault, Image, OpSet};

/// `thin` with blocks 0 and 1 written, and a snapshot of it as `snap`.
fn shared() -> PoolFixture {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, 2 * BLOCK, 1).unwrap();
    test.message(&["create_snap", "1", "0"]).unwrap();
    test.load_thin("snap", 1, 8);
    test
}

#[test]
fn either_side_is_written_without_the_other_seeing_it() {
    let test = shared();
    test.write("thin", 5, 1, 2).unwrap();
    test.write("snap", BLOCK, BLOCK, 3).unwrap();
    test.write("snap", 6 * BLOCK + 1, 1, 4).unwrap();
    assert_eq!(test.bytes("thin", 4, 3), [1, 2, 1]);
    assert_eq!(test.bytes("snap", 4, 3), [1, 1, 1]);
    assert_eq!(test.bytes("thin", BLOCK, BLOCK), vec![1; BLOCK as usize]);
    assert_eq!(test.bytes("snap", BLOCK, BLOCK), vec![3; BLOCK as usize]);
    assert_eq!(test.bytes("snap", 6 * BLOCK, 3), [0, 4, 0]);
    assert_eq!(test.bytes("thin", 6 * BLOCK, 3), [0, 0, 0]);
    assert!(test.status("pool").contains(" 5/64 "), "{}", test.status("pool"));
}

#[test]
fn a_drive_that_copies_by_itself_gets_only_the_data_of_a_write_to_a_shared_block() {
    let test = shared();
    test.set_copies();
    test.forget();
    test.write("thin", 5, 1, 2).unwrap();
    test.write("snap", BLOCK, 3, 3).unwrap();
    test.zero("snap", 2 * BLOCK - 1, 1).unwrap();
    let ops = test.ops("data");
    assert!(matches!(ops[..], [(Op::Write, _, 1), (Op::Write, _, 3), _]), "{ops:?}");
    let expected = |block: &[(u64, u8)]| {
        let mut bytes = vec![1; BLOCK as usize];
        block.iter().for_each(|&(at, byte)| bytes[at as usize] = byte);
        bytes
    };
    let zeroed = [(0, 3), (1, 3), (2, 3), (BLOCK - 1, 0)];
    assert_eq!(test.bytes("thin", 0, BLOCK), expected(&[(5, 2)]));
    assert_eq!(test.bytes("thin", BLOCK, BLOCK), expected(&[]));
    assert_eq!(test.bytes("snap", 0, BLOCK), expected(&[]));
    assert_eq!(test.bytes("snap", BLOCK, BLOCK), expected(&zeroed));
}

#[test]
fn a_write_whose_copy_failed_fails_and_leaves_the_block_shared() {
    for ops in [OpSet::READS, OpSet::WRITES] {
        let test = shared();
        test.set_copies();
        test.drive("data").faults().add(Fault::error(ops).shots(1));
        test.forget();
        assert!(test.write("thin", 5, 1, 2).is_err());
        assert_eq!(test.bytes("thin", 0, BLOCK), vec![1; BLOCK as usize]);
        test.write("thin", 5, 1, 2).unwrap();
        assert_eq!(test.bytes("thin", 4, 3), [1, 2, 1]);
        assert_eq!(test.bytes("snap", 4, 3), [1, 1, 1]);
    }
}

#[test]
fn a_write_that_covers_a_shared_block_copies_nothing() {
    let test = shared();
    test.forget();
    test.write("thin", 0, 2 * BLOCK, 7).unwrap();
    let ops = test.ops("data");
    assert!(ops.iter().all(|op| op.0 == Op::Write), "{ops:?}");
    assert_eq!(test.bytes("snap", 0, 1), [1]);
    assert_eq!(test.bytes("thin", 0, 1), [7]);
}

#[test]
fn what_is_written_after_a_snapshot_is_not_copied_again() {
    let test = shared();
    test.write("thin", 5, 1, 2).unwrap();
    test.forget();
    test.write("thin", 6, 1, 3).unwrap();
    let ops = test.ops("data");
    assert!(matches!(ops.as_slice(), [(Op::Write, _, 1)]), "{ops:?}");
}

#[test]
fn a_snapshot_of_a_live_volume_has_what_was_acknowledged() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.start("thin", "late", |env| write_io(env, 3, 1, 9));
    test.message(&["create_snap", "1", "0"]).unwrap();
    test.write("thin", 0, BLOCK, 2).unwrap();
    test.load_thin("snap", 1, 8);
    let found = test.bytes("snap", 0, 5);
    assert_eq!([found[0], found[4]], [1, 1]);
    assert!([1, 9].contains(&found[3]));
    assert_eq!(test.bytes("thin", 0, 1), [2]);
}

#[test]
fn snapshots_survive_and_are_deleted() {
    let test = shared();
    test.write("thin", 0, 2 * BLOCK, 2).unwrap();
    test.message(&["create_snap", "2", "1"]).unwrap();
    test.flush("thin").unwrap();
    let again = test.reopen_durable();
    again.load_pool("0 0");
    for (name, id, byte) in [("a", 0, 2), ("b", 1, 1), ("c", 2, 1)] {
        again.load_thin(name, id, 8);
        assert_eq!(again.bytes(name, 0, 1), [byte], "{name}");
    }
    let busy = again.message(&["delete", "1"]).unwrap_err().to_string();
    assert!(busy.contains("EBUSY"), "{busy}");
    again.remove("b");
    again.message(&["delete", "1"]).unwrap();
    assert!(again.status("pool").contains(" 4/64 "), "{}", again.status("pool"));
    again.remove("c");
    again.message(&["delete", "2"]).unwrap();
    assert!(again.status("pool").contains(" 2/64 "), "{}", again.status("pool"));
    assert_eq!(again.bytes("a", 0, 1), [2]);
}

#[test]
fn a_reference_to_a_closed_table_does_not_block_a_deletion() {
    let test = shared();
    test.flush("thin").unwrap();
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 8);
    again.load_thin("snap", 1, 8);
    let busy = again.message(&["delete", "1"]).unwrap_err();
    assert!(matches!(busy, MessageError::Busy(_)), "{busy}");
    // One waits for a group while the table ends, another looks later.
    let (target, told) = (again.target("snap"), Rc::new(RefCell::new(None)));
    let volume = again.volume("snap");
    let (asked, kept) = (volume.clone(), told.clone());
    again.sim.block_on(0, |env| {
        env.clone().spawn(async move {
            *kept.borrow_mut() = Some(asked.extents(&env, range(0, 8 * BLOCK)).await);
        });
        std::future::ready(())
    });
    assert!(told.borrow().is_none());
    again.remove("snap");
    again.message(&["delete", "1"]).unwrap();
    again.settle();
    let later =
        again.sim.block_on(0, |env| async move { volume.extents(&env, range(0, 8 * BLOCK)).await });
    assert!(later.is_err());
    assert!(told.borrow_mut().take().unwrap().is_ok());
    assert!(target.status().ends_with(" 255"), "{}", target.status());
    // Its number is free for another volume, of which the held table knows nothing.
    again.message(&["create_thin", "1"]).unwrap();
    again.load_thin("new", 1, 8);
    assert_eq!(again.bytes("new", 0, 1), [0]);
    drop(target);
    again.write("new", 0, BLOCK, 5).unwrap();
    assert_eq!(again.bytes("new", 0, 1), [5]);
}

#[test]
fn messages_refuse_as_the_kernel_does() {
    let test = shared();
    for (words, part) in [
        (&["create_thin", "0"][..], "EEXIST"),
        (&["create_snap", "1", "0"], "EEXIST"),
        (&["create_snap", "9", "5"], "ENODATA"),
        (&["delete", "7"], "ENODATA"),
        (&["delete", "0"], "EBUSY"),
        (&["set_transaction_id", "3", "4"], "EINVAL"),
        (&["release_metadata_snap"], "EINVAL"),
        (&["frob"], "EINVAL"),
    ] {
        let error = test.message(words).expect_err(words[0]).to_string();
        assert!(error.contains(part), "{words:?}: {error}");
        assert_eq!(error.lines().count(), 1);
    }
    test.message(&["set_transaction_id", "0", "42"]).unwrap();
    assert!(test.status("pool").starts_with("42 "));
    test.suspend("pool", SuspendMode::Flush);
    let error = test.message(&["create_thin", "0"]).unwrap_err().to_string();
    assert!(error.contains("EEXIST"), "suspended too: {error}");
    test.resume("pool").unwrap();
}

#[test]
fn a_metadata_snapshot_is_held_and_let_go() {
    let test = shared();
    test.message(&["reserve_metadata_snap"]).unwrap();
    let held: Vec<String> = test.status("pool").split(' ').map(str::to_owned).collect();
    assert!(held[3].parse::<u64>().unwrap() > 0);
    let busy = test.message(&["reserve_metadata_snap"]).unwrap_err().to_string();
    assert!(busy.contains("EBUSY"), "{busy}");
    test.write("thin", 0, 2 * BLOCK, 2).unwrap();
    test.flush("thin").unwrap();
    test.message(&["release_metadata_snap"]).unwrap();
    assert_eq!(test.status("pool").split(' ').nth(3), Some("-"));
}

#[test]
fn no_snapshot_is_taken_when_the_time_is_used_up() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.message(&["create_snap", "1", "0"]).unwrap();
    let mut bytes = test.drive("meta").durable().to_vec();
    let own = block::of(&bytes[..BLOCK_BYTES]).unwrap();
    let Ok(Opening::Existing(mut superblock)) = Opening::decide(own) else { panic!("a pool") };
    superblock.time = TIME_MAX - 1;
    bytes[..BLOCK_BYTES].copy_from_slice(&superblock.encode(MetadataBlock::SUPERBLOCK));
    let test = PoolFixture::of_images(Image::of_bytes(&bytes), test.drive("data").durable(), 64);
    test.load_pool("0 0");
    test.load_thin("thin", 0, 8);
    test.message(&["create_snap", "2", "0"]).unwrap();
    let refused = test.message(&["create_snap", "3", "0"]).unwrap_err().to_string();
    assert!(refused.contains("time: found 0xffffff, expected less"), "{refused}");
    assert!(refused.contains("24 bits") && refused.contains("EINVAL"), "{refused}");
    // Everything else goes on, with mappings of the last time.
    test.write("thin", 0, 2 * BLOCK, 2).unwrap();
    test.flush("thin").unwrap();
    test.load_thin("snap", 2, 8);
    assert_eq!((test.bytes("snap", 0, 1), test.bytes("thin", 0, 1)), (vec![1], vec![2]));
    test.write("thin", 0, 1, 3).unwrap();
    test.flush("thin").unwrap();
    test.check_metadata();
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 8);
    again.load_thin("snap", 2, 8);
    assert_eq!((again.bytes("snap", 0, 1), again.bytes("thin", 0, 2)), (vec![1], vec![3, 2]));
}
