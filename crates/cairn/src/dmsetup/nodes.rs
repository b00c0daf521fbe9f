//! `/dev/mapper`: each volume as a block device of this machine's kernel.
//!
//! With root and the module nbd, a volume that the server exports under its own name is attached,
//! and `/dev/mapper/NAME` is a link to its device `/dev/nbdN`. The kernel keeps of each such device
//! which export it is, so no file says which are ours: a link in `/dev/mapper` to the nbd device
//! of an export of that name. Without root or the module there are no nodes, and the verbs act on
//! the volumes alone.
//!
//! [`Nodes::settle`] gives each exported volume its node; verbs that change a volume call it at
//! their end, also after an error. A device that is in use is never ended.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use cairn_block::{ConfigError, ConfigKind};
use cairn_control::client::Client;
use cairn_control::verbs::export::ExportList;
use cairn_control::verbs::server::ServerInfo;
use cairn_control::verbs::volume::VolumeList;
use cairn_outcome::failure::{Outcome, refused, system};
use cairn_outcome::stderr::say;

use super::device::{self, Numbers};
use crate::remote::attach::{self, KernelDevices};

/// The folder of the nodes.
pub const MAPPER: &str = "/dev/mapper/";

/// The devices of the kernel that this program may make.
pub struct Nodes<'a> {
    server: &'a Client,
    kernel: Option<KernelDevices>,
    /// Where the server is, as the kernel knows it.
    place: String,
}

impl<'a> Nodes<'a> {
    /// The nodes of a server. They are made with root and the module nbd.
    ///
    /// # Errors
    /// There is no server.
    pub fn of(server: &'a Client) -> Outcome<Nodes<'a>> {
        let uri = server.ask(&ServerInfo {})?.uri.unwrap_or_default();
        let place = attach::place_in(&uri);
        let is_root = rustix::process::geteuid().is_root() && place.is_some();
        let kernel = is_root.then(|| KernelDevices::open().ok()).flatten();
        Ok(Nodes { server, kernel, place: place.unwrap_or_default() })
    }

    /// True if volumes get nodes.
    pub fn are_made(&self) -> bool {
        self.kernel.is_some()
    }

    /// The nbd device of a volume.
    pub fn device_of(&self, name: &str) -> Option<PathBuf> {
        let device = fs::read_link(node(name)).ok()?;
        attach::is_of(&device, name, &self.place).then_some(device)
    }

    /// The numbers of the nbd device of a volume.
    pub fn numbers_of(&self, name: &str) -> Option<Numbers> {
        device::numbers_at(&self.device_of(name)?)
    }

    /// The volume of those named that `/dev/mapper/NAME`, `/dev/nbdN` or `MAJOR:MINOR` means.
    pub fn volume_at(&self, word: &str, volumes: &[String]) -> Option<String> {
        if let Some(name) = word.strip_prefix(MAPPER) {
            let is_other = fs::symlink_metadata(word).is_ok() && self.device_of(name).is_none();
            return volumes.iter().find(|volume| *volume == name && !is_other).cloned();
        }
        let numbers = device::numbers_of(word).or_else(|| device::numbers_at(Path::new(word)))?;
        volumes.iter().find(|volume| self.numbers_of(volume) == Some(numbers)).cloned()
    }

    /// Mounts, holders and open files of a volume's device.
    pub fn users_of(&self, name: &str) -> u64 {
        self.device_of(name).map_or(0, |device| device::users_of(&device))
    }

    /// Ends the devices that no export needs any more, and makes those that are missing or have
    /// another size. Makes those read-only that are to be.
    ///
    /// # Errors
    /// The server is gone, or the kernel refuses.
    pub fn settle(&self) -> Outcome<()> {
        let Some(kernel) = &self.kernel else { return Ok(()) };
        let mut exports = self.server.ask(&ExportList {})?;
        exports.retain(|export| export.name == export.volume && export.bytes > 0);
        let is_served = |name: &String| exports.iter().any(|export| export.name == *name);
        let warn = |name: &str, error| say(format_args!("{MAPPER}{name}: {error}"));
        for name in self.names()?.iter().filter(|name| !is_served(name)) {
            self.detach(name).unwrap_or_else(|error| warn(name, error));
        }
        let infos = self.server.ask(&VolumeList {})?;
        let is_to_be_read_only =
            |name: &str| infos.iter().any(|info| info.name == name && info.device_read_only);
        for export in &exports {
            // Without a client the kernel's connection is gone: the server was started again.
            let is_right = |device: PathBuf| {
                attach::bytes_of(&device) == Some(export.bytes) && export.clients > 0
            };
            if !self.device_of(&export.name).is_some_and(is_right) {
                // The kernel keeps the mode that the device had for another volume.
                let read_only = export.read_only || is_to_be_read_only(&export.name);
                let set = |device: PathBuf| device::set_read_only(&device, read_only);
                let attached = self.attach(kernel, &export.name);
                let attached =
                    attached.and_then(|()| self.device_of(&export.name).map_or(Ok(()), set));
                attached.unwrap_or_else(|error| warn(&export.name, error));
            }
        }
        for info in infos.iter().filter(|info| info.device_read_only) {
            let device = self.device_of(&info.name).filter(|device| !device::is_read_only(device));
            let made = device.map_or(Ok(()), |device| device::set_read_only(&device, true));
            made.unwrap_or_else(|error| warn(&info.name, error));
        }
        Ok(())
    }

    fn attach(&self, kernel: &KernelDevices, name: &str) -> Outcome<()> {
        let (path, ours) = (node(name), self.device_of(name));
        match fs::read_link(&path) {
            Ok(device) if ours.is_some() || is_ended(&device) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            _ => {
                let (found, expected) = ("a device of another program", "none");
                return Err(refused(ConfigKind::Busy, name, "node", found, expected));
            }
        }
        let device = kernel.attach(self.server, name)?;
        if ours.as_ref() == Some(&device) {
            return Ok(());
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(failed(&path, "remove", error))
            }
            _ => symlink(device, &path).map_err(|error| failed(&path, "make", error)),
        }
    }

