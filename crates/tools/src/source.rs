//! A device open for a tool: locked, and read at byte offsets.
//!
//! Each open asks for a dirty marker ([`cairn_block::dirty_marker`]), so that no tool forgets it. A
//! device of which a cache has newer data is not written, and who reads it is warned.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use cairn_backends::{FileDisk, FileOptions, patiently, standing_marker};
use cairn_block::{ConfigError, ConfigKind, Disk, SECTOR_BYTES};
use cairn_format::probe::blank::{Area, Verdict};
use cairn_format::probe::{self, Signature};
use cairn_outcome::failure::{Outcome, system, wrong};
use rustix::fs::OFlags;

/// True if the first 4 KiB are what an interrupted format of the same kind leaves.
pub type OwnRemainder = fn(&[u8]) -> bool;

/// Refuses a device that is not blank; `way_on` ends the error line and says what to do.
///
/// # Errors
/// It is not blank.
pub fn refuse_unless_blank(name: &str, found: &Verdict, way_on: &str) -> Outcome<()> {
    match found {
        Verdict::Blank => Ok(()),
        found => {
            let detail = format!("not blank: found {found}; {way_on}");
            Err(ConfigError::new(ConfigKind::Argument, name, detail))
        }
    }
}

/// The size of an optional second device, such as an origin.
///
/// # Errors
/// It cannot be opened.
pub fn sectors(device: Option<&Path>) -> Outcome<Option<u64>> {
    let device = device.map(Source::read).transpose()?;
    Ok(device.map(|device| device.bytes / SECTOR_BYTES))
}

/// A device open for reading, or for writing.
pub struct Source {
    /// The name that the user gave.
    pub name: String,
    /// Its size in whole sectors, in bytes; of an image, all of it.
    pub bytes: u64,
    file: File,
    /// Reads bypass the page cache.
    direct: bool,
    /// Holds the lock, if there is one.
    disk: Option<FileDisk>,
}

impl Source {
    /// Opens for reading, under a shared lock.
    ///
    /// # Errors
    /// There is none, or another process writes it.
    pub fn read(path: &Path) -> Outcome<Source> {
        Source::open(path, true, false)
    }

    /// Opens an image for reading, under the locks of qemu: its programs may read it, too.
    ///
    /// # Errors
    /// There is none, or another process writes it.
    pub fn read_image(path: &Path) -> Outcome<Source> {
        Source::open(path, true, true)
    }

    /// Opens for writing, under an exclusive lock.
    ///
    /// # Errors
    /// There is none, or another process uses it.
    pub fn write(path: &Path) -> Outcome<Source> {
        Source::open(path, false, false)
    }

    /// Opens for reading without a lock, while another process may write: only for blocks that the
    /// writer does not change. Reads bypass the page cache, since the kernel writes metadata past
    /// it and it may hold older content. A file system without direct I/O has no writes past the
    /// cache.
    ///
    /// # Errors
    /// There is none, or the system refused.
    pub fn read_beside(path: &Path) -> Outcome<Source> {
        let name = path.display().to_string();
        let (file, direct) = match open_direct(path) {
            Some(file) => (file, true),
            None => (File::open(path).map_err(|error| system(&name, "open", error))?, false),
        };
        ask_for_marker(&name, &file, true)?;
        let end = (&file).seek(SeekFrom::End(0));
        let bytes = end.map_err(|error| system(&name, "find the size", error))?;
        let bytes = bytes / SECTOR_BYTES * SECTOR_BYTES;
        Ok(Source { name, bytes, file, direct, disk: None })
    }

    /// Creates a sparse file of this size and opens it for writing.
    ///
    /// # Errors
    /// The path exists, or the system refused; a file that was created is removed.
    pub fn create(path: &Path, bytes: u64) -> Outcome<Source> {
        let name = path.display().to_string();
        let made = OpenOptions::new().write(true).create_new(true).open(path);
        let file = made.map_err(|error| system(&name, "create", error))?;
        let sized = file.set_len(bytes).map_err(|error| system(&name, "set the size", error));
        let source = sized.and_then(|()| Source::write(path));
        if source.is_err() {
            // Remove the incomplete file; the first error is the one to return.
            drop(std::fs::remove_file(path));
        }
        source
    }

    fn open(path: &Path, read_only: bool, image: bool) -> Outcome<Source> {
        let name = path.display().to_string();
        let Some(text) = path.to_str() else {
            return Err(wrong(name, "path", "bytes that are no UTF-8", "UTF-8"));
        };
        let disk =
            patiently(|| FileDisk::open(text, read_only, FileOptions { direct: false, image }))?;
        let file = OpenOptions::new().read(true).write(!read_only).open(path);
        let file = file.map_err(|error| system(&name, "open", error))?;
        ask_for_marker(text, &file, read_only)?;
        let bytes = match image {
            // An image ends at any byte.
            true => (&file)
                .seek(SeekFrom::End(0))
                .map_err(|error| system(&name, "find the size", error))?,
            false => disk.sectors().to_bytes(),
        };
        Ok(Source { name, bytes, file, direct: false, disk: Some(disk) })
    }

