//! [`SimOpener`]: device arguments of table lines are names of simulated drives.

use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind, Disk, FailureCount, Identity, Opener};
use parking_lot::Mutex;

/// A name, and what it names.
type Device = (String, Arc<dyn Disk>);

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

    /// The same for an opener that is in use.
    pub fn put(&self, name: &str, disk: Arc<dyn Disk>) {
        self.disks.lock().push((name.to_owned(), disk));
    }

    /// The number of a disk, and the disk.
    fn find(&self, argument: &str) -> Result<(u64, Arc<dyn Disk>), ConfigError> {
        let disks = self.disks.lock();
        let found = disks.iter().enumerate().find(|(_, (name, _))| name == argument);
        let (index, (_, disk)) = found.ok_or_else(|| {
            let detail = "device: found none of this name, expected a simulated drive";
            ConfigError::new(ConfigKind::Argument, argument, detail)
        })?;
        Ok((index as u64, disk.clone()))
    }
}

impl Opener for SimOpener {
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError> {
        Ok(Identity::File { device: 0, inode: self.find(argument)?.0, birth_ns: 0 })
    }

    /// Ignores `_failures`: a drive counts its own, since it is open as long as the world exists.
    fn open(
        &self,
        argument: &str,
        _read_only: bool,
        _failures: Arc<FailureCount>,
    ) -> Result<Arc<dyn Disk>, ConfigError> {
        Ok(self.find(argument)?.1)
    }
}