    /// Keeps other processes of this program from changing nodes while the file is open.
    ///
    /// # Errors
    /// The system refuses.
    pub fn lock(&self) -> Outcome<Option<File>> {
        if self.kernel.is_none() {
            return Ok(None);
        }
        let failed = |error| system(MAPPER, "lock", error);
        fs::create_dir_all(MAPPER).map_err(failed)?;
        let folder = File::open(MAPPER).map_err(failed)?;
        folder.lock().map_err(failed)?;
        Ok(Some(folder))
    }

    /// Ends the device of a volume. The volume has what was written to the device: the kernel
    /// writes it when the last user closes it.
    ///
    /// # Errors
    /// It is in use, or the kernel refuses.
    pub fn detach(&self, name: &str) -> Outcome<()> {
        let (Some(kernel), Ok(device)) = (&self.kernel, fs::read_link(node(name))) else {
            return Ok(());
        };
        if self.device_of(name).is_some() {
            let Some(_held) = device::hold(&device)? else {
                let found = format!("{} is mounted, held or open", device.display());
                return Err(refused(ConfigKind::Busy, name, "device", found, "one not in use"));
            };
            kernel.detach(&device)?;
        } else if !is_ended(&device) {
            return Ok(());
        }
        fs::remove_file(node(name)).map_err(|error| failed(&node(name), "remove", error))
    }

    /// The nodes whose devices are ours, or have ended.
    fn names(&self) -> Outcome<Vec<String>> {
        let entries = match fs::read_dir(MAPPER) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(system(MAPPER, "read", error)),
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let is_own = |name: &String| {
            let has_ended = || fs::read_link(node(name)).is_ok_and(|device| is_ended(&device));
            self.device_of(name).is_some() || has_ended()
        };
        Ok(names.filter(is_own).collect())
    }
}

fn node(name: &str) -> PathBuf {
    Path::new(MAPPER).join(name)
}

/// True for an nbd device that the kernel does not serve.
fn is_ended(device: &Path) -> bool {
    attach::index_of(device).is_ok() && !attach::is_in_use(device)
}

fn failed(path: &Path, what: &str, error: std::io::Error) -> ConfigError {
    system(path.display().to_string(), what, error)
}
