//! [`CrashFiles`]: memory for crash logs, in files of a folder on a file system in memory.
//!
//! A file is mapped and shared, so that its pages stay when the process is killed, and go when the
//! machine starts again. It is made at its full size, with all of its memory: a file system that is
//! full refuses that, and no later store can fail.
//!
//! The folders are `/run/cairn`, `$XDG_RUNTIME_DIR/cairn` and `/dev/shm/cairn-UID`, or else the one
//! that `$CAIRN_CRASH_LOGS` names. One that is not in memory is not used. A log that an
//! earlier process left in any of them is found again; a new one is made in the first that exists
//! or can be made. A folder belongs to this user, and no other user can enter it: a program that
//! can write a log decides what the next start takes for acknowledged.
//!
//! Services have users and folders of their own, `/run/cairn-NAME/crash-logs`. A program of root
//! that finds the log of a device there refuses the device: it must not read what another user can
//! change, and without the log it would lose what the killed service has acknowledged.
//!
//! A file's name ends with the identifier of the machine's present run: containers keep files in
//! memory that others have made. Files of earlier runs are removed.
//!
//! # Who has a file
//! M1. A process that maps a file to write has an exclusive lock of it, one that maps it to read a
//!     shared one.
//! M2. A file that says nothing is removed under that lock, when its last user in the process lets
//!     it go. A process that gets the lock looks whether the name still leads to the file, and else
//!     opens the name again. So no process writes to a file that has lost its name.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use cairn_block::{ConfigError, ConfigKind, Content, CrashLog, CrashLogs, CrashMemory};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, statfs};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::time::{ClockId, clock_gettime};

use crate::held::held;

/// Names the machine's present run.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What statfs says of file systems in memory.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;
/// Bytes of a failure count: a page.
const FAILURES_BYTES: u64 = 4096;

/// Files for crash logs.
pub struct CrashFiles {
    /// Those that can be used, in the order in which they are preferred.
    folders: Vec<PathBuf>,
    /// Those of services with users of their own, which are only looked into.
    of_services: Vec<PathBuf>,
    /// Of the names of files: what the machine's present run is called.
    boot: String,
    /// Bytes of a log.
    bytes: u64,
    process: u64,
    /// What is left in logs that are opened is given up.
    discards: AtomicBool,
    /// The process has not begun to serve.
    starts: Arc<AtomicBool>,
    /// Those that are in use, by name.
    open: Mutex<HashMap<String, Weak<Mapping>>>,
}

impl CrashFiles {
    /// Files of so many bytes, in the folders that can be used.
    ///
    /// # Errors
    /// There is none; the reasons.
    pub fn open(bytes: u64) -> Result<CrashFiles, String> {
        let (folders, refusals) = own_folders(true);
        if folders.is_empty() {
            return Err(refusals.join("; "));
        }
        let files =
            CrashFiles::of(folders, bytes).map_err(|error| format!("{BOOT_ID}: {error}"))?;
        Ok(files.beside_services(service_folders()))
    }

    /// The same, beside services that have their logs in these folders.
    #[must_use]
    pub fn beside_services(self, of_services: Vec<PathBuf>) -> CrashFiles {
        CrashFiles { of_services, ..self }
    }

    /// Logs that a killed server has left for a file or block device, each with its number of
    /// records; makes nothing.
    ///
    /// # Errors
    /// There is no such device.
    pub fn left_for(path: &str) -> Result<Vec<LeftLog>, ConfigError> {
        let Some(device) = crate::file::identify(path)?.lasting_name() else {
            return Ok(Vec::new());
        };
        let (folders, _) = own_folders(false);
        let Ok(files) = CrashFiles::of(folders, 0) else { return Ok(Vec::new()) };
        let files = files.beside_services(service_folders());
        let device = format!("-{device}-");
        files.refuse_of_service(|name| name.contains(&device))?;
        let names = files.names().into_iter().filter(|name| name.contains(&device));
        let counted = names.filter_map(|name| {
            let found = files.find(&name, Content::Records).ok().flatten()?;
            let records = CrashLog::unreplayed(&*found).iter().map(|half| half.1).sum();
            (records > 0).then(|| LeftLog { path: files.path_of(&name), records })
        });
        Ok(counted.collect())
    }

