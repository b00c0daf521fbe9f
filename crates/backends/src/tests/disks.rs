//! What each disk promises in addition to reads and writes: locks, sizes, holes, errors.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::{Shape, act, extents, grow, range, read, worlds, write};
use crate::{DeviceOpener, FileDisk, FileOptions, HeldElsewhere, MemoryDisk, NullDisk, patiently};
use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, ConfigKind, Disk, ErrorKind, Extent, ExtentKind, Flags, Io, IoError, Op, Opener,
    ReactorId, Registry, SectorCount,
};
use rustix::fs::{Mode, OFlags};

const PLAIN: Shape = Shape { skew: 0, cut: None, foreign: false };

struct Scratch {
    file: tempfile::NamedTempFile,
}

impl Scratch {
    fn of(bytes: u64) -> Scratch {
        Scratch::within(&std::env::temp_dir(), bytes)
    }

    fn within(folder: &Path, bytes: u64) -> Scratch {
        let file = tempfile::NamedTempFile::new_in(folder).unwrap();
        file.as_file().set_len(bytes).unwrap();
        Scratch { file }
    }

    fn path(&self) -> &str {
        self.file.path().to_str().unwrap()
    }

    fn try_open(&self, read_only: bool) -> Result<FileDisk, ConfigError> {
        patiently(|| FileDisk::open(self.path(), read_only, FileOptions::default()))
    }

    fn open(&self) -> Arc<dyn Disk> {
        Arc::new(self.try_open(false).unwrap())
    }
}

fn refused(result: Result<FileDisk, ConfigError>, kind: ConfigKind) -> String {
    let error = result.err().expect("refused");
    assert_eq!(error.kind, kind, "{error}");
    error.to_string()
}

/// Runs where `CAIRN_TEST_BLOCK_DEVICE` names a scratch block device.
#[test]
fn block_device_in_exclusive_use_is_busy_and_readers_share_it() {
    let Ok(path) = std::env::var("CAIRN_TEST_BLOCK_DEVICE") else { return };
    let open = |read_only| patiently(|| FileDisk::open(&path, read_only, FileOptions::default()));
    let flags = OFlags::RDONLY | OFlags::EXCL;
    // The kernel holds what it maps or has mounted in this way: without a lock.
    let held = rustix::fs::open(path.as_str(), flags, Mode::empty()).unwrap();
    for read_only in [false, true] {
        let line = refused(open(read_only), ConfigKind::Busy);
        assert!(line.contains("in other exclusive use, expected it free"), "{line}");
    }
    drop(held);
    let readers = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..8).map(|_| scope.spawn(|| open(true))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(readers.iter().all(Result::is_ok));
}

#[test]
fn second_open_of_a_locked_file_is_busy() {
    let scratch = Scratch::of(4096);
    let first = scratch.try_open(false).unwrap();
    for read_only in [false, true] {
        let line = refused(scratch.try_open(read_only), ConfigKind::Busy);
        assert!(line.starts_with(scratch.path()) && line.contains("another process"), "{line}");
    }
    drop(first);
    scratch.try_open(false).unwrap();
}

#[test]
fn open_retries_while_a_killed_process_still_holds_the_file() {
    let scratch = Scratch::of(4096);
    let dying = scratch.try_open(false).unwrap();
    let death = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(30));
        drop(dying);
    });
    scratch.try_open(false).unwrap();
    death.join().unwrap();
}

#[test]
fn opening_on_a_reactor_tries_once_and_does_not_sleep() {
    let scratch = Scratch::of(4096);
    let _held = scratch.try_open(false).unwrap();
    let opener = DeviceOpener::default();
    let source = opener.open(scratch.path(), false, Arc::default()).err().unwrap().source.unwrap();
    assert!(source.is::<HeldElsewhere>());
}

#[test]
fn readers_share_a_file_and_keep_writers_out() {
    let scratch = Scratch::of(4096);
    let _readers = [scratch.try_open(true).unwrap(), scratch.try_open(true).unwrap()];
    refused(scratch.try_open(false), ConfigKind::Busy);
}

#[test]
fn a_process_that_holds_a_lock_is_named() {
    let scratch = Scratch::of(4096);
    let other = File::options().write(true).open(scratch.path()).unwrap();
    // SAFETY: a C struct of integers, all zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    // SAFETY: an open descriptor and a struct of our own. This lock belongs to the process, so it
    // conflicts with a lock that belongs to a descriptor, even within one process.
    let locked = unsafe { libc::fcntl(other.as_raw_fd(), libc::F_SETLK, &raw const lock) };
    assert_eq!(locked, 0);
    // Only one attempt: closing a descriptor, as before a second one, would end this process's
    // lock.
    let asked = FileDisk::open(scratch.path(), false, FileOptions::default());
    let line = refused(asked, ConfigKind::Busy);
    assert!(line.contains(&format!("process {}", std::process::id())), "{line}");
}

