//! No space left, and devices that fail: which snapshot ends, and what is announced.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{Disk, Env, Io, LossLog, Op, Receipt, SectorCount, SuspendMode};
use cairn_format::snapshot::Header;
use cairn_sim::{Fault, OpSet};
use futures_util::future::join;

use super::bed::{Bed, initial_byte, range, write_io};

fn header_is_valid(bed: &Bed, name: &str) -> bool {
    Header::parse(&bed.drive(name).durable().to_vec()).unwrap().is_valid()
}

fn initial(start: u64, count: u64) -> Vec<u8> {
    (start..start + count).map(initial_byte).collect()
}

#[test]
fn a_write_without_room_ends_a_persistent_snapshot_and_announces_it() {
    // A header, an area, and three chunks.
    let bed = Bed::new(512, &[5 * 8]);
    bed.load("s", "0 512 snapshot origin cow0 P 8");
    for at in 0..3 {
        bed.write("s", at * 8, 8, 7).unwrap();
    }
    assert_eq!(bed.status("s"), "40/40 16");
    let events = bed.volume("s").event_nr();
    assert!(bed.write("s", 100, 8, 7).is_err());
    assert_eq!(bed.status("s"), "Invalid");
    assert!(bed.volume("s").event_nr() > events);
    assert!(!header_is_valid(&bed, "cow0"));
    assert!(bed.read("s", 0, 8).is_err() && bed.write("s", 0, 8, 1).is_err());
    assert!(bed.io("s", |_| Io::flush()).is_err(), "what was written is lost");
    bed.load("s", "0 512 snapshot origin cow0 P 8");
    assert_eq!(bed.status("s"), "Invalid", "for ever");
}

#[test]
fn a_flush_of_a_snapshot_that_ends_meanwhile_fails() {
    let bed = Bed::new(512, &[2048]);
    bed.load("s", "0 512 snapshot origin cow0 P 8");
    bed.write("s", 0, 8, 7).unwrap();
    let core = bed.core("s");
    let snapshot: Arc<dyn Disk> = bed.volume("s");
    let flushed = bed.sim.block_on(0, |env: Env| async move {
        let flush = env.io(&snapshot, Io::flush());
        let (flushed, ()) = join(flush, core.invalidate(&env, "a test")).await;
        flushed
    });
    assert!(flushed.is_err());
}

#[test]
fn an_overflow_refuses_writes_until_there_is_room_again() {
    let bed = Bed::new(512, &[4 * 8]);
    bed.load("s", "0 512 snapshot origin cow0 PO 8");
    bed.write("s", 0, 16, 7).unwrap();
    assert!(bed.write("s", 17, 1, 7).is_err(), "a copy finds no room");
    assert_eq!(bed.status("s"), "Overflow");
    assert!(bed.write("s", 0, 8, 8).is_err(), "even where there is an exception");
    assert_eq!(bed.bytes("s", 0, 16), [7; 16]);
    assert!(header_is_valid(&bed, "cow0"));
    bed.drive("cow0").resize(SectorCount(80));
    bed.load("s", "0 512 snapshot origin cow0 PO 8");
    assert_eq!(bed.status("s"), "32/80 16");
    bed.write("s", 17, 1, 9).unwrap();
    assert_eq!(bed.bytes("s", 16, 2), [initial_byte(16), 9]);
}

#[test]
fn a_store_that_grew_online_has_room() {
    let bed = Bed::new(512, &[4 * 8]);
    bed.load("s", "0 512 snapshot origin cow0 P 8");
    bed.load("o", "0 512 snapshot-origin origin");
    bed.write("o", 0, 16, 7).unwrap();
    bed.drive("cow0").resize(SectorCount(200));
    bed.write("o", 64, 16, 7).unwrap();
    bed.write("s", 128, 8, 7).unwrap();
    assert_eq!(bed.status("s"), "56/200 16");
    assert_eq!(bed.bytes("s", 0, 80), initial(0, 80));
}