    /// Bytes of the smallest write that the device takes.
    pub fn logical_block(&self) -> u32 {
        self.disk.as_ref().map_or(SECTOR_BYTES as u32, |disk| disk.limits().logical_block)
    }

    /// Bytes from a sector to the end.
    ///
    /// # Errors
    /// The sector lies beyond the end.
    pub fn area_bytes(&self, start_sector: u64) -> Outcome<u64> {
        let start = start_sector.checked_mul(SECTOR_BYTES);
        start.and_then(|start| self.bytes.checked_sub(start)).ok_or_else(|| {
            let expected = format!("at most {}", self.bytes / SECTOR_BYTES);
            wrong(&self.name, "--start-sector", start_sector, expected)
        })
    }

    /// Reads `len` bytes at `offset`.
    ///
    /// # Errors
    /// The system refused.
    pub fn bytes_at(&self, offset: u64, len: usize) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.read_into(offset, &mut bytes);
        read.map_err(|error| self.failed(&format!("read {len} bytes at {offset}"), error))?;
        Ok(bytes)
    }

    /// Fills a buffer from `offset` on. The error is the system's; the caller adds the context.
    ///
    /// # Errors
    /// The system refused.
    pub fn read_into(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match self.direct {
            true => read_direct(&self.file, offset, bytes),
            false => self.file.read_exact_at(bytes, offset),
        }
    }

    /// Sets the size of the file.
    ///
    /// # Errors
    /// The system refused.
    pub fn set_size(&mut self, bytes: u64) -> Outcome<()> {
        self.file.set_len(bytes).map_err(|error| self.failed("set the size", error))?;
        self.bytes = bytes;
        Ok(())
    }

    /// Writes at `offset`.
    ///
    /// # Errors
    /// The system refused.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(|error| self.failed(&format!("write at {offset}"), error))
    }

    /// Makes all writes durable.
    ///
    /// # Errors
    /// The system refused.
    pub fn flush(&self) -> Outcome<()> {
        self.file.sync_data().map_err(|error| self.failed("flush", error))
    }

    /// Every signature from `start_sector` on.
    ///
    /// # Errors
    /// The system refused to read.
    pub fn identify(&self, start_sector: u64) -> Outcome<Vec<Signature>> {
        let (area, start) = (self.area_bytes(start_sector)?, start_sector * SECTOR_BYTES);
        let mut pieces = Vec::new();
        for window in probe::windows(area) {
            let len = usize::try_from(window.end - window.start).unwrap_or(usize::MAX);
            pieces.push((window.start, self.bytes_at(start + window.start, len)?));
        }
        let views: Vec<_> = pieces.iter().map(|(at, bytes)| (*at, bytes.as_slice())).collect();
        Ok(probe::identify(area, &views).expect("every window was read"))
    }

    /// Decides whether the range from `start_sector` on is blank.
    ///
    /// # Errors
    /// The sector lies beyond the end, or the system refused to read.
    pub fn judge(&self, start_sector: u64, is_own_remainder: OwnRemainder) -> Outcome<Verdict> {
        let area = self.area(start_sector)?.or_own_remainder(is_own_remainder);
        let mut pieces = Vec::new();
        for window in area.windows() {
            let len = usize::try_from(window.end - window.start).unwrap_or(usize::MAX);
            pieces.push((window.start, self.bytes_at(window.start, len)?));
        }
        let views: Vec<_> = pieces.iter().map(|(at, bytes)| (*at, bytes.as_slice())).collect();
        Ok(area.judge(&views).expect("every window was read"))
    }

    /// Makes the range from `start_sector` on blank, durably: zeros its first 4 KiB and every place
    /// where the probe finds a signature.
    ///
    /// # Errors
    /// The sector lies beyond the end, or the system refused to write.
    pub fn make_blank(&self, start_sector: u64) -> Outcome<()> {
        for window in self.area(start_sector)?.windows_within() {
            let len = usize::try_from(window.end - window.start).unwrap_or(usize::MAX);
            self.write_at(window.start, &vec![0; len])?;
        }
        self.flush()
    }

    fn area(&self, start_sector: u64) -> Outcome<Area> {
        self.area_bytes(start_sector)?;
        Ok(Area::new(self.bytes, start_sector * SECTOR_BYTES))
    }

    fn failed(&self, what: &str, error: std::io::Error) -> ConfigError {
        system(&self.name, what, error)
    }
}

