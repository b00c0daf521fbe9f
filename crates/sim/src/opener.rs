//! [`SimOpener`]: device arguments of table lines are names of simulated drives.

use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind, Disk, FailureCount, Identity, Opener};

/// Opens simulated disks by name.
#[derive(Clone, Default)]
pub struct SimOpener {
    disks: Vec<(String, Arc<dyn Disk>)>,
}

impl SimOpener {
    /// An opener without disks.
    pub fn new() -> SimOpener {
        SimOpener::default()
    }

    /// Adds a disk under a name.
    #[must_use]
    pub fn with(mut self, name: &str, disk: Arc<dyn Disk>) -> SimOpener {
        self.disks.push((name.to_owned(), disk));
        self
    }

    fn find(&self, argument: &str) -> Result<usize, ConfigError> {
        self.disks.iter().position(|(name, _)| name == argument).ok_or_else(|| {
            let detail = "device: found none of this name, expected a simulated drive";
            ConfigError::new(ConfigKind::Argument, argument, detail)
        })
    }
}

impl Opener for SimOpener {
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError> {
        Ok(Identity::File { device: 0, inode: self.find(argument)? as u64, birth_ns: 0 })
    }

    /// Ignores `_failures`: a drive counts its own, since it is open as long as the world exists.
    fn open(
        &self,
        argument: &str,
        _read_only: bool,
        _failures: Arc<FailureCount>,
    ) -> Result<Arc<dyn Disk>, ConfigError> {
        Ok(self.disks[self.find(argument)?].1.clone())
    }
}
