//! Tables come and go; pools and volumes refuse what cannot be.

use std::time::Duration;

use super::bed::*;
use crate::rig::{DRIVE_TIME, image};
use cairn_block::{Op, SuspendMode};
use cairn_sim::{Fault, OpSet};

#[test]
fn a_pool_is_served_by_one_table() {
    let bed = Bed::with_volume(256, 64, 8);
    let table = bed.pool_table("0 0");
    bed.refuses("second", &table, "meta: in use as the metadata device of volume 'pool'");
    assert_eq!(bed.status("thin"), "0 -");
}

#[test]
fn a_volume_needs_its_pool_and_its_device() {
    let bed = Bed::new(256, 64);
    let thin = "0 1024 thin @pool 0";
    bed.refuses("thin", thin, "there is no volume of this name");
    bed.load("pool", "0 8192 zero");
    bed.refuses("thin", thin, "@pool: pool: found another kind of target");
    bed.load_pool("0 0");
    bed.refuses("thin", thin, "device 0: found none");
    bed.suspend("pool", SuspendMode::Flush);
    bed.refuses("thin", thin, "pool: found no live pool");
    bed.resume("pool").unwrap();
}

#[test]
fn requests_wait_while_their_pool_is_suspended() {
    let bed = Bed::with_volume(256, 64, 8);
    bed.write("thin", 0, BLOCK, 1).unwrap();
    bed.suspend("pool", SuspendMode::Flush);
    bed.start("thin", "write", |env| write_io(env, BLOCK, 1, 2));
    bed.start("thin", "flush", |_| cairn_block::Io::flush());
    bed.wait(Duration::from_secs(3));
    assert!(bed.labels().is_empty());
    bed.resume("pool").unwrap();
    bed.wait(Duration::from_millis(10));
    assert_eq!(bed.labels().len(), 2);
    assert_eq!(bed.bytes("thin", BLOCK, 1), [2]);
}

#[test]
fn options_change_with_a_table_and_nothing_is_lost() {
    let bed = Bed::with_volume(256, 64, 8);
    bed.write("thin", 0, BLOCK, 1).unwrap();
    bed.load_pool("7 2 skip_block_zeroing no_discard_passdown");
    bed.pool_says("no_discard_passdown");
    assert_eq!(bed.bytes("thin", 0, 1), [1]);
    bed.load_pool("0 1 read_only");
    bed.pool_says(" ro ");
    bed.write_through("thin", 0, 1, 2);
    assert!(bed.write("thin", BLOCK, 1, 2).is_err());
    bed.discard("thin", 0, BLOCK).unwrap();
    assert_eq!(bed.bytes("thin", 0, 2), [2, 1]);
    bed.load_pool("0 0");
    bed.write("thin", BLOCK, 1, 2).unwrap();
}

#[test]
fn whether_volumes_take_discards_cannot_change_while_the_pool_is_live() {
    let (takes, ignores) = ("0 1 no_discard_passdown", "0 1 ignore_discard");
    for (first, other, found) in
        [("0 0", ignores, "ignore_discard"), (ignores, takes, "no ignore_discard")]
    {
        let bed = Bed::new(256, 64);
        let table = bed.pool_table(other);
        bed.build("early", &table).unwrap();
        bed.serve(first, 8);
        let part = format!("meta: features: found {found}, expected ");
        bed.refuses("pool", &table, &part);
        bed.suspend("pool", SuspendMode::Flush);
        bed.refuses("pool", &table, &part);
        let refused = bed.resume("early").unwrap_err().to_string();
        assert!(refused.contains("'pool'"), "a suspended pool keeps its devices: {refused}");
        bed.resume("pool").unwrap();
        assert_eq!(bed.discard("thin", 0, BLOCK).is_ok(), first != ignores);
        bed.load_pool(first);
        for name in ["early", "thin", "pool"] {
            bed.remove(name);
        }
        bed.load("pool", &table);
        bed.load_thin("thin", 0, 8);
        assert_eq!(bed.discard("thin", 0, BLOCK).is_ok(), other != ignores);
    }
}

#[test]
fn a_pool_with_another_block_size_or_none_is_refused() {
    let bed = Bed::with_volume(256, 64, 8);
    bed.remove("thin");
    bed.remove("pool");
    let part = "block_sectors: found 256 sectors in the table, expected 128";
    bed.refuses("pool", "0 8192 thin-pool meta data 256 0", part);
    let bed = Bed::new(256, 64);
    bed.refuses("pool", &bed.pool_table("0 1 read_only"), "EPERM");
    let refused = bed.try_load("pool", "0 8192 thin-pool origin data 128 0").unwrap_err();
    assert!(refused.to_string().starts_with("origin: "), "{refused}");
}

