//! Worlds of events, and drives with timing models: the same requests leave the same contents as in
//! a seeded world, and take the times of the models.

use super::*;
use crate::drives::{Hdd, HddFigures, Ssd, SsdFigures};
use crate::{Content, Contents, History, Mix, Workload};
use cairn_block::{Disk, Flags, Io, Op, Sector, SectorCount, SectorRange};
use proptest::prelude::*;

const SECTORS: SectorCount = SectorCount(512);

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector(start), SectorCount(count))
}

fn options(contents: Contents) -> TimedOptions {
    TimedOptions { name: "a".to_owned(), logical_block: 512, contents }
}

fn ssd() -> Box<dyn Timing> {
    Box::new(Ssd::new(SsdFigures::NVME, 1))
}

fn hdd() -> Box<dyn Timing> {
    Box::new(Hdd::new(HddFigures::NEARLINE, SectorCount(1 << 24)))
}

/// A world of events with a drive.
fn world(contents: Contents, model: Box<dyn Timing>) -> (SimWorld, Arc<dyn Disk>) {
    let world = SimWorld::of_events(1, Prices::FREE);
    let drive = world.add_timed_drive(options(contents), Image::new(SECTORS), model);
    (world, drive)
}

/// What a drive holds after a workload, whose reads are checked.
fn after(
    (world, disk): (SimWorld, Arc<dyn Disk>),
    workload: Workload,
) -> (Vec<Content>, u64, Time) {
    let history = History::blank(9, SECTORS);
    workload.run(&world, &disk, &history).expect("nothing stops the world");
    assert_eq!(history.verdict(), Ok(()));
    let time = world.now();
    let bytes = world.block_on(0, move |env| async move {
        let segs = env.segs(SECTORS);
        env.io(&disk, Io::read(range(0, SECTORS.0), segs.clone())).await.expect("no fault");
        segs.to_vec()
    });
    (History::contents(Sector(0), &bytes), world.fingerprint(), time)
}

