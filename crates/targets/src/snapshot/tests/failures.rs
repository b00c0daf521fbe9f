//! Flushes that fail and drop what is volatile: what is written again, and who is told.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    Disk, Env, FailureCursor, Io, IoResult, Sector, SectorCount, SectorRange, SuspendMode,
};
use cairn_sim::{Fault, Image, OpSet};

use super::bed::{Bed, initial_byte, write_io};

const SNAPSHOT: &str = "0 512 snapshot origin cow0 P 8";

fn initial(start: u64, count: u64) -> Vec<u8> {
    (start..start + count).map(initial_byte).collect()
}

fn bed() -> Bed {
    let bed = Bed::new(512, &[2048]);
    bed.load("s", SNAPSHOT);
    bed.load("o", "0 512 snapshot-origin origin");
    bed
}

fn flush_fails_once(bed: &Bed, drive: &str) {
    bed.drive(drive).faults().add(Fault::losing_flushes().shots(1));
}

/// A client of a volume.
struct Client {
    disk: Arc<dyn Disk>,
    cursor: FailureCursor,
}

impl Client {
    fn of(bed: &Bed, name: &str) -> Client {
        let disk: Arc<dyn Disk> = bed.volume(name);
        Client { cursor: FailureCursor::new(&disk), disk }
    }

    /// What its flush says.
    fn flush(&mut self, bed: &Bed, name: &str) -> IoResult {
        let result = bed.io(name, |_| Io::flush());
        let told = self.cursor.end_of_flush(&self.disk, result);
        self.cursor.was_told(&self.disk);
        told
    }
}

/// The moments, while something is under way, at which something else may happen.
fn moments(until_us: u64) -> impl Iterator<Item = Duration> {
    (0..until_us).step_by(10).map(Duration::from_micros)
}

#[test]
fn a_copy_is_made_again_if_another_users_failed_flush_dropped_it() {
    for moment in moments(400) {
        let bed = bed();
        bed.start("o", "write", |env| write_io(env, 16, 8, 200));
        bed.sim.run_for(moment);
        flush_fails_once(&bed, "cow0");
        bed.start("s", "flush", |_| Io::flush());
        bed.settle();
        assert_eq!(bed.labels().len(), 2, "{moment:?}");
        assert!(bed.ends.borrow().iter().all(|(label, end)| *label == "flush" || end.is_ok()));
        assert_eq!(bed.bytes("o", 16, 8), [200; 8]);
        let again = bed.reopen_durable();
        again.load("s", SNAPSHOT);
        assert_eq!(again.bytes("s", 0, 512), initial(0, 512), "{moment:?}");
    }
}

/// As of a file in the page cache: a record is written, then flushed, and another flush in between
/// may drop it.
#[test]
fn record_that_another_flush_dropped_is_written_again() {
    for moment in moments(500) {
        let bed = bed();
        bed.set_page_cache("cow0");
        bed.start("o", "write", |env| write_io(env, 16, 8, 200));
        bed.sim.run_for(moment);
        flush_fails_once(&bed, "cow0");
        bed.start("s", "flush", |_| Io::flush());
        bed.settle();
        assert_eq!(bed.bytes("o", 16, 8), [200; 8]);
        bed.io("o", |_| Io::flush()).unwrap();
        let again = bed.reopen_durable();
        again.load("s", SNAPSHOT);
        assert_eq!(again.bytes("s", 0, 512), initial(0, 512), "{moment:?}");
    }
}

#[test]
fn a_write_of_whole_chunks_is_made_again_from_its_request() {
    for moment in moments(400) {
        let bed = bed();
        bed.start("s", "write", |env| write_io(env, 16, 16, 200));
        bed.sim.run_for(moment);
        flush_fails_once(&bed, "cow0");
        bed.start("s", "flush", |_| Io::flush());
        bed.settle();
        assert!(bed.ends.borrow().iter().any(|(label, end)| *label == "write" && end.is_ok()));
        let again = bed.reopen_durable();
        again.load("s", SNAPSHOT);
        assert_eq!(again.bytes("s", 16, 16), [200; 16], "{moment:?}");
    }
}

