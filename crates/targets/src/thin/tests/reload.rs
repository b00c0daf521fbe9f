//! Tables come and go; pools and volumes refuse what cannot be.

use std::time::Duration;

use super::fixture::*;
use crate::fixture::{DRIVE_TIME, image};
use cairn_block::{Op, SuspendMode};
use cairn_sim::{Fault, OpSet};

#[test]
fn a_pool_is_served_by_one_table() {
    let test = PoolFixture::with_volume(256, 64, 8);
    let table = test.pool_table("0 0");
    test.refuses("second", &table, "meta: in use as the metadata device of volume 'pool'");
    assert_eq!(test.status("thin"), "0 -");
}

#[test]
fn a_volume_needs_its_pool_and_its_device() {
    let test = PoolFixture::new(256, 64);
    let thin = "0 1024 thin @pool 0";
    test.refuses("thin", thin, "there is no volume of this name");
    test.load("pool", "0 8192 zero");
    test.refuses("thin", thin, "@pool: pool: found another kind of target");
    test.load_pool("0 0");
    test.refuses("thin", thin, "device 0: found none");
    test.suspend("pool", SuspendMode::Flush);
    test.refuses("thin", thin, "pool: found no live pool");
    test.resume("pool").unwrap();
}

#[test]
fn requests_wait_while_their_pool_is_suspended() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.suspend("pool", SuspendMode::Flush);
    test.start("thin", "write", |env| write_io(env, BLOCK, 1, 2));
    test.start("thin", "flush", |_| cairn_block::Io::flush());
    test.run(Duration::from_secs(3));
    assert!(test.labels().is_empty());
    test.resume("pool").unwrap();
    test.run(Duration::from_millis(10));
    assert_eq!(test.labels().len(), 2);
    assert_eq!(test.bytes("thin", BLOCK, 1), [2]);
}

#[test]
fn options_change_with_a_table_and_nothing_is_lost() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.load_pool("7 2 skip_block_zeroing no_discard_passdown");
    test.pool_says("no_discard_passdown");
    assert_eq!(test.bytes("thin", 0, 1), [1]);
    test.load_pool("0 1 read_only");
    test.pool_says(" ro ");
    test.write_through("thin", 0, 1, 2);
    assert!(test.write("thin", BLOCK, 1, 2).is_err());
    test.discard("thin", 0, BLOCK).unwrap();
    assert_eq!(test.bytes("thin", 0, 2), [2, 1]);
    test.load_pool("0 0");
    test.write("thin", BLOCK, 1, 2).unwrap();
}

#[test]
fn whether_volumes_take_discards_cannot_change_while_the_pool_is_live() {
    let (takes, ignores) = ("0 1 no_discard_passdown", "0 1 ignore_discard");
    for (first, other, found) in
        [("0 0", ignores, "ignore_discard"), (ignores, takes, "no ignore_discard")]
    {
        let test = PoolFixture::new(256, 64);
        let table = test.pool_table(other);
        test.build("early", &table).unwrap();
        test.serve(first, 8);
        let part = format!("meta: features: found {found}, expected ");
        test.refuses("pool", &table, &part);
        test.suspend("pool", SuspendMode::Flush);
        test.refuses("pool", &table, &part);
        let refused = test.resume("early").unwrap_err().to_string();
        assert!(refused.contains("'pool'"), "a suspended pool keeps its devices: {refused}");
        test.resume("pool").unwrap();
        assert_eq!(test.discard("thin", 0, BLOCK).is_ok(), first != ignores);
        test.load_pool(first);
        for name in ["early", "thin", "pool"] {
            test.remove(name);
        }
        test.load("pool", &table);
        test.load_thin("thin", 0, 8);
        assert_eq!(test.discard("thin", 0, BLOCK).is_ok(), other != ignores);
    }
}

#[test]
fn a_pool_with_another_block_size_or_none_is_refused() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.remove("thin");
    test.remove("pool");
    let part = "block_sectors: found 256 sectors in the table, expected 128";
    test.refuses("pool", "0 8192 thin-pool meta data 256 0", part);
    let test = PoolFixture::new(256, 64);
    test.refuses("pool", &test.pool_table("0 1 read_only"), "EPERM");
    let refused = test.try_load("pool", "0 8192 thin-pool origin data 128 0").unwrap_err();
    assert!(refused.to_string().starts_with("origin: "), "{refused}");
}

