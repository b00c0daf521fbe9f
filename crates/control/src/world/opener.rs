//! Opens the devices that tables name, from a folder of choice.

use std::path::PathBuf;
use std::sync::Arc;

use cairn_backends::path_in;
use cairn_block::{Disk, Env, FailureCount, Identity, LocalFuture, Opener, unescape_word};
use cairn_outcome::failure::Outcome;

/// Opens the device that a word of a table names; relative paths begin at a folder of choice.
pub(super) struct BaseOpener {
    pub(super) base: Option<PathBuf>,
    pub(super) opener: Box<dyn Opener>,
}

impl BaseOpener {
    fn place(&self, argument: &str) -> String {
        let Some((before, path)) = path_in(argument) else { return argument.to_owned() };
        let path = unescape_word(path);
        match &self.base {
            Some(base) => format!("{before}{}", base.join(path).to_string_lossy()),
            None => format!("{before}{path}"),
        }
    }
}

impl Opener for BaseOpener {
    fn identify(&self, argument: &str) -> Outcome<Identity> {
        self.opener.identify(&self.place(argument))
    }

    fn open(
        &self,
        argument: &str,
        read_only: bool,
        failures: Arc<FailureCount>,
    ) -> Outcome<Arc<dyn Disk>> {
        self.opener.open(&self.place(argument), read_only, failures)
    }

    fn open_on<'a>(
        &'a self,
        env: &'a Env,
        argument: &'a str,
        read_only: bool,
        failures: Arc<FailureCount>,
    ) -> LocalFuture<'a, Outcome<Arc<dyn Disk>>> {
        let place = self.place(argument);
        Box::pin(async move { self.opener.open_on(env, &place, read_only, failures).await })
    }

    fn opens_source_read_only(&self, argument: &str) -> bool {
        self.opener.opens_source_read_only(&self.place(argument))
    }
}