    /// Files in these folders.
    ///
    /// # Errors
    /// The machine's present run has no name.
    pub fn of(folders: Vec<PathBuf>, bytes: u64) -> io::Result<CrashFiles> {
        let boot = fs::read_to_string(BOOT_ID)?.trim().to_owned();
        for folder in &folders {
            remove_of_earlier_runs(folder, &boot);
        }
        let now = clock_gettime(ClockId::Boottime);
        // No two processes that have the same file start in the same nanosecond.
        let process = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        let (discards, starts, open) = (AtomicBool::new(false), Arc::default(), Mutex::default());
        let of_services = Vec::new();
        Ok(CrashFiles { folders, of_services, boot, bytes, process, discards, starts, open })
    }

    /// The process ends, and nothing writes any more: the files that say nothing go, although they
    /// are in use.
    pub fn end(&self) {
        let open = self.open.lock().expect("no holder panics");
        for mapping in open.values().filter_map(Weak::upgrade) {
            mapping.forget();
        }
    }

    /// Another process goes on, and this one writes no more: it may open the files.
    ///
    /// # Errors
    /// The system refused.
    pub fn let_go(&self) -> io::Result<()> {
        let open = self.open.lock().expect("no holder panics");
        for mapping in open.values().filter_map(Weak::upgrade) {
            mapping.forget();
            // From now on the file is another process's, also if it comes to say nothing.
            mapping.is_removed.store(true, Ordering::Relaxed);
            if let Some(file) = &mapping.lock {
                flock(file, FlockOperation::Unlock)?;
            }
        }
        Ok(())
    }

    /// The process starts, or has begun to serve.
    pub fn start(&self, starts: bool) {
        self.starts.store(starts, Ordering::Relaxed);
    }

    /// From now on, what is left in logs that are opened is given up, or not.
    pub fn discard(&self, discards: bool) {
        self.discards.store(discards, Ordering::Relaxed);
    }

    /// Where the file of a name is: the first that exists, or else would be made.
    fn path_of(&self, name: &str) -> PathBuf {
        let file = format!("{name}.{}", self.boot);
        let mut paths = self.folders.iter().map(|folder| folder.join(&file));
        let found = paths.clone().find(|path| path.exists());
        found.or_else(|| paths.next()).expect("there is a folder")
    }

    fn map(&self, name: &str, access: Access) -> io::Result<Option<Mapping>> {
        let path = self.path_of(name);
        loop {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .create(access != Access::Read)
                .truncate(false)
                .mode(0o600);
            let file = match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            let lock = match access {
                Access::Create(_) => FlockOperation::NonBlockingLockExclusive,
                Access::Read => FlockOperation::NonBlockingLockShared,
            };
            flock(&file, lock)?;
            let named = fs::metadata(&path).map(|it| it.ino());
            if named.is_ok_and(|inode| file.metadata().is_ok_and(|it| it.ino() == inode)) {
                return self.map_locked(file, path, access).map(Some);
            }
        }
    }

    fn map_locked(&self, file: File, path: PathBuf, access: Access) -> io::Result<Mapping> {
        let mut bytes = file.metadata()?.len();
        if let (0, Access::Create(size)) = (bytes, access) {
            bytes = size;
            if let Err(error) = fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                // Still under the lock.
                drop(fs::remove_file(&path));
                return Err(error.into());
            }
        }
        Mapping::of(self, file, path, bytes as usize, access)
    }
}

/// A log that a killed server has left.
pub struct LeftLog {
    path: PathBuf,
    /// How many records of acknowledged writes it has.
    pub records: usize,
}

impl LeftLog {
    /// Gives them up. The caller has the device alone, so that no process has the log.
    ///
    /// # Errors
    /// The system refused.
    pub fn give_up(self) -> io::Result<()> {
        fs::remove_file(self.path)
    }
}

/// The folders that can be used, in the order in which they are preferred, and why others cannot.
/// If there is none, makes the first that can be made, if `makes`.
fn own_folders(makes: bool) -> (Vec<PathBuf>, Vec<String>) {
    let user = rustix::process::geteuid().as_raw();
    let named = |variable| std::env::var_os(variable).filter(|folder| !folder.is_empty());
    let candidates = match named("CAIRN_CRASH_LOGS") {
        Some(chosen) => vec![PathBuf::from(chosen)],
        None => {
            let runtime =
                named("XDG_RUNTIME_DIR").map(|folder| PathBuf::from(folder).join("cairn"));
            let shared = PathBuf::from(format!("/dev/shm/cairn-{user}"));
            [Some(PathBuf::from("/run/cairn")), runtime, Some(shared)]
                .into_iter()
                .flatten()
                .collect()
        }
    };
    let (mut folders, mut refusals) = (Vec::new(), Vec::new());
    for folder in candidates {
        match own_folder(&folder, user, makes && folders.is_empty()) {
            Ok(true) => folders.push(folder),
            Ok(false) => {}
            Err(error) => refusals.push(format!("{}: {error}", folder.display())),
        }
    }
    (folders, refusals)
}

