//! Reads the XML of a restore, from a file or from a pipe that may be silent for long.
//!
//! Promises that an interrupt is noticed while the pipe is silent. Shows the progress.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::Receiver;

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::failure::{Outcome, system};
use cairn_outcome::signals::Event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::progress::Progress;

/// Longest time until an interrupt is noticed.
const LOOK_UP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The text.
pub struct Text<'a> {
    /// The name that the user gave.
    pub name: String,
    /// The open file or pipe.
    pub file: File,
    progress: Progress,
    stop: &'a Receiver<Event>,
}

impl<'a> Text<'a> {
    /// Opens it: `-` is the standard input.
    ///
    /// # Errors
    /// There is none, or the system refused.
    pub fn open(path: &Path, stop: &'a Receiver<Event>) -> Outcome<Text<'a>> {
        let name = path.display().to_string();
        if name == "-" {
            let name = "stdin".to_owned();
            let file = io::stdin().as_fd().try_clone_to_owned();
            let file = file.map_err(|error| system(&name, "open", error))?.into();
            return Ok(Text::of(name, file, stop));
        }
        // Without `NONBLOCK` the open of a pipe waits for a writer.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = file.map_err(|error| system(&name, "open", error))?;
        Ok(Text::of(name, file, stop))
    }

    fn of(name: String, file: File, stop: &'a Receiver<Event>) -> Text<'a> {
        let mut progress = Progress::new("restore", "bytes of XML");
        // The length of a pipe is not known.
        progress.expect(file.metadata().map_or(0, |found| found.len()));
        Text { name, file, progress, stop }
    }

    /// The next bytes; none at the end.
    ///
    /// # Errors
    /// The system refused, or an interrupt came.
    pub fn read(&mut self, piece: &mut [u8]) -> Outcome<usize> {
        loop {
            if self.stop.try_recv().is_ok() {
                return Err(ConfigError::new(ConfigKind::System, &self.name, "interrupted"));
            }
            let mut wanted = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut wanted, Some(&LOOK_UP)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(system(&self.name, "wait", error.into())),
            }
            match self.file.read(piece) {
                Err(error) if is_passing(error.kind()) => {}
                Err(error) => return Err(system(&self.name, "read", error)),
                Ok(0) => {
                    self.progress.finish();
                    return Ok(0);
                }
                Ok(len) => {
                    self.progress.add(len as u64);
                    return Ok(len);
                }
            }
        }
    }
}

fn is_passing(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::Interrupted | ErrorKind::WouldBlock)
}
