//! [`DeviceOpener`]: what a device argument of a table line means.
//!
//! `PATH` is a file or block device. `mem:SIZE` is a new disk in memory each time it is named;
//! `mem:SIZE,name=NAME` is the same disk as long as it is open. `null:SIZE` is a disk without
//! contents. `nbd://` and `nbd+unix://` name exports of NBD servers, `rbd:` images of Ceph;
//! `http://`, `https://`, `s3://`, `gs://` and `az://` name objects, which are read only.
//! `qcow2:` with a path or one of these URIs is the content of an image of qemu, read only. A file
//! with such a name is opened as `./mem:1M`.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, FailureCount, Identity, LocalFuture, Opener, SECTOR_BYTES,
    SectorCount,
};

use crate::argument::{image_in, is_path, is_remote, kind_of};
use crate::file::{self, FileDisk, FileOptions};
use crate::handles::Handles;
use crate::helper::on_helper;
use crate::memory::MemoryDisk;
use crate::nbd::{self, NbdDisk};
use crate::null::NullDisk;
use crate::objects;
use crate::qcow2;
use crate::rbd::{self, RbdDisk, TakeOver};
use crate::remote::{RemoteDisk, RemoteKind};
use crate::shown::shown;
use crate::size::parse_size;

/// Identities made here begin at this number; the registry counts its own from zero.
const FIRST_UNIQUE: u64 = 1 << 63;

/// Opens files, block devices, `mem:` and `null:`.
#[derive(Default)]
pub struct DeviceOpener {
    options: FileOptions,
    means: Means,
    uniques: Mutex<Uniques>,
}

fn identify_remote(
    (kind, uri): (RemoteKind, &str),
    handles: &Handles,
) -> Result<Identity, ConfigError> {
    match kind {
        RemoteKind::Nbd => identify_export(uri, handles),
        RemoteKind::Rbd => Ok(Identity::Remote(rbd::Target::parse(uri)?.identity())),
        RemoteKind::Object => Ok(Identity::Remote(objects::Address::parse(uri)?.identity())),
    }
}

/// The identity of an export. A disk that is open for it has to treat it as this URI says.
fn identify_export(uri: &str, handles: &Handles) -> Result<Identity, ConfigError> {
    let target = nbd::Target::of_device(uri)?;
    let identity = target.identity();
    let exports = handles.remotes().into_iter().filter(|disk| disk.kind() == RemoteKind::Nbd);
    let mut open = exports.filter_map(|disk| nbd::Target::of_device(&disk.name()).ok());
    let same = open.find(|other| other.identity() == identity);
    match same.filter(|other| !other.agrees_with(&target)) {
        None => Ok(Identity::Remote(identity)),
        Some(other) => {
            let found = other.uri;
            let detail = format!("parameters: found {found} open, expected the same ones");
            Err(ConfigError::new(ConfigKind::Busy, uri, detail))
        }
    }
}

/// What the open of a remote disk needs.
#[derive(Clone, Default)]
struct Means {
    handles: Arc<Handles>,
    take_overs: Arc<[TakeOver]>,
}

/// Opens a remote disk. Blocks the thread.
fn open_remote(
    (kind, uri): (RemoteKind, &str),
    read_only: bool,
    means: &Means,
    failures: Arc<FailureCount>,
) -> Result<Arc<dyn Disk>, ConfigError> {
    let disk: Arc<dyn RemoteDisk> = match kind {
        RemoteKind::Nbd => Arc::new(NbdDisk::open(uri, read_only, failures)?),
        RemoteKind::Rbd => Arc::new(RbdDisk::open(uri, read_only, &means.take_overs, failures)?),
        RemoteKind::Object => objects::open(uri)?,
    };
    means.handles.note_remote(&disk);
    Ok(disk)
}

#[derive(Default)]
struct Uniques {
    count: u64,
    named: HashMap<String, u64>,
}

impl Uniques {
    fn next(&mut self) -> u64 {
        self.count += 1;
        FIRST_UNIQUE + self.count
    }
}