/// The folders of services, for a program of root that was given no folder.
fn service_folders() -> Vec<PathBuf> {
    let is_of_root = rustix::process::geteuid().is_root();
    if !is_of_root || std::env::var_os("CAIRN_CRASH_LOGS").is_some_and(|it| !it.is_empty()) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/run") else { return Vec::new() };
    let is_service = |name: &str| name.starts_with("cairn-");
    let named = entries.flatten().filter(|it| it.file_name().to_str().is_some_and(is_service));
    named.map(|entry| entry.path().join("crash-logs")).collect()
}

/// What a file is mapped for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// To write: it is made with so many bytes if it is missing.
    Create(u64),
    /// To read.
    Read,
}

/// Makes a log empty.
fn give_up(name: &str, mapping: &Mapping) {
    let records = CrashLog::discard(mapping);
    if records > 0 {
        tracing::warn!("{name}: given up: {records} records of writes of a killed server");
    }
}

/// Removes what earlier runs of the machine have left.
fn remove_of_earlier_runs(folder: &Path, boot: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let run = name.to_str().and_then(|name| name.rsplit_once(".")).map(|(_, run)| run);
        if run.is_some_and(|run| run.len() == boot.len() && run != boot) {
            drop(fs::remove_file(entry.path()));
        }
    }
}

/// True if there is a folder that only its owner can enter, this user; makes one if `makes`.
fn own_folder(folder: &Path, user: u32, makes: bool) -> io::Result<bool> {
    if makes {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    let found = match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let seen = format!("found owner {}, mode {:o}", found.uid(), found.mode() & 0o7777);
        let detail = format!("{seen}, expected a folder that only this user can enter");
        return Err(io::Error::other(detail));
    }
    let kind = statfs(folder)?.f_type;
    if ![TMPFS_MAGIC, RAMFS_MAGIC].contains(&(kind as u64)) {
        let detail = format!("found a file system of type {kind:x}, expected one in memory");
        return Err(io::Error::other(detail));
    }
    Ok(true)
}

impl CrashLogs for CrashFiles {
    fn open(
        &self,
        name: &str,
        content: Content,
    ) -> Result<Option<Arc<dyn CrashMemory>>, ConfigError> {
        let bytes = match content {
            Content::Records => self.bytes,
            Content::Failures => FAILURES_BYTES,
        };
        let mut open = self.open.lock().expect("no holder panics");
        if let Some(mapping) = open.get(name).and_then(Weak::upgrade) {
            return Ok(Some(mapping));
        }
        self.refuse_unread(name)?;
        match self.map(name, Access::Create(bytes)) {
            Ok(mapping) => {
                let mapping = Arc::new(mapping.expect("it is made if it is missing"));
                if self.discards_in(content) {
                    give_up(name, &mapping);
                }
                open.retain(|_, mapping| mapping.strong_count() > 0);
                open.insert(name.to_owned(), Arc::downgrade(&mapping));
                Ok(Some(mapping))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let path = self.path_of(name).display().to_string();
                Err(held(&path, "crash log: found it in use by another program"))
            }
            Err(error) => {
                let path = self.path_of(name);
                let path = path.display();
                tracing::warn!("{path}: no crash log, a kill loses what is not flushed: {error}");
                Ok(None)
            }
        }
    }

    fn find(
        &self,
        name: &str,
        content: Content,
    ) -> Result<Option<Arc<dyn CrashMemory>>, ConfigError> {
        self.refuse_unread(name)?;
        let Some(mapping) = self.map(name, Access::Read).ok().flatten() else { return Ok(None) };
        if self.discards_in(content) {
            give_up(name, &mapping);
        }
        Ok(Some(Arc::new(mapping)))
    }
}

impl CrashFiles {
    /// True if what is left in memory for this is to be given up.
    fn discards_in(&self, content: Content) -> bool {
        content == Content::Records && self.discards.load(Ordering::Relaxed)
    }

    /// The names of what is there.
    fn names(&self) -> Vec<String> {
        self.names_in(&self.folders).map(|(name, _)| name).collect()
    }

