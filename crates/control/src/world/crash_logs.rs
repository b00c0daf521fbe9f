//! A start after a kill: where crash logs are, and patience with what the killed server holds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cairn_backends::{CrashFiles, patiently, very_patiently};
use cairn_block::ConfigError;
use cairn_outcome::failure::{Outcome, system};

use super::World;

/// The crash logs of a world, if it keeps any.
#[derive(Default)]
pub(super) struct CrashLogFiles {
    files: OnceLock<Arc<CrashFiles>>,
    /// The server has not started yet.
    starts: AtomicBool,
}

impl World {
    /// A start begins. Its tables have crash logs of so many bytes; with `discards`, what a killed
    /// server has left in them is given up. Without a place for them the world runs as it would
    /// after a power cut, and says so.
    pub fn begin_start(&self, bytes: u64, discards: bool) {
        self.crash_logs.starts.store(true, Ordering::Relaxed);
        match CrashFiles::open(bytes) {
            Ok(files) => {
                files.discard(discards);
                files.start(true);
                let files = self.crash_logs.files.get_or_init(|| Arc::new(files));
                self.registry().set_crash_logs(files.clone());
            }
            Err(_) if self.read_only() => {}
            Err(reasons) => {
                tracing::warn!("no crash logs, a kill loses what is not flushed: {reasons}");
            }
        }
    }

    /// The start has succeeded: what is given up from now on does not come back.
    pub fn begin_to_serve(&self) {
        if let Some(files) = self.crash_logs.files.get() {
            files.start(false);
        }
    }

    /// Every volume is up: tables that are loaded later replay no log that the start was to
    /// discard.
    pub fn end_start(&self) {
        self.crash_logs.starts.store(false, Ordering::Relaxed);
        if let Some(files) = self.crash_logs.files.get() {
            files.discard(false);
        }
    }

    /// The process ends: every volume is suspended.
    pub fn end_crash_logs(&self) {
        if let Some(files) = self.crash_logs.files.get() {
            files.end();
        }
    }

    /// Another process goes on with the volumes, which are suspended: it may open their logs.
    ///
    /// # Errors
    /// The system refused.
    pub fn let_crash_logs_go(&self) -> Outcome<()> {
        let let_go = self.crash_logs.files.get().map_or(Ok(()), |files| files.let_go());
        let_go.map_err(|error| system("crash logs", "unlock", error))
    }

    /// Retries while another program holds a device: for long while the server starts.
    pub(super) fn patiently<T>(
        &self,
        attempt: impl FnMut() -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        match self.crash_logs.starts.load(Ordering::Relaxed) {
            true => very_patiently(attempt),
            false => patiently(attempt),
        }
    }
}