#[test]
fn paths_that_are_not_disks_are_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().to_str().unwrap();
    let open = |path: &str| FileDisk::open(path, false, FileOptions::default());
    let line = refused(open(directory), ConfigKind::Argument);
    assert!(line.contains("found a directory, expected a file or block device"), "{line}");
    let line = refused(open("/dev/null"), ConfigKind::Argument);
    assert!(line.contains("found a character device"), "{line}");
    let absent = format!("{directory}/absent");
    let line = refused(open(&absent), ConfigKind::System);
    assert!(
        line.starts_with(&absent) && line.contains("there is no file or block device"),
        "{line}"
    );
}

#[test]
fn a_read_only_disk_refuses_to_change() {
    let scratch = Scratch::of(8192);
    let disk: Arc<dyn Disk> = Arc::new(scratch.try_open(true).unwrap());
    assert!(disk.limits().read_only);
    for world in worlds() {
        let plain = (range(0, 8), Flags::empty());
        let refused = write(&world, &disk, plain, vec![1; 4096], PLAIN);
        assert_eq!(refused, Err(IoError::READ_ONLY));
        for op in [Op::Discard, Op::WriteZeroes] {
            let refused = act(&world, &disk, op, range(0, 8), Flags::empty());
            assert_eq!(refused, Err(IoError::READ_ONLY));
        }
        act(&world, &disk, Op::Flush, range(0, 0), Flags::empty()).unwrap();
        assert_eq!(read(&world, &disk, range(0, 8), PLAIN).unwrap(), [0; 4096]);
    }
}

#[test]
fn the_size_is_whole_blocks_and_growth_shows_after_a_refresh() {
    let scratch = Scratch::of((1 << 20) + 100);
    let disk = scratch.open();
    assert_eq!(disk.sectors(), SectorCount(2048));
    scratch.file.as_file().set_len(2 << 20).unwrap();
    assert_eq!(disk.sectors(), SectorCount(2048));
    disk.refresh().unwrap();
    assert_eq!(disk.sectors(), SectorCount(4096));
    for world in worlds() {
        let end = (range(4088, 8), Flags::FUA);
        write(&world, &disk, end, vec![7; 4096], PLAIN).unwrap();
        assert_eq!(read(&world, &disk, range(4088, 8), PLAIN).unwrap(), [7; 4096]);
    }
    scratch.file.as_file().set_len(4096).unwrap();
    disk.refresh().unwrap();
    assert_eq!(disk.sectors(), SectorCount(8));
}

#[test]
fn a_file_grows_by_whole_sectors_when_it_is_asked_to_and_keeps_what_it_has() {
    for world in worlds() {
        let scratch = Scratch::of(1000);
        scratch.file.as_file().write_all_at(&[7; 1000], 0).unwrap();
        let disk = scratch.open();
        assert_eq!(grow(&world, &disk, 8), Ok(SectorCount(8)));
        let mut expected = vec![7; 1000];
        expected.resize(4096, 0);
        assert_eq!(read(&world, &disk, range(0, 8), PLAIN).unwrap(), expected);
        // It is never made shorter, also if another program has made it longer.
        assert_eq!(grow(&world, &disk, 2), Ok(SectorCount(8)));
        scratch.file.as_file().set_len(1 << 20).unwrap();
        assert_eq!(grow(&world, &disk, 16), Ok(SectorCount(2048)));
        drop(disk);
        let reader: Arc<dyn Disk> = Arc::new(scratch.try_open(true).unwrap());
        assert_eq!(grow(&world, &reader, 4096), Ok(SectorCount(2048)), "it is read-only");
    }
}

#[test]
fn a_file_that_shrank_is_an_io_error_and_never_zeros() {
    let scratch = Scratch::of(1 << 20);
    let disk = scratch.open();
    scratch.file.as_file().set_len(8192).unwrap();
    for world in worlds() {
        for shape in [PLAIN, Shape { skew: 3, ..PLAIN }] {
            for at in [range(16, 8), range(8, 16), range(1024, 1)] {
                let error = read(&world, &disk, at, shape).unwrap_err();
                assert_eq!(error, IoError::IO, "{at}");
            }
            assert_eq!(read(&world, &disk, range(0, 16), shape).unwrap(), [0; 8192]);
        }
    }
}