    fn names_in<'a>(
        &'a self,
        folders: &'a [PathBuf],
    ) -> impl Iterator<Item = (String, PathBuf)> + use<'a> {
        let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok());
        entries.flatten().flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let name = name.strip_suffix(&self.boot)?.strip_suffix('.')?;
            Some((name.to_owned(), entry.path()))
        })
    }

    /// Refuses what a service has under this name, unless what is left is given up.
    fn refuse_unread(&self, name: &str) -> Result<(), ConfigError> {
        match self.discards.load(Ordering::Relaxed) {
            true => Ok(()),
            false => self.refuse_of_service(|other| other == name),
        }
    }

    /// Refuses a log that a service has. One that ended by itself has left none.
    fn refuse_of_service(&self, is_it: impl Fn(&str) -> bool) -> Result<(), ConfigError> {
        let Some((_, path)) = self.names_in(&self.of_services).find(|(name, _)| is_it(name)) else {
            return Ok(());
        };
        let folder = path.parent().unwrap_or(&path).display();
        let detail = format!(
            "crash log: found that of a service, expected none: start the service, or run this as \
             its user with CAIRN_CRASH_LOGS={folder}"
        );
        Err(ConfigError::new(ConfigKind::Busy, path.display().to_string(), detail))
    }
}

/// A file, mapped.
struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
    process: u64,
    starts: Arc<AtomicBool>,
    path: PathBuf,
    /// None for a reader.
    lock: Option<File>,
    /// It has no name any more.
    is_removed: AtomicBool,
}

// SAFETY: the mapping belongs to no thread, and its words are atomic.
unsafe impl Send for Mapping {}
// SAFETY: see above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(
        files: &CrashFiles,
        file: File,
        path: PathBuf,
        bytes: usize,
        access: Access,
    ) -> io::Result<Mapping> {
        let flags = match access {
            Access::Create(_) => MapFlags::SHARED | MapFlags::POPULATE,
            // What a reader stores is its own.
            Access::Read => MapFlags::PRIVATE,
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the system's choice, of a file that has so many
        // bytes and that nobody makes shorter: only this user can enter its folder.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, &file, 0)? };
        let base = NonNull::new(base.cast()).expect("a mapping is never at address zero");
        let lock = (access != Access::Read).then_some(file);
        let (words, is_removed) = (bytes / size_of::<u64>(), AtomicBool::new(false));
        let (process, starts) = (files.process, files.starts.clone());
        Ok(Mapping { base, words, process, starts, path, lock, is_removed })
    }

    /// Removes the file if it says nothing; the lock of it ends later (M2).
    fn forget(&self) {
        let goes = self.lock.is_some() && CrashLog::says_nothing(self);
        if goes && !self.is_removed.swap(true, Ordering::Relaxed) {
            drop(fs::remove_file(&self.path));
        }
    }
}

