//! [`FailingFiles`]: a folder of files that fail as drives do, for programs that use real system
//! calls. It is a FUSE file system of this process.
//!
//! F1. Each file has the bytes that reads see, the bytes that a power cut leaves, and the set of
//!     volatile sectors: those written since they were last made durable.
//! F2. A flush (fsync, fdatasync) makes the volatile sectors of its file durable; a write with
//!     O_DSYNC or RWF_DSYNC makes its own sectors durable.
//! F3. A flush that fails loses writes, as the page cache does: no sector of its file is volatile
//!     any longer, and no later flush writes those that were, although reads show them until a
//!     power cut. A durable write that fails does that to its own sectors.
//! F4. A write that fails has written a random part of its sectors; one that finds no space has
//!     written none.
//! F5. Direct I/O can be refused ([`FailingFiles::refuse_direct`]), so that a program uses its
//!     page-cache mode: a durable write is then a write and a flush.
//! F6. A power cut ([`FailingFiles::cut_power`]) keeps a random part of the volatile sectors. It
//!     comes after the process that used the files is gone ([`FailingFiles::wait_until_closed`]).
//! F7. A name is durable at once when a file is made, renamed or removed. A new file never fails.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    SessionACL, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;

const SECTOR: usize = 512;
/// How long the kernel may cache names and sizes: not at all.
const TTL: Duration = Duration::ZERO;
/// The size of the file system in `statfs`, in blocks; half of it is free.
const BLOCKS: u64 = 1 << 30;
const BLOCK_BYTES: u32 = 4096;

/// How often requests to a file fail, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Flushes and durable writes (F3).
    pub flush: u8,
    /// Writes (F4).
    pub write: u8,
    /// Writes that find no space.
    pub room: u8,
}

/// The mounted folder; dropping it unmounts.
pub struct FailingFiles {
    shared: Arc<Shared>,
    _session: BackgroundSession,
}

impl FailingFiles {
    /// Mounts the folder at `place`; each file has the given number of bytes, all zero.
    ///
    /// # Errors
    /// The system does not let this process mount.
    pub fn mount(place: &Path, files: &[(&str, usize)], seed: u64) -> io::Result<FailingFiles> {
        let files = files.iter().map(|&(name, bytes)| File::new(name, bytes)).collect();
        let rng = fastrand::Rng::with_seed(seed);
        let inner = Inner { files, rng, open: 0, failed: 0, refuses_direct: false };
        let shared = Arc::new(Shared { inner: Mutex::new(inner), closed: Condvar::new() });
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("failing-files".to_owned())];
        config.acl = SessionACL::Owner;
        config.n_threads = Some(2);
        let session = fuser::spawn_mount(Folder(shared.clone()), place, &config)?;
        Ok(FailingFiles { shared, _session: session })
    }

    /// Sets how often requests to this file fail from now on.
    ///
    /// # Panics
    /// There is no such file.
    pub fn set_faults(&self, name: &str, faults: Faults) {
        let mut inner = self.shared.lock();
        let file = inner.files.iter_mut().find(|file| file.name == name);
        file.unwrap_or_else(|| panic!("no file {name}")).faults = faults;
    }

    /// Refuses direct I/O from now on (F5).
    pub fn refuse_direct(&self) {
        self.shared.lock().refuses_direct = true;
    }

    /// Stops all faults.
    pub fn heal(&self) {
        let mut inner = self.shared.lock();
        inner.files.iter_mut().for_each(|file| file.faults = Faults::default());
    }

    /// How many requests failed so far.
    pub fn failed(&self) -> u64 {
        self.shared.lock().failed
    }

    /// True if completed writes were lost since the last power cut (F3).
    pub fn has_lost(&self) -> bool {
        self.shared.lock().files.iter().any(|file| file.has_lost)
    }

    /// Waits until no process has a file open: the requests of a killed process have ended.
    pub fn wait_until_closed(&self) {
        let inner = self.shared.lock();
        let closed = self.shared.closed.wait_while(inner, |inner| inner.open > 0);
        drop(closed.unwrap_or_else(PoisonError::into_inner));
    }

    /// Cuts the power (F6).
    pub fn cut_power(&self) {
        let inner = &mut *self.shared.lock();
        for file in &mut inner.files {
            for sector in std::mem::take(&mut file.volatile) {
                if inner.rng.bool() {
                    file.make_durable(sector);
                }
            }
            file.visible.clone_from(&file.durable);
            file.has_lost = false;
        }
    }
}

