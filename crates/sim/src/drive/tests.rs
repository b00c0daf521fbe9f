//! What a drive keeps, loses, tears and refuses.

use super::*;
use crate::{Cut, CutWhen, Effect, Fault, OpSet, SimWorld};
use cairn_block::{ErrorKind, Flags, Io, IoError, SECTOR_BYTES};

const SECTOR: usize = SECTOR_BYTES as usize;

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(Sector(start), SectorCount(count))
}

fn world() -> (SimWorld, Arc<SimDrive>) {
    let world = SimWorld::new(3, 1);
    let drive = world.add_drive(DriveOptions::named("a"), Image::new(SectorCount(256)));
    (world, drive)
}

fn io(world: &SimWorld, drive: &Arc<SimDrive>, make: impl FnOnce(&Env) -> Io) -> IoResult {
    let disk: Arc<dyn Disk> = drive.clone();
    let io = make(world.env(0));
    world.block_on(0, move |env| async move { env.io(&disk, io).await })
}

fn write(world: &SimWorld, drive: &Arc<SimDrive>, at: SectorRange, byte: u8) -> IoResult {
    write_with(world, drive, at, byte, Flags::empty())
}

fn write_with(
    world: &SimWorld,
    drive: &Arc<SimDrive>,
    at: SectorRange,
    byte: u8,
    flags: Flags,
) -> IoResult {
    io(world, drive, |env| {
        let segs = env.segs(at.count);
        segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(byte));
        Io::write(at, segs).with(flags)
    })
}

