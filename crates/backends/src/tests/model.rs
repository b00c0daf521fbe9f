//! Random requests of any size and memory shape, on every disk over both rings, compared with
//! a plain vector.

use std::sync::Arc;

use super::{Model, range, run, steps, worlds};
use crate::{FileDisk, FileOptions, MemoryDisk};
use cairn_block::{Disk, ReactorId, SectorCount};
use proptest::collection::vec;
use proptest::prelude::{any, prop_assert, prop_assert_eq};
use proptest::test_runner::{Config, TestRunner};

/// Not a multiple of 64 KiB, so that the last region of a memory disk is a partial one.
const SECTORS: SectorCount = SectorCount(8 * 128 + 24);

fn compare(make: impl Fn() -> Arc<dyn Disk>) {
    for world in worlds() {
        let config = Config { cases: 100, failure_persistence: None, ..Config::default() };
        let checked = TestRunner::new(config).run(&steps(), |steps| {
            let disk = make();
            assert_eq!(disk.sectors(), SECTORS);
            run(&world, &disk, &mut Model::zeros(SECTORS), steps);
            Ok(())
        });
        checked.unwrap();
    }
}

#[test]
fn a_copy_between_memory_disks_matches_the_model() {
    let [world, _] = worlds();
    let write = (0..SECTORS.0, 1..300u64, any::<u8>(), any::<bool>());
    let copy = (0..SECTORS.0, 1..300u64, 0..SECTORS.0, any::<bool>(), any::<bool>());
    let cases = vec((write, copy), 1..12);
    let config = Config { cases: 200, failure_persistence: None, ..Config::default() };
    let checked = TestRunner::new(config).run(&cases, |steps| {
        let disks: [Arc<dyn Disk>; 2] =
            [0, 1].map(|_| Arc::new(MemoryDisk::new(SECTORS).unwrap()) as _);
        let mut models = [0, 1].map(|_| vec![0; SECTORS.to_bytes() as usize]);
        let none = cairn_block::Flags::empty();
        for ((at, count, byte, on), (source, length, target, from, to)) in steps {
            let (on, at) = (usize::from(on), range(at, count.min(SECTORS.0 - at)));
            let data = vec![byte; at.to_bytes() as usize];
            models[on][at.start.to_bytes() as usize..][..data.len()].copy_from_slice(&data);
            super::write(&world, &disks[on], (at, none), data, super::Shape::default()).unwrap();
            let length = length.min(SECTORS.0 - source.max(target));
            let (source, target) = (range(source, length), range(target, length));
            let (from, to) = (usize::from(from), usize::from(to));
            let [lower, upper] = [from, to].map(|index| disks[index].clone());
            let copied = world.block_on(ReactorId(0), move |env| async move {
                env.copy((&lower, source), (&upper, target.start))
            });
            let overlap = from == to && source.overlaps(target);
            prop_assert_eq!(copied, (!overlap).then_some(Ok(())));
            if !overlap {
                let bytes = models[from][source.start.to_bytes() as usize..]
                    [..source.to_bytes() as usize]
                    .to_vec();
                let start = target.start.to_bytes() as usize;
                models[to][start..start + bytes.len()].copy_from_slice(&bytes);
            }
        }
        for (disk, model) in disks.iter().zip(&models) {
            let all = range(0, SECTORS.0);
            let found = super::read(&world, disk, all, super::Shape::default()).unwrap();
            prop_assert!(found == *model);
        }
        Ok(())
    });
    checked.unwrap();
}

fn file_in(folder: &str, options: FileOptions) -> impl Fn() -> Arc<dyn Disk> {
    let folder = folder.to_owned();
    move || {
        let file = tempfile::NamedTempFile::new_in(&folder).unwrap();
        file.as_file().set_len(SECTORS.to_bytes()).unwrap();
        Arc::new(FileDisk::open(file.path().to_str().unwrap(), false, options).unwrap())
    }
}

#[test]
fn memory_disk_matches_the_model() {
    compare(|| Arc::new(MemoryDisk::new(SECTORS).unwrap()));
}

#[test]
fn file_matches_the_model() {
    compare(file_in(std::env::temp_dir().to_str().unwrap(), FileOptions::default()));
}

#[test]
fn file_through_the_page_cache_matches_the_model() {
    let options = FileOptions { direct: false, image: false };
    compare(file_in(std::env::temp_dir().to_str().unwrap(), options));
}

#[test]
fn file_on_a_memory_file_system_matches_the_model() {
    compare(file_in("/dev/shm", FileOptions::default()));
}

/// Runs where `CAIRN_TEST_BLOCK_DEVICE` names a scratch block device; its contents are lost.
#[test]
fn block_device_matches_the_model() {
    let Ok(path) = std::env::var("CAIRN_TEST_BLOCK_DEVICE") else { return };
    for world in worlds() {
        let open = || FileDisk::open(&path, false, FileOptions::default()).unwrap();
        let config = Config { cases: 100, failure_persistence: None, ..Config::default() };
        let checked = TestRunner::new(config).run(&steps(), |steps| {
            let disk: Arc<dyn Disk> = Arc::new(open());
            let all = range(0, disk.sectors().0);
            let none = cairn_block::Flags::empty();
            super::act(&world, &disk, cairn_block::Op::WriteZeroes, all, none).unwrap();
            run(&world, &disk, &mut Model::zeros(disk.sectors()), steps);
            Ok(())
        });
        checked.unwrap();
    }
}
