//! No space left, and devices that fail: which snapshot ends, and what is announced.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{Disk, Env, Io, LossLog, Op, Receipt, SectorCount, SuspendMode};
use cairn_format::snapshot::Header;
use cairn_sim::{Fault, OpSet};
use futures_util::future::join;

use super::fixture::{SnapshotFixture, initial_bytes, range, write_io};

fn header_is_valid(test: &SnapshotFixture, name: &str) -> bool {
    Header::parse(&test.drive(name).durable().to_vec()).unwrap().is_valid()
}

#[test]
fn a_write_without_room_ends_a_persistent_snapshot_and_announces_it() {
    // A header, an area, and three chunks.
    let test = SnapshotFixture::new(512, &[5 * 8]);
    test.load("s", "0 512 snapshot origin cow0 P 8");
    for at in 0..3 {
        test.write("s", at * 8, 8, 7).unwrap();
    }
    assert_eq!(test.status("s"), "40/40 16");
    let events = test.volume("s").event_nr();
    assert!(test.write("s", 100, 8, 7).is_err());
    assert_eq!(test.status("s"), "Invalid");
    assert!(test.volume("s").event_nr() > events);
    assert!(!header_is_valid(&test, "cow0"));
    assert!(test.read("s", 0, 8).is_err() && test.write("s", 0, 8, 1).is_err());
    assert!(test.flush("s").is_err(), "what was written is lost");
    test.load("s", "0 512 snapshot origin cow0 P 8");
    assert_eq!(test.status("s"), "Invalid", "for ever");
}

#[test]
fn a_flush_of_a_snapshot_that_ends_meanwhile_fails() {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", "0 512 snapshot origin cow0 P 8");
    test.write("s", 0, 8, 7).unwrap();
    let core = test.core("s");
    let snapshot: Arc<dyn Disk> = test.volume("s");
    let flushed = test.sim.block_on(0, |env: Env| async move {
        let flush = env.io(&snapshot, Io::flush());
        let (flushed, ()) = join(flush, core.invalidate(&env, "a test")).await;
        flushed
    });
    assert!(flushed.is_err());
}

#[test]
fn an_overflow_refuses_writes_until_there_is_room_again() {
    let test = SnapshotFixture::new(512, &[4 * 8]);
    test.load("s", "0 512 snapshot origin cow0 PO 8");
    test.write("s", 0, 16, 7).unwrap();
    assert!(test.write("s", 17, 1, 7).is_err(), "a copy finds no room");
    assert_eq!(test.status("s"), "Overflow");
    assert!(test.write("s", 0, 8, 8).is_err(), "even where there is an exception");
    assert_eq!(test.bytes("s", 0, 16), [7; 16]);
    assert!(header_is_valid(&test, "cow0"));
    test.drive("cow0").resize(SectorCount(80));
    test.load("s", "0 512 snapshot origin cow0 PO 8");
    assert_eq!(test.status("s"), "32/80 16");
    test.write("s", 17, 1, 9).unwrap();
    assert_eq!(test.bytes("s", 16, 2), [initial_bytes(16, 1)[0], 9]);
}

#[test]
fn a_store_that_grew_online_has_room() {
    let test = SnapshotFixture::new(512, &[4 * 8]);
    test.load("s", "0 512 snapshot origin cow0 P 8");
    test.load("o", "0 512 snapshot-origin origin");
    test.write("o", 0, 16, 7).unwrap();
    test.drive("cow0").resize(SectorCount(200));
    test.write("o", 64, 16, 7).unwrap();
    test.write("s", 128, 8, 7).unwrap();
    assert_eq!(test.status("s"), "56/200 16");
    assert_eq!(test.bytes("s", 0, 80), initial_bytes(0, 80));
}

