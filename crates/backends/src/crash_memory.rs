//! [`CrashFiles`]: memory for crash logs, in files of a folder on a file system in memory.
//!
//! A file is mapped and shared, so that its pages stay when the process is killed, and go when the
//! machine starts again. It is made at its full size, with all of its memory: a file system that is
//! full refuses that, and no later store can fail.
//!
//! The folder is the first of these that exists or can be made: `/run/cairn`, `$XDG_RUNTIME_DIR/
//! cairn`, `/dev/shm/cairn-UID`. It belongs to this user, and nobody else can enter it: who can
//! write a log decides what the next start takes for acknowledged.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

use cairn_block::{CrashLogs, CrashMemory};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of a log.
const LOG_BYTES: u64 = 16 << 20;
/// Names the machine's present run.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Files for crash logs.
pub struct CrashFiles {
    folder: PathBuf,
    /// Of the names of files: what the machine's present run is called.
    boot: String,
    /// Those that are in use, by name.
    open: Mutex<HashMap<String, Weak<Mapping>>>,
}

impl CrashFiles {
    /// Files in the first folder that can be used.
    ///
    /// # Errors
    /// There is none; the reasons.
    pub fn open() -> Result<CrashFiles, String> {
        let user = rustix::process::geteuid().as_raw();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
        let runtime = runtime.map(|folder| PathBuf::from(folder).join("cairn"));
        let system = (user == 0).then(|| PathBuf::from("/run/cairn"));
        let shared = PathBuf::from(format!("/dev/shm/cairn-{user}"));
        let mut refusals = Vec::new();
        for folder in system.into_iter().chain(runtime).chain([shared]) {
            match own_folder(&folder, user).and_then(|()| CrashFiles::of(folder.clone())) {
                Ok(files) => return Ok(files),
                Err(error) => refusals.push(format!("{}: {error}", folder.display())),
            }
        }
        Err(refusals.join("; "))
    }

    /// Files in this folder.
    ///
    /// # Errors
    /// The machine's present run has no name.
    pub fn of(folder: PathBuf) -> io::Result<CrashFiles> {
        let boot = fs::read_to_string(BOOT_ID)?.trim().to_owned();
        Ok(CrashFiles { folder, boot, open: Mutex::default() })
    }
}

/// Makes a folder that only its owner can enter, if it is missing.
fn own_folder(folder: &Path, user: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let seen = format!("found owner {}, mode {:o}", found.uid(), found.mode() & 0o7777);
        let detail = format!("{seen}, expected a folder that only this user can enter");
        return Err(io::Error::other(detail));
    }
    Ok(())
}

impl CrashLogs for CrashFiles {
    fn open(&self, name: &str) -> Option<Arc<dyn CrashMemory>> {
        let mut open = self.open.lock().expect("no holder panics");
        if let Some(mapping) = open.get(name).and_then(Weak::upgrade) {
            return Some(mapping);
        }
        let path = self.folder.join(format!("{name}.{}", self.boot));
        match Mapping::of(&path) {
            Ok(mapping) => {
                let mapping = Arc::new(mapping);
                open.insert(name.to_owned(), Arc::downgrade(&mapping));
                Some(mapping)
            }
            Err(error) => {
                let path = path.display();
                tracing::warn!("{path}: no crash log, a kill loses what is not flushed: {error}");
                None
            }
        }
    }
}

/// A file, mapped.
struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to no thread, and its words are atomic.
unsafe impl Send for Mapping {}
// SAFETY: see above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(path: &Path) -> io::Result<Mapping> {
        let file = OpenOptions::new().read(true).write(true).create(true).mode(0o600).open(path)?;
        fallocate(&file, FallocateFlags::empty(), 0, LOG_BYTES)?;
        Mapping::map(&file, LOG_BYTES as usize)
    }

    fn map(file: &File, bytes: usize) -> io::Result<Mapping> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the system's choice, of a file that has so many
        // bytes and that nobody makes shorter: only this user can enter its folder.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0)? };
        let base = NonNull::new(base.cast()).expect("a mapping is never at address zero");
        Ok(Mapping { base, words: bytes / size_of::<u64>() })
    }
}

impl CrashMemory for Mapping {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has so many words, zeros at first, and lives as long as this. Other
        // processes that map the file store words as a whole.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let bytes = self.words * size_of::<u64>();
        // SAFETY: mapped in `map`, and its only owner is going away.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_stay_for_who_maps_the_same_name_later() {
        let folder = tempfile::tempdir().unwrap();
        let files = || CrashFiles::of(folder.path().to_owned()).unwrap();
        let first = files();
        let [one, same] = [first.open("one").unwrap(), first.open("one").unwrap()];
        one.words()[3].store(7, Ordering::Relaxed);
        assert_eq!(same.words()[3].load(Ordering::Relaxed), 7);
        drop((one, same));
        let again = files().open("one").unwrap();
        assert_eq!(again.words()[3].load(Ordering::Relaxed), 7);
        assert_eq!(files().open("other").unwrap().words()[3].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn folder_that_others_can_enter_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let own = folder.path().join("own");
        own_folder(&own, user).unwrap();
        own_folder(&own, user).unwrap();
        fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let refused = own_folder(&own, user).unwrap_err().to_string();
        assert!(refused.contains("mode 755"), "{refused}");
    }
}