enum Device<'a> {
    Memory {
        sectors: SectorCount,
        named: bool,
    },
    Null(SectorCount),
    Remote(RemoteKind, &'a str),
    /// What keeps the image.
    Image(&'a str),
    Path(&'a str),
}

impl<'a> Device<'a> {
    fn parse(argument: &'a str) -> Result<Device<'a>, ConfigError> {
        if let Some(size) = argument.strip_prefix("null:") {
            return sectors(argument, size).map(Device::Null);
        }
        if let Some(kind) = kind_of(argument) {
            return Ok(Device::Remote(kind, argument));
        }
        if let Some(inner) = image_in(argument) {
            let is_known = (is_path(inner) && !inner.starts_with('@')) || is_remote(inner);
            return match is_known && !inner.is_empty() {
                true => Ok(Device::Image(inner)),
                false => {
                    let (found, expected) = (format!("'{inner}'"), "a path or a URI after qcow2:");
                    Err(ConfigError::argument(argument, "image", found, expected))
                }
            };
        }
        let Some(rest) = argument.strip_prefix("mem:") else {
            return Ok(Device::Path(argument));
        };
        let (size, option) = match rest.split_once(',') {
            Some((size, option)) => (size, Some(option)),
            None => (rest, None),
        };
        let sectors = sectors(argument, size)?;
        match option {
            None => Ok(Device::Memory { sectors, named: false }),
            Some(option) if option.strip_prefix("name=").is_some_and(|name| !name.is_empty()) => {
                Ok(Device::Memory { sectors, named: true })
            }
            Some(option) => {
                let (found, expected) = (format!("'{option}'"), "name=NAME");
                Err(ConfigError::argument(argument, "option", found, expected))
            }
        }
    }
}

fn sectors(argument: &str, size: &str) -> Result<SectorCount, ConfigError> {
    let bytes = parse_size(size)
        .map_err(|error| ConfigError::new(ConfigKind::Argument, argument, error.to_string()))?;
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
        let found = format!("{bytes} bytes");
        return Err(ConfigError::argument(argument, "size", found, "a multiple of 512 above zero"));
    }
    Ok(SectorCount::of_bytes(bytes))
}

impl DeviceOpener {
    /// An opener that opens files with these options.
    pub fn new(options: FileOptions) -> DeviceOpener {
        DeviceOpener { options, ..DeviceOpener::default() }
    }

    /// An opener that takes what an earlier process left from `handles`, and notes there what is
    /// open.
    pub fn with_handles(handles: Arc<Handles>) -> DeviceOpener {
        let means = Means { handles, ..Means::default() };
        DeviceOpener { means, ..DeviceOpener::default() }
    }

    /// The same, which takes the locks of these images from these owners.
    #[must_use]
    pub fn taking_over(self, take_overs: Vec<TakeOver>) -> DeviceOpener {
        let means = Means { take_overs: take_overs.into(), ..self.means };
        DeviceOpener { means, ..self }
    }
}

impl Opener for DeviceOpener {
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError> {
        let mut uniques = self.uniques.lock();
        Ok(Identity::Unique(match Device::parse(argument)? {
            Device::Path(path) => return file::identify(path),
            Device::Remote(kind, uri) => {
                return identify_remote((kind, uri), &self.means.handles);
            }
            Device::Image(inner) => {
                drop(uniques);
                let inner = self.identify(inner).map_err(|error| named(argument, error))?;
                return Ok(Identity::Remote(format!("qcow2 {inner:?}")));
            }
            Device::Memory { named: true, .. } => match uniques.named.get(argument) {
                Some(unique) => *unique,
                None => {
                    let unique = uniques.next();
                    uniques.named.insert(argument.to_owned(), unique);
                    unique
                }
            },
            Device::Memory { named: false, .. } | Device::Null(_) => uniques.next(),
        }))
    }

    fn open(
        &self,
        argument: &str,
        read_only: bool,
        failures: Arc<FailureCount>,
    ) -> Result<Arc<dyn Disk>, ConfigError> {
        Ok(match Device::parse(argument)? {
            Device::Path(path) => {
                let how = (self.options, &*self.means.handles);
                Arc::new(FileDisk::open_counted(path, read_only, how, failures)?)
            }
            Device::Remote(kind, uri) => {
                open_remote((kind, uri), read_only, &self.means, failures)?
            }
            Device::Image(_) => {
                let detail = "open: an image is opened by a task of a server alone";
                return Err(ConfigError::new(ConfigKind::Unsupported, argument, detail));
            }
            Device::Memory { sectors, .. } => {
                let disk = Arc::new(MemoryDisk::new(sectors)?.named(argument));
                self.means.handles.note_in_memory(&disk);
                disk
            }
            Device::Null(sectors) => Arc::new(NullDisk::new(sectors).named(argument)),
        })
    }

    /// Opens what may take its time on a helper thread.
    fn open_on<'a>(
        &'a self,
        env: &'a Env,
        argument: &'a str,
        read_only: bool,
        failures: Arc<FailureCount>,
    ) -> LocalFuture<'a, Result<Arc<dyn Disk>, ConfigError>> {
        Box::pin(async move {
            match Device::parse(argument)? {
                Device::Image(_) => qcow2::open(env, self, argument).await,
                Device::Path(path) => {
                    let (path, options) = (path.to_owned(), self.options);
                    let handles = self.means.handles.clone();
                    let open = move || {
                        let how = (options, &*handles);
                        let file = FileDisk::open_counted(&path, read_only, how, failures)?;
                        Ok(Arc::new(file) as Arc<dyn Disk>)
                    };
                    on_helper(env, (argument, "open"), open).await
                }
                Device::Remote(kind, uri) => {
                    let (uri, means) = (uri.to_owned(), self.means.clone());
                    let open = move || open_remote((kind, &uri), read_only, &means, failures);
                    on_helper(env, (argument, "open"), open).await
                }
                Device::Memory { .. } | Device::Null(_) => self.open(argument, read_only, failures),
            }
        })
    }

    /// Files have locks for readers. An image of Ceph has a lock for a writer only.
    fn opens_source_read_only(&self, argument: &str) -> bool {
        !matches!(Device::parse(argument), Ok(Device::Remote(RemoteKind::Rbd, _)))
    }
}

