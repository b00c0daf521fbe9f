//! Data and holes of a file, by SEEK_DATA and SEEK_HOLE on a helper thread.
//!
//! Data is widened to whole logical blocks: a range reported as a hole contains no data.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{Env, Extent, ExtentKind, IoError, SectorCount, SectorRange};
use cairn_reactor::Driver;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::OpenFile;

/// Limit on the extents of one answer; a caller that needs the rest asks again.
const EXTENTS_MAX: usize = 1024;

pub(super) async fn of_file(
    env: &Env,
    file: Arc<OpenFile>,
    range: SectorRange,
) -> Result<Vec<Extent>, IoError> {
    let bytes = range.start.to_bytes()..range.end().to_bytes();
    let answer = Arc::new(Mutex::new(Vec::new()));
    let out = answer.clone();
    let work = move || {
        let found = scan(bytes, u64::from(file.limits.logical_block), |pos| seek(&file.fd, pos));
        *out.lock() = found;
        0
    };
    match Driver::of(env).run(work).await {
        0.. => Ok(std::mem::take(&mut *answer.lock())),
        error => Err(IoError::from_errno(error)),
    }
}

/// Where data or a hole begins, at or after a position; `None`: nowhere. This moves the file
/// offset, which nothing uses: all transfers give theirs.
fn seek(fd: &OwnedFd, to: SeekFrom) -> Option<u64> {
    match rustix::fs::seek(fd, to) {
        Ok(found) => Some(found),
        Err(Errno::NXIO) => None,
        // A file system that cannot tell: everything is data.
        Err(_) => match to {
            SeekFrom::Data(pos) => Some(pos),
            _ => None,
        },
    }
}

fn scan(bytes: Range<u64>, block: u64, seek: impl Fn(SeekFrom) -> Option<u64>) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut push = |len: u64, kind| {
        let count = SectorCount::of_bytes(len);
        match extents.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.kind == kind => last.count += count,
            _ => extents.push(Extent { count, kind }),
        }
        extents.len()
    };
    let mut pos = bytes.start;
    while pos < bytes.end {
        let data = seek(SeekFrom::Data(pos)).unwrap_or(bytes.end).clamp(pos, bytes.end);
        let data_start = (data - data % block).max(pos);
        let found = push(data_start - pos, ExtentKind::Hole);
        if data == bytes.end || found >= EXTENTS_MAX {
            break;
        }
        let hole = seek(SeekFrom::Hole(data)).unwrap_or(bytes.end).max(data + 1);
        let data_end = hole.next_multiple_of(block).min(bytes.end);
        push(data_end - data_start, ExtentKind::Data);
        pos = data_end;
    }
    extents
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeks in a file of 100 blocks that holds data in these ranges.
    fn of<'a>(data: &'a [Range<u64>]) -> impl Fn(SeekFrom) -> Option<u64> + 'a {
        move |to| match to {
            SeekFrom::Data(pos) => data.iter().find(|d| d.end > pos).map(|d| d.start.max(pos)),
            SeekFrom::Hole(pos) => {
                Some(data.iter().find(|d| d.contains(&pos)).map_or(pos, |data| data.end))
            }
            _ => None,
        }
    }

    fn scanned(bytes: Range<u64>, block: u64, data: &[Range<u64>]) -> Vec<(u64, ExtentKind)> {
        let extents = scan(bytes, block, of(data));
        extents.into_iter().map(|extent| (extent.count.to_bytes(), extent.kind)).collect()
    }

    #[test]
    fn data_and_holes_cover_the_range_in_order() {
        use ExtentKind::{Data, Hole};
        let data = [4096..8192, 16384..20480];
        assert_eq!(
            scanned(0..32768, 512, &data),
            [(4096, Hole), (4096, Data), (8192, Hole), (4096, Data), (12288, Hole)]
        );
        assert_eq!(scanned(5120..6144, 512, &data), [(1024, Data)]);
        assert_eq!(scanned(8192..16384, 512, &data), [(8192, Hole)]);
        assert_eq!(scanned(0..4096, 512, &[]), [(4096, Hole)]);
    }

    #[test]
    fn data_is_widened_to_logical_blocks() {
        use ExtentKind::{Data, Hole};
        let data = [4608..5120, 6144..6656];
        assert_eq!(scanned(0..16384, 4096, &data), [(4096, Hole), (4096, Data), (8192, Hole)]);
    }
}