impl CrashMemory for Mapping {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words, zeros at first, and lives as long as this. Other
        // processes that map the file store words as a whole.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    fn process(&self) -> u64 {
        self.process
    }

    fn is_of_a_start(&self) -> bool {
        self.starts.load(Ordering::Relaxed)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.forget();
        let bytes = self.words * size_of::<u64>();
        // SAFETY: mapped in `of`, and its only owner is going away.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use cairn_block::Base;

    use super::*;

    const BASE: Base = Base { owner: 1, state: 2, failures: 0 };

    fn files_in(folder: &Path) -> CrashFiles {
        CrashFiles::of(vec![folder.to_owned()], 1 << 16).unwrap()
    }

    fn opened(files: &CrashFiles, name: &str) -> Arc<dyn CrashMemory> {
        files.open(name, Content::Records).unwrap().unwrap()
    }

    fn begun(files: &CrashFiles, name: &str) -> CrashLog {
        let (mut log, _) = CrashLog::open(opened(files, name), &BASE);
        log.begin(&BASE);
        log
    }

    /// The log `one` with a record.
    fn with_a_record(files: &CrashFiles) -> CrashLog {
        let mut log = begun(files, "one");
        assert!(log.reserve());
        log.append([7; 3]);
        log
    }

    #[test]
    fn records_stay_for_who_maps_the_same_name_later() {
        let folder = tempfile::tempdir().unwrap();
        drop(with_a_record(&files_in(folder.path())));
        let files = files_in(folder.path());
        assert_eq!(files.names(), ["one"]);
        let found = files.find("one", Content::Records).unwrap().unwrap();
        assert_eq!(CrashLog::unreplayed(&*found), [(2, 1)]);
        found.words()[1].store(9, Ordering::Relaxed);
        drop(found);
        assert_eq!(opened(&files, "one").words()[1].load(Ordering::Relaxed), 1);
        assert!(files.find("other", Content::Records).unwrap().is_none());
    }

    #[test]
    fn log_is_given_up_if_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        drop(with_a_record(&files_in(folder.path())));
        let files = files_in(folder.path());
        files.discard(true);
        let mut log = begun(&files, "one");
        assert!(log.take_loss(), "a client is to be told");
        log.told();
        drop(log);
        assert_eq!(files.names(), [""; 0]);
    }

    #[test]
    fn reader_that_gives_a_log_up_leaves_it_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        drop(with_a_record(&files_in(folder.path())));
        let files = files_in(folder.path());
        files.discard(true);
        let seen = files.find("one", Content::Records).unwrap().unwrap();
        assert_eq!(CrashLog::unreplayed(&*seen), []);
        drop(seen);
        files.discard(false);
        assert_eq!(CrashLog::unreplayed(&*opened(&files, "one")), [(2, 1)]);
    }

    #[test]
    fn file_that_says_nothing_goes_with_its_last_user() {
        let folder = tempfile::tempdir().unwrap();
        let files = files_in(folder.path());
        let [log, other] = [begun(&files, "one"), begun(&files, "one")];
        drop(log);
        assert_eq!(files.names(), ["one"]);
        drop(other);
        assert_eq!(files.names(), [""; 0]);
    }

    #[test]
    fn second_process_waits_for_the_log_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let files = [files_in(folder.path()), files_in(folder.path())];
        let log = begun(&files[0], "one");
        let refused = files[1].open("one", Content::Records).err().unwrap();
        assert!(refused.to_string().contains("in use by another program"), "{refused}");
        drop(log);
        drop(opened(&files[1], "one"));
    }

    #[test]
    fn log_that_was_let_go_is_opened_with_its_records() {
        let folder = tempfile::tempdir().unwrap();
        let files = [files_in(folder.path()), files_in(folder.path())];
        let _log = with_a_record(&files[0]);
        let _empty = begun(&files[0], "two");
        files[0].let_go().unwrap();
        assert_eq!(files[1].names(), ["one"]);
        assert_eq!(CrashLog::unreplayed(&*opened(&files[1], "one")), [(2, 1)]);
    }

    #[test]
    fn log_of_a_service_is_refused_unless_it_is_given_up() {
        let [service, own] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let _log = with_a_record(&files_in(service.path()));
        let files = files_in(own.path()).beside_services(vec![service.path().to_owned()]);
        let refused = files.open("one", Content::Records).err().unwrap();
        let expected = "crash log: found that of a service, expected none: start the service";
        assert_eq!(refused.kind, ConfigKind::Busy);
        assert!(refused.detail.starts_with(expected), "{refused}");
        assert!(std::fs::read_dir(own.path()).unwrap().next().is_none(), "none was made");
        assert!(files.find("one", Content::Failures).is_err(), "nor read without it");
        opened(&files, "of another device");
        files.discard(true);
        opened(&files, "one");
        files.open("failures-one", Content::Failures).unwrap();
    }

    #[test]
    fn files_of_earlier_runs_of_the_machine_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let earlier = folder.path().join("one.00000000-1111-2222-3333-444444444444");
        let unrelated = folder.path().join("control.sock");
        fs::write(&earlier, "").unwrap();
        fs::write(&unrelated, "").unwrap();
        files_in(folder.path());
        assert_eq!([earlier.exists(), unrelated.exists()], [false, true]);
    }

    #[test]
    fn folder_that_others_can_enter_is_refused() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let user = rustix::process::geteuid().as_raw();
        let own = folder.path().join("own");
        assert!(!own_folder(&own, user, false).unwrap());
        assert!(own_folder(&own, user, true).unwrap());
        assert!(own_folder(&own, user, true).unwrap());
        fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let refused = own_folder(&own, user, true).unwrap_err().to_string();
        assert!(refused.contains("mode 755"), "{refused}");
    }

    #[test]
    fn folder_that_is_not_in_memory_is_refused() {
        let user = rustix::process::geteuid().as_raw();
        let outside = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let refused = own_folder(&outside.path().join("own"), user, true).unwrap_err().to_string();
        assert!(refused.contains("expected one in memory"), "{refused}");
    }

    #[test]
    fn log_for_which_there_is_no_memory_is_none_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let files = CrashFiles::of(vec![folder.path().to_owned()], 1 << 62).unwrap();
        assert!(files.open("one", Content::Records).unwrap().is_none());
        assert_eq!(files.names(), [""; 0]);
    }
}
