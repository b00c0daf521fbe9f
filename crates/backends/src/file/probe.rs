//! What an open file supports: alignment of direct I/O, block sizes, operations, size.

use std::os::fd::OwnedFd;

use cairn_block::{ConfigError, Limits, SECTOR_BYTES, SectorCount};
use rustix::fs::{AtFlags, FileType, OFlags, SeekFrom, Stat, StatxFlags};

use super::open::system;

const SECTOR: u32 = SECTOR_BYTES as u32;
/// The largest alignment that requests can have: that of our buffers.
const ALIGN_MAX: u32 = cairn_block::BUF_ALIGN as u32;
/// STATX_DIOALIGN, Linux 6.1.
const DIRECT_ALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);

/// What is behind the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A regular file.
    File,
    /// A block device.
    Block,
}

/// What direct I/O on a file needs, in bytes; powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectIo {
    /// Memory addresses are multiples of this.
    pub memory: u32,
    /// Offsets and lengths are multiples of this, the length of each piece too.
    pub block: u32,
}

impl DirectIo {
    /// True if memory of this shape can be used without a copy.
    pub fn takes(self, mut pieces: impl Iterator<Item = (*mut u8, usize)>) -> bool {
        pieces.all(|(ptr, len)| {
            (ptr as usize).is_multiple_of(self.memory as usize)
                && len.is_multiple_of(self.block as usize)
        })
    }
}

/// Switches the page cache off for `fd`, or logs why it stays in use.
pub(super) fn enable_direct(path: &str, fd: &OwnedFd, stat: &Stat) -> Option<DirectIo> {
    let direct = try_direct(fd, stat);
    if let Err(reason) = &direct {
        tracing::warn!(
            "{path}: {reason}; using the page cache (slower; a flush is still a real fdatasync)"
        );
        // Clears the flag that may have been set; should that fail, later transfers fail.
        let _ = set_direct(fd, false);
    }
    direct.ok()
}

fn try_direct(fd: &OwnedFd, stat: &Stat) -> Result<DirectIo, &'static str> {
    set_direct(fd, true).map_err(|_| "the file system refuses direct I/O (O_DIRECT)")?;
    let told = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, DIRECT_ALIGN).ok();
    let told = told.filter(|told| told.stx_mask & DIRECT_ALIGN.bits() != 0);
    let told = told.map(|told| (told.stx_dio_mem_align, told.stx_dio_offset_align));
    direct_needs(told, |align| trial_read(fd, stat, align))
}

fn set_direct(fd: &OwnedFd, direct: bool) -> rustix::io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(fd)?;
    flags.set(OFlags::DIRECT, direct);
    rustix::fs::fcntl_setfl(fd, flags)
}

/// What direct I/O needs: as the system tells (memory, offset; 0 = refused), or by trial if it
/// tells nothing.
fn direct_needs(
    told: Option<(u32, u32)>,
    trial: impl Fn(u32) -> bool,
) -> Result<DirectIo, &'static str> {
    match told {
        Some((0, _) | (_, 0)) => Err("the file system refuses direct I/O on this file"),
        Some((memory, block)) if memory.max(block) > ALIGN_MAX => {
            Err("direct I/O on this file needs an alignment beyond 4096 bytes")
        }
        Some((memory, block)) => Ok(DirectIo { memory, block: block.max(SECTOR) }),
        None => [SECTOR, ALIGN_MAX]
            .into_iter()
            .find(|align| trial(*align))
            .map(|align| DirectIo { memory: align, block: align })
            .ok_or("the file system accepts O_DIRECT but refuses to read so"),
    }
}

/// Whether direct I/O can read `align` bytes into memory aligned to exactly `align`.
fn trial_read(fd: &OwnedFd, stat: &Stat, align: u32) -> bool {
    // A read beyond the end proves nothing, but the largest alignment is always sufficient.
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if is_file && (stat.st_size as u64) < u64::from(align) {
        return align == ALIGN_MAX;
    }
    let mut memory = vec![0u8; 3 * ALIGN_MAX as usize];
    let start = memory.as_ptr().align_offset(ALIGN_MAX as usize) + align as usize;
    rustix::io::pread(fd, &mut memory[start..start + align as usize], 0).is_ok()
}

/// The size now, in whole logical blocks.
pub(super) fn sectors(
    path: &str,
    fd: &OwnedFd,
    kind: Kind,
    logical_block: u32,
) -> Result<SectorCount, ConfigError> {
    let bytes = bytes(path, fd, kind)?;
    Ok(SectorCount::of_bytes(bytes - bytes % u64::from(logical_block)))
}

/// The byte at which a file ends, if its last sector is not whole.
pub(super) fn odd_end(path: &str, fd: &OwnedFd, kind: Kind) -> Result<Option<u64>, ConfigError> {
    let bytes = bytes(path, fd, kind)?;
    Ok(Some(bytes).filter(|bytes| !bytes.is_multiple_of(SECTOR_BYTES)))
}

