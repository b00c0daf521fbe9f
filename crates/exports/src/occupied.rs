//! Listening addresses that a killed server still occupies.
//!
//! A server waits for connections by a poll in its io_uring. The poll keeps the listening socket
//! open until the kernel has torn the ring down, which happens after the process is gone. So a
//! restart right after `kill -9`, even one that waited for the process to end, found its address in
//! use every second time. Until the ring is gone, the kernel accepts connections that no process
//! serves.
//!
//! Therefore binding is tried again for [`PATIENCE`]. The kernel tells which process listens on a
//! unix socket: if that process runs, binding is refused after [`GRACE`], which allows for a
//! process that has just been killed.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, test_kill_process};

/// How long to retry while the process that holds the address is gone or unknown.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long to retry while the process that listens there runs.
const GRACE: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `bind` until it succeeds, as long as the address is held by a process that may be gone.
/// Sleeps.
///
/// # Errors
/// Those of `bind`; the address is still in use.
pub fn once_free<T>(
    is_held: impl Fn() -> bool,
    bind: impl Fn() -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    let mut waited = Duration::ZERO;
    loop {
        let error = match bind() {
            Err(error) if error.kind == ConfigKind::Busy => error,
            bound => return bound,
        };
        let limit = if is_held() { GRACE } else { PATIENCE };
        if waited >= limit {
            return Err(error);
        }
        std::thread::sleep(PAUSE);
        waited += PAUSE;
    }
}

/// True if something other than a socket is at `path`, or a running process listens there.
pub fn is_path_held(path: &Path) -> bool {
    let Ok(stream) = UnixStream::connect(path) else {
        // A socket on which no process listens is free.
        return true;
    };
    match socket_peercred(&stream) {
        Ok(peer) => is_running(peer.pid),
        Err(_) => true,
    }
}

fn is_running(pid: Pid) -> bool {
    if test_kill_process(pid).is_err_and(|error| error == rustix::io::Errno::SRCH) {
        return false;
    }
    // A zombie (ended, not yet waited for) does not count as running.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let state = stat.ok().and_then(|stat| stat.rsplit(')').next()?.trim_start().chars().next());
    !matches!(state, Some('Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::net::UnixListener;

    use cairn_block::{ConfigError, ConfigKind};

    use super::{is_path_held, is_running, once_free};

    fn busy() -> ConfigError {
        ConfigError::new(ConfigKind::Busy, "address", "in use")
    }

    #[test]
    fn an_address_that_becomes_free_is_bound() {
        let tries = Cell::new(0);
        let bind = || {
            tries.set(tries.get() + 1);
            if tries.get() < 100 { Err(busy()) } else { Ok(tries.get()) }
        };
        assert_eq!(once_free(|| false, bind).unwrap(), 100);
    }

    #[test]
    fn an_address_that_is_held_is_refused_soon_and_other_errors_at_once() {
        let tries = Cell::new(0);
        let bind = |kind| {
            tries.set(tries.get() + 1);
            Err::<(), _>(ConfigError::new(kind, "address", "no"))
        };
        let error = once_free(|| true, || bind(ConfigKind::Busy)).unwrap_err();
        assert_eq!((error.kind, tries.get()), (ConfigKind::Busy, 31));
        once_free(|| true, || bind(ConfigKind::System)).unwrap_err();
        assert_eq!(tries.get(), 32);
    }

    #[test]
    fn a_socket_is_held_by_a_process_that_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(is_path_held(&path), "by this process");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        while is_running(pid) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!is_running(pid), "waited for");
    }
}
