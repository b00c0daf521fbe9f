//! Listening sockets: where a server can be reached.
//!
//! An address at which a server listens is refused (see `unix_socket` and `occupied`). The path of
//! a unix socket is removed when listening stops, unless another socket has replaced it, or another
//! program made it (socket activation).

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind};
use rustix::net::{SocketAddrUnix, SocketType, sockopt};
use serde::{Deserialize, Serialize};

use crate::occupied::once_free;
use crate::unix_socket::{SocketRights, listen_unix, system_error};

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListenAddress {
    /// A unix socket at this path.
    Unix(PathBuf),
    /// A TCP port; port 0 lets the system choose.
    Tcp(SocketAddr),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ListenAddress::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl ListenAddress {
    /// Where a socket listens that another program opened.
    ///
    /// # Errors
    /// It is no stream socket that listens at a path or at a TCP port.
    pub fn of(socket: impl AsFd) -> Result<ListenAddress, &'static str> {
        let socket = socket.as_fd();
        match sockopt::socket_type(socket) {
            Ok(SocketType::STREAM) => {}
            Ok(_) => return Err("a socket of another type than stream"),
            Err(_) => return Err("a descriptor that is no socket"),
        }
        if !sockopt::socket_acceptconn(socket).is_ok_and(|it| it) {
            return Err("a socket that does not listen");
        }
        let name = rustix::net::getsockname(socket).map_err(|_| "a socket without a name")?;
        if let Ok(address) = SocketAddr::try_from(name.clone()) {
            return Ok(ListenAddress::Tcp(address));
        }
        let address = SocketAddrUnix::try_from(name).map_err(|_| "a socket of another family")?;
        let path = address.path().ok_or("a unix socket without a path")?;
        Ok(ListenAddress::Unix(OsStr::from_bytes(path.to_bytes()).into()))
    }
}

/// A socket that listens and that another process opened.
#[derive(Clone, Debug)]
pub struct Listening {
    /// Where.
    pub address: ListenAddress,
    /// The socket.
    pub socket: Arc<OwnedFd>,
    /// It was given by socket activation: its path belongs to the program that made it.
    pub is_activated: bool,
}

/// A bound, non-blocking socket.
pub(crate) struct Listener {
    pub(crate) socket: Arc<OwnedFd>,
    /// With the port that the system chose.
    pub(crate) address: ListenAddress,
    /// Device and inode of the socket's file, if the file is removed at the end.
    file: Option<(u64, u64)>,
    is_activated: bool,
}

impl Listener {
    /// Listens at `address`; waits for a short time if it is in use. A unix socket gets `rights`.
    pub(crate) fn bind(
        address: &ListenAddress,
        rights: SocketRights,
    ) -> Result<Listener, ConfigError> {
        match address {
            ListenAddress::Unix(path) => Listener::bind_unix(path, rights),
            // The system does not tell which process listens on a TCP port.
            ListenAddress::Tcp(address) => once_free(|| false, || Listener::bind_tcp(*address)),
        }
    }

    fn bind_unix(path: &Path, rights: SocketRights) -> Result<Listener, ConfigError> {
        let refused = |error| system_error(&path.display().to_string(), error);
        let socket = UnixListener::from(listen_unix(path, rights)?);
        socket.set_nonblocking(true).map_err(refused)?;
        let found = std::fs::symlink_metadata(path).map_err(refused)?;
        Ok(Listener {
            socket: Arc::new(OwnedFd::from(socket)),
            address: ListenAddress::Unix(path.to_owned()),
            file: Some((found.dev(), found.ino())),
            is_activated: false,
        })
    }

