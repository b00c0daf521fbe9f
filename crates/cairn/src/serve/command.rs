//! `--run`: a private folder for sockets, and the command that finds them in its environment.

use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::Sender;

use cairn_outcome::failure::{Outcome, system};
use cairn_outcome::signals::{Event, Unfinished};
use rustix::process::{Pid, Signal, kill_process};

use cairn_control::exports::Exports;

use super::{activation, notify};

/// A folder that only this user can enter. Removed when dropped, or when the process leaves.
pub struct PrivateFolder(Unfinished);

impl PrivateFolder {
    /// Makes a folder with an unused name.
    ///
    /// # Errors
    /// The system refused.
    pub fn make() -> Outcome<PrivateFolder> {
        let (temp, pid) = (std::env::temp_dir(), std::process::id());
        for attempt in 0u32.. {
            let path = temp.join(format!("cairn-run-{pid}-{attempt}"));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(PrivateFolder(Unfinished::folder(&path))),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(system(path.display().to_string(), "make", error)),
            }
        }
        unreachable!("names do not run out")
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A running command.
pub struct Running(Pid);

impl Running {
    /// Starts `command` with a shell; its end is an event.
    ///
    /// # Errors
    /// The system refused.
    pub fn start(
        command: &str,
        exports: &Exports,
        control: Option<&Path>,
        events: Sender<Event>,
    ) -> Outcome<Running> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command);
        shell.env("uri", exports.uri("").unwrap_or_default());
        shell.env("unixsocket", exports.unix_socket().unwrap_or_default());
        if let Some(control) = control {
            shell.env("CAIRN_CONTROL", control);
        }
        activation::forget(&mut shell);
        notify::forget(&mut shell);
        let mut child = shell.spawn().map_err(|error| system("sh", "--run", error))?;
        let running = Running(pid_of(&child));
        let wait = move || {
            let ended = child.wait();
            // A command whose end cannot be learnt counts as failed.
            let status = ended.unwrap_or_else(|_| failed_status());
            drop(events.send(Event::CommandEnded(status)));
        };
        std::thread::Builder::new()
            .name("run".to_owned())
            .spawn(wait)
            .map_err(|error| system("--run", "thread", error))?;
        Ok(running)
    }

    /// Asks the command to end.
    pub fn terminate(&self) {
        if let Err(error) = kill_process(self.0, Signal::TERM) {
            tracing::debug!("the command of --run: {error}");
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn failed_status() -> ExitStatus {
    use std::os::unix::process::ExitStatusExt;
    ExitStatus::from_raw(1 << 8)
}

/// The exit code that repeats a command's: its own, or 128 and the signal that ended it.
pub fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(cairn_outcome::exit::FAILURE)
}