/// Refuses a device of which a cache has newer data, or warns if it is only read.
fn ask_for_marker(name: &str, file: &File, read_only: bool) -> Outcome<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match standing_marker(name, file) {
        Ok(None) => {}
        Ok(Some(marker)) if read_only => {
            let marker = marker.describe(now);
            tracing::warn!("{name}: lacks data that a cache has: dirty marker {marker}");
        }
        Ok(Some(marker)) => return Err(marker.refusal_alone(name, now)),
        Err(error) if read_only => tracing::warn!("{error}"),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Alignment of the addresses, offsets and lengths of direct reads.
const DIRECT_ALIGN: usize = 4096;

/// Opens for direct reads; `None` if the file system has none.
fn open_direct(path: &Path) -> Option<File> {
    let flags = OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    match read_direct(&file, 0, &mut [0]) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => None,
        _ => Some(file),
    }
}

/// Fills a buffer of any alignment and length.
fn read_direct(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    let begin = offset - offset % DIRECT_ALIGN as u64;
    let skipped = (offset - begin) as usize;
    let wanted = skipped + bytes.len();
    let len = wanted.next_multiple_of(DIRECT_ALIGN);
    let mut memory = vec![0; len + DIRECT_ALIGN];
    let start = memory.as_ptr().align_offset(DIRECT_ALIGN);
    let aligned = &mut memory[start..start + len];
    let mut done = 0;
    while done < wanted {
        match file.read_at(&mut aligned[done..], begin + done as u64) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => done += len,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.copy_from_slice(&aligned[skipped..wanted]);
    Ok(())
}

/// True if the open file is the one that the path names.
pub fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(found)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    let block = open.file_type().is_block_device() && found.file_type().is_block_device();
    match block {
        true => open.rdev() == found.rdev(),
        false => (open.dev(), open.ino()) == (found.dev(), found.ino()),
    }
}

/// Makes the directory entry of a file durable.
///
/// # Errors
/// The system refused.
pub fn sync_folder(path: &Path) -> Outcome<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| system(folder.display().to_string(), "flush", error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use cairn_testkit::FailingFiles;

    use super::Source;

    #[test]
    fn what_is_read_beside_a_writer_is_the_same_from_any_byte_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let all: Vec<u8> = (0..20 * 512u32).map(|byte| (byte % 251) as u8).collect();
        fs::write(&path, &all).unwrap();
        let source = Source::read_beside(&path).unwrap();
        for (offset, len) in [(0, 1), (0, all.len()), (511, 4097), (4096, 4096), (8191, 2049)] {
            let read = source.bytes_at(offset as u64, len).unwrap();
            assert_eq!(read, all[offset..offset + len], "{len} bytes at {offset}");
        }
        assert!(source.bytes_at(8192, 2049).is_err());
    }

    #[test]
    fn what_is_made_blank_is_zero_where_signatures_are_looked_for_and_nowhere_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut bytes = vec![0; 1 << 20];
        bytes[100..108].copy_from_slice(b"not mine");
        bytes[4096 + 32769..][..5].copy_from_slice(b"CD001");
        bytes[(1 << 20) - 512..][..8].copy_from_slice(b"EFI PART");
        fs::write(&path, &bytes).unwrap();
        let source = Source::write(&path).unwrap();
        let found = source.judge(8, |_| false).unwrap().to_string();
        assert_eq!(found, "gpt at byte 1048064, iso9660 at byte 36864");
        source.make_blank(8).unwrap();
        assert!(source.judge(8, |_| false).unwrap().is_blank());
        let after = fs::read(&path).unwrap();
        assert_eq!(after[..4096], bytes[..4096]);
        assert!(after[4096..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_a_cache_has_newer_data_of_is_read_and_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let mounted = FailingFiles::mount(folder.path(), &[("disk", 1 << 20)], 1);
        let _files = match mounted {
            Ok(files) => files,
            Err(error) => return cairn_testkit::skip(&format!("FUSE: {error}")),
        };
        let [disk, marker] = ["disk", "disk.cairn-dirty-marker"].map(|it| folder.path().join(it));
        drop(Source::write(&disk).unwrap());
        for (text, found) in [
            ("1 5f writecache /dev/nvme0n1 - a 7", "found 5f of writecache /dev/nvme0n1"),
            ("2 5f", "found '2 5f', expected one of version 1"),
        ] {
            fs::write(&marker, text).unwrap();
            drop(Source::read(&disk).unwrap());
            drop(Source::read_beside(&disk).unwrap());
            let line = Source::write(&disk).err().expect("refused").to_string();
            assert!(line.contains(found), "{line}");
        }
        fs::remove_file(&marker).unwrap();
        drop(Source::write(&disk).unwrap());
    }

    #[test]
    fn a_file_is_made_whole_or_not_at_all_and_never_over_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(Source::create(&path, u64::MAX).is_err());
        assert!(!path.exists());
        fs::write(&path, "other").unwrap();
        assert!(Source::create(&path, 4096).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"other");
    }
}
