//! Flushes that fail and drop what is volatile: what is written again, and who is told.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Env, Io, Sector, SectorCount, SectorRange, SuspendMode};
use cairn_sim::{Fault, Image, OpSet};

use super::fixture::{SnapshotFixture, initial_bytes, write_io};

const SNAPSHOT: &str = "0 512 snapshot origin cow0 P 8";

fn fixture() -> SnapshotFixture {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", SNAPSHOT);
    test.load("o", "0 512 snapshot-origin origin");
    test
}

fn flush_fails_once(test: &SnapshotFixture, drive: &str) {
    test.drive(drive).faults().add(Fault::losing_flushes().shots(1));
}

/// The moments, while something is under way, at which something else may happen.
fn moments(until_us: u64) -> impl Iterator<Item = Duration> {
    (0..until_us).step_by(10).map(Duration::from_micros)
}

#[test]
fn a_copy_is_made_again_if_another_users_failed_flush_dropped_it() {
    for moment in moments(400) {
        let test = fixture();
        test.start("o", "write", |env| write_io(env, 16, 8, 200));
        test.run(moment);
        flush_fails_once(&test, "cow0");
        test.start("s", "flush", |_| Io::flush());
        test.settle();
        assert_eq!(test.labels().len(), 2, "{moment:?}");
        assert!(test.ends.all().iter().all(|(label, end)| *label == "flush" || end.is_ok()));
        assert_eq!(test.bytes("o", 16, 8), [200; 8]);
        let again = test.reopen_durable();
        again.load("s", SNAPSHOT);
        assert_eq!(again.bytes("s", 0, 512), initial_bytes(0, 512), "{moment:?}");
    }
}

/// As of a file in the page cache: a record is written, then flushed, and another flush in between
/// may drop it.
#[test]
fn record_that_another_flush_dropped_is_written_again() {
    for moment in moments(500) {
        let test = fixture();
        test.recording("cow0").set_page_cache();
        test.start("o", "write", |env| write_io(env, 16, 8, 200));
        test.run(moment);
        flush_fails_once(&test, "cow0");
        test.start("s", "flush", |_| Io::flush());
        test.settle();
        assert_eq!(test.bytes("o", 16, 8), [200; 8]);
        test.flush("o").unwrap();
        let again = test.reopen_durable();
        again.load("s", SNAPSHOT);
        assert_eq!(again.bytes("s", 0, 512), initial_bytes(0, 512), "{moment:?}");
    }
}

#[test]
fn a_write_of_whole_chunks_is_made_again_from_its_request() {
    for moment in moments(400) {
        let test = fixture();
        test.start("s", "write", |env| write_io(env, 16, 16, 200));
        test.run(moment);
        flush_fails_once(&test, "cow0");
        test.start("s", "flush", |_| Io::flush());
        test.settle();
        assert!(test.ends.all().iter().any(|(label, end)| *label == "write" && end.is_ok()));
        let again = test.reopen_durable();
        again.load("s", SNAPSHOT);
        assert_eq!(again.bytes("s", 16, 16), [200; 16], "{moment:?}");
    }
}

#[test]
fn a_copy_that_is_made_again_is_told_to_no_client() {
    for fault in [Fault::losing_flushes(), Fault::losing_durable_writes()] {
        let test = fixture();
        let (s, o) = (test.client("s"), test.client("o"));
        test.write("s", 64, 8, 7).unwrap();
        test.drive("cow0").faults().add(fault.shots(1));
        test.write("o", 16, 8, 200).unwrap();
        assert_eq!(test.drive("cow0").failures(), 1);
        assert_eq!((test.flush_of(&s), test.flush_of(&o)), (Ok(()), Ok(())));
        let cow = test.drive("cow0");
        assert_eq!(cow.failures(), cow.failures_told(), "made good");
        let again = test.reopen_durable();
        again.load("s", SNAPSHOT);
        assert_eq!(again.bytes("s", 0, 64), initial_bytes(0, 64));
        assert_eq!(again.bytes("s", 64, 8), [7; 8]);
    }
}

#[test]
fn a_cow_device_that_never_flushes_ends_the_snapshot() {
    let test = fixture();
    test.drive("cow0").faults().add(Fault::losing_flushes());
    test.write("o", 16, 8, 200).unwrap();
    assert_eq!(test.status("s"), "Invalid");
    assert_eq!(test.bytes("o", 16, 8), [200; 8]);
}

#[test]
fn flush_fails_once_per_client_after_lost_writes_in_place() {
    let test = fixture();
    let (first, second) = (test.client("s"), test.client("s"));
    test.write("s", 64, 8, 7).unwrap();
    test.write("s", 65, 2, 8).unwrap();
    flush_fails_once(&test, "cow0");
    test.write("o", 16, 8, 200).unwrap();
    let o = test.client("o");
    assert_eq!(test.flush_of(&o), Ok(()), "nothing of the origin is concerned");
    test.are_told_once(&[first, second]);
    assert_ne!(test.status("s"), "Invalid");
}

