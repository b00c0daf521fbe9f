//! Listening sockets: where a server can be reached.
//!
//! An address at which a server listens is refused (see `unix_socket` and `occupied`). The path of
//! a unix socket is removed when listening stops, unless another socket has replaced it.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind};
use rustix::net::sockopt;
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

/// A bound, non-blocking socket.
pub(crate) struct Listener {
    pub(crate) socket: Arc<OwnedFd>,
    /// With the port that the system chose.
    pub(crate) address: ListenAddress,
    /// Device and inode of the socket's file.
    file: Option<(u64, u64)>,
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
        })
    }

    /// A socket on which another process listened at this address.
    pub(crate) fn inherited(
        address: ListenAddress,
        socket: OwnedFd,
    ) -> Result<Listener, ConfigError> {
        let is_listening = sockopt::socket_acceptconn(&socket).is_ok_and(|it| it);
        let file = match &address {
            ListenAddress::Unix(path) => {
                let found = std::fs::symlink_metadata(path);
                Some(found.map_or((0, 0), |found| (found.dev(), found.ino())))
            }
            ListenAddress::Tcp(_) => None,
        };
        match is_listening {
            true => Ok(Listener { socket: Arc::new(socket), address, file }),
            false => {
                let detail = "found a descriptor that does not listen, expected a socket that does";
                Err(ConfigError::new(ConfigKind::System, address.to_string(), detail))
            }
        }
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

    /// The URI of an export, as NBD clients take it.
    pub(crate) fn uri(&self, export: &str) -> String {
        let export = percent_encoded(export.as_bytes());
        match &self.address {
            ListenAddress::Unix(path) => {
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let path = percent_encoded(path.as_os_str().as_encoded_bytes());
                format!("nbd+unix:///{export}?socket={path}")
            }
            ListenAddress::Tcp(address) => format!("nbd://{address}/{export}"),
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
    use super::{ListenAddress, Listener, SocketRights};

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
    fn uris_percent_encode_special_characters() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b?");
        let listener = bind(&ListenAddress::Unix(path));
        let uri = listener.uri("x&y");
        assert!(uri.starts_with("nbd+unix:///x%26y?socket=/") && uri.ends_with("/a%20b%3F"));
        let address = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
        let uri = bind(&address).uri("v");
        assert!(uri.starts_with("nbd://127.0.0.1:") && uri.ends_with("/v"));
    }
}
