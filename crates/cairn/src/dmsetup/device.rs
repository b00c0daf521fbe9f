//! A block device of this machine's kernel: its numbers, who uses it, and the file systems on it,
//! which a suspend freezes and a resume thaws.

use std::fs::{self, DirEntry, File};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cairn_block::{ConfigError, ConfigKind, unescape_word};
use cairn_outcome::failure::{Outcome, system};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, ioctl, opcode};

/// Requests about a mounted file system (`linux/fs.h`).
const FREEZE: Opcode = opcode::read_write::<i32>(b'X', 119);
const THAW: Opcode = opcode::read_write::<i32>(b'X', 120);
/// A request about a block device.
const SET_READ_ONLY: Opcode = opcode::none(0x12, 93);

/// Major and minor number.
pub type Numbers = (u32, u32);

/// The numbers of the block device at a path; none for a file.
pub fn numbers_at(path: &Path) -> Option<Numbers> {
    let metadata = fs::metadata(path).ok()?;
    let device = metadata.rdev();
    let is_block = metadata.file_type().is_block_device();
    is_block.then(|| (rustix::fs::major(device), rustix::fs::minor(device)))
}

/// Reads `MAJOR:MINOR`.
pub fn numbers_of(word: &str) -> Option<Numbers> {
    let (major, minor) = word.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The path of the block device with these numbers.
///
/// # Errors
/// There is none.
pub fn path_of((major, minor): Numbers) -> Outcome<String> {
    let target = fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok();
    let name = target.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    name.map(|name| format!("/dev/{}", name.replace('!', "/"))).ok_or_else(|| {
        let detail = "device: found none of these numbers, expected a block device";
        ConfigError::new(ConfigKind::Argument, format!("{major}:{minor}"), detail)
    })
}

/// Makes a device read-only, or writable, for all that open it.
///
/// # Errors
/// The kernel refuses.
pub fn set_read_only(device: &Path, read_only: bool) -> Outcome<()> {
    let failed = |error| system(device.display().to_string(), "make read-only", error);
    let file = File::open(device).map_err(failed)?;
    // SAFETY: the request takes a pointer to an `int`.
    let request = unsafe { Setter::<SET_READ_ONLY, i32>::new(read_only.into()) };
    // SAFETY: see above; the file is open.
    unsafe { ioctl(file.as_fd(), request) }.map_err(|errno| failed(errno.into()))
}

/// True if the kernel refuses to write to a device.
pub fn is_read_only(device: &Path) -> bool {
    let name = device.file_name().unwrap_or_default();
    let path = Path::new("/sys/block").join(name).join("ro");
    fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
}

/// Opens a device exclusively: it is neither mounted nor held by another device, nor swap, in any
/// namespace, and stays so while the file is open. None if it is in use.
///
/// # Errors
/// It cannot be opened.
pub fn hold(device: &Path) -> Outcome<Option<File>> {
    let exclusive = OFlags::EXCL.bits().cast_signed();
    match File::options().read(true).custom_flags(exclusive).open(device) {
        // A process that has it open without holding it has mounted nothing, but may write.
        Ok(file) => Ok((open_files(device) == 1).then_some(file)),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(None),
        Err(error) => Err(system(device.display().to_string(), "open", error)),
    }
}

/// How many use a device: mounts, devices on top of it, and open files of processes.
pub fn users_of(device: &Path) -> u64 {
    let name = device.file_name().unwrap_or_default();
    let holders = fs::read_dir(Path::new("/sys/block").join(name).join("holders"));
    let holders = holders.map_or(0, |holders| holders.flatten().count());
    (holders + mounts_of(device).len() + open_files(device)) as u64
}

fn open_files(device: &Path) -> usize {
    let of_process = |entry: DirEntry| {
        let files = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        files.filter(|file| fs::read_link(file.path()).is_ok_and(|to| to == device)).count()
    };
    let is_process = |entry: &DirEntry| {
        entry.file_name().to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter(is_process).map(of_process).sum()
}

/// Where a device is mounted.
fn mounts_of(device: &Path) -> Vec<PathBuf> {
    let Some(numbers) = numbers_at(device) else { return Vec::new() };
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts_in(&table, numbers)
}

/// The mount points of a device in the kernel's table of mounts.
fn mounts_in(table: &str, numbers: Numbers) -> Vec<PathBuf> {
    let mount = |line: &str| {
        let mut words = line.split(' ').skip(2);
        let is_it = numbers_of(words.next()?) == Some(numbers);
        let place = words.nth(1)?;
        is_it.then(|| PathBuf::from(unescape_word(place)))
    };
    table.lines().filter_map(mount).collect()
}

/// Writes back the file systems on a device and has their writers wait; then writes what the kernel
/// has of the device. Two mounts of one file system are frozen once.
///
/// # Errors
/// A file system refuses: none is frozen then.
pub fn freeze(device: &Path) -> Outcome<()> {
    let freeze = |mount: &PathBuf| match control::<FREEZE>(device, mount) {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(errno) => Err(system(mount.display().to_string(), "freeze", errno.into())),
    };
    let done = mounts_of(device).iter().try_for_each(freeze).and_then(|()| flush(device));
    if done.is_err() {
        thaw(device)?;
    }
    done
}

/// Lets the file systems on a device write again.
///
/// # Errors
/// A file system refuses.
pub fn thaw(device: &Path) -> Outcome<()> {
    mounts_of(device).iter().try_for_each(|mount| match control::<THAW>(device, mount) {
        // It was not frozen.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(system(mount.display().to_string(), "thaw", errno.into())),
    })
}

/// Writes what the kernel has of a device.
///
/// # Errors
/// It cannot be written.
pub fn flush(device: &Path) -> Outcome<()> {
    let written = File::open(device).and_then(|file| file.sync_all());
    written.map_err(|error| system(device.display().to_string(), "flush", error))
}

/// Sends a request to the file system of a device, unless another one is mounted over it.
fn control<const CODE: Opcode>(device: &Path, mount: &Path) -> Result<(), Errno> {
    let refused = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let folder = File::open(mount).map_err(refused)?;
    if folder.metadata().map_err(refused)?.dev() != fs::metadata(device).map_err(refused)?.rdev() {
        return Ok(());
    }
    // SAFETY: `CODE` is one of the two requests above. They take a number, and no pointer.
    let request = unsafe { IntegerSetter::<CODE>::new_usize(0) };
    // SAFETY: see above; the file is open.
    unsafe { ioctl(folder.as_fd(), request) }
}

#[cfg(test)]
mod tests {
    use super::{mounts_in, numbers_of};
    use std::path::PathBuf;

    #[test]
    fn mounts_are_found_by_the_numbers_of_their_device() {
        let table = "22 1 43:0 / /mnt/my\\040disk rw - ext4 /dev/nbd0 rw\n\
                     23 1 43:1 / /b rw - xfs /dev/nbd1 rw\n\
                     24 22 43:0 /sub /c rw - ext4 /dev/nbd0 rw\nnonsense\n";
        assert_eq!(mounts_in(table, (43, 0)), ["/mnt/my disk", "/c"].map(PathBuf::from));
        assert!(mounts_in(table, (4, 30)).is_empty());
        assert_eq!(numbers_of("43:0:1"), None);
    }
}