fn bytes(path: &str, fd: &OwnedFd, kind: Kind) -> Result<u64, ConfigError> {
    let bytes = match kind {
        Kind::File => rustix::fs::fstat(fd).map(|stat| stat.st_size as u64),
        Kind::Block => rustix::fs::seek(fd, SeekFrom::End(0)),
    };
    bytes.map_err(|error| system(path, "size", error))
}

/// Block sizes and supported operations.
pub(super) fn limits(
    path: &str,
    fd: &OwnedFd,
    stat: &Stat,
    kind: Kind,
    direct: Option<DirectIo>,
) -> Result<Limits, ConfigError> {
    let needed = direct.map_or(SECTOR, |direct| direct.block);
    match kind {
        Kind::File => Ok(file_limits(stat, needed)),
        Kind::Block => block_limits(path, fd, stat, needed),
    }
}

fn file_limits(stat: &Stat, logical_block: u32) -> Limits {
    let preferred = u32::try_from(stat.st_blksize).unwrap_or(ALIGN_MAX);
    let physical_block = preferred.clamp(logical_block, ALIGN_MAX.max(logical_block));
    Limits {
        logical_block,
        physical_block,
        io_min: physical_block,
        io_opt: if preferred > physical_block { preferred } else { 0 },
        discard: true,
        fast_zero: true,
        read_only: false,
        stable_data: false,
    }
}

fn block_limits(path: &str, fd: &OwnedFd, stat: &Stat, needed: u32) -> Result<Limits, ConfigError> {
    let refused = |error| system(path, "block size", error);
    let logical_block = rustix::fs::ioctl_blksszget(fd).map_err(refused)?.max(needed);
    let physical_block = rustix::fs::ioctl_blkpbszget(fd).map_err(refused)?.max(logical_block);
    let queue = Queue::of(stat);
    let io_min = queue.number("minimum_io_size").unwrap_or(0);
    Ok(Limits {
        logical_block,
        physical_block,
        io_min: u32::try_from(io_min).unwrap_or(0).max(physical_block),
        io_opt: queue.number("optimal_io_size").and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        discard: queue.number("discard_max_bytes").is_none_or(|bytes| bytes > 0),
        fast_zero: queue.number("write_zeroes_max_bytes").is_some_and(|bytes| bytes > 0),
        read_only: false,
        stable_data: false,
    })
}

/// A block device's queue attributes in sysfs; those of a partition are its disk's.
struct Queue(String);

impl Queue {
    fn of(stat: &Stat) -> Queue {
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        Queue(format!("/sys/dev/block/{major}:{minor}"))
    }

    fn number(&self, attribute: &str) -> Option<u64> {
        let read = |queue| std::fs::read_to_string(format!("{}/{queue}/{attribute}", self.0));
        let text = read("queue").or_else(|_| read("../queue")).ok()?;
        text.trim().parse().ok()
    }
}

/// The size of the blocks that holes consist of: for a file, those of its file system.
pub(super) fn hole_block(stat: &Stat, kind: Kind, logical_block: u32) -> u64 {
    let preferred = u64::try_from(stat.st_blksize).unwrap_or(0);
    match kind {
        Kind::File if preferred.is_power_of_two() => preferred.max(u64::from(logical_block)),
        _ => u64::from(logical_block),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_io_alignment_told_by_the_system_is_used() {
        let untried = |_| panic!("no trial is needed");
        let needs = |memory, block| direct_needs(Some((memory, block)), untried);
        assert_eq!(needs(4, 512), Ok(DirectIo { memory: 4, block: 512 }));
        assert_eq!(needs(512, 4096), Ok(DirectIo { memory: 512, block: 4096 }));
        assert_eq!(needs(1, 1), Ok(DirectIo { memory: 1, block: 512 }));
        assert!(needs(0, 0).is_err());
        assert!(needs(512, 65536).is_err());
    }

    #[test]
    fn untold_direct_io_alignment_is_the_smallest_block_that_works() {
        let both = |align| DirectIo { memory: align, block: align };
        assert_eq!(direct_needs(None, |_| true), Ok(both(512)));
        assert_eq!(direct_needs(None, |align| align == 4096), Ok(both(4096)));
        assert!(direct_needs(None, |_| false).is_err());
    }

    #[test]
    fn a_piece_with_an_odd_address_or_length_is_not_taken() {
        let direct = DirectIo { memory: 4, block: 512 };
        let at = |address: usize, len| std::iter::once((address as *mut u8, len));
        assert!(direct.takes(at(4, 1024)));
        assert!(!direct.takes(at(6, 1024)));
        assert!(!direct.takes(at(4, 1000)));
        assert!(!direct.takes(at(0, 512).chain(at(4096, 100))));
    }
}
