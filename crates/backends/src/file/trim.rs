//! Discard and write-zeroes.
//!
//! Both clear whole blocks of the file system: within a block the system would write zeros through
//! the page cache, where direct I/O would not see them. A discard leaves the rest of the range
//! alone; a write-zeroes writes zeros there.
//!
//! fallocate(2) on a block device is the same operation as BLKZEROOUT, except that punching a
//! hole may unmap and never falls back to writing; so files and devices take one path.

use std::ops::Range;

use cairn_block::{Flags, IoError, IoResult, SectorRange};
use rustix::io::Errno;

use super::OpenFile;
use super::probe::Kind;
use super::task::Task;

const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

impl Task {
    /// Frees the space of the range where that is possible; its contents are undefined afterwards.
    pub async fn discard(&self, range: SectorRange) -> IoResult {
        let whole = self.file.whole_blocks(range);
        let done = match self.file.kind {
            _ if whole.is_empty() => Ok(true),
            Kind::File => self.fallocate(PUNCH_HOLE, whole).await,
            Kind::Block => self.discard_device(whole).await,
        };
        // Space that could not be freed is not a failure: the contents may stay.
        done.map(|_freed| ())
    }

    async fn discard_device(&self, bytes: Range<u64>) -> Result<bool, IoError> {
        let done = self.blocking(move |file| discard_ioctl(file, bytes)).await;
        match done {
            Err(IoError::UNSUPPORTED) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Makes the range read as zero; durably with FUA.
    pub async fn write_zeroes(&self, range: SectorRange, flags: Flags) -> IoResult {
        let fast = flags.contains(Flags::FAST_ZERO);
        if fast && !self.file.limits.fast_zero {
            return Err(IoError::UNSUPPORTED);
        }
        let (all, whole) = (byte_range(range), self.file.whole_blocks(range));
        match self.clear(whole.clone(), flags).await? {
            true => {
                self.write_zeros(all.start..whole.start).await?;
                self.write_zeros(whole.end..all.end).await?;
            }
            false if fast => return Err(IoError::UNSUPPORTED),
            false => self.write_zeros(all).await?,
        }
        if flags.contains(Flags::FUA) { self.sync().await } else { Ok(()) }
    }

    /// Zeroes whole blocks without sending zeros; false if the system cannot.
    async fn clear(&self, whole: Range<u64>, flags: Flags) -> Result<bool, IoError> {
        let modes: &[i32] = match flags.contains(Flags::NO_UNMAP) {
            true => &[ZERO_RANGE],
            false => &[PUNCH_HOLE, ZERO_RANGE],
        };
        if whole.is_empty() {
            return Ok(true);
        }
        for mode in modes {
            if self.fallocate(*mode, whole.clone()).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// False if the file system does not support this.
    async fn fallocate(&self, mode: i32, bytes: Range<u64>) -> Result<bool, IoError> {
        const UNSUPPORTED: i32 = -libc::EOPNOTSUPP;
        const UNKNOWN: i32 = -libc::ENOSYS;
        const INTERRUPTED: i32 = -libc::EINTR;
        let len = bytes.end - bytes.start;
        loop {
            match self.driver.fallocate(&self.file.fd, mode, bytes.start, len).await {
                0.. => return Ok(true),
                UNSUPPORTED | UNKNOWN => return Ok(false),
                INTERRUPTED => {}
                error => return Err(self.refused(error)),
            }
        }
    }
}

impl OpenFile {
    /// The part of the range that consists of whole blocks; empty, at the range's start, if there
    /// is none.
    fn whole_blocks(&self, range: SectorRange) -> Range<u64> {
        whole_blocks(byte_range(range), self.hole_block)
    }
}

fn byte_range(range: SectorRange) -> Range<u64> {
    range.start.to_bytes()..range.end().to_bytes()
}

fn whole_blocks(bytes: Range<u64>, block: u64) -> Range<u64> {
    let (start, end) = (bytes.start.next_multiple_of(block), bytes.end - bytes.end % block);
    if start < end { start..end } else { bytes.start..bytes.start }
}

fn discard_ioctl(file: &OpenFile, bytes: Range<u64>) -> Result<(), Errno> {
    const BLKDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);
    let span = [bytes.start, bytes.end - bytes.start];
    // SAFETY: BLKDISCARD reads two 64-bit numbers, offset and length, and writes nothing.
    let discard = unsafe { rustix::ioctl::Setter::<BLKDISCARD, [u64; 2]>::new(span) };
    // SAFETY: the descriptor is an exclusively held block device; the range lies within it.
    unsafe { rustix::ioctl::ioctl(&file.fd, discard) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks_are_cleared() {
        assert_eq!(whole_blocks(0..8192, 4096), 0..8192);
        assert_eq!(whole_blocks(512..8704, 4096), 4096..8192);
        assert_eq!(whole_blocks(512..4096, 4096), 512..512);
        assert_eq!(whole_blocks(512..8191, 4096), 512..512);
        assert_eq!(whole_blocks(1024..2048, 512), 1024..2048);
    }
}
