//! Images over files: what they hold, chains, locks, and damage.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_block::{
    ConfigError, ConfigKind, Disk, ExtentKind, Flags, IoError, Op, Opener, ReactorId, Registry,
    SectorCount,
};
use cairn_reactor::Reactors;
use tempfile::TempDir;

use super::{Shape, act, extents, range, read, worlds};
use crate::{DeviceOpener, FileDisk, FileOptions};

const SECTORS: u64 = 2047;

/// What the golden images hold.
fn content() -> Vec<u8> {
    let sector = |s: u64| -> Vec<u8> {
        match s % 64 {
            0..20 => vec![0; 512],
            20..40 => vec![(s * 7 % 256) as u8; 512],
            _ => (0..512).map(|j| ((s * 131 + j * j) % 256) as u8).collect(),
        }
    };
    (0..SECTORS).flat_map(sector).collect()
}

struct Images {
    folder: TempDir,
    registry: Arc<Registry>,
}

impl Images {
    /// The golden images, unpacked.
    fn golden() -> Images {
        let images = Images::none();
        for record in cairn_testkit::manifest("qcow2") {
            let name = record["image"].as_str().unwrap();
            fs::write(images.path(name), cairn_testkit::image("qcow2", name)).unwrap();
        }
        images
    }

    fn none() -> Images {
        let registry = Arc::new(Registry::new(Box::new(DeviceOpener::default())));
        Images { folder: tempfile::tempdir().unwrap(), registry }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn argument(&self, name: &str) -> String {
        format!("qcow2:{}", self.path(name).display())
    }

    fn open(&self, on: &Reactors, name: &str) -> Result<Arc<dyn Disk>, ConfigError> {
        let (registry, argument) = (self.registry.clone(), self.argument(name));
        on.block_on(ReactorId(0), move |env| async move {
            registry.open_on(&env, &argument, false).await
        })
    }

    fn refusal(&self, on: &Reactors, name: &str) -> ConfigError {
        let error = self.open(on, name).err().expect(name);
        assert!(error.device == self.argument(name) && !error.to_string().contains('\n'));
        error
    }

    /// Writes an image by hand: clusters of 512 bytes, 16 of content, one L2 table. `name` and
    /// `format` are those of its backing image.
    fn write(&self, image: &str, (name, format): (&str, &str), entries: &[(usize, u64)]) {
        let mut bytes = vec![0u8; 3 * 512];
        let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
        put(0, b"QFI\xfb\0\0\0\x03");
        put(23, &[9]);
        put(24, &8192u64.to_be_bytes());
        put(39, &[1]);
        put(40, &512u64.to_be_bytes());
        put(99, &[4]);
        put(103, &[104]);
        put(512, &1024u64.to_be_bytes());
        for (index, entry) in entries {
            put(1024 + index * 8, &entry.to_be_bytes());
        }
        if !name.is_empty() {
            put(8, &256u64.to_be_bytes());
            put(16, &(name.len() as u32).to_be_bytes());
            put(256, name.as_bytes());
        }
        if !format.is_empty() {
            put(104, &[0xe2, 0x79, 0x2a, 0xca, 0, 0, 0, format.len() as u8]);
            put(112, format.as_bytes());
        }
        // The data: cluster 3 and on.
        bytes.extend((3..8).flat_map(|cluster| [cluster; 512]));
        fs::write(self.path(image), bytes).unwrap();
    }
}

#[test]
fn images_of_every_kind_hold_what_was_stored() {
    let (images, content) = (Images::golden(), content());
    for world in worlds() {
        for record in cairn_testkit::manifest("qcow2") {
            let name = record["image"].as_str().unwrap();
            let disk = images.open(&world, name).expect(name);
            assert_eq!(disk.sectors(), SectorCount(SECTORS));
            let whole = range(0, SECTORS);
            assert!(read(&world, &disk, whole, Shape::default()).unwrap() == content, "{name}");
            let shape = Shape { skew: 3, cut: Some(777), foreign: true };
            for (start, count) in [(0, 1), (19, 3), (1000, 500), (2046, 1), (127, 130)] {
                let found = read(&world, &disk, range(start, count), shape).unwrap();
                let expected = &content[start as usize * 512..][..count as usize * 512];
                assert!(found == expected, "{name}: {start}+{count}");
            }
            let mut at = 0;
            for extent in extents(&world, &disk, whole) {
                let bytes = &content[at as usize * 512..][..extent.count.to_bytes() as usize];
                let is_hole = extent.kind == ExtentKind::Hole;
                assert!(!is_hole || bytes.iter().all(|byte| *byte == 0), "{name}: sector {at}");
                at += extent.count.0;
            }
            assert_eq!(at, SECTORS, "{name}");
        }
    }
}

#[test]
fn an_image_is_never_written() {
    let images = Images::golden();
    let before = fs::read(images.path("zstd.qcow2")).unwrap();
    let [world, _] = worlds();
    let disk = images.open(&world, "zstd.qcow2").unwrap();
    assert!(disk.limits().read_only);
    let refuses = |op| act(&world, &disk, op, range(0, 8), Flags::empty());
    assert_eq!(refuses(Op::WriteZeroes), Err(IoError::READ_ONLY));
    assert_eq!(refuses(Op::Discard), Err(IoError::READ_ONLY));
    assert_eq!(act(&world, &disk, Op::Flush, range(0, 0), Flags::empty()), Ok(()));
    assert!(fs::read(images.path("zstd.qcow2")).unwrap() == before);
}

#[test]
fn what_an_image_lacks_is_read_from_its_backing_images() {
    let images = Images::none();
    let [world, _] = worlds();
    // The base ends within a sector, and before the others.
    fs::write(images.path("base"), vec![0x77; 5 * 512 + 100]).unwrap();
    images.write("mid", ("base", "raw"), &[(1, 3 * 512), (2, 1), (6, 4 * 512)]);
    images.write("top", ("mid", "qcow2"), &[(0, 5 * 512), (1, 1), (7, 6 * 512)]);
    let disk = images.open(&world, "top").unwrap();
    let found = read(&world, &disk, range(0, 16), Shape::default()).unwrap();
    let firsts: Vec<u8> = found.chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(firsts, [5, 0, 0, 0x77, 0x77, 0x77, 4, 6, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(found[5 * 512 + 99..5 * 512 + 101], [0x77, 0]);
    let kinds = extents(&world, &disk, range(0, 16));
    let kinds: Vec<_> = kinds.iter().map(|extent| (extent.count.0, extent.kind)).collect();
    use ExtentKind::{Data, Hole};
    assert_eq!(kinds, [(1, Data), (2, Hole), (5, Data), (8, Hole)]);
}

#[test]
fn a_chain_that_is_a_loop_or_names_no_format_is_refused() {
    let images = Images::none();
    let [world, _] = worlds();
    images.write("a", ("b", "qcow2"), &[]);
    images.write("b", ("./a", "qcow2"), &[]);
    let line = images.refusal(&world, "a").to_string();
    assert!(line.contains("second time") && line.contains("without a loop"), "{line}");
    images.write("itself", ("itself", "raw"), &[]);
    assert!(images.refusal(&world, "itself").to_string().contains("second time"));
    images.write("c", ("d", ""), &[]);
    let line = images.refusal(&world, "c").to_string();
    assert!(line.contains("found none for d, expected raw or qcow2"), "{line}");
    images.write("c", ("d", "vmdk"), &[]);
    let line = images.refusal(&world, "c").to_string();
    assert!(line.contains("backing format: found vmdk for d"), "{line}");
    images.write("c", ("gone", "raw"), &[]);
    let line = images.refusal(&world, "c").to_string();
    assert!(line.contains("gone") && line.contains("no file"), "{line}");
    // A file that is no image, beneath an image.
    fs::write(images.path("d"), [1; 4096]).unwrap();
    images.write("c", ("d", "qcow2"), &[]);
    let error = images.refusal(&world, "c");
    assert_eq!(error.kind, ConfigKind::Damaged);
    assert!(error.to_string().contains("magic"), "{error}");
}

#[test]
fn an_entry_that_makes_no_sense_is_an_error_and_its_neighbours_are_read() {
    let images = Images::none();
    let [world, _] = worlds();
    let compressed = (1 << 62) | (3 * 512);
    let entries = [(0, 3 * 512), (1, 99 * 512), (2, 777), (3, compressed), (4, 8 * 512)];
    images.write("a", ("", ""), &entries);
    let disk = images.open(&world, "a").unwrap();
    let at = |sector| read(&world, &disk, range(sector, 1), Shape::default());
    assert_eq!(at(0).unwrap()[0], 3);
    for sector in [1, 3, 4] {
        assert_eq!(at(sector), Err(IoError::IO), "sector {sector}");
    }
    assert_eq!(at(5).unwrap()[0], 0);
    assert_eq!(read(&world, &disk, range(0, 6), Shape::default()), Err(IoError::IO));
}

#[test]
fn a_last_cluster_that_is_cut_short_ends_in_zeroes() {
    let images = Images::none();
    let [world, _] = worlds();
    images.write("a", ("", ""), &[(0, 3 * 512)]);
    let file = fs::OpenOptions::new().write(true).open(images.path("a")).unwrap();
    file.set_len(3 * 512 + 10).unwrap();
    let disk = images.open(&world, "a").unwrap();
    let found = read(&world, &disk, range(0, 1), Shape::default()).unwrap();
    assert_eq!((&found[..10], &found[10..]), (&[3; 10][..], &[0; 502][..]));
}

#[test]
fn an_image_has_readers_or_a_writer() {
    let images = Images::golden();
    let [world, _] = worlds();
    let path = images.path("old.qcow2");
    let file = |read_only| open_file(&path, read_only);
    let first = images.open(&world, "old.qcow2").unwrap();
    let beside = Images { folder: tempfile::tempdir().unwrap(), ..Images::none() };
    fs::hard_link(&path, beside.path("link")).unwrap();
    let second = beside.open(&world, "link").expect("another server");
    assert!(file(false).is_err(), "a writer beside readers");
    let third = file(true).expect("a reader of the image's own bytes");
    let fourth = Images::none();
    fs::hard_link(&path, fourth.path("link")).unwrap();
    drop(fourth.open(&world, "link").expect("a reader beside a reader of the whole file"));
    drop((first, second, third));
    let writer = file(false).expect("the readers are gone");
    let error = images.refusal(&world, "old.qcow2");
    assert_eq!(error.kind, ConfigKind::Busy);
    drop(writer);
    images.open(&world, "old.qcow2").expect("the writer is gone");
}

fn open_file(path: &Path, read_only: bool) -> Result<FileDisk, ConfigError> {
    FileDisk::open(path.to_str().unwrap(), read_only, FileOptions::default())
}

#[test]
fn two_names_of_one_image_are_one_disk() {
    let images = Images::golden();
    let [world, _] = worlds();
    std::os::unix::fs::symlink("old.qcow2", images.path("link")).unwrap();
    let one = images.open(&world, "old.qcow2").unwrap();
    assert!(Arc::ptr_eq(&one, &images.open(&world, "link").unwrap()));
    let opener = DeviceOpener::default();
    let raw = opener.identify(images.path("link").to_str().unwrap()).unwrap();
    assert_ne!(raw, opener.identify(&images.argument("link")).unwrap());
    for wrong in ["qcow2:", "qcow2:mem:1M", "qcow2:@vm", "qcow2:qcow2:/a", "qcow2:null:1G"] {
        let line = opener.identify(wrong).expect_err(wrong).to_string();
        assert!(line.starts_with(wrong) && line.contains("a path or a URI"), "{line}");
    }
}

#[test]
fn damage_is_an_error_or_harmless() {
    let images = Images::none();
    let [world, _] = worlds();
    let mut word = 0x2545_f491_4f6c_dd1du64;
    let mut random = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    for record in cairn_testkit::manifest("qcow2") {
        let name = record["image"].as_str().unwrap();
        let sound = cairn_testkit::image("qcow2", name);
        for round in 0..30 {
            let mut bytes = sound.clone();
            for _ in 0..1 + random() % 8 {
                let most = if random().is_multiple_of(2) { 128 } else { bytes.len() as u64 };
                let at = (random() % most) as usize;
                bytes[at] = random() as u8;
            }
            let victim = format!("{round}-{name}");
            fs::write(images.path(&victim), bytes).unwrap();
            let Ok(disk) = images.open(&world, &victim) else { continue };
            let all = range(0, disk.sectors().0.min(SECTORS));
            if all.count.0 == 0 {
                continue;
            }
            let _ = read(&world, &disk, all, Shape::default());
            let disk = disk.clone();
            let found = world
                .block_on(ReactorId(0), move |env| async move { disk.extents(&env, all).await });
            assert!(found.is_err() || found.is_ok_and(|found| !found.is_empty()), "{victim}");
        }
    }
}