#[test]
fn a_volume_shorter_or_longer_shows_less_or_more() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 7 * BLOCK, BLOCK, 1).unwrap();
    test.load_thin("thin", 0, 4);
    assert_eq!(test.status("thin"), "128 1023");
    test.load_thin("thin", 0, 20);
    assert_eq!(test.bytes("thin", 7 * BLOCK, 1), [1]);
    test.write("thin", 19 * BLOCK, 1, 2).unwrap();
}

#[test]
fn a_table_whose_resume_failed_serves_the_pool_that_the_next_one_opens() {
    let mut test = PoolFixture::new(256, 64);
    test.data_blocks = 32;
    test.serve("0 0", 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.remove("thin");
    test.remove("pool");
    test.data_blocks = 16;
    test.build("pool", &test.pool_table("0 0")).unwrap();
    for _ in 0..2 {
        let refused = test.resume("pool").unwrap_err().to_string();
        assert!(
            refused.contains("length: found 16 data blocks, expected at least 32"),
            "{refused}"
        );
        assert!(test.status("pool").starts_with("0 0/256 "), "never live: {}", test.status("pool"));
    }
    test.data_blocks = 64;
    test.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
    test.build("pool", &test.pool_table("0 0")).unwrap();
    assert!(test.resume("pool").is_err());
    test.resume("pool").unwrap();
    test.load_thin("thin", 0, 8);
    assert_eq!(test.bytes("thin", 0, 1), [1]);
    let answer = test.message(&["create_thin", "1"]);
    assert!(answer.is_ok() || answer.unwrap_err().to_string().contains("EOPNOTSUPP"));
}

#[test]
fn a_failed_pool_that_nobody_uses_is_opened_anew_by_a_resume() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write_through("thin", 0, BLOCK, 1);
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    test.drive("meta").faults().add(Fault::error(OpSet::WRITES));
    test.drive("meta").faults().add(Fault::error(OpSet::READS));
    assert!(test.flush("thin").is_err());
    assert_eq!(test.status("pool"), "Fail");
    test.drive("meta").faults().clear();
    test.remove("thin");
    test.try_suspend("pool", SuspendMode::Flush).unwrap_err();
    test.resume("pool").unwrap();
    test.pool_says(" 1/64 ");
    test.load_thin("thin", 0, 8);
    assert_eq!(test.bytes("thin", 0, 1), [1]);
}

#[test]
fn a_pool_that_was_read_only_is_flushed_before_it_changes() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.remove("thin");
    test.remove("pool");
    test.forget();
    test.load_pool("0 1 read_only");
    assert!(test.ops("meta").iter().all(|(op, ..)| *op == Op::Read));
    test.load_pool("0 0");
    assert!(test.ops("meta").iter().any(|(op, ..)| *op == Op::Flush));
}

#[test]
fn a_pool_that_is_suspended_during_a_message_stays_suspended() {
    for moment in 0..40 {
        let test = PoolFixture::with_volume(256, 64, 8);
        test.write("thin", 0, BLOCK, 1).unwrap();
        test.start_message(&["create_snap", "1", "0"]);
        test.run(DRIVE_TIME / 2 * moment);
        test.suspend("pool", SuspendMode::Flush);
        test.start("thin", "write", |env| write_io(env, BLOCK, 1, 2));
        test.run(Duration::from_secs(2));
        assert!(test.labels().is_empty(), "moment {moment}");
        test.message(&["create_thin", "2"]).unwrap();
        test.run(Duration::from_secs(2));
        assert!(test.labels().is_empty(), "moment {moment}: a message let it in");
        test.resume("pool").unwrap();
        test.run(Duration::from_millis(10));
        assert_eq!(test.labels(), ["write"]);
    }
}