struct Shared {
    inner: Mutex<Inner>,
    closed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Inner {
    files: Vec<File>,
    rng: fastrand::Rng,
    open: usize,
    failed: u64,
    refuses_direct: bool,
}

impl Inner {
    /// True in `percent` of 100 cases, which count as failures.
    fn fails(&mut self, percent: u8) -> bool {
        let fails = self.rng.u8(..100) < percent;
        self.failed += u64::from(fails);
        fails
    }

    fn file(&mut self, ino: INodeNo) -> Result<&mut File, Errno> {
        index(ino).and_then(|index| self.files.get_mut(index)).ok_or(Errno::ENOENT)
    }

    /// The file of this name.
    fn find(&self, name: &OsStr) -> Option<(INodeNo, &File)> {
        (2..).map(INodeNo).zip(&self.files).find(|(_, file)| name == &*file.name)
    }

    /// Takes a name away; true if a file had it. The file stays, so that numbers stay.
    fn forget(&mut self, name: &OsStr) -> bool {
        let found = self.files.iter_mut().find(|file| name == &*file.name);
        found.map(|file| file.name.clear()).is_some()
    }

    fn write(&mut self, ino: INodeNo, at: usize, data: &[u8], dsync: bool) -> Result<(), Errno> {
        let faults = self.file(ino)?.faults;
        if self.fails(faults.room) {
            return Err(Errno::ENOSPC);
        }
        if self.fails(faults.write) {
            let part = self.rng.usize(..=data.len() / SECTOR) * SECTOR;
            self.file(ino)?.write(at, &data[..part]);
            return Err(Errno::EIO);
        }
        let sectors = self.file(ino)?.write(at, data);
        if dsync {
            return self.make_durable(ino, sectors);
        }
        Ok(())
    }

    fn flush(&mut self, ino: INodeNo) -> Result<(), Errno> {
        let volatile = self.file(ino)?.volatile.iter().copied().collect();
        self.make_durable(ino, volatile)
    }

    /// F2, or F3.
    fn make_durable(&mut self, ino: INodeNo, sectors: Vec<usize>) -> Result<(), Errno> {
        let faults = self.file(ino)?.faults;
        let fails = self.fails(faults.flush);
        for sector in sectors {
            let file = self.file(ino)?;
            if !fails {
                file.make_durable(sector);
            } else {
                file.has_lost |= file.volatile.remove(&sector);
            }
        }
        if fails { Err(Errno::EIO) } else { Ok(()) }
    }
}

/// F1.
struct File {
    name: String,
    visible: Vec<u8>,
    durable: Vec<u8>,
    volatile: BTreeSet<usize>,
    faults: Faults,
    has_lost: bool,
}

impl File {
    fn new(name: &str, bytes: usize) -> File {
        let zeros = vec![0; bytes];
        File {
            name: name.to_owned(),
            visible: zeros.clone(),
            durable: zeros,
            volatile: BTreeSet::new(),
            faults: Faults::default(),
            has_lost: false,
        }
    }

    /// A new size is durable at once.
    fn resize(&mut self, bytes: usize) {
        self.visible.resize(bytes, 0);
        self.durable.resize(bytes, 0);
        self.volatile.retain(|sector| sector * SECTOR < bytes);
    }