#[test]
fn a_volume_shorter_or_longer_shows_less_or_more() {
    let bed = Bed::with_volume(256, 64, 8);
    bed.write("thin", 7 * BLOCK, BLOCK, 1).unwrap();
    bed.load_thin("thin", 0, 4);
    assert_eq!(bed.status("thin"), "128 1023");
    bed.load_thin("thin", 0, 20);
    assert_eq!(bed.bytes("thin", 7 * BLOCK, 1), [1]);
    bed.write("thin", 19 * BLOCK, 1, 2).unwrap();
}

#[test]
fn a_table_whose_resume_failed_serves_the_pool_that_the_next_one_opens() {
    let mut bed = Bed::new(256, 64);
    bed.data_blocks = 32;
    bed.serve("0 0", 8);
    bed.write("thin", 0, BLOCK, 1).unwrap();
    bed.remove("thin");
    bed.remove("pool");
    bed.data_blocks = 16;
    bed.build("pool", &bed.pool_table("0 0")).unwrap();
    for _ in 0..2 {
        let refused = bed.resume("pool").unwrap_err().to_string();
        assert!(
            refused.contains("length: found 16 data blocks, expected at least 32"),
            "{refused}"
        );
        assert!(bed.status("pool").starts_with("0 0/256 "), "never live: {}", bed.status("pool"));
    }
    bed.data_blocks = 64;
    bed.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
    bed.build("pool", &bed.pool_table("0 0")).unwrap();
    assert!(bed.resume("pool").is_err());
    bed.resume("pool").unwrap();
    bed.load_thin("thin", 0, 8);
    assert_eq!(bed.bytes("thin", 0, 1), [1]);
    let answer = bed.message(&["create_thin", "1"]);
    assert!(answer.is_ok() || answer.unwrap_err().to_string().contains("EOPNOTSUPP"));
}

#[test]
fn a_failed_pool_that_nobody_uses_is_opened_anew_by_a_resume() {
    let bed = Bed::with_volume(256, 64, 8);
    bed.write_through("thin", 0, BLOCK, 1);
    bed.write("thin", BLOCK, BLOCK, 2).unwrap();
    bed.drive("meta").faults().add(Fault::error(OpSet::WRITES));
    bed.drive("meta").faults().add(Fault::error(OpSet::READS));
    assert!(bed.flush("thin").is_err());
    assert_eq!(bed.status("pool"), "Fail");
    bed.drive("meta").faults().clear();
    bed.remove("thin");
    bed.try_suspend("pool", SuspendMode::Flush).unwrap_err();
    bed.resume("pool").unwrap();
    bed.pool_says(" 1/64 ");
    bed.load_thin("thin", 0, 8);
    assert_eq!(bed.bytes("thin", 0, 1), [1]);
}

#[test]
fn a_pool_that_was_read_only_is_flushed_before_it_changes() {
    let bed = Bed::with_volume(256, 64, 8);
    bed.remove("thin");
    bed.remove("pool");
    bed.forget();
    bed.load_pool("0 1 read_only");
    assert!(bed.ops("meta").iter().all(|(op, ..)| *op == Op::Read));
    bed.load_pool("0 0");
    assert!(bed.ops("meta").iter().any(|(op, ..)| *op == Op::Flush));
}

#[test]
fn a_pool_that_is_suspended_during_a_message_stays_suspended() {
    for moment in 0..40 {
        let bed = Bed::with_volume(256, 64, 8);
        bed.write("thin", 0, BLOCK, 1).unwrap();
        bed.start_message(&["create_snap", "1", "0"]);
        bed.wait(DRIVE_TIME / 2 * moment);
        bed.suspend("pool", SuspendMode::Flush);
        bed.start("thin", "write", |env| write_io(env, BLOCK, 1, 2));
        bed.wait(Duration::from_secs(2));
        assert!(bed.labels().is_empty(), "moment {moment}");
        bed.message(&["create_thin", "2"]).unwrap();
        bed.wait(Duration::from_secs(2));
        assert!(bed.labels().is_empty(), "moment {moment}: a message let it in");
        bed.resume("pool").unwrap();
        bed.wait(Duration::from_millis(10));
        assert_eq!(bed.labels(), ["write"]);
    }
}