#[test]
fn a_copy_that_begins_before_the_old_end_of_a_store_that_grew_goes_on_behind_it() {
    let bed = Bed::new(512, &[4 * 8]);
    bed.load("s", "0 512 snapshot origin cow0 P 8");
    bed.load("o", "0 512 snapshot-origin origin");
    bed.drive("cow0").resize(SectorCount(200));
    bed.write("o", 0, 64, 7).unwrap();
    assert_eq!(bed.status("s"), "80/200 16");
    assert_eq!(bed.bytes("s", 0, 80), initial(0, 80));
    bed.drive("cow0").resize(SectorCount(208));
    bed.write("s", 256, 16 * 8, 9).unwrap();
    assert_eq!(bed.status("s"), "208/208 16");
    assert_eq!(bed.bytes("s", 256, 16 * 8), [9; 16 * 8]);
}

#[test]
fn the_record_that_would_fill_the_last_area_is_no_space() {
    let bed = Bed::new(512, &[34]);
    bed.load("s", "0 512 snapshot origin cow0 PO 1");
    bed.write("s", 0, 31, 7).unwrap();
    assert!(bed.write("s", 100, 1, 7).is_err());
    assert_eq!(bed.status("s"), "Overflow");
    let again = bed.reopen_durable();
    again.load("s", "0 512 snapshot origin cow0 P 1");
    assert_eq!(again.status("s"), "33/34 2", "it opens");
    assert_eq!(again.bytes("s", 0, 32)[..31], [7; 31]);
    again.drive("cow0").resize(SectorCount(36));
    again.write("s", 100, 2, 8).unwrap();
    assert_eq!(again.status("s"), "36/36 3", "the successor exists now");
}

#[test]
fn areas_are_filled_when_the_next_one_exists() {
    let bed = Bed::new(512, &[200]);
    bed.load("s", "0 512 snapshot origin cow0 P 1");
    bed.load("o", "0 512 snapshot-origin origin");
    bed.write("s", 3, 40, 7).unwrap();
    for at in 0..50 {
        bed.write("o", 100 + at * 3, 1, 8).unwrap();
    }
    assert_eq!(bed.status("s"), "94/200 4");
    let again = bed.reopen_durable();
    again.load("s", "0 512 snapshot origin cow0 P 1");
    assert_eq!(again.status("s"), "94/200 4");
    let mut expected = initial(0, 512);
    expected[3..43].fill(7);
    assert_eq!(again.bytes("s", 0, 512), expected);
}

#[test]
fn one_snapshots_failure_ends_that_one_alone() {
    let bed = Bed::new(512, &[3 * 8, 2048, 2048]);
    bed.load("small", "0 512 snapshot origin cow0 PO 8");
    bed.load("broken", "0 512 snapshot origin cow1 P 8");
    bed.load("good", "0 512 snapshot origin cow2 P 16");
    bed.load("o", "0 512 snapshot-origin origin");
    bed.drive("cow1").faults().add(Fault::error(OpSet::WRITES).on(range(16, 8)));
    bed.write("o", 0, 64, 7).unwrap();
    assert_eq!(bed.status("small"), "Invalid");
    assert_eq!(bed.status("broken"), "Invalid");
    assert!(!header_is_valid(&bed, "cow0") && !header_is_valid(&bed, "cow1"));
    assert_eq!(bed.bytes("good", 0, 512), initial(0, 512));
    assert_eq!(bed.bytes("o", 0, 64), [7; 64]);
}

#[test]
fn an_origin_that_cannot_be_read_ends_its_snapshots_and_is_written() {
    let bed = Bed::new(512, &[2048]);
    bed.load("s", "0 512 snapshot origin cow0 P 8");
    bed.load("o", "0 512 snapshot-origin origin");
    bed.drive("origin").faults().add(Fault::error(OpSet::READS));
    bed.write("o", 8, 8, 7).unwrap();
    assert_eq!(bed.status("s"), "Invalid");
}

