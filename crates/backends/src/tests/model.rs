//! Random requests of any size and memory shape, on every disk over both rings, compared with
//! a plain vector.

use std::sync::Arc;

use super::{Model, run, steps, worlds};
use crate::{FileDisk, FileOptions, MemoryDisk};
use cairn_block::{Disk, SectorCount};
use proptest::test_runner::{Config, TestRunner};

/// Not a multiple of 64 KiB, so that the last region of a memory disk is a part.
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

fn file_in(folder: &str, options: FileOptions) -> impl Fn() -> Arc<dyn Disk> {
    let folder = folder.to_owned();
    move || {
        let file = tempfile::NamedTempFile::new_in(&folder).unwrap();
        file.as_file().set_len(SECTORS.to_bytes()).unwrap();
        Arc::new(FileDisk::open(file.path().to_str().unwrap(), false, options).unwrap())
    }
}

#[test]
fn a_memory_disk_is_a_vector() {
    compare(|| Arc::new(MemoryDisk::new(SECTORS).unwrap()));
}

#[test]
fn a_file_is_a_vector() {
    compare(file_in(std::env::temp_dir().to_str().unwrap(), FileOptions::default()));
}

#[test]
fn a_file_through_the_page_cache_is_a_vector() {
    let options = FileOptions { direct: false };
    compare(file_in(std::env::temp_dir().to_str().unwrap(), options));
}

#[test]
fn a_file_on_a_memory_file_system_is_a_vector() {
    compare(file_in("/dev/shm", FileOptions::default()));
}

/// Runs where `CAIRN_TEST_BLOCK_DEVICE` names a scratch block device; its contents are lost.
#[test]
fn a_block_device_is_a_vector() {
    let Ok(path) = std::env::var("CAIRN_TEST_BLOCK_DEVICE") else { return };
    for world in worlds() {
        let open = || FileDisk::open(&path, false, FileOptions::default()).unwrap();
        let config = Config { cases: 100, failure_persistence: None, ..Config::default() };
        let checked = TestRunner::new(config).run(&steps(), |steps| {
            let disk: Arc<dyn Disk> = Arc::new(open());
            let all = super::range(0, disk.sectors().0);
            let none = cairn_block::Flags::empty();
            super::act(&world, &disk, cairn_block::Op::WriteZeroes, all, none).unwrap();
            run(&world, &disk, &mut Model::zeros(disk.sectors()), steps);
            Ok(())
        });
        checked.unwrap();
    }
}
