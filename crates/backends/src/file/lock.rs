//! The lock on an open file: an open-file-description lock over all its bytes, exclusive, or shared
//! for a reader. It belongs to the descriptor and ends with it. This module tries once;
//! [`crate::held`] retries.
//!
//! The files of an image are locked as qemu does it, so that its programs and this one read them at
//! the same time, and none of them writes. A program holds shared locks on single bytes, one for
//! each thing that it does, and one for each that it forbids others; it looks whether another
//! program holds the byte of the opposite.

use std::os::fd::{AsRawFd, OwnedFd};

use cairn_block::{ConfigError, ConfigKind};

use crate::held::held;

type Lock = libc::flock;

/// Takes the lock, or names its holder in the error.
pub(super) fn lock(path: &str, fd: &OwnedFd, read_only: bool) -> Result<(), ConfigError> {
    take(path, fd, whole_file(if read_only { libc::F_RDLCK } else { libc::F_WRLCK }))
}

/// Takes the locks of a reader of an image that wants no writer, or names a writer in the error.
pub(super) fn lock_image(path: &str, fd: &OwnedFd) -> Result<(), ConfigError> {
    for byte in [DOES + READ, FORBIDS + WRITE, FORBIDS + RESIZE] {
        take(path, fd, Lock { l_start: byte, l_len: 1, ..whole_file(libc::F_RDLCK) })?;
    }
    for (byte, what) in [
        (FORBIDS + READ, "forbids others to read it"),
        (DOES + WRITE, "has it open for writing"),
        (DOES + RESIZE, "may resize it"),
    ] {
        let asked = Lock { l_start: byte, l_len: 1, ..whole_file(libc::F_WRLCK) };
        let mut found = asked;
        call(fd, libc::F_OFD_GETLK, &mut found).map_err(|error| refused(path, error))?;
        // A reader of the whole file, by the other way of locking, holds this byte too.
        let is_reader = i32::from(found.l_type) == libc::F_RDLCK && found.l_len == 0;
        if i32::from(found.l_type) != libc::F_UNLCK && !is_reader {
            let way_on = "end that use, or name another device";
            return Err(held(path, format!("in use: another program {what}; {way_on}")));
        }
    }
    Ok(())
}

/// What qemu has: the first byte for what a program does, the first for what it forbids, and the
/// number of each thing.
const DOES: i64 = 100;
const FORBIDS: i64 = 200;
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

fn take(path: &str, fd: &OwnedFd, mut request: Lock) -> Result<(), ConfigError> {
    let Err(error) = call(fd, libc::F_OFD_SETLK, &mut request) else { return Ok(()) };
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Err(in_use(path, fd, request)),
        _ => Err(refused(path, error)),
    }
}

fn in_use(path: &str, fd: &OwnedFd, request: Lock) -> ConfigError {
    let holder = holder(fd, request);
    held(path, format!("in use: {holder}; end that use, or name another device"))
}

fn refused(path: &str, error: std::io::Error) -> ConfigError {
    let detail = "the system refuses to lock it";
    ConfigError::new(ConfigKind::System, path, detail).with_source(error)
}

/// The holder of the conflicting lock, as far as the system tells: it names the process of a
/// process's lock, but not that of an open-file-description lock.
fn holder(fd: &OwnedFd, mut request: Lock) -> String {
    let asked = call(fd, libc::F_OFD_GETLK, &mut request);
    let kind = if i32::from(request.l_type) == libc::F_RDLCK { "read lock" } else { "lock" };
    match request.l_pid {
        pid if asked.is_ok() && pid > 0 => format!("process {pid} holds a {kind}"),
        _ => format!("another process holds a {kind}"),
    }
}

fn whole_file(kind: i32) -> Lock {
    // SAFETY: a C struct of integers; all zero is a lock from byte 0 to the end, without a process.
    let mut lock: Lock = unsafe { std::mem::zeroed() };
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