#[test]
fn a_copy_that_is_made_again_is_told_to_no_client() {
    for fault in [Fault::losing_flushes(), Fault::losing_durable_writes()] {
        let bed = bed();
        let (mut s, mut o) = (Client::of(&bed, "s"), Client::of(&bed, "o"));
        bed.write("s", 64, 8, 7).unwrap();
        bed.drive("cow0").faults().add(fault.shots(1));
        bed.write("o", 16, 8, 200).unwrap();
        assert_eq!(bed.drive("cow0").failures(), 1);
        assert_eq!((s.flush(&bed, "s"), o.flush(&bed, "o")), (Ok(()), Ok(())));
        let cow = bed.drive("cow0");
        assert_eq!(cow.failures(), cow.failures_told(), "made good");
        let again = bed.reopen_durable();
        again.load("s", SNAPSHOT);
        assert_eq!(again.bytes("s", 0, 64), initial(0, 64));
        assert_eq!(again.bytes("s", 64, 8), [7; 8]);
    }
}

#[test]
fn a_cow_device_that_never_flushes_ends_the_snapshot() {
    let bed = bed();
    bed.drive("cow0").faults().add(Fault::losing_flushes());
    bed.write("o", 16, 8, 200).unwrap();
    assert_eq!(bed.status("s"), "Invalid");
    assert_eq!(bed.bytes("o", 16, 8), [200; 8]);
}

#[test]
fn flush_fails_once_per_client_after_lost_writes_in_place() {
    let bed = bed();
    let (mut first, mut second) = (Client::of(&bed, "s"), Client::of(&bed, "s"));
    bed.write("s", 64, 8, 7).unwrap();
    bed.write("s", 65, 2, 8).unwrap();
    flush_fails_once(&bed, "cow0");
    bed.write("o", 16, 8, 200).unwrap();
    let mut o = Client::of(&bed, "o");
    assert_eq!(o.flush(&bed, "o"), Ok(()), "nothing of the origin is concerned");
    for client in [&mut first, &mut second] {
        assert!(client.flush(&bed, "s").is_err());
        assert!(client.flush(&bed, "s").is_ok());
    }
    assert_ne!(bed.status("s"), "Invalid");
}

#[test]
fn a_suspend_says_that_what_was_written_in_place_is_lost() {
    for by_another in [false, true] {
        let bed = bed();
        let mut client = Client::of(&bed, "s");
        bed.write("s", 64, 8, 7).unwrap();
        bed.write("s", 64, 8, 8).unwrap();
        flush_fails_once(&bed, "cow0");
        if by_another {
            let disk: Arc<dyn Disk> = bed.drive("cow0");
            let flush = |env: Env| async move { env.io(&disk, Io::flush()).await };
            bed.sim.block_on(0, flush).expect_err("it fails");
        }
        let volume = bed.volume("s");
        let suspend = |env| async move { volume.suspend(&env, SuspendMode::Flush).await };
        let lost = bed.sim.block_on(0, suspend).unwrap_err().to_string();
        assert!(lost.starts_with("cow0: flush"), "{lost}");
        assert!(bed.volume("s").is_suspended());
        bed.resume("s").unwrap();
        assert!(client.flush(&bed, "s").is_err());
        assert!(client.flush(&bed, "s").is_ok());
    }
}

#[test]
fn what_a_suspend_made_durable_concerns_no_client_any_more() {
    let bed = bed();
    let mut client = Client::of(&bed, "s");
    bed.write("s", 64, 8, 7).unwrap();
    bed.write("s", 64, 8, 8).unwrap();
    bed.suspend("s", SuspendMode::Flush);
    bed.resume("s").unwrap();
    flush_fails_once(&bed, "cow0");
    bed.write("o", 16, 8, 200).unwrap();
    assert_eq!(client.flush(&bed, "s"), Ok(()));
    let again = bed.reopen_durable();
    again.load("s", SNAPSHOT);
    assert_eq!(again.bytes("s", 64, 8), [8; 8]);
}

#[test]
fn a_transient_snapshot_ends_by_a_failed_flush() {
    let bed = Bed::new(512, &[2048]);
    bed.load("s", "0 512 snapshot origin cow0 N 8");
    bed.load("o", "0 512 snapshot-origin origin");
    bed.write("o", 16, 8, 200).unwrap();
    flush_fails_once(&bed, "cow0");
    assert!(bed.io("s", |_| Io::flush()).is_err());
    bed.settle();
    assert_eq!(bed.status("s"), "Invalid");
    assert!(bed.read("s", 16, 8).is_err());
}

