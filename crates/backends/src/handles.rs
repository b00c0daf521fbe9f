//! [`Handles`]: open files and block devices, with their locks, that a process leaves to the next.
//!
//! A lock belongs to the open file (see `file::lock`). Another process that gets a descriptor of
//! it has the lock, too, and at no moment could a third one take it.
//!
//! Must never: open a file, or decide when a disk is still written to.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use cairn_block::Disk;
use cairn_block::sync::Mutex;
use rustix::fs::{FileType, Stat, fstat};

use crate::remote::{RemoteDisk, RemoteFigures, RemoteKind};

/// An open file or block device.
pub struct Handle {
    /// Its descriptor, with its lock.
    pub fd: Arc<OwnedFd>,
    /// It is open, and locked, for reading only.
    pub read_only: bool,
}

/// See the module's description.
#[derive(Default)]
pub struct Handles {
    /// What an earlier process left. A start may open a device more than once.
    inherited: Mutex<Vec<Handle>>,
    open: Mutex<Vec<(Weak<OwnedFd>, bool)>>,
    /// Disks whose content goes with the process.
    in_memory: Mutex<Vec<Weak<dyn Disk>>>,
    /// Disks that another process or machine keeps, the newest one last.
    remote: Mutex<Vec<Weak<dyn RemoteDisk>>>,
}

impl Handles {
    /// What an earlier process left: a disk that is opened takes its descriptor from here.
    pub fn inherit(&self, handles: impl IntoIterator<Item = Handle>) {
        self.inherited.lock().extend(handles);
    }

    /// The start has ended: what no disk has opened is closed.
    pub fn close_inherited(&self) {
        self.inherited.lock().clear();
    }

    /// What is open now.
    pub fn all(&self) -> Vec<Handle> {
        let open = self.open.lock();
        let handle = |(fd, read_only): &(Weak<OwnedFd>, bool)| {
            Some(Handle { fd: fd.upgrade()?, read_only: *read_only })
        };
        open.iter().filter_map(handle).collect()
    }

    /// The name of an open disk whose content goes with the process, if there is one.
    pub fn in_memory(&self) -> Option<String> {
        let disks = self.in_memory.lock();
        disks.iter().find_map(Weak::upgrade).map(|disk| disk.name())
    }

