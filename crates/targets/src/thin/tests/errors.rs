//! Devices that fail.

use super::bed::*;
use cairn_block::{Flags, IoError};
use cairn_sim::{Fault, OpSet};

#[test]
fn after_a_failed_commit_no_flush_succeeds_until_the_volume_is_loaded_anew() {
    let bed = Bed::with_volume(256, 64, 8);
    bed.write("thin", 0, BLOCK, 1).unwrap();
    bed.flush("thin").unwrap();
    bed.write("thin", BLOCK, BLOCK, 2).unwrap();
    bed.drive("meta").faults().add(Fault::error(OpSet::WRITES).shots(1));
    assert!(bed.flush("thin").is_err());
    assert_eq!(bed.flush("thin"), Err(IoError::IO));
    assert!(bed.status("pool").contains(" ro "), "{}", bed.status("pool"));
    assert!(bed.status("pool").contains(" needs_check "), "{}", bed.status("pool"));
    // Rolled back; what was flushed is there, and may be overwritten.
    assert_eq!(bed.bytes("thin", BLOCK - 1, 2), [1, 0]);
    bed.write("thin", 0, 1, 3).unwrap();
    assert!(bed.io("thin", |env| write_io(env, 0, 1, 3).with(Flags::FUA)).is_err());
    assert!(bed.write("thin", BLOCK, 1, 4).is_err());
    assert!(bed.message(&["create_thin", "1"]).unwrap_err().to_string().contains("EOPNOTSUPP"));
    bed.load_thin("thin", 0, 8);
    bed.flush("thin").unwrap();
}

#[test]
fn a_volume_that_lost_nothing_flushes_on() {
    let bed = Bed::with_volume(256, 64, 8);
    bed.message(&["create_thin", "1"]).unwrap();
    bed.load_thin("other", 1, 8);
    bed.write("other", 0, BLOCK, 1).unwrap();
    bed.flush("other").unwrap();
    bed.write("thin", 0, BLOCK, 2).unwrap();
    bed.drive("data").faults().add(Fault::error(OpSet::FLUSHES).shots(1));
    assert!(bed.flush("thin").is_err());
    bed.write("other", 0, 1, 5).unwrap();
    bed.flush("other").unwrap();
    assert!(bed.flush("thin").is_err());
}

#[test]
fn a_failed_write_provisions_nothing() {
    let bed = Bed::with_volume(256, 64, 8);
    bed.drive("data").faults().add(Fault::error(OpSet::WRITES).shots(2));
    assert!(bed.write("thin", 0, BLOCK, 1).is_err());
    assert!(bed.write("thin", BLOCK, 1, 1).is_err());
    assert_eq!(bed.status("thin"), "0 -");
    assert!(bed.status("pool").contains(" 0/64 "), "{}", bed.status("pool"));
    assert_eq!(bed.bytes("thin", 0, 2 * BLOCK), vec![0; 2 * BLOCK as usize]);
}

#[test]
fn a_group_that_cannot_be_read_fails_its_requests_alone() {
    let bed = Bed::with_volume(256, 64, 8);
    bed.write("thin", 0, BLOCK, 1).unwrap();
    bed.flush("thin").unwrap();
    let again = bed.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 8);
    again.drive("meta").faults().add(Fault::error(OpSet::READS).shots(1));
    let first = again.read("thin", 0, 1);
    assert_eq!(again.bytes("thin", 0, 1), [1]);
    assert!(first.is_err() || first.is_ok_and(|bytes| bytes[0] == 1));
}
