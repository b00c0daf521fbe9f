//! [`Shelf`]: the devices of a run by the names that tables call them. A volume is a device for the
//! volumes that are opened after it, as an array that the kernel assembles is for `serve`.

use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind, Disk, FailureCount, Identity, Opener};
use parking_lot::Mutex;

/// See the module's description.
#[derive(Clone, Default)]
pub(super) struct Shelf(Arc<Mutex<Vec<Device>>>);

/// A name, and what it names.
type Device = (String, Arc<dyn Disk>);

impl Shelf {
    /// Adds a device; the first of a name counts.
    pub fn put(&self, name: &str, disk: Arc<dyn Disk>) {
        self.0.lock().push((name.to_owned(), disk));
    }

    fn find(&self, argument: &str) -> Result<(u64, Arc<dyn Disk>), ConfigError> {
        let shelf = self.0.lock();
        let found = shelf.iter().enumerate().find(|(_, (name, _))| name == argument);
        let (index, (_, disk)) = found.ok_or_else(|| {
            let detail = "device: found none of this name, expected a drive, or a volume before";
            ConfigError::new(ConfigKind::Argument, argument, detail)
        })?;
        Ok((index as u64, disk.clone()))
    }
}

impl Opener for Shelf {
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError> {
        Ok(Identity::Unique(FIRST_UNIQUE + self.find(argument)?.0))
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

/// Identities of a shelf begin here: the registry counts its own from zero.
const FIRST_UNIQUE: u64 = 1 << 63;