#[test]
fn a_discard_leaves_a_hole_and_zeroes_read_as_zero() {
    for world in worlds() {
        let scratch = Scratch::of(1 << 20);
        let disk = scratch.open();
        let all = range(0, 2048);
        write(&world, &disk, (all, Flags::empty()), vec![5; 1 << 20], PLAIN).unwrap();
        let data = |count| Extent { count: SectorCount(count), kind: ExtentKind::Data };
        let hole = |count| Extent { count: SectorCount(count), kind: ExtentKind::Hole };
        assert_eq!(extents(&world, &disk, all), [data(2048)]);
        act(&world, &disk, Op::Discard, range(512, 512), Flags::empty()).unwrap();
        assert_eq!(extents(&world, &disk, all), [data(512), hole(512), data(1024)]);
        assert_eq!(extents(&world, &disk, range(600, 100)), [hole(100)]);
        // Not whole blocks of the file system: the rest of the range is written.
        act(&world, &disk, Op::WriteZeroes, range(1025, 512), Flags::FUA).unwrap();
        let bytes = read(&world, &disk, range(1024, 514), PLAIN).unwrap();
        assert_eq!((&bytes[..512], &bytes[513 * 512..]), (&[5; 512][..], &[5; 512][..]));
        assert!(bytes[512..513 * 512].iter().all(|byte| *byte == 0));
        act(&world, &disk, Op::WriteZeroes, all, Flags::NO_UNMAP | Flags::FAST_ZERO).unwrap();
        assert!(read(&world, &disk, all, PLAIN).unwrap().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn zeros_are_written_where_the_file_system_cannot_zero_a_range() {
    // A memory file system can punch holes but does not support ZERO_RANGE.
    let scratch = Scratch::within(Path::new("/dev/shm"), 3 << 20);
    let disk = scratch.open();
    for world in worlds() {
        let (all, none) = (range(0, 6144), Flags::empty());
        write(&world, &disk, (all, none), vec![5; 3 << 20], PLAIN).unwrap();
        let keep = Flags::NO_UNMAP;
        let fast = act(&world, &disk, Op::WriteZeroes, all, keep | Flags::FAST_ZERO);
        assert_eq!(fast.unwrap_err().kind, ErrorKind::Unsupported);
        assert_eq!(read(&world, &disk, range(0, 1), PLAIN).unwrap(), [5; 512]);
        act(&world, &disk, Op::WriteZeroes, range(8, 6136), keep | Flags::FUA).unwrap();
        let bytes = read(&world, &disk, all, PLAIN).unwrap();
        assert!(bytes[..4096].iter().all(|byte| *byte == 5));
        assert!(bytes[4096..].iter().all(|byte| *byte == 0));
    }
}

/// Collects the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_system_that_refuses_direct_io_gets_one_warning_and_the_page_cache() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let disk = tracing::subscriber::with_default(subscriber, || {
        FileDisk::open("/proc/version", true, FileOptions::default()).unwrap()
    });
    assert!(!disk.is_direct());
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("WARN") && text.contains("/proc/version: the file system"), "{text}");
}

#[test]
fn the_page_cache_mode_writes_through_on_fua_and_flush() {
    let scratch = Scratch::of(1 << 20);
    let options = FileOptions { direct: false, image: false };
    let disk = FileDisk::open(scratch.path(), false, options).unwrap();
    assert!(!disk.is_direct());
    assert_eq!(disk.limits().logical_block, 512);
    let disk: Arc<dyn Disk> = Arc::new(disk);
    for world in worlds() {
        let odd = Shape { skew: 5, cut: Some(777), ..PLAIN };
        write(&world, &disk, (range(3, 9), Flags::FUA), vec![9; 9 * 512], odd).unwrap();
        act(&world, &disk, Op::Flush, range(0, 0), Flags::empty()).unwrap();
        assert_eq!(read(&world, &disk, range(3, 9), odd).unwrap(), [9; 9 * 512]);
    }
}

#[test]
fn a_transfer_larger_than_one_bounce_is_whole() {
    let scratch = Scratch::of(8 << 20);
    let disk = scratch.open();
    let data: Vec<u8> = (0..5u32 << 20).map(|i| (i / 251) as u8).collect();
    for world in worlds() {
        let odd = Shape { skew: 1, cut: Some(1234567), ..PLAIN };
        let at = range(8, 5 << 11);
        write(&world, &disk, (at, Flags::FUA), data.clone(), odd).unwrap();
        assert!(read(&world, &disk, at, odd).unwrap() == data);
        assert!(read(&world, &disk, at, PLAIN).unwrap() == data);
    }
}

#[test]
fn task_opens_a_file_once_and_is_refused_in_the_words_of_a_thread() {
    for world in worlds() {
        let scratch = Scratch::of(8192);
        let registry = Arc::new(Registry::new(Box::new(DeviceOpener::default())));
        let open = |path: &str| {
            let (registry, path) = (registry.clone(), path.to_owned());
            world.block_on(ReactorId(0), move |env| async move {
                registry.open_on(&env, &path, false).await
            })
        };
        let (first, second) = (open(scratch.path()).unwrap(), open(scratch.path()).unwrap());
        assert!(Arc::ptr_eq(&first, &second));
        let folder = std::env::temp_dir();
        let folder = folder.to_str().unwrap();
        let refused = registry.open(folder, false).err().unwrap().to_string();
        assert_eq!(open(folder).err().unwrap().to_string(), refused);
        assert_eq!(open("mem:1M").unwrap().sectors(), SectorCount(2048));
        drop((first, second));
        let _other = scratch.try_open(false).unwrap();
        let held = open(scratch.path()).err().unwrap();
        assert!(held.source.unwrap().is::<HeldElsewhere>(), "for who retries");
    }
}