/// The first byte of a sector after each of 200 power cuts.
fn outcomes(drive: &SimDrive, sector: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(9);
    let mut seen: Vec<u8> =
        (0..200).map(|_| drive.power_cut(&mut rng).sector(Sector(sector))[0]).collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

#[test]
fn an_unflushed_write_may_be_lost_kept_or_torn_and_an_older_one_may_come_back() {
    let (world, drive) = world();
    write(&world, &drive, range(0, 8), 1).unwrap();
    write(&world, &drive, range(0, 8), 2).unwrap();
    assert_eq!(drive.visible().sector(Sector(0))[0], 2);
    assert_eq!(outcomes(&drive, 0), [0, 1, 2]);
    let mut rng = fastrand::Rng::with_seed(1);
    let torn = (0..200).any(|_| {
        let image = drive.power_cut(&mut rng);
        image.sector(Sector(0)) != image.sector(Sector(7))
    });
    assert!(torn);
}

#[test]
fn flush_makes_earlier_completed_writes_durable() {
    let (world, drive) = world();
    write(&world, &drive, range(0, 8), 1).unwrap();
    io(&world, &drive, |_| Io::flush()).unwrap();
    write(&world, &drive, range(8, 8), 2).unwrap();
    assert_eq!(outcomes(&drive, 0), [1]);
    assert_eq!(outcomes(&drive, 8), [0, 2]);
}

#[test]
fn a_flush_promises_nothing_about_writes_in_flight() {
    let (world, drive) = world();
    let (disk, env): (Arc<dyn Disk>, _) = (drive.clone(), world.env(0).clone());
    let segs = env.segs(SectorCount(1));
    segs.copy_in(0, &[5; 512]);
    let slow =
        Fault { effect: Effect::Delay(Duration::from_secs(1)), ..Fault::error(OpSet::FLUSHES) };
    drive.faults().add(slow);
    world.block_on(0, move |_| async move {
        let write = env.io(&disk, Io::write(range(0, 1), segs));
        env.io(&disk, Io::flush()).await.unwrap();
        write.await.unwrap();
    });
    assert_eq!(drive.visible().sector(Sector(0))[0], 5, "the write completed during the flush");
    assert_eq!(outcomes(&drive, 0), [0, 5]);
}

#[test]
fn fua_write_is_durable_alone_and_older_data_under_it_never_returns() {
    let (world, drive) = world();
    write(&world, &drive, range(0, 8), 1).unwrap();
    write_with(&world, &drive, range(4, 1), 2, Flags::FUA).unwrap();
    assert_eq!(outcomes(&drive, 4), [2]);
    assert_eq!(outcomes(&drive, 0), [0, 1]);
}

#[test]
fn zeroes_are_as_volatile_as_any_write() {
    let (world, drive) = world();
    write(&world, &drive, range(0, 8), 1).unwrap();
    io(&world, &drive, |_| Io::flush()).unwrap();
    io(&world, &drive, |_| Io::on(Op::WriteZeroes, range(0, 8))).unwrap();
    assert_eq!(drive.visible().sector(Sector(3)), [0; SECTOR]);
    assert_eq!(outcomes(&drive, 3), [0, 1]);
}

/// Two drives that copy; all bytes are 1, except for eight sectors of 2 at the start of the first.
fn copying_world() -> (SimWorld, Arc<SimDrive>, Arc<SimDrive>) {
    let (world, _) = world();
    let drive = |name| {
        let options = DriveOptions { copies: true, ..DriveOptions::named(name) };
        world.add_drive(options, Image::of_bytes(&[1; 64 * SECTOR]))
    };
    let (from, to) = (drive("from"), drive("to"));
    write(&world, &from, range(0, 8), 2).unwrap();
    (world, from, to)
}

/// Copies the eight sectors of 2.
fn copy(
    world: &SimWorld,
    from: &Arc<SimDrive>,
    to: &Arc<SimDrive>,
) -> Option<Result<(), CopyError>> {
    let (from, to): (Arc<dyn Disk>, Arc<dyn Disk>) = (from.clone(), to.clone());
    world.env(0).copy((&from, range(0, 8)), (&to, Sector(8)))
}

#[test]
fn a_copy_is_as_volatile_as_a_write_and_fails_on_either_side() {
    let (world, from, to) = copying_world();
    let copy = || copy(&world, &from, &to);
    assert_eq!(copy(), Some(Ok(())));
    assert_eq!(to.visible().sector(Sector(15)), [2; SECTOR]);
    assert_eq!(outcomes(&to, 8), [1, 2]);
    io(&world, &to, |_| Io::flush()).unwrap();
    assert_eq!(outcomes(&to, 8), [2]);
    let planted = IoError::injected(cairn_block::ErrorKind::Io);
    from.faults().add(Fault::error(OpSet::READS).shots(1));
    assert_eq!(copy(), Some(Err(CopyError::Read(planted))));
    to.faults().add(Fault::error(OpSet::WRITES).shots(1));
    assert_eq!(copy(), Some(Err(CopyError::Write(planted))));
}

#[test]
fn a_cut_at_a_copy_leaves_any_part_of_it_and_its_caller_gets_no_answer() {
    for when in [CutWhen::Submitted, CutWhen::Completed] {
        let (world, from, to) = copying_world();
        world.cut_at(Cut { index: world.writes(), when });
        assert_eq!(copy(&world, &from, &to), None, "{when:?}");
        assert_eq!(outcomes(&to, 8), [1, 2], "{when:?}");
    }
}

#[test]
fn a_drive_without_a_cache_loses_nothing_that_completed() {
    let world = SimWorld::new(3, 1);
    let options = DriveOptions { volatile_cache: false, ..DriveOptions::named("a") };
    let drive = world.add_drive(options, Image::new(SectorCount(64)));
    write(&world, &drive, range(0, 8), 1).unwrap();
    assert_eq!(outcomes(&drive, 0), [1]);
    drive.faults().add(Fault::error(OpSet::WRITES));
    let failed = (0..20).map(|_| write(&world, &drive, range(0, 1), 2));
    assert!(failed.collect::<Vec<_>>().iter().all(Result::is_err));
    let left = drive.visible().sector(Sector(0))[0];
    assert_eq!(outcomes(&drive, 0), [left], "nor what a failed write left");
}

#[test]
fn a_drive_without_a_cache_is_not_flushed_for_its_users_own_order() {
    for volatile_cache in [true, false] {
        let world = SimWorld::new(3, 1);
        let options = DriveOptions { volatile_cache, ..DriveOptions::named("a") };
        let drive = world.add_drive(options, Image::new(SectorCount(64)));
        drive.faults().add(Fault::error(OpSet::FLUSHES));
        let disk: Arc<dyn Disk> = drive;
        let made = world.block_on(0, |env| async move { env.make_durable(&disk).await });
        assert_eq!(made.is_err(), volatile_cache);
    }
}

#[test]
fn a_planted_error_fails_the_request_and_the_write_may_be_there_in_part() {
    let (world, drive) = world();
    drive.faults().add(Fault::error(OpSet::WRITES));
    let mut seen = [false; 2];
    for _ in 0..50 {
        let result = write(&world, &drive, range(0, 8), 1);
        assert_eq!(result, Err(IoError::injected(ErrorKind::Io)));
        (0..8).for_each(|at| seen[usize::from(drive.visible().sector(Sector(at))[0])] = true);
    }
    assert_eq!(seen, [true; 2]);
    drive.faults().clear();
    write(&world, &drive, range(0, 8), 1).unwrap();
}

#[test]
fn a_flush_that_loses_writes_leaves_them_visible_and_never_durable() {
    let (world, drive) = world();
    write(&world, &drive, range(0, 1), 1).unwrap();
    drive.faults().add(Fault::losing_flushes().shots(1));
    assert!(drive.faults().lose());
    let flush = || io(&world, &drive, |_| Io::flush());
    flush().unwrap_err();
    write(&world, &drive, range(1, 1), 2).unwrap();
    flush().unwrap();
    let (visible, durable) = (drive.visible(), drive.durable());
    assert_eq!([visible.sector(Sector(0))[0], visible.sector(Sector(1))[0]], [1, 2]);
    assert_eq!([durable.sector(Sector(0))[0], durable.sector(Sector(1))[0]], [0, 2]);
    assert_eq!(outcomes(&drive, 0), [0]);
}

#[test]
fn power_is_cut_at_the_chosen_write() {
    let (world, drive) = world();
    write(&world, &drive, range(0, 1), 1).unwrap();
    world.cut_at(Cut { index: 1, when: CutWhen::Submitted });
    let disk: Arc<dyn Disk> = drive.clone();
    let cut = world.try_block_on(0, |env| async move { env.io(&disk, Io::flush()).await });
    assert_eq!(cut, Err(crate::Stopped::PowerCut));
    assert_eq!(outcomes(&drive, 0), [0, 1], "the flush was not done");
}

#[test]
#[should_panic(expected = "changed in flight")]
fn touching_the_data_of_a_write_in_flight_panics() {
    let (world, drive) = world();
    let (disk, segs): (Arc<dyn Disk>, _) = (drive.clone(), world.env(0).segs(SectorCount(1)));
    let _ = world.block_on(0, move |env| async move {
        let write = env.io(&disk, Io::write(range(0, 1), segs.clone()));
        segs.copy_in(0, &[1; 512]);
        write.await
    });
}

#[test]
#[should_panic(expected = "not aligned")]
fn an_unaligned_request_panics_even_if_the_check_above_is_missing() {
    let world = SimWorld::new(3, 1);
    let options = DriveOptions { logical_block: 4096, ..DriveOptions::named("a") };
    let drive = world.add_drive(options, Image::new(SectorCount(64)));
    struct Liar(Arc<SimDrive>);
    impl Disk for Liar {
        fn name(&self) -> String {
            "liar".to_owned()
        }
        fn sectors(&self) -> SectorCount {
            self.0.sectors()
        }
        fn submit(&self, env: &Env, request: &mut Request) -> Flow {
            self.0.submit(env, request)
        }
    }
    let disk: Arc<dyn Disk> = Arc::new(Liar(drive));
    let _ = world.block_on(0, move |env| async move {
        env.io(&disk, Io::read(range(1, 1), env.segs(SectorCount(1)))).await
    });
}

#[test]
fn kill_keeps_volatile_writes_and_ends_those_in_flight_wholly_partly_or_not() {
    let mut seen = [false; 3];
    for before in 0..40 {
        let (world, drive) = world();
        for _ in 0..before {
            write(&world, &drive, range(100, 1), 3).unwrap();
        }
        write(&world, &drive, range(64, 8), 1).unwrap();
        let (disk, env): (Arc<dyn Disk>, _) = (drive.clone(), world.env(0).clone());
        let segs = env.segs(SectorCount(8));
        segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(2));
        world.cut_at(Cut { index: world.writes(), when: CutWhen::Submitted });
        let ended = world.try_block_on(0, move |env| async move {
            env.io(&disk, Io::write(range(0, 8), segs)).await
        });
        assert!(ended.is_err());
        let after = drive.after_kill();
        assert_eq!(after.visible().sector(Sector(64))[0], 1);
        assert_eq!(outcomes(&after, 64), [0, 1]);
        let done = (0..8).filter(|&at| after.visible().sector(Sector(at))[0] == 2).count();
        seen[match done {
            0 => 0,
            8 => 2,
            _ => 1,
        }] = true;
    }
    assert_eq!(seen, [true; 3]);
}

