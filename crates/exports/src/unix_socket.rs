//! Unix sockets that listen, and who may connect to them.
//!
//! A path on which a server listens is refused. A socket left behind by a server that died is
//! replaced, after a wait if necessary (see `occupied`).
//!
//! Promise: no process can connect before the socket has its rights. The mode and the group are set
//! between bind and listen, and until then the system refuses connections.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use cairn_block::{ConfigError, ConfigKind};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::occupied::{is_path_held, once_free};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The rights of a socket's file. A client needs the right to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketRights {
    /// Permission bits, at most 0777; none leaves them to the process's umask.
    pub mode: Option<u32>,
    /// The number of the group; none leaves the process's.
    pub group: Option<u32>,
}

impl SocketRights {
    /// Only the owner may connect.
    pub const OWNER: SocketRights = SocketRights { mode: Some(0o600), group: None };
}

/// Listens on a socket at `path`, close-on-exec and blocking. Waits a moment for a server that is
/// ending.
///
/// # Errors
/// A server listens there, the path is not a socket, or the system refuses.
pub fn listen_unix(path: &Path, rights: SocketRights) -> Result<OwnedFd, ConfigError> {
    once_free(|| is_path_held(path), || listen_now(path, rights))
}

fn listen_now(path: &Path, rights: SocketRights) -> Result<OwnedFd, ConfigError> {
    let device = path.display().to_string();
    let refused = |error: Errno| system_error(&device, error.into());
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(refused)?;
    if let Some(mode) = rights.mode {
        // On Linux the file gets the mode of the socket, without the bits of the umask.
        let mode = Mode::from_raw_mode(mode & 0o700);
        rustix::fs::fchmod(&socket, mode).map_err(refused)?;
    }
    let address = SocketAddrUnix::new(path).map_err(refused)?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            check_stale(path)?;
            std::fs::remove_file(path).map_err(|error| system_error(&device, error))?;
            rustix::net::bind(&socket, &address).map_err(|error| match error {
                Errno::ADDRINUSE => taken(&device, "a socket in use"),
                error => refused(error),
            })?;
        }
        bound => bound.map_err(refused)?,
    }
    let listens = set_rights(path, rights)
        .and_then(|()| rustix::net::listen(&socket, BACKLOG).map_err(refused));
    match listens {
        Ok(()) => Ok(socket),
        Err(error) => {
            drop(std::fs::remove_file(path));
            Err(error)
        }
    }
}

/// Sets the rights of the socket at `path`, and of nothing that a link there leads to.
fn set_rights(path: &Path, rights: SocketRights) -> Result<(), ConfigError> {
    if rights == SocketRights::default() {
        return Ok(());
    }
    let device = path.display().to_string();
    let refused = |error: Errno| system_error(&device, error.into());
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(refused)?;
    let found = rustix::fs::fstat(&file).map_err(refused)?;
    if !FileType::from_raw_mode(found.st_mode).is_socket() {
        return Err(taken(&device, "a file that is not a socket"));
    }
    // The group first: its members get no right that was meant for the group before.
    if let Some(group) = rights.group {
        let to = Some(Gid::from_raw(group));
        rustix::fs::chownat(file.as_fd(), "", None, to, AtFlags::EMPTY_PATH).map_err(|error| {
            let detail = format!("cannot give the socket to group {group}");
            ConfigError::new(ConfigKind::System, &device, detail)
                .with_source(io::Error::from(error))
        })?;
    }
    if let Some(mode) = rights.mode {
        let file = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::chmod(file, Mode::from_raw_mode(mode & 0o777)).map_err(|error| {
            let detail = format!("cannot give the socket mode {mode:04o}");
            ConfigError::new(ConfigKind::System, &device, detail)
                .with_source(io::Error::from(error))
        })?;
    }
    Ok(())
}

/// The error of a system call for a socket.
pub(crate) fn system_error(device: &str, error: io::Error) -> ConfigError {
    if error.kind() == io::ErrorKind::NotFound {
        let detail = "cannot listen: the folder of the socket does not exist; make it first";
        return ConfigError::new(ConfigKind::System, device, detail);
    }
    ConfigError::new(ConfigKind::System, device, "cannot listen").with_source(error)
}

fn taken(device: &str, found: &str) -> ConfigError {
    ConfigError::new(ConfigKind::Busy, device, format!("found {found}, expected a free path"))
}

/// Refuses to replace anything but a socket on which no process listens.
fn check_stale(path: &Path) -> Result<(), ConfigError> {
    let device = path.display().to_string();
    match std::fs::symlink_metadata(path) {
        Err(error) => return Err(system_error(&device, error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(taken(&device, "a file that is not a socket"));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(system_error(&device, error)),
        Ok(_) => Err(taken(&device, "a server listening on the socket")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use cairn_block::ConfigKind;

    use super::{SocketRights, listen_unix};

    #[test]
    fn stale_socket_is_replaced_and_live_socket_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = listen_unix(&path, SocketRights::OWNER).unwrap();
        let error = listen_unix(&path, SocketRights::OWNER).unwrap_err();
        assert_eq!(error.kind, ConfigKind::Busy);
        assert!(error.to_string().contains("expected a free path"), "{error}");
        drop(first);
        listen_unix(&path, SocketRights::OWNER).unwrap();
    }

    #[test]
    fn file_that_is_not_a_socket_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        let error = listen_unix(&path, SocketRights::OWNER).unwrap_err();
        assert_eq!(error.kind, ConfigKind::Busy);
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
    }

    #[test]
    fn socket_has_the_mode_asked_for_whatever_the_umask_is() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o660, 0o666, 0o777, 0o000] {
            let path = folder.path().join(format!("{mode:o}"));
            let rights = SocketRights { mode: Some(mode), group: None };
            let _socket = listen_unix(&path, rights).unwrap();
            let found = std::fs::metadata(&path).unwrap();
            assert_eq!(found.permissions().mode() & 0o7777, mode, "{mode:o}");
        }
    }

    #[test]
    fn socket_belongs_to_the_group_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let own = std::fs::metadata(folder.path()).unwrap().gid();
        let is_root = rustix::process::geteuid().is_root();
        // A group that the process may give files to.
        let group = if is_root { own + 1 } else { own };
        let rights = SocketRights { mode: Some(0o660), group: Some(group) };
        let _socket = listen_unix(&path, rights).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.gid(), found.permissions().mode() & 0o777), (group, 0o660));
    }

    #[test]
    fn no_socket_stays_behind_if_its_rights_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        // No group has this number; the system refuses it for every user.
        let rights = SocketRights { mode: None, group: Some(u32::MAX - 1) };
        match listen_unix(&path, rights) {
            // Root may give files to groups that do not exist.
            Ok(_) => assert!(rustix::process::geteuid().is_root()),
            Err(error) => {
                assert!(error.to_string().contains("cannot give the socket to group"), "{error}");
                assert!(!path.exists());
            }
        }
    }
}
