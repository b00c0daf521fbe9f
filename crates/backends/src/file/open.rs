//! Opening, in this order: what the path is, the descriptor, the lock, what the file can do.
//!
//! Nothing is written. A path that is neither file nor block device is refused before it is opened,
//! because opening a device node or a pipe can have effects of its own.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cairn_block::{
    ConfigError, ConfigKind, FailureCount, FlushGate, Identity, SECTOR_BYTES, SectorCount,
};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, StatxFlags, statx};
use rustix::io::Errno;

use super::OpenFile;
use super::lock;
use super::marker::SideFile;
use super::nature::{self, Sysfs};
use super::probe::{self, Kind};
use crate::handles::Handles;
use crate::held::held;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Bypass the page cache where the file system allows it; false never tries.
    pub direct: bool,
    /// It is a part of an image, and open for reading: other programs may read it too, by the locks
    /// of qemu, and a last sector that is not whole ends in zeroes. Never direct.
    pub image: bool,
}

impl FileOptions {
    /// For the files that an image consists of.
    pub(crate) const IMAGE: FileOptions = FileOptions { direct: false, image: true };
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions { direct: true, image: false }
    }
}

/// The identity of the file or block device at `path`.
pub(crate) fn identify(path: &str) -> Result<Identity, ConfigError> {
    let stat = rustix::fs::stat(path).map_err(|error| system(path, "path", error))?;
    Ok(match kind(path, &stat)? {
        Kind::File => {
            let (device, inode, birth_ns) = (stat.st_dev, stat.st_ino, birth_ns(path));
            Identity::File { device, inode, birth_ns }
        }
        Kind::Block => {
            let number = stat.st_rdev;
            Identity::Block { number, sequence: nature::sequence(Path::new("/sys"), number) }
        }
    })
}

/// When the file was created; 0 if the file system does not tell.
fn birth_ns(path: &str) -> i128 {
    let told = statx(CWD, path, AtFlags::empty(), StatxFlags::BTIME).ok();
    let told = told.filter(|told| told.stx_mask & StatxFlags::BTIME.bits() != 0);
    told.map_or(0, |told| {
        i128::from(told.stx_btime.tv_sec) * 1_000_000_000 + i128::from(told.stx_btime.tv_nsec)
    })
}

pub(super) fn open(
    path: &str,
    read_only: bool,
    (options, handles): (FileOptions, &Handles),
    failures: Arc<FailureCount>,
) -> Result<OpenFile, ConfigError> {
    let stat = rustix::fs::stat(path).map_err(|error| system(path, "path", error))?;
    // The locks of an image are shared: this process can have its own before the other one ends.
    let inherited = if options.image { None } else { handles.find(&stat, read_only) };
    let is_locked = inherited.is_some();
    let fd = match inherited {
        Some(inherited) => inherited,
        None => Arc::new(descriptor(path, kind(path, &stat)?, read_only)?),
    };
    // Check again: the path may lead to another file by now.
    let stat = rustix::fs::fstat(&fd).map_err(|error| system(path, "path", error))?;
    let kind = kind(path, &stat)?;
    match is_locked {
        true => {}
        false if options.image => lock::lock_image(path, &fd)?,
        false => lock::lock(path, &fd, read_only)?,
    }
    let direct = if options.direct { probe::enable_direct(path, &fd, &stat) } else { None };
    let limits = probe::limits(path, &fd, &stat, kind, direct)?;
    let limits = cairn_block::Limits { read_only, ..limits };
    let end = if options.image { probe::odd_end(path, &fd, kind)? } else { None };
    let sectors = match end {
        Some(end) => SectorCount(end.div_ceil(SECTOR_BYTES)),
        None => probe::sectors(path, &fd, kind, limits.logical_block)?,
    };
    let marker = SideFile::beside(path, &fd)?;
    if !options.image {
        handles.note(&fd, read_only);
    }
    Ok(OpenFile {
        fd,
        path: path.to_owned(),
        kind,
        direct,
        hole_block: probe::hole_block(&stat, kind, limits.logical_block),
        limits,
        sysfs: (kind == Kind::Block && direct.is_some())
            .then(|| Sysfs::open(Path::new("/sys"), stat.st_rdev)),
        sectors: AtomicU64::new(sectors.0),
        end,
        gate: FlushGate::new(failures),
        marker,
    })
}

fn kind(path: &str, stat: &Stat) -> Result<Kind, ConfigError> {
    let found = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => return Ok(Kind::File),
        FileType::BlockDevice => return Ok(Kind::Block),
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "something unknown",
    };
    Err(ConfigError::argument(path, "path", found, "a file or block device"))
}

fn descriptor(path: &str, kind: Kind, read_only: bool) -> Result<OwnedFd, ConfigError> {
    match (kind, read_only) {
        (Kind::File, true) => open_as(path, "open", OFlags::RDONLY),
        (Kind::File, false) => open_as(path, "open for writing", OFlags::RDWR),
        (Kind::Block, true) => {
            // The kernel takes no locks on the devices it holds, and it may write to them. The
            // exclusive open shows whether it holds this one. It is closed again at once, so that
            // several readers can have the device open.
            open_as(path, "open", OFlags::RDONLY | OFlags::EXCL)?;
            open_as(path, "open", OFlags::RDONLY)
        }
        (Kind::Block, false) => open_as(path, "open for writing", OFlags::RDWR | OFlags::EXCL),
    }
}

fn open_as(path: &str, what: &str, flags: OFlags) -> Result<OwnedFd, ConfigError> {
    let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|error| match error {
        Errno::BUSY => {
            let detail = "device: found it mounted or in other exclusive use, expected it free";
            held(path, detail)
        }
        _ => system(path, what, error),
    })
}

pub(super) fn system(path: &str, what: &str, error: Errno) -> ConfigError {
    if error == Errno::NOENT {
        let detail = "there is no file or block device of this name";
        return ConfigError::new(ConfigKind::System, path, detail);
    }
    ConfigError::new(ConfigKind::System, path, what).with_source(error)
}