    fn bind_tcp(address: SocketAddr) -> Result<Listener, ConfigError> {
        let refused = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => {
                let detail = "the port is in use";
                ConfigError::new(ConfigKind::Busy, address.to_string(), detail)
            }
            _ => system_error(&address.to_string(), error),
        };
        let socket = TcpListener::bind(address).map_err(refused)?;
        socket.set_nonblocking(true).map_err(refused)?;
        let bound = socket.local_addr().map_err(refused)?;
        Ok(Listener {
            socket: Arc::new(OwnedFd::from(socket)),
            address: ListenAddress::Tcp(bound),
            file: None,
            is_activated: false,
        })
    }

    /// A socket on which another process listened.
    pub(crate) fn inherited(given: Listening) -> Result<Listener, ConfigError> {
        let Listening { address, socket, is_activated } = given;
        if !sockopt::socket_acceptconn(&socket).is_ok_and(|it| it) {
            let detail = "found a descriptor that does not listen, expected a socket that does";
            return Err(ConfigError::new(ConfigKind::System, address.to_string(), detail));
        }
        rustix::io::ioctl_fionbio(&socket, true)
            .map_err(|error| system_error(&address.to_string(), error.into()))?;
        let file = match &address {
            ListenAddress::Unix(path) if !is_activated => {
                let found = std::fs::symlink_metadata(path);
                Some(found.map_or((0, 0), |found| (found.dev(), found.ino())))
            }
            _ => None,
        };
        Ok(Listener { socket, address, file, is_activated })
    }

    /// The socket for another process.
    pub(crate) fn leave(&self) -> Listening {
        let (address, socket) = (self.address.clone(), self.socket.clone());
        Listening { address, socket, is_activated: self.is_activated }
    }

    /// Removes the socket's file, if it is still this socket's.
    pub(crate) fn unlink(&self) {
        let (ListenAddress::Unix(path), Some(file)) = (&self.address, self.file) else { return };
        let found = std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()));
        if found.is_ok_and(|found| found == file)
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!("{}: cannot remove the socket: {error}", path.display());
        }
    }

    /// The URI of an export, as NBD clients take it; of one to be used over TLS if `is_secured`.
    pub(crate) fn uri(&self, export: &str, is_secured: bool) -> String {
        let scheme = if is_secured { "nbds" } else { "nbd" };
        let export = percent_encoded(export.as_bytes());
        match &self.address {
            ListenAddress::Unix(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let path = percent_encoded(path.as_os_str().as_encoded_bytes());
                format!("{scheme}+unix:///{export}?socket={path}")
            }
            ListenAddress::Tcp(address) => format!("{scheme}://{address}/{export}"),
        }
    }
}

fn percent_encoded(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            _ => write!(out, "%{byte:02X}").expect("a string takes everything"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    use super::{ListenAddress, Listener, Listening, SocketRights};

    fn bind(address: &ListenAddress) -> Listener {
        Listener::bind(address, SocketRights::default()).unwrap()
    }

    #[test]
    fn only_its_own_file_is_unlinked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd");
        let first = bind(&ListenAddress::Unix(path.clone()));
        std::fs::rename(&path, folder.path().join("moved")).unwrap();
        let second = bind(&ListenAddress::Unix(path.clone()));
        first.unlink();
        assert!(path.exists());
        second.unlink();
        assert!(!path.exists());
    }

    #[test]
    fn path_of_an_activated_socket_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd");
        let own = bind(&ListenAddress::Unix(path.clone()));
        assert_eq!(ListenAddress::of(&own.socket), Ok(own.address.clone()));
        let given = Listening { is_activated: true, ..own.leave() };
        let activated = Listener::inherited(given).unwrap();
        activated.unlink();
        assert!(path.exists());
        assert!(activated.leave().is_activated && !own.leave().is_activated);
        Listener::inherited(own.leave()).unwrap().unlink();
        assert!(!path.exists());
    }

    #[test]
    fn descriptors_that_do_not_listen_for_streams_are_told_apart() {
        let (stream, _other) = UnixStream::pair().unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = tempfile::tempfile().unwrap();
        let of = |socket: &dyn AsFd| ListenAddress::of(socket.as_fd()).unwrap_err();
        assert_eq!(of(&stream), "a socket that does not listen");
        assert_eq!(of(&udp), "a socket of another type than stream");
        assert_eq!(of(&file), "a descriptor that is no socket");
        let name = format!("cairn-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let nameless = UnixListener::bind_addr(&address).unwrap();
        assert_eq!(of(&nameless), "a unix socket without a path");
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let expected = ListenAddress::Tcp(tcp.local_addr().unwrap());
        assert_eq!(ListenAddress::of(&tcp), Ok(expected));
    }

    #[test]
    fn uris_percent_encode_special_characters() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b?");
        let listener = bind(&ListenAddress::Unix(path));
        let uri = listener.uri("x&y", false);
        assert!(uri.starts_with("nbd+unix:///x%26y?socket=/") && uri.ends_with("/a%20b%3F"));
        let address = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
        let uri = bind(&address).uri("v", false);
        assert!(uri.starts_with("nbd://127.0.0.1:") && uri.ends_with("/v"));
        assert!(listener.uri("v", true).starts_with("nbds+unix:///v?socket=/"));
    }
}
