//! Serving, hydrating, messages, suspends.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Extent, ExtentKind, Io, Op, SectorCount, SuspendMode};
use cairn_sim::{Fault, Image, OpSet};

use super::fixture::{CloneFixture, PAUSED, SECTORS, TABLE, source};
use crate::fixture::{DRIVE_TIME, SECTOR, range, write_io};

fn write(model: &mut [u8], start: usize, count: usize, byte: u8) {
    model[start * SECTOR..(start + count) * SECTOR].fill(byte);
}

#[test]
fn a_fresh_clone_reads_as_its_source_and_copies_nothing_by_itself() {
    let test = CloneFixture::loaded(PAUSED);
    assert!(test.all() == source());
    test.run(Duration::from_secs(5));
    assert_eq!(
        test.target().status(),
        "8 6/24 8 0/126 0 1 no_hydration 4 hydration_threshold 1 hydration_batch_size 1 rw"
    );
    assert_eq!(test.target().table(), "meta dest src 8 1 no_hydration");
    assert_eq!(test.contents("dest"), crate::fixture::initial("dest", SECTORS));
}

#[test]
fn hydration_copies_everything_and_the_source_is_not_needed_then() {
    let test = CloneFixture::loaded(TABLE);
    assert_eq!(test.all(), source(), "it serves at once");
    test.run(Duration::from_secs(5));
    assert_eq!(test.hydrated(), 126);
    assert_eq!(test.durable_bits().hydrated(), 126, "committed without a flush of a client");
    assert_eq!(test.contents("dest"), source());
    test.drive("src").faults().add(Fault::error(OpSet::READS));
    assert!(test.all() == source());
    test.write(5, 20, 9).unwrap();
    test.on(Op::Flush, 0, 0).unwrap();
    assert!(test.volume.events().count() > 0, "an event says that it is complete");
}

#[test]
fn the_clone_is_complete_once_the_bits_of_all_regions_are_durable() {
    let test = CloneFixture::loaded(PAUSED);
    let step = || test.run(DRIVE_TIME);
    test.write(0, 1000, 7).unwrap();
    test.forget();
    while !test.ops("dest").iter().any(|(op, ..)| *op == Op::Flush) {
        step();
    }
    // The commit that runs has frozen the bits already.
    test.write(1000, 3, 8).unwrap();
    assert_eq!((test.hydrated(), test.durable_bits().hydrated()), (126, 0));
    while test.volume.events().count() == 0 {
        step();
    }
    assert_eq!(test.durable_bits().hydrated(), 126);
}

#[test]
fn a_part_of_a_region_is_written_after_its_copy_and_whole_regions_without_one() {
    let test = CloneFixture::loaded(PAUSED);
    let mut model = source();
    test.forget();
    test.write(13, 2, 200).unwrap();
    write(&mut model, 13, 2, 200);
    assert_eq!(test.ops("src"), [(Op::Read, 8, 8)]);
    assert_eq!(test.ops("dest"), [(Op::Write, 8, 8), (Op::Write, 13, 2)]);
    test.write(16, 24, 201).unwrap();
    write(&mut model, 16, 24, 201);
    assert_eq!((test.ops("src"), test.ops("dest")), (vec![], vec![(Op::Write, 16, 24)]));
    // The last region has three sectors.
    test.write(1000, 3, 202).unwrap();
    write(&mut model, 1000, 3, 202);
    assert_eq!((test.ops("src"), test.hydrated()), (vec![], 5));
    // Parts at both ends, whole regions between them.
    test.write(101, 30, 203).unwrap();
    write(&mut model, 101, 30, 203);
    assert_eq!(test.ops("src"), [(Op::Read, 96, 8), (Op::Read, 128, 8)]);
    test.on(Op::WriteZeroes, 60, 10).unwrap();
    write(&mut model, 60, 10, 0);
    assert_eq!(test.hydrated(), 5 + 5 + 2);
    assert!(test.all() == model);
}

#[test]
fn a_flush_makes_bits_durable_after_their_data() {
    let test = CloneFixture::loaded(PAUSED);
    test.write(16, 8, 7).unwrap();
    test.write(40, 1, 8).unwrap();
    assert_eq!(test.durable_bits().hydrated(), 0);
    test.on(Op::Flush, 0, 0).unwrap();
    let bits = test.durable_bits();
    assert!(bits.is_hydrated(2) && bits.is_hydrated(5) && bits.hydrated() == 2);
    assert_eq!(test.drive("dest").durable().to_vec()[16 * SECTOR..24 * SECTOR], [7; 8 * SECTOR]);
    test.forget();
    test.on(Op::Flush, 0, 0).unwrap();
    assert_eq!((test.ops("meta"), test.ops("dest").len()), (vec![], 1), "nothing to commit");
    let fua = |env: &cairn_block::Env| write_io(env, 80, 8, 9).with(cairn_block::Flags::FUA);
    test.io(fua).unwrap();
    assert!(test.durable_bits().is_hydrated(10), "FUA waits for the bit");
}