#[test]
fn a_suspended_pool_acts_on_messages_durably_and_stays_suspended() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.suspend("pool", SuspendMode::Flush);
    // The first snapshot changes what a change may cost.
    for words in [
        &["create_snap", "1", "0"][..],
        &["create_thin", "2"],
        &["create_thin", "3"],
        &["delete", "3"],
        &["set_transaction_id", "0", "5"],
    ] {
        test.message(words).unwrap();
    }
    test.forget();
    test.run(Duration::from_secs(5));
    assert!(test.ops("meta").is_empty(), "nothing goes on after the answer");
    test.start("thin", "write", |env| write_io(env, 0, BLOCK, 2));
    test.run(Duration::from_secs(1));
    assert!(test.labels().is_empty());
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("snap", 1, 8);
    again.load_thin("empty", 2, 8);
    assert_eq!((again.bytes("snap", 0, 1), again.bytes("empty", 0, 1)), (vec![1], vec![0]));
    again.refuses("gone", "0 1024 thin @pool 3", "device 3: found none");
    assert!(again.status("pool").starts_with("5 "));
    test.resume("pool").unwrap();
    test.run(Duration::from_secs(1));
    assert_eq!(test.labels(), ["write"]);
}

#[test]
fn a_volume_of_a_suspended_pool_is_removed() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.suspend("pool", SuspendMode::Flush);
    test.start("thin", "write", |env| write_io(env, 0, 8, 2));
    test.run(Duration::from_secs(1));
    test.remove("thin");
    assert!(test.ends.all()[0].1.is_err());
    test.message(&["delete", "0"]).unwrap();
    test.resume("pool").unwrap();
}

#[test]
fn metadata_that_is_too_small_is_refused_when_the_table_is_loaded() {
    for blocks in 1..=12 {
        let test = PoolFixture::of_images(image(blocks * 8, |_| 0), image(8192, |_| 0), 64);
        let built = test.build("pool", &test.pool_table("0 0"));
        // Whether there is room for the counts of so much data is another matter.
        drop(test.resume("pool"));
        let formatted = test.drive("meta").durable().to_vec()[..4096] != [0; 4096];
        assert_eq!(built.is_ok(), formatted, "{blocks} blocks");
    }
    let test = PoolFixture::with_volume(256, 64, 8);
    let durable: Vec<_> = test.durable().collect();
    let cut = durable[0].to_vec()[..255 * 4096].to_vec();
    let test = PoolFixture::of_images(cairn_sim::Image::of_bytes(&cut), durable[1].clone(), 64);
    let refused = test.build("pool", &test.pool_table("0 0")).unwrap_err().to_string();
    assert!(refused.contains("size: found 255 blocks, expected at least 256"), "{refused}");
}

#[test]
fn a_pool_says_that_nothing_is_passed_down_if_its_data_device_takes_no_discards() {
    let test = PoolFixture::new(256, 64);
    test.load("nodiscard", "0 8192 snapshot data origin N 8");
    let table = format!("0 {} thin-pool meta @nodiscard {BLOCK} 0", 60 * BLOCK);
    test.build("pool", &table).unwrap();
    let inactive = test.volume("pool").inactive_table().unwrap();
    assert!(inactive.lines()[0].target.status().contains(" no_discard_passdown "));
    test.resume("pool").unwrap();
    test.pool_says(" no_discard_passdown ");
    assert_eq!(test.target("pool").table(), "meta @nodiscard 128 0 0");
}

#[test]
fn a_pool_whose_growth_failed_acknowledges_nothing_that_it_cannot_keep() {
    let mut test = PoolFixture::new(256, 64);
    test.data_blocks = 32;
    test.serve("0 0", 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    test.data_blocks = 64;
    test.build("pool", &test.pool_table("0 0")).unwrap();
    test.suspend("pool", SuspendMode::Flush);
    test.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
    assert!(test.resume("pool").is_err());
    test.resume("pool").unwrap();
    let written = test.write("thin", BLOCK, BLOCK, 2).is_ok();
    assert!(!written || test.flush("thin").is_ok(), "{}", test.status("pool"));
    assert_eq!(test.bytes("thin", 0, 1), [1]);
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 8);
    assert_eq!(again.bytes("thin", 0, 1), [1]);
    assert_eq!(again.bytes("thin", BLOCK, 1), [if written { 2 } else { 0 }]);
}