#[test]
fn filling_up_is_announced_once_at_the_mark() {
    let bed = Bed::new(512, &[100]);
    bed.load("s", "0 512 snapshot origin cow0 P 1 2 fill_event 50");
    let events = bed.volume("s").event_nr();
    bed.write("s", 0, 40, 7).unwrap();
    assert_eq!(bed.volume("s").event_nr(), events, "not yet");
    bed.write("s", 40, 20, 7).unwrap();
    bed.write("s", 60, 20, 7).unwrap();
    assert_eq!(bed.volume("s").event_nr(), events + 1);
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
    let bed = Bed::new(512, &[2048]);
    bed.load("s", "0 512 snapshot origin cow0 P 8");
    bed.load("o", "0 512 snapshot-origin origin");
    let notary = Arc::<Notary>::default();
    bed.volume("s").events().set_loss_log(notary.clone());
    bed.drive("cow0").faults().add(Fault::error(OpSet::WRITES));
    bed.forget();
    bed.start("o", "write", |env| write_io(env, 8, 8, 7));
    bed.settle();
    assert_eq!(bed.labels(), [""; 0], "I6");
    assert!(!bed.ops("origin").iter().any(|seen| seen.0 == Op::Write));
    let receipt = notary.0.lock().pop().expect("the loss log was told");
    receipt.give();
    bed.settle();
    assert_eq!((bed.labels(), bed.status("s")), (vec!["write"], "Invalid".to_owned()));
    assert_eq!(bed.bytes("o", 8, 8), [7; 8]);
}

#[test]
fn an_end_that_is_recorded_nowhere_is_tried_again() {
    for shots in [1, 2, 9] {
        let bed = Bed::new(512, &[2048]);
        bed.load("s", "0 512 snapshot origin cow0 P 8");
        bed.load("o", "0 512 snapshot-origin origin");
        let faults = bed.drive("cow0");
        faults.faults().add(Fault::error(OpSet::WRITES).on(range(16, 8)));
        faults.faults().add(Fault::error(OpSet::WRITES).on(range(0, 8)).shots(shots));
        bed.write("o", 8, 8, 7).unwrap();
        assert_eq!(bed.status("s"), "Invalid");
        assert_eq!(header_is_valid(&bed, "cow0"), shots == 9, "after so many failures: {shots}");
    }
}

/// A snapshot that ended while its device took no write.
fn unmarked() -> Bed {
    let bed = Bed::new(512, &[2048]);
    bed.load("s", "0 512 snapshot origin cow0 P 8");
    bed.load("o", "0 512 snapshot-origin origin");
    bed.drive("cow0").faults().add(Fault::error(OpSet::WRITES));
    bed.write("o", 8, 8, 7).unwrap();
    assert_eq!((bed.status("s").as_str(), header_is_valid(&bed, "cow0")), ("Invalid", true));
    let log = bed.sim.env(0).post().clone();
    let repeated = log.log().counted("s: cow0: header: could not be written");
    assert!(repeated.is_some_and(|repeated| repeated > 0), "one line, with the volume's name");
    bed
}

#[test]
fn an_end_that_is_recorded_nowhere_is_tried_again_when_the_table_stops() {
    let bed = unmarked();
    bed.drive("cow0").faults().clear();
    bed.suspend("s", SuspendMode::Flush);
    assert!(!header_is_valid(&bed, "cow0"));
}

#[test]
fn a_server_that_ends_with_an_unrecorded_snapshot_end_says_so() {
    let bed = unmarked();
    bed.suspend("s", SuspendMode::Flush);
    bed.resume("s").unwrap();
    let volume = bed.volume("s");
    bed.sim.block_on(0, |env| async move { volume.give_up(&env).await });
    let line = bed.try_suspend("s", SuspendMode::NoFlush).unwrap_err().to_string();
    assert!(line.starts_with("cow0: snapshot: it ended, and its header"), "{line}");
    assert!(line.contains("must not be trusted"), "{line}");
}

#[test]
fn a_store_that_does_not_say_that_its_snapshot_ended_is_not_opened_as_a_valid_one() {
    for table in ["0 512 snapshot origin cow0 P 8", "0 512 snapshot origin cow0 PO 8"] {
        let bed = unmarked();
        bed.load("s", table);
        // A write of the header that failed may have been done all the same.
        assert_eq!(bed.status("s"), "Invalid");
        bed.drive("cow0").faults().clear();
        bed.load("s", table);
        assert_eq!((bed.status("s").as_str(), header_is_valid(&bed, "cow0")), ("Invalid", false));
    }
}
