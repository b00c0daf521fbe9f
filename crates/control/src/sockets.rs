//! Unix sockets and their folder. A new server replaces the socket that a dead server left.
//!
//! Promises: a socket has mode 0600 from the moment when it is made. Only its owner can enter the
//! default folder. A socket on which a server listens is never replaced.

use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use cairn_block::ConfigKind;
use cairn_exports::occupied::{is_path_held, once_free};
use cairn_outcome::failure::{Outcome, refused, system};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Name of the control socket in the runtime folder.
pub const CONTROL_NAME: &str = "control.sock";
/// Name of the NBD socket in the runtime folder.
pub const NBD_NAME: &str = "nbd.sock";

/// The folder of the default sockets: `$XDG_RUNTIME_DIR/cairn`, else `/tmp/cairn-UID`. Made if it
/// is missing.
///
/// # Errors
/// It can't be made, or belongs to another user.
pub fn runtime_folder() -> Outcome<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folder = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder).join("cairn"),
        _ => PathBuf::from(format!("/tmp/cairn-{user}")),
    };
    let shown = folder.display().to_string();
    match std::fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(system(shown, "make the folder for sockets", error));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(&folder).map_err(|e| system(&shown, "look at", e))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let expected = "a folder that only this user can enter (or give the sockets' paths)";
        let seen = format!("owner {}, mode {:o}", found.uid(), found.mode() & 0o7777);
        return Err(refused(ConfigKind::System, shown, "runtime folder", seen, expected));
    }
    Ok(folder)
}

/// Listens on a unix socket at `path`, and replaces a socket on which no server listens. Waits a
/// moment for a server that is ending.
///
/// # Errors
/// A server listens there, the path is not a socket, or the system refuses.
pub fn listen_unix(path: &Path) -> Outcome<UnixListener> {
    once_free(|| is_path_held(path), || listen_now(path))
}

fn listen_now(path: &Path) -> Outcome<UnixListener> {
    let shown = path.display().to_string();
    clear_stale(path, &shown)?;
    let bound = bind(path).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => taken(&shown, "a socket in use"),
        _ => system(&shown, "socket path", error),
    })?;
    Ok(bound)
}

fn taken(shown: &str, found: &str) -> cairn_block::ConfigError {
    refused(ConfigKind::Busy, shown, "socket path", found, "a free path")
}

/// Removes the socket of a server that has gone.
fn clear_stale(path: &Path, shown: &str) -> Outcome<()> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(taken(shown, "a file"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| system(shown, "remove the socket", error))
        }
        _ => Err(taken(shown, "a socket that a server listens on")),
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before bind: on Linux the file takes over the mode of the socket.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(UnixListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::listen_unix;
    use cairn_block::ConfigKind;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_dead_servers_socket_is_taken_over_and_a_living_ones_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let living = listen_unix(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = listen_unix(&path).unwrap_err();
        assert_eq!(error.kind, ConfigKind::Busy);
        assert!(error.to_string().contains("expected a free path"));
        drop(living);
        listen_unix(&path).unwrap();
    }

    #[test]
    fn a_file_in_the_way_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        std::fs::write(&path, "precious").unwrap();
        let error = listen_unix(&path).unwrap_err();
        assert_eq!(error.kind, ConfigKind::Busy);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