#[test]
fn an_unreported_loss_fails_the_first_flush_after_the_store_is_opened_again() {
    let bed = bed();
    bed.write("s", 64, 8, 7).unwrap();
    bed.remove("s");
    flush_fails_once(&bed, "cow0");
    bed.try_load("s", SNAPSHOT).unwrap_err();
    let mut client = Client::of(&bed, "s");
    bed.load("s", SNAPSHOT);
    assert_eq!(bed.bytes("s", 64, 8), [7; 8]);
    assert!(client.flush(&bed, "s").is_err());
    assert!(client.flush(&bed, "s").is_ok());
}

const MERGE: &str = "0 512 snapshot-merge origin cow0 P 8";

/// A suspended snapshot to merge, and its content.
fn to_merge() -> (Bed, Vec<u8>) {
    let bed = bed();
    for at in [400, 16, 24, 200] {
        bed.write("s", at, 8, (at % 200) as u8 + 1).unwrap();
    }
    let content = bed.bytes("s", 0, 512);
    bed.suspend("s", SuspendMode::Flush);
    (bed, content)
}

#[test]
fn a_run_is_merged_again_if_another_users_failed_flush_dropped_it() {
    for moment in moments(800) {
        let (bed, content) = to_merge();
        bed.load("o", MERGE);
        bed.sim.run_for(moment);
        flush_fails_once(&bed, "origin");
        bed.start("o", "flush", |_| Io::flush());
        bed.settle();
        assert_eq!(bed.status("o"), "16/2048 16", "{moment:?}");
        let origin = bed.drive("origin").durable().to_vec();
        let origin = origin.chunks(512).map(|sector| sector[0]);
        assert!(origin.eq(content.iter().copied()), "{moment:?}");
    }
}

#[test]
fn records_whose_clearing_another_flush_dropped_are_cleared_again() {
    for moment in moments(1200) {
        let (bed, mut content) = to_merge();
        bed.set_page_cache("cow0");
        bed.load("o", MERGE);
        bed.sim.run_for(moment);
        flush_fails_once(&bed, "cow0");
        bed.start("o", "flush", |_| Io::flush());
        bed.sim.run_until(|| bed.status("o") == "16/2048 16");
        bed.settle();
        bed.write("o", 0, 512, 99).unwrap();
        bed.io("o", |_| Io::flush()).unwrap();
        content.fill(99);
        let again = bed.reopen_durable();
        again.load("o", MERGE);
        assert_eq!(again.bytes("o", 0, 512), content, "{moment:?}: a record came back");
    }
}

#[test]
fn a_client_hears_of_a_failed_flush_of_the_merge() {
    let (bed, _) = to_merge();
    bed.drive("origin").faults().add(Fault::error(OpSet::READS).on(super::bed::range(0, 1)));
    bed.load("o", MERGE);
    let mut client = Client::of(&bed, "o");
    bed.write("o", 100, 8, 5).unwrap();
    let failures = bed.drive("origin").failures();
    flush_fails_once(&bed, "origin");
    bed.settle();
    assert_eq!(bed.drive("origin").failures(), failures + 1, "the merge met it");
    assert!(client.flush(&bed, "o").is_err());
    assert!(client.flush(&bed, "o").is_ok());
    assert_eq!(bed.status("o"), "16/2048 16");
}

