//! What a block device is made of: its folder in sysfs tells.
//!
//! Whether it has a volatile cache is read each time, because that can be switched at any time
//! (`hdparm -W`). Where it says "write through" the kernel itself sends no flush.

use std::fs::File;
use std::path::{Path, PathBuf};

use cairn_block::{Nature, SectorCount, Shape};

/// The folder of one open block device.
pub(super) struct Sysfs {
    write_cache: Option<File>,
    /// What does not change while it is open.
    fixed: Nature,
}

impl Sysfs {
    /// Of the block device `rdev`, in the sysfs at `root`; what it does not tell is unknown.
    pub fn open(root: &Path, rdev: u64) -> Sysfs {
        let device = folder(root, rdev);
        // A partition has the queue of its disk, one folder up.
        let is_whole = device.join("queue").is_dir();
        let disk = if is_whole { device } else { device.join("..") };
        let rotational = match word(&disk, "queue/rotational").as_deref() {
            Some("0") => Some(false),
            Some("1") => Some(true),
            _ => None,
        };
        let shape = shape(&disk);
        let write_cache = File::open(disk.join("queue/write_cache")).ok();
        Sysfs { write_cache, fixed: Nature { rotational, shape, ..Nature::UNKNOWN } }
    }

    /// What it is made of now.
    pub fn nature(&self) -> Nature {
        let mut text = [0; 32];
        let read = self.write_cache.as_ref().map(|file| rustix::io::pread(file, &mut text, 0));
        let is_durable =
            matches!(read, Some(Ok(len)) if text[..len].trim_ascii() == b"write through");
        Nature { volatile: !is_durable, ..self.fixed }
    }
}

/// What the kernel has counted of the devices that it attached when it attached `rdev`, in the
/// sysfs at `root`. 0 if it does not tell, as before 5.15.
pub(super) fn sequence(root: &Path, rdev: u64) -> u64 {
    let device = folder(root, rdev);
    // A partition has that of its disk.
    let found = word(&device, "diskseq").or_else(|| word(&device.join(".."), "diskseq"));
    found.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The folder of a block device.
fn folder(root: &Path, rdev: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    root.join(format!("dev/block/{major}:{minor}"))
}

/// The first word of an attribute.
fn word(folder: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(folder.join(name)).ok()?;
    text.split_whitespace().next().map(str::to_owned)
}

fn shape(disk: &Path) -> Shape {
    let Some(level) = word(disk, "md/level") else {
        // What stands for hardware leads to it.
        let is_hardware = disk.join("device").exists();
        return if is_hardware { Shape::Single } else { Shape::Unknown };
    };
    let number = |name| word(disk, name)?.parse::<u64>().ok();
    let chunk = number("md/chunk_size").filter(|&bytes| bytes > 0).map(SectorCount::of_bytes);
    let parity = match level.as_str() {
        "linear" => return Shape::Linear,
        "raid1" => return Shape::Single,
        "raid0" => return chunk.map_or(Shape::Unknown, |chunk| Shape::Striped { chunk }),
        "raid4" | "raid5" => 1,
        "raid6" => 2,
        _ => return Shape::Unknown,
    };
    let members = number("md/raid_disks").and_then(|members| u32::try_from(members).ok());
    match (chunk, members.and_then(|members| members.checked_sub(parity))) {
        (Some(chunk), Some(data_members)) if data_members > 0 => {
            Shape::Parity { chunk, data_members }
        }
        _ => Shape::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the attributes of a device into a folder of a sysfs.
    fn device(root: &Path, number: &str, attributes: &[(&str, &str)]) {
        for (name, text) in attributes {
            let path = root.join("dev/block").join(number).join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    fn nature(root: &Path, major: u32, minor: u32) -> Nature {
        Sysfs::open(root, rustix::fs::makedev(major, minor)).nature()
    }

    #[test]
    fn a_drive_tells_rotation_and_its_cache_each_time() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let at = |cache| {
            [("queue/rotational", "1"), ("queue/write_cache", cache), ("device/model", "disk")]
        };
        device(root, "8:0", &at("write through"));
        let sysfs = Sysfs::open(root, rustix::fs::makedev(8, 0));
        let durable = Nature { rotational: Some(true), volatile: false, shape: Shape::Single };
        assert_eq!(sysfs.nature(), durable);
        device(root, "8:0", &at("write back"));
        assert_eq!(sysfs.nature(), Nature { volatile: true, ..durable }, "it was switched on");
    }

    #[test]
    fn a_partition_has_the_nature_of_its_disk() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let attributes = [("queue/rotational", "0"), ("queue/write_cache", "write through")];
        device(root, "8:0", &attributes);
        device(root, "8:0/sda1", &[("partition", "1")]);
        let link = root.join("dev/block/8:1");
        std::os::unix::fs::symlink("8:0/sda1", link).unwrap();
        let expected = Nature { rotational: Some(false), volatile: false, shape: Shape::Unknown };
        assert_eq!(nature(root, 8, 1), expected);
    }

    #[test]
    fn a_device_and_its_partition_have_a_sequence_number_if_the_system_tells() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        device(root, "8:0", &[("diskseq", "26")]);
        device(root, "8:0/sda1", &[("partition", "1")]);
        std::os::unix::fs::symlink("8:0/sda1", root.join("dev/block/8:1")).unwrap();
        device(root, "8:16", &[("queue/rotational", "0")]);
        device(root, "7:0", &[("diskseq", "-")]);
        let found = [(8, 0), (8, 1), (8, 16), (7, 0), (9, 9)]
            .map(|(major, minor)| sequence(root, rustix::fs::makedev(major, minor)));
        assert_eq!(found, [26, 26, 0, 0, 0]);
    }

    #[test]
    fn an_array_tells_its_shape() {
        let (chunk, data_members) = (SectorCount(1024), 3);
        for (minor, (level, shape)) in [
            ("raid0", Shape::Striped { chunk }),
            ("raid1", Shape::Single),
            ("raid4", Shape::Parity { chunk, data_members }),
            ("raid5", Shape::Parity { chunk, data_members }),
            ("raid6", Shape::Parity { chunk, data_members: 2 }),
            ("linear", Shape::Linear),
            ("raid10", Shape::Unknown),
        ]
        .into_iter()
        .enumerate()
        {
            let root = tempfile::tempdir().unwrap();
            let disks = "4 (3)";
            let chunk = "524288";
            let md = [("md/level", level), ("md/chunk_size", chunk), ("md/raid_disks", disks)];
            device(root.path(), &format!("9:{minor}"), &md);
            device(root.path(), &format!("9:{minor}"), &[("queue/rotational", "0")]);
            let found = nature(root.path(), 9, minor as u32);
            assert_eq!(found, Nature { rotational: Some(false), volatile: true, shape }, "{level}");
        }
    }

    #[test]
    fn what_sysfs_does_not_tell_is_unknown_and_volatile() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(nature(root.path(), 1, 2), Nature::UNKNOWN);
        device(root.path(), "1:3", &[("queue/write_cache", "something new")]);
        assert_eq!(nature(root.path(), 1, 3), Nature::UNKNOWN);
    }
}