#[test]
fn a_copy_that_begins_before_the_old_end_of_a_store_that_grew_goes_on_behind_it() {
    let test = SnapshotFixture::new(512, &[4 * 8]);
    test.load("s", "0 512 snapshot origin cow0 P 8");
    test.load("o", "0 512 snapshot-origin origin");
    test.drive("cow0").resize(SectorCount(200));
    test.write("o", 0, 64, 7).unwrap();
    assert_eq!(test.status("s"), "80/200 16");
    assert_eq!(test.bytes("s", 0, 80), initial_bytes(0, 80));
    test.drive("cow0").resize(SectorCount(208));
    test.write("s", 256, 16 * 8, 9).unwrap();
    assert_eq!(test.status("s"), "208/208 16");
    assert_eq!(test.bytes("s", 256, 16 * 8), [9; 16 * 8]);
}

#[test]
fn the_record_that_would_fill_the_last_area_is_no_space() {
    let test = SnapshotFixture::new(512, &[34]);
    test.load("s", "0 512 snapshot origin cow0 PO 1");
    test.write("s", 0, 31, 7).unwrap();
    assert!(test.write("s", 100, 1, 7).is_err());
    assert_eq!(test.status("s"), "Overflow");
    let again = test.reopen_durable();
    again.load("s", "0 512 snapshot origin cow0 P 1");
    assert_eq!(again.status("s"), "33/34 2", "it opens");
    assert_eq!(again.bytes("s", 0, 32)[..31], [7; 31]);
    again.drive("cow0").resize(SectorCount(36));
    again.write("s", 100, 2, 8).unwrap();
    assert_eq!(again.status("s"), "36/36 3", "the successor exists now");
}

#[test]
fn areas_are_filled_when_the_next_one_exists() {
    let test = SnapshotFixture::new(512, &[200]);
    test.load("s", "0 512 snapshot origin cow0 P 1");
    test.load("o", "0 512 snapshot-origin origin");
    test.write("s", 3, 40, 7).unwrap();
    for at in 0..50 {
        test.write("o", 100 + at * 3, 1, 8).unwrap();
    }
    assert_eq!(test.status("s"), "94/200 4");
    let again = test.reopen_durable();
    again.load("s", "0 512 snapshot origin cow0 P 1");
    assert_eq!(again.status("s"), "94/200 4");
    let mut expected = initial_bytes(0, 512);
    expected[3..43].fill(7);
    assert_eq!(again.bytes("s", 0, 512), expected);
}

#[test]
fn one_snapshots_failure_ends_that_one_alone() {
    let test = SnapshotFixture::new(512, &[3 * 8, 2048, 2048]);
    test.load("small", "0 512 snapshot origin cow0 PO 8");
    test.load("broken", "0 512 snapshot origin cow1 P 8");
    test.load("good", "0 512 snapshot origin cow2 P 16");
    test.load("o", "0 512 snapshot-origin origin");
    test.drive("cow1").faults().add(Fault::error(OpSet::WRITES).on(range(16, 8)));
    test.write("o", 0, 64, 7).unwrap();
    assert_eq!(test.status("small"), "Invalid");
    assert_eq!(test.status("broken"), "Invalid");
    assert!(!header_is_valid(&test, "cow0") && !header_is_valid(&test, "cow1"));
    assert_eq!(test.bytes("good", 0, 512), initial_bytes(0, 512));
    assert_eq!(test.bytes("o", 0, 64), [7; 64]);
}

#[test]
fn an_origin_that_cannot_be_read_ends_its_snapshots_and_is_written() {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", "0 512 snapshot origin cow0 P 8");
    test.load("o", "0 512 snapshot-origin origin");
    test.drive("origin").faults().add(Fault::error(OpSet::READS));
    test.write("o", 8, 8, 7).unwrap();
    assert_eq!(test.status("s"), "Invalid");
}

#[test]
fn filling_up_is_announced_once_at_the_mark() {
    let test = SnapshotFixture::new(512, &[100]);
    test.load("s", "0 512 snapshot origin cow0 P 1 2 fill_event 50");
    let events = test.volume("s").event_nr();
    test.write("s", 0, 40, 7).unwrap();
    assert_eq!(test.volume("s").event_nr(), events, "not yet");
    test.write("s", 40, 20, 7).unwrap();
    test.write("s", 60, 20, 7).unwrap();
    assert_eq!(test.volume("s").event_nr(), events + 1);
}