/// One request at a time, so that the order is not the drive's. A discard leaves what the seed of
/// its world chooses.
fn workload(seed: u64, ops: u64) -> Workload {
    let mix = Mix { discard: 0, ..Mix::default() };
    Workload { in_flight: 1, mix, ..Workload::mixed(seed, ops) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn same_requests_leave_the_same_contents_in_every_world_and_memory(
        seed in any::<u64>(), ops in 1_u64..120,
    ) {
        let seeded = SimWorld::new(seed, 1);
        let drive: Arc<dyn Disk> = seeded.add_drive(DriveOptions::named("a"), Image::new(SECTORS));
        let (expected, ..) = after((seeded, drive), workload(seed, ops));
        let seeded = SimWorld::new(seed, 1);
        let all = options(Contents::All);
        let drive: Arc<dyn Disk> = seeded.add_timed_drive(all, Image::new(SECTORS), ssd());
        let (found, ..) = after((seeded, drive), workload(seed, ops));
        prop_assert_eq!(&found, &expected, "a seeded world with a model");
        for contents in [Contents::All, Contents::Stamps] {
            for model in [ssd(), hdd()] {
                let (found, ..) = after(world(contents, model), workload(seed, ops));
                prop_assert_eq!(&found, &expected, "{:?}", contents);
            }
        }
    }
}

#[test]
fn run_of_events_repeats_and_does_not_depend_on_the_memory() {
    let many = |seed| Workload { in_flight: 8, ..workload(seed, 300) };
    let run = |contents, seed| {
        let (_, fingerprint, time) = after(world(contents, hdd()), many(seed));
        (fingerprint, time)
    };
    assert_eq!(run(Contents::Stamps, 1), run(Contents::Stamps, 1));
    assert_eq!(run(Contents::Stamps, 1), run(Contents::All, 1), "times and ranges are the model's");
    assert_ne!(run(Contents::Stamps, 1).0, run(Contents::Stamps, 2).0);
}

/// What a read of 8 sectors finds whose buffer was full of ones.
fn read(world: &SimWorld, disk: &Arc<dyn Disk>, start: u64) -> Vec<u8> {
    read_with(world, disk, start, Flags::empty())
}

fn read_with(world: &SimWorld, disk: &Arc<dyn Disk>, start: u64, flags: Flags) -> Vec<u8> {
    let disk = disk.clone();
    world.block_on(0, move |env| async move {
        let segs = env.segs(SectorCount(8));
        segs.copy_in(0, &[1; 4096]);
        let read = Io::read(range(start, 8), segs.clone()).with(flags);
        env.io(&disk, read).await.expect("no fault");
        segs.to_vec()
    })
}

fn write(world: &SimWorld, disk: &Arc<dyn Disk>, at: SectorRange, byte: u8, flags: Flags) {
    let disk = disk.clone();
    world.block_on(0, move |env| async move {
        let segs = env.segs(at.count);
        segs.copy_in(0, &vec![byte; at.to_bytes() as usize]);
        env.io(&disk, Io::write(at, segs).with(flags)).await.expect("no fault");
    });
}

#[test]
fn metadata_is_kept_until_data_is_written_over_it() {
    let (world, disk) = world(Contents::Metadata, ssd());
    write(&world, &disk, range(0, 8), 7, Flags::empty());
    assert_eq!(read(&world, &disk, 0), [1; 4096], "data is not kept");
    let found = read_with(&world, &disk, 0, Flags::META);
    assert_eq!(found, [0; 4096], "no metadata was written here");
    write(&world, &disk, range(4, 4), 7, Flags::META);
    let mut expected = vec![0; 2048];
    expected.extend([7; 2048]);
    assert_eq!(read(&world, &disk, 0), expected, "a chunk that has metadata is kept");
    write(&world, &disk, range(8, 8), 0, Flags::META);
    assert_eq!(read(&world, &disk, 8), [0; 4096], "zeros are metadata, too");
    write(&world, &disk, range(0, 16), 9, Flags::empty());
    assert_eq!(read(&world, &disk, 0), [1; 4096], "data again");
}

#[test]
fn image_that_a_drive_begins_with_is_metadata() {
    let mut image = Image::new(SectorCount(1 << 20));
    image.write(Sector(1 << 19), &[5; 4096]);
    let world = SimWorld::of_events(1, Prices::FREE);
    let drive = world.add_timed_drive(options(Contents::Metadata), image, ssd());
    let disk: Arc<dyn Disk> = drive;
    assert_eq!(read(&world, &disk, 1 << 19), [5; 4096]);
    assert_eq!(read(&world, &disk, 0), [1; 4096]);
}

#[test]
fn requests_take_the_time_of_the_model_and_those_of_one_turn_merge() {
    let (world, disk) = world(Contents::Metadata, hdd());
    let drive = world.drive("a");
    let reads = Rc::new(Cell::new(0));
    for start in [0, 8, 16, 24] {
        let (disk, reads) = (disk.clone(), reads.clone());
        let env = world.env(0).clone();
        world.env(0).spawn(async move {
            let segs = env.segs(SectorCount(8));
            env.io(&disk, Io::read(range(start, 8), segs)).await.expect("no fault");
            reads.set(reads.get() + 1);
        });
    }
    world.run_until(|| reads.get() == 4);
    let mut alone = Hdd::new(HddFigures::NEARLINE, SectorCount(1 << 24));
    let (op, whole) = (Op::Read, range(0, 32));
    alone.arrive(Time(0), crate::drives::Arrival { id: 0, op, range: whole, is_fua: false });
    let (mut ended, mut now) = (Vec::new(), Time(0));
    while ended.is_empty() {
        now = alone.next().expect("it is in flight");
        alone.go_on(now, &mut ended);
    }
    let took = world.now();
    assert!(took.0.abs_diff(now.0) < 100, "{took:?}, the model alone: {now:?}");
    let used = world.used(&drive);
    assert_eq!((used.requests, used.merges, used.operations), (4, 3, 1));
}

#[test]
fn many_requests_of_several_reactors_end_on_a_drive_with_a_model() {
    for (seed, model) in [ssd(), hdd(), ssd(), hdd()].into_iter().enumerate() {
        let world = SimWorld::new(seed as u64, 3);
        let drive = world.add_timed_drive(options(Contents::All), Image::new(SECTORS), model);
        let (disk, history): (Arc<dyn Disk>, _) = (drive, History::blank(9, SECTORS));
        let many = Workload { in_flight: 8, ..workload(seed as u64, 300) };
        many.run(&world, &disk, &history).expect("nothing stops the world");
        assert_eq!((history.verdict(), history.unfinished()), (Ok(()), 0));
    }
}

#[test]
fn ends_of_several_drives_come_in_order_of_time() {
    let world = SimWorld::of_events(1, Prices { turn: 1_000_000_000_000, ..Prices::FREE });
    let slow = world.add_timed_drive(options(Contents::Metadata), Image::new(SECTORS), hdd());
    let name = TimedOptions { name: "b".to_owned(), ..options(Contents::Metadata) };
    let fast = world.add_timed_drive(name, Image::new(SECTORS), ssd());
    let ends = Rc::new(RefCell::new(Vec::new()));
    for (word, drive) in [("slow", slow), ("fast", fast)] {
        let (disk, ends): (Arc<dyn Disk>, _) = (drive, ends.clone());
        let env = world.env(0).clone();
        world.env(0).spawn(async move {
            env.io(&disk, Io::read(range(8, 8), env.segs(SectorCount(8)))).await.expect("no fault");
            ends.borrow_mut().push(word);
        });
    }
    // Both have ended long before the turn is over.
    world.run_until(|| ends.borrow().len() == 2);
    assert_eq!(*ends.borrow(), ["fast", "slow"]);
}

#[test]
#[should_panic(expected = "does not keep all contents")]
fn drive_that_keeps_less_knows_of_no_power_cut() {
    let (world, _) = world(Contents::Stamps, ssd());
    world.drive("a").power_cut(&mut fastrand::Rng::with_seed(1));
}