#[test]
fn a_table_that_is_resumed_after_its_close_serves_its_store_or_has_ended() {
    let mut served = 0;
    for moment in moments(1500) {
        let bed = Bed::new(512, &[2048, 2048]);
        bed.load("s", SNAPSHOT);
        bed.load("o", "0 512 snapshot-origin origin");
        bed.write("s", 64, 8, 7).unwrap();
        bed.write("o", 16, 8, 200).unwrap();
        bed.build("s", "0 512 snapshot origin cow1 P 8").unwrap();
        bed.drive("cow1").faults().add(Fault::error(OpSet::READS));
        let (origin, env): (Arc<dyn Disk>, _) = (bed.volume("o"), bed.sim.env(2).clone());
        bed.sim.env(2).spawn(async move {
            env.sleep(moment).await;
            let io = write_io(&env, 128, 8, 201);
            env.io(&origin, io).await.expect("the origin is well");
        });
        bed.resume("s").unwrap_err();
        bed.settle();
        assert_eq!(bed.bytes("o", 128, 8), [201; 8]);
        if bed.status("s") == "Invalid" {
            continue;
        }
        served += 1;
        let mut expected = initial(0, 512);
        expected[64..72].fill(7);
        assert_eq!(bed.bytes("s", 0, 512), expected, "{moment:?}");
        bed.write("s", 256, 8, 9).unwrap();
        bed.write("o", 300, 8, 9).unwrap();
        assert_eq!(bed.bytes("s", 296, 16), initial(296, 16));
    }
    assert!(served > 20, "{served}: only what was missed ends it");
}

#[test]
fn snapshot_whose_store_a_merge_could_not_open_ends_if_the_origin_changed() {
    for changes in [false, true] {
        let (bed, content) = to_merge();
        bed.build("o", MERGE).unwrap();
        bed.drive("cow0").faults().add(Fault::error(OpSet::READS));
        bed.resume("o").unwrap_err();
        bed.drive("cow0").faults().clear();
        bed.write("o", 16, 8, 201).unwrap();
        if changes {
            bed.write("o", 300, 8, 201).unwrap();
        }
        bed.resume("s").unwrap();
        match changes {
            true => assert_eq!(bed.status("s"), "Invalid"),
            false => assert_eq!(bed.bytes("s", 0, 512), content),
        }
    }
}

#[test]
fn fresh_table_of_a_store_that_a_merge_could_not_open_ends_if_the_origin_changed() {
    let (bed, _) = to_merge();
    bed.build("o", MERGE).unwrap();
    bed.drive("cow0").faults().add(Fault::error(OpSet::READS));
    bed.resume("o").unwrap_err();
    bed.drive("cow0").faults().clear();
    bed.write("o", 300, 8, 201).unwrap();
    bed.load("s", SNAPSHOT);
    assert_eq!(bed.status("s"), "Invalid");
}

#[test]
fn a_transient_snapshot_survives_its_close() {
    let bed = Bed::new(512, &[2048, 2048]);
    bed.load("s", "0 512 snapshot origin cow0 N 8");
    bed.load("o", "0 512 snapshot-origin origin");
    bed.write("o", 16, 8, 200).unwrap();
    bed.build("s", "0 512 snapshot origin cow1 P 8").unwrap();
    bed.drive("cow1").faults().add(Fault::error(OpSet::READS));
    bed.resume("s").unwrap_err();
    assert_eq!(bed.bytes("s", 0, 64), initial(0, 64));
    bed.write("o", 40, 8, 201).unwrap();
    assert_eq!(bed.bytes("s", 0, 64), initial(0, 64));
}

/// A process that was killed left a record in the drive, and a flush that failed before the next one
/// opened the store has dropped it: reads show it all the same.
#[test]
fn records_that_a_failed_flush_dropped_before_the_store_was_opened_are_written_again() {
    let before = bed();
    before.io("o", |env| write_io(env, 16, 8, 200)).expect("no drive fails");
    before.io("o", |_| Io::flush()).expect("no drive fails");
    let [origin, mut cow]: [Image; 2] =
        before.durable().collect::<Vec<_>>().try_into().expect("two drives");
    let mut area = vec![0; 4096];
    cow.read(Sector(8), &mut area);
    cow.write(Sector(8), &[0; 4096]);
    let bed = Bed::of_images(origin, vec![cow]);
    flush_fails_once(&bed, "cow0");
    let disk: Arc<dyn Disk> = bed.drive("cow0");
    bed.sim.block_on(0, |env| async move {
        let range = SectorRange::new(Sector(8), SectorCount(8));
        let segs = env.segs(range.count);
        segs.copy_in(0, &area);
        env.io(&disk, Io::write(range, segs)).await.expect("no write fails");
        env.io(&disk, Io::flush()).await.expect_err("it fails");
    });
    bed.load("s", SNAPSHOT);
    let again = bed.reopen_durable();
    again.load("s", SNAPSHOT);
    assert_eq!(again.bytes("s", 16, 8), initial(16, 8));
}
