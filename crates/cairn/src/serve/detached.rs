//! [`Detached`]: a process that this one starts, and that is no child of it.
//!
//! A service manager takes a process for the main one of a service only if it is a child of the
//! manager (systemd kills any other at a stop, without a signal before). A process whose parent has
//! ended is a child of process 1, or of who takes its place: so one in between starts it and ends.
//!
//! It is known by a descriptor, as its number may be used again once it has ended.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// See the module's description.
pub struct Detached {
    pid: Pid,
    /// None if it had ended before it could be opened.
    process: Option<OwnedFd>,
}

impl Detached {
    /// Starts a command. `has_ended` is asked whether the process is gone, which something shows
    /// that the process alone holds then: its number may be another one's.
    ///
    /// # Errors
    /// The system refused.
    pub fn start(mut command: Command, has_ended: impl FnOnce() -> bool) -> io::Result<Detached> {
        let (told, tell) = pipe_with(PipeFlags::CLOEXEC)?;
        let fd = tell.as_raw_fd();
        // SAFETY: `leave_parent` makes system calls only: it takes no lock, allocates nothing, and
        // panics nowhere.
        unsafe { command.pre_exec(move || leave_parent(fd)) };
        command.spawn()?.wait()?;
        drop((command, tell));
        let mut number = [0; 4];
        File::from(told).read_exact(&mut number)?;
        let pid = Pid::from_raw(i32::from_ne_bytes(number)).ok_or(Errno::SRCH)?;
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => Some(process),
            Err(Errno::SRCH) => None,
            Err(error) => return Err(error.into()),
        };
        let process = if has_ended() { None } else { process };
        Ok(Detached { pid, process })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Asks it to stop.
    ///
    /// # Errors
    /// The system refused.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        let Some(process) = &self.process else { return Ok(()) };
        match pidfd_send_signal(process, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills it. On return it has ended.
    ///
    /// # Errors
    /// The system refused.
    pub fn kill(&self) -> io::Result<()> {
        self.signal(Signal::KILL)?;
        let Some(process) = &self.process else { return Ok(()) };
        loop {
            match poll(&mut [PollFd::new(process, PollFlags::IN)], None) {
                Err(Errno::INTR) => {}
                ended => return Ok(ended.map(drop)?),
            }
        }
    }
}

/// Between fork and exec: goes on in a child, whose number it writes to the pipe, and ends.
fn leave_parent(pipe: RawFd) -> io::Result<()> {
    // SAFETY: without further flags both processes have memory of their own, as after fork(2). That
    // of the C library would run handlers, which may take locks that another thread held.
    match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
        ..0 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: the pipe is open until exec.
            let pipe = unsafe { BorrowedFd::borrow_raw(pipe) };
            let number = rustix::process::getpid().as_raw_nonzero().get();
            rustix::io::write(pipe, &number.to_ne_bytes())?;
            Ok(())
        }
        // SAFETY: it ends without running anything of this program.
        _ => unsafe { libc::_exit(0) },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::Stdio;

    use super::*;

    /// A shell that holds one end of a pair; the other end says when it has gone.
    fn start(script: &str) -> (Detached, UnixStream) {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::from(OwnedFd::from(theirs)));
        (Detached::start(command, || false).unwrap(), mine)
    }

    #[test]
    fn it_is_no_child_and_can_be_killed() {
        let (detached, mut end) = start("echo $PPID >&0; exec sleep 1000");
        let mut parent = [0; 64];
        let read = end.read(&mut parent).unwrap();
        let parent = String::from_utf8_lossy(&parent[..read]).trim().to_owned();
        assert_ne!(parent, std::process::id().to_string());
        detached.kill().unwrap();
        assert_eq!(end.read(&mut [0; 1]).unwrap(), 0, "it has ended");
        detached.kill().unwrap();
    }

    #[test]
    fn a_command_that_is_missing_is_an_error() {
        let missing = Detached::start(Command::new("/nowhere/cairn"), || false);
        assert_eq!(missing.err().unwrap().kind(), io::ErrorKind::NotFound);
    }
}
