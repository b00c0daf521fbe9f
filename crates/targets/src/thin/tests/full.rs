//! A pool that is full never corrupts, and goes on when there is room.

use std::time::Duration;

use super::bed::*;
use cairn_block::{ErrorKind, IoError, SuspendMode};

const NO_SPACE: IoError = IoError::new(ErrorKind::NoSpace);

fn small(features: &str) -> Bed {
    let bed = Bed::new(256, 4);
    bed.load_pool(features);
    bed.message(&["create_thin", "0"]).unwrap();
    bed.load_thin("thin", 0, 16);
    bed
}

#[test]
fn writes_that_need_a_block_fail_at_once_if_told_so() {
    let bed = small("0 1 error_if_no_space");
    bed.write("thin", 0, 4 * BLOCK, 1).unwrap();
    assert_eq!(bed.write("thin", 4 * BLOCK, 1, 2), Err(NO_SPACE));
    assert!(bed.status("pool").contains(" 4/4 - out_of_data_space "), "{}", bed.status("pool"));
    bed.write("thin", 0, 1, 3).unwrap();
    assert_eq!(bed.bytes("thin", 0, 2), [3, 1]);
    assert_eq!(bed.bytes("thin", 4 * BLOCK, 1), [0]);
    bed.discard("thin", 0, BLOCK).unwrap();
    bed.flush("thin").unwrap();
    bed.wait(Duration::from_millis(1));
    assert!(bed.status("pool").contains(" 3/4 - rw "), "{}", bed.status("pool"));
    bed.write("thin", 4 * BLOCK, 1, 2).unwrap();
}

#[test]
fn a_write_takes_what_an_uncommitted_discard_frees() {
    let bed = small("0 1 error_if_no_space");
    bed.write("thin", 0, 4 * BLOCK, 1).unwrap();
    bed.flush("thin").unwrap();
    bed.discard("thin", 0, BLOCK).unwrap();
    bed.write("thin", 4 * BLOCK, BLOCK, 2).unwrap();
    assert_eq!(bed.bytes("thin", 4 * BLOCK, 1), [2]);
}

#[test]
fn writes_wait_for_space_and_then_fail() {
    let bed = small("0 2 no_space_timeout 3");
    bed.write("thin", 0, 4 * BLOCK, 1).unwrap();
    bed.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 1, 2));
    bed.wait(Duration::from_secs(2));
    assert!(bed.labels().is_empty());
    assert!(bed.status("pool").contains("out_of_data_space discard_passdown queue_if_no_space"));
    bed.wait(Duration::from_secs(2));
    assert_eq!(*bed.ends.borrow(), [("waits", Err(NO_SPACE))]);
    assert!(bed.status("pool").contains("error_if_no_space"));
    assert_eq!(bed.write("thin", 4 * BLOCK, 1, 2), Err(NO_SPACE));
    bed.discard("thin", 0, BLOCK).unwrap();
    bed.flush("thin").unwrap();
    bed.wait(Duration::from_millis(1));
    assert!(bed.status("pool").contains(" rw discard_passdown queue_if_no_space"));
}

#[test]
fn a_longer_pool_lets_what_waits_go_on() {
    let mut bed = Bed::new(256, 8);
    bed.data_blocks = 4;
    bed.load_pool("0 0");
    bed.message(&["create_thin", "0"]).unwrap();
    bed.load_thin("thin", 0, 16);
    bed.write("thin", 0, 4 * BLOCK, 1).unwrap();
    bed.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 3 * BLOCK, 2));
    bed.wait(Duration::from_secs(1));
    assert!(bed.labels().is_empty());
    bed.data_blocks = 8;
    bed.load_pool("0 0");
    bed.wait(Duration::from_millis(10));
    assert_eq!(*bed.ends.borrow(), [("waits", Ok(()))]);
    assert_eq!(bed.bytes("thin", 6 * BLOCK, 1), [2]);
    assert!(bed.status("pool").contains(" 7/8 - rw "), "{}", bed.status("pool"));
    bed.data_blocks = 4;
    let refused = bed.try_load("pool", &bed.pool_table("0 0")).unwrap_err().to_string();
    assert!(refused.contains("length: found 4 data blocks, expected at least 8"), "{refused}");
    bed.data_blocks = 8;
    bed.load_pool("0 0");
}

#[test]
fn what_waits_is_handed_back_to_the_next_table() {
    let bed = small("0 0");
    bed.write("thin", 0, 4 * BLOCK, 1).unwrap();
    bed.start("thin", "waits", |env| write_io(env, 4 * BLOCK, 1, 2));
    bed.wait(Duration::from_millis(10));
    bed.suspend("thin", SuspendMode::NoFlush);
    bed.load("thin", "0 2048 zero");
    bed.wait(Duration::from_millis(10));
    assert_eq!(*bed.ends.borrow(), [("waits", Ok(()))]);
}

#[test]
fn small_metadata_commits_often_and_runs_out_without_damage() {
    let bed = Bed::new(64, 4096);
    bed.load_pool("0 1 error_if_no_space");
    bed.message(&["create_thin", "0"]).unwrap();
    bed.load_thin("thin", 0, 1 << 20);
    let mut written = Vec::new();
    // Far apart, so that every block has a leaf of its own before long.
    for at in 0..3000 {
        let block = at * 300;
        if bed.write("thin", block * BLOCK, 1, (at % 200) as u8 + 1).is_err() {
            break;
        }
        written.push((block, (at % 200) as u8 + 1));
    }
    bed.flush("thin").unwrap();
    assert!(bed.status("pool").contains(" ro ") || written.len() == 3000);
    assert!(!bed.status("pool").contains("needs_check"), "{}", bed.status("pool"));
    let again = bed.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 1 << 20);
    for (block, byte) in written {
        assert_eq!(again.bytes("thin", block * BLOCK, 2), [byte, 0], "block {block}");
    }
}

#[test]
fn warnings_are_events() {
    let bed = Bed::new(256, 16);
    bed.load_pool("4 2 data_mark 50");
    bed.message(&["create_thin", "0"]).unwrap();
    bed.load_thin("thin", 0, 16);
    let events = || bed.volume("pool").event_nr();
    let start = events();
    bed.write("thin", 0, 7 * BLOCK, 1).unwrap();
    bed.flush("thin").unwrap();
    assert_eq!(events(), start);
    bed.write("thin", 7 * BLOCK, BLOCK, 1).unwrap();
    bed.flush("thin").unwrap();
    assert_eq!(events(), start + 1, "half full");
    bed.write("thin", 8 * BLOCK, 4 * BLOCK, 1).unwrap();
    bed.flush("thin").unwrap();
    assert_eq!(events(), start + 2, "the low water mark");
    bed.write("thin", 12 * BLOCK, BLOCK, 1).unwrap();
    bed.flush("thin").unwrap();
    assert_eq!(events(), start + 2, "once");
}
