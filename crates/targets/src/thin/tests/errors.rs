//! Devices that fail.

use super::fixture::*;
use crate::fixture::SECTOR;
use crate::thin::pool::Mode;
use crate::thin::recover::ThinPool;
use cairn_block::{Flags, Io, SectorCount};
use cairn_format::thin::blocks::MemoryBlocks;
use cairn_format::thin::check::{Limits, Severity, check};
use cairn_format::thin::{BLOCK_BYTES, Kind, Node, block};
use cairn_sim::Image;
use cairn_sim::{Fault, OpSet};

#[test]
fn failed_commit_leaves_a_read_only_pool_that_serves_what_was_durable() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.flush("thin").unwrap();
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    test.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
    assert!(test.flush("thin").is_err());
    assert!(test.status("pool").contains(" ro "), "{}", test.status("pool"));
    assert!(test.status("pool").contains(" needs_check "), "{}", test.status("pool"));
    // Rolled back; what was flushed is there, and may be overwritten.
    assert_eq!(test.bytes("thin", BLOCK - 1, 2), [1, 0]);
    test.write("thin", 0, 1, 3).unwrap();
    assert_eq!(test.io("thin", |env| write_io(env, 0, 1, 3).with(Flags::FUA)), Ok(()));
    assert!(test.write("thin", BLOCK, 1, 4).is_err());
    assert!(test.message(&["create_thin", "1"]).unwrap_err().to_string().contains("EOPNOTSUPP"));
    test.load_thin("thin", 0, 8);
    test.flush("thin").unwrap();
}

#[test]
fn space_that_comes_or_goes_does_not_undo_a_failed_commit() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    let target = test.target("pool");
    let pool = target.as_any().and_then(|any| any.downcast_ref::<ThinPool>());
    let pool = pool.and_then(ThinPool::pool).expect("it is live");
    test.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
    assert!(test.flush("thin").is_err());
    // As tasks that looked at the mode before the commit failed.
    pool.turn_mode(Mode::OutOfData, Mode::Write, "there are free data blocks again");
    assert_eq!(pool.mode(), Mode::ReadOnly);
    pool.turn_mode(Mode::Write, Mode::OutOfData, "no data block is left");
    assert_eq!(pool.mode(), Mode::ReadOnly);
    pool.lower_mode(Mode::Fail, "the metadata cannot be read");
    pool.lower_mode(Mode::ReadOnly, "a commit failed");
    assert_eq!(test.status("pool"), "Fail");
}

#[test]
fn failed_commit_fails_one_flush_per_client_of_each_affected_volume() {
    for device in ["meta", "data"] {
        let test = PoolFixture::with_volume(256, 64, 8);
        for (name, id) in [("second", 1), ("third", 2)] {
            test.message(&["create_thin", if id == 1 { "1" } else { "2" }]).unwrap();
            test.load_thin(name, id, 8);
            test.write(name, 0, BLOCK, 1).unwrap();
            test.flush(name).unwrap();
        }
        let clients = [test.client("thin"), test.client("second")];
        let third = test.client("third");
        test.write("thin", 0, BLOCK, 1).unwrap();
        // Only a discard: what it removed comes back.
        test.discard("second", 0, BLOCK).unwrap();
        test.drive(device).faults().add(Fault::error(OpSet::FLUSHES).shots(1));
        test.are_told_once(&clients);
        // It wrote nothing, but it may have written in place.
        assert_eq!(test.flush_of(&third).is_ok(), device == "meta");
        for name in ["second", "third"] {
            assert_eq!(test.bytes(name, 0, 1), [1]);
            let fua = test.io(name, |env| write_io(env, 0, 1, 3).with(Flags::FUA));
            assert_eq!(fua, Ok(()));
        }
    }
}

#[test]
fn a_failed_write_provisions_nothing() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.drive("data").faults().add(Fault::error(OpSet::WRITES).shots(2));
    assert!(test.write("thin", 0, BLOCK, 1).is_err());
    assert!(test.write("thin", BLOCK, 1, 1).is_err());
    assert_eq!(test.status("thin"), "0 -");
    assert!(test.status("pool").contains(" 0/64 "), "{}", test.status("pool"));
    assert_eq!(test.bytes("thin", 0, 2 * BLOCK), vec![0; 2 * BLOCK as usize]);
}

#[test]
fn a_group_that_cannot_be_read_fails_its_requests_alone() {
    let test = PoolFixture::with_volume(256, 600, 600);
    test.write_through("thin", 0, 600 * BLOCK, 1);
    // Neither the first nor the last leaf: it is read ahead, too, and nobody looked at it before.
    let (_, number) = with_damaged_leaf(&test, 200);
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 600);
    let leaf = range((number * BLOCK_BYTES / SECTOR) as u64, (BLOCK_BYTES / SECTOR) as u64);
    again.drive("meta").faults().add(Fault::error(OpSet::READS).on(leaf));
    let before = again.drive("meta").faults().injected();
    again.start("thin", "beside", |env| Io::read(range(201 * BLOCK, 1), env.segs(SectorCount(1))));
    assert!(again.read("thin", 200 * BLOCK, 1).is_err());
    assert!(again.write("thin", 200 * BLOCK, 1, 2).is_err());
    assert!(again.drive("meta").faults().injected() > before);
    assert!(matches!(again.ends.all()[..], [("beside", Err(_))]));
    for block in [0, 599] {
        assert_eq!(again.bytes("thin", block * BLOCK, 1), [1], "block {block}");
        again.write("thin", block * BLOCK, 1, 3).unwrap();
    }
    again.pool_says(" rw ");
    again.drive("meta").faults().clear();
    assert_eq!(again.bytes("thin", 200 * BLOCK, 1), [1]);
    again.write("thin", 200 * BLOCK, 1, 2).unwrap();
}