#[test]
fn bits_are_committed_within_about_a_second() {
    let test = CloneFixture::loaded(PAUSED);
    test.write(16, 8, 7).unwrap();
    test.run(Duration::from_secs(2));
    assert_eq!(test.durable_bits().hydrated(), 1);
}

#[test]
fn a_discard_hydrates_the_whole_regions_inside_it() {
    let test = CloneFixture::loaded(PAUSED);
    test.forget();
    test.on(Op::Discard, 20, 30).unwrap();
    assert_eq!(test.hydrated(), 3, "regions 3, 4 and 5");
    assert_eq!(test.ops("dest"), [(Op::WriteZeroes, 24, 24)]);
    assert_eq!(test.read(20, 4).unwrap(), source()[20 * SECTOR..24 * SECTOR]);
    assert_eq!(test.read(48, 2).unwrap(), source()[48 * SECTOR..50 * SECTOR]);
    let test =
        CloneFixture::loaded("0 1003 clone meta dest src 8 2 no_hydration no_discard_passdown");
    test.forget();
    test.on(Op::Discard, 16, 64).unwrap();
    assert_eq!((test.hydrated(), test.ops("dest").len()), (0, 0));
    assert!(test.all() == source());
}

#[test]
fn messages_change_hydration_and_the_table() {
    let test = CloneFixture::loaded(PAUSED);
    test.message(&["hydration_threshold", "8"]).unwrap();
    test.message(&["hydration_batch_size", "4"]).unwrap();
    test.message(&["ENABLE_hydration"]).unwrap();
    let table = "meta dest src 8 0 4 hydration_threshold 8 hydration_batch_size 4";
    assert_eq!(test.target().table(), table);
    test.forget();
    test.run(Duration::from_millis(1));
    assert!(test.ops("src").iter().all(|(_, _, count)| *count == 32));
    test.message(&["disable_hydration"]).unwrap();
    test.run(Duration::from_secs(3));
    let hydrated = test.hydrated();
    assert!(hydrated > 0 && hydrated < 126, "{hydrated}");
    for words in [
        &["nonsense"][..],
        &["hydration_threshold"],
        &["hydration_threshold", "x"],
        &["enable_hydration", "1"],
    ] {
        test.message(words).unwrap_err();
    }
}

#[test]
fn a_threshold_of_zero_hydrates_nothing() {
    let test = CloneFixture::loaded("0 1003 clone meta dest src 8 0 2 hydration_threshold 0");
    test.run(Duration::from_secs(3));
    assert_eq!(test.hydrated(), 0);
    test.write(3, 1, 5).unwrap();
    assert_eq!(test.hydrated(), 1);
}

#[test]
fn a_suspend_and_another_table_lose_nothing() {
    let test = CloneFixture::loaded(PAUSED);
    let mut model = source();
    test.write(3, 30, 77).unwrap();
    write(&mut model, 3, 30, 77);
    for mode in [SuspendMode::Flush, SuspendMode::NoFlush] {
        test.suspend(mode);
        assert_eq!(test.durable_bits().hydrated(), 5);
        test.resume();
        assert_eq!((test.hydrated(), test.all()), (5, model.clone()));
    }
    test.load(TABLE);
    test.run(Duration::from_secs(5));
    assert_eq!((test.hydrated(), test.contents("dest")), (126, model));
}

#[test]
fn writes_that_wait_for_one_region_share_its_copy() {
    let test = CloneFixture::loaded(PAUSED);
    test.forget();
    test.start(1, "a", |env| write_io(env, 8, 1, 1));
    test.start(2, "b", |env| write_io(env, 10, 1, 2));
    test.start(0, "c", |env| write_io(env, 8, 8, 3));
    test.run(Duration::from_millis(10));
    assert_eq!(test.ends.count(), 3);
    assert_eq!(test.ops("src"), [(Op::Read, 8, 8)]);
    assert_eq!(test.hydrated(), 1);
}

#[test]
fn a_read_only_clone_writes_nothing() {
    let test = CloneFixture::fresh();
    test.try_load_read_only(TABLE).unwrap();
    assert!(test.all() == source());
    assert!(test.write(0, 8, 1).is_err());
    assert!(test.contents("meta").iter().all(|byte| *byte == 0));
}

