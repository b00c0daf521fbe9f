//! Clusters that are free again, growth, and images without room.

use std::time::Duration;

use cairn_block::{ErrorKind, Op, SectorCount, SuspendMode};
use cairn_format::qcow2::Severity;
use cairn_format::qcow2::write::Blank;
use cairn_sim::{Effect, Fault, Image, OpSet};

use super::fixture::{ALONE, FIRST_CLUSTERS, OVER, Qcow2Fixture, blank, model};
use crate::fixture::{DRIVE_TIME, SECTOR, drive_options, range, write_io};

#[test]
fn a_read_in_flight_keeps_the_cluster_that_it_found() {
    // All clusters but one are used, so that the next write takes the freed one.
    let test = Qcow2Fixture::of(blank(false), FIRST_CLUSTERS + 1 + 2);
    test.load(ALONE);
    test.write(0, 2, 7).unwrap();
    test.write(2, 2, 8).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    let slow = Fault { effect: Effect::Delay(100 * DRIVE_TIME), ..Fault::error(OpSet::READS) };
    test.drive("image").faults().add(slow.shots(1));
    let segs = std::rc::Rc::new(std::cell::RefCell::new(None));
    let own = segs.clone();
    test.start(0, "read", move |env| {
        let read = env.segs(SectorCount(2));
        *own.borrow_mut() = Some(read.clone());
        cairn_block::Io::read(range(0, 2), read)
    });
    test.on(Op::Discard, 0, 2).unwrap();
    test.start(1, "write", |env| write_io(env, 4, 2, 9));
    test.run(50 * DRIVE_TIME);
    assert_eq!(test.labels(), Vec::<&str>::new(), "the write waits for the read");
    test.run(200 * DRIVE_TIME);
    assert_eq!(test.labels(), ["read", "write"]);
    let read = segs.take().expect("it was sent").to_vec();
    assert!(read.iter().all(|byte| *byte == 7), "the content of before");
    assert_eq!(test.bytes(0, 6), [0, 0, 8, 8, 9, 9]);
}

#[test]
fn a_full_image_refuses_writes_until_something_is_discarded() {
    let test = Qcow2Fixture::of(blank(true), FIRST_CLUSTERS + 1 + 10);
    test.load(OVER);
    test.write(0, 20, 7).unwrap();
    let refused = test.write(20, 2, 8).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NoSpace);
    assert_eq!(test.write(27, 1, 8).unwrap_err().kind, ErrorKind::NoSpace);
    let mut expected = model(true);
    expected[..20].fill(7);
    assert_eq!(test.all(), expected);
    test.write(3, 1, 9).unwrap();
    test.on(Op::Discard, 10, 4).unwrap();
    test.write(20, 2, 8).unwrap();
    (expected[3], expected[20], expected[21]) = (9, 8, 8);
    expected[10..14].fill(0);
    assert_eq!(test.all(), expected);
    assert_eq!(test.used(), "14/15");
}

#[test]
fn discarded_clusters_go_back_to_the_device_once_nothing_names_them() {
    let test = Qcow2Fixture::loaded(ALONE);
    test.write(0, 100, 7).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    test.forget();
    test.on(Op::Discard, 20, 40).unwrap();
    assert!(test.ops("image").is_empty());
    test.on(Op::Flush, 0, 0).unwrap();
    test.settle();
    let ops = test.ops("image");
    let discards: Vec<_> = ops.iter().filter(|(op, ..)| *op == Op::Discard).collect();
    assert!(matches!(discards[..], [(_, _, 40)]), "{ops:?}");
    let last = ops.iter().rposition(|(op, ..)| *op == Op::Flush);
    let first = ops.iter().position(|(op, ..)| *op == Op::Discard);
    assert!(last < first, "{ops:?}");
}

#[test]
fn leaked_clusters_are_found_and_used() {
    let mut image = blank(false);
    // The refcount block is the third cluster; these are 20 clusters behind the tables.
    (4..24).for_each(|cluster| image[2 * 1024 + 2 * cluster + 1] = 1);
    let test = Qcow2Fixture::of(image, 60);
    assert_eq!(test.durable().0.counts.leaked, 20);
    test.load(ALONE);
    test.run(Duration::from_secs(3));
    assert_eq!((test.durable().0.severity, test.used()), (Severity::Sound, "4/60".to_owned()));
}