#[test]
fn two_paths_to_one_file_are_one_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("a"), folder.path().join("b"));
    std::fs::write(&file, vec![0; 8192]).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let registry = Registry::new(Box::new(DeviceOpener::default()));
    let open = |path: &Path| registry.open(path.to_str().unwrap(), false).unwrap();
    let (first, second) = (open(&file), open(&link));
    assert!(Arc::ptr_eq(&first, &second));
    drop((first, second));
    FileDisk::open(file.to_str().unwrap(), false, FileOptions::default()).unwrap();
}

#[test]
fn a_null_disk_reads_zeros_after_writes() {
    let disk: Arc<dyn Disk> = Arc::new(NullDisk::new(SectorCount(1 << 40)));
    for world in worlds() {
        let at = range((1 << 40) - 8, 8);
        write(&world, &disk, (at, Flags::FUA), vec![1; 4096], PLAIN).unwrap();
        assert_eq!(read(&world, &disk, at, PLAIN).unwrap(), [0; 4096]);
        assert_eq!(extents(&world, &disk, at)[0].kind, ExtentKind::Hole);
    }
}

#[test]
fn a_large_memory_disk_costs_nothing_until_it_is_written() {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SectorCount(1 << 31)).unwrap());
    let [world, _] = worlds();
    let at = range((1 << 31) - 9, 9);
    let hole = |count| Extent { count: SectorCount(count), kind: ExtentKind::Hole };
    assert_eq!(extents(&world, &disk, range(0, 1 << 31)), [hole(1 << 31)]);
    write(&world, &disk, (at, Flags::empty()), vec![3; 9 * 512], PLAIN).unwrap();
    let data = Extent { count: SectorCount(128), kind: ExtentKind::Data };
    assert_eq!(extents(&world, &disk, range(0, 1 << 31)), [hole((1 << 31) - 128), data]);
    act(&world, &disk, Op::Discard, range(0, 1 << 31), Flags::empty()).unwrap();
    assert_eq!(extents(&world, &disk, range(0, 1 << 31)), [hole(1 << 31)]);
    assert_eq!(read(&world, &disk, at, PLAIN).unwrap(), [0; 9 * 512]);
}

/// Overlapping requests from all reactors: sectors are never torn.
#[test]
fn a_sector_is_never_torn_by_overlapping_requests() {
    let scratch = Scratch::of(1 << 20);
    let memory: Arc<dyn Disk> = Arc::new(MemoryDisk::new(SectorCount(2048)).unwrap());
    for disk in [memory, scratch.open()] {
        for world in worlds() {
            let (done, each_done) = std::sync::mpsc::channel();
            for writer in 0..8u8 {
                let (disk, done) = (disk.clone(), done.clone());
                world.spawn(ReactorId(u16::from(writer % 2)), move |env| async move {
                    for round in 0..40u64 {
                        let at = range((round * 37 + u64::from(writer)) % 1500, 300);
                        let segs = env.segs(at.count);
                        segs.for_each_mut(0, segs.bytes(), |bytes| bytes.fill(writer + 1));
                        env.io(&disk, Io::write(at, segs.clone())).await.unwrap();
                        env.io(&disk, Io::read(at, segs.clone())).await.unwrap();
                        for sector in segs.to_vec().chunks(512) {
                            assert!(sector.iter().all(|byte| *byte == sector[0]));
                        }
                    }
                    done.send(()).unwrap();
                });
            }
            drop(done);
            assert_eq!(each_done.iter().count(), 8);
        }
    }
}

#[test]
fn failed_requests_are_logged_by_device_and_operation_and_then_counted() {
    for world in worlds() {
        let scratch = Scratch::of(8192);
        let disk = scratch.open();
        scratch.file.as_file().set_len(4096).unwrap();
        let key = format!("{}: read failed", scratch.path());
        let counted = || world.post().log().counted(&key);
        assert_eq!(counted(), None);
        // As one transfer, and as a task over memory that direct I/O refuses.
        for (times, shape) in [(0, PLAIN), (1, PLAIN), (2, Shape { skew: 1, ..PLAIN })] {
            read(&world, &disk, range(8, 8), shape).unwrap_err();
            assert_eq!(counted(), Some(times));
        }
        read(&world, &disk, range(0, 8), PLAIN).unwrap();
        assert_eq!(counted(), Some(2), "success is not counted");
    }
}