#[test]
fn extents_are_those_of_the_device_that_has_the_content() {
    let test = CloneFixture::loaded(PAUSED);
    test.on(Op::WriteZeroes, 8, 8).unwrap();
    let found = |start, count| test.extents(range(start, count)).unwrap();
    let extent = |count, kind| vec![Extent { count: SectorCount(count), kind }];
    assert_eq!(found(0, 32), extent(8, ExtentKind::Data), "one run at a time");
    assert_eq!(found(8, 24), extent(8, ExtentKind::Hole));
    assert_eq!(found(16, 16), extent(16, ExtentKind::Data));
}

#[test]
fn extents_of_a_disk_that_answers_for_less_stand_at_their_place() {
    let test = CloneFixture::loaded(PAUSED);
    test.on(Op::WriteZeroes, 32, 16).unwrap();
    test.recording("src").set_extent_sectors(4);
    let mut at = 0;
    while at < 64 {
        for extent in test.extents(range(at, 64 - at)).unwrap() {
            let is_hole = extent.kind == ExtentKind::Hole;
            assert_eq!(is_hole, (32..48).contains(&at), "{at}");
            at += extent.count.0;
        }
    }
}

#[test]
fn extents_are_asked_again_if_a_write_has_changed_where_the_content_is() {
    let test = CloneFixture::loaded(PAUSED);
    let volume = test.volume.clone();
    let disk: Arc<dyn Disk> = test.volume.clone();
    let extents = test.sim.block_on(0, |env| async move {
        let write = async { env.io(&disk, Io::on(Op::WriteZeroes, range(0, 16))).await };
        futures_util::future::join(volume.extents(&env, range(0, 16)), write).await.0
    });
    let hole = Extent { count: SectorCount(16), kind: ExtentKind::Hole };
    assert_eq!(extents.unwrap(), [hole]);
}

#[test]
fn each_wrong_argument_or_device_is_named() {
    let test = CloneFixture::fresh();
    for (table, expected) in [
        ("0 1003 clone meta dest src 12", "clone: region_size: found 12 sectors, expected a power"),
        ("0 1004 clone meta dest src 8", "dest: size: found 1003 sectors, expected at least"),
        ("0 8 clone dest meta src 8", "dest: superblock, block 0: superblock magic: found 0x"),
        ("0 8 clone meta dest dest 8", "clone: devices: found 'dest' twice"),
    ] {
        let refusal = test.refusal(table);
        assert!(refusal.starts_with(expected), "{refusal}");
    }
    test.load(PAUSED);
    test.suspend(SuspendMode::Flush);
    for (table, expected) in [
        (
            "0 1003 clone meta dest src 16",
            "meta: region_size: found 16 sectors in the table, expected 8, as in the superblock",
        ),
        (
            "0 1000 clone meta dest src 8",
            "meta: length: found 1000 sectors in the table, expected 1003, as in the superblock",
        ),
    ] {
        assert_eq!(test.refusal(table), expected);
    }
}

#[test]
fn a_metadata_device_with_something_behind_its_first_block_is_not_formatted() {
    let mut image = vec![0; 24 * 4096];
    image[65600..65608].copy_from_slice(b"_BHRfS_M");
    let test = CloneFixture::with_metadata(Image::of_bytes(&image));
    let refusal = test.refusal(TABLE);
    assert!(refusal.starts_with("meta: not blank: found btrfs"), "{refusal}");
}

#[test]
fn a_metadata_device_that_is_too_small_is_refused() {
    let too_small = |blocks: u64| Image::new(SectorCount(blocks * 8));
    let test = CloneFixture::with_metadata(too_small(13));
    let expected = "meta: size: found 13 blocks of 4 KiB, expected at least 14, for 126 regions";
    assert_eq!(test.refusal(TABLE), expected);
    // More bits than there is memory.
    let (huge, test) = (1u64 << 50, CloneFixture::fresh());
    ["a", "b"].into_iter().for_each(|name| test.fixture.load(name, &format!("0 {huge} zero")));
    let refusal = test.refusal(&format!("0 {huge} clone meta @a @b 8"));
    let expected = "meta: size: found 24 blocks of 4 KiB, expected at least ";
    assert!(refusal.starts_with(expected), "{refusal}");
}

#[test]
fn flushes_with_nothing_to_commit_go_to_the_destination() {
    let test = CloneFixture::loaded(PAUSED);
    test.drive("dest").faults().add(Fault::error(OpSet::FLUSHES).shots(1));
    assert!(test.io(|_| Io::flush()).is_err());
    test.io(|_| Io::flush()).unwrap();
}