/// What images stand on.
impl qcow2::Lower for DeviceOpener {
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError> {
        Opener::identify(self, argument)
    }

    fn open<'a>(
        &'a self,
        env: &'a Env,
        argument: &'a str,
    ) -> LocalFuture<'a, Result<Arc<dyn Disk>, ConfigError>> {
        Box::pin(async move {
            let Device::Path(path) = Device::parse(argument)? else {
                return self.open_on(env, argument, true, Arc::default()).await;
            };
            let path = path.to_owned();
            let open = move || {
                let how = (FileOptions::IMAGE, &Handles::default());
                let file = FileDisk::open_counted(&path, true, how, Arc::default())?;
                Ok(Arc::new(file) as Arc<dyn Disk>)
            };
            on_helper(env, (argument, "open"), open).await
        })
    }
}

/// The error of what an argument names, as one of the argument.
fn named(argument: &str, error: ConfigError) -> ConfigError {
    ConfigError { device: shown(argument).into_owned(), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_null_are_new_each_time_they_are_named() {
        let opener = DeviceOpener::default();
        for argument in ["mem:64M", "null:1G"] {
            assert_ne!(opener.identify(argument).unwrap(), opener.identify(argument).unwrap());
        }
    }

    #[test]
    fn named_memory_disk_is_the_same_disk_each_time() {
        let opener = DeviceOpener::default();
        let first = opener.identify("mem:64M,name=a").unwrap();
        assert_eq!(first, opener.identify("mem:64M,name=a").unwrap());
        assert_ne!(first, opener.identify("mem:64M,name=b").unwrap());
    }

    #[test]
    fn the_password_of_a_uri_is_not_shown() {
        let opener = DeviceOpener::default();
        for uri in [
            "nbds://me:secret@h/x",
            "https://me:secret@h/x",
            "nbds://me:secret/2+@h/x",
            "https://me:secret/2+@h/x",
        ] {
            for argument in [uri.to_owned(), format!("qcow2:{uri}")] {
                let error = opener.identify(&argument).unwrap_err().to_string();
                assert!(error.contains("://me:...@h/x"), "{error}");
                assert!(!error.contains("secret"), "{error}");
            }
        }
    }

    #[test]
    fn two_names_of_one_file_are_one_identity() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&file, [0; 512]).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let opener = DeviceOpener::default();
        let identify = |path: &std::path::Path| opener.identify(path.to_str().unwrap()).unwrap();
        assert_eq!(identify(&file), identify(&link));
    }

    #[test]
    fn sizes_and_names_show_on_the_disk() {
        let opener = DeviceOpener::default();
        for (argument, sectors) in [("mem:1M", 2048), ("mem:8s,name=x", 8), ("null:2T", 1 << 32)] {
            let disk = opener.open(argument, false, Arc::default()).unwrap();
            assert_eq!((disk.name().as_str(), disk.sectors()), (argument, SectorCount(sectors)));
        }
    }

    #[test]
    fn a_wrong_argument_is_one_line_with_what_was_found() {
        let opener = DeviceOpener::default();
        for (argument, found) in [
            ("mem:", "found ''"),
            ("mem:12x", "found '12x'"),
            ("mem:0", "found 0 bytes"),
            ("null:1000", "found 1000 bytes"),
            ("mem:1M,nam=a", "found 'nam=a'"),
            ("mem:1M,name=", "found 'name='"),
        ] {
            for error in [
                opener.identify(argument).err(),
                opener.open(argument, false, Arc::default()).err(),
            ] {
                let error = error.expect(argument).to_string();
                assert!(error.starts_with(argument) && error.contains(found), "{error}");
            }
        }
    }
}
