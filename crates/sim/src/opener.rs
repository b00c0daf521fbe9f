//! [`SimOpener`]: device arguments of table lines are names of simulated drives.

use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind, Disk, FailureCount, Identity, Opener};
use parking_lot::Mutex;

use crate::drive::SimDrive;

/// A name, and what it names.
struct Device {
    name: String,
    disk: Arc<dyn Disk>,
    /// It is at a server.
    is_remote: bool,
}

/// Opens simulated disks by name. Clones have the same disks.
#[derive(Clone, Default)]
pub struct SimOpener {
    disks: Arc<Mutex<Vec<Device>>>,
}

impl SimOpener {
    /// An opener without disks.
    pub fn new() -> SimOpener {
        SimOpener::default()
    }

    /// Adds a disk under a name.
    #[must_use]
    pub fn with(self, name: &str, disk: Arc<dyn Disk>) -> SimOpener {
        self.put(name, disk);
        self
    }

    /// Adds a drive under its name.
    #[must_use]
    pub(crate) fn with_drive(self, name: &str, drive: Arc<SimDrive>) -> SimOpener {
        let is_remote = drive.is_remote();
        self.disks.lock().push(Device { name: name.to_owned(), disk: drive, is_remote });
        self
    }

    /// As [`Self::with`], for an opener that is in use.
    pub fn put(&self, name: &str, disk: Arc<dyn Disk>) {
        self.disks.lock().push(Device { name: name.to_owned(), disk, is_remote: false });
    }

    /// Looks at the device of a name, and its number.
    fn find<R>(
        &self,
        argument: &str,
        look: impl FnOnce(u64, &Device) -> R,
    ) -> Result<R, ConfigError> {
        let disks = self.disks.lock();
        let found = disks.iter().enumerate().find(|(_, device)| device.name == argument);
        let (index, device) = found.ok_or_else(|| {
            let detail = "device: found none of this name, expected a simulated drive";
            ConfigError::new(ConfigKind::Argument, argument, detail)
        })?;
        Ok(look(index as u64, device))
    }
}

impl Opener for SimOpener {
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError> {
        self.find(argument, |number, device| match device.is_remote {
            true => Identity::Remote(device.name.clone()),
            false => Identity::File { device: 0, inode: number, birth_ns: 0 },
        })
    }

    /// Ignores `_failures`: a drive counts its own, since it is open as long as the world exists.
    fn open(
        &self,
        argument: &str,
        _read_only: bool,
        _failures: Arc<FailureCount>,
    ) -> Result<Arc<dyn Disk>, ConfigError> {
        self.find(argument, |_, device| device.disk.clone())
    }
}