#[test]
fn a_read_is_torn_by_a_write_in_flight_if_the_drive_does_that() {
    for torn_reads in [false, true] {
        let world = SimWorld::new(3, 1);
        let options = DriveOptions { torn_reads, ..DriveOptions::named("a") };
        let drive = world.add_drive(options, Image::new(SectorCount(64)));
        let slow =
            Fault { effect: Effect::Delay(Duration::from_secs(1)), ..Fault::error(OpSet::WRITES) };
        drive.faults().add(slow);
        let disk: Arc<dyn Disk> = drive.clone();
        let bytes = world.block_on(0, move |env| async move {
            let [data, seen] = [env.segs(SectorCount(32)), env.segs(SectorCount(32))];
            data.for_each_mut(0, data.bytes(), |bytes| bytes.fill(2));
            let write = env.io(&disk, Io::write(range(0, 32), data));
            env.io(&disk, Io::read(range(0, 32), seen.clone())).await.unwrap();
            write.await.unwrap();
            seen.to_vec()
        });
        let sectors = bytes.chunks(SECTOR).filter(|sector| sector[0] == 2).count();
        assert_eq!(sectors > 0 && sectors < 32, torn_reads, "{sectors}");
    }
}

#[test]
fn tears_lie_between_logical_blocks() {
    let world = SimWorld::new(3, 1);
    let options = DriveOptions { logical_block: 4096, ..DriveOptions::named("a") };
    let drive = world.add_drive(options, Image::new(SectorCount(64)));
    write(&world, &drive, range(0, 64), 1).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..200 {
        let bytes = drive.power_cut(&mut rng).to_vec();
        assert!(bytes.chunks(4096).all(|block| block.iter().all(|&byte| byte == block[0])));
    }
}