    /// Writes the data; returns its sectors, which are now volatile.
    fn write(&mut self, at: usize, data: &[u8]) -> Vec<usize> {
        let end = at + data.len();
        if end > self.visible.len() {
            self.resize(end);
        }
        self.visible[at..end].copy_from_slice(data);
        let sectors: Vec<usize> = (at / SECTOR..end.div_ceil(SECTOR)).collect();
        self.volatile.extend(&sectors);
        sectors
    }

    fn make_durable(&mut self, sector: usize) {
        self.volatile.remove(&sector);
        let bytes = self.bytes(sector);
        self.durable[bytes.clone()].copy_from_slice(&self.visible[bytes]);
    }

    fn bytes(&self, sector: usize) -> std::ops::Range<usize> {
        sector * SECTOR..((sector + 1) * SECTOR).min(self.visible.len())
    }
}

/// The index of a file; the first one has the inode number behind the folder's.
fn index(ino: INodeNo) -> Option<usize> {
    u64::from(ino).checked_sub(2).map(|index| index as usize)
}

fn attributes(ino: INodeNo, file: Option<&File>) -> FileAttr {
    let size = file.map_or(0, |file| file.visible.len() as u64);
    let (kind, perm) = match file {
        Some(_) => (FileType::RegularFile, 0o600),
        None => (FileType::Directory, 0o700),
    };
    FileAttr {
        ino,
        size,
        blocks: size.div_ceil(SECTOR as u64),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm,
        nlink: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// The file system as FUSE calls it.
struct Folder(Arc<Shared>);

impl Filesystem for Folder {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let inner = self.0.lock();
        match inner.find(name) {
            Some((ino, file)) => reply.entry(&TTL, &attributes(ino, Some(file)), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let inner = self.0.lock();
        reply.attr(&TTL, &attributes(ino, index(ino).and_then(|index| inner.files.get(index))));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.0.lock().file(ino) {
            Ok(file) => {
                if let Some(size) = size {
                    file.resize(size as usize);
                }
                reply.attr(&TTL, &attributes(ino, Some(file)));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.0.lock().open += 1;
        // Has every request sent here: the kernel caches no pages.
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mut inner = self.0.lock();
        inner.forget(name);
        inner.files.push(File::new(&name.to_string_lossy(), 0));
        inner.open += 1;
        let (ino, file) = inner.find(name).expect("it was pushed");
        let flags = FopenFlags::FOPEN_DIRECT_IO;
        reply.created(&TTL, &attributes(ino, Some(file)), Generation(0), FileHandle(0), flags);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: INodeNo,
        to: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut inner = self.0.lock();
        if inner.find(name).is_none() {
            return reply.error(Errno::ENOENT);
        }
        if name != to {
            inner.forget(to);
        }
        let file = inner.files.iter_mut().find(|file| name == &*file.name);
        file.expect("it was found").name = to.to_string_lossy().into_owned();
        reply.ok();
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.0.lock().forget(name) {
            true => reply.ok(),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.0.lock().open -= 1;
        self.0.closed.notify_all();
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut inner = self.0.lock();
        if inner.refuses_direct && flags.0 & OFlags::DIRECT.bits() as i32 != 0 {
            return reply.error(Errno::EINVAL);
        }
        match inner.file(ino) {
            Ok(file) => {
                let bytes = file.visible.get(offset as usize..).unwrap_or_default();
                reply.data(&bytes[..bytes.len().min(size as usize)]);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let dsync = flags.0 & OFlags::DSYNC.bits() as i32 != 0;
        match self.0.lock().write(ino, offset as usize, data, dsync) {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // A close makes nothing durable.
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _data: bool, reply: ReplyEmpty) {
        match self.0.lock().flush(ino) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (at, length) = (offset as usize, length as usize);
        let mut inner = self.0.lock();
        let done = match inner.file(ino) {
            Err(errno) => Err(errno),
            // A plain allocation, which may grow the file.
            Ok(file) if mode == 0 => {
                file.resize(file.visible.len().max(at + length));
                Ok(())
            }
            // The other modes that the kernel passes on leave zeros.
            Ok(_) => inner.write(ino, at, &vec![0; length], false),
        };
        match done {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let files = self.0.lock().files.len() as u64;
        reply.statfs(BLOCKS, BLOCKS / 2, BLOCKS / 2, files, 0, BLOCK_BYTES, 255, BLOCK_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::{FileExt, OpenOptionsExt};

    use super::*;

    const LOSING: Faults = Faults { flush: 100, write: 0, room: 0 };

    /// A folder with one file of 64 sectors, opened; `None` where nothing may be mounted.
    fn mounted(flags: i32) -> Option<(tempfile::TempDir, FailingFiles, File)> {
        let place = tempfile::tempdir().expect("a folder");
        let files = match FailingFiles::mount(place.path(), &[("disk", 64 * SECTOR)], 1) {
            Ok(files) => files,
            Err(error) => {
                crate::skip(&format!("FUSE: {error}"));
                return None;
            }
        };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(flags);
        let file = options.open(place.path().join("disk")).expect("the file");
        Some((place, files, file))
    }

    fn after_a_cut(place: &Path, files: &FailingFiles) -> Vec<u8> {
        files.wait_until_closed();
        files.cut_power();
        std::fs::read(place.join("disk")).expect("the file")
    }

    fn sectors_of(bytes: &[u8], value: u8) -> usize {
        bytes.chunks(SECTOR).filter(|sector| sector.iter().all(|&byte| byte == value)).count()
    }

    #[test]
    fn power_cut_keeps_flushed_writes_and_some_of_the_others() {
        let Some((place, files, file)) = mounted(0) else { return };
        file.write_all_at(&[1; 32 * SECTOR], 0).expect("write");
        file.sync_data().expect("flush");
        file.write_all_at(&[2; 32 * SECTOR], 32 * SECTOR as u64).expect("write");
        drop(file);
        let left = after_a_cut(place.path(), &files);
        assert_eq!(sectors_of(&left, 1), 32);
        assert!((1..32).contains(&sectors_of(&left, 2)), "{}", sectors_of(&left, 2));
        assert!(!files.has_lost());
    }

    #[test]
    fn failed_flush_loses_writes_and_the_next_flush_succeeds() {
        let Some((place, files, file)) = mounted(0) else { return };
        file.write_all_at(&[1; 64 * SECTOR], 0).expect("write");
        files.set_faults("disk", LOSING);
        assert_eq!(file.sync_data().map_err(|error| error.raw_os_error()), Err(Some(5)));
        files.heal();
        assert!(files.has_lost() && files.failed() == 1);
        let mut seen = vec![0; 64 * SECTOR];
        file.read_exact_at(&mut seen, 0).expect("read");
        assert_eq!(sectors_of(&seen, 1), 64, "as if nothing had happened");
        file.sync_data().expect("nothing is volatile any more");
        drop(file);
        assert_eq!(sectors_of(&after_a_cut(place.path(), &files), 0), 64);
    }

    #[test]
    fn a_durable_write_makes_itself_durable_alone() {
        let Some((place, files, file)) = mounted(OFlags::DSYNC.bits() as i32) else {
            return;
        };
        file.write_all_at(&[1; 8 * SECTOR], 0).expect("write");
        drop(file);
        assert_eq!(sectors_of(&after_a_cut(place.path(), &files), 1), 8);
    }

    #[test]
    fn a_write_that_finds_no_room_writes_nothing() {
        let Some((_place, files, file)) = mounted(0) else { return };
        files.set_faults("disk", Faults { room: 100, ..Faults::default() });
        let refused = file.write_at(&[1; SECTOR], 0).map_err(|error| error.raw_os_error());
        assert_eq!(refused, Err(Some(28)));
        let mut seen = [7; SECTOR];
        file.read_exact_at(&mut seen, 0).expect("read");
        assert_eq!(seen, [0; SECTOR]);
    }
}