/// Keeps receipts until the test gives them.
#[derive(Default)]
struct Notary(Mutex<Vec<Receipt>>);

impl LossLog for Notary {
    fn content_lost(&self, receipt: Receipt) {
        self.0.lock().push(receipt);
    }
}

#[test]
fn an_end_that_the_device_does_not_take_is_kept_elsewhere_before_the_origin_is_written() {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", "0 512 snapshot origin cow0 P 8");
    test.load("o", "0 512 snapshot-origin origin");
    let notary = Arc::<Notary>::default();
    test.volume("s").events().set_loss_log(notary.clone());
    test.drive("cow0").faults().add(Fault::error(OpSet::WRITES));
    test.forget();
    test.start("o", "write", |env| write_io(env, 8, 8, 7));
    test.settle();
    assert_eq!(test.labels(), [""; 0], "I6");
    assert!(!test.ops("origin").iter().any(|seen| seen.0 == Op::Write));
    let receipt = notary.0.lock().pop().expect("the loss log was told");
    receipt.give();
    test.settle();
    assert_eq!((test.labels(), test.status("s")), (vec!["write"], "Invalid".to_owned()));
    assert_eq!(test.bytes("o", 8, 8), [7; 8]);
}

#[test]
fn an_end_that_is_recorded_nowhere_is_tried_again() {
    for shots in [1, 2, 9] {
        let test = SnapshotFixture::new(512, &[2048]);
        test.load("s", "0 512 snapshot origin cow0 P 8");
        test.load("o", "0 512 snapshot-origin origin");
        let faults = test.drive("cow0");
        faults.faults().add(Fault::error(OpSet::WRITES).on(range(16, 8)));
        faults.faults().add(Fault::error(OpSet::WRITES).on(range(0, 8)).shots(shots));
        test.write("o", 8, 8, 7).unwrap();
        assert_eq!(test.status("s"), "Invalid");
        assert_eq!(header_is_valid(&test, "cow0"), shots == 9, "after so many failures: {shots}");
    }
}

/// A snapshot that ended while its device took no write.
fn unmarked() -> SnapshotFixture {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", "0 512 snapshot origin cow0 P 8");
    test.load("o", "0 512 snapshot-origin origin");
    test.drive("cow0").faults().add(Fault::error(OpSet::WRITES));
    test.write("o", 8, 8, 7).unwrap();
    assert_eq!((test.status("s").as_str(), header_is_valid(&test, "cow0")), ("Invalid", true));
    let log = test.sim.env(0).post().clone();
    let repeated = log.log().counted("s: cow0: header: could not be written");
    assert!(repeated.is_some_and(|repeated| repeated > 0), "one line, with the volume's name");
    test
}

#[test]
fn an_end_that_is_recorded_nowhere_is_tried_again_when_the_table_stops() {
    let test = unmarked();
    test.drive("cow0").faults().clear();
    test.suspend("s", SuspendMode::Flush);
    assert!(!header_is_valid(&test, "cow0"));
}

#[test]
fn a_server_that_ends_with_an_unrecorded_snapshot_end_says_so() {
    let test = unmarked();
    test.suspend("s", SuspendMode::Flush);
    test.resume("s").unwrap();
    let volume = test.volume("s");
    test.sim.block_on(0, |env| async move { volume.give_up(&env).await });
    let line = test.try_suspend("s", SuspendMode::NoFlush).unwrap_err().to_string();
    assert!(line.starts_with("cow0: snapshot: it ended, and its header"), "{line}");
    assert!(line.contains("must not be trusted"), "{line}");
}

#[test]
fn a_store_that_does_not_say_that_its_snapshot_ended_is_not_opened_as_a_valid_one() {
    for table in ["0 512 snapshot origin cow0 P 8", "0 512 snapshot origin cow0 PO 8"] {
        let test = unmarked();
        test.load("s", table);
        // A write of the header that failed may have been done all the same.
        assert_eq!(test.status("s"), "Invalid");
        test.drive("cow0").faults().clear();
        test.load("s", table);
        assert_eq!((test.status("s").as_str(), header_is_valid(&test, "cow0")), ("Invalid", false));
    }
}