#[test]
fn another_table_on_the_same_volume_does_not_hide_what_the_first_lost() {
    let test = PoolFixture::with_volume(256, 64, 8);
    let clients = [test.client("thin")];
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
    test.message(&["create_thin", "1"]).unwrap_err();
    test.load_thin("again", 0, 8);
    assert_eq!(test.flush_of(&test.client("again")), Ok(()));
    test.are_told_once(&clients);
}

/// A new world in which the leaf that maps this block is damaged, and the number of that leaf.
fn with_damaged_leaf(test: &PoolFixture, mapped: u64) -> (PoolFixture, usize) {
    let clean = test.drive("meta").durable().to_vec();
    let is_its_leaf = |number: &usize| {
        let own = block::of(&clean[number * BLOCK_BYTES..][..BLOCK_BYTES]).unwrap();
        let node = Node::cached(own).ok().filter(|_| block::identify(own) == Some(Kind::Node));
        let node = node.filter(|node| node.is_leaf() && node.len() > 80);
        node.is_some_and(|node| (node.key(0)..=node.key(node.len() - 1)).contains(&mapped))
    };
    for number in (0..clean.len() / BLOCK_BYTES).filter(is_its_leaf) {
        let mut bytes = clean.clone();
        bytes[number * BLOCK_BYTES + 2000] ^= 1;
        // Stale leaves lie about, which are in no tree.
        let report = check(&mut MemoryBlocks::new(&bytes), Limits::default()).unwrap();
        if report.severity == Severity::Damaged {
            let data = test.drive("data").durable();
            return (
                PoolFixture::of_images(Image::of_bytes(&bytes), data, test.data_blocks),
                number,
            );
        }
    }
    panic!("a leaf maps it");
}

#[test]
fn damaged_metadata_is_told_with_its_path_and_nothing_is_made_worse() {
    let test = PoolFixture::with_volume(256, 600, 600);
    test.write("thin", 0, 600 * BLOCK, 1).unwrap();
    test.flush("thin").unwrap();
    let (test, number) = with_damaged_leaf(&test, 0);
    test.load_pool("0 0");
    test.load_thin("thin", 0, 600);
    assert!(test.read("thin", 0, 1).is_err());
    assert!(test.write("thin", 0, 1, 2).is_err());
    assert_eq!(test.bytes("thin", 599 * BLOCK, 1), [1], "what is not damaged is there");
    test.remove("thin");
    let before = test.drive("meta").durable().to_vec();
    let refused = test.message(&["delete", "0"]).unwrap_err().to_string();
    let path = format!("device 0, mapping tree, block {number}, keys 0..");
    assert!(refused.contains(&path) && refused.contains("checksum"), "{refused}");
    let status = test.status("pool");
    assert!(status.contains(" ro ") && status.contains("needs_check"), "{status}");
    let after = test.drive("meta").durable().to_vec();
    assert_eq!(after[BLOCK_BYTES..], before[BLOCK_BYTES..], "only the mark was written");
}

#[test]
fn a_data_device_that_is_smaller_than_its_map_is_refused() {
    let test = PoolFixture::with_volume(256, 64, 8);
    let metadata = test.drive("meta").durable();
    let small = PoolFixture::of_images(metadata, Image::new(SectorCount(32 * BLOCK)), 32);
    let refused = small.try_load("pool", &small.pool_table("0 0")).unwrap_err().to_string();
    let expected = "data: length: found 32 data blocks, expected at least 64, as the metadata maps";
    assert!(refused.contains(expected), "{refused}");
    let long = format!("0 {} thin-pool meta data {BLOCK} 0", 64 * BLOCK);
    let refused = small.try_load("other", &long).unwrap_err().to_string();
    assert!(refused.contains("data: size: found 4096 sectors, expected at least"), "{refused}");
}

#[test]
fn a_metadata_device_that_is_smaller_than_its_map_is_refused() {
    let test = PoolFixture::with_volume(256, 64, 8);
    let mut bytes = test.drive("meta").durable().to_vec();
    bytes.truncate(128 * BLOCK_BYTES);
    let small = PoolFixture::of_images(Image::of_bytes(&bytes), test.drive("data").durable(), 64);
    let refused = small.try_load("pool", &small.pool_table("0 0")).unwrap_err().to_string();
    assert!(refused.starts_with("meta: ") && refused.contains("128"), "{refused}");
}
