//! The lock on an open file: an open-file-description lock over all its bytes, exclusive, or shared
//! for a reader. It belongs to the descriptor and ends with it. This module tries once;
//! [`crate::held`] retries.

use std::os::fd::{AsRawFd, OwnedFd};

use cairn_block::{ConfigError, ConfigKind};

use crate::held::held;

/// Takes the lock, or names its holder in the error.
pub(super) fn lock(path: &str, fd: &OwnedFd, read_only: bool) -> Result<(), ConfigError> {
    let mut request = whole_file(if read_only { libc::F_RDLCK } else { libc::F_WRLCK });
    let Err(error) = call(fd, libc::F_OFD_SETLK, &mut request) else { return Ok(()) };
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => {
            let holder = holder(fd, request);
            Err(held(path, format!("in use: {holder}; end that use, or name another device")))
        }
        _ => {
            let detail = "the system refuses to lock it";
            Err(ConfigError::new(ConfigKind::System, path, detail).with_source(error))
        }
    }
}

/// The holder of the conflicting lock, as far as the system tells: it names the process of a
/// process's lock, but not that of an open-file-description lock.
fn holder(fd: &OwnedFd, mut request: libc::flock) -> String {
    let asked = call(fd, libc::F_OFD_GETLK, &mut request);
    let kind = if i32::from(request.l_type) == libc::F_RDLCK { "read lock" } else { "lock" };
    match request.l_pid {
        pid if asked.is_ok() && pid > 0 => format!("process {pid} holds a {kind}"),
        _ => format!("another process holds a {kind}"),
    }
}

fn whole_file(kind: i32) -> libc::flock {
    // SAFETY: a C struct of integers; all zero is a lock from byte 0 to the end, without a process.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock
}

fn call(fd: &OwnedFd, command: i32, lock: &mut libc::flock) -> std::io::Result<()> {
    // SAFETY: the descriptor is open and the struct lives for the whole call.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(lock)) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