    /// The open disks that another process or machine keeps, the newest one last.
    pub(crate) fn remotes(&self) -> Vec<Arc<dyn RemoteDisk>> {
        self.remote.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Their figures, by their names. The names that are shown are unique.
    pub fn remote_figures(&self) -> Vec<RemoteFigures> {
        // One that is about to be dropped may have the name of a new one.
        let by_name = |disk: Arc<dyn RemoteDisk>| (disk.name(), disk);
        let newest: BTreeMap<_, _> = self.remotes().into_iter().map(by_name).collect();
        let mut all: Vec<_> = newest.into_values().map(|disk| disk.figures()).collect();
        let mut seen = BTreeMap::<String, u32>::new();
        for figures in &mut all {
            let count = seen.entry(figures.shown.clone()).or_default();
            *count += 1;
            if *count > 1 {
                figures.shown = format!("{} ({count})", figures.shown);
            }
        }
        all
    }

    /// The name of an open disk at a server that would not go on with another process, if there is
    /// one. An object is just opened again.
    pub fn remote(&self) -> Option<String> {
        let remotes = self.remotes();
        let stays = remotes.iter().find(|disk| disk.kind() != RemoteKind::Object);
        stays.map(|disk| disk.name())
    }

    /// The inherited descriptor, locked, of the file that was found at a path. One to write serves
    /// a reader, too.
    pub(crate) fn find(&self, found: &Stat, read_only: bool) -> Option<Arc<OwnedFd>> {
        let inherited = self.inherited.lock();
        let is_it = |handle: &&Handle| {
            (read_only || !handle.read_only)
                && fstat(&handle.fd).is_ok_and(|stat| is_same(&stat, found))
        };
        inherited.iter().find(is_it).map(|handle| handle.fd.clone())
    }

    pub(crate) fn note(&self, fd: &Arc<OwnedFd>, read_only: bool) {
        let mut open = self.open.lock();
        open.retain(|(fd, _)| fd.strong_count() > 0);
        open.push((Arc::downgrade(fd), read_only));
    }

    pub(crate) fn note_remote(&self, disk: &Arc<dyn RemoteDisk>) {
        note(&self.remote, Arc::downgrade(disk));
    }

    pub(crate) fn note_in_memory(&self, disk: &Arc<impl Disk + 'static>) {
        note(&self.in_memory, Arc::downgrade(disk) as Weak<dyn Disk>);
    }
}

/// Adds a disk to those that are still open.
fn note<D: ?Sized>(disks: &Mutex<Vec<Weak<D>>>, disk: Weak<D>) {
    let mut disks = disks.lock();
    disks.retain(|disk| disk.strong_count() > 0);
    disks.push(disk);
}

/// True for two descriptions of one file, or of one block device, which may have several nodes.
fn is_same(one: &Stat, other: &Stat) -> bool {
    let is_block = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    match (is_block(one), is_block(other)) {
        (true, true) => one.st_rdev == other.st_rdev,
        (false, false) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cairn_block::{ConfigKind, Opener};

    use super::{Handle, Handles};
    use crate::DeviceOpener;

    fn opener() -> (DeviceOpener, Arc<Handles>) {
        let handles = Arc::<Handles>::default();
        (DeviceOpener::with_handles(handles.clone()), handles)
    }

    fn file() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4096).unwrap();
        file
    }

    /// What is open, as another process gets it.
    fn copies(handles: &Handles) -> Vec<Handle> {
        let copy =
            |handle: Handle| Handle { fd: Arc::new(handle.fd.try_clone().unwrap()), ..handle };
        handles.all().into_iter().map(copy).collect()
    }

    #[test]
    fn lock_of_a_disk_goes_to_the_next_process_with_its_handle() {
        let file = file();
        let path = file.path().to_str().unwrap();
        let (first, left) = opener();
        let disk = first.open(path, false, Arc::default()).unwrap();
        let (second, inherited) = opener();
        let refused = second.open(path, false, Arc::default()).err().unwrap();
        assert_eq!(refused.kind, ConfigKind::Busy);
        inherited.inherit(copies(&left));
        for read_only in [true, false] {
            second.open(path, read_only, Arc::default()).unwrap();
        }
        let again = second.open(path, false, Arc::default()).unwrap();
        inherited.close_inherited();
        drop(disk);
        assert!(left.all().is_empty());
        let (third, _) = opener();
        assert!(third.open(path, false, Arc::default()).is_err(), "the second one has the lock");
        drop(again);
        third.open(path, false, Arc::default()).unwrap();
    }

    #[test]
    fn handle_that_no_disk_opens_is_closed_with_its_lock() {
        let file = file();
        let path = file.path().to_str().unwrap();
        let ((first, left), (second, inherited)) = (opener(), opener());
        let disk = first.open(path, false, Arc::default()).unwrap();
        inherited.inherit(copies(&left));
        drop(disk);
        assert!(first.open(path, false, Arc::default()).is_err());
        inherited.close_inherited();
        second.open(path, false, Arc::default()).unwrap();
    }

    #[test]
    fn disk_in_memory_is_named_as_long_as_it_is_open() {
        let (opener, handles) = opener();
        let null = opener.open("null:1M", false, Arc::default()).unwrap();
        assert_eq!(handles.in_memory(), None);
        let memory = opener.open("mem:1M", false, Arc::default()).unwrap();
        assert_eq!(handles.in_memory().as_deref(), Some("mem:1M"));
        drop((null, memory));
        assert_eq!(handles.in_memory(), None);
    }
}