#[test]
fn a_suspended_pool_acts_on_messages_durably_and_stays_suspended() {
    let bed = Bed::with_volume(256, 64, 8);
    bed.write("thin", 0, BLOCK, 1).unwrap();
    bed.suspend("pool", SuspendMode::Flush);
    // The first snapshot changes what a change may cost.
    for words in [
        &["create_snap", "1", "0"][..],
        &["create_thin", "2"],
        &["create_thin", "3"],
        &["delete", "3"],
        &["set_transaction_id", "0", "5"],
    ] {
        bed.message(words).unwrap();
    }
    bed.forget();
    bed.wait(Duration::from_secs(5));
    assert!(bed.ops("meta").is_empty(), "nothing goes on after the answer");
    bed.start("thin", "write", |env| write_io(env, 0, BLOCK, 2));
    bed.wait(Duration::from_secs(1));
    assert!(bed.labels().is_empty());
    let again = bed.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("snap", 1, 8);
    again.load_thin("empty", 2, 8);
    assert_eq!((again.bytes("snap", 0, 1), again.bytes("empty", 0, 1)), (vec![1], vec![0]));
    again.refuses("gone", "0 1024 thin @pool 3", "device 3: found none");
    assert!(again.status("pool").starts_with("5 "));
    bed.resume("pool").unwrap();
    bed.wait(Duration::from_secs(1));
    assert_eq!(bed.labels(), ["write"]);
}

#[test]
fn a_volume_of_a_suspended_pool_is_removed() {
    let bed = Bed::with_volume(256, 64, 8);
    bed.write("thin", 0, BLOCK, 1).unwrap();
    bed.suspend("pool", SuspendMode::Flush);
    bed.start("thin", "write", |env| write_io(env, 0, 8, 2));
    bed.wait(Duration::from_secs(1));
    bed.remove("thin");
    assert!(bed.ends.borrow()[0].1.is_err());
    bed.message(&["delete", "0"]).unwrap();
    bed.resume("pool").unwrap();
}

#[test]
fn metadata_that_is_too_small_is_refused_when_the_table_is_loaded() {
    for blocks in 1..=12 {
        let bed = Bed::of_images(image(blocks * 8, |_| 0), image(8192, |_| 0), 64);
        let built = bed.build("pool", &bed.pool_table("0 0"));
        // Whether there is room for the counts of so much data is another matter.
        drop(bed.resume("pool"));
        let formatted = bed.drive("meta").durable().to_vec()[..4096] != [0; 4096];
        assert_eq!(built.is_ok(), formatted, "{blocks} blocks");
    }
    let bed = Bed::with_volume(256, 64, 8);
    let durable: Vec<_> = bed.durable().collect();
    let cut = durable[0].to_vec()[..255 * 4096].to_vec();
    let bed = Bed::of_images(cairn_sim::Image::of_bytes(&cut), durable[1].clone(), 64);
    let refused = bed.build("pool", &bed.pool_table("0 0")).unwrap_err().to_string();
    assert!(refused.contains("size: found 255 blocks, expected at least 256"), "{refused}");
}

#[test]
fn a_pool_says_that_nothing_is_passed_down_if_its_data_device_takes_no_discards() {
    let bed = Bed::new(256, 64);
    bed.load("nodiscard", "0 8192 snapshot data origin N 8");
    let table = format!("0 {} thin-pool meta @nodiscard {BLOCK} 0", 60 * BLOCK);
    bed.build("pool", &table).unwrap();
    let inactive = bed.volume("pool").inactive_table().unwrap();
    assert!(inactive.lines()[0].target.status().contains(" no_discard_passdown "));
    bed.resume("pool").unwrap();
    bed.pool_says(" no_discard_passdown ");
    assert_eq!(bed.target("pool").table(), "meta @nodiscard 128 0 0");
}

#[test]
fn a_pool_whose_growth_failed_acknowledges_nothing_that_it_cannot_keep() {
    let mut bed = Bed::new(256, 64);
    bed.data_blocks = 32;
    bed.serve("0 0", 8);
    bed.write("thin", 0, BLOCK, 1).unwrap();
    bed.data_blocks = 64;
    bed.build("pool", &bed.pool_table("0 0")).unwrap();
    bed.suspend("pool", SuspendMode::Flush);
    bed.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
    assert!(bed.resume("pool").is_err());
    bed.resume("pool").unwrap();
    let written = bed.write("thin", BLOCK, BLOCK, 2).is_ok();
    assert!(!written || bed.flush("thin").is_ok(), "{}", bed.status("pool"));
    assert_eq!(bed.bytes("thin", 0, 1), [1]);
    let again = bed.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 8);
    assert_eq!(again.bytes("thin", 0, 1), [1]);
    assert_eq!(again.bytes("thin", BLOCK, 1), [if written { 2 } else { 0 }]);
}