#[test]
fn a_file_grows_as_it_fills() {
    // Its last sector is not whole.
    let image = &blank(true)[..3 * 1024 + 100];
    let test = Qcow2Fixture::growing(image, 600);
    test.load(OVER);
    assert_eq!(test.used(), "4/4");
    test.write(0, 1000, 7).unwrap();
    assert_eq!(test.bytes(0, 1000), [7; 1000]);
    assert_eq!(test.drive("image").visible().sectors(), SectorCount(1200));
    test.suspend(SuspendMode::Flush);
    let (report, _) = test.durable();
    assert_eq!((report.severity, report.counts.data), (Severity::Sound, 500));
}

#[test]
fn a_file_that_cannot_grow_fails_the_write_that_needs_it() {
    let test = Qcow2Fixture::growing(&blank(true), 600);
    test.load(OVER);
    let fault = Fault { effect: Effect::Error(ErrorKind::NoSpace), ..Fault::error(OpSet::WRITES) };
    let behind = range(blank(true).len() as u64 / SECTOR as u64, 4000);
    let fault = test.drive("image").faults().add(fault.on(behind));
    assert_eq!(test.write(5, 1, 7).unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(test.all(), model(true));
    test.drive("image").faults().remove(fault);
    test.write(5, 1, 7).unwrap();
    assert_eq!(test.bytes(5, 1), [7]);
}

#[test]
fn a_refcount_table_that_is_too_small_for_the_content_is_made_larger() {
    // 64 refcount blocks of 64 clusters: 2 MiB.
    let blank = Blank { size: 3 << 20, cluster_bits: 9, refcount_order: 6, backing: None };
    let mut image = Image::of_bytes(&blank.bytes().unwrap());
    image.resize(SectorCount(8000));
    let test = Qcow2Fixture::with(drive_options("image"), image);
    test.load("0 6144 qcow2 image -");
    for start in (0..6144).step_by(256) {
        test.write(start, 256, (start / 256) as u8 + 1).unwrap();
    }
    test.suspend(SuspendMode::Flush);
    let (report, _) = test.durable();
    assert_eq!((report.severity, report.counts.data), (Severity::Sound, 6144));
    test.resume();
    for start in (0..6144).step_by(256) {
        assert_eq!(test.bytes(start, 256), [(start / 256) as u8 + 1; 256]);
    }
}

#[test]
fn a_file_system_that_is_full_fails_new_writes_and_no_flush() {
    let test = Qcow2Fixture::growing(&blank(false), 600);
    test.load(ALONE);
    test.write(0, 2, 7).unwrap();
    test.suspend(SuspendMode::Flush);
    test.resume();
    // Holes cannot be filled; the first six clusters are there.
    let full = Fault { effect: Effect::Error(ErrorKind::NoSpace), ..Fault::error(OpSet::WRITES) };
    test.drive("image").faults().add(full.on(range(12, 4000)));
    assert_eq!(test.write(300, 2, 9).unwrap_err().kind, ErrorKind::NoSpace);
    test.write(0, 2, 8).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    test.on(Op::Discard, 0, 2).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    test.settle();
    test.write(4, 2, 9).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    assert_eq!((test.used(), test.bytes(4, 2)), ("6/600".to_owned(), vec![9; 2]));
}

#[test]
fn a_commit_that_fails_is_no_lack_of_space() {
    let test = Qcow2Fixture::of(blank(false), FIRST_CLUSTERS + 1 + 20);
    test.load(ALONE);
    test.write(0, 40, 7).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    test.on(Op::Discard, 0, 10).unwrap();
    test.drive("image").faults().add(Fault::error(OpSet::FLUSHES).shots(1));
    assert_eq!(test.write(200, 2, 9).unwrap_err().kind, ErrorKind::Io);
    test.write(200, 2, 9).unwrap();
}

#[test]
fn a_flush_waits_neither_for_reads_nor_for_discards_of_what_is_released() {
    for (ops, part) in [(OpSet::READS, range(0, 1200)), (OpSet::WRITES, range(30, 40))] {
        let test = Qcow2Fixture::loaded(ALONE);
        test.write(0, 100, 7).unwrap();
        test.on(Op::Flush, 0, 0).unwrap();
        test.run(Duration::from_secs(3));
        let slow = Fault { effect: Effect::Delay(Duration::from_secs(10)), ..Fault::error(ops) };
        test.drive("image").faults().add(slow.on(part));
        test.start(0, "read", |env| cairn_block::Io::read(range(0, 2), env.segs(SectorCount(2))));
        test.on(Op::Discard, 20, 40).unwrap();
        test.start(1, "flush 1", |_| cairn_block::Io::flush());
        test.run(Duration::from_millis(500));
        test.start(1, "flush 2", |_| cairn_block::Io::flush());
        test.run(Duration::from_millis(500));
        assert!(test.labels().ends_with(&["flush 1", "flush 2"]), "{:?}", test.labels());
        test.run(Duration::from_secs(30));
    }
}

#[test]
fn a_start_makes_no_file_longer_that_has_whole_clusters() {
    let test = Qcow2Fixture::growing(&blank(false), 600);
    for _ in 0..3 {
        test.load(ALONE);
        test.suspend(SuspendMode::Flush);
        assert_eq!(test.drive("image").visible().sectors(), SectorCount(8));
    }
    let mut damaged = blank(false);
    damaged[2 * 1024 + 1] = 2;
    damaged.truncate(3 * 1024 + 600);
    let test = Qcow2Fixture::growing(&damaged, 600);
    test.try_load_refused(ALONE);
    assert_eq!(test.drive("image").visible().sectors(), SectorCount(8));
}

#[test]
fn a_write_that_needs_more_clusters_than_there_are_fails_and_does_not_wait() {
    // One is free, and a new L2 table is needed beside the data.
    let test = Qcow2Fixture::of(blank(false), FIRST_CLUSTERS + 1 + 2 + 1);
    test.load(ALONE);
    test.write(0, 4, 7).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    assert_eq!(test.write(300, 2, 8).unwrap_err().kind, ErrorKind::NoSpace);
    // The last one would become a refcount block: a block counts 64.
    let blank = Blank { size: 100 * 512, cluster_bits: 9, refcount_order: 6, backing: None };
    let mut image = Image::of_bytes(&blank.bytes().unwrap());
    image.resize(SectorCount(65));
    let test = Qcow2Fixture::with(drive_options("image"), image);
    test.load("0 100 qcow2 image -");
    test.write(0, 59, 7).unwrap();
    assert_eq!(test.write(59, 1, 8).unwrap_err().kind, ErrorKind::NoSpace);
    test.on(Op::Discard, 0, 2).unwrap();
    test.write(59, 1, 8).unwrap();
}

#[test]
fn a_suspend_without_a_flush_hands_back_what_waits_for_clusters_that_are_released() {
    let test = Qcow2Fixture::of(blank(false), FIRST_CLUSTERS + 1 + 2);
    test.load(ALONE);
    test.write(0, 4, 7).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    test.on(Op::Discard, 0, 2).unwrap();
    // The discard of what is released takes long.
    let slow = Effect::Delay(Duration::from_secs(10));
    let slow = Fault { effect: slow, ..Fault::error(OpSet::WRITES) };
    test.drive("image").faults().add(slow.on(range(10, 4)).shots(1));
    test.on(Op::Flush, 0, 0).unwrap();
    test.start(0, "write", |env| write_io(env, 4, 2, 9));
    test.run(Duration::from_millis(100));
    test.suspend(SuspendMode::NoFlush);
    assert_eq!(test.labels(), Vec::<&str>::new(), "it waits for the next table");
    test.resume();
    test.settle();
    assert_eq!(test.ends.of("write"), Some(Ok(())));
    assert_eq!(test.bytes(0, 6), [0, 0, 7, 7, 9, 9]);
}