#[test]
fn a_suspend_says_that_what_was_written_in_place_is_lost() {
    for by_another in [false, true] {
        let test = fixture();
        let client = test.client("s");
        test.write("s", 64, 8, 7).unwrap();
        test.write("s", 64, 8, 8).unwrap();
        flush_fails_once(&test, "cow0");
        if by_another {
            let disk: Arc<dyn Disk> = test.drive("cow0");
            let flush = |env: Env| async move { env.io(&disk, Io::flush()).await };
            test.sim.block_on(0, flush).expect_err("it fails");
        }
        let volume = test.volume("s");
        let suspend = |env| async move { volume.suspend(&env, SuspendMode::Flush).await };
        let lost = test.sim.block_on(0, suspend).unwrap_err().to_string();
        assert!(lost.starts_with("cow0: flush"), "{lost}");
        assert!(test.volume("s").is_suspended());
        test.resume("s").unwrap();
        test.are_told_once(&[client]);
    }
}

#[test]
fn what_a_suspend_made_durable_concerns_no_client_any_more() {
    let test = fixture();
    let client = test.client("s");
    test.write("s", 64, 8, 7).unwrap();
    test.write("s", 64, 8, 8).unwrap();
    test.suspend("s", SuspendMode::Flush);
    test.resume("s").unwrap();
    flush_fails_once(&test, "cow0");
    test.write("o", 16, 8, 200).unwrap();
    assert_eq!(test.flush_of(&client), Ok(()));
    let again = test.reopen_durable();
    again.load("s", SNAPSHOT);
    assert_eq!(again.bytes("s", 64, 8), [8; 8]);
}

#[test]
fn a_transient_snapshot_ends_by_a_failed_flush() {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("s", "0 512 snapshot origin cow0 N 8");
    test.load("o", "0 512 snapshot-origin origin");
    test.write("o", 16, 8, 200).unwrap();
    flush_fails_once(&test, "cow0");
    assert!(test.flush("s").is_err());
    test.settle();
    assert_eq!(test.status("s"), "Invalid");
    assert!(test.read("s", 16, 8).is_err());
}

#[test]
fn an_unreported_loss_fails_the_first_flush_after_the_store_is_opened_again() {
    let test = fixture();
    test.write("s", 64, 8, 7).unwrap();
    test.remove("s");
    flush_fails_once(&test, "cow0");
    test.try_load("s", SNAPSHOT).unwrap_err();
    let client = test.client("s");
    test.load("s", SNAPSHOT);
    assert_eq!(test.bytes("s", 64, 8), [7; 8]);
    test.are_told_once(&[client]);
}

const MERGE: &str = "0 512 snapshot-merge origin cow0 P 8";

/// A suspended snapshot to merge, and its content.
fn to_merge() -> (SnapshotFixture, Vec<u8>) {
    let test = fixture();
    for at in [400, 16, 24, 200] {
        test.write("s", at, 8, (at % 200) as u8 + 1).unwrap();
    }
    let content = test.bytes("s", 0, 512);
    test.suspend("s", SuspendMode::Flush);
    (test, content)
}

#[test]
fn a_run_is_merged_again_if_another_users_failed_flush_dropped_it() {
    for moment in moments(800) {
        let (test, content) = to_merge();
        test.load("o", MERGE);
        test.run(moment);
        flush_fails_once(&test, "origin");
        test.start("o", "flush", |_| Io::flush());
        test.settle();
        assert_eq!(test.status("o"), "16/2048 16", "{moment:?}");
        let origin = test.drive("origin").durable().to_vec();
        let origin = origin.chunks(512).map(|sector| sector[0]);
        assert!(origin.eq(content.iter().copied()), "{moment:?}");
    }
}

#[test]
fn records_whose_clearing_another_flush_dropped_are_cleared_again() {
    for moment in moments(1200) {
        let (test, mut content) = to_merge();
        test.recording("cow0").set_page_cache();
        test.load("o", MERGE);
        test.run(moment);
        flush_fails_once(&test, "cow0");
        test.start("o", "flush", |_| Io::flush());
        test.sim.run_until(|| test.status("o") == "16/2048 16");
        test.settle();
        test.write("o", 0, 512, 99).unwrap();
        test.flush("o").unwrap();
        content.fill(99);
        let again = test.reopen_durable();
        again.load("o", MERGE);
        assert_eq!(again.bytes("o", 0, 512), content, "{moment:?}: a record came back");
    }
}

#[test]
fn a_client_hears_of_a_failed_flush_of_the_merge() {
    let (test, _) = to_merge();
    test.drive("origin").faults().add(Fault::error(OpSet::READS).on(super::fixture::range(0, 1)));
    test.load("o", MERGE);
    let client = test.client("o");
    test.write("o", 100, 8, 5).unwrap();
    let failures = test.drive("origin").failures();
    flush_fails_once(&test, "origin");
    test.settle();
    assert_eq!(test.drive("origin").failures(), failures + 1, "the merge met it");
    test.are_told_once(&[client]);
    assert_eq!(test.status("o"), "16/2048 16");
}

#[test]
fn a_table_that_is_resumed_after_its_close_serves_its_store_or_has_ended() {
    let mut served = 0;
    for moment in moments(1500) {
        let test = SnapshotFixture::new(512, &[2048, 2048]);
        test.load("s", SNAPSHOT);
        test.load("o", "0 512 snapshot-origin origin");
        test.write("s", 64, 8, 7).unwrap();
        test.write("o", 16, 8, 200).unwrap();
        test.build("s", "0 512 snapshot origin cow1 P 8").unwrap();
        test.drive("cow1").faults().add(Fault::error(OpSet::READS));
        let (origin, env): (Arc<dyn Disk>, _) = (test.volume("o"), test.sim.env(2).clone());
        test.sim.env(2).spawn(async move {
            env.sleep(moment).await;
            let io = write_io(&env, 128, 8, 201);
            env.io(&origin, io).await.expect("the origin is well");
        });
        test.resume("s").unwrap_err();
        test.settle();
        assert_eq!(test.bytes("o", 128, 8), [201; 8]);
        if test.status("s") == "Invalid" {
            continue;
        }
        served += 1;
        let mut expected = initial_bytes(0, 512);
        expected[64..72].fill(7);
        assert_eq!(test.bytes("s", 0, 512), expected, "{moment:?}");
        test.write("s", 256, 8, 9).unwrap();
        test.write("o", 300, 8, 9).unwrap();
        assert_eq!(test.bytes("s", 296, 16), initial_bytes(296, 16));
    }
    assert!(served > 20, "{served}: only what was missed ends it");
}

#[test]
fn snapshot_whose_store_a_merge_could_not_open_ends_if_the_origin_changed() {
    for changes in [false, true] {
        let (test, content) = to_merge();
        test.build("o", MERGE).unwrap();
        test.drive("cow0").faults().add(Fault::error(OpSet::READS));
        test.resume("o").unwrap_err();
        test.drive("cow0").faults().clear();
        test.write("o", 16, 8, 201).unwrap();
        if changes {
            test.write("o", 300, 8, 201).unwrap();
        }
        test.resume("s").unwrap();
        match changes {
            true => assert_eq!(test.status("s"), "Invalid"),
            false => assert_eq!(test.bytes("s", 0, 512), content),
        }
    }
}

#[test]
fn fresh_table_of_a_store_that_a_merge_could_not_open_ends_if_the_origin_changed() {
    let (test, _) = to_merge();
    test.build("o", MERGE).unwrap();
    test.drive("cow0").faults().add(Fault::error(OpSet::READS));
    test.resume("o").unwrap_err();
    test.drive("cow0").faults().clear();
    test.write("o", 300, 8, 201).unwrap();
    test.load("s", SNAPSHOT);
    assert_eq!(test.status("s"), "Invalid");
}

#[test]
fn a_transient_snapshot_survives_its_close() {
    let test = SnapshotFixture::new(512, &[2048, 2048]);
    test.load("s", "0 512 snapshot origin cow0 N 8");
    test.load("o", "0 512 snapshot-origin origin");
    test.write("o", 16, 8, 200).unwrap();
    test.build("s", "0 512 snapshot origin cow1 P 8").unwrap();
    test.drive("cow1").faults().add(Fault::error(OpSet::READS));
    test.resume("s").unwrap_err();
    assert_eq!(test.bytes("s", 0, 64), initial_bytes(0, 64));
    test.write("o", 40, 8, 201).unwrap();
    assert_eq!(test.bytes("s", 0, 64), initial_bytes(0, 64));
}

/// A process that was killed left a record in the drive, and a flush that failed before the next
/// one opened the store has dropped it: reads show it all the same.
#[test]
fn records_that_a_failed_flush_dropped_before_the_store_was_opened_are_written_again() {
    let before = fixture();
    before.io("o", |env| write_io(env, 16, 8, 200)).expect("no drive fails");
    before.flush("o").expect("no drive fails");
    let [origin, mut cow]: [Image; 2] =
        before.durable().collect::<Vec<_>>().try_into().expect("two drives");
    let mut area = vec![0; 4096];
    cow.read(Sector(8), &mut area);
    cow.write(Sector(8), &[0; 4096]);
    let test = SnapshotFixture::of_images(origin, vec![cow]);
    flush_fails_once(&test, "cow0");
    let disk: Arc<dyn Disk> = test.drive("cow0");
    test.sim.block_on(0, |env| async move {
        let range = SectorRange::new(Sector(8), SectorCount(8));
        let segs = env.segs(range.count);
        segs.copy_in(0, &area);
        env.io(&disk, Io::write(range, segs)).await.expect("no write fails");
        env.io(&disk, Io::flush()).await.expect_err("it fails");
    });
    test.load("s", SNAPSHOT);
    let again = test.reopen_durable();
    again.load("s", SNAPSHOT);
    assert_eq!(again.bytes("s", 16, 8), initial_bytes(16, 8));
}
